//! `PlotAxis`: axes of report plots with custom ticks, linear or logarithmic.
//!
//! The ticks of the library `plotters` are too dense on logarithmic axes.
use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};

/// Distances of ticks in a decade; the last one is the first of the next decade.
const TICK_DISTANCES: [f64; 4] = [1.0, 2.0, 5.0, 10.0];
/// Most distances between ticks of [`ticks_to`] and of [`ticks_between`].
const MAX_STEPS_TO: f64 = 10.0;
const MAX_STEPS_BETWEEN: f64 = 8.0;

/// A linear axis; values of a logarithmic axis are logarithms to base 10.
#[derive(Clone, Debug)]
pub struct PlotAxis {
    /// Range of values, from left to right or from bottom to top.
    pub range: Range<f64>,
    /// Positions of grid lines and labels.
    pub ticks: Vec<f64>,
}

impl PlotAxis {
    /// Creates a logarithmic axis with ticks at 1, 2 and 5 of each decade.
    ///
    /// From `max_decades` decades on, only whole decades have ticks. All arguments are logarithms
    /// to base 10.
    pub fn decades(low: f64, high: f64, max_decades: f64) -> Self {
        let digits: &[f64] = if high - low < max_decades { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let decades = low.floor() as i32..=high.ceil() as i32;
        let ticks =
            decades.flat_map(|decade| digits.iter().map(move |digit| digit.log10() + f64::from(decade)));
        Self { range: low..high, ticks: ticks.filter(|tick| (low..=high).contains(tick)).collect() }
    }
}

impl Ranged for PlotAxis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (start_pixel, end_pixel): (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        start_pixel + (share * f64::from(end_pixel - start_pixel)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// Returns minimum and maximum; `None` for no values.
pub fn min_max(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((low, high)) => Some((f64::min(low, value), f64::max(high, value))),
    })
}

/// Formats a number with one significant digit, so that 10^0.301… is 2.
pub fn format_one_digit(value: f64) -> String {
    // 1e-9: a power of ten with a rounding error counts as that power.
    let decimals = (-value.log10() - 1e-9).ceil().max(0.0) as usize;
    format!("{value:.decimals$}")
}

/// Returns round numbers from 0 to `high`, at most eleven.
pub(crate) fn ticks_to(high: f64) -> Vec<f64> {
    let decade = 10f64.powf((high / MAX_STEPS_TO).log10().floor());
    let steps = TICK_DISTANCES.map(|distance| distance * decade);
    let step = steps.into_iter().find(|step| high / step <= MAX_STEPS_TO).unwrap_or(high);
    // Rounded, so that a label has no digits of a rounding error.
    (0..=(high / step) as u32).map(|k| (f64::from(k) * step * 1e6).round() / 1e6).collect()
}

/// Returns round numbers from `low` to `high`, at most nine.
pub(crate) fn ticks_between(low: f64, high: f64) -> Vec<f64> {
    let decade = 10f64.powf(((high - low) / MAX_STEPS_BETWEEN).log10().floor());
    let steps = TICK_DISTANCES.map(|distance| distance * decade);
    let step = steps.into_iter().find(|step| (high - low) / step <= MAX_STEPS_BETWEEN);
    match step.filter(|step| step.is_finite() && *step > 0.0) {
        Some(step) => {
            ((low / step).ceil() as i64..=(high / step).floor() as i64).map(|k| k as f64 * step).collect()
        }
        None => vec![low],
    }
}

/// Formats a number with at most four significant digits.
///
/// Very large and very small numbers are in scientific notation.
pub(crate) fn format_short(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    if !(1e-2..1e6).contains(&magnitude) {
        let text = format!("{value:.1e}");
        return text.replace(".0e", "e");
    }
    let decimals = (3.0 - magnitude.log10().floor()).max(0.0) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_any_size_have_short_labels() {
        let labels = |low, high| ticks_between(low, high).into_iter().map(format_short).collect::<Vec<_>>();
        assert_eq!(labels(0.0, 2.1e-5), ["0", "5e-6", "1e-5", "1.5e-5", "2e-5"]);
        assert_eq!(labels(-1.2, 1.0), ["-1", "-0.5", "0", "0.5", "1"]);
        assert_eq!(labels(990.0, 1010.0), ["990", "995", "1000", "1005", "1010"]);
        assert_eq!(labels(3.0, 3.0), ["3"]);
        assert_eq!([0.0, 1234.56, 0.012_345, 3e9].map(format_short), ["0", "1235", "0.01235", "3e9"]);
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(ticks_to(1.08), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
        assert_eq!(ticks_to(10.0), (0..=10).map(f64::from).collect::<Vec<_>>());
        assert_eq!(ticks_to(25.0), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0]);
        assert_eq!([0.05, 0.1, 0.5, 1.0, 20.0].map(format_one_digit), ["0.05", "0.1", "0.5", "1", "20"]);
    }

    #[test]
    fn ticks_of_decades_are_within_the_range() {
        let labels = |max_decades| -> Vec<String> {
            let ticks = PlotAxis::decades(-0.1, 1.5, max_decades).ticks;
            ticks.into_iter().map(|log| format_one_digit(10f64.powf(log))).collect()
        };
        assert_eq!(labels(3.0), ["1", "2", "5", "10", "20"]);
        assert_eq!(labels(1.0), ["1", "10"]);
        assert_eq!(min_max([3.0, -1.0, 2.0].into_iter()), Some((-1.0, 3.0)));
        assert_eq!(min_max(std::iter::empty()), None);
    }
}
