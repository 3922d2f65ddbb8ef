//! Tests of this crate; `plain` is the first pass in plain loops.

mod dense;
mod golden;
mod heads;
mod plain;
mod ranges;
mod robust;
