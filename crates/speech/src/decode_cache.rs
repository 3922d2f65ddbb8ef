//! Process-wide cache of decoded audio files that contain many utterances.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use crate::audio::{AudioChange, Channel, DurationLimit, read_channel, segment_samples};
use crate::{Audio, Error, Result};

/// Largest number of cached samples (512 MiB), unless a single file is larger.
const MAX_CACHED_SAMPLES: usize = 128 << 20;

/// Identifies a file by path, size, modification time and channel.
///
/// A file that is rewritten is decoded again.
#[derive(PartialEq)]
struct CacheKey {
    path: PathBuf,
    bytes: u64,
    modified: Option<SystemTime>,
    channel: Channel,
}

/// A decoded file and the conversion applied to it.
type DecodedFile = (Arc<Audio>, Option<AudioChange>);

/// Decoded files, oldest first.
///
/// The lock is held while a file is decoded, so that threads share one decoding of it.
static DECODED_FILES: Mutex<VecDeque<(CacheKey, DecodedFile)>> = Mutex::new(VecDeque::new());

/// Reads samples `[start, start + count)` of a file.
///
/// For files that contain many recordings: the decoded file stays in a process-wide cache of
/// bounded size, so that further segments only cost a copy. A file that changes on disk is decoded
/// again.
///
/// # Errors
/// Those of [`read_audio`](crate::read_audio); a segment that is empty or exceeds the file.
pub fn read_segment(path: &Path, start: u64, count: u64) -> Result<Audio> {
    let (audio, _) = read_file(path, Channel::Only)?;
    let samples = segment_samples(path, &audio, start, count)?.to_vec();
    Ok(Audio { samples, sample_rate: audio.sample_rate })
}

/// Frees the files that [`read_segment`] has cached, up to 512 MiB.
pub fn clear_decode_cache() {
    DECODED_FILES.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// Returns the decoded file, from the cache if possible.
pub(crate) fn read_file(path: &Path, channel: Channel) -> Result<DecodedFile> {
    let metadata = std::fs::metadata(path).map_err(|source| Error::Io { path: path.into(), source })?;
    let key =
        CacheKey { path: path.into(), bytes: metadata.len(), modified: metadata.modified().ok(), channel };
    let mut files = DECODED_FILES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, decoded)) = files.iter().find(|(cached_key, _)| *cached_key == key) {
        return Ok(decoded.clone());
    }
    let (audio, change) = read_channel(path, channel, DurationLimit::None)?;
    let decoded = (Arc::new(audio), change);
    files.retain(|(cached_key, _)| cached_key.path != key.path);
    files.push_back((key, decoded.clone()));
    let mut cached_samples: usize = files.iter().map(|(_, (audio, _))| audio.samples.len()).sum();
    while cached_samples > MAX_CACHED_SAMPLES && files.len() > 1 {
        cached_samples -= files.pop_front().map_or(0, |(_, (audio, _))| audio.samples.len());
    }
    Ok(decoded)
}
