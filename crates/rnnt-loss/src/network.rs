//! Loss and gradients of a transducer's joint network with its two projections.
use kernels::{Accumulate, Affine, View};
use panda_core::Head;
use panda_core::Real;

use crate::{
    Element, Error, Gradients, JointInputs, Layout, LossOutput, Result, Session, SkippedSites, Targets,
    error::{expect_len, expect_rows},
    targets::RowStarts,
};

/// Borrowed parameters of a joint network with projections.
///
/// `z = act(x_enc W_Aᵀ + x_pred W_Lᵀ + b_Z)`, `scores = z W_Oᵀ + b_O`.
#[derive(Debug, Clone, Copy)]
pub struct JointNetwork<'a, F> {
    /// Projection of the encoder `W_A`, *H x Ha*.
    pub encoder: &'a [F],
    /// Width Ha of an encoder row.
    pub encoder_width: usize,
    /// Projection of the predictor `W_L`, *H x Hl*.
    pub predictor: &'a [F],
    /// Width Hl of a predictor row.
    pub predictor_width: usize,
    /// Bias `b_Z`, *H*.
    pub bias: Option<&'a [F]>,
    /// Head: `W_O` *C x H* and `b_O` *C*.
    pub head: Head<'a, F>,
}

/// Encoder rows and predictor rows of a batch.
///
/// Shapes: *rows x Ha* and *rows x Hl* ([`Layout::Padded`]: *B x T x Ha* and *B x (U+1) x Hl*).
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
    /// Gradient of `W_A`.
    pub encoder: Vec<F>,
    /// Gradient of `W_L`.
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
        self.check()?;
        let NetworkInputs { encoder_rows, predictor_rows, layout } = inputs;
        layout.check(targets)?;
        let (encoder_width, predictor_width) = (self.encoder_width, self.predictor_width);
        let joint_width = self.head.hidden();
        let utterances = 0..targets.batch();
        let frames =
            RaggedRows::new(layout.frame_starts(targets), utterances.clone().map(|b| targets.frames(b)));
        let labels = utterances.map(|b| targets.labels(b).len() + 1);
        let positions = RaggedRows::new(layout.label_starts(targets), labels);
        expect_rows("encoder_rows", frames.total, encoder_width, encoder_rows.len())?;
        expect_rows("predictor_rows", positions.total, predictor_width, predictor_rows.len())?;
        let packed_encoder_rows = frames.pack(encoder_rows, encoder_width);
        let packed_predictor_rows = positions.pack(predictor_rows, predictor_width);

        let encoded = project(&packed_encoder_rows, self.encoder, self.bias, encoder_width, joint_width);
        let predicted = project(&packed_predictor_rows, self.predictor, None, predictor_width, joint_width);
        let out = session.sum(JointInputs::new(&encoded, &predicted, self.head), targets, weights)?;
        let LossOutput { losses, gradients, skipped, .. } = out;
        let Gradients { encoded: d_encoded, predicted: d_predicted, head, .. } = gradients;
        let encoder_gradients =
            project_backward(&d_encoded, &packed_encoder_rows, self.encoder, encoder_width, joint_width);
        let predictor_gradients = project_backward(
            &d_predicted,
            &packed_predictor_rows,
            self.predictor,
            predictor_width,
            joint_width,
        );
        Ok(NetworkOutput {
            losses,
            encodings: frames.unpack(&encoder_gradients.x, encoder_width),
            predictions: positions.unpack(&predictor_gradients.x, predictor_width),
            encoder: encoder_gradients.weight,
            predictor: predictor_gradients.weight,
            bias: encoder_gradients.bias,
            head,
            skipped,
        })
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

/// Computes `y = x Wᵀ + b`: `x` *n x in*, `weight` *out x in*, `bias` *out*.
fn project<F: Real>(x: &[F], weight: &[F], bias: Option<&[F]>, inputs: usize, outputs: usize) -> Vec<F> {
    let mut y = vec![F::ZERO; x.len() / inputs * outputs];
    Affine::new(View::new(weight, outputs, inputs).transposed(), bias).forward(x, &mut y);
    y
}

/// Gradients of [`project`].
struct ProjectionGradients<F> {
    x: Vec<F>,
    weight: Vec<F>,
    bias: Vec<F>,
}

/// Computes `dx = dy W`, `dW = dyᵀ x`, `db = Σ dy`.
fn project_backward<F: Real>(
    dy: &[F],
    x: &[F],
    weight: &[F],
    inputs: usize,
    outputs: usize,
) -> ProjectionGradients<F> {
    let layer = Affine::new(View::new(weight, outputs, inputs).transposed(), None);
    let mut gradient = ProjectionGradients {
        x: vec![F::ZERO; x.len()],
        weight: vec![F::ZERO; weight.len()],
        bias: vec![F::ZERO; outputs],
    };
    layer.backward_rows(dy, &mut gradient.x, Accumulate::Replace);
    layer.backward_parameters(&[(x, dy)], &mut gradient.weight, &mut gradient.bias);
    gradient
}

/// Rows of each utterance in a padded or packed matrix.
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

    /// Copies packed rows into a matrix of zeros.
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
