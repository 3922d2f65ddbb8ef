//! Gradients of any scalar function by central differences.
//!
//! They check analytical gradients without sharing any derivation with them.

use crate::error::Result;

/// Returns the gradient of a scalar function by the five-point central difference.
///
/// `f'(x) = (8 (f(x + h) - f(x - h)) - (f(x + 2h) - f(x - 2h))) / 12 h` has an error of
/// `h^4 f^(5) / 30` plus rounding of about `eps |f| / h`. `h = eps^(1/5) max(1, |x|)` balances the two near
/// 1e-12 for a well-scaled f64 function.
///
/// # Shapes
/// `point` and the returned gradient have the same length.
///
/// # Errors
/// Those of `function`.
///
/// Cost: four calls of `function` a value.
pub fn central_difference<F>(mut function: F, point: &[f64]) -> Result<Vec<f64>>
where
    F: FnMut(&[f64]) -> Result<f64>,
{
    let mut shifted_point = point.to_vec();
    let mut gradient = Vec::with_capacity(point.len());
    for i in 0..point.len() {
        let step = f64::EPSILON.powf(0.2) * point[i].abs().max(1.0);
        let mut value_at = |steps: f64| -> Result<f64> {
            shifted_point[i] = point[i] + steps * step;
            let value = function(&shifted_point);
            shifted_point[i] = point[i];
            value
        };
        let near = value_at(1.0)? - value_at(-1.0)?;
        let far = value_at(2.0)? - value_at(-2.0)?;
        gradient.push((8.0 * near - far) / (12.0 * step));
    }
    Ok(gradient)
}
