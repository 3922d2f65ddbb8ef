//! Greedy search over the batch: frame-looping, label-looping, and what is computed once and ahead.
use super::Choice;
use crate::case::{Case, DecodeWork, Family, Method, Plan, Search, Work};

const BATCHES: [usize; 4] = [1, 4, 16, 32];
const QUICK: [usize; 2] = [1, 4];

/// 32 utterances of 100 to 400 frames, quick 4, by a model of RNN-T and one of TDT.
pub fn plan(choice: &Choice) -> Plan {
    let (batches, utterances) = if choice.quick { (&QUICK[..], 4) } else { (&BATCHES[..], 32) };
    let systems = [
        ("ours", Search::LookAhead),
        ("ours-one-frame", Search::OneFrame),
        ("ours-unprojected", Search::Unprojected),
        ("frame-looping", Search::FrameLooping),
    ];
    let case = |family: Family, batch: usize| Case {
        name: format!("{} B={batch}", family.name()),
        mark: Some((batch as f64, batch.to_string())),
        work: Work::Decode(DecodeWork { family, batch, utterances }),
        systems: systems.map(|(name, search)| choice.system(name, Method::Decode(search))).to_vec(),
    };
    let of = |family| batches.iter().map(move |&batch| case(family, batch));
    let cases = of(Family::Rnnt).chain(of(Family::Tdt)).collect();
    Plan { suite: "decode", title: "Greedy search", axis: "utterances of a batch", cases }
}
