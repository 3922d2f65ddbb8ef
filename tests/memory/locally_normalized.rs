//! Tests that locally normalized lattice weights need less memory than sites × V.
//!
//! V is the number of labels. A site is a frame with a position of the label chain.
use lattice::{
    Arcs, ArcsMut, Embeddings, JointWeightFn, LabelChain, LocallyNormalized, Normalize, TableWeightFn,
    WeightFn, Workload,
};

use crate::counting_allocator::{Measurement, exclusive, measure};

/// Context states.
const STATES: usize = 5;
const VOCABULARY: usize = 3000;
const HIDDEN: usize = 64;
/// Positions of the label chain.
const POSITIONS: usize = 41;
/// In bytes.
const BUDGET: usize = 8 << 20;

/// Returns deterministic values.
fn test_values(count: usize, scale: f32) -> Vec<f32> {
    (0..count).map(|i| scale * (i as f32 * 0.7 + (i % 7) as f32).sin()).collect()
}

fn workload(frames: usize) -> Workload {
    Workload { frames, wave: 1, positions: POSITIONS, gradients: true }
}

/// Peak growth in bytes of forward and backward along a chain.
///
/// Without the bytes of the bound weight function.
fn peak_growth(weight_fn: &dyn WeightFn<f32>, frame_values: &[f32], frames: usize) -> usize {
    let states: Vec<usize> = (0..POSITIONS).map(|u| u * u % STATES).collect();
    let labels: Vec<u32> = (1..POSITIONS as u32).map(|u| u * 70).collect();
    let chain = LabelChain { states: &states, labels: &labels };
    let mut weights = weight_fn.bind(&mut Vec::new()).unwrap();
    weights.set_frames(frame_values, &vec![0; frames]).unwrap();
    let (mut blank, mut label_arcs) = (vec![0.0; frames * POSITIONS], vec![0.0; frames * POSITIONS]);
    let arcs = ArcsMut { blank: &mut blank, labels: &mut label_arcs };
    let Measurement { peak_growth: forward, result, .. } = measure(|| weights.forward_chain(0, chain, arcs));
    result.unwrap();
    let adjoints = (test_values(blank.len(), 1.0), test_values(blank.len(), 1.0));
    let adjoints = Arcs { blank: &adjoints.0, labels: &adjoints.1 };
    let Measurement { peak_growth: backward, result, .. } =
        measure(|| weights.backward_chain(0, chain, adjoints));
    result.unwrap();
    forward.max(backward)
}

#[test]
fn weights_of_a_joint_network_stay_within_their_budget() {
    let _guard = exclusive();
    let (embedding_width, frame_width) = (4, 3);
    let parameters = [
        test_values(STATES * embedding_width, 1.0),
        test_values(embedding_width * HIDDEN, 0.5),
        test_values(frame_width * HIDDEN, 0.5),
        test_values(HIDDEN, 0.5),
        test_values(1, 0.5),
        test_values(HIDDEN * VOCABULARY, 0.5),
        test_values(VOCABULARY, 0.5),
    ];
    // The joint bias and the weight of the blank have the same values.
    let [table, project_context, project_frame, bias_row, blank_bias, label_kernel, label_bias] = &parameters;
    let joint = JointWeightFn {
        embeddings: Embeddings::Table(table),
        states: STATES,
        vocabulary: VOCABULARY,
        project_context,
        project_frame,
        joint_bias: bias_row,
        blank_kernel: bias_row,
        blank_bias,
        label_kernel,
        label_bias,
    };
    // Gradients of the head: of the normalizer and of the joint network.
    let heads = 2 * (1 + VOCABULARY) * (HIDDEN * 4 + 8);
    for normalize in [Normalize::Hat, Normalize::LogSoftmax] {
        let weight_fn = LocallyNormalized { inner: joint, normalize, budget: BUDGET };
        for frames in [120, 480] {
            let peak = peak_growth(&weight_fn, &test_values(frames * frame_width, 1.0), frames);
            // Rows of the network for each frame and position; lists of a group of sites.
            let joint = (frames + 4 * POSITIONS) * HIDDEN * 4;
            let lists = 40 * (1 << 12);
            let dense = frames * POSITIONS * VOCABULARY * 4;
            let limit = BUDGET + heads + joint + lists;
            assert!(peak <= limit && limit < dense / 2, "{normalize:?}: {peak} of {limit}, dense {dense}");
            assert!(peak <= weight_fn.scratch(workload(frames)).bytes(), "{normalize:?}: {peak}");
        }
    }
}

#[test]
fn weights_of_a_table_need_a_constant_number_of_rows() {
    let _guard = exclusive();
    let table = test_values(STATES * (1 + VOCABULARY), 1.0);
    let table = TableWeightFn::new(&table, &[1, STATES, 1 + VOCABULARY]).unwrap();
    let weight_fn = LocallyNormalized::new(table, Normalize::LogSoftmax);
    for frames in [120, 480] {
        let peak = peak_growth(&weight_fn, &vec![0.0; frames], frames);
        let limit = weight_fn.scratch(workload(frames)).bytes();
        assert!(peak <= limit && limit < frames * POSITIONS * VOCABULARY, "{peak} of {limit}");
    }
}
