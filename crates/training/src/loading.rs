//! Loads checkpoint, tokenizer and data of a run, checked against each other.
//!
//! `train` calls [`RunInputs::new`] before the run folder is changed.
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use speech::{
    Conversion, Corpus, FrontEnd, Tokenizer, TokenizerKind, Utterance, find_sentence_mark,
    strip_sentence_marks,
};

use crate::bad_item_log::TRAINING_SET;
use crate::data::{self, StreamedSet, UtteranceList, UtteranceStore};
use crate::data_warnings::floor_warning;
use crate::observer::Observer;
use crate::recipe::Recipe;
use crate::run_folder::{RunFolder, StartMode};
use crate::run_plan::{COPIES_DURING_READ, MOMENTS_PER_WEIGHT, NUMBERS_PER_WEIGHT};
use crate::{DataSets, Error, Result, data_warnings};
use model::checkpoint::{self, Checkpoint, Progress};
use model::config::PretrainedConfig;
use model::config::values::setting_error;
use model::{DataFingerprint, LoadMessage, Model, Pretrained};
use recognizer::WORD_MARK;
use recognizer::bad_items::BadItems;
use recognizer::examples::{self, Example};
use recognizer::{conversion_warnings, mark_warnings};

/// Largest number of values in memory for each trained weight.
///
/// The weight, two moments and an average, and the same in a checkpoint that is read.
const COPIES_PER_PARAMETER: usize = COPIES_DURING_READ * (NUMBERS_PER_WEIGHT + MOMENTS_PER_WEIGHT);
/// The same for each frozen weight, which has no moments.
const COPIES_PER_FROZEN_PARAMETER: usize = COPIES_DURING_READ * NUMBERS_PER_WEIGHT;
/// Largest number of special words that a note names.
const MAX_NAMED_WORDS: usize = 5;

/// The folder of a run, and how the run starts in it.
#[derive(Clone, Copy)]
pub(crate) struct RunOrigin<'a> {
    pub folder: &'a RunFolder,
    pub start: StartMode,
    /// True if a resumed run may change its number of epochs.
    ///
    /// The number was then given outside of the recipe.
    pub has_new_epochs: bool,
}

/// The inputs of a run, before it has written anything.
pub(crate) struct RunInputs {
    pub resumed: Option<Checkpoint>,
    /// Weights of another model, with which a new run starts.
    pub pretrained: Option<Pretrained>,
    pub tokenizer: Tokenizer,
    pub front_end: FrontEnd,
    pub train: UtteranceStore,
    pub dev: Vec<Example>,
    pub test: Vec<Example>,
    pub fingerprint: DataFingerprint,
    /// Bad items by set.
    pub bad_items: BTreeMap<String, BadItems>,
}

/// Why inputs were not loaded.
pub(crate) enum LoadError {
    /// The stop flag is set; the run has made this number of steps so far.
    Stopped(u64),
    /// Another error.
    Failed(Error),
}

impl<E: Into<Error>> From<E> for LoadError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl RunInputs {
    /// Loads and checks all inputs of a run.
    pub(crate) fn new(
        recipe: &Recipe,
        origin: RunOrigin,
        observer: &mut dyn Observer,
        stop: &AtomicBool,
    ) -> std::result::Result<Self, LoadError> {
        // 1. Lists of utterances, the resumed checkpoint and the tokenizer.
        let read_list = |set, manifests: &[PathBuf]| match manifests.is_empty() {
            true => Ok(UtteranceList::default()),
            false => data::read_manifests(set, manifests),
        };
        let dev_list = read_list("data.dev", &recipe.data.dev)?;
        dev_list.warnings.iter().for_each(|warning| observer.on_warning(warning));
        let test_list = read_list("data.test", &recipe.data.test)?;
        test_list.warnings.iter().for_each(|warning| observer.on_warning(warning));
        let (dev, test) = (dev_list.utterances, test_list.utterances);
        // Notes follow the warnings about the training set.
        let mut notes = Vec::new();
        let context_and_train = match recipe.data.stream {
            false => {
                let train_list = data::read_manifests("data.train", &recipe.data.train)?;
                train_list.warnings.iter().for_each(|warning| observer.on_warning(warning));
                let train = train_list.utterances;
                let sets = DataSets { train: &train, dev: &dev, test: &test };
                let context = RunContext::new(recipe, sets, origin, observer)?;
                let warning = data_warnings::duplicate_warning("data.train", &train);
                warning.iter().for_each(|warning| observer.on_warning(warning));
                let (train, note) =
                    data_warnings::remove_long_utterances("data.train", train, recipe.batch.max_seconds);
                notes.extend(note);
                if train.is_empty() {
                    return Err(data::all_too_long().into());
                }
                (context, UnreadSet::Memory(train, train_list.bad))
            }
            true => {
                let corpus = Corpus::open(&recipe.data.train, data::index_folder(recipe).as_deref());
                let corpus = corpus.map_err(Error::from)?;
                corpus.warnings().iter().for_each(|warning| observer.on_warning(warning));
                let sets = DataSets { train: &corpus, dev: &dev, test: &test };
                let context = RunContext::new(recipe, sets, origin, observer)?;
                let (tokenizer, num_listed) = (context.tokenizer.clone(), corpus.len());
                let set = StreamedSet::new(corpus, tokenizer, recipe)?;
                notes.extend(set.length_note(num_listed));
                (context, UnreadSet::Disk(Box::new(set)))
            }
        };
        let (RunContext { resumed, tokenizer, fingerprint }, train) = context_and_train;
        notes.iter().for_each(|note| observer.on_note(note));
        // Warnings about texts that the tokenizer cannot encode or converts.
        for (set, utterances) in [("data.dev", &dev), ("data.test", &test)] {
            let warning = data_warnings::unknown_words_warning(set, utterances, &tokenizer);
            warning.iter().for_each(|warning| observer.on_warning(warning));
            let texts = utterances.iter().map(|utterance| utterance.text.as_str());
            let warnings = conversion_warnings(set, texts, &tokenizer);
            warnings.iter().for_each(|warning| observer.on_warning(warning));
        }
        check_memory(recipe, &train, [&dev, &test], tokenizer.size())?;
        // 2. Pretrained weights of a new run.
        let pretrained = match &resumed {
            Some(_) => None,
            None => {
                let mut report = |message: LoadMessage| match message {
                    LoadMessage::Note(note) => observer.on_note(&note),
                    LoadMessage::Warning(warning) => observer.on_warning(&warning),
                };
                let config = &recipe.init.pretrained;
                Pretrained::read(config, &recipe.model_config(), &tokenizer, &mut report)?
            }
        };

        // 3. Features and labels in memory, without bad items.
        let front_end = FrontEnd::new(&recipe.features)?;
        let mut bad_items = BTreeMap::new();
        let mut record_bad_items = |set: &str, items: BadItems, num_listed| {
            items.check(set, num_listed, recipe.data.max_bad)?;
            items.warnings(set).iter().for_each(|warning| observer.on_warning(warning));
            bad_items.insert(set.to_owned(), items);
            Ok::<_, Error>(())
        };
        let conversion = Conversion { resample: recipe.features.resample, ..Conversion::default() };
        let load_examples = |utterances: &[Utterance], tokenizer| {
            examples::load_usable(utterances, &front_end, tokenizer, &conversion, stop)
        };
        let load_all = || -> Result<_> {
            let train = match train {
                UnreadSet::Disk(set) => {
                    record_bad_items(TRAINING_SET, set.bad().clone(), set.listed_count())?;
                    UtteranceStore::Disk(set)
                }
                UnreadSet::Memory(mut train, bad_samples) => {
                    let (mut examples, mut items) = load_examples(&train, Some(&tokenizer))?;
                    let num_listed = train.len() + bad_samples.excluded.len();
                    // In the order of the list, as the examples are.
                    let mut excluded_ids = items.excluded.iter().map(|item| item.id.as_str()).peekable();
                    train.retain(|utterance| excluded_ids.next_if_eq(&utterance.id.as_str()).is_none());
                    let joined = data::joined_utterances(&train, recipe.augment.join, recipe.seed);
                    let (joined_examples, joined_items) = load_examples(&joined, Some(&tokenizer))?;
                    examples.extend(joined_examples);
                    items.excluded.extend(joined_items.excluded);
                    items.extend(bad_samples);
                    record_bad_items(TRAINING_SET, items, num_listed)?;
                    UtteranceStore::Memory(examples)
                }
            };
            let (dev_examples, mut items) = load_examples(&dev, None)?;
            let num_listed = dev.len() + dev_list.bad.excluded.len();
            items.extend(dev_list.bad);
            record_bad_items("data.dev", items, num_listed)?;
            let (test_examples, mut items) = load_examples(&test, None)?;
            let num_listed = test.len() + test_list.bad.excluded.len();
            items.extend(test_list.bad);
            record_bad_items("data.test", items, num_listed)?;
            Ok((train, dev_examples, test_examples))
        };
        let (train, dev, test) = match load_all() {
            Err(Error::Stopped) => {
                return Err(LoadError::Stopped(resumed.map_or(0, |checkpoint| checkpoint.progress.step)));
            }
            sets => sets?,
        };
        Ok(Self { resumed, pretrained, tokenizer, front_end, train, dev, test, fingerprint, bad_items })
    }
}

/// A training set whose audio is not read yet.
enum UnreadSet {
    /// Utterances to be read into memory, and the bad samples of shards.
    Memory(Vec<Utterance>, BadItems),
    /// Utterances that stay on disk.
    Disk(Box<StreamedSet>),
}

/// Tokenizer and fingerprint: of the resumed checkpoint, or else of the data.
struct RunContext {
    resumed: Option<Checkpoint>,
    tokenizer: Tokenizer,
    fingerprint: DataFingerprint,
}

impl RunContext {
    fn new(recipe: &Recipe, sets: DataSets, origin: RunOrigin, observer: &mut dyn Observer) -> Result<Self> {
        let resumed = read_resumed_checkpoint(recipe, sets, origin, observer)?;
        let tokenizer = match &resumed {
            Some(checkpoint) => checkpoint.tokenizer(&origin.folder.last_checkpoint())?,
            None => {
                let warning = floor_warning(TRAINING_SET, sets.train, &recipe.features)?;
                warning.iter().for_each(|warning| observer.on_warning(warning));
                match &recipe.init.pretrained {
                    PretrainedConfig { keep_tokens: true, weights: Some(weights), .. } => {
                        checkpoint::read_recipe_and_tokenizer(weights)?.1
                    }
                    _ => {
                        let texts =
                            data::iter_utterances(sets.train).map(|utterance| Ok(utterance?.text.clone()));
                        train_tokenizer(recipe, &texts.collect::<Result<Vec<String>>>()?, observer)?
                    }
                }
            }
        };
        Ok(RunContext { resumed, tokenizer, fingerprint: sets.fingerprint()? })
    }
}

/// Returns true if the recipe's kind of tokenizer can encode a text.
fn is_encodable(recipe: &Recipe, text: &str) -> bool {
    let allows_mark = matches!(recipe.tokens.kind, TokenizerKind::Words | TokenizerKind::Characters);
    (allows_mark || !text.contains(WORD_MARK)) && find_sentence_mark(strip_sentence_marks(text)).is_none()
}

/// Trains the tokenizer of a recipe, and reports warnings about the texts.
///
/// Texts that no tokenizer of this kind can encode are not used, unless there are no others.
///
/// # Errors
/// [`Error::RecipeValue`](model::Error::RecipeValue) for a size that does not match the texts; the
/// errors of [`Tokenizer::train_with`].
pub fn train_tokenizer(recipe: &Recipe, texts: &[String], observer: &mut dyn Observer) -> Result<Tokenizer> {
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let options = recipe.tokens.options();
    let result = Tokenizer::train_with(&options, &texts).or_else(|error| {
        use speech::Error::{ReservedSymbol, SentenceMark};
        if !matches!(error, ReservedSymbol { .. } | SentenceMark { .. }) {
            return Err(error);
        }
        // The utterance of such a text is excluded later, when its text is encoded.
        let encodable: Vec<&str> = texts.iter().copied().filter(|text| is_encodable(recipe, text)).collect();
        if encodable.is_empty() { Err(error) } else { Tokenizer::train_with(&options, &encodable) }
    });
    let tokenizer = result.map_err(|error| setting_error("tokens", error))?;
    for warning in conversion_warnings(TRAINING_SET, texts.iter().copied(), &tokenizer) {
        observer.on_warning(&warning);
    }
    for warning in mark_warnings(TRAINING_SET, texts, &tokenizer) {
        observer.on_warning(&warning);
    }
    if recipe.tokens.special.is_none() && !tokenizer.special_words().is_empty() {
        let words = tokenizer
            .special_words()
            .iter()
            .take(MAX_NAMED_WORDS)
            .map(|word| format!("`{word}`"))
            .collect::<Vec<_>>();
        let ellipsis = if tokenizer.special_words().len() > words.len() { ", ..." } else { "" };
        observer.on_note(&format!(
            "{TRAINING_SET}: words of the form <...> are one label each: {}{ellipsis}; set tokens.special to change this",
            words.join(", ")
        ));
    }
    Ok(tokenizer)
}

/// Reads the checkpoint of a resumed run; none for a new run.
///
/// The recipe must be the same. Only the number of epochs may differ, if it was given outside of
/// the recipe. Data must be the same too, unless `start` is [`StartMode::ResumeChanged`].
fn read_resumed_checkpoint(
    recipe: &Recipe,
    sets: DataSets,
    origin: RunOrigin,
    observer: &mut dyn Observer,
) -> Result<Option<Checkpoint>> {
    let RunOrigin { folder, start, has_new_epochs } = origin;
    let last = folder.last_checkpoint();
    if !(matches!(start, StartMode::Resume | StartMode::ResumeChanged) && last.exists()) {
        return Ok(None);
    }
    let checkpoint = folder.read_last()?;
    let mut old_recipe = Recipe::from_checkpoint(&checkpoint, &last)?;
    let epochs = recipe.training.run.epochs;
    let old_epochs = std::mem::replace(&mut old_recipe.training.run.epochs, epochs);
    if let Some(difference) = recipe.difference(&old_recipe) {
        return Err(Error::checkpoint(&last, "a run with the same recipe", difference));
    }
    if epochs != old_epochs {
        check_epochs(old_epochs, epochs, &checkpoint.progress, has_new_epochs)?;
        observer.on_note(&format!(
            "training.epochs: {epochs} instead of {old_epochs}; from now on the learning rate (decay = \"{}\") and the weight \
             of CTC follow the schedule over {epochs} epochs",
            recipe.optimizer.decay.name()
        ));
    }
    match &checkpoint.data {
        Some(data) if start == StartMode::Resume => sets.check(data)?,
        Some(_) => {}
        None => {
            observer.on_warning(&format!("{}: an older file: {}", last.display(), checkpoint::NO_CHECKSUMS));
        }
    }
    Ok(Some(checkpoint))
}

/// Checks that a run may change its number of epochs.
fn check_epochs(old: u64, epochs: u64, progress: &Progress, has_new_epochs: bool) -> Result<()> {
    if !has_new_epochs {
        return Err(Error::Epochs { old, epochs });
    }
    let begun = progress.epoch + u64::from(progress.batch > 0);
    if epochs < begun {
        return Err(Error::EpochsDone { begun, epochs });
    }
    Ok(())
}

/// Checks that all features and the model fit into memory.
fn check_memory(
    recipe: &Recipe,
    train: &UnreadSet,
    evaluation_sets: [&Vec<Utterance>; 2],
    labels: usize,
) -> Result<()> {
    let total_seconds = |utterances: &[Utterance]| utterances.iter().map(|u| u.seconds).sum::<f64>();
    let train_seconds = match train {
        // Concatenations contain each utterance once more.
        UnreadSet::Memory(train, _) if recipe.augment.join > 1 => 2.0 * total_seconds(train),
        UnreadSet::Memory(train, _) => total_seconds(train),
        UnreadSet::Disk(_) => 0.0,
    };
    let seconds = train_seconds + evaluation_sets.iter().map(|set| total_seconds(set)).sum::<f64>();
    let frames = seconds * 1000.0 / f64::from(recipe.features.hop_ms);
    let bytes = frames * (recipe.features.mels * size_of::<f32>()) as f64;
    let purpose = || format!("features of {:.1} hours of audio in [data]", seconds / 3600.0);
    model::Error::expect_memory(purpose, bytes as usize)?;
    let config = recipe.model_config();
    let shapes = Model::shapes(&config, labels)?;
    Ok(Model::check_memory(&config, &shapes, COPIES_PER_PARAMETER, COPIES_PER_FROZEN_PARAMETER)?)
}
