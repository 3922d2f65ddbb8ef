//! A trained model that turns sound into text.
use std::path::Path;
use std::sync::atomic::AtomicBool;

use decoding::{Greedy, greedy};
use speech::{Audio, FrontEnd, Tokenizer, Utterance};

use crate::Result;
use crate::align::Alignments;
use crate::checkpoint::Checkpoint;
use crate::data::{self, Example};
use crate::evaluate::Evaluation;
use crate::model::{JointRows, Model};
use crate::recipe::Recipe;
use crate::stepwise::Stepwise;
use crate::tensors::with_slice;

/// Utterances that are aligned before the next ones are read: enough for a choice of batches of similar length.
const AT_ONCE: usize = 64;

/// A model with its front end and its tokenizer, as a checkpoint holds them.
pub struct Recogniser {
    recipe: Recipe,
    model: Model,
    stepwise: Stepwise,
    tokenizer: Tokenizer,
    front_end: FrontEnd,
    warning: Option<String>,
}

/// A label with the time at which the model was sure of it.
#[derive(Debug, Clone, PartialEq)]
pub struct TimedToken {
    /// The token's own text.
    pub text: String,
    /// Seconds from the start of the audio.
    pub seconds: f64,
    /// Natural log-probability.
    pub log_prob: f64,
}

/// Text with the times of its tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Transcription {
    /// The recognised text.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<TimedToken>,
}

impl Recogniser {
    /// Loads a checkpoint; the averaged weights if it has them.
    ///
    /// # Errors
    /// [`crate::Error::Io`] or [`crate::Error::Checkpoint`] if the file is missing, corrupt, truncated or foreign.
    pub fn load(path: &Path) -> Result<Self> {
        let checkpoint = Checkpoint::read(path)?;
        let recipe = checkpoint.recipe(path)?;
        let tokenizer = checkpoint.tokenizer(path)?;
        let front_end = FrontEnd::new(&recipe.features)?;
        checkpoint.check(path, &Model::shapes(&recipe, tokenizer.size())?)?;
        let model = Model::new(&recipe, tokenizer.size())?;
        model.parameters().set(checkpoint.average.as_ref().unwrap_or(&checkpoint.weights))?;
        let stepwise = Stepwise::new(&model)?;
        let warning = (!checkpoint.summed)
            .then(|| format!("{}: an older file: {}", path.display(), crate::checkpoint::UNSUMMED));
        Ok(Recogniser { recipe, model, stepwise, tokenizer, front_end, warning })
    }

    /// What a user should know of the checkpoint that it was loaded from, if anything.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The recipe that the model was trained with.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// What the loss of some utterances is computed from, all in one padded batch.
    ///
    /// # Errors
    /// [`crate::Error::Empty`] for an empty list; [`crate::Error::Speech`] for audio or text that the model cannot read.
    pub fn joint_rows(&self, utterances: &[Utterance]) -> Result<JointRows> {
        if utterances.is_empty() {
            return Err(crate::Error::Empty { what: "batch".into() });
        }
        let examples = data::load(utterances, &self.front_end, Some(&self.tokenizer))?;
        let planes: Vec<_> = examples.iter().map(|example| &example.features).collect();
        let (rows, lengths) = data::collate(&planes, &self.recipe.encoder.rows)?;
        let labels: Vec<Vec<u32>> = examples.iter().map(|example| example.labels.clone()).collect();
        self.model.joint_rows(&rows, &lengths, &labels)
    }

    /// When the words of the transcripts were said: the best path of each utterance, and what all paths say about it.
    ///
    /// An utterance without a path is no error; the result names it. Features are held for 64 utterances at a time.
    ///
    /// # Errors
    /// [`crate::Error::Empty`] for an empty list; [`crate::Error::Speech`] for audio that cannot be read, or a text with a symbol
    /// that the model does not know.
    pub fn align(&self, utterances: &[Utterance]) -> Result<Alignments> {
        if utterances.is_empty() {
            return Err(crate::Error::Empty { what: "alignment".into() });
        }
        let mut found = Alignments::new(&self.recipe);
        for some in utterances.chunks(AT_ONCE) {
            let examples = data::load(some, &self.front_end, Some(&self.tokenizer))?;
            found.extend(&self.model, &self.tokenizer, &self.recipe, &examples)?;
        }
        Ok(found)
    }

    /// Recognises one recording, greedily.
    ///
    /// # Errors
    /// [`crate::Error::Speech`] if the audio has another sample rate than the model or is too short.
    pub fn transcribe(&self, audio: &Audio) -> Result<Transcription> {
        let plane = self.front_end.log_mel(audio)?;
        let (rows, lengths) = data::collate(&[&plane], &self.recipe.encoder.rows)?;
        let (frames, _) = self.model.encode(&rows, &lengths)?;
        let options = Greedy::default();
        let found = with_slice(&frames, |frames: &[f32]| Ok(greedy(&self.stepwise, frames, &options)))??;
        let seconds = self.recipe.frame_ms() / 1000.0;
        let names = self.tokenizer.tokens();
        let labels = found.labels.iter().zip(&found.frames).zip(&found.log_probs);
        let tokens = labels.map(|((&label, &frame), &log_prob)| TimedToken {
            text: names[label as usize].clone(),
            seconds: frame as f64 * seconds,
            log_prob,
        });
        let tokens = tokens.collect();
        Ok(Transcription { text: self.tokenizer.decode(&found.labels)?, tokens })
    }
}

/// Recognises every utterance of a list and counts word errors, for each subset apart and overall.
///
/// # Errors
/// [`crate::Error::Empty`] for an empty list; [`crate::Error::Speech`] for audio that cannot be read.
pub fn evaluate(recogniser: &Recogniser, utterances: &[Utterance]) -> Result<Evaluation> {
    let examples: Vec<Example> = data::load(utterances, &recogniser.front_end, None)?;
    let Recogniser { model, tokenizer, recipe, .. } = recogniser;
    crate::evaluate::evaluate(model, tokenizer, recipe, &examples, &AtomicBool::new(false))
}
