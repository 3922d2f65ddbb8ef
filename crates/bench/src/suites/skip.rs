//! Backward without the sites that hardly any path visits, against the exact gradient.
use super::{Choice, thousands};
use crate::case::Knowledge::Sharp;
use crate::case::Lengths::Ragged;
use crate::case::{Case, LossWork, Method, Plan, System, Work};

/// Loses less than the rounding of `f32`.
const EPSILON: f64 = 1e-6;
const WORKS: [LossWork; 3] =
    [sharp(8, [50, 10], 256, 1024), sharp(8, [100, 25], 256, 1024), sharp(4, [200, 50], 512, 4096)];
/// Utterances of a manifest.
const UTTERANCES: usize = 64;
const QUICK_UTTERANCES: usize = 8;

const fn sharp(batch: usize, [frames, labels]: [usize; 2], hidden: usize, classes: usize) -> LossWork {
    LossWork { batch, frames, labels, hidden, classes, model: Sharp, lengths: Ragged }
}

/// On a trained model's lattices if there is one, and on made-up ones that are as sharp otherwise.
pub fn plan(choice: &Choice) -> Plan {
    let exact = System { name: "exact".to_owned(), ..choice.ours() };
    let method = match exact.method.clone() {
        Method::Ours { budget, bf16, .. } => Method::Ours { budget, skip: EPSILON, bf16 },
        method => method,
    };
    let ours = System { method, ..choice.ours() };
    let case = |name: String, mark: (f64, String), work: Work| Case {
        name,
        mark: Some(mark),
        work,
        systems: vec![ours.clone(), exact.clone()],
    };
    let cases = match &choice.model {
        Some((checkpoint, manifest)) => {
            let utterances = if choice.quick { QUICK_UTTERANCES } else { UTTERANCES };
            let name = manifest.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let (checkpoint, manifest) = (checkpoint.clone(), manifest.clone());
            vec![case(name.clone(), (1.0, name), Work::Model { checkpoint, manifest, utterances })]
        }
        None => {
            let works = if choice.quick { &WORKS[..2] } else { &WORKS };
            let described = works.iter().map(|work| {
                let LossWork { batch, frames, labels, hidden, classes, .. } = *work;
                let sites = work.sizes().sites;
                let name = format!("B={batch} {frames}x{labels} H={hidden} C={classes}");
                case(name, (sites as f64, thousands(sites)), Work::Loss(*work))
            });
            described.collect()
        }
    };
    let title = "Sites of little occupancy left out, ε = 1e-6";
    Plan { suite: "skip", title, axis: "sites", cases }
}
