//! Golden test of MLPerf's RNN-T benchmark: front end, model, optimizer and batches.
//!
//! Each module tests one part; [`report`] runs all cases of a folder and prints one line per run.
mod batching;
mod check;
mod decode;
mod ema;
mod features;
mod file;
mod initialization;
mod lamb;
mod model;
mod network;
mod schedule;
mod specaugment;

use std::io::Write;

use crate::columns::name_column_width;
use crate::error::RunError;
use check::MlPerfCheck;
pub use check::{Tolerance, tolerance_ratio};
pub(super) use file::MlPerfFile;

use super::error::Result;

/// Function that runs a case.
type CheckFn = fn(&mut MlPerfCheck) -> std::result::Result<(), RunError>;

/// Kinds of cases; each kind has one run per floating-point type.
const KINDS: [(&str, &[(&str, CheckFn)]); 10] = [
    ("features", &[("f64", features::compare_stages), ("f32", features::compare_features)]),
    ("specaugment", &[("-", specaugment::compare)]),
    ("model", &[("f32", model::compare)]),
    ("parameters", &[("-", initialization::compare_shapes)]),
    ("initialisation", &[("f32", initialization::compare_distributions)]),
    ("lamb", &[("f64", lamb::compare::<f64>), ("f32", lamb::compare::<f32>)]),
    ("schedule", &[("f64", schedule::compare::<f64>), ("f32", schedule::compare::<f32>)]),
    ("ema", &[("f64", ema::compare::<f64>), ("f32", ema::compare::<f32>)]),
    ("batching", &[("-", batching::compare)]),
    ("decode", &[("f32", decode::compare)]),
];

/// Returns the functions of a kind with their floating-point types.
fn check_functions(kind: &str) -> &'static [(&'static str, CheckFn)] {
    KINDS.iter().find(|(name, _)| *name == kind).map_or(&[], |(_, runs)| runs)
}

/// Returns true for the kinds of this module.
pub(super) fn is_supported(kind: &str) -> bool {
    !check_functions(kind).is_empty()
}

/// Prints one line per case and type; returns true if all pass.
pub(super) fn report(files: &[MlPerfFile], out: &mut dyn Write) -> Result<bool> {
    let name_width = name_column_width(files.iter().map(|file| file.name.as_str()));
    writeln!(
        out,
        "Tolerances: those of the golden vectors' README; error/tol: ratio of error to tolerance."
    )?;
    writeln!(out, "{:name_width$}  {:14}  type  compared  {:>9}  verdict", "case", "kind", "error/tol")?;
    let (mut passed, mut failed) = (0, 0);
    for file in files {
        for (type_name, run) in check_functions(&file.kind) {
            let mut check = MlPerfCheck::new(file);
            match run(&mut check) {
                Ok(()) => check.finish(),
                Err(RunError::InvalidCase(error)) => return Err(error),
                Err(RunError::Failed(error)) => check.failures.push(error),
            }
            let verdict = if check.failures.is_empty() { "pass" } else { "FAIL" };
            *(if check.failures.is_empty() { &mut passed } else { &mut failed }) += 1;
            let remarks = match check.failures.is_empty() {
                true => String::new(),
                false => format!(" ({})", check.failures.join("; ")),
            };
            let (name, kind, compared, ratio) =
                (&file.name, &file.kind, check.compared_quantities, check.ratio);
            writeln!(
                out,
                "{name:name_width$}  {kind:14}  {type_name:4}  {compared:>8}  {ratio:>9.3}  {verdict}{remarks}"
            )?;
        }
    }
    writeln!(out, "{} cases of MLPerf: {passed} runs passed, {failed} failed", files.len())?;
    Ok(failed == 0)
}
