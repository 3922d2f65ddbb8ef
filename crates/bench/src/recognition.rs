//! Recognition lattices as the subject of a measurement: frames and labels are given, a training step, a best path or a
//! denominator is wanted.
use std::array::from_fn;

use lattice::{
    AlignmentLattice, Context, Embeddings, Frames, FullNGram, JointWeightFn, Labels, LatticeOutput,
    LatticePath, LatticeSession, Options, PathSum, RecognitionLattice, WeightFn,
};

use super::answer::CaseShape;
use super::answer::Workload;
use super::case::{Budget, Method, RecognitionWork};
use super::error::{Error, Result};
use super::gradients::{GradientValues, NamedGradients};
use super::inputs::{labels, noise};

/// Memory of a session.
fn options(budget: Budget) -> Options {
    let (budget, keep_weights) = budget.limit();
    Options { budget, keep_weights }
}

/// V
const VOCABULARY: usize = 32;
/// H, E and F.
const WIDTH: usize = 512;
/// How far sums of `f32` weights may be off, by what they are.
const CLOSE: f64 = 1e-5;
/// Arcs of a state.
const ARCS: usize = VOCABULARY + 1;

/// Parameters: their names in [`lattice::Parameters`] and in a table or file.
const NAMES: [(&str, &str); 8] = [
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
    /// C, the strings of at most so many labels.
    pub fn states(&self) -> usize {
        (0..=self.context as u32).map(|length| VOCABULARY.pow(length)).sum()
    }

    /// B T C
    pub fn sites(&self) -> usize {
        self.batch * self.frames * self.states()
    }

    /// As it is reported; the blank is a class.
    pub fn shape(&self) -> CaseShape {
        CaseShape {
            B: Some(self.batch),
            T: Some(self.frames),
            U: Some(self.labels),
            H: Some(WIDTH),
            C: Some(ARCS),
            N: Some(self.sites()),
        }
    }

    /// Values of each parameter, in the order of [`NAMES`].
    fn lengths(&self) -> [usize; NAMES.len()] {
        let square = WIDTH * WIDTH;
        [self.states() * WIDTH, square, square, WIDTH, WIDTH, 1, WIDTH * VOCABULARY, VOCABULARY]
    }

    /// Bytes of frames and parameters in `f32`; their gradients take as many.
    pub fn input_bytes(&self) -> u64 {
        let frames = self.batch * self.frames * WIDTH;
        4 * (frames + self.lengths().iter().sum::<usize>()) as u64
    }

    /// Floating-point operations of the products that a step needs: both projections; the output layer over all states; and for
    /// a loss the two arcs of each site of the strings. Backward is two products for each forward; weights of all arcs that are
    /// not kept take one more.
    fn operations(&self, step: &LatticeStep) -> u64 {
        let frames = self.batch * self.frames;
        let projections = WIDTH * (self.states() + frames);
        let (all, strings) = (ARCS * self.sites(), 2 * frames * (self.labels + 1));
        let products = match step {
            LatticeStep::Train(Budget::Unlimited) => 3 * (projections + all + strings),
            LatticeStep::Train(_) => 3 * (projections + strings) + 4 * all,
            LatticeStep::BestPath | LatticeStep::Denominator => projections + all,
        };
        2 * (WIDTH * products) as u64
    }
}

/// What is wanted.
enum LatticeStep {
    Train(Budget),
    BestPath,
    Denominator,
}

/// A made-up model and batch.
struct RecognitionBatch {
    work: RecognitionWork,
    context: FullNGram,
    /// In the order of [`NAMES`].
    parameters: [Vec<f32>; NAMES.len()],
    /// *B x T x F*
    frames: Vec<f32>,
    /// *B x U*
    labels: Vec<u32>,
}

impl RecognitionBatch {
    fn synthetic(work: RecognitionWork) -> Result<Self> {
        // Uniform numbers whose variance is 1 by fan-in, and no biases, as the reference implementation begins.
        let lecun = (3.0 / WIDTH as f32).sqrt();
        let scales = [lecun, lecun, lecun, 0.0, lecun, 0.0, lecun, 0.0];
        let lengths = work.lengths();
        Ok(Self {
            work,
            context: FullNGram::new(VOCABULARY, work.context)?,
            parameters: from_fn(|place| noise(400 + place as u64, lengths[place], scales[place])),
            frames: noise(410, work.batch * work.frames * WIDTH, 3f32.sqrt()),
            labels: labels(411, work.batch * work.labels, VOCABULARY + 1),
        })
    }

    fn weights(&self) -> JointWeightFn<'_, f32> {
        let [embeddings, context, frame, bias, blank, blank_bias, lexical, lexical_bias] = &self.parameters;
        JointWeightFn {
            embeddings: Embeddings::Table(embeddings),
            states: self.context.states(),
            vocabulary: VOCABULARY,
            project_context: context,
            project_frame: frame,
            joint_bias: bias,
            blank,
            blank_bias,
            lexical,
            lexical_bias,
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

    /// Fails unless a path weighs what its arcs do, one state at a time, and has its place in the sum: of (V + 1)^N paths
    /// none is above their sum, and the best one is not below their mean.
    fn check(&self, paths: &[LatticePath], sums: &[f64]) -> Result<()> {
        let RecognitionWork { batch, frames, .. } = self.work;
        let weights = self.weights();
        let mut opened = weights.bind(&mut Vec::new())?;
        let of = |site: usize| (site / frames) as u32;
        opened.set_frames(&self.frames, &(0..batch * frames).map(of).collect::<Vec<_>>())?;
        let mut lexical = vec![0.0; VOCABULARY];
        for (utterance, (path, &sum)) in paths.iter().zip(sums).enumerate() {
            let (mut state, mut weight) = (self.context.start(), 0.0);
            for (t, &label) in path.alignment.iter().enumerate() {
                let blank = opened.forward_state(utterance * frames + t, state, &mut lexical);
                weight += f64::from(if label == 0 { blank } else { lexical[label as usize - 1] });
                state = self.context.next_state(state, label as usize);
            }
            let near = CLOSE * (1.0 + sum.abs());
            let mean = sum - frames as f64 * (ARCS as f64).ln();
            if path.alignment.len() != frames
                || !((path.weight - weight).abs() <= near && (mean - near..=sum + near).contains(&weight))
            {
                let expected = format!("{frames} frames and weight {weight} between {mean} and {sum}");
                let found = format!("{} and {}", path.alignment.len(), path.weight);
                return Err(Error::BestPath { utterance, expected, found });
            }
        }
        Ok(())
    }
}

/// A session on a batch, with buffers that stay, as in training.
struct Recognition {
    batch: RecognitionBatch,
    session: LatticeSession<f32>,
    step: LatticeStep,
    /// Best paths or sums of the last step.
    found: LatticeResult,
}

enum LatticeResult {
    Nothing,
    Paths(Vec<LatticePath>),
    Sums(Vec<f64>),
}

/// A made-up model and batch, and what is wanted of it.
///
/// # Errors
/// Sizes that the lattice refuses.
pub fn prepare(work: RecognitionWork, method: &Method) -> Result<Box<dyn Workload>> {
    let (step, budget) = match *method {
        Method::Ours { budget, .. } => (LatticeStep::Train(budget), budget),
        Method::BestPath => (LatticeStep::BestPath, Budget::Recompute),
        _ => (LatticeStep::Denominator, Budget::Recompute),
    };
    let session = LatticeSession::new(options(budget));
    Ok(Box::new(Recognition {
        batch: RecognitionBatch::synthetic(work)?,
        session,
        step,
        found: LatticeResult::Nothing,
    }))
}

impl Workload for Recognition {
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
        self.found = LatticeResult::Nothing;
        let Self { batch, session, step, found } = self;
        let weights = batch.weights();
        let lattice = RecognitionLattice::new(&batch.context, AlignmentLattice::FrameDependent, &weights)?;
        let frames = batch.frames()?;
        match step {
            LatticeStep::Train(_) => {
                let out = session.sum(&lattice, &frames, &batch.labels()?, &vec![1.0; batch.work.batch])?;
                return Ok(gradients(out));
            }
            LatticeStep::BestPath => *found = LatticeResult::Paths(session.best_paths(&lattice, &frames)?),
            LatticeStep::Denominator => {
                *found =
                    LatticeResult::Sums(session.distances(PathSum::Denominator, &lattice, &frames, None)?)
            }
        }
        Ok(Vec::new())
    }

    /// Gradients are compared with those of the other training step.
    fn check(&mut self) -> Result<()> {
        let batch = &self.batch;
        let weights = batch.weights();
        let lattice = RecognitionLattice::new(&batch.context, AlignmentLattice::FrameDependent, &weights)?;
        let (frames, mut session) = (batch.frames()?, LatticeSession::new(options(Budget::Recompute)));
        match &self.found {
            LatticeResult::Nothing => Ok(()),
            LatticeResult::Paths(paths) => {
                batch.check(paths, &session.distances(PathSum::Denominator, &lattice, &frames, None)?)
            }
            LatticeResult::Sums(sums) => batch.check(&session.best_paths(&lattice, &frames)?, sums),
        }
    }
}

/// Losses and gradients, by name.
fn gradients(mut out: LatticeOutput<f32>) -> NamedGradients {
    let parameters = NAMES.map(|(theirs, name)| {
        (name, GradientValues::Single(out.parameters.remove(theirs).unwrap_or_default()))
    });
    let rest = [("losses", GradientValues::Double(out.sums)), ("frames", GradientValues::Single(out.frames))];
    rest.into_iter().chain(parameters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: RecognitionWork = RecognitionWork { batch: 2, frames: 7, labels: 3, context: 1 };

    fn prepared(step: LatticeStep) -> Recognition {
        let session = LatticeSession::new(options(Budget::Recompute));
        Recognition {
            batch: RecognitionBatch::synthetic(SMALL).unwrap(),
            session,
            step,
            found: LatticeResult::Nothing,
        }
    }

    #[test]
    fn every_parameter_has_a_gradient() {
        let gradients = prepared(LatticeStep::Train(Budget::Recompute)).step().unwrap();
        let lengths = gradients.iter().map(|(name, values)| match values {
            GradientValues::Single(values) => {
                let length: f32 = values.iter().map(|x| x * x).sum();
                assert!(length.is_finite() && length > 0.0, "{name}: {length}");
                values.len()
            }
            _ => 0,
        });
        let expected = [0, 2 * 7 * WIDTH].into_iter().chain(SMALL.lengths());
        assert_eq!(lengths.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }

    #[test]
    fn best_paths_and_sums_are_checked() {
        for step in [LatticeStep::BestPath, LatticeStep::Denominator] {
            let mut subject = prepared(step);
            subject.step().unwrap();
            subject.check().unwrap();
            match &mut subject.found {
                LatticeResult::Paths(paths) => {
                    paths[1].alignment[3] = (paths[1].alignment[3] + 1) % ARCS as u32
                }
                LatticeResult::Sums(sums) => sums[1] += 7.0 * (ARCS as f64).ln(),
                LatticeResult::Nothing => unreachable!(),
            }
            let error = subject.check().unwrap_err().to_string();
            assert!(error.starts_with("utterance 1: expected a best path"), "{error}");
        }
    }

    #[test]
    fn operations_are_those_of_the_specification_and_of_projections() {
        let work = RecognitionWork { batch: 16, frames: 1024, labels: 256, context: 2 };
        let frames = 16 * 1024;
        assert_eq!(work.states(), 1057);
        let all = 2 * 512 * 33 * 1057 * frames;
        let strings = 2 * 512 * 2 * 257 * frames;
        let projections = 2 * 512 * 512 * (1057 + frames);
        assert_eq!(work.operations(&LatticeStep::BestPath), all + projections);
        let train = |budget| work.operations(&LatticeStep::Train(budget));
        assert_eq!(train(Budget::Recompute), 4 * all + 3 * (strings + projections));
        assert_eq!(train(Budget::Unlimited), 3 * (all + strings + projections));
    }
}
