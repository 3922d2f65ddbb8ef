//! Decoding from outside.
mod agree;
mod beam;
mod ctc;
mod greedy;
mod table;
