//! Line charts as SVG: one or more panels, one above the other, with axes whose marks the caller chooses.
//!
//! Runs of training and benchmarks draw with the same pens, so that a colour means the same in all pictures.
#![warn(missing_docs)]

mod axis;
mod panel;
mod pen;

use plotters::prelude::*;

pub use axis::{Axis, between, digit, ends, short, steps};
pub use panel::{Corner, Line, Panel};
pub use pen::Pen;

/// What the drawing library said; drawing into a string fails only if it has a bug.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// An SVG of that many pixels with the panels from top to bottom, all of the same height.
///
/// # Errors
/// [`Error`]
pub fn draw((width, height): (u32, u32), panels: &[Panel]) -> Result<String, Error> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
        root.fill(&WHITE)?;
        for (panel, area) in panels.iter().zip(root.split_evenly((panels.len().max(1), 1))) {
            panel.draw(&area)?;
        }
        root.present()?;
    }
    Ok(svg)
}
