//! Cases of MLPerf's RNN-T: a front end, a model, an optimiser and batches, each by itself.
mod batching;
mod check;
mod ema;
mod file;
mod lamb;
mod schedule;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::Write;

use check::{Check, Stop};
pub(super) use file::File;

use super::error::Result;

/// Kinds of this folder, also those that we cannot verify yet.
const KINDS: [&str; 10] = [
    "features",
    "specaugment",
    "model",
    "parameters",
    "initialisation",
    "lamb",
    "schedule",
    "ema",
    "batching",
    "decode",
];

/// One way to run a case.
type Run = fn(&mut Check) -> std::result::Result<(), Stop>;

/// The runs of a kind under their names; none of a kind that is not supported yet.
fn runs(kind: &str) -> &'static [(&'static str, Run)] {
    match kind {
        "lamb" => &[("f64", lamb::run::<f64>), ("f32", lamb::run::<f32>)],
        "schedule" => &[("f64", schedule::run::<f64>), ("f32", schedule::run::<f32>)],
        "ema" => &[("f64", ema::run::<f64>), ("f32", ema::run::<f32>)],
        "batching" => &[("-", batching::run)],
        _ => &[],
    }
}

/// Whether a sidecar of this kind is one of ours.
pub(super) fn knows(kind: &str) -> bool {
    KINDS.contains(&kind)
}

/// Prints a line for each case and type; true if all pass.
pub(super) fn report(files: &[File], out: &mut impl Write) -> Result<bool> {
    let (known, unknown): (Vec<_>, Vec<_>) = files.iter().partition(|file| !runs(&file.kind).is_empty());
    let width = known.iter().map(|file| file.name.len()).max().unwrap_or(4).max(4);
    writeln!(out, "Bars: those of the golden vectors' README, for each tensor; errors are shares of them.")?;
    writeln!(out, "{:width$}  {:14}  type  compared  {:>8}  verdict", "case", "kind", "of bar")?;
    let (mut passed, mut failed) = (0, 0);
    for file in &known {
        for (label, run) in runs(&file.kind) {
            let mut check = Check::new(file);
            match run(&mut check) {
                Ok(()) => {}
                Err(Stop::Case(error)) => return Err(error),
                Err(Stop::Refused(error)) => check.failures.push(error),
            }
            check.finish();
            let word = if check.failures.is_empty() { "pass" } else { "FAIL" };
            *(if check.failures.is_empty() { &mut passed } else { &mut failed }) += 1;
            let remarks = match check.failures.is_empty() {
                true => String::new(),
                false => format!(" ({})", check.failures.join("; ")),
            };
            let (name, kind, compared) = (&file.name, &file.kind, check.compared);
            let share = check.share;
            writeln!(
                out,
                "{name:width$}  {kind:14}  {label:4}  {compared:>8}  {share:>8.3}  {word}{remarks}"
            )?;
        }
    }
    let mut skipped = BTreeMap::<&str, Vec<&str>>::new();
    for file in &unknown {
        skipped.entry(&file.kind).or_default().push(&file.name);
    }
    for (kind, names) in &skipped {
        writeln!(out, "skipped, kind {kind} is not supported yet: {}", names.join(", "))?;
    }
    let (known, unknown) = (known.len(), unknown.len());
    writeln!(out, "{known} cases of MLPerf: {passed} runs passed, {failed} failed; {unknown} cases skipped")?;
    Ok(failed == 0)
}
