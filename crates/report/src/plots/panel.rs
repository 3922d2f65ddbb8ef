//! `Panel`: one chart of a plot, with axes, lines and legend.
use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::series::DashedLineSeries;

use super::axis::PlotAxis;
use super::pen::Pen;

const FONT: &str = "sans-serif";
/// Color of axes and text.
const TEXT_COLOR: RGBColor = RGBColor(51, 51, 51);
/// Color of grid lines and of the border of the legend.
const GRID_COLOR: RGBColor = RGBColor(228, 228, 228);

/// A panel with two axes and lines.
pub struct Panel<'a> {
    /// Title above the panel.
    pub title: String,
    /// Name of the horizontal axis.
    pub x_name: &'a str,
    /// Name of the vertical axis.
    pub y_name: &'a str,
    /// Horizontal axis.
    pub x: PlotAxis,
    /// Vertical axis.
    pub y: PlotAxis,
    /// Formats the tick labels of the horizontal axis.
    pub x_label: Box<dyn Fn(f64) -> String + 'a>,
    /// Formats the tick labels of the vertical axis.
    pub y_label: fn(f64) -> String,
    /// Lines in the order of the legend.
    pub lines: Vec<PlotLine>,
    /// Position of the legend; a single line has no legend.
    pub legend: Corner,
}

/// A corner of a panel.
#[derive(Clone, Copy, Debug)]
pub enum Corner {
    /// Upper left corner.
    UpperLeft,
    /// Upper right corner.
    UpperRight,
}

/// A line through points.
pub struct PlotLine {
    /// Name in the legend.
    pub name: String,
    /// Color and dashes.
    pub pen: Pen,
    /// Points from left to right.
    pub points: Vec<(f64, f64)>,
    /// Horizontal positions of missing values; crosses near the upper edge.
    pub crosses: Vec<f64>,
    /// Meaning of a cross, for the legend.
    pub cross_label: &'static str,
}

impl Panel<'_> {
    /// Draws axes, lines, crosses and legend.
    pub(crate) fn draw(&self, area: &DrawingArea<SVGBackend, Shift>) -> Result<(), super::DrawError> {
        let font = |size: i32| (FONT, size).into_font().color(&TEXT_COLOR);
        let cross_height = self.y.range.end - 0.03 * (self.y.range.end - self.y.range.start);
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, font(17))
            .margin(12)
            .x_label_area_size(42)
            .y_label_area_size(70)
            .build_cartesian_2d(self.x.clone(), self.y.clone())?;
        chart
            .configure_mesh()
            .x_desc(self.x_name)
            .y_desc(self.y_name)
            .x_label_formatter(&|x: &f64| (self.x_label)(*x))
            .y_label_formatter(&|y: &f64| (self.y_label)(*y))
            .axis_style(TEXT_COLOR)
            .bold_line_style(GRID_COLOR)
            .light_line_style(TRANSPARENT)
            .label_style(font(13))
            .axis_desc_style(font(14))
            .draw()?;
        // Lines, points and crosses.
        for PlotLine { name, pen, points, crosses, cross_label } in &self.lines {
            let (Pen { color, dash }, positions) = (*pen, points.iter().copied());
            let style = color.stroke_width(2);
            match dash {
                None => chart.draw_series(LineSeries::new(positions, style))?,
                Some((on, off)) => chart.draw_series(DashedLineSeries::new(positions, on, off, style))?,
            }
            .label(name)
            .legend(move |(x, y)| {
                let (on, off) = dash.unwrap_or((LEGEND_LINE_PIXELS, 0));
                DashedPathElement::new([(x, y), (x + LEGEND_LINE_PIXELS, y)], on, off, style)
            });
            chart.draw_series(points.iter().map(|&point| Circle::new(point, 3, color.filled())))?;
            if !crosses.is_empty() {
                chart
                    .draw_series(crosses.iter().map(|&x| Cross::new((x, cross_height), 5, style)))?
                    .label(format!("{name}: {cross_label}"))
                    .legend(move |(x, y)| Cross::new((x + LEGEND_LINE_PIXELS / 2, y), 5, style));
            }
        }
        // Legend.
        if self.lines.len() > 1 {
            chart
                .configure_series_labels()
                .position(match self.legend {
                    Corner::UpperLeft => SeriesLabelPosition::UpperLeft,
                    Corner::UpperRight => SeriesLabelPosition::UpperRight,
                })
                .border_style(GRID_COLOR)
                .background_style(WHITE.mix(0.85))
                .label_font(font(13))
                .draw()?;
        }
        Ok(())
    }
}

/// Length of a line in the legend, in pixels.
const LEGEND_LINE_PIXELS: i32 = 18;
