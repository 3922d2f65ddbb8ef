//! Golden test of FastConformer transducers, made with NeMo.
//!
//! The folder has a folder for each model, `tokenizers/`, and the front end's `frontends.json`.
//! Each module tests one part; [`report`] runs all of them and prints one line per run.
mod archives;
mod case;
mod check;
mod ctc;
mod exact_features;
mod features;
mod gradients;
mod inference;
mod model;
mod network;
mod streaming;
mod tokenizers;

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::columns::name_column_width;
use crate::error::{Error, Result, RunError};
use check::NemoCheck;

/// Function that compares one part with the files of a folder.
type CheckFn = fn(&mut NemoCheck) -> std::result::Result<(), RunError>;

/// Parts that are compared for each folder of this name; `CASE` is the folder of a model.
const PARTS: [(&str, &str, CheckFn); 11] = [
    (".", "features", features::compare_front_ends),
    ("CASE", "features", features::compare_model),
    ("CASE", "archives", archives::compare),
    ("CASE", "network", network::compare),
    ("CASE", "gradients", gradients::compare),
    ("CASE", "inference", inference::compare),
    ("CASE", "streaming", streaming::compare),
    ("tokenizers", "tokenizers", tokenizers::compare),
    ("fc_ctc", "ctc", ctc::compare),
    ("fc_hybrid_rnnt_ctc", "ctc", ctc::compare),
    ("fc_hybrid_tdt_ctc", "ctc", ctc::compare),
];

/// Returns true for a folder of this kind.
pub(super) fn is_supported(dir: &Path) -> bool {
    dir.join("frontends.json").is_file()
}

/// Prints one line per part and case; returns true if all pass.
pub(super) fn report(dir: &Path, out: &mut dyn Write) -> Result<bool> {
    let models = model_folders(dir)?;
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut runs = Vec::new();
    for (folder, part, compare) in PARTS {
        match folder {
            "CASE" => runs.extend(models.iter().map(|model| (name(model), part, model.clone(), compare))),
            folder => runs.push((folder.to_owned(), part, dir.join(folder), compare)),
        }
    }
    let name_width = name_column_width(runs.iter().map(|(name, ..)| name.as_str()));
    writeln!(
        out,
        "Tolerances: those of the golden vectors' README; error/tol: ratio of error to tolerance."
    )?;
    writeln!(out, "{:name_width$}  {:16}  compared  {:>9}  verdict", "case", "part", "error/tol")?;
    let (mut passed, mut failed) = (0, 0);
    for (name, part, folder, compare) in &runs {
        let mut check = NemoCheck::new(folder);
        match compare(&mut check) {
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
        let (compared, ratio) = (check.compared_quantities, check.ratio);
        writeln!(out, "{name:name_width$}  {part:16}  {compared:>8}  {ratio:>9.3}  {verdict}{remarks}")?;
    }
    writeln!(out, "{} models of NeMo: {passed} runs passed, {failed} failed", models.len())?;
    Ok(failed == 0)
}

/// Returns the folders of models, in order.
fn model_folders(dir: &Path) -> Result<Vec<PathBuf>> {
    let folder_error = |source| Error::Folder { path: dir.into(), source };
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(folder_error)? {
        let path = entry.map_err(folder_error)?.path();
        if path.join("case.json").is_file() {
            folders.push(path);
        }
    }
    folders.sort_unstable();
    Ok(folders)
}
