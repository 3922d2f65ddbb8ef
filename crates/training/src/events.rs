//! Writes TensorBoard event files of a run: losses of steps, metrics of epochs.
//!
//! Each start of a run, fresh or resumed, writes one file in the folder `tensorboard` of the run
//! folder. Events are collected in memory and appended before each checkpoint. The file of a killed
//! run lacks at most the events after its last checkpoint, or ends in an incomplete record.
//!
//! The name of a file contains epoch and step of the checkpoint from which it continues. A run that
//! resumes from a checkpoint removes the files that begin there or later, and truncates the last
//! one before to the events up to the checkpoint: no event is repeated.
//!
//! Earlier versions wrote one file of the same name for each checkpoint, in the run folder itself;
//! a resumed run moves them.
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::event_records::{FRAME_BYTES, encode_scalars, encode_version, read_message, step_and_tag};
use crate::metrics::Metrics;
use crate::run_files::{EVENT_FOLDER, EVENT_PREFIX, RunPosition, event_file_name, parse_event_file_name};
use crate::step_report::StepReport;
use crate::{Error, Result};
use model::checkpoint::Progress;
use speech::files::remove_temporary_files;

/// Steps between two events.
const STEPS_PER_EVENT: u64 = 10;
/// Prefix of the tags of an epoch.
const EPOCH_TAG: &str = "epoch/";

/// Writes the event file of one start of a run.
#[derive(Debug)]
pub(crate) struct EventWriter {
    /// The position from which the file continues.
    start: RunPosition,
    /// None before the first events are written.
    file: Option<File>,
    /// Encoded records since the last checkpoint.
    pending_records: Vec<u8>,
}

impl EventWriter {
    /// Creates the writer of a run at a checkpoint or its start.
    pub(crate) fn new(progress: &Progress) -> Self {
        EventWriter { start: position(progress), file: None, pending_records: Vec::new() }
    }

    /// Adds every tenth step under `step/NAME`; a loss of 0 (no such head) is omitted.
    pub(crate) fn add_step(&mut self, report: &StepReport) {
        let step = report.step + 1;
        if !step.is_multiple_of(STEPS_PER_EVENT) {
            return;
        }
        let loss_of_head = |value: f64| Some(value).filter(|&value| value != 0.0);
        let values = [
            ("step/loss", Some(report.loss)),
            ("step/ctc_loss", loss_of_head(report.ctc_loss)),
            ("step/simple_loss", loss_of_head(report.simple_loss)),
            ("step/learning_rate", Some(report.learning_rate)),
            ("step/gradient_norm", Some(report.gradient_norm)),
        ];
        self.add(step, values.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    }

    /// Adds all columns of an epoch in `metrics.csv` under `epoch/COLUMN`.
    pub(crate) fn add_epoch(&mut self, metrics: &Metrics) {
        let Ok(serde_json::Value::Object(row)) = serde_json::to_value(metrics) else { return };
        let values = row.into_iter().filter(|(name, _)| name != "epoch" && name != "step");
        self.add(
            metrics.step,
            values.filter_map(|(name, value)| Some((format!("{EPOCH_TAG}{name}"), value.as_f64()?))),
        );
    }

    /// Adds a record of named numbers.
    fn add(&mut self, step: u64, values: impl Iterator<Item = (String, f64)>) {
        self.pending_records.extend(encode_scalars(seconds_since_1970(), step, values));
    }

    /// Appends the events since the last checkpoint, and flushes the file.
    ///
    /// Without events no file is created.
    ///
    /// # Errors
    /// [`Error::Io`](model::Error::Io).
    pub(crate) fn write(&mut self, run_folder: &Path) -> Result<()> {
        if self.pending_records.is_empty() {
            return Ok(());
        }
        let folder = run_folder.join(EVENT_FOLDER);
        let path = folder.join(event_file_name(self.start));
        let records = std::mem::take(&mut self.pending_records);
        let append = |file_or_none: &mut Option<File>| {
            let file = match file_or_none {
                Some(file) => file,
                None => {
                    fs::create_dir_all(&folder)?;
                    let file = file_or_none.insert(File::create(&path)?);
                    file.write_all(&encode_version(seconds_since_1970()))?;
                    file
                }
            };
            file.write_all(&records)?;
            file.sync_data()
        };
        append(&mut self.file).map_err(Error::io(&path, "write the events"))
    }
}

/// Removes the events that a run will write again; it resumes from `resumed` or starts anew.
///
/// Files of other programs in the folders are kept.
///
/// # Errors
/// [`Error::Io`](model::Error::Io).
pub(crate) fn remove_repeated_events(run_folder: &Path, resumed: Option<&Progress>) -> Result<()> {
    // 1. Files of earlier versions, which wrote into the run folder itself.
    let prefix = run_folder.join(EVENT_PREFIX.trim_end_matches('.'));
    remove_temporary_files(&prefix).map_err(Error::io(
        run_folder,
        "remove temporary event files of a killed run of an earlier version",
    ))?;
    let folder = run_folder.join(EVENT_FOLDER);
    let old_files = event_files(run_folder)?;
    if !old_files.is_empty() {
        fs::create_dir_all(&folder).map_err(Error::io(&folder, "create the folder of the event files"))?;
    }
    for (_, name) in old_files {
        let old = run_folder.join(&name);
        fs::rename(&old, folder.join(&name)).map_err(Error::io(&old, "move the event file"))?;
    }
    // 2. Files that begin at the checkpoint or later.
    let files = event_files(&folder)?;
    let is_repeated = |start: RunPosition| resumed.is_none_or(|progress| start >= position(progress));
    for (_, name) in files.iter().filter(|(start, _)| is_repeated(*start)) {
        let old = folder.join(name);
        fs::remove_file(&old).map_err(Error::io(&old, "remove the old run's file"))?;
    }
    // 3. The file before them, which may contain events after the checkpoint.
    let last = files.iter().rfind(|(start, _)| !is_repeated(*start));
    if let (Some((start, name)), Some(progress)) = (last, resumed) {
        let path = folder.join(name);
        truncate(&path, start.epoch, progress).map_err(Error::io(&path, "truncate the event file"))?;
    }
    Ok(())
}

/// Returns starts and names of the event files, in order.
///
/// Nothing without the folder.
fn event_files(folder: &Path) -> Result<Vec<(RunPosition, String)>> {
    let io_error = |error| Error::io(folder, "list the event files")(error);
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(io_error)?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let name = entry.map_err(io_error)?.file_name().to_string_lossy().into_owned();
        files.extend(parse_event_file_name(&name).map(|start| (start, name)));
    }
    files.sort_unstable();
    Ok(files)
}

/// Truncates a file, which begins at `epoch`, at a checkpoint.
fn truncate(path: &Path, epoch: u64, progress: &Progress) -> io::Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    let bytes = bytes_up_to(&mut BufReader::new(&file), epoch, progress)?;
    if bytes < file.metadata()?.len() {
        file.set_len(bytes)?;
        file.sync_all()?;
    }
    Ok(())
}

/// Returns the number of bytes with events up to a checkpoint; a damaged record ends them.
fn bytes_up_to(file: &mut impl Read, mut epoch: u64, progress: &Progress) -> io::Result<u64> {
    let mut bytes = 0;
    while let Some(message) = read_message(file)? {
        if let Some((step, tag)) = step_and_tag(&message) {
            epoch += u64::from(tag.starts_with(EPOCH_TAG.as_bytes()));
            // The step is not sufficient: an epoch ends at the last of its steps, but later.
            if epoch > progress.epoch || step > progress.step {
                break;
            }
        }
        bytes += message.len() as u64 + FRAME_BYTES;
    }
    Ok(bytes)
}

/// Returns finished epochs and steps of a run.
fn position(progress: &Progress) -> RunPosition {
    RunPosition { epoch: progress.epoch, step: progress.step }
}

/// Returns the seconds since 1970.
fn seconds_since_1970() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress_at(epoch: u64, step: u64) -> Progress {
        Progress { epoch, step, ..Progress::default() }
    }

    fn event_file_names(folder: &Path) -> Vec<String> {
        event_files(folder).unwrap().into_iter().map(|(_, name)| name).collect()
    }

    /// Adds an event of a step or of an epoch.
    fn add(writer: &mut EventWriter, step: u64, tag: &str) {
        writer.add(step, [(tag.to_owned(), 1.0)].into_iter());
    }

    /// Returns steps and tags of the events in a file.
    fn read_steps_and_tags(path: &Path) -> Vec<(u64, String)> {
        let mut file = File::open(path).unwrap();
        let mut all = Vec::new();
        while let Some(message) = read_message(&mut file).unwrap() {
            all.extend(
                step_and_tag(&message).map(|(step, tag)| (step, String::from_utf8(tag.to_vec()).unwrap())),
            );
        }
        all
    }

    #[test]
    fn a_start_writes_one_file_without_an_incomplete_record() {
        let run = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::new(&progress_at(3, 40));
        writer.write(run.path()).unwrap();
        assert!(!run.path().join(EVENT_FOLDER).exists());
        for step in [50, 60] {
            add(&mut writer, step, "step/loss");
            writer.write(run.path()).unwrap();
            writer.write(run.path()).unwrap();
        }
        let folder = run.path().join(EVENT_FOLDER);
        assert_eq!(event_file_names(&folder), ["events.out.tfevents.00000003.0000000040.panda"]);
        let file = folder.join(&event_file_names(&folder)[0]);
        assert_eq!(read_steps_and_tags(&file).iter().map(|(step, _)| *step).collect::<Vec<_>>(), [50, 60]);
        let length = bytes_up_to(&mut File::open(&file).unwrap(), 3, &progress_at(9, 99)).unwrap();
        assert_eq!(length, file.metadata().unwrap().len());
        // A process that starts again at the checkpoint replaces the file.
        let mut writer = EventWriter::new(&progress_at(3, 40));
        add(&mut writer, 50, "step/loss");
        writer.write(run.path()).unwrap();
        assert_eq!(read_steps_and_tags(&file).len(), 1);
    }

    #[test]
    fn events_after_the_checkpoint_are_removed() {
        // The events of epoch 4, which ends at step 45 of which the last are skipped, and of 5.
        let events = [(40, "step/loss"), (45, "epoch/loss"), (50, "step/loss"), (52, "epoch/loss")];
        for (progress, count) in [
            (progress_at(3, 39), 0),
            (progress_at(3, 40), 1),
            (progress_at(3, 45), 1),
            (progress_at(4, 45), 2),
            (progress_at(4, 50), 3),
            (progress_at(4, 52), 3),
            (progress_at(5, 52), 4),
            (progress_at(6, 70), 4),
        ] {
            let run = tempfile::tempdir().unwrap();
            let folder = run.path().join(EVENT_FOLDER);
            let (mut first, mut second) =
                (EventWriter::new(&progress_at(3, 35)), EventWriter::new(&progress_at(5, 52)));
            events.iter().for_each(|&(step, tag)| add(&mut first, step, tag));
            add(&mut second, 60, "step/loss");
            first.write(run.path()).unwrap();
            second.write(run.path()).unwrap();
            let [first, second] =
                <[String; 2]>::try_from(event_file_names(&folder)).unwrap().map(|name| folder.join(name));
            // A killed process leaves an incomplete record.
            let incomplete = &encode_version(1.0)[..7];
            File::options().append(true).open(&first).unwrap().write_all(incomplete).unwrap();
            fs::write(folder.join("events.out.tfevents.1700000000.host"), "other").unwrap();
            for _ in 0..2 {
                remove_repeated_events(run.path(), Some(&progress)).unwrap();
                let expected: Vec<_> =
                    events[..count].iter().map(|&(step, tag)| (step, tag.to_owned())).collect();
                assert_eq!(read_steps_and_tags(&first), expected, "{progress:?}");
                assert_eq!(second.exists(), progress.epoch > 5, "{progress:?}");
            }
            remove_repeated_events(run.path(), None).unwrap();
            assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        }
    }

    #[test]
    fn files_of_earlier_versions_are_moved() {
        let run = tempfile::tempdir().unwrap();
        let folder = run.path().join(EVENT_FOLDER);
        let old = [(0, 0), (1, 4), (2, 8)].map(|(epoch, step)| event_file_name(RunPosition { epoch, step }));
        let temporary = run.path().join(".events.out.tfevents.00000002.0000000008.panda.abc123.tmp");
        fs::write(&temporary, "").unwrap();
        let records =
            [encode_version(1.0), encode_scalars(1.0, 4, [("epoch/loss".to_owned(), 1.0)].into_iter())]
                .concat();
        old.iter().for_each(|name| fs::write(run.path().join(name), &records).unwrap());
        remove_repeated_events(run.path(), Some(&progress_at(2, 8))).unwrap();
        assert_eq!(
            (event_file_names(run.path()), event_file_names(&folder)),
            (Vec::new(), old[..2].to_vec())
        );
        assert!(!temporary.exists());
        old.iter().for_each(|name| fs::write(run.path().join(name), &records).unwrap());
        remove_repeated_events(run.path(), None).unwrap();
        assert_eq!((event_file_names(run.path()), event_file_names(&folder)), (Vec::new(), Vec::new()));
    }
}
