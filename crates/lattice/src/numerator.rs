//! Paths of one string of labels: a chain of contexts beside the frames, two weights a site.
//!
//! ```text
//! α'[u] = log(exp(α[u] + B[t,u]) + exp(α[u-1] + L[t,u-1]))                     one label or a blank
//! a_0 = α      a_{i+1}[u+1] = a_i[u] + L[t,u]      α'[u] = B[t,u] + log Σ_i exp a_i[u]      K labels, then a blank
//! S = α_N[M]
//! ```
//! In f64, and exact in the length of a chain: there are few sites. Where no path goes all derivatives are 0.
use kernels::{Real, ScratchReq, items_mut, par_for};
use rnnt_dp::semiring::{Log, Semiring};

use crate::{
    AlignmentLattice, Arcs, ArcsMut, BoundWeights, Error, LabelChain, Labels, Result,
    context::{Context, walk_states},
    denominator::ADDS_UP,
    group::UtteranceGroup,
};

const NONE: f64 = f64::NEG_INFINITY;

/// The strings of a group and the adjoints of their arcs.
#[derive(Default)]
pub struct Numerator<F> {
    chains: Vec<Option<StringChain>>,
    /// Weights, then marginals, of each utterance: *N x (M + 1)* each.
    arcs: Vec<(Vec<F>, Vec<F>)>,
}

/// Contexts and labels of an utterance that has a path.
struct StringChain {
    states: Vec<usize>,
    labels: Vec<u32>,
}

impl<F: Real> Numerator<F> {
    /// Memory of arc weights.
    pub fn held(&self) -> ScratchReq {
        let arcs = self.arcs.iter().map(|(blank, lexical)| blank.capacity() + lexical.capacity());
        ScratchReq::new::<F>(arcs.sum())
    }

    /// `log S` of each utterance; what [`backward`](Self::backward) needs stays if it is `stored`.
    pub fn forward(
        &mut self,
        (context, alignment): (&dyn Context, AlignmentLattice),
        weights: &dyn BoundWeights<F>,
        group: &UtteranceGroup,
        labels: &Labels,
        stored: bool,
    ) -> Result<Vec<f64>> {
        self.set_arcs((context, alignment), weights, group, labels)?;
        let mut sums = vec![(NONE, None); group.len()];
        let chains = &self.chains;
        par_for((items_mut(&mut sums), items_mut(&mut self.arcs)), |at, (sum, (blank, lexical))| {
            if let Some(strings) = &chains[at] {
                let sites = group.of(at).len() * strings.states.len();
                let string =
                    StringLattice { alignment, frames: group.of(at).len(), positions: strings.states.len() };
                *sum = string.sum(&mut blank[..sites], &mut lexical[..sites], stored);
            }
        });
        for (utterance, &(_, wrong)) in group.utterances.clone().zip(&sums) {
            if let Some((frame, sum)) = wrong {
                return Err(Error::Precision { utterance, frame, sum });
            }
        }
        Ok(sums.into_iter().map(|(sum, _)| sum).collect())
    }

    /// Computes the arc weights along the strings of a group.
    pub fn set_arcs(
        &mut self,
        (context, alignment): (&dyn Context, AlignmentLattice),
        weights: &dyn BoundWeights<F>,
        group: &UtteranceGroup,
        labels: &Labels,
    ) -> Result<()> {
        self.chains.clear();
        self.arcs.resize_with(self.arcs.len().max(group.len()), Default::default);
        for (at, utterance) in group.utterances.clone().enumerate() {
            let labels =
                labels.of(utterance).filter(|labels| alignment.holds(group.of(at).len(), labels.len()));
            self.chains.push(match labels {
                None => None,
                Some(labels) => {
                    Some(StringChain { states: walk_states(context, labels)?, labels: labels.to_vec() })
                }
            });
            let Some(strings) = &self.chains[at] else { continue };
            let sites = group.of(at).len() * strings.states.len();
            let (blank, lexical) = &mut self.arcs[at];
            for arcs in [&mut *blank, &mut *lexical] {
                kernels::ensure_len(arcs, sites, F::ZERO);
            }
            let arcs = ArcsMut { blank: &mut blank[..sites], lexical: &mut lexical[..sites] };
            weights.forward_chain(group.of(at).start, strings.chain(), arcs)?;
        }
        Ok(())
    }

    /// Labels and arc weights of an utterance, if its frames hold its labels.
    pub fn string(&self, group: &UtteranceGroup, at: usize) -> Option<(&[u32], Arcs<'_, F>)> {
        let strings = self.chains[at].as_ref()?;
        let sites = group.of(at).len() * strings.states.len();
        let (blank, lexical) = &self.arcs[at];
        Some((&strings.labels, Arcs { blank: &blank[..sites], lexical: &lexical[..sites] }))
    }

    /// Propagates the marginals, times `cotangents`, to parameters and frames.
    pub fn backward(
        &mut self,
        weights: &mut dyn BoundWeights<F>,
        group: &UtteranceGroup,
        cotangents: &[f64],
    ) -> Result<()> {
        for (at, &cotangent) in cotangents.iter().enumerate() {
            let Some(strings) = &self.chains[at] else { continue };
            let sites = group.of(at).len() * strings.states.len();
            if cotangent == 0.0 || sites == 0 {
                continue;
            }
            let (blank, lexical) = &mut self.arcs[at];
            let (blank, lexical) = (&mut blank[..sites], &mut lexical[..sites]);
            let scale = F::from_f64(cotangent);
            blank.iter_mut().chain(&mut *lexical).for_each(|g| *g *= scale);
            weights.backward_chain(group.of(at).start, strings.chain(), Arcs { blank, lexical })?;
        }
        Ok(())
    }
}

impl StringChain {
    fn chain(&self) -> LabelChain<'_> {
        LabelChain { states: &self.states, labels: &self.labels }
    }
}

/// The lattice of one string.
struct StringLattice {
    alignment: AlignmentLattice,
    /// N
    frames: usize,
    /// M + 1
    positions: usize,
}

impl StringLattice {
    /// `log S`; puts marginals in the place of the weights if they are `wanted`. Also a frame whose
    /// marginals do not add up, and to what they do.
    fn sum<F: Real>(&self, blank: &mut [F], lexical: &mut [F], wanted: bool) -> (f64, Option<(usize, f64)>) {
        let Self { frames, positions, .. } = *self;
        let mut alpha = vec![NONE; (frames + 1) * positions];
        alpha[0] = 0.0;
        let mut room = vec![NONE; self.alignment.num_states() * positions];
        for t in 0..frames {
            let (before, after) = alpha[t * positions..].split_at_mut(positions);
            let arcs = (&blank[t * positions..][..positions], &lexical[t * positions..][..positions]);
            self.forward(before, arcs, &mut after[..positions], &mut room);
        }
        let sum = alpha[(frames + 1) * positions - 1];
        if !wanted {
            return (sum, None);
        }
        let mut beta = vec![NONE; positions];
        beta[positions - 1] = if sum.is_finite() { -sum } else { NONE };
        let mut wrong = None;
        for t in (0..frames).rev() {
            let arcs = (&mut blank[t * positions..][..positions], &mut lexical[t * positions..][..positions]);
            let (blank, lexical) = (&mut *arcs.0, &mut *arcs.1);
            self.backward(&alpha[t * positions..][..positions], (blank, lexical), &mut beta, &mut room);
            // A frame has one blank, or one arc.
            let lexical = if self.alignment.expansions().is_some() { &[] } else { &*arcs.1 };
            let all: f64 = arcs.0.iter().chain(lexical).map(|arc| arc.to_f64()).sum();
            if sum.is_finite() && !ADDS_UP.contains(&all) {
                wrong = Some((t, all));
            }
        }
        (sum, wrong)
    }

    fn forward<F: Real>(
        &self,
        alpha: &[f64],
        (blank, lexical): (&[F], &[F]),
        next: &mut [f64],
        room: &mut [f64],
    ) {
        let [b, l] = [blank, lexical].map(|arcs| |u: usize| arcs[u].to_f64());
        match self.alignment.expansions() {
            None => {
                next[0] = alpha[0] + b(0);
                for u in 1..alpha.len() {
                    next[u] = Log::plus(alpha[u] + b(u), alpha[u - 1] + l(u - 1));
                }
            }
            Some(labels) => {
                self.inside(alpha, lexical, room);
                next.fill(NONE);
                for a in room.chunks_exact(alpha.len()).take(labels + 1) {
                    next.iter_mut().zip(a).for_each(|(next, &a)| *next = Log::plus(*next, a));
                }
                next.iter_mut().enumerate().for_each(|(u, next)| *next += b(u));
            }
        }
    }

    /// `a_0 .. a_K`
    fn inside<F: Real>(&self, alpha: &[f64], lexical: &[F], room: &mut [f64]) {
        room[..alpha.len()].copy_from_slice(alpha);
        for i in 1..self.alignment.num_states() {
            let (before, after) = room[(i - 1) * alpha.len()..].split_at_mut(alpha.len());
            after[0] = NONE;
            (1..alpha.len()).for_each(|u| after[u] = before[u - 1] + lexical[u - 1].to_f64());
        }
    }

    /// `β` behind the frame less the sum, to that before it; marginals in the place of the weights.
    fn backward<F: Real>(
        &self,
        alpha: &[f64],
        (blank, lexical): (&mut [F], &mut [F]),
        beta: &mut [f64],
        room: &mut [f64],
    ) {
        let last = alpha.len() - 1;
        let exp = |log: f64| if log == NONE { 0.0 } else { log.exp() };
        match self.alignment.expansions() {
            None => {
                for u in 0..=last {
                    let stay = blank[u].to_f64() + beta[u];
                    let go = if u < last { lexical[u].to_f64() + beta[u + 1] } else { NONE };
                    blank[u] = F::from_f64(exp(alpha[u] + stay));
                    lexical[u] = F::from_f64(exp(alpha[u] + go));
                    beta[u] = Log::plus(stay, go);
                }
            }
            Some(labels) => {
                self.inside(alpha, lexical, room);
                let end: Vec<f64> = beta.iter().zip(&*blank).map(|(beta, b)| beta + b.to_f64()).collect();
                let weights: Vec<f64> = lexical.iter().map(|l| l.to_f64()).collect();
                let (mut of_blank, mut of_lexical) = (vec![0.0; last + 1], vec![0.0; last + 1]);
                for i in (0..=labels).rev() {
                    let a = &room[i * alpha.len()..][..alpha.len()];
                    for u in 0..=last {
                        of_blank[u] += exp(a[u] + end[u]);
                        let go = if i < labels && u < last { weights[u] + beta[u + 1] } else { NONE };
                        of_lexical[u] += exp(a[u] + go);
                        // Read before it is written: position u + 1 comes later.
                        beta[u] = Log::plus(end[u], go);
                    }
                }
                let write = |out: &mut [F], sums: Vec<f64>| {
                    out.iter_mut().zip(sums).for_each(|(out, sum)| *out = F::from_f64(sum));
                };
                write(blank, of_blank);
                write(lexical, of_lexical);
            }
        }
    }
}
