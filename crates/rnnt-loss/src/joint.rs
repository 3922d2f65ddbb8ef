//! Door for encodings and predictions: projections, joint sites, head, loss, and every gradient.
use panda_core::{Activation, Head, Real};

use crate::{
    Error, Layout, Options, Result, Skipped, Targets,
    error::{expect_len, expect_rows},
    linear, projected_loss,
};

/// Parameters of the joint network `z = act(x_enc W_Aᵀ + x_pred W_Lᵀ + b_Z)`, `scores = z W_Oᵀ + b_O`, borrowed.
#[derive(Debug, Clone, Copy)]
pub struct JointNetwork<'a, F> {
    /// `W_A`, *H x Ha*.
    pub encoder: &'a [F],
    /// Ha, the width of an encoding.
    pub encoder_width: usize,
    /// `W_L`, *H x Hl*.
    pub predictor: &'a [F],
    /// Hl, the width of a prediction.
    pub predictor_width: usize,
    /// `b_Z`, *H*.
    pub bias: Option<&'a [F]>,
    /// `W_O` *C x H* and `b_O` *C*.
    pub head: Head<'a, F>,
    /// The nonlinearity; it takes the place of the one in [`Options`].
    pub activation: Activation,
}

/// Loss and gradients of [`joint_loss`], each shaped like its argument.
#[derive(Debug, Clone, PartialEq)]
pub struct JointLoss<F> {
    /// `-log P` of each utterance, *B*.
    pub losses: Vec<f64>,
    /// Gradient of the encodings; 0 in padding.
    pub encodings: Vec<F>,
    /// Gradient of the predictions; 0 in padding.
    pub predictions: Vec<F>,
    /// Gradient of `W_A`.
    pub encoder: Vec<F>,
    /// Gradient of `W_L`.
    pub predictor: Vec<F>,
    /// Gradient of `b_Z`; also there for a network without one.
    pub bias: Vec<F>,
    /// Gradient of `W_O`.
    pub head_weight: Vec<F>,
    /// Gradient of `b_O`; also there for a head without one.
    pub head_bias: Vec<F>,
    /// What [`Options::skip`] left out of the gradients of the sites.
    pub skipped: Skipped,
}

/// Transducer loss of a joint network, with all gradients of `Σ_b weights[b] loss[b]`.
///
/// # Shapes
/// `encodings` *rows x Ha* and `predictions` *rows x Hl* in `layout` ([`Layout::Padded`]: *B x T x Ha* and
/// *B x (U+1) x Hl*), `weights` *B*.
///
/// # Errors
/// Shapes that do not fit, labels outside the classes, scores that are NaN or +inf.
///
/// # Cost
/// As [`projected_loss`], plus the two projections and their results. Padded rows are packed first and never computed.
pub fn joint_loss<F: Real>(
    encodings: &[F],
    predictions: &[F],
    network: &JointNetwork<F>,
    layout: Layout,
    targets: &Targets,
    options: &Options,
    weights: &[f64],
) -> Result<JointLoss<F>> {
    network.check()?;
    layout.check(targets)?;
    let (ha, hl, h) = (network.encoder_width, network.predictor_width, network.head.hidden());
    let frames = RowSet::new(layout.frame_rows(targets), |b| targets.frames(b), targets.batch());
    let positions = RowSet::new(layout.label_rows(targets), |b| targets.labels(b).len() + 1, targets.batch());
    expect_rows("encodings", frames.total, ha, encodings.len())?;
    expect_rows("predictions", positions.total, hl, predictions.len())?;
    let (x, y) = (frames.pack(encodings, ha), positions.pack(predictions, hl));

    let f = linear::forward(&x, network.encoder, network.bias, ha, h);
    let g = linear::forward(&y, network.predictor, None, hl, h);
    let options = Options { activation: network.activation, ..options.clone() };
    let out = projected_loss(&f, &g, &network.head, Layout::Packed, targets, &options, weights)?;
    let into_x = linear::backward(&out.frames, &x, network.encoder, ha, h);
    let into_y = linear::backward(&out.labels, &y, network.predictor, hl, h);
    Ok(JointLoss {
        losses: out.losses,
        encodings: frames.unpack(&into_x.x, ha),
        predictions: positions.unpack(&into_y.x, hl),
        encoder: into_x.weight,
        predictor: into_y.weight,
        bias: into_x.bias,
        head_weight: out.weight,
        head_bias: out.bias,
        skipped: out.skipped,
    })
}

impl<F: Real> JointNetwork<'_, F> {
    fn check(&self) -> Result<()> {
        let h = self.head.hidden();
        for (argument, width) in
            [("encoder_width", self.encoder_width), ("predictor_width", self.predictor_width)]
        {
            if width == 0 {
                return Err(Error::Shape { argument, expected: "at least 1".into(), found: "0".into() });
            }
        }
        expect_rows("network.encoder", h, self.encoder_width, self.encoder.len())?;
        expect_rows("network.predictor", h, self.predictor_width, self.predictor.len())?;
        self.bias.map_or(Ok(()), |bias| expect_len("network.bias", h, bias.len()))
    }
}

/// The real rows of a layout: runs `start .. start + len`, one an utterance.
struct RowSet {
    runs: Vec<(usize, usize)>,
    total: usize,
}

impl RowSet {
    fn new((starts, total): (Vec<usize>, usize), len: impl Fn(usize) -> usize, batch: usize) -> Self {
        Self { runs: (0..batch).map(|b| (starts[b], len(b))).collect(), total }
    }

    fn pack<F: Real>(&self, rows: &[F], width: usize) -> Vec<F> {
        self.runs
            .iter()
            .flat_map(|&(start, len)| &rows[start * width..(start + len) * width])
            .copied()
            .collect()
    }

    fn unpack<F: Real>(&self, mut packed: &[F], width: usize) -> Vec<F> {
        let mut rows = vec![F::ZERO; self.total * width];
        for &(start, len) in &self.runs {
            let (run, rest) = packed.split_at(len * width);
            rows[start * width..(start + len) * width].copy_from_slice(run);
            packed = rest;
        }
        rows
    }
}
