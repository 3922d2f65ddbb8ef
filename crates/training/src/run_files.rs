//! The names of the files of a run.
use std::path::{Path, PathBuf};

use model::checkpoint::Progress;

use crate::{Error, Result};

/// The checkpoint that a run goes on from.
pub const LAST_CHECKPOINT: &str = "last.safetensors";
/// What a run writes before it has learnt anything.
pub(crate) const RECIPE: [&str; 2] = ["recipe.toml", "recipe.path"];
/// Everything else that a run writes, which it does once there is a checkpoint to go on from.
pub(crate) const FILES: [&str; 8] = [
    LAST_CHECKPOINT,
    BAD_ITEMS,
    "best.safetensors",
    "metrics.csv",
    "curve.svg",
    "evaluation.json",
    "dev.hypotheses.jsonl",
    "test.hypotheses.jsonl",
];
/// The utterances that cannot be used, by set.
pub(crate) const BAD_ITEMS: &str = "bad_items.json";
/// How the checkpoints of epochs begin and end; their number is between.
pub(crate) const EPOCH: [&str; 2] = ["epoch-", ".safetensors"];
/// Whose lock a run holds.
pub(crate) const LOCK: &str = ".lock";

/// Whether a file has a name that a run uses for its own, in a folder that holds a run.
pub(crate) fn is_file_of_run(file: &Path) -> bool {
    let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else { return false };
    let name = name.to_string_lossy();
    let is_own = FILES.iter().chain(&RECIPE).chain(&[LOCK]).any(|own| *own == name)
        || checkpoint_epoch(&name).is_some()
        || is_event_file(&name);
    is_own && [LOCK, RECIPE[1]].iter().any(|mark| folder.join(mark).symlink_metadata().is_ok())
}

/// How names of event files begin; readers know them by `tfevents`.
pub(crate) const EVENT_PREFIX: &str = "events.out.tfevents.";
/// Whether a file is named as event files are.
pub(crate) fn is_event_file(name: &str) -> bool {
    name.starts_with(EVENT_PREFIX)
}

/// Whether a file is an event file that a run which goes on from there, or begins anew, will write again.
pub(crate) fn is_undone(name: &str, resumed: Option<&Progress>) -> bool {
    let Some(rest) = name.strip_prefix(EVENT_PREFIX) else { return false };
    let mut numbers = rest.split('.').map(str::parse);
    match (numbers.next(), numbers.next(), resumed) {
        (Some(Ok(epoch)), Some(Ok(step)), Some(progress)) => (epoch, step) >= (progress.epoch, progress.step),
        (Some(Ok(_)), Some(Ok(_)), None) => true,
        _ => false,
    }
}

/// Epochs, from 1, of which a folder has a checkpoint, in order.
///
/// # Errors
/// [`Error::Io`](model::Error::Io) if the folder cannot be read.
pub(crate) fn epoch_checkpoints(folder: &Path) -> Result<Vec<(u64, PathBuf)>> {
    epochs(folder, checkpoint_epoch)
}

/// Epochs of the files in a folder, as their names say.
pub(crate) fn epochs(folder: &Path, of: impl Fn(&str) -> Option<u64>) -> Result<Vec<(u64, PathBuf)>> {
    let broken = |error| Error::io(folder, "look into the run folder")(error);
    let mut epochs = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(broken)? {
        let path = entry.map_err(broken)?.path();
        if let Some(epoch) = of(&path.file_name().unwrap_or_default().to_string_lossy()) {
            epochs.push((epoch, path));
        }
    }
    epochs.sort_unstable();
    Ok(epochs)
}

/// The epoch of a checkpoint's name, written as we write it.
pub(crate) fn checkpoint_epoch(name: &str) -> Option<u64> {
    let [start, end] = EPOCH;
    let epoch = name.strip_prefix(start)?.strip_suffix(end)?.parse().ok()?;
    (format!("{start}{epoch}{end}") == name).then_some(epoch)
}
