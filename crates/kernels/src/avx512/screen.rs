//! Panels of states through a [`Screen`]: tangents, estimates of all scores, and the scores of those that may be best.
//!
//! ```text
//! for each panel, for each piece of its steps:  estimates += W D, while the divider makes the tangents of the next piece
//! for each block of labels:                     bars, candidates, and their scores for two panels at once
//! ```
use std::{
    arch::x86_64::*,
    ops::Range,
    slice::{Iter, IterMut},
};

use super::{LANES, filled, tanh::pair_lanes, whole, whole_to};
use crate::{
    AlignedVec, PANEL, Screen, Sources, Winners,
    screen::{HUGE, LabelBlock},
    simd::Avx512Vnni,
};

/// Registers of a panel, and of the labels of a block.
const WIDE: usize = 2;
const _: () = assert!(WIDE * LANES == PANEL);
/// Steps of a piece, an even number: what they read and write stays next to the processor.
const STEPS: usize = 64;
/// Panels that go together: they share weights, and the chains of their scores have less to wait for.
const TOGETHER: usize = 2;
/// States whose scores of all labels are found at once.
const ABREAST: usize = 8;
/// What sums of estimates and shifts, and of scores and shifts, are off by at most: eight halves of an ulp.
const SUMS: f32 = 1.0 / (1 << 21) as f32;

type WidePanel = [[f32; LANES]; WIDE];
/// A register for each half of the labels, or of the states.
type Wide<T> = [T; WIDE];

/// Elements of tangents, of words and of estimates that *k* steps and so many blocks of labels are gone through in.
const fn rooms(depth: usize, blocks: usize) -> [usize; 3] {
    // Words of the first block are made piece by piece; others come back to them.
    let pieces = if blocks > 1 { TOGETHER * depth.div_ceil(STEPS) } else { 2 };
    [TOGETHER * depth * PANEL, pieces * (STEPS / 2) * PANEL, TOGETHER * PANEL * PANEL]
}

/// Bytes of all of them.
pub const fn room(depth: usize, blocks: usize) -> usize {
    let [hidden, words, tiles] = rooms(depth, blocks);
    (hidden + words + tiles + LANES) * size_of::<f32>()
}

/// As [`Screen::best`], in a room that is [`room`] or more.
pub fn best(
    _proof: Avx512Vnni,
    room: &mut AlignedVec<f32>,
    screen: &Screen<f32>,
    sources: &mut [Sources<f32>],
    winners: &mut [Winners<f32>],
) {
    for sources in sources.chunks_mut(TOGETHER) {
        // SAFETY: the token proves the features.
        unsafe {
            match sources {
                [one] => few([one], screen, room, winners),
                [one, two] => few([one, two], screen, room, winners),
                _ => unreachable!("at most {TOGETHER} go together"),
            }
        }
    }
}

/// N panels.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
fn few<const N: usize>(
    sources: [&mut Sources<f32>; N],
    screen: &Screen<f32>,
    room: &mut AlignedVec<f32>,
    winners: &mut [Winners<f32>],
) {
    let k = screen.depth();
    let sizes = rooms(k, screen.blocks.len());
    let mut room = room.ensure_len(sizes.iter().sum(), 0.0);
    let mut part =
        |size: usize| panels_mut(room.split_off_mut(..size).expect("there is room for all of them"));
    let [hidden, coarse, tiles] = sizes.map(&mut part);
    let (hidden, tiles): (_, &mut [[WidePanel; PANEL]]) = (&mut hidden[..N * k], tiles.as_chunks_mut().0);
    estimate(&sources, screen, hidden, coarse, tiles);
    let mut hidden = &*hidden;
    let hidden: [&[WidePanel]; N] =
        std::array::from_fn(|_| hidden.split_off(..k).expect("tangents of each panel"));
    for (at, block) in screen.blocks.iter().enumerate() {
        let first = at * PANEL;
        let labels = first..screen.labels.min(first + PANEL);
        let weights = panels(&block.exact[..k * PANEL]);
        let found: [Candidates; N] = std::array::from_fn(|panel| {
            let tile = &mut tiles[panel];
            if at > 0 {
                let coarse = coarse.chunks(STEPS / 2).skip(panel * k.div_ceil(STEPS));
                for (piece, (coarse, weights)) in coarse.zip(block.pieces(STEPS / 2)).enumerate() {
                    estimates(coarse, weights.as_chunks().0, (tile, piece == 0), None, None);
                }
            }
            let bars = bars(tile, &sources[panel].shifts, registers(&block.unit), registers(&block.slack));
            candidates(tile, bars, u32::MAX >> (PANEL - labels.len()))
        });
        let scores = match (found.iter().any(|found| found.others > 0), at == 0) {
            (true, true) => scores::<N, true, true>(hidden, weights, &screen.blank, &found),
            (true, false) => scores::<N, true, false>(hidden, weights, &[], &found),
            (false, true) => scores::<N, false, true>(hidden, weights, &screen.blank, &found),
            (false, false) => scores::<N, false, false>(hidden, weights, &[], &found),
        };
        for (panel, (found, scores)) in found.iter().zip(scores).enumerate() {
            let Winners { best, from } = &mut winners[sources[panel].to];
            let (best, from) = (&mut best[labels.clone()], &mut from[labels.clone()]);
            let mut run = LabelSearch { source: &*sources[panel], block, first, best, from };
            if found.others <= LANES {
                run.win(found, scores.first);
                run.win_others(found, scores.others);
            } else {
                run.win_all(hidden[panel], weights);
            }
            if at == 0 {
                leave(sources[panel].blank, scores.blank, screen.blank_bias);
            }
        }
    }
}

/// Tangents of all panels, and the sums of their estimates of the first block.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
fn estimate<const N: usize>(
    sources: &[&mut Sources<f32>; N],
    screen: &Screen<f32>,
    hidden: &mut [WidePanel],
    coarse: &mut [WidePanel],
    tiles: &mut [[WidePanel; PANEL]],
) {
    let k = screen.depth();
    let pieces = k.div_ceil(STEPS);
    let steps = |at: usize| at % pieces * STEPS..k.min((at % pieces + 1) * STEPS);
    let (all, places) = (N * pieces, coarse.len() / (STEPS / 2));
    let slot = |at: usize| at % places * (STEPS / 2)..(at % places + 1) * (STEPS / 2);
    for at in 0..all {
        let tile = (&mut tiles[at / pieces], at % pieces == 0);
        if at == 0 {
            Tangents::new(sources[0], steps(0), hidden, &mut coarse[slot(0)]).rest();
        }
        let weights = screen.blocks[0].pieces(STEPS / 2).nth(at % pieces).expect("weights of each piece");
        if at + 1 == all {
            estimates(&coarse[slot(at)], weights.as_chunks().0, tile, None, None);
            break;
        }
        let [here, next] = coarse.get_disjoint_mut([slot(at), slot(at + 1)]).expect("they differ");
        let panel = (at + 1) / pieces;
        let mut next = Tangents::new(sources[panel], steps(at + 1), &mut hidden[panel * k..], next);
        let soon =
            (at + 2 < all).then(|| panels(sources[(at + 2) / pieces].addends.0)[steps(at + 2)].as_ptr());
        estimates(here, weights.as_chunks().0, tile, Some(&mut next), soon);
        next.rest();
    }
}

/// Two steps after two steps.
type Twos<'a, T> = Iter<'a, [T; 2]>;

/// Tangents of a piece, on their way.
struct Tangents<'a> {
    hidden: IterMut<'a, [WidePanel; 2]>,
    /// Their distance from the middle as whole numbers, two steps in the bits of one.
    coarse: IterMut<'a, WidePanel>,
    panel: Twos<'a, WidePanel>,
    frame: Twos<'a, f32>,
    middle: Twos<'a, f32>,
    /// A step that is left over.
    last: Option<(&'a mut WidePanel, &'a WidePanel, f32, f32)>,
}

impl<'a> Tangents<'a> {
    /// Some steps of a panel.
    fn new(
        source: &'a Sources<f32>,
        steps: Range<usize>,
        hidden: &'a mut [WidePanel],
        coarse: &'a mut [WidePanel],
    ) -> Self {
        let (hidden, last_hidden) = hidden[steps.clone()].as_chunks_mut();
        let (panel, last_panel) = panels(source.addends.0)[steps.clone()].as_chunks();
        let (frame, last_frame) = source.addends.1[steps.clone()].as_chunks();
        let (middle, last_middle) = source.middle[steps].as_chunks();
        let last = last_hidden.iter_mut().zip(last_panel).zip(last_frame.iter().zip(last_middle)).next();
        Self {
            hidden: hidden.iter_mut(),
            coarse: coarse.iter_mut(),
            panel: panel.iter(),
            frame: frame.iter(),
            middle: middle.iter(),
            last: last.map(|((hidden, panel), (&frame, &middle))| (hidden, panel, frame, middle)),
        }
    }

    /// Those of the next two steps, if there are any.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
    fn next(&mut self) -> bool {
        let Self { hidden, coarse, panel, frame, middle, .. } = self;
        let (Some([panel, second]), Some([hidden, other])) = (panel.next(), hidden.next()) else {
            return false;
        };
        let (Some(frame), Some(middle), Some(coarse)) = (frame.next(), middle.next(), coarse.next()) else {
            return false;
        };
        let first = tangents(hidden, panel, frame[0], middle[0]);
        let second = tangents(other, second, frame[1], middle[1]);
        for half in 0..WIDE {
            let second = _mm512_slli_epi32::<16>(second[half]);
            let both = _mm512_mask_blend_epi16(0xAAAA_AAAA, first[half], second);
            whole_to(&mut coarse[half], _mm512_castsi512_ps(both));
        }
        true
    }

    /// All that are left.
    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
    fn rest(&mut self) {
        while self.next() {}
        if let (Some((hidden, panel, frame, middle)), Some(coarse)) = (self.last.take(), self.coarse.next()) {
            for (coarse, whole) in coarse.iter_mut().zip(tangents(hidden, panel, frame, middle)) {
                whole_to(coarse, _mm512_castsi512_ps(_mm512_maskz_mov_epi16(0x5555_5555, whole)));
            }
        }
    }
}

/// Those of a step; what it returns ends in whole numbers of 16 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
fn tangents(hidden: &mut WidePanel, panel: &WidePanel, frame: f32, middle: f32) -> Wide<__m512i> {
    let (frame, middle) = (_mm512_set1_ps(frame), _mm512_set1_ps(middle));
    std::array::from_fn(|half| {
        let tangent = pair_lanes(whole(&panel[half]), frame);
        whole_to(&mut hidden[half], tangent);
        _mm512_castps_si512(_mm512_add_ps(tangent, middle))
    })
}

/// Adds `Σ_k W D` of each state and label, state by state, to whole numbers in the bits of a tile, which may be a fresh one, and makes
/// tangents on the way: the divider has nothing else to do. Addends that come `soon` are called for.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
fn estimates(
    coarse: &[WidePanel],
    weights: &[[i32; PANEL]],
    (tile, fresh): (&mut [WidePanel; PANEL], bool),
    mut tangents: Option<&mut Tangents>,
    soon: Option<*const WidePanel>,
) {
    let mut meanwhile = |pair: usize| {
        if let (0, Some(tangents)) = (pair % 2, &mut tangents) {
            tangents.next();
        }
    };
    sums::<10>(coarse, 0, weights, (tile, fresh), &mut meanwhile);
    sums::<11>(coarse, 10, weights, (tile, fresh), &mut meanwhile);
    sums::<11>(coarse, 21, weights, (tile, fresh), |pair| {
        if let Some(panel) = soon {
            for line in 0..4 {
                let line = panel.cast::<[f32; LANES]>().wrapping_add(4 * pair + line);
                _mm_prefetch::<_MM_HINT_T0>(line.cast());
            }
        }
    });
}

/// Those of N states.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
fn sums<const N: usize>(
    coarse: &[WidePanel],
    first: usize,
    weights: &[[i32; PANEL]],
    (tile, fresh): (&mut [WidePanel; PANEL], bool),
    mut meanwhile: impl FnMut(usize),
) {
    let mut sums = [[_mm512_setzero_si512(); WIDE]; N];
    for (pair, (states, labels)) in coarse.iter().zip(weights).enumerate() {
        meanwhile(pair);
        let labels = whole_words(labels);
        let states: &[f32; N] = states.as_flattened()[first..].first_chunk().expect("a panel has as many");
        for (sums, &state) in sums.iter_mut().zip(states) {
            let state = _mm512_castps_si512(_mm512_set1_ps(state));
            for (sum, labels) in sums.iter_mut().zip(labels) {
                *sum = _mm512_dpwssd_epi32(*sum, state, labels);
            }
        }
    }
    for (tile, sums) in tile[first..].iter_mut().zip(sums) {
        for (tile, sum) in tile.iter_mut().zip(sums) {
            let before = if fresh { _mm512_setzero_si512() } else { _mm512_castps_si512(whole(tile)) };
            whole_to(tile, _mm512_castsi512_ps(_mm512_add_epi32(before, sum)));
        }
    }
}

/// Makes estimates of the tile's sums, shifts included, and returns what they have to reach: the best of each label, less what it
/// and another may be off by.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
fn bars(
    tile: &mut [WidePanel; PANEL],
    shifts: &[f32; PANEL],
    unit: Wide<__m512>,
    slack: Wide<__m512>,
) -> Wide<__m512> {
    let least = _mm512_set1_ps(f32::MIN);
    let size = |shifts| {
        let here = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(shifts, least);
        _mm512_maskz_mov_ps(here, _mm512_abs_ps(shifts))
    };
    let [first, second] = registers(shifts);
    let far = _mm512_reduce_max_ps(_mm512_max_ps(size(first), size(second)));
    // Next to the largest number nothing is estimated.
    let near = far <= f32::MAX / HUGE as f32;
    let (unit, sums) = if near { (unit, far * SUMS) } else { ([_mm512_setzero_ps(); WIDE], f32::INFINITY) };
    let mut tops = [_mm512_set1_ps(f32::NEG_INFINITY); WIDE];
    for (tile, &shift) in tile.iter_mut().zip(shifts) {
        let shift = _mm512_set1_ps(shift);
        for half in 0..WIDE {
            let sum = _mm512_cvtepi32_ps(_mm512_castps_si512(whole(&tile[half])));
            let estimate = _mm512_fmadd_ps(sum, unit[half], shift);
            tops[half] = _mm512_max_ps(tops[half], estimate);
            whole_to(&mut tile[half], estimate);
        }
    }
    std::array::from_fn(|half| {
        let slack = _mm512_add_ps(slack[half], _mm512_set1_ps(sums));
        // Nobody reaches -inf.
        _mm512_max_ps(_mm512_sub_ps(tops[half], slack), least)
    })
}

/// States that may be the best of a label.
struct Candidates {
    /// The first one of each label that has any.
    states: Wide<__m512i>,
    valid: Wide<__mmask16>,
    /// How many come behind it, and as many of them as there is room for: labels and states.
    others: usize,
    of_labels: [i32; LANES],
    of_states: [i32; LANES],
}

#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
fn candidates(tile: &[WidePanel; PANEL], bars: Wide<__m512>, labels: u32) -> Candidates {
    let mut states = [_mm512_setzero_si512(); WIDE];
    let (mut seen, mut others) = (0, 0);
    let (mut of_labels, mut of_states) = ([0; LANES], [0; LANES]);
    for (state, tile) in tile.iter().enumerate() {
        let here = |half: usize| _mm512_cmp_ps_mask::<_CMP_GE_OQ>(whole(&tile[half]), bars[half]);
        let here = (u32::from(here(0)) | u32::from(here(1)) << LANES) & labels;
        let [low, high] = halves(here & !seen);
        let number = _mm512_set1_epi32(state as i32);
        states[0] = _mm512_mask_mov_epi32(states[0], low, number);
        states[1] = _mm512_mask_mov_epi32(states[1], high, number);
        let mut again = here & seen;
        while again != 0 {
            if others < LANES {
                (of_labels[others], of_states[others]) = (again.trailing_zeros() as i32, state as i32);
            }
            others += 1;
            again &= again - 1;
        }
        seen |= here;
    }
    Candidates { states, valid: halves(seen), others, of_labels, of_states }
}

fn halves(mask: u32) -> Wide<__mmask16> {
    [mask as u16, (mask >> LANES) as u16]
}

/// Sums of a panel.
struct PanelSums {
    /// Of each label, those of its first candidate.
    first: Wide<__m512>,
    /// Of the other candidates.
    others: __m512,
    /// Of the blank, those of all states.
    blank: Wide<__m512>,
}

/// `Σ_k w h` of the candidates of N panels, the first ones or all, and of the blank: each one chain of sums.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
fn scores<const N: usize, const OTHERS: bool, const BLANK: bool>(
    hidden: [&[WidePanel]; N],
    weights: &[WidePanel],
    blank: &[f32],
    found: &[Candidates; N],
) -> [PanelSums; N] {
    let zero = _mm512_setzero_ps();
    let mut first = [[zero; WIDE]; N];
    let mut others = [zero; N];
    let mut of_blank = [[zero; WIDE]; N];
    let states: [Wide<__m512i>; N] = std::array::from_fn(|panel| found[panel].states);
    let of_labels: [__m512i; N] = std::array::from_fn(|panel| whole_word(&found[panel].of_labels));
    let of_states: [__m512i; N] = std::array::from_fn(|panel| whole_word(&found[panel].of_states));
    let mut hidden = hidden.map(|hidden| hidden.iter());
    for (step, weights) in weights.iter().enumerate() {
        let weights: Wide<__m512> = std::array::from_fn(|half| whole(&weights[half]));
        for panel in 0..N {
            let hidden = hidden[panel].next().expect("tangents of each step");
            let hidden: Wide<__m512> = std::array::from_fn(|half| whole(&hidden[half]));
            for half in 0..WIDE {
                let hidden = _mm512_permutex2var_ps(hidden[0], states[panel][half], hidden[1]);
                first[panel][half] = _mm512_fmadd_ps(weights[half], hidden, first[panel][half]);
            }
            if OTHERS {
                let weights = _mm512_permutex2var_ps(weights[0], of_labels[panel], weights[1]);
                let hidden = _mm512_permutex2var_ps(hidden[0], of_states[panel], hidden[1]);
                others[panel] = _mm512_fmadd_ps(weights, hidden, others[panel]);
            }
            if BLANK {
                let weight = _mm512_set1_ps(blank[step]);
                for (sum, hidden) in of_blank[panel].iter_mut().zip(hidden) {
                    *sum = _mm512_fmadd_ps(weight, hidden, *sum);
                }
            }
        }
    }
    std::array::from_fn(|panel| PanelSums {
        first: first[panel],
        others: others[panel],
        blank: of_blank[panel],
    })
}

/// The states behind a block of labels, and who competes for them.
struct LabelSearch<'a, 'b> {
    source: &'a Sources<'b, f32>,
    block: &'a LabelBlock<f32>,
    /// Number of the first label.
    first: usize,
    best: &'a mut [f32],
    from: &'a mut [u32],
}

impl LabelSearch<'_, '_> {
    /// Lets the first candidate of each label compete.
    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
    fn win(&mut self, found: &Candidates, sums: Wide<__m512>) {
        let (shifts, arcs) =
            (registers(&self.source.shifts), whole_words(&self.source.arcs.map(|arc| arc as i32)));
        for (half, state) in found.states.into_iter().enumerate() {
            let shift = _mm512_permutex2var_ps(shifts[0], state, shifts[1]);
            let arc = _mm512_permutex2var_epi32(arcs[0], state, arcs[1]);
            self.compete(half, found.valid[half], sums[half], shift, arc);
        }
    }

    /// Lets the other candidates compete, one by one.
    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
    fn win_others(&mut self, found: &Candidates, sums: __m512) {
        let mut all = [0.0; LANES];
        whole_to(&mut all, sums);
        let pairs = found.of_labels.iter().zip(&found.of_states).take(found.others);
        for ((&label, &state), sum) in pairs.zip(all) {
            let (label, state) = (label as usize, state as usize);
            let weight = self.block.bias[label] + sum + self.source.shifts[state];
            let arc = self.source.arcs[state] + (self.first + label + 1) as u32;
            let (best, from) = (&mut self.best[label], &mut self.from[label]);
            if weight > *best || weight == *best && arc < *from {
                (*best, *from) = (weight, arc);
            }
        }
    }

    /// Finds the scores of all states and labels, where estimates tell few of them apart, and lets them compete.
    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
    fn win_all(&mut self, hidden: &[WidePanel], weights: &[WidePanel]) {
        for first in (0..PANEL).step_by(ABREAST) {
            let mut sums = [[_mm512_setzero_ps(); WIDE]; ABREAST];
            for (hidden, weights) in hidden.iter().zip(weights) {
                let states: &[f32; ABREAST] =
                    hidden.as_flattened()[first..].first_chunk().expect("a panel has as many");
                for (sums, &state) in sums.iter_mut().zip(states) {
                    for (sum, weights) in sums.iter_mut().zip(weights) {
                        *sum = _mm512_fmadd_ps(whole(weights), _mm512_set1_ps(state), *sum);
                    }
                }
            }
            for (state, sums) in
                (first..).zip(sums).filter(|(state, _)| self.source.shifts[*state] > f32::NEG_INFINITY)
            {
                let shift = _mm512_set1_ps(self.source.shifts[state]);
                let arc = _mm512_set1_epi32(self.source.arcs[state] as i32);
                sums.into_iter()
                    .enumerate()
                    .for_each(|(half, sums)| self.compete(half, !0, sums, shift, arc));
            }
        }
    }

    /// Arcs to half of the states, each behind the one with this number: those that are better win, or as good and of a lower number.
    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
    fn compete(&mut self, half: usize, valid: __mmask16, sums: __m512, shift: __m512, before: __m512i) {
        let from = self.best.len().min(half * LANES);
        let to = self.best.len().min(from + LANES);
        let weight = _mm512_add_ps(_mm512_add_ps(registers(&self.block.bias)[half], sums), shift);
        let label = _mm512_set1_epi32((self.first + half * LANES + 1) as i32);
        let numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let arc = _mm512_add_epi32(before, _mm512_add_epi32(label, numbers));
        let (best, from) = (&mut self.best[from..to], &mut self.from[from..to]);
        let valid = valid & filled(best.len());
        // SAFETY: no lane is read or written that has no element in both.
        unsafe {
            let known = _mm512_maskz_loadu_ps(valid, best.as_ptr());
            let known_arc = _mm512_maskz_loadu_epi32(valid, from.as_ptr().cast());
            let better = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(weight, known);
            let same = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(weight, known);
            let wins = valid & (better | (same & _mm512_cmplt_epu32_mask(arc, known_arc)));
            _mm512_mask_storeu_ps(best.as_mut_ptr(), wins, weight);
            _mm512_mask_storeu_epi32(from.as_mut_ptr().cast(), wins, arc);
        }
    }
}

/// Writes the scores of a blank.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
fn leave(blank: &mut [f32; PANEL], sums: Wide<__m512>, bias: f32) {
    for (blank, sum) in blank.as_chunks_mut().0.iter_mut().zip(sums) {
        whole_to(blank, _mm512_add_ps(_mm512_set1_ps(bias), sum));
    }
}

fn panels(values: &[f32]) -> &[WidePanel] {
    values.as_chunks().0.as_chunks().0
}

fn panels_mut(values: &mut [f32]) -> &mut [WidePanel] {
    values.as_chunks_mut().0.as_chunks_mut().0
}

#[target_feature(enable = "avx512f")]
fn registers(values: &[f32; PANEL]) -> Wide<__m512> {
    let halves = values.as_chunks().0;
    std::array::from_fn(|half| whole(&halves[half]))
}

#[target_feature(enable = "avx512f")]
fn whole_words(values: &[i32; PANEL]) -> Wide<__m512i> {
    let halves = values.as_chunks().0;
    std::array::from_fn(|half| whole_word(&halves[half]))
}

#[target_feature(enable = "avx512f")]
fn whole_word(row: &[i32; LANES]) -> __m512i {
    // SAFETY: there are as many elements.
    unsafe { _mm512_loadu_si512(row.as_ptr().cast()) }
}
