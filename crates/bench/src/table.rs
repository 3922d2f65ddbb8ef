//! Formats benchmark results as a table for the terminal.
use super::case::FirstPassScores;
use super::decoding_speed::TORCH_SGEMM_GFLOPS;
use super::encode::FRAMES_PER_SECOND;
use super::lower_bounds::{LowerBounds, TrainingSpeed};
use super::report::{ResultRow, Status};
use super::workload::PruningReport;
use super::workload::median;

/// Headers of the columns.
const HEADERS: [&str; 9] =
    ["case", "system", "time ms", "x panda", "peak MB", "GFLOP/s", "% sgemm", "grad diff", "status"];
/// Number of left-aligned columns.
const LEFT_COLUMNS: usize = 2;

/// Formats a header, one line per row, and notes.
pub(crate) fn format_table(rows: &[ResultRow]) -> Vec<String> {
    if rows.iter().any(|row| row.speed.is_some()) {
        let mut lines = format_columns(rows, DECODING_HEADERS, decoding_cells);
        lines.extend(decoding_note(rows));
        return lines;
    }
    if rows.iter().any(|row| row.training.is_some()) {
        let mut lines = format_columns(rows, TRAINING_HEADERS, training_cells);
        lines.extend(training_note(rows));
        return lines;
    }
    let mut lines = format_columns(rows, HEADERS, |row, is_first| {
        let first = rows.iter().find(|first| first.case == row.case);
        loss_cells(row, is_first, first.and_then(|first| first.median_ms))
    });
    lines.extend(rows.iter().filter_map(skip_note));
    lines.extend(rows.iter().filter_map(encoding_note));
    lines.extend(rows.iter().filter(|row| row.system == "pruned").filter_map(pruning_note));
    lines
}

/// Formats a header and the cells of each row in aligned columns.
///
/// `row_cells` receives the row, and true for the first row of a case.
fn format_columns<const N: usize>(
    rows: &[ResultRow],
    headers: [&str; N],
    row_cells: impl Fn(&ResultRow, bool) -> [String; N],
) -> Vec<String> {
    let mut cells = vec![headers.map(str::to_owned)];
    let mut previous_case = None;
    for row in rows {
        cells.push(row_cells(row, previous_case != Some(&row.case)));
        previous_case = Some(&row.case);
    }
    let width = |column: usize| cells.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    cells.iter().map(|line| align_cells(line, &widths)).collect()
}

/// Joins the cells of a line, padded to the column widths.
fn align_cells(cells: &[String], widths: &[usize]) -> String {
    let columns = cells.iter().zip(widths).enumerate().map(|(column, (cell, &width))| {
        // The last column has text of any length.
        if column < LEFT_COLUMNS || column + 1 == widths.len() {
            format!("{cell:<width$}")
        } else {
            format!("{cell:>width$}")
        }
    });
    columns.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// Returns the name of the case in its first line, else nothing.
fn case_name(row: &ResultRow, is_first: bool) -> String {
    if is_first { row.case.clone() } else { String::new() }
}

/// Formats the status of a row and its reason.
fn format_status(row: &ResultRow) -> String {
    let status = match row.status {
        Status::Ok => "ok",
        Status::OutOfMemory => "out of memory",
        Status::Skipped => "skipped",
    };
    row.note.as_ref().map_or(status.to_owned(), |note| format!("{status}: {note}"))
}

fn format_percent(share: f64) -> String {
    format!("{:.0}", 100.0 * share)
}

/// Formats a row of a suite that computes losses.
fn loss_cells(row: &ResultRow, is_first: bool, panda_ms: Option<f64>) -> [String; HEADERS.len()] {
    let ratio = row.median_ms.zip(panda_ms).map(|(time, panda)| time / panda);
    [
        case_name(row, is_first),
        row.system.clone(),
        or_dash(row.median_ms.map(format_significant)),
        or_dash(ratio.map(|ratio| format!("{ratio:.2}"))),
        or_dash(row.peak_bytes.map(|bytes| format!("{:.1}", bytes as f64 / 1e6))),
        or_dash(row.gflops.map(|rate| format!("{rate:.0}"))),
        or_dash(row.sgemm_share.map(format_percent)),
        or_dash(row.rel_grad_diff.map(|difference| format!("{difference:.1e}"))),
        format_status(row),
    ]
}

/// Describes the skipped sites of a row.
fn skip_note(row: &ResultRow) -> Option<String> {
    let report = row.skip?;
    let part = row.shape.N.map_or(0.0, |sites| 100.0 * report.sites as f64 / sites.max(1) as f64);
    let [bias, weight, inputs] = report.bounds;
    Some(format!(
        "{}: {part:.0} % of the sites skipped, occupancy {:.1e}; error bounds: bias {bias:.1e}, weight {weight:.1e}, \
         rows {inputs:.1e}; largest error: {:.1} % of its bound",
        row.case,
        report.mass,
        100.0 * report.share(),
    ))
}

/// Describes the speed of an encoder: how many seconds of audio it encodes in a second.
fn encoding_note(row: &ResultRow) -> Option<String> {
    // Only encoders have frames, but no labels and no sites.
    let (None, None, Some(frames)) = (row.shape.U, row.shape.N, row.shape.T) else { return None };
    let (seconds, median_ms) = (frames as f64 / FRAMES_PER_SECOND as f64, row.median_ms?);
    let bound = row.sgemm_share.map(|share| share * median_ms / 1e3);
    Some(format!(
        "{} {}: RTFx {:.0}; products at the rate of sgemm: {} s",
        row.case,
        row.system,
        1e3 * seconds / median_ms,
        or_dash(bound.map(format_significant)),
    ))
}

/// Describes the retained sites of a row.
fn pruning_note(row: &ResultRow) -> Option<String> {
    let PruningReport { scores, retained_sites, share } = row.pruning?;
    let source = match scores {
        FirstPassScores::Matrices => "score matrices",
        FirstPassScores::Heads => "linear layers",
    };
    Some(format!(
        "{}: {retained_sites} of {} sites retained ({:.1} %), first pass from {source}",
        row.case,
        row.shape.N.unwrap_or(0),
        100.0 * share,
    ))
}

/// Headers of suites that decode.
const DECODING_HEADERS: [&str; 12] = [
    "case",
    "system",
    "utt/s",
    "RTFx",
    "x frame-looping",
    "x torch",
    "labels/frame",
    "time ms",
    "peak MB",
    "GFLOP/s",
    "% sgemm",
    "status",
];

/// Formats a row of a suite that decodes.
fn decoding_cells(row: &ResultRow, is_first: bool) -> [String; DECODING_HEADERS.len()] {
    let speed = row.speed.as_ref();
    let factor = |ratio: Option<f64>| or_dash(ratio.map(|ratio| format!("{ratio:.2}")));
    [
        case_name(row, is_first),
        row.system.clone(),
        or_dash(speed.map(|speed| format_significant(speed.utterances_per_second))),
        or_dash(speed.map(|speed| format!("{:.0}", speed.rtfx))),
        factor(speed.and_then(|speed| speed.over_frame_looping)),
        factor(speed.and_then(|speed| speed.over_torch)),
        or_dash(speed.map(|speed| format!("{:.3}", speed.labels_per_frame))),
        or_dash(row.median_ms.map(format_significant)),
        or_dash(row.peak_bytes.map(|bytes| format!("{:.1}", bytes as f64 / 1e6))),
        or_dash(row.gflops.map(|rate| format!("{rate:.0}"))),
        or_dash(row.sgemm_share.map(format_percent)),
        format_status(row),
    ]
}

/// Explains the ratios.
fn decoding_note(rows: &[ResultRow]) -> Option<String> {
    let products: Vec<f64> = rows.iter().filter_map(|row| row.speed?.sgemm).collect();
    let sgemm = median(&products)?;
    Some(format!(
        "sgemm {sgemm:.0} GFLOP/s; x torch: speed relative to the best PyTorch decoder, measured at {:.0} GFLOP/s and scaled",
        TORCH_SGEMM_GFLOPS
    ))
}

/// Headers of suites that train.
const TRAINING_HEADERS: [&str; 15] = [
    "case",
    "system",
    "step ms",
    "utt/s",
    "GFLOP/s",
    "% sgemm",
    "encoder ms",
    "predictor ms",
    "loss ms",
    "backward ms",
    "optimizer ms",
    "peak MB",
    "resident MB",
    "lower bounds ms",
    "status",
];

/// Formats a row of a suite that trains.
fn training_cells(row: &ResultRow, is_first: bool) -> [String; TRAINING_HEADERS.len()] {
    let training = row.training.as_ref();
    let part = |value: fn(&TrainingSpeed) -> f64| {
        or_dash(training.map(|training| format_significant(value(training))))
    };
    let megabytes = |bytes: Option<u64>| or_dash(bytes.map(|bytes| format!("{:.0}", bytes as f64 / 1e6)));
    [
        case_name(row, is_first),
        row.system.clone(),
        or_dash(row.median_ms.map(format_significant)),
        part(|training| training.utterances_per_second),
        or_dash(row.gflops.map(|rate| format!("{rate:.0}"))),
        or_dash(row.sgemm_share.map(format_percent)),
        part(|training| training.report.parts.encoder),
        part(|training| training.report.parts.predictor),
        part(|training| training.report.parts.loss),
        part(|training| training.report.parts.backward),
        part(|training| training.report.parts.optimizer),
        megabytes(row.peak_bytes),
        megabytes(training.and_then(|training| training.report.resident_bytes)),
        or_dash(training.map(|training| format_lower_bounds(&training.lower_bounds))),
        format_status(row),
    ]
}

/// Formats the lower bounds of products, recurrent weights and optimizer.
fn format_lower_bounds(bounds: &LowerBounds) -> String {
    let products = or_dash(bounds.products.map(format_significant));
    format!(
        "{products} + {} + {}",
        format_significant(bounds.recurrent),
        format_significant(bounds.optimizer)
    )
}

/// Explains the columns.
fn training_note(rows: &[ResultRow]) -> Option<String> {
    let TrainingSpeed { report, .. } = rows.iter().find_map(|row| row.training)?;
    Some(format!(
        "{} parameters; encoder, predictor and loss: forward only; lower bounds: matrix products at the rate of sgemm + reads of \
         recurrent weights at every frame ({:.0} GB/s) + bytes of the optimizer ({:.0} GB/s)",
        report.parameters, report.cached_read_rate, report.memory_read_rate
    ))
}

/// Formats three significant digits, or all digits before the decimal point.
fn format_significant(value: f64) -> String {
    let places = (2.0 - value.abs().max(1e-3).log10().floor()).clamp(0.0, 5.0) as usize;
    format!("{value:.places$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Family;
    use crate::decoding_speed::DecodingSpeed;
    use crate::workload::{CaseShape, DecodingReport};

    fn row(case: &str, system: &str, median_ms: Option<f64>) -> ResultRow {
        ResultRow {
            case: case.to_owned(),
            system: system.to_owned(),
            shape: CaseShape::default(),
            threads: 2,
            median_ms,
            min_ms: None,
            max_ms: None,
            peak_bytes: Some(12_345_678),
            gflops: None,
            sgemm_share: Some(0.914),
            rel_grad_diff: Some(1.23e-7),
            status: if median_ms.is_some() { Status::Ok } else { Status::OutOfMemory },
            note: None,
            skip: None,
            pruning: None,
            speed: None,
            training: None,
            mark: None,
        }
    }

    #[test]
    fn a_case_is_named_once_and_times_are_relative_to_panda() {
        let rows = [
            row("C=1024", "panda", Some(12.34)),
            row("C=1024", "dense", Some(24.68)),
            row("D", "panda", None),
        ];
        let lines = format_table(&rows);
        assert_eq!(
            lines[0],
            "case    system  time ms  x panda  peak MB  GFLOP/s  % sgemm  grad diff  status"
        );
        assert_eq!(lines[1], "C=1024  panda      12.3     1.00     12.3        -       91     1.2e-7  ok");
        assert_eq!(lines[2], "        dense      24.7     2.00     12.3        -       91     1.2e-7  ok");
        assert_eq!(
            lines[3],
            "D       panda         -        -     12.3        -       91     1.2e-7  out of memory"
        );
    }

    #[test]
    fn a_suite_that_decodes_has_other_columns() {
        let report =
            DecodingReport { family: Family::Rnnt, utterances: 32, frames: 8000, labels: 2000, sites: 9000 };
        let speed = DecodingSpeed::new(report, Some(32), 160.0, Some(430.0));
        let rows = [ResultRow { speed: Some(speed), ..row("RNN-T B=32", "panda", Some(160.0)) }];
        let lines = format_table(&rows);
        assert!(
            lines[0].starts_with("case        system  utt/s  RTFx  x frame-looping  x torch  labels/frame")
        );
        assert!(
            lines[1].starts_with("RNN-T B=32  panda     200  4000                -     8.00         0.250")
        );
        assert!(lines[2].starts_with("sgemm 430 GFLOP/s; x torch: "), "{lines:?}");
    }

    #[test]
    fn numbers_have_three_significant_digits() {
        assert_eq!(
            [0.01234, 1.234, 56.78, 9876.5].map(format_significant),
            ["0.0123", "1.23", "56.8", "9876"]
        );
    }
}
