//! Means over all paths of a lattice, with gradients: the entropy of its paths and the expected cost of a path.
//!
//! ```text
//! p(path) = exp(w(path) - log D)
//! E[r] = Σ p(path) r(path)                 r(path) = Σ r(arc)
//! H = -Σ p(path) log p(path) = log D - E[w]
//! dE[r] / dw(arc) = m(arc) (E[r | arc] - E[r])
//! dH / dw(arc) = -m(arc) (E[w | arc] - E[w])
//! ```
//!
//! m is the posterior of an arc and `E[r | arc]` the mean over the paths through it: `α ⊗ w ⊗ β` in the semiring
//! [`Average`] (Eisner 2002; Li and Eisner 2009). All of it is f64, by the definition of
//! [`distance`](mod@distance).
use kernels::Real;
use rnnt_dp::semiring::{Average, Mean};

use crate::{
    AlignmentLattice, Arcs, ArcsMut, BoundWeights, Context, Error, Frames, LatticeOutput, RecognitionLattice,
    Result,
    distance::{self, Distance, FrameArc},
    error::expect_len,
    execution::check_weights,
};

/// What a mean is of.
#[derive(Clone, Copy)]
pub enum Quantity<'a> {
    /// Entropy of the distribution over paths, in nats.
    Entropy,
    /// Sum over a path of what its arcs cost, by frame and arc. Arcs that are blocked are not asked.
    Cost(&'a dyn Fn(usize, FrameArc) -> f64),
}

/// A mean over the paths of an utterance, and its gradient.
#[derive(Debug, Clone, PartialEq)]
pub struct Expected {
    /// `log D`; -inf where all paths are blocked.
    pub log_sum: f64,
    /// The mean; +inf where all paths are blocked.
    pub mean: f64,
    /// Gradient of the weights of blank arcs, *N x C*.
    pub blank: Vec<f64>,
    /// Gradient of the weights of lexical arcs, *N x C x V*.
    pub lexical: Vec<f64>,
}

/// What an arc costs that differs from a reference: 1 if the label that it takes from its alignment state is another one. The
/// reference has an entry for each frame and alignment state, *T x A*, as a [`LatticePath`](crate::LatticePath) has; 0 where it ends.
///
/// ```
/// use lattice::{AlignmentLattice, FullNGram, Arcs, expectation::{differs, expected, Quantity}};
/// let (context, alignment) = (FullNGram::new(1, 0)?, AlignmentLattice::FrameDependent);
/// let arcs = Arcs { blank: &[0.0; 2], lexical: &[0.0; 2] }; // two frames, in each a blank or a label
/// let cost = differs(alignment, &[1, 0]);
/// let risk = expected(&context, alignment, arcs, Quantity::Cost(&cost))?;
/// assert!((risk.mean - 1.0).abs() < 1e-12 && (risk.lexical[0] + 0.25).abs() < 1e-12);
/// let entropy = expected(&context, alignment, arcs, Quantity::Entropy)?;
/// assert!((entropy.mean - 4f64.ln()).abs() < 1e-12 && entropy.lexical[0].abs() < 1e-12);
/// # Ok::<(), lattice::Error>(())
/// ```
pub fn differs(alignment: AlignmentLattice, reference: &[u32]) -> impl Fn(usize, FrameArc) -> f64 {
    move |frame, arc| {
        let entry = frame * alignment.num_states() + arc.alignment;
        let label = reference.get(entry).map_or(0, |&label| label as usize);
        if label == arc.label { 0.0 } else { 1.0 }
    }
}

/// A mean over all paths of one utterance.
///
/// # Shapes
/// `arcs` *N x C* and *N x C x V*.
///
/// # Errors
/// Other lengths, weights whose sum is NaN or +inf, costs whose mean is not finite.
///
/// # Cost
/// Time *N A C V*, memory *N C* beside the result.
pub fn expected(
    context: &dyn Context,
    alignment: AlignmentLattice,
    arcs: Arcs<f64>,
    quantity: Quantity,
) -> Result<Expected> {
    let sizes = [context.states(), context.states() * context.vocabulary()];
    let frames = arcs.blank.len() / sizes[0];
    expect_len("arcs.blank", frames * sizes[0], arcs.blank.len())?;
    expect_len("arcs.lexical", frames * sizes[1], arcs.lexical.len())?;
    let of = |t: usize| Arcs {
        blank: &arcs.blank[t * sizes[0]..][..sizes[0]],
        lexical: &arcs.lexical[t * sizes[1]..][..sizes[1]],
    };
    let load = |t: usize, to: ArcsMut<f64>| {
        to.blank.copy_from_slice(of(t).blank);
        to.lexical.copy_from_slice(of(t).lexical);
    };
    let means = Means { context, alignment, quantity };
    let found = means.forward(frames, load);
    let mean = means.value(&found.total, 0)?;
    let (mut blank, mut lexical) = (vec![0.0; arcs.blank.len()], vec![0.0; arcs.lexical.len()]);
    let mut backward = means.backward(&found);
    while let Some((t, gradient)) = backward.step(load) {
        blank[t * sizes[0]..][..sizes[0]].copy_from_slice(gradient.blank);
        lexical[t * sizes[1]..][..sizes[1]].copy_from_slice(gradient.lexical);
    }
    Ok(Expected { log_sum: found.total.log_prob, mean, blank, lexical })
}

impl<F: Real> RecognitionLattice<'_, F> {
    /// A mean over all paths of each utterance, *B..*, of what `of` says for it; +inf where all paths are blocked.
    ///
    /// # Errors
    /// Frames that do not fit the lattice, arc weights whose sum is NaN or +inf, costs whose mean is not finite.
    ///
    /// # Cost
    /// Time *N A C V*, one arc after the other, and the arc weights; memory *N C* of an utterance, and one frame of arcs.
    pub fn expectations<'q>(
        &self,
        frames: &Frames<F>,
        of: impl Fn(usize) -> Quantity<'q>,
    ) -> Result<Vec<f64>> {
        self.check_frames(frames)?;
        let mut arcs = FrameArcs::new(self)?;
        let value = |utterance| {
            arcs.set_frames(frames, utterance)?;
            let means = self.means(of(utterance));
            let found = means.forward(frames.length(utterance), |t, to| arcs.load(t, to));
            means.value(&found.total, utterance)
        };
        (0..frames.utterances()).map(value).collect()
    }

    /// The same, as `sums`, and all gradients of `Σ_b weights[b] mean[b]`; none where all paths are blocked.
    ///
    /// # Errors
    /// As [`expectations`](Self::expectations), or not one finite weight for each utterance.
    ///
    /// # Cost
    /// About four times that of [`expectations`](Self::expectations).
    pub fn expectation_gradients<'q>(
        &self,
        frames: &Frames<F>,
        of: impl Fn(usize) -> Quantity<'q>,
        weights: &[f64],
    ) -> Result<LatticeOutput<F>> {
        self.check_frames(frames)?;
        check_weights(frames, weights)?;
        let mut arcs = FrameArcs::new(self)?;
        let mut sums = Vec::with_capacity(frames.utterances());
        let padded = frames.padded() * frames.size();
        let mut gradient = vec![F::ZERO; frames.utterances() * padded];
        for (utterance, &weight) in weights.iter().enumerate() {
            arcs.set_frames(frames, utterance)?;
            let means = self.means(of(utterance));
            let found = means.forward(frames.length(utterance), |t, to| arcs.load(t, to));
            sums.push(means.value(&found.total, utterance)?);
            let mut backward = means.backward(&found);
            while let Some((t, gradient)) = backward.step(|t, to| arcs.load(t, to)) {
                arcs.add_gradient(t, gradient, weight);
            }
            let rows = arcs.weights.frame_gradient(frames.of(utterance));
            gradient[utterance * padded..][..rows.len()].copy_from_slice(&rows);
        }
        Ok(LatticeOutput { sums, frames: gradient, parameters: arcs.weights.finish() })
    }

    fn means<'a>(&'a self, quantity: Quantity<'a>) -> Means<'a> {
        Means { context: self.context(), alignment: self.alignment(), quantity }
    }
}

/// A bound weight function and the arcs of one frame.
struct FrameArcs<'a, F: Real> {
    weights: Box<dyn BoundWeights<F> + 'a>,
    blank: Vec<F>,
    lexical: Vec<F>,
}

impl<'a, F: Real> FrameArcs<'a, F> {
    fn new(lattice: &RecognitionLattice<'a, F>) -> Result<Self> {
        let (states, labels) = (lattice.context().states(), lattice.context().vocabulary());
        let weights = lattice.weight_fn().bind(&mut Vec::new())?;
        Ok(Self { weights, blank: vec![F::ZERO; states], lexical: vec![F::ZERO; states * labels] })
    }

    fn set_frames(&mut self, frames: &Frames<F>, utterance: usize) -> Result<()> {
        self.weights.set_frames(frames.of(utterance), &vec![utterance as u32; frames.length(utterance)])
    }

    fn load(&mut self, t: usize, to: ArcsMut<f64>) {
        self.weights.forward(&[t], ArcsMut { blank: &mut self.blank, lexical: &mut self.lexical });
        to.blank.iter_mut().zip(&self.blank).for_each(|(to, w)| *to = w.to_f64());
        to.lexical.iter_mut().zip(&self.lexical).for_each(|(to, w)| *to = w.to_f64());
    }

    fn add_gradient(&mut self, t: usize, gradient: Arcs<f64>, weight: f64) {
        self.blank.iter_mut().zip(gradient.blank).for_each(|(to, g)| *to = F::from_f64(weight * g));
        self.lexical.iter_mut().zip(gradient.lexical).for_each(|(to, g)| *to = F::from_f64(weight * g));
        self.weights.backward(&[t], Arcs { blank: &self.blank, lexical: &self.lexical });
    }
}

/// A mean of one utterance.
struct Means<'a> {
    context: &'a dyn Context,
    alignment: AlignmentLattice,
    quantity: Quantity<'a>,
}

impl Means<'_> {
    /// Rows of arcs: what they cost may depend on the alignment state, their weights do not.
    fn rows(&self) -> usize {
        match self.quantity {
            Quantity::Entropy => 1,
            Quantity::Cost(_) => self.alignment.num_states(),
        }
    }

    fn sizes(&self) -> [usize; 2] {
        [self.context.states(), self.context.states() * self.context.vocabulary()]
    }

    /// Arcs of the semiring, *rows x C* and *rows x C x V*, from the weights of a frame.
    fn fill(&self, t: usize, from: Arcs<f64>, to: ArcsMut<Mean>) {
        let (states, labels) = (self.context.states(), self.context.vocabulary());
        let value = |log_prob: f64, arc: FrameArc| match self.quantity {
            Quantity::Entropy => Mean { log_prob, value: log_prob },
            Quantity::Cost(cost) if log_prob > f64::NEG_INFINITY => Mean { log_prob, value: cost(t, arc) },
            Quantity::Cost(_) => Mean { log_prob, value: 0.0 },
        };
        for (at, to) in to.blank.iter_mut().enumerate() {
            let (alignment, context) = (at / states, at % states);
            *to = value(from.blank[context], FrameArc { alignment, context, label: 0 });
        }
        for (at, to) in to.lexical.iter_mut().enumerate() {
            let (state, label) = (at / labels, at % labels + 1);
            let (alignment, context) = (state / states, state % states);
            *to = value(from.lexical[context * labels + label - 1], FrameArc { alignment, context, label });
        }
    }

    fn forward(&self, num_frames: usize, mut load: impl FnMut(usize, ArcsMut<f64>)) -> Distance<Mean> {
        let [mut blank, mut lexical] = self.sizes().map(|size| vec![0.0; size]);
        let fill = |t: usize, to: ArcsMut<Mean>| {
            load(t, ArcsMut { blank: &mut blank, lexical: &mut lexical });
            self.fill(t, Arcs { blank: &blank, lexical: &lexical }, to);
        };
        distance::forward::<Average>(self.context, self.alignment, num_frames, self.rows(), fill)
    }

    /// What the total means.
    fn value(&self, total: &Mean, utterance: usize) -> Result<f64> {
        if total.log_prob == f64::NEG_INFINITY {
            return Ok(f64::INFINITY);
        }
        if !total.log_prob.is_finite() {
            return Err(Error::Overflow { utterance, value: total.log_prob });
        }
        if !total.value.is_finite() {
            let found = format!("{} in utterance {utterance}", total.value);
            return Err(Error::shape("cost", "costs whose mean over paths is finite", found));
        }
        Ok(match self.quantity {
            Quantity::Entropy => total.log_prob - total.value,
            Quantity::Cost(_) => total.value,
        })
    }

    /// Derivative of the mean by the weight of an arc, from the mean over the paths through it.
    fn slope(&self, through: &Mean, total: &Mean) -> f64 {
        if through.log_prob == f64::NEG_INFINITY {
            return 0.0;
        }
        let slope = (through.log_prob - total.log_prob).exp() * (through.value - total.value);
        match self.quantity {
            Quantity::Entropy => -slope,
            Quantity::Cost(_) => slope,
        }
    }

    fn backward<'a>(&'a self, found: &'a Distance<Mean>) -> MeanBackward<'a> {
        let [blank, lexical] = self.sizes().map(|size| vec![0.0; size]);
        let steps = distance::DistanceBackward::new(self.context, self.alignment, self.rows());
        MeanBackward {
            means: self,
            found,
            left: found.alphas.len() / self.context.states(),
            steps,
            blank,
            lexical,
        }
    }
}

/// Gradients of the arc weights, the last frame first.
struct MeanBackward<'a> {
    means: &'a Means<'a>,
    found: &'a Distance<Mean>,
    /// Frames before the one that was last.
    left: usize,
    steps: distance::DistanceBackward<'a, Average>,
    blank: Vec<f64>,
    lexical: Vec<f64>,
}

impl MeanBackward<'_> {
    /// The next frame and its gradient, *C* and *C x V*.
    fn step(&mut self, mut load: impl FnMut(usize, ArcsMut<f64>)) -> Option<(usize, Arcs<'_, f64>)> {
        let t = self.left.checked_sub(1)?;
        self.left = t;
        let Self { means, found, steps, blank, lexical, .. } = self;
        let states = means.context.states();
        let through = steps.step(&found.alphas[t * states..][..states], |to| {
            load(t, ArcsMut { blank, lexical });
            means.fill(t, Arcs { blank, lexical }, to);
        });
        add_up(blank, &through.blank, |mean| means.slope(mean, &found.total));
        add_up(lexical, &through.lexical, |mean| means.slope(mean, &found.total));
        Some((t, Arcs { blank, lexical }))
    }
}

/// Sums over alignment states.
fn add_up(out: &mut [f64], through: &[Mean], slope: impl Fn(&Mean) -> f64) {
    out.fill(0.0);
    for row in through.chunks_exact(out.len()) {
        out.iter_mut().zip(row).for_each(|(out, mean)| *out += slope(mean));
    }
}
