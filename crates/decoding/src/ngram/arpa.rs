//! Reads and writes n-gram language models as ARPA files.
use std::collections::HashMap;
use std::fmt::Write;

use kernels::Excerpt;

use super::table::{MAX_ORDER, NgramTable, OrderEntries};
use super::vocabulary::UNKNOWN;
use super::{Error, Result};

/// Conventional log10 of probability 0 in ARPA files.
pub(super) const LOG10_ZERO: f32 = -99.0;
/// Largest magnitude of a number, so that sums stay finite in `f32`.
const MAX_MAGNITUDE: f32 = 1e6;
/// Most n-grams of one order; all states fit into 32 bits.
const MAX_NGRAMS_PER_ORDER: usize = 1 << 28;

impl NgramTable {
    /// Reads an ARPA file.
    ///
    /// The file has a header `\data\` with lines `ngram k=count`, sections `\1-grams:` to
    /// `\N-grams:` of lines "log10 probability, k words, log10 back-off weight", and `\end\`. As in
    /// common tools, text before the header and after the end and blank lines are ignored; fields
    /// are separated by tabs or spaces, lines end in LF or CRLF; a missing back-off weight is 0,
    /// that of the longest n-grams is ignored; `<UNK>` is `<unk>`; -inf is -99. Time n·log n;
    /// memory a small multiple of the file, independent of the counts in its header.
    ///
    /// # Errors
    /// [`Error::Utf8`]; [`Error::Line`] for an unexpected line, such as a probability above 1 or
    /// not a number, a word that is not a 1-gram, a missing section; [`Error::Count`];
    /// [`Error::Context`]; [`Error::Duplicate`].
    ///
    /// ```
    /// let text = "\\data\\\nngram 1=2\n\n\\1-grams:\n-0.3\tyes\n-0.3\tno\n\n\\end\\\n";
    /// let table = decoding::ngram::NgramTable::read(text.as_bytes())?;
    /// assert_eq!(table.words(), ["yes", "no"]);
    /// # Ok::<(), decoding::ngram::Error>(())
    /// ```
    pub fn read(bytes: &[u8]) -> Result<Self> {
        let mut lines = ArpaLines::new(bytes);
        while lines.expect("\\data\\")? != "\\data\\" {
            lines.next();
        }
        lines.next();
        let counts = read_header(&mut lines)?;
        let mut words = WordList::default();
        let mut orders: Vec<OrderEntries> = Vec::new();
        for (index, &count) in counts.iter().enumerate() {
            let title = format!("\\{}-grams:", index + 1);
            if lines.expect(&title)? != title {
                return Err(lines.unexpected(&title));
            }
            lines.next();
            let entries = read_section(&mut lines, index + 1, count, &mut words, orders.last())?;
            orders.push(entries);
        }
        match lines.expect("\\end\\")? {
            "\\end\\" => Ok(Self { words: words.names, orders }),
            _ => Err(lines.unexpected("\\end\\")),
        }
    }

    /// Writes an ARPA file, which [`NgramTable::read`] reads back to an equal table.
    pub fn write(&self) -> String {
        let mut text = String::from("\\data\\\n");
        for (k, entries) in (1..).zip(&self.orders) {
            write_line(&mut text, format_args!("ngram {k}={}", entries.len()));
        }
        for (k, entries) in (1..).zip(&self.orders) {
            write_line(&mut text, format_args!("\n\\{k}-grams:"));
            for index in 0..entries.len() {
                let words: Vec<&str> = self.spell(entries.ngram(index)).collect();
                let words = words.join(" ");
                let (prob, backoff) = (entries.log10_probs[index], entries.log10_backoffs[index]);
                match backoff {
                    0.0 => write_line(&mut text, format_args!("{prob}\t{words}")),
                    _ => write_line(&mut text, format_args!("{prob}\t{words}\t{backoff}")),
                }
            }
        }
        text += "\n\\end\\\n";
        text
    }

    /// Names of words.
    pub(super) fn spell(&self, ids: &[u32]) -> impl Iterator<Item = &str> {
        ids.iter().map(|&id| self.words[id as usize].as_str())
    }
}

/// Appends a line to a text.
fn write_line(text: &mut String, arguments: std::fmt::Arguments) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{arguments}");
}

/// Reads the number of n-grams of each order.
fn read_header(lines: &mut ArpaLines) -> Result<Vec<usize>> {
    let mut counts = Vec::new();
    while !lines.expect("\\1-grams:")?.starts_with('\\') {
        let expected = format!("`ngram {}=` and a number up to {MAX_NGRAMS_PER_ORDER}", counts.len() + 1);
        let parse = |line: &str| {
            let (order, count) = line.strip_prefix("ngram")?.split_once('=')?;
            let order: usize = order.trim().parse().ok()?;
            let count: usize = count.trim().parse().ok()?;
            (order == counts.len() + 1 && order <= MAX_ORDER && count <= MAX_NGRAMS_PER_ORDER)
                .then_some(count)
        };
        match parse(lines.expect("")?) {
            Some(count) => counts.push(count),
            None => return Err(lines.unexpected(&expected)),
        }
        lines.next();
    }
    match counts.is_empty() {
        true => Err(lines.unexpected("`ngram 1=` and a number")),
        false => Ok(counts),
    }
}

/// Reads the n-grams of one order; `shorter` are those of the order below.
fn read_section(
    lines: &mut ArpaLines,
    order: usize,
    expected: usize,
    words: &mut WordList,
    shorter: Option<&OrderEntries>,
) -> Result<OrderEntries> {
    let mut entries = OrderEntries::new(order);
    let mut line_numbers = Vec::new();
    while !lines.expect("\\end\\")?.starts_with('\\') {
        if entries.len() == expected {
            return Err(Error::Count { line: lines.number, order, expected, found: expected + 1 });
        }
        let (ids, prob, backoff) = read_ngram(lines, order, words)?;
        entries.push(ids, prob, backoff);
        line_numbers.push(lines.number);
        lines.next();
    }
    if entries.len() < expected {
        return Err(Error::Count { line: lines.number, order, expected, found: entries.len() });
    }
    let (entries, original_indices) = entries.sorted();
    let spell =
        |ids: &[u32]| ids.iter().map(|&id| words.names[id as usize].as_str()).collect::<Vec<_>>().join(" ");
    for index in 0..entries.len() {
        let (ngram, line) = (entries.ngram(index), line_numbers[original_indices[index]]);
        if index > 0 && entries.ngram(index - 1) == ngram {
            return Err(Error::Duplicate {
                line,
                first: line_numbers[original_indices[index - 1]],
                ngram: spell(ngram),
            });
        }
        if shorter.is_some_and(|shorter| shorter.find(&ngram[..order - 1]).is_none()) {
            return Err(Error::Context { line, ngram: spell(ngram) });
        }
    }
    Ok(entries)
}

/// Reads one line of a section: word ids, log10 probability, log10 back-off weight.
fn read_ngram(lines: &mut ArpaLines, order: usize, words: &mut WordList) -> Result<(Vec<u32>, f32, f32)> {
    let line = lines.expect("")?;
    let fields: Vec<&str> = line.split([' ', '\t']).filter(|field| !field.is_empty()).collect();
    if fields.len() != order + 1 && fields.len() != order + 2 {
        let names = if order == 1 { "one word".into() } else { format!("{order} words") };
        return Err(lines
            .unexpected(&format!("a log10 probability, {names}, and optionally a log10 back-off weight")));
    }
    let number = |text: &str, max: f32| {
        let number = text.parse::<f32>().ok()?;
        let number = if number == f32::NEG_INFINITY { LOG10_ZERO } else { number };
        (-MAX_MAGNITUDE..=max).contains(&number).then_some(number)
    };
    let Some(prob) = number(fields[0], 0.0) else {
        return Err(lines.unexpected("a log10 probability of at most 0"));
    };
    let backoff = match fields.get(order + 1) {
        None => 0.0,
        Some(text) => number(text, MAX_MAGNITUDE)
            .ok_or_else(|| lines.unexpected("a log10 back-off weight at the end"))?,
    };
    let id = |word: &&str| {
        let word = if *word == "<UNK>" { UNKNOWN } else { word };
        match order {
            1 => Ok(words.add(word)),
            _ => words.ids.get(word).copied().ok_or_else(|| {
                lines.unexpected(&format!("only words of the 1-grams, not `{}`", Excerpt(word)))
            }),
        }
    };
    let ids = fields[1..=order].iter().map(id).collect::<Result<_>>()?;
    Ok((ids, prob, backoff))
}

/// Words of the 1-grams.
#[derive(Default)]
struct WordList {
    names: Vec<String>,
    ids: HashMap<String, u32>,
}

impl WordList {
    /// Returns the id of a word; adds a new word.
    fn add(&mut self, word: &str) -> u32 {
        if let Some(&id) = self.ids.get(word) {
            return id;
        }
        let id = self.names.len() as u32;
        self.names.push(word.into());
        self.ids.insert(word.into(), id);
        id
    }
}

/// Iterates over the lines of a file that are not blank.
struct ArpaLines<'a> {
    /// Bytes after the current line; none at the end of the file.
    rest: Option<&'a [u8]>,
    current: Option<&'a [u8]>,
    /// Number of the current line, from 1.
    number: usize,
}

impl<'a> ArpaLines<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let rest = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
        let mut lines = Self { rest: Some(rest).filter(|rest| !rest.is_empty()), current: None, number: 0 };
        lines.next();
        lines
    }

    /// Advances to the next line that is not blank.
    fn next(&mut self) {
        self.current = None;
        while let Some(rest) = self.rest {
            self.number += 1;
            let (line, after_line) = match rest.iter().position(|&byte| byte == b'\n') {
                Some(end) => (&rest[..end], Some(&rest[end + 1..]).filter(|after| !after.is_empty())),
                None => (rest, None),
            };
            self.rest = after_line;
            let line = line.trim_ascii();
            if !line.is_empty() {
                self.current = Some(line);
                return;
            }
        }
        self.number += 1;
    }

    /// The current line, or an error at the end of the file.
    fn expect(&self, expected: &str) -> Result<&'a str> {
        match self.current {
            Some(line) => std::str::from_utf8(line).map_err(|_| Error::Utf8 { line: self.number }),
            None => {
                let end = "the end of the file".into();
                Err(Error::Line { line: self.number, expected: expected.into(), found: end })
            }
        }
    }

    /// The error of an unexpected line.
    fn unexpected(&self, expected: &str) -> Error {
        let line = self.current.map(String::from_utf8_lossy).unwrap_or_default();
        Error::Line { line: self.number, expected: expected.into(), found: format!("`{}`", Excerpt(line)) }
    }
}

#[cfg(test)]
mod tests;
