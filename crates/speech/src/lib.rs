//! Audio, features, transcripts and error rates for speech recognition.
//!
//! This crate reads recordings and their transcripts, computes log-mel features and label ids for
//! training, and scores hypotheses. It does not depend on networks.
//!
//! ```
//! use speech::{Audio, FeatureConfig, FrontEnd, Tokenizer, TokenizerKind, word_errors};
//!
//! let samples = (0..8000).map(|n| (n as f32 * 0.2).sin() * 0.1).collect();
//! let config = FeatureConfig { sample_rate: 8000, mels: 40, ..FeatureConfig::default() };
//! let features = FrontEnd::new(&config)?.log_mel(&Audio { samples, sample_rate: 8000 })?;
//! assert_eq!((features.frames, features.dim), (98, 40));
//!
//! let tokens = Tokenizer::train(TokenizerKind::Words, &["one two", "two three"])?;
//! assert_eq!(tokens.decode(&tokens.encode("three one")?)?, "three one");
//! assert_eq!(word_errors("three one", "three four").rate(), 0.5);
//! # Ok::<(), speech::Error>(())
//! ```
//!
//! Three types to know: [`Utterance`], a transcript with its audio segments; [`FrontEnd`], which
//! turns [`Audio`] into [`Features`]; and [`Tokenizer`], which turns texts into label ids.
//!
//! | module | contents |
//! |---|---|
//! | [`manifest`] | JSON Lines lists of utterances |
//! | [`prepare`] | checked manifests and shards of distributed corpora |
//! | [`corpus`] | manifests and tar shards, indexed and read one utterance at a time |
//! | [`utterance`] | transcripts and the audio segments that they consist of |
//! | [`audio`] | audio files, raw PCM, channels and sample rates |
//! | [`features`] | log-mel features, presets of published front ends, streaming |
//! | [`FrameEnergies`] | energies over the noise floor, and the speech in them |
//! | [`mel`] | mel scales and filters |
//! | [`wave`] | waveform augmentation: speed, reverberation, noise |
//! | [`perturb`], [`augment`] | resampling and masking of features |
//! | [`tokens`] | tokenizers |
//! | [`batching`] | batches of similar length |
//! | [`error_rate`] | word and character errors |
//! | [`files`] | atomic writing, safe reading, locks |
#![warn(missing_docs)]

mod alignment;
pub mod audio;
pub mod augment;
pub mod batching;
mod blank_lines;
mod bootstrap;
pub mod corpus;
mod decode_cache;
mod error;
pub mod error_rate;
mod feature_float;
pub mod features;
pub mod files;
mod frame_energies;
pub mod manifest;
pub mod mel;
pub mod memory;
pub mod names;
mod panic_guard;
pub mod perturb;
pub mod prepare;
mod sentence_marks;
pub mod tokens;
mod unicode;
pub mod utterance;
pub mod wave;

pub use alignment::{Edit, align};
pub use audio::{
    Audio, AudioChange, AudioChunks, Channel, Conversion, PcmDecoder, PcmReader, ResampleStream,
    check_samples, read_audio, read_audio_as, resample,
};
pub use augment::{MaskFill, MaskForm, Masks, SpecAugment};
pub use batching::plan_batches;
pub use blank_lines::BlankLines;
pub use bootstrap::{bootstrap_interval, sum_by_speaker};
pub use corpus::Corpus;
pub use decode_cache::{clear_decode_cache, read_segment};
pub use error::{Error, Result, is_system_error};
pub use error_rate::{ErrorCounts, character_errors, characters, error_counts, word_errors, words};
pub use features::{FeatureConfig, FeatureStream, Features, FrontEnd, Normalization, Preset, StackStream};
pub use frame_energies::FrameEnergies;
pub use manifest::{Manifest, read_manifest};
pub use mel::{MelKind, MelScale};
pub use perturb::Perturbation;
pub use sentence_marks::{find_sentence_mark, strip_sentence_marks};
pub use tokens::{Tokenizer, TokenizerKind, TokenizerOptions, find_bracketed};
pub use unicode::UnicodeForm;
pub use utterance::{AudioSegment, Span, Utterance};
pub use wave::{WaveAugment, WaveConfig};
