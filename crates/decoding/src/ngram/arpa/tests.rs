//! Tests of ARPA files: variants are read, errors name the line, tables round-trip.
use proptest::prelude::*;

use super::*;
use crate::ngram::estimate;

/// A valid file of order 3.
const ARPA_TEXT: &str = "made by hand\n\\data\\\nngram 1=5\nngram 2=4\nngram 3=1\n\n\\1-grams:\n-1.0\t<unk>\n-99\t<s>\t-0.3\n\
    -0.6\t</s>\n-0.5\ta\t-0.25\n-0.75\tb\n\n\\2-grams:\n-0.2\t<s> a\t-0.1\n-0.4\ta b\n-0.3\tb </s>\n-0.9\ta </s>\n\n\
    \\3-grams:\n-0.05\t<s> a b\n\n\\end\\\nsigned\n";

fn read_error(text: &str) -> Error {
    NgramTable::read(text.as_bytes()).unwrap_err()
}

#[test]
fn files_of_common_tools_are_read() {
    let plain = NgramTable::read(ARPA_TEXT.as_bytes()).unwrap();
    assert_eq!((plain.order(), plain.counts()), (3, vec![5, 4, 1]));
    let variant = ARPA_TEXT
        .replace('\n', "\r\n\r\n")
        .replace('\t', "   ")
        .replace("ngram 1=5", "ngram 1 = 5")
        .replace("<unk>", "<UNK>  0")
        .replace("<s> a b", "\t<s>\ta b\t0.0 ")
        .replace("-99", "-inf");
    assert_eq!(NgramTable::read(format!("\u{feff}{variant}").as_bytes()).unwrap(), plain);
    // The order of lines does not matter.
    let swapped = ARPA_TEXT.replace("-0.4\ta b\n-0.3\tb </s>\n", "-0.3\tb </s>\n-0.4\ta b\n");
    assert_eq!(NgramTable::read(swapped.as_bytes()).unwrap(), plain);
    assert_eq!(NgramTable::read(plain.write().as_bytes()).unwrap(), plain);
}

#[test]
fn errors_name_the_line() {
    let assert_error = |from: &str, to: &str, expected: &str| {
        assert!(ARPA_TEXT.contains(from), "{from}");
        let message = read_error(&ARPA_TEXT.replacen(from, to, 1)).to_string();
        assert!(message.starts_with(expected), "{message}\n{expected}");
    };
    assert_error("\\data\\", "data", "line 25: expected \\data\\, found the end of the file");
    assert_error("ngram 2=4", "ngram 3=4", "line 4: expected `ngram 2=` and a number");
    assert_error("ngram 2=4", "ngram 2=99999999999999999999", "line 4: expected `ngram 2=`");
    assert_error("ngram 1=5\nngram 2=4\nngram 3=1\n", "", "line 4: expected `ngram 1=`");
    assert_error("ngram 2=4", "ngram 2=5", "line 20: expected 5 2-grams, as declared in the header, found 4");
    assert_error("ngram 2=4", "ngram 2=3", "line 18: expected 3 2-grams, as declared in the header, found 4");
    assert_error("\\2-grams:", "\\3-grams:", "line 14: expected \\2-grams:, found `\\3-grams:`");
    assert_error("\\end\\", "\\4-grams:", "line 23: expected \\end\\, found `\\4-grams:`");
    assert_error("\\end\\\nsigned\n", "", "line 23: expected \\end\\, found the end of the file");
    assert_error("-0.4\ta b", "-0.4\ta", "line 16: expected a log10 probability, 2 words, and optionally");
    assert_error(
        "-0.4\ta b",
        "-0.4\ta b 0 0",
        "line 16: expected a log10 probability, 2 words, and optionally",
    );
    assert_error(
        "-0.4\ta b",
        "NaN\ta b",
        "line 16: expected a log10 probability of at most 0, found `NaN\\ta b`",
    );
    assert_error("-0.4\ta b", "0.1\ta b", "line 16: expected a log10 probability of at most 0");
    assert_error("-0.4\ta b", "x\ta b", "line 16: expected a log10 probability of at most 0");
    assert_error("-0.1", "nan", "line 15: expected a log10 back-off weight at the end");
    assert_error("-0.1", "inf", "line 15: expected a log10 back-off weight at the end");
    assert_error("-0.4\ta b", "-0.4\ta c", "line 16: expected only words of the 1-grams, not `c`");
    assert_error(
        "<s> a b",
        "b a b",
        "line 21: expected the context of `b a b` among the n-grams of the order below",
    );
    assert_error(
        "-0.9\ta </s>",
        "-0.9\ta b",
        "line 18: expected every n-gram once, found `a b` again, first in line 16",
    );
    assert_error(
        "</s>\n-0.5\ta",
        "<s>\n-0.5\ta",
        "line 10: expected every n-gram once, found `<s>` again, first in line 9",
    );
    let mut bytes = ARPA_TEXT.as_bytes().to_vec();
    let offset = ARPA_TEXT.find("a b").unwrap();
    bytes[offset] = 0xff;
    assert_eq!(NgramTable::read(&bytes).unwrap_err(), Error::Utf8 { line: 16 });
    assert_eq!(read_error("").to_string(), "line 1: expected \\data\\, found the end of the file");
}

proptest! {
    #[test]
    fn written_tables_are_read_back(
        texts in prop::collection::vec(prop::collection::vec(0u32..6, 0..8), 1..12),
        order in 1usize..5,
    ) {
        prop_assume!(texts.iter().any(|text| !text.is_empty()));
        let names = ["a", " ", "\t", "ü", "\\end\\", "-1"];
        let table = estimate(&texts, &names, order).unwrap().table;
        prop_assert_eq!(NgramTable::read(table.write().as_bytes()).unwrap(), table);
    }
}

#[test]
fn fuzzing() {
    let words: &'static [&'static [u8]] =
        &[b"\\data\\", b"\\end\\", b"\\2-grams:", b"ngram 1=", b"-99", b"NaN", b"1e39", b"\t", b"\n", b"<s>"];
    let estimated = estimate(&[vec![0, 1, 0], vec![1, 1]], &["x", "y"], 3).unwrap().table.write();
    let good = vec![ARPA_TEXT.as_bytes().to_vec(), estimated.into_bytes()];
    crate::mutants::fuzz("arpa", good, words, 5000, |bytes| {
        let Ok(table) = NgramTable::read(bytes) else { return };
        // NaN would differ from itself.
        assert_eq!(NgramTable::read(table.write().as_bytes()).unwrap(), table);
        if let Ok(ngram) = crate::ngram::Ngram::new(&table, &["a", "b", "", "x"], Default::default()) {
            for state in 0..ngram.states() as u32 + 1 {
                crate::scorer::tests::assert_row_matches_steps(&ngram, state, 4, &[2]);
            }
        }
    });
}
