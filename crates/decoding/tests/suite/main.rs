//! Decoding from outside.
mod agree;
mod golden;
mod greedy;
mod table;
