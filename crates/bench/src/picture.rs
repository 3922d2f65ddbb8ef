//! The outcome as a picture: time and memory of every system over the cases, logarithmic axes.
use std::error::Error;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;

use super::case::Plan;
use super::error::BenchError;
use super::row::{Row, Status};

const SIZE: (u32, u32) = (860, 760);
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(51, 51, 51);
const GRID: RGBColor = RGBColor(228, 228, 228);
const OURS: RGBColor = RGBColor(31, 111, 180);
const OURS_TOO: RGBColor = RGBColor(44, 140, 85);
/// The rival's first, then those of others.
const RIVALS: [RGBColor; 3] = [RGBColor(226, 122, 28), RGBColor(150, 80, 160), RGBColor(120, 120, 120)];

/// Plotters' own error is generic; drawing into a string fails only if plotters has a bug.
type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// An axis over the logarithms of its values, with marks of our own choice.
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

/// What a panel shows of a row.
struct Panel {
    title: String,
    y_name: &'static str,
    value: fn(&Row) -> Option<f64>,
}

/// An SVG with time above and memory below.
///
/// # Errors
/// [`BenchError::Picture`]
pub fn draw(plan: &Plan, rows: &[Row]) -> std::result::Result<String, BenchError> {
    try_draw(plan, rows).map_err(|error| BenchError::Picture { found: error.to_string() })
}

fn try_draw(plan: &Plan, rows: &[Row]) -> Result<String> {
    let panels = [
        Panel {
            title: format!("{}: time of forward and backward", plan.title),
            y_name: "milliseconds",
            value: |row| row.median_ms,
        },
        Panel {
            title: "Peak memory above inputs and gradients".to_owned(),
            y_name: "MB",
            // Less than a page or two is not seen.
            value: |row| Some((row.peak_bytes? as f64 / 1e6).max(0.01)),
        },
    ];
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let (upper, lower) = root.split_vertically(SIZE.1 / 2);
        let rows: Vec<&Row> = rows.iter().filter(|row| row.mark.is_some()).collect();
        for (panel, area) in panels.iter().zip([upper, lower]) {
            panel.draw(&area, plan.axis, &rows)?;
        }
        root.present()?;
    }
    Ok(svg)
}

impl Panel {
    fn draw(&self, area: &DrawingArea<SVGBackend, Shift>, x_name: &str, rows: &[&Row]) -> Result<()> {
        let font = |size: i32| (FONT, size).into_font().color(&INK);
        let place = |row: &Row| row.mark.as_ref().map(|(x, name)| (x.log10(), name.clone()));
        let mut marks: Vec<(f64, String)> = rows.iter().filter_map(|row| place(row)).collect();
        marks.dedup_by(|a, b| a.0 == b.0);
        let x = self.x_axis(&marks);
        let y = self.y_axis(rows);
        let top = y.range.end - 0.03 * (y.range.end - y.range.start);
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, font(17))
            .margin(12)
            .x_label_area_size(42)
            .y_label_area_size(70)
            .build_cartesian_2d(x, y)?;
        let name = |x: &f64| {
            marks.iter().find(|mark| (mark.0 - x).abs() < 1e-9).map_or(String::new(), |mark| mark.1.clone())
        };
        chart
            .configure_mesh()
            .x_desc(x_name)
            .y_desc(self.y_name)
            .x_label_formatter(&name)
            .y_label_formatter(&|log| digit(10f64.powf(*log)))
            .axis_style(INK)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .label_style(font(13))
            .axis_desc_style(font(14))
            .draw()?;
        let mut rivals = RIVALS.into_iter().cycle();
        for system in systems(rows) {
            let colour = match system.as_str() {
                "ours" | "pruned" => OURS,
                "full" => OURS_TOO,
                variant if variant.starts_with("ours-") => OURS_TOO,
                _ => rivals.next().unwrap_or(INK),
            };
            let of_system = || rows.iter().filter(|row| row.system == system);
            let point = |row: &&&Row| Some((place(row)?.0, (self.value)(row)?.log10()));
            let points: Vec<(f64, f64)> = of_system().filter_map(|row| point(&row)).collect();
            let over = of_system().filter(|row| row.status == Status::OutOfMemory);
            let over: Vec<f64> = over.filter_map(|row| Some(place(row)?.0)).collect();
            chart
                .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
                .label(&system)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
            chart.draw_series(points.iter().map(|&point| Circle::new(point, 3, colour.filled())))?;
            if !over.is_empty() {
                chart
                    .draw_series(over.iter().map(|&x| Cross::new((x, top), 5, colour.stroke_width(2))))?
                    .label(format!("{system}: out of memory"))
                    .legend(move |(x, y)| Cross::new((x + 9, y), 5, colour.stroke_width(2)));
            }
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .border_style(GRID)
            .background_style(WHITE.mix(0.85))
            .label_font(font(13))
            .draw()?;
        Ok(())
    }

    fn x_axis(&self, marks: &[(f64, String)]) -> Axis {
        let (low, high) = ends(marks.iter().map(|mark| mark.0)).unwrap_or((0.0, 1.0));
        let margin = (0.06 * (high - low)).max(0.05);
        Axis { range: low - margin..high + margin, marks: marks.iter().map(|mark| mark.0).collect() }
    }

    /// Marks at 1, 2 and 5 of each decade, or at the decades alone where there are many.
    fn y_axis(&self, rows: &[&Row]) -> Axis {
        let values = rows.iter().filter_map(|row| Some((self.value)(row)?.log10()));
        let (low, high) = ends(values).unwrap_or((0.0, 1.0));
        // Room above for the legend and the crosses.
        let (low, high) = (low - 0.15, high + 0.15 + 0.3 * (high - low).max(0.5));
        let steps: &[f64] = if high - low < 3.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let decades = low.floor() as i32..=high.ceil() as i32;
        let marks = decades.flat_map(|decade| steps.iter().map(move |step| step.log10() + f64::from(decade)));
        Axis { range: low..high, marks: marks.filter(|mark| (low..=high).contains(mark)).collect() }
    }
}

/// Names of the systems in the order in which they first appear.
fn systems(rows: &[&Row]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for row in rows {
        if !names.contains(&row.system) {
            names.push(row.system.clone());
        }
    }
    names
}

/// The smallest and the largest.
fn ends(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |ends, value| match ends {
        None => Some((value, value)),
        Some((low, high)) => Some((f64::min(low, value), f64::max(high, value))),
    })
}

/// A number with one digit that counts.
fn digit(value: f64) -> String {
    let places = (-value.log10() - 1e-9).ceil().max(0.0) as usize;
    format!("{value:.places$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Shape;

    fn row(x: Option<f64>, system: &str, median_ms: Option<f64>) -> Row {
        Row {
            case: String::new(),
            system: system.to_owned(),
            shape: Shape::default(),
            threads: 1,
            median_ms,
            min_ms: None,
            max_ms: None,
            peak_bytes: median_ms.map(|time| (1e5 * time) as u64),
            gflops: None,
            sgemm_share: None,
            rel_grad_diff: None,
            status: if median_ms.is_some() { Status::Ok } else { Status::OutOfMemory },
            note: None,
            skip: None,
            pruning: None,
            mark: x.map(|x| (x, format!("mark {x}"))),
        }
    }

    fn plan() -> Plan {
        Plan { suite: "classes", title: "Title", axis: "classes", cases: Vec::new() }
    }

    #[test]
    fn every_measurement_is_a_point_and_every_failure_a_cross() {
        let rows = [
            row(Some(10.0), "ours", Some(1.0)),
            row(Some(10.0), "dense", Some(30.0)),
            row(Some(100.0), "ours", Some(9.0)),
            row(Some(100.0), "dense", None),
            row(None, "ours", Some(5.0)),
        ];
        let svg = draw(&plan(), &rows).unwrap();
        assert_eq!(svg.matches("<circle").count(), 2 * 3);
        for text in ["Title", "milliseconds", "MB", "classes", "mark 10", "dense: out of memory", "ours"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN"));
    }

    #[test]
    fn a_suite_without_measurements_has_a_picture_too() {
        for rows in
            [Vec::new(), vec![row(Some(1.0), "ours", None)], vec![row(Some(1.0), "ours", Some(0.0001))]]
        {
            let svg = draw(&plan(), &rows).unwrap();
            assert!(svg.contains("</svg>") && !svg.contains("NaN") && !svg.contains("inf"));
        }
    }
}
