//! Names of the files in a run folder: checkpoints, metrics, event files.
//!
//! [`RunFolder`](crate::run_folder::RunFolder) reads and writes them.
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// The checkpoint that a run resumes from.
pub const LAST_CHECKPOINT: &str = "last.safetensors";
/// The path of the recipe; a folder with it is a run folder.
const RECIPE_PATH_FILE: &str = "recipe.path";
/// Files that a run writes before its first step: the recipe and its path.
pub(crate) const RECIPE_FILES: [&str; 2] = ["recipe.toml", RECIPE_PATH_FILE];
/// Files with fixed names that a run writes after its first checkpoint.
pub(crate) const RUN_FILES: [&str; 8] = [
    LAST_CHECKPOINT,
    BAD_ITEMS_FILE,
    "best.safetensors",
    "metrics.csv",
    "curve.svg",
    "evaluation.json",
    "dev.hypotheses.jsonl",
    "test.hypotheses.jsonl",
];
/// The bad items, by set.
pub(crate) const BAD_ITEMS_FILE: &str = "bad_items.json";
/// Prefix and suffix of the epoch checkpoints, with the epoch between them.
pub(crate) const EPOCH_CHECKPOINT_AFFIXES: [&str; 2] = ["epoch-", ".safetensors"];
/// The encoder rows of the training set; a run reads those of an earlier one if they match.
pub(crate) const ENCODER_CACHE_FILE: &str = "encoder.rows";
/// The file that a training process locks.
pub(crate) const LOCK_FILE: &str = ".lock";

/// Returns true for a file that a run in the folder uses.
pub(crate) fn is_file_of_run(file: &Path) -> bool {
    let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else { return false };
    let name = name.to_string_lossy();
    let is_run_folder = |folder: &Path| {
        [LOCK_FILE, RECIPE_PATH_FILE].iter().any(|marker| folder.join(marker).symlink_metadata().is_ok())
    };
    let is_event_file = name.starts_with(EVENT_PREFIX);
    if is_event_file && folder.ends_with(EVENT_FOLDER) && folder.parent().is_some_and(is_run_folder) {
        return true;
    }
    let mut fixed_names =
        RUN_FILES.iter().chain(&RECIPE_FILES).chain(&[LOCK_FILE, EVENT_FOLDER, ENCODER_CACHE_FILE]);
    let is_name_of_run = fixed_names.any(|fixed_name| *fixed_name == name)
        || parse_epoch_checkpoint_name(&name).is_some()
        // Earlier versions wrote event files directly into the run folder.
        || is_event_file;
    is_name_of_run && is_run_folder(folder)
}

/// The folder of the event files, in the run folder.
pub(crate) const EVENT_FOLDER: &str = "tensorboard";
/// Prefix of event files; TensorBoard recognizes them by `tfevents`.
pub(crate) const EVENT_PREFIX: &str = "events.out.tfevents.";
/// Suffix of event files.
const EVENT_SUFFIX: &str = ".panda";

/// Finished epochs and steps of a run; ordered by epochs, then steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RunPosition {
    pub epoch: u64,
    pub step: u64,
}

/// Returns the name of the event file that begins at a position.
pub(crate) fn event_file_name(start: RunPosition) -> String {
    let RunPosition { epoch, step } = start;
    // The names of later files are greater, since TensorBoard reads them in this order.
    format!("{EVENT_PREFIX}{epoch:08}.{step:010}{EVENT_SUFFIX}")
}

/// Parses the name of an event file, exactly as it is written.
pub(crate) fn parse_event_file_name(name: &str) -> Option<RunPosition> {
    let (epoch, step) = name.strip_prefix(EVENT_PREFIX)?.strip_suffix(EVENT_SUFFIX)?.split_once('.')?;
    let start = RunPosition { epoch: epoch.parse().ok()?, step: step.parse().ok()? };
    (event_file_name(start) == name).then_some(start)
}

/// Returns epochs and paths of the epoch checkpoints, in order.
///
/// Epochs count from 1.
///
/// # Errors
/// [`Error::Io`](model::Error::Io) if the folder cannot be read.
pub(crate) fn epoch_checkpoints(folder: &Path) -> Result<Vec<(u64, PathBuf)>> {
    files_with_epochs(folder, parse_epoch_checkpoint_name)
}

/// Returns epochs and paths of files with an epoch in their names.
pub(crate) fn files_with_epochs(
    folder: &Path,
    parse_name: impl Fn(&str) -> Option<u64>,
) -> Result<Vec<(u64, PathBuf)>> {
    let io_error = |error| Error::io(folder, "list the run folder")(error);
    let mut epochs_and_paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io_error)? {
        let path = entry.map_err(io_error)?.path();
        if let Some(epoch) = parse_name(&path.file_name().unwrap_or_default().to_string_lossy()) {
            epochs_and_paths.push((epoch, path));
        }
    }
    epochs_and_paths.sort_unstable();
    Ok(epochs_and_paths)
}

/// Parses the name of an epoch checkpoint, exactly as it is written.
pub(crate) fn parse_epoch_checkpoint_name(name: &str) -> Option<u64> {
    let [prefix, suffix] = EPOCH_CHECKPOINT_AFFIXES;
    let epoch = name.strip_prefix(prefix)?.strip_suffix(suffix)?.parse().ok()?;
    (format!("{prefix}{epoch}{suffix}") == name).then_some(epoch)
}
