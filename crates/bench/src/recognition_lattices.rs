//! Benchmark of recognition lattices: training steps, best paths, denominators.
use std::array::from_fn;

use lattice::{
    AlignmentLattice, Context, Embeddings, Frames, FullNGram, JointWeightFn, Labels, LatticeOutput,
    LatticePath, LatticeSession, Options, PathSum, RecognitionLattice, WeightFn,
};

use super::case::{Budget, Method, RecognitionWork};
use super::error::{Error, Result};
use super::gradients::{GradientValues, NamedGradients};
use super::inputs::{noise, random_labels};
use super::workload::CaseShape;
use super::workload::Workload;

/// Returns the options of a session.
fn session_options(budget: Budget) -> Options {
    let (budget, keep_weights) = budget.limit();
    Options { budget, keep_weights }
}

/// Number of labels, V.
const VOCABULARY: usize = 32;
/// Widths H, E and F: joint network, context embeddings, frame features.
const WIDTH: usize = 512;
/// Relative tolerance of sums of `f32` weights.
const WEIGHT_TOLERANCE: f64 = 1e-5;
/// Arcs per state.
const ARCS_PER_STATE: usize = VOCABULARY + 1;

/// Names of the parameters in [`lattice::Parameters`] and in gradient files.
const PARAMETER_NAMES: [(&str, &str); 8] = [
    ("weight_fn_cacher/context_embeddings", "context-embeddings"),
    ("weight_fn/project_context_embeddings/kernel", "project-context"),
    ("weight_fn/project_frame/kernel", "project-frame"),
    ("weight_fn/joint_bias", "joint-bias"),
    ("weight_fn/Dense_0/kernel", "blank"),
    ("weight_fn/Dense_0/bias", "blank-bias"),
    ("weight_fn/Dense_1/kernel", "lexical"),
    ("weight_fn/Dense_1/bias", "lexical-bias"),
];

impl RecognitionWork {
    /// Returns the number C of context states: strings of at most `context` labels.
    pub(crate) fn states(&self) -> usize {
        (0..=self.context as u32).map(|length| VOCABULARY.pow(length)).sum()
    }

    /// Returns the number of sites, B T C.
    pub(crate) fn sites(&self) -> usize {
        self.batch * self.frames * self.states()
    }

    /// Returns the sizes for reports; classes include the blank.
    pub(crate) fn shape(&self) -> CaseShape {
        CaseShape {
            B: Some(self.batch),
            T: Some(self.frames),
            U: Some(self.labels),
            H: Some(WIDTH),
            C: Some(ARCS_PER_STATE),
            N: Some(self.sites()),
        }
    }

    /// Returns the number of values of each parameter of [`PARAMETER_NAMES`].
    fn parameter_sizes(&self) -> [usize; PARAMETER_NAMES.len()] {
        let square = WIDTH * WIDTH;
        [self.states() * WIDTH, square, square, WIDTH, WIDTH, 1, WIDTH * VOCABULARY, VOCABULARY]
    }

    /// Returns the bytes of frames and parameters in `f32`, as of gradients.
    pub(crate) fn input_bytes(&self) -> u64 {
        let frames = self.batch * self.frames * WIDTH;
        4 * (frames + self.parameter_sizes().iter().sum::<usize>()) as u64
    }

    /// Returns the floating-point operations that a step requires.
    ///
    /// Counts the matrix products of both projections, of the output layer over all states, and for
    /// a loss of the two arcs per numerator site. Backward has two products per forward product;
    /// arc weights that are not kept are computed once more.
    fn operations(&self, step: &LatticeStep) -> u64 {
        let frames = self.batch * self.frames;
        let projections = WIDTH * (self.states() + frames);
        let (denominator, numerator) = (ARCS_PER_STATE * self.sites(), 2 * frames * (self.labels + 1));
        let products = match step {
            LatticeStep::Train(Budget::Unlimited) => 3 * (projections + denominator + numerator),
            LatticeStep::Train(_) => 3 * (projections + numerator) + 4 * denominator,
            LatticeStep::BestPath | LatticeStep::Denominator => projections + denominator,
        };
        2 * (WIDTH * products) as u64
    }
}

/// Task of a step.
enum LatticeStep {
    /// Loss and gradients.
    Train(Budget),
    /// Best path of each utterance.
    BestPath,
    /// Sum over all paths of each utterance.
    Denominator,
}

/// A synthetic model and batch.
struct RecognitionBatch {
    work: RecognitionWork,
    context: FullNGram,
    /// Parameters in the order of [`PARAMETER_NAMES`].
    parameters: [Vec<f32>; PARAMETER_NAMES.len()],
    /// Frames `[B, T, F]`.
    frames: Vec<f32>,
    /// Labels `[B, U]`.
    labels: Vec<u32>,
}

impl RecognitionBatch {
    /// Draws parameters, frames and labels.
    fn synthetic(work: RecognitionWork) -> Result<Self> {
        // LeCun uniform initialization and zero biases, as in the reference implementation.
        let lecun = (3.0 / WIDTH as f32).sqrt();
        let scales = [lecun, lecun, lecun, 0.0, lecun, 0.0, lecun, 0.0];
        let sizes = work.parameter_sizes();
        Ok(Self {
            work,
            context: FullNGram::new(VOCABULARY, work.context)?,
            parameters: from_fn(|index| noise(400 + index as u64, sizes[index], scales[index])),
            frames: noise(410, work.batch * work.frames * WIDTH, 3f32.sqrt()),
            labels: random_labels(411, work.batch * work.labels, VOCABULARY + 1),
        })
    }

    /// Returns the weight function of the parameters.
    fn weight_fn(&self) -> JointWeightFn<'_, f32> {
        let [embeddings, context, frame, bias, blank_kernel, blank_bias, label_kernel, label_bias] =
            &self.parameters;
        JointWeightFn {
            embeddings: Embeddings::Table(embeddings),
            states: self.context.states(),
            vocabulary: VOCABULARY,
            project_context: context,
            project_frame: frame,
            joint_bias: bias,
            blank_kernel,
            blank_bias,
            label_kernel,
            label_bias,
        }
    }

    fn frames(&self) -> Result<Frames<'_, f32>> {
        let RecognitionWork { batch, frames, .. } = self.work;
        Ok(Frames::new(&self.frames, &[batch, frames, WIDTH], &vec![frames; batch])?)
    }

    fn labels(&self) -> Result<Labels<'_>> {
        let RecognitionWork { batch, labels, .. } = self.work;
        Ok(Labels::new(&self.labels, &[batch, labels], &vec![labels; batch])?)
    }

    /// Checks the weights of best paths against arcs and denominators.
    ///
    /// The weight of a path is the sum of its arc weights, computed one state at a time. Of
    /// (V + 1)^N paths none is above their sum, and the best one is not below their mean.
    fn check(&self, paths: &[LatticePath], sums: &[f64]) -> Result<()> {
        let RecognitionWork { batch, frames, .. } = self.work;
        let weight_fn = self.weight_fn();
        let mut bound_weights = weight_fn.bind(&mut Vec::new())?;
        let utterance_of = |frame: usize| (frame / frames) as u32;
        bound_weights.set_frames(&self.frames, &(0..batch * frames).map(utterance_of).collect::<Vec<_>>())?;
        let mut label_arcs = vec![0.0; VOCABULARY];
        for (utterance, (path, &sum)) in paths.iter().zip(sums).enumerate() {
            // Weight of the path from its arcs.
            let (mut state, mut weight) = (self.context.start(), 0.0);
            for (t, &label) in path.alignment.iter().enumerate() {
                let blank = bound_weights.forward_state(utterance * frames + t, state, &mut label_arcs);
                weight += f64::from(if label == 0 { blank } else { label_arcs[label as usize - 1] });
                state = self.context.next_state(state, label as usize);
            }
            let tolerance = WEIGHT_TOLERANCE * (1.0 + sum.abs());
            let mean = sum - frames as f64 * (ARCS_PER_STATE as f64).ln();
            if path.alignment.len() != frames
                || !((path.weight - weight).abs() <= tolerance
                    && (mean - tolerance..=sum + tolerance).contains(&weight))
            {
                let expected = format!("{frames} frames and weight {weight} between {mean} and {sum}");
                let actual = format!("{} and {}", path.alignment.len(), path.weight);
                return Err(Error::BestPath { utterance, expected, found: actual });
            }
        }
        Ok(())
    }
}

/// A session on a batch; buffers are reused, as in training.
struct RecognitionWorkload {
    batch: RecognitionBatch,
    session: LatticeSession<f32>,
    step: LatticeStep,
    /// Best paths or sums of the last step.
    result: LatticeResult,
}

/// Result of a step that has no gradients.
enum LatticeResult {
    None,
    Paths(Vec<LatticePath>),
    Sums(Vec<f64>),
}

/// Creates a synthetic model, its batch, and the workload of a method.
///
/// # Errors
/// If the lattice does not support the sizes.
pub(crate) fn prepare(work: RecognitionWork, method: &Method) -> Result<Box<dyn Workload>> {
    let (step, budget) = match *method {
        Method::Panda { budget, .. } => (LatticeStep::Train(budget), budget),
        Method::BestPath => (LatticeStep::BestPath, Budget::Recompute),
        _ => (LatticeStep::Denominator, Budget::Recompute),
    };
    let session = LatticeSession::new(session_options(budget));
    Ok(Box::new(RecognitionWorkload {
        batch: RecognitionBatch::synthetic(work)?,
        session,
        step,
        result: LatticeResult::None,
    }))
}

impl Workload for RecognitionWorkload {
    fn shape(&self) -> CaseShape {
        self.batch.work.shape()
    }

    fn result_bytes(&self) -> u64 {
        let RecognitionWork { batch, frames, .. } = self.batch.work;
        match self.step {
            LatticeStep::Train(_) => self.batch.work.input_bytes() + 8 * batch as u64,
            LatticeStep::BestPath => (batch * (4 * frames + size_of::<LatticePath>())) as u64,
            LatticeStep::Denominator => 8 * batch as u64,
        }
    }

    fn operations(&self) -> Option<u64> {
        Some(self.batch.work.operations(&self.step))
    }

    fn step(&mut self) -> Result<NamedGradients> {
        self.result = LatticeResult::None;
        let Self { batch, session, step, result } = self;
        let weight_fn = batch.weight_fn();
        let lattice = RecognitionLattice::new(&batch.context, AlignmentLattice::FrameDependent, &weight_fn)?;
        let frames = batch.frames()?;
        match step {
            LatticeStep::Train(_) => {
                let out = session.sum(&lattice, &frames, &batch.labels()?, &vec![1.0; batch.work.batch])?;
                return Ok(named_gradients(out));
            }
            LatticeStep::BestPath => *result = LatticeResult::Paths(session.best_paths(&lattice, &frames)?),
            LatticeStep::Denominator => {
                *result =
                    LatticeResult::Sums(session.distances(PathSum::Denominator, &lattice, &frames, None)?)
            }
        }
        Ok(Vec::new())
    }

    /// Checks best paths and sums; gradients are compared with the other training step.
    fn check(&mut self) -> Result<()> {
        let batch = &self.batch;
        let weight_fn = batch.weight_fn();
        let lattice = RecognitionLattice::new(&batch.context, AlignmentLattice::FrameDependent, &weight_fn)?;
        let (frames, mut session) =
            (batch.frames()?, LatticeSession::new(session_options(Budget::Recompute)));
        match &self.result {
            LatticeResult::None => Ok(()),
            LatticeResult::Paths(paths) => {
                batch.check(paths, &session.distances(PathSum::Denominator, &lattice, &frames, None)?)
            }
            LatticeResult::Sums(sums) => batch.check(&session.best_paths(&lattice, &frames)?, sums),
        }
    }
}

/// Returns losses and gradients by name.
fn named_gradients(mut out: LatticeOutput<f32>) -> NamedGradients {
    let parameters = PARAMETER_NAMES.map(|(parameter, name)| {
        (name, GradientValues::Single(out.parameters.remove(parameter).unwrap_or_default()))
    });
    let losses_and_frames =
        [("losses", GradientValues::Double(out.sums)), ("frames", GradientValues::Single(out.frames))];
    losses_and_frames.into_iter().chain(parameters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: RecognitionWork = RecognitionWork { batch: 2, frames: 7, labels: 3, context: 1 };

    fn workload_with(step: LatticeStep) -> RecognitionWorkload {
        let session = LatticeSession::new(session_options(Budget::Recompute));
        RecognitionWorkload {
            batch: RecognitionBatch::synthetic(SMALL).unwrap(),
            session,
            step,
            result: LatticeResult::None,
        }
    }

    #[test]
    fn every_parameter_has_a_gradient() {
        let gradients = workload_with(LatticeStep::Train(Budget::Recompute)).step().unwrap();
        let counts = gradients.iter().map(|(name, values)| match values {
            GradientValues::Single(values) => {
                let squared_norm: f32 = values.iter().map(|x| x * x).sum();
                assert!(squared_norm.is_finite() && squared_norm > 0.0, "{name}: {squared_norm}");
                values.len()
            }
            _ => 0,
        });
        let expected = [0, 2 * 7 * WIDTH].into_iter().chain(SMALL.parameter_sizes());
        assert_eq!(counts.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }

    #[test]
    fn best_paths_and_sums_are_checked() {
        for step in [LatticeStep::BestPath, LatticeStep::Denominator] {
            let mut workload = workload_with(step);
            workload.step().unwrap();
            workload.check().unwrap();
            match &mut workload.result {
                LatticeResult::Paths(paths) => {
                    paths[1].alignment[3] = (paths[1].alignment[3] + 1) % ARCS_PER_STATE as u32
                }
                LatticeResult::Sums(sums) => sums[1] += 7.0 * (ARCS_PER_STATE as f64).ln(),
                LatticeResult::None => unreachable!(),
            }
            let error = workload.check().unwrap_err().to_string();
            assert!(error.starts_with("utterance 1: expected a best path"), "{error}");
        }
    }

    #[test]
    fn operations_match_the_formulas() {
        let work = RecognitionWork { batch: 16, frames: 1024, labels: 256, context: 2 };
        let frames = 16 * 1024;
        assert_eq!(work.states(), 1057);
        // 2 operations for each of 512 units; 33 arcs of 1057 states, 2 arcs of 257 positions.
        let denominator = 2 * 512 * 33 * 1057 * frames;
        let numerator = 2 * 512 * 2 * 257 * frames;
        let projections = 2 * 512 * 512 * (1057 + frames);
        assert_eq!(work.operations(&LatticeStep::BestPath), denominator + projections);
        let train = |budget| work.operations(&LatticeStep::Train(budget));
        assert_eq!(train(Budget::Recompute), 4 * denominator + 3 * (numerator + projections));
        assert_eq!(train(Budget::Unlimited), 3 * (denominator + numerator + projections));
    }
}
