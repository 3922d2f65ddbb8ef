//! A word n-gram for models whose tokens are parts of words.
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::state_pairs::Pairs;
use super::{Error, Ngram, NgramTable, OutOfVocabulary, Result, vocabulary};
use crate::Scorer;

/// Marks word beginnings in tokens.
const MARK: char = '\u{2581}';
/// The node of no open word.
const ROOT: u32 = 0;

/// How [`WordNgram`] scores what it knows in part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WordNgramOptions {
    /// Added for each character of a word that is not in the lexicon, beside the probability of `<unk>`. Usually negative; finite.
    pub unknown_character: f32,
    /// A beginning with so many words or fewer is scored by the best of their n-gram probabilities, others by the best 1-gram.
    pub exact: usize,
    /// Most pairs (place in a word, context) that are kept, about 40 bytes each; see [`WordNgram::forgotten`].
    pub pairs: usize,
}

impl Default for WordNgramOptions {
    fn default() -> Self {
        Self { unknown_character: 0.0, exact: 1, pairs: 1 << 22 }
    }
}

/// A word n-gram over class ids of tokens that are parts of words: characters with a space between words, or pieces of which
/// those that begin a word have the mark U+2581.
///
/// The lexicon is a trie over the characters of the words that tokens can spell, so that every way to cut a word into tokens leads to it. Its
/// state is a place in the trie and a context of the n-gram. Within a word, a token's score is the difference of what its end and
/// its start promise: the best log-probability of the words that can follow (by their 1-grams, so that a context does not matter while
/// many are left; exactly when few are left). The sum over a word is its log p(w | h), whatever way it was cut.
///
/// A word outside of the lexicon costs `<unk>` once and [`WordNgramOptions::unknown_character`] for each of its characters, from the token on that
/// leaves the trie. [`finish`](crate::Scorer::finish) closes the last word and adds `</s>`. Spaces one after another count as one.
///
/// A special word such as `<unk>` or `[noise]` is one label and one word: with the probability of its name, or that of `<unk>` if the
/// table does not list it, without a penalty for its characters.
///
/// States are computed, not kept, while places x contexts fit into 32 bits. Beyond that they are kept when they are first met,
/// [`WordNgramOptions::pairs`] at most, behind a lock; scores never depend on which thread met one first, unless that limit is reached.
#[derive(Debug)]
pub struct WordNgram {
    /// Over the lexicon.
    ngram: Ngram,
    nodes: Vec<WordNode>,
    tokens: Vec<WordToken>,
    /// Of each node, and of the unknown word.
    arcs: Vec<u32>,
    arc_class: Vec<u32>,
    arc_node: Vec<u32>,
    /// Where a token without the mark begins a word, which it can where none is open.
    bare: u32,
    pairs: Pairs,
    options: WordNgramOptions,
}

/// A place in the lexicon.
#[derive(Debug, Clone)]
struct WordNode {
    /// Characters from the root, without the mark.
    depth: u32,
    /// The word that ends here.
    word: Option<u32>,
    /// The words that begin so, in the order of the lexicon.
    words: Range<u32>,
    /// Their best 1-gram.
    best: f32,
}

/// What a class does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WordKind {
    /// Nothing.
    Nameless,
    /// Ends a word.
    Space,
    /// Ends a word and begins another.
    Begins,
    /// Begins a word if none is open.
    Inside,
    /// Ends a word and is another: this one of the lexicon, or `<unk>`.
    Special(Option<u32>),
}

#[derive(Debug, Clone)]
struct WordToken {
    kind: WordKind,
    /// Characters, without the mark.
    length: u32,
}

impl WordNgram {
    /// A scorer of a table of words; `names` are those of the classes as the tokenizer has them, empty for a class that is no label,
    /// such as the blank.
    ///
    /// Memory: about 60 bytes a node of the trie and 8 bytes for each place at which a token fits into it, beside the n-gram.
    ///
    /// # Errors
    /// [`Error::NoBoundary`] if no token has the mark U+2581 and none is a space: for words as tokens [`Ngram`] serves;
    /// [`Error::NoToken`] if tokens can spell no word of the table; [`Error::Name`] as [`Ngram::new`]; [`Error::Option`] for a penalty
    /// that is not finite.
    ///
    /// ```
    /// use decoding::{Scorer, ngram::{NgramTable, WordNgram, WordNgramOptions}};
    ///
    /// let text = "\\data\\\nngram 1=3\n\\1-grams:\n-0.5 at\n-0.75 a\n-1 </s>\n\\end\\";
    /// let words = WordNgram::new(&NgramTable::read(text.as_bytes())?, &["a", "t", " ", ""], WordNgramOptions::default())?;
    /// let (a, state) = words.step(words.start(), 0);
    /// let (t, state) = words.step(state, 1);
    /// assert!((a + t + words.finish(state) - -1.5 * 10f32.ln()).abs() < 1e-6);
    /// # Ok::<(), decoding::ngram::Error>(())
    /// ```
    pub fn new<S: AsRef<str>>(table: &NgramTable, names: &[S], options: WordNgramOptions) -> Result<Self> {
        Self::with_special_words(table, names, &[], options)
    }

    /// The same for a model some of whose classes are special words, each of which is a word by itself.
    ///
    /// # Errors
    /// As [`WordNgram::new`].
    pub fn with_special_words<S: AsRef<str>>(
        table: &NgramTable,
        names: &[S],
        special: &[u32],
        options: WordNgramOptions,
    ) -> Result<Self> {
        if !options.unknown_character.is_finite() {
            let found = options.unknown_character.to_string();
            return Err(Error::Option {
                option: "unknown_character",
                expected: "a finite number".into(),
                found,
            });
        }
        vocabulary::ids(names)?;
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        let marked = names.iter().any(|name| name.starts_with(MARK));
        if !marked && !names.contains(&" ") {
            return Err(Error::NoBoundary);
        }
        let mut tokens: Vec<WordToken> = names.iter().map(|name| WordToken::new(name, marked)).collect();
        let classes: HashMap<&str, u32> =
            names.iter().copied().zip(0..).filter(|(name, _)| !name.is_empty()).collect();
        let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let lexicon = lexicon(table, &classes, marked, longest);
        if lexicon.is_empty() {
            return Err(Error::NoToken { found: table.words().len() });
        }
        for &class in special {
            let Some(token) = tokens.get_mut(class as usize) else { continue };
            let word = lexicon.binary_search_by(|word| word.as_str().cmp(names[class as usize]));
            token.kind = WordKind::Special(word.ok().map(|at| at as u32));
        }
        let words: Vec<&str> =
            lexicon.iter().map(|word| word.strip_prefix(MARK).filter(|_| marked).unwrap_or(word)).collect();
        let ngram = Ngram::new(table, &words, OutOfVocabulary::Ignore)?;
        let mut trie = Trie { nodes: Vec::new(), arcs: Vec::new() };
        trie.grow(&lexicon, &ngram, &classes, marked, longest);
        trie.arcs.sort_unstable();
        let unknown = trie.nodes.len() as u32;
        let mut arcs = vec![0; unknown as usize + 2];
        trie.arcs.iter().for_each(|&(from, ..)| arcs[from as usize + 1] += 1);
        (1..arcs.len()).for_each(|at| arcs[at] += arcs[at - 1]);
        Ok(Self {
            pairs: Pairs::new(unknown + 1, ngram.states() as u32, options.pairs),
            arc_class: trie.arcs.iter().map(|arc| arc.1).collect(),
            arc_node: trie.arcs.iter().map(|arc| arc.2).collect(),
            nodes: trie.nodes,
            arcs,
            // All words begin with the mark, which is the first node after the root.
            bare: u32::from(marked),
            ngram,
            tokens,
            options,
        })
    }

    /// Number of words in the lexicon: those that tokens can spell.
    pub fn words(&self) -> usize {
        self.ngram.word.len()
    }

    /// How many times a context was forgotten because there was no room for one more pair: the words after it were then
    /// scored by their 1-grams. 0 as long as places x contexts fit into 32 bits.
    pub fn forgotten(&self) -> u64 {
        self.pairs.refused()
    }

    /// The node within a word that is unknown for sure.
    fn unknown(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// What has been given for the word so far.
    fn promise(&self, node: u32, context: u32) -> f32 {
        let Some(place) = self.nodes.get(node as usize).filter(|_| node != ROOT) else { return 0.0 };
        if place.words.len() <= self.options.exact {
            let score = |word| self.ngram.follow(context, self.ngram.word[word as usize]).0;
            return place.words.clone().map(score).fold(f32::NEG_INFINITY, f32::max);
        }
        place.best
    }

    /// Ends the open word, if there is one: its score, and the context after it.
    fn close(&self, node: u32, context: u32) -> (f32, u32) {
        let Some(place) = self.nodes.get(node as usize).filter(|_| node != ROOT) else {
            return (0.0, context);
        };
        let promised = self.promise(node, context);
        match place.word {
            Some(word) => {
                let (score, after) = self.ngram.follow(context, self.ngram.word[word as usize]);
                (score - promised, after)
            }
            None => {
                let (score, after) = self.ngram.follow_unknown(context);
                (score + self.options.unknown_character * place.depth as f32 - promised, after)
            }
        }
    }

    /// A special word after the open word has ended: its score, and the context after it.
    fn follow_special(&self, word: Option<u32>, context: u32) -> (f32, u32) {
        match word {
            Some(word) => self.ngram.follow(context, self.ngram.word[word as usize]),
            None => self.ngram.follow_unknown(context),
        }
    }

    /// Goes on within a word: score, node and context.
    fn advance(&self, node: u32, context: u32, class: u32) -> (f32, u32, u32) {
        let bare = node == ROOT && self.tokens[class as usize].kind == WordKind::Inside;
        let arcs = self.arcs_of(if bare { self.bare } else { node });
        match self.arc_class[arcs.clone()].binary_search(&class) {
            Ok(at) => {
                let to = self.arc_node[arcs.start + at];
                (self.promise(to, context) - self.promise(node, context), to, context)
            }
            Err(_) => {
                let (left, after) = self.leave(node, context);
                let length = self.tokens[class as usize].length as f32;
                (left + self.options.unknown_character * length, self.unknown(), after)
            }
        }
    }

    /// The word turns out to be unknown: what that costs but for the characters of the token, and the context after it.
    fn leave(&self, node: u32, context: u32) -> (f32, u32) {
        let Some(place) = self.nodes.get(node as usize) else { return (0.0, context) };
        let (score, after) = self.ngram.follow_unknown(context);
        let characters = self.options.unknown_character * place.depth as f32;
        (score + characters - self.promise(node, context), after)
    }

    fn arcs_of(&self, node: u32) -> Range<usize> {
        self.arcs[node as usize] as usize..self.arcs[node as usize + 1] as usize
    }
}

impl Scorer for WordNgram {
    fn start(&self) -> u32 {
        self.pairs.number(ROOT, self.ngram.start)
    }

    fn step(&self, state: u32, class: u32) -> (f32, u32) {
        let (node, context) = self.pairs.pair(state);
        match self.tokens.get(class as usize).map_or(WordKind::Nameless, |token| token.kind) {
            WordKind::Nameless => (0.0, state),
            WordKind::Space => {
                let (score, context) = self.close(node, context);
                (score, self.pairs.number(ROOT, context))
            }
            WordKind::Begins => {
                let (closed, context) = self.close(node, context);
                let (score, node, context) = self.advance(ROOT, context, class);
                (closed + score, self.pairs.number(node, context))
            }
            WordKind::Inside => {
                let (score, node, context) = self.advance(node, context, class);
                (score, self.pairs.number(node, context))
            }
            WordKind::Special(word) => {
                let (closed, context) = self.close(node, context);
                let (score, context) = self.follow_special(word, context);
                (closed + score, self.pairs.number(ROOT, context))
            }
        }
    }

    fn add_scores(&self, state: u32, weight: f32, scores: &mut [f32]) {
        let (node, context) = self.pairs.pair(state);
        let (closed, after) = self.close(node, context);
        // Within the word, and in a new one: what leaving costs, what was given, and the arcs that are still ahead.
        let rest = |node, context| (self.leave(node, context).0, self.promise(node, context));
        let ((left, given), (left_new, given_new)) = (rest(node, context), rest(ROOT, after));
        let mut inside = self.arcs_of(if node == ROOT { self.bare } else { node });
        let mut begins = self.arcs_of(ROOT);
        for (class, (score, token)) in (0..).zip(scores.iter_mut().zip(&self.tokens)) {
            let characters = self.options.unknown_character * token.length as f32;
            let arc = |arcs: &mut Range<usize>, context, left, given| {
                while arcs.start < arcs.end && self.arc_class[arcs.start] < class {
                    arcs.start += 1;
                }
                match arcs.start < arcs.end && self.arc_class[arcs.start] == class {
                    true => self.promise(self.arc_node[arcs.start], context) - given,
                    false => left + characters,
                }
            };
            *score += match token.kind {
                WordKind::Nameless => continue,
                WordKind::Space => weight * closed,
                WordKind::Begins => weight * (closed + arc(&mut begins, after, left_new, given_new)),
                WordKind::Inside => weight * arc(&mut inside, context, left, given),
                WordKind::Special(word) => weight * (closed + self.follow_special(word, after).0),
            };
        }
    }

    fn finish(&self, state: u32) -> f32 {
        let (node, context) = self.pairs.pair(state);
        let (closed, context) = self.close(node, context);
        closed + self.ngram.finish(context)
    }
}

impl WordToken {
    fn new(name: &str, marked: bool) -> Self {
        let begins = name.starts_with(MARK);
        let kind = match name {
            "" => WordKind::Nameless,
            " " if !marked => WordKind::Space,
            _ if begins => WordKind::Begins,
            _ => WordKind::Inside,
        };
        Self { kind, length: (name.chars().count() - usize::from(begins)) as u32 }
    }
}

/// The table's words that tokens can spell, with the mark if tokens have it, sorted.
fn lexicon(table: &NgramTable, classes: &HashMap<&str, u32>, marked: bool, longest: usize) -> Vec<String> {
    let own = [vocabulary::BEGIN, vocabulary::END, vocabulary::UNKNOWN];
    let spelled = |word: &String| if marked { format!("{MARK}{word}") } else { word.clone() };
    let listed: HashSet<&str> =
        table.orders[0].ids.iter().map(|&id| table.words[id as usize].as_str()).collect();
    let words = listed.into_iter().filter(|word| !own.contains(word)).map(str::to_owned);
    let mut words: Vec<String> =
        words.map(|word| spelled(&word)).filter(|word| can_spell(word, classes, longest)).collect();
    // By characters, as the trie is: UTF-8 sorts alike.
    words.sort_unstable();
    words
}

/// Whether a word is a sequence of tokens.
fn can_spell(word: &str, classes: &HashMap<&str, u32>, longest: usize) -> bool {
    let ends: Vec<usize> = word.char_indices().map(|(at, _)| at).chain([word.len()]).collect();
    let mut reached = vec![false; ends.len()];
    reached[0] = true;
    for to in 1..ends.len() {
        let fits = |from: usize| reached[from] && classes.contains_key(&word[ends[from]..ends[to]]);
        reached[to] = (to.saturating_sub(longest)..to).any(fits);
    }
    reached[ends.len() - 1]
}

struct Trie {
    nodes: Vec<WordNode>,
    /// From a node, by a class, to a node.
    arcs: Vec<(u32, u32, u32)>,
}

impl Trie {
    fn grow(
        &mut self,
        lexicon: &[String],
        ngram: &Ngram,
        classes: &HashMap<&str, u32>,
        marked: bool,
        longest: usize,
    ) {
        let node = |depth| WordNode { depth, word: None, words: 0..0, best: f32::NEG_INFINITY };
        self.nodes.push(node(0));
        let mut before = "";
        // The nodes from the root to the end of the word before.
        let mut path = vec![ROOT];
        for (id, word) in (0..).zip(lexicon) {
            let common = before.chars().zip(word.chars()).take_while(|(a, b)| a == b).count();
            path.truncate(common + 1);
            let ends: Vec<usize> = word.char_indices().map(|(at, _)| at).chain([word.len()]).collect();
            for to in common + 1..ends.len() {
                let new = self.nodes.len() as u32;
                let depth = (to - usize::from(marked)) as u32;
                self.nodes.push(WordNode { words: id..id, ..node(depth) });
                for from in to.saturating_sub(longest)..to {
                    if let Some(&class) = classes.get(&word[ends[from]..ends[to]]) {
                        self.arcs.push((path[from], class, new));
                    }
                }
                path.push(new);
            }
            let score = ngram.row[ngram.word[id as usize] as usize];
            for &at in &path {
                let place = &mut self.nodes[at as usize];
                place.words.end = id + 1;
                place.best = place.best.max(score);
            }
            self.nodes[path[path.len() - 1] as usize].word = Some(id);
            before = word;
        }
    }
}

#[cfg(test)]
mod tests;
