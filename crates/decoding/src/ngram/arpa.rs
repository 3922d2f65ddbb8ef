//! ARPA files of n-grams.
use std::collections::HashMap;
use std::fmt::Write;

use kernels::Excerpt;

use super::table::{Entries, MOST_ORDER, NgramTable};
use super::vocabulary::UNKNOWN;
use super::{Error, Result};

/// What tools write for the logarithm of 0.
const ZERO: f32 = -99.0;
/// No sum of a few such numbers leaves the range of `f32`.
const LARGEST: f32 = 1e6;
/// Most n-grams of one order: states of all orders are counted in 32 bits.
const MOST: usize = 1 << 28;

impl NgramTable {
    /// Reads an ARPA file.
    ///
    /// A head `\data\` with lines `ngram k=count`, sections `\1-grams:` to `\N-grams:` of lines "log10 probability, k words, log10
    /// back-off weight", and `\end\`. As the common tools write it: text before the head and after the end is passed over, so are blank
    /// lines; fields are apart by tabs or spaces, lines end in LF or CRLF; a back-off weight that is missing is 0, one of the longest
    /// n-grams says nothing; `<UNK>` is `<unk>`; -inf is -99. Time n·log n, memory that of the file a few times, whatever its head promises.
    ///
    /// # Errors
    /// [`Error::Utf8`]; [`Error::Line`] for anything else on a line than belongs there: a probability above 1 or not a number, a word that
    /// is no 1-gram, a section that is missing; [`Error::Count`]; [`Error::Context`]; [`Error::Twice`].
    ///
    /// ```
    /// let text = "\\data\\\nngram 1=2\n\n\\1-grams:\n-0.3\tyes\n-0.3\tno\n\n\\end\\\n";
    /// let table = decoding::ngram::NgramTable::read(text.as_bytes())?;
    /// assert_eq!(table.words(), ["yes", "no"]);
    /// # Ok::<(), decoding::ngram::Error>(())
    /// ```
    pub fn read(bytes: &[u8]) -> Result<Self> {
        let mut lines = ArpaLines::new(bytes);
        while lines.need("\\data\\")? != "\\data\\" {
            lines.next();
        }
        lines.next();
        let promised = head(&mut lines)?;
        let mut words = Words::default();
        let mut orders: Vec<Entries> = Vec::new();
        for (at, &count) in promised.iter().enumerate() {
            let title = format!("\\{}-grams:", at + 1);
            if lines.need(&title)? != title {
                return Err(lines.wrong(&title));
            }
            lines.next();
            let entries = section(&mut lines, at + 1, count, &mut words, orders.last())?;
            orders.push(entries);
        }
        match lines.need("\\end\\")? {
            "\\end\\" => Ok(Self { words: words.names, orders }),
            _ => Err(lines.wrong("\\end\\")),
        }
    }

    /// The table as an ARPA file; [`NgramTable::read`] gives the same table again.
    pub fn write(&self) -> String {
        let mut text = String::from("\\data\\\n");
        for (k, entries) in (1..).zip(&self.orders) {
            line(&mut text, format_args!("ngram {k}={}", entries.len()));
        }
        for (k, entries) in (1..).zip(&self.orders) {
            line(&mut text, format_args!("\n\\{k}-grams:"));
            for at in 0..entries.len() {
                let words: Vec<&str> = self.spelled(entries.row(at)).collect();
                let (prob, words, backoff) = (entries.prob[at], words.join(" "), entries.backoff[at]);
                match backoff {
                    0.0 => line(&mut text, format_args!("{prob}\t{words}")),
                    _ => line(&mut text, format_args!("{prob}\t{words}\t{backoff}")),
                }
            }
        }
        text += "\n\\end\\\n";
        text
    }

    pub(super) fn spelled(&self, ids: &[u32]) -> impl Iterator<Item = &str> {
        ids.iter().map(|&id| self.words[id as usize].as_str())
    }
}

fn line(text: &mut String, arguments: std::fmt::Arguments) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{arguments}");
}

/// Number of n-grams of each order.
fn head(lines: &mut ArpaLines) -> Result<Vec<usize>> {
    let mut promised = Vec::new();
    while !lines.need("\\1-grams:")?.starts_with('\\') {
        let expected = format!("`ngram {}=` and a number up to {MOST}", promised.len() + 1);
        let of_line = |line: &str| {
            let (order, count) = line.strip_prefix("ngram")?.split_once('=')?;
            let order: usize = order.trim().parse().ok()?;
            let count: usize = count.trim().parse().ok()?;
            (order == promised.len() + 1 && order <= MOST_ORDER && count <= MOST).then_some(count)
        };
        match of_line(lines.need("")?) {
            Some(count) => promised.push(count),
            None => return Err(lines.wrong(&expected)),
        }
        lines.next();
    }
    match promised.is_empty() {
        true => Err(lines.wrong("`ngram 1=` and a number")),
        false => Ok(promised),
    }
}

/// The n-grams of one order; the words of an error are looked up in `words`.
fn section(
    lines: &mut ArpaLines,
    order: usize,
    expected: usize,
    words: &mut Words,
    shorter: Option<&Entries>,
) -> Result<Entries> {
    let mut entries = Entries::new(order);
    let mut numbers = Vec::new();
    while !lines.need("\\end\\")?.starts_with('\\') {
        if entries.len() == expected {
            return Err(Error::Count { line: lines.number, order, expected, found: expected + 1 });
        }
        let (ids, prob, backoff) = ngram(lines, order, words)?;
        entries.push(ids, prob, backoff);
        numbers.push(lines.number);
        lines.next();
    }
    if entries.len() < expected {
        return Err(Error::Count { line: lines.number, order, expected, found: entries.len() });
    }
    let (entries, from) = entries.sorted();
    let spelled =
        |row: &[u32]| row.iter().map(|&id| words.names[id as usize].as_str()).collect::<Vec<_>>().join(" ");
    for at in 0..entries.len() {
        let (row, line) = (entries.row(at), numbers[from[at]]);
        if at > 0 && entries.row(at - 1) == row {
            return Err(Error::Twice { line, first: numbers[from[at - 1]], ngram: spelled(row) });
        }
        if shorter.is_some_and(|shorter| shorter.find(&row[..order - 1]).is_none()) {
            return Err(Error::Context { line, ngram: spelled(row) });
        }
    }
    Ok(entries)
}

/// One line of a section.
fn ngram(lines: &mut ArpaLines, order: usize, words: &mut Words) -> Result<(Vec<u32>, f32, f32)> {
    let line = lines.need("")?;
    let fields: Vec<&str> = line.split([' ', '\t']).filter(|field| !field.is_empty()).collect();
    if fields.len() != order + 1 && fields.len() != order + 2 {
        let names = if order == 1 { "one word".into() } else { format!("{order} words") };
        return Err(lines.wrong(&format!("a log10 probability, {names} and perhaps a log10 back-off weight")));
    }
    let number = |text: &str, most: f32| {
        let number = text.parse::<f32>().ok()?;
        let number = if number == f32::NEG_INFINITY { ZERO } else { number };
        (-LARGEST..=most).contains(&number).then_some(number)
    };
    let Some(prob) = number(fields[0], 0.0) else {
        return Err(lines.wrong("a log10 probability, 0 at most"));
    };
    let backoff = match fields.get(order + 1) {
        None => 0.0,
        Some(text) => {
            number(text, LARGEST).ok_or_else(|| lines.wrong("a log10 back-off weight at the end"))?
        }
    };
    let id = |word: &&str| {
        let word = if *word == "<UNK>" { UNKNOWN } else { word };
        match order {
            1 => Ok(words.add(word)),
            _ => words
                .ids
                .get(word)
                .copied()
                .ok_or_else(|| lines.wrong(&format!("1-grams alone, not `{}`", Excerpt(word)))),
        }
    };
    let ids = fields[1..=order].iter().map(id).collect::<Result<_>>()?;
    Ok((ids, prob, backoff))
}

/// The 1-grams so far.
#[derive(Default)]
struct Words {
    names: Vec<String>,
    ids: HashMap<String, u32>,
}

impl Words {
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

/// The lines of a file that are not blank, one at a time.
struct ArpaLines<'a> {
    rest: Option<&'a [u8]>,
    now: Option<&'a [u8]>,
    /// Of the line that is looked at, from 1.
    number: usize,
}

impl<'a> ArpaLines<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let rest = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
        let mut lines = Self { rest: Some(rest).filter(|rest| !rest.is_empty()), now: None, number: 0 };
        lines.next();
        lines
    }

    fn next(&mut self) {
        self.now = None;
        while let Some(rest) = self.rest {
            self.number += 1;
            let (line, more) = match rest.iter().position(|&byte| byte == b'\n') {
                Some(end) => (&rest[..end], Some(&rest[end + 1..]).filter(|more| !more.is_empty())),
                None => (rest, None),
            };
            self.rest = more;
            let line = line.trim_ascii();
            if !line.is_empty() {
                self.now = Some(line);
                return;
            }
        }
        self.number += 1;
    }

    /// The line, or an error that it is missing.
    fn need(&self, expected: &str) -> Result<&'a str> {
        match self.now {
            Some(line) => std::str::from_utf8(line).map_err(|_| Error::Utf8 { line: self.number }),
            None => {
                let found = "the end of the file".into();
                Err(Error::Line { line: self.number, expected: expected.into(), found })
            }
        }
    }

    /// The line is not what it should be.
    fn wrong(&self, expected: &str) -> Error {
        let found = self.now.map(String::from_utf8_lossy).unwrap_or_default();
        Error::Line { line: self.number, expected: expected.into(), found: format!("`{}`", Excerpt(found)) }
    }
}

#[cfg(test)]
mod tests;
