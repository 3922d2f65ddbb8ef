//! `panda train RECIPE.toml`
#[cfg(feature = "mpi")]
mod many;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use distributed::ProcessGroup;
use indicatif::{ProgressBar, ProgressStyle};
use model::bytes;
use training::recipe::RecipeOverrides;
use training::run_folder::RunFolder;
use training::{EpochReport, Metrics, Observer, RunReport, StartMode, StepReport};

use crate::{
    error::{Error, Result},
    numbers,
    out::{outln, warnln},
    scores, signals,
};

/// The plot of a run, in its folder.
const CURVE: &str = "curve.svg";

/// Arguments of `panda train`.
#[derive(clap::Args)]
pub struct Args {
    /// The recipe
    recipe: PathBuf,
    /// Run folder [default: runs/NAME-OF-THE-RECIPE]
    #[arg(long)]
    run: Option<PathBuf>,
    /// Go on from the folder's last checkpoint, bit for bit; begin anew if it holds none
    #[arg(long, conflicts_with = "force")]
    resume: bool,
    /// With --resume: go on although manifests are not what they were when the checkpoint was written
    #[arg(long, requires = "resume")]
    changed_data: bool,
    /// Overwrite an earlier run in the folder
    #[arg(long)]
    force: bool,
    /// Train for N epochs instead of the recipe's; with --resume, extend or shorten the run to N
    #[arg(long, value_parser = numbers::within("expected a number of epochs, at least 1", 0..=u64::MAX))]
    epochs: Option<u64>,
    /// What the whole run may take, such as 6GiB: batches are cut so that it keeps to it
    #[arg(long, value_parser = bytes::parse)]
    memory: Option<usize>,
    /// Leave out at most this share of each set, rounded up, since the recordings or texts cannot be used; more are an error
    /// [default: data.max_bad of the recipe, 0.01]
    #[arg(long, value_name = "SHARE", value_parser = numbers::share)]
    max_bad: Option<f64>,
    /// In which numbers gradients travel between processes: bf16 has half the bytes, and rounds to 8 bits
    #[cfg(feature = "mpi")]
    #[arg(long, default_value = "f32", value_name = "f32|bf16")]
    transfer: distributed::TransferFormat,
    /// End the job with an error if a process does not respond for this time, in seconds; 0 waits forever
    #[cfg(feature = "mpi")]
    #[arg(
        long,
        default_value_t = 1800,
        value_name = "SECONDS",
        value_parser = numbers::within("expected a number of seconds, at least 0", 0..=u64::MAX)
    )]
    rank_timeout: u64,
}

/// Trains, shows how it goes, and prints the final error rates.
pub fn run(arguments: &Args) -> Result<ExitCode> {
    let name = arguments.recipe.file_stem().unwrap_or_default();
    let folder = arguments.run.clone().unwrap_or_else(|| PathBuf::from("runs").join(name));
    let start = match (arguments.resume, arguments.force) {
        (true, _) if arguments.changed_data => StartMode::ResumeChanged,
        (true, _) => StartMode::Resume,
        (_, true) => StartMode::Force,
        _ => StartMode::Fresh,
    };
    let mut terminal = Terminal::default();
    let mut train = |group: &mut ProcessGroup| -> Result<training::RunOutcome> {
        let says = "stopping as soon as the run can go on from there; Ctrl-C once more leaves at once";
        let stop = signals::watch(if group.rank() == 0 { says } else { "" })?;
        if arguments.resume
            && group.rank() == 0
            && !folder.join(training::run_files::LAST_CHECKPOINT).exists()
        {
            warnln!("note: {} holds no run: it begins anew", folder.display());
        }
        let Args { epochs, memory, max_bad, .. } = *arguments;
        let overrides = RecipeOverrides { epochs, memory, max_bad };
        let recipe = &arguments.recipe;
        let outcome = training::train_with(recipe, overrides, &folder, start, group, &mut terminal, &stop);
        terminal.finish();
        Ok(outcome?)
    };
    #[cfg(feature = "mpi")]
    let outcome = match many::run(arguments.transfer, arguments.rank_timeout, &mut train)? {
        Some(outcome) => outcome,
        // Rank 0 says how it went.
        None => return Ok(ExitCode::SUCCESS),
    };
    #[cfg(not(feature = "mpi"))]
    let outcome = train(&mut ProcessGroup::single())?;
    if outcome.stopped {
        let (steps, run) = (outcome.steps, folder.display());
        terminal.print(&match steps {
            0 => "stopped before the first step; nothing is written".to_owned(),
            _ => {
                let epochs = arguments.epochs.map_or(String::new(), |epochs| format!(" --epochs {epochs}"));
                let memory = arguments.memory.map_or(String::new(), |bytes| format!(" --memory {bytes}"));
                let max_bad = arguments.max_bad.map_or(String::new(), |share| format!(" --max-bad {share}"));
                format!("stopped and saved after {steps} steps; --resume --run {run}{epochs}{memory}{max_bad} goes on")
            }
        });
        return Ok(ExitCode::from(signals::STOPPED));
    }
    for (name, evaluation) in [("dev", &outcome.dev), ("test", &outcome.test)] {
        let Some(evaluation) = evaluation else { continue };
        scores::lines(name, evaluation, false).iter().for_each(|line| terminal.print(line));
    }
    terminal.print(&format!("run folder: {}", folder.display()));
    Ok(ExitCode::SUCCESS)
}

/// A line an epoch, and on a terminal a progress bar over the steps of the run.
#[derive(Default)]
struct Terminal {
    /// Nobody reads what it prints; the training is not for that.
    alone: bool,
    bar: Option<ProgressBar>,
    audio_seconds: f64,
    seconds: f64,
}

impl Terminal {
    fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn print(&mut self, line: &str) {
        if self.alone {
            return;
        }
        let printed = match &self.bar {
            Some(bar) => bar.suspend(|| outln!("{line}")),
            None => outln!("{line}"),
        };
        match printed {
            Ok(()) => {}
            Err(Error::Closed) => self.alone = true,
            Err(error) => {
                self.alone = true;
                warnln!("warning: {error}; the training goes on");
            }
        }
    }
}

impl Observer for Terminal {
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
            // After a resumption, the steps of earlier processes say nothing about this one's speed.
            let bar = bar.with_position(report.step);
            bar.reset_eta();
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        bar.set_length(report.steps);
        bar.set_position(report.step + 1);
        bar.set_message(message);
    }

    fn write_epoch(&mut self, folder: &RunFolder, rows: &[Metrics]) -> training::Result<()> {
        let curve = report::draw_run_curve(rows).map_err(|error| model::Error::Io {
            path: folder.file(CURVE),
            action: "draw the curve",
            source: std::io::Error::other(error),
        })?;
        folder.write(CURVE, curve.as_bytes())
    }

    fn on_epoch(&mut self, report: &EpochReport) {
        let m = &report.metrics;
        let mut line = format!(
            "epoch {:>4}/{}  loss {:8.3}  ctc {:8.3}  norm {:6.2}  {:5.1} s",
            m.epoch, report.epochs, m.loss, m.ctc_loss, m.gradient_norm, m.seconds
        );
        if m.simple_loss > 0.0 {
            line += &format!("  trivial joiner {:8.3}", m.simple_loss);
        }
        if m.skipped > 0 {
            line += &format!("  {} utterances without a path", m.skipped);
        }
        if m.planned_bytes > 0 {
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            line += &format!("  {:.0} of {:.0} MiB", mib(m.resident_bytes), mib(m.planned_bytes));
        }
        if m.padding > 0.0 {
            line += &format!("  padding {:4.1} %", 100.0 * m.padding);
        }
        if m.nonfinite > 0 {
            line += &format!("  {} steps skipped", m.nonfinite);
        }
        for (name, rate) in [("WER", m.dev_wer), ("CER", m.dev_cer)] {
            if let Some(rate) = rate {
                line += &format!("  dev {name} {:.2} %", 100.0 * rate);
            }
        }
        self.print(&line);
    }
}
