//! Candle tensors as inputs of transducer losses, with checks of their shapes.
//!
//! Axes: B utterances, T frames, U+1 label positions, C classes, H joint width; Ha and Hl are the
//! widths of the encoder and predictor rows of the simple joiner. `am` (acoustic model) and `lm`
//! (language model) are the scores of frames and of label positions.
use std::mem::take;

use ::pruned::{Heads as SimpleHeads, Linear};
use candle_core::{DType, Storage, Tensor};
use panda_core::{
    Head,
    candle::{Element, values},
};

use super::{expect_dims, expect_dtype, expect_rank};
use crate::{
    Dropout, Error, Gradients, HiddenInputs, Inputs, JointInputs, Layout, PassScales, PrunedInputs, Result,
    ScoreInputs, SimpleGradient, SimpleInputs, Targets,
};

/// Weight and bias of a head.
#[derive(Debug, Clone, Copy)]
pub struct HeadTensors<'a> {
    /// Weight, *C x H*.
    pub weight: &'a Tensor,
    /// Bias, *C*.
    pub bias: Option<&'a Tensor>,
}

/// Tensors of [`JointInputs`], padded; all `f32` or all `f64`, on the CPU.
#[derive(Debug, Clone, Copy)]
pub struct JointTensors<'a> {
    /// Projected encoder rows, *B x T x H*.
    pub encoded: &'a Tensor,
    /// Projected predictor rows, *B x (U+1) x H*.
    pub predicted: &'a Tensor,
    /// The head of the tokens.
    pub head: HeadTensors<'a>,
    /// The head of the durations, only for [`Loss::Tdt`](crate::Loss::Tdt).
    pub durations: Option<HeadTensors<'a>>,
    /// Dropout after the activation, for this call.
    pub dropout: Option<Dropout>,
}

/// Tensors of [`HiddenInputs`], padded; for CTC.
#[derive(Debug, Clone, Copy)]
pub struct HiddenTensors<'a> {
    /// Hidden rows, *B x T x H*.
    pub hidden: &'a Tensor,
    /// The head of the tokens.
    pub head: HeadTensors<'a>,
}

/// Tensor of [`ScoreInputs`], padded.
#[derive(Debug, Clone, Copy)]
pub struct ScoreTensors<'a> {
    /// Scores, *B x T x (U+1) x C*; for CTC *B x T x C*. With D durations a row has C + D.
    pub scores: &'a Tensor,
}

/// Tensors of [`PrunedInputs`], padded.
#[derive(Debug, Clone, Copy)]
pub struct PrunedTensors<'a> {
    /// Tensors of the simple joiner.
    pub simple: SimpleTensors<'a>,
    /// Tensors of the joint network.
    pub joint: JointTensors<'a>,
    /// Factors of the simple loss and the pruned loss.
    pub scales: PassScales,
}

/// Tensors of the simple joiner, `am = frames am_weightᵀ + am_bias`, `lm` likewise.
///
/// The scores `am` and `lm` are never stored.
#[derive(Debug, Clone, Copy)]
pub struct SimpleTensors<'a> {
    /// Encoder rows *B x T x Ha*.
    pub frames: &'a Tensor,
    /// Predictor rows *B x (U+1) x Hl*.
    pub labels: &'a Tensor,
    /// Weight *C x Ha* and bias *C*.
    pub am: HeadTensors<'a>,
    /// Weight *C x Hl* and bias *C*.
    pub lm: HeadTensors<'a>,
}

/// Tensors of a loss; each kind converts into this type.
#[derive(Debug, Clone, Copy)]
pub enum TensorInputs<'a> {
    /// Projected rows, which a joint network adds.
    Joint(JointTensors<'a>),
    /// Hidden rows of frames, for CTC.
    Hidden(HiddenTensors<'a>),
    /// Scores (logits).
    Scores(ScoreTensors<'a>),
    /// Projected rows, which a joint network adds at retained sites.
    Pruned(PrunedTensors<'a>),
}

impl<'a> From<JointTensors<'a>> for TensorInputs<'a> {
    fn from(joint: JointTensors<'a>) -> Self {
        Self::Joint(joint)
    }
}

impl<'a> From<HiddenTensors<'a>> for TensorInputs<'a> {
    fn from(rows: HiddenTensors<'a>) -> Self {
        Self::Hidden(rows)
    }
}

impl<'a> From<ScoreTensors<'a>> for TensorInputs<'a> {
    fn from(scores: ScoreTensors<'a>) -> Self {
        Self::Scores(scores)
    }
}

impl<'a> From<PrunedTensors<'a>> for TensorInputs<'a> {
    fn from(pruned: PrunedTensors<'a>) -> Self {
        Self::Pruned(pruned)
    }
}

/// Name of a tensor among all kinds of inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TensorName {
    Encoded,
    Predicted,
    Hidden,
    Scores,
    HeadWeight,
    HeadBias,
    DurationsWeight,
    DurationsBias,
    SimpleFrames,
    AmWeight,
    AmBias,
    SimpleLabels,
    LmWeight,
    LmBias,
}

impl TensorName {
    /// Name in messages.
    fn text(self) -> &'static str {
        match self {
            Self::Encoded => "encoded",
            Self::Predicted => "predicted",
            Self::Hidden => "hidden",
            Self::Scores => "scores",
            Self::HeadWeight => "head.weight",
            Self::HeadBias => "head.bias",
            Self::DurationsWeight => "durations.weight",
            Self::DurationsBias => "durations.bias",
            Self::SimpleFrames => "simple.frames",
            Self::AmWeight => "simple.am.weight",
            Self::AmBias => "simple.am.bias",
            Self::SimpleLabels => "simple.labels",
            Self::LmWeight => "simple.lm.weight",
            Self::LmBias => "simple.lm.bias",
        }
    }

    /// Moves the gradient of the tensor out of `gradients`.
    fn take_gradient<F>(self, gradients: &mut Gradients<F>) -> Vec<F> {
        let Gradients { encoded, predicted, hidden, scores, head, durations, simple } = gradients;
        let simple = match simple {
            Some(SimpleGradient::Heads(simple)) => Some(simple),
            _ => None,
        };
        match (self, simple) {
            (Self::Encoded, _) => take(encoded),
            (Self::Predicted, _) => take(predicted),
            (Self::Hidden, _) => take(hidden),
            (Self::Scores, _) => take(scores),
            (Self::HeadWeight, _) => take(&mut head.weight),
            (Self::HeadBias, _) => take(&mut head.bias),
            (Self::DurationsWeight, _) => take(&mut durations.weight),
            (Self::DurationsBias, _) => take(&mut durations.bias),
            (Self::SimpleFrames, Some(simple)) => take(&mut simple.am.rows),
            (Self::AmWeight, Some(simple)) => take(&mut simple.am.weight),
            (Self::AmBias, Some(simple)) => take(&mut simple.am.bias),
            (Self::SimpleLabels, Some(simple)) => take(&mut simple.lm.rows),
            (Self::LmWeight, Some(simple)) => take(&mut simple.lm.weight),
            (Self::LmBias, Some(simple)) => take(&mut simple.lm.bias),
            (_, None) => Vec::new(),
        }
    }
}

/// Checked, contiguous tensors by name.
pub(super) struct NamedTensors {
    pub tensors: Vec<(TensorName, Tensor)>,
    pub dtype: DType,
    kind: InputKind,
    layout: Layout,
}

/// Kind of the inputs, with their arguments that are not tensors.
#[derive(Clone, Copy)]
enum InputKind {
    Joint { dropout: Option<Dropout> },
    Hidden,
    Scores { classes: usize },
    Pruned { scales: PassScales, dropout: Option<Dropout> },
}

/// Collects tensors whose shapes were checked.
#[derive(Default)]
struct CheckedTensors<'a>(Vec<(TensorName, &'a Tensor)>);

impl<'a> CheckedTensors<'a> {
    /// Adds a tensor of the given dimensions.
    fn add(&mut self, name: TensorName, tensor: &'a Tensor, dims: &[usize]) -> Result<()> {
        expect_dims(name.text(), tensor, dims)?;
        self.0.push((name, tensor));
        Ok(())
    }

    /// Adds a head over rows of width H; `None` accepts any positive number of classes.
    fn add_head(
        &mut self,
        weight_name: TensorName,
        bias_name: TensorName,
        head: HeadTensors<'a>,
        classes: Option<usize>,
        hidden: usize,
    ) -> Result<()> {
        let HeadTensors { weight, bias } = head;
        expect_rank(weight_name.text(), weight, "[C, H]", 2)?;
        let (weight_classes, weight_width) = weight.dims2()?;
        if weight_classes == 0 || weight_width == 0 {
            let (expected, found) = ("[C, H], both at least 1".into(), format!("{:?}", weight.dims()));
            return Err(Error::Shape { argument: weight_name.text(), expected, found });
        }
        self.add(weight_name, weight, &[classes.unwrap_or(weight_classes), hidden])?;
        bias.map_or(Ok(()), |bias| self.add(bias_name, bias, &[weight_classes]))
    }

    /// Checks the types; makes the tensors contiguous.
    fn finish(self, kind: InputKind, layout: Layout) -> Result<NamedTensors> {
        let named: Vec<_> = self.0.iter().map(|(name, tensor)| (name.text(), *tensor)).collect();
        let dtype = expect_dtype(&named)?;
        let tensors = self.0.iter().map(|(name, tensor)| Ok((*name, tensor.contiguous()?)));
        let tensors = tensors.collect::<candle_core::Result<_>>()?;
        Ok(NamedTensors { tensors, dtype, kind, layout })
    }
}

/// Adds padded rows and the token head; returns layout and width.
fn add_joint_rows<'a>(
    joint: &JointTensors<'a>,
    targets: &Targets,
    checked: &mut CheckedTensors<'a>,
) -> Result<(Layout, usize)> {
    let JointTensors { encoded, predicted, head, .. } = *joint;
    expect_rank("encoded", encoded, "[B, T, H]", 3)?;
    expect_rank("predicted", predicted, "[B, U+1, H]", 3)?;
    let (batch, frames, positions) = (targets.batch(), encoded.dim(1)?, predicted.dim(1)?);
    expect_rank("head.weight", head.weight, "[C, H]", 2)?;
    let width = head.weight.dim(1)?;
    checked.add(TensorName::Encoded, encoded, &[batch, frames, width])?;
    checked.add(TensorName::Predicted, predicted, &[batch, positions, width])?;
    checked.add_head(TensorName::HeadWeight, TensorName::HeadBias, head, None, width)?;
    let layout = Layout::Padded { frames, positions };
    layout.check(targets)?;
    Ok((layout, width))
}

impl NamedTensors {
    /// Checks the tensors of a call.
    pub(super) fn new(inputs: &TensorInputs, targets: &Targets, durations: usize) -> Result<Self> {
        let mut checked = CheckedTensors::default();
        match inputs {
            TensorInputs::Joint(joint) => {
                let (layout, width) = add_joint_rows(joint, targets, &mut checked)?;
                if let Some(head) = joint.durations {
                    checked.add_head(
                        TensorName::DurationsWeight,
                        TensorName::DurationsBias,
                        head,
                        None,
                        width,
                    )?;
                }
                checked.finish(InputKind::Joint { dropout: joint.dropout }, layout)
            }
            TensorInputs::Hidden(HiddenTensors { hidden, head }) => {
                expect_rank("hidden", hidden, "[B, T, H]", 3)?;
                expect_rank("head.weight", head.weight, "[C, H]", 2)?;
                let (frames, width) = (hidden.dim(1)?, head.weight.dim(1)?);
                checked.add(TensorName::Hidden, hidden, &[targets.batch(), frames, width])?;
                checked.add_head(TensorName::HeadWeight, TensorName::HeadBias, *head, None, width)?;
                checked.finish(InputKind::Hidden, Layout::Padded { frames, positions: 1 })
            }
            TensorInputs::Scores(ScoreTensors { scores }) => {
                let batch = targets.batch();
                let (layout, width) = match *scores.dims() {
                    [_, frames, classes] => (Layout::Padded { frames, positions: 1 }, classes),
                    [_, frames, positions, classes] => (Layout::Padded { frames, positions }, classes),
                    _ => {
                        // Always an error, as the rank is not 4.
                        expect_rank("scores", scores, "[B, T, U+1, C]", 4)?;
                        (Layout::Packed, 0)
                    }
                };
                let mut dims = scores.dims().to_vec();
                dims[0] = batch;
                checked.add(TensorName::Scores, scores, &dims)?;
                checked.finish(InputKind::Scores { classes: width.saturating_sub(durations) }, layout)
            }
            TensorInputs::Pruned(PrunedTensors { simple, joint, scales }) => {
                let (layout, _) = add_joint_rows(joint, targets, &mut checked)?;
                let SimpleTensors { frames, labels, am, lm } = *simple;
                expect_rank("simple.frames", frames, "[B, T, Ha]", 3)?;
                expect_rank("simple.labels", labels, "[B, U+1, Hl]", 3)?;
                let classes = Some(joint.head.weight.dim(0)?);
                let shape_of_rows = |rows: &Tensor, width| [rows.dims()[0], rows.dims()[1], width];
                let (encoder_width, predictor_width) = (frames.dim(2)?, labels.dim(2)?);
                let frames_shape = shape_of_rows(joint.encoded, encoder_width);
                let labels_shape = shape_of_rows(joint.predicted, predictor_width);
                checked.add(TensorName::SimpleFrames, frames, &frames_shape)?;
                checked.add_head(TensorName::AmWeight, TensorName::AmBias, am, classes, encoder_width)?;
                checked.add(TensorName::SimpleLabels, labels, &labels_shape)?;
                checked.add_head(TensorName::LmWeight, TensorName::LmBias, lm, classes, predictor_width)?;
                checked.finish(InputKind::Pruned { scales: *scales, dropout: joint.dropout }, layout)
            }
        }
    }

    /// Factors of the simple loss and of the pruned loss; `None` without pruning.
    pub(super) fn scales(&self) -> Option<PassScales> {
        if let InputKind::Pruned { scales, .. } = self.kind { Some(scales) } else { None }
    }

    /// Calls `run` with the inputs of a session, without copies.
    ///
    /// # Errors
    /// A tensor that is not on the CPU.
    pub(super) fn with_inputs<F: Element, T>(&self, run: impl FnOnce(&Inputs<F>) -> Result<T>) -> Result<T> {
        let guards: Vec<_> = self.tensors.iter().map(|(_, tensor)| tensor.storage_and_layout()).collect();
        let mut slices = Vec::with_capacity(guards.len());
        for ((name, tensor), (storage, layout)) in self.tensors.iter().zip(&guards) {
            let Storage::Cpu(storage) = &**storage else {
                let message = "expected tensors on the CPU, found one on another device";
                return Err(candle_core::Error::msg(message).into());
            };
            slices.push((*name, values::<F>(storage, layout)?, tensor));
        }
        run(&self.inputs(&slices)?)
    }

    /// Assembles the inputs from the values of the tensors.
    fn inputs<'a, F: Element>(&self, slices: &[(TensorName, &'a [F], &Tensor)]) -> Result<Inputs<'a, F>> {
        let find = |name| slices.iter().find(|slice| slice.0 == name);
        let slice_of = |name| find(name).map(|&(_, values, _)| values).unwrap_or_default();
        // Weight, bias and width of a linear layer.
        let layer = |weight, bias| -> Result<_> {
            let width = find(weight).map_or(Ok(0), |(_, _, tensor)| tensor.dim(1))?;
            Ok((slice_of(weight), find(bias).map(|&(_, values, _)| values), width))
        };
        let head = |weight, bias| -> Result<Head<'a, F>> {
            let (weight, bias, width) = layer(weight, bias)?;
            Ok(Head::new(weight, bias, width)?)
        };
        let linear = |rows, weight, bias| -> Result<Linear<'a, F>> {
            let (weight, bias, width) = layer(weight, bias)?;
            Ok(Linear::new(slice_of(rows), weight, bias, width)?)
        };
        let joint = |dropout, durations| -> Result<JointInputs<'a, F>> {
            let (encoded, predicted) = (slice_of(TensorName::Encoded), slice_of(TensorName::Predicted));
            let head = head(TensorName::HeadWeight, TensorName::HeadBias)?;
            Ok(JointInputs { encoded, predicted, head, durations, dropout, layout: self.layout })
        };
        Ok(match self.kind {
            InputKind::Joint { dropout } => {
                let durations = find(TensorName::DurationsWeight);
                let durations =
                    durations.map(|_| head(TensorName::DurationsWeight, TensorName::DurationsBias));
                Inputs::Joint(joint(dropout, durations.transpose()?)?)
            }
            InputKind::Hidden => {
                let (hidden, head) =
                    (slice_of(TensorName::Hidden), head(TensorName::HeadWeight, TensorName::HeadBias)?);
                Inputs::Hidden(HiddenInputs { hidden, head, durations: None, layout: self.layout })
            }
            InputKind::Scores { classes } => Inputs::Scores(ScoreInputs {
                scores: slice_of(TensorName::Scores),
                classes,
                layout: self.layout,
            }),
            InputKind::Pruned { scales, dropout } => {
                let am = linear(TensorName::SimpleFrames, TensorName::AmWeight, TensorName::AmBias)?;
                let lm = linear(TensorName::SimpleLabels, TensorName::LmWeight, TensorName::LmBias)?;
                let (simple, joint) = (SimpleInputs::Heads(SimpleHeads::new(am, lm)?), joint(dropout, None)?);
                Inputs::Pruned(PrunedInputs { simple, joint, scales })
            }
        })
    }

    /// The gradient of each tensor.
    pub(super) fn gradients<F: Element>(&self, mut gradients: Gradients<F>) -> Result<Vec<Tensor>> {
        let gradient = |(name, input): &(TensorName, Tensor)| {
            Tensor::from_vec(name.take_gradient(&mut gradients), input.shape(), input.device())
        };
        Ok(self.tensors.iter().map(gradient).collect::<candle_core::Result<_>>()?)
    }
}
