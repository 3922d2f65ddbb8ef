//! Tests of the first pass; `plain` is its reference in plain loops.

mod dense;
mod golden;
mod heads;
mod plain;
mod ranges;
mod robust;
