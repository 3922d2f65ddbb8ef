//! Arc weights of a lattice from a joint network.
//!
//! Its inputs are a frame and the embedding of a context state.
pub(super) mod bound;
pub(super) mod chain;
pub(crate) mod frames;
pub(crate) mod projections;

use std::borrow::Cow;

use kernels::{Real, ScratchReq};

pub use projections::JointSizes;

use super::{Parameters, SharedRnn};
use crate::{
    Error, Result,
    error::{expect_finite, expect_len},
};

/// The weights of a joint network of frame and context.
///
/// ```text
/// h[t,p] = tanh(joint_bias + e[p] Wc + x_t Wf)      for frame t and context state p
/// b_t[p] = h w0 + c0        l_t[p,y] = (h W1 + c1)[y-1]
/// ```
/// (Variani et al., arXiv 2205.13674; LAST's `JointWeightFn`.) As in LAST, matrices are inputs x
/// outputs, row-major.
///
/// # Cost
/// 2 C H (V + 1) floating-point operations and C H hyperbolic tangents per frame; the projections
/// of states once per call.
#[derive(Debug, Clone, Copy)]
pub struct JointWeightFn<'a, F> {
    /// Source of the context embeddings `e` *C x E*.
    pub embeddings: Embeddings<'a, F>,
    /// C, the number of context states.
    pub states: usize,
    /// V, the number of labels.
    pub vocabulary: usize,
    /// `Wc` *E x H*, `project_context_embeddings/kernel`.
    pub project_context: &'a [F],
    /// `Wf` *F x H*, `project_frame/kernel`.
    pub project_frame: &'a [F],
    /// Bias of the hidden layer, *H*.
    pub joint_bias: &'a [F],
    /// `w0` of the head *H x 1*, `Dense_0/kernel`.
    pub blank_kernel: &'a [F],
    /// `c0` *1*, `Dense_0/bias`.
    pub blank_bias: &'a [F],
    /// `W1` of the head *H x V*, `Dense_1/kernel`.
    pub label_kernel: &'a [F],
    /// `c1` *V*, `Dense_1/bias`.
    pub label_bias: &'a [F],
}

/// Source of context embeddings; LAST's cacher.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::large_enum_variant, reason = "there is one per call, and it only borrows")]
pub enum Embeddings<'a, F> {
    /// A table *C x E*, `context_embeddings`.
    Table(&'a [F]),
    /// A recurrent network over the labels of an n-gram.
    Rnn(SharedRnn<'a, F>),
}

/// Names of the parameters, in the order of the fields.
const PARAMETER_NAMES: [&str; 7] = [
    "weight_fn/project_context_embeddings/kernel",
    "weight_fn/project_frame/kernel",
    "weight_fn/joint_bias",
    "weight_fn/Dense_0/kernel",
    "weight_fn/Dense_0/bias",
    "weight_fn/Dense_1/kernel",
    "weight_fn/Dense_1/bias",
];
/// Name of the table of embeddings.
const EMBEDDINGS_NAME: &str = "weight_fn_cacher/context_embeddings";

impl<'a, F: Real> JointWeightFn<'a, F> {
    /// H, the width of the hidden layer.
    pub fn hidden(&self) -> usize {
        self.joint_bias.len()
    }

    /// E, the width of a context embedding.
    pub fn embedding(&self) -> usize {
        match &self.embeddings {
            Embeddings::Table(table) => table.len() / self.states.max(1),
            Embeddings::Rnn(rnn) => rnn.width(),
        }
    }

    /// The parameters in the order of [`PARAMETER_NAMES`].
    fn parameters(&self) -> [&'a [F]; 7] {
        [
            self.project_context,
            self.project_frame,
            self.joint_bias,
            self.blank_kernel,
            self.blank_bias,
            self.label_kernel,
            self.label_bias,
        ]
    }

    /// Checks the lengths and values of the parameters.
    fn check(&self) -> Result<()> {
        let (h, v) = (self.hidden(), self.vocabulary);
        for (argument, size) in [("states", self.states), ("vocabulary", v), ("joint_bias", h)] {
            if size == 0 {
                return Err(Error::shape(argument, "at least 1", 0));
            }
        }
        if let Embeddings::Table(table) = self.embeddings {
            expect_len(EMBEDDINGS_NAME, self.states * self.embedding(), table.len())?;
            expect_finite(EMBEDDINGS_NAME, table)?;
        }
        let features = self.project_frame.len() / h;
        let lengths = [self.embedding() * h, features * h, h, h, 1, h.saturating_mul(v), v];
        for ((name, parameter), length) in PARAMETER_NAMES.iter().zip(self.parameters()).zip(lengths) {
            expect_len(name, length, parameter.len())?;
            expect_finite(name, parameter)?;
        }
        let max_abs = |values: &[F]| values.iter().map(|w| w.to_f64().abs()).fold(0.0, f64::max);
        let max_score = max_abs(self.label_kernel).max(max_abs(self.blank_kernel)) * h as f64
            + max_abs(self.label_bias).max(max_abs(self.blank_bias));
        if max_score > F::MAX.to_f64() {
            return Err(Error::shape("weight_fn/Dense", "weights whose sums are finite", max_score));
        }
        match &self.embeddings {
            Embeddings::Table(_) => Ok(()),
            Embeddings::Rnn(rnn) => rnn.check(self.states),
        }
    }

    /// Sizes of the network.
    fn sizes(&self) -> JointSizes {
        let rnn = match &self.embeddings {
            Embeddings::Table(_) => ScratchReq::EMPTY,
            Embeddings::Rnn(rnn) => rnn.scratch(),
        };
        JointSizes {
            states: self.states,
            vocabulary: self.vocabulary,
            hidden: self.hidden(),
            embedding: self.embedding(),
            features: self.project_frame.len() / self.hidden().max(1),
            rnn,
        }
    }

    /// Returns `e`, *C x E*.
    pub fn context_embeddings(&self) -> Result<Cow<'a, [F]>> {
        match &self.embeddings {
            Embeddings::Table(table) => Ok(Cow::Borrowed(table)),
            Embeddings::Rnn(rnn) => rnn.forward().map(Cow::Owned),
        }
    }

    /// Writes the gradients of the parameters of the embeddings.
    fn embeddings_backward(&self, gradient: Vec<F>, into: &mut Parameters<F>) {
        match &self.embeddings {
            Embeddings::Table(_) => drop(into.insert(EMBEDDINGS_NAME.to_owned(), gradient)),
            Embeddings::Rnn(rnn) => into.extend(rnn.backward(&gradient)),
        }
    }
}
