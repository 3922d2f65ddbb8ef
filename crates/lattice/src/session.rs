//! Sums over the paths of a batch, with gradients.
use std::borrow::Cow;

use kernels::Real;
use panda_core::DEFAULT_BUDGET;

use crate::{
    Arcs, Error, Frames, Labels, Parameters, RecognitionLattice, Result, Weights,
    best_path::Best,
    denominator::Denominator,
    group::Group,
    numerator::Numerator,
    pending::Pending,
    plan::{Parts, Plan, Work},
    step::Step,
};

/// Memory of a [`Session`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Limit on the bytes that a call holds in addition to its arguments and results.
    pub budget: usize,
    /// Whether arc weights may be kept from forward to backward, where the budget has room for them. Otherwise they
    /// are computed again, and no more of the budget is used than [`DEFAULT_BUDGET`] or the smallest plan.
    pub keep_weights: bool,
}

impl Options {
    /// At most so many bytes; arc weights are kept where they fit.
    pub const fn new(budget: usize) -> Self {
        Self { budget, keep_weights: true }
    }

    /// The same without keeping arc weights.
    pub const fn recompute(self) -> Self {
        Self { keep_weights: false, ..self }
    }

    /// Bytes that are used, where the smallest plan takes so many.
    pub(crate) fn limit(&self, smallest: usize) -> usize {
        if self.keep_weights { self.budget } else { self.budget.min(DEFAULT_BUDGET.max(smallest)) }
    }
}

/// 256 MiB: arc weights of a few frames, and α of some minutes of speech in the context of two labels out of 32.
impl Default for Options {
    fn default() -> Self {
        Self::new(256 << 20)
    }
}

/// The object that owns budget and buffers, and lives as long as training does.
pub struct Session<F> {
    pub(crate) options: Options,
    pub(crate) denominator: Denominator<F>,
    pub(crate) numerator: Numerator<F>,
    pub(crate) best: Best<F>,
    /// Buffers of weights at work, between calls.
    spare: Vec<Vec<F>>,
}

/// Which sum over paths a call is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sum {
    /// `log D - log S`; under locally normalised weights `-log S`, and D is not computed.
    Loss,
    /// `log D`, over all paths.
    Denominator,
    /// `log S`, over the paths of the labels.
    Numerator,
}

/// Sums of a batch and gradients of a weighted sum of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Output<F> {
    /// Sum of each utterance, *B..*. A loss without a path is +inf.
    pub sums: Vec<f64>,
    /// Gradient of the frames, *B.. x T x F*; 0 in padding.
    pub frames: Vec<F>,
    /// Gradients of the parameters, by their names.
    pub parameters: Parameters<F>,
}

/// A lattice and inputs that fit together.
pub(crate) struct Asked<'a, F: Real> {
    pub frames: &'a Frames<'a, F>,
    pub labels: Option<&'a Labels<'a>>,
    pub lattice: RecognitionLattice<'a, F>,
    pub sum: Sum,
}

/// The same and its weights at work.
pub(crate) struct Call<'a, F: Real> {
    pub frames: &'a Frames<'a, F>,
    pub labels: Option<&'a Labels<'a>>,
    pub lattice: RecognitionLattice<'a, F>,
    pub step: Step<'a>,
    pub weights: Box<dyn Weights<F> + 'a>,
    /// Frames of the group, packed.
    rows: Cow<'a, [F]>,
    sum: Sum,
    all_paths: bool,
}

/// What forward found in a group.
pub(crate) struct Found {
    denominators: Vec<f64>,
    numerators: Vec<f64>,
    pub sums: Vec<f64>,
}

impl<F: Real> Default for Session<F> {
    fn default() -> Self {
        Self::new(Options::default())
    }
}

impl<F: Real> Session<F> {
    /// A session that holds at most so much beside arguments and results.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            denominator: Denominator::default(),
            numerator: Numerator::default(),
            best: Best::default(),
            spare: Vec::new(),
        }
    }

    /// The options of the session.
    pub fn options(&self) -> Options {
        self.options
    }

    /// How [`sum`](Self::sum) would be cut.
    ///
    /// # Errors
    /// [`Error::Budget`], which names the smallest cut, for a budget below it.
    pub fn plan(&self, lattice: &RecognitionLattice<F>, frames: &Frames<F>, labels: &Labels) -> Result<Plan> {
        let asked = Asked::new(lattice, frames, Some(labels), Sum::Loss)?;
        let work = Work { all_paths: asked.wants_all_paths(), ..Work::sum(true).with_gradients() };
        Plan::new(lattice, frames, asked.labels, (work, self.options))
    }

    /// A call and its cut, which comes before all else that takes memory.
    pub(crate) fn call<'a>(
        &mut self,
        asked: Asked<'a, F>,
        work: impl FnOnce(bool) -> Work,
    ) -> Result<(Call<'a, F>, Plan)> {
        let plan = self.cut(&asked, work(asked.wants_all_paths()))?;
        Ok((Call::new(asked, &mut self.spare)?, plan))
    }

    /// Takes the buffers of weights back that nobody needs any more.
    pub(crate) fn keep_buffers(&mut self, call: &mut Call<F>) {
        self.spare = call.weights.spare();
    }

    /// The cut of a call; lets buffers go that the budget has no room for beside it.
    fn cut(&mut self, asked: &Asked<F>, work: Work) -> Result<Plan> {
        let plan = Plan::new(&asked.lattice, asked.frames, asked.labels, (work, self.options))?;
        let [pointers, best_lanes] = self.best.held();
        let [alpha, arcs, lanes] = self.denominator.held();
        let strings = self.numerator.held();
        let spare = self.spare.iter().map(|buffer| buffer.capacity() * size_of::<F>()).sum();
        let Parts { stored, arcs: of_arcs, strings: of_strings, lanes: of_lanes, weights } = plan.parts;
        let excess = |held: usize, part: usize| held.saturating_sub(part);
        let more = excess(pointers + alpha, stored)
            + excess(arcs, of_arcs)
            + excess(strings, of_strings)
            + excess(spare, weights)
            + excess(lanes + best_lanes, of_lanes);
        if plan.bytes.saturating_add(more) > self.options.limit(0) {
            *self = Self::new(self.options);
        }
        Ok(plan)
    }

    /// Losses now, gradients when the weights of the utterances are known.
    ///
    /// # Errors
    /// As [`sum`](Self::sum).
    pub fn forward<'a>(
        &'a mut self,
        lattice: &RecognitionLattice<'a, F>,
        frames: &'a Frames<'a, F>,
        labels: &'a Labels<'a>,
    ) -> Result<Pending<'a, F>> {
        let asked = Asked::new(lattice, frames, Some(labels), Sum::Loss)?;
        let (call, plan) = self.call(asked, |all_paths| Work::sum(all_paths).with_gradients().whole())?;
        Pending::new(self, call, &plan)
    }

    /// Losses and all gradients of `Σ_b weights[b] loss[b]`, group of utterances by group.
    ///
    /// ```text
    /// loss = log D - log S        any weight function that is not locally normalised
    /// loss = -log S               one that is
    /// ```
    /// A string without a path has the loss +inf and leaves the gradient of D alone; where all paths are blocked the loss is +inf
    /// too, and there is no gradient. The other utterances do not notice.
    ///
    /// # Shapes
    /// `weights` *B..*.
    ///
    /// # Errors
    /// Inputs that do not fit the lattice or one another, labels that are none, a budget below the smallest cut, weights of arcs
    /// whose sum is NaN or +inf.
    ///
    /// # Cost
    /// Arc weights of all frames three times over, forward, again and backward (twice with a budget that keeps them), and two of
    /// each site of the string; α of a group, *N x C*, and the arc weights of a few frames.
    pub fn sum(
        &mut self,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        labels: &Labels,
        weights: &[f64],
    ) -> Result<Output<F>> {
        self.sum_of(Sum::Loss, lattice, frames, Some(labels), weights)
    }

    /// [`sum`](Self::sum) of another sum over paths; one over all of them needs no labels.
    ///
    /// # Errors
    /// As there.
    pub fn sum_of(
        &mut self,
        sum: Sum,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        labels: Option<&Labels>,
        weights: &[f64],
    ) -> Result<Output<F>> {
        let asked = Asked::new(lattice, frames, labels, sum)?;
        check_weights(frames, weights)?;
        among_workers(|| self.sum_asked(asked, weights))
    }

    fn sum_asked(&mut self, asked: Asked<F>, weights: &[f64]) -> Result<Output<F>> {
        let frames = asked.frames;
        let (mut call, plan) = self.call(asked, |all_paths| Work::sum(all_paths).with_gradients())?;
        let mut sums = Vec::with_capacity(frames.utterances());
        let mut gradient = vec![F::ZERO; frames.utterances() * frames.padded() * frames.size()];
        for group in plan.groups(frames) {
            let found = call.forward(self, &group, Some(plan.kept))?;
            call.backward(self, &group, &found, &weights[group.utterances.clone()])?;
            call.frame_gradient(&group, &mut gradient);
            sums.extend(found.sums);
        }
        self.keep_buffers(&mut call);
        Ok(Output { sums, frames: gradient, parameters: call.weights.finish() })
    }

    /// One of the sums without gradients: the shortest distance in the log semiring. -inf where there is no path.
    ///
    /// ```text
    /// α_0[p] = 1̄ if p = start else 0̄      α_{t+1} = forward(α_t)      D = ⊕_p α_N[p]
    /// ```
    /// # Errors
    /// As [`sum`](Self::sum).
    pub fn distances(
        &mut self,
        sum: Sum,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        labels: Option<&Labels>,
    ) -> Result<Vec<f64>> {
        let asked = Asked::new(lattice, frames, labels, sum)?;
        among_workers(|| self.distances_asked(asked))
    }

    fn distances_asked(&mut self, asked: Asked<F>) -> Result<Vec<f64>> {
        let frames = asked.frames;
        let (mut call, plan) = self.call(asked, Work::sum)?;
        let mut sums = Vec::with_capacity(frames.utterances());
        for group in plan.groups(frames) {
            sums.extend(call.forward(self, &group, None)?.sums);
        }
        self.keep_buffers(&mut call);
        Ok(sums)
    }

    /// Forward weights: α before each frame in the log semiring, *B.. x T x C*; behind the last frame of an utterance they stay.
    ///
    /// ```text
    /// α_0[p] = 1̄ if p = start else 0̄      α_{t+1} = forward(α_t)
    /// ```
    /// # Errors
    /// As [`sum`](Self::sum).
    pub fn alphas(&mut self, lattice: &RecognitionLattice<F>, frames: &Frames<F>) -> Result<Vec<f64>> {
        let c = lattice.context().states();
        let asked = Asked::new(lattice, frames, None, Sum::Denominator)?;
        let (mut call, plan) = self.call(asked, |all_paths| Work::sum(all_paths).with_gradients())?;
        let mut alphas = Vec::with_capacity(frames.utterances() * frames.padded() * c);
        for group in plan.groups(frames) {
            call.forward(self, &group, Some(plan.kept))?;
            for at in 0..group.len() {
                alphas.extend(self.denominator.alphas(c, &group, at, frames.padded()));
            }
        }
        Ok(alphas)
    }

    /// Posteriors of all arcs, summed over states of the alignment: *B.. x T x C* blank and *B.. x T x C x V* lexical, 0 in padding
    /// and where all paths are blocked. Over all paths, or over those of the labels.
    ///
    /// # Errors
    /// As [`sum`](Self::sum).
    ///
    /// # Cost
    /// The result is as large as all arcs: for looking at lattices, not for training.
    pub fn marginals(
        &mut self,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
    ) -> Result<(Vec<F>, Vec<F>)> {
        let (c, v) = (lattice.context().states(), lattice.context().vocabulary());
        let asked = Asked::new(lattice, frames, None, Sum::Denominator)?;
        let (mut call, plan) = self.call(asked, |all_paths| Work::sum(all_paths).with_gradients())?;
        let rows = frames.utterances() * frames.padded();
        let (mut blank, mut lexical) = (vec![F::ZERO; rows * c], vec![F::ZERO; rows * c * v]);
        for group in plan.groups(frames) {
            call.forward(self, &group, Some(plan.kept))?;
            let places = group.places(frames.padded());
            let ones = vec![1.0; group.len()];
            self.denominator.backward(
                &call.step,
                &mut *call.weights,
                &group,
                &ones,
                |_, frames, adjoints| {
                    for (at, &frame) in frames.iter().enumerate() {
                        let to = places[frame];
                        blank[to * c..][..c].copy_from_slice(&adjoints.blank[at * c..][..c]);
                        lexical[to * c * v..][..c * v]
                            .copy_from_slice(&adjoints.lexical[at * c * v..][..c * v]);
                    }
                    Ok(())
                },
            )?;
        }
        Ok((blank, lexical))
    }
}

impl<'a, F: Real> Asked<'a, F> {
    pub fn new(
        lattice: &RecognitionLattice<'a, F>,
        frames: &'a Frames<'a, F>,
        labels: Option<&'a Labels<'a>>,
        sum: Sum,
    ) -> Result<Self> {
        lattice.check_frames(frames)?;
        match labels {
            Some(labels) => labels.check(frames, lattice.context().vocabulary())?,
            None if sum == Sum::Denominator => {}
            None => return Err(Error::shape("labels", "labels, for a sum over their paths", "none")),
        }
        let labels = if sum == Sum::Denominator { None } else { labels };
        Ok(Self { frames, labels, lattice: *lattice, sum })
    }

    fn wants_all_paths(&self) -> bool {
        match self.sum {
            Sum::Loss => !self.lattice.weight_fn().is_locally_normalized(),
            Sum::Denominator => true,
            Sum::Numerator => false,
        }
    }
}

impl<'a, F: Real> Call<'a, F> {
    fn new(asked: Asked<'a, F>, spare: &mut Vec<Vec<F>>) -> Result<Self> {
        let all_paths = asked.wants_all_paths();
        let Asked { frames, labels, lattice, sum } = asked;
        let weights = lattice.weight_fn().open_with(spare)?;
        // What nobody wanted would only be in the way.
        spare.clear();
        let rows = Cow::Borrowed(&[][..]);
        Ok(Self { frames, labels, lattice, step: lattice.step(), weights, rows, sum, all_paths })
    }

    /// Goes on to the frames of a group.
    pub fn enter(&mut self, group: &Group) -> Result<()> {
        self.rows = group.rows(self.frames);
        self.weights.enter(&self.rows, &group.utterances())
    }

    /// Sums of a group. What backward needs stays if it is asked for, with all arc weights or without.
    pub fn forward(&mut self, session: &mut Session<F>, group: &Group, kept: Option<bool>) -> Result<Found> {
        self.enter(group)?;
        let (stored, kept) = (kept.is_some(), kept.unwrap_or(false));
        let mut found = Found { denominators: Vec::new(), numerators: Vec::new(), sums: Vec::new() };
        if self.all_paths {
            found.denominators = session.denominator.forward(&self.step, &*self.weights, group, stored, kept);
            check_sums(&found.denominators, group)?;
        }
        if let Some(labels) = self.labels {
            let kind = (self.lattice.context(), self.lattice.alignment());
            found.numerators = session.numerator.forward(kind, &*self.weights, group, labels, stored)?;
            check_sums(&found.numerators, group)?;
        }
        found.sums = match self.sum {
            Sum::Denominator => found.denominators.clone(),
            Sum::Numerator => found.numerators.clone(),
            Sum::Loss if !self.all_paths => found.numerators.iter().map(|s| -s).collect(),
            Sum::Loss => {
                let pairs = found.denominators.iter().zip(&found.numerators);
                let loss =
                    |(&d, &s): (&f64, &f64)| if s == f64::NEG_INFINITY { f64::INFINITY } else { d - s };
                pairs.map(loss).collect()
            }
        };
        Ok(found)
    }

    /// Gradients of the group that forward found last.
    pub fn backward(
        &mut self,
        session: &mut Session<F>,
        group: &Group,
        found: &Found,
        cotangents: &[f64],
    ) -> Result<()> {
        if !found.numerators.is_empty() {
            let sign = if self.sum == Sum::Loss { -1.0 } else { 1.0 };
            let scaled: Vec<f64> = cotangents.iter().map(|g| sign * g).collect();
            session.numerator.backward(&mut *self.weights, group, &scaled)?;
        }
        if !found.denominators.is_empty() {
            let pull = |weights: &mut dyn Weights<F>, frames: &[usize], adjoints: Arcs<F>| {
                weights.pull(frames, adjoints);
                Ok(())
            };
            session.denominator.backward(&self.step, &mut *self.weights, group, cotangents, pull)?;
        }
        Ok(())
    }

    /// Writes the gradient of a group's frames to where they lie in the batch.
    pub fn frame_gradient(&mut self, group: &Group, out: &mut [F]) {
        let size = self.frames.size();
        let rows = self.weights.frame_gradient(&self.rows);
        for (row, to) in rows.chunks_exact(size).zip(group.places(self.frames.padded())) {
            out[to * size..][..size].copy_from_slice(row);
        }
    }
}

/// Does some work as one of those whom it is dealt out to: short loops otherwise wait for being called, one by one.
pub(crate) fn among_workers<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    rayon::scope(|_| work())
}

/// Fails for a sum that left the numbers.
pub(crate) fn check_sums(sums: &[f64], group: &Group) -> Result<()> {
    match sums.iter().position(|sum| sum.is_nan() || *sum == f64::INFINITY) {
        None => Ok(()),
        Some(at) => Err(Error::Overflow { utterance: group.utterances.start + at, value: sums[at] }),
    }
}

pub(crate) fn check_weights<F: Real>(frames: &Frames<F>, weights: &[f64]) -> Result<()> {
    let expected = frames.utterances();
    if weights.len() != expected {
        return Err(Error::shape("weights", format!("one for each of {expected} utterances"), weights.len()));
    }
    crate::error::expect_finite("weights", weights)?;
    // Those that are infinite in single precision.
    let own: Vec<F> = weights.iter().map(|&weight| F::from_f64(weight)).collect();
    crate::error::expect_finite("weights", &own)
}
