//! Tests memory of recognition lattices: measured <= planned <= budget.
//!
//! Arguments and results of a call do not count as measured memory.
use panda::lattice::{
    AlignmentLattice, BeamOptions, Context, Embeddings, Error, Frames, FullNGram, JointWeightFn, Labels,
    LatticeOutput, LatticePath, LatticeSession, LocallyNormalized, Merge, NBestOptions, Normalize, Options,
    PathSum, RecognitionLattice, WeightFn, WeightedString,
};

use super::counting_allocator;

/// Bytes of threads and their queues, which plans do not include.
const QUEUE_BYTES: usize = 16 << 10;

/// Returns deterministic values between -scale and scale.
fn test_values(count: usize, scale: f32) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 % 2003) as f32 / 1001.0 - 1.0) * scale).collect()
}

/// A joint network over a full n-gram context, with utterances for it.
struct Problem {
    context: FullNGram,
    alignment: AlignmentLattice,
    /// Widths H, E and F.
    width: usize,
    /// Parameters in the order of [`JointWeightFn`].
    parameters: [Vec<f32>; 8],
    lengths: Vec<usize>,
    padded_frames: usize,
    frames: Vec<f32>,
    labels: Vec<u32>,
    label_counts: Vec<usize>,
}

impl Problem {
    fn new(
        vocabulary: usize,
        order: usize,
        alignment: AlignmentLattice,
        width: usize,
        lengths: &[usize],
    ) -> Self {
        let context = FullNGram::new(vocabulary, order).unwrap();
        let (c, h, v) = (context.states(), width, vocabulary);
        let sizes = [c * h, h * h, h * h, h, h, 1, h * v, v];
        let padded_frames = lengths.iter().copied().max().unwrap_or(0);
        let label_counts: Vec<usize> = lengths.iter().map(|n| n / 4).collect();
        let max_labels = padded_frames / 4;
        Self {
            context,
            alignment,
            width,
            parameters: sizes.map(|count| test_values(count, 0.2)),
            lengths: lengths.to_vec(),
            padded_frames,
            frames: test_values(lengths.len() * padded_frames * width, 1.0),
            labels: (0..lengths.len() * max_labels).map(|i| (i * 5 % vocabulary) as u32 + 1).collect(),
            label_counts,
        }
    }

    fn joint(&self) -> JointWeightFn<'_, f32> {
        let [embeddings, context, frame, bias, blank_kernel, blank_bias, label_kernel, label_bias] =
            &self.parameters;
        JointWeightFn {
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
        }
    }

    fn frames(&self) -> Frames<'_, f32> {
        Frames::new(&self.frames, &[self.lengths.len(), self.padded_frames, self.width], &self.lengths)
            .unwrap()
    }

    fn labels(&self) -> Labels<'_> {
        let max_labels = self.padded_frames / 4;
        Labels::new(&self.labels, &[self.lengths.len(), max_labels], &self.label_counts).unwrap()
    }

    /// Bytes of a result.
    fn result_bytes(output: &LatticeOutput<f32>) -> usize {
        let names = output.parameters.iter().map(|(name, values)| 4 * values.capacity() + name.len() + 64);
        8 * output.sums.capacity() + 4 * output.frames.capacity() + names.sum::<usize>()
    }

    /// Checks the memory of sums of a session; returns planned bytes and sums.
    fn check_sum(
        &self,
        weight_fn: &dyn WeightFn<f32>,
        session: &mut LatticeSession<f32>,
    ) -> Result<(usize, Vec<f64>), Error> {
        let lattice = RecognitionLattice::new(&self.context, self.alignment, weight_fn)?;
        let (frames, labels) = (self.frames(), self.labels());
        let weights = vec![1.0; self.lengths.len()];
        let planned = session.plan(&lattice, &frames, &labels)?.bytes;
        let budget = session.options();
        assert!(planned <= budget.budget, "planned {planned} of {}", budget.budget);
        let mut sums = Vec::new();
        // The second call reuses the buffers of the first.
        let counting_allocator::Measurement { peak_growth: peak, result: results, .. } =
            counting_allocator::measure(|| {
                let first = session.sum(&lattice, &frames, &labels, &weights).unwrap();
                let results = Self::result_bytes(&first);
                sums = first.sums;
                let second = session.sum(&lattice, &frames, &labels, &weights).unwrap();
                assert_eq!(second.sums, sums);
                results.max(Self::result_bytes(&second))
            });
        let case = format!("{:?}, {:?}, size {}", self.context, self.alignment, self.width);
        assert!(
            peak <= planned + results + 8 * sums.len() + QUEUE_BYTES,
            "{case}, {:?}: {peak} used, {planned} planned, {results} of results, {budget:?}",
            self.lengths
        );
        Ok((planned, sums))
    }

    /// Checks the memory of best paths of a session.
    fn check_best_paths(&self, weight_fn: &dyn WeightFn<f32>, session: &mut LatticeSession<f32>) {
        let lattice = RecognitionLattice::new(&self.context, self.alignment, weight_fn).unwrap();
        let frames = self.frames();
        let planned = session.plan_best_paths(&lattice, &frames).unwrap();
        let item_bytes = |path: &LatticePath| 4 * path.alignment.capacity() + size_of::<LatticePath>();
        for _ in 0..2 {
            let counting_allocator::Measurement { peak_growth: peak, result: results, .. } =
                counting_allocator::measure(|| {
                    let paths = session.best_paths(&lattice, &frames).unwrap();
                    paths.iter().map(item_bytes).sum::<usize>()
                });
            assert!(
                peak <= planned.bytes + results + QUEUE_BYTES,
                "{:?}, size {}, {:?}: {peak} used, {planned:?}, {results} of results",
                self.context,
                self.width,
                self.lengths
            );
        }
    }

    /// Checks sums and best paths with budgets from the smallest to unlimited.
    fn check_budgets(&self, weight_fn: &dyn WeightFn<f32>) {
        let lattice = RecognitionLattice::new(&self.context, self.alignment, weight_fn).unwrap();
        let (frames, labels) = (self.frames(), self.labels());
        let Err(Error::Budget { smallest, found: 1 }) =
            LatticeSession::new(Options::new(1)).plan(&lattice, &frames, &labels)
        else {
            panic!("a budget of one byte must be an error")
        };
        let error = LatticeSession::new(Options::new(smallest - 1)).plan(&lattice, &frames, &labels);
        assert_eq!(error, Err(Error::Budget { smallest, found: smallest - 1 }));
        let budgets = [smallest, smallest + smallest / 4, 2 * smallest, 256 << 20, usize::MAX];
        let mut results: Vec<Vec<f64>> = Vec::new();
        for budget in budgets.into_iter().filter(|&budget| budget >= smallest) {
            let mut session = LatticeSession::new(Options::new(budget));
            let (_, sums) = self.check_sum(weight_fn, &mut session).unwrap();
            // Buffers of other calls count too.
            self.check_best_paths(weight_fn, &mut session);
            session.distances(PathSum::Denominator, &lattice, &frames, None).unwrap();
            self.check_sum(weight_fn, &mut session).unwrap();
            results.push(sums);
        }
        let is_close = |a: &f64, b: &f64| (a - b).abs() <= 1e-4 * (1.0 + a.abs());
        assert!(results.iter().all(|sums| sums.iter().zip(&results[0]).all(|(a, b)| is_close(a, b))));
    }
}

impl Problem {
    /// Checks searches with their smallest budget; peak bytes exclude the results.
    fn check_searches(&self, weight_fn: &dyn WeightFn<f32>) {
        type Search<'a> = (&'static str, Box<dyn Fn(&mut LatticeSession<f32>) -> Result<usize, Error> + 'a>);
        let lattice = RecognitionLattice::new(&self.context, self.alignment, weight_fn).unwrap();
        let frames = self.frames();
        // Bytes of the results.
        let path_bytes = |utterances: Vec<Vec<LatticePath>>| {
            let item_bytes = |path: &LatticePath| 4 * path.alignment.capacity() + size_of::<LatticePath>();
            utterances
                .iter()
                .map(|list| 24 + list.iter().map(item_bytes).sum::<usize>() + 4 * size_of::<LatticePath>())
                .sum()
        };
        let string_bytes = |utterances: Vec<Vec<WeightedString>>| {
            let item_bytes =
                |string: &WeightedString| 4 * string.labels.capacity() + size_of::<WeightedString>();
            utterances
                .iter()
                .map(|list| 24 + list.iter().map(item_bytes).sum::<usize>() + 4 * size_of::<WeightedString>())
                .sum()
        };
        // All searches of a session.
        let n_best = NBestOptions { count: 2, merge: Merge::Max, max_prefixes: 150 };
        let searches: [Search; 5] = [
            ("paths", Box::new(|session| session.n_best_paths(&lattice, &frames, 7).map(path_bytes))),
            ("samples", Box::new(|session| session.sample_paths(&lattice, &frames, 7, 1).map(path_bytes))),
            (
                "strings",
                Box::new(|session| session.n_best_strings(&lattice, &frames, n_best).map(string_bytes)),
            ),
            (
                "narrow",
                Box::new(|session| {
                    let beam = BeamOptions { width: 2, merge: Merge::Sum };
                    session.beam_search(&lattice, &frames, beam, &()).map(string_bytes)
                }),
            ),
            (
                "wide",
                Box::new(|session| {
                    let beam = BeamOptions { width: 40, merge: Merge::Max };
                    session.beam_search(&lattice, &frames, beam, &()).map(string_bytes)
                }),
            ),
        ];
        // Two calls with the smallest budget.
        for (name, search) in searches {
            let Err(Error::Budget { smallest, .. }) = search(&mut LatticeSession::new(Options::new(1)))
            else {
                panic!("a budget of one byte must be an error for {name}")
            };
            let mut session = LatticeSession::new(Options::new(smallest));
            for _ in 0..2 {
                let counting_allocator::Measurement { peak_growth: peak, result: results, .. } =
                    counting_allocator::measure(|| search(&mut session).unwrap());
                let case = format!("{name}, {:?}, {:?}, size {}", self.context, self.alignment, self.width);
                assert!(
                    peak <= smallest + 2 * results + QUEUE_BYTES,
                    "{case}, {:?}: {peak} used, {smallest} planned, {results} of results",
                    self.lengths
                );
            }
        }
    }
}

#[test]
fn searches_use_at_most_their_planned_memory() {
    let _guard = counting_allocator::exclusive();
    let check = || {
        allocate_packing_buffers();
        for (i, ((vocabulary, order), size)) in
            [((3, 0), 8), ((5, 2), 16), ((28, 1), 64)].into_iter().enumerate()
        {
            for lengths in [&[9][..], &[0, 1, 40, 17]] {
                let frame_label_dependent = AlignmentLattice::frame_label_dependent(2).unwrap();
                let alignment =
                    if i % 2 == 0 { AlignmentLattice::FrameDependent } else { frame_label_dependent };
                let problem = Problem::new(vocabulary, order, alignment, size, lengths);
                problem.check_searches(&problem.joint());
                problem.check_searches(&LocallyNormalized::new(problem.joint(), Normalize::Hat));
            }
        }
    };
    rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap().install(check);
}

/// Contexts with shared successors, with budgets for all best-path algorithms.
#[test]
fn best_paths_use_at_most_their_planned_memory() {
    let _guard = counting_allocator::exclusive();
    let check = || {
        allocate_packing_buffers();
        let mut screened = 0;
        for ((vocabulary, order), size) in [((32, 1), 96), ((32, 2), 40), ((64, 1), 512), ((26, 2), 65)] {
            for lengths in [&[9][..], &[0, 1, 40, 17], &[30; 17]] {
                let problem =
                    Problem::new(vocabulary, order, AlignmentLattice::FrameDependent, size, lengths);
                let joint = problem.joint();
                let lattice = RecognitionLattice::new(&problem.context, problem.alignment, &joint).unwrap();
                let results = LatticeSession::<f32>::default()
                    .plan_best_paths(&lattice, &problem.frames())
                    .unwrap()
                    .bytes;
                let smallest_plan =
                    LatticeSession::new(Options::new(1)).plan_best_paths(&lattice, &problem.frames());
                let Err(Error::Budget { smallest, .. }) = smallest_plan else {
                    panic!("a budget of one byte must be an error")
                };
                screened += usize::from(
                    LatticeSession::<f32>::default()
                        .plan_best_paths(&lattice, &problem.frames())
                        .unwrap()
                        .screened,
                );
                for budget in [smallest, (smallest + results) / 2, results - 1, results] {
                    let mut session = LatticeSession::new(Options::new(budget));
                    let plan = session.plan_best_paths(&lattice, &problem.frames()).unwrap();
                    assert!(
                        plan.bytes <= budget && (!plan.screened || budget == results),
                        "{budget}: {plan:?}"
                    );
                    problem.check_best_paths(&joint, &mut session);
                }
            }
        }
        assert_eq!(screened > 4, kernels::QuantizedArgmax::<f32>::is_profitable(64, 32));
    };
    rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap().install(check);
}

#[test]
fn sums_use_at_most_their_planned_memory() {
    let _guard = counting_allocator::exclusive();
    rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap().install(check_all_budgets);
}

/// Checks sums with all budgets, for lattices of several shapes.
fn check_all_budgets() {
    allocate_packing_buffers();
    let frame_label_dependent = AlignmentLattice::frame_label_dependent(2).unwrap();
    let kinds = [((3, 0), 8), ((5, 2), 16), ((28, 1), 64), ((32, 2), 40), ((300, 1), 24)];
    for (i, ((vocabulary, order), size)) in kinds.into_iter().enumerate() {
        for lengths in [&[9][..], &[0, 1, 40, 17], &[30; 9]] {
            let alignment = if i % 2 == 0 { AlignmentLattice::FrameDependent } else { frame_label_dependent };
            let problem = Problem::new(vocabulary, order, alignment, size, lengths);
            problem.check_budgets(&problem.joint());
            if i < 3 {
                problem.check_budgets(&LocallyNormalized::new(problem.joint(), Normalize::Hat));
            }
        }
    }
}

/// Packs a large matrix on each thread, which allocates the packing buffers.
fn allocate_packing_buffers() {
    let large = test_values(700 * 700, 0.1);
    rayon::broadcast(|_| {
        let (view, mut out) = (kernels::View::new(&large, 700, 700), vec![0.0; 700 * 700]);
        kernels::product(
            kernels::ViewMut::new(&mut out, 700, 700),
            view,
            view,
            1.0,
            kernels::Accumulate::Replace,
        );
    });
}
