//! Training of transducers, from a recipe to a checkpoint.
//!
//! The three types to know: a [`Recipe`] describes a run, [`train`] trains it in a run folder and
//! evaluates it, and a [`Learner`] makes single steps for custom loops.
//! [`recognizer::Recognizer`] loads the resulting checkpoint.
//!
//! ```no_run
//! use std::{path::Path, sync::atomic::AtomicBool};
//! use recognizer::Recognizer;
//! use training::{StartMode, train};
//!
//! let stop = AtomicBool::new(false); // another thread may set it: the run then saves and returns
//! let (recipe, folder) = (Path::new("recipes/digits.toml"), Path::new("runs/digits"));
//! let outcome = train(recipe, None, folder, StartMode::Resume, &mut (), &stop)?;
//! println!("word error rate on the test set: {:?}", outcome.test.map(|test| test.overall.wer));
//!
//! let recognizer = Recognizer::load(&folder.join("best.safetensors"))?;
//! println!("{}", recognizer.transcribe(&speech::read_audio(Path::new("hello.flac"))?)?.text);
//! # Ok::<(), training::Error>(())
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`recipe`] | all settings of a run, as one TOML file |
//! | [`data`] | training sets in memory or on disk, augmented batches |
//! | [`optimizer`], [`schedule`], [`ema`] | optimizers, the learning rate, the moving average of the weights |
//! | [`Trainer`], [`Observer`] | the training loop, and what it reports |
//! | [`run_folder`], [`run_files`], [`files`] | files on disk |
//! | [`average`](average()), [`select_checkpoints`] | one checkpoint out of several |
//!
//! `docs/recipes.md` describes recipes, `docs/custom-encoder.md` custom models, `docs/scaling.md`
//! training in several processes.
//!
//! # Determinism
//!
//! Every random stream is named by (seed, purpose, epoch, utterance), so that it does not depend on
//! the other utterances of a batch, and every operation gives the same bits for every number of
//! threads. A checkpoint is therefore the whole state of a run: the steps after it are the same
//! whether the process continued, was stopped, or was killed and started again.
#![warn(missing_docs)]

mod average;
mod bad_item_log;
pub mod data;
mod data_warnings;
pub mod ema;
mod encoder_pass;
mod error;
mod error_report;
mod event_records;
mod events;
pub mod files;
mod fingerprint;
mod learner;
mod loading;
mod metrics;
mod non_finite;
mod observer;
pub mod optimizer;
mod rank_differences;
pub mod recipe;
mod reduction;
pub mod run_files;
pub mod run_folder;
mod run_plan;
pub mod schedule;
mod step_report;
mod train;
mod trainer;

pub use average::{AverageReport, average, select_checkpoints};
pub use encoder_pass::EncoderPass;
pub use error::{Error, Result};
pub use fingerprint::DataSets;
pub use learner::{Learner, TrainingObjective};
pub use loading::train_tokenizer;
pub use metrics::{LossSums, Metrics, peak_resident_bytes};
pub use observer::{EpochReport, Observer, RunReport};
pub use recipe::Recipe;
pub use run_folder::StartMode;
pub use run_plan::{BatchShape, RunPlan, check_step_bytes, recomputed_step_bytes, step_bytes};
pub use schedule::StepPosition;
pub use step_report::StepReport;
pub use train::{RunOutcome, train, train_with};
pub use trainer::{CheckpointMetadata, Trainer, Validator};
