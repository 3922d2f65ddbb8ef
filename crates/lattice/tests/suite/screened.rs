//! Best lattice paths with screening, compared with those from all weights.
//!
//! Paths and the bits of their weights must be equal, for any network, context and utterances.
use lattice::{
    AlignmentLattice, Context, Embeddings, Error, Frames, FullNGram, JointWeightFn, LatticePath,
    LatticeSession, NextStateTable, Options, RecognitionLattice,
};
use proptest::prelude::*;

use crate::common::{assert_thread_independent, random};

/// A joint network and its utterances.
struct JointLattice {
    context: Box<dyn Context>,
    alignment: AlignmentLattice,
    hidden: usize,
    /// In the order of the fields of [`JointWeightFn`].
    parameters: [Vec<f32>; 8],
    lengths: Vec<usize>,
    frames: Vec<f32>,
}

const FEATURES: usize = 3;

impl JointLattice {
    /// Creates random parameters and frames; `sizes` scales embeddings, head and frames.
    fn random(context: impl Context + 'static, hidden: usize, lengths: &[usize], sizes: [f64; 3]) -> Self {
        let (c, v) = (context.states(), context.vocabulary());
        let [embeddings, head, frames] = sizes;
        let shapes = [
            (c * 4, embeddings),
            (4 * hidden, 1.0),
            (FEATURES * hidden, 1.0),
            (hidden, 0.3),
            (hidden, head),
            (1, 1.0),
            (hidden * v, head),
            (v, 1.0),
        ];
        let mut seed = 0;
        let padded = lengths.iter().copied().max().unwrap_or(0);
        Self {
            context: Box::new(context),
            alignment: AlignmentLattice::FrameDependent,
            hidden,
            parameters: shapes.map(|(count, scale)| {
                seed += 1;
                random(count, seed, scale)
            }),
            lengths: lengths.to_vec(),
            frames: random(lengths.len() * padded * FEATURES, 50, frames),
        }
    }

    fn with<T>(&self, run: impl FnOnce(&RecognitionLattice<f32>, &Frames<f32>) -> T) -> T {
        let [embeddings, context, frame, bias, blank_kernel, blank_bias, label_kernel, label_bias] =
            &self.parameters;
        let joint = JointWeightFn {
            embeddings: Embeddings::Table(embeddings),
            states: self.context.states(),
            vocabulary: self.context.vocabulary(),
            project_context: context,
            project_frame: frame,
            joint_bias: bias,
            blank_kernel,
            blank_bias,
            label_kernel,
            label_bias,
        };
        assert_eq!(joint.hidden(), self.hidden);
        let lattice = RecognitionLattice::new(&*self.context, self.alignment, &joint).unwrap();
        let padded = self.lengths.iter().copied().max().unwrap_or(0);
        let shape = [self.lengths.len(), padded, FEATURES];
        run(&lattice, &Frames::new(&self.frames, &shape, &self.lengths).unwrap())
    }

    /// Finds best paths by default, and with a budget without screening.
    fn screened_and_exact(&self) -> [Vec<LatticePath>; 2] {
        self.with(|lattice, frames| {
            let mut default = LatticeSession::<f32>::default();
            let plan = default.plan_best_paths(lattice, frames).unwrap();
            // The largest budget without screening, or the smallest one if screening needs no
            // memory.
            let mut waves = LatticeSession::<f32>::new(Options::new(plan.bytes - 1));
            if let Err(Error::Budget { smallest, .. }) = waves.plan_best_paths(lattice, frames) {
                waves = LatticeSession::new(Options::new(smallest));
            }
            let computed = default.best_paths(lattice, frames).unwrap();
            assert_eq!(default.best_paths(lattice, frames).unwrap(), computed, "a second time");
            [computed, waves.best_paths(lattice, frames).unwrap()]
        })
    }
}

/// Compares paths and the bits of their weights.
fn assert_screening_is_exact(joint_lattice: &JointLattice) {
    let [computed, expected] = joint_lattice.screened_and_exact();
    let weights = |paths: &[LatticePath]| paths.iter().map(|path| path.weight.to_bits()).collect::<Vec<_>>();
    assert_eq!(weights(&computed), weights(&expected));
    assert_eq!(computed, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn screened_paths_of_n_grams_are_exact(
        (vocabulary, order) in prop_oneof![
            (24usize..70, Just(1usize)), (24usize..36, Just(2)), (1usize..9, 0usize..4)
        ],
        hidden in 1usize..70,
        lengths in prop::collection::vec(0usize..40, 1..20),
        sizes in [0.0..3.0, 0.0..3.0, 0.0..3.0].prop_map(|sizes: [f64; 3]| sizes.map(|x| x * x)),
    ) {
        let lengths = if order > 1 { &lengths[..lengths.len().min(3)] } else { &lengths[..] };
        assert_screening_is_exact(&JointLattice::random(FullNGram::new(vocabulary, order).unwrap(), hidden, lengths, sizes));
    }

    /// Tables whose states have runs of successive states or not.
    ///
    /// Runs come in any order, and may overlap.
    #[test]
    fn screened_paths_of_tables_are_exact(
        runs in prop::collection::vec(0usize..5, 100..200),
        step in prop_oneof![Just(32usize), Just(31), Just(40)],
        swapped in prop::option::of(0usize..100),
    ) {
        let (v, states) = (32, runs.len().max(4 * step + 32));
        let first_target = |state: usize| runs.get(state).copied().unwrap_or(state % 5) * step;
        let mut table: Vec<i64> =
            (0..states).flat_map(|p| (0..v).map(move |y| (first_target(p) + y) as i64)).collect();
        if let Some(state) = swapped {
            table.swap(state * v, state * v + 1);
        }
        let context = NextStateTable::new(&table, states, v).unwrap();
        assert_screening_is_exact(&JointLattice::random(context, 24, &[9, 17, 0, 30], [1.0; 3]));
    }
}

/// A frame or a context has addends whose exponentials could overflow.
#[test]
fn addends_too_large_for_screening_are_scored_exactly() {
    // An embedding, and the projection of contexts.
    for (parameter, index, value) in [(0, 77, 1e4), (1, 0, 300.0)] {
        let mut joint_lattice = JointLattice::random(FullNGram::new(32, 1).unwrap(), 40, &[30; 17], [1.0; 3]);
        joint_lattice.parameters[parameter][index] = value;
        assert_screening_is_exact(&joint_lattice);
    }
    let mut joint_lattice = JointLattice::random(FullNGram::new(32, 1).unwrap(), 40, &[30; 17], [1.0; 3]);
    joint_lattice.frames[40] = 1e5;
    assert_screening_is_exact(&joint_lattice);
}

/// Equal states tie everywhere; nearly equal states tie by rounding.
#[test]
fn ties_are_broken_in_the_same_way() {
    for scale in [0.0, 1e-7, 1e-5] {
        assert_screening_is_exact(&JointLattice::random(
            FullNGram::new(30, 2).unwrap(),
            33,
            &[12, 7],
            [scale, 1.0, 1.0],
        ));
        assert_screening_is_exact(&JointLattice::random(
            FullNGram::new(30, 2).unwrap(),
            33,
            &[12, 7],
            [scale, 0.0, 1.0],
        ));
    }
}

#[test]
fn threads_and_other_utterances_do_not_change_paths() {
    let joint_lattice = JointLattice::random(
        FullNGram::new(32, 1).unwrap(),
        65,
        &[40, 3, 0, 33, 64, 1, 12, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22],
        [1.0; 3],
    );
    let best_paths = || {
        joint_lattice
            .with(|lattice, frames| LatticeSession::<f32>::default().best_paths(lattice, frames).unwrap())
    };
    assert_thread_independent(best_paths);
    let padded = 64;
    for (utterance, path) in best_paths().into_iter().enumerate() {
        let rows = &joint_lattice.frames[utterance * padded * FEATURES..]
            [..joint_lattice.lengths[utterance] * FEATURES];
        let single = joint_lattice.with(|lattice, _| {
            let frames = Frames::new(
                rows,
                &[joint_lattice.lengths[utterance], FEATURES],
                &joint_lattice.lengths[utterance..=utterance],
            )
            .unwrap();
            LatticeSession::<f32>::default().best_paths(lattice, &frames).unwrap()
        });
        assert_eq!(single, [path], "utterance {utterance}");
    }
}
