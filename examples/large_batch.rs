//! Example: loss of a batch whose dense scores would take 847 GB, in 6 GB.
//!
//! 1,024 utterances of 500 frames and 100 labels, H = 1,024, C = 4,096. All encodings, predictions
//! and their gradients are in memory at once, 5 GB; the loss is computed for the first utterances,
//! one after another:
//!
//! ```sh
//! cargo build --release --example large_batch
//! (ulimit -v 6291456; target/release/examples/large_batch 2)
//! ```
use std::time::Instant;

use panda::rnnt_loss::{Head, JointInputs, MemoryPlan, Options, Session, Targets};

const BATCH: usize = 1024;
/// Encoder frames of each utterance.
const FRAMES: usize = 500;
/// Labels of each utterance.
const LABELS: usize = 100;
/// Width of the joint network.
const HIDDEN: usize = 1024;
const CLASSES: usize = 4096;

/// Deterministic pseudo-random numbers between -scale and scale.
fn noise(count: usize, scale: f32) -> Vec<f32> {
    let value = |i: usize| (i as u32).wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32 - 0.5;
    (0..count).map(|i| 2.0 * scale * value(i)).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let utterances: usize = std::env::args().nth(1).map_or(Ok(2), |argument| argument.parse())?;
    let options = Options { budget: usize::MAX, keep_scores: false, ..Options::default() };
    let labels: Vec<u32> = (0..LABELS).map(|u| 1 + (u * 37 % (CLASSES - 1)) as u32).collect();
    let all_targets = Targets::new(0, vec![FRAMES; BATCH], vec![labels.clone(); BATCH])?;
    println!("{}", MemoryPlan::new::<f32>(&all_targets, HIDDEN, CLASSES, &options)?);

    // Values of the rows of one utterance.
    let (frame_values, position_values) = (FRAMES * HIDDEN, (LABELS + 1) * HIDDEN);
    let (encoded, predicted) = (noise(BATCH * frame_values, 1.0), noise(BATCH * position_values, 1.0));
    let (mut encoded_gradient, mut predicted_gradient) =
        (vec![0f32; encoded.len()], vec![0f32; predicted.len()]);
    let (weight, bias) = (noise(CLASSES * HIDDEN, 0.05), vec![0f32; CLASSES]);
    let mut weight_gradient = vec![0f32; weight.len()];
    let head = Head::new(&weight, Some(&bias), HIDDEN)?;
    let targets = Targets::new(0, vec![FRAMES], vec![labels])?;
    let mut session = Session::new(&options)?;
    // One utterance at a time; gradients of the head are summed.
    for b in 0..utterances.min(BATCH) {
        let start = Instant::now();
        let encoded_range = b * frame_values..(b + 1) * frame_values;
        let predicted_range = b * position_values..(b + 1) * position_values;
        let joint =
            JointInputs::new(&encoded[encoded_range.clone()], &predicted[predicted_range.clone()], head);
        let output = session.sum(joint, &targets, &[1.0])?;
        encoded_gradient[encoded_range].copy_from_slice(&output.gradients.encoded);
        predicted_gradient[predicted_range].copy_from_slice(&output.gradients.predicted);
        weight_gradient.iter_mut().zip(&output.gradients.head.weight).for_each(|(sum, term)| *sum += term);
        println!("utterance {b}: loss {:.3} in {:.1} s", output.losses[0], start.elapsed().as_secs_f64());
    }
    Ok(())
}
