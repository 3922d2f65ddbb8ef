//! Event files for TensorBoard, in addition to `metrics.csv`.
//!
//! A file contains the events between two checkpoints. It is written completely just before the
//! later checkpoint, and never changed: a kill leaves no incomplete record, a reader that follows
//! the run finds new events in a new file (some keep files open), and the cost does not grow with
//! the run. The name contains the state of the earlier checkpoint, so that a run that resumes from
//! a checkpoint removes the files that begin there or later, and no event is repeated.
use std::time::{SystemTime, UNIX_EPOCH};

use crate::event_records::{scalars, version};
use crate::metrics::Metrics;
use crate::observer::StepReport;
use crate::run_files::EVENT_PREFIX;
use model::checkpoint::Progress;

/// Steps between two events.
const STEPS_PER_EVENT: u64 = 10;

/// Epoch and step of a checkpoint.
type CheckpointState = (u64, u64);

/// The events since the last checkpoint.
#[derive(Debug)]
pub(crate) struct Events {
    since: CheckpointState,
    records: Vec<u8>,
}

impl Events {
    /// Creates the log of a run at a checkpoint or its start.
    pub(crate) fn new(progress: &Progress) -> Self {
        Events { since: state(progress), records: Vec::new() }
    }

    /// Adds every tenth step under `step/NAME`, without losses of 0 (no such head).
    pub(crate) fn step(&mut self, report: &StepReport) {
        let step = report.step + 1;
        if !step.is_multiple_of(STEPS_PER_EVENT) {
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
        self.add(step, values.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    }

    /// Adds all columns of an epoch in `metrics.csv` under `epoch/COLUMN`.
    pub(crate) fn epoch(&mut self, metrics: &Metrics) {
        let Ok(serde_json::Value::Object(row)) = serde_json::to_value(metrics) else { return };
        let values = row.into_iter().filter(|(name, _)| name != "epoch" && name != "step");
        self.add(
            metrics.step,
            values.filter_map(|(name, value)| Some((format!("epoch/{name}"), value.as_f64()?))),
        );
    }

    fn add(&mut self, step: u64, values: impl Iterator<Item = (String, f64)>) {
        if self.records.is_empty() {
            self.records = version(now());
        }
        self.records.extend(scalars(now(), step, values));
    }

    /// Returns name and bytes of the file to write before a checkpoint; none without events.
    pub(crate) fn take(&mut self, progress: &Progress) -> Option<(String, Vec<u8>)> {
        let (epoch, step) = std::mem::replace(&mut self.since, state(progress));
        let records = std::mem::take(&mut self.records);
        (!records.is_empty()).then(|| (format!("{EVENT_PREFIX}{epoch:08}.{step:010}.panda"), records))
    }
}

/// Returns epoch and step of a run.
fn state(progress: &Progress) -> CheckpointState {
    (progress.epoch, progress.step)
}

/// Returns the seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_files::is_repeated;

    #[test]
    fn files_that_begin_at_the_checkpoint_or_later_are_removed() {
        let at = |epoch, step| Progress { epoch, step, ..Progress::default() };
        let mut events = Events::new(&at(3, 40));
        assert!(events.take(&at(3, 40)).is_none());
        events.add(50, [("a".to_owned(), 1.0)].into_iter());
        let (name, _) = events.take(&at(4, 52)).unwrap();
        assert_eq!(name, "events.out.tfevents.00000003.0000000040.panda");
        assert!(events.take(&at(4, 52)).is_none());
        for (progress, undone) in
            [(at(3, 39), true), (at(3, 40), true), (at(3, 41), false), (at(4, 40), false), (at(2, 99), true)]
        {
            assert_eq!(is_repeated(&name, Some(&progress)), undone, "{progress:?}");
        }
        assert!(is_repeated(&name, None));
        // Files of other programs in the folder are kept.
        for name in ["events.out.tfevents.1700000000.host", "metrics.csv"] {
            assert!(!is_repeated(name, None) && !is_repeated(name, Some(&at(0, 0))));
        }
    }
}
