//! One frame of a lattice in the log semiring, as fast as rows of weights can be read: forward beside backward.
//!
//! ```text
//! forward     a_0 = α      a_{i+1}[q] = log Σ_{δ(p,y)=q} exp(a_i[p] + l[p,y])
//!             α'[q] = log(exp(α[q] + b[q]) + exp a_1[q])                                one label or a blank
//!             α'[q] = b[q] + log Σ_{i<=K} exp a_i[q]                                    K labels, then a blank
//! backward    mB_i[p] = exp(a_i[p] + b[p] + β[p] - Z)
//!             mL_j[p,y] = exp(a_j[p] + l[p,y] + β_{j+1}[δ(p,y)] - Z)
//!             γ_j[p] = mB_j[p] + Σ_y mL_j[p,y]      β_j[p] = log γ_j[p] - a_j[p] + Z
//! ```
//! `α` comes and goes with its largest value 0, the rest of it an offset of the frame. `β` is scaled so that
//! `Σ_p exp(α[p] + β[p]) = 1` at each end of a frame; what `Z` is between two frames is then the offset of the frame alone, and
//! nothing of the size of the whole sum is ever added or taken away (the specification's section 12.6).
use kernels::{Real, ScratchReq, exp, ln};

use crate::{AlignmentLattice, Context, reach::Reach};

/// How frames go on in a context.
pub struct FrameStep<'a> {
    alignment: AlignmentLattice,
    reach: Reach<'a>,
    /// Whether weights may be NaN.
    unsure: bool,
}

/// What the steps of an utterance work in.
#[derive(Default)]
pub struct StepScratch<F> {
    /// `a_1 ..`, *K x C*; `a_1` of one label is here too.
    inside: Vec<F>,
    shifts: Vec<F>,
    max: Vec<F>,
    sums: Vec<F>,
    /// Marginals summed over states of the alignment, *C x V*.
    lexical: Vec<F>,
    blank: Vec<F>,
}

impl<F: Real> StepScratch<F> {
    /// Memory that it holds.
    pub fn held(&self) -> ScratchReq {
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

/// A slice of so many elements, whatever is in them.
fn room<F: Real>(buffer: &mut Vec<F>, len: usize) -> &mut [F] {
    kernels::ensure_len(buffer, len, F::ZERO);
    &mut buffer[..len]
}

/// Takes the largest value away, if there is one; returns it.
fn center<F: Real>(values: &mut [F]) -> F {
    take(values, values.iter().fold(F::NEG_INFINITY, |top, &x| if x > top { x } else { top }))
}

/// The same where the largest value is known.
pub fn take<F: Real>(values: &mut [F], top: F) -> F {
    if top == F::NEG_INFINITY || top > F::MAX {
        return if top > F::MAX { top } else { F::ZERO };
    }
    values.iter_mut().for_each(|x| *x = *x - top);
    top
}

/// `log Σ exp`, in f64.
pub fn log_sum<F: Real>(values: &[F]) -> f64 {
    let top = values.iter().fold(f64::NEG_INFINITY, |top, x| top.max(x.to_f64()));
    if top == f64::NEG_INFINITY && !values.iter().any(|x| x.to_f64().is_nan()) {
        return top;
    }
    top + values.iter().map(|x| (x.to_f64() - top).exp()).sum::<f64>().ln()
}

impl<'a> FrameStep<'a> {
    pub fn new(context: &'a dyn Context, alignment: AlignmentLattice) -> Self {
        Self { alignment, reach: Reach::new(context), unsure: false }
    }

    /// The same for weights that nobody looked at.
    pub fn unsure(self) -> Self {
        Self { unsure: true, ..self }
    }

    pub fn is_unsure(&self) -> bool {
        self.unsure
    }

    pub fn alignment(&self) -> AlignmentLattice {
        self.alignment
    }

    pub fn context(&self) -> &'a dyn Context {
        self.reach.context()
    }

    /// The first of the successive states that the labels from each state lead to, if they do and a frame has at most one label.
    pub fn runs(&self) -> Option<&[u32]> {
        if self.alignment.expansions().is_none() { self.reach.runs() } else { None }
    }

    /// `α` at the start: 1̄ there, 0̄ elsewhere.
    pub fn begin<F: Real>(&self, alpha: &mut [F]) {
        alpha.fill(F::NEG_INFINITY);
        alpha[self.context().start()] = F::ZERO;
    }

    /// `α' - max α'` from `α`; returns the maximum, 0 if there is none.
    pub fn forward<F: Real>(
        &self,
        room: &mut StepScratch<F>,
        (blank, lexical): (&[F], &[F]),
        alpha: &[F],
        next: &mut [F],
    ) -> F {
        match self.alignment.expansions() {
            None => {
                next.iter_mut().zip(alpha.iter().zip(blank)).for_each(|(n, (&a, &b))| *n = a + b);
                let max = self::room(&mut room.max, next.len());
                max.copy_from_slice(next);
                self.reach.max(lexical, alpha, max);
                self.finish(lexical, alpha, max, next);
            }
            Some(labels) => {
                self.inside(room, lexical, alpha);
                let StepScratch { inside, max, sums, .. } = room;
                let inside = &inside[..labels * alpha.len()];
                let rows = || std::iter::once(alpha).chain(inside.chunks_exact(alpha.len()));
                let max = self::room(max, alpha.len());
                max.copy_from_slice(alpha);
                for row in rows().skip(1) {
                    max.iter_mut().zip(row).for_each(|(m, &a)| *m = if a > *m { a } else { *m });
                }
                stand(max);
                let terms = self::room(sums, alpha.len());
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

    /// `next = log(exp next + Σ exp(shifts + l))`, `max` the largest of all.
    fn finish<F: Real>(&self, lexical: &[F], shifts: &[F], max: &mut [F], next: &mut [F]) {
        stand(max);
        next.iter_mut().zip(&*max).for_each(|(n, &m)| *n = *n - m);
        exp(next);
        self.reach.sum(lexical, shifts, max, next);
        ln(next);
        kernels::add(next, max);
    }

    /// `a_1 .. a_K`
    fn inside<F: Real>(&self, room: &mut StepScratch<F>, lexical: &[F], alpha: &[F]) {
        let labels = self.alignment.expansions().unwrap_or(0);
        let StepScratch { inside, max, .. } = room;
        let inside = self::room(inside, labels * alpha.len());
        for i in 0..labels {
            let (before, after) = inside.split_at_mut(i * alpha.len());
            let (from, to) =
                (before.rchunks_exact(alpha.len()).next().unwrap_or(alpha), &mut after[..alpha.len()]);
            let max = self::room(max, alpha.len());
            max.fill(F::NEG_INFINITY);
            to.fill(F::NEG_INFINITY);
            self.reach.max(lexical, from, max);
            self.finish(lexical, from, max, to);
        }
    }

    /// Marginals in the place of the weights, and `β` before the frame in the place of `β` behind it, from `α` before it.
    /// `offset` is what [`forward`](Self::forward) returned. Returns what the posteriors of the states add up to: 1, but for
    /// rounding, and 0 without a path.
    pub fn backward<F: Real>(
        &self,
        room: &mut StepScratch<F>,
        (blank, lexical): (&mut [F], &mut [F]),
        alpha: &[F],
        offset: F,
        beta: &mut [F],
    ) -> f64 {
        let Some(labels) = self.alignment.expansions() else {
            let StepScratch { shifts, sums, .. } = room;
            let (shifts, sums) = (self::room(shifts, alpha.len()), self::room(sums, alpha.len()));
            shifts.iter_mut().zip(alpha).for_each(|(s, &a)| *s = a - offset);
            blank.iter_mut().zip(shifts.iter().zip(&*beta)).for_each(|(b, (&s, &beta))| *b = *b + s + beta);
            exp(blank);
            self.reach.back(lexical, shifts, beta, sums);
            kernels::add(sums, blank);
            return leave(sums, alpha, beta);
        };
        self.inside(room, lexical, alpha);
        let StepScratch { inside, shifts, sums, lexical: of_arcs, blank: of_blank, max: behind, .. } = room;
        let inside = &inside[..labels * alpha.len()];
        let (shifts, sums) = (self::room(shifts, alpha.len()), self::room(sums, alpha.len()));
        // `β` behind the frame plus the blank: what all states of the alignment end with.
        let behind = self::room(behind, alpha.len());
        behind.iter_mut().zip(blank.iter().zip(&*beta)).for_each(|(e, (&b, &beta))| *e = b + beta - offset);
        let several = labels > 1;
        let arcs = if several { lexical.len() } else { 0 };
        let (arcs, all) = self::room(of_arcs, 2 * arcs).split_at_mut(arcs);
        all.fill(F::ZERO);
        let of_blank = self::room(of_blank, alpha.len());
        blank.fill(F::ZERO);
        let mut total = 0.0;
        for state in (0..=labels).rev() {
            let a = if state == 0 { alpha } else { &inside[(state - 1) * alpha.len()..][..alpha.len()] };
            of_blank.iter_mut().zip(a.iter().zip(&*behind)).for_each(|(m, (&a, &e))| *m = a + e);
            exp(of_blank);
            kernels::add(blank, of_blank);
            if state == labels {
                sums.fill(F::ZERO);
            } else {
                // `β` inside of the frame holds what the offset was taken from already.
                shifts.copy_from_slice(a);
                if several {
                    arcs.copy_from_slice(lexical);
                    self.reach.back(arcs, shifts, beta, sums);
                    kernels::add(all, arcs);
                } else {
                    self.reach.back(lexical, shifts, beta, sums);
                }
            }
            kernels::add(sums, of_blank);
            match state {
                0 => total = leave(sums, alpha, beta),
                _ => log_ratio(sums, a, beta),
            }
        }
        match labels {
            0 => lexical.fill(F::ZERO),
            1 => {}
            _ => lexical.copy_from_slice(all),
        }
        // Every path has one blank here. What all arcs of a frame are off by together would add up over frames.
        let blanks: f64 = blank.iter().map(|x| x.to_f64()).sum();
        if blanks > 0.0 {
            let scale = F::from_f64(1.0 / blanks);
            blank.iter_mut().chain(lexical).for_each(|x| *x *= scale);
        }
        total
    }

    /// The best of the arcs to each state: `α' - max α'`, and for each state of the alignment but the first, or for the one that
    /// there is, the number of the best arc (0: a blank, no label). `count` says after how many labels the frame ends.
    pub fn best<F: Real>(
        &self,
        room: &mut StepScratch<F>,
        (blank, lexical): (&[F], &[F]),
        alpha: &[F],
        next: &mut [F],
        (from, count): (&mut [u32], &mut [u32]),
    ) -> F {
        let nan = |arcs: &[F]| arcs.iter().any(|w| w.to_f64().is_nan());
        if self.unsure && (nan(blank) || nan(lexical)) {
            // Comparisons would hide it.
            return F::from_f64(f64::NAN);
        }
        let c = alpha.len();
        match self.alignment.expansions() {
            None => {
                next.iter_mut().zip(alpha.iter().zip(blank)).for_each(|(n, (&a, &b))| *n = a + b);
                from.fill(0);
                self.reach.best(lexical, alpha, next, from);
            }
            Some(labels) => {
                let inside = self::room(&mut room.inside, labels * c);
                next.iter_mut().zip(alpha.iter().zip(blank)).for_each(|(n, (&a, &b))| *n = a + b);
                count.fill(0);
                from.fill(0);
                for i in 0..labels {
                    let (before, after) = inside.split_at_mut(i * c);
                    let (a, to) = (before.rchunks_exact(c).next().unwrap_or(alpha), &mut after[..c]);
                    to.fill(F::NEG_INFINITY);
                    self.reach.best(lexical, a, to, &mut from[i * c..][..c]);
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

    /// Numbers that [`best`](Self::best) keeps of a frame.
    pub fn kept(&self) -> [usize; 2] {
        backpointers(self.context(), self.alignment)
    }
}

/// Numbers that the best paths of a frame are walked back by.
pub fn backpointers(context: &dyn Context, alignment: AlignmentLattice) -> [usize; 2] {
    let c = context.states();
    alignment.expansions().map_or([c, 0], |labels| [labels * c, c])
}

/// Something to measure from where nothing is: -inf becomes 0.
fn stand<F: Real>(max: &mut [F]) {
    max.iter_mut().for_each(|m| *m = if *m == F::NEG_INFINITY { F::ZERO } else { *m });
}

/// `β = log γ - a`
fn log_ratio<F: Real>(gamma: &mut [F], a: &[F], beta: &mut [F]) {
    ln(gamma);
    for ((beta, &log), &a) in beta.iter_mut().zip(&*gamma).zip(a) {
        *beta = if log == F::NEG_INFINITY { log } else { log - a };
    }
}

/// The same at the start of a frame, where `Σ γ = 1` is made to hold again; returns what it was.
fn leave<F: Real>(gamma: &mut [F], alpha: &[F], beta: &mut [F]) -> f64 {
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
    fn weights_that_nobody_looked_at_hide_no_nan_from_best_paths() {
        let context = FullNGram::new(2, 1).unwrap();
        let (mut alpha, mut next) = ([0.0f32; 3], [0.0; 3]);
        for (blank, lexical) in
            [([f32::NAN, 0.0, 0.0], [0.0; 6]), ([0.0; 3], [0.0, 0.0, 0.0, f32::NAN, 0.0, 0.0])]
        {
            let sure = FrameStep::new(&context, AlignmentLattice::FrameDependent);
            let unsure = FrameStep::new(&context, AlignmentLattice::FrameDependent).unsure();
            for (step, hidden) in [(sure, true), (unsure, false)] {
                step.begin(&mut alpha);
                let kept = (&mut [0; 3][..], &mut [][..]);
                let offset =
                    step.best(&mut StepScratch::default(), (&blank, &lexical), &alpha, &mut next, kept);
                // What is known to be sound is not looked at; the blank of the start is seen in any case.
                assert!(offset.is_nan() || hidden);
            }
        }
    }
}
