//! A process-wide cache of decoded files, for files that contain many recordings.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use crate::audio::{AudioChange, Channel, DurationLimit, read_channel, segment};
use crate::{Audio, Error, Result};

/// Samples kept at most (512 MiB), unless a single file is larger.
const LIMIT: usize = 128 << 20;

/// A file is known by its path, size and time of change, so that a rewritten file is read again, and by what was taken of it.
#[derive(PartialEq)]
struct Key(PathBuf, u64, Option<SystemTime>, Channel);

/// A decoded file, and what was done to it.
type Decoded = (Arc<Audio>, Option<AudioChange>);

/// Oldest first. One lock is held while a file is decoded: threads that want the same file wait for one decoding.
static FILES: Mutex<VecDeque<(Key, Decoded)>> = Mutex::new(VecDeque::new());

/// Reads `count` samples of a file from sample `start` on.
///
/// For files that contain many recordings: the decoded file stays in a process-wide cache of bounded size, so that the
/// next segment costs a copy. A file that changes on disk is read again.
///
/// # Errors
/// Those of [`read_audio`](crate::read_audio); a segment that is empty or reaches over the end of the file.
pub fn read_segment(path: &Path, start: u64, count: u64) -> Result<Audio> {
    let (whole, _) = read(path, Channel::Only)?;
    let samples = segment(path, &whole, start, count)?.to_vec();
    Ok(Audio { samples, sample_rate: whole.sample_rate })
}

/// Frees the decoded files that [`read_segment`] keeps: up to 512 MiB, which the next call fills again.
pub fn clear_decode_cache() {
    FILES.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// The decoded file, from the cache if it is there.
pub(crate) fn read(path: &Path, channel: Channel) -> Result<Decoded> {
    let meta = std::fs::metadata(path).map_err(|source| Error::Io { path: path.into(), source })?;
    let key = Key(path.into(), meta.len(), meta.modified().ok(), channel);
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, decoded)) = files.iter().find(|(k, _)| *k == key) {
        return Ok(decoded.clone());
    }
    let (audio, change) = read_channel(path, channel, DurationLimit::None)?;
    let decoded = (Arc::new(audio), change);
    files.retain(|(k, _)| k.0 != key.0);
    files.push_back((key, decoded.clone()));
    let mut kept: usize = files.iter().map(|(_, (a, _))| a.samples.len()).sum();
    while kept > LIMIT && files.len() > 1 {
        kept -= files.pop_front().map_or(0, |(_, (a, _))| a.samples.len());
    }
    Ok(decoded)
}
