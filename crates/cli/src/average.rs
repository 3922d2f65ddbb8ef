//! `panda average OUT CHECKPOINT...`: the mean of several checkpoints.
use std::{path::PathBuf, process::ExitCode};

use crate::{error::Result, numbers, printing::outln};

/// Arguments of `panda average`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Averaged checkpoint to write
    out: PathBuf,
    /// Checkpoints of one recipe; with --last or --best, one run folder
    #[arg(value_name = "CHECKPOINT")]
    checkpoints: Vec<PathBuf>,
    /// Average the last K epochs of a run; the recipe must keep their checkpoints (training.keep)
    #[arg(long, value_name = "K", conflicts_with = "best", value_parser = numbers::nonnegative_integer)]
    last: Option<usize>,
    /// Average the K epochs with the lowest word error rate on dev
    #[arg(long, value_name = "K", value_parser = numbers::nonnegative_integer)]
    best: Option<usize>,
}

/// Averages the weights and prints the names of the checkpoints.
pub(crate) fn run(arguments: &Args) -> Result<ExitCode> {
    let checkpoints = match (arguments.last.or(arguments.best), arguments.checkpoints.as_slice()) {
        (None, checkpoints) => checkpoints.to_vec(),
        (Some(count), [run]) => training::select_checkpoints(run, count, arguments.best.is_some())?,
        (Some(_), folders) => return Err(crate::error::Error::RunFolderCount { found: folders.len() }),
    };
    let averaged = training::average(&checkpoints, &arguments.out)?;
    averaged.inputs.iter().try_for_each(|path| outln!("{}", path.display()))?;
    let with_ema = if averaged.has_moving_average { " and of their moving averages" } else { "" };
    let (count, parameters, out) = (averaged.inputs.len(), averaged.parameters, arguments.out.display());
    outln!("{out}: mean of the {parameters} weights of {count} checkpoints{with_ema}")?;
    Ok(ExitCode::SUCCESS)
}
