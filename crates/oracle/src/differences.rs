//! Gradients by central differences, independent of any analytical derivative.

use crate::error::Result;

/// Returns the gradient of a scalar function by the five-point central difference.
///
/// `f'(x) = (8 (f(x + h) - f(x - h)) - (f(x + 2h) - f(x - 2h))) / 12 h` has an error of
/// `h^4 f^(5) / 30` plus rounding of about `eps |f| / h`. `h = eps^(1/5) max(1, |x|)` balances the two near
/// 1e-12 for a well-scaled f64 function.
///
/// # Shapes
/// `at` and the returned gradient have the same length.
///
/// # Errors
/// Those of `function`.
///
/// Cost: four calls of `function` a value.
pub fn central_difference<F>(mut function: F, at: &[f64]) -> Result<Vec<f64>>
where
    F: FnMut(&[f64]) -> Result<f64>,
{
    let mut point = at.to_vec();
    let mut gradient = Vec::with_capacity(at.len());
    for i in 0..at.len() {
        let step = f64::EPSILON.powf(0.2) * at[i].abs().max(1.0);
        let mut shifted = |steps: f64| -> Result<f64> {
            point[i] = at[i] + steps * step;
            let value = function(&point);
            point[i] = at[i];
            value
        };
        let near = shifted(1.0)? - shifted(-1.0)?;
        let far = shifted(2.0)? - shifted(-2.0)?;
        gradient.push((8.0 * near - far) / (12.0 * step));
    }
    Ok(gradient)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differentiates_a_known_function() {
        let at = [0.3, -1.2, 40.0];
        let gradient = central_difference(|x| Ok(x[0].exp() * x[1].sin() + x[2].ln()), &at).unwrap();
        let exact = [at[0].exp() * at[1].sin(), at[0].exp() * at[1].cos(), 1.0 / at[2]];
        for (a, b) in gradient.iter().zip(exact) {
            assert!((a - b).abs() < 1e-11, "{a} against {b}");
        }
    }

    #[test]
    fn errors_of_the_function_are_returned() {
        let fail = |_: &[f64]| Err(crate::error::shape("x", "nothing", "something"));
        assert!(central_difference(fail, &[0.0]).is_err());
    }
}
