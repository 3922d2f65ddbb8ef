//! Loss and adjoints of lattices alone: emissions are given, nothing else is computed.
use super::Choice;
use crate::case::{Case, Plan, Work};

const SIZES: [[usize; 3]; 6] =
    [[1, 50, 10], [16, 50, 10], [1, 500, 100], [16, 139, 27], [16, 500, 100], [4, 2000, 400]];
const QUICK: [[usize; 3]; 3] = [[16, 50, 10], [1, 500, 100], [16, 500, 100]];

/// Lattices from one short utterance to long ones and many.
pub fn plan(choice: &Choice) -> Plan {
    let sizes = if choice.quick { &QUICK[..] } else { &SIZES };
    let case = |(place, &sizes): (usize, &[usize; 3])| {
        let [batch, frames, labels] = sizes;
        Case {
            name: format!("B={batch} {frames}x{labels}"),
            // At equal distances: one and sixteen utterances have no common measure.
            mark: Some((2f64.powi(place as i32), format!("{batch}x{frames}x{labels}"))),
            work: Work::Lattices { sizes },
            systems: vec![choice.ours(), choice.system("textbook", choice.dense().method)],
        }
    };
    let cases = sizes.iter().enumerate().map(case).collect();
    Plan { suite: "dp", title: "Lattices alone", axis: "utterances x frames x labels", cases }
}
