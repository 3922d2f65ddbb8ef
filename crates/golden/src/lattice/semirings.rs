//! Golden test of semirings: operations, row sums and products, gradients; in f64.
use rnnt_dp::semiring::{
    Axis, Cartesian, Differentiable, Log, LogLogExpectation, Probability, Semiring, Tropical,
};
use rnnt_loss::Element;

use super::check::{LatticeCheck, Quantity};
use super::components::rounded;
use crate::error::RunError;

type LogPair = (f64, f64);

/// Returns true if a tensor is a result.
pub fn is_result(name: &str) -> bool {
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

pub fn semirings<F: Element>(check: &mut LatticeCheck) -> Result<(), RunError> {
    numbers::<F, Probability>(check, "real")?;
    numbers::<F, Log>(check, "log")?;
    numbers::<F, Tropical>(check, "tropical")?;
    expectations::<F>(check)?;
    type Twins = Cartesian<Log, Tropical>;
    let values: Vec<LogPair> = check.file.get("cartesian/in")?.values.iter().map(|&x| (x, x)).collect();
    let rows = axis(check, "cartesian/in", -1)?;
    let names = |operation: &str| [format!("cartesian/{operation}_x"), format!("cartesian/{operation}_y")];
    pairs::<F>(check, names("sum"), &rows.sum::<Twins>(&values).map_err(|e| axis_error(check, e))?)?;
    pairs::<F>(check, names("prod"), &rows.prod::<Twins>(&values).map_err(|e| axis_error(check, e))?)
}

/// Checks a semiring of single numbers: real, log or tropical.
fn numbers<F: Element, S: Differentiable>(check: &mut LatticeCheck, name: &str) -> Result<(), RunError> {
    let tensor = |operation: &str| format!("{name}/{operation}");
    check.compare(Quantity::Value, &tensor("zero"), &rounded::<F>([S::ZERO]))?;
    check.compare(Quantity::Value, &tensor("one"), &rounded::<F>([S::ONE]))?;
    let (a, b) = (&check.file.get("a")?.values, &check.file.get("b")?.values);
    let map = |f: &dyn Fn(f64, f64) -> f64| rounded::<F>(a.iter().zip(b).map(|(&a, &b)| f(a, b)));
    check.compare(Quantity::Value, &tensor("plus"), &map(&S::plus))?;
    check.compare(Quantity::Value, &tensor("times"), &map(&S::times))?;
    for (at, side) in ["a", "b"].into_iter().enumerate() {
        let plus = map(&|a, b| S::plus_backward(a, b, 1.0)[at]);
        check.compare(Quantity::Gradient, &tensor(&format!("plus_grad_{side}")), &plus)?;
        let times = map(&|a, b| S::times_backward(a, b, 1.0)[at]);
        check.compare(Quantity::Gradient, &tensor(&format!("times_grad_{side}")), &times)?;
    }
    let (values, rows) = (&check.file.get("rows")?.values, axis(check, "rows", -1)?);
    let [count, _] = check.file.shape("rows")?;
    let cotangents = vec![1.0; count];
    let with_name = |error| axis_error(check, error);
    let sums = rows.sum::<S>(values).map_err(with_name)?;
    let products = rows.prod::<S>(values).map_err(with_name)?;
    let sum_gradients = rows.sum_backward::<S>(values, &cotangents).map_err(with_name)?;
    let product_gradients = rows.prod_backward::<S>(values, &cotangents).map_err(with_name)?;
    check.compare(Quantity::Value, &tensor("sum"), &rounded::<F>(sums))?;
    check.compare(Quantity::Value, &tensor("prod"), &rounded::<F>(products))?;
    check.compare(Quantity::Gradient, &tensor("sum_grad"), &rounded::<F>(sum_gradients))?;
    if check.file.find(&tensor("prod_grad")).is_some() {
        check.compare(Quantity::Gradient, &tensor("prod_grad"), &rounded::<F>(product_gradients))?;
    }
    for along in [0, 1] {
        let empty = Axis::new(&[0, 2], along).and_then(|axis| axis.sum::<S>(&[]));
        let empty = empty.map_err(|error| axis_error(check, error))?;
        let name = tensor(&format!("sum_of_shape_0_2_axis{along}"));
        check.compare(Quantity::Value, &name, &rounded::<F>(empty))?;
    }
    Ok(())
}

/// Checks the expectation semiring: pairs of log weight and log of the weighted value.
fn expectations<F: Element>(check: &mut LatticeCheck) -> Result<(), RunError> {
    type E = LogLogExpectation;
    let names =
        |operation: &str| [format!("expectation/{operation}_w"), format!("expectation/{operation}_x")];
    pairs::<F>(check, names("zero"), &[E::ZERO])?;
    pairs::<F>(check, names("one"), &[E::ONE])?;
    let file = check.file;
    let weighted = |w: &str, v: &str| -> crate::error::Result<Vec<LogPair>> {
        let (w, v) = (&file.get(w)?.values, &file.get(v)?.values);
        Ok(w.iter().zip(v).map(|(&w, &v)| E::weighted(w, v)).collect())
    };
    let values = weighted("expectation/log_probs", "expectation/log_values")?;
    pairs::<F>(check, names("weighted"), &values)?;
    let rows = axis(check, "expectation/log_probs", 1)?;
    pairs::<F>(check, names("sum"), &rows.sum::<E>(&values).map_err(|e| axis_error(check, e))?)?;
    let [_, columns] = check.file.shape("expectation/log_probs")?;
    // Combines the first two rows.
    let combine = |f: fn(LogPair, LogPair) -> LogPair| {
        let (first, second) = (values.iter().take(columns), values.iter().skip(columns));
        first.zip(second).map(|(&a, &b)| f(a, b)).collect::<Vec<_>>()
    };
    pairs::<F>(check, names("plus"), &combine(E::plus))?;
    pairs::<F>(check, names("times"), &combine(E::times))?;
    let blocked = weighted("expectation/zero_weight_in_w", "expectation/zero_weight_in_v")?;
    pairs::<F>(check, names("zero_weight_out"), &blocked)
}

/// Compares the two components of pairs with two tensors.
fn pairs<F: Element>(
    check: &mut LatticeCheck,
    [first, second]: [String; 2],
    actual: &[LogPair],
) -> Result<(), RunError> {
    check.compare(Quantity::Value, &first, &rounded::<F>(actual.iter().map(|pair| pair.0)))?;
    Ok(check.compare(Quantity::Value, &second, &rounded::<F>(actual.iter().map(|pair| pair.1)))?)
}

fn axis(check: &LatticeCheck, name: &str, along: isize) -> Result<Axis, RunError> {
    Ok(Axis::new(&check.file.get(name)?.shape, along).map_err(|error| axis_error(check, error))?)
}

fn axis_error(check: &LatticeCheck, error: rnnt_dp::Error) -> crate::error::Error {
    check.file.error("rows", "rows of values", &error.to_string())
}
