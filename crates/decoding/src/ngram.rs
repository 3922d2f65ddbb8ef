//! Back-off n-grams of any order.
//!
//! | file | holds |
//! |---|---|
//! | this | the scorer |
//! | `vocabulary` | how classes are called in files |
//! | `table` | the n-grams of a file, sorted |
//! | `arpa` | ARPA files, read and written |
//! | `estimate` | interpolated modified Kneser-Ney |
//! | `perplexity` | how well a text is foreseen |
//! | `word_ngram` | words spelled by tokens |
//! | `state_pairs` | states of two automata in one number |
mod arpa;
mod error;
mod estimate;
mod perplexity;
mod state_pairs;
mod table;
mod vocabulary;
mod word_ngram;

use std::borrow::Cow;
use std::ops::Range;

use crate::Scorer;
use table::{Entries, MOST_ORDER, children};

pub use error::{Error, Result};
pub use estimate::{DiscountKind, Discounts, Estimate, estimate};
pub use perplexity::Perplexity;
pub use table::NgramTable;
pub use word_ngram::{WordNgram, WordNgramOptions};

/// log10 probability of unknown words where the n-gram has no `<unk>`; KenLM's.
const MISSING: f32 = -100.0;
/// Word of a class without a name.
const NAMELESS: u32 = u32::MAX;
/// The state after nothing.
const EMPTY: u32 = 0;
/// Classes of a row of scores that are seen to at a time.
const BLOCK: usize = 64;

/// What to do with words of an n-gram that are not in the vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutOfVocabulary {
    /// Pass over the n-grams that have them, and count them: no class can lead there, and a general n-gram knows many words that a model
    /// does not.
    #[default]
    Ignore,
    /// Refuse the n-gram.
    Reject,
}

/// A back-off n-gram over class ids (Katz 1987).
///
/// With h = w_1 .. w_m the last words, as many as the order allows,
///
/// log p(w | h) = log prob(h w) if the table lists h w, and else log backoff(h) + log p(w | w_2 .. w_m),
///
/// where a back-off weight that is not listed is 1. A state is a context that something follows from or that has a weight; a history's
/// is the longest of its ends that is one. Arcs lie in flat arrays sorted by (state, class); those of the empty context are a dense row.
///
/// A class whose name the table does not list has the probability of `<unk>`, 10^-100 if there is none. One step takes up to N binary
/// searches; a row of scores is one pass over the classes and the listed arcs of the context and its ends. 12 bytes an n-gram and state.
///
/// ```
/// use decoding::{Scorer, ngram::{OutOfVocabulary, Ngram, NgramTable}};
///
/// let text = "\\data\\\nngram 1=3\nngram 2=1\n\\1-grams:\n-1 <s> -0.5\n-0.5 yes\n-0.25 no\n\\2-grams:\n-0.125 <s> yes\n\\end\\";
/// // Class 0 is the blank, which has no name.
/// let ngram = Ngram::new(&NgramTable::read(text.as_bytes())?, &["", "yes", "no"], OutOfVocabulary::Reject)?;
/// let (yes, _) = ngram.step(ngram.start(), 1);
/// let (no, _) = ngram.step(ngram.start(), 2);
/// assert_eq!((yes, no), (-0.125 * 10f32.ln(), (-0.5 * 10f32.ln()) + (-0.25 * 10f32.ln())));
/// # Ok::<(), decoding::ngram::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Ngram {
    order: usize,
    /// The word of each class: itself, that of `<unk>`, or [`NAMELESS`]. After the classes come `</s>` and, if no class is it, `<unk>`.
    word: Vec<u32>,
    unknown: u32,
    /// Classes that have the probability of `<unk>`, ascending.
    unlisted: Vec<u32>,
    /// Words of the table that no class has.
    foreign: usize,
    start: u32,
    /// The empty context: natural logarithm by word, -inf where there is none, and the state after it.
    row: Vec<f32>,
    row_next: Vec<u32>,
    /// Of each state; the empty context, state 0, has no arcs here.
    arcs: Vec<u32>,
    backoff: Vec<f32>,
    backoff_to: Vec<u32>,
    /// Of each arc: its word, natural logarithm of its probability, and the state after it.
    arc_word: Vec<u32>,
    arc_score: Vec<f32>,
    arc_next: Vec<u32>,
}

impl Ngram {
    /// A scorer of a table. `names` are those of the classes as the tokenizer has them, empty for a
    /// class that is no label, such as the blank; a class named `<unk>` is the table's.
    ///
    /// # Errors
    /// [`Error::Name`] if two classes have a name in common or one is `<s>` or `</s>`; [`Error::NoToken`] if the table knows none of
    /// them; [`Error::Token`] if it knows others and these are forbidden.
    pub fn new<S: AsRef<str>>(table: &NgramTable, names: &[S], foreign: OutOfVocabulary) -> Result<Self> {
        let ids = vocabulary::ids(names)?;
        let classes = names.len();
        let end = classes as u32;
        let unknown = ids.get(vocabulary::UNKNOWN).copied().unwrap_or(end + 1);
        // Only in contexts.
        let begin = end + 2;
        let word_of = |name: &String| match name.as_str() {
            vocabulary::BEGIN => Some(begin),
            vocabulary::END => Some(end),
            vocabulary::UNKNOWN => Some(unknown),
            name => ids.get(&Cow::Borrowed(name)).copied(),
        };
        let words: Vec<Option<u32>> = table.words.iter().map(word_of).collect();
        let strangers = words.iter().filter(|word| word.is_none()).count();
        if let (OutOfVocabulary::Reject, Some(at)) = (foreign, words.iter().position(Option::is_none)) {
            return Err(Error::Token { token: table.words[at].clone() });
        }
        if !words.iter().flatten().any(|&word| word < end && word != unknown) {
            return Err(Error::NoToken { found: table.words.len() });
        }
        let orders: Vec<Entries> =
            table.orders.iter().map(|entries| renamed(entries, &words, begin, end)).collect();
        let contexts = Contexts::new(&orders, end);

        let mut ngram = Self {
            order: table.order(),
            word: Vec::new(),
            unknown,
            unlisted: Vec::new(),
            foreign: strangers,
            start: contexts.after(&[begin]),
            row: vec![f32::NEG_INFINITY; classes + 2],
            row_next: vec![EMPTY; classes + 2],
            arcs: vec![0, 0],
            backoff: vec![0.0],
            backoff_to: vec![EMPTY],
            arc_word: Vec::new(),
            arc_score: Vec::new(),
            arc_next: Vec::new(),
        };
        ngram.row[unknown as usize] = natural(MISSING);
        for at in 0..orders[0].len() {
            let word = orders[0].row(at)[0];
            if word != begin {
                ngram.row[word as usize] = natural(orders[0].prob[at]);
                ngram.row_next[word as usize] = contexts.after(&[word]);
            }
        }
        for (shorter, longer) in orders.iter().zip(&orders[1..]) {
            for (at, children) in contexts.children[shorter.width - 1].iter().enumerate() {
                if contexts.states[shorter.width - 1][at].is_some() {
                    ngram.push(&contexts, shorter, at, longer, children.clone());
                }
            }
        }
        let listed = |&(class, name): &(u32, &S)| {
            let known = ngram.row[class as usize] > f32::NEG_INFINITY;
            if name.as_ref().is_empty() {
                NAMELESS
            } else if known {
                class
            } else {
                unknown
            }
        };
        ngram.word = (0..).zip(names).map(|pair| listed(&pair)).collect();
        // A class that is `<unk>` itself is served by the row.
        ngram.unlisted =
            (0..end).filter(|&class| ngram.word[class as usize] == unknown && class != unknown).collect();
        Ok(ngram)
    }

    fn push(
        &mut self,
        contexts: &Contexts,
        shorter: &Entries,
        at: usize,
        longer: &Entries,
        children: Range<usize>,
    ) {
        self.backoff.push(natural(shorter.backoff[at]));
        self.backoff_to.push(contexts.after(&shorter.row(at)[1..]));
        for child in children {
            let row = longer.row(child);
            self.arc_word.push(row[row.len() - 1]);
            self.arc_score.push(natural(longer.prob[child]));
            self.arc_next.push(contexts.after(row));
        }
        self.arcs.push(self.arc_word.len() as u32);
    }

    /// The longest n-grams' number of words.
    pub fn order(&self) -> usize {
        self.order
    }

    /// Number of states.
    pub fn states(&self) -> usize {
        self.backoff.len()
    }

    /// Number of words of the table that are no class; n-grams with them were passed over.
    pub fn foreign(&self) -> usize {
        self.foreign
    }

    /// Whether a class is a label that the table does not list, or `<unk>` itself.
    pub fn is_unknown(&self, class: u32) -> bool {
        self.word.get(class as usize) == Some(&self.unknown)
    }

    /// Score of a word in a state, and the state after it.
    fn follow(&self, state: u32, word: u32) -> (f32, u32) {
        let (mut state, mut weight) = (self.known(state), 0.0);
        while state != EMPTY {
            let arcs = self.arcs_of(state);
            if let Ok(at) = self.arc_word[arcs.clone()].binary_search(&word) {
                let arc = arcs.start + at;
                return (weight + self.arc_score[arc], self.arc_next[arc]);
            }
            weight += self.backoff[state as usize];
            state = self.backoff_to[state as usize];
        }
        (weight + self.row[word as usize], self.row_next[word as usize])
    }

    /// Probability of a word that is not known, and the state after it.
    fn follow_unknown(&self, state: u32) -> (f32, u32) {
        self.follow(state, self.unknown)
    }

    fn known(&self, state: u32) -> u32 {
        if (state as usize) < self.states() { state } else { EMPTY }
    }

    fn arcs_of(&self, state: u32) -> Range<usize> {
        let state = state as usize;
        self.arcs[state] as usize..self.arcs[state + 1] as usize
    }
}

impl Scorer for Ngram {
    fn start(&self) -> u32 {
        self.start
    }

    fn step(&self, state: u32, class: u32) -> (f32, u32) {
        match self.word.get(class as usize) {
            None | Some(&NAMELESS) => (0.0, state),
            Some(&word) => self.follow(state, word),
        }
    }

    fn add_scores(&self, state: u32, weight: f32, scores: &mut [f32]) {
        let state = self.known(state);
        let limit = scores.len().min(self.word.len());
        // The state and what it backs off to, longest first: sorted arcs, and the weights on the way.
        let mut chain: [(Range<usize>, f32); MOST_ORDER] = Default::default();
        let (mut length, mut at, mut weights) = (0, state, 0.0);
        while at != EMPTY {
            chain[length] = (self.arcs_of(at), weights);
            length += 1;
            weights += self.backoff[at as usize];
            at = self.backoff_to[at as usize];
        }
        let chain = &mut chain[..length];
        for from in (0..limit).step_by(BLOCK) {
            let block = &mut scores[from..limit.min(from + BLOCK)];
            let mut before = [0.0; BLOCK];
            before[..block.len()].copy_from_slice(block);
            for (score, &row) in block.iter_mut().zip(&self.row[from..]) {
                *score += if row > f32::NEG_INFINITY { weight * (weights + row) } else { 0.0 };
            }
            // The longest context has the last word.
            for (arcs, weights) in chain.iter_mut().rev() {
                while arcs.start < arcs.end && (self.arc_word[arcs.start] as usize) < from + block.len() {
                    let at = self.arc_word[arcs.start] as usize - from;
                    block[at] = before[at] + weight * (*weights + self.arc_score[arcs.start]);
                    arcs.start += 1;
                }
            }
        }
        if !self.unlisted.is_empty() {
            let (score, _) = self.follow_unknown(state);
            let unlisted = self.unlisted.iter().map(|&class| class as usize);
            unlisted.take_while(|&class| class < limit).for_each(|class| scores[class] += weight * score);
        }
    }

    /// log p(`</s>`), or 0 where the table has no `</s>`.
    fn finish(&self, state: u32) -> f32 {
        let end = self.word.len() as u32;
        if self.row[end as usize] == f32::NEG_INFINITY { 0.0 } else { self.follow(state, end).0 }
    }
}

fn natural(log10: f32) -> f32 {
    (f64::from(log10) * std::f64::consts::LN_10) as f32
}

/// The n-grams that classes can lead to, sorted by their new ids.
fn renamed(entries: &Entries, words: &[Option<u32>], begin: u32, end: u32) -> Entries {
    let mut renamed = Entries::new(entries.width);
    for at in 0..entries.len() {
        let row: Option<Vec<u32>> = entries.row(at).iter().map(|&id| words[id as usize]).collect();
        let Some(row) = row else { continue };
        // A sentence begins once and ends once.
        if row[1..].contains(&begin) || row[..row.len() - 1].contains(&end) {
            continue;
        }
        renamed.push(row, entries.prob[at], entries.backoff[at]);
    }
    renamed.sorted().0
}

/// Which n-grams are states.
struct Contexts<'a> {
    orders: &'a [Entries],
    /// By order and n-gram: what follows it in the order above.
    children: Vec<Vec<Range<usize>>>,
    /// By order and n-gram; none of the longest is one.
    states: Vec<Vec<Option<u32>>>,
}

impl<'a> Contexts<'a> {
    fn new(orders: &'a [Entries], end: u32) -> Self {
        let mut count = EMPTY;
        let mut contexts = Self { orders, children: Vec::new(), states: Vec::new() };
        for (shorter, longer) in orders.iter().zip(&orders[1..]) {
            let children = children(&shorter.ids, shorter.width, &longer.ids);
            let state = |(at, children): (usize, &Range<usize>)| {
                // What neither follows nor weighs is as good as its end.
                let weighs = shorter.backoff[at] != 0.0 && !shorter.row(at).contains(&end);
                (weighs || !children.is_empty()).then(|| {
                    count += 1;
                    count
                })
            };
            contexts.states.push(children.iter().enumerate().map(state).collect());
            contexts.children.push(children);
        }
        contexts
    }

    /// The state after a history: the longest of its ends that is one.
    fn after(&self, history: &[u32]) -> u32 {
        let longest = history.len().min(self.states.len());
        let of_length = |length: usize| {
            let at = self.orders[length - 1].find(&history[history.len() - length..])?;
            self.states[length - 1][at]
        };
        (1..=longest).rev().find_map(of_length).unwrap_or(EMPTY)
    }
}

#[cfg(test)]
mod tests;
