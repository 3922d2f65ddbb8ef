//! Products of a packed left side with tangents of sums.
use crate::{
    Accumulate, PackedLeft, Real, View, ViewMut,
    features::Machine,
    packed::{Place, Right},
    product_of_part,
};

/// Columns of a panel.
pub const PANEL: usize = 32;

/// `out += left · tanh(panel + row)` for prepared addends ([`Real::prepare_tanh`]): a joint network's scores of up to 32 contexts
/// at one frame. The tangents are left in `hidden`.
///
/// # Shapes
/// `left` *m x k* as one part, `panel` and `hidden` *k x 32*, `row` *k*, `out` *m x 32*. All 32 columns are computed.
///
/// # Panics
/// If the lengths do not fit.
pub fn tanh_product<F: Real>(
    out: &mut [F],
    left: &PackedLeft<F>,
    (panel, row): (&[F], &[F]),
    hidden: &mut [F],
) {
    let (_, (m, k)) = left.part(0);
    assert!(
        out.len() == m * PANEL && row.len() == k && panel.len() == k * PANEL && hidden.len() == k * PANEL,
        "tanh_product: {m} x {k} times panels of {} and {}, into {}",
        panel.len(),
        hidden.len(),
        out.len()
    );
    F::tanh_product(out, left, (panel, row), hidden);
}

/// One after the other, for any machine.
pub(crate) fn plain<F: Real>(
    out: &mut [F],
    left: &PackedLeft<F>,
    (panel, row): (&[F], &[F]),
    hidden: &mut [F],
) {
    F::tanh_panel(hidden, panel, row);
    let (_, (m, k)) = left.part(0);
    product_of_part(ViewMut::new(out, m, PANEL), (left, 0), View::new(hidden, k, PANEL), Accumulate::Add);
}

/// The tangents within the product of the first rows, where a machine has registers for both.
pub(crate) fn of_f32(
    out: &mut [f32],
    left: &PackedLeft<f32>,
    (panel, row): (&[f32], &[f32]),
    hidden: &mut [f32],
) {
    #[cfg(target_arch = "x86_64")]
    if let machine @ Machine::Avx512(proof) = Machine::best() {
        use crate::avx512::joint::{MOST, tanh_tile};
        let (packed, (m, k)) = left.part(0);
        let panels = m.div_ceil(f32::sides(machine)[0]);
        let rows = |panel: usize| panel * m / panels..(panel + 1) * m / panels;
        if k == 0 || m == 0 || rows(0).len() > MOST {
            return plain(out, left, (panel, row), hidden);
        }
        for at in 0..panels {
            let rows = rows(at);
            let left = &packed[rows.start * k..rows.end * k];
            let out = &mut out[rows.start * PANEL..rows.end * PANEL];
            if at == 0 {
                tanh_tile(proof, rows.len(), left, (panel, row), hidden, out);
                continue;
            }
            let place = Place { out, rows: rows.len(), cols: PANEL, stride: PANEL, how: Accumulate::Add };
            f32::micro_kernel(machine, rows.len(), left, Right::packed(hidden, PANEL), place, &[]);
        }
        return;
    }
    plain(out, left, (panel, row), hidden);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::check::made_up;

    fn is_what_its_parts_are<F: Real>(bar: f64) {
        for (m, k) in [(1, 5), (3, 0), (11, 40), (12, 7), (13, 16), (14, 33), (33, 100), (70, 600)] {
            let left: Vec<F> = made_up(m * k, 1);
            let packed = PackedLeft::new(View::new(&left, m, k), m);
            let (raw_panel, raw_row): (Vec<F>, Vec<F>) = (made_up(k * PANEL, 2), made_up(k, 3));
            let (mut panel, mut row) = (raw_panel.clone(), raw_row.clone());
            F::prepare_tanh(&mut panel);
            F::prepare_tanh(&mut row);
            let (mut out, mut hidden) = (vec![F::ONE; m * PANEL], vec![F::ZERO; k * PANEL]);
            tanh_product(&mut out, &packed, (&panel, &row), &mut hidden);
            for (i, j) in (0..m).flat_map(|i| (0..PANEL).map(move |j| (i, j))) {
                let h = |l: usize| (raw_panel[l * PANEL + j].to_f64() + raw_row[l].to_f64()).tanh();
                let exact: f64 = (0..k).map(|l| left[i * k + l].to_f64() * h(l)).sum::<f64>() + 1.0;
                let error = (out[i * PANEL + j].to_f64() - exact).abs();
                assert!(error <= bar * (1.0 + k as f64).sqrt(), "{m} x {k} at {i}, {j}: {error}");
            }
            for (l, hidden) in hidden.chunks(PANEL).enumerate() {
                let exact = (raw_panel[l * PANEL].to_f64() + raw_row[l].to_f64()).tanh();
                assert!((hidden[0].to_f64() - exact).abs() <= bar);
            }
        }
    }

    #[test]
    fn scores_of_tangents_are_plain_loops() {
        is_what_its_parts_are::<f32>(4e-6);
        is_what_its_parts_are::<f64>(1e-14);
    }
}
