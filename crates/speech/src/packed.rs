//! A small process-wide cache of decoded files, for files that pack many recordings.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use crate::{Audio, Error, Result, read_audio};

/// Samples kept at most (512 MiB), unless a single file is larger.
const LIMIT: usize = 128 << 20;

/// A file is known by its path, size and time of change, so that a rewritten file is read again.
#[derive(PartialEq)]
struct Key(PathBuf, u64, Option<SystemTime>);

/// Oldest first. One lock is held while a file is decoded: threads that want the same file wait for one decoding.
static FILES: Mutex<VecDeque<(Key, Arc<Audio>)>> = Mutex::new(VecDeque::new());

/// The decoded file, from the cache if it is there.
pub(crate) fn read(path: &Path) -> Result<Arc<Audio>> {
    let meta = std::fs::metadata(path).map_err(|source| Error::Io { path: path.into(), source })?;
    let key = Key(path.into(), meta.len(), meta.modified().ok());
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, audio)) = files.iter().find(|(k, _)| *k == key) {
        return Ok(Arc::clone(audio));
    }
    let audio = Arc::new(read_audio(path)?);
    files.retain(|(k, _)| k.0 != key.0);
    files.push_back((key, Arc::clone(&audio)));
    let mut kept: usize = files.iter().map(|(_, a)| a.samples.len()).sum();
    while kept > LIMIT && files.len() > 1 {
        kept -= files.pop_front().map_or(0, |(_, a)| a.samples.len());
    }
    Ok(audio)
}
