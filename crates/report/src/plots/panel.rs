//! `Panel`: one chart of an SVG plot, with axes, lines and legend.
use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::series::DashedLineSeries;

use super::axis::PlotAxis;
use super::pen::Pen;

const FONT: &str = "sans-serif";
/// Font sizes in pixels.
const TITLE_SIZE: i32 = 17;
const AXIS_NAME_SIZE: i32 = 14;
const LABEL_SIZE: i32 = 13;
/// Space around a panel in pixels.
const MARGIN: i32 = 12;
/// Space below the horizontal axis in pixels.
const X_LABEL_HEIGHT: i32 = 42;
/// Space left of the vertical axis in pixels.
const Y_LABEL_WIDTH: i32 = 70;
/// Widths of lines, points and crosses in pixels.
const LINE_WIDTH: u32 = 2;
const POINT_RADIUS: i32 = 3;
const CROSS_RADIUS: i32 = 5;
/// Distance of crosses from the upper edge, relative to the axis.
const CROSS_DISTANCE: f64 = 0.03;
/// Opacity of the background of the legend.
const LEGEND_OPACITY: f64 = 0.85;
/// Length of a line in the legend, in pixels.
const LEGEND_LINE_PIXELS: i32 = 18;
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
        let cross_height = self.y.range.end - CROSS_DISTANCE * (self.y.range.end - self.y.range.start);
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, font(TITLE_SIZE))
            .margin(MARGIN)
            .x_label_area_size(X_LABEL_HEIGHT)
            .y_label_area_size(Y_LABEL_WIDTH)
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
            .label_style(font(LABEL_SIZE))
            .axis_desc_style(font(AXIS_NAME_SIZE))
            .draw()?;
        // Lines, points and crosses.
        for PlotLine { name, pen, points, crosses, cross_label } in &self.lines {
            let (Pen { color, dash }, positions) = (*pen, points.iter().copied());
            let style = color.stroke_width(LINE_WIDTH);
            match dash {
                None => chart.draw_series(LineSeries::new(positions, style))?,
                Some((on, off)) => chart.draw_series(DashedLineSeries::new(positions, on, off, style))?,
            }
            .label(name)
            .legend(move |(x, y)| {
                let (on, off) = dash.unwrap_or((LEGEND_LINE_PIXELS, 0));
                DashedPathElement::new([(x, y), (x + LEGEND_LINE_PIXELS, y)], on, off, style)
            });
            chart
                .draw_series(points.iter().map(|&point| Circle::new(point, POINT_RADIUS, color.filled())))?;
            if !crosses.is_empty() {
                chart
                    .draw_series(crosses.iter().map(|&x| Cross::new((x, cross_height), CROSS_RADIUS, style)))?
                    .label(format!("{name}: {cross_label}"))
                    .legend(move |(x, y)| Cross::new((x + LEGEND_LINE_PIXELS / 2, y), CROSS_RADIUS, style));
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
                .background_style(WHITE.mix(LEGEND_OPACITY))
                .label_font(font(LABEL_SIZE))
                .draw()?;
        }
        Ok(())
    }
}
