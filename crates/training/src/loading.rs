//! What a run begins with: the checkpoint that it goes on from, the tokenizer, and all data, checked against each other.
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use speech::{FrontEnd, Tokenizer, Utterance, WaveAugment};

use crate::checkpoint::{self, Checkpoint};
use crate::data::{self, Example};
use crate::model::Model;
use crate::observer::Observer;
use crate::recipe::Recipe;
use crate::run_folder::{RunFolder, Start};
use crate::{Error, Fingerprint, Result, Sets, doubts, memory};

/// Numbers that a training holds of each parameter at most: itself, its gradient, two moments and an average, and all but the
/// gradient in a checkpoint that is being written, once as values and once as bytes.
const COPIES: usize = 13;

/// What a run begins with, before it has written anything.
pub(crate) struct Loaded {
    pub resumed: Option<Checkpoint>,
    pub tokenizer: Tokenizer,
    pub front_end: FrontEnd,
    pub examples: Vec<Example>,
    pub dev: Vec<Example>,
    pub test: Vec<Example>,
    pub data: Fingerprint,
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
        folder: &RunFolder,
        start: Start,
        observer: &mut dyn Observer,
        stop: &AtomicBool,
    ) -> std::result::Result<Self, Stopped> {
        let read = |set, manifests: &[PathBuf]| match manifests.is_empty() {
            true => Ok(Vec::new()),
            false => data::read_manifests(set, manifests),
        };
        let train = data::read_manifests("data.train", &recipe.data.train)?;
        let (dev, test) = (read("data.dev", &recipe.data.dev)?, read("data.test", &recipe.data.test)?);
        let sets = Sets { train: &train, dev: &dev, test: &test };
        let resumed = resume(recipe, sets, folder, start, observer)?;
        let tokenizer = match &resumed {
            Some(checkpoint) => checkpoint.tokenizer(&folder.last())?,
            None => {
                let texts: Vec<&str> = train.iter().map(|utterance| utterance.text.as_str()).collect();
                Tokenizer::train(recipe.tokens.kind, &texts)?
            }
        };
        let doubts = [
            doubts::repeated("data.train", &train),
            doubts::unknown("data.dev", &dev, &tokenizer),
            doubts::unknown("data.test", &test, &tokenizer),
        ];
        doubts.iter().flatten().for_each(|doubt| observer.on_warning(doubt));
        expect_room(recipe, sets, tokenizer.size())?;

        let front_end = FrontEnd::new(&recipe.features)?;
        let wave =
            WaveAugment::new(&recipe.augment.wave(), recipe.features.sample_rate, recipe.features.resample);
        if !wave.map_err(Error::from)?.is_none() {
            return Err(Stopped::By(Error::RecipeValue {
                key: "augment".into(),
                expected: "no speed, reverb or noise, where features are computed once and stay in memory"
                    .into(),
                found: "some".into(),
            }));
        }
        let mut load = |set, utterances: &[Utterance], tokenizer| {
            let examples = data::load(utterances, &front_end, tokenizer, stop)?;
            doubts::lengths(set, &examples).iter().for_each(|doubt| observer.on_warning(doubt));
            Ok::<_, Error>(examples)
        };
        let mut all = || -> Result<_> {
            let mut examples = load("data.train", &train, Some(&tokenizer))?;
            let joined = data::joined(&train, recipe.augment.join, recipe.seed);
            examples.extend(data::load(&joined, &front_end, Some(&tokenizer), stop)?);
            Ok([examples, load("data.dev", &dev, None)?, load("data.test", &test, None)?])
        };
        let data = Fingerprint::new(sets);
        let [examples, dev, test] = match all() {
            Err(Error::Stopped) => {
                return Err(Stopped::At(resumed.map_or(0, |checkpoint| checkpoint.progress.step)));
            }
            loaded => loaded?,
        };
        Ok(Self { resumed, tokenizer, front_end, examples, dev, test, data })
    }
}

/// The checkpoint that a run goes on from, if it does: one of the same recipe and the same data.
fn resume(
    recipe: &Recipe,
    sets: Sets,
    folder: &RunFolder,
    start: Start,
    observer: &mut dyn Observer,
) -> Result<Option<Checkpoint>> {
    let last = folder.last();
    if !(matches!(start, Start::Resume | Start::ResumeChanged) && last.exists()) {
        return Ok(None);
    }
    let checkpoint = folder.read_last()?;
    if let Some(difference) = recipe.difference(&checkpoint.recipe(&last)?) {
        return Err(Error::checkpoint(&last, "a run of this very recipe", difference));
    }
    match &checkpoint.data {
        Some(data) if start == Start::Resume => data.check(sets)?,
        Some(_) => {}
        None => {
            observer.on_warning(&format!("{}: an older file: {}", last.display(), checkpoint::UNSUMMED));
        }
    }
    Ok(Some(checkpoint))
}

/// Fails where the features of all sets, or the model in training, are more than there is room for.
fn expect_room(recipe: &Recipe, sets: Sets, labels: usize) -> Result<()> {
    let again = if recipe.augment.join > 1 { sets.train } else { &[] };
    let all = sets.train.iter().chain(again).chain(sets.dev).chain(sets.test);
    let seconds: f64 = all.map(|utterance| utterance.seconds).sum();
    let frames = seconds * 1000.0 / f64::from(recipe.features.hop_ms);
    let bytes = frames * (recipe.features.mels * size_of::<f32>()) as f64;
    let what = || format!("features of {:.1} hours of audio in [data]", seconds / 3600.0);
    memory::expect(what, bytes as usize)?;
    Model::fits(recipe, &Model::shapes(recipe, labels)?, COPIES)
}
