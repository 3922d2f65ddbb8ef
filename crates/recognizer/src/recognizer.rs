//! `Recognizer`: transcribes and aligns recordings with a trained checkpoint.
//!
//! recording → front end → features → encoder and search ([`Searcher`], in one batch) → silence
//! filter → text with times ([`TranscriptionBuilder`]).
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

use decoding::{ClassMask, ConfidenceAggregation, WordBoundaries};
use kernels::ShortFloat;
use rayon::prelude::*;
use serde::Deserialize;
use speech::{Audio, AudioChange, Conversion, Features, FrontEnd, Tokenizer, Utterance};

use crate::align::Alignments;
use crate::bad_items::{BadItems, DEFAULT_MAX_BAD};
use crate::examples::{self, BatchSize, Example};
use crate::search::{SearchResult, Searcher};
use crate::search_config::SearchConfig;
use crate::silence::{self, MIN_WORD_POSTERIOR};
use crate::token_filter::TokenFilter;
use crate::transcription::{Transcription, TranscriptionBuilder};
use crate::unfused::UnfusedSearch;
use crate::{Error, Result};
use model::checkpoint::{NO_CHECKSUMS, RECIPE_LOCATION};
use model::config::table::syntax_error;
use model::encoders::NumberFormat;
use model::{CheckpointFile, Model};

/// Utterances aligned at a time, for batches of similar length.
const UTTERANCES_PER_ALIGNMENT: usize = 64;
/// Recordings of fewer bytes are recognized without checking the available memory.
///
/// The check costs a system call.
const MAX_UNCHECKED_BYTES: usize = 64 << 20;

/// A trained model with its front end and tokenizer.
pub struct Recognizer {
    /// Limits of the encoder's batches.
    batch_limits: BatchSize,
    /// Whether the error rates of the recipe ignore special words.
    ignores_special: bool,
    /// The model; its encoder has packed weights if its kind supports them.
    model: Model,
    /// The decoder of a transducer; `None` for other models.
    decoder: Option<decoding::DecodingModel>,
    /// Whether each label may be emitted; `None` allows all.
    allowed_labels: Option<Vec<bool>>,
    search: SearchConfig,
    /// The search with its reused buffers; concurrent calls take turns.
    searcher: Mutex<Searcher>,
    confidence_aggregation: ConfidenceAggregation,
    tokenizer: Tokenizer,
    pub(crate) front_end: FrontEnd,
    /// Allowed conversions of recordings.
    conversion: Conversion,
    /// Smallest posterior of a word that is not silence.
    min_posterior: f64,
    /// Fraction of a list that may be excluded.
    max_bad: f64,
    /// Whether texts omit special words.
    omits_special: bool,
    /// The warning about an old checkpoint file.
    checkpoint_warning: Option<String>,
}

impl Recognizer {
    /// Creates a recognizer of a model with its current weights.
    ///
    /// The encoder computes in `f32`, or in the format of [`Model::for_inference`] if the model is
    /// the result of it. `batches` limits the batches of the encoder.
    ///
    /// # Errors
    /// [`Error::Model`] for features that no front end computes; candle's errors.
    pub fn new(model: Model, tokenizer: Tokenizer, batches: BatchSize) -> Result<Self> {
        let model = match model.encoder_format() {
            Some(_) => model,
            None => model.for_inference(NumberFormat::F32)?,
        };
        let features = &model.config().input.features;
        let front_end = FrontEnd::new(features)?;
        let conversion = Conversion { resample: features.resample, ..Conversion::default() };
        let is_transducer = model.lattice().is_none() && !model.is_ctc();
        let decoder = if is_transducer { Some(model.decoder()?) } else { None };
        let search = SearchConfig::default_for(model.config());
        let searcher = Mutex::new(Searcher::new(&model, decoder.as_ref(), None, &search)?);
        Ok(Recognizer {
            batch_limits: batches,
            ignores_special: false,
            model,
            decoder,
            allowed_labels: None,
            search,
            searcher,
            confidence_aggregation: ConfidenceAggregation::default(),
            tokenizer,
            front_end,
            conversion,
            min_posterior: MIN_WORD_POSTERIOR,
            max_bad: DEFAULT_MAX_BAD,
            omits_special: false,
            checkpoint_warning: None,
        })
    }

    /// Loads a checkpoint, with averaged weights if available.
    ///
    /// The encoder has the number format of the file: `f32` unless [`model::quantize()`] wrote it.
    ///
    /// # Errors
    /// Those of [`Self::load_as`].
    pub fn load(path: &Path) -> Result<Self> {
        let file = CheckpointFile::open(path)?;
        let format = file.format();
        Self::from_file(&file, path, format)
    }

    /// Loads a checkpoint with a number format of the encoder.
    ///
    /// bf16 needs half of the memory, q8 little more than a quarter; FastConformers need less time
    /// with them on CPUs with instructions for them. bf16 requires a FastConformer encoder; q8
    /// includes an LSTM predictor and the joint network. The memory is that of
    /// [`Model::read_for_inference`].
    ///
    /// # Errors
    /// [`model::Error::Io`] or [`model::Error::Checkpoint`] if the file is missing, corrupt,
    /// truncated or not a checkpoint; those of [`Model::for_inference`].
    pub fn load_as(path: &Path, format: NumberFormat) -> Result<Self> {
        Self::from_file(&CheckpointFile::open(path)?, path, format)
    }

    fn from_file(file: &CheckpointFile, path: &Path, format: NumberFormat) -> Result<Self> {
        let config = file.model_config()?;
        let RecipeSettings { batch, tokens } = RecipeSettings::from_recipe(&file.recipe(), path)?;
        let tokenizer = file.tokenizer()?;
        let model = Model::from_file(file, &config, tokenizer.size(), format)?;
        let mut recognizer = Self::new(model, tokenizer, batch)?;
        recognizer.ignores_special = tokens.ignore_special;
        recognizer.checkpoint_warning =
            (!file.has_checksums()).then(|| format!("{}: an older file: {}", path.display(), NO_CHECKSUMS));
        Ok(recognizer)
    }

    /// Returns a warning about the checkpoint, if any.
    pub fn warning(&self) -> Option<&str> {
        self.checkpoint_warning.as_deref()
    }

    /// Allows conversions of recordings.
    ///
    /// By default, other sample rates (unless the recipe resamples) and several channels are
    /// errors.
    pub fn with_conversion(mut self, conversion: Conversion) -> Self {
        self.conversion = conversion;
        self.conversion.resample |= self.model.config().input.features.resample;
        self
    }

    /// Discards texts without a word of at least this posterior as silence.
    ///
    /// The default is [`MIN_WORD_POSTERIOR`]; 0 keeps every text. The posterior of a word is the
    /// product of those of its tokens, by the model only: if language models, phrases, penalties or
    /// a CTC head take part in the search, the words of a greedy search without them are used or,
    /// if it finds none, the largest probability of any label at a frame. Audio with constant
    /// features, such as digital silence or less than a window, has no text.
    ///
    /// # Errors
    /// [`Error::Shape`](model::Error::Shape) if `posterior` is not from 0 to 1.
    pub fn with_silence(mut self, posterior: f64) -> Result<Self> {
        if !(0.0..=1.0).contains(&posterior) {
            return Err(Error::shape(
                "silence",
                "a posterior from 0 to 1",
                ShortFloat(posterior).to_string(),
            ));
        }
        self.min_posterior = posterior;
        Ok(self)
    }

    /// Sets the fraction of a list that may be excluded.
    ///
    /// The default is [`DEFAULT_MAX_BAD`]; [`crate::max_bad_count`] describes the rounding.
    ///
    /// # Errors
    /// [`Error::Shape`](model::Error::Shape) if `fraction` is not from 0 to 1.
    pub fn with_max_bad(mut self, fraction: f64) -> Result<Self> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Error::shape("max_bad", "a share from 0 to 1", ShortFloat(fraction).to_string()));
        }
        self.max_bad = fraction;
        Ok(self)
    }

    /// Omits special words, such as `<unk>`, from texts.
    ///
    /// [`evaluate`](crate::evaluate()) omits them from references too.
    pub fn with_special_omitted(mut self, omits_special: bool) -> Self {
        self.omits_special = omits_special;
        self
    }

    /// Returns the fraction of a list that may be excluded.
    pub fn max_bad(&self) -> f64 {
        self.max_bad
    }

    /// Returns the allowed conversions.
    pub fn conversion(&self) -> &Conversion {
        &self.conversion
    }

    /// Reads a recording; returns the applied conversions too.
    ///
    /// # Errors
    /// [`Error::Speech`](model::Error::Speech), which names the file.
    pub fn read(&self, path: &Path) -> Result<(Audio, Vec<AudioChange>)> {
        Ok(speech::read_audio_as(path, self.front_end.config().sample_rate, &self.conversion)?)
    }

    /// Returns the model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Returns whether the error rates of the recipe ignore special words.
    pub fn ignores_special(&self) -> bool {
        self.ignores_special
    }

    /// Returns the limits of the encoder's batches.
    pub(crate) fn batch_limits(&self) -> BatchSize {
        self.batch_limits
    }

    /// Returns whether special words are omitted from texts.
    pub(crate) fn omits_special(&self) -> bool {
        self.omits_special
    }

    /// Returns the tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Loads utterances with the allowed conversions, without bad ones.
    pub(crate) fn load_examples(
        &self,
        utterances: &[Utterance],
        tokenizer: Option<&Tokenizer>,
    ) -> Result<(Vec<Example>, BadItems)> {
        let stop = AtomicBool::new(false);
        examples::load_usable(utterances, &self.front_end, tokenizer, &self.conversion, &stop)
    }

    /// Aligns transcripts with their audio.
    ///
    /// The result has the best path of each utterance, and posteriors over all paths. An utterance
    /// without a path is not an error; the result names it. A bad utterance, such as one with
    /// an unreadable recording or an unknown symbol in its text, is excluded and listed;
    /// [`BadItems::check`] limits their number. Features of 64 utterances are in memory at a time.
    ///
    /// # Errors
    /// Those of the model, and those that do not concern one utterance.
    pub fn align(&self, utterances: &[Utterance]) -> Result<Alignments> {
        let mut alignments = Alignments::new(self.model.config());
        for chunk in utterances.chunks(UTTERANCES_PER_ALIGNMENT) {
            let (examples, bad) = self.load_examples(chunk, Some(&self.tokenizer))?;
            alignments.bad.extend(bad);
            alignments.extend(&self.model, &self.tokenizer, self.batch_limits, &examples)?;
        }
        Ok(alignments)
    }

    /// Sets the search; the default depends on the model.
    ///
    /// # Errors
    /// [`Error::Decoding`](model::Error::Decoding) for an option out of range;
    /// [`Error::Shape`](model::Error::Shape) for a search that needs a CTC head, a joint network or
    /// a lattice that the model does not have.
    pub fn with_search(mut self, search: SearchConfig) -> Result<Self> {
        self.searcher = Mutex::new(self.new_searcher(&search)?);
        self.search = search;
        Ok(self)
    }

    /// Restricts the tokens that searches may emit; the default allows all.
    ///
    /// Log-probabilities and confidences are those of the distribution over the allowed tokens and
    /// the blanks ([`ClassMask`]); the silence filter uses the same distribution. Alignments are
    /// unchanged, as their texts are given.
    ///
    /// # Errors
    /// [`Error::Shape`](model::Error::Shape) for a recognition lattice; those of
    /// [`TokenFilter::allowed_tokens`].
    pub fn with_tokens(mut self, filter: &TokenFilter) -> Result<Self> {
        if self.model.lattice().is_some() {
            let (expected, found) =
                ("a transducer or a CTC model for a token filter", "a recognition lattice");
            return Err(Error::shape("model", expected, found));
        }
        let is_allowed = filter.allowed_tokens(&self.tokenizer)?;
        self.allowed_labels = is_allowed.contains(&false).then_some(is_allowed);
        if self.decoder.is_some() {
            let decoder = self.model.decoder()?;
            self.decoder = Some(match self.class_mask(self.model.classes()) {
                Some(mask) => decoder.with_mask(&mask)?,
                None => decoder,
            });
        }
        self.searcher = Mutex::new(self.new_searcher(&self.search)?);
        Ok(self)
    }

    /// Returns the mask of the classes of a head: labels, then blanks.
    fn class_mask(&self, classes: usize) -> Option<ClassMask> {
        let mut is_allowed = self.allowed_labels.clone()?;
        is_allowed.resize(classes, true);
        Some(ClassMask::new(&is_allowed))
    }

    /// Returns the mask of the CTC head, which has one blank.
    pub(crate) fn ctc_mask(&self) -> Option<ClassMask> {
        self.class_mask(self.model.blank() as usize + 1)
    }

    /// Creates a search in the model with the allowed tokens.
    fn new_searcher(&self, search: &SearchConfig) -> Result<Searcher> {
        Searcher::new(&self.model, self.decoder.as_ref(), self.ctc_mask(), search)
    }

    /// Sets how token confidences combine to that of a word; the default is the minimum.
    pub fn with_aggregate(mut self, aggregate: ConfidenceAggregation) -> Self {
        self.confidence_aggregation = aggregate;
        self
    }

    /// Recognizes one recording.
    ///
    /// # Errors
    /// [`Error::Speech`](model::Error::Speech) if the audio has another sample rate than the model
    /// or is too short.
    pub fn transcribe(&self, audio: &Audio) -> Result<Transcription> {
        let mut results = self.transcribe_all(std::slice::from_ref(audio));
        results.pop().unwrap_or_else(|| Err(Error::Empty { what: "recordings".into() }))
    }

    /// Recognizes recordings in one batch.
    ///
    /// This is faster than one by one, with the same results. A recording that cannot be recognized
    /// does not affect the others.
    ///
    /// # Errors
    /// For each recording, those of [`Self::transcribe`].
    pub fn transcribe_all(&self, recordings: &[Audio]) -> Vec<Result<Transcription>> {
        // 1. Features of each recording, or its error.
        let features_of = |audio| {
            self.expect_memory(&[audio])?;
            Ok::<_, Error>(self.front_end.log_mel(audio)?)
        };
        let all_features: Vec<_> = recordings.par_iter().map(features_of).collect();
        let good_features: Vec<&Features> = all_features.iter().flatten().collect();
        let readable = recordings.iter().zip(&all_features).filter(|(_, features)| features.is_ok());
        let readable: Vec<&Audio> = readable.map(|(audio, _)| audio).collect();
        // 2. Search in one batch.
        let mut results = match self.expect_memory(&readable).and_then(|()| self.recognize(&good_features)) {
            Ok(results) => results.into_iter().map(Ok).collect(),
            // Recordings are retried one by one, so that only the bad ones fail.
            Err(error) if good_features.len() < 2 => vec![Err(error)],
            Err(_) => {
                let recognize_one =
                    |features: &&Features| Ok(self.recognize(&[*features])?.pop().unwrap_or_default());
                good_features.iter().map(recognize_one).collect::<Vec<Result<SearchResult>>>()
            }
        }
        .into_iter();
        // 3. Texts in the order of the recordings.
        let mut next_transcription = |features: &Features, audio: &Audio| match results.next() {
            Some(result) => {
                let trimmed_seconds =
                    self.front_end.trimmed_range(&audio.samples).start as f64 / f64::from(audio.sample_rate);
                Ok(self.to_transcription(features, &result?)?.delayed_by(trimmed_seconds))
            }
            None => Ok(Transcription::default()),
        };
        all_features
            .into_iter()
            .zip(recordings)
            .map(|(features, audio)| next_transcription(&features?, audio))
            .collect()
    }

    /// Checks that a batch of recordings fits into memory.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub(crate) fn expect_memory(&self, recordings: &[&Audio]) -> Result<()> {
        let longest = recordings.iter().map(|audio| audio.samples.len()).max().unwrap_or(0);
        let input = &self.model.config().input;
        let frames = self.front_end.frames(longest);
        let feature_bytes = recordings.len().saturating_mul(frames * input.features.mels * size_of::<f32>());
        let rows = frames.div_ceil(input.rows.stride.max(1));
        let encoding_bytes = self.model.encoding_bytes(recordings.len(), rows).unwrap_or(0);
        let bytes = feature_bytes.saturating_add(encoding_bytes);
        if bytes < MAX_UNCHECKED_BYTES {
            return Ok(());
        }
        let seconds = longest as f64 / f64::from(input.features.sample_rate);
        Ok(model::Error::expect_memory(
            || format!("features and encoding of {seconds:.0} s of audio"),
            bytes,
        )?)
    }

    /// Encodes and searches the features of a batch.
    pub(crate) fn recognize(&self, features: &[&Features]) -> Result<Vec<SearchResult>> {
        if features.is_empty() {
            return Ok(Vec::new());
        }
        // A search that panicked leaves buffers that the next one overwrites.
        let mut searcher = self.searcher.lock().unwrap_or_else(PoisonError::into_inner);
        searcher.recognize(&self.model, features, self.min_posterior > 0.0)
    }

    /// Converts a search result to text, or to silence.
    pub(crate) fn to_transcription(
        &self,
        features: &Features,
        result: &SearchResult,
    ) -> Result<Transcription> {
        if silence::is_silence(features, &self.tokenizer, result, self.min_posterior) {
            return Ok(Transcription { is_discarded: true, ..Transcription::default() });
        }
        self.transcription_builder().build_from_result(&self.tokenizer, result)
    }

    /// Returns the conversion of labels to text with times.
    pub(crate) fn transcription_builder(&self) -> TranscriptionBuilder {
        TranscriptionBuilder::new(
            !self.model.durations().is_empty(),
            self.model.config().frame_ms() / 1000.0,
            self.confidence_aggregation,
        )
        .with_special_omitted(self.omits_special)
    }

    /// Returns 1 for each label that begins a word, otherwise 0.
    ///
    /// In a tokenizer with labels for spaces, a space stands for the word after it.
    pub fn word_starts(&self) -> Vec<u8> {
        crate::words::word_starts(&self.tokenizer)
    }

    /// Returns the word boundaries of each class, for whole-word phrases.
    ///
    /// `None` for a class that is not a label, such as the blank.
    pub fn word_boundaries(&self) -> Vec<Option<WordBoundaries>> {
        let mut boundaries = crate::words::word_boundaries(&self.tokenizer);
        boundaries.resize(self.model.classes(), None);
        boundaries
    }

    /// Creates the greedy search for the silence filter, if needed.
    pub(crate) fn new_unfused_search(&self) -> Result<Option<UnfusedSearch>> {
        match self.search.needs_unfused_search() {
            true => {
                let decoder = self.decoder.clone().map_or_else(|| self.model.decoder(), Ok)?;
                Ok(Some(UnfusedSearch::new(decoder)?))
            }
            false => Ok(None),
        }
    }

    /// Returns whether the search supports streaming.
    ///
    /// True for greedy search (with the CTC head only in CTC models), and for beam search with a
    /// single result and no CTC head whose kind
    /// [supports it](decoding::BeamKind::supports_streaming).
    pub fn supports_streams(&self) -> bool {
        self.search.supports_streams(&self.model)
    }

    /// Returns the search.
    pub fn search(&self) -> &SearchConfig {
        &self.search
    }

    /// Returns the smallest posterior of an accepted word.
    pub(crate) fn min_posterior(&self) -> f64 {
        self.min_posterior
    }

    /// Returns the decoder of a transducer; `None` for other models.
    pub fn decoder(&self) -> Option<&decoding::DecodingModel> {
        self.decoder.as_ref()
    }
}

/// The recipe keys for recognition; all others are ignored.
#[derive(Deserialize)]
struct RecipeSettings {
    batch: BatchSize,
    tokens: TokenSettings,
}

/// The section `[tokens]` of a recipe.
#[derive(Deserialize)]
struct TokenSettings {
    #[serde(default)]
    ignore_special: bool,
}

impl RecipeSettings {
    fn from_recipe(text: &str, path: &Path) -> Result<Self> {
        let recipe_path = Path::new(RECIPE_LOCATION);
        toml::from_str(text).map_err(|error| {
            let source = Box::new(syntax_error(recipe_path, text, &error));
            model::Error::Inside { path: path.to_owned(), source }.into()
        })
    }
}
