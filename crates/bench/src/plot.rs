//! Plots benchmark results as SVG: time and memory, or decoding speed.
//!
//! Axes are logarithmic.
use report::plots::{self, Corner, Panel, Pen, PlotAxis, PlotLine, format_one_digit, min_max};

use super::case::{Family, Plan};
use super::error::Error;
use super::report::{ResultRow, Status};

/// Width and height in pixels.
const SIZE: (u32, u32) = (860, 760);
/// Pens of panda and its variants.
const PANDA_PENS: [Pen; 3] = [Pen::BLUE, Pen::GREEN, Pen::CYAN];
/// Pens of the baselines.
const BASELINE_PENS: [Pen; 3] = [Pen::ORANGE, Pen::PURPLE, Pen::GRAY];

/// Plots time and memory as SVG; for suites that decode, the speed of each kind of model.
///
/// # Errors
/// [`Error::Plot`]
pub(crate) fn draw(plan: &Plan, rows: &[ResultRow]) -> Result<String, Error> {
    let rows: Vec<&ResultRow> = rows.iter().filter(|row| row.mark.is_some()).collect();
    if rows.iter().any(|row| row.speed.is_some()) {
        return draw_panels(&[Family::Rnnt, Family::Tdt].map(|family| speed_panel(plan, family, &rows)));
    }
    let is_step = rows.iter().any(|row| row.system == "best-path" || row.training.is_some());
    let time = match is_step {
        true => format!("{}: time of a step", plan.title),
        false => format!("{}: time of forward and backward", plan.title),
    };
    // Peaks below a few pages cannot be measured.
    let megabytes = |row: &ResultRow| Some((row.peak_bytes? as f64 / 1e6).max(0.01));
    draw_panels(&[
        new_panel(plan, time, "milliseconds", &rows, plot_lines(&rows, |row| row.median_ms)),
        new_panel(
            plan,
            "Peak memory above inputs and gradients".to_owned(),
            "MB",
            &rows,
            plot_lines(&rows, megabytes),
        ),
    ])
}

fn draw_panels(panels: &[Panel]) -> Result<String, Error> {
    plots::draw_file(SIZE, panels).map_err(|error| Error::Plot { found: error.to_string() })
}

/// Plots utterances per second of one kind of model and of PyTorch.
fn speed_panel<'a>(plan: &'a Plan, family: Family, rows: &[&ResultRow]) -> Panel<'a> {
    let has_family = |row: &&&ResultRow| row.speed.is_some_and(|speed| speed.report.family == family);
    let rows: Vec<&ResultRow> = rows.iter().filter(has_family).copied().collect();
    let mut lines = plot_lines(&rows, |row| Some(row.speed?.utterances_per_second));
    let mut torch: Vec<(f64, f64)> =
        rows.iter().filter_map(|row| Some((log_mark(row)?.0, row.speed?.torch?.log10()))).collect();
    torch.dedup_by(|a, b| a.0 == b.0);
    if !torch.is_empty() {
        let name = "best of PyTorch, scaled".to_owned();
        lines.push(PlotLine { pen: Pen::PURPLE, points: torch, crosses: Vec::new(), cross_label: "", name });
    }
    let title = format!("{}: {}", plan.title, family.name());
    new_panel(plan, title, "utterances per second", &rows, lines)
}

/// Creates a panel with axes that fit its lines.
fn new_panel<'a>(
    plan: &'a Plan,
    title: String,
    y_name: &'static str,
    rows: &[&ResultRow],
    lines: Vec<PlotLine>,
) -> Panel<'a> {
    let mut marks: Vec<(f64, String)> = rows.iter().filter_map(|row| log_mark(row)).collect();
    marks.dedup_by(|a, b| a.0 == b.0);
    let (low, high) = min_max(marks.iter().map(|mark| mark.0)).unwrap_or((0.0, 1.0));
    // In decades.
    let margin = (0.06 * (high - low)).max(0.05);
    let x = PlotAxis { range: low - margin..high + margin, ticks: marks.iter().map(|mark| mark.0).collect() };
    let values = lines.iter().flat_map(|line| line.points.iter().map(|point| point.1));
    let (low, high) = min_max(values).unwrap_or((0.0, 1.0));
    // Margins in decades; the space above is for the legend and the crosses.
    let y = PlotAxis::decades(low - 0.15, high + 0.15 + 0.3 * (high - low).max(0.5), 3.5);
    let mark_label = move |x: f64| {
        marks.iter().find(|mark| (mark.0 - x).abs() < 1e-9).map_or(String::new(), |mark| mark.1.clone())
    };
    Panel {
        title,
        x_name: plan.axis,
        y_name,
        x,
        y,
        x_label: Box::new(mark_label),
        y_label: |log| format_one_digit(10f64.powf(log)),
        lines,
        legend: Corner::UpperLeft,
    }
}

/// Returns the horizontal position (base-10 logarithm) and label of a row.
fn log_mark(row: &ResultRow) -> Option<(f64, String)> {
    row.mark.as_ref().map(|mark| (mark.x.log10(), mark.label.clone()))
}

/// Creates one line per system; cases without memory are crosses.
fn plot_lines(rows: &[&ResultRow], value: fn(&ResultRow) -> Option<f64>) -> Vec<PlotLine> {
    let mut panda_pens = PANDA_PENS.into_iter().cycle();
    let mut baseline_pens = BASELINE_PENS.into_iter().cycle();
    let line = |system: String| {
        let system_rows = || rows.iter().filter(|row| row.system == system);
        let point = |row: &&&ResultRow| Some((log_mark(row)?.0, value(row)?.log10()));
        let out_of_memory = system_rows().filter(|row| row.status == Status::OutOfMemory);
        let pens = if is_panda(&system) { &mut panda_pens } else { &mut baseline_pens };
        PlotLine {
            pen: pens.next().unwrap_or(Pen::GRAY),
            points: system_rows().filter_map(|row| point(&row)).collect(),
            crosses: out_of_memory.filter_map(|row| Some(log_mark(row)?.0)).collect(),
            cross_label: "out of memory",
            name: system,
        }
    };
    system_names(rows).into_iter().map(line).collect()
}

fn is_panda(system: &str) -> bool {
    matches!(system, "panda" | "pruned" | "full") || system.starts_with("panda-")
}

/// Returns the names of the systems in the order of rows.
fn system_names(rows: &[&ResultRow]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for row in rows {
        if !names.contains(&row.system) {
            names.push(row.system.clone());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::PlotMark;
    use crate::decoding_speed::DecodingSpeed;
    use crate::workload::{CaseShape, DecodingReport};

    fn row(x: Option<f64>, system: &str, median_ms: Option<f64>) -> ResultRow {
        ResultRow {
            case: String::new(),
            system: system.to_owned(),
            shape: CaseShape::default(),
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
            speed: None,
            training: None,
            mark: x.map(|x| PlotMark { x, label: format!("mark {x}") }),
        }
    }

    fn plan() -> Plan {
        Plan { suite: "classes", title: "Title", axis: "classes", cases: Vec::new() }
    }

    #[test]
    fn every_measurement_is_a_point_and_every_failure_a_cross() {
        let rows = [
            row(Some(10.0), "panda", Some(1.0)),
            row(Some(10.0), "dense", Some(30.0)),
            row(Some(100.0), "panda", Some(9.0)),
            row(Some(100.0), "dense", None),
            row(None, "panda", Some(5.0)),
        ];
        let svg = draw(&plan(), &rows).unwrap();
        assert_eq!(svg.matches("<circle").count(), 2 * 3);
        for text in ["Title", "milliseconds", "MB", "classes", "mark 10", "dense: out of memory", "panda"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN"));
    }

    #[test]
    fn decoding_is_a_panel_for_each_kind_of_model() {
        let speed = |family, batch: usize| {
            let report = DecodingReport { family, utterances: 8, frames: 100, labels: 20, sites: 120 };
            DecodingSpeed::new(report, Some(batch), 10.0, Some(430.0))
        };
        let row = |family, batch: usize, system| ResultRow {
            speed: Some(speed(family, batch)),
            ..row(Some(batch as f64), system, Some(10.0))
        };
        let rows = [
            row(Family::Rnnt, 1, "panda"),
            row(Family::Rnnt, 1, "frame-looping"),
            row(Family::Rnnt, 4, "panda"),
            row(Family::Tdt, 1, "panda"),
        ];
        let svg = draw(&plan(), &rows).unwrap();
        // Measurements, and PyTorch at two batch sizes of RNN-T and one of TDT.
        assert_eq!(svg.matches("<circle").count(), 4 + 2 + 1);
        for text in ["RNN-T", "TDT", "utterances per second", "best of PyTorch, scaled"] {
            assert!(svg.contains(text), "{text}");
        }
    }

    #[test]
    fn a_suite_without_measurements_can_be_plotted() {
        for rows in
            [Vec::new(), vec![row(Some(1.0), "panda", None)], vec![row(Some(1.0), "panda", Some(0.0001))]]
        {
            let svg = draw(&plan(), &rows).unwrap();
            assert!(svg.contains("</svg>") && !svg.contains("NaN") && !svg.contains("inf"));
        }
    }

    #[test]
    fn systems_have_different_pens() {
        for names in
            [["panda", "panda-kept", "panda-bf16", "dense"], ["pruned", "pruned-dense", "full", "full-dense"]]
        {
            let rows = names.map(|name| row(Some(10.0), name, Some(1.0)));
            let lines = plot_lines(&rows.iter().collect::<Vec<_>>(), |row| row.median_ms);
            for (i, line) in lines.iter().enumerate() {
                assert!(lines[..i].iter().all(|other| other.pen != line.pen), "{}", line.name);
            }
        }
    }
}
