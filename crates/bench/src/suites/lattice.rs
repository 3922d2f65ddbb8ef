//! Recognition lattices: what a step takes over contexts and batch.
use super::{Choice, thousands};
use crate::case::{Case, Method, Plan, RecognitionWork, Work};

/// B 1 and 16 of 128 frames and 32 labels under contexts of 0, 1 and 2 labels; unless quick also the configuration of table 2 of
/// arXiv 2304.13134.
pub fn plan(choice: &Choice) -> Plan {
    let small = (0..=2)
        .flat_map(|context| [1, 16].map(|batch| RecognitionWork { batch, frames: 128, labels: 32, context }));
    let paper = RecognitionWork { batch: 16, frames: 1024, labels: 256, context: 2 };
    let works = small.chain((!choice.quick).then_some(paper));
    let systems = vec![
        choice.ours(),
        choice.ours_kept(),
        choice.system("best-path", Method::BestPath),
        choice.system("denominator", Method::Denominator),
    ];
    let case = |work: RecognitionWork| {
        let RecognitionWork { batch, frames, labels, context } = work;
        Case {
            name: format!("context {context}, B={batch}, {frames}x{labels}"),
            mark: Some((work.sites() as f64, thousands(work.sites()))),
            work: Work::Recognition(work),
            systems: systems.clone(),
        }
    };
    let cases = works.map(case).collect();
    Plan {
        suite: "lattice",
        title: "Recognition lattices, V = 32, H = 512",
        axis: "states of all frames",
        cases,
    }
}
