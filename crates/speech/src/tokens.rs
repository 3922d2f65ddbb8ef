//! Text to label ids and back, on top of the `tokenizers` crate.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};

use serde::{Deserialize, Serialize};
use tokenizers::decoders::fuse::Fuse;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::{
    Model, ModelWrapper, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
    SplitDelimiterBehavior,
};

mod bpe;
mod kind;
mod special;
mod unigram;

pub use special::find_bracketed;

use crate::features::setting;
use crate::sentence_marks::{find_sentence_mark, strip_sentence_marks};
use crate::unicode::{UnicodeForm, decomposed};
use crate::{Error, Result};

/// What a label stands for.
///
/// In TOML and JSON the name alone in kebab case, `"inner-characters"`, and `{ bpe = { size = 500 } }`, `{ unigram = { size = 1023 } }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum TokenizerKind {
    /// A word.
    Words,
    /// A character; the space between words is one too.
    Characters,
    /// A character, where those that begin a word are apart from those within one, so that no space is needed.
    InnerCharacters,
    /// A piece of a word, found by byte-pair encoding (over characters); pieces that begin a word are apart.
    Bpe {
        /// Number of tokens to train; at least the number of different characters, word beginnings marked.
        size: usize,
    },
    /// A piece of a word, the likeliest ones by a unigram language model of pieces; pieces that begin a word are apart.
    Unigram {
        /// Number of tokens to train; at least the number of different characters, word beginnings marked.
        size: usize,
    },
}

impl TokenizerKind {
    /// Whether tokens are pieces of words, of which every character of the training text is one.
    fn has_pieces(self) -> bool {
        matches!(self, Self::Bpe { .. } | Self::Unigram { .. })
    }
}

/// Marks word beginnings in tokens.
const MARK: char = '\u{2581}';
/// First line of defence against foreign files.
const FORMAT: &str = "panda-tokens/1";

/// Settings of a tokenizer that is to be trained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizerOptions {
    /// What a label stands for.
    pub kind: TokenizerKind,
    /// Unicode form of all texts, of training and later.
    pub normalize: UnicodeForm,
    /// Words that are one label each; `None` takes all words of the form `<...>` in the training texts.
    pub special: Option<Vec<String>>,
}

impl TokenizerOptions {
    /// Texts in NFC; words of the form `<...>` are single labels.
    pub fn new(kind: TokenizerKind) -> Self {
        Self { kind, normalize: UnicodeForm::default(), special: None }
    }

    /// Checks the list of special words.
    ///
    /// # Errors
    /// A word that is empty, is there twice, is `<s>` or `</s>`, or has white space or U+2581.
    pub fn check(&self) -> Result<()> {
        special::of_list(self.special.as_deref().unwrap_or_default(), self.normalize).map(drop)
    }
}

/// A trained map between text and ids `0..size`; the blank is not its business.
///
/// White space in texts is taken as one space between words and none at the ends. Texts are converted to the tokenizer's Unicode
/// form, and sentence marks at their ends (`<s>`, `</s>`) are removed. Special words are one label each and are never cut.
#[derive(Clone)]
pub struct Tokenizer {
    kind: TokenizerKind,
    /// The ordinary tokens.
    inner: tokenizers::Tokenizer,
    /// Ids of the special words.
    special: HashMap<String, u32>,
    /// What it is rebuilt from.
    stored: StoredTokenizer,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("kind", &self.kind).field("size", &self.size()).finish()
    }
}

/// The stored form.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredTokenizer {
    format: String,
    kind: TokenizerKind,
    /// Absent in older files, whose texts were not converted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    normalize: Option<UnicodeForm>,
    /// Words that are one token each: the last tokens, or for kind words any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    special: Vec<String>,
    /// In the order of their ids.
    tokens: Vec<String>,
    /// Pairs joined by byte-pair encoding, first ones first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    merges: Vec<(String, String)>,
    /// Of each token, log-probabilities of the unigram model in 2^-20 nats.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    scores: Vec<i32>,
}

impl Tokenizer {
    /// Makes a tokenizer of the symbols of the training texts.
    ///
    /// Deterministic, whatever the order of the texts and the number of threads: words and characters are sorted; byte pairs are joined
    /// by falling count, ties by id, after the sorted characters; pieces of the unigram model are sorted by falling probability.
    /// Training may end below a `size` that the texts cannot fill; see [`Tokenizer::size`].
    ///
    /// # Errors
    /// No word in the texts; the word mark U+2581 in a text (but for words and characters); a `size` below the number of characters.
    ///
    /// ```
    /// use speech::{Tokenizer, TokenizerKind};
    /// let tokenizer = Tokenizer::train(TokenizerKind::InnerCharacters, &["a cat"])?;
    /// assert_eq!(tokenizer.size(), 4); // ▁a ▁c a t
    /// assert_eq!(tokenizer.decode(&tokenizer.encode("cat a")?)?, "cat a");
    /// # Ok::<(), speech::Error>(())
    /// ```
    pub fn train(kind: TokenizerKind, texts: &[impl AsRef<str>]) -> Result<Self> {
        Self::train_with(&TokenizerOptions::new(kind), texts)
    }

    /// [`Tokenizer::train`] with a Unicode form and special words.
    ///
    /// Special words come after the other tokens (but for words, which are sorted) and count for the `size`.
    ///
    /// # Errors
    /// Those of [`Tokenizer::train`] and [`TokenizerOptions::check`]; a special word that equals a token of the other words; `<s>` or
    /// `</s>` within a text.
    ///
    /// ```
    /// use speech::{Tokenizer, TokenizerKind, TokenizerOptions};
    /// let special = Some(vec!["[noise]".to_owned()]);
    /// let options = TokenizerOptions { special, ..TokenizerOptions::new(TokenizerKind::Characters) };
    /// let tokenizer = Tokenizer::train_with(&options, &["a [noise] b"])?;
    /// assert_eq!(tokenizer.tokens(), [" ", "a", "b", "[noise]"]);
    /// assert_eq!(tokenizer.encode("[noise] a")?, [3, 0, 1]);
    /// # Ok::<(), speech::Error>(())
    /// ```
    pub fn train_with(options: &TokenizerOptions, texts: &[impl AsRef<str>]) -> Result<Self> {
        let TokenizerOptions { kind, normalize, ref special } = *options;
        let clean = |text: &str| tidy(&normalize.apply(strip_sentence_marks(text)));
        let texts: Vec<String> =
            texts.iter().map(|text| clean(text.as_ref())).filter(|text| !text.is_empty()).collect();
        if texts.is_empty() {
            return Err(Error::NoText);
        }
        let special = special::words(special.as_deref(), normalize, &texts)?;
        let known: HashSet<&str> = special.iter().map(String::as_str).collect();
        let splitter = pre_tokenizer(kind)?;
        let mut pieces = Vec::new();
        for text in &texts {
            reject_sentence_mark(text)?;
            reject_mark(kind, text)?;
            for run in runs(kind, text, |word| known.contains(word)) {
                match run {
                    TextRun::Ordinary(text) => pieces.extend(split(&splitter, &text)?),
                    TextRun::Special(_) => {}
                }
            }
        }
        let (mut merges, mut scores, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
        match kind {
            TokenizerKind::Bpe { .. } | TokenizerKind::Unigram { .. } if pieces.is_empty() => {}
            TokenizerKind::Bpe { size } => {
                alphabet(&pieces, size, special.len())?;
                (tokens, merges) = bpe::train(&pieces, size - special.len())?;
            }
            TokenizerKind::Unigram { size } => {
                let alphabet = alphabet(&pieces, size, special.len())?;
                (tokens, scores) = unigram::train(&pieces, size - special.len(), alphabet);
            }
            TokenizerKind::Words => {
                tokens =
                    pieces.iter().chain(&special).collect::<BTreeSet<_>>().into_iter().cloned().collect();
            }
            _ => tokens = pieces.into_iter().collect::<BTreeSet<_>>().into_iter().collect(),
        }
        if kind != TokenizerKind::Words {
            let taken: HashSet<&String> = tokens.iter().collect();
            if let Some(word) = special.iter().find(|word| taken.contains(&special_token(kind, word))) {
                return Err(Error::Setting {
                    field: "special",
                    expected: "words that are no tokens of other words, such as words in brackets".into(),
                    found: format!("{word:?}, which is one"),
                });
            }
            tokens.extend(special.iter().map(|word| special_token(kind, word)));
        }
        let (format, normalize) = (FORMAT.into(), Some(normalize));
        Self::build(StoredTokenizer { format, kind, normalize, special, tokens, merges, scores })
    }

    fn build(stored: StoredTokenizer) -> Result<Self> {
        let count = stored.tokens.len();
        let ordinary = match stored.kind {
            TokenizerKind::Words => &stored.tokens,
            _ => &stored.tokens[..count - stored.special.len()],
        };
        let model: ModelWrapper = match stored.kind {
            TokenizerKind::Bpe { .. } => bpe::model(ordinary, &stored.merges)?.into(),
            TokenizerKind::Unigram { .. } if !ordinary.is_empty() => {
                unigram::model(ordinary, &stored.scores)?.into()
            }
            // The empty string never is a piece of text, so that unknown pieces are errors.
            _ => WordLevel::builder()
                .vocab(ordinary.iter().cloned().zip(0u32..).collect())
                .unk_token(String::new())
                .build()
                .map_err(library)?
                .into(),
        };
        let mut inner = tokenizers::Tokenizer::new(model);
        inner.with_pre_tokenizer(Some(pre_tokenizer(stored.kind)?));
        match stored.kind {
            // Without a decoder, tokens are joined by spaces.
            TokenizerKind::Words => {}
            TokenizerKind::Characters => {
                inner.with_decoder(Some(Fuse::new()));
            }
            _ => {
                inner.with_decoder(Some(Metaspace::new(MARK, PrependScheme::Always, true)));
            }
        }
        let ids: HashMap<&str, u32> = stored.tokens.iter().map(String::as_str).zip(0..).collect();
        let id = |word: &String| (word.clone(), ids[special_token(stored.kind, word).as_str()]);
        let special = stored.special.iter().map(id).collect();
        Ok(Self { kind: stored.kind, inner, special, stored })
    }

    /// What its labels stand for.
    pub fn kind(&self) -> TokenizerKind {
        self.kind
    }

    /// Number of ids.
    pub fn size(&self) -> usize {
        self.stored.tokens.len()
    }

    /// The tokens in the order of their ids; U+2581 marks the beginning of a word where the kind tells them apart.
    pub fn tokens(&self) -> &[String] {
        &self.stored.tokens
    }

    /// Unicode form of its texts; none for tokenizers of older checkpoints.
    pub fn unicode_form(&self) -> UnicodeForm {
        self.stored.normalize.unwrap_or(UnicodeForm::None)
    }

    /// Words that are one label each, sorted.
    pub fn special(&self) -> &[String] {
        &self.stored.special
    }

    /// Whether a label is a special word.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.values().any(|&special| special == id)
    }

    /// A text as it is encoded and scored: in the tokenizer's Unicode form, without sentence marks at its ends.
    ///
    /// Texts for tokenizers of older checkpoints stay as they are.
    pub fn normalize<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.stored.normalize {
            None => Cow::Borrowed(text),
            Some(form) => form.apply(strip_sentence_marks(text)),
        }
    }

    /// The words of a text other than the special ones, one space apart.
    pub fn without_special(&self, text: &str) -> String {
        let words = text.split_whitespace().filter(|word| !self.special.contains_key(*word));
        words.collect::<Vec<_>>().join(" ")
    }

    /// Label ids of a text.
    ///
    /// There is no label for unknown symbols: only training text is encoded, never the reference of an evaluation. With
    /// [`UnicodeForm::None`], a text with an unknown symbol is tried in its composed and decomposed forms.
    ///
    /// # Errors
    /// A symbol that the training text did not have (the error names it and the text); `<s>` or `</s>` within the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let text = tidy(&self.normalize(text));
        if self.stored.normalize.is_some() {
            reject_sentence_mark(&text)?;
        }
        reject_mark(self.kind, &text)?;
        let found = self.encode_tidy(&text);
        if !matches!(found, Err(Error::UnknownSymbol { .. })) || self.unicode_form() != UnicodeForm::None {
            return found;
        }
        let others = [UnicodeForm::Nfc.apply(&text).into_owned(), decomposed(&text)];
        let other =
            others.iter().filter(|other| **other != text).find_map(|other| self.encode_tidy(other).ok());
        other.map_or(found, Ok)
    }

    fn encode_tidy(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        for run in runs(self.kind, text, |word| self.special.contains_key(word)) {
            match run {
                TextRun::Special(word) => ids.push(self.special[word]),
                TextRun::Ordinary(text) => {
                    self.reject_unknown(&text)?;
                    ids.extend(self.inner.encode_fast(&*text, false).map_err(library)?.get_ids());
                }
            }
        }
        Ok(ids)
    }

    fn reject_unknown(&self, text: &str) -> Result<()> {
        let known = |symbol: &str| self.inner.get_model().token_to_id(symbol).is_some();
        let Some(splitter) = self.inner.get_pre_tokenizer() else { return Ok(()) };
        for piece in split(splitter, text)? {
            let unknown = match self.kind {
                // Byte-pair encoding would pass over unknown characters without a word, the unigram model not say which.
                kind if kind.has_pieces() => piece.chars().map(String::from).find(|c| !known(c)),
                _ => Some(piece).filter(|p| !known(p)),
            };
            if let Some(symbol) = unknown {
                return Err(Error::UnknownSymbol { symbol, text: text.into() });
            }
        }
        Ok(())
    }

    /// Text of label ids: `decode(encode(text))` is the text, white space tidied.
    ///
    /// # Errors
    /// An id that is not below [`Tokenizer::size`].
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        if let Some(index) = ids.iter().position(|&id| id as usize >= self.size()) {
            return Err(Error::UnknownId { size: self.size(), id: ids[index], index });
        }
        if self.special.is_empty() || self.kind == TokenizerKind::Words {
            return self.inner.decode(ids, false).map_err(library);
        }
        let first = (self.size() - self.special.len()) as u32;
        let mut text = String::new();
        let mut after_special = false;
        for part in ids.chunk_by(|&a, &b| a < first && b < first) {
            let (part, is_special) = match part {
                &[id] if id >= first => (self.stored.special[(id - first) as usize].clone(), true),
                part => (self.inner.decode(part, false).map_err(library)?, false),
            };
            // A special word is a word of its own, whatever its neighbors are. Characters have spaces of their own.
            let has_space = text.is_empty() || text.ends_with(' ') || part.starts_with(' ');
            if (is_special || after_special) && !has_space {
                text.push(' ');
            }
            text += &part;
            after_special = is_special;
        }
        Ok(text)
    }

    /// The tokenizer as JSON: its kind, its tokens in the order of their ids, and the merges of byte-pair encoding or the scores of the
    /// unigram model.
    ///
    /// # Errors
    /// None in practice; those of the JSON writer are passed on.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(&self.stored).map_err(library)
    }

    /// Reads what [`Tokenizer::to_json`] wrote.
    ///
    /// # Errors
    /// Anything else: other JSON, another format, no token, a token twice or of the wrong form for its kind, merges of unknown tokens,
    /// not one score a token.
    pub fn from_json(json: &str) -> Result<Self> {
        let bad = |expected, found: String| Error::TokenizerFile { expected, found };
        let stored: StoredTokenizer = serde_json::from_str(json)
            .map_err(|e| bad("JSON with `format`, `kind`, `tokens`, `merges` and `scores`", e.to_string()))?;
        if stored.format != FORMAT {
            return Err(bad("format panda-tokens/1", format!("{:?}", stored.format)));
        }
        if stored.tokens.is_empty() {
            return Err(bad("at least one token", "none".into()));
        }
        let ordinary = stored.ordinary()?;
        let mut seen = HashSet::new();
        for token in &stored.tokens {
            if !seen.insert(token) {
                return Err(bad("every token once", format!("{token:?} twice")));
            }
        }
        for token in ordinary {
            if !well_formed(stored.kind, token) {
                return Err(bad(
                    "tokens of the form of their kind",
                    format!("{token:?} for {:?}", stored.kind),
                ));
            }
        }
        if !stored.merges.is_empty() && !matches!(stored.kind, TokenizerKind::Bpe { .. }) {
            return Err(bad("merges with kind bpe only", format!("{} merges", stored.merges.len())));
        }
        let wanted = if matches!(stored.kind, TokenizerKind::Unigram { .. }) { ordinary.len() } else { 0 };
        if stored.scores.len() != wanted {
            let found = format!("{} of {} tokens for {:?}", stored.scores.len(), ordinary.len(), stored.kind);
            return Err(bad("a score for each token with kind unigram, and none else", found));
        }
        for (a, b) in &stored.merges {
            if let Some(unknown) = [a, b, &format!("{a}{b}")].into_iter().find(|t| !seen.contains(*t)) {
                return Err(bad("merges of known tokens", format!("{unknown:?}")));
            }
        }
        Self::build(stored)
    }
}

impl StoredTokenizer {
    /// The tokens other than special words; fails where these are not where they belong.
    fn ordinary(&self) -> Result<&[String]> {
        let wrong = |word: &String| Error::TokenizerFile {
            expected: "special words with a token each, after the others",
            found: format!("{word:?} elsewhere"),
        };
        if self.kind == TokenizerKind::Words {
            let unknown = |word: &&String| !special::is_valid(word) || !self.tokens.contains(word);
            return self.special.iter().find(unknown).map_or(Ok(&self.tokens), |word| Err(wrong(word)));
        }
        let first = self.tokens.len().checked_sub(self.special.len());
        let Some(first) = first else { return Err(wrong(&self.special[0])) };
        let (ordinary, special) = self.tokens.split_at(first);
        let fits = |(word, token): (&String, &String)| {
            special::is_valid(word) && special_token(self.kind, word) == *token
        };
        match self.special.iter().zip(special).find(|&pair| !fits(pair)) {
            Some((word, _)) => Err(wrong(word)),
            None => Ok(ordinary),
        }
    }
}

/// The token of a special word, which begins a word.
fn special_token(kind: TokenizerKind, word: &str) -> String {
    if marks_words(kind) { format!("{MARK}{word}") } else { word.to_owned() }
}

/// A part of a tidy text.
enum TextRun<'a> {
    /// Words between special ones; of characters, with the spaces around them.
    Ordinary(Cow<'a, str>),
    /// A special word.
    Special(&'a str),
}

/// Cuts a tidy text at its special words.
fn runs(kind: TokenizerKind, text: &str, is_special: impl Fn(&str) -> bool) -> Vec<TextRun<'_>> {
    if !text.split(' ').any(&is_special) {
        return vec![TextRun::Ordinary(Cow::Borrowed(text))];
    }
    let (mut runs, mut run) = (Vec::new(), String::new());
    let spaces = kind == TokenizerKind::Characters;
    let flush = |run: &mut String, runs: &mut Vec<TextRun>| {
        if !run.is_empty() {
            runs.push(TextRun::Ordinary(Cow::Owned(std::mem::take(run))));
        }
    };
    for (number, word) in text.split(' ').enumerate() {
        let is_special = is_special(word);
        if number > 0 && (spaces || !run.is_empty() && !is_special) {
            run.push(' ');
        }
        if is_special {
            flush(&mut run, &mut runs);
            runs.push(TextRun::Special(word));
        } else {
            run += word;
        }
    }
    flush(&mut run, &mut runs);
    runs
}

/// One space between words, none at the ends.
fn tidy(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn marks_words(kind: TokenizerKind) -> bool {
    kind.has_pieces() || kind == TokenizerKind::InnerCharacters
}

fn reject_mark(kind: TokenizerKind, text: &str) -> Result<()> {
    if marks_words(kind) && text.contains(MARK) {
        return Err(Error::ReservedSymbol { symbol: MARK, text: text.into() });
    }
    Ok(())
}

fn reject_sentence_mark(text: &str) -> Result<()> {
    match find_sentence_mark(text) {
        None => Ok(()),
        Some(mark) => Err(Error::SentenceMark { mark: mark.into(), text: text.into() }),
    }
}

/// Whether a token could have come from training.
fn well_formed(kind: TokenizerKind, token: &str) -> bool {
    let characters = token.chars().count();
    let body = token.strip_prefix(MARK).unwrap_or(token);
    match kind {
        TokenizerKind::Words => !token.is_empty() && !token.contains(char::is_whitespace),
        TokenizerKind::Characters => characters == 1,
        TokenizerKind::InnerCharacters => body.chars().count() == 1 && !body.contains(MARK),
        _ => !token.is_empty() && !body.contains(MARK),
    }
}

/// How text falls into pieces: whole tokens, or words that fall into tokens.
fn pre_tokenizer(kind: TokenizerKind) -> Result<PreTokenizerWrapper> {
    let regex = |pattern: &str| {
        Split::new(SplitPattern::Regex(pattern.into()), SplitDelimiterBehavior::Isolated, false)
            .map_err(library)
    };
    let marked = |split| Metaspace::new(MARK, PrependScheme::Always, split);
    Ok(match kind {
        TokenizerKind::Words => {
            Split::new(SplitPattern::String(" ".into()), SplitDelimiterBehavior::Removed, false)
                .map_err(library)?
                .into()
        }
        TokenizerKind::Characters => regex("(?s).")?.into(),
        TokenizerKind::InnerCharacters => {
            Sequence::new(vec![marked(false).into(), regex("(?s)\u{2581}?.")?.into()]).into()
        }
        TokenizerKind::Bpe { .. } | TokenizerKind::Unigram { .. } => marked(true).into(),
    })
}

fn split(splitter: &PreTokenizerWrapper, text: &str) -> Result<Vec<String>> {
    let mut pieces = PreTokenizedString::from(text);
    splitter.pre_tokenize(&mut pieces).map_err(library)?;
    let splits = pieces.get_splits(OffsetReferential::Normalized, OffsetType::Byte);
    Ok(splits.into_iter().map(|(piece, ..)| piece.to_owned()).filter(|p| !p.is_empty()).collect())
}

/// The number of different characters in marked words, for which a vocabulary must have room in addition to special words.
fn alphabet(words: &[String], size: usize, special: usize) -> Result<usize> {
    let alphabet = words.iter().flat_map(|w| w.chars()).collect::<HashSet<_>>().len();
    if size < alphabet.saturating_add(special) {
        let expected = match special {
            0 => format!("at least the {alphabet} characters of the text"),
            _ => format!("at least the {alphabet} characters and {special} special words of the text"),
        };
        return Err(setting("size", &expected, size));
    }
    Ok(alphabet)
}

fn library(error: impl ToString) -> Error {
    Error::Tokenizers(error.to_string())
}
