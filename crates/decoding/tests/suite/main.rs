//! Decoding from outside.
mod agree;
mod beam;
mod greedy;
mod table;
