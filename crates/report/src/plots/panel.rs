//! One set of axes with its lines.
use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::series::DashedLineSeries;

use super::axis::PlotAxis;
use super::pen::Pen;

const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(51, 51, 51);
const GRID: RGBColor = RGBColor(228, 228, 228);

/// One set of axes.
pub struct Panel<'a> {
    /// Above it.
    pub title: String,
    /// Below the horizontal axis.
    pub x_name: &'a str,
    /// Beside the vertical axis.
    pub y_name: &'a str,
    /// The horizontal axis.
    pub x: PlotAxis,
    /// The vertical axis.
    pub y: PlotAxis,
    /// What is written at a mark of the horizontal axis.
    pub x_label: Box<dyn Fn(f64) -> String + 'a>,
    /// What is written at a mark of the vertical axis.
    pub y_label: fn(f64) -> String,
    /// In the order of the legend.
    pub lines: Vec<PlotLine>,
    /// Where the legend is; there is none for a single line.
    pub legend: Corner,
}

/// A corner of a panel.
#[derive(Clone, Copy, Debug)]
pub enum Corner {
    /// On the left.
    UpperLeft,
    /// On the right.
    UpperRight,
}

/// A line through points.
pub struct PlotLine {
    /// In the legend.
    pub name: String,
    /// How it is drawn.
    pub pen: Pen,
    /// Where each point is, from left to right.
    pub points: Vec<(f64, f64)>,
    /// Where there is a cross instead, near the upper end of the panel: something that has no value.
    pub crosses: Vec<f64>,
    /// What a cross means, in the legend.
    pub crossed: &'static str,
}

impl Panel<'_> {
    pub(crate) fn draw(&self, area: &DrawingArea<SVGBackend, Shift>) -> Result<(), super::DrawError> {
        let font = |size: i32| (FONT, size).into_font().color(&INK);
        let top = self.y.range.end - 0.03 * (self.y.range.end - self.y.range.start);
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
            .axis_style(INK)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .label_style(font(13))
            .axis_desc_style(font(14))
            .draw()?;
        for PlotLine { name, pen, points, crosses, crossed } in &self.lines {
            let (Pen { colour, dash }, at) = (*pen, points.iter().copied());
            let style = colour.stroke_width(2);
            match dash {
                None => chart.draw_series(LineSeries::new(at, style))?,
                Some((on, off)) => chart.draw_series(DashedLineSeries::new(at, on, off, style))?,
            }
            .label(name)
            .legend(move |(x, y)| {
                let (on, off) = dash.unwrap_or((KEY, 0));
                DashedPathElement::new([(x, y), (x + KEY, y)], on, off, style)
            });
            chart.draw_series(points.iter().map(|&point| Circle::new(point, 3, colour.filled())))?;
            if !crosses.is_empty() {
                chart
                    .draw_series(crosses.iter().map(|&x| Cross::new((x, top), 5, style)))?
                    .label(format!("{name}: {crossed}"))
                    .legend(move |(x, y)| Cross::new((x + KEY / 2, y), 5, style));
            }
        }
        if self.lines.len() > 1 {
            chart
                .configure_series_labels()
                .position(match self.legend {
                    Corner::UpperLeft => SeriesLabelPosition::UpperLeft,
                    Corner::UpperRight => SeriesLabelPosition::UpperRight,
                })
                .border_style(GRID)
                .background_style(WHITE.mix(0.85))
                .label_font(font(13))
                .draw()?;
        }
        Ok(())
    }
}

/// Pixels of a line in the legend.
const KEY: i32 = 18;
