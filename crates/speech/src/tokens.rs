//! Text to label ids and back, on top of the `tokenizers` crate.

use std::collections::{BTreeSet, HashSet};

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
mod unigram;

use crate::features::setting;
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

/// A trained map between text and ids `0..size`; the blank is not its business.
///
/// White space in texts is taken as one space between words and none at the ends.
#[derive(Clone)]
pub struct Tokenizer {
    kind: TokenizerKind,
    inner: tokenizers::Tokenizer,
    /// What it is rebuilt from.
    stored: Stored,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("kind", &self.kind).field("size", &self.size()).finish()
    }
}

/// The stored form.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: String,
    kind: TokenizerKind,
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
        let texts: Vec<String> = texts.iter().map(|t| tidy(t.as_ref())).filter(|t| !t.is_empty()).collect();
        if texts.is_empty() {
            return Err(Error::NoText);
        }
        let splitter = pre_tokenizer(kind)?;
        let mut pieces = Vec::new();
        for text in &texts {
            reject_mark(kind, text)?;
            pieces.extend(split(&splitter, text)?);
        }
        let (mut merges, mut scores) = (Vec::new(), Vec::new());
        let tokens;
        match kind {
            TokenizerKind::Bpe { size } => {
                alphabet(&pieces, size)?;
                (tokens, merges) = bpe::train(&pieces, size)?;
            }
            TokenizerKind::Unigram { size } => {
                (tokens, scores) = unigram::train(&pieces, size, alphabet(&pieces, size)?);
            }
            _ => tokens = pieces.into_iter().collect::<BTreeSet<_>>().into_iter().collect(),
        }
        Self::build(Stored { format: FORMAT.into(), kind, tokens, merges, scores })
    }

    fn build(stored: Stored) -> Result<Self> {
        let model: ModelWrapper = match stored.kind {
            TokenizerKind::Bpe { .. } => bpe::model(&stored.tokens, &stored.merges)?.into(),
            TokenizerKind::Unigram { .. } => unigram::model(&stored.tokens, &stored.scores)?.into(),
            // The empty string never is a piece of text, so that unknown pieces are errors.
            _ => WordLevel::builder()
                .vocab(stored.tokens.iter().cloned().zip(0u32..).collect())
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
        Ok(Self { kind: stored.kind, inner, stored })
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

    /// Label ids of a text.
    ///
    /// There is no label for unknown symbols: only training text is encoded, never the reference of an evaluation.
    ///
    /// # Errors
    /// A symbol that the training text did not have; the error names it and the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let text = tidy(text);
        reject_mark(self.kind, &text)?;
        self.reject_unknown(&text)?;
        Ok(self.inner.encode_fast(text, false).map_err(library)?.get_ids().to_vec())
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
        self.inner.decode(ids, false).map_err(library)
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
        let stored: Stored = serde_json::from_str(json)
            .map_err(|e| bad("JSON with `format`, `kind`, `tokens`, `merges` and `scores`", e.to_string()))?;
        if stored.format != FORMAT {
            return Err(bad("format panda-tokens/1", format!("{:?}", stored.format)));
        }
        if stored.tokens.is_empty() {
            return Err(bad("at least one token", "none".into()));
        }
        let mut seen = HashSet::new();
        for token in &stored.tokens {
            if !seen.insert(token) {
                return Err(bad("every token once", format!("{token:?} twice")));
            }
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
        let wanted =
            if matches!(stored.kind, TokenizerKind::Unigram { .. }) { stored.tokens.len() } else { 0 };
        if stored.scores.len() != wanted {
            let found =
                format!("{} of {} tokens for {:?}", stored.scores.len(), stored.tokens.len(), stored.kind);
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

/// The number of different characters in marked words, which a vocabulary must have room for.
fn alphabet(words: &[String], size: usize) -> Result<usize> {
    let alphabet = words.iter().flat_map(|w| w.chars()).collect::<HashSet<_>>().len();
    if size < alphabet {
        return Err(setting("size", &format!("at least the {alphabet} characters of the text"), size));
    }
    Ok(alphabet)
}

fn library(error: impl ToString) -> Error {
    Error::Tokenizers(error.to_string())
}
