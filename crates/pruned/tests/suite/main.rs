//! Tests of the pruned transducer's first pass; `plain` is its reference.

mod dense;
mod golden;
mod heads;
mod plain;
mod ranges;
mod robust;
