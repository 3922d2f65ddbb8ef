//! Whole training steps of the recogniser of MLPerf's RNN-T, 12 s of audio an utterance.
use super::Choice;
use crate::case::{Case, Method, Plan, TrainWork, Work};

/// B of the full size: 400 rows of 3 frames, 200 encoder frames, 60 of 1,023 labels.
const BATCHES: [usize; 2] = [4, 16];

/// The model of 49 million weights with batches of 4 and 16; quick: a small one with a batch of 4.
pub fn plan(choice: &Choice) -> Plan {
    let full = |batch| TrainWork { batch, rows: 400, labels: 60, tokens: 1023, widths: [1024, 512, 512] };
    let small = TrainWork { batch: 4, rows: 40, labels: 6, tokens: 31, widths: [64, 32, 32] };
    let works = if choice.quick { vec![small] } else { BATCHES.map(full).to_vec() };
    let systems = [("ours", false), ("ours-ema", true)];
    let case = |work: TrainWork| Case {
        name: format!("B={}", work.batch),
        mark: Some((work.batch as f64, work.batch.to_string())),
        work: Work::Train(work),
        systems: systems.map(|(name, ema)| choice.system(name, Method::Train { ema })).to_vec(),
    };
    let cases = works.into_iter().map(case).collect();
    Plan { suite: "train", title: "Training, MLPerf's RNN-T", axis: "utterances of a batch", cases }
}
