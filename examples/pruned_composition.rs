//! Example: pruned transducer loss with 65,536 classes in little memory.
//!
//! Pruning retains a part of the sites; the selected normalizer stores no distributions over
//! classes. A synthetic model with peaked distributions scores two utterances, T = 200 and U = 50:
//! first by the pruned loss, then over all sites, with all gradients.
//!
//! `cargo run --release --example pruned_composition [CLASSES]`
use std::time::Instant;

use panda::rnnt_loss::{
    Head, JointInputs, Loss, MemoryPlan, Options, PassScales, PrunedInputs, Pruning, Session, SimpleInputs,
    Targets,
};
use pruned::{Heads, Linear};

const BATCH: usize = 2;
const FRAMES: usize = 200;
const LABELS: usize = 50;
const HIDDEN: usize = 512;

/// A deterministic pseudo-random sign of a class and a coordinate: -1 or 1.
fn sign(class: usize, k: usize) -> f32 {
    let mixed = (class as u64 * HIDDEN as u64 + k as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    if (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 63 == 0 { 1.0 } else { -1.0 }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let classes: usize = std::env::args().nth(1).map_or(Ok(65_536), |count| count.parse())?;
    let label = |b: usize, u: usize| 1 + (b * 7919 + u * 104_729) % (classes - 1);
    let labels = (0..BATCH).map(|b| (0..LABELS).map(|u| label(b, u) as u32).collect()).collect();
    let targets = Targets::new(0, vec![FRAMES; BATCH], labels)?;

    // Outputs of encoder and predictor. Coordinate 0 of a frame grows with the labels expected so
    // far, that of a label position falls with the labels emitted; the other coordinates of a
    // position are a code of the next label, equal in sign to that label's row of the weight.
    let (mut encoded, mut predicted) = (Vec::new(), Vec::new());
    for b in 0..BATCH {
        for t in 0..FRAMES {
            let expected_labels = ((t as f32 + 0.5) / FRAMES as f32 - 0.5) * LABELS as f32;
            encoded.extend((0..HIDDEN).map(|k| if k == 0 { expected_labels } else { 0.1 * sign(t, k) }));
        }
        for u in 0..=LABELS {
            let next = label(b, u);
            predicted.extend(
                (0..HIDDEN)
                    .map(|k| if k == 0 { LABELS as f32 / 2.0 - u as f32 } else { 0.5 * sign(next, k) }),
            );
        }
    }
    // Head: the next label scores `margin` above the others, and the blank depends on coordinate 0.
    let margin = (classes as f32).ln() + 2.0;
    let scale = margin / (0.5f32.tanh() * (HIDDEN - 1) as f32);
    let weight_value = |class: usize, k: usize| match (class, k) {
        (0, 0) => -1.0,
        (0, _) => 0.0,
        (_, 0) => 1.0,
        _ => scale * sign(class, k),
    };
    let weight: Vec<f32> = (0..classes * HIDDEN).map(|i| weight_value(i / HIDDEN, i % HIDDEN)).collect();
    let mut bias = vec![0f32; classes];
    bias[0] = margin;
    let head = Head::new(&weight, Some(&bias), HIDDEN)?;

    // The simple joiner: one linear layer for frames, one for label positions; usually with
    // separate weights.
    let frame_layer = Linear::new(&encoded, &weight, None, HIDDEN)?;
    let simple_joiner = Heads::new(frame_layer, Linear::new(&predicted, &weight, Some(&bias), HIDDEN)?)?;
    let joint = JointInputs::new(&encoded, &predicted, head);
    let inputs =
        PrunedInputs { simple: SimpleInputs::Heads(simple_joiner), joint, scales: PassScales::default() };
    let weights = [1.0; BATCH];

    // The pruned loss, its retained sites, and the memory plan of its second pass.
    let mut session = Session::new(&Options::new(Loss::pruned(Pruning::default())))?;
    let start = Instant::now();
    let output = session.sum(inputs, &targets, &weights)?;
    let seconds = start.elapsed().as_secs_f64();
    let first_pass = output.first_pass.ok_or("a pruned loss has a first pass")?;
    let bands = |b| (0..FRAMES).map(|t| first_pass.ranges.band(b, t)).collect();
    let retained = targets.with_bands((0..BATCH).map(bands).collect())?;
    let options = Options::default();
    let plan = MemoryPlan::new::<f32>(&retained, HIDDEN, classes, &options)?;
    println!("pruned: losses {:.3?} (simple joiner {:.3?})", output.losses, first_pass.losses);
    println!(
        "  {} of {} sites, {seconds:.2} s for both passes and all gradients",
        first_pass.ranges.sites(),
        targets.lattices().num_sites()
    );
    println!("{plan}\n");

    // The loss over all sites.
    let mut session = Session::new(&options)?;
    let start = Instant::now();
    let full = session.sum(joint, &targets, &weights)?;
    println!("all sites: losses {:.3?}, {:.2} s", full.losses, start.elapsed().as_secs_f64());
    println!("{}", MemoryPlan::new::<f32>(&targets, HIDDEN, classes, &options)?);
    Ok(())
}
