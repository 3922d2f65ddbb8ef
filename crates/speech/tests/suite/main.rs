//! The tests of this crate, a file for each of its modules; `corpora` reads real speech.

mod audio;
mod augment;
mod batching;
mod common;
mod conversion;
mod corpora;
mod corpus;
mod encoded;
mod encoders;
mod error_rate;
mod features;
mod flac_bytes;
mod formats;
mod fuzzing;
mod kaldi;
mod manifest;
mod mutants;
mod perturb;
mod prepare;
mod presets;
mod riff;
mod shard_members;
mod special_tokens;
mod streams;
mod tokens;
mod wave;
