//! The selected normalizer with bf16 products compared with full precision.
//!
//! Errors stay within the documented bounds; plans, threads and masked classes behave as in full
//! precision.
use panda_core::{
    Adjoints, BackwardInputs, Gradients, Head, Normalized, Plan, Precision, Rows, Selection, Sites,
    Workspace, backward, forward,
};

/// Number of sites.
const N: usize = 300;
/// Width of hidden rows.
const H: usize = 70;
/// Number of classes.
const C: usize = 500;

/// Arguments of forward and backward, with two selected classes of each site.
struct Problem {
    hidden: Vec<f32>,
    weight: Vec<f32>,
    bias: Vec<f32>,
    selection: Selection,
    adjoints: Vec<f64>,
}

/// Pseudo-random values, uniform in an interval of length `scale` around 0.
fn synthetic(count: usize, seed: u32, scale: f64) -> Vec<f32> {
    let hash = |i: u32| (i ^ seed).wrapping_mul(0x9e37_79b9).rotate_left(13).wrapping_mul(0x85eb_ca6b);
    (0..count as u32).map(|i| ((f64::from(hash(i)) / f64::from(u32::MAX) - 0.5) * scale) as f32).collect()
}

/// Results of forward and backward.
struct Output {
    normalized: Normalized<f32>,
    gradients: Gradients<f32, Vec<f32>>,
}

impl Problem {
    fn new() -> Self {
        let classes = (0..N as u32).flat_map(|i| [0, 1 + i * 7 % (C as u32 - 1)]).collect();
        Self {
            hidden: synthetic(N * H, 11, 2.0),
            weight: synthetic(C * H, 12, 0.6),
            bias: synthetic(C, 13, 1.0),
            selection: Selection::new(classes, vec![true; 2 * N], 2).unwrap(),
            adjoints: synthetic(2 * N, 14, 2.0).iter().map(|&a| f64::from(a)).collect(),
        }
    }

    /// Rounds hidden rows and weights to bf16, but not the score gradients.
    fn rounded(mut self) -> Self {
        let round = |x: &mut f32| *x = f32::from_bits(x.to_bits() & 0xffff_0000);
        self.hidden.iter_mut().for_each(round);
        self.weight.iter_mut().for_each(round);
        self
    }

    /// Runs forward and backward.
    fn run(&self, mut workspace: Workspace<f32>) -> Output {
        let rows = Rows::new(&self.hidden, H).unwrap();
        let head = Head::new(&self.weight, Some(&self.bias), H).unwrap();
        let out = forward(&rows, &head, &self.selection, &mut workspace).unwrap();
        let mut into = Gradients::zero(rows.zero_gradient(), &head);
        let (sites, head, selection) = (&rows, &head, &self.selection);
        let adjoints = &Adjoints::new(&self.adjoints);
        backward(
            BackwardInputs { sites, head, selection, normalized: &out, adjoints },
            &mut workspace,
            &mut into,
        )
        .unwrap();
        Output { normalized: out, gradients: into }
    }

    /// Runs forward and backward in a precision, with unlimited memory.
    fn run_with(&self, precision: Precision) -> Output {
        self.run(Workspace::new(usize::MAX, false).with_precision(precision))
    }
}

/// Returns the relative error in the Euclidean norm.
fn relative_error(actual: &[f32], expected: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let error: f64 =
        actual.iter().zip(expected).map(|(actual, expected)| square(f64::from(actual - expected))).sum();
    (error / expected.iter().map(|&e| square(f64::from(e))).sum::<f64>()).sqrt()
}

#[test]
fn emissions_stay_within_the_documented_bound() {
    let problem = Problem::new();
    let (full, bf16) = (problem.run_with(Precision::Full), problem.run_with(Precision::Bf16));
    let mut max_error = 0f64;
    for site in 0..N {
        let row = &problem.hidden[site * H..][..H];
        let bound = problem
            .weight
            .chunks(H)
            .map(|w| row.iter().zip(w).map(|(h, w)| f64::from((h * w).abs())).sum::<f64>())
            .fold(0.0, f64::max)
            / 128.0;
        for slot in 0..2 {
            let entry = 2 * site + slot;
            let error = (bf16.normalized.emissions[entry] - full.normalized.emissions[entry]).abs();
            assert!(error <= 2.0 * bound, "site {site}: {error} {bound}");
            max_error = max_error.max(error);
        }
    }
    assert!(max_error > 1e-5, "bf16 was not used: {max_error}");
    let (bf16, full) = (bf16.gradients, full.gradients);
    for (actual, expected) in [(&bf16.weight, &full.weight), (&bf16.sites, &full.sites)] {
        let error = relative_error(actual, expected);
        assert!((1e-5..1e-2).contains(&error), "{error}");
    }
}

#[test]
fn the_worst_case_is_within_the_documented_bound() {
    const WORST_CASE: f32 = 1.0 + 1.0 / 256.0; // halfway between two bf16 numbers; rounds to 1
    let (hidden, weight) = ([WORST_CASE; 32], [[WORST_CASE; 32], [-WORST_CASE; 32]].concat());
    let emission = |precision| {
        let mut workspace = Workspace::new(usize::MAX, false).with_precision(precision);
        let head = Head::new(&weight, None, 32).unwrap();
        let selection = Selection::new(vec![1], vec![true], 1).unwrap();
        forward(&Rows::new(&hidden, 32).unwrap(), &head, &selection, &mut workspace).unwrap().emissions[0]
    };
    let (error, sum) =
        (emission(Precision::Bf16) - emission(Precision::Full), 32.0 * f64::from(WORST_CASE * WORST_CASE));
    assert!(error > 2.0 * sum / 256.0 && error <= 2.0 * sum / 128.0, "{error} {sum}");
}

#[test]
fn weights_beyond_bf16_are_refused() {
    let rows = Rows::new(&[1.0f32], 1).unwrap();
    let selection = Selection::new(vec![0], vec![true], 1).unwrap();
    let run = |weight: f32, precision| {
        let weight = [0.0, weight];
        let mut workspace = Workspace::new(usize::MAX, false).with_precision(precision);
        forward(&rows, &Head::new(&weight, None, 1).unwrap(), &selection, &mut workspace).map(|_| ())
    };
    assert_eq!(run(-3.4e38, Precision::Full), Ok(()));
    let refused = Err(panda_core::Error::InfiniteWeight { class: 1, value: f64::from(-3.4e38f32) });
    assert_eq!(run(-3.4e38, Precision::Bf16), refused);
    assert_eq!(run(-3.39e38, Precision::Bf16), Ok(()));
}

#[test]
fn masked_classes_and_bad_rows_behave_as_in_full_precision() {
    let problem = Problem { bias: vec![f32::NEG_INFINITY; C], ..Problem::new() };
    let rows = Rows::new(&problem.hidden, H).unwrap();
    let run = |bias: &[f32]| {
        let mut workspace = Workspace::new(usize::MAX, false).with_precision(Precision::Bf16);
        let head = Head::new(&problem.weight, Some(bias), H).unwrap();
        forward(&rows, &head, &problem.selection, &mut workspace).map(|out| out.emissions)
    };
    assert_eq!(run(&problem.bias), Err(panda_core::Error::AllMasked { site: 0 }));
    let mut bias = vec![0.0; C];
    bias[7] = f32::NEG_INFINITY;
    assert!(run(&bias).unwrap().iter().all(|e| !e.is_nan()));
    bias[7] = f32::NAN;
    assert_eq!(run(&bias), Err(panda_core::Error::NotFinite { site: 0 }));
}

#[test]
fn f64_references_are_rounded_equally() {
    let problem = Problem::new();
    let to_f64 = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let (hidden, weight, bias) = (to_f64(&problem.hidden), to_f64(&problem.weight), to_f64(&problem.bias));
    let mut workspace = Workspace::new(usize::MAX, false).with_precision(Precision::Bf16);
    let rows = Rows::new(&hidden, H).unwrap();
    let head = Head::new(&weight, Some(&bias), H).unwrap();
    let out = forward(&rows, &head, &problem.selection, &mut workspace).unwrap();
    for (double, single) in out.emissions.iter().zip(&problem.run_with(Precision::Bf16).normalized.emissions)
    {
        assert!((double - single).abs() < 1e-5, "{double} {single}");
    }
}

#[test]
fn operands_exact_in_bf16_give_exact_emissions() {
    let problem = Problem::new().rounded();
    let (full, bf16) = (problem.run_with(Precision::Full), problem.run_with(Precision::Bf16));
    for (bf16, full) in bf16.normalized.emissions.iter().zip(&full.normalized.emissions) {
        assert!((bf16 - full).abs() < 1e-5, "{bf16} {full}");
    }
    // Bias gradients are summed before rounding.
    let (bf16, full) = (bf16.gradients, full.gradients);
    for (bf16, full) in bf16.bias.iter().zip(&full.bias) {
        assert!((bf16 - full).abs() < 1e-5, "{bf16} {full}");
    }
    assert!(relative_error(&bf16.weight, &full.weight) < 4e-3);
    assert!(relative_error(&bf16.sites, &full.sites) < 4e-3);
}

#[test]
fn plans_and_saved_scores_change_only_rounding() {
    let problem = Problem::new();
    let expected = problem.run_with(Precision::Bf16);
    for (wave_sites, block_sites, tile_classes, group_tiles, saved_scores, saved_hidden) in [
        (300, 256, 448, 2, 0, 0),
        (300, 256, 448, 2, 300, 0),
        (300, 256, 448, 2, 300, 300),
        (100, 32, 64, 3, 150, 96),
        (7, 3, 5, 2, 20, 14),
        (40, 50, 33, 1, 0, 0),
    ] {
        let plan = Plan::custom(wave_sites, block_sites, tile_classes, group_tiles, saved_scores);
        let plan = Plan { saved_hidden, ..plan };
        let actual = problem.run(Workspace::with_plan(plan).unwrap().with_precision(Precision::Bf16));
        for (actual, expected) in actual.normalized.emissions.iter().zip(&expected.normalized.emissions) {
            assert!((actual - expected).abs() < 1e-5, "{plan:?}");
        }
        let (actual, expected) = (&actual.gradients, &expected.gradients);
        assert!(relative_error(&actual.weight, &expected.weight) < 1e-5, "{plan:?}");
        assert!(relative_error(&actual.sites, &expected.sites) < 1e-5, "{plan:?}");
    }
}

#[test]
fn threads_change_no_bit() {
    let problem = Problem::new();
    let bits = |threads: usize, precision: Precision| -> Vec<u64> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let Output { normalized, gradients } = pool.install(|| problem.run_with(precision));
        let single_bits = |x: &f32| u64::from(x.to_bits());
        let doubles = normalized.emissions.iter().chain(&gradients.bias).map(|x| x.to_bits());
        let singles = gradients.weight.iter().chain(&gradients.sites).map(single_bits);
        doubles.chain(singles).collect()
    };
    for precision in [Precision::Bf16, Precision::Bf16x3] {
        let expected = bits(1, precision);
        for threads in [2, 3, 5] {
            assert!(bits(threads, precision) == expected, "{precision:?}, {threads} threads");
        }
    }
}

/// Without AMX tiles, the bits are those of full precision.
#[test]
fn split_numbers_have_errors_of_a_few_units_of_single_precision() {
    let problem = Problem::new();
    let to_f64 = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let (hidden, weight, bias) = (to_f64(&problem.hidden), to_f64(&problem.weight), to_f64(&problem.bias));
    let (rows, head) = (Rows::new(&hidden, H).unwrap(), Head::new(&weight, Some(&bias), H).unwrap());
    let mut workspace = Workspace::new(usize::MAX, false);
    let normalized = forward(&rows, &head, &problem.selection, &mut workspace).unwrap();
    let mut expected = Gradients::zero(rows.zero_gradient(), &head);
    let (sites, selection, adjoints) = (&rows, &problem.selection, &Adjoints::new(&problem.adjoints));
    let inputs = BackwardInputs { sites, head: &head, selection, normalized: &normalized, adjoints };
    backward(inputs, &mut workspace, &mut expected).unwrap();

    let Output { normalized: split, gradients } = problem.run_with(Precision::Bf16x3);
    for (split, expected) in split.emissions.iter().zip(&normalized.emissions) {
        assert!((split - expected).abs() < 2e-5, "{split} {expected}");
    }
    let round = |values: &[f64]| values.iter().map(|&x| x as f32).collect::<Vec<_>>();
    for (actual, expected) in
        [(&gradients.weight, round(&expected.weight)), (&gradients.sites, round(&expected.sites))]
    {
        let error = relative_error(actual, &expected);
        assert!(error < 5e-6, "{error}");
        assert!(!Precision::Bf16x3.is_native() || error > 2e-7, "split numbers were not used: {error}");
    }
    if !Precision::Bf16x3.is_native() {
        let full = problem.run_with(Precision::Full);
        assert!(split.emissions == full.normalized.emissions && gradients.weight == full.gradients.weight);
    }
}
