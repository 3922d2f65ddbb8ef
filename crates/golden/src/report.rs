//! The report on a folder of golden vectors: a line a case, and a summary.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Arguments;
use std::io::Write;
use std::path::{Path, PathBuf};

use kernels::Printable;

use crate::bars::{self, Verdict, Width};
use crate::case::LossCase;
use crate::decoding::{DecodeLine, DecodingCase};
use crate::error::{Error, Result, Stop};
use crate::{doors, lattice, mlperf};

/// Verifies every case (`NAME.json` beside `NAME.safetensors`) of a folder: losses in f64 and in f32, decoders in f32; true if all
/// pass.
///
/// Prints one line for each case and type or way to decode, then the kinds that were skipped, then a summary. A case that a door
/// refuses is a failure with a line like any other. A JSON file that is a list is about the folder and no case.
///
/// # Errors
/// A folder that is missing or without cases; a file that is missing, corrupt or not what its kind promises. Every
/// file is read before the first line is printed.
pub fn report(dir: &Path, out: &mut dyn Write) -> Result<bool> {
    let (mut losses, mut decoders, mut lattices) = (Vec::new(), Vec::new(), Vec::new());
    let mut mlperf = Vec::new();
    for stem in stems(dir)? {
        match Any::read(&stem)? {
            Any::Loss(case) => losses.push(case),
            Any::Decoding(case) => decoders.push(case),
            Any::Lattice(file) => lattices.push(file),
            Any::MlPerf(file) => mlperf.push(file),
            Any::About => {}
        }
    }
    if losses.is_empty() && decoders.is_empty() && lattices.is_empty() && mlperf.is_empty() {
        return Err(Error::NoCases { path: dir.into() });
    }
    let loss = losses.is_empty() || report_losses(&losses, out)?;
    let decoder = decoders.is_empty() || report_decoders(&decoders, out)?;
    let mlperf = mlperf.is_empty() || mlperf::report(&mlperf, out)?;
    Ok((lattices.is_empty() || lattice::report(&lattices, out)?) && loss && decoder && mlperf)
}

/// What a sidecar is about.
enum Any {
    Loss(LossCase),
    Decoding(DecodingCase),
    Lattice(lattice::File),
    MlPerf(mlperf::File),
    About,
}

impl Any {
    /// Reads `NAME.json` and `NAME.safetensors`; `stem` is the path without either ending.
    fn read(stem: &Path) -> Result<Self> {
        // Not with_extension: a name such as `fastemit_0.01` has a dot of its own.
        let file = |ending: &str| {
            let mut path = stem.as_os_str().to_owned();
            path.push(ending);
            PathBuf::from(path)
        };
        let (json, tensors) = (file(".json"), file(".safetensors"));
        let text = speech::files::read_regular(&json)
            .map_err(|source| Error::File { path: json.clone(), source })?;
        let value: serde_json::Value =
            serde_json::from_slice(&text).map_err(|source| Error::Sidecar { path: json.clone(), source })?;
        let name = stem.file_name().unwrap_or_default().to_string_lossy();
        Ok(match value {
            serde_json::Value::Array(_) if !tensors.exists() => Any::About,
            value if value["kind"].as_str().is_some_and(mlperf::knows) => {
                Any::MlPerf(mlperf::File::read(json, &tensors, &name, value)?)
            }
            value if value.get("decodes").is_some() => {
                Any::Decoding(DecodingCase::read(&json, &tensors, &name, value)?)
            }
            value if value["made_with"].get("last-asr").is_some() => {
                Any::Lattice(lattice::File::read(json, tensors, &name, value)?)
            }
            value => Any::Loss(LossCase::read(json, tensors, &name, value)?),
        })
    }
}

fn report_decoders(cases: &[DecodingCase], out: &mut dyn Write) -> Result<bool> {
    let name = cases.iter().map(|case| case.name.len()).max().unwrap_or(4).max(4);
    writeln!(
        out,
        "Bars: labels, times and durations the same; scores 1e-4, sums 1e-3, absolute or relative."
    )?;
    writeln!(out, "{:name$}  {:18}  {:22}  {:>8}  verdict", "case", "kind", "decode", "scores")?;
    let (mut passed, mut failed, mut skipped) = (0, 0, Vec::new());
    for case in cases {
        let (lines, unknown) = case.run()?;
        skipped.extend(unknown);
        for DecodeLine { id, kind, worst, failure } in lines {
            let verdict = match &failure {
                None => "pass".to_owned(),
                Some(failure) => format!("FAIL ({failure})"),
            };
            *(if failure.is_none() { &mut passed } else { &mut failed }) += 1;
            writeln!(out, "{:name$}  {kind:18}  {id:22}  {worst:>8.1e}  {verdict}", case.name)?;
        }
    }
    if !skipped.is_empty() {
        writeln!(out, "skipped, a kind that is not supported yet: {}", skipped.join(", "))?;
    }
    let (cases, skips) = (cases.len(), skipped.len());
    writeln!(out, "{cases} cases of decoding: {passed} decodes passed, {failed} failed; {skips} skipped")?;
    Ok(failed == 0)
}

fn report_losses(cases: &[LossCase], out: &mut dyn Write) -> Result<bool> {
    let (known, unknown): (Vec<_>, Vec<_>) = cases.iter().partition(|case| doors::knows(&case.kind));
    let name = known.iter().map(|case| case.name.len()).max().unwrap_or(4).max(4);
    writeln!(out, "Bars: f64 loss 1e-9 relative, gradient 1e-9 absolute;")?;
    writeln!(
        out,
        "      f32 loss 2e-6 relative, gradient 2e-5 relative L2, or the best f32 peer where all are worse."
    )?;
    writeln!(out, "{:name$}  {:18}  type  {:>8}  {:>8}  verdict", "case", "kind", "loss", "gradient")?;
    let (mut passed, mut failed) = (0, 0);
    for case in &known {
        for (label, width) in [("f64", Width::Double), ("f32", Width::Single)] {
            let found = match width {
                Width::Double => doors::run::<f64>(case),
                Width::Single => doors::run::<f32>(case),
            };
            let verdict = match found {
                Ok(outcome) => bars::judge(&outcome, case.peers, width),
                Err(Stop::Case(error)) => return Err(error),
                Err(Stop::Refused(error)) => {
                    Verdict { loss: f64::NAN, gradient: f64::NAN, failures: vec![error], notes: Vec::new() }
                }
            };
            let (word, remarks) = if verdict.passed() {
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
                "{case:name$}  {kind:18}  {label}   {loss:>8.1e}  {gradient:>8.1e}  {word}{remarks}"
            )?;
        }
    }
    let mut skipped = BTreeMap::<&str, Vec<&str>>::new();
    for case in &unknown {
        skipped.entry(&case.kind).or_default().push(&case.name);
    }
    for (kind, names) in &skipped {
        writeln!(out, "skipped, kind {kind} is not supported yet: {}", names.join(", "))?;
    }
    writeln!(
        out,
        "{} cases in f64 and f32: {passed} runs passed, {failed} failed; {} cases skipped",
        known.len(),
        unknown.len()
    )?;
    Ok(failed == 0)
}

/// Paths of the cases without their endings, in order. Half a case counts, so that its missing half is named.
fn stems(dir: &Path) -> Result<Vec<PathBuf>> {
    let broken = |source| Error::Folder { path: dir.into(), source };
    let mut stems = BTreeSet::new();
    for entry in std::fs::read_dir(dir).map_err(broken)? {
        let path = entry.map_err(broken)?.path();
        if path.extension().is_some_and(|ending| ending == "json" || ending == "safetensors") {
            stems.insert(path.with_extension(""));
        }
    }
    // `NAME.weights` is a second file of tensors of a case.
    let weights = |stem: &PathBuf| {
        stem.extension().is_some_and(|ending| ending == "weights") && stems.contains(&stem.with_extension(""))
    };
    let stems: Vec<PathBuf> = stems.iter().filter(|stem| !weights(stem)).cloned().collect();
    if stems.is_empty() {
        return Err(Error::NoCases { path: dir.into() });
    }
    Ok(stems)
}

/// A writer in which each `writeln!` is one line with control characters escaped: names of cases come from files.
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
