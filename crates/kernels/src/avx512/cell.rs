//! The cell of `cell.rs` by hand for AVX-512: a row of a strip is four registers of gates.
use std::arch::x86_64::*;

use super::{LANES, exp_lanes, tanh_lanes, whole, whole_to};

/// `1 / (1 + exp(-x))`
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
fn sigmoid_lanes(x: __m512) -> __m512 {
    let one = _mm512_set1_ps(1.0);
    let e = exp_lanes(_mm512_sub_ps(_mm512_setzero_ps(), x));
    _mm512_div_ps(one, _mm512_add_ps(one, e))
}

#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(crate) fn cell_forward(gates: &mut [f32], cell: &mut [f32], state: &mut [f32]) {
    let cells = cell.as_chunks_mut::<LANES>().0.iter_mut().zip(state.as_chunks_mut::<LANES>().0);
    let (gates, _) = gates.as_chunks_mut::<LANES>();
    for ([i, f, g, o], (cell, state)) in gates.as_chunks_mut::<4>().0.iter_mut().zip(cells) {
        let (input, forget) = (sigmoid_lanes(whole(i)), sigmoid_lanes(whole(f)));
        let (new, output) = (tanh_lanes(whole(g)), sigmoid_lanes(whole(o)));
        let c = _mm512_add_ps(_mm512_mul_ps(forget, whole(cell)), _mm512_mul_ps(input, new));
        whole_to(state, _mm512_mul_ps(tanh_lanes(c), output));
        whole_to(cell, c);
        for (to, values) in [(i, input), (f, forget), (g, new), (o, output)] {
            whole_to(to, values);
        }
    }
}

#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(crate) fn cell_backward(gates: &mut [f32], [cell, old, dh]: [&[f32]; 3], carry: &mut [f32]) {
    let one = _mm512_set1_ps(1.0);
    let [cell, old, dh] = [cell, old, dh].map(|of| of.as_chunks::<LANES>().0);
    let others = cell.iter().zip(old).zip(dh).zip(carry.as_chunks_mut::<LANES>().0);
    let (gates, _) = gates.as_chunks_mut::<LANES>();
    for ([i, f, g, o], (((cell, old), dh), carry)) in gates.as_chunks_mut::<4>().0.iter_mut().zip(others) {
        let [input, forget, new, output] = [&*i, f, g, o].map(|gate| whole(gate));
        let (tanh_c, dh) = (tanh_lanes(whole(cell)), whole(dh));
        let slope = _mm512_fnmadd_ps(tanh_c, tanh_c, one);
        let dc = _mm512_fmadd_ps(_mm512_mul_ps(dh, output), slope, whole(carry));
        whole_to(carry, _mm512_mul_ps(dc, forget));
        let of_sigmoid = |y| _mm512_mul_ps(y, _mm512_sub_ps(one, y));
        whole_to(i, _mm512_mul_ps(_mm512_mul_ps(dc, new), of_sigmoid(input)));
        whole_to(f, _mm512_mul_ps(_mm512_mul_ps(dc, whole(old)), of_sigmoid(forget)));
        whole_to(g, _mm512_mul_ps(_mm512_mul_ps(dc, input), _mm512_fnmadd_ps(new, new, one)));
        whole_to(o, _mm512_mul_ps(_mm512_mul_ps(dh, tanh_c), of_sigmoid(output)));
    }
}
