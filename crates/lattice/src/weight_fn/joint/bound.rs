//! A lattice's joint network bound to its parameters.
//!
//! Binding projects the embeddings of the context states once; whole frames are computed by
//! `frames.rs`, the arcs along a label string by `chain.rs`. e: embeddings; Wf: frame projection;
//! sizes: C context states, V labels, H hidden units, E embedding width.
use std::borrow::Cow;

use kernels::{Accumulate, Affine, PANEL_COLUMNS, PackedRight, Real, ScratchReq, View};

use super::{
    JointWeightFn, PARAMETER_NAMES, chain, frames,
    projections::{JointSizes, ProjectionGradients, Projections, TanhAddendRows},
};
use crate::{
    Arcs, ArcsMut, Error, Result,
    weight_fn::{BoundWeights, LabelChain, Parameters, WeightFn, Workload, reuse},
};

/// A joint network, and what its calls compute from the parameters.
pub(crate) struct BoundJoint<'a, F: Real> {
    joint: JointWeightFn<'a, F>,
    /// `e` *C x E*
    embeddings: Cow<'a, [F]>,
    pub projections: Projections<F>,
    /// The head packed for backward; none before the first backward.
    head_right: Option<PackedRight<F>>,
    /// Gradients of projections and head; none before the first backward.
    pub gradients: Option<ProjectionGradients<F>>,
    /// Gradient of `Wf`; empty before the first backward.
    project_frame: Vec<F>,
    /// Sums of the backward passes over whole frames.
    task_sums: frames::TaskSums<F>,
}

/// Bytes of small lists.
const SLACK_BYTES: usize = 4096;

/// Memory of a [`BoundJoint`] for groups of a workload.
fn scratch<F: Real>(sizes: &JointSizes, workload: Workload) -> ScratchReq {
    let JointSizes { states: c, vocabulary: v, hidden: h, embedding, features, rnn } = *sizes;
    let gradients = match workload.gradients {
        false => ScratchReq::EMPTY,
        true => {
            let parameters = embedding * (c + h) + features * h + 2 * (1 + v) * h;
            ScratchReq::all_of([
                ProjectionGradients::<F>::scratch(sizes, workload.frames),
                chain::scratch::<F>(h, workload.positions),
                ScratchReq::new::<F>(workload.frames * features + parameters),
            ])
        }
    };
    let packed_layers = embedding.max(features) * h.next_multiple_of(PANEL_COLUMNS);
    // Lists of tasks.
    let lists = c + workload.frames + SLACK_BYTES;
    ScratchReq::all_of([
        Projections::<F>::scratch(sizes, workload.frames),
        ScratchReq::new::<F>(packed_layers),
        frames::scratch::<F>(sizes, workload),
        gradients,
        rnn,
        ScratchReq::from_bytes(lists),
    ])
}

impl<'a, F: Real> BoundJoint<'a, F> {
    /// Checks the parameters and projects the embeddings of the states.
    ///
    /// Reuses the buffers of earlier calls.
    pub(crate) fn new(joint: JointWeightFn<'a, F>, buffers: &mut Vec<Vec<F>>) -> Result<Self> {
        joint.check()?;
        let (c, h, v, e) = (joint.states, joint.hidden(), joint.vocabulary, joint.embedding());
        let embeddings = joint.context_embeddings()?;
        let mut state_addends = reuse(buffers, c * h);
        Affine::new(View::new(joint.project_context, e, h), Some(joint.joint_bias))
            .forward(&embeddings, &mut state_addends);
        let state_addends = TanhAddendRows::new(state_addends, h);
        if let Some((state, value)) = state_addends.first_not_finite() {
            let row = format!("{value} for state {state}");
            return Err(Error::shape(PARAMETER_NAMES[0], "finite projections of embeddings", row));
        }
        // The head as rows: the blank, then the labels.
        let columns = reuse(buffers, c.next_multiple_of(PANEL_COLUMNS) * h);
        let mut head = joint.blank_kernel.to_vec();
        head.resize((1 + v) * h, F::ZERO);
        kernels::transpose(&mut head[h..], View::new(joint.label_kernel, h, v));
        let bias = [joint.blank_bias, joint.label_bias].concat();
        let mut projections = Projections::new(state_addends, head, bias, columns);
        // The remaining buffer is for frames, whose number is not known yet.
        projections.frame_addends = TanhAddendRows::new(reuse(buffers, 0), h);
        Ok(Self {
            joint,
            embeddings,
            projections,
            head_right: None,
            gradients: None,
            project_frame: Vec::new(),
            task_sums: frames::TaskSums::default(),
        })
    }

    /// Returns the projections and their gradients, which are initially zero.
    pub(crate) fn gradients(&mut self) -> (&Projections<F>, &mut ProjectionGradients<F>) {
        let frames = self.projections.frame_addends.rows.len();
        let gradients = self.gradients.get_or_insert_with(|| ProjectionGradients::zeros(&self.projections));
        if gradients.frame_addends.len() != frames {
            gradients.frame_addends =
                kernels::reset(std::mem::take(&mut gradients.frame_addends), frames, F::ZERO);
        }
        (&self.projections, gradients)
    }

    /// The projection of frames.
    fn frame_layer(&self) -> Affine<'a, F> {
        let h = self.joint.hidden();
        Affine::new(View::new(self.joint.project_frame, self.joint.project_frame.len() / h, h), None)
    }
}

impl<F: Real> BoundWeights<F> for BoundJoint<'_, F> {
    fn set_frames(&mut self, rows: &[F], utterances: &[u32]) -> Result<()> {
        let h = self.joint.hidden();
        let mut frames = std::mem::take(&mut self.projections.frame_addends.rows);
        kernels::ensure_capacity(&mut frames, utterances.len() * h);
        frames.resize(utterances.len() * h, F::ZERO);
        if !rows.is_empty() {
            self.frame_layer().forward(rows, &mut frames);
        }
        self.projections.frame_addends = TanhAddendRows::new(frames, h);
        if let Some((row, value)) = self.projections.frame_addends.first_not_finite() {
            let utterance = utterances[row];
            let frame = utterances[..row].iter().rev().take_while(|&&other| other == utterance).count();
            let row = format!("{value} for frame {frame} of utterance {utterance}");
            return Err(Error::shape(PARAMETER_NAMES[1], "finite projections of frames", row));
        }
        if let Some(gradients) = &mut self.gradients {
            gradients.frame_addends.clear();
        }
        if !self.projections.defers_columns {
            self.projections.require_columns();
        }
        Ok(())
    }

    fn forward(&self, frames: &[usize], arcs: ArcsMut<F>) {
        frames::forward(&self.projections, frames, arcs);
    }

    fn forward_state(&self, frame: usize, state: usize, label_arcs: &mut [F]) -> F {
        chain::forward_state(&self.projections, frame, state, label_arcs)
    }

    fn backward(&mut self, frames: &[usize], adjoints: Arcs<F>) {
        self.gradients();
        let Self { projections, gradients, head_right, task_sums, .. } = self;
        let head = head_right.get_or_insert_with(|| {
            PackedRight::new(View::new(&projections.head, projections.bias.len(), projections.hidden))
        });
        let gradients = gradients.as_mut().expect("gradients are allocated");
        frames::backward(projections, head, task_sums, &mut gradients.frame_addends, frames, adjoints);
    }

    fn forward_chain(&self, first_frame: usize, chain: LabelChain, arcs: ArcsMut<F>) -> Result<()> {
        chain::forward(&self.projections, first_frame, chain, arcs);
        Ok(())
    }

    fn backward_chain(&mut self, first_frame: usize, chain: LabelChain, adjoints: Arcs<F>) -> Result<()> {
        let (projections, gradients) = self.gradients();
        chain::backward(projections, gradients, first_frame, chain, adjoints);
        Ok(())
    }

    fn frame_gradient(&mut self, frame_rows: &[F]) -> Vec<F> {
        let layer = self.frame_layer();
        self.gradients();
        let gradients = self.gradients.as_mut().expect("gradients are allocated");
        let mut gradient_rows = vec![F::ZERO; frame_rows.len()];
        if !frame_rows.is_empty() {
            layer.backward_rows(&gradients.frame_addends, &mut gradient_rows, Accumulate::Replace);
            let mut unused_bias = vec![F::ZERO; self.joint.hidden()];
            self.project_frame.resize(self.joint.project_frame.len(), F::ZERO);
            layer.backward_parameters(
                &[(frame_rows, &gradients.frame_addends)],
                &mut self.project_frame,
                &mut unused_bias,
            );
        }
        gradients.frame_addends.fill(F::ZERO);
        gradient_rows
    }

    fn projections(&mut self) -> Option<&mut Projections<F>> {
        Some(&mut self.projections)
    }

    fn take_buffers(&mut self) -> Vec<Vec<F>> {
        self.projections.take_buffers()
    }

    fn finish(mut self: Box<Self>) -> Parameters<F> {
        self.gradients();
        let Self { joint, embeddings, gradients, mut project_frame, task_sums, .. } = *self;
        let ProjectionGradients { mut state_addends, mut head, bias: mut head_bias, .. } =
            gradients.expect("gradients are allocated");
        let (c, h, v, e) = (joint.states, joint.hidden(), joint.vocabulary, joint.embedding());
        project_frame.resize(joint.project_frame.len(), F::ZERO);
        task_sums.add_states(&mut state_addends);
        task_sums.add_head(&mut head, &mut head_bias);

        // Gradients of the projection of states, and of the embeddings.
        let layer = Affine::new(View::new(joint.project_context, e, h), None);
        let (mut project_context, mut joint_bias) = (vec![F::ZERO; e * h], vec![F::ZERO; h]);
        layer.backward_parameters(&[(&embeddings, &state_addends)], &mut project_context, &mut joint_bias);
        let mut embedding_gradient = vec![F::ZERO; c * e];
        layer.backward_rows(&state_addends, &mut embedding_gradient, Accumulate::Replace);
        let mut label_kernel = vec![F::ZERO; h * v];
        kernels::transpose(&mut label_kernel, View::new(&head[h..], v, h));
        head.truncate(h);
        let head_bias: Vec<F> = head_bias.into_iter().map(F::from_f64).collect();
        let values = [
            project_context,
            project_frame,
            joint_bias,
            head,
            head_bias[..1].to_vec(),
            label_kernel,
            head_bias[1..].to_vec(),
        ];
        let mut parameters: Parameters<F> =
            PARAMETER_NAMES.iter().map(|name| name.to_string()).zip(values).collect();
        joint.embeddings_backward(embedding_gradient, &mut parameters);
        parameters
    }
}

impl<F: Real> WeightFn<F> for JointWeightFn<'_, F> {
    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn states(&self) -> usize {
        self.states
    }

    fn frame_size(&self) -> Option<usize> {
        Some(self.sizes().features)
    }

    fn as_joint(&self) -> Option<&JointWeightFn<'_, F>> {
        Some(self)
    }

    fn is_checked(&self) -> bool {
        true
    }

    fn joint_sizes(&self) -> Option<JointSizes> {
        Some(self.sizes())
    }

    fn scratch(&self, workload: Workload) -> ScratchReq {
        WeightFn::<F>::scratch(&self.sizes(), workload)
    }

    fn bind(&self, buffers: &mut Vec<Vec<F>>) -> Result<Box<dyn BoundWeights<F> + '_>> {
        Ok(Box::new(BoundJoint::new(*self, buffers)?))
    }
}

impl<F: Real> WeightFn<F> for JointSizes {
    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn states(&self) -> usize {
        self.states
    }

    fn frame_size(&self) -> Option<usize> {
        Some(self.features)
    }

    fn is_checked(&self) -> bool {
        true
    }

    fn joint_sizes(&self) -> Option<JointSizes> {
        Some(*self)
    }

    fn scratch(&self, workload: Workload) -> ScratchReq {
        if self.has_plan(workload) {
            return scratch::<F>(self, workload);
        }
        // A size of 0 is an error when the weights are bound.
        let is_empty = self.states.min(self.vocabulary).min(self.hidden) == 0;
        ScratchReq::from_bytes(if is_empty { 0 } else { usize::MAX })
    }

    fn bind(&self, _buffers: &mut Vec<Vec<F>>) -> Result<Box<dyn BoundWeights<F> + '_>> {
        Err(Error::shape("weight_fn", "parameters", "sizes of parameters"))
    }
}
