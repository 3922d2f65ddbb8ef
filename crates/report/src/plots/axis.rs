//! Axes with marks of one's own choice: plotters' own are crowded on logarithmic axes.
use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};

/// A linear axis; a logarithmic one holds the logarithms of its values, to base 10.
#[derive(Clone, Debug)]
pub struct PlotAxis {
    /// From the lower or left end to the other.
    pub range: Range<f64>,
    /// Where there are lines and labels.
    pub marks: Vec<f64>,
}

impl PlotAxis {
    /// An axis of logarithms with marks at 1, 2 and 5 of each decade, or at the decades alone where there are `many` and more.
    pub fn decades(low: f64, high: f64, many: f64) -> Self {
        let steps: &[f64] = if high - low < many { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let decades = low.floor() as i32..=high.ceil() as i32;
        let marks = decades.flat_map(|decade| steps.iter().map(move |step| step.log10() + f64::from(decade)));
        Self { range: low..high, marks: marks.filter(|mark| (low..=high).contains(mark)).collect() }
    }
}

impl Ranged for PlotAxis {
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

/// The smallest and the largest; `None` for nothing.
pub fn ends(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |ends, value| match ends {
        None => Some((value, value)),
        Some((low, high)) => Some((f64::min(low, value), f64::max(high, value))),
    })
}

/// A number with one digit that counts, so that 10^0.301… is 2.
pub fn digit(value: f64) -> String {
    let places = (-value.log10() - 1e-9).ceil().max(0.0) as usize;
    format!("{value:.places$}")
}

/// Round numbers from 0 to `high`, eleven at most.
pub fn steps(high: f64) -> Vec<f64> {
    let decade = 10f64.powf((high / 10.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|mark| mark * decade).into_iter().find(|step| high / step <= 10.0);
    let step = step.unwrap_or(high);
    (0..=(high / step) as u32).map(|k| (f64::from(k) * step * 1e6).round() / 1e6).collect()
}

/// Round numbers from `low` to `high`, nine at most.
pub fn between(low: f64, high: f64) -> Vec<f64> {
    let decade = 10f64.powf(((high - low) / 8.0).log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].map(|mark| mark * decade).into_iter().find(|step| (high - low) / step <= 8.0);
    match step.filter(|step| step.is_finite() && *step > 0.0) {
        Some(step) => {
            ((low / step).ceil() as i64..=(high / step).floor() as i64).map(|k| k as f64 * step).collect()
        }
        None => vec![low],
    }
}

/// A number with at most four digits that count, very large and very small ones by their power of ten.
pub fn short(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    if !(1e-2..1e6).contains(&size) {
        let text = format!("{value:.1e}");
        return text.replace(".0e", "e");
    }
    let places = (3.0 - size.log10().floor()).max(0.0) as usize;
    let text = format!("{value:.places$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_any_size_and_their_names() {
        let names = |low, high| between(low, high).into_iter().map(short).collect::<Vec<_>>();
        assert_eq!(names(0.0, 2.1e-5), ["0", "5e-6", "1e-5", "1.5e-5", "2e-5"]);
        assert_eq!(names(-1.2, 1.0), ["-1", "-0.5", "0", "0.5", "1"]);
        assert_eq!(names(990.0, 1010.0), ["990", "995", "1000", "1005", "1010"]);
        assert_eq!(names(3.0, 3.0), ["3"]);
        assert_eq!([0.0, 1234.56, 0.012_345, 3e9].map(short), ["0", "1235", "0.01235", "3e9"]);
    }

    #[test]
    fn marks_are_round_and_few() {
        assert_eq!(steps(1.08), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
        assert_eq!(steps(10.0), (0..=10).map(f64::from).collect::<Vec<_>>());
        assert_eq!(steps(25.0), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0]);
        assert_eq!([0.05, 0.1, 0.5, 1.0, 20.0].map(digit), ["0.05", "0.1", "0.5", "1", "20"]);
    }

    #[test]
    fn decades_are_marked_inside_of_the_range() {
        let marks =
            |many| PlotAxis::decades(-0.1, 1.5, many).marks.into_iter().map(|log| digit(10f64.powf(log)));
        assert_eq!(marks(3.0).collect::<Vec<_>>(), ["1", "2", "5", "10", "20"]);
        assert_eq!(marks(1.0).collect::<Vec<_>>(), ["1", "10"]);
        assert_eq!((ends([3.0, -1.0, 2.0].into_iter()), ends(std::iter::empty())), (Some((-1.0, 3.0)), None));
    }
}
