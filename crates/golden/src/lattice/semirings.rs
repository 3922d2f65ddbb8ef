//! Golden test of semirings: operations, row sums and products, gradients; in f64.
use rnnt_dp::semiring::{
    Axis, Cartesian, Differentiable, Log, LogLogExpectation, Probability, Semiring, Tropical,
};
use rnnt_loss::Element;

use super::check::{LatticeCheck, Quantity};
use super::component_files::round_to_type;
use crate::error::RunError;

/// Pair of numbers: log weight and log of the weighted value.
type LogPair = (f64, f64);

/// Returns true if a tensor is a result.
pub(super) fn is_result(name: &str) -> bool {
    const INPUTS: [&str; 8] = [
        "a",
        "b",
        "rows",
        "cartesian/in",
        "expectation/log_probs",
        "expectation/log_values",
        "expectation/zero_weight_in_w",
        "expectation/zero_weight_in_v",
    ];
    !INPUTS.contains(&name)
}

/// Checks the real, log and tropical semirings and two products of semirings.
pub(super) fn compare_semirings<F: Element>(check: &mut LatticeCheck) -> Result<(), RunError> {
    compare_number_semiring::<F, Probability>(check, "real")?;
    compare_number_semiring::<F, Log>(check, "log")?;
    compare_number_semiring::<F, Tropical>(check, "tropical")?;
    compare_expectation_semiring::<F>(check)?;
    // A Cartesian product applies both semirings to the same numbers.
    type Twins = Cartesian<Log, Tropical>;
    let values: Vec<LogPair> = check.file.get("cartesian/in")?.values.iter().map(|&x| (x, x)).collect();
    let last_axis = tensor_axis(check, "cartesian/in", -1)?;
    let names = |operation: &str| [format!("cartesian/{operation}_x"), format!("cartesian/{operation}_y")];
    compare_pairs::<F>(
        check,
        names("sum"),
        &last_axis.sum::<Twins>(&values).map_err(|e| axis_error(check, e))?,
    )?;
    compare_pairs::<F>(
        check,
        names("prod"),
        &last_axis.prod::<Twins>(&values).map_err(|e| axis_error(check, e))?,
    )
}

/// Checks a semiring of single numbers: real, log or tropical.
fn compare_number_semiring<F: Element, S: Differentiable>(
    check: &mut LatticeCheck,
    name: &str,
) -> Result<(), RunError> {
    let tensor = |operation: &str| format!("{name}/{operation}");
    check.compare(Quantity::Value, &tensor("zero"), &round_to_type::<F>([S::ZERO]))?;
    check.compare(Quantity::Value, &tensor("one"), &round_to_type::<F>([S::ONE]))?;
    // Operations on pairs of numbers, with the derivatives by both operands.
    let (a, b) = (&check.file.get("a")?.values, &check.file.get("b")?.values);
    let map_pairs = |f: &dyn Fn(f64, f64) -> f64| round_to_type::<F>(a.iter().zip(b).map(|(&a, &b)| f(a, b)));
    check.compare(Quantity::Value, &tensor("plus"), &map_pairs(&S::plus))?;
    check.compare(Quantity::Value, &tensor("times"), &map_pairs(&S::times))?;
    for (operand_index, side) in ["a", "b"].into_iter().enumerate() {
        let plus = map_pairs(&|a, b| S::plus_backward(a, b, 1.0)[operand_index]);
        check.compare(Quantity::Gradient, &tensor(&format!("plus_grad_{side}")), &plus)?;
        let times = map_pairs(&|a, b| S::times_backward(a, b, 1.0)[operand_index]);
        check.compare(Quantity::Gradient, &tensor(&format!("times_grad_{side}")), &times)?;
    }
    // Sums and products of rows, with gradients.
    let (values, last_axis) = (&check.file.get("rows")?.values, tensor_axis(check, "rows", -1)?);
    let [row_count, _] = check.file.shape("rows")?;
    let cotangents = vec![1.0; row_count];
    let to_case_error = |error| axis_error(check, error);
    let sums = last_axis.sum::<S>(values).map_err(to_case_error)?;
    let products = last_axis.prod::<S>(values).map_err(to_case_error)?;
    let sum_gradients = last_axis.sum_backward::<S>(values, &cotangents).map_err(to_case_error)?;
    let product_gradients = last_axis.prod_backward::<S>(values, &cotangents).map_err(to_case_error)?;
    check.compare(Quantity::Value, &tensor("sum"), &round_to_type::<F>(sums))?;
    check.compare(Quantity::Value, &tensor("prod"), &round_to_type::<F>(products))?;
    check.compare(Quantity::Gradient, &tensor("sum_grad"), &round_to_type::<F>(sum_gradients))?;
    if check.file.find(&tensor("prod_grad")).is_some() {
        check.compare(Quantity::Gradient, &tensor("prod_grad"), &round_to_type::<F>(product_gradients))?;
    }
    // Sums of no numbers.
    for axis_index in [0, 1] {
        let empty = Axis::new(&[0, 2], axis_index).and_then(|axis| axis.sum::<S>(&[]));
        let empty = empty.map_err(|error| axis_error(check, error))?;
        let name = tensor(&format!("sum_of_shape_0_2_axis{axis_index}"));
        check.compare(Quantity::Value, &name, &round_to_type::<F>(empty))?;
    }
    Ok(())
}

/// Checks the expectation semiring: pairs of log weight and log of the weighted value.
fn compare_expectation_semiring<F: Element>(check: &mut LatticeCheck) -> Result<(), RunError> {
    type E = LogLogExpectation;
    let names =
        |operation: &str| [format!("expectation/{operation}_w"), format!("expectation/{operation}_x")];
    compare_pairs::<F>(check, names("zero"), &[E::ZERO])?;
    compare_pairs::<F>(check, names("one"), &[E::ONE])?;
    let file = check.file;
    let weighted = |w: &str, v: &str| -> crate::error::Result<Vec<LogPair>> {
        let (w, v) = (&file.get(w)?.values, &file.get(v)?.values);
        Ok(w.iter().zip(v).map(|(&w, &v)| E::weighted(w, v)).collect())
    };
    let values = weighted("expectation/log_probs", "expectation/log_values")?;
    compare_pairs::<F>(check, names("weighted"), &values)?;
    let last_axis = tensor_axis(check, "expectation/log_probs", 1)?;
    compare_pairs::<F>(check, names("sum"), &last_axis.sum::<E>(&values).map_err(|e| axis_error(check, e))?)?;
    let [_, columns] = check.file.shape("expectation/log_probs")?;
    // Combines the first two rows.
    let combine_rows = |f: fn(LogPair, LogPair) -> LogPair| {
        let (first, second) = (values.iter().take(columns), values.iter().skip(columns));
        first.zip(second).map(|(&a, &b)| f(a, b)).collect::<Vec<_>>()
    };
    compare_pairs::<F>(check, names("plus"), &combine_rows(E::plus))?;
    compare_pairs::<F>(check, names("times"), &combine_rows(E::times))?;
    let zero_weight_values = weighted("expectation/zero_weight_in_w", "expectation/zero_weight_in_v")?;
    compare_pairs::<F>(check, names("zero_weight_out"), &zero_weight_values)
}

/// Compares the two components of pairs with two tensors.
fn compare_pairs<F: Element>(
    check: &mut LatticeCheck,
    [first, second]: [String; 2],
    actual: &[LogPair],
) -> Result<(), RunError> {
    check.compare(Quantity::Value, &first, &round_to_type::<F>(actual.iter().map(|pair| pair.0)))?;
    Ok(check.compare(Quantity::Value, &second, &round_to_type::<F>(actual.iter().map(|pair| pair.1)))?)
}

/// Returns an axis of a tensor; the functions of `Axis` work on the rows along it.
fn tensor_axis(check: &LatticeCheck, name: &str, axis_index: isize) -> Result<Axis, RunError> {
    Ok(Axis::new(&check.file.get(name)?.shape, axis_index).map_err(|error| axis_error(check, error))?)
}

fn axis_error(check: &LatticeCheck, error: rnnt_dp::Error) -> crate::error::Error {
    check.file.error("rows", "rows of values", &error.to_string())
}
