//! Recognition errors of a report: alignments of texts and counts by kind.
use std::collections::BTreeMap;

use recognizer::Metric;
use recognizer::Transcript;
use speech::{Edit, align, characters, words};

/// Maximum size of an alignment matrix (100 MB); longer texts are not aligned.
const MAX_ALIGNMENT_CELLS: usize = 25_000_000;

/// One column of an alignment.
///
/// The reference of an insertion and the hypothesis of a deletion are none.
#[derive(Debug, PartialEq)]
pub(crate) struct EditPair {
    pub reference: Option<String>,
    pub hypothesis: Option<String>,
}

/// Splits a text into the units of a metric: words or characters.
fn split_units(text: &str, metric: Metric) -> Vec<String> {
    match metric {
        Metric::Wer => words(text).into_iter().map(str::to_owned).collect(),
        Metric::Cer => characters(text).into_iter().map(String::from).collect(),
    }
}

/// Aligns an utterance; returns none for texts that are too long.
pub(crate) fn align_texts(transcript: &Transcript, metric: Metric) -> Option<Vec<EditPair>> {
    let reference = split_units(&transcript.reference, metric);
    let hypothesis = split_units(&transcript.hypothesis, metric);
    if reference.len().saturating_mul(hypothesis.len()) > MAX_ALIGNMENT_CELLS {
        return None;
    }
    let pair = |edit| match edit {
        Edit::Match(i, j) | Edit::Substitution(i, j) => {
            EditPair { reference: Some(reference[i].clone()), hypothesis: Some(hypothesis[j].clone()) }
        }
        Edit::Deletion(i) => EditPair { reference: Some(reference[i].clone()), hypothesis: None },
        Edit::Insertion(j) => EditPair { reference: None, hypothesis: Some(hypothesis[j].clone()) },
    };
    Some(align(&reference, &hypothesis).into_iter().map(pair).collect())
}

/// Counts the errors of each kind, most frequent first.
pub(crate) fn count_errors(transcripts: &[Transcript], metric: Metric) -> Vec<(EditPair, usize)> {
    let mut counts: BTreeMap<(Option<String>, Option<String>), usize> = BTreeMap::new();
    for pair in transcripts.iter().filter_map(|transcript| align_texts(transcript, metric)).flatten() {
        if pair.reference != pair.hypothesis {
            *counts.entry((pair.reference, pair.hypothesis)).or_default() += 1;
        }
    }
    let pair = |((reference, hypothesis), count)| (EditPair { reference, hypothesis }, count);
    let mut counts: Vec<_> = counts.into_iter().map(pair).collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use recognizer::Transcription;

    #[test]
    fn errors_are_counted_by_kind() {
        let transcript = |reference: &str, hypothesis: &str| {
            let hypothesis = Transcription { text: hypothesis.to_owned(), ..Transcription::default() };
            Transcript::new(String::new(), None, None, reference.to_owned(), hypothesis)
        };
        let set = [transcript("a b c", "a x c d"), transcript("b", "x"), transcript("c", "")];
        let counts = count_errors(&set, Metric::Wer);
        let pair = |reference: &str, hypothesis: &str| EditPair {
            reference: Some(reference.to_owned()).filter(|unit| !unit.is_empty()),
            hypothesis: Some(hypothesis.to_owned()).filter(|unit| !unit.is_empty()),
        };
        assert_eq!(counts, [(pair("b", "x"), 2), (pair("", "d"), 1), (pair("c", ""), 1)]);
        let pairs = align_texts(&transcript("天 气", "天汽"), Metric::Cer).unwrap();
        assert_eq!(pairs, [pair("天", "天"), pair("气", "汽")]);
    }
}
