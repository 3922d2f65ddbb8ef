//! The budget is a promise: what a call of the normalizer allocates is never more than was planned, and that never more
//! than the budget.
use panda::panda_core::{
    Adjoints, BackwardInputs, Error, Gradients, Head, Normalized, Plan, Precision, Real, Rows, Selection,
    Shape, Sites, Workspace, backward, forward,
};

use crate::counting::{alive, turn};

/// The most bytes that `work` had alive above those before it.
fn measure<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let (_, growth, result) = crate::counting::measure(work);
    (growth, result)
}

/// Arguments of a call.
struct Problem<F> {
    shape: Shape,
    hidden: Vec<F>,
    weight: Vec<F>,
    bias: Vec<F>,
    selection: Selection,
    adjoints: Vec<f64>,
}

type Outcome<F> = (Normalized<F>, Gradients<F, Vec<F>>);

impl<F: Real> Problem<F> {
    fn new(shape: Shape) -> Self {
        let Shape { sites, hidden, classes, selected } = shape;
        let hash =
            |i: usize| (i as u32 ^ 77).wrapping_mul(0x9e37_79b9).rotate_left(13).wrapping_mul(0x85eb_ca6b);
        let number = |i: usize| f64::from(hash(i)) / f64::from(u32::MAX) - 0.5;
        let draw = |count: usize, scale: f64| (0..count).map(|i| F::from_f64(scale * number(i))).collect();
        // Slots beyond the classes are not active; nor do some sites have adjoints.
        let ids = (0..sites * selected).map(|i| ((i / selected + i % selected) % classes) as u32).collect();
        let active = (0..sites * selected).map(|i| i % selected < classes).collect();
        let adjoint = |i: usize| if (i / selected) % 5 == 3 { 0.0 } else { number(i) };
        Self {
            shape,
            hidden: draw(sites * hidden, 2.0),
            weight: draw(classes * hidden, 2.0 / (hidden as f64).sqrt()),
            bias: draw(classes, 1.0),
            selection: Selection::new(ids, active, selected).unwrap(),
            adjoints: (0..sites * selected).map(adjoint).collect(),
        }
    }

    /// Forward and backward with a workspace, and the most bytes that they had alive beside arguments and gradients.
    fn run(&self, workspace: &mut Workspace<F>) -> Result<(usize, Outcome<F>), Error> {
        let sites = &Rows::new(&self.hidden, self.shape.hidden)?;
        let head = &Head::new(&self.weight, Some(&self.bias), self.shape.hidden)?;
        let (selection, adjoints) = (&self.selection, &Adjoints::new(&self.adjoints));
        let mut into = Gradients::zero(sites.zero_gradient(), head);
        let (measured, out) = measure(|| {
            let normalized = forward(sites, head, selection, workspace)?;
            let arguments = BackwardInputs { sites, head, selection, normalized: &normalized, adjoints };
            backward(arguments, workspace, &mut into)?;
            Ok(normalized)
        });
        Ok((measured, (out?, into)))
    }

    /// Runs with budgets from the smallest cut on; returns how many calls there were.
    fn keeps_its_promise(&self, precision: Precision) -> usize {
        let smallest = Plan::<F>::minimal_scratch(self.shape, precision).bytes();
        let whole = Plan::<F>::new(self.shape, precision, usize::MAX, true).unwrap();
        let whole = whole.scratch(self.shape, precision).bytes();
        let part = |eighths: usize| smallest + whole.saturating_sub(smallest) / 8 * eighths;
        let budgets = [smallest, smallest + smallest / 4, part(1), part(3), part(6)];
        let what = format!("{:?} {precision:?} of {}", self.shape, std::any::type_name::<F>());

        let below = Workspace::<F>::new(smallest - 1, true);
        let error = self.run(&mut below.with_precision(precision)).err();
        assert_eq!(error, Some(Error::Budget { smallest, found: smallest - 1 }), "{what}");

        let mut first: Option<Outcome<F>> = None;
        let all =
            [(usize::MAX, false), (usize::MAX, true)].into_iter().chain(budgets.map(|bytes| (bytes, true)));
        for (budget, keep_scores) in all {
            let plan = Plan::<F>::new(self.shape, precision, budget, keep_scores).unwrap();
            let planned = plan.scratch(self.shape, precision).bytes();
            let mut workspace = Workspace::<F>::new(budget, keep_scores).with_precision(precision);
            let (measured, found) = self.run(&mut workspace).unwrap();
            assert!(measured <= planned, "{what}, {plan:?}: measured {measured}, planned {planned}");
            assert!(planned <= budget, "{what}, {plan:?}: planned {planned} of {budget}");
            match &first {
                None => first = Some(found),
                Some(first) => equal(&found, first, precision, &format!("{what}, {plan:?}")),
            }
        }
        2 + budgets.len()
    }
}

/// The same to rounding.
fn equal<F: Real>(found: &Outcome<F>, expected: &Outcome<F>, precision: Precision, what: &str) {
    let bar = match (precision, size_of::<F>()) {
        (Precision::Full, 8) => 1e-12,
        (Precision::Full, _) => 1e-5,
        (Precision::Bf16, _) => 2e-3,
    };
    let wide = |values: &[F]| values.iter().map(|v| v.to_f64()).collect::<Vec<_>>();
    let all = |(out, into): &Outcome<F>| {
        [out.emissions.clone(), wide(&into.weight), into.bias.clone(), wide(&into.sites)]
    };
    for (found, expected) in all(found).iter().zip(&all(expected)) {
        let error: f64 = found.iter().zip(expected).map(|(f, e)| (f - e).powi(2)).sum();
        let norm: f64 = expected.iter().map(|e| e * e).sum();
        assert!(error.sqrt() <= bar * norm.sqrt() + 1e-30, "{what}: {} of {}", error.sqrt(), norm.sqrt());
    }
}

fn shape(sites: usize, hidden: usize, classes: usize, selected: usize) -> Shape {
    Shape { sites, hidden, classes, selected }
}

#[test]
fn measured_is_at_most_planned_and_that_at_most_the_budget() {
    let _turn = turn();
    rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap().install(check);
}

fn check() {
    let shapes = [
        // One size at its end, the others in between.
        shape(1, 1, 2, 0),
        shape(1, 1024, 700, 6),
        shape(3, 33, 65_536, 2),
        shape(40, 1, 3000, 1),
        shape(50_000, 4, 9, 3),
        shape(5000, 16, 2, 6),
        shape(30, 1024, 40, 2),
        // Several waves, tiles and blocks, ragged.
        shape(2600, 24, 500, 2),
        shape(700, 130, 470, 5),
        shape(3957, 48, 200, 4),
        shape(257, 65, 1025, 0),
    ];
    let mut calls = 0;
    for shape in shapes {
        calls += Problem::<f32>::new(shape).keeps_its_promise(Precision::Full);
        calls += Problem::<f32>::new(shape).keeps_its_promise(Precision::Bf16);
        if shape.sites * shape.hidden * shape.classes < 40_000_000 {
            calls += Problem::<f64>::new(shape).keeps_its_promise(Precision::Full);
        }
    }
    println!("{calls} calls");
    assert!(calls >= 150, "{calls} calls are too few");

    // A tile of its best size would not fit.
    let of_issue = shape(3957, 48, 5000, 2);
    let budget = 4 << 20;
    let planned = Plan::<f32>::new(of_issue, Precision::Full, budget, true)
        .unwrap()
        .scratch(of_issue, Precision::Full)
        .bytes();
    let (measured, _) = Problem::<f32>::new(of_issue).run(&mut Workspace::new(budget, true)).unwrap();
    println!("{of_issue:?}: {measured} measured, {planned} planned, {budget} given");
    assert!(measured <= planned && planned <= budget);

    // One workspace for calls of unlike shapes, under a budget that shrinks and grows.
    let before = alive();
    let mut workspace = Workspace::<f32>::new(budget, true);
    let problems =
        [shape(2600, 24, 500, 2), shape(30, 1024, 40, 2), shape(3, 8, 9000, 2), shape(9000, 4, 9, 3)];
    let problems = problems.map(Problem::<f32>::new);
    let arguments = alive() - before;
    for kibibytes in [4096, 2048, 1024, 3000] {
        workspace.set_budget(kibibytes << 10, true);
        for problem in &problems {
            let held = alive() - before - arguments;
            let (measured, out) = problem.run(&mut workspace).unwrap();
            // What was held before and is let go at the call's start was alive before the call.
            assert!(
                measured <= kibibytes << 10 && (held + measured <= kibibytes << 10 || held > kibibytes << 10),
                "{:?}: {measured} bytes beside {held}, of {kibibytes} KiB",
                problem.shape
            );
            let (normalized, gradients) = out;
            drop(gradients);
            match kibibytes % 2048 {
                0 => workspace.recycle(normalized),
                _ => drop(normalized),
            }
            let held = alive() - before - arguments;
            assert!(held <= kibibytes << 10, "{:?}: {held} bytes stay, of {kibibytes} KiB", problem.shape);
        }
    }
}
