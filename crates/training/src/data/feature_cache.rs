//! Cache of log-mel features on disk.
//!
//! With it, epochs do not decode the audio again. A file, called plane, contains the feature matrix
//! of an utterance:
//!
//! ```text
//! FOLDER/planes/SETTINGS/ab/ab...32 digits.plane
//!     "panda plane 1\n"   frames: u64   width: u64   frames x width x f32   CRC-32
//! ```
//! All numbers are little-endian. A damaged file is written again. The name is a hash of the entry
//! of the utterance, of path, size and time of its audio files, and of the settings of the front
//! end, so that a change of any selects another file. It has 128 bits: of 281,241 utterances, about
//! nine pairs would share 32.
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use speech::files::{read_regular, write_atomically};
use speech::{FeatureConfig, Features, Utterance};

use crate::fingerprint::format_entry;
use model::Error;
use recognizer::Result;

/// First bytes of a file, with the version of the format.
const FILE_SIGNATURE: &[u8] = b"panda plane 1\n";

/// A cache of features; each utterance has a file.
#[derive(Debug)]
pub(super) struct FeatureCache {
    /// The folder of the front end's settings.
    folder: PathBuf,
    /// True once a write has failed: nothing is written any more.
    is_disabled: AtomicBool,
    /// The error of the failed write, until it is reported.
    warning: Mutex<Option<String>>,
}

impl FeatureCache {
    /// Creates a cache of features with these settings.
    ///
    /// # Errors
    /// [`Error::Shape`] for settings that cannot be serialized.
    pub(super) fn new(folder: &Path, settings: &FeatureConfig) -> Result<Self> {
        let settings = serde_json::to_vec(settings)
            .map_err(|error| Error::shape("features", "serializable settings", error.to_string()))?;
        let name = format!("{:08x}", crc32fast::hash(&settings));
        let folder = folder.join("planes").join(name);
        Ok(FeatureCache { folder, is_disabled: AtomicBool::new(false), warning: Mutex::new(None) })
    }

    /// Returns the features of an utterance, from its file or from `compute`.
    ///
    /// # Errors
    /// Those of `compute`. After a failed write nothing more is written, and [`Self::take_warning`]
    /// returns the reason.
    pub(super) fn get_or_compute(
        &self,
        utterance: &Utterance,
        compute: impl FnOnce() -> Result<Features>,
    ) -> Result<Features> {
        let name = format!("{:x}", audio_hash(utterance));
        let path = self.folder.join(&name[..2]).join(format!("{name}.plane"));
        if let Some(features) = read_regular(&path).ok().and_then(|bytes| from_bytes(&bytes)) {
            return Ok(features);
        }
        let features = compute()?;
        if !self.is_disabled.load(Ordering::Relaxed)
            && let Err(error) = self.write(&path, &features)
            && !self.is_disabled.swap(true, Ordering::Relaxed)
        {
            let warning = format!("data.cache: {error}; the cache is disabled for the rest of the run");
            *self.warning.lock().unwrap_or_else(PoisonError::into_inner) = Some(warning);
        }
        Ok(features)
    }

    fn write(&self, path: &Path, features: &Features) -> Result<()> {
        let folder = path.parent().unwrap_or(&self.folder);
        std::fs::create_dir_all(folder).map_err(Error::io(folder, "make"))?;
        Ok(write_atomically(path, &to_bytes(features)).map_err(Error::io(path, "write"))?)
    }

    /// Returns why the cache is disabled, once.
    pub(super) fn take_warning(&self) -> Option<String> {
        self.warning.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Returns a hash of the entry and files of an utterance.
///
/// Of files, it is one of path, size and time: an audio file that is written again is another file.
pub(super) fn audio_hash(utterance: &Utterance) -> md5::Digest {
    let path_size_and_time = |file: &Path| {
        let metadata = file.metadata().ok();
        (
            file.canonicalize().unwrap_or(file.to_owned()),
            metadata.as_ref().map(Metadata::len),
            metadata.and_then(|metadata| metadata.modified().ok()),
        )
    };
    let files: Vec<_> = utterance.files().map(path_size_and_time).collect();
    md5::compute(format!("{} {files:?}", format_entry(utterance)))
}

/// Encodes features as a file.
fn to_bytes(features: &Features) -> Vec<u8> {
    let mut bytes = FILE_SIGNATURE.to_vec();
    [features.frames as u64, features.dim as u64].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    features.data.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    bytes
}

/// Returns the features of a complete file; none for a damaged one.
fn from_bytes(bytes: &[u8]) -> Option<Features> {
    let (body, checksum) = bytes.split_last_chunk::<4>()?;
    if crc32fast::hash(body) != u32::from_le_bytes(*checksum) {
        return None;
    }
    let rest = body.strip_prefix(FILE_SIGNATURE)?;
    let (frames, rest) = rest.split_first_chunk::<8>()?;
    let (dim, rest) = rest.split_first_chunk::<8>()?;
    let [frames, dim] = [frames, dim].map(|word| u64::from_le_bytes(*word) as usize);
    let data: Vec<f32> = rest.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
    (frames.checked_mul(dim)? == data.len()).then_some(Features { frames, dim, data })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_read_bit_for_bit_and_damage_is_detected() {
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("list.jsonl");
        std::fs::write(&list, r#"{"id": "a", "file": "a.wav", "text": "b", "seconds": 1.0}"#).unwrap();
        let utterance = &speech::read_manifest(&list).unwrap()[0];
        let cache = FeatureCache::new(folder.path(), &FeatureConfig::default()).unwrap();
        let features = Features { frames: 3, dim: 2, data: (0..6).map(|i| (i as f32).exp()).collect() };
        let mut num_computed = 0;
        let mut read_or_compute = || {
            cache.get_or_compute(utterance, || {
                num_computed += 1;
                Ok(features.clone())
            })
        };
        for _ in 0..3 {
            assert_eq!(read_or_compute().unwrap(), features);
        }
        let first_entry = |parent: &Path| std::fs::read_dir(parent).unwrap().next().unwrap().unwrap().path();
        let path = first_entry(&first_entry(&cache.folder));
        let mut bytes = std::fs::read(&path).unwrap();
        // A flipped bit of the values, then a file that ends in its header.
        let header_bytes = FILE_SIGNATURE.len() + 2 * size_of::<u64>();
        bytes[header_bytes + 10] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(read_or_compute().unwrap(), features);
        std::fs::write(&path, &bytes[..header_bytes - 10]).unwrap();
        assert_eq!(read_or_compute().unwrap(), features);
        assert_eq!(num_computed, 3);
        let changed = FeatureConfig { mels: 3, ..FeatureConfig::default() };
        assert_ne!(FeatureCache::new(folder.path(), &changed).unwrap().folder, cache.folder);
    }

    #[test]
    fn audio_that_is_written_again_has_other_features() {
        let folder = tempfile::tempdir().unwrap();
        let (list, audio) = (folder.path().join("list.jsonl"), folder.path().join("a.wav"));
        std::fs::write(&list, r#"{"id": "a", "file": "a.wav", "text": "b", "seconds": 1.0}"#).unwrap();
        let utterance = speech::read_manifest(&list).unwrap().remove(0);
        let cache = FeatureCache::new(folder.path(), &FeatureConfig::default()).unwrap();
        for (value, content) in [(1.0, "audio"), (2.0, "other audio")] {
            std::fs::write(&audio, content).unwrap();
            let features = Features { frames: 1, dim: 1, data: vec![value] };
            assert_eq!(cache.get_or_compute(&utterance, || Ok(features.clone())).unwrap(), features);
            assert_eq!(cache.get_or_compute(&utterance, || panic!("in the cache")).unwrap(), features);
        }
    }

    #[test]
    fn utterances_with_one_short_checksum_or_in_other_folders_have_separate_features() {
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("list.jsonl");
        let line = |id: &str, folder: &str| {
            format!("{{\"id\": \"{id}\", \"file\": \"{folder}/a.wav\", \"text\": \"b\", \"seconds\": 1.0}}\n")
        };
        // Scattered: numbers that differ in a few adjacent digits always have different CRCs.
        let id = |n: u64| format!("{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let lines: String = (0..200_000).map(|n| line(&id(n), "x")).collect();
        std::fs::write(&list, lines).unwrap();
        let utterances = speech::read_manifest(&list).unwrap();
        let mut seen = std::collections::HashMap::new();
        // With so many, two of them have the same 32 bits almost certainly.
        let pair = utterances.iter().find_map(|utterance| {
            let checksum = crc32fast::hash(format_entry(utterance).as_bytes());
            seen.insert(checksum, utterance).map(|other| [other.clone(), utterance.clone()])
        });
        let [a, b] = pair.unwrap();
        // The first of them again, with its file in another folder.
        std::fs::write(&list, line(&a.id, "y")).unwrap();
        let moved = speech::read_manifest(&list).unwrap().remove(0);
        let cache = FeatureCache::new(folder.path(), &FeatureConfig::default()).unwrap();
        for _ in 0..2 {
            for (value, utterance) in [(1.0, &a), (2.0, &b), (3.0, &moved)] {
                let features = Features { frames: 1, dim: 1, data: vec![value] };
                assert_eq!(cache.get_or_compute(utterance, || Ok(features.clone())).unwrap(), features);
            }
        }
    }
}
