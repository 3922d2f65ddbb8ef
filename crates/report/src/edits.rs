//! Reference and hypothesis, unit for unit.
use std::collections::BTreeMap;

use recognizer::Metric;
use recognizer::Transcript;
use speech::{Edit, align, characters, words};

/// Most pairs of units that are compared: 100 MB of an alignment.
const MOST: usize = 25_000_000;

/// One column of an alignment: what was said and what was heard, if anything.
#[derive(Debug, PartialEq)]
pub struct EditPair {
    pub said: Option<String>,
    pub heard: Option<String>,
}

/// The units of a text that a rate counts.
fn units(text: &str, metric: Metric) -> Vec<String> {
    match metric {
        Metric::Wer => words(text).into_iter().map(str::to_owned).collect(),
        Metric::Cer => characters(text).into_iter().map(String::from).collect(),
    }
}

/// The alignment of an utterance; none for texts that are too long for one.
pub fn pairs(one: &Transcript, metric: Metric) -> Option<Vec<EditPair>> {
    let (said, heard) = (units(&one.reference, metric), units(&one.hypothesis, metric));
    if said.len().saturating_mul(heard.len()) > MOST {
        return None;
    }
    let pair = |edit| match edit {
        Edit::Match(i, j) | Edit::Substitution(i, j) => {
            EditPair { said: Some(said[i].clone()), heard: Some(heard[j].clone()) }
        }
        Edit::Deletion(i) => EditPair { said: Some(said[i].clone()), heard: None },
        Edit::Insertion(j) => EditPair { said: None, heard: Some(heard[j].clone()) },
    };
    Some(align(&said, &heard).into_iter().map(pair).collect())
}

/// Every kind of error with how often it was made, most frequent first.
pub fn confusions(transcripts: &[Transcript], metric: Metric) -> Vec<(EditPair, usize)> {
    let mut counts: BTreeMap<(Option<String>, Option<String>), usize> = BTreeMap::new();
    for pair in transcripts.iter().filter_map(|one| pairs(one, metric)).flatten() {
        if pair.said != pair.heard {
            *counts.entry((pair.said, pair.heard)).or_default() += 1;
        }
    }
    let mut counts: Vec<_> =
        counts.into_iter().map(|((said, heard), count)| (EditPair { said, heard }, count)).collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use recognizer::Transcription;

    #[test]
    fn errors_are_counted_by_kind() {
        let one = |said: &str, heard: &str| {
            let heard = Transcription { text: heard.to_owned(), ..Transcription::default() };
            Transcript::new(String::new(), None, None, said.to_owned(), heard)
        };
        let set = [one("a b c", "a x c d"), one("b", "x"), one("c", "")];
        let found = confusions(&set, Metric::Wer);
        let pair = |said: &str, heard: &str| EditPair {
            said: Some(said.to_owned()).filter(|unit| !unit.is_empty()),
            heard: Some(heard.to_owned()).filter(|unit| !unit.is_empty()),
        };
        assert_eq!(found, [(pair("b", "x"), 2), (pair("", "d"), 1), (pair("c", ""), 1)]);
        assert_eq!(pairs(&one("天 气", "天汽"), Metric::Cer).unwrap(), [pair("天", "天"), pair("气", "汽")]);
    }
}
