//! The folder of one run and the files in it.
//!
//! | file | what |
//! |---|---|
//! | `recipe.toml` | the recipe as it was |
//! | `metrics.csv` | one row an epoch |
//! | `curve.svg` | loss and word error rate over the epochs |
//! | `last.safetensors`, `best.safetensors` | checkpoints |
//! | `evaluation.json`, `SET.hypotheses.jsonl` | the final report and what was heard |
use std::path::{Path, PathBuf};

use crate::evaluate::Evaluation;
use crate::files::{remove_leftovers, write_atomically};
use crate::metrics::Metrics;
use crate::{Error, Result, curve};

/// Everything that a run writes.
const FILES: [&str; 8] = [
    "recipe.toml",
    "metrics.csv",
    "curve.svg",
    "last.safetensors",
    "best.safetensors",
    "evaluation.json",
    "dev.hypotheses.jsonl",
    "test.hypotheses.jsonl",
];

/// How a run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// In a new folder; a folder that holds a run is an error.
    Fresh,
    /// From the last checkpoint in the folder, or afresh if there is none.
    Resume,
    /// In any folder; an old run in it is overwritten.
    Force,
}

/// A run's folder.
#[derive(Debug, Clone)]
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Looks at a folder without touching it.
    ///
    /// # Errors
    /// [`Error::RunExists`] if a fresh start is asked for in a folder that holds a run.
    pub fn new(path: &Path, start: Start) -> Result<Self> {
        let folder = RunFolder { path: path.to_owned() };
        if start == Start::Fresh && (folder.last().exists() || folder.file("recipe.toml").exists()) {
            return Err(Error::RunExists { path: path.to_owned() });
        }
        Ok(folder)
    }

    /// Makes the folder; unless the run goes on, the files of an old one are removed from it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn make(&self, goes_on: bool) -> Result<()> {
        std::fs::create_dir_all(&self.path).map_err(Error::io(&self.path, "make the run folder"))?;
        for file in FILES.iter().map(|name| self.file(name)) {
            remove_leftovers(&file).map_err(Error::io(&file, "remove what a killed run left beside"))?;
        }
        for old in FILES.iter().filter(|_| !goes_on).map(|name| self.file(name)) {
            if old.exists() {
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
        self.file("last.safetensors")
    }

    /// The checkpoint with the best dev word error rate.
    pub fn best(&self) -> PathBuf {
        self.file("best.safetensors")
    }

    /// Writes a file as a whole.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.file(name);
        write_atomically(&path, bytes).map_err(Error::io(&path, "write"))
    }

    /// Reads the rows of the first epochs; those beyond belong to work that a kill has undone.
    ///
    /// # Errors
    /// [`Error::Io`] if the file is there but unreadable.
    pub fn read_metrics(&self, epochs: u64) -> Result<Vec<Metrics>> {
        let path = self.file("metrics.csv");
        if !path.exists() {
            return Ok(Vec::new());
        }
        let broken = |error: csv::Error| Error::io(&path, "read the metrics")(std::io::Error::other(error));
        let mut reader = csv::Reader::from_path(&path).map_err(broken)?;
        let rows: Vec<Metrics> =
            reader.deserialize().collect::<std::result::Result<_, _>>().map_err(broken)?;
        Ok(rows.into_iter().filter(|row| row.epoch <= epochs).collect())
    }

    /// Writes `metrics.csv`.
    ///
    /// # Errors
    /// [`Error::Io`].
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

    /// Writes `curve.svg`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write_curve(&self, rows: &[Metrics]) -> Result<()> {
        let picture = curve::draw(rows).map_err(std::io::Error::other);
        let picture = picture.map_err(Error::io(&self.file("curve.svg"), "draw the curve"))?;
        self.write("curve.svg", picture.as_bytes())
    }

    /// Writes `evaluation.json` and a hypotheses file for each named set.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write_evaluations(&self, sets: &[(&str, &Evaluation)]) -> Result<()> {
        let path = self.file("evaluation.json");
        let broken = |error: serde_json::Error| Error::io(&path, "write the report")(error.into());
        for (name, evaluation) in sets {
            self.write(&format!("{name}.hypotheses.jsonl"), evaluation.hypotheses().as_bytes())?;
        }
        let report: std::collections::BTreeMap<_, _> = sets.iter().copied().collect();
        let mut json = serde_json::to_vec_pretty(&report).map_err(broken)?;
        json.push(b'\n');
        self.write("evaluation.json", &json)
    }
}
