//! A trained model that turns sound into text.
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

use decoding::{Aggregate, Boundaries};
use kernels::Brief;
use rayon::prelude::*;
use serde::Deserialize;
use speech::{Audio, AudioChange, Conversion, Features, FrontEnd, Tokenizer, Utterance};

use crate::align::Alignments;
use crate::bad_items::{BadItems, DEFAULT_MAX_BAD};
use crate::examples::{self, BatchSize, Example};
use crate::search::{SearchConfig, SearchResult, Searcher};
use crate::silence;
use crate::silence::MIN_WORD_POSTERIOR;
use crate::transcription::{Transcription, Writer};
use crate::unfused::UnfusedSearch;
use crate::{Error, Result};
use model::Model;
use model::checkpoint::{Checkpoint, RECIPE_PLACE, UNSUMMED};
use model::config::table::syntax_error;

/// Utterances that are aligned before the next ones are read: enough for a choice of batches of similar length.
const AT_ONCE: usize = 64;
/// Recordings that take less are recognized without a look at the available memory, which costs a system call.
const UNCHECKED_BYTES: usize = 64 << 20;

/// A model with its front end and its tokenizer, as a checkpoint holds them.
pub struct Recognizer {
    batches: BatchSize,
    ignores_special: bool,
    model: Model,
    /// None for a recognition lattice.
    decoder: Option<decoding::Model>,
    search: SearchConfig,
    /// Its buffers stay from call to call; calls from several threads take turns.
    searcher: Mutex<Searcher>,
    aggregate: Aggregate,
    tokenizer: Tokenizer,
    pub(crate) front_end: FrontEnd,
    conversion: Conversion,
    silence: f64,
    max_bad: f64,
    omits_special: bool,
    warning: Option<String>,
}

impl Recognizer {
    /// A recognizer of a model with its current weights; `batches` limits what it encodes at once.
    ///
    /// # Errors
    /// [`Error::Model`] for features that no front end computes; candle's own errors.
    pub fn new(model: Model, tokenizer: Tokenizer, batches: BatchSize) -> Result<Self> {
        let features = &model.config().input.features;
        let front_end = FrontEnd::new(features)?;
        let conversion = Conversion { resample: features.resample, ..Conversion::default() };
        let decoder = if model.lattice().is_none() { Some(model.decoder()?) } else { None };
        let search = SearchConfig::default_for(model.config());
        let searcher = Mutex::new(Searcher::new(&model, decoder.as_ref(), &search)?);
        Ok(Recognizer {
            batches,
            ignores_special: false,
            model,
            decoder,
            search,
            searcher,
            aggregate: Aggregate::default(),
            tokenizer,
            front_end,
            conversion,
            silence: MIN_WORD_POSTERIOR,
            max_bad: DEFAULT_MAX_BAD,
            omits_special: false,
            warning: None,
        })
    }

    /// Loads a checkpoint; the averaged weights if it has them.
    ///
    /// # Errors
    /// [`model::Error::Io`] or [`model::Error::Checkpoint`] if the file is missing, corrupt, truncated or foreign.
    pub fn load(path: &Path) -> Result<Self> {
        let checkpoint = Checkpoint::read(path)?;
        let config = checkpoint.model_config(path)?;
        let RecipeSettings { batch, tokens } = RecipeSettings::from_recipe(&checkpoint.recipe, path)?;
        let tokenizer = checkpoint.tokenizer(path)?;
        checkpoint.check(path, &Model::shapes(&config, tokenizer.size())?)?;
        let model = Model::new(&config, tokenizer.size())?;
        model.parameters().set(checkpoint.average.as_ref().unwrap_or(&checkpoint.weights))?;
        let mut recognizer = Self::new(model, tokenizer, batch)?;
        recognizer.ignores_special = tokens.ignore_special;
        recognizer.warning =
            (!checkpoint.summed).then(|| format!("{}: an older file: {}", path.display(), UNSUMMED));
        Ok(recognizer)
    }

    /// What a user should know of the checkpoint that it was loaded from, if anything.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// From now on, recordings may be converted so that the model can read them; without, other sample rates (unless the recipe
    /// resamples) and several channels are errors.
    pub fn with_conversion(mut self, conversion: Conversion) -> Self {
        self.conversion = conversion;
        self.conversion.resample |= self.model.config().input.features.resample;
        self
    }

    /// Discards texts that the model makes of silence: those without a word of at least this posterior.
    ///
    /// The posterior of a word is the product of those of its tokens. It is that of the model alone: where language models, phrases,
    /// penalties or a CTC head take part in the search, the words of a greedy search without them are judged instead, or, if it finds
    /// none, the largest probability of any label at a frame. Audio whose features are constant over time, such as digital silence
    /// or less than a window of sound, has no text. [`MIN_WORD_POSTERIOR`] by default; 0 keeps every text.
    ///
    /// # Errors
    /// [`Error::Shape`](model::Error::Shape) if it is not from 0 to 1.
    pub fn with_silence(mut self, posterior: f64) -> Result<Self> {
        if !(0.0..=1.0).contains(&posterior) {
            return Err(Error::shape("silence", "a posterior from 0 to 1", Brief(posterior).to_string()));
        }
        self.silence = posterior;
        Ok(self)
    }

    /// From now on, this share of a list may be left out since it cannot be used; [`DEFAULT_MAX_BAD`] by default. See [`crate::max_bad_count`] for
    /// how it is rounded.
    ///
    /// # Errors
    /// [`Error::Shape`](model::Error::Shape) if it is not from 0 to 1.
    pub fn with_max_bad(mut self, share: f64) -> Result<Self> {
        if !(0.0..=1.0).contains(&share) {
            return Err(Error::shape("max_bad", "a share from 0 to 1", Brief(share).to_string()));
        }
        self.max_bad = share;
        Ok(self)
    }

    /// Leaves special words, such as `<unk>`, out of texts; [`evaluate`](crate::evaluate()) leaves them out of references too.
    pub fn with_special_omitted(mut self, omits_special: bool) -> Self {
        self.omits_special = omits_special;
        self
    }

    /// The share of a list that may be left out.
    pub fn max_bad(&self) -> f64 {
        self.max_bad
    }

    /// What recordings may be converted to.
    pub fn conversion(&self) -> &Conversion {
        &self.conversion
    }

    /// Reads a recording, converted as it may be, and says what was done to it.
    ///
    /// # Errors
    /// [`Error::Speech`](model::Error::Speech), which names the file.
    pub fn read(&self, path: &Path) -> Result<(Audio, Vec<AudioChange>)> {
        Ok(speech::read_audio_as(path, self.front_end.config().sample_rate, &self.conversion)?)
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Whether the error rates of its recipe ignore special words.
    pub fn ignores_special(&self) -> bool {
        self.ignores_special
    }

    /// Limits of what it encodes at once.
    pub fn batch_size(&self) -> BatchSize {
        self.batches
    }

    /// Whether special words are left out of texts.
    pub fn omits_special(&self) -> bool {
        self.omits_special
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Utterances, read and converted as they may be, and those that cannot be used.
    pub(crate) fn examples(
        &self,
        utterances: &[Utterance],
        tokenizer: Option<&Tokenizer>,
    ) -> Result<(Vec<Example>, BadItems)> {
        let stop = AtomicBool::new(false);
        examples::load_usable(utterances, &self.front_end, tokenizer, &self.conversion, &stop)
    }

    /// When the words of the transcripts were said: the best path of each utterance, and what all paths say about it.
    ///
    /// An utterance without a path is no error; the result names it. An utterance that cannot be used, such as a recording that cannot
    /// be read or a text with a symbol that the model does not know, is left out and listed; [`BadItems::check`] says whether there are
    /// too many. Features are held for 64 utterances at a time.
    ///
    /// # Errors
    /// Those of the model, and those that are not about one utterance.
    pub fn align(&self, utterances: &[Utterance]) -> Result<Alignments> {
        let mut found = Alignments::new(self.model.config());
        for some in utterances.chunks(AT_ONCE) {
            let (examples, bad) = self.examples(some, Some(&self.tokenizer))?;
            found.bad.extend(bad);
            found.extend(&self.model, &self.tokenizer, self.batches, &examples)?;
        }
        Ok(found)
    }

    /// From now on, texts are looked for in this way; as [`SearchConfig::default_for`] says by default.
    ///
    /// # Errors
    /// [`Error::Decoding`](model::Error::Decoding) for an option outside its range; [`Error::Shape`](model::Error::Shape) for a search by CTC in a model that has no head for it,
    /// or one by a joint network or a lattice in a model that has none.
    pub fn with_search(mut self, search: SearchConfig) -> Result<Self> {
        self.searcher = Mutex::new(Searcher::new(&self.model, self.decoder.as_ref(), &search)?);
        self.search = search;
        Ok(self)
    }

    /// From now on, the confidences of its tokens make that of a word in this way; the lowest by default.
    pub fn with_aggregate(mut self, aggregate: Aggregate) -> Self {
        self.aggregate = aggregate;
        self
    }

    /// Recognises one recording.
    ///
    /// # Errors
    /// [`Error::Speech`](model::Error::Speech) if the audio has another sample rate than the model or is too short.
    pub fn transcribe(&self, audio: &Audio) -> Result<Transcription> {
        let mut found = self.transcribe_all(std::slice::from_ref(audio));
        found.pop().unwrap_or_else(|| Err(Error::Empty { what: "recordings".into() }))
    }

    /// Recognises some recordings together, which is faster than one by one and finds the same. One that cannot be recognised does not
    /// keep the others from it.
    ///
    /// # Errors
    /// For each, those of [`Self::transcribe`].
    pub fn transcribe_all(&self, recordings: &[Audio]) -> Vec<Result<Transcription>> {
        let features = |audio| {
            self.expect_memory(&[audio])?;
            Ok::<_, Error>(self.front_end.log_mel(audio)?)
        };
        let planes: Vec<_> = recordings.par_iter().map(features).collect();
        let good: Vec<&Features> = planes.iter().flatten().collect();
        let readable = recordings.iter().zip(&planes).filter(|(_, plane)| plane.is_ok());
        let readable: Vec<&Audio> = readable.map(|(audio, _)| audio).collect();
        let mut found = match self.expect_memory(&readable).and_then(|()| self.recognize(&good)) {
            Ok(found) => found.into_iter().map(Ok).collect(),
            // Whose fault it was is found out one by one.
            Err(error) if good.len() < 2 => vec![Err(error)],
            Err(_) => {
                let alone = |plane: &&Features| Ok(self.recognize(&[*plane])?.pop().unwrap_or_default());
                good.iter().map(alone).collect::<Vec<Result<SearchResult>>>()
            }
        }
        .into_iter();
        let mut write = |plane: &Features, audio: &Audio| match found.next() {
            Some(found) => {
                let lead =
                    self.front_end.trimmed_range(&audio.samples).start as f64 / f64::from(audio.sample_rate);
                Ok(self.written(plane, &found?)?.after(lead))
            }
            None => Ok(Transcription::default()),
        };
        planes.into_iter().zip(recordings).map(|(plane, audio)| write(&plane?, audio)).collect()
    }

    /// Checks that the memory is there for recordings that are recognized together.
    ///
    /// # Errors
    /// [`Error::Memory`].
    fn expect_memory(&self, recordings: &[&Audio]) -> Result<()> {
        let longest = recordings.iter().map(|audio| audio.samples.len()).max().unwrap_or(0);
        let input = &self.model.config().input;
        let frames = self.front_end.frames(longest);
        let features = recordings.len().saturating_mul(frames * input.features.mels * size_of::<f32>());
        let rows = frames.div_ceil(input.rows.stride.max(1));
        let encoding = self.model.encoding_bytes(recordings.len(), rows).unwrap_or(0);
        let bytes = features.saturating_add(encoding);
        if bytes < UNCHECKED_BYTES {
            return Ok(());
        }
        let seconds = longest as f64 / f64::from(input.features.sample_rate);
        Ok(model::Error::expect_memory(
            || format!("features and encoding of {seconds:.0} s of audio"),
            bytes,
        )?)
    }

    pub(crate) fn recognize(&self, planes: &[&Features]) -> Result<Vec<SearchResult>> {
        if planes.is_empty() {
            return Ok(Vec::new());
        }
        // A search that panicked has buffers that the next one overwrites.
        let mut searcher = self.searcher.lock().unwrap_or_else(PoisonError::into_inner);
        searcher.recognize(&self.model, planes, self.silence > 0.0)
    }

    /// What was found as text, or as silence.
    pub(crate) fn written(&self, plane: &Features, found: &SearchResult) -> Result<Transcription> {
        if silence::is_silence(plane, &self.tokenizer, found, self.silence) {
            return Ok(Transcription { silence: true, ..Transcription::default() });
        }
        self.writer().write_found(&self.tokenizer, found)
    }

    pub(crate) fn writer(&self) -> Writer {
        Writer::new(
            !self.model.durations().is_empty(),
            self.model.config().frame_ms() / 1000.0,
            self.aggregate,
        )
        .with_special_omitted(self.omits_special)
    }

    /// Of each label, 1 if it begins a word and 0 if not; in a tokenizer that writes spaces, they stand for the words behind them.
    pub fn word_starts(&self) -> Vec<u8> {
        crate::words::starts(&self.tokenizer)
    }

    /// Word boundaries around each class, for phrases that match whole words; none for a class that is no label, such as the blank.
    pub fn word_boundaries(&self) -> Vec<Option<Boundaries>> {
        let mut boundaries = crate::words::boundaries(&self.tokenizer);
        boundaries.resize(self.model.classes(), None);
        boundaries
    }

    /// The greedy search that the silence filter judges, where the search itself may find other labels.
    pub(crate) fn unfused_search(&self) -> Result<Option<UnfusedSearch>> {
        match self.search.needs_evidence() {
            true => {
                let decoder = self.decoder.clone().map_or_else(|| self.model.decoder(), Ok)?;
                Ok(Some(UnfusedSearch::new(decoder)?))
            }
            false => Ok(None),
        }
    }

    /// How texts are looked for.
    pub fn search(&self) -> &SearchConfig {
        &self.search
    }

    /// Least posterior of a word that is believed.
    pub fn silence(&self) -> f64 {
        self.silence
    }

    /// The model as the searches of [`decoding`] see it; none for a recognition lattice.
    pub fn decoder(&self) -> Option<&decoding::Model> {
        self.decoder.as_ref()
    }
}

/// The keys of a recipe that recognition follows; all others are ignored.
#[derive(Deserialize)]
struct RecipeSettings {
    batch: BatchSize,
    tokens: TokenSettings,
}

#[derive(Deserialize)]
struct TokenSettings {
    #[serde(default)]
    ignore_special: bool,
}

impl RecipeSettings {
    fn from_recipe(text: &str, path: &Path) -> Result<Self> {
        let place = Path::new(RECIPE_PLACE);
        toml::from_str(text).map_err(|error| {
            let source = Box::new(syntax_error(place, text, &error));
            model::Error::Inside { path: path.to_owned(), source }.into()
        })
    }
}
