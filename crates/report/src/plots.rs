//! Line charts of reports and benchmarks as SVG: panels one above the other.
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

/// Colors of plots on a dark background, as a style sheet.
pub(crate) const DARK_STYLE: &str = include_str!("plots.css");

/// Error of the plotting library; indicates a bug in the library.
pub(crate) type DrawError = Box<dyn std::error::Error + Send + Sync>;

/// Draws panels of equal height from top to bottom; the size is in pixels.
///
/// # Errors
/// [`DrawError`]
pub(crate) fn draw((width, height): (u32, u32), panels: &[Panel]) -> Result<String, DrawError> {
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

/// Draws panels as an SVG file for light and dark backgrounds.
///
/// The file has a style sheet for viewers that prefer dark colors. An SVG that is part of an HTML
/// page shares the style sheets of that page and does not need it.
///
/// # Errors
/// An error of the plotting library, which indicates a bug in the library.
pub fn draw_file(size: (u32, u32), panels: &[Panel]) -> Result<String, DrawError> {
    let svg = draw(size, panels)?;
    let (svg_tag, content) = svg.split_once('\n').ok_or("expected an SVG of several lines")?;
    Ok(format!("{svg_tag}\n<style>\n{DARK_STYLE}</style>\n{content}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_color_of_a_file_has_a_dark_form() {
        let pens = [Pen::BLUE, Pen::GREEN, Pen::CYAN, Pen::ORANGE, Pen::PURPLE, Pen::GRAY];
        let line = |pen| PlotLine {
            name: "line".to_owned(),
            pen,
            points: vec![(0.0, 0.0), (1.0, 1.0)],
            crosses: vec![0.5],
            cross_label: "no value",
        };
        let axis = PlotAxis { range: 0.0..1.0, ticks: vec![0.0, 1.0] };
        let panel = Panel {
            title: "title".to_owned(),
            x_name: "x",
            y_name: "y",
            x: axis.clone(),
            y: axis,
            x_label: Box::new(format_short),
            y_label: format_short,
            lines: pens.map(line).into(),
            legend: Corner::UpperLeft,
        };
        let svg = draw_file((400, 300), &[panel]).unwrap();
        let (_, drawing) = svg.split_once("</style>").unwrap();
        for property in ["fill", "stroke"] {
            let prefix = format!("{property}=\"#");
            for color in drawing.split(prefix.as_str()).skip(1).map(|rest| &rest[..6]) {
                assert!(DARK_STYLE.contains(&format!("[{property}=\"#{color}\"]")), "{property} {color}");
            }
        }
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }
}
