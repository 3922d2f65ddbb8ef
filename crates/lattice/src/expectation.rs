//! Expectations over the paths of a recognition lattice, with gradients.
//!
//! They are the entropy H of the paths and the expected cost r of a path. w is the weight of a path
//! or arc, and D the sum over all paths:
//!
//! ```text
//! p(path) = exp(w(path) - log D)
//! E[r] = Σ p(path) r(path)                 r(path) = Σ r(arc)
//! H = -Σ p(path) log p(path) = log D - E[w]
//! dE[r] / dw(arc) = m(arc) (E[r | arc] - E[r])
//! dH / dw(arc) = -m(arc) (E[w | arc] - E[w])
//! ```
//!
//! m is the posterior of an arc and `E[r | arc]` the mean over the paths through it, which is
//! `α ⊗ w ⊗ β` in the semiring [`Average`] (Eisner 2002; Li and Eisner 2009). All sums are f64 and
//! follow the definition in [`distance`](mod@distance). Sizes: N frames, A alignment states, C
//! context states, V labels.
use kernels::Real;
use rnnt_dp::semiring::{Average, AverageWeight};

use crate::{
    AlignmentLattice, Arcs, ArcsMut, BoundWeights, Context, Error, Frames, LatticeOutput, RecognitionLattice,
    Result,
    distance::{self, Distance, FrameArc},
    error::expect_len,
    execution::check_weights,
};

/// A statistic of paths.
#[derive(Clone, Copy)]
pub enum PathStatistic<'a> {
    /// Entropy of the distribution over paths, in nats.
    Entropy,
    /// Sum of the costs of a path's arcs, by frame and arc; not called for blocked arcs.
    Cost(&'a dyn Fn(usize, FrameArc) -> f64),
}

/// An expectation over the paths of an utterance, and its gradient.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpectationGradient {
    /// `log D`; -inf where all paths are blocked.
    pub log_sum: f64,
    /// The expectation; +inf where all paths are blocked.
    pub mean: f64,
    /// Gradient of the weights of blank arcs, *N x C*.
    pub blank: Vec<f64>,
    /// Gradient of the weights of label arcs, *N x C x V*.
    pub labels: Vec<f64>,
}

/// Returns the cost function of alignment errors: 1 for an arc that differs from a reference.
///
/// The reference has a label for each frame and alignment state, *T x A*, like a
/// [`LatticePath`](crate::LatticePath), and 0 after its end.
///
/// ```
/// use lattice::{
///     AlignmentLattice, Arcs, FullNGram,
///     expectation::{PathStatistic, alignment_errors, expectation},
/// };
/// let (context, alignment) = (FullNGram::new(1, 0)?, AlignmentLattice::FrameDependent);
/// // Two frames, each with a blank or a label.
/// let arcs = Arcs { blank: &[0.0; 2], labels: &[0.0; 2] };
/// let cost = alignment_errors(alignment, &[1, 0]);
/// let risk = expectation(&context, alignment, arcs, PathStatistic::Cost(&cost))?;
/// assert!((risk.mean - 1.0).abs() < 1e-12 && (risk.labels[0] + 0.25).abs() < 1e-12);
/// let entropy = expectation(&context, alignment, arcs, PathStatistic::Entropy)?;
/// assert!((entropy.mean - 4f64.ln()).abs() < 1e-12 && entropy.labels[0].abs() < 1e-12);
/// # Ok::<(), lattice::Error>(())
/// ```
pub fn alignment_errors(alignment: AlignmentLattice, reference: &[u32]) -> impl Fn(usize, FrameArc) -> f64 {
    move |frame, arc| {
        let entry = frame * alignment.num_states() + arc.alignment;
        let label = reference.get(entry).map_or(0, |&label| label as usize);
        if label == arc.label { 0.0 } else { 1.0 }
    }
}

/// Returns an expectation over all paths of one utterance.
///
/// # Shapes
/// `arcs` *N x C* and *N x C x V*.
///
/// # Errors
/// Other lengths; weights whose sum is NaN or +inf; costs whose mean is not finite.
///
/// # Cost
/// Time *N A C V*, memory *N C* in addition to the result.
pub fn expectation(
    context: &dyn Context,
    alignment: AlignmentLattice,
    arcs: Arcs<f64>,
    statistic: PathStatistic,
) -> Result<ExpectationGradient> {
    let (blank_count, label_count) = (context.states(), context.states() * context.vocabulary());
    let frames = arcs.blank.len() / blank_count;
    expect_len("arcs.blank", frames * blank_count, arcs.blank.len())?;
    expect_len("arcs.labels", frames * label_count, arcs.labels.len())?;
    let frame_arcs = |t: usize| Arcs {
        blank: &arcs.blank[t * blank_count..][..blank_count],
        labels: &arcs.labels[t * label_count..][..label_count],
    };
    let copy_weights = |t: usize, out: ArcsMut<f64>| {
        out.blank.copy_from_slice(frame_arcs(t).blank);
        out.labels.copy_from_slice(frame_arcs(t).labels);
    };
    let statistic_sums = StatisticSums { context, alignment, statistic };
    let distance = statistic_sums.forward(frames, copy_weights);
    let mean = statistic_sums.value(&distance.total, 0)?;
    let (mut blank, mut label_arcs) = (vec![0.0; arcs.blank.len()], vec![0.0; arcs.labels.len()]);
    let mut backward = statistic_sums.backward(&distance);
    while let Some((t, gradient)) = backward.step(copy_weights) {
        blank[t * blank_count..][..blank_count].copy_from_slice(gradient.blank);
        label_arcs[t * label_count..][..label_count].copy_from_slice(gradient.labels);
    }
    Ok(ExpectationGradient { log_sum: distance.total.log_prob, mean, blank, labels: label_arcs })
}

impl<F: Real> RecognitionLattice<'_, F> {
    /// Returns an expectation over all paths of each utterance, *B..*.
    ///
    /// `statistic` maps an utterance to its statistic. +inf where all paths are blocked.
    ///
    /// # Errors
    /// Frames that do not fit the lattice; arc weights whose sum is NaN or +inf; costs whose mean
    /// is not finite.
    ///
    /// # Cost
    /// Time *N A C V*, one arc at a time, and the arc weights; memory *N C* of an utterance, and
    /// one frame of arcs.
    pub fn expectations<'q>(
        &self,
        frames: &Frames<F>,
        statistic: impl Fn(usize) -> PathStatistic<'q>,
    ) -> Result<Vec<f64>> {
        self.check_frames(frames)?;
        let mut arcs = FrameArcs::new(self)?;
        let value = |utterance| {
            arcs.set_frames(frames, utterance)?;
            let statistic_sums = self.statistic_sums(statistic(utterance));
            let distance = statistic_sums.forward(frames.length(utterance), |t, out| arcs.compute(t, out));
            statistic_sums.value(&distance.total, utterance)
        };
        (0..frames.utterances()).map(value).collect()
    }

    /// Returns expectations as `sums`, and the gradients of `Σ_b weights[b] mean[b]`.
    ///
    /// Utterances whose paths are all blocked have no gradient.
    ///
    /// # Errors
    /// As [`expectations`](Self::expectations); not one finite weight for each utterance.
    ///
    /// # Cost
    /// About four times that of [`expectations`](Self::expectations).
    pub fn expectation_gradients<'q>(
        &self,
        frames: &Frames<F>,
        statistic: impl Fn(usize) -> PathStatistic<'q>,
        weights: &[f64],
    ) -> Result<LatticeOutput<F>> {
        self.check_frames(frames)?;
        check_weights(frames, weights)?;
        let mut arcs = FrameArcs::new(self)?;
        let mut sums = Vec::with_capacity(frames.utterances());
        let padded = frames.padded() * frames.frame_size();
        let mut gradient = vec![F::ZERO; frames.utterances() * padded];
        for (utterance, &weight) in weights.iter().enumerate() {
            arcs.set_frames(frames, utterance)?;
            let statistic_sums = self.statistic_sums(statistic(utterance));
            let distance = statistic_sums.forward(frames.length(utterance), |t, out| arcs.compute(t, out));
            sums.push(statistic_sums.value(&distance.total, utterance)?);
            let mut backward = statistic_sums.backward(&distance);
            while let Some((t, gradient)) = backward.step(|t, out| arcs.compute(t, out)) {
                arcs.add_gradient(t, gradient, weight);
            }
            let rows = arcs.weights.frame_gradient(frames.utterance(utterance));
            gradient[utterance * padded..][..rows.len()].copy_from_slice(&rows);
        }
        Ok(LatticeOutput { sums, frames: gradient, parameters: arcs.weights.finish() })
    }

    /// Returns the sums of a statistic over the paths of this lattice.
    fn statistic_sums<'a>(&'a self, statistic: PathStatistic<'a>) -> StatisticSums<'a> {
        StatisticSums { context: self.context(), alignment: self.alignment(), statistic }
    }
}

/// A bound weight function and the arcs of one frame.
struct FrameArcs<'a, F: Real> {
    weights: Box<dyn BoundWeights<F> + 'a>,
    blank: Vec<F>,
    label_arcs: Vec<F>,
}

impl<'a, F: Real> FrameArcs<'a, F> {
    fn new(lattice: &RecognitionLattice<'a, F>) -> Result<Self> {
        let (states, labels) = (lattice.context().states(), lattice.context().vocabulary());
        let weights = lattice.weight_fn().bind(&mut Vec::new())?;
        Ok(Self { weights, blank: vec![F::ZERO; states], label_arcs: vec![F::ZERO; states * labels] })
    }

    /// Sets the frames of an utterance.
    fn set_frames(&mut self, frames: &Frames<F>, utterance: usize) -> Result<()> {
        self.weights
            .set_frames(frames.utterance(utterance), &vec![utterance as u32; frames.length(utterance)])
    }

    /// Computes the weights of a frame.
    fn compute(&mut self, t: usize, out: ArcsMut<f64>) {
        self.weights.forward(&[t], ArcsMut { blank: &mut self.blank, labels: &mut self.label_arcs });
        out.blank.iter_mut().zip(&self.blank).for_each(|(out, w)| *out = w.to_f64());
        out.labels.iter_mut().zip(&self.label_arcs).for_each(|(out, w)| *out = w.to_f64());
    }

    /// Adds `weight` times the gradient of a frame.
    fn add_gradient(&mut self, t: usize, gradient: Arcs<f64>, weight: f64) {
        self.blank.iter_mut().zip(gradient.blank).for_each(|(adjoint, g)| *adjoint = F::from_f64(weight * g));
        self.label_arcs
            .iter_mut()
            .zip(gradient.labels)
            .for_each(|(adjoint, g)| *adjoint = F::from_f64(weight * g));
        self.weights.backward(&[t], Arcs { blank: &self.blank, labels: &self.label_arcs });
    }
}

/// Sums of one statistic over the paths of one utterance.
struct StatisticSums<'a> {
    context: &'a dyn Context,
    alignment: AlignmentLattice,
    statistic: PathStatistic<'a>,
}

impl StatisticSums<'_> {
    /// Number of rows of arcs: costs may depend on the alignment state, weights do not.
    fn rows(&self) -> usize {
        match self.statistic {
            PathStatistic::Entropy => 1,
            PathStatistic::Cost(_) => self.alignment.num_states(),
        }
    }

    /// Numbers of blank and label arcs of a frame.
    fn arc_counts(&self) -> [usize; 2] {
        [self.context.states(), self.context.states() * self.context.vocabulary()]
    }

    /// Converts the weights of a frame to weights of the semiring.
    ///
    /// The arcs are *rows x C* and *rows x C x V*.
    fn fill(&self, t: usize, weights: Arcs<f64>, out: ArcsMut<AverageWeight>) {
        let (states, labels) = (self.context.states(), self.context.vocabulary());
        let value = |log_prob: f64, arc: FrameArc| match self.statistic {
            PathStatistic::Entropy => AverageWeight { log_prob, value: log_prob },
            PathStatistic::Cost(cost) if log_prob > f64::NEG_INFINITY => {
                AverageWeight { log_prob, value: cost(t, arc) }
            }
            PathStatistic::Cost(_) => AverageWeight { log_prob, value: 0.0 },
        };
        for (index, out) in out.blank.iter_mut().enumerate() {
            let (alignment, context) = (index / states, index % states);
            *out = value(weights.blank[context], FrameArc { alignment, context, label: 0 });
        }
        for (index, out) in out.labels.iter_mut().enumerate() {
            let (state, label) = (index / labels, index % labels + 1);
            let (alignment, context) = (state / states, state % states);
            *out =
                value(weights.labels[context * labels + label - 1], FrameArc { alignment, context, label });
        }
    }

    /// Returns the sum over all paths; `write_weights` writes those of a frame.
    fn forward(
        &self,
        num_frames: usize,
        mut write_weights: impl FnMut(usize, ArcsMut<f64>),
    ) -> Distance<AverageWeight> {
        let [mut blank, mut label_arcs] = self.arc_counts().map(|count| vec![0.0; count]);
        let fill = |t: usize, out: ArcsMut<AverageWeight>| {
            write_weights(t, ArcsMut { blank: &mut blank, labels: &mut label_arcs });
            self.fill(t, Arcs { blank: &blank, labels: &label_arcs }, out);
        };
        distance::forward::<Average>(self.context, self.alignment, num_frames, self.rows(), fill)
    }

    /// Returns the expectation from the sum over all paths.
    fn value(&self, total: &AverageWeight, utterance: usize) -> Result<f64> {
        if total.log_prob == f64::NEG_INFINITY {
            return Ok(f64::INFINITY);
        }
        if !total.log_prob.is_finite() {
            return Err(Error::Overflow { utterance, value: total.log_prob });
        }
        if !total.value.is_finite() {
            let mean = format!("{} in utterance {utterance}", total.value);
            return Err(Error::shape("cost", "costs whose mean over paths is finite", mean));
        }
        Ok(match self.statistic {
            PathStatistic::Entropy => total.log_prob - total.value,
            PathStatistic::Cost(_) => total.value,
        })
    }

    /// Returns the derivative of the expectation by an arc weight.
    ///
    /// It follows from the mean over the paths through the arc.
    fn derivative(&self, arc: &AverageWeight, total: &AverageWeight) -> f64 {
        if arc.log_prob == f64::NEG_INFINITY {
            return 0.0;
        }
        let derivative = (arc.log_prob - total.log_prob).exp() * (arc.value - total.value);
        match self.statistic {
            PathStatistic::Entropy => -derivative,
            PathStatistic::Cost(_) => derivative,
        }
    }

    /// Starts the gradients of the arc weights after the last frame.
    fn backward<'a>(&'a self, distance: &'a Distance<AverageWeight>) -> StatisticBackward<'a> {
        let [blank, label_arcs] = self.arc_counts().map(|count| vec![0.0; count]);
        let steps = distance::DistanceBackward::new(self.context, self.alignment, self.rows());
        StatisticBackward {
            statistic_sums: self,
            distance,
            remaining_frames: distance.alphas.len() / self.context.states(),
            steps,
            blank,
            label_arcs,
        }
    }
}

/// Gradients of the arc weights, last frame first.
struct StatisticBackward<'a> {
    statistic_sums: &'a StatisticSums<'a>,
    distance: &'a Distance<AverageWeight>,
    /// Number of frames whose gradients are not computed yet.
    remaining_frames: usize,
    steps: distance::DistanceBackward<'a, Average>,
    blank: Vec<f64>,
    label_arcs: Vec<f64>,
}

impl StatisticBackward<'_> {
    /// Returns the next frame and its gradient, *C* and *C x V*.
    ///
    /// `write_weights` writes the weights of a frame.
    fn step(&mut self, mut write_weights: impl FnMut(usize, ArcsMut<f64>)) -> Option<(usize, Arcs<'_, f64>)> {
        let t = self.remaining_frames.checked_sub(1)?;
        self.remaining_frames = t;
        let Self { statistic_sums, distance, steps, blank, label_arcs, .. } = self;
        let states = statistic_sums.context.states();
        let sums = steps.step(&distance.alphas[t * states..][..states], |out| {
            write_weights(t, ArcsMut { blank, labels: label_arcs });
            statistic_sums.fill(t, Arcs { blank, labels: label_arcs }, out);
        });
        sum_alignments(blank, &sums.blank, |mean| statistic_sums.derivative(mean, &distance.total));
        sum_alignments(label_arcs, &sums.labels, |mean| statistic_sums.derivative(mean, &distance.total));
        Some((t, Arcs { blank, labels: label_arcs }))
    }
}

/// Sums derivatives over alignment states.
fn sum_alignments(out: &mut [f64], sums: &[AverageWeight], derivative: impl Fn(&AverageWeight) -> f64) {
    out.fill(0.0);
    for row in sums.chunks_exact(out.len()) {
        out.iter_mut().zip(row).for_each(|(out, mean)| *out += derivative(mean));
    }
}
