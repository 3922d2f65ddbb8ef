//! LSTM cell of one frame: gate activations, cell and state, forward and backward.
//!
//! ```text
//! i, f, o = σ(..)   g = tanh(..)       c = f c' + i g       h = o tanh(c)
//! backward, given dh and the dc of the next frame:
//!   dc += dh o (1 - tanh²c)    dc' = dc f
//!   da = [dc g i(1-i), dc c' f(1-f), dc i (1-g²), dh tanh(c) o(1-o)]
//! ```
//! i, f, g, o: gates; c: cell; h: state (output); c': cell of the previous frame; da: gradient of
//! the gates' inputs. A call covers some utterances (rows) of one frame, for 16 units (a strip).
use crate::{Real, product::UNITS_PER_STRIP};

/// Gate values of one utterance for the 16 units of a strip.
const GATES_PER_STRIP: usize = 4 * UNITS_PER_STRIP;

/// Computes gates, cell and state of a frame; overwrites `gates` and `cell`.
///
/// # Shapes
/// `gates` *rows x (i, f, g, o) x 16*: inputs of the nonlinearities, overwritten by their values;
/// `cell` *rows x 16*: c', overwritten by c; `state` *rows x 16*: output h.
///
/// # Panics
/// If the lengths do not match.
pub fn lstm_cell_forward<F: Real>(gates: &mut [F], cell: &mut [F], state: &mut [F]) {
    check_lengths(gates.len(), &[cell.len(), state.len()]);
    F::lstm_cell_forward(gates, cell, state);
}

/// Backward of [`lstm_cell_forward`]; overwrites `gates` and `cell_gradient`.
///
/// # Shapes
/// As in forward. `gates`: values from forward, overwritten by da; `cell`: c; `previous_cell`: c';
/// `dh`; `cell_gradient`: dc from the next frame, overwritten by dc' for the previous frame.
///
/// # Panics
/// If the lengths do not match.
pub fn lstm_cell_backward<F: Real>(
    gates: &mut [F],
    [cell, previous_cell, dh]: [&[F]; 3],
    cell_gradient: &mut [F],
) {
    check_lengths(gates.len(), &[cell.len(), previous_cell.len(), dh.len(), cell_gradient.len()]);
    F::lstm_cell_backward(gates, [cell, previous_cell, dh], cell_gradient);
}

/// Panics unless the other lengths are a quarter of `gates`.
fn check_lengths(gates: usize, others: &[usize]) {
    let fits = gates.is_multiple_of(GATES_PER_STRIP) && others.iter().all(|len| len * 4 == gates);
    assert!(fits, "LSTM cell: {gates} gates do not match units of {others:?}");
}

/// Portable version of [`lstm_cell_forward`].
pub(crate) fn forward<F: Real>(gates: &mut [F], cell: &mut [F], state: &mut [F]) {
    let rows = gates.chunks_exact_mut(GATES_PER_STRIP).zip(cell.chunks_exact_mut(UNITS_PER_STRIP));
    for ((gates, cell), state) in rows.zip(state.chunks_exact_mut(UNITS_PER_STRIP)) {
        let (input_and_forget, rest) = gates.split_at_mut(2 * UNITS_PER_STRIP);
        let (g, o) = rest.split_at_mut(UNITS_PER_STRIP);
        F::sigmoid_slice(input_and_forget);
        F::tanh_slice(g);
        F::sigmoid_slice(o);
        let (i, f) = input_and_forget.split_at(UNITS_PER_STRIP);
        for k in 0..UNITS_PER_STRIP {
            cell[k] = f[k] * cell[k] + i[k] * g[k];
        }
        state.copy_from_slice(cell);
        F::tanh_slice(state);
        state.iter_mut().zip(o).for_each(|(state, o)| *state *= *o);
    }
}

/// Portable version of [`lstm_cell_backward`].
pub(crate) fn backward<F: Real>(
    gates: &mut [F],
    [cell, previous_cell, dh]: [&[F]; 3],
    cell_gradient: &mut [F],
) {
    let rows = gates
        .chunks_exact_mut(GATES_PER_STRIP)
        .zip(cell.chunks_exact(UNITS_PER_STRIP))
        .zip(previous_cell.chunks_exact(UNITS_PER_STRIP));
    for (((gates, cell), previous_cell), (dh, cell_gradient)) in
        rows.zip(dh.chunks_exact(UNITS_PER_STRIP).zip(cell_gradient.chunks_exact_mut(UNITS_PER_STRIP)))
    {
        let mut tanh_c = [F::ZERO; UNITS_PER_STRIP];
        tanh_c.copy_from_slice(cell);
        F::tanh_slice(&mut tanh_c);
        for k in 0..UNITS_PER_STRIP {
            let [i, f, g, o] = [0, 1, 2, 3].map(|gate| gates[gate * UNITS_PER_STRIP + k]);
            let dc = cell_gradient[k] + dh[k] * o * (F::ONE - tanh_c[k] * tanh_c[k]);
            cell_gradient[k] = dc * f;
            gates[k] = dc * g * i * (F::ONE - i);
            gates[UNITS_PER_STRIP + k] = dc * (f * (F::ONE - f)) * previous_cell[k];
            gates[2 * UNITS_PER_STRIP + k] = dc * i * (F::ONE - g * g);
            gates[3 * UNITS_PER_STRIP + k] = dh[k] * tanh_c[k] * o * (F::ONE - o);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dispatch, packed::check::synthetic, simd::SimdLevel};

    #[test]
    fn every_level_is_close_to_f64() {
        let rows = 3;
        let wide = |values: &[f32]| values.iter().map(|&value| f64::from(value)).collect::<Vec<_>>();
        let [gates, previous_cell, dh, dc] =
            [4, 1, 1, 1].map(|per_unit| synthetic::<f32>(per_unit * rows * UNITS_PER_STRIP, per_unit as u32));
        for level in SimdLevel::all() {
            let (mut a, mut c, mut h, mut cell_gradient) =
                (gates.clone(), previous_cell.clone(), previous_cell.clone(), dc.clone());
            let (mut wide_a, mut wide_c, mut wide_h, mut wide_cell_gradient) =
                (wide(&a), wide(&c), wide(&h), wide(&cell_gradient));
            let close = |actual: &[f32], exact: &[f64], what: &str| {
                for (&actual, exact) in actual.iter().zip(exact) {
                    assert!((f64::from(actual) - exact).abs() < 2e-6, "{level:?}, {what}: {actual}, {exact}");
                }
            };
            dispatch::lstm_cell_forward(level, &mut a, &mut c, &mut h);
            lstm_cell_forward(&mut wide_a, &mut wide_c, &mut wide_h);
            close(&a, &wide_a, "gates");
            close(&c, &wide_c, "c");
            close(&h, &wide_h, "h");
            dispatch::lstm_cell_backward(level, &mut a, [&c, &previous_cell, &dh], &mut cell_gradient);
            lstm_cell_backward(
                &mut wide_a,
                [&wide_c, &wide(&previous_cell), &wide(&dh)],
                &mut wide_cell_gradient,
            );
            close(&a, &wide_a, "da");
            close(&cell_gradient, &wide_cell_gradient, "dc");
        }
    }
}
