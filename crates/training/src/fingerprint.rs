//! Which data a run is trained on, so that it does not go on with others unnoticed.
use model::Fingerprint;
use speech::{AudioSegment, Utterance};

use crate::data::{UtteranceSource, each};
use crate::{Error, Result};

/// The utterances of the three sets.
#[derive(Clone, Copy)]
pub struct DataSets<'a> {
    /// To learn from.
    pub train: &'a dyn UtteranceSource,
    /// That choose the best checkpoint.
    pub dev: &'a dyn UtteranceSource,
    /// Of the final report.
    pub test: &'a dyn UtteranceSource,
}

/// Digits of an utterance: the CRC-32 of all that its manifest says about it, but for the folder that it is in.
pub(crate) const DIGITS: usize = 8;

impl DataSets<'_> {
    /// The fingerprint of the sets.
    ///
    /// # Errors
    /// Those of reading the lists.
    pub fn fingerprint(self) -> Result<Fingerprint> {
        let of = |list| each(list).map(|one| Ok(digits(&*one?))).collect::<Result<String>>();
        Ok(Fingerprint { train: of(self.train)?, dev: of(self.dev)?, test: of(self.test)? })
    }

    /// Compares the sets with those of a fingerprint.
    ///
    /// # Errors
    /// [`Error::DataChanged`] with the first difference; those of reading the lists.
    pub fn check(self, fingerprint: &Fingerprint) -> Result<()> {
        let found = self.fingerprint()?;
        let each = [
            ("data.train", &fingerprint.train, &found.train, self.train),
            ("data.dev", &fingerprint.dev, &found.dev, self.dev),
            ("data.test", &fingerprint.test, &found.test, self.test),
        ];
        for (set, expected, found, utterances) in each {
            let of = |digits: &str, at: usize| digits.get(at * DIGITS..(at + 1) * DIGITS).map(str::to_owned);
            let there = expected.len() / DIGITS;
            if let Some(at) = (0..there.max(utterances.count())).find(|&at| of(expected, at) != of(found, at))
            {
                let count = utterances.count();
                let id = if at < count { Some(utterances.get(at)?.id.clone()) } else { None };
                let found = match id {
                    Some(id) if at < there => {
                        format!("another utterance, or another text or length, at place {}: {id}", at + 1)
                    }
                    Some(id) => format!("one more than the {there} there were: {id}"),
                    None => format!("{count} utterances of {there}"),
                };
                return Err(Error::DataChanged { set, found });
            }
        }
        Ok(())
    }
}

/// Those of an utterance.
fn digits(utterance: &Utterance) -> String {
    format!("{:08x}", crc32fast::hash(said(utterance).as_bytes()))
}

/// All that a manifest says about an utterance, but for folders.
pub(crate) fn said(utterance: &Utterance) -> String {
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

    /// What a manifest in a folder says of these ids, with a change.
    fn read(folder: &str, ids: &[&str], change: (&str, &str)) -> Vec<Utterance> {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("manifest.jsonl");
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
        let (train, dev) = (read("here", &["a", "b"], same), read("here", &["c"], same));
        let sets = DataSets { train: &train, dev: &dev, test: &Vec::new() };
        let fingerprint = sets.fingerprint().unwrap();
        sets.check(&fingerprint).unwrap();
        let moved = read("elsewhere", &["a", "b"], same);
        DataSets { train: &moved, ..sets }.check(&fingerprint).unwrap();

        let (one, none) = (train[..1].to_vec(), Vec::new());
        let refused = |sets: DataSets, parts: [&str; 2]| {
            let error = sets.check(&fingerprint).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        };
        let other = read("here", &["a", "b"], ("say b", "no"));
        refused(DataSets { train: &other, ..sets }, ["data.train", "at place 2: b"]);
        let longer = read("here", &["a", "b"], ("1.5", "1.6"));
        refused(DataSets { train: &longer, ..sets }, ["data.train", "at place 1: a"]);
        refused(DataSets { train: &one, ..sets }, ["data.train", "1 utterances of 2"]);
        refused(DataSets { dev: &none, ..sets }, ["data.dev", "0 utterances of 1"]);
        refused(DataSets { test: &dev, ..sets }, ["data.test", "one more than the 0 there were: c"]);
    }
}
