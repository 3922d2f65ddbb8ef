//! Joint sites, head and lattice as one operation.
use std::sync::Mutex;

use candle_core::{
    CpuStorage, CustomOp3, DType, Layout as TensorLayout, Result as TensorResult, Shape, Tensor,
};
use panda_core::{
    Gradients, Head, JointGradient, JointSites, Sites,
    candle::{Element, with_values},
};

use super::{expect_dims, expect_dtype, expect_rank};
use crate::{
    Error, Layout, Options, Result, Targets, Workspace, engine::Forward, heads::Heads, objective::Transducer,
};

/// The operation's constants, with the forward pass done: it is run where its errors keep their types.
struct TransducerLoss<F> {
    forward: Forward<F>,
    places: Places,
    targets: Targets,
    options: Options,
    workspace: Mutex<panda_core::Workspace<F>>,
}

/// Which rows of the first argument, frame rows followed by label rows, the sites add.
struct Places {
    frame_of: Vec<u32>,
    label_of: Vec<u32>,
    frame_rows: usize,
}

impl Places {
    fn sites<'a, F: Element>(
        &'a self,
        rows: &'a [F],
        width: usize,
        targets: &Targets,
        options: &Options,
    ) -> Result<JointSites<'a, F>> {
        let (frames, labels) = rows.split_at(self.frame_rows * width);
        JointSites::new(frames, labels, &self.frame_of, &self.label_of, width, options.activation)
            .map_err(|error| Error::at_site(error, targets.lattices()))
    }
}

impl<F: Element> CustomOp3 for TransducerLoss<F> {
    fn name(&self) -> &'static str {
        "transducer-loss"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &TensorLayout,
        _: &CpuStorage,
        _: &TensorLayout,
        _: &CpuStorage,
        _: &TensorLayout,
    ) -> TensorResult<(CpuStorage, Shape)> {
        Ok((CpuStorage::F64(self.forward.losses().to_vec()), Shape::from(self.targets.batch())))
    }

    fn bwd(
        &self,
        rows: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _losses: &Tensor,
        upstream: &Tensor,
    ) -> TensorResult<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let weights = upstream.to_vec1::<f64>()?;
        let width = weight.dim(1)?;
        let gradients = with_values([rows, weight, bias], |[r, w, b]: [&[F]; 3]| {
            let (targets, options) = (&self.targets, &self.options);
            let heads = Heads::new(&Head::new(w, Some(b), width)?, None, targets.blank(), options)?;
            let (list, sites) = (heads.list()?, self.places.sites(r, width, targets, options)?);
            let mut into: Vec<_> =
                list.iter().map(|head| Gradients::zero(JointGradient::default(), head)).collect();
            into[0].sites = sites.zero_gradient();
            let workspace = &mut self.workspace.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let lattices = targets.lattices();
            self.forward.backward(&sites, &list, lattices, options, &weights, workspace, &mut into)?;
            let rows = std::mem::take(&mut into[0].sites);
            Ok((rows, heads.join(into).swap_remove(0)))
        });
        let (JointGradient { frames: mut into_rows, labels }, (into_weight, into_bias)) =
            gradients.map_err(|error: Error| candle_core::Error::wrap(error))?;
        into_rows.extend_from_slice(&labels);
        let tensor =
            |values: Vec<F>, like: &Tensor| Tensor::from_vec(values, like.shape(), like.device()).map(Some);
        Ok((tensor(into_rows, rows)?, tensor(into_weight, weight)?, tensor(into_bias, bias)?))
    }
}

/// Transducer loss *B* (`f64`) of projected encodings and predictions; differentiable in all four tensors.
///
/// `h(t,u) = act(frames[t] + labels[u])`, `z = h weightᵀ + bias`; of `z` no more is kept than [`Options::budget`] has room for.
///
/// # Shapes
/// `frames` *B x T x H*, `labels` *B x (U+1) x H*, `weight` *C x H*, `bias` *C*, all `f32` or all `f64`, on the CPU.
/// Rows beyond an utterance's own are never read and get zero gradients.
///
/// # Errors
/// Shapes or types that do not fit, utterances longer than the tensors, labels outside the classes, scores that
/// are NaN or +inf.
///
/// # Cost
/// 2 N H C floating-point operations forward, 4 to 6 N H C backward. What a site needs beside its scores, about 100 bytes,
/// grows with the batch; [`transducer_loss_sum`](super::transducer_loss_sum) does without that.
///
/// ```
/// use candle_core::{DType, Device, Tensor, Var};
/// use rnnt_loss::{candle::transducer_loss, Options, Targets};
/// let (device, dtype) = (Device::Cpu, DType::F32);
/// let frames = Var::ones((1, 2, 4), dtype, &device)?; // B = 1, T = 2, H = 4
/// let labels = Tensor::ones((1, 2, 4), dtype, &device)?; // U = 1
/// let (weight, bias) = (Tensor::ones((3, 4), dtype, &device)?, Tensor::zeros(3, dtype, &device)?);
/// let targets = Targets::new(0, vec![2], vec![vec![1]])?;
/// let loss = transducer_loss(&frames, &labels, &weight, &bias, &targets, &Options::default())?;
/// let gradients = loss.mean_all()?.backward()?;
/// assert_eq!(gradients.get(&frames).unwrap().dims(), [1, 2, 4]);
/// # Ok::<(), rnnt_loss::Error>(())
/// ```
pub fn transducer_loss(
    frames: &Tensor,
    labels: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    targets: &Targets,
    options: &Options,
) -> Result<Tensor> {
    let Arguments { frames, labels, weight, bias, layout, dtype } =
        Arguments::new(frames, labels, weight, bias, targets)?;
    let (frame_of, label_of) = layout.joint_rows(targets, 0..targets.batch());
    let (frame_rows, label_rows, width) =
        (layout.frame_rows(targets).1, layout.label_rows(targets).1, weight.dim(1)?);
    let places = Places { frame_of, label_of, frame_rows };
    // An operation has at most three differentiable arguments.
    let rows = Tensor::cat(&[frames.reshape((frame_rows, width))?, labels.reshape((label_rows, width))?], 0)?;
    match dtype {
        DType::F32 => run::<f32>([rows, weight, bias], places, targets, options),
        _ => run::<f64>([rows, weight, bias], places, targets, options),
    }
}

/// Arguments whose shapes fit, contiguous.
pub(super) struct Arguments {
    pub frames: Tensor,
    pub labels: Tensor,
    pub weight: Tensor,
    pub bias: Tensor,
    pub layout: Layout,
    pub dtype: DType,
}

impl Arguments {
    pub fn new(
        frames: &Tensor,
        labels: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        targets: &Targets,
    ) -> Result<Self> {
        expect_rank("frames", frames, "[B, T, H]", 3)?;
        expect_rank("labels", labels, "[B, U+1, H]", 3)?;
        expect_rank("weight", weight, "[C, H]", 2)?;
        let (classes, width) = weight.dims2()?;
        if width == 0 || classes == 0 {
            let found = format!("{:?}", weight.dims());
            return Err(Error::Shape {
                argument: "weight",
                expected: "[C, H], both at least 1".into(),
                found,
            });
        }
        let (batch, t, u1) = (targets.batch(), frames.dim(1)?, labels.dim(1)?);
        expect_dims("frames", frames, &[batch, t, width])?;
        expect_dims("labels", labels, &[batch, u1, width])?;
        expect_dims("bias", bias, &[classes])?;
        let dtype =
            expect_dtype(&[("frames", frames), ("labels", labels), ("weight", weight), ("bias", bias)])?;
        let layout = Layout::Padded { frames: t, positions: u1 };
        layout.check(targets)?;
        Ok(Self {
            frames: frames.contiguous()?,
            labels: labels.contiguous()?,
            weight: weight.contiguous()?,
            bias: bias.contiguous()?,
            layout,
            dtype,
        })
    }
}

fn run<F: Element>(
    [rows, weight, bias]: [Tensor; 3],
    places: Places,
    targets: &Targets,
    options: &Options,
) -> Result<Tensor> {
    let width = weight.dim(1)?;
    let mut workspace = Workspace::new(options)?;
    let forward = with_values([&rows, &weight, &bias], |[r, w, b]: [&[F]; 3]| {
        let (sites, head) = (places.sites(r, width, targets, options)?, Head::new(w, Some(b), width)?);
        targets.check_classes(head.classes())?;
        let heads = Heads::new(&head, None, targets.blank(), options)?;
        let objective = Transducer::new(targets, heads.columns());
        Forward::new(&sites, &heads.list()?, &objective, &mut workspace)
    })?;
    let (targets, options, workspace) = (targets.clone(), options.clone(), Mutex::new(workspace.normaliser));
    let op = TransducerLoss { forward, places, targets, options, workspace };
    Ok(rows.apply_op3(&weight, &bias, op)?)
}
