//! What a run begins with: the checkpoint that it goes on from, the tokenizer, and all data, checked against each other.
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use speech::{
    Conversion, Corpus, FrontEnd, Tokenizer, TokenizerKind, Utterance, find_sentence_mark,
    strip_sentence_marks,
};

use crate::bad_item_log::TRAIN;
use crate::data;
use crate::data::{Listed, Streamed, UtteranceStore};
use crate::data_warnings::floor_warning;
use crate::observer::Observer;
use crate::recipe::Recipe;
use crate::run_folder::{RunFolder, Start};
use crate::{DataSets, Error, Result, data_warnings};
use model::Fingerprint;
use model::Model;
use model::checkpoint;
use model::checkpoint::{Checkpoint, Progress};
use model::config::values::setting;
use model::{Message, Pretrained};
use recognizer::WORD_MARK;
use recognizer::bad_items::BadItems;
use recognizer::examples::{self, Example};
use recognizer::{conversion_warnings, mark_warnings};

/// Numbers that a training holds of each parameter at most: itself, its gradient, two moments and an average, and all but the
/// gradient in a checkpoint that is being written, once as values and once as bytes.
const COPIES: usize = 13;

/// The folder of a run, and how the run may begin there.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub folder: &'a RunFolder,
    pub start: Start,
    /// Whether the number of epochs was given beside the recipe, so that a run that goes on takes it.
    pub epochs_given: bool,
}

/// What a run begins with, before it has written anything.
pub(crate) struct Loaded {
    pub resumed: Option<Checkpoint>,
    /// Weights of another model that a new run begins with.
    pub pretrained: Option<Pretrained>,
    pub tokenizer: Tokenizer,
    pub front_end: FrontEnd,
    pub train: UtteranceStore,
    pub dev: Vec<Example>,
    pub test: Vec<Example>,
    pub data: Fingerprint,
    /// Utterances that cannot be used, by set.
    pub bad: BTreeMap<String, BadItems>,
}

/// Why there is none: the stop flag, with the steps of the run so far, or an error.
pub(crate) enum Stopped {
    At(u64),
    By(Error),
}

impl<E: Into<Error>> From<E> for Stopped {
    fn from(error: E) -> Self {
        Self::By(error.into())
    }
}

impl Loaded {
    pub fn new(
        recipe: &Recipe,
        origin: Origin,
        observer: &mut dyn Observer,
        stop: &AtomicBool,
    ) -> std::result::Result<Self, Stopped> {
        let read = |set, manifests: &[PathBuf]| match manifests.is_empty() {
            true => Ok(Listed::default()),
            false => data::read_manifests(set, manifests),
        };
        let Listed { utterances: dev, bad: dev_bad, warnings } = read("data.dev", &recipe.data.dev)?;
        warnings.iter().for_each(|warning| observer.on_warning(warning));
        let Listed { utterances: test, bad: test_bad, warnings } = read("data.test", &recipe.data.test)?;
        warnings.iter().for_each(|warning| observer.on_warning(warning));
        let mut notes = Vec::new();
        let loaded = match recipe.data.stream {
            false => {
                let listed = data::read_manifests("data.train", &recipe.data.train)?;
                let Listed { utterances: train, bad, warnings } = listed;
                warnings.iter().for_each(|warning| observer.on_warning(warning));
                let sets = DataSets { train: &train, dev: &dev, test: &test };
                let known = RunContext::new(recipe, sets, origin, observer)?;
                let doubt = data_warnings::repeated("data.train", &train);
                doubt.iter().for_each(|doubt| observer.on_warning(doubt));
                let (train, note) =
                    data_warnings::short_enough("data.train", train, recipe.batch.max_seconds);
                notes.extend(note);
                if train.is_empty() {
                    return Err(data::all_too_long().into());
                }
                (known, UnreadSet::Memory(train, bad))
            }
            true => {
                let corpus = Corpus::open(&recipe.data.train, data::index_folder(recipe).as_deref());
                let corpus = corpus.map_err(Error::from)?;
                corpus.warnings().iter().for_each(|warning| observer.on_warning(warning));
                let sets = DataSets { train: &corpus, dev: &dev, test: &test };
                let known = RunContext::new(recipe, sets, origin, observer)?;
                let (tokenizer, all) = (known.tokenizer.clone(), corpus.len());
                let streamed = Streamed::new(corpus, tokenizer, recipe)?;
                notes.extend(streamed.left_out(all));
                (known, UnreadSet::Disk(Box::new(streamed)))
            }
        };
        let (RunContext { resumed, tokenizer, data }, train) = loaded;
        notes.iter().for_each(|note| observer.on_note(note));
        for (set, utterances) in [("data.dev", &dev), ("data.test", &test)] {
            let doubt = data_warnings::unknown(set, utterances, &tokenizer);
            doubt.iter().for_each(|doubt| observer.on_warning(doubt));
            let texts = utterances.iter().map(|one| one.text.as_str());
            let warnings = conversion_warnings(set, texts, &tokenizer);
            warnings.iter().for_each(|warning| observer.on_warning(warning));
        }
        expect_room(recipe, &train, [&dev, &test], tokenizer.size())?;
        let pretrained = match &resumed {
            Some(_) => None,
            None => {
                let mut report = |message: Message| match message {
                    Message::Note(note) => observer.on_note(&note),
                    Message::Warning(warning) => observer.on_warning(&warning),
                };
                let config = &recipe.init.pretrained;
                Pretrained::read(config, &recipe.model(), &tokenizer, &mut report)?
            }
        };

        let front_end = FrontEnd::new(&recipe.features)?;
        let mut bad = BTreeMap::new();
        let mut report = |set: &str, items: BadItems, of| {
            items.check(set, of, recipe.data.max_bad)?;
            items.warnings(set).iter().for_each(|warning| observer.on_warning(warning));
            bad.insert(set.to_owned(), items);
            Ok::<_, Error>(())
        };
        let conversion = Conversion { resample: recipe.features.resample, ..Conversion::default() };
        let load = |utterances: &[Utterance], tokenizer| {
            examples::load_usable(utterances, &front_end, tokenizer, &conversion, stop)
        };
        let all = || -> Result<_> {
            let train = match train {
                UnreadSet::Disk(streamed) => {
                    report(TRAIN, streamed.bad().clone(), streamed.utterances())?;
                    UtteranceStore::Disk(streamed)
                }
                UnreadSet::Memory(mut train, bad) => {
                    let (mut examples, mut items) = load(&train, Some(&tokenizer))?;
                    let of = train.len() + bad.left_out.len();
                    // In the order of the list, as the examples are.
                    let mut left_out = items.left_out.iter().map(|one| one.id.as_str()).peekable();
                    train.retain(|one| left_out.next_if_eq(&one.id.as_str()).is_none());
                    let joined = data::joined(&train, recipe.augment.join, recipe.seed);
                    let (joined, more) = load(&joined, Some(&tokenizer))?;
                    examples.extend(joined);
                    items.left_out.extend(more.left_out);
                    items.extend(bad);
                    report(TRAIN, items, of)?;
                    UtteranceStore::Memory(examples)
                }
            };
            let (dev_examples, mut items) = load(&dev, None)?;
            let of = dev.len() + dev_bad.left_out.len();
            items.extend(dev_bad);
            report("data.dev", items, of)?;
            let (test_examples, mut items) = load(&test, None)?;
            let of = test.len() + test_bad.left_out.len();
            items.extend(test_bad);
            report("data.test", items, of)?;
            Ok((train, dev_examples, test_examples))
        };
        let (train, dev, test) = match all() {
            Err(Error::Stopped) => {
                return Err(Stopped::At(resumed.map_or(0, |checkpoint| checkpoint.progress.step)));
            }
            loaded => loaded?,
        };
        Ok(Self { resumed, pretrained, tokenizer, front_end, train, dev, test, data, bad })
    }
}

/// A training set of which nothing was read but what is said about it.
enum UnreadSet {
    Memory(Vec<Utterance>, BadItems),
    Disk(Box<Streamed>),
}

/// What the data and an earlier run decide together.
struct RunContext {
    resumed: Option<Checkpoint>,
    tokenizer: Tokenizer,
    data: Fingerprint,
}

impl RunContext {
    fn new(recipe: &Recipe, sets: DataSets, origin: Origin, observer: &mut dyn Observer) -> Result<Self> {
        let resumed = resume(recipe, sets, origin, observer)?;
        let tokenizer = match &resumed {
            Some(checkpoint) => checkpoint.tokenizer(&origin.folder.last())?,
            None => {
                let warning = floor_warning(TRAIN, sets.train, &recipe.features)?;
                warning.iter().for_each(|warning| observer.on_warning(warning));
                let texts = data::each(sets.train).map(|one| Ok(one?.text.clone()));
                train_tokenizer(recipe, &texts.collect::<Result<Vec<String>>>()?, observer)?
            }
        };
        Ok(RunContext { resumed, tokenizer, data: sets.fingerprint()? })
    }
}

/// Whether a tokenizer of a recipe's kind may encode a text that is in its training.
fn is_encodable(recipe: &Recipe, text: &str) -> bool {
    let may_hold_mark = matches!(recipe.tokens.kind, TokenizerKind::Words | TokenizerKind::Characters);
    (may_hold_mark || !text.contains(WORD_MARK)) && find_sentence_mark(strip_sentence_marks(text)).is_none()
}

/// Trains the tokenizer of a recipe; the observer receives the warnings about the texts.
///
/// Texts that no tokenizer of this kind can encode are left out, unless all are.
///
/// # Errors
/// [`Error::RecipeValue`](model::Error::RecipeValue) for a size that does not fit the texts; the errors of [`Tokenizer::train_with`].
pub fn train_tokenizer(recipe: &Recipe, texts: &[String], observer: &mut dyn Observer) -> Result<Tokenizer> {
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let options = recipe.tokens.options();
    let trained = Tokenizer::train_with(&options, &texts).or_else(|error| {
        use speech::Error::{ReservedSymbol, SentenceMark};
        if !matches!(error, ReservedSymbol { .. } | SentenceMark { .. }) {
            return Err(error);
        }
        // Such a text is left out when it is encoded.
        let others: Vec<&str> = texts.iter().copied().filter(|text| is_encodable(recipe, text)).collect();
        if others.is_empty() { Err(error) } else { Tokenizer::train_with(&options, &others) }
    });
    let tokenizer = trained.map_err(|error| setting("tokens", error))?;
    for warning in conversion_warnings(TRAIN, texts.iter().copied(), &tokenizer) {
        observer.on_warning(&warning);
    }
    for warning in mark_warnings(TRAIN, texts, &tokenizer) {
        observer.on_warning(&warning);
    }
    if recipe.tokens.special.is_none() && !tokenizer.special().is_empty() {
        let words = tokenizer.special().iter().take(5).map(|word| format!("`{word}`")).collect::<Vec<_>>();
        let more = if tokenizer.special().len() > words.len() { ", ..." } else { "" };
        observer.on_note(&format!(
            "{TRAIN}: words of the form <...> are one label each: {}{more}; tokens.special replaces this choice",
            words.join(", ")
        ));
    }
    Ok(tokenizer)
}

/// The checkpoint that a run goes on from, if it does: one of the same recipe and the same data.
///
/// Only the number of epochs may be another one, where it was given beside the recipe.
fn resume(
    recipe: &Recipe,
    sets: DataSets,
    origin: Origin,
    observer: &mut dyn Observer,
) -> Result<Option<Checkpoint>> {
    let Origin { folder, start, epochs_given } = origin;
    let last = folder.last();
    if !(matches!(start, Start::Resume | Start::ResumeChanged) && last.exists()) {
        return Ok(None);
    }
    let checkpoint = folder.read_last()?;
    let mut before = Recipe::of_checkpoint(&checkpoint, &last)?;
    let epochs = recipe.training.run.epochs;
    let old_epochs = std::mem::replace(&mut before.training.run.epochs, epochs);
    if let Some(difference) = recipe.difference(&before) {
        return Err(Error::checkpoint(&last, "a run of this very recipe", difference));
    }
    if epochs != old_epochs {
        change_epochs([old_epochs, epochs], &checkpoint.progress, epochs_given)?;
        observer.on_note(&format!(
            "training.epochs: {epochs} in place of {old_epochs}; from here on the learning rate (decay = \"{}\") and the weight \
             of CTC follow the schedule over {epochs} epochs",
            recipe.optimizer.decay.name()
        ));
    }
    match &checkpoint.data {
        Some(data) if start == Start::Resume => sets.check(data)?,
        Some(_) => {}
        None => {
            observer.on_warning(&format!("{}: an older file: {}", last.display(), checkpoint::UNSUMMED));
        }
    }
    Ok(Some(checkpoint))
}

/// Fails unless a run may have `epochs` where it had `old` before.
fn change_epochs([old, epochs]: [u64; 2], progress: &Progress, given: bool) -> Result<()> {
    if !given {
        return Err(Error::Epochs { old, epochs });
    }
    let begun = progress.epoch + u64::from(progress.batch > 0);
    if epochs < begun {
        return Err(Error::EpochsDone { begun, epochs });
    }
    Ok(())
}

/// Fails where the features of all sets, or the model in training, are more than there is room for.
fn expect_room(
    recipe: &Recipe,
    train: &UnreadSet,
    others: [&Vec<Utterance>; 2],
    labels: usize,
) -> Result<()> {
    let of = |utterances: &[Utterance]| utterances.iter().map(|utterance| utterance.seconds).sum::<f64>();
    let train = match train {
        UnreadSet::Memory(train, _) if recipe.augment.join > 1 => 2.0 * of(train),
        UnreadSet::Memory(train, _) => of(train),
        UnreadSet::Disk(_) => 0.0,
    };
    let seconds = train + others.iter().map(|set| of(set)).sum::<f64>();
    let frames = seconds * 1000.0 / f64::from(recipe.features.hop_ms);
    let bytes = frames * (recipe.features.mels * size_of::<f32>()) as f64;
    let what = || format!("features of {:.1} hours of audio in [data]", seconds / 3600.0);
    model::Error::expect_memory(what, bytes as usize)?;
    let config = recipe.model();
    Ok(Model::fits(&config, &Model::shapes(&config, labels)?, COPIES)?)
}
