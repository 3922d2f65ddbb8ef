//! Draws `curve.svg` of a run: losses and dev error rates over epochs.
use training::Metrics;

use crate::plots::{self, Corner, Panel, Pen, PlotAxis, PlotLine, format_one_digit, min_max, ticks_to};
use crate::{Error, Result};

/// Width and height of the plot in pixels.
const PLOT_SIZE: (u32, u32) = (820, 640);
/// Decades of losses from which on only whole decades have ticks.
const MAX_DECADES: f64 = 3.0;
/// Space above and below the losses, in decades.
const LOG_MARGIN: f64 = 0.1;
/// Length of the error rate axis relative to the largest error rate.
const ERROR_AXIS_LENGTH: f64 = 1.08;
/// Length of the epoch axis relative to the last epoch.
const EPOCH_AXIS_LENGTH: f64 = 1.02;

/// Draws `curve.svg` of a run folder: losses above dev error rates, over the epochs.
///
/// # Errors
/// [`Error::Plot`]
pub fn draw_run_curve(rows: &[Metrics]) -> Result<String> {
    plots::draw_file(PLOT_SIZE, &[loss_panel(rows), error_rate_panel(rows)]).map_err(Error::Plot)
}

/// Plots the losses on a logarithmic axis.
///
/// A loss of 0 (the model has no such head) is left out.
fn loss_panel(rows: &[Metrics]) -> Panel<'static> {
    let log = |loss: f64| (loss > 0.0).then(|| loss.log10());
    let mut lines = vec![
        line("transducer", Pen::BLUE, rows, |row| log(row.loss)),
        line("simple", Pen::GREEN, rows, |row| log(row.simple_loss)),
        line("CTC", Pen::ORANGE, rows, |row| log(row.ctc_loss)),
    ];
    lines.retain(|line| !line.points.is_empty());
    let values = lines.iter().flat_map(|line| &line.points).map(|point| point.1);
    let (low, high) =
        min_max(values).map_or((-1.0, 1.0), |(low, high)| (low - LOG_MARGIN, high + LOG_MARGIN));
    let y = PlotAxis::decades(low, high, MAX_DECADES);
    panel("Training loss per utterance", "loss", y, |log| format_one_digit(10f64.powf(log)), lines, rows)
}

/// Plots word and character error rates of the dev set.
fn error_rate_panel(rows: &[Metrics]) -> Panel<'static> {
    let lines = vec![
        line("WER", Pen::GREEN, rows, |row| row.dev_wer.map(|wer| 100.0 * wer)),
        line("CER", Pen::ORANGE, rows, |row| row.dev_cer.map(|cer| 100.0 * cer)),
    ];
    let largest_rate = lines.iter().flat_map(|line| &line.points).map(|point| point.1).fold(1.0, f64::max);
    let high = ERROR_AXIS_LENGTH * largest_rate;
    let y = PlotAxis { range: 0.0..high, ticks: ticks_to(high) };
    panel("Error rate on the dev set", "error rate in %", y, |rate| rate.to_string(), lines, rows)
}

/// Creates a line through the finite values of the epochs.
fn line(name: &'static str, pen: Pen, rows: &[Metrics], value: impl Fn(&Metrics) -> Option<f64>) -> PlotLine {
    // The rate of references without words is not finite.
    let value = |row| value(row).filter(|value| value.is_finite());
    let points = rows.iter().filter_map(|row| Some((row.epoch as f64, value(row)?))).collect();
    PlotLine { name: name.to_owned(), pen, points, crosses: Vec::new(), cross_label: "" }
}

/// Creates a panel over the epochs.
fn panel(
    title: &'static str,
    y_name: &'static str,
    y: PlotAxis,
    y_label: fn(f64) -> String,
    lines: Vec<PlotLine>,
    rows: &[Metrics],
) -> Panel<'static> {
    let last_epoch = rows.last().map_or(1, |row| row.epoch) as f64;
    // Ticks are at whole epochs.
    let ticks = ticks_to(last_epoch.max(10.0)).into_iter().filter(|&tick| tick <= last_epoch).collect();
    Panel {
        title: title.to_owned(),
        x_name: "epoch",
        y_name,
        x: PlotAxis { range: 0.0..EPOCH_AXIS_LENGTH * last_epoch, ticks },
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

    fn metrics_rows(count: u64) -> Vec<Metrics> {
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
    fn every_epoch_and_every_evaluation_has_a_point() {
        let svg = draw_run_curve(&metrics_rows(9)).unwrap();
        // Losses of all epochs but none of 0; WER at epochs 2, 4, 6 and 8, CER at 3, 6 and 9.
        assert_eq!(svg.matches("<circle").count(), 9 + 4 + 3);
        for text in ["Training loss", "Error rate", "epoch", "error rate in %", "WER", "CER"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN"));
    }

    #[test]
    fn short_runs_and_zero_losses_can_be_plotted() {
        let row = metrics_rows(1)[0].clone();
        let infinite = Metrics { dev_wer: Some(f64::INFINITY), dev_cer: Some(f64::NAN), ..row.clone() };
        for rows in [Vec::new(), metrics_rows(1), vec![Metrics { loss: 0.0, ..row }], vec![infinite]] {
            let svg = draw_run_curve(&rows).unwrap();
            assert!(svg.contains("</svg>") && !svg.contains("NaN") && !svg.contains("inf"));
        }
    }
}
