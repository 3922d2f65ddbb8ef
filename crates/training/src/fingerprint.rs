//! Fingerprints of data sets, which detect a resumed run with other data.
//!
//! A fingerprint is a text with eight digits for each utterance, so that an error can name the
//! first difference. Checkpoints contain it, and ranks compare it.
use model::DataFingerprint;
use speech::{AudioSegment, Utterance};

use crate::data::{UtteranceSource, iter_utterances};
use crate::{Error, Result};

/// The utterances of the three sets.
#[derive(Clone, Copy)]
pub struct DataSets<'a> {
    /// The training set.
    pub train: &'a dyn UtteranceSource,
    /// The dev set, which selects the best checkpoint.
    pub dev: &'a dyn UtteranceSource,
    /// The test set, for the final evaluation.
    pub test: &'a dyn UtteranceSource,
}

/// Hexadecimal digits of an utterance: the CRC-32 of its manifest entry.
///
/// The entry is without folders, so that data may be moved.
pub(crate) const DIGITS_PER_UTTERANCE: usize = 8;

impl DataSets<'_> {
    /// Computes the fingerprint of the sets.
    ///
    /// # Errors
    /// Those of reading the lists.
    pub(crate) fn fingerprint(self) -> Result<DataFingerprint> {
        let digits = |list| {
            iter_utterances(list)
                .map(|utterance| Ok(checksum_digits(&*utterance?)))
                .collect::<Result<String>>()
        };
        Ok(DataFingerprint { train: digits(self.train)?, dev: digits(self.dev)?, test: digits(self.test)? })
    }

    /// Compares the sets with those of a fingerprint.
    ///
    /// # Errors
    /// [`Error::DataChanged`] with the first difference; those of reading the lists.
    pub fn check(self, fingerprint: &DataFingerprint) -> Result<()> {
        let current = self.fingerprint()?;
        let sets = [
            ("data.train", &fingerprint.train, &current.train, self.train),
            ("data.dev", &fingerprint.dev, &current.dev, self.dev),
            ("data.test", &fingerprint.test, &current.test, self.test),
        ];
        for (set, expected, found, utterances) in sets {
            let digits_of = |digits: &str, index: usize| {
                let range = index * DIGITS_PER_UTTERANCE..(index + 1) * DIGITS_PER_UTTERANCE;
                digits.get(range).map(str::to_owned)
            };
            let (old_count, count) = (expected.len() / DIGITS_PER_UTTERANCE, utterances.count());
            let differs = |&index: &usize| digits_of(expected, index) != digits_of(found, index);
            if let Some(index) = (0..old_count.max(count)).find(differs) {
                let id = if index < count { Some(utterances.get(index)?.id.clone()) } else { None };
                let difference = match id {
                    Some(id) if index < old_count => {
                        format!(
                            "another utterance, or another text or length, at position {}: {id}",
                            index + 1
                        )
                    }
                    Some(id) => format!("more than its {old_count} utterances: {id}"),
                    None => format!("{count} of its {old_count} utterances"),
                };
                return Err(Error::DataChanged { set, found: difference });
            }
        }
        Ok(())
    }
}

/// Returns the digits of an utterance.
fn checksum_digits(utterance: &Utterance) -> String {
    format!("{:08x}", crc32fast::hash(format_entry(utterance).as_bytes()))
}

/// Formats the manifest entry of an utterance, without folders.
pub(crate) fn format_entry(utterance: &Utterance) -> String {
    let Utterance { id, text, subset, seconds, sample_rate, num_samples, crc32, segments, .. } = utterance;
    let segments: Vec<_> = segments
        .iter()
        .map(|segment| match segment {
            AudioSegment::Silence { ms } => format!("{ms} ms"),
            AudioSegment::Sound { path, span } => format!("{:?} {span:?}", path.file_name()),
        })
        .collect();
    format!("{id:?} {text:?} {subset:?} {seconds:?} {sample_rate:?} {num_samples:?} {crc32:?} {segments:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a manifest with these ids, after a change of its text.
    fn read_manifest(folder: &str, ids: &[&str], change: (&str, &str)) -> Vec<Utterance> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("manifest.jsonl");
        let line = |id: &&str| {
            format!(
                "{{\"id\": \"{id}\", \"file\": \"{folder}/{id}.wav\", \"text\": \"say {id}\", \"seconds\": 1.5}}\n"
            )
        };
        let text: String = ids.iter().map(line).collect();
        std::fs::write(&path, text.replace(change.0, change.1)).unwrap();
        speech::read_manifest(&path).unwrap()
    }

    #[test]
    fn the_first_difference_is_named_and_folders_do_not_matter() {
        let same = ("", "");
        let (train, dev) = (read_manifest("here", &["a", "b"], same), read_manifest("here", &["c"], same));
        let sets = DataSets { train: &train, dev: &dev, test: &Vec::new() };
        let fingerprint = sets.fingerprint().unwrap();
        sets.check(&fingerprint).unwrap();
        let moved = read_manifest("elsewhere", &["a", "b"], same);
        DataSets { train: &moved, ..sets }.check(&fingerprint).unwrap();

        let (one, none) = (train[..1].to_vec(), Vec::new());
        let expect_error = |sets: DataSets, parts: [&str; 2]| {
            let error = sets.check(&fingerprint).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        };
        let changed = read_manifest("here", &["a", "b"], ("say b", "no"));
        expect_error(DataSets { train: &changed, ..sets }, ["data.train", "at position 2: b"]);
        let longer = read_manifest("here", &["a", "b"], ("1.5", "1.6"));
        expect_error(DataSets { train: &longer, ..sets }, ["data.train", "at position 1: a"]);
        expect_error(DataSets { train: &one, ..sets }, ["data.train", "1 of its 2 utterances"]);
        expect_error(DataSets { dev: &none, ..sets }, ["data.dev", "0 of its 1 utterances"]);
        expect_error(DataSets { test: &dev, ..sets }, ["data.test", "more than its 0 utterances: c"]);
    }
}
