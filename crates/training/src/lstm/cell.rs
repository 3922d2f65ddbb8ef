//! What a cell does with its gates, element by element, and backward beside it: the same for rows of units and of utterances.
//!
//! ```text
//! c[t] = f c[t-1] + i g     h[t] = o tanh(c[t])
//! backward, given dh:
//!   dc += dh o (1 - tanh²c)    da = [dc g i(1-i), dc c[t-1] f(1-f), dc i (1-g²), dh tanh(c) o(1-o)]    dc[t-1] = dc f
//! ```
use kernels::Real;

/// `cell = f old + i g`; without old ones they are 0.
pub(super) fn forward<F: Real>([i, f, g]: [&[F]; 3], old: Option<&[F]>, cell: &mut [F]) {
    let n = cell.len();
    let (i, f, g) = (&i[..n], &f[..n], &g[..n]);
    match old {
        Some(old) => {
            let old = &old[..n];
            for k in 0..n {
                cell[k] = f[k] * old[k] + i[k] * g[k];
            }
        }
        None => {
            for k in 0..n {
                cell[k] = i[k] * g[k];
            }
        }
    }
}

/// `state = o tanh_c`
pub(super) fn output<F: Real>(o: &[F], tanh_c: &[F], state: &mut [F]) {
    state.iter_mut().zip(o.iter().zip(tanh_c)).for_each(|(state, (&o, &tanh_c))| *state = o * tanh_c);
}

/// Gates become da; `carry` is dc of the frame after and becomes that of this one.
pub(super) fn backward<F: Real>(
    [i, f, g, o]: [&mut [F]; 4],
    (dh, tanh_c): (&[F], &[F]),
    old: Option<&[F]>,
    carry: &mut [F],
) {
    let n = dh.len();
    let (i, f, g, o) = (&mut i[..n], &mut f[..n], &mut g[..n], &mut o[..n]);
    let (tanh_c, carry) = (&tanh_c[..n], &mut carry[..n]);
    for k in 0..n {
        let dc = carry[k] + dh[k] * o[k] * (F::ONE - tanh_c[k] * tanh_c[k]);
        carry[k] = dc * f[k];
        o[k] = dh[k] * tanh_c[k] * o[k] * (F::ONE - o[k]);
        let (i_k, g_k) = (i[k], g[k]);
        i[k] = dc * g_k * i_k * (F::ONE - i_k);
        g[k] = dc * i_k * (F::ONE - g_k * g_k);
        f[k] = dc * (f[k] * (F::ONE - f[k]));
    }
    match old {
        Some(old) => f.iter_mut().zip(old).for_each(|(f, &c)| *f *= c),
        None => f.fill(F::ZERO),
    }
}
