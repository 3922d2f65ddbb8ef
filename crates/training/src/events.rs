//! What a run tells TensorBoard: event files beside `metrics.csv`.
//!
//! A file holds what happened between two checkpoints. It is written whole just before the later one, and never touched again: a
//! kill tears no record, a reader that looks on while the run goes (some keep a file open, so that nothing may take its place) finds
//! what is new in a new file, and no cost grows with the run. The name says from which state on, so that a run that goes on from a
//! checkpoint removes the files that began there or later: nothing is told twice.
//!
//! Records are messages of protocol buffers in TFRecord frames:
//!
//! ```text
//! frame   length: u64 | masked CRC-32C of the length: u32 | message | masked CRC-32C of the message: u32      (little-endian)
//! Event   1: wall time (f64), 2: step (i64), 3: file version (text) or 5: Summary
//! Summary 1: Value, again and again;     Value   1: tag (text), 2: value (f32)
//! ```
//! From TensorFlow's `tfrecord` guide and `event.proto`, `summary.proto`.
use std::time::{SystemTime, UNIX_EPOCH};

use crate::metrics::Metrics;
use crate::observer::StepReport;
use crate::run_files::EVENT_PREFIX;
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
            self.records = version(now());
        }
        self.records.extend(scalars(now(), step, values));
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

/// The first record of a file.
fn version(wall_time: f64) -> Vec<u8> {
    let mut event = double(1, wall_time);
    event.extend(bytes(3, b"brain.Event:2"));
    frame(&event)
}

/// A record of named numbers at a step.
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

/// A checksum of what itself holds checksums would be weak; so they are turned and moved.
fn masked(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// A number in groups of seven bits, the lowest first.
fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// What begins a field: its number and the kind of its value.
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
    use crate::run_files::is_undone;

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

    #[test]
    fn bytes_by_hand() {
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
        // The check value of CRC-32C, e3069283, turned and moved.
        assert_eq!(masked(b"123456789"), (0x2507_c60d_u32.wrapping_add(0xa282_ead8)).to_le_bytes());
    }
}
