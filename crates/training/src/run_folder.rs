//! The folder of one run and the files in it.
//!
//! | file | what |
//! |---|---|
//! | `recipe.toml` | the recipe as it was |
//! | `recipe.path` | where it was: its manifests are found from there |
//! | `metrics.csv` | one row an epoch |
//! | `curve.svg` | loss and error rates over the epochs; written by `panda train` |
//! | `events.out.tfevents.*` | the same and every tenth step for TensorBoard, a file from each checkpoint to the next |
//! | `last.safetensors`, `best.safetensors` | checkpoints |
//! | `epoch-N.safetensors` | those of the last epochs, as many as `training.keep` says |
//! | `.lock` | empty; locked while a process trains |
//! | `bad_items.json` | utterances that are left out, and recordings of another length than their lines; not there without any |
//! | `evaluation.json`, `SET.hypotheses.jsonl` | the final report and what was heard |
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use speech::files::{self, FileLock, remove_temporary_files, write_atomically};

use crate::metrics::Metrics;
use crate::run_files::{
    BAD_ITEMS, EPOCH, FILES, LAST_CHECKPOINT, LOCK, RECIPE, checkpoint_epoch, epoch_checkpoints, epochs,
    is_undone,
};
use crate::{Error, Result};
use model::checkpoint::{Checkpoint, Progress};
use recognizer::Evaluation;
use recognizer::bad_items::BadItems;

/// How a run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// In a new folder; a folder that holds a run is an error, unless that run ended before its first checkpoint, and so is one with a
    /// `recipe.toml` that no run has written.
    Fresh,
    /// From the last checkpoint in the folder, or as [`Start::Fresh`] if the folder holds no run.
    Resume,
    /// The same, also where the data are not those of the checkpoint any more.
    ResumeChanged,
    /// In any folder; an old run in it is overwritten.
    Force,
}

/// A run's folder, for one process alone.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    /// Locked until the process ends, however it does; none in a process that only reads.
    lock: Option<FileLock>,
    /// Folders that were not there before, the outermost last.
    new: Vec<PathBuf>,
}

impl RunFolder {
    /// Makes the folder, locks it, and looks at what is in it.
    ///
    /// # Errors
    /// [`Error::Io`](model::Error::Io) if it cannot be made or written; [`Error::RunLocked`] while another process trains in it;
    /// [`Error::RunExists`] if a fresh start is asked for in a folder that holds a run; [`Error::ForeignRecipe`] for a folder with a
    /// recipe that no run has written; [`Error::NoCheckpoint`] if a run is to go
    /// on of which the checkpoint is gone. It is then as it was.
    pub fn new(path: &Path, start: Start) -> Result<Self> {
        let new = path.ancestors().filter(|folder| *folder != Path::new(""));
        let new = new.take_while(|folder| !folder.exists()).map(Path::to_owned).collect();
        std::fs::create_dir_all(path).map_err(Error::io(path, "make the run folder"))?;
        let name = path.join(LOCK);
        let lock = FileLock::acquire(&name).map_err(Error::io(&name, "lock the run folder"))?;
        let Some(lock) = lock else { return Err(Error::RunLocked { path: path.to_owned() }) };
        let folder = RunFolder { path: path.to_owned(), lock: Some(lock), new };
        if let Err(error) = folder.expect_regular_files() {
            folder.leave();
            return Err(error);
        }
        let epochs = epoch_checkpoints(path)?;
        let files = FILES.iter().map(|name| folder.file(name)).chain(epochs.into_iter().map(|of| of.1));
        // A run writes where its recipe was before the recipe: without that, it is somebody's own.
        let [recipe, place] = RECIPE.map(|name| folder.file(name));
        let foreign = recipe.exists() && !place.exists();
        let found = files.into_iter().find(|file| file.exists());
        let error = match (start, found) {
            (Start::Force, _) => return Ok(folder),
            (_, None) if foreign => Error::ForeignRecipe { path: recipe },
            (Start::Fresh, Some(_)) => Error::RunExists { path: path.to_owned() },
            (Start::Resume | Start::ResumeChanged, Some(found)) if found != folder.last() => {
                Error::NoCheckpoint { path: folder.last(), found }
            }
            _ => return Ok(folder),
        };
        folder.leave();
        Err(error)
    }

    /// Fails if a file that a run reads or writes is a pipe, a folder or the like.
    fn expect_regular_files(&self) -> Result<()> {
        let epochs = epoch_checkpoints(&self.path)?.into_iter().map(|(_, path)| path);
        for file in FILES.iter().chain(&RECIPE).map(|name| self.file(name)).chain(epochs) {
            files::check_regular(&file).map_err(Error::io(&file, "use this name in the run folder"))?;
        }
        Ok(())
    }

    /// Fails if something that a run writes is what it reads.
    ///
    /// # Errors
    /// [`Error::OutputIsInput`].
    pub(crate) fn spare<'a>(&self, inputs: impl IntoIterator<Item = &'a Path>) -> Result<()> {
        let epochs: Vec<PathBuf> = epoch_checkpoints(&self.path)?.into_iter().map(|(_, path)| path).collect();
        for input in inputs {
            let own = FILES.iter().chain(&RECIPE).map(|name| self.file(name));
            for output in own.chain(epochs.iter().cloned()) {
                if files::is_same_file(&output, input) {
                    return Err(Error::OutputIsInput { output, input: input.to_owned() });
                }
            }
        }
        Ok(())
    }

    /// The folder of a run for a process that reads in it what another one writes.
    pub(crate) fn read_only(path: &Path) -> Self {
        RunFolder { path: path.to_owned(), lock: None, new: Vec::new() }
    }

    /// Gives up a folder in which nothing was written: what [`Self::new`] made is removed.
    pub fn leave(self) {
        if let Some(lock) = self.lock.filter(FileLock::is_new) {
            lock.remove();
        }
        // Not those in which somebody has put something.
        let _ = self.new.iter().try_for_each(std::fs::remove_dir);
    }

    /// Makes room for a run: what a killed process left is removed and, unless the run goes on, the files of an old one; if it does,
    /// the event files of what is going to happen once more.
    ///
    /// # Errors
    /// [`Error::Io`](model::Error::Io).
    pub fn clear(&self, resumed: Option<&Progress>) -> Result<()> {
        let epochs = epochs(&self.path, |name| {
            // Also those of which there is no more than a temporary file.
            let left = name.strip_prefix('.').and_then(|name| name.split_once(EPOCH[1]));
            checkpoint_epoch(name).or_else(|| checkpoint_epoch(&format!("{}{}", left?.0, EPOCH[1])))
        })?;
        let files = || {
            let epochs = epochs.iter().map(|&(epoch, _)| self.epoch(epoch));
            FILES.iter().chain(&RECIPE).map(|name| self.file(name)).chain(epochs)
        };
        for file in files() {
            remove_temporary_files(&file)
                .map_err(Error::io(&file, "remove what a killed run left beside"))?;
        }
        for old in files().filter(|_| resumed.is_none()) {
            if old.exists() {
                std::fs::remove_file(&old).map_err(Error::io(&old, "remove the old run's file"))?;
            }
        }
        let unread = |error| Error::io(&self.path, "look into the run folder")(error);
        for entry in std::fs::read_dir(&self.path).map_err(unread)? {
            let entry = entry.map_err(unread)?;
            let (name, old) = (entry.file_name(), entry.path());
            // A dot and an ending of its own: one that a killed process had not written to the end.
            let name = name.to_string_lossy();
            let unfinished = name.strip_prefix('.').filter(|_| name.ends_with(".tmp"));
            if is_undone(unfinished.unwrap_or(&name), resumed.filter(|_| unfinished.is_none())) {
                std::fs::remove_file(&old).map_err(Error::io(&old, "remove the old run's file"))?;
            }
        }
        Ok(())
    }

    /// A file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The checkpoint to resume from.
    pub fn last(&self) -> PathBuf {
        self.file(LAST_CHECKPOINT)
    }

    /// Reads the checkpoint to resume from.
    ///
    /// # Errors
    /// [`Error::Resume`], which says what can be done.
    pub fn read_last(&self) -> Result<Checkpoint> {
        Checkpoint::read(&self.last()).map_err(|source| Error::Resume {
            source: Box::new(source.into()),
            best: Checkpoint::read(&self.best()).is_ok(),
        })
    }

    /// The checkpoint with the best dev error rate.
    pub fn best(&self) -> PathBuf {
        self.file("best.safetensors")
    }

    /// The checkpoint of an epoch, from 1.
    pub fn epoch(&self, epoch: u64) -> PathBuf {
        let [start, end] = EPOCH;
        self.file(&format!("{start}{epoch}{end}"))
    }

    /// Removes the checkpoints of all epochs but those of the last `keep` up to this one. Later ones belong to work that a kill, or
    /// whoever put an older checkpoint in the place of the last one, has undone.
    ///
    /// # Errors
    /// [`Error::Io`](model::Error::Io).
    pub fn keep(&self, epoch: u64, keep: u64) -> Result<()> {
        for (_, path) in
            epoch_checkpoints(&self.path)?.iter().filter(|(n, _)| *n > epoch || epoch - n >= keep)
        {
            std::fs::remove_file(path).map_err(Error::io(path, "remove the checkpoint of an old epoch"))?;
        }
        Ok(())
    }

    /// Writes what the run is made by: the recipe's text, and where it was.
    ///
    /// # Errors
    /// [`Error::Io`](model::Error::Io).
    pub fn write_recipe(&self, text: &str, path: &Path) -> Result<()> {
        let [recipe, place] = RECIPE;
        let path = std::path::absolute(path).map_err(Error::io(path, "find the place of the recipe"))?;
        self.write(place, path.as_os_str().as_encoded_bytes())?;
        self.write(recipe, text.as_bytes())
    }

    /// Writes a file as a whole.
    ///
    /// # Errors
    /// [`Error::Io`](model::Error::Io).
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.file(name);
        write_atomically(&path, bytes).map_err(Error::io(&path, "write"))
    }

    /// Reads the rows of the first epochs; those beyond belong to work that a kill has undone.
    ///
    /// # Errors
    /// [`Error::Io`](model::Error::Io) if the file is there but unreadable.
    pub fn read_metrics(&self, epochs: u64) -> Result<Vec<Metrics>> {
        Self::read_metrics_in(&self.path, epochs)
    }

    /// The same for a folder that is only looked at.
    pub(crate) fn read_metrics_in(folder: &Path, epochs: u64) -> Result<Vec<Metrics>> {
        let path = folder.join("metrics.csv");
        if !path.exists() {
            return Ok(Vec::new());
        }
        let broken = |error: csv::Error| Error::io(&path, "read the metrics")(std::io::Error::other(error));
        let file = files::open_regular(&path).map_err(Error::io(&path, "read the metrics"))?;
        let mut reader = csv::Reader::from_reader(file);
        let rows: Vec<Metrics> =
            reader.deserialize().collect::<std::result::Result<_, _>>().map_err(broken)?;
        Ok(rows.into_iter().filter(|row| row.epoch <= epochs).collect())
    }

    /// Writes `metrics.csv`.
    ///
    /// # Errors
    /// [`Error::Io`](model::Error::Io).
    pub fn write_metrics(&self, rows: &[Metrics]) -> Result<()> {
        let path = self.file("metrics.csv");
        let broken = |error: std::io::Error| Error::io(&path, "write the metrics")(error);
        let mut writer = csv::Writer::from_writer(Vec::new());
        for row in rows {
            writer.serialize(row).map_err(|error| broken(std::io::Error::other(error)))?;
        }
        let bytes = writer.into_inner().map_err(|error| broken(std::io::Error::other(error.to_string())))?;
        self.write("metrics.csv", &bytes)
    }

    /// Writes `bad_items.json`.
    ///
    /// # Errors
    /// [`Error::Io`](model::Error::Io).
    pub fn write_bad_items(&self, sets: &BTreeMap<String, BadItems>) -> Result<()> {
        let broken = |error: serde_json::Error| Error::io(&self.file(BAD_ITEMS), "write")(error.into());
        let mut json = serde_json::to_vec_pretty(sets).map_err(broken)?;
        json.push(b'\n');
        self.write(BAD_ITEMS, &json)
    }

    /// Reads `bad_items.json`; nothing if there is none, or another file.
    pub fn read_bad_items(&self) -> BTreeMap<String, BadItems> {
        read_bad_items(&self.path)
    }

    /// Writes `evaluation.json`, with the bad items of the training set if there are some, and a hypotheses file for each named set.
    ///
    /// # Errors
    /// [`Error::Io`](model::Error::Io).
    pub fn write_evaluations(&self, sets: &[(&str, &Evaluation)], train: &BadItems) -> Result<()> {
        let path = self.file("evaluation.json");
        let broken = |error: serde_json::Error| Error::io(&path, "write the report")(error.into());
        for (name, evaluation) in sets {
            self.write(&format!("{name}.hypotheses.jsonl"), evaluation.hypotheses().as_bytes())?;
        }
        let sets = sets.iter().map(|&(name, evaluation)| (name, Section::Evaluation(evaluation)));
        let train = Some(("train", Section::Training(train))).filter(|_| !train.is_empty());
        let report: BTreeMap<_, _> = sets.chain(train).collect();
        let mut json = serde_json::to_vec_pretty(&report).map_err(broken)?;
        json.push(b'\n');
        self.write("evaluation.json", &json)
    }
}

/// An entry of `evaluation.json`.
#[derive(serde::Serialize)]
#[serde(untagged)]
enum Section<'a> {
    Evaluation(&'a Evaluation),
    Training(&'a BadItems),
}

/// The utterances of a run that cannot be used, by set; nothing if its folder does not say.
pub fn read_bad_items(folder: &Path) -> BTreeMap<String, BadItems> {
    let text = files::read_input_text(&folder.join(BAD_ITEMS)).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_names_are_epochs() {
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
        let run = RunFolder::new(folder.path(), Start::Force).unwrap();
        run.keep(10, 9).unwrap();
        assert_eq!(numbers(), [2, 10]);
        run.keep(3, 9).unwrap();
        assert_eq!(numbers(), [2]);
        run.keep(3, 1).unwrap();
        assert_eq!(numbers(), [0; 0]);
        run.clear(Some(&Progress::default())).unwrap();
        assert!(!folder.path().join(".epoch-7.safetensors.abc.tmp").exists());
        assert!(folder.path().join("epoch-03.safetensors").exists());
    }
}
