//! Ours and its rivals side by side, each case and system in a process of its own.
//!
//! [`Suite::plan`] says who does what. [`run`] starts, for every case, system and repeat, this same program with [`COMMAND`] and
//! a description of the case; there, [`run_case`] does the work and answers with one line of JSON. The [`Report`] becomes a
//! table, a file or a picture.
#![warn(missing_docs)]

mod answer;
mod bandwidth;
mod case;
mod child;
mod decode;
mod dense;
mod error;
mod floors;
mod forecast;
mod gradients;
mod inputs;
mod lattices;
mod loss;
mod machine;
mod measure;
mod median;
mod memory;
mod noise;
mod picture;
mod pruned;
mod pruned_dense;
mod recognition;
mod report;
mod row;
mod runner;
mod sgemm;
mod speed;
mod subject;
mod suites;
mod table;
mod train;
mod trivial;

pub use answer::{DecodingReport, PartTimes, PruningReport, Shape, SkipReport, TrainingReport};
pub use case::{
    Budget, Case, DecodeWork, Family, Knowledge, Lengths, LossWork, Method, Plan, PrunedWork,
    RecognitionWork, Scores, Search, System, TrainWork, Work,
};
pub use child::COMMAND;
pub use error::{BenchError, Result};
pub use floors::{Floors, Training};
pub use machine::{Machine, cores};
pub use measure::run_case;
pub use report::Report;
pub use row::{Row, Status};
pub use runner::{Observer, Settings, run};
pub use speed::Speed;
pub use suites::{Choice, Suite};
