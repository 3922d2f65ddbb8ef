//! Products of a packed left side with tangents of sums, one panel after the other.
use crate::{
    Accumulate, PackedLeft, Real, View,
    packed::{OutputTile, Right},
    simd::SimdLevel,
};
#[cfg(target_arch = "x86_64")]
use crate::{
    avx512::tanh::{TanhJob, tile_and_job},
    simd::Avx512,
};

/// Columns of a panel.
pub const PANEL: usize = 32;

/// Rows of a part of the left side: its sums leave registers for tangents.
const MOST: usize = 12;

/// Addends of tangents, prepared ([`Real::prepare_tanh`]): a panel *k x 32*, and one for each of its rows, *k*.
pub type TanhAddends<'a, F> = (&'a [F], &'a [F]);

/// `out += left · tanh(panel + row)`: a joint network's scores of 32 contexts at one frame, or of 32 frames in one context.
///
/// While one product is computed, the tangents of the next are made between its sums, where they cost next to nothing. The bits of a
/// column depend on nothing beside it.
pub struct TanhProducts<'a, F> {
    left: &'a PackedLeft<F>,
    /// Tangents of the panel at hand, and of the next one.
    hidden: [&'a mut [F]; 2],
    ready: bool,
}

impl<'a, F: Real> TanhProducts<'a, F> {
    /// Packs a left side *m x k* for products.
    pub fn pack(left: View<F>) -> PackedLeft<F> {
        let rows = left.shape().0;
        PackedLeft::new(left, rows.div_ceil(rows.div_ceil(MOST).max(1)).max(1))
    }

    /// Elements that products of a depth *k* work in.
    pub const fn room(depth: usize) -> usize {
        2 * depth * PANEL
    }

    /// Products with a left side that [`pack`](Self::pack) packed, in so much room.
    ///
    /// # Panics
    /// If the room is not what [`room`](Self::room) says.
    pub fn new(left: &'a PackedLeft<F>, room: &'a mut [F]) -> Self {
        let (_, depth) = left.shape();
        assert_eq!(room.len(), Self::room(depth), "tanh_product: room for a depth of {depth}");
        Self { left, hidden: room.split_at_mut(depth * PANEL).into(), ready: false }
    }

    /// `out += left · tanh(this)`, *m x 32*. Who says what follows, if anything does, gets it sooner, and asks for it next.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn next(&mut self, out: &mut [F], this: TanhAddends<F>, following: Option<TanhAddends<F>>) {
        let (m, k) = self.left.shape();
        for (panel, row) in [Some(this), following].into_iter().flatten() {
            assert!(panel.len() == k * PANEL && row.len() == k, "tanh_product: addends for a depth of {k}");
        }
        assert_eq!(out.len(), m * PANEL, "tanh_product: {m} rows");
        let [hidden, next] = &mut self.hidden;
        if !self.ready {
            F::tanh_panel(hidden, this.0, this.1);
        }
        self.ready = following.is_some();
        F::tanh_product(out, self.left, hidden, following.map(|following| (&mut **next, following)));
        if self.ready {
            self.hidden.swap(0, 1);
        }
    }

    /// `out += left · hidden` for tangents that `fill` writes, *k x 32*.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn with(&mut self, out: &mut [F], fill: impl FnOnce(&mut [F])) {
        self.ready = false;
        fill(self.hidden[0]);
        assert_eq!(out.len(), self.left.shape().0 * PANEL, "tanh_product: rows of the left side");
        F::tanh_product(out, self.left, self.hidden[0], None);
    }
}

/// Tangents that are to be made, and where to.
pub type Following<'a, F> = Option<(&'a mut [F], TanhAddends<'a, F>)>;

/// One after the other, for any machine.
pub(crate) fn plain<F: Real>(
    machine: SimdLevel,
    out: &mut [F],
    left: &PackedLeft<F>,
    hidden: &[F],
    following: Following<F>,
) {
    (0..left.parts()).for_each(|part| product(machine, out, left, part, hidden));
    if let Some((next, (panel, row))) = following {
        F::tanh_panel(next, panel, row);
    }
}

/// The product of a part of the left side, each element in one chain of sums.
fn product<F: Real>(machine: SimdLevel, out: &mut [F], left: &PackedLeft<F>, part: usize, hidden: &[F]) {
    let [most, nr] = F::sides(machine);
    let (packed, (rows, k)) = left.part(part);
    let from = left.first_row(part);
    let panels = rows.div_ceil(most);
    for panel in (0..panels).filter(|_| k > 0) {
        let [first, end] = [panel, panel + 1].map(|panel| panel * rows / panels);
        for col in (0..PANEL).step_by(nr) {
            let out = &mut out[(from + first) * PANEL + col..(from + end) * PANEL];
            let place = OutputTile { out, rows: end - first, cols: nr, stride: PANEL, how: Accumulate::Add };
            let right = Right { data: &hidden[col..], step: PANEL, panel: nr };
            F::micro_kernel(machine, end - first, &packed[first * k..end * k], right, place, &[]);
        }
    }
}

/// Tangents within the products of the first parts, where a machine has registers for both.
pub(crate) fn of_f32(
    machine: SimdLevel,
    out: &mut [f32],
    left: &PackedLeft<f32>,
    hidden: &[f32],
    following: Following<f32>,
) {
    match (machine, following) {
        #[cfg(target_arch = "x86_64")]
        (SimdLevel::Avx512(proof), Some(following)) => interleaved(proof, out, left, hidden, following),
        (machine, following) => plain(machine, out, left, hidden, following),
    }
}

#[cfg(target_arch = "x86_64")]
fn interleaved(
    proof: Avx512,
    out: &mut [f32],
    left: &PackedLeft<f32>,
    hidden: &[f32],
    (next, (panel, rows)): (&mut [f32], TanhAddends<f32>),
) {
    let (parts, (_, k)) = (left.parts(), left.shape());
    let (mut next, mut panel) = (next.as_chunks_mut().0, panel.as_chunks().0);
    // A register a step and part, or two where there is but one part.
    let share = if parts == 1 { 2 * k } else { k };
    for part in 0..parts {
        if next.is_empty() || k == 0 {
            product(SimdLevel::Avx512(proof), out, left, part, hidden);
            continue;
        }
        let (packed, (count, _)) = left.part(part);
        let first = part * share;
        let job = TanhJob {
            out: next.split_off_mut(..share).expect("two registers a step"),
            panel: panel.split_off(..share).expect("two registers a step"),
            rows,
            first,
        };
        let out = &mut out[left.first_row(part) * PANEL..][..count * PANEL];
        tile_and_job(proof, count, &packed[..count * k], hidden, out, job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::check::made_up;

    fn is_what_its_parts_are<F: Real>(bar: f64) {
        for (m, k) in [(1, 5), (3, 1), (11, 40), (12, 7), (13, 16), (14, 33), (33, 100), (70, 600)] {
            let left: Vec<F> = made_up(m * k, 1);
            let packed = TanhProducts::pack(View::new(&left, m, k));
            let raw: Vec<(Vec<F>, Vec<F>)> =
                (0..4).map(|i| (made_up(k * PANEL, 2 + i), made_up(k, 7 + i))).collect();
            let mut prepared = raw.clone();
            for (panel, row) in &mut prepared {
                F::prepare_tanh(panel);
                F::prepare_tanh(row);
            }
            let addends = |at: usize| prepared.get(at).map(|(panel, row)| (&panel[..], &row[..]));
            let mut room = vec![F::ZERO; TanhProducts::<F>::room(k)];
            let mut products = TanhProducts::new(&packed, &mut room);
            for (at, (raw_panel, raw_row)) in raw.iter().enumerate() {
                let [mut out, mut alone, mut given] = [const { Vec::new() }; 3];
                for out in [&mut out, &mut alone, &mut given] {
                    out.resize(m * PANEL, F::ONE);
                }
                // The last but one is not said to follow.
                let following = if at == 1 { None } else { addends(at + 1) };
                products.next(&mut out, addends(at).unwrap(), following);
                let mut room = vec![F::ZERO; TanhProducts::<F>::room(k)];
                let mut again = TanhProducts::new(&packed, &mut room);
                again.next(&mut alone, addends(at).unwrap(), None);
                assert!(out == alone, "{m} x {k}: what stands before changes bits");
                let (panel, row) = addends(at).unwrap();
                again.with(&mut given, |hidden| F::tanh_panel(hidden, panel, row));
                assert!(out == given, "{m} x {k}");
                for (i, j) in (0..m).flat_map(|i| (0..PANEL).map(move |j| (i, j))) {
                    let h = |l: usize| (raw_panel[l * PANEL + j].to_f64() + raw_row[l].to_f64()).tanh();
                    let exact: f64 = (0..k).map(|l| left[i * k + l].to_f64() * h(l)).sum::<f64>() + 1.0;
                    let error = (out[i * PANEL + j].to_f64() - exact).abs();
                    // One chain of k sums whose parts reach some tens.
                    assert!(error <= bar * (8 + k) as f64, "{m} x {k} at {i}, {j}: {error}");
                }
            }
        }
    }

    #[test]
    fn tangents_that_follow_are_made_on_every_machine() {
        for machine in SimdLevel::all() {
            for (m, k) in [(1, 5), (12, 7), (33, 100)] {
                let [left, hidden]: [Vec<f32>; 2] = [made_up(m * k, 1), made_up(k * PANEL, 2)];
                let left = PackedLeft::new_for(machine, View::new(&left, m, k), m.div_ceil(m.div_ceil(MOST)));
                let [mut panel, mut row]: [Vec<f32>; 2] = [made_up(k * PANEL, 3), made_up(k, 4)];
                let exact: Vec<f32> = (0..k * PANEL).map(|at| (panel[at] + row[at / PANEL]).tanh()).collect();
                [&mut panel, &mut row].into_iter().for_each(|addends| f32::prepare_tanh(addends));
                let [mut out, mut alone] = [const { Vec::new() }; 2];
                [&mut out, &mut alone].into_iter().for_each(|out| out.resize(m * PANEL, 1.0));
                let mut next = vec![f32::NAN; k * PANEL];
                of_f32(machine, &mut out, &left, &hidden, Some((&mut next, (&panel, &row))));
                of_f32(machine, &mut alone, &left, &hidden, None);
                assert!(out == alone, "{machine:?}, {m} x {k}");
                let far = exact.iter().zip(&next).map(|(exact, found)| (exact - found).abs());
                assert!(
                    far.clone().all(|far| far <= 1e-6),
                    "{machine:?}, {m} x {k}: {:?}",
                    far.max_by(f32::total_cmp)
                );
            }
        }
    }

    #[test]
    fn scores_of_tangents_are_plain_loops() {
        is_what_its_parts_are::<f32>(4e-7);
        is_what_its_parts_are::<f64>(1e-15);
    }
}
