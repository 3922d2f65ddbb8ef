//! The picture of a run: losses above, dev word error rate below, both over the epochs.
use std::error::Error;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;

use crate::metrics::Metrics;

const SIZE: (u32, u32) = (820, 640);
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(51, 51, 51);
const GRID: RGBColor = RGBColor(228, 228, 228);
const BLUE: RGBColor = RGBColor(31, 111, 180);
const ORANGE: RGBColor = RGBColor(226, 122, 28);
const GREEN: RGBColor = RGBColor(44, 140, 85);

/// Plotters' own error is generic; drawing into a string fails only if plotters has a bug.
type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// A linear axis with marks of our own choice: plotters' own are crowded on logarithmic axes.
#[derive(Clone)]
struct Axis {
    range: Range<f64>,
    marks: Vec<f64>,
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        from + (share * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.marks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// One set of axes; a logarithmic one holds the logarithms of its values.
struct Panel {
    title: &'static str,
    y_name: &'static str,
    y: Axis,
    /// What is written beside a mark.
    label: fn(&f64) -> String,
    lines: Vec<Line>,
}

struct Line {
    name: &'static str,
    colour: RGBColor,
    points: Vec<(f64, f64)>,
}

/// An SVG with two panels, one above the other.
pub(crate) fn draw(rows: &[Metrics]) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let (upper, lower) = root.split_vertically(SIZE.1 / 2);
        let epochs = rows.last().map_or(1, |row| row.epoch) as f64;
        losses(rows).draw(&upper, epochs)?;
        word_errors(rows).draw(&lower, epochs)?;
        root.present()?;
    }
    Ok(svg)
}

fn points(rows: &[Metrics], value: impl Fn(&Metrics) -> Option<f64>) -> Vec<(f64, f64)> {
    rows.iter().filter_map(|row| Some((row.epoch as f64, value(row)?))).collect()
}

/// The losses fall over decades, so their axis is logarithmic; a loss of 0 (no such head) is left out.
fn losses(rows: &[Metrics]) -> Panel {
    let log = |loss: f64| (loss > 0.0).then(|| loss.log10());
    let mut lines = vec![
        Line { name: "transducer", colour: BLUE, points: points(rows, |row| log(row.loss)) },
        Line { name: "trivial joiner", colour: GREEN, points: points(rows, |row| log(row.simple_loss)) },
        Line { name: "CTC", colour: ORANGE, points: points(rows, |row| log(row.ctc_loss)) },
    ];
    lines.retain(|line| !line.points.is_empty());
    let values = || lines.iter().flat_map(|line| &line.points).map(|point| point.1);
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
    let (low, high) = if low <= high { (low - 0.1, high + 0.1) } else { (-1.0, 1.0) };
    let marks: &[f64] = if high - low < 3.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let decades = low.floor() as i32..=high.ceil() as i32;
    let marks = decades.flat_map(|decade| marks.iter().map(move |mark| mark.log10() + f64::from(decade)));
    Panel {
        title: "Training loss per utterance",
        y_name: "loss",
        y: Axis { range: low..high, marks: marks.filter(|mark| (low..=high).contains(mark)).collect() },
        // Rounded to a digit, so that 10^0.301… is 2.
        label: |log| digit(10f64.powf(*log)),
        lines,
    }
}

/// A number with one digit that counts.
fn digit(value: f64) -> String {
    let places = (-value.log10() - 1e-9).ceil().max(0.0) as usize;
    format!("{value:.places$}")
}

fn word_errors(rows: &[Metrics]) -> Panel {
    let points = points(rows, |row| row.dev_wer.map(|wer| 100.0 * wer));
    let high = 1.08 * points.iter().map(|point| point.1).fold(1.0, f64::max);
    Panel {
        title: "Word error rate on the dev set",
        y_name: "WER in %",
        y: Axis { range: 0.0..high, marks: steps(high) },
        label: f64::to_string,
        lines: vec![Line { name: "WER", colour: GREEN, points }],
    }
}

/// Round numbers from 0 to `high`, ten at most.
fn steps(high: f64) -> Vec<f64> {
    let decade = 10f64.powf((high / 10.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|mark| mark * decade).into_iter().find(|step| high / step <= 10.0);
    let step = step.unwrap_or(high);
    (0..=(high / step) as u32).map(|k| (f64::from(k) * step * 1e6).round() / 1e6).collect()
}

impl Panel {
    fn draw(&self, area: &DrawingArea<SVGBackend, Shift>, epochs: f64) -> Result<()> {
        let font = |size: i32| (FONT, size).into_font().color(&INK);
        // Epochs are whole, so are their marks.
        let marks = steps(epochs.max(10.0)).into_iter().filter(|&mark| mark <= epochs).collect();
        let x = Axis { range: 0.0..1.02 * epochs, marks };
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, font(18))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(62)
            .build_cartesian_2d(x, self.y.clone())?;
        chart
            .configure_mesh()
            .x_desc("epoch")
            .y_desc(self.y_name)
            .x_label_formatter(&f64::to_string)
            .y_label_formatter(&self.label)
            .axis_style(INK)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .label_style(font(13))
            .axis_desc_style(font(14))
            .draw()?;
        for &Line { name, colour, ref points } in &self.lines {
            chart
                .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
            chart.draw_series(points.iter().map(|&point| Circle::new(point, 2, colour.filled())))?;
        }
        if self.lines.len() > 1 {
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperRight)
                .border_style(GRID)
                .background_style(WHITE)
                .label_font(font(13))
                .draw()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: u64) -> Vec<Metrics> {
        let row = |epoch| Metrics {
            epoch,
            step: 10 * epoch,
            loss: 100.0 / epoch as f64,
            ctc_loss: 0.0,
            simple_loss: 0.0,
            learning_rate: 1e-3,
            gradient_norm: 1.0,
            skipped: 0,
            seconds: 1.0,
            dev_wer: epoch.is_multiple_of(2).then_some(1.0 / epoch as f64),
        };
        (1..=count).map(row).collect()
    }

    #[test]
    fn every_epoch_and_every_evaluation_has_its_point() {
        let svg = draw(&rows(9)).unwrap();
        // No circle for a loss of 0, four for the evaluations at epochs 2, 4, 6 and 8.
        assert_eq!(svg.matches("<circle").count(), 9 + 4);
        for text in ["Training loss", "Word error rate", "epoch", "WER in %"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN"));
    }

    #[test]
    fn short_runs_and_runs_of_zero_loss_have_a_picture_too() {
        for rows in [Vec::new(), rows(1), vec![Metrics { loss: 0.0, ..rows(1)[0].clone() }]] {
            let svg = draw(&rows).unwrap();
            assert!(svg.contains("</svg>") && !svg.contains("NaN") && !svg.contains("inf"));
        }
    }

    #[test]
    fn marks_are_round_and_few() {
        assert_eq!(steps(1.08), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
        assert_eq!(steps(10.0), (0..=10).map(f64::from).collect::<Vec<_>>());
        assert_eq!(steps(25.0), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0]);
        assert_eq!([0.05, 0.1, 0.5, 1.0, 20.0].map(digit), ["0.05", "0.1", "0.5", "1", "20"]);
    }
}
