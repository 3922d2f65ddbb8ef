//! Optimized recursions over one frame: forward, backward and Viterbi.
//!
//! α, β: log-sums over the paths to and from context states p, q; a_i: α after i labels in the
//! frame; b, l: weights of blank and label arcs; mB, mL: marginals of these arcs; γ: marginals of
//! states; Z: log-sum of the frame; K: largest number of labels of a frame; δ(p,y): target state.
//!
//! ```text
//! forward     a_0 = α      a_{i+1}[q] = log Σ_{δ(p,y)=q} exp(a_i[p] + l[p,y])
//!             α'[q] = log(exp(α[q] + b[q]) + exp a_1[q])       one label or a blank
//!             α'[q] = b[q] + log Σ_{i<=K} exp a_i[q]           K labels, then a blank
//! backward    mB_i[p] = exp(a_i[p] + b[p] + β[p] - Z)
//!             mL_j[p,y] = exp(a_j[p] + l[p,y] + β_{j+1}[δ(p,y)] - Z)
//!             γ_j[p] = mB_j[p] + Σ_y mL_j[p,y]      β_j[p] = log γ_j[p] - a_j[p] + Z
//! ```
//! The maximum of `α` is 0; an offset of the frame holds the rest. `β` is scaled so that
//! `Σ_p exp(α[p] + β[p]) = 1` at each end of a frame. `Z` of a frame is then only the offset of the
//! frame, and numbers of the size of the whole sum are never added or subtracted.
use kernels::{Real, ScratchReq, exp, ln};

use crate::{AlignmentLattice, Context, arc_targets::ArcTargets};

/// The transition of one frame in a context.
pub struct FrameStep<'a> {
    alignment: AlignmentLattice,
    targets: ArcTargets<'a>,
    /// Whether weights may be NaN.
    may_be_nan: bool,
}

/// Scratch memory of the steps of an utterance.
#[derive(Default)]
pub struct StepScratch<F> {
    /// `a_1 ..`, *K x C*; also `a_1` of one label.
    inside: Vec<F>,
    shifts: Vec<F>,
    max: Vec<F>,
    sums: Vec<F>,
    /// Marginals summed over alignment states, *C x V*.
    lexical: Vec<F>,
    blank: Vec<F>,
}

impl<F: Real> StepScratch<F> {
    /// Allocated memory.
    pub fn allocated(&self) -> ScratchReq {
        let Self { inside, shifts, max, sums, lexical, blank } = self;
        let buffers = [inside, shifts, max, sums, lexical, blank];
        ScratchReq::new::<F>(buffers.map(Vec::capacity).iter().sum())
    }

    /// Memory for a lattice.
    pub fn scratch(context: &dyn Context, alignment: AlignmentLattice) -> ScratchReq {
        let (c, v) = (context.states(), context.vocabulary());
        let labels = alignment.expansions().unwrap_or(0);
        let arcs = if labels > 1 { 2 * c * v } else { 0 };
        ScratchReq::new::<F>(c * (labels + 4) + arcs)
    }
}

/// Resizes a buffer to `len` elements with arbitrary values.
fn resized<F: Real>(buffer: &mut Vec<F>, len: usize) -> &mut [F] {
    kernels::ensure_len(buffer, len, F::ZERO);
    &mut buffer[..len]
}

/// Subtracts the largest value, if there is one, and returns it.
fn center<F: Real>(values: &mut [F]) -> F {
    subtract_max(values, values.iter().fold(F::NEG_INFINITY, |top, &x| if x > top { x } else { top }))
}

/// Subtracts the largest value `top`, if there is one, and returns it.
pub fn subtract_max<F: Real>(values: &mut [F], top: F) -> F {
    if top == F::NEG_INFINITY || top > F::MAX {
        return if top > F::MAX { top } else { F::ZERO };
    }
    values.iter_mut().for_each(|x| *x = *x - top);
    top
}

/// Returns `log Σ exp`, in f64.
pub fn log_sum<F: Real>(values: &[F]) -> f64 {
    let top = values.iter().fold(f64::NEG_INFINITY, |top, x| top.max(x.to_f64()));
    if top == f64::NEG_INFINITY && !values.iter().any(|x| x.to_f64().is_nan()) {
        return top;
    }
    top + values.iter().map(|x| (x.to_f64() - top).exp()).sum::<f64>().ln()
}

impl<'a> FrameStep<'a> {
    pub fn new(context: &'a dyn Context, alignment: AlignmentLattice) -> Self {
        Self { alignment, targets: ArcTargets::new(context), may_be_nan: false }
    }

    /// Marks the weights as unchecked: they may be NaN.
    pub fn with_unchecked_weights(self) -> Self {
        Self { may_be_nan: true, ..self }
    }

    pub fn may_be_nan(&self) -> bool {
        self.may_be_nan
    }

    pub fn alignment(&self) -> AlignmentLattice {
        self.alignment
    }

    pub fn context(&self) -> &'a dyn Context {
        self.targets.context()
    }

    /// First target state of each source state, if all have runs.
    ///
    /// None if a frame may have several labels.
    pub fn runs(&self) -> Option<&[u32]> {
        if self.alignment.expansions().is_none() { self.targets.runs() } else { None }
    }

    /// Sets `α` at the start: 1̄ in the start state, 0̄ elsewhere.
    pub fn start<F: Real>(&self, alpha: &mut [F]) {
        alpha.fill(F::NEG_INFINITY);
        alpha[self.context().start()] = F::ZERO;
    }

    /// Computes `α' - max α'` from `α`; returns the maximum, 0 if there is none.
    pub fn forward<F: Real>(
        &self,
        scratch: &mut StepScratch<F>,
        (blank, lexical): (&[F], &[F]),
        alpha: &[F],
        next: &mut [F],
    ) -> F {
        match self.alignment.expansions() {
            None => {
                next.iter_mut().zip(alpha.iter().zip(blank)).for_each(|(n, (&a, &b))| *n = a + b);
                let max = resized(&mut scratch.max, next.len());
                max.copy_from_slice(next);
                self.targets.max(lexical, alpha, max);
                self.log_add_arcs(lexical, alpha, max, next);
            }
            Some(labels) => {
                self.write_levels(scratch, lexical, alpha);
                let StepScratch { inside, max, sums, .. } = scratch;
                let inside = &inside[..labels * alpha.len()];
                let rows = || std::iter::once(alpha).chain(inside.chunks_exact(alpha.len()));
                let max = resized(max, alpha.len());
                max.copy_from_slice(alpha);
                for row in rows().skip(1) {
                    max.iter_mut().zip(row).for_each(|(m, &a)| *m = if a > *m { a } else { *m });
                }
                replace_neg_infinity(max);
                let terms = resized(sums, alpha.len());
                next.fill(F::ZERO);
                for row in rows() {
                    terms.iter_mut().zip(row.iter().zip(&*max)).for_each(|(t, (&a, &m))| *t = a - m);
                    exp(terms);
                    kernels::add(next, terms);
                }
                ln(next);
                next.iter_mut().zip(max.iter().zip(blank)).for_each(|(n, (&m, &b))| *n = *n + m + b);
            }
        }
        center(next)
    }

    /// Computes `next = log(exp next + Σ exp(shifts + l))`; `max` is the largest of all terms.
    fn log_add_arcs<F: Real>(&self, lexical: &[F], shifts: &[F], max: &mut [F], next: &mut [F]) {
        replace_neg_infinity(max);
        next.iter_mut().zip(&*max).for_each(|(n, &m)| *n = *n - m);
        exp(next);
        self.targets.sum(lexical, shifts, max, next);
        ln(next);
        kernels::add(next, max);
    }

    /// Writes `a_1 .. a_K`.
    fn write_levels<F: Real>(&self, scratch: &mut StepScratch<F>, lexical: &[F], alpha: &[F]) {
        let labels = self.alignment.expansions().unwrap_or(0);
        let StepScratch { inside, max, .. } = scratch;
        let inside = resized(inside, labels * alpha.len());
        for i in 0..labels {
            let (before, after) = inside.split_at_mut(i * alpha.len());
            let (from, to) =
                (before.rchunks_exact(alpha.len()).next().unwrap_or(alpha), &mut after[..alpha.len()]);
            let max = resized(max, alpha.len());
            max.fill(F::NEG_INFINITY);
            to.fill(F::NEG_INFINITY);
            self.targets.max(lexical, from, max);
            self.log_add_arcs(lexical, from, max, to);
        }
    }

    /// Replaces weights by marginals, and `β` by its earlier value.
    ///
    /// `alpha` is `α` before the frame, `offset` the result of [`forward`](Self::forward). Returns
    /// the sum of the posteriors of the states: 1 up to rounding, and 0 without a path.
    pub fn backward<F: Real>(
        &self,
        scratch: &mut StepScratch<F>,
        (blank, lexical): (&mut [F], &mut [F]),
        alpha: &[F],
        offset: F,
        beta: &mut [F],
    ) -> f64 {
        let Some(labels) = self.alignment.expansions() else {
            let StepScratch { shifts, sums, .. } = scratch;
            let (shifts, sums) = (resized(shifts, alpha.len()), resized(sums, alpha.len()));
            shifts.iter_mut().zip(alpha).for_each(|(s, &a)| *s = a - offset);
            blank.iter_mut().zip(shifts.iter().zip(&*beta)).for_each(|(b, (&s, &beta))| *b = *b + s + beta);
            exp(blank);
            self.targets.backward(lexical, shifts, beta, sums);
            kernels::add(sums, blank);
            return finish_beta(sums, alpha, beta);
        };
        self.write_levels(scratch, lexical, alpha);
        let StepScratch {
            inside,
            shifts,
            sums,
            lexical: arc_marginals,
            blank: blank_marginals,
            max: ends,
            ..
        } = scratch;
        let inside = &inside[..labels * alpha.len()];
        let (shifts, sums) = (resized(shifts, alpha.len()), resized(sums, alpha.len()));
        // `β` after the frame plus the blank: the end of all alignment states.
        let ends = resized(ends, alpha.len());
        ends.iter_mut().zip(blank.iter().zip(&*beta)).for_each(|(e, (&b, &beta))| *e = b + beta - offset);
        let has_several_labels = labels > 1;
        let arcs = if has_several_labels { lexical.len() } else { 0 };
        let (arcs, marginal_sums) = resized(arc_marginals, 2 * arcs).split_at_mut(arcs);
        marginal_sums.fill(F::ZERO);
        let blank_marginals = resized(blank_marginals, alpha.len());
        blank.fill(F::ZERO);
        let mut total = 0.0;
        for state in (0..=labels).rev() {
            let a = if state == 0 { alpha } else { &inside[(state - 1) * alpha.len()..][..alpha.len()] };
            blank_marginals.iter_mut().zip(a.iter().zip(&*ends)).for_each(|(m, (&a, &e))| *m = a + e);
            exp(blank_marginals);
            kernels::add(blank, blank_marginals);
            if state == labels {
                sums.fill(F::ZERO);
            } else {
                // `β` inside the frame already has the offset subtracted.
                shifts.copy_from_slice(a);
                if has_several_labels {
                    arcs.copy_from_slice(lexical);
                    self.targets.backward(arcs, shifts, beta, sums);
                    kernels::add(marginal_sums, arcs);
                } else {
                    self.targets.backward(lexical, shifts, beta, sums);
                }
            }
            kernels::add(sums, blank_marginals);
            match state {
                0 => total = finish_beta(sums, alpha, beta),
                _ => log_ratio(sums, a, beta),
            }
        }
        match labels {
            0 => lexical.fill(F::ZERO),
            1 => {}
            _ => lexical.copy_from_slice(marginal_sums),
        }
        // Every path has one blank in the frame. A common error of all arcs of a frame would
        // accumulate over frames.
        let blanks: f64 = blank.iter().map(|x| x.to_f64()).sum();
        if blanks > 0.0 {
            let scale = F::from_f64(1.0 / blanks);
            blank.iter_mut().chain(lexical).for_each(|x| *x *= scale);
        }
        total
    }

    /// Finds the best arc to each state: computes `α' - max α'` and the backpointers; returns the
    /// maximum.
    ///
    /// `from` has the number of the best arc (0: a blank, no label), for each alignment state but
    /// the first, or for the only one. `count` is the number of labels of the frame.
    pub fn best<F: Real>(
        &self,
        scratch: &mut StepScratch<F>,
        (blank, lexical): (&[F], &[F]),
        alpha: &[F],
        next: &mut [F],
        (from, count): (&mut [u32], &mut [u32]),
    ) -> F {
        let has_nan = |arcs: &[F]| arcs.iter().any(|w| w.to_f64().is_nan());
        if self.may_be_nan && (has_nan(blank) || has_nan(lexical)) {
            // Comparisons would ignore NaN.
            return F::from_f64(f64::NAN);
        }
        let c = alpha.len();
        match self.alignment.expansions() {
            None => {
                next.iter_mut().zip(alpha.iter().zip(blank)).for_each(|(n, (&a, &b))| *n = a + b);
                from.fill(0);
                self.targets.best(lexical, alpha, next, from);
            }
            Some(labels) => {
                let inside = resized(&mut scratch.inside, labels * c);
                next.iter_mut().zip(alpha.iter().zip(blank)).for_each(|(n, (&a, &b))| *n = a + b);
                count.fill(0);
                from.fill(0);
                for i in 0..labels {
                    let (before, after) = inside.split_at_mut(i * c);
                    let (a, to) = (before.rchunks_exact(c).next().unwrap_or(alpha), &mut after[..c]);
                    to.fill(F::NEG_INFINITY);
                    self.targets.best(lexical, a, to, &mut from[i * c..][..c]);
                    for (q, (next, (&a, &b))) in next.iter_mut().zip(to.iter().zip(blank)).enumerate() {
                        if a + b > *next {
                            (*next, count[q]) = (a + b, i as u32 + 1);
                        }
                    }
                }
            }
        }
        center(next)
    }

    /// Number of backpointers and of label counts of a frame.
    pub fn backpointer_counts(&self) -> [usize; 2] {
        backpointer_counts(self.context(), self.alignment)
    }
}

/// Returns the numbers of backpointers and label counts per frame.
pub fn backpointer_counts(context: &dyn Context, alignment: AlignmentLattice) -> [usize; 2] {
    let c = context.states();
    alignment.expansions().map_or([c, 0], |labels| [labels * c, c])
}

/// Replaces -inf by 0, so that differences from it are defined.
fn replace_neg_infinity<F: Real>(max: &mut [F]) {
    max.iter_mut().for_each(|m| *m = if *m == F::NEG_INFINITY { F::ZERO } else { *m });
}

/// Computes `β = log γ - a`.
fn log_ratio<F: Real>(gamma: &mut [F], a: &[F], beta: &mut [F]) {
    ln(gamma);
    for ((beta, &log), &a) in beta.iter_mut().zip(&*gamma).zip(a) {
        *beta = if log == F::NEG_INFINITY { log } else { log - a };
    }
}

/// [`log_ratio`] at the start of a frame, after scaling `Σ γ` to 1; returns the sum before.
fn finish_beta<F: Real>(gamma: &mut [F], alpha: &[F], beta: &mut [F]) -> f64 {
    let total: f64 = gamma.iter().map(|x| x.to_f64()).sum();
    if total > 0.0 {
        let scale = F::from_f64(1.0 / total);
        gamma.iter_mut().for_each(|x| *x *= scale);
    }
    log_ratio(gamma, alpha, beta);
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FullNGram;

    #[test]
    fn best_paths_do_not_hide_nan_of_unchecked_weights() {
        let context = FullNGram::new(2, 1).unwrap();
        let (mut alpha, mut next) = ([0.0f32; 3], [0.0; 3]);
        for (blank, lexical) in
            [([f32::NAN, 0.0, 0.0], [0.0; 6]), ([0.0; 3], [0.0, 0.0, 0.0, f32::NAN, 0.0, 0.0])]
        {
            let checked = FrameStep::new(&context, AlignmentLattice::FrameDependent);
            let unchecked =
                FrameStep::new(&context, AlignmentLattice::FrameDependent).with_unchecked_weights();
            for (step, may_hide) in [(checked, true), (unchecked, false)] {
                step.start(&mut alpha);
                let pointers = (&mut [0; 3][..], &mut [][..]);
                let offset =
                    step.best(&mut StepScratch::default(), (&blank, &lexical), &alpha, &mut next, pointers);
                // Checked weights are not tested for NaN; that of the start's blank propagates in
                // any case.
                assert!(offset.is_nan() || may_hide);
            }
        }
    }
}
