//! Time and memory over the number of utterances: does memory grow with the batch?
use super::{Choice, thousands};
use crate::case::Knowledge::Vague;
use crate::case::Lengths::Ragged;
use crate::case::{Case, LossWork, Plan, Work};

const QUICK: [usize; 3] = [1, 2, 4];

/// Ragged batches of up to 139 frames and 27 labels, H = 256, C = 1,024.
pub fn plan(choice: &Choice) -> Plan {
    let all: Vec<usize> = (0..=10).map(|power| 1 << power).collect();
    let batches = if choice.quick { &QUICK[..] } else { &all };
    let case = |&batch: &usize| Case {
        name: format!("B={batch}"),
        mark: Some((batch as f64, thousands(batch))),
        work: Work::Loss(LossWork {
            batch,
            frames: 139,
            labels: 27,
            hidden: 256,
            classes: 1024,
            model: Vague,
            lengths: Ragged,
        }),
        systems: vec![choice.ours(), choice.dense()],
    };
    let cases = batches.iter().map(case).collect();
    Plan { suite: "batch", title: "139 frames x 27 labels, H = 256, C = 1,024", axis: "utterances", cases }
}
