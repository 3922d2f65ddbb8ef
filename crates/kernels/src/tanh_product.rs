//! Products of a packed left side with tangents of sums.
use std::ops::Range;

use crate::{
    Accumulate, PackedLeft, Real,
    features::Machine,
    packed::{Place, Right},
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

/// `out += left · hidden`, to the bits of [`tanh_product`] where `hidden` are the same tangents.
///
/// # Shapes
/// `left` *m x k* as one part, `hidden` *k x 32*, `out` *m x 32*.
///
/// # Panics
/// If the lengths do not fit.
pub fn panel_product<F: Real>(out: &mut [F], left: &PackedLeft<F>, hidden: &[F]) {
    let (_, (m, k)) = left.part(0);
    assert!(out.len() == m * PANEL && hidden.len() == k * PANEL, "panel_product: {m} x {k} times a panel");
    products(out, left, hidden, 0);
}

/// Products of the left micro-panels from one on, each in one chain of sums.
fn products<F: Real>(out: &mut [F], left: &PackedLeft<F>, hidden: &[F], first: usize) {
    let machine = Machine::best();
    let [most, nr] = F::sides(machine);
    let (packed, (m, k)) = left.part(0);
    if k == 0 {
        return;
    }
    for rows in micro_panels(m, most).skip(first) {
        for col in (0..PANEL).step_by(nr) {
            let out = &mut out[rows.start * PANEL + col..rows.end * PANEL];
            let place = Place { out, rows: rows.len(), cols: nr, stride: PANEL, how: Accumulate::Add };
            let right = Right { data: &hidden[col..], step: PANEL, panel: nr };
            F::micro_kernel(machine, rows.len(), &packed[rows.start * k..rows.end * k], right, place, &[]);
        }
    }
}

/// Rows of the micro-panels of a packed left side.
fn micro_panels(rows: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let panels = rows.div_ceil(most);
    (0..panels).map(move |panel| panel * rows / panels..(panel + 1) * rows / panels)
}

/// One after the other, for any machine.
pub(crate) fn plain<F: Real>(
    out: &mut [F],
    left: &PackedLeft<F>,
    (panel, row): (&[F], &[F]),
    hidden: &mut [F],
) {
    F::tanh_panel(hidden, panel, row);
    products(out, left, hidden, 0);
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
        let first = micro_panels(m, f32::sides(machine)[0]).next().unwrap_or(0..0);
        if k > 0 && (1..=MOST).contains(&first.len()) {
            let (left_rows, out_rows) = (&packed[..first.end * k], &mut out[..first.end * PANEL]);
            tanh_tile(proof, first.len(), left_rows, (panel, row), hidden, out_rows);
            return products(out, left, hidden, 1);
        }
    }
    plain(out, left, (panel, row), hidden);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{View, packed::check::made_up};

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
            let mut apart = vec![F::ONE; m * PANEL];
            panel_product(&mut apart, &packed, &hidden);
            assert!(apart == out, "{m} x {k}");
            for (i, j) in (0..m).flat_map(|i| (0..PANEL).map(move |j| (i, j))) {
                let h = |l: usize| (raw_panel[l * PANEL + j].to_f64() + raw_row[l].to_f64()).tanh();
                let exact: f64 = (0..k).map(|l| left[i * k + l].to_f64() * h(l)).sum::<f64>() + 1.0;
                let error = (out[i * PANEL + j].to_f64() - exact).abs();
                // One chain of k sums whose parts reach some tens.
                assert!(error <= bar * (8 + k) as f64, "{m} x {k} at {i}, {j}: {error}");
            }
            for (l, hidden) in hidden.chunks(PANEL).enumerate() {
                let exact = (raw_panel[l * PANEL].to_f64() + raw_row[l].to_f64()).tanh();
                assert!((hidden[0].to_f64() - exact).abs() <= 2.0 * bar);
            }
        }
    }

    #[test]
    fn scores_of_tangents_are_plain_loops() {
        is_what_its_parts_are::<f32>(4e-7);
        is_what_its_parts_are::<f64>(1e-15);
    }
}
