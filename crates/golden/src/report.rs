//! The report on a folder of golden vectors: one line per run, and a summary.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Arguments;
use std::io::Write;
use std::path::{Path, PathBuf};

use kernels::Printable;

use crate::case::LossCase;
use crate::columns::name_column_width;
use crate::decoding::{DecodeResult, DecodingCase};
use crate::error::{Error, Result, RunError};
use crate::tolerances::{self, FloatType, Verdict};
use crate::{lattice, losses, mlperf, nemo};

/// Checks every case of a folder; returns true if all runs pass.
///
/// A case is `NAME.json` and `NAME.safetensors`. Losses run in f64 and f32, decoders in f32. Prints
/// one line per run, then the skipped kinds, then a summary. An error of the code under test is a
/// failure. A JSON file that is a list describes the folder and is ignored.
///
/// # Errors
/// A missing folder or a folder without cases; a file that is missing, corrupt or does not fit its
/// kind. All files are read before the first line is printed.
pub fn report(dir: &Path, out: &mut dyn Write) -> Result<bool> {
    if nemo::is_supported(dir) {
        return nemo::report(dir, out);
    }
    // Read all files, by kind.
    let (mut losses, mut decoders) = (Vec::new(), Vec::new());
    let (mut lattices, mut mlperf) = (Vec::new(), Vec::new());
    for stem in case_stems(dir)? {
        match GoldenFile::read(&stem)? {
            GoldenFile::Loss(case) => losses.push(case),
            GoldenFile::Decoding(case) => decoders.push(case),
            GoldenFile::Lattice(file) => lattices.push(file),
            GoldenFile::MlPerf(file) => mlperf.push(file),
            GoldenFile::Index => {}
        }
    }
    if losses.is_empty() && decoders.is_empty() && lattices.is_empty() && mlperf.is_empty() {
        return Err(Error::NoCases { path: dir.into() });
    }
    // Run all cases; a failure does not end the report.
    let losses_pass = losses.is_empty() || report_losses(&losses, out)?;
    let decoders_pass = decoders.is_empty() || report_decoders(&decoders, out)?;
    let mlperf_passes = mlperf.is_empty() || mlperf::report(&mlperf, out)?;
    let lattices_pass = lattices.is_empty() || lattice::report(&lattices, out)?;
    Ok(lattices_pass && losses_pass && decoders_pass && mlperf_passes)
}

/// A case of any kind.
enum GoldenFile {
    Loss(LossCase),
    Decoding(DecodingCase),
    Lattice(lattice::LatticeFile),
    MlPerf(mlperf::MlPerfFile),
    /// A description of the folder.
    Index,
}

impl GoldenFile {
    /// Reads `NAME.json` and `NAME.safetensors`; `stem` is the path without extension.
    fn read(stem: &Path) -> Result<Self> {
        // `with_extension` would cut names with a dot, such as `fastemit_0.01`.
        let path_with = |extension: &str| {
            let mut path = stem.as_os_str().to_owned();
            path.push(extension);
            PathBuf::from(path)
        };
        let (json, tensors) = (path_with(".json"), path_with(".safetensors"));
        let text = speech::files::read_regular(&json)
            .map_err(|source| Error::File { path: json.clone(), source })?;
        let value: serde_json::Value =
            serde_json::from_slice(&text).map_err(|source| Error::Sidecar { path: json.clone(), source })?;
        let name = stem.file_name().unwrap_or_default().to_string_lossy();
        Ok(match value {
            serde_json::Value::Array(_) if !tensors.exists() => GoldenFile::Index,
            value if value["kind"].as_str().is_some_and(mlperf::is_supported) => {
                GoldenFile::MlPerf(mlperf::MlPerfFile::read(json, &tensors, &name, value)?)
            }
            value if value.get("decodes").is_some() => {
                GoldenFile::Decoding(DecodingCase::read(&json, &tensors, &name, value)?)
            }
            // Sidecars of LAST have no kind; `made_with` has the versions of its packages.
            value if value["made_with"].get("last-asr").is_some() => {
                GoldenFile::Lattice(lattice::LatticeFile::read(json, tensors, &name, value)?)
            }
            value => GoldenFile::Loss(LossCase::read(json, tensors, &name, value)?),
        })
    }
}

/// Prints one line per decoder of each case; returns true if all pass.
fn report_decoders(cases: &[DecodingCase], out: &mut dyn Write) -> Result<bool> {
    let name_width = name_column_width(cases.iter().map(|case| case.name.as_str()));
    // The tolerances of `decoding.rs`.
    writeln!(
        out,
        "Tolerances: labels, times and durations equal; scores 1e-4, sums 1e-3, absolute or relative."
    )?;
    writeln!(out, "{:name_width$}  {:18}  {:22}  {:>8}  verdict", "case", "kind", "decode", "scores")?;
    let (mut passed, mut failed, mut skipped) = (0, 0, Vec::new());
    for case in cases {
        let (results, unknown_ids) = case.run()?;
        skipped.extend(unknown_ids);
        for DecodeResult { id, kind, max_error, failure } in results {
            let verdict = match &failure {
                None => "pass".to_owned(),
                Some(failure) => format!("FAIL ({failure})"),
            };
            *(if failure.is_none() { &mut passed } else { &mut failed }) += 1;
            writeln!(out, "{:name_width$}  {kind:18}  {id:22}  {max_error:>8.1e}  {verdict}", case.name)?;
        }
    }
    if !skipped.is_empty() {
        writeln!(out, "skipped, of unsupported kind: decodes {}", skipped.join(", "))?;
    }
    let (cases, skips) = (cases.len(), skipped.len());
    writeln!(out, "{cases} cases of decoding: {passed} decodes passed, {failed} failed; {skips} skipped")?;
    Ok(failed == 0)
}

/// Prints one line per case and floating-point type; returns true if all pass.
fn report_losses(cases: &[LossCase], out: &mut dyn Write) -> Result<bool> {
    let (supported, unsupported): (Vec<_>, Vec<_>) =
        cases.iter().partition(|case| losses::is_supported(&case.kind));
    let name_width = name_column_width(supported.iter().map(|case| case.name.as_str()));
    // Header, with the tolerances of `tolerances.rs`.
    writeln!(out, "Tolerances: f64 loss 1e-9 relative, gradient 1e-9 absolute;")?;
    writeln!(
        out,
        "      f32 loss 2e-6 relative, gradient 2e-5 relative L2, or the best f32 peer if all exceed them."
    )?;
    writeln!(out, "{:name_width$}  {:18}  type  {:>8}  {:>8}  verdict", "case", "kind", "loss", "gradient")?;
    // One line per run.
    let (mut passed, mut failed) = (0, 0);
    for case in &supported {
        for (type_name, float_type) in [("f64", FloatType::F64), ("f32", FloatType::F32)] {
            let outcome = match float_type {
                FloatType::F64 => losses::run::<f64>(case),
                FloatType::F32 => losses::run::<f32>(case),
            };
            let verdict = match outcome {
                Ok(outcome) => tolerances::evaluate(&outcome, case.peer_errors, float_type),
                Err(RunError::InvalidCase(error)) => return Err(error),
                Err(RunError::Failed(error)) => {
                    Verdict { loss: f64::NAN, gradient: f64::NAN, failures: vec![error], notes: Vec::new() }
                }
            };
            let (verdict_text, remarks) = if verdict.passed() {
                passed += 1;
                ("pass", &verdict.notes)
            } else {
                failed += 1;
                ("FAIL", &verdict.failures)
            };
            let remarks =
                if remarks.is_empty() { String::new() } else { format!(" ({})", remarks.join("; ")) };
            let (loss, gradient) = (verdict.loss, verdict.gradient);
            let (case, kind) = (&case.name, &case.kind);
            writeln!(
                out,
                "{case:name_width$}  {kind:18}  {type_name}   {loss:>8.1e}  {gradient:>8.1e}  {verdict_text}{remarks}"
            )?;
        }
    }
    // Skipped kinds, and the summary.
    let mut skipped = BTreeMap::<&str, Vec<&str>>::new();
    for case in &unsupported {
        skipped.entry(&case.kind).or_default().push(&case.name);
    }
    for (kind, names) in &skipped {
        writeln!(out, "skipped, unsupported kind {kind}: {}", names.join(", "))?;
    }
    writeln!(
        out,
        "{} cases in f64 and f32: {passed} runs passed, {failed} failed; {} cases skipped",
        supported.len(),
        unsupported.len()
    )?;
    Ok(failed == 0)
}

/// Returns the paths of the cases without extensions, in order.
///
/// Includes incomplete cases, so that the error names the missing file.
fn case_stems(dir: &Path) -> Result<Vec<PathBuf>> {
    let folder_error = |source| Error::Folder { path: dir.into(), source };
    let mut stems = BTreeSet::new();
    for entry in std::fs::read_dir(dir).map_err(folder_error)? {
        let path = entry.map_err(folder_error)?.path();
        if path.extension().is_some_and(|extension| extension == "json" || extension == "safetensors") {
            stems.insert(path.with_extension(""));
        }
    }
    // `NAME.weights` is a second tensor file of a case.
    let is_weights = |stem: &PathBuf| {
        stem.extension().is_some_and(|extension| extension == "weights")
            && stems.contains(&stem.with_extension(""))
    };
    let stems: Vec<PathBuf> = stems.iter().filter(|stem| !is_weights(stem)).cloned().collect();
    if stems.is_empty() {
        return Err(Error::NoCases { path: dir.into() });
    }
    Ok(stems)
}

/// A writer that escapes control characters in each `writeln!`.
///
/// Names of cases are untrusted input.
pub struct PrintableLines<W>(pub W);

impl<W: Write> Write for PrintableLines<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }

    fn write_fmt(&mut self, text: Arguments) -> std::io::Result<()> {
        let text = text.to_string();
        match text.strip_suffix('\n') {
            Some(line) => writeln!(self.0, "{}", Printable(line)),
            None => write!(self.0, "{}", Printable(text)),
        }
    }
}
