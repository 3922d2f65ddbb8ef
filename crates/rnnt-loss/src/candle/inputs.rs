//! Tensors under the names of their roles, checked against the targets.
use ::pruned::{Heads as TrivialHeads, Linear};
use candle_core::{DType, Storage, Tensor};
use panda_core::{
    Head,
    candle::{Element, values},
};

use super::{expect_dims, expect_dtype, expect_rank};
use crate::{
    Dropout, Error, Gradients, HeadGradient, Inputs, Joint, Layout, PrunedJoint, Result, Rows, Scales,
    Scores, Simple, SimpleGradient, Targets,
};

/// Weight *C x H* and bias *C* of a head.
#[derive(Debug, Clone, Copy)]
pub struct HeadTensors<'a> {
    /// *C x H*
    pub weight: &'a Tensor,
    /// *C*
    pub bias: Option<&'a Tensor>,
}

/// As [`Joint`], padded; all `f32` or all `f64`, on the CPU.
#[derive(Debug, Clone, Copy)]
pub struct JointTensors<'a> {
    /// *B x T x H*
    pub encoded: &'a Tensor,
    /// *B x (U+1) x H*
    pub predicted: &'a Tensor,
    /// The head of the tokens.
    pub head: HeadTensors<'a>,
    /// That of the durations, for [`Loss::Tdt`](crate::Loss::Tdt) alone.
    pub durations: Option<HeadTensors<'a>>,
    /// Dropout after the activation, for this call.
    pub dropout: Option<Dropout>,
}

/// As [`Rows`], padded; for CTC.
#[derive(Debug, Clone, Copy)]
pub struct RowTensors<'a> {
    /// *B x T x H*
    pub hidden: &'a Tensor,
    /// The head of the tokens.
    pub head: HeadTensors<'a>,
}

/// As [`Scores`], padded.
#[derive(Debug, Clone, Copy)]
pub struct ScoreTensors<'a> {
    /// *B x T x (U+1) x C*; for CTC *B x T x C*. With D durations each row has C + D.
    pub scores: &'a Tensor,
}

/// As [`PrunedJoint`], padded.
#[derive(Debug, Clone, Copy)]
pub struct PrunedTensors<'a> {
    /// The first pass.
    pub simple: TrivialJoiner<'a>,
    /// The second.
    pub joint: JointTensors<'a>,
    /// Factors of both losses in the sum.
    pub scales: Scales,
}

/// The trivial joiner: `am = frames am_weightᵀ + am_bias`, `lm` likewise; neither is ever kept.
#[derive(Debug, Clone, Copy)]
pub struct TrivialJoiner<'a> {
    /// Encoder rows *B x T x Ha*.
    pub frames: &'a Tensor,
    /// Predictor rows *B x (U+1) x Hl*.
    pub labels: &'a Tensor,
    /// Weight *C x Ha* and bias *C*.
    pub am: HeadTensors<'a>,
    /// Weight *C x Hl* and bias *C*.
    pub lm: HeadTensors<'a>,
}

/// Tensors of a call; each kind converts into it.
#[derive(Debug, Clone, Copy)]
pub enum TensorInputs<'a> {
    /// Rows that a joint network adds.
    Joint(JointTensors<'a>),
    /// Hidden rows of frames.
    Rows(RowTensors<'a>),
    /// Ready-made scores.
    Scores(ScoreTensors<'a>),
    /// Rows that a joint network adds where a trivial joiner says so.
    Pruned(PrunedTensors<'a>),
}

impl<'a> From<JointTensors<'a>> for TensorInputs<'a> {
    fn from(joint: JointTensors<'a>) -> Self {
        Self::Joint(joint)
    }
}

impl<'a> From<RowTensors<'a>> for TensorInputs<'a> {
    fn from(rows: RowTensors<'a>) -> Self {
        Self::Rows(rows)
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

/// Tensors whose shapes fit, contiguous, and what they are.
pub(super) struct Arguments {
    /// In the order of [`Kind`]'s fields; a head is its weight and, if there is one, its bias.
    pub tensors: Vec<Tensor>,
    pub dtype: DType,
    kind: Kind,
    layout: Layout,
}

#[derive(Clone, Copy)]
enum Kind {
    /// encoded, predicted, head, durations
    Joint { head: Shape, durations: Option<Shape>, dropout: Option<Dropout> },
    /// hidden, head
    Rows { head: Shape },
    /// scores
    Scores { classes: usize },
    /// encoded, predicted, head; frames, am, labels, lm
    Pruned { head: Shape, am: Shape, lm: Shape, scales: Scales, dropout: Option<Dropout> },
}

/// Of a head.
#[derive(Clone, Copy)]
struct Shape {
    hidden: usize,
    bias: bool,
}

/// Collects tensors that were looked at.
#[derive(Default)]
struct Checked<'a>(Vec<(&'static str, &'a Tensor)>);

impl<'a> Checked<'a> {
    fn rows(&mut self, argument: &'static str, tensor: &'a Tensor, dims: &[usize]) -> Result<()> {
        expect_dims(argument, tensor, dims)?;
        self.0.push((argument, tensor));
        Ok(())
    }

    /// A head over rows of a width; any number of classes, at least one, unless they are given.
    fn head(
        &mut self,
        names: [&'static str; 2],
        head: HeadTensors<'a>,
        (classes, hidden): (Option<usize>, usize),
    ) -> Result<Shape> {
        let HeadTensors { weight, bias } = head;
        expect_rank(names[0], weight, "[C, H]", 2)?;
        let found = weight.dims2()?;
        if found.0 == 0 || found.1 == 0 {
            let (expected, found) = ("[C, H], both at least 1".into(), format!("{:?}", weight.dims()));
            return Err(Error::Shape { argument: names[0], expected, found });
        }
        self.rows(names[0], weight, &[classes.unwrap_or(found.0), hidden])?;
        if let Some(bias) = bias {
            self.rows(names[1], bias, &[found.0])?;
        }
        Ok(Shape { hidden, bias: bias.is_some() })
    }

    fn finish(self, kind: Kind, layout: Layout) -> Result<Arguments> {
        let dtype = expect_dtype(&self.0)?;
        let tensors = self.0.iter().map(|(_, tensor)| tensor.contiguous());
        let tensors = tensors.collect::<candle_core::Result<_>>()?;
        Ok(Arguments { tensors, dtype, kind, layout })
    }
}

/// Frames and label positions of padded rows, which are looked at.
fn joint_rows<'a>(
    joint: &JointTensors<'a>,
    targets: &Targets,
    into: &mut Checked<'a>,
) -> Result<(Layout, Shape)> {
    let JointTensors { encoded, predicted, head, .. } = *joint;
    expect_rank("encoded", encoded, "[B, T, H]", 3)?;
    expect_rank("predicted", predicted, "[B, U+1, H]", 3)?;
    let (batch, frames, positions) = (targets.batch(), encoded.dim(1)?, predicted.dim(1)?);
    expect_rank("head.weight", head.weight, "[C, H]", 2)?;
    let width = head.weight.dim(1)?;
    into.rows("encoded", encoded, &[batch, frames, width])?;
    into.rows("predicted", predicted, &[batch, positions, width])?;
    let shape = into.head(["head.weight", "head.bias"], head, (None, width))?;
    let layout = Layout::Padded { frames, positions };
    layout.check(targets)?;
    Ok((layout, shape))
}

impl Arguments {
    /// Fails unless everything fits together.
    pub fn new(inputs: &TensorInputs, targets: &Targets, durations: usize) -> Result<Self> {
        let mut checked = Checked::default();
        match inputs {
            TensorInputs::Joint(joint) => {
                let (layout, head) = joint_rows(joint, targets, &mut checked)?;
                let names = ["durations.weight", "durations.bias"];
                let mut of = |tensors| checked.head(names, tensors, (None, head.hidden));
                let durations = joint.durations.map(&mut of).transpose()?;
                checked.finish(Kind::Joint { head, durations, dropout: joint.dropout }, layout)
            }
            TensorInputs::Rows(RowTensors { hidden, head }) => {
                expect_rank("hidden", hidden, "[B, T, H]", 3)?;
                expect_rank("head.weight", head.weight, "[C, H]", 2)?;
                let (frames, width) = (hidden.dim(1)?, head.weight.dim(1)?);
                checked.rows("hidden", hidden, &[targets.batch(), frames, width])?;
                let head = checked.head(["head.weight", "head.bias"], *head, (None, width))?;
                checked.finish(Kind::Rows { head }, Layout::Padded { frames, positions: 1 })
            }
            TensorInputs::Scores(ScoreTensors { scores }) => {
                let batch = targets.batch();
                let (layout, width) = match *scores.dims() {
                    [_, frames, classes] => (Layout::Padded { frames, positions: 1 }, classes),
                    [_, frames, positions, classes] => (Layout::Padded { frames, positions }, classes),
                    _ => {
                        expect_rank("scores", scores, "[B, T, U+1, C]", 4)?;
                        (Layout::Packed, 0)
                    }
                };
                let mut dims = scores.dims().to_vec();
                dims[0] = batch;
                checked.rows("scores", scores, &dims)?;
                checked.finish(Kind::Scores { classes: width.saturating_sub(durations) }, layout)
            }
            TensorInputs::Pruned(PrunedTensors { simple, joint, scales }) => {
                let (layout, head) = joint_rows(joint, targets, &mut checked)?;
                let TrivialJoiner { frames, labels, am, lm } = *simple;
                expect_rank("simple.frames", frames, "[B, T, Ha]", 3)?;
                expect_rank("simple.labels", labels, "[B, U+1, Hl]", 3)?;
                let classes = Some(joint.head.weight.dim(0)?);
                let like = |rows: &Tensor, width| [rows.dims()[0], rows.dims()[1], width];
                let (ha, hl) = (frames.dim(2)?, labels.dim(2)?);
                checked.rows("simple.frames", frames, &like(joint.encoded, ha))?;
                let am = checked.head(["simple.am.weight", "simple.am.bias"], am, (classes, ha))?;
                checked.rows("simple.labels", labels, &like(joint.predicted, hl))?;
                let lm = checked.head(["simple.lm.weight", "simple.lm.bias"], lm, (classes, hl))?;
                let (scales, dropout) = (*scales, joint.dropout);
                checked.finish(Kind::Pruned { head, am, lm, scales, dropout }, layout)
            }
        }
    }

    /// Of both passes, with pruning alone.
    pub fn scales(&self) -> Option<Scales> {
        if let Kind::Pruned { scales, .. } = self.kind { Some(scales) } else { None }
    }

    /// Lends the values as inputs of a session, without a copy.
    ///
    /// # Errors
    /// A tensor on another device.
    pub fn lend<F: Element, T>(&self, use_them: impl FnOnce(&Inputs<F>) -> Result<T>) -> Result<T> {
        let guards: Vec<_> = self.tensors.iter().map(Tensor::storage_and_layout).collect();
        let mut slices = Vec::with_capacity(guards.len());
        for (storage, layout) in &guards {
            let Storage::Cpu(storage) = &**storage else {
                let message = "expected tensors on the CPU, found one on another device";
                return Err(candle_core::Error::msg(message).into());
            };
            slices.push(values::<F>(storage, layout)?);
        }
        use_them(&self.inputs(&slices)?)
    }

    fn inputs<'a, F: Element>(&self, slices: &[&'a [F]]) -> Result<Inputs<'a, F>> {
        let mut next = slices.iter().copied();
        let mut next = move || next.next().unwrap_or_default();
        let layout = self.layout;
        let mut parts = |shape: Shape| (next(), shape.bias.then(&mut next), shape.hidden);
        let head = |(weight, bias, hidden)| Head::new(weight, bias, hidden);
        Ok(match self.kind {
            Kind::Joint { head: of_tokens, durations, dropout } => {
                let rows = Shape { hidden: 0, bias: true };
                let (encoded, predicted, _) = parts(rows);
                let tokens = head(parts(of_tokens))?;
                let durations = durations.map(|shape| head(parts(shape))).transpose()?;
                let predicted = predicted.unwrap_or_default();
                Inputs::Joint(Joint { encoded, predicted, head: tokens, durations, dropout, layout })
            }
            Kind::Rows { head: of_tokens } => {
                let (hidden, ..) = parts(Shape { hidden: 0, bias: false });
                Inputs::Rows(Rows { hidden, head: head(parts(of_tokens))?, durations: None, layout })
            }
            Kind::Scores { classes } => {
                let (scores, ..) = parts(Shape { hidden: 0, bias: false });
                Inputs::Scores(Scores { scores, classes, layout })
            }
            Kind::Pruned { head: of_tokens, am, lm, scales, dropout } => {
                let (encoded, predicted, _) = parts(Shape { hidden: 0, bias: true });
                let tokens = head(parts(of_tokens))?;
                let mut linear = |shape| {
                    let (rows, ..) = parts(Shape { hidden: 0, bias: false });
                    let (weight, bias, hidden) = parts(shape);
                    Linear::new(rows, weight, bias, hidden)
                };
                let (am, lm) = (linear(am)?, linear(lm)?);
                let predicted = predicted.unwrap_or_default();
                let joint = Joint { encoded, predicted, head: tokens, durations: None, dropout, layout };
                Inputs::Pruned(PrunedJoint {
                    simple: Simple::Heads(TrivialHeads::new(am, lm)?),
                    joint,
                    scales,
                })
            }
        })
    }

    /// Gradients in the order of the tensors.
    pub fn order<F: Element>(&self, gradients: Gradients<F>) -> Result<Vec<Tensor>> {
        let Gradients { encoded, predicted, hidden, scores, head, durations, simple } = gradients;
        let parts = |HeadGradient { weight, bias }: HeadGradient<F>, shape: Shape| {
            [Some(weight), shape.bias.then_some(bias)].into_iter().flatten()
        };
        let ordered: Vec<Vec<F>> = match self.kind {
            Kind::Joint { head: of_tokens, durations: of_durations, .. } => {
                let tokens = [encoded, predicted].into_iter().chain(parts(head, of_tokens));
                tokens
                    .chain(of_durations.into_iter().flat_map(|shape| parts(durations.clone(), shape)))
                    .collect()
            }
            Kind::Rows { head: of_tokens } => std::iter::once(hidden).chain(parts(head, of_tokens)).collect(),
            Kind::Scores { .. } => vec![scores],
            Kind::Pruned { head: of_tokens, am, lm, .. } => {
                let mut ordered: Vec<_> =
                    [encoded, predicted].into_iter().chain(parts(head, of_tokens)).collect();
                if let Some(SimpleGradient::Heads(simple)) = simple {
                    for (side, shape) in [(simple.am, am), (simple.lm, lm)] {
                        ordered.push(side.rows);
                        ordered.extend(parts(HeadGradient { weight: side.weight, bias: side.bias }, shape));
                    }
                }
                ordered
            }
        };
        let pairs = ordered.into_iter().zip(&self.tensors);
        Ok(pairs
            .map(|(values, like)| Tensor::from_vec(values, like.shape(), like.device()))
            .collect::<candle_core::Result<_>>()?)
    }
}
