//! Locally normalized joint network of a lattice along one label string (chain).
//!
//! The selected normalizer of panda-core computes the log-probabilities of a few classes without
//! storing all V scores. A site is a frame t and a label position u. P, Q: projected states and
//! frames; c_u: context state after u labels; b: score of the blank; r: log-probability of the next
//! label among the labels; b', l': log-probabilities of the blank arc and of the label arc; gb, gl:
//! their adjoints; d: gradient; w0, c0: row and bias of the blank in the head;
//! H: width of h; V labels.
//!
//! ```text
//! sites (t, u)     h = tanh(P[c_u] + Q_t), computed on the fly
//! log softmax      head of 1 + V classes; the blank and the next label are selected
//! hat              head of V classes; the next label is selected: r;   b = h w0 + c0 separately:
//!                  b' = log σ(b)     l' = r + log σ(-b)     db = gb σ(-b) - gl σ(b)     dr = gl
//! ```
//! Sites are processed in groups, so that the memory of a call depends only on H, V and the budget.
//! Sites without adjoints are skipped.
use std::sync::Mutex;

use kernels::{Real, ScratchReq};
use panda_core::{
    Adjoints, BackwardInputs, Gradients, Head, Plan, Precision, Selection, Sites, Workspace, backward,
    forward,
};

use super::log_probabilities::{Normalize, log_sigmoid, sigmoid};
use crate::{
    Arcs, ArcsMut, BoundWeights, JointWeightFn, LabelChain, Parameters, Result,
    weight_fn::joint::{
        bound::BoundJoint,
        chain,
        projections::{JointSizes, Projections},
    },
};

/// Smallest number of sites of a group.
const MIN_GROUP_SITES: usize = 1 << 12;
/// Largest number of sites of a group.
const MAX_GROUP_SITES: usize = 1 << 15;

/// A bound joint network and its normalizer.
pub(super) struct SelectedNormalizer<'a, F: Real> {
    pub joint: BoundJoint<'a, F>,
    normalize: Normalize,
    budget: usize,
    /// One workspace for each concurrent call.
    workspaces: Mutex<Vec<Workspace<F>>>,
    /// Gradients of the normalizer's classes; empty before the first backward.
    ///
    /// *classes x H*.
    head_gradient: Vec<F>,
    /// Gradient of their biases, *classes*.
    bias_gradient: Vec<f64>,
}

/// Number of classes of the normalizer.
fn class_count(vocabulary: usize, normalize: Normalize) -> usize {
    match normalize {
        Normalize::Hat => vocabulary,
        Normalize::LogSoftmax => 1 + vocabulary,
    }
}

/// Number of selected classes of a site: the next label, and the blank if it is a class.
fn selected_count(normalize: Normalize) -> usize {
    match normalize {
        Normalize::Hat => 1,
        Normalize::LogSoftmax => 2,
    }
}

/// Sites of a group: half of the budget keeps their scores.
fn sites_per_group<F>(classes: usize, budget: usize) -> usize {
    (budget / 2 / (classes.max(1) * size_of::<F>())).clamp(MIN_GROUP_SITES, MAX_GROUP_SITES)
}

/// Memory that the normalizer allocates in addition to a joint network.
pub(super) fn scratch<F: panda_core::Real>(
    sizes: &JointSizes,
    normalize: Normalize,
    budget: usize,
) -> ScratchReq {
    let (classes, selected) = (class_count(sizes.vocabulary, normalize), selected_count(normalize));
    let sites = sites_per_group::<F>(classes, budget);
    let shape = panda_core::Shape { sites, hidden: sizes.hidden, classes, selected };
    let plan = Plan::<F>::new(shape, Precision::Full, budget, true);
    let plan = plan.unwrap_or_else(|_| Plan::minimal(shape, Precision::Full)).scratch(shape, Precision::Full);
    // Class, activity and adjoint of each selected class; hat scores its blanks before the labels.
    let selections = ScratchReq::new::<u32>(selected)
        .and(ScratchReq::new::<bool>(selected))
        .and(ScratchReq::new::<f64>(selected));
    let lists = ScratchReq::new::<usize>(1).and(selections.or(ScratchReq::new::<F>(2)));
    // The order of the sites of a wave by context, and a sum.
    let order = ScratchReq::new::<[usize; 2]>(sites).and(ScratchReq::new::<F>(sizes.hidden));
    let gradients = ScratchReq::new::<F>(sizes.hidden).and(ScratchReq::new::<f64>(1)).times(classes);
    ScratchReq::all_of([plan, lists.times(sites), order, gradients])
}

impl<'a, F: panda_core::Real> SelectedNormalizer<'a, F> {
    pub(super) fn new(
        joint: &JointWeightFn<'a, F>,
        normalize: Normalize,
        budget: usize,
        buffers: &mut Vec<Vec<F>>,
    ) -> Result<Self> {
        Ok(Self {
            joint: BoundJoint::new(*joint, buffers)?,
            normalize,
            budget,
            workspaces: Mutex::default(),
            head_gradient: Vec::new(),
            bias_gradient: Vec::new(),
        })
    }

    /// The classes of the normalizer among the rows of the joint's head.
    fn head(&self) -> Result<Head<'_, F>> {
        let Projections { head, bias, hidden: h, .. } = &self.joint.projections;
        let first_class = bias.len() - self.classes();
        Ok(Head::new(&head[first_class * h..], Some(&bias[first_class..]), *h)?)
    }

    /// Number of classes of the normalizer.
    fn classes(&self) -> usize {
        class_count(self.joint.projections.vocabulary, self.normalize)
    }

    /// Calls `work` with a workspace that no other call uses.
    fn with_workspace<T>(&self, work: impl FnOnce(&mut Workspace<F>) -> T) -> T {
        let lock = || self.workspaces.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut workspace = lock().pop().unwrap_or_else(|| Workspace::new(self.budget, true));
        let result = work(&mut workspace);
        lock().push(workspace);
        result
    }

    /// Calls `work` for each group of some sites.
    fn for_each_group(
        &self,
        sites: impl Iterator<Item = usize> + Clone,
        mut work: impl FnMut(&[usize]) -> Result<()>,
    ) -> Result<()> {
        let count = sites.clone().count();
        let max_group_size = sites_per_group::<F>(self.classes(), self.budget);
        let group_size = count.div_ceil(count.div_ceil(max_group_size).max(1));
        let (mut sites, mut group) = (sites, Vec::with_capacity(group_size));
        loop {
            group.clear();
            group.extend(sites.by_ref().take(group_size));
            if group.is_empty() {
                return Ok(());
            }
            work(&group)?;
        }
    }

    /// Returns the classes that the sites of a group select.
    fn selection(&self, chain: LabelChain, sites: &[usize]) -> Result<Selection> {
        let per_site = selected_count(self.normalize);
        let (mut ids, mut active) = (Vec::new(), Vec::new());
        ids.reserve_exact(sites.len() * per_site);
        active.reserve_exact(sites.len() * per_site);
        for &site in sites {
            let label = next_label(chain, site);
            match self.normalize {
                Normalize::Hat => ids.push(label.map_or(0, |label| label - 1)),
                Normalize::LogSoftmax => {
                    ids.extend([0, label.unwrap_or_default()]);
                    active.push(true);
                }
            }
            active.push(label.is_some());
        }
        Ok(Selection::new(ids, active, per_site)?)
    }

    /// Computes both log-probabilities of all sites.
    pub(super) fn forward(&self, first_frame: usize, chain: LabelChain, arcs: ArcsMut<F>) -> Result<()> {
        let ArcsMut { blank, labels: label_arcs } = arcs;
        let all_sites = 0..blank.len();
        let head = self.head()?;
        self.with_workspace(|workspace| match self.normalize {
            Normalize::Hat => {
                let arcs = ArcsMut { blank: &mut *blank, labels: &mut *label_arcs };
                chain::forward(&self.joint.projections, first_frame, chain, arcs);
                self.for_each_group(all_sites.filter(|&site| next_label(chain, site).is_some()), |sites| {
                    let selection = self.selection(chain, sites)?;
                    let normalized =
                        forward(&self.chain_sites(first_frame, chain, sites), &head, &selection, workspace)?;
                    for (&site, &emission) in sites.iter().zip(&normalized.emissions) {
                        label_arcs[site] = F::from_f64(emission + log_sigmoid(-blank[site].to_f64()));
                    }
                    workspace.recycle(normalized);
                    Ok(())
                })?;
                blank.iter_mut().for_each(|b| *b = F::from_f64(log_sigmoid(b.to_f64())));
                Ok(())
            }
            Normalize::LogSoftmax => self.for_each_group(all_sites, |sites| {
                let selection = self.selection(chain, sites)?;
                let normalized =
                    forward(&self.chain_sites(first_frame, chain, sites), &head, &selection, workspace)?;
                for (&site, emissions) in sites.iter().zip(normalized.emissions.as_chunks::<2>().0) {
                    blank[site] = F::from_f64(emissions[0]);
                    let label = next_label(chain, site);
                    label_arcs[site] = label.map_or(F::NEG_INFINITY, |_| F::from_f64(emissions[1]));
                }
                workspace.recycle(normalized);
                Ok(())
            }),
        })
    }

    /// Propagates adjoints of both log-probabilities.
    pub(super) fn backward(
        &mut self,
        first_frame: usize,
        chain: LabelChain,
        adjoints: Arcs<F>,
    ) -> Result<()> {
        let label_adjoint =
            |site: usize| next_label(chain, site).map_or(0.0, |_| adjoints.labels[site].to_f64());
        if self.normalize == Normalize::Hat {
            self.backward_blanks(first_frame, chain, adjoints);
        }
        let blank_adjoint = |site: usize| match self.normalize {
            Normalize::Hat => 0.0,
            Normalize::LogSoftmax => adjoints.blank[site].to_f64(),
        };
        let sites = (0..adjoints.blank.len())
            .filter(|&site| (blank_adjoint(site), label_adjoint(site)) != (0.0, 0.0));

        // Gradients that the normalizer adds to: of projected states and frames, and of the head.
        let (_, gradients) = self.joint.gradients();
        let site_gradients =
            (std::mem::take(&mut gradients.state_addends), std::mem::take(&mut gradients.frame_addends));
        let (mut weight, mut bias) =
            (std::mem::take(&mut self.head_gradient), std::mem::take(&mut self.bias_gradient));
        if weight.is_empty() {
            let classes = self.classes();
            (weight, bias) = (kernels::zeros(classes * self.joint.projections.hidden), vec![0.0; classes]);
        }
        let mut sums = Gradients { sites: site_gradients, weight, bias };
        // Forward again, and backward, group by group.
        let result = self.with_workspace(|workspace| {
            let (head, mut emission_adjoints) = (self.head()?, Vec::new());
            self.for_each_group(sites, |sites| {
                let selection = &self.selection(chain, sites)?;
                emission_adjoints.clear();
                match self.normalize {
                    Normalize::Hat => emission_adjoints.extend(sites.iter().map(|&site| label_adjoint(site))),
                    Normalize::LogSoftmax => {
                        emission_adjoints.extend(
                            sites.iter().flat_map(|&site| [blank_adjoint(site), label_adjoint(site)]),
                        );
                    }
                }
                let (adjoints, sites) =
                    (&Adjoints::new(&emission_adjoints), &self.chain_sites(first_frame, chain, sites));
                let normalized = forward(sites, &head, selection, workspace)?;
                let arguments =
                    BackwardInputs { sites, head: &head, selection, normalized: &normalized, adjoints };
                backward(arguments, workspace, &mut sums)?;
                workspace.recycle(normalized);
                Ok(())
            })
        });
        // The sums become the gradients of the joint network and of this normalizer again.
        let Gradients { sites: site_gradients, weight, bias } = sums;
        if let Some(gradients) = &mut self.joint.gradients {
            (gradients.state_addends, gradients.frame_addends) = site_gradients;
        }
        (self.head_gradient, self.bias_gradient) = (weight, bias);
        result
    }

    /// Propagates adjoints to the blank scores of hat, in groups of frames.
    fn backward_blanks(&mut self, first_frame: usize, chain: LabelChain, adjoints: Arcs<F>) {
        let positions = chain.states.len();
        let frames = (sites_per_group::<F>(self.classes(), self.budget) / positions).max(1);
        let sites = (frames * positions).min(adjoints.blank.len().max(1));
        let (mut blank, mut label_arcs) = (vec![F::ZERO; sites], vec![F::ZERO; sites]);
        let groups = adjoints.blank.chunks(sites).zip(adjoints.labels.chunks(sites));
        for (group, (blank_adjoint, label_adjoint)) in groups.enumerate() {
            let first_frame = first_frame + group * sites / positions;
            let (blank, label_arcs) =
                (&mut blank[..blank_adjoint.len()], &mut label_arcs[..blank_adjoint.len()]);
            let arcs = ArcsMut { blank: &mut *blank, labels: &mut *label_arcs };
            let (projections, gradients) = self.joint.gradients();
            chain::forward(projections, first_frame, chain, arcs);
            for (site, b) in blank.iter_mut().enumerate() {
                let (score, blank_adjoint) = (b.to_f64(), blank_adjoint[site].to_f64());
                let label_adjoint = next_label(chain, site).map_or(0.0, |_| label_adjoint[site].to_f64());
                *b = F::from_f64(blank_adjoint * sigmoid(-score) - label_adjoint * sigmoid(score));
            }
            label_arcs.fill(F::ZERO);
            chain::backward(projections, gradients, first_frame, chain, Arcs { blank, labels: label_arcs });
        }
    }

    /// Returns the gradients of the joint's parameters.
    pub(super) fn finish(self) -> Parameters<F> {
        let Self { mut joint, head_gradient, bias_gradient, .. } = self;
        let (projections, gradients) = joint.gradients();
        let (first_class, h) = (gradients.bias.len() - bias_gradient.len(), projections.hidden);
        gradients.head[first_class * h..].iter_mut().zip(head_gradient).for_each(|(sum, g)| *sum += g);
        gradients.bias[first_class..].iter_mut().zip(bias_gradient).for_each(|(sum, g)| *sum += g);
        Box::new(joint).finish()
    }

    /// Returns sites of a chain for the normalizer.
    fn chain_sites<'s>(
        &'s self,
        first_frame: usize,
        chain: LabelChain<'s>,
        sites: &'s [usize],
    ) -> ChainSites<'s, F> {
        let projections = &self.joint.projections;
        ChainSites { projections, first_frame, states: chain.states, site_numbers: sites }
    }
}

/// The label that follows a site.
fn next_label(chain: LabelChain, site: usize) -> Option<u32> {
    chain.labels.get(site % chain.states.len()).copied()
}

/// Some sites of a chain, by number: `t (U + 1) + u`.
struct ChainSites<'a, F: Real> {
    projections: &'a Projections<F>,
    /// First frame of the chain.
    first_frame: usize,
    /// Context states, *U + 1*.
    states: &'a [usize],
    /// Numbers of the selected sites.
    site_numbers: &'a [usize],
}

impl<F: Real> ChainSites<'_, F> {
    /// Frame and context state of a site, by index in `site_numbers`.
    fn frame_and_state(&self, index: usize) -> (usize, usize) {
        let number = self.site_numbers[index];
        let (t, u) = (number / self.states.len(), number % self.states.len());
        (self.first_frame + t, self.states[u])
    }
}

impl<F: panda_core::Real> Sites<F> for ChainSites<'_, F> {
    /// Gradients of projected states and frames.
    type Gradient = (Vec<F>, Vec<F>);

    fn len(&self) -> usize {
        self.site_numbers.len()
    }

    fn width(&self) -> usize {
        self.projections.hidden
    }

    fn max_abs(&self) -> f64 {
        1.0
    }

    fn fill(&self, sites: &[usize], hidden: &mut [F]) {
        for (&site, out) in sites.iter().zip(hidden.chunks_exact_mut(self.width())) {
            let (frame, state) = self.frame_and_state(site);
            self.projections.hidden_row(frame, state, out);
        }
    }

    fn pull_back(&self, _sites: &[usize], hidden: &[F], gradient: &mut [F]) {
        F::tanh_slope(gradient, hidden);
    }

    fn zero_gradient(&self) -> (Vec<F>, Vec<F>) {
        let Projections { state_addends, frame_addends, .. } = self.projections;
        (vec![F::ZERO; state_addends.rows.len()], vec![F::ZERO; frame_addends.rows.len()])
    }

    fn scatter(&self, sites: &[usize], gradient: &[F], (states, frames): &mut (Vec<F>, Vec<F>)) {
        let h = self.width();
        let scatter_frames = |frames: &mut [F]| {
            for (&site, gradient) in sites.iter().zip(gradient.chunks_exact(h)) {
                F::add_slice(&mut frames[self.frame_and_state(site).0 * h..][..h], gradient);
            }
        };
        // A state has sites in all frames, too many for one running sum: the sites of a wave are
        // summed first, and then the sums of the waves.
        let scatter_states = |states: &mut [F]| {
            let state = |(index, &site): (usize, &usize)| (self.frame_and_state(site).1, index);
            let mut sites_by_state: Vec<(usize, usize)> = sites.iter().enumerate().map(state).collect();
            sites_by_state.sort_unstable();
            let mut state_sum = vec![F::ZERO; h];
            for sites in sites_by_state.chunk_by(|a, b| a.0 == b.0) {
                state_sum.fill(F::ZERO);
                sites
                    .iter()
                    .for_each(|&(_, index)| F::add_slice(&mut state_sum, &gradient[index * h..][..h]));
                F::add_slice(&mut states[sites[0].0 * h..][..h], &state_sum);
            }
        };
        rayon::join(|| scatter_states(states), || scatter_frames(frames));
    }
}
