//! Draws the report's training curves from `metrics.csv`: losses, error rates, memory.
//!
//! Each group of columns, such as all losses, has one plot; each unknown column has its own.
use crate::columns::{Column, Columns};
use crate::plots::{self, Corner, Panel, Pen, PlotAxis, PlotLine, format_short, min_max, ticks_between};
use crate::{Error, Result};

/// Width and height of a plot in pixels, legible on a telephone.
const PLOT_SIZE: (u32, u32) = (440, 270);
/// Pens of the curves, in the order of the columns.
const PENS: [Pen; 6] = [Pen::BLUE, Pen::ORANGE, Pen::GREEN, Pen::PURPLE, Pen::CYAN, Pen::GRAY];
/// Ratio of maximum to minimum above which an axis is logarithmic.
const LOG_AXIS_RATIO: f64 = 30.0;
/// Decades from which on only whole decades have ticks.
const MAX_DECADES: f64 = 2.0;
/// Space above and below the values of a logarithmic axis, in decades.
const LOG_MARGIN: f64 = 0.1;
/// Space above the values of a linear axis, relative to their range.
const LINEAR_MARGIN: f64 = 0.08;
/// [`LINEAR_MARGIN`] with a legend.
const LEGEND_MARGIN: f64 = 0.25;
/// Length of the horizontal axis relative to the last epoch.
const EPOCH_AXIS_LENGTH: f64 = 1.02;
/// Bytes of a mebibyte.
const MIB: f64 = 1_048_576.0;

/// Columns of `metrics.csv` that share one plot.
struct CurveGroup {
    title: String,
    unit: &'static str,
    /// Factor from the values of the table to the unit.
    factor: f64,
    /// Indices of the columns of the table.
    columns: Vec<usize>,
}

/// Title, unit, factor, and predicate on column names.
type GroupRule = (&'static str, &'static str, f64, fn(&str) -> bool);

/// Rules of the known groups, in the order of the page.
const GROUP_RULES: [GroupRule; 7] = [
    ("Training loss per utterance", "nats", 1.0, |name| name == "loss" || name.ends_with("_loss")),
    ("Error rate on the dev set", "%", 100.0, |name| name.ends_with("_wer") || name.ends_with("_cer")),
    ("Learning rate", "step size", 1.0, |name| name.ends_with("learning_rate")),
    ("Gradient norm before clipping", "norm", 1.0, |name| name.starts_with("gradient_norm")),
    ("Padding", "% of frames", 100.0, |name| name.starts_with("padding")),
    ("Memory", "MiB", 1.0 / MIB, |name| name.ends_with("_bytes")),
    ("Time per epoch", "s", 1.0, |name| name == "seconds"),
];

/// Returns title and SVG of each plot.
///
/// Columns without values and columns of zeros are left out.
pub(crate) fn draw(metrics: &Columns) -> Result<Vec<(String, String)>> {
    let has_values = |index: &usize| {
        let Column { name, values } = &metrics.columns[*index];
        name != "step" && values.iter().any(|value| value.is_some_and(|value| value != 0.0))
    };
    let mut remaining: Vec<usize> = (0..metrics.columns.len()).filter(has_values).collect();
    let mut groups: Vec<CurveGroup> = Vec::new();
    for (title, unit, factor, contains) in GROUP_RULES {
        let (columns, rest) =
            remaining.into_iter().partition(|&index| contains(&metrics.columns[index].name));
        remaining = rest;
        groups.push(CurveGroup { title: title.to_owned(), unit, factor, columns });
    }
    groups.extend(remaining.into_iter().map(|index| {
        let title = metrics.columns[index].name.clone();
        CurveGroup { title, unit: "", factor: 1.0, columns: vec![index] }
    }));
    let groups = groups.into_iter().filter(|group| !group.columns.is_empty());
    groups.map(|group| Ok((group.title.clone(), draw_group(&group, metrics)?))).collect()
}

/// Draws the plot of a group as SVG.
fn draw_group(group: &CurveGroup, metrics: &Columns) -> Result<String> {
    // Range of the values, and whether the axis is logarithmic.
    let scaled_values = || {
        let values = group.columns.iter().flat_map(|&index| metrics.columns[index].values.iter().flatten());
        values.map(|value| value * group.factor)
    };
    let (low, high) = min_max(scaled_values()).unwrap_or((0.0, 1.0));
    // A loss of 0 (no such head in this epoch) does not affect the choice of the axis.
    let positive_range = min_max(scaled_values().filter(|&value| value > 0.0));
    let is_log = low >= 0.0 && positive_range.is_some_and(|(low, high)| high / low > LOG_AXIS_RATIO);
    // Curve of each column.
    let line = |(&index, pen): (&usize, Pen)| {
        let Column { name, values } = &metrics.columns[index];
        let axis_value = |value: f64| match is_log {
            true => (value > 0.0).then(|| value.log10()),
            false => Some(value),
        };
        let points = metrics.epochs.iter().zip(values);
        let points = points.filter_map(|(&epoch, cell)| Some((epoch, axis_value((*cell)? * group.factor)?)));
        PlotLine {
            name: legend_name(name),
            pen,
            points: points.collect(),
            crosses: Vec::new(),
            cross_label: "",
        }
    };
    // Vertical axis.
    let y = match positive_range.filter(|_| is_log) {
        Some((low, high)) => {
            PlotAxis::decades(low.log10() - LOG_MARGIN, high.log10() + LOG_MARGIN, MAX_DECADES)
        }
        None => {
            let has_legend = group.columns.len() > 1;
            let margin = if has_legend { LEGEND_MARGIN } else { LINEAR_MARGIN };
            let margin = margin * (high - low.min(0.0)).max(f64::MIN_POSITIVE);
            let (low, high) = (if low < 0.0 { low - margin } else { 0.0 }, high.max(0.0) + margin);
            PlotAxis { range: low..high, ticks: ticks_between(low, high) }
        }
    };
    // Horizontal axis, with ticks at whole epochs.
    let last_epoch = metrics.epochs.iter().copied().fold(1.0, f64::max);
    let ticks = ticks_between(0.0, last_epoch.max(5.0)).into_iter();
    let ticks = ticks.filter(|tick| tick.fract() == 0.0 && *tick <= last_epoch);
    let panel = Panel {
        title: group.title.clone(),
        x_name: "epoch",
        y_name: group.unit,
        x: PlotAxis { range: 0.0..EPOCH_AXIS_LENGTH * last_epoch, ticks: ticks.collect() },
        y,
        x_label: Box::new(format_short),
        y_label: if is_log { |value| format_short(10f64.powf(value)) } else { format_short },
        lines: group.columns.iter().zip(PENS.into_iter().cycle()).map(line).collect(),
        legend: Corner::UpperRight,
    };
    plots::draw(PLOT_SIZE, &[panel]).map_err(Error::Plot)
}

/// Returns the name of a column in the legend.
fn legend_name(name: &str) -> String {
    match name {
        "loss" => "transducer".to_owned(),
        "ctc_loss" => "CTC".to_owned(),
        "simple_loss" => "simple".to_owned(),
        "dev_wer" => "WER".to_owned(),
        "dev_cer" => "CER".to_owned(),
        name => name.trim_end_matches("_bytes").replace('_', " "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics_of(columns: &[(&str, &[Option<f64>])]) -> Columns {
        let rows = columns[0].1.len();
        Columns {
            epochs: (1..=rows).map(|epoch| epoch as f64).collect(),
            columns: columns
                .iter()
                .map(|(name, values)| Column { name: name.to_string(), values: values.to_vec() })
                .collect(),
        }
    }

    #[test]
    fn every_column_with_values_has_a_curve() {
        let drawn = draw(&metrics_of(&[
            ("step", &[Some(5.0), Some(10.0)]),
            ("loss", &[Some(100.0), Some(1.0)]),
            ("ctc_loss", &[Some(0.0), Some(0.0)]),
            ("dev_wer", &[None, Some(0.2)]),
            ("dev_cer", &[None, None]),
            ("planned_bytes", &[Some(2e9), Some(2e9)]),
            ("resident_bytes", &[Some(1e9), Some(1.5e9)]),
            ("tea <cups>", &[Some(-3.0), Some(4.0)]),
        ]))
        .unwrap();
        let titles: Vec<&str> = drawn.iter().map(|(title, _)| title.as_str()).collect();
        assert_eq!(
            titles,
            ["Training loss per utterance", "Error rate on the dev set", "Memory", "tea <cups>"]
        );
        let points = |index: usize| drawn[index].1.matches("<circle").count();
        assert_eq!([points(0), points(1), points(2), points(3)], [2, 1, 4, 2]);
        assert!(drawn[2].1.contains("planned") && drawn[2].1.contains("resident"));
        assert!(drawn[3].1.contains("tea &lt;cups&gt;"), "{}", drawn[3].1);
        assert!(drawn.iter().all(|(_, svg)| !svg.contains("NaN") && !svg.contains("inf")));
    }

    #[test]
    fn single_epochs_and_equal_values_have_curves() {
        for values in [&[Some(3.0)][..], &[Some(3.0), Some(3.0)], &[Some(1e-9), None], &[Some(-2.0)]] {
            let drawn = draw(&metrics_of(&[("learning_rate", values)])).unwrap();
            assert!(drawn[0].1.contains("<circle") && !drawn[0].1.contains("NaN"), "{values:?}");
        }
        assert!(draw(&Columns::default()).unwrap().is_empty());
    }
}
