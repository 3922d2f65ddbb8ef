//! Optimized recursions of a recognition lattice over one frame.
//!
//! They are forward, backward and Viterbi, which `denominator.rs` and `best_path.rs` call frame by
//! frame. p, q: context states; y: label; α, β: log-sums over the paths to and from a context
//! state; a_i: α after i labels in the frame; b, l: weights of blank and label arcs; mB, mL:
//! marginals of these arcs; γ: marginals of states; Z: log-sum of the frame; K: largest number of
//! labels of a frame; δ(p,y): target state. Primes: after the frame.
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

use crate::{AlignmentLattice, Arcs, ArcsMut, Context, arc_targets::ArcTargets};

/// The transition of one frame in a context.
pub(crate) struct FrameStep<'a> {
    alignment: AlignmentLattice,
    targets: ArcTargets<'a>,
    /// Whether weights may be NaN.
    may_be_nan: bool,
}

/// Backpointers of one frame.
pub(crate) struct FrameBackpointers<'a> {
    /// Number of the best arc to each state: `p V + y` for label y from state p, 0 for a blank.
    ///
    /// They are *C* for each alignment state but the first, or for the only one.
    pub best_arcs: &'a mut [u32],
    /// Number of labels of the frame, by context state after it; empty if labels end the frame.
    pub label_counts: &'a mut [u32],
}

/// Scratch memory of the steps of an utterance.
#[derive(Default)]
pub(crate) struct StepScratch<F> {
    /// `a_1 ..`, *K x C*; also `a_1` of one label.
    levels: Vec<F>,
    /// Values that are added to all arcs from a state, *C*.
    shifts: Vec<F>,
    /// Largest term of each target state, *C*.
    max: Vec<F>,
    /// Sums of each state, *C*.
    sums: Vec<F>,
    /// Marginals summed over alignment states, *C x V*.
    label_arcs: Vec<F>,
    /// Marginals of blanks in one alignment state, *C*.
    blank: Vec<F>,
}

impl<F: Real> StepScratch<F> {
    /// Allocated memory.
    pub(crate) fn allocated(&self) -> ScratchReq {
        let Self { levels, shifts, max, sums, label_arcs, blank } = self;
        let buffers = [levels, shifts, max, sums, label_arcs, blank];
        ScratchReq::new::<F>(buffers.map(Vec::capacity).iter().sum())
    }

    /// Memory for a lattice.
    pub(crate) fn scratch(context: &dyn Context, alignment: AlignmentLattice) -> ScratchReq {
        let (c, v) = (context.states(), context.vocabulary());
        let labels = alignment.expansions().unwrap_or(0);
        let arcs = if labels > 1 { 2 * c * v } else { 0 };
        ScratchReq::new::<F>(c * (labels + 4) + arcs)
    }
}

/// Resizes a buffer to `len` elements with arbitrary values.
fn resize<F: Real>(buffer: &mut Vec<F>, len: usize) -> &mut [F] {
    kernels::ensure_len(buffer, len, F::ZERO);
    &mut buffer[..len]
}

/// Subtracts the largest value, if there is one, and returns it.
fn subtract_own_max<F: Real>(values: &mut [F]) -> F {
    subtract_max(values, values.iter().fold(F::NEG_INFINITY, |max, &x| if x > max { x } else { max }))
}

/// Subtracts the largest value `max`, if there is one, and returns it.
pub(crate) fn subtract_max<F: Real>(values: &mut [F], max: F) -> F {
    if max == F::NEG_INFINITY || max > F::MAX {
        return if max > F::MAX { max } else { F::ZERO };
    }
    values.iter_mut().for_each(|x| *x = *x - max);
    max
}

/// Returns `log Σ exp`, in f64.
pub(crate) fn log_sum<F: Real>(values: &[F]) -> f64 {
    let max = values.iter().fold(f64::NEG_INFINITY, |max, x| max.max(x.to_f64()));
    if max == f64::NEG_INFINITY && !values.iter().any(|x| x.to_f64().is_nan()) {
        return max;
    }
    max + values.iter().map(|x| (x.to_f64() - max).exp()).sum::<f64>().ln()
}

impl<'a> FrameStep<'a> {
    /// Prepares the steps of a lattice, whose weights are checked.
    pub(crate) fn new(context: &'a dyn Context, alignment: AlignmentLattice) -> Self {
        Self { alignment, targets: ArcTargets::new(context), may_be_nan: false }
    }

    /// Marks the weights as unchecked: they may be NaN.
    pub(crate) fn with_unchecked_weights(self) -> Self {
        Self { may_be_nan: true, ..self }
    }

    /// Returns true if weights may be NaN.
    pub(crate) fn may_be_nan(&self) -> bool {
        self.may_be_nan
    }

    /// The alignment lattice.
    pub(crate) fn alignment(&self) -> AlignmentLattice {
        self.alignment
    }

    /// The context.
    pub(crate) fn context(&self) -> &'a dyn Context {
        self.targets.context()
    }

    /// First target state of each source state, if all have runs.
    ///
    /// None if a frame may have several labels.
    pub(crate) fn runs(&self) -> Option<&[u32]> {
        if self.alignment.expansions().is_none() { self.targets.runs() } else { None }
    }

    /// Sets `α` at the start: 1̄ in the start state, 0̄ elsewhere.
    pub(crate) fn start<F: Real>(&self, alpha: &mut [F]) {
        alpha.fill(F::NEG_INFINITY);
        alpha[self.context().start()] = F::ZERO;
    }

    /// Computes `α' - max α'` from `α`; returns the maximum, 0 if there is none.
    pub(crate) fn forward<F: Real>(
        &self,
        scratch: &mut StepScratch<F>,
        Arcs { blank, labels: label_arcs }: Arcs<F>,
        alpha: &[F],
        next: &mut [F],
    ) -> F {
        match self.alignment.expansions() {
            None => {
                // The blank, and the log-sum of the label arcs.
                next.iter_mut().zip(alpha.iter().zip(blank)).for_each(|(n, (&a, &b))| *n = a + b);
                let max = resize(&mut scratch.max, next.len());
                max.copy_from_slice(next);
                self.targets.scatter_max(label_arcs, alpha, max);
                self.log_add_arcs(label_arcs, alpha, max, next);
            }
            Some(labels) => {
                // Log-sum over all levels, and then the blanks.
                self.write_levels(scratch, label_arcs, alpha);
                let StepScratch { levels, max, sums, .. } = scratch;
                let levels = &levels[..labels * alpha.len()];
                let rows = || std::iter::once(alpha).chain(levels.chunks_exact(alpha.len()));
                let max = resize(max, alpha.len());
                max.copy_from_slice(alpha);
                for row in rows().skip(1) {
                    max.iter_mut().zip(row).for_each(|(m, &a)| *m = if a > *m { a } else { *m });
                }
                replace_neg_infinity(max);
                let terms = resize(sums, alpha.len());
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
        subtract_own_max(next)
    }

    /// Computes `next = log(exp next + Σ exp(shifts + l))`; `max` is the largest of all terms.
    fn log_add_arcs<F: Real>(&self, label_arcs: &[F], shifts: &[F], max: &mut [F], next: &mut [F]) {
        replace_neg_infinity(max);
        next.iter_mut().zip(&*max).for_each(|(n, &m)| *n = *n - m);
        exp(next);
        self.targets.scatter_exp_sum(label_arcs, shifts, max, next);
        ln(next);
        kernels::add(next, max);
    }

    /// Writes `a_1 .. a_K`.
    fn write_levels<F: Real>(&self, scratch: &mut StepScratch<F>, label_arcs: &[F], alpha: &[F]) {
        let labels = self.alignment.expansions().unwrap_or(0);
        let StepScratch { levels, max, .. } = scratch;
        let levels = resize(levels, labels * alpha.len());
        for i in 0..labels {
            let (before, after) = levels.split_at_mut(i * alpha.len());
            let (level, next_level) =
                (before.rchunks_exact(alpha.len()).next().unwrap_or(alpha), &mut after[..alpha.len()]);
            let max = resize(max, alpha.len());
            max.fill(F::NEG_INFINITY);
            next_level.fill(F::NEG_INFINITY);
            self.targets.scatter_max(label_arcs, level, max);
            self.log_add_arcs(label_arcs, level, max, next_level);
        }
    }

    /// Replaces weights by marginals, and `β` by its earlier value.
    ///
    /// `alpha` is `α` before the frame, `offset` the result of [`forward`](Self::forward). Returns
    /// the sum of the posteriors of the states: 1 up to rounding, and 0 without a path.
    pub(crate) fn backward<F: Real>(
        &self,
        scratch: &mut StepScratch<F>,
        ArcsMut { blank, labels: label_arcs }: ArcsMut<F>,
        alpha: &[F],
        offset: F,
        beta: &mut [F],
    ) -> f64 {
        let Some(labels) = self.alignment.expansions() else {
            let StepScratch { shifts, sums, .. } = scratch;
            let (shifts, sums) = (resize(shifts, alpha.len()), resize(sums, alpha.len()));
            shifts.iter_mut().zip(alpha).for_each(|(s, &a)| *s = a - offset);
            blank.iter_mut().zip(shifts.iter().zip(&*beta)).for_each(|(b, (&s, &beta))| *b = *b + s + beta);
            exp(blank);
            self.targets.gather_exp(label_arcs, shifts, beta, sums);
            kernels::add(sums, blank);
            return finish_beta(sums, alpha, beta);
        };
        // Levels of α, and buffers.
        self.write_levels(scratch, label_arcs, alpha);
        let StepScratch {
            levels,
            shifts,
            sums,
            label_arcs: arc_marginals,
            blank: blank_marginals,
            max: ends,
            ..
        } = scratch;
        let levels = &levels[..labels * alpha.len()];
        let (shifts, sums) = (resize(shifts, alpha.len()), resize(sums, alpha.len()));
        // `β` after the frame plus the blank: the end of all alignment states.
        let ends = resize(ends, alpha.len());
        ends.iter_mut().zip(blank.iter().zip(&*beta)).for_each(|(e, (&b, &beta))| *e = b + beta - offset);
        let has_several_labels = labels > 1;
        let arcs = if has_several_labels { label_arcs.len() } else { 0 };
        let (arcs, marginal_sums) = resize(arc_marginals, 2 * arcs).split_at_mut(arcs);
        marginal_sums.fill(F::ZERO);
        let blank_marginals = resize(blank_marginals, alpha.len());
        blank.fill(F::ZERO);
        // Alignment states, last first.
        let mut total = 0.0;
        for state in (0..=labels).rev() {
            let a = if state == 0 { alpha } else { &levels[(state - 1) * alpha.len()..][..alpha.len()] };
            blank_marginals.iter_mut().zip(a.iter().zip(&*ends)).for_each(|(m, (&a, &e))| *m = a + e);
            exp(blank_marginals);
            kernels::add(blank, blank_marginals);
            if state == labels {
                sums.fill(F::ZERO);
            } else {
                // `β` inside the frame already has the offset subtracted.
                shifts.copy_from_slice(a);
                if has_several_labels {
                    arcs.copy_from_slice(label_arcs);
                    self.targets.gather_exp(arcs, shifts, beta, sums);
                    kernels::add(marginal_sums, arcs);
                } else {
                    self.targets.gather_exp(label_arcs, shifts, beta, sums);
                }
            }
            kernels::add(sums, blank_marginals);
            match state {
                0 => total = finish_beta(sums, alpha, beta),
                _ => log_ratio(sums, a, beta),
            }
        }
        match labels {
            0 => label_arcs.fill(F::ZERO),
            1 => {}
            _ => label_arcs.copy_from_slice(marginal_sums),
        }
        // Every path has one blank in the frame. A common error of all arcs of a frame would
        // accumulate over frames.
        let blanks: f64 = blank.iter().map(|x| x.to_f64()).sum();
        if blanks > 0.0 {
            let scale = F::from_f64(1.0 / blanks);
            blank.iter_mut().chain(label_arcs).for_each(|x| *x *= scale);
        }
        total
    }

    /// Finds the best arc to each state.
    ///
    /// Computes `α' - max α'` and the backpointers; returns the maximum.
    pub(crate) fn viterbi<F: Real>(
        &self,
        scratch: &mut StepScratch<F>,
        Arcs { blank, labels: label_arcs }: Arcs<F>,
        alpha: &[F],
        next: &mut [F],
        FrameBackpointers { best_arcs, label_counts }: FrameBackpointers,
    ) -> F {
        let has_nan = |arcs: &[F]| arcs.iter().any(|w| w.to_f64().is_nan());
        if self.may_be_nan && (has_nan(blank) || has_nan(label_arcs)) {
            // Comparisons would ignore NaN.
            return F::from_f64(f64::NAN);
        }
        let state_count = alpha.len();
        match self.alignment.expansions() {
            None => {
                next.iter_mut().zip(alpha.iter().zip(blank)).for_each(|(n, (&a, &b))| *n = a + b);
                best_arcs.fill(0);
                self.targets.scatter_argmax(label_arcs, alpha, next, best_arcs);
            }
            Some(labels) => {
                let levels = resize(&mut scratch.levels, labels * state_count);
                next.iter_mut().zip(alpha.iter().zip(blank)).for_each(|(n, (&a, &b))| *n = a + b);
                label_counts.fill(0);
                best_arcs.fill(0);
                for i in 0..labels {
                    // One more label, then a blank if that is better.
                    let (before, after) = levels.split_at_mut(i * state_count);
                    let (a, next_level) = (
                        before.rchunks_exact(state_count).next().unwrap_or(alpha),
                        &mut after[..state_count],
                    );
                    next_level.fill(F::NEG_INFINITY);
                    self.targets.scatter_argmax(
                        label_arcs,
                        a,
                        next_level,
                        &mut best_arcs[i * state_count..][..state_count],
                    );
                    for (q, (next, (&a, &b))) in next.iter_mut().zip(next_level.iter().zip(blank)).enumerate()
                    {
                        if a + b > *next {
                            (*next, label_counts[q]) = (a + b, i as u32 + 1);
                        }
                    }
                }
            }
        }
        subtract_own_max(next)
    }

    /// Number of backpointers and of label counts of a frame.
    pub(crate) fn backpointer_counts(&self) -> [usize; 2] {
        backpointer_counts(self.context(), self.alignment)
    }
}

/// Returns the numbers of backpointers and label counts per frame.
pub(crate) fn backpointer_counts(context: &dyn Context, alignment: AlignmentLattice) -> [usize; 2] {
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
        for (blank, label_arcs) in
            [([f32::NAN, 0.0, 0.0], [0.0; 6]), ([0.0; 3], [0.0, 0.0, 0.0, f32::NAN, 0.0, 0.0])]
        {
            let checked = FrameStep::new(&context, AlignmentLattice::FrameDependent);
            let unchecked =
                FrameStep::new(&context, AlignmentLattice::FrameDependent).with_unchecked_weights();
            for (step, may_hide) in [(checked, true), (unchecked, false)] {
                step.start(&mut alpha);
                let pointers = FrameBackpointers { best_arcs: &mut [0; 3], label_counts: &mut [] };
                let offset = step.viterbi(
                    &mut StepScratch::default(),
                    Arcs { blank: &blank, labels: &label_arcs },
                    &alpha,
                    &mut next,
                    pointers,
                );
                // Checked weights are not tested for NaN; that of the start's blank propagates in
                // any case.
                assert!(offset.is_nan() || may_hide);
            }
        }
    }
}
