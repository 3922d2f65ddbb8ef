//! Test program of the crate speech: one file a question.
//!
//! `real_corpora` reads real speech. `common`, `encoded`, `flac_bytes` and `mutants`
//! and `sentencepiece_bytes` are helpers.

mod audio;
mod augment;
mod batching;
mod common;
mod conversion;
mod corpus;
mod damaged_audio;
mod decoded_samples;
mod encoded;
mod error_rate;
mod features;
mod flac_bytes;
mod fuzzing;
mod hugging_face;
mod kaldi_features;
mod manifest;
mod mutants;
mod perturb;
mod prepare;
mod prepare_an4;
mod prepare_fsdd;
mod prepare_librispeech;
mod presets;
mod real_corpora;
mod sentencepiece;
mod sentencepiece_bytes;
mod shard_members;
mod special_tokens;
mod streams;
mod tokens;
mod unusual_audio_files;
mod wav_chunks;
mod wave;
