//! Features on disk, so that sound need not be decoded again in each epoch.
//!
//! ```text
//! FOLDER/planes/SETTINGS/ab/ab...32 digits.plane     "panda plane 1\n"   frames: u64   width: u64   frames x width x f32   CRC-32
//! ```
//! All little-endian. A file that is damaged is made anew. What is said about an utterance, where its sound is, size and time of that file,
//! and the settings of the front end are in its name, so that a change of any is another file. It has 128 bits: of 281,241 utterances, nine pairs or so would
//! share 32.
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use speech::files::{read_regular, write_atomically};
use speech::{FeatureConfig, Features, Utterance};

use crate::fingerprint::said;
use model::Error;
use recognizer::Result;

const MAGIC: &[u8] = b"panda plane 1\n";

#[derive(Debug)]
pub(super) struct FeatureCache {
    folder: PathBuf,
    /// True once the disk has refused a plane: none is kept any more.
    off: AtomicBool,
    /// Why, until it is reported.
    refused: Mutex<Option<String>>,
}

impl FeatureCache {
    /// A cache of planes with these settings.
    ///
    /// # Errors
    /// Settings that cannot be written down.
    pub fn new(folder: &Path, settings: &FeatureConfig) -> Result<Self> {
        let settings = serde_json::to_vec(settings)
            .map_err(|error| Error::shape("features", "to be serialisable", error.to_string()))?;
        let name = format!("{:08x}", crc32fast::hash(&settings));
        let folder = folder.join("planes").join(name);
        Ok(FeatureCache { folder, off: AtomicBool::new(false), refused: Mutex::new(None) })
    }

    /// The plane of an utterance, or what `make` makes, which is then kept.
    ///
    /// # Errors
    /// Those of `make`. If the disk refuses a plane, no more are written, and [`Self::warning`] says why.
    pub fn read_or(&self, one: &Utterance, make: impl FnOnce() -> Result<Features>) -> Result<Features> {
        // A file that is written anew is another one.
        let stamp = |file: &Path| {
            let about = file.metadata().ok();
            (
                file.canonicalize().unwrap_or(file.to_owned()),
                about.as_ref().map(Metadata::len),
                about.and_then(|about| about.modified().ok()),
            )
        };
        let files: Vec<_> = one.files().map(stamp).collect();
        let name = format!("{:x}", md5::compute(format!("{} {files:?}", said(one))));
        let path = self.folder.join(&name[..2]).join(format!("{name}.plane"));
        if let Some(plane) = read_regular(&path).ok().and_then(|bytes| parse(&bytes)) {
            return Ok(plane);
        }
        let plane = make()?;
        if !self.off.load(Ordering::Relaxed)
            && let Err(error) = self.write(&path, &plane)
            && !self.off.swap(true, Ordering::Relaxed)
        {
            let warning = format!("data.cache: {error}; no more features are kept there");
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(warning);
        }
        Ok(plane)
    }

    fn write(&self, path: &Path, plane: &Features) -> Result<()> {
        let folder = path.parent().unwrap_or(&self.folder);
        std::fs::create_dir_all(folder).map_err(Error::io(folder, "make"))?;
        Ok(write_atomically(path, &bytes(plane)).map_err(Error::io(path, "write"))?)
    }

    /// Why the cache is off, the first time that this is called afterwards.
    pub fn warning(&self) -> Option<String> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn bytes(plane: &Features) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    [plane.frames as u64, plane.dim as u64].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    plane.data.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    bytes
}

fn parse(bytes: &[u8]) -> Option<Features> {
    let (body, sum) = bytes.split_last_chunk::<4>()?;
    if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
        return None;
    }
    let rest = body.strip_prefix(MAGIC)?;
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
    fn planes_come_back_bit_for_bit_and_damage_is_noticed() {
        let place = tempfile::tempdir().unwrap();
        let list = place.path().join("list.jsonl");
        std::fs::write(&list, r#"{"id": "a", "file": "a.wav", "text": "b", "seconds": 1.0}"#).unwrap();
        let one = &speech::read_manifest(&list).unwrap()[0];
        let cache = FeatureCache::new(place.path(), &FeatureConfig::default()).unwrap();
        let plane = Features { frames: 3, dim: 2, data: (0..6).map(|i| (i as f32).exp()).collect() };
        let mut made = 0;
        let mut read = || {
            cache.read_or(one, || {
                made += 1;
                Ok(plane.clone())
            })
        };
        for _ in 0..3 {
            assert_eq!(read().unwrap(), plane);
        }
        let find = |folder: &Path| std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
        let path = find(&find(&cache.folder));
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[40] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(read().unwrap(), plane);
        std::fs::write(&path, &bytes[..20]).unwrap();
        assert_eq!(read().unwrap(), plane);
        assert_eq!(made, 3);
        let other = FeatureConfig { mels: 3, ..FeatureConfig::default() };
        assert_ne!(FeatureCache::new(place.path(), &other).unwrap().folder, cache.folder);
    }

    #[test]
    fn sound_that_is_written_anew_has_a_plane_of_its_own() {
        let place = tempfile::tempdir().unwrap();
        let (list, sound) = (place.path().join("list.jsonl"), place.path().join("a.wav"));
        std::fs::write(&list, r#"{"id": "a", "file": "a.wav", "text": "b", "seconds": 1.0}"#).unwrap();
        let one = speech::read_manifest(&list).unwrap().remove(0);
        let cache = FeatureCache::new(place.path(), &FeatureConfig::default()).unwrap();
        for (value, content) in [(1.0, "sound"), (2.0, "other sound")] {
            std::fs::write(&sound, content).unwrap();
            let plane = Features { frames: 1, dim: 1, data: vec![value] };
            assert_eq!(cache.read_or(&one, || Ok(plane.clone())).unwrap(), plane);
            assert_eq!(cache.read_or(&one, || panic!("it is known")).unwrap(), plane);
        }
    }

    #[test]
    fn utterances_with_one_short_checksum_or_in_other_folders_have_planes_of_their_own() {
        let place = tempfile::tempdir().unwrap();
        let list = place.path().join("list.jsonl");
        let line = |id: &str, folder: &str| {
            format!("{{\"id\": \"{id}\", \"file\": \"{folder}/a.wav\", \"text\": \"b\", \"seconds\": 1.0}}\n")
        };
        // Scattered: a CRC tells all numbers apart that differ in a few neighbouring digits.
        let id = |n: u64| format!("{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let lines: String = (0..200_000).map(|n| line(&id(n), "x")).collect();
        std::fs::write(&list, lines).unwrap();
        let utterances = speech::read_manifest(&list).unwrap();
        let mut seen = std::collections::HashMap::new();
        // With so many, it would be a wonder if no two had the same 32 bits.
        let pair = utterances.iter().find_map(|one| {
            seen.insert(crc32fast::hash(said(one).as_bytes()), one).map(|other| [other.clone(), one.clone()])
        });
        let [a, b] = pair.unwrap();
        let moved = |id: &str| {
            std::fs::write(&list, line(id, "y")).unwrap();
            speech::read_manifest(&list).unwrap().remove(0)
        };
        let moved = moved(&a.id);
        let cache = FeatureCache::new(place.path(), &FeatureConfig::default()).unwrap();
        for _ in 0..2 {
            for (value, one) in [(1.0, &a), (2.0, &b), (3.0, &moved)] {
                let plane = Features { frames: 1, dim: 1, data: vec![value] };
                assert_eq!(cache.read_or(one, || Ok(plane.clone())).unwrap(), plane);
            }
        }
    }
}
