//! Semirings of lattice sums compared with golden vectors and central differences.
//!
//! Sums with infinite and NaN weights, and sums along array axes, are tested too.
use oracle::{
    compare::assert_near,
    differences,
    golden::{self, GoldenTensors},
};
use proptest::prelude::*;
use rnnt_dp::{
    Error,
    semiring::{
        Axis, Cartesian, Differentiable, Expectation, Log, LogLogExpectation, LogToProbability, Probability,
        Semiring, Tropical,
    },
};

/// Relative and absolute tolerances of values and of gradients.
struct Tolerances {
    values: [f64; 2],
    gradients: [f64; 2],
}

const DOUBLE_PRECISION: Tolerances = Tolerances { values: [1e-10, 1e-12], gradients: [1e-10, 1e-12] };
const SINGLE_PRECISION: Tolerances = Tolerances { values: [2e-5, 1e-5], gradients: [1e-4, 1e-5] };

#[test]
fn semirings_match_golden_vectors_in_double_precision() {
    compare_with_golden_vectors("f64", &DOUBLE_PRECISION);
}

#[test]
fn semirings_match_golden_vectors_in_single_precision() {
    compare_with_golden_vectors("f32", &SINGLE_PRECISION);
}

fn compare_with_golden_vectors(precision: &str, tolerances: &Tolerances) {
    let Some(folder) = golden::system_folder("last") else { return };
    let file = GoldenTensors::read(&folder.join(format!("semirings.{precision}.safetensors")));
    compare_number_semiring::<Probability>(&file, "real", tolerances);
    compare_number_semiring::<Log>(&file, "log", tolerances);
    compare_number_semiring::<Tropical>(&file, "tropical", tolerances);
    compare_pair_semirings(&file, tolerances);
    assert_eq!(file.unread_names(), [""; 0], "tensors of {precision} without a comparison");
}

/// Compares sums, products and their gradients in a semiring of numbers.
fn compare_number_semiring<S: Differentiable>(file: &GoldenTensors, name: &str, tolerances: &Tolerances) {
    let values = |name_in_file: &str, computed: &[f64]| {
        let [relative, absolute] = tolerances.values;
        let full_name = format!("{name}/{name_in_file}");
        assert_near(&full_name, computed, file.values(&full_name), relative, absolute);
    };
    let gradients = |name_in_file: &str, computed: &[f64]| {
        let [relative, absolute] = tolerances.gradients;
        let full_name = format!("{name}/{name_in_file}");
        assert_near(&full_name, computed, file.values(&full_name), relative, absolute);
    };
    values("zero", &[S::ZERO]);
    values("one", &[S::ONE]);
    let operands: Vec<_> = file.values("a").iter().copied().zip(file.values("b").iter().copied()).collect();
    let map = |operation: &dyn Fn(f64, f64) -> f64| {
        operands.iter().map(|&(a, b)| operation(a, b)).collect::<Vec<_>>()
    };
    values("plus", &map(&S::plus));
    values("times", &map(&S::times));
    for (side, operand) in ["a", "b"].into_iter().zip(0..) {
        gradients(&format!("plus_grad_{side}"), &map(&|a, b| S::plus_backward(a, b, 1.0)[operand]));
        gradients(&format!("times_grad_{side}"), &map(&|a, b| S::times_backward(a, b, 1.0)[operand]));
    }
    let rows = file.values("rows");
    let axis = Axis::new(file.shape("rows"), -1).unwrap();
    let cotangents = vec![1.0; file.shape("rows")[0]];
    values("sum", &axis.sum::<S>(rows).unwrap());
    values("prod", &axis.prod::<S>(rows).unwrap());
    gradients("sum_grad", &axis.sum_backward::<S>(rows, &cotangents).unwrap());
    let prod = axis.prod_backward::<S>(rows, &cotangents).unwrap();
    if file.has(&format!("{name}/prod_grad")) {
        gradients("prod_grad", &prod);
    }
    for axis in 0..2 {
        let sum = Axis::new(&[0, 2], axis).unwrap().sum::<S>(&[]).unwrap();
        values(&format!("sum_of_shape_0_2_axis{axis}"), &sum);
    }
}

/// Compares sums and products in semirings of pairs.
fn compare_pair_semirings(file: &GoldenTensors, tolerances: &Tolerances) {
    type E = LogLogExpectation;
    let [relative, absolute] = tolerances.values;
    let near =
        |name: &str, computed: &[f64]| assert_near(name, computed, file.values(name), relative, absolute);
    let compare = |name: &str, suffixes: [&str; 2], computed: &[(f64, f64)]| {
        let (first, second): (Vec<_>, Vec<_>) = computed.iter().copied().unzip();
        near(&format!("{name}{}", suffixes[0]), &first);
        near(&format!("{name}{}", suffixes[1]), &second);
    };
    let weighted = |w: &str, v: &str| {
        let (w, v) = (file.values(w), file.values(v));
        w.iter().zip(v).map(|(&w, &v)| E::weighted(w, v)).collect::<Vec<_>>()
    };
    let names = ["_w", "_x"];
    compare("expectation/zero", names, &[E::ZERO]);
    compare("expectation/one", names, &[E::ONE]);
    let all = weighted("expectation/log_probs", "expectation/log_values");
    let axis = Axis::new(file.shape("expectation/log_probs"), 1).unwrap();
    compare("expectation/weighted", names, &all);
    compare("expectation/sum", names, &axis.sum::<E>(&all).unwrap());
    let columns = file.shape("expectation/plus_w")[0];
    type Pair = (f64, f64);
    let fold_rows = |operation: fn(Pair, Pair) -> Pair| {
        (0..columns).map(|column| operation(all[column], all[columns + column])).collect::<Vec<_>>()
    };
    compare("expectation/plus", names, &fold_rows(E::plus));
    compare("expectation/times", names, &fold_rows(E::times));
    let blocked = weighted("expectation/zero_weight_in_w", "expectation/zero_weight_in_v");
    compare("expectation/zero_weight_out", names, &blocked);

    type C = Cartesian<Log, Tropical>;
    let twins: Vec<_> = file.values("cartesian/in").iter().map(|&a| (a, a)).collect();
    let axis = Axis::new(file.shape("cartesian/in"), -1).unwrap();
    compare("cartesian/sum", ["_x", "_y"], &axis.sum::<C>(&twins).unwrap());
    compare("cartesian/prod", ["_x", "_y"], &axis.prod::<C>(&twins).unwrap());
}

#[test]
fn sums_with_infinities_are_distinct() {
    let (low, high) = (f64::NEG_INFINITY, f64::INFINITY);
    for (a, b, sum) in
        [(low, low, low), (high, high, high), (low, high, high), (3.0, high, high), (low, 3.0, 3.0)]
    {
        assert_eq!(
            [Log::plus(a, b), Log::plus(b, a), Log::sum([a, b]), Log::sum([b, a])],
            [sum; 4],
            "{a} {b}"
        );
    }
    for value in [low, high, 0.0, f64::NAN] {
        for (a, b) in [(value, f64::NAN), (f64::NAN, value)] {
            assert!(Log::plus(a, b).is_nan() && Tropical::plus(a, b).is_nan(), "{a} {b}");
            assert!(Log::sum([a, b]).is_nan() && Tropical::sum([a, b]).is_nan(), "{a} {b}");
        }
    }
    // A blocked path has no gradient, an error propagates.
    assert_eq!(Log::plus_backward(low, low, 1.0), [0.0; 2]);
    let [error, finite] = Log::plus_backward(high, 1.0, 1.0);
    assert!(error.is_nan() && finite == 0.0);
    assert_eq!(Tropical::plus_backward(low, low, 2.0), [2.0, 0.0]);
}

#[test]
fn axes_are_checked() {
    assert_eq!(Axis::new(&[2, 3], 2).unwrap_err(), Error::Axis { axes: 2, found: 2 });
    assert_eq!(Axis::new(&[2, 3], -3).unwrap_err(), Error::Axis { axes: 2, found: -3 });
    assert_eq!(Axis::new(&[], 0).unwrap_err(), Error::Axis { axes: 0, found: 0 });
    assert_eq!(Axis::new(&[2, 3], isize::MIN).unwrap_err(), Error::Axis { axes: 2, found: isize::MIN });
    let huge = [0, usize::MAX, 2];
    assert_eq!(Axis::new(&huge, 0).unwrap_err(), Error::ShapeOverflow { shape: huge.to_vec() });
    let axis = Axis::new(&[2, 3, 2], -2).unwrap();
    assert!(matches!(
        axis.sum::<Probability>(&[0.0; 11]),
        Err(Error::Length { expected: 12, found: 11, .. })
    ));
    assert!(matches!(
        axis.sum_backward::<Probability>(&[0.0; 12], &[0.0; 3]),
        Err(Error::Length { expected: 4, .. })
    ));
    let values: Vec<f64> = (0..12).map(f64::from).collect();
    assert_eq!(axis.sum::<Probability>(&values).unwrap(), [6.0, 9.0, 24.0, 27.0]);
    assert_eq!(Axis::new(&[3, 0, 2], 1).unwrap().prod::<Log>(&[]).unwrap(), [0.0; 6]);
}

/// Compares gradients of a product, and of a smooth sum.
fn check_gradients<S: Differentiable>(values: &[f64], cotangent: f64, has_smooth_sum: bool) {
    let mut gradient = vec![f64::NAN; values.len()];
    if has_smooth_sum {
        S::sum_backward(values, cotangent, &mut gradient);
        let expected =
            differences::central_difference(|values| Ok(cotangent * S::sum(values.iter().copied())), values)
                .unwrap();
        assert_near("sum", &gradient, &expected, 1e-8, 1e-8);
    }
    S::prod_backward(values, cotangent, &mut gradient);
    let product = |values: &[f64]| Ok(cotangent * S::prod(values.iter().copied()));
    let expected = differences::central_difference(product, values).unwrap();
    assert_near("prod", &gradient, &expected, 1e-8, 1e-8);
}

proptest! {
    #[test]
    fn gradients_match_central_differences(
        values in prop::collection::vec(-3.0..3.0f64, 0..6),
        cotangent in -2.0..2.0f64,
    ) {
        check_gradients::<Log>(&values, cotangent, true);
        check_gradients::<Probability>(&values, cotangent, true);
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        // Where two values are nearly equal, differences depend on both.
        let is_distinct = sorted.windows(2).all(|pair| pair[1] - pair[0] > 0.1);
        check_gradients::<Tropical>(&values, cotangent, is_distinct);
    }

    /// Sums and products equal folds of `plus` and `times`.
    #[test]
    fn sums_are_folds(values in prop::collection::vec(-8.0..3.0f64, 0..7)) {
        fn sums_and_folds<S: Semiring>(values: &[S::Weight]) -> [[S::Weight; 2]; 2] {
            let fold = |from, operation: fn(S::Weight, S::Weight) -> S::Weight| {
                values.iter().copied().fold(from, operation)
            };
            let all = || values.iter().copied();
            [[S::sum(all()), fold(S::ZERO, S::plus)], [S::prod(all()), fold(S::ONE, S::times)]]
        }
        for [computed, expected] in sums_and_folds::<Log>(&values)
            .into_iter()
            .chain(sums_and_folds::<Probability>(&values))
            .chain(sums_and_folds::<Tropical>(&values))
        {
            assert_near("fold", &[computed], &[expected], 1e-12, 1e-12);
        }
        let twins: Vec<(f64, f64)> = values.iter().map(|&v| (v, v.abs())).collect();
        let composite = sums_and_folds::<LogLogExpectation>(&twins)
            .into_iter()
            .chain(sums_and_folds::<Cartesian<Log, Probability>>(&twins));
        for [computed, expected] in
            composite.chain(sums_and_folds::<Expectation<Log, Probability, LogToProbability>>(&twins))
        {
            assert_near("pairs", &[computed.0, computed.1], &[expected.0, expected.1], 1e-12, 1e-12);
        }
    }
}
