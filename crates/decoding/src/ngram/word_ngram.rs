//! `WordNgram`: word n-grams for models whose tokens are parts of words.
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::state_pairs::StatePairs;
use super::{Error, Ngram, NgramTable, OutOfVocabulary, Result, vocabulary};
use crate::Scorer;

/// Mark at the beginning of a word in tokens, as in SentencePiece.
const WORD_MARK: char = '\u{2581}';
/// Node without an open word.
const ROOT: u32 = 0;

/// Options of [`WordNgram`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WordNgramOptions {
    /// Score per character of a word outside the lexicon.
    ///
    /// It is added to the score of `<unk>`. Finite, usually negative.
    pub unknown_character: f32,
    /// Largest number of completions of a prefix for exact look-ahead.
    ///
    /// Such prefixes are scored by the best n-gram probability of their completions, others by the
    /// best 1-gram.
    pub exact_completions: usize,
    /// Most registered pairs (node, context), about 40 bytes each; see
    /// [`WordNgram::dropped_contexts`].
    pub max_pairs: usize,
}

impl Default for WordNgramOptions {
    fn default() -> Self {
        Self { unknown_character: 0.0, exact_completions: 1, max_pairs: 1 << 22 }
    }
}

/// A word n-gram that scores tokens which are parts of words.
///
/// Tokens are characters with a space between words, or pieces with the mark U+2581 at the
/// beginning of a word. The lexicon is a trie over the characters of the words that tokens can
/// spell, so that every segmentation of a word into tokens reaches it. A state is a node of the
/// trie and a context of the n-gram. Within a word, the score of a token is the difference of the
/// look-ahead scores at its end and its start: the best log-probability of the words that complete
/// the prefix, by the n-gram if they are few and by 1-grams, independent of the context, otherwise.
/// The sum over a word is log p(w | h) for every segmentation.
///
/// A word outside the lexicon costs `<unk>` once and [`WordNgramOptions::unknown_character`] for
/// each of its characters, from the token that leaves the trie. [`finish`](crate::Scorer::finish)
/// ends the last word and adds `</s>`. Repeated spaces count as one.
///
/// A special word such as `<unk>` or `[noise]` is one label and one word, with the probability of
/// its name, or that of `<unk>` if the table does not list it, and without a penalty per character.
///
/// States are computed if nodes x contexts fit into 32 bits. Otherwise they are registered on first
/// use, at most [`WordNgramOptions::max_pairs`], behind a lock; scores do not depend on the order
/// of threads unless that limit is reached.
#[derive(Debug)]
pub struct WordNgram {
    /// N-gram over the lexicon.
    ngram: Ngram,
    /// Prefixes of the words of the lexicon.
    nodes: Vec<WordNode>,
    /// Role of each class.
    tokens: Vec<WordToken>,
    /// Offset of the arcs of each node, and of the unknown word.
    arc_offsets: Vec<u32>,
    /// Class of each arc, ascending within a node.
    arc_classes: Vec<u32>,
    /// Node after each arc.
    arc_nodes: Vec<u32>,
    /// Node before the first character of a word without the mark.
    unmarked_root: u32,
    pairs: StatePairs,
    options: WordNgramOptions,
}

/// A prefix of words of the lexicon.
#[derive(Debug, Clone)]
struct WordNode {
    /// Number of characters, without the mark.
    depth: u32,
    /// The word that equals the prefix.
    word: Option<u32>,
    /// Words with the prefix, in the order of the lexicon.
    words: Range<u32>,
    /// Best 1-gram score of these words.
    best_score: f32,
}

/// Role of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenRole {
    /// Not a label.
    Nameless,
    /// Ends a word.
    Space,
    /// Ends a word and begins another.
    BeginsWord,
    /// Continues a word, or begins one if none is open.
    InsideWord,
    /// Ends a word and is another: a word of the lexicon, or `<unk>`.
    Special(Option<u32>),
}

/// Role and length of a token.
#[derive(Debug, Clone)]
struct WordToken {
    role: TokenRole,
    /// Number of characters, without the mark.
    length: u32,
}

impl WordNgram {
    /// Creates the scorer of a table of words.
    ///
    /// `names` are the tokenizer's names of the classes, empty for a class that is not a label,
    /// such as the blank. Memory: about 60 bytes per node of the trie and 8 bytes per arc, in
    /// addition to the n-gram.
    ///
    /// # Errors
    /// [`Error::NoBoundary`] if no token has the mark U+2581 and none is a space (use [`Ngram`] if
    /// tokens are words); [`Error::NoToken`] if tokens can spell no word of the table;
    /// [`Error::Name`] as in [`Ngram::new`]; [`Error::Option`] for a penalty that is not finite.
    ///
    /// ```
    /// use decoding::{Scorer, ngram::{NgramTable, WordNgram, WordNgramOptions}};
    ///
    /// let text = "\\data\\\nngram 1=3\n\\1-grams:\n-0.5 at\n-0.75 a\n-1 </s>\n\\end\\";
    /// let table = NgramTable::read(text.as_bytes())?;
    /// let options = WordNgramOptions::default();
    /// let words = WordNgram::new(&table, &["a", "t", " ", ""], options)?;
    /// let (a, state) = words.step(words.start(), 0);
    /// let (t, state) = words.step(state, 1);
    /// assert!((a + t + words.finish(state) - -1.5 * 10f32.ln()).abs() < 1e-6);
    /// # Ok::<(), decoding::ngram::Error>(())
    /// ```
    pub fn new<S: AsRef<str>>(table: &NgramTable, names: &[S], options: WordNgramOptions) -> Result<Self> {
        Self::with_special_words(table, names, &[], options)
    }

    /// Creates the scorer for a model with special words.
    ///
    /// Each class in `special` is a complete word.
    ///
    /// # Errors
    /// Those of [`WordNgram::new`].
    pub fn with_special_words<S: AsRef<str>>(
        table: &NgramTable,
        names: &[S],
        special: &[u32],
        options: WordNgramOptions,
    ) -> Result<Self> {
        if !options.unknown_character.is_finite() {
            let penalty = options.unknown_character.to_string();
            return Err(Error::Option {
                option: "unknown_character",
                expected: "a finite number".into(),
                found: penalty,
            });
        }
        vocabulary::ids(names)?;
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        let has_mark = names.iter().any(|name| name.starts_with(WORD_MARK));
        if !has_mark && !names.contains(&" ") {
            return Err(Error::NoBoundary);
        }
        // Roles of the tokens, and the words that they can spell.
        let mut tokens: Vec<WordToken> = names.iter().map(|name| WordToken::new(name, has_mark)).collect();
        let classes: HashMap<&str, u32> =
            names.iter().copied().zip(0..).filter(|(name, _)| !name.is_empty()).collect();
        let longest_name = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let lexicon = lexicon(table, &classes, has_mark, longest_name);
        if lexicon.is_empty() {
            return Err(Error::NoToken { found: table.words().len() });
        }
        for &class in special {
            let Some(token) = tokens.get_mut(class as usize) else { continue };
            let word = lexicon.binary_search_by(|word| word.as_str().cmp(names[class as usize]));
            token.role = TokenRole::Special(word.ok().map(|index| index as u32));
        }
        let words: Vec<&str> = lexicon
            .iter()
            .map(|word| word.strip_prefix(WORD_MARK).filter(|_| has_mark).unwrap_or(word))
            .collect();
        // N-gram and trie of the lexicon.
        let ngram = Ngram::new(table, &words, OutOfVocabulary::Ignore)?;
        let mut trie = LexiconTrie { nodes: Vec::new(), arcs: Vec::new() };
        trie.insert_words(&lexicon, &ngram, &classes, has_mark, longest_name);
        trie.arcs.sort_unstable();
        let unknown = trie.nodes.len() as u32;
        let mut arc_offsets = vec![0; unknown as usize + 2];
        trie.arcs.iter().for_each(|arc| arc_offsets[arc.node as usize + 1] += 1);
        (1..arc_offsets.len()).for_each(|node| arc_offsets[node] += arc_offsets[node - 1]);
        Ok(Self {
            pairs: StatePairs::new(unknown + 1, ngram.states() as u32, options.max_pairs),
            arc_classes: trie.arcs.iter().map(|arc| arc.class).collect(),
            arc_nodes: trie.arcs.iter().map(|arc| arc.next_node).collect(),
            nodes: trie.nodes,
            arc_offsets,
            // All words begin with the mark, the first node after the root.
            unmarked_root: u32::from(has_mark),
            ngram,
            tokens,
            options,
        })
    }

    /// Number of times a context was dropped as [`WordNgramOptions::max_pairs`] was reached.
    ///
    /// The words after it were scored by 1-grams. 0 if nodes x contexts fit into 32 bits.
    pub fn dropped_contexts(&self) -> u64 {
        self.pairs.rejected_lookups()
    }

    /// Node within a word that is not in the lexicon.
    fn unknown_word(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// Look-ahead score of a prefix: the best score of its completions.
    fn look_ahead(&self, node: u32, context: u32) -> f32 {
        let Some(prefix) = self.nodes.get(node as usize).filter(|_| node != ROOT) else { return 0.0 };
        if prefix.words.len() <= self.options.exact_completions {
            let score = |word| self.ngram.follow(context, self.ngram.word_of_class[word as usize]).0;
            return prefix.words.clone().map(score).fold(f32::NEG_INFINITY, f32::max);
        }
        prefix.best_score
    }

    /// Ends the open word, if any; returns its score and the next context.
    fn end_word(&self, node: u32, context: u32) -> (f32, u32) {
        let Some(prefix) = self.nodes.get(node as usize).filter(|_| node != ROOT) else {
            return (0.0, context);
        };
        let look_ahead = self.look_ahead(node, context);
        match prefix.word {
            Some(word) => {
                let (score, after) = self.ngram.follow(context, self.ngram.word_of_class[word as usize]);
                (score - look_ahead, after)
            }
            None => {
                let (score, after) = self.ngram.follow_unknown(context);
                (score + self.options.unknown_character * prefix.depth as f32 - look_ahead, after)
            }
        }
    }

    /// Score of a special word after a word, and the next context.
    fn follow_special(&self, word: Option<u32>, context: u32) -> (f32, u32) {
        match word {
            Some(word) => self.ngram.follow(context, self.ngram.word_of_class[word as usize]),
            None => self.ngram.follow_unknown(context),
        }
    }

    /// Advances within a word; returns score, node and context.
    fn advance(&self, node: u32, context: u32, class: u32) -> (f32, u32, u32) {
        let is_unmarked_start = node == ROOT && self.tokens[class as usize].role == TokenRole::InsideWord;
        let arcs = self.arcs_of(if is_unmarked_start { self.unmarked_root } else { node });
        match self.arc_classes[arcs.clone()].binary_search(&class) {
            Ok(offset) => {
                let next = self.arc_nodes[arcs.start + offset];
                (self.look_ahead(next, context) - self.look_ahead(node, context), next, context)
            }
            Err(_) => {
                let (leave_score, after) = self.leave_lexicon(node, context);
                let length = self.tokens[class as usize].length as f32;
                (leave_score + self.options.unknown_character * length, self.unknown_word(), after)
            }
        }
    }

    /// Leaves the lexicon within a word; returns the score without the new token, and the context.
    fn leave_lexicon(&self, node: u32, context: u32) -> (f32, u32) {
        let Some(prefix) = self.nodes.get(node as usize) else { return (0.0, context) };
        let (score, after) = self.ngram.follow_unknown(context);
        let characters = self.options.unknown_character * prefix.depth as f32;
        (score + characters - self.look_ahead(node, context), after)
    }

    /// Arcs of a node.
    fn arcs_of(&self, node: u32) -> Range<usize> {
        self.arc_offsets[node as usize] as usize..self.arc_offsets[node as usize + 1] as usize
    }
}

impl Scorer for WordNgram {
    fn start(&self) -> u32 {
        self.pairs.number(ROOT, self.ngram.start_state)
    }

    fn step(&self, state: u32, class: u32) -> (f32, u32) {
        let (node, context) = self.pairs.pair(state);
        match self.tokens.get(class as usize).map_or(TokenRole::Nameless, |token| token.role) {
            TokenRole::Nameless => (0.0, state),
            TokenRole::Space => {
                let (score, context) = self.end_word(node, context);
                (score, self.pairs.number(ROOT, context))
            }
            TokenRole::BeginsWord => {
                let (end_score, context) = self.end_word(node, context);
                let (score, node, context) = self.advance(ROOT, context, class);
                (end_score + score, self.pairs.number(node, context))
            }
            TokenRole::InsideWord => {
                let (score, node, context) = self.advance(node, context, class);
                (score, self.pairs.number(node, context))
            }
            TokenRole::Special(word) => {
                let (end_score, context) = self.end_word(node, context);
                let (score, context) = self.follow_special(word, context);
                (end_score + score, self.pairs.number(ROOT, context))
            }
        }
    }

    fn add_scores(&self, state: u32, weight: f32, scores: &mut [f32]) {
        let (node, context) = self.pairs.pair(state);
        let (end_score, after) = self.end_word(node, context);
        // Within the word and in a new one: score of leaving the lexicon, look-ahead so far,
        // remaining arcs.
        let scores_of = |node, context| (self.leave_lexicon(node, context).0, self.look_ahead(node, context));
        let ((leave_score, look_ahead), (leave_score_after, look_ahead_after)) =
            (scores_of(node, context), scores_of(ROOT, after));
        let mut inside_arcs = self.arcs_of(if node == ROOT { self.unmarked_root } else { node });
        let mut begin_arcs = self.arcs_of(ROOT);
        for (class, (score, token)) in (0..).zip(scores.iter_mut().zip(&self.tokens)) {
            let characters = self.options.unknown_character * token.length as f32;
            let score_of_arc = |arcs: &mut Range<usize>, context, leave_score, look_ahead| {
                while arcs.start < arcs.end && self.arc_classes[arcs.start] < class {
                    arcs.start += 1;
                }
                match arcs.start < arcs.end && self.arc_classes[arcs.start] == class {
                    true => self.look_ahead(self.arc_nodes[arcs.start], context) - look_ahead,
                    false => leave_score + characters,
                }
            };
            *score += match token.role {
                TokenRole::Nameless => continue,
                TokenRole::Space => weight * end_score,
                TokenRole::BeginsWord => {
                    weight
                        * (end_score
                            + score_of_arc(&mut begin_arcs, after, leave_score_after, look_ahead_after))
                }
                TokenRole::InsideWord => {
                    weight * score_of_arc(&mut inside_arcs, context, leave_score, look_ahead)
                }
                TokenRole::Special(word) => weight * (end_score + self.follow_special(word, after).0),
            };
        }
    }

    fn finish(&self, state: u32) -> f32 {
        let (node, context) = self.pairs.pair(state);
        let (end_score, context) = self.end_word(node, context);
        end_score + self.ngram.finish(context)
    }
}

impl WordToken {
    fn new(name: &str, has_mark: bool) -> Self {
        let begins = name.starts_with(WORD_MARK);
        let role = match name {
            "" => TokenRole::Nameless,
            " " if !has_mark => TokenRole::Space,
            _ if begins => TokenRole::BeginsWord,
            _ => TokenRole::InsideWord,
        };
        Self { role, length: (name.chars().count() - usize::from(begins)) as u32 }
    }
}

/// Returns the sorted words of the table that tokens can spell.
///
/// They begin with the mark if tokens have it.
fn lexicon(
    table: &NgramTable,
    classes: &HashMap<&str, u32>,
    has_mark: bool,
    longest_name: usize,
) -> Vec<String> {
    let reserved = [vocabulary::BEGIN, vocabulary::END, vocabulary::UNKNOWN];
    let with_mark = |word: &String| if has_mark { format!("{WORD_MARK}{word}") } else { word.clone() };
    let listed: HashSet<&str> =
        table.orders[0].ids.iter().map(|&id| table.words[id as usize].as_str()).collect();
    let words = listed.into_iter().filter(|word| !reserved.contains(word)).map(str::to_owned);
    let mut words: Vec<String> =
        words.map(|word| with_mark(&word)).filter(|word| can_spell(word, classes, longest_name)).collect();
    // UTF-8 sorts by characters, as the trie requires.
    words.sort_unstable();
    words
}

/// Returns whether a word is a sequence of tokens.
fn can_spell(word: &str, classes: &HashMap<&str, u32>, longest_name: usize) -> bool {
    let char_offsets: Vec<usize> =
        word.char_indices().map(|(offset, _)| offset).chain([word.len()]).collect();
    // Whether tokens can spell the first characters, for each number of them.
    let mut can_spell_prefix = vec![false; char_offsets.len()];
    can_spell_prefix[0] = true;
    for end in 1..char_offsets.len() {
        let ends_with_token = |begin: usize| {
            can_spell_prefix[begin] && classes.contains_key(&word[char_offsets[begin]..char_offsets[end]])
        };
        can_spell_prefix[end] = (end.saturating_sub(longest_name)..end).any(ends_with_token);
    }
    can_spell_prefix[char_offsets.len() - 1]
}

/// Trie over the characters of the lexicon, whose arcs are tokens.
struct LexiconTrie {
    nodes: Vec<WordNode>,
    arcs: Vec<LexiconArc>,
}

/// An arc from a node over a token; arcs are sorted by node, then by class.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct LexiconArc {
    node: u32,
    class: u32,
    next_node: u32,
}

impl LexiconTrie {
    /// Adds the sorted words of the lexicon.
    fn insert_words(
        &mut self,
        lexicon: &[String],
        ngram: &Ngram,
        classes: &HashMap<&str, u32>,
        has_mark: bool,
        longest_name: usize,
    ) {
        let node = |depth| WordNode { depth, word: None, words: 0..0, best_score: f32::NEG_INFINITY };
        self.nodes.push(node(0));
        let mut previous = "";
        // Nodes from the root to the end of the previous word.
        let mut path = vec![ROOT];
        for (id, word) in (0..).zip(lexicon) {
            let common = previous.chars().zip(word.chars()).take_while(|(a, b)| a == b).count();
            path.truncate(common + 1);
            let char_offsets: Vec<usize> =
                word.char_indices().map(|(offset, _)| offset).chain([word.len()]).collect();
            // New nodes, and the arcs that lead to them.
            for end in common + 1..char_offsets.len() {
                let new_node = self.nodes.len() as u32;
                let depth = (end - usize::from(has_mark)) as u32;
                self.nodes.push(WordNode { words: id..id, ..node(depth) });
                for begin in end.saturating_sub(longest_name)..end {
                    if let Some(&class) = classes.get(&word[char_offsets[begin]..char_offsets[end]]) {
                        self.arcs.push(LexiconArc { node: path[begin], class, next_node: new_node });
                    }
                }
                path.push(new_node);
            }
            // Words and best score of each prefix.
            let score = ngram.unigram_scores[ngram.word_of_class[id as usize] as usize];
            for &node in &path {
                let prefix = &mut self.nodes[node as usize];
                prefix.words.end = id + 1;
                prefix.best_score = prefix.best_score.max(score);
            }
            self.nodes[path[path.len() - 1] as usize].word = Some(id);
            previous = word;
        }
    }
}

#[cfg(test)]
mod tests;
