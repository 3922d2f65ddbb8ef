//! The `panda` program: one small file a command.
#![warn(missing_docs)]

mod align;
mod arguments;
mod audio;
mod average;
mod bad_items;
mod captions;
mod error;
mod evaluate;
mod info;
mod lm;
mod manifests;
mod merge;
mod numbers;
mod out;
mod outputs;
mod prepare;
mod report;
mod scores;
mod search;
mod shard;
mod signals;
mod train;
mod transcribe;

use std::process::ExitCode;

use clap::Subcommand;

/// Trains and runs transducer (RNN-T) speech recognisers with the exact loss over every class.
#[derive(clap::Parser)]
#[command(name = "panda", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Trains by a recipe, then evaluates on its test manifests
    Train(train::Args),
    /// Word and character error rates of a checkpoint on a manifest, each subset apart
    Evaluate(evaluate::Args),
    /// Text of audio files
    Transcribe(transcribe::Args),
    /// The mean of several checkpoints' weights, as a checkpoint
    Average(average::Args),
    /// When each word of a manifest was said: CTM and JSON
    Align(align::Args),
    /// What several processes have made of their shards, as one file
    Merge(merge::Args),
    /// Checks a corpus as it is distributed and writes its manifests or shards
    Prepare(prepare::Args),
    /// Estimates a small n-gram language model (ARPA) from texts
    Lm(lm::Args),
    /// One HTML page of a run folder: curves, error rates, the worst utterances to read and to hear
    Report(report::Args),
    /// Shapes, parameter counts and memory plan of a checkpoint or a recipe
    Info(info::Args),
}

/// What comes before any command.
fn ready() -> error::Result<()> {
    kernels::check_simd_override().map_err(error::Error::Environment)?;
    speech::memory::limit_from_env().map_err(error::Error::Environment)?;
    signals::report_large_files()
}

fn main() -> ExitCode {
    let command = arguments::parse().command;
    let outcome = ready().and_then(|()| match command {
        Command::Train(arguments) => train::run(&arguments),
        Command::Evaluate(arguments) => evaluate::run(&arguments),
        Command::Transcribe(arguments) => transcribe::run(arguments),
        Command::Average(arguments) => average::run(&arguments),
        Command::Align(arguments) => align::run(&arguments),
        Command::Merge(arguments) => merge::run(&arguments),
        Command::Prepare(arguments) => prepare::run(&arguments),
        Command::Lm(arguments) => lm::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::Info(arguments) => info::run(&arguments),
    });
    match outcome {
        // Whoever closes a pipe has read enough. The status is that of programs that the signal for it ends.
        Err(error) if error.is_closed() => ExitCode::from(signals::CLOSED),
        Err(error) => {
            out::warnln!("error: {}", error::chain(&error));
            ExitCode::from(2)
        }
        Ok(code) => code,
    }
}
