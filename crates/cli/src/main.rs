//! The `panda` program: one small file a command.
#![warn(missing_docs)]

mod align;
mod bench;
mod error;
mod evaluate;
mod info;
mod report;
mod train;
mod transcribe;
mod verify;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use training::bytes;

/// Trains and runs transducer (RNN-T) speech recognisers with the exact loss over every class.
#[derive(Parser)]
#[command(name = "panda", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Trains by a recipe, then evaluates on its test manifests
    Train(train::Arguments),
    /// Word error rate of a checkpoint on a manifest, each subset apart
    Evaluate(evaluate::Arguments),
    /// Text of audio files
    Transcribe(transcribe::Arguments),
    /// When each word of a manifest was said: CTM and JSON
    Align(align::Arguments),
    /// Checks golden vectors of independent programs; exit status 1 if any fails
    Verify {
        /// Folder with NAME.json and NAME.safetensors
        dir: PathBuf,
    },
    /// Compares speed and memory with rivals, suite by suite
    Bench(bench::Arguments),
    /// One case of a benchmark, in a process of its own
    #[command(name = ::bench::COMMAND, hide = true)]
    BenchCase(bench::CaseArguments),
    /// Shapes, parameter counts and memory plan of a checkpoint or a recipe
    Info(info::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Train(arguments) => train::run(&arguments),
        Command::Evaluate(arguments) => evaluate::run(&arguments),
        Command::Transcribe(arguments) => transcribe::run(&arguments),
        Command::Align(arguments) => align::run(&arguments),
        Command::Verify { dir } => verify::run(&dir)
            .map(|passed| if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
            .map_err(Into::into),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::BenchCase(arguments) => bench::run_case(&arguments),
        Command::Info(arguments) => info::run(&arguments),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {}", error::chain(&error));
        ExitCode::from(2)
    })
}
