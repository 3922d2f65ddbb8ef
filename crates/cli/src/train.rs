//! `panda train RECIPE.toml`: trains a model and evaluates it.
#[cfg(feature = "mpi")]
mod mpi;

use std::path::{Path, PathBuf};
use std::{process::ExitCode, time::Duration};

use distributed::ProcessGroup;
use indicatif::{ProgressBar, ProgressStyle};
use model::bytes;
use training::recipe::RecipeOverrides;
use training::run_folder::RunFolder;
use training::{EpochReport, Metrics, Observer, RunReport, StartMode, StepReport};

use crate::{
    error::{Error, Result},
    numbers,
    printing::{outln, warnln},
    scores, signals,
};

/// Time between redraws of the progress bar.
const BAR_REFRESH_INTERVAL: Duration = Duration::from_millis(500);
/// File name of the loss curve in the run folder.
const CURVE_FILE: &str = "curve.svg";

/// Arguments of `panda train`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Recipe (TOML), for example recipes/digits.toml
    recipe: PathBuf,
    /// Start from the weights of a checkpoint; sections that the recipe does not have, such as
    /// encoder and tokens, are those of the checkpoint
    #[arg(long, value_name = "CHECKPOINT")]
    from: Option<PathBuf>,
    /// Run folder to write [default: runs/NAME-OF-THE-RECIPE]
    #[arg(long)]
    run: Option<PathBuf>,
    /// Resume from the last checkpoint of the run folder, bit for bit; start from scratch if there
    /// is none
    #[arg(long, conflicts_with = "force")]
    resume: bool,
    /// With --resume: accept manifests that changed since the checkpoint was written
    #[arg(long, requires = "resume")]
    changed_data: bool,
    /// Overwrite an earlier run in the folder
    #[arg(long)]
    force: bool,
    /// Train for N epochs instead of the recipe's; with --resume, extend or shorten the run to N
    #[arg(long, value_parser = numbers::within("expected a number of epochs, at least 1", 0..=u64::MAX))]
    epochs: Option<u64>,
    /// Limit the memory of the whole process, for example 6GiB; batches are split, and layers of
    /// the encoder recomputed, to fit [default: batch.memory of the recipe]
    #[arg(long, value_parser = bytes::parse)]
    memory: Option<usize>,
    /// Fail if more than this share of a set is unusable; the share is rounded up, and unusable
    /// utterances (recording or text) are left out with a warning [default: data.max_bad of the
    /// recipe, 0.01]
    #[arg(long, value_name = "SHARE", value_parser = numbers::share)]
    max_bad: Option<f64>,
    /// Number format of the gradient all-reduce: bf16 halves the bytes and rounds to 8 bits
    #[cfg(feature = "mpi")]
    #[arg(long, default_value = "f32", value_name = "f32|bf16")]
    transfer: distributed::TransferFormat,
    /// End the job if a process is unresponsive for this many seconds; 0 waits forever
    #[cfg(feature = "mpi")]
    #[arg(
        long,
        default_value_t = 1800,
        value_name = "SECONDS",
        value_parser = numbers::within("expected a number of seconds, at least 0", 0..=u64::MAX)
    )]
    rank_timeout: u64,
}

/// Trains with progress output; prints the final error rates and the next commands.
pub(crate) fn run(arguments: &Args) -> Result<ExitCode> {
    // The run folder, and whether its checkpoint is used.
    let name = arguments.recipe.file_stem().unwrap_or_default();
    let folder = arguments.run.clone().unwrap_or_else(|| PathBuf::from("runs").join(name));
    let start = match (arguments.resume, arguments.force) {
        (true, _) if arguments.changed_data => StartMode::ResumeChanged,
        (true, _) => StartMode::Resume,
        (_, true) => StartMode::Force,
        _ => StartMode::Fresh,
    };
    // Train, in one process or as one rank of an MPI job.
    let mut printer = ProgressPrinter::default();
    let mut train = |group: &mut ProcessGroup| -> Result<training::RunOutcome> {
        let message = "stopping after the current step and saving; press Ctrl-C again to exit immediately";
        let stop = signals::watch(if group.rank() == 0 { message } else { "" })?;
        if arguments.resume
            && group.rank() == 0
            && !folder.join(training::run_files::LAST_CHECKPOINT).exists()
        {
            warnln!("note: {}: no checkpoint to resume from; training starts from scratch", folder.display());
        }
        let Args { epochs, memory, max_bad, .. } = *arguments;
        let overrides = RecipeOverrides { from: arguments.from.clone(), epochs, memory, max_bad };
        let recipe = &arguments.recipe;
        let outcome = training::train_with(recipe, overrides, &folder, start, group, &mut printer, &stop);
        printer.finish();
        Ok(outcome?)
    };
    #[cfg(feature = "mpi")]
    let outcome = match mpi::run(arguments.transfer, arguments.rank_timeout, &mut train)? {
        Some(outcome) => outcome,
        // Rank 0 prints the outcome.
        None => return Ok(ExitCode::SUCCESS),
    };
    #[cfg(not(feature = "mpi"))]
    let outcome = train(&mut ProcessGroup::single())?;
    // Print how to continue a stopped run, or the error rates and the next commands.
    if outcome.stopped {
        printer.print(&match outcome.steps {
            0 => "stopped before the first step; nothing is written".to_owned(),
            steps => {
                let command = resume_command(arguments, arguments.epochs);
                format!("stopped and saved after {steps} steps; to continue: {command}")
            }
        });
        return Ok(ExitCode::from(signals::STOPPED_STATUS));
    }
    for (name, evaluation) in [("dev", &outcome.dev), ("test", &outcome.test)] {
        let Some(evaluation) = evaluation else { continue };
        scores::format_scores(name, evaluation, false).iter().for_each(|line| printer.print(line));
    }
    printer.print(&format!("run folder: {}", folder.display()));
    let checkpoint = ["best.safetensors", training::run_files::LAST_CHECKPOINT]
        .into_iter()
        .map(|name| folder.join(name))
        .find(|path| path.exists());
    if let Some(checkpoint) = checkpoint {
        printer.print(&format!("to transcribe: panda transcribe {} FILE.wav", shell_word(&checkpoint)));
        printer.print(&format!("to write an HTML report: panda report {}", shell_word(&folder)));
        let longer = resume_command(arguments, Some(2 * printer.epochs));
        printer.print(&format!("to train longer: {longer}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Command that resumes this run, with the options that change its recipe.
fn resume_command(arguments: &Args, epochs: Option<u64>) -> String {
    let mut command = format!("panda train {} --resume", shell_word(&arguments.recipe));
    for (option, path) in [("--from", &arguments.from), ("--run", &arguments.run)] {
        if let Some(path) = path {
            command += &format!(" {option} {}", shell_word(path));
        }
    }
    if let Some(epochs) = epochs {
        command += &format!(" --epochs {epochs}");
    }
    if let Some(bytes) = arguments.memory {
        command += &format!(" --memory {bytes}");
    }
    if let Some(share) = arguments.max_bad {
        command += &format!(" --max-bad {share}");
    }
    command
}

/// Quotes a path as one word of a POSIX shell.
fn shell_word(path: &Path) -> String {
    let word = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Prints one line per epoch, and a progress bar on a terminal.
#[derive(Default)]
struct ProgressPrinter {
    /// True after a failed write to standard output; training continues without output.
    output_failed: bool,
    bar: Option<ProgressBar>,
    /// Audio of all steps so far.
    audio_seconds: f64,
    /// Time of all steps so far.
    seconds: f64,
    /// Number of epochs of the run.
    epochs: u64,
}

impl ProgressPrinter {
    fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// Prints a line above the progress bar; stops printing after an error.
    fn print(&mut self, line: &str) {
        if self.output_failed {
            return;
        }
        let printed = match &self.bar {
            Some(bar) => bar.suspend(|| outln!("{line}")),
            None => outln!("{line}"),
        };
        match printed {
            Ok(()) => {}
            Err(Error::OutputClosed) => self.output_failed = true,
            Err(error) => {
                self.output_failed = true;
                warnln!("warning: {error}; training continues");
            }
        }
    }
}

impl Observer for ProgressPrinter {
    fn on_warning(&mut self, warning: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| warnln!("warning: {warning}")),
            None => warnln!("warning: {warning}"),
        }
    }

    fn on_note(&mut self, note: &str) {
        self.print(note);
    }

    fn on_start(&mut self, report: &RunReport) {
        self.epochs = report.epochs;
        let epochs = match report.first_epoch + 1 {
            first if first > report.epochs => format!("all {} epochs are done", report.epochs),
            first => format!("epochs {first} to {}", report.epochs),
        };
        self.print(&format!(
            "{} parameters, {} classes; {} utterances, {:.1} minutes of audio; {epochs}",
            report.parameters,
            report.classes,
            report.utterances,
            report.audio_seconds / 60.0,
        ));
        if let Some(plan) = &report.plan {
            self.print(&plan.to_string());
        }
    }

    fn on_step(&mut self, report: &StepReport) {
        self.audio_seconds += report.audio_seconds;
        self.seconds += report.seconds;
        let speed = self.audio_seconds / self.seconds.max(1e-9);
        let message = format!("epoch {}, loss {:.3}, {speed:.0}x real time", report.epoch + 1, report.loss);
        let bar = self.bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} steps, {msg}, {eta} left")
                .expect("the template is well-formed");
            let bar = ProgressBar::new(report.steps).with_style(style).with_message(message.clone());
            // The speed estimate must not count steps before a resumption.
            let bar = bar.with_position(report.step);
            bar.reset_eta();
            bar.enable_steady_tick(BAR_REFRESH_INTERVAL);
            bar
        });
        bar.set_length(report.steps);
        bar.set_position(report.step + 1);
        bar.set_message(message);
    }

    fn write_epoch(&mut self, folder: &RunFolder, rows: &[Metrics]) -> training::Result<()> {
        let curve = report::draw_run_curve(rows).map_err(|error| model::Error::Io {
            path: folder.file(CURVE_FILE),
            action: "draw the loss curve",
            source: std::io::Error::other(error),
        })?;
        folder.write(CURVE_FILE, curve.as_bytes())
    }

    fn on_epoch(&mut self, report: &EpochReport) {
        let metrics = &report.metrics;
        let mut line = format!(
            "epoch {:>4}/{}  loss {:8.3}  ctc {:8.3}  gradient norm {:6.2}  {:5.1} s",
            metrics.epoch,
            report.epochs,
            metrics.loss,
            metrics.ctc_loss,
            metrics.gradient_norm,
            metrics.seconds
        );
        if metrics.simple_loss > 0.0 {
            line += &format!("  simple {:8.3}", metrics.simple_loss);
        }
        if metrics.skipped > 0 {
            line += &format!("  {} utterances without a path", metrics.skipped);
        }
        if metrics.planned_bytes > 0 {
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            line += &format!(
                "  {:.0} of {:.0} planned MiB",
                mib(metrics.resident_bytes),
                mib(metrics.planned_bytes)
            );
        }
        if metrics.padding > 0.0 {
            line += &format!("  padding {:4.1} %", 100.0 * metrics.padding);
        }
        if metrics.nonfinite > 0 {
            line += &format!("  {} non-finite steps skipped", metrics.nonfinite);
        }
        for (name, rate) in [("WER", metrics.dev_wer), ("CER", metrics.dev_cer)] {
            if let Some(rate) = rate {
                line += &format!("  dev {name} {:.2} %", 100.0 * rate);
            }
        }
        self.print(&line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_for_the_shell_if_needed() {
        let word = |path: &str| shell_word(Path::new(path));
        assert_eq!(word("runs/an4-tdt"), "runs/an4-tdt");
        assert_eq!(word("my run"), "'my run'");
        assert_eq!(word("it's"), r"'it'\''s'");
        assert_eq!(word(""), "''");
    }
}
