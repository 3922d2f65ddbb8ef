//! Semirings by themselves: operations, sums and products of rows, gradients; in f64 whatever the type of a run.
use rnnt_dp::semiring::{
    Axis, Cartesian, Differentiable, Log, LogLogExpectation, Probability, Semiring, Tropical,
};
use rnnt_loss::Element;

use super::check::{Check, Quantity};
use super::parts::rounded;
use crate::error::Stop;

type LogPair = (f64, f64);

/// Whether a tensor is a result.
pub fn is_answer(name: &str) -> bool {
    const GIVEN: [&str; 8] = [
        "a",
        "b",
        "rows",
        "cartesian/in",
        "expectation/log_probs",
        "expectation/log_values",
        "expectation/zero_weight_in_w",
        "expectation/zero_weight_in_v",
    ];
    !GIVEN.contains(&name)
}

pub fn semirings<F: Element>(check: &mut Check) -> Result<(), Stop> {
    numbers::<F, Probability>(check, "real")?;
    numbers::<F, Log>(check, "log")?;
    numbers::<F, Tropical>(check, "tropical")?;
    expectations::<F>(check)?;
    type Twins = Cartesian<Log, Tropical>;
    let values: Vec<LogPair> = check.file.get("cartesian/in")?.values.iter().map(|&x| (x, x)).collect();
    let rows = axis(check, "cartesian/in", -1)?;
    let names = |what: &str| [format!("cartesian/{what}_x"), format!("cartesian/{what}_y")];
    pairs::<F>(check, names("sum"), &rows.sum::<Twins>(&values).map_err(|e| refused(check, e))?)?;
    pairs::<F>(check, names("prod"), &rows.prod::<Twins>(&values).map_err(|e| refused(check, e))?)
}

fn numbers<F: Element, S: Differentiable>(check: &mut Check, name: &str) -> Result<(), Stop> {
    let of = |what: &str| format!("{name}/{what}");
    check.compare(Quantity::Value, &of("zero"), &rounded::<F>([S::ZERO]))?;
    check.compare(Quantity::Value, &of("one"), &rounded::<F>([S::ONE]))?;
    let (a, b) = (&check.file.get("a")?.values, &check.file.get("b")?.values);
    let each = |f: &dyn Fn(f64, f64) -> f64| rounded::<F>(a.iter().zip(b).map(|(&a, &b)| f(a, b)));
    check.compare(Quantity::Value, &of("plus"), &each(&S::plus))?;
    check.compare(Quantity::Value, &of("times"), &each(&S::times))?;
    for (at, side) in ["a", "b"].into_iter().enumerate() {
        let plus = each(&|a, b| S::plus_backward(a, b, 1.0)[at]);
        check.compare(Quantity::Gradient, &of(&format!("plus_grad_{side}")), &plus)?;
        let times = each(&|a, b| S::times_backward(a, b, 1.0)[at]);
        check.compare(Quantity::Gradient, &of(&format!("times_grad_{side}")), &times)?;
    }
    let (values, rows) = (&check.file.get("rows")?.values, axis(check, "rows", -1)?);
    let [count, _] = check.file.shape("rows")?;
    let ones = vec![1.0; count];
    let refuse = |error| refused(check, error);
    let sums = rows.sum::<S>(values).map_err(refuse)?;
    let products = rows.prod::<S>(values).map_err(refuse)?;
    let of_sums = rows.sum_backward::<S>(values, &ones).map_err(refuse)?;
    let of_products = rows.prod_backward::<S>(values, &ones).map_err(refuse)?;
    check.compare(Quantity::Value, &of("sum"), &rounded::<F>(sums))?;
    check.compare(Quantity::Value, &of("prod"), &rounded::<F>(products))?;
    check.compare(Quantity::Gradient, &of("sum_grad"), &rounded::<F>(of_sums))?;
    if check.file.find(&of("prod_grad")).is_some() {
        check.compare(Quantity::Gradient, &of("prod_grad"), &rounded::<F>(of_products))?;
    }
    for along in [0, 1] {
        let empty = Axis::new(&[0, 2], along).and_then(|axis| axis.sum::<S>(&[]));
        let empty = empty.map_err(|error| refused(check, error))?;
        let name = of(&format!("sum_of_shape_0_2_axis{along}"));
        check.compare(Quantity::Value, &name, &rounded::<F>(empty))?;
    }
    Ok(())
}

fn expectations<F: Element>(check: &mut Check) -> Result<(), Stop> {
    type E = LogLogExpectation;
    let names = |what: &str| [format!("expectation/{what}_w"), format!("expectation/{what}_x")];
    pairs::<F>(check, names("zero"), &[E::ZERO])?;
    pairs::<F>(check, names("one"), &[E::ONE])?;
    let file = check.file;
    let weighted = |w: &str, v: &str| -> crate::error::Result<Vec<LogPair>> {
        let (w, v) = (&file.get(w)?.values, &file.get(v)?.values);
        Ok(w.iter().zip(v).map(|(&w, &v)| E::weighted(w, v)).collect())
    };
    let all = weighted("expectation/log_probs", "expectation/log_values")?;
    pairs::<F>(check, names("weighted"), &all)?;
    let rows = axis(check, "expectation/log_probs", 1)?;
    pairs::<F>(check, names("sum"), &rows.sum::<E>(&all).map_err(|e| refused(check, e))?)?;
    let [_, columns] = check.file.shape("expectation/log_probs")?;
    // The first two rows with one another.
    let two = |f: fn(LogPair, LogPair) -> LogPair| {
        let (first, second) = (all.iter().take(columns), all.iter().skip(columns));
        first.zip(second).map(|(&a, &b)| f(a, b)).collect::<Vec<_>>()
    };
    pairs::<F>(check, names("plus"), &two(E::plus))?;
    pairs::<F>(check, names("times"), &two(E::times))?;
    let blocked = weighted("expectation/zero_weight_in_w", "expectation/zero_weight_in_v")?;
    pairs::<F>(check, names("zero_weight_out"), &blocked)
}

fn pairs<F: Element>(check: &mut Check, [first, second]: [String; 2], found: &[LogPair]) -> Result<(), Stop> {
    check.compare(Quantity::Value, &first, &rounded::<F>(found.iter().map(|pair| pair.0)))?;
    Ok(check.compare(Quantity::Value, &second, &rounded::<F>(found.iter().map(|pair| pair.1)))?)
}

fn axis(check: &Check, name: &str, along: isize) -> Result<Axis, Stop> {
    Ok(Axis::new(&check.file.get(name)?.shape, along).map_err(|error| refused(check, error))?)
}

fn refused(check: &Check, error: rnnt_dp::Error) -> crate::error::Error {
    check.file.wrong("rows", "rows of values", &error.to_string())
}
