//! Writes an HTML report of a run folder, in one self-contained page.
//!
//! The page has learning curves, error rates of sets, subsets and speakers, the most frequent
//! errors, and the worst utterances: reference above hypothesis, with audio. It depends only on the
//! folder and the recordings, loads nothing from other addresses, and needs a script only to sort
//! tables.
//!
//! [`Run`] reads a run folder and [`Run::page`] writes the page; [`Options`] limits its size.
//! [`plots`] draws line charts as SVG, also for the benchmarks.
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
mod page;
pub mod plots;
mod recordings;
mod run;
mod run_curve;
mod tables;
mod worst;

pub use error::{Error, Result};
pub use run::Run;
pub use run_curve::draw_run_curve;

/// Limits of a page.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of utterances to show, those with most errors first.
    pub worst: usize,
    /// Maximum bytes of audio in the page; 0 leaves out all audio.
    pub max_audio_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { worst: 30, max_audio_bytes: 16 << 20 }
    }
}
