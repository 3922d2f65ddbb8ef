//! Line charts as SVG: one or more panels, one above the other, with axes whose marks the caller chooses.
//!
//! Training runs and benchmarks use the same pens, so that a color has the same meaning in all plots.

mod axis;
mod panel;
mod pen;

use plotters::prelude::*;

pub use axis::{PlotAxis, between, digit, ends, short, steps};
pub use panel::{Corner, Panel, PlotLine};
pub use pen::Pen;

/// An error of the drawing library; drawing into a string fails only if the library has a bug.
pub type DrawError = Box<dyn std::error::Error + Send + Sync>;

/// An SVG of that many pixels with the panels from top to bottom, all of the same height.
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

/// Colors of plots on a dark background, as a style sheet.
const DARK_STYLE: &str = include_str!("plots.css");

/// Draws panels as an SVG file with a light and a dark form.
///
/// The file has a style sheet for viewers that prefer dark colors. An SVG that is part of an HTML
/// page shares the style sheets of that page: use [`draw`] there.
///
/// # Errors
/// [`DrawError`]
pub fn draw_file(size: (u32, u32), panels: &[Panel]) -> Result<String, DrawError> {
    let svg = draw(size, panels)?;
    let (start, content) = svg.split_once('\n').ok_or("expected an SVG of several lines")?;
    Ok(format!("{start}\n<style>\n{DARK_STYLE}</style>\n{content}"))
}
