//! The `panda` program: one module per command.
#![warn(missing_docs)]

mod adapter;
mod align;
mod architecture;
mod arguments;
mod audio;
mod average;
mod bad_items;
mod captions;
mod error;
mod evaluate;
mod export;
mod import;
mod info;
mod lm;
mod manifests;
mod merge;
mod numbers;
mod output_files;
mod prepare;
mod printing;
mod quantize;
mod report;
mod scores;
mod search;
mod shard;
mod signals;
mod train;
mod transcribe;

use std::process::ExitCode;

use clap::Subcommand;

/// Train and run transducer (RNN-T) speech recognizers.
#[derive(clap::Parser)]
#[command(name = "panda", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train a model from a recipe and evaluate it on test sets
    Train(train::Args),
    /// Print word and character error rates of a checkpoint on a manifest
    Evaluate(evaluate::Args),
    /// Transcribe audio files, or audio from standard input as it arrives
    Transcribe(transcribe::Args),
    /// Convert a pretrained model of NeMo or Hugging Face to a checkpoint
    Import(import::Args),
    /// Convert a checkpoint to a model of NeMo or Hugging Face
    Export(export::Args),
    /// Write a smaller checkpoint for recognition: weights in 8-bit blocks or bf16
    Quantize(quantize::Args),
    /// Extract, apply, remove or merge a low-rank adapter
    Adapter(adapter::Args),
    /// Average the weights of several checkpoints into one
    Average(average::Args),
    /// Align transcripts with audio: start and duration of each word as CTM or JSON
    Align(align::Args),
    /// Merge the outputs of --shard I/N and recompute error rates
    Merge(merge::Args),
    /// Check a downloaded corpus and write its manifests or shards
    Prepare(prepare::Args),
    /// Estimate a small n-gram language model (ARPA) from texts
    Lm(lm::Args),
    /// Write an HTML report of a run: curves, error rates, worst utterances with audio
    Report(report::Args),
    /// Print parameter shapes and memory plan of a checkpoint or recipe
    Info(info::Args),
}

/// Sets and checks environment variables and installs signal handlers.
fn prepare_process() -> error::Result<()> {
    // candle's workers spin after each operation and compete with the threads of kernels for cores.
    kernels::set_default_variable("CANDLE_NUM_THREADS", "1");
    kernels::check_simd_override().map_err(error::Error::Environment)?;
    speech::memory::limit_from_env().map_err(error::Error::Environment)?;
    signals::report_large_files()
}

fn main() -> ExitCode {
    let command = arguments::parse().command;
    let outcome = prepare_process().and_then(|()| match command {
        Command::Train(arguments) => train::run(&arguments),
        Command::Evaluate(arguments) => evaluate::run(&arguments),
        Command::Transcribe(arguments) => transcribe::run(arguments),
        Command::Import(arguments) => import::run(&arguments),
        Command::Export(arguments) => export::run(&arguments),
        Command::Quantize(arguments) => quantize::run(&arguments),
        Command::Adapter(arguments) => adapter::run(&arguments),
        Command::Average(arguments) => average::run(&arguments),
        Command::Align(arguments) => align::run(&arguments),
        Command::Merge(arguments) => merge::run(&arguments),
        Command::Prepare(arguments) => prepare::run(&arguments),
        Command::Lm(arguments) => lm::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::Info(arguments) => info::run(&arguments),
    });
    match outcome {
        // The reader of a closed pipe needs no message. The exit status is that of SIGPIPE.
        Err(error) if error.is_closed() => ExitCode::from(signals::CLOSED_STATUS),
        Err(error) => {
            printing::warnln!("error: {}", error::message_with_causes(&error));
            ExitCode::from(2)
        }
        Ok(code) => code,
    }
}
