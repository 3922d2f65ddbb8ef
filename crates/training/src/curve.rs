//! The picture of a run: losses above, dev word error rate below, both over the epochs.
use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::run_folder::Metrics;

const SIZE: (u32, u32) = (820, 640);
const INK: RGBColor = RGBColor(51, 51, 51);
const GRID: RGBColor = RGBColor(228, 228, 228);
const BLUE: RGBColor = RGBColor(31, 111, 180);
const ORANGE: RGBColor = RGBColor(226, 122, 28);
const GREEN: RGBColor = RGBColor(44, 140, 85);

type Drawn = Result<(), Box<dyn std::error::Error + Send + Sync>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A line of a panel: its name, its colour, its points.
type Line<'a> = (&'a str, RGBColor, Vec<(f64, f64)>);

/// An SVG with two panels, one above the other.
pub(crate) fn draw(rows: &[Metrics]) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let (upper, lower) = root.split_vertically(SIZE.1 / 2);
        let points = |value: fn(&Metrics) -> Option<f64>| -> Vec<(f64, f64)> {
            rows.iter().filter_map(|row| Some((row.epoch as f64, value(row)?))).collect()
        };
        let positive = |value: f64| (value > 0.0).then_some(value);
        let _ = positive;
        let last = rows.last().map_or(1, |row| row.epoch).max(2) as f64;
        losses(
            &upper,
            0.0..last * 1.02,
            &[
                ("transducer", BLUE, points(|row| (row.loss > 0.0).then_some(row.loss))),
                ("CTC", ORANGE, points(|row| (row.ctc_loss > 0.0).then_some(row.ctc_loss))),
            ],
        )?;
        errors(&lower, 0.0..last * 1.02, points(|row| row.dev_wer.map(|wer| 100.0 * wer)))?;
        root.present()?;
    }
    Ok(svg)
}

fn losses(area: &Area, epochs: Range<f64>, lines: &[Line]) -> Drawn {
    let values = || lines.iter().flat_map(|line| &line.2).map(|point| point.1);
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    let (low, high) = if low.is_finite() { (low / 1.3, high * 1.3) } else { (0.1, 1.0) };
    let mut chart = ChartBuilder::on(area)
        .caption("Training loss of an utterance", ("sans-serif", 17).into_font().color(&INK))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(62)
        .build_cartesian_2d(epochs, (low..high).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("epoch")
        .y_desc("loss, log scale")
        .axis_style(INK)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .label_style(("sans-serif", 13).into_font().color(&INK))
        .axis_desc_style(("sans-serif", 14).into_font().color(&INK))
        .draw()?;
    for (name, colour, points) in lines.iter().filter(|line| !line.2.is_empty()) {
        let colour = *colour;
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .border_style(GRID)
        .background_style(WHITE)
        .label_font(("sans-serif", 13).into_font().color(&INK))
        .draw()?;
    Ok(())
}

fn errors(area: &Area, epochs: Range<f64>, points: Vec<(f64, f64)>) -> Drawn {
    let high = points.iter().map(|point| point.1).fold(0.0, f64::max).max(1.0) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption("Word error rate on the dev set", ("sans-serif", 17).into_font().color(&INK))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(62)
        .build_cartesian_2d(epochs, 0.0..high)?;
    chart
        .configure_mesh()
        .x_desc("epoch")
        .y_desc("WER in %")
        .axis_style(INK)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .label_style(("sans-serif", 13).into_font().color(&INK))
        .axis_desc_style(("sans-serif", 14).into_font().color(&INK))
        .draw()?;
    chart.draw_series(LineSeries::new(points.iter().copied(), GREEN.stroke_width(2)))?;
    chart.draw_series(points.iter().map(|&point| Circle::new(point, 3, GREEN.filled())))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn look() {
        for name in ["an4_a", "fsdd_m", "x"] {
            let mut reader = csv::Reader::from_path(format!("/tmp/{name}/metrics.csv")).unwrap();
            let rows: Vec<Metrics> = reader.deserialize().collect::<Result<_, _>>().unwrap();
            std::fs::write(format!("/tmp/curve_{name}.svg"), draw(&rows).unwrap()).unwrap();
        }
    }
}
