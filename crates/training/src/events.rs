//! Event files for TensorBoard, in addition to `metrics.csv`.
//!
//! A file contains the events between two checkpoints. It is written completely just before the
//! later checkpoint, and never changed: a kill leaves no incomplete record, a reader that follows
//! the run finds new events in a new file (some keep files open), and the cost does not grow with
//! the run. The name contains the state of the earlier checkpoint, so that a run that resumes from
//! a checkpoint removes the files that begin there or later, and no event is repeated.
//!
//! Records are protocol buffer messages in TFRecord frames, little-endian:
//!
//! ```text
//! frame   length: u64 | masked CRC-32C of length: u32 | message | masked CRC-32C of message: u32
//! Event   1: wall time (f64), 2: step (i64), 3: file version (text) or 5: Summary
//! Summary 1: Value (repeated);     Value   1: tag (text), 2: value (f32)
//! ```
//! See TensorFlow's `tfrecord` guide, `event.proto` and `summary.proto`.
use std::time::{SystemTime, UNIX_EPOCH};

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

/// Encodes the first record of a file.
fn version(wall_time: f64) -> Vec<u8> {
    let mut event = double(1, wall_time);
    event.extend(bytes(3, b"brain.Event:2"));
    frame(&event)
}

/// Encodes a record of named numbers at a step.
fn scalars(wall_time: f64, step: u64, values: impl Iterator<Item = (String, f64)>) -> Vec<u8> {
    let summary: Vec<u8> = values
        .flat_map(|(tag, value)| bytes(1, &[bytes(1, tag.as_bytes()), float(2, value as f32)].concat()))
        .collect();
    frame(&[double(1, wall_time), number(2, step), bytes(5, &summary)].concat())
}

fn frame(message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u64).to_le_bytes();
    [&length[..], &masked(&length), message, &masked(message)].concat()
}

/// Computes a masked CRC.
///
/// A checksum of data with checksums would be weak.
fn masked(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// Encodes a number in groups of seven bits, the lowest first.
fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// Encodes the key of a field: its number and the type of its value.
fn key(field: u64, kind: u64) -> Vec<u8> {
    varint(field << 3 | kind)
}

fn number(field: u64, value: u64) -> Vec<u8> {
    [key(field, 0), varint(value)].concat()
}

fn double(field: u64, value: f64) -> Vec<u8> {
    [&key(field, 1)[..], &value.to_le_bytes()].concat()
}

fn bytes(field: u64, value: &[u8]) -> Vec<u8> {
    [&key(field, 2)[..], &varint(value.len() as u64), value].concat()
}

fn float(field: u64, value: f32) -> Vec<u8> {
    [&key(field, 5)[..], &value.to_le_bytes()].concat()
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

    #[test]
    fn bytes_have_the_values_computed_by_hand() {
        assert_eq!(varint(0), [0]);
        assert_eq!(varint(300), [0xac, 0x02]);
        let record = scalars(1.0, 300, [("a".to_owned(), 0.5)].into_iter());
        let message = [
            &[0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0x10, 0xac, 0x02, 0x2a, 0x0a][..],
            &[0x0a, 0x08, 0x0a, 0x01, b'a', 0x15, 0, 0, 0, 0x3f],
        ]
        .concat();
        assert_eq!(record[..8], (message.len() as u64).to_le_bytes());
        assert_eq!(record[12..12 + message.len()], message);
        assert_eq!(record.len(), 16 + message.len());
        // The check value of CRC-32C, e3069283, masked.
        assert_eq!(masked(b"123456789"), (0x2507_c60d_u32.wrapping_add(0xa282_ead8)).to_le_bytes());
    }
}
