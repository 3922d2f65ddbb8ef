//! `panda report RUN`: an HTML page of a run folder.
use std::{path::PathBuf, process::ExitCode};

use model::bytes;
use report::Options;
use training::files::OutputFile;

use crate::error::Result;
use crate::numbers;
use crate::printing::outln;

/// Arguments of `panda report`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run folder, for example runs/digits
    run: PathBuf,
    /// HTML file to write [default: report.html in the run folder]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Resolve manifests relative to this recipe, for runs trained on another machine
    #[arg(long, value_name = "RECIPE")]
    recipe: Option<PathBuf>,
    /// Show the N worst utterances
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = numbers::nonnegative_integer)]
    worst: usize,
    /// Limit the bytes of audio in the page
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse, default_value = "16MiB", conflicts_with = "no_audio")]
    audio: usize,
    /// Leave out all audio
    #[arg(long)]
    no_audio: bool,
}

/// Writes the page and prints its path and size.
pub(crate) fn run(arguments: &Args) -> Result<ExitCode> {
    let path = arguments.output.clone().unwrap_or_else(|| arguments.run.join("report.html"));
    let run = report::Run::read(&arguments.run, arguments.recipe.as_deref())?;
    let output = OutputFile::new(&path, &run.inputs().collect::<Vec<_>>())?;
    let options = Options {
        worst: arguments.worst,
        max_audio_bytes: if arguments.no_audio { 0 } else { arguments.audio },
    };
    let page = run.page(&options)?;
    let (is_standard_output, size) = (output.is_standard(), page.len());
    output.write(page.as_bytes())?;
    if !is_standard_output {
        outln!("{}: {:.1} MiB", path.display(), size as f64 / f64::from(1 << 20))?;
    }
    Ok(ExitCode::SUCCESS)
}
