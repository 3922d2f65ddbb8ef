//! `panda lm TEXT...`: estimates an n-gram language model.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use decoding::ngram::{DiscountKind, Discounts, Ngram, OutOfVocabulary, Perplexity, estimate};
use model::CheckpointFile;
use speech::{
    Manifest, Tokenizer, TokenizerKind, UnicodeForm, Utterance, find_sentence_mark, strip_sentence_marks,
};

use crate::{
    error::{Error, Result},
    manifests, numbers, output_files,
    printing::{outln, warn_each, warnln},
};

/// Name of the unknown word or token.
const UNKNOWN: &str = "<unk>";

/// Arguments of `panda lm`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// JSONL manifests (*.jsonl, *.json), or text files with one sentence per line
    #[arg(required = true)]
    text: Vec<PathBuf>,
    /// ARPA file to write
    #[arg(short, long)]
    output: PathBuf,
    /// Set the order of the n-gram: the words of the longest n-grams
    #[arg(long, default_value_t = 3, value_parser = numbers::within("expected 1 to 16", 1..=16_usize))]
    order: usize,
    /// Build n-grams of `words`, or of the tokens of this checkpoint
    #[arg(long, default_value = "words")]
    tokens: PathBuf,
    /// Print the perplexity and the unknown words of this text in addition
    #[arg(long)]
    test: Option<PathBuf>,
}

/// Estimates an n-gram and prints perplexities of training and test text.
pub(crate) fn run(arguments: &Args) -> Result<ExitCode> {
    // Read the texts with the Unicode form of the tokenizer, and open the output.
    let checkpoint = Some(&arguments.tokens).filter(|tokens| *tokens != Path::new("words"));
    let tokenizer = checkpoint.map(|path| CheckpointFile::open(path)?.tokenizer()).transpose()?;
    let form = tokenizer.as_ref().map_or(UnicodeForm::default(), Tokenizer::unicode_form);
    let texts =
        arguments.text.iter().map(|path| SentenceFile::read(path, form)).collect::<Result<Vec<_>>>()?;
    let test = arguments.test.as_ref().map(|path| SentenceFile::read(path, form)).transpose()?;
    let inputs: Vec<&PathBuf> = arguments.text.iter().chain(checkpoint).chain(&arguments.test).collect();
    let utterances: Vec<Utterance> =
        texts.iter().chain(&test).flat_map(|text| text.utterances.iter().cloned()).collect();
    let [output] = output_files::open([&Some(arguments.output.clone())], &inputs, &utterances)?;

    // Estimate and write the n-gram.
    let vocabulary = match tokenizer {
        Some(tokenizer) => NgramVocabulary::from_tokenizer(tokenizer),
        None => NgramVocabulary::from_words(&texts),
    };
    let sentences = vocabulary.encode(texts.iter().flat_map(|text| &text.sentences))?;
    let estimated = estimate(&sentences, &vocabulary.names, arguments.order)?;
    // Everything that can fail runs before the file is written.
    let ngram = Ngram::new(&estimated.table, &vocabulary.names, OutOfVocabulary::Ignore)?;
    let test = test.map(|test| vocabulary.encode(&test.sentences)).transpose()?;
    let is_standard_output = output.as_ref().is_some_and(training::files::OutputFile::is_standard);
    output.map_or(Ok(()), |output| output.write(estimated.table.write().as_bytes()))?;
    if is_standard_output {
        return Ok(ExitCode::SUCCESS);
    }
    // Print counts, discounts and perplexities.
    for ((order, count), discounts) in (1..).zip(estimated.table.counts()).zip(&estimated.discounts) {
        outln!("{order}-grams {count:>9}  discounts {}", format_discounts(discounts))?;
    }
    let perplexity_of = |sentences: &[Vec<u32>]| ngram.perplexity(sentences.iter().map(Vec::as_slice));
    let unit = if checkpoint.is_some() { "tokens" } else { "words" };
    outln!("{}", format_perplexity("training text", unit, &perplexity_of(&sentences)))?;
    if let (Some(path), Some(test)) = (&arguments.test, &test) {
        outln!("{}", format_perplexity(&path.display().to_string(), unit, &perplexity_of(test)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats the discounts of the n-grams of one order.
fn format_discounts(discounts: &Discounts) -> String {
    // Discounts of n-grams that occur once, twice, and more often.
    let [once, twice, more] = discounts.values;
    match discounts.kind {
        DiscountKind::Modified => format!("{once:.3} {twice:.3} {more:.3}"),
        DiscountKind::Absolute => format!("{once:.3} for all counts: too few n-grams for three"),
        _ => format!("{once:.3} for all counts: too few n-grams for any estimate"),
    }
}

/// Formats the perplexity of a text and its unknown words or tokens.
fn format_perplexity(name: &str, unit: &str, perplexity: &Perplexity) -> String {
    format!(
        "{name}: perplexity {:.3} of {} {unit} and {} ends; {:.2} % unknown ({} of {})",
        perplexity.value(),
        perplexity.tokens - perplexity.unknown,
        perplexity.texts,
        100.0 * perplexity.unknown_rate(),
        perplexity.unknown,
        perplexity.tokens
    )
}

/// Sentences of a file, without empty ones.
struct SentenceFile {
    sentences: Vec<String>,
    /// Utterances, if the file is a manifest.
    utterances: Vec<Utterance>,
}

impl SentenceFile {
    /// Reads a file, converts its Unicode form and removes sentence marks.
    ///
    /// Only marks at the ends of a sentence are removed; a mark within it is an error.
    fn read(path: &Path, form: UnicodeForm) -> Result<Self> {
        let is_manifest =
            path.extension().is_some_and(|extension| extension == "jsonl" || extension == "json");
        let (lines, utterances) = match is_manifest {
            true => {
                let Manifest { lines, utterances, .. } = manifests::read_with_lines(path)?;
                let texts = utterances.iter().map(|utterance| utterance.text.clone());
                (lines.into_iter().zip(texts).collect(), utterances)
            }
            false => (numbered_lines(path)?, Vec::new()),
        };
        let name = path.display().to_string();
        let texts = lines.iter().map(|(_, line): &(usize, String)| line.as_str());
        warn_each(recognizer::normalization_warning(&name, texts, form));
        let (mut sentences, mut marked_lines) = (Vec::with_capacity(lines.len()), Vec::new());
        for (number, line) in lines {
            let line = form.apply(&line);
            let sentence = strip_sentence_marks(&line);
            if sentence.len() < line.len() {
                marked_lines.push(number);
            }
            if let Some(mark) = find_sentence_mark(sentence) {
                let (path, mark) = (path.to_owned(), mark.to_owned());
                return Err(Error::SentenceMark { path, line: number, mark });
            }
            if sentence.split_whitespace().next().is_some() {
                // ARPA files use both spellings.
                sentences.push(sentence.replace("<UNK>", UNKNOWN));
            }
        }
        if let Some(first) = marked_lines.first() {
            let lines = if marked_lines.len() == 1 { "line" } else { "lines" };
            warnln!(
                "warning: {name}: <s> and </s> are removed from the ends of {} {lines}, the first is line {first}",
                marked_lines.len()
            );
        }
        Ok(Self { sentences, utterances })
    }
}

/// Returns the lines of a text file with their numbers, from 1.
fn numbered_lines(path: &Path) -> Result<Vec<(usize, String)>> {
    let bytes =
        speech::files::read_input(path).map_err(|source| speech::Error::Io { path: path.into(), source })?;
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&bytes);
    let decode = |(number, line): (usize, &[u8])| {
        let not_utf8 = |_| speech::Error::Format {
            path: path.into(),
            expected: "text in UTF-8",
            found: format!("other bytes in line {number}"),
        };
        Ok((number, std::str::from_utf8(line).map_err(not_utf8)?.to_owned()))
    };
    (1..).zip(bytes.split(|&byte| byte == b'\n')).map(decode).collect()
}

/// Vocabulary of an n-gram: words or tokens.
struct NgramVocabulary {
    /// Tokens of the tokenizer, or sorted words; contains `<unk>`.
    names: Vec<String>,
    /// Id of `<unk>`.
    unknown: u32,
    /// None for words.
    tokenizer: Option<Tokenizer>,
}

impl NgramVocabulary {
    fn new(mut names: Vec<String>, tokenizer: Option<Tokenizer>) -> Self {
        let unknown = names.iter().position(|name| name == UNKNOWN).unwrap_or(names.len());
        if unknown == names.len() {
            names.push(UNKNOWN.into());
        }
        Self { names, unknown: unknown as u32, tokenizer }
    }

    fn from_tokenizer(tokenizer: Tokenizer) -> Self {
        Self::new(tokenizer.tokens().to_vec(), Some(tokenizer))
    }

    fn from_words(texts: &[SentenceFile]) -> Self {
        let sentences = texts.iter().flat_map(|text| &text.sentences);
        let words: BTreeSet<&str> = sentences.flat_map(|sentence| sentence.split_whitespace()).collect();
        // `<unk>` is last even if the text contains it, so that the others are sorted.
        let names = words.into_iter().filter(|word| *word != UNKNOWN).map(String::from).collect();
        Self::new(names, None)
    }

    /// Returns the unit ids of each sentence.
    fn encode<'a>(&self, sentences: impl IntoIterator<Item = &'a String>) -> Result<Vec<Vec<u32>>> {
        sentences.into_iter().map(|sentence| self.ids(sentence)).collect()
    }

    /// Returns the unit ids of a sentence.
    ///
    /// Unknown characters (of a tokenizer of characters) and unknown words become [`UNKNOWN`].
    fn ids(&self, sentence: &str) -> Result<Vec<u32>> {
        let Some(tokenizer) = &self.tokenizer else {
            let words = &self.names[..self.unknown as usize];
            let id =
                |word: &str| words.binary_search_by(|name| name.as_str().cmp(word)).map(|index| index as u32);
            return Ok(sentence.split_whitespace().map(|word| id(word).unwrap_or(self.unknown)).collect());
        };
        match tokenizer.encode(sentence) {
            Err(speech::Error::UnknownSymbol { .. }) => {}
            ids => return Ok(ids?),
        }
        let words: Vec<&str> = sentence.split_whitespace().collect();
        if tokenizer.kind() == TokenizerKind::Characters {
            let id =
                |c: char| self.names.iter().position(|name| name.chars().eq([c])).map(|index| index as u32);
            return Ok(words.join(" ").chars().map(|c| id(c).unwrap_or(self.unknown)).collect());
        }
        let mut ids = Vec::new();
        for word in words {
            match tokenizer.encode(word) {
                Err(speech::Error::UnknownSymbol { .. }) => ids.push(self.unknown),
                word_ids => ids.extend(word_ids?),
            }
        }
        Ok(ids)
    }
}
