//! Transducer loss of a joint network, including its projections.
//!
//! [`JointNetwork::sum`] projects encoder rows and predictor rows to the joint width, calls
//! [`Session::sum`], and computes the gradients of the projections from those of the projected
//! rows. Padded rows are packed before. E: width of an encoder row; P: of a predictor row; H: joint
//! width; C: classes.
use kernels::{Accumulate, Affine, View};
use panda_core::Head;
use panda_core::Real;

use crate::{
    Element, Error, JointInputs, Layout, LossOutput, Result, Session, SkippedSites, Targets,
    error::{expect_len, expect_rows},
    targets::RowStarts,
};

/// Borrowed parameters of a joint network with projections.
///
/// `z = act(x_enc W_Aᵀ + x_pred W_Lᵀ + b_Z)`, `scores = z W_Oᵀ + b_O`.
#[derive(Debug, Clone, Copy)]
pub struct JointNetwork<'a, F> {
    /// Weight `W_A` of the encoder's projection, *H x E*.
    pub encoder: &'a [F],
    /// Width E of an encoder row.
    pub encoder_width: usize,
    /// Weight `W_L` of the predictor's projection, *H x P*.
    pub predictor: &'a [F],
    /// Width P of a predictor row.
    pub predictor_width: usize,
    /// Bias `b_Z`, *H*.
    pub bias: Option<&'a [F]>,
    /// Head: `W_O` *C x H* and `b_O` *C*.
    pub head: Head<'a, F>,
}

/// Encoder rows and predictor rows of a batch.
///
/// Shapes: *rows x E* and *rows x P* ([`Layout::Padded`]: *B x T x E* and *B x (U+1) x P*).
#[derive(Debug, Clone, Copy)]
pub struct NetworkInputs<'a, F> {
    /// Encoder rows.
    pub encoder_rows: &'a [F],
    /// Predictor rows.
    pub predictor_rows: &'a [F],
    /// Memory layout of the rows.
    pub layout: Layout,
}

/// Losses and gradients of a [`JointNetwork`], each shaped like its argument.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkOutput<F> {
    /// Loss of each utterance, *B*.
    pub losses: Vec<f64>,
    /// Gradient of the encoder rows; 0 in padding.
    pub encodings: Vec<F>,
    /// Gradient of the predictor rows; 0 in padding.
    pub predictions: Vec<F>,
    /// Gradient of the encoder's projection `W_A`.
    pub encoder: Vec<F>,
    /// Gradient of the predictor's projection `W_L`.
    pub predictor: Vec<F>,
    /// Gradient of `b_Z`; also present for a network without bias.
    pub bias: Vec<F>,
    /// Gradients of `W_O` and `b_O`; the latter also for a head without bias.
    pub head: crate::HeadGradient<F>,
    /// Sites that [`Options::skip`](crate::Options::skip) excluded from the gradients.
    pub skipped: SkippedSites,
}

impl<F: Element> JointNetwork<'_, F> {
    /// Computes [`Session::sum`] and the gradients of both projections.
    ///
    /// # Errors
    /// Those of [`Session::sum`]; mismatched shapes.
    ///
    /// # Cost
    /// That of [`Session::sum`], plus the projections and their results. Padding is never computed.
    pub fn sum(
        &self,
        session: &mut Session<F>,
        inputs: NetworkInputs<F>,
        targets: &Targets,
        weights: &[f64],
    ) -> Result<NetworkOutput<F>> {
        // Checks, and copies of the rows without padding.
        self.check()?;
        let NetworkInputs { encoder_rows, predictor_rows, layout } = inputs;
        layout.check(targets)?;
        let (encoder_width, predictor_width) = (self.encoder_width, self.predictor_width);
        let utterances = 0..targets.batch();
        let frame_counts = utterances.clone().map(|b| targets.frames(b));
        let position_counts = utterances.map(|b| targets.labels(b).len() + 1);
        let frames = RaggedRows::new(layout.frame_starts(targets), frame_counts);
        let positions = RaggedRows::new(layout.label_starts(targets), position_counts);
        expect_rows("encoder_rows", frames.total, encoder_width, encoder_rows.len())?;
        expect_rows("predictor_rows", positions.total, predictor_width, predictor_rows.len())?;
        let packed_encoder_rows = frames.pack(encoder_rows, encoder_width);
        let packed_predictor_rows = positions.pack(predictor_rows, predictor_width);

        // Forward: projections, then the loss with the gradients of the projected rows.
        let (encoder_projection, predictor_projection) = self.projections();
        let encoded = encoder_projection.forward(&packed_encoder_rows);
        let predicted = predictor_projection.forward(&packed_predictor_rows);
        let out = session.sum(JointInputs::new(&encoded, &predicted, self.head), targets, weights)?;
        let LossOutput { losses, gradients, skipped, .. } = out;

        // Backward through the projections; gradients of padding are 0.
        let encoder_gradient = encoder_projection.backward(&packed_encoder_rows, &gradients.encoded);
        let predictor_gradient = predictor_projection.backward(&packed_predictor_rows, &gradients.predicted);
        Ok(NetworkOutput {
            losses,
            encodings: frames.unpack(&encoder_gradient.rows, encoder_width),
            predictions: positions.unpack(&predictor_gradient.rows, predictor_width),
            encoder: encoder_gradient.weight,
            predictor: predictor_gradient.weight,
            bias: encoder_gradient.bias,
            head: gradients.head,
            skipped,
        })
    }

    /// The projections of encoder rows and predictor rows; only the first has the bias.
    fn projections(&self) -> (Projection<'_, F>, Projection<'_, F>) {
        let joint_width = self.head.hidden();
        let encoder = Projection {
            weight: self.encoder,
            bias: self.bias,
            inputs: self.encoder_width,
            outputs: joint_width,
        };
        let predictor = Projection {
            weight: self.predictor,
            bias: None,
            inputs: self.predictor_width,
            outputs: joint_width,
        };
        (encoder, predictor)
    }

    /// Fails for parameters whose shapes do not match.
    fn check(&self) -> Result<()> {
        let joint_width = self.head.hidden();
        for (argument, width) in
            [("encoder_width", self.encoder_width), ("predictor_width", self.predictor_width)]
        {
            if width == 0 {
                return Err(Error::Shape { argument, expected: "at least 1".into(), found: "0".into() });
            }
        }
        expect_rows("network.encoder", joint_width, self.encoder_width, self.encoder.len())?;
        expect_rows("network.predictor", joint_width, self.predictor_width, self.predictor.len())?;
        self.bias.map_or(Ok(()), |bias| expect_len("network.bias", joint_width, bias.len()))
    }
}

/// A linear layer `y = x Wᵀ + b` from E or P inputs to H outputs.
struct Projection<'a, F> {
    /// Weight W, *outputs x inputs*.
    weight: &'a [F],
    /// Bias b, *outputs*.
    bias: Option<&'a [F]>,
    inputs: usize,
    outputs: usize,
}

/// Gradients of a [`Projection`].
struct ProjectionGradient<F> {
    /// Gradient of the input rows.
    rows: Vec<F>,
    weight: Vec<F>,
    bias: Vec<F>,
}

impl<F: Real> Projection<'_, F> {
    /// Computes `y` *rows x outputs* from `x` *rows x inputs*.
    fn forward(&self, x: &[F]) -> Vec<F> {
        let mut y = vec![F::ZERO; x.len() / self.inputs * self.outputs];
        let weight = View::new(self.weight, self.outputs, self.inputs);
        Affine::new(weight.transposed(), self.bias).forward(x, &mut y);
        y
    }

    /// Computes `dx = dy W`, `dW = dyᵀ x`, `db = Σ dy`.
    fn backward(&self, x: &[F], dy: &[F]) -> ProjectionGradient<F> {
        let weight = View::new(self.weight, self.outputs, self.inputs);
        let layer = Affine::new(weight.transposed(), None);
        let mut gradient = ProjectionGradient {
            rows: vec![F::ZERO; x.len()],
            weight: vec![F::ZERO; self.weight.len()],
            bias: vec![F::ZERO; self.outputs],
        };
        layer.backward_rows(dy, &mut gradient.rows, Accumulate::Replace);
        layer.backward_parameters(&[(x, dy)], &mut gradient.weight, &mut gradient.bias);
        gradient
    }
}

/// Position of each utterance's rows in a padded or packed matrix.
struct RaggedRows {
    utterances: Vec<UtteranceRows>,
    /// Rows of the matrix, padding included.
    total: usize,
}

/// Consecutive rows of an utterance.
struct UtteranceRows {
    start: usize,
    len: usize,
}

impl RaggedRows {
    /// Takes the first row and the number of rows of each utterance.
    fn new(starts: RowStarts, lens: impl Iterator<Item = usize>) -> Self {
        Self {
            utterances: lens
                .enumerate()
                .map(|(b, len)| UtteranceRows { start: starts.start(b), len })
                .collect(),
            total: starts.total(),
        }
    }

    /// Copies the rows without padding.
    fn pack<F: Real>(&self, rows: &[F], width: usize) -> Vec<F> {
        let mut packed = Vec::with_capacity(self.utterances.iter().map(|rows| rows.len * width).sum());
        for &UtteranceRows { start, len } in &self.utterances {
            packed.extend_from_slice(&rows[start * width..(start + len) * width]);
        }
        packed
    }

    /// Copies packed rows into the matrix; its padding is 0.
    fn unpack<F: Real>(&self, mut packed: &[F], width: usize) -> Vec<F> {
        let mut rows = vec![F::ZERO; self.total * width];
        for &UtteranceRows { start, len } in &self.utterances {
            let (utterance_rows, remaining) = packed.split_at(len * width);
            rows[start * width..(start + len) * width].copy_from_slice(utterance_rows);
            packed = remaining;
        }
        rows
    }
}
