//! Golden test of recognition lattices, computed by LAST in f64 and f32.
//!
//! LAST is the library of Wu et al. (see `docs/lattices.md`) for globally normalized transducers.
//! Some files have a whole lattice, others one component: contexts, semirings, weight functions,
//! single steps.
mod arc_weights;
mod check;
mod component_files;
mod contexts;
mod file;
mod inputs;
mod paths;
mod semirings;
mod steps;
mod sums;
mod weight_fns;

use std::collections::BTreeMap;
use std::io::Write;

use crate::columns::name_column_width;
use crate::error::RunError;
use check::LatticeCheck;
pub(super) use file::LatticeFile;
use inputs::LatticeInputs;
use lattice::RecognitionLattice;
use rnnt_loss::Element;

use super::error::Result;
use super::tolerances::FloatType;

/// One case: results of LAST in f64 and in f32.
struct LatticeCase<'a> {
    name: &'a str,
    f64_file: &'a LatticeFile,
    f32_file: &'a LatticeFile,
}

/// Pairs `NAME.f64` with `NAME.f32`.
fn pair_files(files: &[LatticeFile]) -> Result<Vec<LatticeCase<'_>>> {
    let by_name: BTreeMap<&str, &LatticeFile> = files.iter().map(|file| (file.name.as_str(), file)).collect();
    let mut cases = Vec::new();
    for (name, file) in &by_name {
        let partner = match (name.strip_suffix(".f64"), name.strip_suffix(".f32")) {
            (Some(case), _) => {
                by_name.get(format!("{case}.f32").as_str()).map(|f32_file| (case, *file, *f32_file))
            }
            (_, Some(case)) if by_name.contains_key(format!("{case}.f64").as_str()) => continue,
            _ => None,
        };
        let (name, f64_file, f32_file) =
            partner.ok_or_else(|| file.error("name", "NAME.f64 and NAME.f32", name))?;
        cases.push(LatticeCase { name, f64_file, f32_file });
    }
    Ok(cases)
}

/// Prints one line per case and type; returns true if all pass.
pub(super) fn report(files: &[LatticeFile], out: &mut dyn Write) -> Result<bool> {
    let cases = pair_files(files)?;
    let name_width = name_column_width(cases.iter().map(|case| case.name));
    // Header, with the tolerances of `lattice/check.rs`.
    writeln!(
        out,
        "Tolerances, against LAST in f64: f64 1e-10 relative + 1e-12; f32 values 2e-5 relative + 1e-5 max|weight| T,"
    )?;
    writeln!(
        out,
        "      gradients and marginals 1e-4 relative + 1e-5; labels and states equal. Errors are relative above 1;"
    )?;
    writeln!(
        out,
        "      error/tol: largest ratio of error to tolerance, of this workspace and of LAST in f32."
    )?;
    writeln!(
        out,
        "{:name_width$}  type  tensors  {:>8}  {:>9}  error/tol  LAST's  verdict",
        "case", "values", "gradients"
    )?;
    // One line per run.
    let (mut passed, mut failed) = (0, 0);
    for case in &cases {
        for (type_name, float_type) in [("f64", FloatType::F64), ("f32", FloatType::F32)] {
            let check = match float_type {
                FloatType::F64 => run::<f64>(case, float_type)?,
                FloatType::F32 => run::<f32>(case, float_type)?,
            };
            let verdict = if check.failures.is_empty() { "pass" } else { "FAIL" };
            *(if check.failures.is_empty() { &mut passed } else { &mut failed }) += 1;
            let remarks = [&check.failures[..], &check.notes].concat();
            let remarks =
                if remarks.is_empty() { String::new() } else { format!(" ({})", remarks.join("; ")) };
            let last_ratio = if float_type == FloatType::F32 {
                format!("{:.3}", check.last_errors.ratio)
            } else {
                "-".into()
            };
            let errors = check.errors;
            writeln!(
                out,
                "{:name_width$}  {type_name}   {:>7}  {:>8.1e}  {:>9.1e}  {:>9.3}  {last_ratio:>6}  {verdict}{remarks}",
                case.name, check.compared_tensors, errors.value, errors.gradient, errors.ratio,
            )?;
        }
    }
    writeln!(out, "{} cases in f64 and f32: {passed} runs passed, {failed} failed", cases.len())?;
    Ok(failed == 0)
}

/// Function that runs a file, and predicate on names of results.
type LatticeRun = (fn(&mut LatticeCheck) -> std::result::Result<(), RunError>, fn(&str) -> bool);

/// Runs a case; an error of the code under test is a failure.
fn run<'a, F: Element>(case: &LatticeCase<'a>, float_type: FloatType) -> Result<LatticeCheck<'a>> {
    let (run, is_result): LatticeRun = match case.name {
        _ if case.f64_file.settings.is_some() => (compare_lattice::<F>, |name| name.starts_with("out/")),
        "alignment_steps" => (steps::compare_steps::<F>, steps::is_result),
        "contexts_fullngram" => (contexts::compare_full_ngrams::<F>, contexts::is_result),
        "contexts_nextstatetable" => (contexts::compare_state_tables::<F>, contexts::is_result),
        "semirings" => (semirings::compare_semirings::<F>, semirings::is_result),
        "weight_fns" => (weight_fns::compare_weight_fns::<F>, weight_fns::is_result),
        _ => {
            let expected = "a sidecar with a case, or the name of a file of components";
            return Err(case.f64_file.error("name", expected, case.name));
        }
    };
    let mut check = LatticeCheck::new(case.f64_file, case.f32_file, float_type, is_result);
    match run(&mut check) {
        Ok(()) => {}
        Err(RunError::InvalidCase(error)) => return Err(error),
        Err(RunError::Failed(error)) => check.failures.push(error),
    }
    check.finish();
    Ok(check)
}

/// Compares arc weights, path sums and best paths of a whole lattice.
fn compare_lattice<F: Element>(check: &mut LatticeCheck) -> std::result::Result<(), RunError> {
    let file = check.file;
    let settings = file.settings.as_ref();
    let settings = settings.ok_or_else(|| file.error("case", "the settings of a lattice", "none"))?;
    let inputs = LatticeInputs::<F>::new(file, settings)?;
    let weight_fn = inputs.weight_fn()?;
    let lattice = RecognitionLattice::new(&inputs.context, inputs.alignment, &*weight_fn)?;
    let weights = sums::compare_arc_weights(check, &inputs, &lattice)?;
    weights.compare(check, &inputs)?;
    sums::compare_session_sums(check, &inputs, &lattice)?;
    paths::compare_paths(check, &inputs, &lattice)
}
