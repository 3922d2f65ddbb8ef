//! Pruning leaves out sites, the selected normaliser keeps no classes: either alone, both and neither, over the classes.
use rnnt_loss::DEFAULT_BUDGET;

use super::{Choice, thousands};
use crate::case::Knowledge::Vague;
use crate::case::Lengths::Even;
use crate::case::{Budget, Case, LossWork, Method, Plan, PrunedWork, Scores, Work};

const CLASSES: [usize; 5] = [500, 1024, 4096, 16_384, 65_536];
const QUICK: [usize; 2] = [500, 4096];
/// Beyond, matrices of the trivial joiner's scores would be larger than all else.
const MATRICES: usize = 4096;

/// T 200, U 50, H 512, five positions a frame; B 8, at which k2's pruned loss was measured, quick 2.
pub fn plan(choice: &Choice) -> Plan {
    let classes = if choice.quick { &QUICK[..] } else { &CLASSES };
    let case = |&classes: &usize| {
        let batch = if choice.quick { 2 } else { 8 };
        let loss =
            LossWork { batch, frames: 200, labels: 50, hidden: 512, classes, model: Vague, lengths: Even };
        let scores = if classes <= MATRICES { Scores::Matrices } else { Scores::Heads };
        let budget = Budget::Bytes(choice.budget.unwrap_or(DEFAULT_BUDGET));
        let systems = vec![
            choice.system("pruned", Method::Pruned(budget)),
            choice.system("pruned-dense", Method::PrunedTextbook),
            choice.system("full", Method::Ours { budget, skip: 0.0, bf16: false }),
            choice.system("full-dense", Method::Textbook),
        ];
        Case {
            name: format!("C={classes}"),
            mark: Some((classes as f64, thousands(classes))),
            work: Work::Pruned(PrunedWork { loss, s_range: 5, scores }),
            systems,
        }
    };
    let cases = classes.iter().map(case).collect();
    Plan { suite: "pruned", title: "200 frames x 50 labels, H = 512, s_range 5", axis: "classes", cases }
}
