//! What a run tells TensorBoard: event files beside `metrics.csv`.
//!
//! A file holds what happened between two checkpoints. It is written whole just before the later one, and never touched again: a
//! kill tears no record, a reader that looks on while the run goes (some keep a file open, so that nothing may take its place) finds
//! what is new in a new file, and no cost grows with the run. The name says from which state on, so that a run that goes on from a
//! checkpoint removes the files that began there or later: nothing is told twice.
mod record;

use std::time::{SystemTime, UNIX_EPOCH};

use crate::metrics::Metrics;
use crate::observer::StepReport;
use crate::run_folder::EVENT_PREFIX;
use model::checkpoint::Progress;

/// Steps between two that are told.
const EVERY: u64 = 10;

/// Epoch and step of a checkpoint.
type CheckpointState = (u64, u64);

/// What happened since the last checkpoint.
#[derive(Debug)]
pub(crate) struct Events {
    since: CheckpointState,
    records: Vec<u8>,
}

impl Events {
    /// From a checkpoint on, or from the beginning.
    pub(crate) fn new(progress: &Progress) -> Self {
        Events { since: state(progress), records: Vec::new() }
    }

    /// Tells of every tenth step, under `step/NAME`; a loss of 0 (no such head) is left out.
    pub(crate) fn step(&mut self, report: &StepReport) {
        let step = report.step + 1;
        if !step.is_multiple_of(EVERY) {
            return;
        }
        let loss = |value: f64| Some(value).filter(|&value| value != 0.0);
        let values = [
            ("step/loss", Some(report.loss)),
            ("step/ctc_loss", loss(report.ctc_loss)),
            ("step/simple_loss", loss(report.simple_loss)),
            ("step/learning_rate", Some(report.learning_rate)),
            ("step/gradient_norm", Some(report.gradient_norm)),
        ];
        self.tell(step, values.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    }

    /// Tells of an epoch all that `metrics.csv` has, under `epoch/COLUMN`.
    pub(crate) fn epoch(&mut self, metrics: &Metrics) {
        let Ok(serde_json::Value::Object(row)) = serde_json::to_value(metrics) else { return };
        let values = row.into_iter().filter(|(name, _)| name != "epoch" && name != "step");
        self.tell(
            metrics.step,
            values.filter_map(|(name, value)| Some((format!("epoch/{name}"), value.as_f64()?))),
        );
    }

    fn tell(&mut self, step: u64, values: impl Iterator<Item = (String, f64)>) {
        if self.records.is_empty() {
            self.records = record::version(now());
        }
        self.records.extend(record::scalars(now(), step, values));
    }

    /// Name and bytes of the file to be written before a checkpoint of this state; none if nothing happened.
    pub(crate) fn take(&mut self, progress: &Progress) -> Option<(String, Vec<u8>)> {
        let (epoch, step) = std::mem::replace(&mut self.since, state(progress));
        let records = std::mem::take(&mut self.records);
        (!records.is_empty()).then(|| (format!("{EVENT_PREFIX}{epoch:08}.{step:010}.panda"), records))
    }
}

fn state(progress: &Progress) -> CheckpointState {
    (progress.epoch, progress.step)
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_folder::is_undone;

    #[test]
    fn files_that_began_at_the_checkpoint_or_later_are_undone() {
        let at = |epoch, step| Progress { epoch, step, ..Progress::default() };
        let mut events = Events::new(&at(3, 40));
        assert!(events.take(&at(3, 40)).is_none());
        events.tell(50, [("a".to_owned(), 1.0)].into_iter());
        let (name, _) = events.take(&at(4, 52)).unwrap();
        assert_eq!(name, "events.out.tfevents.00000003.0000000040.panda");
        assert!(events.take(&at(4, 52)).is_none());
        for (progress, undone) in
            [(at(3, 39), true), (at(3, 40), true), (at(3, 41), false), (at(4, 40), false), (at(2, 99), true)]
        {
            assert_eq!(is_undone(&name, Some(&progress)), undone, "{progress:?}");
        }
        assert!(is_undone(&name, None));
        // Files of others in the folder are none of ours.
        for name in ["events.out.tfevents.1700000000.host", "metrics.csv"] {
            assert!(!is_undone(name, None) && !is_undone(name, Some(&at(0, 0))));
        }
    }
}
