//! `RunFolder`: locks, reads and writes the folder of a training run.
//!
//! | file | contents |
//! |---|---|
//! | `recipe.toml` | the recipe of the run |
//! | `recipe.path` | the path of the recipe, to which its manifests are relative |
//! | `metrics.csv` | one row for each epoch |
//! | `curve.svg` | loss and error rates over the epochs; written by `panda train` |
//! | `tensorboard/` | the same and every tenth step for TensorBoard: one file for each start of the run, fresh or resumed |
//! | `last.safetensors`, `best.safetensors` | checkpoints |
//! | `epoch-N.safetensors` | checkpoints of the last `training.keep` epochs |
//! | `encoder.rows` | encoder rows of the training set, with `training.cache_encoder` and without `data.cache` |
//! | `.lock` | empty; locked while a process trains |
//! | `bad_items.json` | bad items: excluded utterances, and recordings of another length than in their manifest; only if there are any |
//! | `evaluation.json`, `SET.hypotheses.jsonl` | the final evaluation and its transcripts |
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use speech::files::{self, FileLock, remove_temporary_files, write_atomically};

use crate::events;
use crate::metrics::Metrics;
use crate::run_files::{
    BAD_ITEMS_FILE, ENCODER_CACHE_FILE, EPOCH_CHECKPOINT_AFFIXES, EVENT_FOLDER, LAST_CHECKPOINT, LOCK_FILE,
    RECIPE_FILES, RUN_FILES, epoch_checkpoints, files_with_epochs, parse_epoch_checkpoint_name,
};
use crate::{Error, Result};
use model::checkpoint::{Checkpoint, Progress};
use recognizer::Evaluation;
use recognizer::bad_items::BadItems;

/// How a run starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartMode {
    /// In a new folder.
    ///
    /// A folder with a run is an error, unless that run ended before its first checkpoint, and so
    /// is one with a `recipe.toml` that no run has written.
    Fresh,
    /// From the last checkpoint, or as [`StartMode::Fresh`] without a run.
    Resume,
    /// As [`StartMode::Resume`], also with other data than those of the checkpoint.
    ResumeChanged,
    /// In any folder; a run in it is overwritten.
    Force,
}

/// The folder of a run, used by one process.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    /// Locked until the process ends in any way; none in a process that only reads.
    lock: Option<FileLock>,
    /// Folders that were created, the outermost last.
    created_folders: Vec<PathBuf>,
}

impl RunFolder {
    /// Creates and locks the folder, and checks its contents.
    ///
    /// # Errors
    /// The folder is then unchanged. [`Error::Io`](model::Error::Io) if it cannot be created or
    /// written; [`Error::RunLocked`] while another process trains in it; [`Error::RunExists`] for a
    /// fresh start in a folder with a run; [`Error::ForeignRecipe`] for a folder with a recipe that
    /// no run has written; [`Error::NoCheckpoint`] if a resumed run has no checkpoint.
    pub fn new(path: &Path, start: StartMode) -> Result<Self> {
        // 1. The folder and its lock.
        let ancestors = path.ancestors().filter(|folder| *folder != Path::new(""));
        let created_folders = ancestors.take_while(|folder| !folder.exists()).map(Path::to_owned).collect();
        std::fs::create_dir_all(path).map_err(Error::io(path, "make the run folder"))?;
        let lock_path = path.join(LOCK_FILE);
        let lock = FileLock::acquire(&lock_path).map_err(Error::io(&lock_path, "lock the run folder"))?;
        let Some(lock) = lock else { return Err(Error::RunLocked { path: path.to_owned() }) };
        let folder = RunFolder { path: path.to_owned(), lock: Some(lock), created_folders };
        if let Err(error) = folder.expect_regular_files() {
            folder.discard();
            return Err(error);
        }
        // 2. Files of an old run, which depend on the start mode.
        let checkpoints = epoch_checkpoints(path)?.into_iter().map(|(_, path)| path);
        let files = RUN_FILES.iter().map(|name| folder.file(name)).chain(checkpoints);
        // A run writes recipe.path before recipe.toml: without it, no run has written the recipe.
        let [recipe, recipe_path] = RECIPE_FILES.map(|name| folder.file(name));
        let is_foreign = recipe.exists() && !recipe_path.exists();
        let old_file = files.into_iter().find(|file| file.exists());
        let error = match (start, old_file) {
            (StartMode::Force, _) => return Ok(folder),
            (_, None) if is_foreign => Error::ForeignRecipe { path: recipe },
            (StartMode::Fresh, Some(_)) => Error::RunExists { path: path.to_owned() },
            (StartMode::Resume | StartMode::ResumeChanged, Some(found))
                if found != folder.last_checkpoint() =>
            {
                Error::NoCheckpoint { path: folder.last_checkpoint(), found }
            }
            _ => return Ok(folder),
        };
        folder.discard();
        Err(error)
    }

    /// Checks that all files of a run are regular files.
    ///
    /// `tensorboard` is a folder.
    fn expect_regular_files(&self) -> Result<()> {
        let checkpoints = epoch_checkpoints(&self.path)?.into_iter().map(|(_, path)| path);
        for file in RUN_FILES.iter().chain(&RECIPE_FILES).map(|name| self.file(name)).chain(checkpoints) {
            files::check_regular(&file).map_err(Error::io(&file, "use this name in the run folder"))?;
        }
        let folder = self.file(EVENT_FOLDER);
        if folder.exists() && !folder.is_dir() {
            let error = std::io::Error::other("expected a folder, found a file");
            return Err(Error::io(&folder, "use this name in the run folder")(error));
        }
        Ok(())
    }

    /// Checks that no input is a file that the run writes.
    ///
    /// # Errors
    /// [`Error::OutputIsInput`].
    pub(crate) fn expect_no_overwritten_input<'a>(
        &self,
        inputs: impl IntoIterator<Item = &'a Path>,
    ) -> Result<()> {
        let checkpoints: Vec<PathBuf> =
            epoch_checkpoints(&self.path)?.into_iter().map(|(_, path)| path).collect();
        for input in inputs {
            let names = RUN_FILES.iter().chain(&RECIPE_FILES).chain([&ENCODER_CACHE_FILE]);
            let fixed_outputs = names.map(|name| self.file(name));
            for output in fixed_outputs.chain(checkpoints.iter().cloned()) {
                if files::is_same_file(&output, input) {
                    return Err(Error::OutputIsInput { output, input: input.to_owned() });
                }
            }
        }
        Ok(())
    }

    /// Opens the folder for reading while another process writes.
    pub(crate) fn read_only(path: &Path) -> Self {
        RunFolder { path: path.to_owned(), lock: None, created_folders: Vec::new() }
    }

    /// Removes the lock and the folders that [`Self::new`] has created.
    pub(crate) fn discard(self) {
        if let Some(lock) = self.lock.filter(FileLock::is_new) {
            lock.remove();
        }
        // Folders with other files remain.
        let _ = self.created_folders.iter().try_for_each(std::fs::remove_dir);
    }

    /// Removes files that the run does not continue with.
    ///
    /// These are temporary files of a killed process; without `resumed` all files of an old run,
    /// else the TensorBoard events of the steps to be repeated.
    ///
    /// # Errors
    /// [`Error::Io`](model::Error::Io).
    pub fn clear(&self, resumed: Option<&Progress>) -> Result<()> {
        let epochs = files_with_epochs(&self.path, |name| {
            // Also epochs with a temporary file only.
            let stem = name.strip_prefix('.').and_then(|name| name.split_once(EPOCH_CHECKPOINT_AFFIXES[1]));
            parse_epoch_checkpoint_name(name).or_else(|| {
                parse_epoch_checkpoint_name(&format!("{}{}", stem?.0, EPOCH_CHECKPOINT_AFFIXES[1]))
            })
        })?;
        let files = || {
            let checkpoints = epochs.iter().map(|&(epoch, _)| self.epoch_checkpoint(epoch));
            RUN_FILES.iter().chain(&RECIPE_FILES).map(|name| self.file(name)).chain(checkpoints)
        };
        for file in files().chain([self.file(ENCODER_CACHE_FILE)]) {
            remove_temporary_files(&file)
                .map_err(Error::io(&file, "remove temporary files of a killed run next to it"))?;
        }
        for old in files().filter(|_| resumed.is_none()) {
            if old.exists() {
                std::fs::remove_file(&old).map_err(Error::io(&old, "remove the old run's file"))?;
            }
        }
        events::remove_repeated_events(&self.path, resumed)
    }

    /// Returns the path of the folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Returns the path of the checkpoint to resume from.
    pub fn last_checkpoint(&self) -> PathBuf {
        self.file(LAST_CHECKPOINT)
    }

    /// Reads the checkpoint to resume from.
    ///
    /// # Errors
    /// [`Error::Resume`], which suggests how to continue.
    pub(crate) fn read_last(&self) -> Result<Checkpoint> {
        Checkpoint::read(&self.last_checkpoint()).map_err(|source| Error::Resume {
            source: Box::new(source.into()),
            best: Checkpoint::read(&self.best_checkpoint()).is_ok(),
        })
    }

    /// Returns the path of the best checkpoint on the dev set.
    pub fn best_checkpoint(&self) -> PathBuf {
        self.file("best.safetensors")
    }

    /// Returns the path of the checkpoint of an epoch, from 1.
    pub fn epoch_checkpoint(&self, epoch: u64) -> PathBuf {
        let [prefix, suffix] = EPOCH_CHECKPOINT_AFFIXES;
        self.file(&format!("{prefix}{epoch}{suffix}"))
    }

    /// Removes all but the last `keep` epoch checkpoints up to `epoch`.
    ///
    /// Later ones remain from a killed run, or from before an older checkpoint was restored.
    ///
    /// # Errors
    /// [`Error::Io`](model::Error::Io).
    pub(crate) fn remove_old_checkpoints(&self, epoch: u64, keep: u64) -> Result<()> {
        for (_, path) in
            epoch_checkpoints(&self.path)?.iter().filter(|(old, _)| *old > epoch || epoch - old >= keep)
        {
            std::fs::remove_file(path).map_err(Error::io(path, "remove the checkpoint of an old epoch"))?;
        }
        Ok(())
    }

    /// Writes the text of the recipe, and its path.
    ///
    /// # Errors
    /// [`Error::Io`](model::Error::Io).
    pub(crate) fn write_recipe(&self, text: &str, path: &Path) -> Result<()> {
        let [recipe, recipe_path] = RECIPE_FILES;
        let path = std::path::absolute(path).map_err(Error::io(path, "find the path of the recipe"))?;
        self.write(recipe_path, path.as_os_str().as_encoded_bytes())?;
        self.write(recipe, text.as_bytes())
    }

    /// Writes a file atomically.
    ///
    /// # Errors
    /// [`Error::Io`](model::Error::Io).
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.file(name);
        write_atomically(&path, bytes).map_err(Error::io(&path, "write"))
    }

    /// Reads the rows of the first epochs; later ones remain from a killed run.
    ///
    /// # Errors
    /// [`Error::Io`](model::Error::Io) if the file exists but is unreadable.
    pub(crate) fn read_metrics(&self, epochs: u64) -> Result<Vec<Metrics>> {
        Self::read_metrics_in(&self.path, epochs)
    }

    /// Reads the rows of the first epochs in another folder.
    pub(crate) fn read_metrics_in(folder: &Path, epochs: u64) -> Result<Vec<Metrics>> {
        let path = folder.join("metrics.csv");
        if !path.exists() {
            return Ok(Vec::new());
        }
        let io_error = |error: csv::Error| Error::io(&path, "read the metrics")(std::io::Error::other(error));
        let file = files::open_regular(&path).map_err(Error::io(&path, "read the metrics"))?;
        let mut reader = csv::Reader::from_reader(file);
        let rows: Vec<Metrics> =
            reader.deserialize().collect::<std::result::Result<_, _>>().map_err(io_error)?;
        Ok(rows.into_iter().filter(|row| row.epoch <= epochs).collect())
    }

    /// Writes `metrics.csv`.
    ///
    /// # Errors
    /// [`Error::Io`](model::Error::Io).
    pub(crate) fn write_metrics(&self, rows: &[Metrics]) -> Result<()> {
        let path = self.file("metrics.csv");
        let io_error = |error: std::io::Error| Error::io(&path, "write the metrics")(error);
        let mut writer = csv::Writer::from_writer(Vec::new());
        for row in rows {
            writer.serialize(row).map_err(|error| io_error(std::io::Error::other(error)))?;
        }
        let bytes =
            writer.into_inner().map_err(|error| io_error(std::io::Error::other(error.to_string())))?;
        self.write("metrics.csv", &bytes)
    }

    /// Writes `bad_items.json`.
    ///
    /// # Errors
    /// [`Error::Io`](model::Error::Io).
    pub(crate) fn write_bad_items(&self, sets: &BTreeMap<String, BadItems>) -> Result<()> {
        let io_error =
            |error: serde_json::Error| Error::io(&self.file(BAD_ITEMS_FILE), "write")(error.into());
        let mut json = serde_json::to_vec_pretty(sets).map_err(io_error)?;
        json.push(b'\n');
        self.write(BAD_ITEMS_FILE, &json)
    }

    /// Reads `bad_items.json`; nothing if it does not exist or is invalid.
    pub fn read_bad_items(&self) -> BTreeMap<String, BadItems> {
        read_bad_items(&self.path)
    }

    /// Writes `evaluation.json`, and a file of transcripts for each set.
    ///
    /// The report contains the bad items of the training set, if there are any.
    ///
    /// # Errors
    /// [`Error::Io`](model::Error::Io).
    pub(crate) fn write_evaluations(&self, sets: &[(&str, &Evaluation)], train: &BadItems) -> Result<()> {
        let path = self.file("evaluation.json");
        let io_error = |error: serde_json::Error| Error::io(&path, "write the report")(error.into());
        for (name, evaluation) in sets {
            self.write(&format!("{name}.hypotheses.jsonl"), evaluation.hypotheses().as_bytes())?;
        }
        let evaluations = sets.iter().map(|&(name, evaluation)| (name, EvaluationEntry::Scored(evaluation)));
        let train = Some(("train", EvaluationEntry::Training(train))).filter(|_| !train.is_empty());
        let report: BTreeMap<_, _> = evaluations.chain(train).collect();
        let mut json = serde_json::to_vec_pretty(&report).map_err(io_error)?;
        json.push(b'\n');
        self.write("evaluation.json", &json)
    }
}

/// An entry of `evaluation.json`.
#[derive(serde::Serialize)]
#[serde(untagged)]
enum EvaluationEntry<'a> {
    /// The evaluation of the dev or the test set.
    Scored(&'a Evaluation),
    /// The training set, which is not evaluated.
    Training(&'a BadItems),
}

/// Reads the bad items of a run, by set; nothing if the file does not exist or is invalid.
pub fn read_bad_items(folder: &Path) -> BTreeMap<String, BadItems> {
    let text = files::read_input_text(&folder.join(BAD_ITEMS_FILE)).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_epoch_checkpoints_only_as_they_are_written() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "epoch-2.safetensors",
            "epoch-10.safetensors",
            "epoch-03.safetensors",
            "epoch-+4.safetensors",
            "epoch-.safetensors",
            "epoch-5.safetensors.old",
            "my-epoch-6.safetensors",
            ".epoch-7.safetensors.abc.tmp",
            "epoch-99999999999999999999999.safetensors",
        ] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let numbers =
            || epoch_checkpoints(folder.path()).unwrap().into_iter().map(|(n, _)| n).collect::<Vec<_>>();
        assert_eq!(numbers(), [2, 10]);
        let run = RunFolder::new(folder.path(), StartMode::Force).unwrap();
        run.remove_old_checkpoints(10, 9).unwrap();
        assert_eq!(numbers(), [2, 10]);
        run.remove_old_checkpoints(3, 9).unwrap();
        assert_eq!(numbers(), [2]);
        run.remove_old_checkpoints(3, 1).unwrap();
        assert_eq!(numbers(), [0; 0]);
        run.clear(Some(&Progress::default())).unwrap();
        assert!(!folder.path().join(".epoch-7.safetensors.abc.tmp").exists());
        assert!(folder.path().join("epoch-03.safetensors").exists());
    }
}
