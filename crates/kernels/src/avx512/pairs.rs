//! Hyperbolic tangents of sums whose addends were prepared.
use std::arch::x86_64::*;

use super::{LANES, lanes, load, load_from, store, store_to, whole, whole_to};

/// `1 - 2 / (1 + a b)`
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(super) fn pair_lanes(a: __m512, b: __m512) -> __m512 {
    let below = _mm512_fmadd_ps(a, b, _mm512_set1_ps(1.0));
    _mm512_sub_ps(_mm512_set1_ps(1.0), _mm512_div_ps(_mm512_set1_ps(2.0), below))
}

/// As [`crate::math::tanh_pairs`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub fn tanh_pairs(out: &mut [f32], a: &[f32], b: &[f32]) {
    let ((out, last), (a, last_a), (b, last_b)) = (out.as_chunks_mut(), a.as_chunks(), b.as_chunks());
    for (out, (a, b)) in out.iter_mut().zip(a.iter().zip(b)) {
        whole_to(out, pair_lanes(whole(a), whole(b)));
    }
    if !last.is_empty() {
        store(last, 0, pair_lanes(load(last_a, 0, 1.0), load(last_b, 0, 1.0)));
    }
}

/// As [`crate::math::tanh_panel`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub fn tanh_panel(out: &mut [f32], panel: &[f32], rows: &[f32]) {
    let width = (panel.len() / rows.len().max(1)).max(1);
    if width == 2 * LANES {
        let steps = out.as_chunks_mut::<LANES>().0.as_chunks_mut::<2>().0.iter_mut();
        let steps = steps.zip(panel.as_chunks::<LANES>().0.as_chunks::<2>().0);
        for (([first, second], [a, c]), &b) in steps.zip(rows) {
            let b = _mm512_set1_ps(b);
            whole_to(first, pair_lanes(whole(a), b));
            whole_to(second, pair_lanes(whole(c), b));
        }
        return;
    }
    for ((out, a), &b) in out.chunks_exact_mut(width).zip(panel.chunks_exact(width)).zip(rows) {
        let b = _mm512_set1_ps(b);
        lanes!(width, |at| {
            store_to::<FULL>(out, at, pair_lanes(load_from::<FULL>(a, at, 1.0), b));
        });
    }
}
