//! Tests of the normalizer's plans: extreme sizes, budgets, number of parallel tasks.
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::{
    Adjoints, BackwardInputs, DEFAULT_BUDGET, Error, Gradients, Head, Plan, Precision, Real, Selection,
    Shape, Sites, Workspace, backward,
    blocking::{Blocking, ROWS_PER_TASK},
    forward,
};

/// Tasks of each parallel step of a full wave: the available parallelism.
///
/// For steps of a group of tiles, it is the average over the groups of a call. The gradients of
/// head, hidden rows and bias are one step: their tasks run concurrently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tasks {
    /// Computes some hidden rows.
    rows: usize,
    /// Packs steps of a micro-panel of weights, for scores.
    weights_for_scores: usize,
    /// Packs steps of a micro-panel of weights, for the hidden gradient.
    weights_for_gradient: usize,
    /// Computes scores of a strip of sites in a tile.
    scores: usize,
    /// Computes the gradients of these scores.
    score_gradients: usize,
    /// Computes the weight gradient of a micro-panel of classes over a block; blocks are
    /// sequential.
    head: usize,
    /// Computes the gradient of a micro-panel of hidden rows over a tile; tiles are sequential.
    hidden: usize,
    /// Computes the bias gradient of a micro-panel of classes.
    bias: usize,
    /// Propagates the gradient of some rows to their inputs.
    pull_back: usize,
}

/// Returns the tasks that pack a weight on the right: NR columns and some steps each.
fn packing_tasks(blocking: &Blocking, columns: usize, depth: usize) -> usize {
    columns.div_ceil(blocking.nr).saturating_mul(depth.div_ceil(blocking.steps_per_task))
}

impl<F: Real> Plan<F> {
    /// Returns the number of tasks in the parallel steps of a call.
    fn tasks(&self, shape: Shape, precision: Precision) -> Tasks {
        let Shape { sites, hidden: h, classes, .. } = shape;
        let plan = self.fitted(sites, classes);
        let blocking = Blocking::for_precision(&plan, h, precision);
        let longest_wave = [plan.saved_scores, sites - plan.saved_scores]
            .map(|sites| plan.wave_sites(sites, blocking.strip_rows))
            .into_iter()
            .max();
        let wave_sites = longest_wave.unwrap_or(1).min(sites);
        let tiles = classes.div_ceil(plan.tile_classes);
        let tile_groups = tiles.div_ceil(plan.group_tiles).max(1);
        let per_group =
            |tasks: &dyn Fn(usize) -> usize| sum_tasks(classes, plan.tile_classes, tasks) / tile_groups;
        let strips = sum_tasks(wave_sites, plan.block_sites, |rows| rows.div_ceil(blocking.strip_rows));
        let scores = per_group(&|_| strips);
        Tasks {
            rows: sum_tasks(wave_sites, plan.block_sites, |rows| {
                sum_tasks(rows, blocking.strip_rows, |rows| rows.div_ceil(ROWS_PER_TASK))
            }),
            weights_for_scores: per_group(&|width| packing_tasks(&blocking, width, h)),
            weights_for_gradient: per_group(&|width| packing_tasks(&blocking, h, width)),
            scores,
            score_gradients: scores,
            head: per_group(&|width| {
                sum_tasks(width, blocking.shared_rows, |classes| classes.div_ceil(blocking.task_rows))
            }),
            hidden: sum_tasks(wave_sites, plan.block_sites, |rows| rows.div_ceil(blocking.task_rows)),
            bias: per_group(&|width| width.div_ceil(blocking.nr)),
            pull_back: wave_sites.div_ceil(ROWS_PER_TASK),
        }
    }
}

/// Sums the tasks of parts of `size`; the last may be smaller.
fn sum_tasks(all: usize, size: usize, tasks: impl Fn(usize) -> usize) -> usize {
    let last = all % size;
    (all / size).saturating_mul(tasks(size)).saturating_add(if last > 0 { tasks(last) } else { 0 })
}

#[test]
fn extreme_sizes_are_planned() {
    check_extreme_sizes::<f32>();
    check_extreme_sizes::<f64>();
}

fn check_extreme_sizes<F: Real>() {
    let sizes = [0, 1, 1000, 1 << 40, usize::MAX];
    let budgets = [(0, true), (0, false), (DEFAULT_BUDGET, true), (usize::MAX, false), (usize::MAX, true)];
    for sites in sizes {
        for hidden in sizes {
            for classes in sizes {
                let shape = Shape { sites, hidden, classes, selected: 2 };
                for precision in [Precision::Full, Precision::Bf16, Precision::Bf16x3] {
                    for (budget, keep_scores) in budgets {
                        let plan = match Plan::<F>::new(shape, precision, budget, keep_scores) {
                            Ok(plan) => plan,
                            Err(error) => {
                                let smallest = Plan::<F>::minimal_scratch(shape, precision).bytes();
                                assert_eq!(error, Error::Budget { smallest, found: budget }, "{shape:?}");
                                assert!(smallest > budget, "{shape:?}: {smallest} {budget}");
                                continue;
                            }
                        };
                        assert!(
                            plan.wave_sites > 0
                                && plan.block_sites > 0
                                && plan.tile_classes > 0
                                && plan.group_tiles > 0,
                            "{shape:?}"
                        );
                        let (bytes, operations) =
                            (plan.scratch(shape, precision).bytes(), plan.operations(shape));
                        let tasks = plan.tasks(shape, precision);
                        assert!(
                            sites == 0 || classes == 0 || hidden == 0 || tasks.scores > 0,
                            "{shape:?}: {tasks:?}"
                        );
                        // At least two hidden rows.
                        assert!(
                            bytes / 8 >= hidden.min(1 << 40) / 4 * usize::from(sites > 0),
                            "{shape:?}: {bytes}"
                        );
                        let is_huge = [sites, hidden, classes].into_iter().all(|size| size > 1 << 30);
                        assert!(!is_huge || (bytes == usize::MAX || bytes > 1 << 40) && operations > 1 << 60);
                    }
                }
            }
        }
    }
}

#[test]
fn plans_stay_within_the_budget() {
    for (sites, hidden, classes) in
        [(2600, 512, 8192), (6662, 1024, 4096), (50_500, 1024, 4096), (600_000, 1706, 8192)]
    {
        let shape = Shape { sites, hidden, classes, selected: 2 };
        for mebibytes in [40, 64, 200, 1000] {
            for keep_scores in [true, false] {
                let budget = mebibytes << 20;
                let plan = Plan::<f32>::new(shape, Precision::Full, budget, keep_scores).unwrap();
                let bytes = plan.scratch(shape, Precision::Full).bytes();
                assert!(bytes <= budget, "{shape:?}: {bytes} of {budget}");
                assert!(keep_scores || plan.saved_scores == 0, "{shape:?}: {} kept", plan.saved_scores);
            }
        }
    }
}

/// Each of 64 threads has two tasks.
#[test]
fn each_step_has_tasks_for_many_threads() {
    for sites in [2600, 10_000, 50_000] {
        for classes in [1024, 4096, 65_536] {
            for hidden in [256, 512, 1024] {
                for precision in [Precision::Full, Precision::Bf16] {
                    for (budget, keep_scores) in
                        [(DEFAULT_BUDGET, true), (usize::MAX, false), (usize::MAX, true)]
                    {
                        let shape = Shape { sites, hidden, classes, selected: 2 };
                        let plan = Plan::<f32>::new(shape, precision, budget, keep_scores).unwrap();
                        let tasks = plan.tasks(shape, precision);
                        let steps = [
                            tasks.rows,
                            tasks.weights_for_scores,
                            tasks.weights_for_gradient,
                            tasks.scores,
                            tasks.score_gradients,
                            tasks.head + tasks.hidden + tasks.bias,
                            tasks.pull_back,
                        ];
                        // A longer wave would exceed the budget or displace saved scores.
                        let has_short_wave = precision == Precision::Bf16
                            && (sites, classes) == (2600, 1024)
                            && (!keep_scores || budget == DEFAULT_BUDGET && hidden == 1024);
                        let min_tasks = if has_short_wave { 105 } else { 128 };
                        let case = format!("{shape:?} {precision:?} {budget} {keep_scores} {plan:?}");
                        assert!(steps.iter().all(|step| *step >= min_tasks), "{case}: {tasks:?}");
                    }
                }
            }
        }
    }
}

/// Rows of ones that count calls.
struct CountingSites {
    sites: usize,
    fill_calls: AtomicUsize,
    pull_back_calls: AtomicUsize,
}

impl Sites<f32> for CountingSites {
    type Gradient = ();
    fn len(&self) -> usize {
        self.sites
    }
    fn width(&self) -> usize {
        3
    }
    fn max_abs(&self) -> f64 {
        1.0
    }
    fn fill(&self, _sites: &[usize], hidden: &mut [f32]) {
        self.fill_calls.fetch_add(1, Relaxed);
        hidden.fill(1.0);
    }
    fn pull_back(&self, _sites: &[usize], _hidden: &[f32], _gradient: &mut [f32]) {
        self.pull_back_calls.fetch_add(1, Relaxed);
    }
    fn zero_gradient(&self) {}
    fn scatter(&self, _sites: &[usize], _gradient: &[f32], _into: &mut ()) {}
}

/// The counted tasks are those that forward and backward run.
#[test]
fn tasks_are_as_many_as_calls() {
    let (n, classes) = (1234, 50);
    let weight = vec![0.1; 3 * classes];
    let head = &Head::new(&weight, None, 3).unwrap();
    let selection = &Selection::new(vec![1; n], vec![true; n], 1).unwrap();
    let emissions = vec![-1.0; n];
    let adjoints = &Adjoints::new(&emissions);
    for (wave_sites, block_sites) in [(n, 224), (n, 100), (n, n), (617, 224), (617, 101)] {
        for precision in [Precision::Full, Precision::Bf16, Precision::Bf16x3] {
            let (fill_calls, pull_back_calls) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let sites = &CountingSites { sites: n, fill_calls, pull_back_calls };
            let plan = Plan::custom(wave_sites, block_sites, 40, 1, 0);
            let mut workspace = Workspace::with_plan(plan).unwrap().with_precision(precision);
            let normalized = &forward(sites, head, selection, &mut workspace).unwrap();
            let mut into = Gradients::zero((), head);
            backward(
                BackwardInputs { sites, head, selection, normalized, adjoints },
                &mut workspace,
                &mut into,
            )
            .unwrap();
            let shape = Shape { sites: n, hidden: 3, classes, selected: 1 };
            let (tasks, waves) = (plan.tasks(shape, precision), n / wave_sites);
            assert_eq!(sites.fill_calls.load(Relaxed), 2 * waves * tasks.rows, "{plan:?}");
            assert_eq!(sites.pull_back_calls.load(Relaxed), waves * tasks.pull_back, "{plan:?}");
        }
    }
}
