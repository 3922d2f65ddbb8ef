//! One self-contained HTML page of a run folder: curves, error counts, tables of subsets and speakers, and the worst utterances with
//! what was said and heard side by side, and to be listened to.
//!
//! The page is a function of what is in the folder and of the recordings; it loads nothing from elsewhere, and all but sorting works
//! without a script.
//!
//! ```no_run
//! use report::{Options, page};
//!
//! std::fs::write("report.html", page("runs/digits".as_ref(), &Options::default())?)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]

mod columns;
mod curves;
mod edits;
mod error;
mod html;
mod recordings;
mod run;
mod tables;
mod worst;
mod write;

use std::path::{Path, PathBuf};

pub use error::{Error, Result};

/// What a page shows.
#[derive(Clone, Debug)]
pub struct Options {
    /// The recipe in its place, from where its manifests are found; none: where it was when the run began.
    pub recipe: Option<PathBuf>,
    /// Utterances that are shown, those with most errors first.
    pub worst: usize,
    /// Most bytes of the page that may be sound; 0: none.
    pub audio: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { recipe: None, worst: 30, audio: 16 << 20 }
    }
}

/// The page of a run folder, finished or not.
///
/// Recordings are those of the recipe's manifests, at the model's sample rate, as WAV of 16 bits in the page itself. What cannot be
/// found (an old run's manifests, a checkpoint) is left out, and the page says so.
///
/// # Errors
/// [`Error::NoRun`] if the folder holds none; [`Error::Io`], [`Error::Metrics`] and [`Error::Line`] for files of it that cannot be
/// read; with [`Options::recipe`], [`Error::Training`] if its manifests cannot be read.
pub fn page(folder: &Path, options: &Options) -> Result<String> {
    write::page(&run::Run::read(folder, options.recipe.as_deref())?, options)
}
