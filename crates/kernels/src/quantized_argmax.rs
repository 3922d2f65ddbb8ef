//! Viterbi step: the best of 32 states for each label, screened with integers.
//!
//! ```text
//! score       l[p,y] = c_y + Σ_k w_yk h_k[p]      h_k[p] = tanh(P_k[p] + Q_k)
//! estimate    l[p,y] ≈ c_y + Σ_k w_yk m_k + κ_y Σ_k W_yk D_k[p]
//!             m_k = tanh(P̄_k + Q_k)               P̄ the center of the states
//!             W = round(C_y w)      D = round(S (h - m))      κ_y = 1 / (C_y S)
//!             W and D are 16-bit integers, accumulated in 32 bits
//! error       |ε_y| <= κ_y (‖W - C_y w‖ ‖D‖ + Σ_k C_y |w_yk| / 2)  +  rounding of the f32 sums
//! ```
//! p: state (label context); y: label; k: hidden unit; w, c: head weight and bias; P, Q: projected
//! state and frame; h: joint-network output; C_y, S: quantization scales of weights and of tanh.
//!
//! The best state of a label is among those whose estimate is within `2 ε_y` of the largest one.
//! Only these are scored exactly, each in one chain of sums as in a product. The result has the
//! same bits as a search over all scores, and about one score in 32 is computed. The term of the
//! center is the same for all states and cancels, so the error shrinks with the spread of states.
#[cfg(target_arch = "x86_64")]
use crate::simd::Avx512Vnni;
use crate::{AlignedVec, PANEL_COLUMNS, Real, TanhAddends, packing_bytes};

/// Largest quantized tanh before rounding; fits 16 bits.
const MAX_QUANTIZED: f64 = 32_000.0;
/// Largest scale `S`. Above it, a tanh plus [`ROUNDING_OFFSET_F32`]` / S` could lose its sign.
const MAX_SCALE: f64 = (1 << 20) as f64;
/// Upper bound on the error of a tanh.
const TANH_ERROR: f64 = 1e-5;
/// Half the distance of two `f32` above 1.
const HALF_ULP: f64 = 1.0 / (1 << 24) as f64;

/// Ratio of the largest number to the largest score that is estimated.
pub(crate) const SCORE_HEADROOM: f64 = 16.0;
/// Generous bound on the error of products and sums of denormal numbers.
const UNDERFLOW_ERROR: f64 = 1e-28;
/// Adding this number rounds an `f32` to an integer.
///
/// The integer is in the low bits of the sum.
const ROUNDING_OFFSET_F32: f64 = 1.5 * (1 << 23) as f64;
/// The same constant for `f64`.
const ROUNDING_OFFSET_F64: f64 = 1.5 * (1u64 << 52) as f64;

/// Bounds on the distance of the states from their center.
#[derive(Debug, Clone, Copy)]
pub struct StateDeviation {
    /// `max |P_k[p] - P̄_k|`
    pub max_abs: f64,
    /// `max_p ‖P[p] - P̄‖`
    pub max_norm: f64,
}

/// Exact and quantized head weights, for a search over state panels.
#[derive(Debug)]
pub struct QuantizedArgmax<F> {
    #[cfg(target_arch = "x86_64")]
    token: Avx512Vnni,
    pub(crate) labels: usize,
    pub(crate) blocks: Vec<LabelBlock<F>>,
    /// `w` and `c` of the blank.
    pub(crate) blank: Vec<F>,
    pub(crate) blank_bias: F,
    /// Offset that rounds a tanh to integer multiples of `1 / S`.
    rounding_offset: F,
    /// `P̄`, prepared by [`Real::prepare_tanh_addends`].
    center: Vec<F>,
}

/// Up to 32 labels.
#[derive(Debug)]
pub(crate) struct LabelBlock<F> {
    /// `W`, two steps in a word, *k/2 x 32*; the first `quantized_len` words.
    pub quantized: AlignedVec<i32>,
    quantized_len: usize,
    /// `w`, *k x 32*.
    pub weights: AlignedVec<F>,
    pub bias: [F; PANEL_COLUMNS],
    /// `κ`
    pub estimate_scale: [F; PANEL_COLUMNS],
    /// `2 ε` without the rounding of shifts; infinite where estimates are unusable.
    pub margin: [F; PANEL_COLUMNS],
}

/// The arcs from a panel of states at one frame.
#[derive(Debug)]
pub struct PanelArcs<'a, F> {
    /// Prepared addends of tanh.
    pub addends: TanhAddends<'a, F>,
    /// Output of [`QuantizedArgmax::prepare_frame`] for the frame.
    pub center: &'a [F],
    /// Added to all scores of a state; -inf for an unreachable state.
    pub shifts: [F; PANEL_COLUMNS],
    /// Arc id before the first arc of each state, ascending.
    pub first_arcs: &'a [u32; PANEL_COLUMNS],
    /// Index of the [`BestArcs`] that these arcs enter.
    pub target: usize,
    /// Output: blank scores, without shifts.
    pub blank: &'a mut [F; PANEL_COLUMNS],
}

/// The best arc into the destination state of each label, *V*.
#[derive(Debug)]
pub struct BestArcs<'a, F> {
    /// Weight of the arc.
    pub weights: &'a mut [F],
    /// Id of the arc; 0 for none.
    pub arcs: &'a mut [u32],
}

impl<F: Real> QuantizedArgmax<F> {
    /// Quantizes the head of a blank and labels, for states around `center`.
    ///
    /// Returns `None` if the CPU has no 16-bit dot products (AVX-512 VNNI), or if *k* is 0.
    ///
    /// # Shapes
    /// `head` *(1 + V) x k* and `bias` *1 + V*, the blank first; `center` *k*, not prepared.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn new(head: &[F], bias: &[F], mut center: Vec<F>, deviation: StateDeviation) -> Option<Self> {
        let (k, labels) = (center.len(), bias.len() - 1);
        assert_eq!(head.len(), k * bias.len(), "quantized argmax: expected a head row of {k} for each bias");
        #[cfg(target_arch = "x86_64")]
        let token = Avx512Vnni::detect().filter(|_| k > 0 && F::quantized_argmax_bytes(k, 1).is_some())?;
        #[cfg(not(target_arch = "x86_64"))]
        return None;
        F::prepare_tanh_addends(&mut center);
        let (blank, rows) = head.split_at(k);
        let tanh_scale = tanh_scale(rows, deviation, k);
        let max_quantized_norm =
            tanh_scale * (deviation.max_norm + (k as f64).sqrt() * TANH_ERROR) + (k as f64).sqrt();
        let label_rows = rows.chunks(PANEL_COLUMNS * k).zip(bias[1..].chunks(PANEL_COLUMNS));
        let block = |(rows, bias)| LabelBlock::new(rows, bias, k, tanh_scale, max_quantized_norm);
        Some(Self {
            #[cfg(target_arch = "x86_64")]
            token,
            labels,
            blocks: label_rows.map(block).collect(),
            blank: blank.to_vec(),
            blank_bias: bias[0],
            rounding_offset: F::from_f64(ROUNDING_OFFSET_F32 / tanh_scale),
            center,
        })
    }

    /// Returns whether the search is available and faster than computing all scores.
    ///
    /// The CPU must have 16-bit dot products, labels must fill their blocks well, and the scratch
    /// must fit in the packing buffer of a thread ([`packing_bytes`]).
    pub fn is_profitable(depth: usize, labels: usize) -> bool {
        let fills_blocks = 4 * labels >= 3 * labels.next_multiple_of(PANEL_COLUMNS);
        fills_blocks
            && F::quantized_argmax_bytes(depth, labels.div_ceil(PANEL_COLUMNS))
                .is_some_and(|bytes| bytes <= packing_bytes::<F>())
    }

    /// Returns an upper bound on the bytes of a search.
    ///
    /// `depth` is *k*, the number of hidden units; `labels` is *V*.
    pub fn bytes(depth: usize, labels: usize) -> usize {
        const FIXED_BYTES: usize = 1024;
        let block_bytes = depth * PANEL_COLUMNS * size_of::<F>()
            + depth.div_ceil(2) * PANEL_COLUMNS * size_of::<i32>()
            + FIXED_BYTES;
        labels.div_ceil(PANEL_COLUMNS) * block_bytes + 2 * depth * size_of::<F>() + FIXED_BYTES
    }

    /// Writes the center term of a prepared frame for [`update`](Self::update).
    ///
    /// `center` receives a rounding offset minus `m`, not `m`: the sum with a tanh is quantized.
    ///
    /// # Panics
    /// If a length is not *k*.
    pub fn prepare_frame(&self, frame: &[F], center: &mut [F]) {
        F::tanh_pairs(center, &self.center, frame);
        center.iter_mut().for_each(|m| *m = self.rounding_offset - *m);
    }

    /// Updates the best arcs with those from some panels; the lower arc id wins ties.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn update(&self, panel_arcs: &mut [PanelArcs<F>], best_arcs: &mut [BestArcs<F>]) {
        let k = self.depth();
        for PanelArcs { addends: (panel, row), center, target, .. } in &*panel_arcs {
            assert!(
                panel.len() == k * PANEL_COLUMNS && row.len() == k && center.len() == k,
                "quantized argmax: expected addends of depth {k}"
            );
            let BestArcs { weights, arcs } = &best_arcs[*target];
            assert!(
                weights.len() == self.labels && arcs.len() == self.labels,
                "quantized argmax: expected {} labels",
                self.labels
            );
        }
        #[cfg(target_arch = "x86_64")]
        F::quantized_argmax(self.token, self, panel_arcs, best_arcs);
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("no search exists without AVX-512 VNNI");
    }

    /// Returns *k*, the number of hidden units.
    pub(crate) fn depth(&self) -> usize {
        self.center.len()
    }
}

/// Returns `S`, which balances the rounding of tanh and of weights.
///
/// It is a power of two.
///
/// Averaged over the labels, the error is
///
/// ```text
/// ε = a / S + b N S ‖w‖ N / 2^31      a = Σ_k |w_k| / 2      b = √(k / 12)      N = ‖P - P̄‖
/// ```
fn tanh_scale<F: Real>(rows: &[F], deviation: StateDeviation, k: usize) -> f64 {
    let (mut abs_sum, mut square_sum) = (0.0, 0.0);
    for w in rows {
        abs_sum += w.to_f64().abs();
        square_sum += w.to_f64().powi(2);
    }
    let labels = (rows.len() / k.max(1)) as f64;
    let (a, weight_norm) = (abs_sum / labels / 2.0, (square_sum / labels).sqrt());
    let best = (a * f64::from(i32::MAX)
        / ((k as f64 / 12.0).sqrt() * deviation.max_norm.powi(2) * weight_norm))
        .sqrt();
    // `best` is NaN for zero weights or a zero deviation; `min` then returns `limit`.
    let limit = (MAX_QUANTIZED / deviation.max_abs.min(2.0)).min(MAX_SCALE);
    (best * std::f64::consts::SQRT_2).min(limit).max(1.0).log2().floor().exp2()
}

impl<F: Real> LabelBlock<F> {
    /// Quantizes the weights of some labels and computes their error bounds.
    ///
    /// `rows` *labels x k*; `tanh_scale` is `S`; `max_quantized_norm` is a bound on `‖D‖`.
    fn new(rows: &[F], bias: &[F], k: usize, tanh_scale: f64, max_quantized_norm: f64) -> Self {
        let mut block = Self {
            quantized: AlignedVec::default(),
            quantized_len: k.div_ceil(2) * PANEL_COLUMNS,
            weights: AlignedVec::default(),
            bias: [F::ZERO; PANEL_COLUMNS],
            estimate_scale: [F::ZERO; PANEL_COLUMNS],
            margin: [F::ZERO; PANEL_COLUMNS],
        };
        let quantized = block.quantized.ensure_len(block.quantized_len, 0);
        let weights = block.weights.ensure_len(k * PANEL_COLUMNS, F::ZERO);
        for (label, (row, &bias)) in rows.chunks_exact(k).zip(bias).enumerate() {
            // Norms of the label's weights, and their scale.
            let abs = |w: F| w.to_f64().abs();
            let sum = |f: &dyn Fn(F) -> f64| row.iter().map(|&w| f(w)).sum::<f64>();
            let (max_abs, abs_sum) = (row.iter().map(|&w| abs(w)).fold(0.0, f64::max), sum(&abs));
            let weight_norm = sum(&|w| abs(w).powi(2)).sqrt();
            // The final sum of W D fits 32 bits; wrap-around of partial sums does no harm.
            let max_scale = (f64::from(i32::MAX) / max_quantized_norm - (k as f64).sqrt()) / weight_norm;
            let weight_scale =
                if max_abs > 0.0 { max_scale.min(f64::from(i16::MAX) / max_abs).max(0.0) } else { 0.0 };
            let mut square_error = 0.0;
            for (step, &w) in row.iter().enumerate() {
                let integer = (weight_scale * w.to_f64() + ROUNDING_OFFSET_F64) - ROUNDING_OFFSET_F64;
                square_error += (integer - weight_scale * w.to_f64()).powi(2);
                let shift = if step % 2 == 0 { 0 } else { 16 };
                quantized[step / 2 * PANEL_COLUMNS + label] |= i32::from(integer as i16 as u16) << shift;
                weights[step * PANEL_COLUMNS + label] = w;
            }
            let estimate_scale = if weight_scale > 0.0 { 1.0 / (weight_scale * tanh_scale) } else { 0.0 };
            // Rounding of weights and of tanh; 0.51 is half a unit of rounded tanh, with a margin.
            let estimate_error =
                estimate_scale * (square_error.sqrt() * max_quantized_norm + 0.51 * weight_scale * abs_sum);
            // Rounding of f32 sums: of an exact score, where a weight takes part in all sums from
            // its step on, and of the additions of bias, center and estimate.
            let chain_sum =
                (2..).zip(row.iter().rev()).map(|(sums, &w)| f64::from(sums) * abs(w)).sum::<f64>();
            let rounding_error = HALF_ULP
                * (chain_sum
                    + 4.0 * (abs_sum + bias.to_f64().abs())
                    + 4.0 * weight_norm * max_quantized_norm / tanh_scale);
            block.bias[label] = bias;
            block.estimate_scale[label] = F::from_f64(estimate_scale);
            // Where weights cannot be quantized or estimates could overflow, all states are scored.
            let is_usable = (weight_scale > 0.0 || max_abs == 0.0)
                && abs_sum + bias.to_f64().abs() <= F::MAX.to_f64() / SCORE_HEADROOM;
            if !is_usable {
                (block.estimate_scale[label], block.margin[label]) = (F::ZERO, F::from_f64(f64::INFINITY));
                continue;
            }
            // Twice the error, 2 ε, and rounding of this number itself.
            block.margin[label] = F::from_f64(2.001 * (estimate_error + rounding_error) + UNDERFLOW_ERROR);
        }
        block
    }
}

impl<F> LabelBlock<F> {
    /// Returns `W` in pieces of `pairs` pairs of steps.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn pieces(&self, pairs: usize) -> impl Iterator<Item = &[i32]> {
        self.quantized[..self.quantized_len].chunks(pairs * PANEL_COLUMNS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TanhProducts, View, packed::check::synthetic};

    /// Head, panels of states around a common center, and frames.
    struct Problem {
        head: Vec<f32>,
        bias: Vec<f32>,
        panels: Vec<Vec<f32>>,
        frames: Vec<Vec<f32>>,
        center: Vec<f32>,
        deviation: StateDeviation,
    }

    fn synthetic_scaled(len: usize, seed: u32, factor: f32) -> Vec<f32> {
        synthetic::<f32>(len, seed).into_iter().map(|x| x * factor).collect()
    }

    impl Problem {
        /// Creates weights of magnitude `size` and states that differ by about `distance`.
        ///
        /// Some states are identical.
        fn new(labels: usize, k: usize, size: f32, distance: f32) -> Self {
            let center = synthetic_scaled(k, 3, 1.0);
            let panel = |seed: u32| {
                let differences = synthetic_scaled(k * PANEL_COLUMNS, seed, distance);
                let value = |i: usize| {
                    let (step, state) = (i / PANEL_COLUMNS, i % PANEL_COLUMNS);
                    let state = if state % 5 == 4 { state - 2 } else { state };
                    center[step] + differences[step * PANEL_COLUMNS + state]
                };
                (0..k * PANEL_COLUMNS).map(value).collect::<Vec<f32>>()
            };
            let mut deviation = StateDeviation { max_abs: 0.0, max_norm: 0.0 };
            let panels: Vec<Vec<f32>> = (10..12).map(panel).collect();
            for panel in &panels {
                for state in 0..PANEL_COLUMNS {
                    let difference =
                        |step: usize| f64::from(panel[step * PANEL_COLUMNS + state] - center[step]);
                    deviation.max_abs =
                        (0..k).map(|step| difference(step).abs()).fold(deviation.max_abs, f64::max);
                    let norm = (0..k).map(|step| difference(step).powi(2)).sum::<f64>().sqrt();
                    deviation.max_norm = deviation.max_norm.max(norm);
                }
            }
            let head = synthetic_scaled((1 + labels) * k, 1, size);
            let frames = (5..7).map(|seed| synthetic_scaled(k, seed, 1.0)).collect();
            Self {
                head,
                bias: synthetic_scaled(1 + labels, 2, size.min(1.0)),
                panels,
                frames,
                center,
                deviation,
            }
        }

        fn prepared(&self) -> [Vec<Vec<f32>>; 2] {
            [&self.panels, &self.frames].map(|rows| {
                let mut rows = rows.clone();
                rows.iter_mut().for_each(|row| f32::prepare_tanh_addends(row));
                rows
            })
        }
    }

    /// Arcs from a panel of states at a frame into a target.
    struct Request {
        panel: usize,
        frame: usize,
        shifts: [f32; PANEL_COLUMNS],
        first_arc: usize,
        target: usize,
    }

    /// Updates the best arcs from all scores; returns the blank scores of panels.
    fn update_from_all_scores(
        problem: &Problem,
        requests: &[Request],
        best_arcs: &mut [Vec<(f32, u32)>],
    ) -> Vec<[f32; PANEL_COLUMNS]> {
        let (labels, k) = (problem.bias.len() - 1, problem.center.len());
        let [panels, frames] = problem.prepared();
        let left = TanhProducts::pack(View::new(&problem.head, 1 + labels, k));
        let mut blanks = Vec::new();
        for &Request { panel, frame, shifts, first_arc, target } in requests {
            let mut tile: Vec<f32> = problem.bias.iter().flat_map(|&bias| [bias; PANEL_COLUMNS]).collect();
            let mut scratch = vec![0.0; TanhProducts::<f32>::scratch_len(k)];
            let addends = (&panels[panel][..], &frames[frame][..]);
            TanhProducts::new(&left, &mut scratch).multiply(&mut tile, addends, None);
            for (label, best) in (1..).zip(&mut best_arcs[target]) {
                for (state, shift) in shifts.iter().enumerate() {
                    let weight = tile[label * PANEL_COLUMNS + state] + shift;
                    let arc = arc_before(first_arc, state, labels) + label as u32;
                    if weight > best.0 || weight == best.0 && arc < best.1 {
                        *best = (weight, arc);
                    }
                }
            }
            blanks.push(*tile.first_chunk().unwrap());
        }
        blanks
    }

    /// Computes the same with the quantized search.
    fn update_from_search(
        search: &QuantizedArgmax<f32>,
        problem: &Problem,
        requests: &[Request],
        best_arcs: &mut [Vec<(f32, u32)>],
    ) -> Vec<[f32; PANEL_COLUMNS]> {
        let (labels, k) = (problem.bias.len() - 1, problem.center.len());
        let [panels, frames] = problem.prepared();
        let mut centers = vec![vec![0.0; k]; frames.len()];
        centers.iter_mut().zip(&frames).for_each(|(center, frame)| search.prepare_frame(frame, center));
        let first_arcs: Vec<[u32; PANEL_COLUMNS]> = (requests.iter())
            .map(|request| std::array::from_fn(|state| arc_before(request.first_arc, state, labels)))
            .collect();
        let mut blanks = vec![[f32::NAN; PANEL_COLUMNS]; requests.len()];
        let (mut weights, mut arcs): (Vec<Vec<f32>>, Vec<Vec<u32>>) =
            best_arcs.iter().map(|best| best.iter().copied().unzip()).unzip();
        let panel_arcs = requests.iter().zip(&first_arcs).zip(&mut blanks);
        let mut panel_arcs: Vec<PanelArcs<f32>> = panel_arcs
            .map(|((&Request { panel, frame, shifts, target, .. }, first_arcs), blank)| PanelArcs {
                addends: (&panels[panel], &frames[frame]),
                center: &centers[frame],
                shifts,
                first_arcs,
                target,
                blank,
            })
            .collect();
        let mut views: Vec<BestArcs<f32>> =
            weights.iter_mut().zip(&mut arcs).map(|(weights, arcs)| BestArcs { weights, arcs }).collect();
        search.update(&mut panel_arcs, &mut views);
        for (best, (weights, arcs)) in best_arcs.iter_mut().zip(weights.into_iter().zip(arcs)) {
            *best = weights.into_iter().zip(arcs).collect();
        }
        blanks
    }

    /// Returns the arc id before the first arc of a state; the states are not adjacent.
    fn arc_before(first_arc: usize, state: usize, labels: usize) -> u32 {
        (first_arc + 2 * state * labels) as u32
    }

    /// Covers two targets, two frames, unreachable states, and all panel counts.
    #[test]
    fn best_arcs_and_blanks_equal_those_of_all_scores() {
        let mut separating_searches = 0;
        for (labels, k) in
            [(32, 512), (32, 40), (32, 7), (30, 65), (5, 16), (64, 33), (70, 200), (1, 1), (32, 2)]
        {
            for (size, distance) in [
                (0.05, 0.05),
                (0.05, 1.0),
                (1.0, 0.01),
                (3.0, 3.0),
                (0.05, 0.0),
                (0.0, 1.0),
                (1e30, 0.1),
                (1.0, 1e-6),
                (1.0, 1e-4),
                (40.0, 8.0),
                (1e-36, 1.0),
                (1e-37, 1.0),
                (1e-40, 1.0),
                (1.6e38 / k as f32, 8.0),
                (3e37 / k as f32, 0.5),
            ] {
                let problem = Problem::new(labels, k, size, distance);
                let center = problem.center.clone();
                let Some(search) =
                    QuantizedArgmax::new(&problem.head, &problem.bias, center, problem.deviation)
                else {
                    println!("skipped: the CPU has no 16-bit dot products");
                    return;
                };
                let unreachable = [f32::NEG_INFINITY; PANEL_COLUMNS];
                let mixed = |turn: usize| {
                    std::array::from_fn(|state| {
                        [f32::NEG_INFINITY, -0.5, 0.0, -0.002, -70.0][(state * 7 + turn) % 5]
                    })
                };
                let close = std::array::from_fn(|state| -1e-3 * (state % 3) as f32);
                let large = std::array::from_fn(|state| -size * (state * 5 % 7) as f32);
                let zero = [0.0; PANEL_COLUMNS];
                let requests = [
                    (0, 0, mixed(0), 3, 0),
                    (1, 0, close, 900, 0),
                    (1, 1, mixed(2), 7, 1),
                    (0, 1, unreachable, 0, 1),
                    (0, 0, zero, 70, 0),
                    (1, 1, large, 70, 1),
                    (0, 1, close, 4, 1),
                ]
                .map(|(panel, frame, shifts, first_arc, target)| Request {
                    panel,
                    frame,
                    shifts,
                    first_arc,
                    target,
                });
                for count in 1..=requests.len() {
                    let initial = |label: usize| match label % 3 {
                        0 => (1.0, label as u32),
                        _ => (f32::NEG_INFINITY, 0),
                    };
                    let initial: Vec<(f32, u32)> = (0..labels).map(initial).collect();
                    let [mut actual, mut expected] = [(); 2].map(|()| vec![initial.clone(); 2]);
                    let blanks = update_from_search(&search, &problem, &requests[..count], &mut actual);
                    let all_blanks = update_from_all_scores(&problem, &requests[..count], &mut expected);
                    let case = format!("{labels} labels, depth {k}, {size}, {distance}, {count} panels");
                    assert!(blanks == all_blanks, "{case}: {blanks:?} {all_blanks:?}");
                    assert!(actual == expected, "{case}: {actual:?} {expected:?}");
                }
                separating_searches += usize::from(search.blocks[0].margin[0] < 0.1);
            }
        }
        assert!(separating_searches > 30, "only {separating_searches} searches separate the states");
    }

    /// Regression: overflowed estimates of finite scores, and differences below the error bound.
    #[test]
    fn extreme_scores_are_computed_exactly() {
        let panel: Vec<f32> =
            (0..2 * PANEL_COLUMNS).map(|i| -4.0 - 0.01 * (i % PANEL_COLUMNS) as f32).collect();
        let deviation = |panel: &[f32], center: f32| {
            let max_abs = panel.iter().map(|x| f64::from((x - center).abs())).fold(0.0, f64::max);
            let max_norm = max_abs * (panel.len() as f64 / PANEL_COLUMNS as f64).sqrt();
            StateDeviation { max_abs, max_norm }
        };
        let huge = Problem {
            head: vec![1.6e38; 4],
            bias: vec![0.0; 2],
            deviation: deviation(&panel, 4.0),
            panels: vec![panel],
            frames: vec![vec![0.0; 2]],
            center: vec![4.0; 2],
        };
        let zero = [0.0; PANEL_COLUMNS];
        let mut problems = vec![(huge, zero)];
        for seed in 0..40 {
            let panel = synthetic_scaled(40 * PANEL_COLUMNS, 100 + seed, 0.5);
            let tiny = Problem {
                head: synthetic_scaled(33 * 40, 200 + seed, 1e-37),
                bias: vec![0.0; 33],
                deviation: deviation(&panel, 0.0),
                panels: vec![panel],
                frames: vec![synthetic_scaled(40, 300 + seed, 1.0)],
                center: vec![0.0; 40],
            };
            problems.push((tiny, std::array::from_fn(|state| -1e-37 * ((state * 7 % 32) as f32 / 32.0))));
        }
        for (problem, shifts) in &problems {
            let center = problem.center.clone();
            let Some(search) = QuantizedArgmax::new(&problem.head, &problem.bias, center, problem.deviation)
            else {
                return;
            };
            let initial = vec![vec![(f32::NEG_INFINITY, 0); problem.bias.len() - 1]];
            let [mut actual, mut expected] = [initial.clone(), initial];
            let requests = [Request { panel: 0, frame: 0, shifts: *shifts, first_arc: 5, target: 0 }];
            update_from_search(&search, problem, &requests, &mut actual);
            update_from_all_scores(problem, &requests, &mut expected);
            assert!(actual == expected, "{actual:?} {expected:?}");
        }
    }

    #[test]
    fn error_bounds_are_small_relative_to_the_deviation() {
        let problem = Problem::new(32, 512, 0.05, 0.05);
        let center = problem.center.clone();
        let Some(search) = QuantizedArgmax::new(&problem.head, &problem.bias, center, problem.deviation)
        else {
            return;
        };
        let block = &search.blocks[0];
        let score_deviation: f64 = problem.deviation.max_norm * 0.05;
        for (label, margin) in block.margin.iter().enumerate() {
            assert!(
                f64::from(*margin) < 0.05 * score_deviation,
                "label {label}: {margin} where states differ by {score_deviation}"
            );
        }
    }

    #[test]
    fn searches_are_profitable_for_full_blocks_that_fit_the_scratch() {
        for (labels, expected) in [(24, true), (23, false), (33, false), (48, true), (96, true)] {
            let is_available = f32::quantized_argmax_bytes(64, 1).is_some();
            assert_eq!(QuantizedArgmax::<f32>::is_profitable(64, labels), expected && is_available);
            assert!(!QuantizedArgmax::<f64>::is_profitable(64, labels));
        }
        // Larger than the packing buffer of a thread.
        assert!(!QuantizedArgmax::<f32>::is_profitable(1 << 16, 32));
    }
}
