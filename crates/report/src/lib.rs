//! One self-contained HTML page of a run folder: curves, error counts, tables of subsets and speakers, and the worst utterances with
//! what was said and heard side by side, and to be listened to.
//!
//! The page is a function of what is in the folder and of the recordings; it loads nothing from elsewhere, and all but sorting works
//! without a script.
//!
//! ```no_run
//! use report::{Options, Run};
//!
//! let run = Run::read("runs/digits".as_ref(), None)?;
//! std::fs::write("report.html", run.page(&Options::default())?)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]

mod columns;
mod curves;
mod edits;
mod error;
mod html;
pub mod plots;
mod recordings;
mod run;
mod run_curve;
mod tables;
mod worst;
mod write;

pub use error::{Error, Result};
pub use run::Run;
pub use run_curve::draw_run_curve;

/// What a page shows.
#[derive(Clone, Debug)]
pub struct Options {
    /// Utterances that are shown, those with most errors first.
    pub worst: usize,
    /// Most bytes of the page that may be sound; 0: none.
    pub audio: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { worst: 30, audio: 16 << 20 }
    }
}
