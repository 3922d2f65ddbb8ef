//! The cell of a gated recurrent layer, for a few rows of a strip of units, and backward beside it.
//!
//! ```text
//! i, f, o = σ(..)   g = tanh(..)       c = f c' + i g       h = o tanh(c)           c' the cell of the frame before
//! backward, given dh and dc of the frame after:
//!   dc += dh o (1 - tanh²c)    da = [dc g i(1-i), dc c' f(1-f), dc i (1-g²), dh tanh(c) o(1-o)]    dc' = dc f
//! ```
use crate::{Real, product::UNITS};

/// Gates of a row of a strip.
const GATES: usize = 4 * UNITS;

/// `gates` *rows x (i, f, g, o) x 16*, before their nonlinearity, are put through it; `cell` *rows x 16* is c' and becomes c;
/// `state` *rows x 16* becomes h.
///
/// # Panics
/// If the lengths do not fit.
pub fn cell_forward<F: Real>(gates: &mut [F], cell: &mut [F], state: &mut [F]) {
    check(gates.len(), &[cell.len(), state.len()]);
    F::cell_forward(gates, cell, state);
}

/// Backward of [`cell_forward`]: `gates` as it left them become da, `carry` is dc of the frame after and becomes that for the one
/// before; `cell` is c, `old` c'.
///
/// # Panics
/// If the lengths do not fit.
pub fn cell_backward<F: Real>(gates: &mut [F], [cell, old, dh]: [&[F]; 3], carry: &mut [F]) {
    check(gates.len(), &[cell.len(), old.len(), dh.len(), carry.len()]);
    F::cell_backward(gates, [cell, old, dh], carry);
}

fn check(gates: usize, others: &[usize]) {
    let fits = gates.is_multiple_of(GATES) && others.iter().all(|len| len * 4 == gates);
    assert!(fits, "cell: {gates} gates, {others:?} of units");
}

/// For any machine and either type.
pub(crate) fn forward<F: Real>(gates: &mut [F], cell: &mut [F], state: &mut [F]) {
    let rows = gates.chunks_exact_mut(GATES).zip(cell.chunks_exact_mut(UNITS));
    for ((gates, cell), state) in rows.zip(state.chunks_exact_mut(UNITS)) {
        let (input_and_forget, rest) = gates.split_at_mut(2 * UNITS);
        let (g, o) = rest.split_at_mut(UNITS);
        F::sigmoid_slice(input_and_forget);
        F::tanh_slice(g);
        F::sigmoid_slice(o);
        let (i, f) = input_and_forget.split_at(UNITS);
        for k in 0..UNITS {
            cell[k] = f[k] * cell[k] + i[k] * g[k];
        }
        state.copy_from_slice(cell);
        F::tanh_slice(state);
        state.iter_mut().zip(o).for_each(|(state, o)| *state *= *o);
    }
}

/// The same of [`cell_backward`].
pub(crate) fn backward<F: Real>(gates: &mut [F], [cell, old, dh]: [&[F]; 3], carry: &mut [F]) {
    let rows = gates.chunks_exact_mut(GATES).zip(cell.chunks_exact(UNITS)).zip(old.chunks_exact(UNITS));
    for (((gates, cell), old), (dh, carry)) in
        rows.zip(dh.chunks_exact(UNITS).zip(carry.chunks_exact_mut(UNITS)))
    {
        let mut tanh_c = [F::ZERO; UNITS];
        tanh_c.copy_from_slice(cell);
        F::tanh_slice(&mut tanh_c);
        for k in 0..UNITS {
            let [i, f, g, o] = [0, 1, 2, 3].map(|gate| gates[gate * UNITS + k]);
            let dc = carry[k] + dh[k] * o * (F::ONE - tanh_c[k] * tanh_c[k]);
            carry[k] = dc * f;
            gates[k] = dc * g * i * (F::ONE - i);
            gates[UNITS + k] = dc * (f * (F::ONE - f)) * old[k];
            gates[2 * UNITS + k] = dc * i * (F::ONE - g * g);
            gates[3 * UNITS + k] = dh[k] * tanh_c[k] * o * (F::ONE - o);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dispatch, packed::check::made_up, simd::SimdLevel};

    #[test]
    fn every_copy_is_near_that_of_f64() {
        let rows = 3;
        let wide = |values: &[f32]| values.iter().map(|&value| f64::from(value)).collect::<Vec<_>>();
        let [gates, old, dh, dc] = [4, 1, 1, 1].map(|each| made_up::<f32>(each * rows * UNITS, each as u32));
        for machine in SimdLevel::all() {
            let (mut a, mut c, mut h, mut carry) = (gates.clone(), old.clone(), old.clone(), dc.clone());
            let (mut wide_a, mut wide_c, mut wide_h, mut wide_carry) =
                (wide(&a), wide(&c), wide(&h), wide(&carry));
            let close = |found: &[f32], exact: &[f64], what: &str| {
                for (&found, exact) in found.iter().zip(exact) {
                    assert!((f64::from(found) - exact).abs() < 2e-6, "{machine:?}, {what}: {found}, {exact}");
                }
            };
            dispatch::cell_forward(machine, &mut a, &mut c, &mut h);
            cell_forward(&mut wide_a, &mut wide_c, &mut wide_h);
            close(&a, &wide_a, "gates");
            close(&c, &wide_c, "c");
            close(&h, &wide_h, "h");
            dispatch::cell_backward(machine, &mut a, [&c, &old, &dh], &mut carry);
            cell_backward(&mut wide_a, [&wide_c, &wide(&old), &wide(&dh)], &mut wide_carry);
            close(&a, &wide_a, "da");
            close(&carry, &wide_carry, "dc");
        }
    }
}
