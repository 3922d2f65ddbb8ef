//! Time and memory over the length of 16 utterances, the grid of arXiv 2211.16270.
use super::Choice;
use crate::case::Knowledge::Vague;
use crate::case::Lengths::Ragged;
use crate::case::{Case, LossWork, Plan, Work};

const FRAMES: [usize; 10] = [50, 64, 83, 107, 139, 179, 232, 299, 387, 500];
const LABELS: [usize; 10] = [10, 12, 16, 21, 27, 35, 46, 59, 77, 100];
/// A careful guess of what a thread does in a second, to tell which cases would take more than a minute a step.
const OPERATIONS: f64 = 1.5e11;
const MINUTE: f64 = 60.0;

/// H = 256 and C = 1,024, the smaller scale of the two, in the picture; the paper's 1,024 and 4,096 in the table.
pub fn plan(choice: &Choice) -> Plan {
    let case = |(frames, labels): (usize, usize), hidden: usize, classes: usize| {
        let small = hidden == 256;
        let name = format!("{frames}x{labels}");
        let mark = small.then(|| ((frames * (labels + 1)) as f64, name.clone()));
        let name = if small { name } else { format!("{name} H={hidden} C={classes}") };
        let work = LossWork { batch: 16, frames, labels, hidden, classes, model: Vague, lengths: Ragged };
        Case { name, mark, work: Work::Loss(work), systems: vec![choice.ours(), choice.dense()] }
    };
    let grid = || FRAMES.into_iter().zip(LABELS);
    let mut cases: Vec<Case> = match choice.quick {
        true => grid().take(2).map(|lengths| case(lengths, 256, 1024)).collect(),
        false => grid().map(|lengths| case(lengths, 256, 1024)).collect(),
    };
    if !choice.quick {
        let large = grid().map(|lengths| case(lengths, 1024, 4096));
        cases.extend(large.filter(|case| match &case.work {
            Work::Loss(work) => work.operations() / OPERATIONS / choice.threads as f64 <= MINUTE,
            _ => true,
        }));
    }
    let title = "16 utterances, H = 256, C = 1,024";
    Plan { suite: "lengths", title, axis: "frames x labels of the longest", cases }
}
