//! Tests of the public API of decoding.
mod beam;
mod beam_streams;
mod class_mask;
mod ctc;
mod enumeration;
mod greedy;
mod greedy_agreement;
mod joint_ctc;
mod paths;
mod table_models;
