//! Helper of the lattice tests: random batches with a joint network.
//!
//! A [`Problem`] owns frames, labels and parameters, and lends them to a test as a lattice.
use lattice::{
    AlignmentLattice, Context, Embeddings, Frames, FullNGram, JointWeightFn, Labels, LocallyNormalized,
    Normalize, Parameters, RecognitionLattice, SharedRnn, WeightFn,
};
use panda_core::Real;

use crate::common::{narrow, random, widened};

const GATES: [&str; 4] = ["i", "f", "g", "o"];

/// A batch with the parameters of its weights.
///
/// It has at most one leading axis.
#[derive(Clone)]
pub(crate) struct Problem<F> {
    pub context: FullNGram,
    pub alignment: AlignmentLattice,
    pub normalize: Option<Normalize>,
    /// Whether an LSTM computes the embeddings.
    pub has_rnn: bool,
    /// By their names in a joint network that is not normalized.
    pub parameters: Parameters<F>,
    pub axes: Vec<usize>,
    /// T
    pub padded: usize,
    /// U
    pub padded_labels: usize,
    /// *B x T x 2*
    pub frames: Vec<F>,
    pub num_frames: Vec<usize>,
    pub labels: Vec<u32>,
    pub num_labels: Vec<usize>,
}

/// Number of features of a frame.
pub(crate) const FEATURES: usize = 2;

impl<F: Real> Problem<F> {
    /// Creates utterances of `lengths`: the numbers of frames and labels of each.
    ///
    /// The context is a full n-gram; `expansions` is the largest number of labels of a frame, none
    /// if a label ends the frame.
    pub(crate) fn random(
        (vocabulary, order): (usize, usize),
        expansions: Option<usize>,
        (hidden, has_rnn): (usize, bool),
        lengths: &[(usize, usize)],
    ) -> Self {
        let context = FullNGram::new(vocabulary, order).unwrap();
        let (c, e) = (context.states(), 3);
        // Name, number of elements and scale of each parameter.
        let mut shapes: Vec<(String, usize, f64)> = [
            ("project_context_embeddings/kernel", e * hidden, 0.9),
            ("project_frame/kernel", FEATURES * hidden, 1.2),
            ("joint_bias", hidden, 0.3),
            ("Dense_0/kernel", hidden, 1.5),
            ("Dense_0/bias", 1, 1.0),
            ("Dense_1/kernel", hidden * vocabulary, 1.5),
            ("Dense_1/bias", vocabulary, 1.0),
        ]
        .map(|(name, size, scale)| (format!("weight_fn/{name}"), size, scale))
        .to_vec();
        let cacher = |name: &str| format!("weight_fn_cacher/{name}");
        if has_rnn {
            shapes.push((cacher("Embed_0/embedding"), (vocabulary + 1) * 2, 1.0));
            for gate in GATES {
                shapes.push((cacher(&format!("rnn_cell/i{gate}/kernel")), 2 * e, 1.0));
                shapes.push((cacher(&format!("rnn_cell/h{gate}/kernel")), e * e, 1.0));
                shapes.push((cacher(&format!("rnn_cell/h{gate}/bias")), e, 0.5));
            }
        } else {
            shapes.push((cacher("context_embeddings"), c * e, 1.0));
        }
        let parameters =
            (1..).zip(shapes).map(|(seed, (name, size, scale))| (name, random(size, seed, scale)));
        let padded = lengths.iter().map(|&(frames, _)| frames).max().unwrap_or(0);
        let padded_labels = lengths.iter().map(|&(_, labels)| labels).max().unwrap_or(0);
        Self {
            context,
            alignment: match expansions {
                None => AlignmentLattice::FrameDependent,
                Some(expansions) => AlignmentLattice::frame_label_dependent(expansions).unwrap(),
            },
            normalize: None,
            has_rnn,
            parameters: parameters.collect(),
            axes: vec![lengths.len()],
            padded,
            padded_labels,
            frames: random(lengths.len() * padded * FEATURES, 90, 1.0),
            num_frames: lengths.iter().map(|&(frames, _)| frames).collect(),
            labels: (0..lengths.len() * padded_labels).map(|i| (i * 7 % vocabulary) as u32 + 1).collect(),
            num_labels: lengths.iter().map(|&(_, labels)| labels).collect(),
        }
    }

    /// Converts parameters and frames to a type.
    pub(crate) fn cast<G: Real>(&self) -> Problem<G> {
        let cast = |values: &[F]| narrow::<G>(&widened(values));
        let parameters = self.parameters.iter().map(|(name, values)| (name.clone(), cast(values))).collect();
        let Self { context, alignment, normalize, has_rnn, .. } = *self;
        Problem {
            context,
            alignment,
            normalize,
            has_rnn,
            parameters,
            axes: self.axes.clone(),
            padded: self.padded,
            padded_labels: self.padded_labels,
            frames: cast(&self.frames),
            num_frames: self.num_frames.clone(),
            labels: self.labels.clone(),
            num_labels: self.num_labels.clone(),
        }
    }

    /// Returns one utterance alone, without a leading axis and without padding.
    pub(crate) fn single(&self, utterance: usize) -> Self {
        let (frame_count, label_count) = (self.num_frames[utterance], self.num_labels[utterance]);
        let frames = &self.frames[utterance * self.padded * FEATURES..][..frame_count * FEATURES];
        let labels = &self.labels[utterance * self.padded_labels..][..label_count];
        Self {
            axes: Vec::new(),
            padded: frame_count,
            padded_labels: label_count,
            frames: frames.to_vec(),
            num_frames: vec![frame_count],
            labels: labels.to_vec(),
            num_labels: vec![label_count],
            ..self.clone()
        }
    }

    /// Returns the batch with more padding of other values.
    pub(crate) fn padded(&self, extra: usize, value: f64, label: u32) -> Self {
        let (padded, padded_labels) = (self.padded + extra, self.padded_labels + extra);
        let (mut frames, mut labels) = (Vec::new(), Vec::new());
        for utterance in 0..self.num_frames.len() {
            let single = self.single(utterance);
            frames.extend(single.frames);
            frames.resize((utterance + 1) * padded * FEATURES, F::from_f64(value));
            labels.extend(single.labels);
            labels.resize((utterance + 1) * padded_labels, label);
        }
        Self { padded, padded_labels, frames, labels, ..self.clone() }
    }

    /// Calls a function with the lattice, frames and labels.
    pub(crate) fn with<T>(&self, run: impl FnOnce(&RecognitionLattice<F>, &Frames<F>, &Labels) -> T) -> T {
        let parameter = |name: &str| self.parameters[&format!("weight_fn/{name}")].as_slice();
        let cacher = |name: &str| self.parameters[&format!("weight_fn_cacher/{name}")].as_slice();
        let gates = |from: &str, what: &str| {
            GATES.map(|gate| {
                self.parameters[&format!("weight_fn_cacher/rnn_cell/{from}{gate}/{what}")].as_slice()
            })
        };
        let embeddings = match self.has_rnn {
            false => Embeddings::Table(cacher("context_embeddings")),
            true => Embeddings::Rnn(SharedRnn {
                vocabulary: self.context.vocabulary(),
                order: self.context.order(),
                embedding: cacher("Embed_0/embedding"),
                input: gates("i", "kernel"),
                recurrent: gates("h", "kernel"),
                bias: gates("h", "bias"),
            }),
        };
        let joint = JointWeightFn {
            embeddings,
            states: self.context.states(),
            vocabulary: self.context.vocabulary(),
            project_context: parameter("project_context_embeddings/kernel"),
            project_frame: parameter("project_frame/kernel"),
            joint_bias: parameter("joint_bias"),
            blank_kernel: parameter("Dense_0/kernel"),
            blank_bias: parameter("Dense_0/bias"),
            label_kernel: parameter("Dense_1/kernel"),
            label_bias: parameter("Dense_1/bias"),
        };
        let local = self.normalize.map(|normalize| LocallyNormalized::new(joint, normalize));
        let weight_fn: &dyn WeightFn<F> = match &local {
            None => &joint,
            Some(local) => local,
        };
        let lattice = RecognitionLattice::new(&self.context, self.alignment, weight_fn).unwrap();
        let shape = |last: &[usize]| [&self.axes, last].concat();
        let frames = Frames::new(&self.frames, &shape(&[self.padded, FEATURES]), &self.num_frames).unwrap();
        let labels = Labels::new(&self.labels, &shape(&[self.padded_labels]), &self.num_labels).unwrap();
        run(&lattice, &frames, &labels)
    }
}

/// Returns the name of a parameter without the prefix of a normalizer.
pub(crate) fn own_name(name: &str) -> String {
    name.replace("weight_fn/weight_fn/", "weight_fn/")
}
