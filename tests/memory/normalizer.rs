//! Tests memory of the selected normalizer: measured <= planned <= budget.
//!
//! The normalizer computes log-softmax values of a few classes without storing all scores.
use panda::panda_core::{
    Adjoints, BackwardInputs, Error, Gradients, Head, Normalized, Plan, Precision, Real, Rows, Selection,
    Shape, Sites, Workspace, backward, forward,
};

use crate::counting_allocator::{Measurement, exclusive, live_bytes};

/// Peak growth of live bytes while `work` runs, with its result.
fn measure<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let Measurement { peak_growth: growth, result, .. } = crate::counting_allocator::measure(work);
    (growth, result)
}

/// Arguments of a call of the normalizer.
struct Problem<F> {
    shape: Shape,
    hidden: Vec<F>,
    weight: Vec<F>,
    bias: Vec<F>,
    selection: Selection,
    adjoints: Vec<f64>,
}

/// Result of forward, and gradients of backward.
type Outcome<F> = (Normalized<F>, Gradients<F, Vec<F>>);

impl<F: Real> Problem<F> {
    fn new(shape: Shape) -> Self {
        let Shape { sites, hidden, classes, selected } = shape;
        let hash =
            |i: usize| (i as u32 ^ 77).wrapping_mul(0x9e37_79b9).rotate_left(13).wrapping_mul(0x85eb_ca6b);
        let number = |i: usize| f64::from(hash(i)) / f64::from(u32::MAX) - 0.5;
        let random = |count: usize, scale: f64| (0..count).map(|i| F::from_f64(scale * number(i))).collect();
        // Slots beyond the classes are inactive; every fifth site has no adjoints.
        let ids = (0..sites * selected).map(|i| ((i / selected + i % selected) % classes) as u32).collect();
        let active = (0..sites * selected).map(|i| i % selected < classes).collect();
        let adjoint = |i: usize| if (i / selected) % 5 == 3 { 0.0 } else { number(i) };
        Self {
            shape,
            hidden: random(sites * hidden, 2.0),
            weight: random(classes * hidden, 2.0 / (hidden as f64).sqrt()),
            bias: random(classes, 1.0),
            selection: Selection::new(ids, active, selected).unwrap(),
            adjoints: (0..sites * selected).map(adjoint).collect(),
        }
    }

    /// Runs forward and backward; returns the peak bytes without arguments and gradients.
    fn run(&self, workspace: &mut Workspace<F>) -> Result<(usize, Outcome<F>), Error> {
        let sites = &Rows::new(&self.hidden, self.shape.hidden)?;
        let head = &Head::new(&self.weight, Some(&self.bias), self.shape.hidden)?;
        let (selection, adjoints) = (&self.selection, &Adjoints::new(&self.adjoints));
        let mut gradients = Gradients::zero(sites.zero_gradient(), head);
        let (measured, out) = measure(|| {
            let normalized = forward(sites, head, selection, workspace)?;
            let arguments = BackwardInputs { sites, head, selection, normalized: &normalized, adjoints };
            backward(arguments, workspace, &mut gradients)?;
            Ok(normalized)
        });
        Ok((measured, (out?, gradients)))
    }

    /// Runs with budgets from the smallest on; returns the number of calls.
    fn check_budgets(&self, precision: Precision) -> usize {
        // The smallest budget, and one byte less.
        let smallest = Plan::<F>::minimal(self.shape, precision).scratch(self.shape, precision).bytes();
        let unlimited = Plan::<F>::new(self.shape, precision, usize::MAX, true).unwrap();
        let unlimited = unlimited.scratch(self.shape, precision).bytes();
        let part = |eighths: usize| smallest + unlimited.saturating_sub(smallest) / 8 * eighths;
        let budgets = [smallest, smallest + smallest / 4, part(1), part(3), part(6)];
        let case = format!("{:?} {precision:?} of {}", self.shape, std::any::type_name::<F>());

        let below = Workspace::<F>::new(smallest - 1, true);
        let error = self.run(&mut below.with_precision(precision)).err();
        assert_eq!(error, Some(Error::Budget { smallest, found: smallest - 1 }), "{case}");

        // All other budgets give the same result.
        let mut first: Option<Outcome<F>> = None;
        let settings =
            [(usize::MAX, false), (usize::MAX, true)].into_iter().chain(budgets.map(|bytes| (bytes, true)));
        for (budget, keep_scores) in settings {
            let plan = Plan::<F>::new(self.shape, precision, budget, keep_scores).unwrap();
            let planned = plan.scratch(self.shape, precision).bytes();
            let mut workspace = Workspace::<F>::new(budget, keep_scores).with_precision(precision);
            let (measured, result) = self.run(&mut workspace).unwrap();
            assert!(measured <= planned, "{case}, {plan:?}: measured {measured}, planned {planned}");
            assert!(planned <= budget, "{case}, {plan:?}: planned {planned} of {budget}");
            match &first {
                None => first = Some(result),
                Some(first) => assert_close_outcomes(&result, first, precision, &format!("{case}, {plan:?}")),
            }
        }
        2 + budgets.len()
    }
}

/// Checks that two outcomes are equal up to rounding.
fn assert_close_outcomes<F: Real>(
    result: &Outcome<F>,
    expected: &Outcome<F>,
    precision: Precision,
    case: &str,
) {
    let tolerance = match (precision, size_of::<F>()) {
        (Precision::Full, 8) => 1e-12,
        (Precision::Full, _) => 1e-5,
        (Precision::Bf16x3, _) => 2e-5,
        (Precision::Bf16, _) => 2e-3,
    };
    let to_f64 = |values: &[F]| values.iter().map(|v| v.to_f64()).collect::<Vec<_>>();
    let arrays = |(out, gradients): &Outcome<F>| {
        [out.emissions.clone(), to_f64(&gradients.weight), gradients.bias.clone(), to_f64(&gradients.sites)]
    };
    for (result, expected) in arrays(result).iter().zip(&arrays(expected)) {
        let error: f64 = result.iter().zip(expected).map(|(f, e)| (f - e).powi(2)).sum();
        let norm: f64 = expected.iter().map(|e| e * e).sum();
        assert!(
            error.sqrt() <= tolerance * norm.sqrt() + 1e-30,
            "{case}: {} of {}",
            error.sqrt(),
            norm.sqrt()
        );
    }
}

fn shape(sites: usize, hidden: usize, classes: usize, selected: usize) -> Shape {
    Shape { sites, hidden, classes, selected }
}

#[test]
fn measured_bytes_are_at_most_planned_and_planned_at_most_the_budget() {
    let _guard = exclusive();
    rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap().install(check_shapes);
}

/// Checks all shapes and budgets, also with one workspace for different shapes.
fn check_shapes() {
    let shapes = [
        // One size at a limit.
        shape(1, 1, 2, 0),
        shape(1, 1024, 700, 6),
        shape(3, 33, 65_536, 2),
        shape(40, 1, 3000, 1),
        shape(50_000, 4, 9, 3),
        shape(5000, 16, 2, 6),
        shape(30, 1024, 40, 2),
        // Several waves, tiles and blocks, not multiples of their sizes.
        shape(2600, 24, 500, 2),
        shape(700, 130, 470, 5),
        shape(3957, 48, 200, 4),
        shape(257, 65, 1025, 0),
    ];
    let mut calls = 0;
    for shape in shapes {
        calls += Problem::<f32>::new(shape).check_budgets(Precision::Full);
        calls += Problem::<f32>::new(shape).check_budgets(Precision::Bf16);
        calls += Problem::<f32>::new(shape).check_budgets(Precision::Bf16x3);
        if shape.sites * shape.hidden * shape.classes < 40_000_000 {
            calls += Problem::<f64>::new(shape).check_budgets(Precision::Full);
        }
    }
    println!("{calls} calls");
    assert!(calls >= 150, "expected at least 150 calls, found {calls}");

    // A tile of the best size would exceed the budget.
    let many_classes = shape(3957, 48, 5000, 2);
    let budget = 4 << 20;
    let planned = Plan::<f32>::new(many_classes, Precision::Full, budget, true)
        .unwrap()
        .scratch(many_classes, Precision::Full)
        .bytes();
    let (measured, _) = Problem::<f32>::new(many_classes).run(&mut Workspace::new(budget, true)).unwrap();
    println!("{many_classes:?}: {measured} measured, {planned} planned, budget {budget}");
    assert!(measured <= planned && planned <= budget);

    // One workspace for calls of different shapes, with a changing budget.
    let before = live_bytes();
    let mut workspace = Workspace::<f32>::new(budget, true);
    let problems =
        [shape(2600, 24, 500, 2), shape(30, 1024, 40, 2), shape(3, 8, 9000, 2), shape(9000, 4, 9, 3)];
    let problems = problems.map(Problem::<f32>::new);
    let arguments = live_bytes() - before;
    for kibibytes in [4096, 2048, 1024, 3000] {
        workspace.set_budget(kibibytes << 10, true);
        for problem in &problems {
            let live = live_bytes() - before - arguments;
            let (measured, out) = problem.run(&mut workspace).unwrap();
            // Buffers that the call frees at its start were live before it.
            assert!(
                measured <= kibibytes << 10 && (live + measured <= kibibytes << 10 || live > kibibytes << 10),
                "{:?}: {measured} bytes, {live} live bytes before the call, of {kibibytes} KiB",
                problem.shape
            );
            let (normalized, gradients) = out;
            drop(gradients);
            match kibibytes % 2048 {
                0 => workspace.recycle(normalized),
                _ => drop(normalized),
            }
            let live = live_bytes() - before - arguments;
            assert!(
                live <= kibibytes << 10,
                "{:?}: {live} live bytes after the call, of {kibibytes} KiB",
                problem.shape
            );
        }
    }
}
