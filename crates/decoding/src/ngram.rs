//! Back-off n-gram language models of any order, as scorers for decoding.
//!
//! | module | contents |
//! |---|---|
//! | this | the scorer, [`Ngram`] |
//! | `vocabulary` | names of classes in files |
//! | `table` | the n-grams of a file, sorted |
//! | `arpa` | ARPA files, read and written |
//! | `estimate` | interpolated modified Kneser-Ney |
//! | `perplexity` | perplexity of texts |
//! | `word_ngram` | n-grams of words that tokens spell, [`WordNgram`] |
//! | `state_pairs` | pairs of states as one number |
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
use table::{MAX_ORDER, OrderEntries, continuations};

pub use error::{Error, Result};
pub use estimate::{DiscountKind, Discounts, Estimate, estimate};
pub use perplexity::Perplexity;
pub use table::NgramTable;
pub use word_ngram::{WordNgram, WordNgramOptions};

/// log10 probability of unknown words if the table has no `<unk>`; as in KenLM.
const UNKNOWN_LOG10: f32 = -100.0;
/// Word of a class without a name.
const NO_WORD: u32 = u32::MAX;
/// State of the empty context.
const EMPTY_CONTEXT: u32 = 0;
/// Classes of a row of scores that are processed together.
const CLASSES_PER_BLOCK: usize = 64;

/// Treatment of words of a table that are not in the vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutOfVocabulary {
    /// Skip n-grams that contain them, which no sequence of classes can reach.
    #[default]
    Ignore,
    /// Return an error.
    Reject,
}

/// A back-off n-gram over class ids (Katz 1987).
///
/// With h = w_1 .. w_m the context, at most one word shorter than the order,
///
/// log p(w | h) = log prob(h w) if the table lists h w, and else log backoff(h) + log p(w | w_2 ..
/// w_m),
///
/// where a missing back-off weight is 1. A state is a context with continuations or a weight; the
/// state of a history is its longest suffix that is a state. Arcs are stored in flat arrays sorted
/// by (state, class); those of the empty context are a dense row.
///
/// A class whose name the table does not list has the probability of `<unk>`, or 10^-100 without
/// one. With order N, a step takes up to N binary searches; a row of scores is one pass over the
/// classes and over the arcs of the context and its suffixes. Memory: 12 bytes per n-gram and per
/// state.
///
/// ```
/// use decoding::{Scorer, ngram::{OutOfVocabulary, Ngram, NgramTable}};
///
/// let text = "\\data\\\nngram 1=3\nngram 2=1\n\\1-grams:\n-1 <s> -0.5\n-0.5 yes\n-0.25 no\n\
///     \\2-grams:\n-0.125 <s> yes\n\\end\\";
/// // Class 0 is the blank, which has no name.
/// let table = NgramTable::read(text.as_bytes())?;
/// let ngram = Ngram::new(&table, &["", "yes", "no"], OutOfVocabulary::Reject)?;
/// let (yes, _) = ngram.step(ngram.start(), 1);
/// let (no, _) = ngram.step(ngram.start(), 2);
/// assert_eq!((yes, no), (-0.125 * 10f32.ln(), (-0.5 * 10f32.ln()) + (-0.25 * 10f32.ln())));
/// # Ok::<(), decoding::ngram::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Ngram {
    order: usize,
    /// Word of each class: itself, that of `<unk>`, or [`NO_WORD`].
    ///
    /// Words after the classes are `</s>` and, unless a class has this name, `<unk>`.
    word_of_class: Vec<u32>,
    /// Word of `<unk>`.
    unknown_word: u32,
    /// Classes with the probability of `<unk>`, ascending.
    unlisted_classes: Vec<u32>,
    /// Number of words of the table that are not classes.
    skipped_words: usize,
    /// State after `<s>`.
    start_state: u32,
    /// Log-probability of each word in the empty context; -inf if the table has none.
    unigram_scores: Vec<f32>,
    /// State after each word in the empty context.
    unigram_states: Vec<u32>,
    /// Offset of each state's arcs; the empty context, state 0, has none here.
    arc_offsets: Vec<u32>,
    /// Back-off weight of each state, a natural logarithm.
    backoff_weights: Vec<f32>,
    /// State of the shorter context.
    backoff_states: Vec<u32>,
    /// Word of each arc.
    arc_words: Vec<u32>,
    /// Log-probability of each arc.
    arc_scores: Vec<f32>,
    /// State after each arc.
    arc_states: Vec<u32>,
}

impl Ngram {
    /// Creates the scorer of a table.
    ///
    /// `names` are the tokenizer's names of the classes, empty for a class that is not a label,
    /// such as the blank; a class named `<unk>` is that of the table.
    ///
    /// # Errors
    /// [`Error::Name`] if two classes have the same name or one is `<s>` or `</s>`;
    /// [`Error::NoToken`] if no name is in the table; [`Error::Token`] for a word of the table that
    /// is not a class, with [`OutOfVocabulary::Reject`].
    pub fn new<S: AsRef<str>>(
        table: &NgramTable,
        names: &[S],
        out_of_vocabulary: OutOfVocabulary,
    ) -> Result<Self> {
        // Word ids: the classes, then `</s>`, `<unk>` and `<s>`.
        let ids = vocabulary::ids(names)?;
        let classes = names.len();
        let end = classes as u32;
        let unknown = ids.get(vocabulary::UNKNOWN).copied().unwrap_or(end + 1);
        // Occurs in contexts only.
        let begin = end + 2;
        let word_of = |name: &String| match name.as_str() {
            vocabulary::BEGIN => Some(begin),
            vocabulary::END => Some(end),
            vocabulary::UNKNOWN => Some(unknown),
            name => ids.get(&Cow::Borrowed(name)).copied(),
        };
        let words: Vec<Option<u32>> = table.words.iter().map(word_of).collect();
        let skipped_words = words.iter().filter(|word| word.is_none()).count();
        if let (OutOfVocabulary::Reject, Some(index)) =
            (out_of_vocabulary, words.iter().position(Option::is_none))
        {
            return Err(Error::Token { token: table.words[index].clone() });
        }
        if !words.iter().flatten().any(|&word| word < end && word != unknown) {
            return Err(Error::NoToken { found: table.words.len() });
        }
        // N-grams of classes, and the contexts that are states.
        let orders: Vec<OrderEntries> =
            table.orders.iter().map(|entries| to_class_ids(entries, &words, begin, end)).collect();
        let contexts = Contexts::new(&orders, end);

        let mut ngram = Self {
            order: table.order(),
            word_of_class: Vec::new(),
            unknown_word: unknown,
            unlisted_classes: Vec::new(),
            skipped_words,
            start_state: contexts.state_after(&[begin]),
            unigram_scores: vec![f32::NEG_INFINITY; classes + 2],
            unigram_states: vec![EMPTY_CONTEXT; classes + 2],
            arc_offsets: vec![0, 0],
            backoff_weights: vec![0.0],
            backoff_states: vec![EMPTY_CONTEXT],
            arc_words: Vec::new(),
            arc_scores: Vec::new(),
            arc_states: Vec::new(),
        };
        ngram.unigram_scores[unknown as usize] = natural_log(UNKNOWN_LOG10);
        // 1-grams.
        for index in 0..orders[0].len() {
            let word = orders[0].ngram(index)[0];
            if word != begin {
                ngram.unigram_scores[word as usize] = natural_log(orders[0].log10_probs[index]);
                ngram.unigram_states[word as usize] = contexts.state_after(&[word]);
            }
        }
        // States and arcs of the longer contexts.
        for (shorter, longer) in orders.iter().zip(&orders[1..]) {
            for (context, range) in contexts.continuations[shorter.width - 1].iter().enumerate() {
                if contexts.states[shorter.width - 1][context].is_some() {
                    ngram.push_state(&contexts, shorter, context, longer, range.clone());
                }
            }
        }
        // Words of the classes.
        let word_of_class = |&(class, name): &(u32, &S)| {
            let is_listed = ngram.unigram_scores[class as usize] > f32::NEG_INFINITY;
            if name.as_ref().is_empty() {
                NO_WORD
            } else if is_listed {
                class
            } else {
                unknown
            }
        };
        ngram.word_of_class = (0..).zip(names).map(|pair| word_of_class(&pair)).collect();
        // The row contains a class that is `<unk>` itself.
        ngram.unlisted_classes = (0..end)
            .filter(|&class| ngram.word_of_class[class as usize] == unknown && class != unknown)
            .collect();
        Ok(ngram)
    }

    /// Appends the state of a context, with its back-off weight and arcs.
    ///
    /// The context is an n-gram of `shorter`, its continuations are n-grams of `longer`.
    fn push_state(
        &mut self,
        contexts: &Contexts,
        shorter: &OrderEntries,
        context: usize,
        longer: &OrderEntries,
        continuations: Range<usize>,
    ) {
        self.backoff_weights.push(natural_log(shorter.log10_backoffs[context]));
        self.backoff_states.push(contexts.state_after(&shorter.ngram(context)[1..]));
        for index in continuations {
            let ngram = longer.ngram(index);
            self.arc_words.push(ngram[ngram.len() - 1]);
            self.arc_scores.push(natural_log(longer.log10_probs[index]));
            self.arc_states.push(contexts.state_after(ngram));
        }
        self.arc_offsets.push(self.arc_words.len() as u32);
    }

    /// Order N, the number of words of the longest n-grams.
    pub fn order(&self) -> usize {
        self.order
    }

    /// Number of states.
    pub fn states(&self) -> usize {
        self.backoff_weights.len()
    }

    /// Number of words of the table that are not classes.
    pub fn skipped_words(&self) -> usize {
        self.skipped_words
    }

    /// Returns whether a class is outside the table or `<unk>` itself.
    pub(crate) fn is_unknown(&self, class: u32) -> bool {
        self.word_of_class.get(class as usize) == Some(&self.unknown_word)
    }

    /// Score of a word in a state, and the next state.
    fn follow(&self, state: u32, word: u32) -> (f32, u32) {
        let (mut state, mut backoff_sum) = (self.valid_state(state), 0.0);
        while state != EMPTY_CONTEXT {
            let arcs = self.arcs_of(state);
            if let Ok(offset) = self.arc_words[arcs.clone()].binary_search(&word) {
                let arc = arcs.start + offset;
                return (backoff_sum + self.arc_scores[arc], self.arc_states[arc]);
            }
            backoff_sum += self.backoff_weights[state as usize];
            state = self.backoff_states[state as usize];
        }
        (backoff_sum + self.unigram_scores[word as usize], self.unigram_states[word as usize])
    }

    /// Score of an unknown word in a state, and the next state.
    fn follow_unknown(&self, state: u32) -> (f32, u32) {
        self.follow(state, self.unknown_word)
    }

    /// The state, or `EMPTY_CONTEXT` for an invalid number.
    fn valid_state(&self, state: u32) -> u32 {
        if (state as usize) < self.states() { state } else { EMPTY_CONTEXT }
    }

    /// Arcs of a state.
    fn arcs_of(&self, state: u32) -> Range<usize> {
        let state = state as usize;
        self.arc_offsets[state] as usize..self.arc_offsets[state + 1] as usize
    }
}

impl Scorer for Ngram {
    fn start(&self) -> u32 {
        self.start_state
    }

    fn step(&self, state: u32, class: u32) -> (f32, u32) {
        match self.word_of_class.get(class as usize) {
            None | Some(&NO_WORD) => (0.0, state),
            Some(&word) => self.follow(state, word),
        }
    }

    fn add_scores(&self, state: u32, weight: f32, scores: &mut [f32]) {
        let state = self.valid_state(state);
        let limit = scores.len().min(self.word_of_class.len());
        // Arcs and cumulative back-off weights of the state and its back-off states, longest
        // context first.
        let mut chain: [(Range<usize>, f32); MAX_ORDER] = Default::default();
        let (mut length, mut context, mut backoff_sum) = (0, state, 0.0);
        while context != EMPTY_CONTEXT {
            chain[length] = (self.arcs_of(context), backoff_sum);
            length += 1;
            backoff_sum += self.backoff_weights[context as usize];
            context = self.backoff_states[context as usize];
        }
        let chain = &mut chain[..length];
        for first_class in (0..limit).step_by(CLASSES_PER_BLOCK) {
            let block = &mut scores[first_class..limit.min(first_class + CLASSES_PER_BLOCK)];
            let mut initial = [0.0; CLASSES_PER_BLOCK];
            initial[..block.len()].copy_from_slice(block);
            for (score, &unigram) in block.iter_mut().zip(&self.unigram_scores[first_class..]) {
                *score += if unigram > f32::NEG_INFINITY { weight * (backoff_sum + unigram) } else { 0.0 };
            }
            // The longest context overwrites the others.
            for (arcs, backoff_sum) in chain.iter_mut().rev() {
                while arcs.start < arcs.end
                    && (self.arc_words[arcs.start] as usize) < first_class + block.len()
                {
                    let offset = self.arc_words[arcs.start] as usize - first_class;
                    block[offset] = initial[offset] + weight * (*backoff_sum + self.arc_scores[arcs.start]);
                    arcs.start += 1;
                }
            }
        }
        if !self.unlisted_classes.is_empty() {
            let (score, _) = self.follow_unknown(state);
            let unlisted = self.unlisted_classes.iter().map(|&class| class as usize);
            unlisted.take_while(|&class| class < limit).for_each(|class| scores[class] += weight * score);
        }
    }

    /// `log p(</s>)`, or 0 if the table has no `</s>`.
    fn finish(&self, state: u32) -> f32 {
        let end = self.word_of_class.len() as u32;
        if self.unigram_scores[end as usize] == f32::NEG_INFINITY { 0.0 } else { self.follow(state, end).0 }
    }
}

/// Converts a decimal logarithm to a natural one.
fn natural_log(log10: f32) -> f32 {
    (f64::from(log10) * std::f64::consts::LN_10) as f32
}

/// Returns the n-grams of known words with the ids of classes, sorted.
fn to_class_ids(entries: &OrderEntries, words: &[Option<u32>], begin: u32, end: u32) -> OrderEntries {
    let mut class_entries = OrderEntries::new(entries.width);
    for index in 0..entries.len() {
        let ngram: Option<Vec<u32>> = entries.ngram(index).iter().map(|&id| words[id as usize]).collect();
        let Some(ngram) = ngram else { continue };
        // `<s>` must be first and `</s>` last.
        if ngram[1..].contains(&begin) || ngram[..ngram.len() - 1].contains(&end) {
            continue;
        }
        class_entries.push(ngram, entries.log10_probs[index], entries.log10_backoffs[index]);
    }
    class_entries.sorted().0
}

/// N-grams that are states.
struct Contexts<'a> {
    orders: &'a [OrderEntries],
    /// By order and n-gram: its continuations in the next order.
    continuations: Vec<Vec<Range<usize>>>,
    /// By order and n-gram: its state, if it is one; the longest n-grams are none.
    states: Vec<Vec<Option<u32>>>,
}

impl<'a> Contexts<'a> {
    fn new(orders: &'a [OrderEntries], end: u32) -> Self {
        let mut last_state = EMPTY_CONTEXT;
        let mut contexts = Self { orders, continuations: Vec::new(), states: Vec::new() };
        for (shorter, longer) in orders.iter().zip(&orders[1..]) {
            let ranges = continuations(&shorter.ids, shorter.width, &longer.ids);
            let state = |(context, range): (usize, &Range<usize>)| {
                // An n-gram without continuations and weight is equivalent to its suffix.
                let has_weight =
                    shorter.log10_backoffs[context] != 0.0 && !shorter.ngram(context).contains(&end);
                (has_weight || !range.is_empty()).then(|| {
                    last_state += 1;
                    last_state
                })
            };
            contexts.states.push(ranges.iter().enumerate().map(state).collect());
            contexts.continuations.push(ranges);
        }
        contexts
    }

    /// State of a history: its longest suffix that is a state.
    fn state_after(&self, history: &[u32]) -> u32 {
        let longest = history.len().min(self.states.len());
        let state_of_length = |length: usize| {
            let index = self.orders[length - 1].find(&history[history.len() - length..])?;
            self.states[length - 1][index]
        };
        (1..=longest).rev().find_map(state_of_length).unwrap_or(EMPTY_CONTEXT)
    }
}

#[cfg(test)]
mod tests;
