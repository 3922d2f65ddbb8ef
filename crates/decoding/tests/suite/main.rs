//! Decoding from outside.
mod beam;
mod ctc;
mod golden;
mod table;
