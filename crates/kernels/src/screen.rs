//! The best of 32 states for each label by scores of which most are only estimated.
//!
//! ```text
//! score       l[p,y] = c_y + Σ_k w_yk h_k[p]      h_k[p] = tanh(P_k[p] + Q_k)
//! estimate    l[p,y] ≈ c_y + Σ_k w_yk m_k + κ_y Σ_k W_yk D_k[p]      m_k = tanh(P̄_k + Q_k), of what is in the middle of the states
//!             W = round(C_y w)      D = round(S (h - m))      κ_y = 1 / (C_y S)      whole numbers of 16 bits, added up in 32
//! its error   |ε_y| <= κ_y (‖W - C_y w‖ ‖D‖ + Σ_k C_y |w_yk| / 2)  +  what f32 makes of the sums
//! ```
//! Who wins a label is among the states whose estimate is within `2 ε_y` of the best one. Those are scored as a product would score
//! them, each in one chain of sums: the result is that of all scores, bit for bit, at the price of about one score in 32. What is in
//! the middle is the same for all states and plays no part in who is best, so that an estimate is as fine as the states differ.
#[cfg(target_arch = "x86_64")]
use crate::features::Avx512Vnni;
use crate::{Lines, PANEL, Real, TanhAddends, packing_bytes};

/// Largest of the 16-bit tangents, roundings not counted.
const LARGEST: f64 = 32_000.0;
/// Sums of a tangent and [`WHOLE`] by more would lose its sign.
const FINEST: f64 = (1 << 20) as f64;
/// What a tangent may be off by, and more.
const ROUNDING: f64 = 1e-5;
/// Half the distance of two `f32` above 1.
const HALF_ULP: f64 = 1.0 / (1 << 24) as f64;

/// The same of 53 bits.
const NEAREST: f64 = 1.5 * (1u64 << 52) as f64;
/// A number of 24 bits whose last one is 1: a sum with it is rounded to whole numbers.
const WHOLE: f64 = 1.5 * (1 << 23) as f64;

/// How far states are from what is in their middle.
#[derive(Debug, Clone, Copy)]
pub struct Spread {
    /// `max |P_k[p] - P̄_k|`
    pub most: f64,
    /// `max_p ‖P[p] - P̄‖`
    pub norm: f64,
}

/// Weights of labels, as they are and as whole numbers.
#[derive(Debug)]
pub struct Screen<F> {
    #[cfg(target_arch = "x86_64")]
    proof: Avx512Vnni,
    pub(crate) labels: usize,
    pub(crate) blocks: Vec<Block<F>>,
    /// `w` and `c` of the blank.
    pub(crate) blank: Vec<F>,
    pub(crate) blank_bias: F,
    /// What ends in whole numbers of `1 / S` when tangents are added to it.
    whole: F,
    /// `P̄`, prepared.
    middle: Vec<F>,
}

/// 32 labels, or what is left of them.
#[derive(Debug)]
pub(crate) struct Block<F> {
    /// `W` of each two steps, *k/2 x 32*, so many.
    pub coarse: Lines<i32>,
    words: usize,
    /// `w`, *k x 32*.
    pub exact: Lines<F>,
    pub bias: [F; PANEL],
    /// `κ`
    pub unit: [F; PANEL],
    /// `2 ε`, but for what the sums before it add.
    pub slack: [F; PANEL],
}

/// A panel of states at a frame.
#[derive(Debug)]
pub struct Sources<'a, F> {
    /// Prepared addends.
    pub addends: TanhAddends<'a, F>,
    /// What [`Screen::enter`] made of the frame.
    pub middle: &'a [F],
    /// What is added to all scores of a state; -inf for one that nobody reaches.
    pub shifts: [F; PANEL],
    /// Number of the arc before the first of each state, rising.
    pub arcs: &'a [u32; PANEL],
    /// Which of the winners these arcs compete with.
    pub to: usize,
    /// Where the scores of their blanks go, as they are.
    pub blank: &'a mut [F; PANEL],
}

/// The best arc to the state behind each label, *V*: its weight, and its number, which is 0 where there is none.
#[derive(Debug)]
pub struct Winners<'a, F> {
    /// Weight.
    pub best: &'a mut [F],
    /// Number.
    pub from: &'a mut [u32],
}

impl<F: Real> Screen<F> {
    /// A screen for a blank and labels, each a row of *k* weights and a bias, and states about `middle`, prepared; none where it
    /// would be no faster than all scores.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn new(head: &[F], bias: &[F], mut middle: Vec<F>, spread: Spread) -> Option<Self> {
        let (k, labels) = (middle.len(), bias.len() - 1);
        assert_eq!(head.len(), k * bias.len(), "screen: a row of {k} for each bias");
        #[cfg(target_arch = "x86_64")]
        let proof = Avx512Vnni::found().filter(|_| F::screen_bytes(k, 1).is_some())?;
        #[cfg(not(target_arch = "x86_64"))]
        return None;
        F::prepare_tanh(&mut middle);
        let (blank, rows) = head.split_at(k);
        let scale = scale(rows, spread, k);
        let norm = scale * (spread.norm + (k as f64).sqrt() * ROUNDING) + (k as f64).sqrt();
        let of_labels = rows.chunks(PANEL * k).zip(bias[1..].chunks(PANEL));
        let block = |(rows, bias)| Block::new(rows, bias, k, scale, norm);
        Some(Self {
            #[cfg(target_arch = "x86_64")]
            proof,
            labels,
            blocks: of_labels.map(block).collect(),
            blank: blank.to_vec(),
            blank_bias: bias[0],
            whole: F::from_f64(WHOLE / scale),
            middle,
        })
    }

    /// Whether there is a screen that is faster than all scores: the machine can add up products of 16-bit pairs, labels fill their
    /// blocks well enough, and panels go through in what a thread keeps for the packing of products ([`packing_bytes`]).
    pub fn suits(depth: usize, labels: usize) -> bool {
        let full = 4 * labels >= 3 * labels.next_multiple_of(PANEL);
        full && F::screen_bytes(depth, labels.div_ceil(PANEL))
            .is_some_and(|bytes| bytes <= packing_bytes::<F>())
    }

    /// Bytes of a screen for *k* and *V*.
    pub fn bytes(depth: usize, labels: usize) -> usize {
        let block = depth * PANEL * size_of::<F>() + depth.div_ceil(2) * PANEL * 4 + 1024;
        labels.div_ceil(PANEL) * block + 2 * depth * size_of::<F>() + 1024
    }

    /// `m` of a prepared frame, as [`best`](Self::best) wants it.
    ///
    /// # Panics
    /// If it is not of *k*.
    pub fn enter(&self, frame: &[F], middle: &mut [F]) {
        F::tanh_pairs(middle, &self.middle, frame);
        middle.iter_mut().for_each(|m| *m = self.whole - *m);
    }

    /// Makes better winners of the arcs from some panels. Among equal arcs the one of the lowest number wins.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn best(&self, sources: &mut [Sources<F>], winners: &mut [Winners<F>]) {
        let k = self.depth();
        for Sources { addends: (panel, row), middle, to, .. } in &*sources {
            assert!(
                panel.len() == k * PANEL && row.len() == k && middle.len() == k,
                "screen: addends for a depth of {k}"
            );
            let Winners { best, from } = &winners[*to];
            assert!(best.len() == self.labels && from.len() == self.labels, "screen: {} labels", self.labels);
        }
        #[cfg(target_arch = "x86_64")]
        F::screened(self.proof, self, sources, winners);
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("there is no screen");
    }

    /// *k*
    pub(crate) fn depth(&self) -> usize {
        self.middle.len()
    }
}

/// `S`, a power of two, with which roundings of tangents and of weights matter alike: of all labels together
///
/// ```text
/// ε = a / S + b N S ‖w‖ N / 2^31      a = Σ_k |w_k| / 2      b = √(k / 12)      N = ‖P - P̄‖
/// ```
fn scale<F: Real>(rows: &[F], spread: Spread, k: usize) -> f64 {
    let (mut sum, mut squares) = (0.0, 0.0);
    for w in rows {
        sum += w.to_f64().abs();
        squares += w.to_f64().powi(2);
    }
    let labels = (rows.len() / k.max(1)) as f64;
    let (a, length) = (sum / labels / 2.0, (squares / labels).sqrt());
    let best = (a * f64::from(i32::MAX) / ((k as f64 / 12.0).sqrt() * spread.norm.powi(2) * length)).sqrt();
    // Where nothing is known of it, `best` is no number.
    let most = (LARGEST / spread.most.min(2.0)).min(FINEST);
    (best * std::f64::consts::SQRT_2).min(most).max(1.0).log2().floor().exp2()
}

impl<F: Real> Block<F> {
    fn new(rows: &[F], bias: &[F], k: usize, scale: f64, norm: f64) -> Self {
        let mut block = Self {
            coarse: Lines::default(),
            words: k.div_ceil(2) * PANEL,
            exact: Lines::default(),
            bias: [F::ZERO; PANEL],
            unit: [F::ZERO; PANEL],
            slack: [F::ZERO; PANEL],
        };
        let coarse = block.coarse.room(block.words, 0);
        let exact = block.exact.room(k * PANEL, F::ZERO);
        for (label, (row, &bias)) in rows.chunks_exact(k).zip(bias).enumerate() {
            let of = |w: F| w.to_f64().abs();
            let sum = |of: &dyn Fn(F) -> f64| row.iter().map(|&w| of(w)).sum::<f64>();
            let (most, sums) = (row.iter().map(|&w| of(w)).fold(0.0, f64::max), sum(&of));
            let length = sum(&|w| of(w).powi(2)).sqrt();
            // Every sum of W D is a whole number of 32 bits, whatever the sums on the way to it are.
            let fits = (f64::from(i32::MAX) / norm - (k as f64).sqrt()) / length;
            let c = if most > 0.0 { fits.min(f64::from(i16::MAX) / most).max(0.0) } else { 0.0 };
            let mut off = 0.0;
            for (step, &w) in row.iter().enumerate() {
                let whole = (c * w.to_f64() + NEAREST) - NEAREST;
                off += (whole - c * w.to_f64()).powi(2);
                let shift = if step % 2 == 0 { 0 } else { 16 };
                coarse[step / 2 * PANEL + label] |= i32::from(whole as i16 as u16) << shift;
                exact[step * PANEL + label] = w;
            }
            let unit = if c > 0.0 { 1.0 / (c * scale) } else { 0.0 };
            let estimate = unit * (off.sqrt() * norm + 0.51 * c * sums);
            // A weight goes through all sums from its own on.
            let chain = (2..).zip(row.iter().rev()).map(|(sums, &w)| f64::from(sums) * of(w)).sum::<f64>();
            let rounding =
                HALF_ULP * (chain + 4.0 * (sums + bias.to_f64().abs()) + 4.0 * length * norm / scale);
            block.bias[label] = bias;
            block.unit[label] = F::from_f64(unit);
            // Weights that no whole numbers stand for are all looked at.
            let slack = if c > 0.0 || most == 0.0 { 2.001 * (estimate + rounding) } else { f64::MAX };
            block.slack[label] = F::from_f64(slack.min(F::LARGEST.to_f64()));
        }
        block
    }
}

impl<F> Block<F> {
    /// `W` of so many pairs of steps at a time.
    #[cfg(target_arch = "x86_64")]
    pub fn pieces(&self, pairs: usize) -> impl Iterator<Item = &[i32]> {
        self.coarse[..self.words].chunks(pairs * PANEL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TanhProducts, View, packed::check::made_up};

    /// States of a screen and one frame.
    struct Made {
        head: Vec<f32>,
        bias: Vec<f32>,
        panel: Vec<f32>,
        frame: Vec<f32>,
        middle: Vec<f32>,
        spread: Spread,
    }

    impl Made {
        /// Weights and frames of some size, and states that differ by about `apart`; some of them are the same.
        fn up(labels: usize, k: usize, (size, apart): (f32, f32)) -> Self {
            let scaled = |len, seed, by: f32| -> Vec<f32> {
                made_up::<f32>(len, seed).into_iter().map(|x| x * by).collect()
            };
            let middle = scaled(k, 3, 1.0);
            let differ = scaled(k * PANEL, 4, apart);
            let of = |at: usize| {
                let (step, state) = (at / PANEL, at % PANEL);
                middle[step] + differ[step * PANEL + if state % 5 == 4 { state - 2 } else { state }]
            };
            let panel: Vec<f32> = (0..k * PANEL).map(of).collect();
            let far = |state: usize, step: usize| f64::from(panel[step * PANEL + state] - middle[step]);
            let norm = |state| (0..k).map(|step| far(state, step).powi(2)).sum::<f64>().sqrt();
            let most = (0..k).flat_map(|step| (0..PANEL).map(move |state| (state, step)));
            let spread = Spread {
                most: most.map(|(state, step)| far(state, step).abs()).fold(0.0, f64::max),
                norm: (0..PANEL).map(norm).fold(0.0, f64::max),
            };
            let head = scaled((1 + labels) * k, 1, size);
            Self { head, bias: scaled(1 + labels, 2, 1.0), panel, frame: scaled(k, 5, 1.0), middle, spread }
        }

        fn prepared(&self) -> (Vec<f32>, Vec<f32>) {
            let mut prepared = (self.panel.clone(), self.frame.clone());
            f32::prepare_tanh(&mut prepared.0);
            f32::prepare_tanh(&mut prepared.1);
            prepared
        }
    }

    #[test]
    fn winners_and_blanks_are_those_of_all_scores() {
        let mut estimated = 0;
        for (labels, k) in [(32, 512), (32, 40), (32, 7), (30, 65), (5, 16), (64, 33), (70, 100), (1, 1)] {
            for (size, apart) in
                [(0.05, 0.05), (0.05, 1.0), (1.0, 0.01), (3.0, 3.0), (0.05, 0.0), (0.0, 1.0), (1e30, 0.1)]
            {
                let made = Made::up(labels, k, (size, apart));
                let (panel, frame) = made.prepared();
                let addends = (&panel[..], &frame[..]);
                let Some(screen) = Screen::new(&made.head, &made.bias, made.middle.clone(), made.spread)
                else {
                    println!("skipped: this machine adds up no products of 16-bit pairs");
                    return;
                };
                let shift = |state: usize| [f32::NEG_INFINITY, -0.5, 0.0, -0.002, -70.0][state * 7 % 5];
                for unreached in [false, true] {
                    let shifts =
                        std::array::from_fn(|state| if unreached { f32::NEG_INFINITY } else { shift(state) });
                    let arcs = std::array::from_fn(|state| (3 + 2 * state * labels) as u32);
                    let begin = |label: usize| {
                        (if label % 3 == 0 { 1.0 } else { f32::NEG_INFINITY }, label as u32 % 3 / 2)
                    };
                    let (mut best, mut from): (Vec<f32>, Vec<u32>) = (0..labels).map(begin).unzip();

                    let left = TanhProducts::pack(View::new(&made.head, 1 + labels, k));
                    let mut tile: Vec<f32> = made.bias.iter().flat_map(|&bias| [bias; PANEL]).collect();
                    let mut room = vec![0.0; TanhProducts::<f32>::room(k)];
                    TanhProducts::new(&left, &mut room).next(&mut tile, addends, None);
                    let mut all: Vec<(f32, u32)> = best.iter().copied().zip(from.iter().copied()).collect();
                    for (label, known) in (1..).zip(&mut all) {
                        for state in 0..PANEL {
                            let weight = tile[label * PANEL + state] + shifts[state];
                            let arc = arcs[state] + label as u32;
                            if weight > known.0 || weight == known.0 && arc < known.1 {
                                *known = (weight, arc);
                            }
                        }
                    }

                    let mut middle = vec![0.0; k];
                    screen.enter(&frame, &mut middle);
                    let mut blank = [f32::NAN; PANEL];
                    let sources =
                        Sources { addends, middle: &middle, shifts, arcs: &arcs, to: 0, blank: &mut blank };
                    let mut winners = [Winners { best: &mut best, from: &mut from }];
                    screen.best(&mut [sources], &mut winners);
                    assert_eq!(blank, tile[..PANEL], "{labels} labels, depth {k}, {size}, {apart}");
                    let found: Vec<(f32, u32)> = best.into_iter().zip(from).collect();
                    assert!(found == all, "{labels} labels, depth {k}, {size}, {apart}: {found:?} {all:?}");
                }
                estimated += usize::from(screen.blocks[0].slack[0] < 0.1);
            }
        }
        assert!(estimated > 20, "only {estimated} screens tell states apart");
    }
}
