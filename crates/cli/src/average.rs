//! `panda average OUT CHECKPOINT...`
use std::{path::PathBuf, process::ExitCode};

use crate::{error::Result, numbers, out::outln};

/// Arguments of `panda average`.
#[derive(clap::Args)]
pub struct Args {
    /// Where to write the averaged checkpoint
    out: PathBuf,
    /// Checkpoints of one recipe; with --last or --best, a run folder
    #[arg(value_name = "CHECKPOINT")]
    checkpoints: Vec<PathBuf>,
    /// The last K epochs of a run that keeps their checkpoints (training.keep)
    #[arg(long, value_name = "K", conflicts_with = "best", value_parser = numbers::any)]
    last: Option<usize>,
    /// Those K of them with the lowest word error rate on the dev set
    #[arg(long, value_name = "K", value_parser = numbers::any)]
    best: Option<usize>,
}

/// Averages weights and says of which checkpoints.
pub fn run(arguments: &Args) -> Result<ExitCode> {
    let checkpoints = match (arguments.last.or(arguments.best), arguments.checkpoints.as_slice()) {
        (None, checkpoints) => checkpoints.to_vec(),
        (Some(count), [run]) => training::select_checkpoints(run, count, arguments.best.is_some())?,
        (Some(_), others) => return Err(crate::error::Error::OneRun { found: others.len() }),
    };
    let averaged = training::average(&checkpoints, &arguments.out)?;
    averaged.inputs.iter().try_for_each(|path| outln!("{}", path.display()))?;
    let and = if averaged.has_moving_average { " and of their moving averages" } else { "" };
    let (count, parameters, out) = (averaged.inputs.len(), averaged.parameters, arguments.out.display());
    outln!("{out}: mean of the {parameters} weights of {count} checkpoints{and}")?;
    Ok(ExitCode::SUCCESS)
}
