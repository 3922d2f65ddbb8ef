//! Locally normalized weights along a chain: what they allocate does not grow with sites x V.
use lattice::{
    Arcs, ArcsMut, Embeddings, JointWeightFn, LabelChain, LocallyNormalized, Normalize, TableWeightFn,
    WeightFn, Workload,
};

use crate::counting::{measure, turn};

const STATES: usize = 5;
const VOCABULARY: usize = 3000;
const HIDDEN: usize = 64;
const POSITIONS: usize = 41;
const BUDGET: usize = 8 << 20;

fn made_up(count: usize, scale: f32) -> Vec<f32> {
    (0..count).map(|i| scale * (i as f32 * 0.7 + (i % 7) as f32).sin()).collect()
}

fn workload(frames: usize) -> Workload {
    Workload { frames, wave: 1, positions: POSITIONS, gradients: true }
}

/// The most bytes alive during forward and backward along a chain above those of an open weight function.
fn growth(weight_fn: &dyn WeightFn<f32>, x: &[f32], frames: usize) -> usize {
    let states: Vec<usize> = (0..POSITIONS).map(|u| u * u % STATES).collect();
    let labels: Vec<u32> = (1..POSITIONS as u32).map(|u| u * 70).collect();
    let chain = LabelChain { states: &states, labels: &labels };
    let mut weights = weight_fn.bind(&mut Vec::new()).unwrap();
    weights.set_frames(x, &vec![0; frames]).unwrap();
    let (mut blank, mut lexical) = (vec![0.0; frames * POSITIONS], vec![0.0; frames * POSITIONS]);
    let arcs = ArcsMut { blank: &mut blank, lexical: &mut lexical };
    let (_, forward, result) = measure(|| weights.forward_chain(0, chain, arcs));
    result.unwrap();
    let adjoints = (made_up(blank.len(), 1.0), made_up(blank.len(), 1.0));
    let adjoints = Arcs { blank: &adjoints.0, lexical: &adjoints.1 };
    let (_, backward, result) = measure(|| weights.backward_chain(0, chain, adjoints));
    result.unwrap();
    forward.max(backward)
}

#[test]
fn those_of_a_joint_network_stay_within_their_budget_for_any_number_of_frames() {
    let _turn = turn();
    let (e, f) = (4, 3);
    let parameters = [
        made_up(STATES * e, 1.0),
        made_up(e * HIDDEN, 0.5),
        made_up(f * HIDDEN, 0.5),
        made_up(HIDDEN, 0.5),
        made_up(1, 0.5),
        made_up(HIDDEN * VOCABULARY, 0.5),
        made_up(VOCABULARY, 0.5),
    ];
    let [table, project_context, project_frame, row, one, lexical, lexical_bias] = &parameters;
    let joint = JointWeightFn {
        embeddings: Embeddings::Table(table),
        states: STATES,
        vocabulary: VOCABULARY,
        project_context,
        project_frame,
        joint_bias: row,
        blank: row,
        blank_bias: one,
        lexical,
        lexical_bias,
    };
    // The normalizer's gradients of its head and the joint's.
    let heads = 2 * (1 + VOCABULARY) * (HIDDEN * 4 + 8);
    for normalize in [Normalize::Hat, Normalize::LogSoftmax] {
        let weight_fn = LocallyNormalized { inner: joint, normalize, budget: BUDGET };
        for frames in [120, 480] {
            let found = growth(&weight_fn, &made_up(frames * f, 1.0), frames);
            // What the network has of each frame and position; lists of a group of sites.
            let joint = (frames + 4 * POSITIONS) * HIDDEN * 4;
            let lists = 40 * (1 << 12);
            let dense = frames * POSITIONS * VOCABULARY * 4;
            let most = BUDGET + heads + joint + lists;
            assert!(found <= most && most < dense / 2, "{normalize:?}: {found} of {most}, dense {dense}");
            assert!(found <= weight_fn.scratch(workload(frames)).bytes(), "{normalize:?}: {found}");
        }
    }
}

#[test]
fn those_of_a_table_need_a_few_rows_for_any_number_of_frames() {
    let _turn = turn();
    let table = made_up(STATES * (1 + VOCABULARY), 1.0);
    let table = TableWeightFn::new(&table, &[1, STATES, 1 + VOCABULARY]).unwrap();
    let weight_fn = LocallyNormalized::new(table, Normalize::LogSoftmax);
    for frames in [120, 480] {
        let found = growth(&weight_fn, &vec![0.0; frames], frames);
        let most = weight_fn.scratch(workload(frames)).bytes();
        assert!(found <= most && most < frames * POSITIONS * VOCABULARY, "{found} of {most}");
    }
}
