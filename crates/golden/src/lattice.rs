//! Cases of recognition lattices: sums, gradients, marginals and best paths; and of what lattices are made of.
mod check;
mod contexts;
mod definition;
mod file;
mod inputs;
mod parts;
mod paths;
mod semirings;
mod steps;
mod sums;
mod weight_fns;

use std::collections::BTreeMap;
use std::io::Write;

use crate::error::Stop;
use check::Check;
pub(super) use file::File;
use inputs::LatticeInputs;
use lattice::RecognitionLattice;
use rnnt_loss::Element;

use super::bars::Width;
use super::error::Result;

/// One case: what LAST computes in f64, and in f32.
struct LatticeCase<'a> {
    name: &'a str,
    double: &'a File,
    single: &'a File,
}

/// Pairs `NAME.f64` with `NAME.f32`.
fn pair(files: &[File]) -> Result<Vec<LatticeCase<'_>>> {
    let by_name: BTreeMap<&str, &File> = files.iter().map(|file| (file.name.as_str(), file)).collect();
    let mut cases = Vec::new();
    for (name, file) in &by_name {
        let partner = match (name.strip_suffix(".f64"), name.strip_suffix(".f32")) {
            (Some(case), _) => {
                by_name.get(format!("{case}.f32").as_str()).map(|single| (case, *file, *single))
            }
            (_, Some(case)) if by_name.contains_key(format!("{case}.f64").as_str()) => continue,
            _ => None,
        };
        let (name, double, single) =
            partner.ok_or_else(|| file.wrong("name", "NAME.f64 beside NAME.f32", name))?;
        cases.push(LatticeCase { name, double, single });
    }
    Ok(cases)
}

/// Prints a line for each case and type; true if all pass.
pub(super) fn report(files: &[File], out: &mut dyn Write) -> Result<bool> {
    let cases = pair(files)?;
    let width = cases.iter().map(|case| case.name.len()).max().unwrap_or(4).max(4);
    writeln!(
        out,
        "Bars, against LAST in f64: f64 1e-10 relative + 1e-12; f32 values 2e-5 relative + 1e-5 max|weight| T,"
    )?;
    writeln!(
        out,
        "      gradients and marginals 1e-4 relative + 1e-5; labels and states the same. Errors are relative above 1."
    )?;
    writeln!(
        out,
        "{:width$}  type  tensors  {:>8}  {:>9}  of bar  LAST's  verdict",
        "case", "values", "gradients"
    )?;
    let (mut passed, mut failed) = (0, 0);
    for case in &cases {
        for (label, kind) in [("f64", Width::Double), ("f32", Width::Single)] {
            let check = match kind {
                Width::Double => run::<f64>(case, kind)?,
                Width::Single => run::<f32>(case, kind)?,
            };
            let word = if check.failures.is_empty() { "pass" } else { "FAIL" };
            *(if check.failures.is_empty() { &mut passed } else { &mut failed }) += 1;
            let remarks = [&check.failures[..], &check.notes].concat();
            let remarks =
                if remarks.is_empty() { String::new() } else { format!(" ({})", remarks.join("; ")) };
            let last = if kind == Width::Single { format!("{:.3}", check.last.share) } else { "-".into() };
            writeln!(
                out,
                "{:width$}  {label}   {:>7}  {:>8.1e}  {:>9.1e}  {:>6.3}  {last:>6}  {word}{remarks}",
                case.name, check.compared, check.worst.value, check.worst.gradient, check.worst.share,
            )?;
        }
    }
    writeln!(out, "{} cases in f64 and f32: {passed} runs passed, {failed} failed", cases.len())?;
    Ok(failed == 0)
}

/// What is to be done with a file, and which of its tensors are answers.
type LatticeRun = (fn(&mut Check) -> std::result::Result<(), Stop>, fn(&str) -> bool);

/// Runs a case; a refusal is a failure.
fn run<'a, F: Element>(case: &LatticeCase<'a>, width: Width) -> Result<Check<'a>> {
    let (run, is_answer): LatticeRun = match case.name {
        _ if case.double.settings.is_some() => (lattice::<F>, |name| name.starts_with("out/")),
        "alignment_steps" => (steps::steps::<F>, steps::is_answer),
        "contexts_fullngram" => (contexts::full_ngrams::<F>, contexts::is_answer),
        "contexts_nextstatetable" => (contexts::tables::<F>, contexts::is_answer),
        "semirings" => (semirings::semirings::<F>, semirings::is_answer),
        "weight_fns" => (weight_fns::weight_fns::<F>, weight_fns::is_answer),
        _ => {
            let known = "a sidecar with a case, or a name of a file of components";
            return Err(case.double.wrong("name", known, case.name));
        }
    };
    let mut check = Check::new((case.double, case.single), width, is_answer);
    match run(&mut check) {
        Ok(()) => {}
        Err(Stop::Case(error)) => return Err(error),
        Err(Stop::Refused(error)) => check.failures.push(error),
    }
    check.finish();
    Ok(check)
}

fn lattice<F: Element>(check: &mut Check) -> std::result::Result<(), Stop> {
    let file = check.file;
    let settings = file.settings.as_ref();
    let settings = settings.ok_or_else(|| file.wrong("case", "the settings of a lattice", "none"))?;
    let inputs = LatticeInputs::<F>::new(file, settings)?;
    let weight_fn = inputs.weight_fn()?;
    let lattice = RecognitionLattice::new(&inputs.context, inputs.alignment, &*weight_fn)?;
    let weighed = sums::weights(check, &inputs, &lattice)?;
    weighed.compare(check, &inputs)?;
    sums::sums(check, &inputs, &lattice)?;
    paths::paths(check, &inputs, &lattice)
}
