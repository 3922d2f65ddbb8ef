//! Trains by a recipe and prints a line per epoch: `train RECIPE RUN_DIR [--resume | --force]`.
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use training::{EpochReport, Evaluation, Observer, RunReport, Start, train};

struct Lines(Instant);

fn print(name: &str, evaluation: &Evaluation) {
    for (subset, s) in std::iter::once((&"all".to_string(), &evaluation.overall)).chain(&evaluation.subsets) {
        let (low, high) = s.interval;
        println!(
            "{name} {subset}: WER {:.2} % [{:.2}, {:.2}] ({} S, {} D, {} I of {} words, {} utterances)",
            100.0 * s.wer,
            100.0 * low,
            100.0 * high,
            s.substitutions,
            s.deletions,
            s.insertions,
            s.words,
            s.utterances
        );
    }
}

impl Observer for Lines {
    fn on_start(&mut self, r: &RunReport) {
        println!(
            "{} weights, {} classes, {} utterances, {:.1} minutes; loaded in {:.1} s",
            r.parameters,
            r.classes,
            r.utterances,
            r.audio_seconds / 60.0,
            self.0.elapsed().as_secs_f64()
        );
    }

    fn on_epoch(&mut self, r: &EpochReport) {
        let m = &r.metrics;
        let wer = m.dev_wer.map_or(String::new(), |wer| format!(" dev {:6.2} %", 100.0 * wer));
        println!(
            "epoch {:3}/{} step {:5} loss {:8.3} ctc {:8.3} norm {:7.2} rate {:.2e} skipped {} {:5.1} s{wer} at {:.0} s",
            m.epoch,
            r.epochs,
            m.step,
            m.loss,
            m.ctc_loss,
            m.gradient_norm,
            m.learning_rate,
            m.skipped,
            m.seconds,
            self.0.elapsed().as_secs_f64()
        );
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [recipe, folder, rest @ ..] = arguments.as_slice() else {
        eprintln!("usage: train RECIPE RUN_DIR [--resume | --force]");
        std::process::exit(2);
    };
    let start = match rest.first().map(String::as_str) {
        Some("--resume") => Start::Resume,
        Some("--force") => Start::Force,
        _ => Start::Fresh,
    };
    let stop = AtomicBool::new(false);
    match train(Path::new(recipe), Path::new(folder), start, &mut Lines(Instant::now()), &stop) {
        Ok(outcome) => {
            for (name, set) in [("dev", &outcome.dev), ("test", &outcome.test)] {
                if let Some(evaluation) = set {
                    print(name, evaluation);
                }
            }
        }
        Err(error) => {
            eprintln!("error: {error}");
            std::process::exit(1);
        }
    }
}
