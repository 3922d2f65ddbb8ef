//! Tests of phrase lists: scores, errors with their lines, skipped phrases.
use super::*;
use crate::{PhraseBooster, Scorer};

/// Letters are tokens 0 to 25; a space is not a token, a digit is unknown.
fn encode(text: &str) -> Result<Vec<u32>, String> {
    let token = |c: char| match c {
        'a'..='z' => Ok(u32::from(c) - u32::from('a')),
        c => Err(format!("unknown symbol `{c}`")),
    };
    text.chars().filter(|&c| c != ' ').map(token).collect()
}

#[test]
fn lists_are_read() {
    let text = "\u{feff}# names\r\nab\r\n\r\n  b c \t 2.5 \r\nd\t-1e0\n   \n#hidden\t1\nz";
    let list = read_phrases(text.as_bytes(), 1.5, encode).unwrap().phrases;
    // The score of a phrase is spread over its tokens.
    let phrase = |tokens: &[u32], score| Phrase { tokens: tokens.to_vec(), score };
    assert_eq!(list, [phrase(&[0, 1], 0.75), phrase(&[1, 2], 1.25), phrase(&[3], -1.0), phrase(&[25], 1.5)]);
    assert_eq!(read_phrases(b"", 1.0, encode).unwrap(), PhraseList::default());
}

#[test]
fn errors_name_the_line() {
    let error = |text: &[u8]| read_phrases(text, 1.0, encode).unwrap_err();
    assert_eq!(error(b"a\n\xff\n"), PhraseError::Utf8 { line: 2 });
    assert_eq!(error(b"a\n \t2\n"), PhraseError::Empty { line: 2 });
    let none = |text: &str| Ok(if text == "a" { vec![0] } else { vec![] });
    assert_eq!(read_phrases(b"a\nb", 1.0, none).unwrap_err(), PhraseError::Empty { line: 2 });
    for (text, found) in
        [("a\tx", "`x`"), ("a\t", "``"), ("a\t1\t2", "`1\\t2`"), ("a\tNaN", "NaN"), ("a\tinf", "inf")]
    {
        assert_eq!(error(text.as_bytes()), PhraseError::Score { line: 1, found: found.into() });
    }
    assert!(matches!(read_phrases(b"a", f32::NAN, encode), Err(PhraseError::Score { line: 1, .. })));
}

#[test]
fn phrases_without_tokens_are_skipped() {
    let list = read_phrases(b"1\na\n\nb1\t3\nc\n", 1.0, encode).unwrap();
    let skipped = |line| SkippedPhrase { line, reason: "unknown symbol `1`".into() };
    assert_eq!(list.skipped, [skipped(1), skipped(4)]);
    assert_eq!(list.phrases.iter().map(|phrase| phrase.tokens[0]).collect::<Vec<_>>(), [0, 2]);
    // Scores of skipped phrases are checked.
    assert!(matches!(read_phrases(b"1\tx", 1.0, encode), Err(PhraseError::Score { line: 1, .. })));
}

#[test]
fn fuzzing() {
    let words: &'static [&'static [u8]] = &[b"\t", b"\n", b"#", b"1e39", b"NaN", b"-0", b"\r", b" "];
    let good = vec![b"# list\nab c\t2\nabc\nz\t-0.5\r\n\nbca".to_vec()];
    crate::mutants::fuzz("phrases", good, words, 5000, |bytes| {
        let Ok(list) = read_phrases(bytes, 1.0, encode) else { return };
        if let Ok(booster) = PhraseBooster::new(&list.phrases, &[true; 26], 1.0) {
            let mut state = booster.start();
            for class in (0..40).map(|i| i % 3) {
                let (score, next) = booster.step(state, class);
                assert!(score.is_finite());
                state = next;
            }
        }
    });
}
