//! Which tokens make a word.
use std::ops::Range;

use decoding::{Boundaries, TokenStyle};
use speech::{Tokenizer, TokenizerKind};

/// Marks word beginnings in tokens; [`Tokenizer::tokens`] says so.
pub(crate) const MARK: char = '\u{2581}';

/// The labels of each word; white space is in none.
pub(crate) fn groups(tokenizer: &Tokenizer, labels: &[u32]) -> Vec<Range<usize>> {
    let (kind, names) = (tokenizer.kind(), tokenizer.tokens());
    let mut groups: Vec<Range<usize>> = Vec::new();
    let (mut inside, mut after_special) = (false, false);
    for (index, &label) in labels.iter().enumerate() {
        let name = &names[label as usize];
        let begins = match kind {
            TokenizerKind::Words => true,
            TokenizerKind::Characters if name.trim().is_empty() => {
                inside = false;
                continue;
            }
            TokenizerKind::Characters => tokenizer.is_special(label) || after_special,
            _ => name.starts_with(MARK) || after_special,
        };
        after_special = tokenizer.is_special(label);
        match groups.last_mut() {
            Some(group) if inside && !begins => group.end = index + 1,
            _ => groups.push(index..index + 1),
        }
        inside = true;
    }
    groups
}

/// Of each label, whether it begins a word: 1, or 0. Spaces stand for the words behind them.
pub(crate) fn starts(tokenizer: &Tokenizer) -> Vec<u8> {
    let begins = |name: &String| match tokenizer.kind() {
        TokenizerKind::Words => true,
        TokenizerKind::Characters => name.trim().is_empty(),
        _ => name.starts_with(MARK),
    };
    tokenizer.tokens().iter().map(|name| u8::from(begins(name))).collect()
}

/// Word boundaries around each label of a tokenizer, for phrases that match whole words.
pub(crate) fn boundaries(tokenizer: &Tokenizer) -> Vec<Option<Boundaries>> {
    let style = match tokenizer.kind() {
        TokenizerKind::Words => TokenStyle::Words,
        TokenizerKind::Characters => TokenStyle::Characters,
        _ => TokenStyle::Pieces,
    };
    let special = |id| tokenizer.is_special(id).then_some(Boundaries::BOTH);
    let all = Boundaries::of_names(tokenizer.tokens(), style);
    (0..).zip(all).map(|(id, boundaries)| special(id).or(boundaries)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_text() {
        let text = "a banana and a band";
        let kinds = [
            TokenizerKind::Words,
            TokenizerKind::Characters,
            TokenizerKind::InnerCharacters,
            TokenizerKind::Bpe { size: 9 },
            TokenizerKind::Bpe { size: 30 },
        ];
        for kind in kinds {
            let tokenizer = Tokenizer::train(kind, &[text]).unwrap();
            let labels = tokenizer.encode(text).unwrap();
            let groups = groups(&tokenizer, &labels);
            let words = groups.iter().map(|group| tokenizer.decode(&labels[group.clone()]).unwrap());
            assert_eq!(words.collect::<Vec<_>>().join(" "), text, "{kind:?}");
            assert!(super::groups(&tokenizer, &[]).is_empty());
        }
    }
}
