//! Decoding from outside.
mod golden;
mod table;
