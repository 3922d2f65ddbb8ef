//! The plot of a run: losses above, dev error rates below, both over the epochs.
use training::Metrics;

use crate::plots::{self, Corner, Panel, Pen, PlotAxis, PlotLine, digit, ends, steps};
use crate::{Error, Result};

const SIZE: (u32, u32) = (820, 640);

/// Draws `curve.svg` of a run folder: losses above dev error rates, over the epochs.
///
/// # Errors
/// [`Error::Plot`]
pub fn draw_run_curve(rows: &[Metrics]) -> Result<String> {
    plots::draw_file(SIZE, &[losses(rows), error_rates(rows)]).map_err(Error::Plot)
}

/// The losses fall over decades, so their axis is logarithmic; a loss of 0 (no such head) is left out.
fn losses(rows: &[Metrics]) -> Panel<'static> {
    let log = |loss: f64| (loss > 0.0).then(|| loss.log10());
    let mut lines = vec![
        line("transducer", Pen::BLUE, rows, |row| log(row.loss)),
        line("trivial joiner", Pen::GREEN, rows, |row| log(row.simple_loss)),
        line("CTC", Pen::ORANGE, rows, |row| log(row.ctc_loss)),
    ];
    lines.retain(|line| !line.points.is_empty());
    let values = lines.iter().flat_map(|line| &line.points).map(|point| point.1);
    let (low, high) = ends(values).map_or((-1.0, 1.0), |(low, high)| (low - 0.1, high + 0.1));
    let y = PlotAxis::decades(low, high, 3.0);
    panel("Training loss per utterance", "loss", y, |log| digit(10f64.powf(log)), lines, rows)
}

fn error_rates(rows: &[Metrics]) -> Panel<'static> {
    let lines = vec![
        line("WER", Pen::GREEN, rows, |row| row.dev_wer.map(|wer| 100.0 * wer)),
        line("CER", Pen::ORANGE, rows, |row| row.dev_cer.map(|cer| 100.0 * cer)),
    ];
    let high = 1.08 * lines.iter().flat_map(|line| &line.points).map(|point| point.1).fold(1.0, f64::max);
    let y = PlotAxis { range: 0.0..high, marks: steps(high) };
    panel("Error rates on the dev set", "errors in %", y, |rate| rate.to_string(), lines, rows)
}

fn line(name: &'static str, pen: Pen, rows: &[Metrics], value: impl Fn(&Metrics) -> Option<f64>) -> PlotLine {
    // A rate over references without a word is no number to draw.
    let value = |row| value(row).filter(|value| value.is_finite());
    let points = rows.iter().filter_map(|row| Some((row.epoch as f64, value(row)?))).collect();
    PlotLine { name: name.to_owned(), pen, points, crosses: Vec::new(), crossed: "" }
}

fn panel(
    title: &'static str,
    y_name: &'static str,
    y: PlotAxis,
    y_label: fn(f64) -> String,
    lines: Vec<PlotLine>,
    rows: &[Metrics],
) -> Panel<'static> {
    let epochs = rows.last().map_or(1, |row| row.epoch) as f64;
    // Epochs are whole, so are their marks.
    let marks = steps(epochs.max(10.0)).into_iter().filter(|&mark| mark <= epochs).collect();
    Panel {
        title: title.to_owned(),
        x_name: "epoch",
        y_name,
        x: PlotAxis { range: 0.0..1.02 * epochs, marks },
        y,
        x_label: Box::new(|epoch| epoch.to_string()),
        y_label,
        lines,
        legend: Corner::UpperRight,
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
            nonfinite: 0,
            padding: 0.0,
            planned_bytes: 0,
            resident_bytes: 0,
            seconds: 1.0,
            dev_wer: epoch.is_multiple_of(2).then_some(1.0 / epoch as f64),
            dev_cer: epoch.is_multiple_of(3).then_some(0.5 / epoch as f64),
        };
        (1..=count).map(row).collect()
    }

    #[test]
    fn every_epoch_and_every_evaluation_has_its_point() {
        let svg = draw_run_curve(&rows(9)).unwrap();
        // No circle for a loss of 0, four for words at epochs 2, 4, 6 and 8, three for characters at 3, 6 and 9.
        assert_eq!(svg.matches("<circle").count(), 9 + 4 + 3);
        for text in ["Training loss", "Error rates", "epoch", "errors in %", "WER", "CER"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN"));
    }

    #[test]
    fn short_runs_and_runs_of_zero_loss_have_a_picture_too() {
        let one = rows(1)[0].clone();
        let silent = Metrics { dev_wer: Some(f64::INFINITY), dev_cer: Some(f64::NAN), ..one.clone() };
        for rows in [Vec::new(), rows(1), vec![Metrics { loss: 0.0, ..one }], vec![silent]] {
            let svg = draw_run_curve(&rows).unwrap();
            assert!(svg.contains("</svg>") && !svg.contains("NaN") && !svg.contains("inf"));
        }
    }
}
