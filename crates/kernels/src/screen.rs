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
use crate::simd::Avx512Vnni;
use crate::{AlignedVec, PANEL, Real, TanhAddends, packing_bytes};

/// Largest of the 16-bit tangents, roundings not counted.
const LARGEST: f64 = 32_000.0;
/// Sums of a tangent and [`WHOLE`] by more would lose its sign.
const FINEST: f64 = (1 << 20) as f64;
/// What a tangent may be off by, and more.
const ROUNDING: f64 = 1e-5;
/// Half the distance of two `f32` above 1.
const HALF_ULP: f64 = 1.0 / (1 << 24) as f64;

/// Scores are estimated up to the largest number over this.
pub(crate) const HUGE: f64 = 16.0;
/// What products and sums of numbers next to 0 are off by together, and far more.
const DENORMAL: f64 = 1e-28;
/// A number of 24 bits whose last one is 1: a sum with it is rounded to whole numbers.
const WHOLE: f64 = 1.5 * (1 << 23) as f64;
/// The same of 53 bits.
const NEAREST: f64 = 1.5 * (1u64 << 52) as f64;

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
    pub(crate) blocks: Vec<LabelBlock<F>>,
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
pub(crate) struct LabelBlock<F> {
    /// `W` of each two steps, *k/2 x 32*, so many.
    pub coarse: AlignedVec<i32>,
    words: usize,
    /// `w`, *k x 32*.
    pub exact: AlignedVec<F>,
    pub bias: [F; PANEL],
    /// `κ`
    pub unit: [F; PANEL],
    /// `2 ε`, but for what the sums before it add; infinite where estimates say nothing.
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
    /// A screen for a blank and labels, each a row of *k* weights and a bias, and states about `middle`, which is not prepared;
    /// none where the machine adds up no products of 16-bit pairs, or for sums of nothing.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn new(head: &[F], bias: &[F], mut middle: Vec<F>, spread: Spread) -> Option<Self> {
        let (k, labels) = (middle.len(), bias.len() - 1);
        assert_eq!(head.len(), k * bias.len(), "screen: a row of {k} for each bias");
        #[cfg(target_arch = "x86_64")]
        let proof = Avx512Vnni::found().filter(|_| k > 0 && F::screen_bytes(k, 1).is_some())?;
        #[cfg(not(target_arch = "x86_64"))]
        return None;
        F::prepare_tanh(&mut middle);
        let (blank, rows) = head.split_at(k);
        let scale = scale(rows, spread, k);
        let norm = scale * (spread.norm + (k as f64).sqrt() * ROUNDING) + (k as f64).sqrt();
        let of_labels = rows.chunks(PANEL * k).zip(bias[1..].chunks(PANEL));
        let block = |(rows, bias)| LabelBlock::new(rows, bias, k, scale, norm);
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

impl<F: Real> LabelBlock<F> {
    fn new(rows: &[F], bias: &[F], k: usize, scale: f64, norm: f64) -> Self {
        let mut block = Self {
            coarse: AlignedVec::default(),
            words: k.div_ceil(2) * PANEL,
            exact: AlignedVec::default(),
            bias: [F::ZERO; PANEL],
            unit: [F::ZERO; PANEL],
            slack: [F::ZERO; PANEL],
        };
        let coarse = block.coarse.ensure_len(block.words, 0);
        let exact = block.exact.ensure_len(k * PANEL, F::ZERO);
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
            // Weights that no whole numbers stand for, or whose estimates might leave the numbers, are all looked at.
            let stands = (c > 0.0 || most == 0.0) && sums + bias.to_f64().abs() <= F::LARGEST.to_f64() / HUGE;
            if !stands {
                (block.unit[label], block.slack[label]) = (F::ZERO, F::from_f64(f64::INFINITY));
                continue;
            }
            block.slack[label] = F::from_f64(2.001 * (estimate + rounding) + DENORMAL);
        }
        block
    }
}

impl<F> LabelBlock<F> {
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

    /// Panels of states about one middle, and frames.
    struct Made {
        head: Vec<f32>,
        bias: Vec<f32>,
        panels: Vec<Vec<f32>>,
        frames: Vec<Vec<f32>>,
        middle: Vec<f32>,
        spread: Spread,
    }

    fn scaled(len: usize, seed: u32, by: f32) -> Vec<f32> {
        made_up::<f32>(len, seed).into_iter().map(|x| x * by).collect()
    }

    impl Made {
        /// Weights of some size and states that differ by about `apart`; some of them are the same.
        fn up(labels: usize, k: usize, (size, apart): (f32, f32)) -> Self {
            let middle = scaled(k, 3, 1.0);
            let panel = |seed: u32| {
                let differ = scaled(k * PANEL, seed, apart);
                let of = |at: usize| {
                    let (step, state) = (at / PANEL, at % PANEL);
                    middle[step] + differ[step * PANEL + if state % 5 == 4 { state - 2 } else { state }]
                };
                (0..k * PANEL).map(of).collect::<Vec<f32>>()
            };
            let mut spread = Spread { most: 0.0, norm: 0.0 };
            let panels: Vec<Vec<f32>> = (10..12).map(panel).collect();
            for panel in &panels {
                for state in 0..PANEL {
                    let far = |step: usize| f64::from(panel[step * PANEL + state] - middle[step]);
                    spread.most = (0..k).map(|step| far(step).abs()).fold(spread.most, f64::max);
                    spread.norm = spread.norm.max((0..k).map(|step| far(step).powi(2)).sum::<f64>().sqrt());
                }
            }
            let head = scaled((1 + labels) * k, 1, size);
            let frames = (5..7).map(|seed| scaled(k, seed, 1.0)).collect();
            Self { head, bias: scaled(1 + labels, 2, size.min(1.0)), panels, frames, middle, spread }
        }

        fn prepared(&self) -> [Vec<Vec<f32>>; 2] {
            [&self.panels, &self.frames].map(|rows| {
                let mut rows = rows.clone();
                rows.iter_mut().for_each(|row| f32::prepare_tanh(row));
                rows
            })
        }
    }

    /// What competes: panel, frame, shifts, number of the first state, and with whom.
    type Asked = (usize, usize, [f32; PANEL], usize, usize);

    /// Winners and blanks of some panels by all scores.
    fn by_all_scores(made: &Made, asked: &[Asked], winners: &mut [Vec<(f32, u32)>]) -> Vec<[f32; PANEL]> {
        let (labels, k) = (made.bias.len() - 1, made.middle.len());
        let [panels, frames] = made.prepared();
        let left = TanhProducts::pack(View::new(&made.head, 1 + labels, k));
        let mut blanks = Vec::new();
        for &(panel, frame, shifts, first, to) in asked {
            let mut tile: Vec<f32> = made.bias.iter().flat_map(|&bias| [bias; PANEL]).collect();
            let mut room = vec![0.0; TanhProducts::<f32>::room(k)];
            TanhProducts::new(&left, &mut room).next(&mut tile, (&panels[panel], &frames[frame]), None);
            for (label, known) in (1..).zip(&mut winners[to]) {
                for (state, shift) in shifts.iter().enumerate() {
                    let (weight, arc) =
                        (tile[label * PANEL + state] + shift, arc(first, state, labels) + label as u32);
                    if weight > known.0 || weight == known.0 && arc < known.1 {
                        *known = (weight, arc);
                    }
                }
            }
            blanks.push(*tile.first_chunk().unwrap());
        }
        blanks
    }

    fn by_screen(
        screen: &Screen<f32>,
        made: &Made,
        asked: &[Asked],
        winners: &mut [Vec<(f32, u32)>],
    ) -> Vec<[f32; PANEL]> {
        let (labels, k) = (made.bias.len() - 1, made.middle.len());
        let [panels, frames] = made.prepared();
        let mut middles = vec![vec![0.0; k]; frames.len()];
        middles.iter_mut().zip(&frames).for_each(|(middle, frame)| screen.enter(frame, middle));
        let arcs: Vec<[u32; PANEL]> =
            asked.iter().map(|asked| std::array::from_fn(|state| arc(asked.3, state, labels))).collect();
        let mut blanks = vec![[f32::NAN; PANEL]; asked.len()];
        let (mut best, mut from): (Vec<Vec<f32>>, Vec<Vec<u32>>) =
            winners.iter().map(|known| known.iter().copied().unzip()).unzip();
        let sources = asked.iter().zip(&arcs).zip(&mut blanks);
        let mut sources: Vec<Sources<f32>> = sources
            .map(|((&(panel, frame, shifts, _, to), arcs), blank)| Sources {
                addends: (&panels[panel], &frames[frame]),
                middle: &middles[frame],
                shifts,
                arcs,
                to,
                blank,
            })
            .collect();
        let mut of: Vec<Winners<f32>> =
            best.iter_mut().zip(&mut from).map(|(best, from)| Winners { best, from }).collect();
        screen.best(&mut sources, &mut of);
        for (known, (best, from)) in winners.iter_mut().zip(best.into_iter().zip(from)) {
            *known = best.into_iter().zip(from).collect();
        }
        blanks
    }

    /// Number of the arc before the first of a state; states are not next to one another.
    fn arc(first: usize, state: usize, labels: usize) -> u32 {
        (first + 2 * state * labels) as u32
    }

    /// Panels of two runs, at two frames, some of whose states nobody reaches, in any number at once.
    #[test]
    fn winners_and_blanks_are_those_of_all_scores() {
        let mut estimated = 0;
        for (labels, k) in
            [(32, 512), (32, 40), (32, 7), (30, 65), (5, 16), (64, 33), (70, 200), (1, 1), (32, 2)]
        {
            for (size, apart) in [
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
                let made = Made::up(labels, k, (size, apart));
                let Some(screen) = Screen::new(&made.head, &made.bias, made.middle.clone(), made.spread)
                else {
                    println!("skipped: this machine adds up no products of 16-bit pairs");
                    return;
                };
                let none = [f32::NEG_INFINITY; PANEL];
                let some = |turn: usize| {
                    std::array::from_fn(|state| {
                        [f32::NEG_INFINITY, -0.5, 0.0, -0.002, -70.0][(state * 7 + turn) % 5]
                    })
                };
                let near = std::array::from_fn(|state| -1e-3 * (state % 3) as f32);
                let as_large = std::array::from_fn(|state| -size * (state * 5 % 7) as f32);
                let zero = [0.0; PANEL];
                let asked = [
                    (0, 0, some(0), 3, 0),
                    (1, 0, near, 900, 0),
                    (1, 1, some(2), 7, 1),
                    (0, 1, none, 0, 1),
                    (0, 0, zero, 70, 0),
                    (1, 1, as_large, 70, 1),
                    (0, 1, near, 4, 1),
                ];
                for count in 1..=asked.len() {
                    let begin = |label: usize| match label % 3 {
                        0 => (1.0, label as u32),
                        _ => (f32::NEG_INFINITY, 0),
                    };
                    let begin: Vec<(f32, u32)> = (0..labels).map(begin).collect();
                    let [mut found, mut all] = [(); 2].map(|()| vec![begin.clone(); 2]);
                    let blanks = by_screen(&screen, &made, &asked[..count], &mut found);
                    let expected = by_all_scores(&made, &asked[..count], &mut all);
                    let what = format!("{labels} labels, depth {k}, {size}, {apart}, {count} panels");
                    assert!(blanks == expected, "{what}: {blanks:?} {expected:?}");
                    assert!(found == all, "{what}: {found:?} {all:?}");
                }
                estimated += usize::from(screen.blocks[0].slack[0] < 0.1);
            }
        }
        assert!(estimated > 30, "only {estimated} screens tell states apart");
    }

    /// The smallest inputs that once lost winners: estimates of finite scores that were not, and scores that differ by less than all
    /// that estimates were thought to be off by.
    #[test]
    fn scores_at_both_ends_of_the_numbers_are_looked_at() {
        let far: Vec<f32> = (0..2 * PANEL).map(|at| -4.0 - 0.01 * (at % PANEL) as f32).collect();
        let spread = |panel: &[f32], middle: f32| {
            let most = panel.iter().map(|x| f64::from((x - middle).abs())).fold(0.0, f64::max);
            Spread { most, norm: most * (panel.len() as f64 / PANEL as f64).sqrt() }
        };
        let huge = Made {
            head: vec![1.6e38; 4],
            bias: vec![0.0; 2],
            spread: spread(&far, 4.0),
            panels: vec![far],
            frames: vec![vec![0.0; 2]],
            middle: vec![4.0; 2],
        };
        let zero = [0.0; PANEL];
        let mut all = vec![(huge, zero)];
        for seed in 0..40 {
            let panel = scaled(40 * PANEL, 100 + seed, 0.5);
            let tiny = Made {
                head: scaled(33 * 40, 200 + seed, 1e-37),
                bias: vec![0.0; 33],
                spread: spread(&panel, 0.0),
                panels: vec![panel],
                frames: vec![scaled(40, 300 + seed, 1.0)],
                middle: vec![0.0; 40],
            };
            all.push((tiny, std::array::from_fn(|state| -1e-37 * ((state * 7 % 32) as f32 / 32.0))));
        }
        for (made, shifts) in &all {
            let Some(screen) = Screen::new(&made.head, &made.bias, made.middle.clone(), made.spread) else {
                return;
            };
            let begin = vec![vec![(f32::NEG_INFINITY, 0); made.bias.len() - 1]];
            let [mut found, mut expected] = [begin.clone(), begin];
            let asked = [(0, 0, *shifts, 5, 0)];
            by_screen(&screen, made, &asked, &mut found);
            by_all_scores(made, &asked, &mut expected);
            assert!(found == expected, "{found:?} {expected:?}");
        }
    }

    /// What estimates are off by, next to what a screen believes.
    #[test]
    fn estimates_are_as_fine_as_they_claim() {
        let made = Made::up(32, 512, (0.05, 0.05));
        let Some(screen) = Screen::new(&made.head, &made.bias, made.middle.clone(), made.spread) else {
            return;
        };
        let block = &screen.blocks[0];
        let spread: f64 = made.spread.norm * 0.05;
        for (label, slack) in block.slack.iter().enumerate() {
            assert!(
                f64::from(*slack) < 0.05 * spread,
                "label {label}: {slack} where states differ by {spread}"
            );
        }
    }

    #[test]
    fn screens_are_for_those_whom_they_suit() {
        for (labels, suits) in [(24, true), (23, false), (33, false), (48, true), (96, true)] {
            assert_eq!(Screen::<f32>::suits(64, labels), suits && f32::screen_bytes(64, 1).is_some());
            assert!(!Screen::<f64>::suits(64, labels));
        }
        // What a thread keeps is no longer enough.
        assert!(!Screen::<f32>::suits(1 << 16, 32));
    }
}
