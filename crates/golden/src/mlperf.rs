//! Cases of MLPerf's RNN-T: a front end, a model, an optimiser and batches, each by itself.
mod batching;
mod check;
mod decode;
mod ema;
mod features;
mod file;
mod initialisation;
mod lamb;
mod model;
mod network;
mod schedule;
mod specaugment;

use std::io::Write;

use crate::error::Stop;
use check::Check;
pub use check::{Bar, share};
pub(super) use file::File;

use super::error::Result;

/// One way to run a case.
type MlPerfRun = fn(&mut Check) -> std::result::Result<(), Stop>;

/// The runs of each kind under their names.
const KINDS: [(&str, &[(&str, MlPerfRun)]); 10] = [
    ("features", &[("f64", features::stages), ("f32", features::planes)]),
    ("specaugment", &[("-", specaugment::run)]),
    ("model", &[("f32", model::run)]),
    ("parameters", &[("-", initialisation::shapes)]),
    ("initialisation", &[("f32", initialisation::run)]),
    ("lamb", &[("f64", lamb::run::<f64>), ("f32", lamb::run::<f32>)]),
    ("schedule", &[("f64", schedule::run::<f64>), ("f32", schedule::run::<f32>)]),
    ("ema", &[("f64", ema::run::<f64>), ("f32", ema::run::<f32>)]),
    ("batching", &[("-", batching::run)]),
    ("decode", &[("f32", decode::run)]),
];

fn runs(kind: &str) -> &'static [(&'static str, MlPerfRun)] {
    KINDS.iter().find(|(known, _)| *known == kind).map_or(&[], |(_, runs)| runs)
}

/// Whether a sidecar of this kind is one of ours.
pub(super) fn knows(kind: &str) -> bool {
    !runs(kind).is_empty()
}

/// Prints a line for each case and type; true if all pass.
pub(super) fn report(files: &[File], out: &mut dyn Write) -> Result<bool> {
    let width = files.iter().map(|file| file.name.len()).max().unwrap_or(4).max(4);
    writeln!(out, "Bars: those of the golden vectors' README, for each tensor; errors are shares of them.")?;
    writeln!(out, "{:width$}  {:14}  type  compared  {:>8}  verdict", "case", "kind", "of bar")?;
    let (mut passed, mut failed) = (0, 0);
    for file in files {
        for (label, run) in runs(&file.kind) {
            let mut check = Check::new(file);
            match run(&mut check) {
                Ok(()) => check.finish(),
                Err(Stop::Case(error)) => return Err(error),
                Err(Stop::Refused(error)) => check.failures.push(error),
            }
            let word = if check.failures.is_empty() { "pass" } else { "FAIL" };
            *(if check.failures.is_empty() { &mut passed } else { &mut failed }) += 1;
            let remarks = match check.failures.is_empty() {
                true => String::new(),
                false => format!(" ({})", check.failures.join("; ")),
            };
            let (name, kind, compared, share) = (&file.name, &file.kind, check.compared, check.share);
            writeln!(
                out,
                "{name:width$}  {kind:14}  {label:4}  {compared:>8}  {share:>8.3}  {word}{remarks}"
            )?;
        }
    }
    writeln!(out, "{} cases of MLPerf: {passed} runs passed, {failed} failed", files.len())?;
    Ok(failed == 0)
}
