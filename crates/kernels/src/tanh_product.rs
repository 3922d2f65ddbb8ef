//! Joint-network scores: head weight times tanh(encoder row + predictor row).
//!
//! The product runs over panels of 32 columns and computes tanh of the next panel meanwhile.
use crate::{
    Accumulate, PackedLeft, Real, View,
    packed::{OutputTile, RightPanels},
    simd::SimdLevel,
};
#[cfg(target_arch = "x86_64")]
use crate::{
    avx512::tanh::{TanhJob, tile_with_tanh},
    simd::Avx512,
};

/// Columns of a panel.
pub const PANEL_COLUMNS: usize = 32;

/// Rows of a part of the left operand; its sums leave registers for tanh.
const ROWS_PER_PART: usize = 12;

/// Prepared addends of tanh: a panel *k x 32*, and one addend for each of its rows, *k*.
///
/// [`Real::prepare_tanh_addends`] prepares them.
pub type TanhAddends<'a, F> = (&'a [F], &'a [F]);

/// Computes `out += left · tanh(panel + row)`, panel by panel.
///
/// These are the scores of a joint network: of 32 contexts in one frame, or of 32 frames in one
/// context. tanh of the next panel is overlapped with the product of the current one, where it is
/// almost free. The bits of a column do not depend on the other columns.
pub struct TanhProducts<'a, F> {
    left: &'a PackedLeft<F>,
    /// tanh of the current panel and of the next one.
    hidden: [&'a mut [F]; 2],
    /// True if `hidden[0]` already has the tanh of the next call.
    is_tanh_computed: bool,
}

impl<'a, F: Real> TanhProducts<'a, F> {
    /// Packs a left operand *m x k* for these products.
    pub fn pack(left: View<F>) -> PackedLeft<F> {
        let rows = left.shape().0;
        PackedLeft::new(left, rows.div_ceil(rows.div_ceil(ROWS_PER_PART).max(1)).max(1))
    }

    /// Returns the scratch elements for a depth of *k*.
    pub const fn scratch_len(depth: usize) -> usize {
        2 * depth * PANEL_COLUMNS
    }

    /// Starts products with a left operand that was packed by [`pack`](Self::pack).
    ///
    /// # Panics
    /// If the scratch has not [`scratch_len`](Self::scratch_len) elements.
    pub fn new(left: &'a PackedLeft<F>, scratch: &'a mut [F]) -> Self {
        let (_, depth) = left.shape();
        assert_eq!(scratch.len(), Self::scratch_len(depth), "tanh_product: scratch for a depth of {depth}");
        Self { left, hidden: scratch.split_at_mut(depth * PANEL_COLUMNS).into(), is_tanh_computed: false }
    }

    /// Computes `out += left · tanh(addends)`, *m x 32*.
    ///
    /// `next` are the addends of the next call, if known; their tanh is computed meanwhile.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn multiply(&mut self, out: &mut [F], addends: TanhAddends<F>, next: Option<TanhAddends<F>>) {
        let (m, k) = self.left.shape();
        for (panel, row) in [Some(addends), next].into_iter().flatten() {
            assert!(
                panel.len() == k * PANEL_COLUMNS && row.len() == k,
                "tanh_product: addends for a depth of {k}"
            );
        }
        assert_eq!(out.len(), m * PANEL_COLUMNS, "tanh_product: {m} rows");
        let [hidden, next_hidden] = &mut self.hidden;
        if !self.is_tanh_computed {
            let (panel, row) = addends;
            F::tanh_panel(hidden, panel, row);
        }
        self.is_tanh_computed = next.is_some();
        F::tanh_product(out, self.left, hidden, next.map(|next| (&mut **next_hidden, next)));
        if self.is_tanh_computed {
            self.hidden.swap(0, 1);
        }
    }

    /// Computes `out += left · hidden` for hidden values *k x 32* that `fill` writes.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn multiply_filled(&mut self, out: &mut [F], fill: impl FnOnce(&mut [F])) {
        self.is_tanh_computed = false;
        fill(self.hidden[0]);
        assert_eq!(out.len(), self.left.shape().0 * PANEL_COLUMNS, "tanh_product: rows of the left side");
        F::tanh_product(out, self.left, self.hidden[0], None);
    }
}

/// Output and addends of the tanh that is overlapped with a product.
pub(crate) type NextTanh<'a, F> = Option<(&'a mut [F], TanhAddends<'a, F>)>;

/// Computes a product, then the next tanh, on any machine.
pub(crate) fn product_then_tanh<F: Real>(
    level: SimdLevel,
    out: &mut [F],
    left: &PackedLeft<F>,
    hidden: &[F],
    next: NextTanh<F>,
) {
    (0..left.parts()).for_each(|part| part_product(level, out, left, part, hidden));
    if let Some((next_hidden, (panel, row))) = next {
        F::tanh_panel(next_hidden, panel, row);
    }
}

/// Computes the product of a part of the left operand.
///
/// Each element is one chain of sums.
fn part_product<F: Real>(level: SimdLevel, out: &mut [F], left: &PackedLeft<F>, part: usize, hidden: &[F]) {
    let [mr, nr] = F::tile_shape(level);
    let (packed, (rows, k)) = left.part(part);
    let part_start = left.first_row(part);
    let panels = rows.div_ceil(mr);
    for panel in (0..panels).filter(|_| k > 0) {
        let [first_row, end_row] = [panel, panel + 1].map(|panel| panel * rows / panels);
        for col in (0..PANEL_COLUMNS).step_by(nr) {
            let out = &mut out
                [(part_start + first_row) * PANEL_COLUMNS + col..(part_start + end_row) * PANEL_COLUMNS];
            let output = OutputTile {
                out,
                rows: end_row - first_row,
                cols: nr,
                stride: PANEL_COLUMNS,
                accumulate: Accumulate::Add,
            };
            let right = RightPanels { data: &hidden[col..], step_stride: PANEL_COLUMNS, panel_stride: nr };
            let left = &packed[first_row * k..end_row * k];
            F::micro_kernel(level, end_row - first_row, left, right, output, &[]);
        }
    }
}

/// Overlaps tanh with the products of the first parts on AVX-512.
pub(crate) fn product_f32(
    level: SimdLevel,
    out: &mut [f32],
    left: &PackedLeft<f32>,
    hidden: &[f32],
    next: NextTanh<f32>,
) {
    match (level, next) {
        #[cfg(target_arch = "x86_64")]
        (SimdLevel::Avx512(token), Some(next)) => product_with_tanh(token, out, left, hidden, next),
        (level, next) => product_then_tanh(level, out, left, hidden, next),
    }
}

/// Computes a product and, during its first parts, the next tanh.
#[cfg(target_arch = "x86_64")]
fn product_with_tanh(
    token: Avx512,
    out: &mut [f32],
    left: &PackedLeft<f32>,
    hidden: &[f32],
    (next_hidden, (panel, row_addends)): (&mut [f32], TanhAddends<f32>),
) {
    let (parts, (_, k)) = (left.parts(), left.shape());
    let (mut next_hidden, mut panel) = (next_hidden.as_chunks_mut().0, panel.as_chunks().0);
    // A register for each step and part, or two if there is only one part.
    let registers_per_part = if parts == 1 { 2 * k } else { k };
    for part in 0..parts {
        if next_hidden.is_empty() || k == 0 {
            part_product(SimdLevel::Avx512(token), out, left, part, hidden);
            continue;
        }
        let (packed, (row_count, _)) = left.part(part);
        let job = TanhJob {
            out: next_hidden.split_off_mut(..registers_per_part).expect("two registers a step"),
            panel: panel.split_off(..registers_per_part).expect("two registers a step"),
            row_addends,
            first_register: part * registers_per_part,
        };
        let out = &mut out[left.first_row(part) * PANEL_COLUMNS..][..row_count * PANEL_COLUMNS];
        tile_with_tanh(token, row_count, &packed[..row_count * k], hidden, out, job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::check::synthetic;

    /// Compares some calls with the formula, and overlapped with separate calls.
    fn equals_the_formula<F: Real>(tolerance: f64) {
        for (m, k) in [(1, 5), (3, 1), (11, 40), (12, 7), (13, 16), (14, 33), (33, 100), (70, 600)] {
            let left: Vec<F> = synthetic(m * k, 1);
            let packed = TanhProducts::pack(View::new(&left, m, k));
            let raw: Vec<(Vec<F>, Vec<F>)> =
                (0..4).map(|i| (synthetic(k * PANEL_COLUMNS, 2 + i), synthetic(k, 7 + i))).collect();
            let mut prepared = raw.clone();
            for (panel, row) in &mut prepared {
                F::prepare_tanh_addends(panel);
                F::prepare_tanh_addends(row);
            }
            let addends = |call: usize| prepared.get(call).map(|(panel, row)| (&panel[..], &row[..]));
            let mut scratch = vec![F::ZERO; TanhProducts::<F>::scratch_len(k)];
            let mut products = TanhProducts::new(&packed, &mut scratch);
            for (call, (raw_panel, raw_row)) in raw.iter().enumerate() {
                let [mut out, mut separate, mut filled] = [const { Vec::new() }; 3];
                for out in [&mut out, &mut separate, &mut filled] {
                    out.resize(m * PANEL_COLUMNS, F::ONE);
                }
                // Once, the next addends are not announced.
                let next = if call == 1 { None } else { addends(call + 1) };
                products.multiply(&mut out, addends(call).unwrap(), next);
                let mut scratch = vec![F::ZERO; TanhProducts::<F>::scratch_len(k)];
                let mut separate_products = TanhProducts::new(&packed, &mut scratch);
                separate_products.multiply(&mut separate, addends(call).unwrap(), None);
                assert!(out == separate, "{m} x {k}: earlier panels change bits");
                let (panel, row) = addends(call).unwrap();
                separate_products.multiply_filled(&mut filled, |hidden| F::tanh_panel(hidden, panel, row));
                assert!(out == filled, "{m} x {k}");
                for (i, j) in (0..m).flat_map(|i| (0..PANEL_COLUMNS).map(move |j| (i, j))) {
                    let hidden =
                        |l: usize| (raw_panel[l * PANEL_COLUMNS + j].to_f64() + raw_row[l].to_f64()).tanh();
                    let exact: f64 = (0..k).map(|l| left[i * k + l].to_f64() * hidden(l)).sum::<f64>() + 1.0;
                    let error = (out[i * PANEL_COLUMNS + j].to_f64() - exact).abs();
                    // One chain of k sums of magnitudes up to some tens.
                    assert!(error <= tolerance * (8 + k) as f64, "{m} x {k} at {i}, {j}: {error}");
                }
            }
        }
    }

    #[test]
    fn overlapped_tanh_is_accurate_at_every_level() {
        for level in SimdLevel::all() {
            for (m, k) in [(1, 5), (12, 7), (33, 100)] {
                let [left, hidden]: [Vec<f32>; 2] = [synthetic(m * k, 1), synthetic(k * PANEL_COLUMNS, 2)];
                let left =
                    PackedLeft::new_for(level, View::new(&left, m, k), m.div_ceil(m.div_ceil(ROWS_PER_PART)));
                let [mut panel, mut row]: [Vec<f32>; 2] = [synthetic(k * PANEL_COLUMNS, 3), synthetic(k, 4)];
                let exact: Vec<f32> =
                    (0..k * PANEL_COLUMNS).map(|i| (panel[i] + row[i / PANEL_COLUMNS]).tanh()).collect();
                [&mut panel, &mut row].into_iter().for_each(|addends| f32::prepare_tanh_addends(addends));
                let [mut out, mut separate] = [const { Vec::new() }; 2];
                [&mut out, &mut separate].into_iter().for_each(|out| out.resize(m * PANEL_COLUMNS, 1.0));
                let mut next = vec![f32::NAN; k * PANEL_COLUMNS];
                product_f32(level, &mut out, &left, &hidden, Some((&mut next, (&panel, &row))));
                product_f32(level, &mut separate, &left, &hidden, None);
                assert!(out == separate, "{level:?}, {m} x {k}");
                let errors = exact.iter().zip(&next).map(|(exact, actual)| (exact - actual).abs());
                assert!(
                    errors.clone().all(|error| error <= 1e-6),
                    "{level:?}, {m} x {k}: {:?}",
                    errors.max_by(f32::total_cmp)
                );
            }
        }
    }

    #[test]
    fn scores_equal_the_formula() {
        equals_the_formula::<f32>(4e-7);
        equals_the_formula::<f64>(1e-15);
    }
}
