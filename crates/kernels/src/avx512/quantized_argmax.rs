//! AVX-512 (VNNI) version of the quantized Viterbi step: [`QuantizedArgmax::update`].
//!
//! ```text
//! for each panel, for each piece of steps: estimates += W D, meanwhile tanh of the next piece
//! for each block of labels:                thresholds, candidates, scores of two panels at once
//! ```
//! panel: 32 states; piece: 64 steps of the sum over hidden units; block: 32 labels; W and D: the
//! 16-bit head weights and tanh differences of `crate::quantized_argmax`.
use std::{
    arch::x86_64::*,
    ops::Range,
    slice::{Iter, IterMut},
};

use super::{LANES, lane_mask, load_full, store_full, tanh::pair_lanes};
use crate::{
    AlignedVec, BestArcs, PANEL_COLUMNS, PanelArcs, QuantizedArgmax,
    quantized_argmax::{LabelBlock, SCORE_HEADROOM},
    simd::Avx512Vnni,
};

/// Registers of a panel row, and of the labels of a block.
const REGISTERS: usize = 2;
const _: () = assert!(REGISTERS * LANES == PANEL_COLUMNS);
/// Steps of a piece, an even number; its data stays in the first-level cache.
const STEPS_PER_PIECE: usize = 64;
/// Quantized words of a state in a piece: a pair of steps each.
const PAIRS_PER_PIECE: usize = STEPS_PER_PIECE / 2;
/// Panels processed together: they share weights, and their chains of sums overlap.
const PANELS_PER_PASS: usize = 2;
/// States whose scores of all labels are computed at once.
const STATES_PER_PASS: usize = 8;
/// Mask of the high 16 bits of each 32-bit word.
const HIGH_HALVES: __mmask32 = 0xAAAA_AAAA;
/// Relative error of adding shifts to estimates and scores: at most eight half ulps.
const SUM_ERROR: f32 = 1.0 / (1 << 21) as f32;

/// One step of a panel: a value for each of its 32 states.
///
/// Quantized rows and estimate tiles store the bits of integers in it.
type PanelRow = [[f32; LANES]; REGISTERS];
/// One value for each register of the labels, or of the states; `half` is the index of one.
type PerRegister<T> = [T; REGISTERS];

/// Returns the scratch elements of tanh values, quantized words and estimates.
const fn scratch_sizes(depth: usize, blocks: usize) -> [usize; 3] {
    // The first block uses words piece by piece; further blocks read them again.
    let pieces = if blocks > 1 { PANELS_PER_PASS * depth.div_ceil(STEPS_PER_PIECE) } else { 2 };
    [
        PANELS_PER_PASS * depth * PANEL_COLUMNS,
        pieces * PAIRS_PER_PIECE * PANEL_COLUMNS,
        PANELS_PER_PASS * PANEL_COLUMNS * PANEL_COLUMNS,
    ]
}

/// Returns the scratch bytes of [`update`].
pub(crate) const fn scratch_bytes(depth: usize, blocks: usize) -> usize {
    let [hidden, words, tiles] = scratch_sizes(depth, blocks);
    (hidden + words + tiles + LANES) * size_of::<f32>()
}

/// As [`QuantizedArgmax::update`], in scratch of [`scratch_bytes`] or more.
pub(crate) fn update(
    _token: Avx512Vnni,
    scratch: &mut AlignedVec<f32>,
    argmax: &QuantizedArgmax<f32>,
    panel_arcs: &mut [PanelArcs<f32>],
    best_arcs: &mut [BestArcs<f32>],
) {
    for panel_arcs in panel_arcs.chunks_mut(PANELS_PER_PASS) {
        // SAFETY: the token proves the features.
        unsafe {
            match panel_arcs {
                [first] => update_panels([first], argmax, scratch, best_arcs),
                [first, second] => update_panels([first, second], argmax, scratch, best_arcs),
                _ => unreachable!("a pass has at most {PANELS_PER_PASS} panels"),
            }
        }
    }
}

/// Updates the best arcs with those of `N` panels.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
fn update_panels<const N: usize>(
    panel_arcs: [&mut PanelArcs<f32>; N],
    argmax: &QuantizedArgmax<f32>,
    scratch: &mut AlignedVec<f32>,
    best_arcs: &mut [BestArcs<f32>],
) {
    let k = argmax.depth();
    let sizes = scratch_sizes(k, argmax.blocks.len());
    let mut scratch = scratch.ensure_len(sizes.iter().sum(), 0.0);
    let mut split_off =
        |size: usize| panel_rows_mut(scratch.split_off_mut(..size).expect("the scratch has all parts"));
    let [hidden, quantized, tiles] = sizes.map(&mut split_off);
    let (hidden, tiles): (_, &mut [[PanelRow; PANEL_COLUMNS]]) =
        (&mut hidden[..N * k], tiles.as_chunks_mut().0);
    // tanh of all panels, and estimates of the first block of labels.
    compute_tanh_and_estimates(&panel_arcs, argmax, hidden, quantized, tiles);
    let mut hidden = &*hidden;
    let hidden: [&[PanelRow]; N] =
        std::array::from_fn(|_| hidden.split_off(..k).expect("tanh values of each panel"));
    for (block_index, block) in argmax.blocks.iter().enumerate() {
        let is_first_block = block_index == 0;
        let first_label = block_index * PANEL_COLUMNS;
        let labels = first_label..argmax.labels.min(first_label + PANEL_COLUMNS);
        // Candidates by estimates.
        let weights = panel_rows(&block.weights[..k * PANEL_COLUMNS]);
        let candidates: [Candidates; N] = std::array::from_fn(|panel| {
            let tile = &mut tiles[panel];
            if !is_first_block {
                let quantized = quantized.chunks(PAIRS_PER_PIECE).skip(panel * k.div_ceil(STEPS_PER_PIECE));
                for (piece, (quantized, weights)) in quantized.zip(block.pieces(PAIRS_PER_PIECE)).enumerate()
                {
                    add_estimates(quantized, weights.as_chunks().0, tile, piece == 0, None, None);
                }
            }
            let (scale, margin) = (load_registers(&block.estimate_scale), load_registers(&block.margin));
            let thresholds = estimate_thresholds(tile, &panel_arcs[panel].shifts, scale, margin);
            select_candidates(tile, thresholds, u32::MAX >> (PANEL_COLUMNS - labels.len()))
        });
        // Exact scores of the candidates, and of the blank with the first block.
        let has_others = candidates.iter().any(|candidates| candidates.other_count > 0);
        let scores = match (has_others, is_first_block) {
            (true, true) => exact_scores::<N, true, true>(hidden, weights, &argmax.blank, &candidates),
            (true, false) => exact_scores::<N, true, false>(hidden, weights, &[], &candidates),
            (false, true) => exact_scores::<N, false, true>(hidden, weights, &argmax.blank, &candidates),
            (false, false) => exact_scores::<N, false, false>(hidden, weights, &[], &candidates),
        };
        // The best arcs.
        for (panel, (candidates, scores)) in candidates.iter().zip(scores).enumerate() {
            let BestArcs { weights: best, arcs: from } = &mut best_arcs[panel_arcs[panel].target];
            let (best, from) = (&mut best[labels.clone()], &mut from[labels.clone()]);
            let mut search = LabelSearch { panel_arcs: &*panel_arcs[panel], block, first_label, best, from };
            if candidates.other_count <= LANES {
                search.update_first(candidates, scores.first);
                search.update_others(candidates, scores.others);
            } else {
                search.update_from_all_states(hidden[panel], weights);
            }
            if is_first_block {
                write_blank(panel_arcs[panel].blank, scores.blank, argmax.blank_bias);
            }
        }
    }
}

/// Computes tanh of all panels and the integer estimates of block 0.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
fn compute_tanh_and_estimates<const N: usize>(
    panel_arcs: &[&mut PanelArcs<f32>; N],
    argmax: &QuantizedArgmax<f32>,
    hidden: &mut [PanelRow],
    quantized: &mut [PanelRow],
    tiles: &mut [[PanelRow; PANEL_COLUMNS]],
) {
    let k = argmax.depth();
    let pieces_per_panel = k.div_ceil(STEPS_PER_PIECE);
    let (piece_count, slot_count) = (N * pieces_per_panel, quantized.len() / PAIRS_PER_PIECE);
    // Pieces are numbered over all panels. A slot has the quantized words of a piece.
    let steps = |piece: usize| {
        let index = piece % pieces_per_panel;
        index * STEPS_PER_PIECE..k.min((index + 1) * STEPS_PER_PIECE)
    };
    let slot = |piece: usize| {
        let index = piece % slot_count;
        index * PAIRS_PER_PIECE..(index + 1) * PAIRS_PER_PIECE
    };
    for piece in 0..piece_count {
        let (tile, is_first) = (&mut tiles[piece / pieces_per_panel], piece % pieces_per_panel == 0);
        if piece == 0 {
            TanhPiece::new(panel_arcs[0], steps(0), hidden, &mut quantized[slot(0)]).finish();
        }
        let weights = argmax.blocks[0]
            .pieces(PAIRS_PER_PIECE)
            .nth(piece % pieces_per_panel)
            .expect("weights of each piece");
        if piece + 1 == piece_count {
            add_estimates(&quantized[slot(piece)], weights.as_chunks().0, tile, is_first, None, None);
            break;
        }
        // Estimates of this piece, meanwhile tanh of the next one; its successor is prefetched.
        let [current, next] =
            quantized.get_disjoint_mut([slot(piece), slot(piece + 1)]).expect("distinct slots");
        let panel = (piece + 1) / pieces_per_panel;
        let mut next = TanhPiece::new(panel_arcs[panel], steps(piece + 1), &mut hidden[panel * k..], next);
        let prefetch = (piece + 2 < piece_count).then(|| {
            panel_rows(panel_arcs[(piece + 2) / pieces_per_panel].addends.0)[steps(piece + 2)].as_ptr()
        });
        add_estimates(current, weights.as_chunks().0, tile, is_first, Some(&mut next), prefetch);
        next.finish();
    }
}

/// Steps in pairs.
type StepPairs<'a, T> = Iter<'a, [T; 2]>;

/// tanh of a piece, computed step by step.
struct TanhPiece<'a> {
    hidden: IterMut<'a, [PanelRow; 2]>,
    /// Distance from the center as 16-bit integers, two steps in a word.
    quantized: IterMut<'a, PanelRow>,
    panel: StepPairs<'a, PanelRow>,
    frame: StepPairs<'a, f32>,
    center: StepPairs<'a, f32>,
    /// The last step, if their number is odd.
    last: Option<(&'a mut PanelRow, &'a PanelRow, f32, f32)>,
}

impl<'a> TanhPiece<'a> {
    /// Starts with some steps of a panel.
    fn new(
        panel_arcs: &'a PanelArcs<f32>,
        steps: Range<usize>,
        hidden: &'a mut [PanelRow],
        quantized: &'a mut [PanelRow],
    ) -> Self {
        let (hidden, last_hidden) = hidden[steps.clone()].as_chunks_mut();
        let (panel, last_panel) = panel_rows(panel_arcs.addends.0)[steps.clone()].as_chunks();
        let (frame, last_frame) = panel_arcs.addends.1[steps.clone()].as_chunks();
        let (center, last_center) = panel_arcs.center[steps].as_chunks();
        let last = last_hidden.iter_mut().zip(last_panel).zip(last_frame.iter().zip(last_center)).next();
        Self {
            hidden: hidden.iter_mut(),
            quantized: quantized.iter_mut(),
            panel: panel.iter(),
            frame: frame.iter(),
            center: center.iter(),
            last: last.map(|((hidden, panel), (&frame, &center))| (hidden, panel, frame, center)),
        }
    }

    /// Computes the next two steps; returns false if there are none.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
    fn compute_pair(&mut self) -> bool {
        let Self { hidden, quantized, panel, frame, center, .. } = self;
        let (Some([first_panel, second_panel]), Some([first_hidden, second_hidden])) =
            (panel.next(), hidden.next())
        else {
            return false;
        };
        let (Some(frame), Some(center), Some(quantized)) = (frame.next(), center.next(), quantized.next())
        else {
            return false;
        };
        let first = tanh_step(first_hidden, first_panel, frame[0], center[0]);
        let second = tanh_step(second_hidden, second_panel, frame[1], center[1]);
        for half in 0..REGISTERS {
            // The first step is in the low 16 bits of a word, the second in the high ones.
            let second = _mm512_slli_epi32::<16>(second[half]);
            let words = _mm512_mask_blend_epi16(HIGH_HALVES, first[half], second);
            store_full(&mut quantized[half], _mm512_castsi512_ps(words));
        }
        true
    }

    /// Computes all remaining steps.
    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
    fn finish(&mut self) {
        while self.compute_pair() {}
        if let (Some((hidden, panel, frame, center)), Some(quantized)) =
            (self.last.take(), self.quantized.next())
        {
            for (quantized, word) in quantized.iter_mut().zip(tanh_step(hidden, panel, frame, center)) {
                store_full(quantized, _mm512_castsi512_ps(_mm512_maskz_mov_epi16(!HIGH_HALVES, word)));
            }
        }
    }
}

/// Computes a step; the low 16 bits of the returned words are the quantized values.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
fn tanh_step(hidden: &mut PanelRow, panel: &PanelRow, frame: f32, center: f32) -> PerRegister<__m512i> {
    let (frame, center) = (_mm512_set1_ps(frame), _mm512_set1_ps(center));
    std::array::from_fn(|half| {
        let value = pair_lanes(load_full(&panel[half]), frame);
        store_full(&mut hidden[half], value);
        _mm512_castps_si512(_mm512_add_ps(value, center))
    })
}

/// Adds `Σ_k W D` of each state and label to a tile of integers.
///
/// With `overwrite`, the tile is replaced. tanh of the next piece is computed meanwhile, as the
/// divider is otherwise idle, and its addends after that are prefetched.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
fn add_estimates(
    quantized: &[PanelRow],
    weights: &[[i32; PANEL_COLUMNS]],
    tile: &mut [PanelRow; PANEL_COLUMNS],
    overwrite: bool,
    mut tanh: Option<&mut TanhPiece>,
    prefetch: Option<*const PanelRow>,
) {
    let mut overlapped = |pair: usize| {
        if let (0, Some(tanh)) = (pair % 2, &mut tanh) {
            tanh.compute_pair();
        }
    };
    // 32 states in groups whose sums fit the registers.
    add_integer_products::<10>(quantized, 0, weights, tile, overwrite, &mut overlapped);
    add_integer_products::<11>(quantized, 10, weights, tile, overwrite, &mut overlapped);
    add_integer_products::<11>(quantized, 21, weights, tile, overwrite, |pair| {
        if let Some(panel) = prefetch {
            // Two steps of 32 values have four cache lines.
            for line in 0..4 {
                let address = panel.cast::<[f32; LANES]>().wrapping_add(4 * pair + line);
                _mm_prefetch::<_MM_HINT_T0>(address.cast());
            }
        }
    });
}

/// Adds the integer products of `N` states from `first_state` on.
///
/// Calls `overlapped` for each pair of steps.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
fn add_integer_products<const N: usize>(
    quantized: &[PanelRow],
    first_state: usize,
    weights: &[[i32; PANEL_COLUMNS]],
    tile: &mut [PanelRow; PANEL_COLUMNS],
    overwrite: bool,
    mut overlapped: impl FnMut(usize),
) {
    let mut sums = [[_mm512_setzero_si512(); REGISTERS]; N];
    for (pair, (states, labels)) in quantized.iter().zip(weights).enumerate() {
        overlapped(pair);
        let labels = load_words(labels);
        let states: &[f32; N] =
            states.as_flattened()[first_state..].first_chunk().expect("a panel has N states");
        for (sums, &state) in sums.iter_mut().zip(states) {
            let state = _mm512_castps_si512(_mm512_set1_ps(state));
            for (sum, labels) in sums.iter_mut().zip(labels) {
                *sum = _mm512_dpwssd_epi32(*sum, state, labels);
            }
        }
    }
    for (tile, sums) in tile[first_state..].iter_mut().zip(sums) {
        for (tile, sum) in tile.iter_mut().zip(sums) {
            let before =
                if overwrite { _mm512_setzero_si512() } else { _mm512_castps_si512(load_full(tile)) };
            store_full(tile, _mm512_castsi512_ps(_mm512_add_epi32(before, sum)));
        }
    }
}

/// Turns integer sums into estimates with shifts; returns the thresholds.
///
/// The threshold of a label is its best estimate less the error bounds of two estimates.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
fn estimate_thresholds(
    tile: &mut [PanelRow; PANEL_COLUMNS],
    shifts: &[f32; PANEL_COLUMNS],
    scale: PerRegister<__m512>,
    margin: PerRegister<__m512>,
) -> PerRegister<__m512> {
    let min_finite = _mm512_set1_ps(f32::MIN);
    let magnitude = |shifts| {
        let finite = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(shifts, min_finite);
        _mm512_maskz_mov_ps(finite, _mm512_abs_ps(shifts))
    };
    let [first, second] = load_registers(shifts);
    let max_shift = _mm512_reduce_max_ps(_mm512_max_ps(magnitude(first), magnitude(second)));
    // Estimates could overflow near the largest number; then all states are candidates.
    let is_usable = max_shift <= f32::MAX / SCORE_HEADROOM as f32;
    let (scale, rounding_error) = if is_usable {
        (scale, max_shift * SUM_ERROR)
    } else {
        ([_mm512_setzero_ps(); REGISTERS], f32::INFINITY)
    };
    let mut max_estimates = [_mm512_set1_ps(f32::NEG_INFINITY); REGISTERS];
    for (tile, &shift) in tile.iter_mut().zip(shifts) {
        let shift = _mm512_set1_ps(shift);
        for half in 0..REGISTERS {
            let sum = _mm512_cvtepi32_ps(_mm512_castps_si512(load_full(&tile[half])));
            let estimate = _mm512_fmadd_ps(sum, scale[half], shift);
            max_estimates[half] = _mm512_max_ps(max_estimates[half], estimate);
            store_full(&mut tile[half], estimate);
        }
    }
    std::array::from_fn(|half| {
        let margin = _mm512_add_ps(margin[half], _mm512_set1_ps(rounding_error));
        // Excludes unreachable states, whose estimate is -inf.
        _mm512_max_ps(_mm512_sub_ps(max_estimates[half], margin), min_finite)
    })
}

/// States that may be the best of a label.
struct Candidates {
    /// The first candidate of each label that has one.
    first_states: PerRegister<__m512i>,
    has_candidate: PerRegister<__mmask16>,
    /// Number of further candidates; the first 16 of them are listed by label and state.
    other_count: usize,
    other_labels: [i32; LANES],
    other_states: [i32; LANES],
}

/// Selects the states whose estimates reach the thresholds.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
fn select_candidates(
    tile: &[PanelRow; PANEL_COLUMNS],
    thresholds: PerRegister<__m512>,
    labels: u32,
) -> Candidates {
    let mut first_states = [_mm512_setzero_si512(); REGISTERS];
    // Labels that have a candidate.
    let (mut labels_with_candidate, mut other_count) = (0, 0);
    let (mut other_labels, mut other_states) = ([0; LANES], [0; LANES]);
    for (state, tile) in tile.iter().enumerate() {
        let reaches =
            |half: usize| _mm512_cmp_ps_mask::<_CMP_GE_OQ>(load_full(&tile[half]), thresholds[half]);
        let reaching = (u32::from(reaches(0)) | u32::from(reaches(1)) << LANES) & labels;
        let [low, high] = mask_halves(reaching & !labels_with_candidate);
        let index = _mm512_set1_epi32(state as i32);
        first_states[0] = _mm512_mask_mov_epi32(first_states[0], low, index);
        first_states[1] = _mm512_mask_mov_epi32(first_states[1], high, index);
        let mut repeated = reaching & labels_with_candidate;
        while repeated != 0 {
            if other_count < LANES {
                (other_labels[other_count], other_states[other_count]) =
                    (repeated.trailing_zeros() as i32, state as i32);
            }
            other_count += 1;
            repeated &= repeated - 1;
        }
        labels_with_candidate |= reaching;
    }
    Candidates {
        first_states,
        has_candidate: mask_halves(labels_with_candidate),
        other_count,
        other_labels,
        other_states,
    }
}

/// Splits a mask of 32 labels into the masks of two registers.
fn mask_halves(mask: u32) -> PerRegister<__mmask16> {
    [mask as u16, (mask >> LANES) as u16]
}

/// Scores of a panel without biases and shifts.
struct PanelSums {
    /// Of the first candidate of each label.
    first: PerRegister<__m512>,
    /// Of the other candidates.
    others: __m512,
    /// Of the blank, for all states.
    blank: PerRegister<__m512>,
}

/// Computes `Σ_k w h` of candidates and blank, each in one chain.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
fn exact_scores<const N: usize, const WITH_OTHERS: bool, const WITH_BLANK: bool>(
    hidden: [&[PanelRow]; N],
    weights: &[PanelRow],
    blank: &[f32],
    candidates: &[Candidates; N],
) -> [PanelSums; N] {
    let zero = _mm512_setzero_ps();
    let mut first_sums = [[zero; REGISTERS]; N];
    let mut other_sums = [zero; N];
    let mut blank_sums = [[zero; REGISTERS]; N];
    let states: [PerRegister<__m512i>; N] = std::array::from_fn(|panel| candidates[panel].first_states);
    let other_labels: [__m512i; N] = std::array::from_fn(|panel| load_word(&candidates[panel].other_labels));
    let other_states: [__m512i; N] = std::array::from_fn(|panel| load_word(&candidates[panel].other_states));
    let mut hidden = hidden.map(|hidden| hidden.iter());
    for (step, weights) in weights.iter().enumerate() {
        let weights: PerRegister<__m512> = std::array::from_fn(|half| load_full(&weights[half]));
        for panel in 0..N {
            let hidden = hidden[panel].next().expect("tanh values of each step");
            let hidden: PerRegister<__m512> = std::array::from_fn(|half| load_full(&hidden[half]));
            for half in 0..REGISTERS {
                let hidden = _mm512_permutex2var_ps(hidden[0], states[panel][half], hidden[1]);
                first_sums[panel][half] = _mm512_fmadd_ps(weights[half], hidden, first_sums[panel][half]);
            }
            if WITH_OTHERS {
                let weights = _mm512_permutex2var_ps(weights[0], other_labels[panel], weights[1]);
                let hidden = _mm512_permutex2var_ps(hidden[0], other_states[panel], hidden[1]);
                other_sums[panel] = _mm512_fmadd_ps(weights, hidden, other_sums[panel]);
            }
            if WITH_BLANK {
                let weight = _mm512_set1_ps(blank[step]);
                for (sum, hidden) in blank_sums[panel].iter_mut().zip(hidden) {
                    *sum = _mm512_fmadd_ps(weight, hidden, *sum);
                }
            }
        }
    }
    std::array::from_fn(|panel| PanelSums {
        first: first_sums[panel],
        others: other_sums[panel],
        blank: blank_sums[panel],
    })
}

/// Search for the best arcs into a block of labels.
struct LabelSearch<'a, 'b> {
    panel_arcs: &'a PanelArcs<'b, f32>,
    block: &'a LabelBlock<f32>,
    first_label: usize,
    best: &'a mut [f32],
    from: &'a mut [u32],
}

impl LabelSearch<'_, '_> {
    /// Merges the first candidate of each label.
    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
    fn update_first(&mut self, candidates: &Candidates, sums: PerRegister<__m512>) {
        let (shifts, arcs) = (
            load_registers(&self.panel_arcs.shifts),
            load_words(&self.panel_arcs.first_arcs.map(|arc| arc as i32)),
        );
        for (half, state) in candidates.first_states.into_iter().enumerate() {
            let shift = _mm512_permutex2var_ps(shifts[0], state, shifts[1]);
            let arc = _mm512_permutex2var_epi32(arcs[0], state, arcs[1]);
            self.merge(half, candidates.has_candidate[half], sums[half], shift, arc);
        }
    }

    /// Merges the other candidates one by one.
    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
    fn update_others(&mut self, candidates: &Candidates, sums: __m512) {
        let mut values = [0.0; LANES];
        store_full(&mut values, sums);
        let pairs = candidates.other_labels.iter().zip(&candidates.other_states).take(candidates.other_count);
        for ((&label, &state), sum) in pairs.zip(values) {
            let (label, state) = (label as usize, state as usize);
            let weight = self.block.bias[label] + sum + self.panel_arcs.shifts[state];
            let arc = self.panel_arcs.first_arcs[state] + (self.first_label + label + 1) as u32;
            let (best, from) = (&mut self.best[label], &mut self.from[label]);
            if weight > *best || weight == *best && arc < *from {
                (*best, *from) = (weight, arc);
            }
        }
    }

    /// Merges all states, where there are too many candidates.
    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
    fn update_from_all_states(&mut self, hidden: &[PanelRow], weights: &[PanelRow]) {
        for first_state in (0..PANEL_COLUMNS).step_by(STATES_PER_PASS) {
            let mut sums = [[_mm512_setzero_ps(); REGISTERS]; STATES_PER_PASS];
            for (hidden, weights) in hidden.iter().zip(weights) {
                let states: &[f32; STATES_PER_PASS] =
                    hidden.as_flattened()[first_state..].first_chunk().expect("a panel has all states");
                for (sums, &state) in sums.iter_mut().zip(states) {
                    for (sum, weights) in sums.iter_mut().zip(weights) {
                        *sum = _mm512_fmadd_ps(load_full(weights), _mm512_set1_ps(state), *sum);
                    }
                }
            }
            for (state, sums) in (first_state..)
                .zip(sums)
                .filter(|(state, _)| self.panel_arcs.shifts[*state] > f32::NEG_INFINITY)
            {
                let shift = _mm512_set1_ps(self.panel_arcs.shifts[state]);
                let arc = _mm512_set1_epi32(self.panel_arcs.first_arcs[state] as i32);
                sums.into_iter().enumerate().for_each(|(half, sums)| self.merge(half, !0, sums, shift, arc));
            }
        }
    }

    /// Merges arcs into half of the destinations: larger weights win, then lower arc ids.
    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
    fn merge(&mut self, half: usize, valid: __mmask16, sums: __m512, shift: __m512, first_arc: __m512i) {
        let start = self.best.len().min(half * LANES);
        let end = self.best.len().min(start + LANES);
        let weight = _mm512_add_ps(_mm512_add_ps(load_registers(&self.block.bias)[half], sums), shift);
        let first_label = _mm512_set1_epi32((self.first_label + half * LANES + 1) as i32);
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let arc = _mm512_add_epi32(first_arc, _mm512_add_epi32(first_label, lanes));
        let (best, from) = (&mut self.best[start..end], &mut self.from[start..end]);
        let valid = valid & lane_mask(best.len());
        // SAFETY: the mask contains only lanes that have an element in both slices.
        unsafe {
            let old = _mm512_maskz_loadu_ps(valid, best.as_ptr());
            let old_arc = _mm512_maskz_loadu_epi32(valid, from.as_ptr().cast());
            let better = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(weight, old);
            let same = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(weight, old);
            let wins = valid & (better | (same & _mm512_cmplt_epu32_mask(arc, old_arc)));
            _mm512_mask_storeu_ps(best.as_mut_ptr(), wins, weight);
            _mm512_mask_storeu_epi32(from.as_mut_ptr().cast(), wins, arc);
        }
    }
}

/// Writes the scores of the blank.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
fn write_blank(blank: &mut [f32; PANEL_COLUMNS], sums: PerRegister<__m512>, bias: f32) {
    for (blank, sum) in blank.as_chunks_mut().0.iter_mut().zip(sums) {
        store_full(blank, _mm512_add_ps(_mm512_set1_ps(bias), sum));
    }
}

/// Divides values into the rows of a panel.
fn panel_rows(values: &[f32]) -> &[PanelRow] {
    values.as_chunks().0.as_chunks().0
}

/// Divides mutable values into the rows of a panel.
fn panel_rows_mut(values: &mut [f32]) -> &mut [PanelRow] {
    values.as_chunks_mut().0.as_chunks_mut().0
}

#[target_feature(enable = "avx512f")]
fn load_registers(values: &[f32; PANEL_COLUMNS]) -> PerRegister<__m512> {
    let halves = values.as_chunks().0;
    std::array::from_fn(|half| load_full(&halves[half]))
}

#[target_feature(enable = "avx512f")]
fn load_words(values: &[i32; PANEL_COLUMNS]) -> PerRegister<__m512i> {
    let halves = values.as_chunks().0;
    std::array::from_fn(|half| load_word(&halves[half]))
}

#[target_feature(enable = "avx512f")]
fn load_word(row: &[i32; LANES]) -> __m512i {
    // SAFETY: the array has as many elements as the register.
    unsafe { _mm512_loadu_si512(row.as_ptr().cast()) }
}
