//! Decoding from outside.
mod agree;
mod beam;
mod beam_streams;
mod ctc;
mod enumeration;
mod greedy;
mod joint_ctc;
mod paths;
mod table;
