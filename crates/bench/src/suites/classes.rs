//! Time and memory over the number of classes: does anything of size sites x classes show?
use super::{Choice, SHORT, middle, thousands};
use crate::case::{Case, Plan, Work};

const CLASSES: [usize; 10] = [512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144];
const QUICK: [usize; 2] = [1024, 8192];

/// N = 2,600, H = 512, and case S5 in the table alone.
pub fn plan(choice: &Choice) -> Plan {
    let classes = if choice.quick { &QUICK[..] } else { &CLASSES };
    let systems = || {
        [Some(choice.ours()), Some(choice.ours_kept()), choice.ours_bf16(), Some(choice.dense())]
            .into_iter()
            .flatten()
            .collect()
    };
    let mut cases: Vec<Case> = classes
        .iter()
        .map(|&classes| Case {
            name: format!("C={classes}"),
            mark: Some((classes as f64, thousands(classes))),
            work: Work::Loss(middle(classes)),
            systems: systems(),
        })
        .collect();
    if !choice.quick {
        cases.push(Case { name: "S5".to_owned(), mark: None, work: Work::Loss(SHORT), systems: systems() });
    }
    Plan { suite: "classes", title: "2,600 sites, H = 512", axis: "classes", cases }
}
