//! Line charts as SVG: one or more panels, one above the other.
//!
//! The caller chooses the ticks of the axes. Training runs and benchmarks use the same pens, so
//! that a color has the same meaning in all plots.

mod axis;
mod panel;
mod pen;

use plotters::prelude::*;

pub use axis::{PlotAxis, format_one_digit, min_max};
pub(crate) use axis::{format_short, ticks_between, ticks_to};
pub use panel::{Corner, Panel, PlotLine};
pub use pen::Pen;

/// Error of the plotting library; indicates a bug in the library.
pub type DrawError = Box<dyn std::error::Error + Send + Sync>;

/// Draws panels of equal height from top to bottom; the size is in pixels.
///
/// # Errors
/// [`DrawError`]
pub fn draw((width, height): (u32, u32), panels: &[Panel]) -> Result<String, DrawError> {
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
