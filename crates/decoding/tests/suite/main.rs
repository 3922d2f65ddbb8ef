//! Decoding from outside.
mod beam;
mod golden;
mod table;
