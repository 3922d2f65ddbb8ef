//! A joint network at work: what is projected once, and where gradients gather.
use std::borrow::Cow;

use kernels::{Accumulate, Affine, PANEL, PackedLeft, PackedRight, Real, TanhProducts, View};

use super::{
    Joint, JointSizes, NAMES, chain, frames,
    prepared::{Addends, panels},
    screened::{self, Screened, Screening},
};
use crate::{
    Arcs, ArcsMut, Error, Result,
    panels::Panels,
    pool::Pool,
    weight_fn::{Chain, Load, Parameters, Weights, reuse},
};

/// Bytes that [`Opened`] holds for groups of a load.
pub fn bytes<F: Real>(sizes: &JointSizes, load: Load) -> usize {
    let JointSizes { states: c, vocabulary: v, hidden: h, embedding, features, rnn_bytes } = *sizes;
    // Contexts as rows and as columns; packed projections; the head as rows and packed twice.
    let contexts = 2 * c * h + c.next_multiple_of(kernels::PANEL) * h;
    let packed = embedding.max(features) * h.next_multiple_of(kernels::PANEL);
    let head = 2 * (1 + v) * h + (1 + v) * h.next_multiple_of(kernels::PANEL);
    // Rows that cannot be prepared are kept as they are beside them, all of them at worst.
    let frames = 2 * load.frames * h;
    let rooms = frames::rooms::<F>(sizes, load);
    let gradients = match load.gradients {
        false => 0,
        true => {
            let results = embedding * (c + h) + features * h + 2 * (1 + v) * h;
            c * h + (1 + v) * (h + 2) + load.frames * (h + features) + 3 * load.positions * h + results
        }
    };
    let all = contexts + packed + head + frames + gradients;
    size_of::<F>()
        .saturating_mul(all.saturating_add(rooms))
        .saturating_add(rnn_bytes)
        .saturating_add(screened::bytes::<F>(sizes, load.screened))
        .saturating_add(c + load.frames + 4096)
}

/// Projections of the parameters, and of the frames of a group.
pub struct Opened<'a, F: Real> {
    pub joint: Joint<'a, F>,
    /// `e` *C x E*
    embeddings: Cow<'a, [F]>,
    /// `e Wc + joint_bias`, prepared, *C x H*.
    pub contexts: Addends<F>,
    /// The same as columns, made for the first frames that are not screened.
    pub panels: Vec<F>,
    /// A buffer for columns, whosever they are.
    pub room: Vec<F>,
    /// `w0` and `W1` as rows *(1 + V) x H*, and `c0`, `c1`.
    pub head: Vec<F>,
    pub bias: Vec<F>,
    pub head_left: PackedLeft<F>,
    /// For backward, once there is one.
    pub head_right: Option<PackedRight<F>>,
    /// `x Wf`, prepared, *n x H*.
    pub frames: Addends<F>,
    /// Gradients, none before the first pull.
    pub gradient: Option<Gradient<F>>,
    pub pool: Pool<F>,
    screening: Option<Screening<F>>,
}

/// Gradients of what was projected.
pub struct Gradient<F> {
    /// *C x H*
    pub contexts: Vec<F>,
    /// *n x H*
    pub frames: Vec<F>,
    /// *(1 + V) x H*
    pub head: Vec<F>,
    /// *1 + V*
    pub bias: Vec<f64>,
    /// `Wf`
    project_frame: Vec<F>,
    pub parts: frames::Parts<F>,
}

impl<'a, F: Real> Opened<'a, F> {
    pub fn new(joint: Joint<'a, F>, spare: &mut Vec<Vec<F>>) -> Result<Self> {
        let (c, h, v, e) = (joint.states, joint.hidden(), joint.vocabulary, joint.embedding());
        let embeddings = joint.context_embeddings()?;
        let mut contexts = reuse(spare, c * h);
        Affine::new(View::new(joint.project_context, e, h), Some(joint.joint_bias))
            .forward(&embeddings, &mut contexts);
        let contexts = Addends::new(contexts, h);
        if let Some((state, value)) = contexts.outside() {
            let found = format!("{value} for state {state}");
            return Err(Error::shape(NAMES[0], "finite projections of embeddings", found));
        }
        let room = reuse(spare, c.next_multiple_of(PANEL) * h);
        let mut head = joint.blank.to_vec();
        head.resize((1 + v) * h, F::ZERO);
        kernels::transpose(&mut head[h..], View::new(joint.lexical, h, v));
        Ok(Self {
            joint,
            embeddings,
            contexts,
            panels: Vec::new(),
            room,
            head_left: TanhProducts::pack(View::new(&head, 1 + v, h)),
            head_right: None,
            head,
            bias: [joint.blank_bias, joint.lexical_bias].concat(),
            // What is left was for frames, whose number is not known yet.
            frames: Addends::new(reuse(spare, 0), h),
            gradient: None,
            pool: Pool::default(),
            screening: None,
        })
    }

    /// H
    pub fn hidden(&self) -> usize {
        self.joint.hidden()
    }

    /// Room for gradients, zero at first.
    pub fn gradient(&mut self) -> &mut Gradient<F> {
        let (c, h, v) = (self.joint.states, self.hidden(), self.joint.vocabulary);
        let gradient = self.gradient.get_or_insert_with(|| Gradient {
            contexts: vec![F::ZERO; c * h],
            frames: Vec::new(),
            head: vec![F::ZERO; (1 + v) * h],
            bias: vec![0.0; 1 + v],
            project_frame: vec![F::ZERO; self.joint.project_frame.len()],
            parts: frames::Parts::default(),
        });
        if gradient.frames.len() != self.frames.rows.len() {
            gradient.frames =
                kernels::reset(std::mem::take(&mut gradient.frames), self.frames.rows.len(), F::ZERO);
        }
        gradient
    }

    fn frame_layer(&self) -> Affine<'a, F> {
        let h = self.hidden();
        Affine::new(View::new(self.joint.project_frame, self.joint.project_frame.len() / h, h), None)
    }
}

impl<F: Real> Weights<F> for Opened<'_, F> {
    fn enter(&mut self, rows: &[F], utterances: &[u32]) -> Result<()> {
        let h = self.hidden();
        let mut frames = std::mem::take(&mut self.frames.rows);
        kernels::ensure_capacity(&mut frames, utterances.len() * h);
        frames.resize(utterances.len() * h, F::ZERO);
        if !rows.is_empty() {
            self.frame_layer().forward(rows, &mut frames);
        }
        self.frames = Addends::new(frames, h);
        if let Some((row, value)) = self.frames.outside() {
            let utterance = utterances[row];
            let frame = utterances[..row].iter().rev().take_while(|&&of| of == utterance).count();
            let found = format!("{value} for frame {frame} of utterance {utterance}");
            return Err(Error::shape(NAMES[1], "finite projections of frames", found));
        }
        if let Some(gradient) = &mut self.gradient {
            gradient.frames.clear();
        }
        if self.panels.is_empty() && self.screened().is_none() {
            self.panels = panels(&self.contexts.rows, h, std::mem::take(&mut self.room));
        }
        Ok(())
    }

    fn weigh(&self, frames: &[usize], arcs: ArcsMut<F>) {
        frames::weigh(self, frames, arcs);
    }

    fn weigh_state(&self, frame: usize, state: usize, lexical: &mut [F]) -> F {
        chain::weigh_state(self, frame, state, lexical)
    }

    fn screen(&mut self, panels: Panels, utterances: usize) {
        self.screening = Screening::new(self, panels, utterances);
    }

    fn screened(&self) -> Option<Screened<'_, F>> {
        Screened::new(self, self.screening.as_ref()?)
    }

    fn pull(&mut self, frames: &[usize], adjoints: Arcs<F>) {
        frames::pull(self, frames, adjoints);
    }

    fn weigh_chain(&self, first: usize, chain: Chain, arcs: ArcsMut<F>) -> Result<()> {
        chain::weigh(self, first, chain, arcs);
        Ok(())
    }

    fn pull_chain(&mut self, first: usize, chain: Chain, adjoints: Arcs<F>) -> Result<()> {
        chain::pull(self, first, chain, adjoints);
        Ok(())
    }

    fn frame_gradient(&mut self, x: &[F]) -> Vec<F> {
        let layer = self.frame_layer();
        let gradient = self.gradient();
        let mut rows = vec![F::ZERO; x.len()];
        if !x.is_empty() {
            layer.backward_rows(&gradient.frames, &mut rows, Accumulate::Replace);
            let mut bias = vec![F::ZERO; gradient.head.len() / gradient.bias.len()];
            layer.backward_parameters(&[(x, &gradient.frames)], &mut gradient.project_frame, &mut bias);
        }
        gradient.frames.fill(F::ZERO);
        rows
    }

    fn spare(&mut self) -> Vec<Vec<F>> {
        let Self { contexts, panels, room, frames, screening, .. } = self;
        let columns = match screening.take() {
            Some(screening) => screening.into_room(),
            None if panels.is_empty() => std::mem::take(room),
            None => std::mem::take(panels),
        };
        vec![std::mem::take(&mut contexts.rows), columns, std::mem::take(&mut frames.rows)]
    }

    fn finish(mut self: Box<Self>) -> Parameters<F> {
        self.gradient();
        let Self { joint, embeddings, gradient, .. } = *self;
        let gradient = gradient.expect("there is room for gradients");
        let (c, h, v, e) = (joint.states, joint.hidden(), joint.vocabulary, joint.embedding());
        let mut contexts = gradient.contexts;
        gradient.parts.add_contexts(&mut contexts);
        let mut head = gradient.head;
        let mut head_bias = gradient.bias;
        gradient.parts.add_head(&mut head, &mut head_bias);

        let layer = Affine::new(View::new(joint.project_context, e, h), None);
        let (mut project_context, mut joint_bias) = (vec![F::ZERO; e * h], vec![F::ZERO; h]);
        layer.backward_parameters(&[(&embeddings, &contexts)], &mut project_context, &mut joint_bias);
        let mut of_embeddings = vec![F::ZERO; c * e];
        layer.backward_rows(&contexts, &mut of_embeddings, Accumulate::Replace);
        let mut lexical = vec![F::ZERO; h * v];
        kernels::transpose(&mut lexical, View::new(&head[h..], v, h));
        head.truncate(h);
        let head_bias: Vec<F> = head_bias.into_iter().map(F::from_f64).collect();
        let values = [
            project_context,
            gradient.project_frame,
            joint_bias,
            head,
            head_bias[..1].to_vec(),
            lexical,
            head_bias[1..].to_vec(),
        ];
        let mut parameters: Parameters<F> = NAMES.iter().map(|name| name.to_string()).zip(values).collect();
        joint.embeddings_backward(of_embeddings, &mut parameters);
        parameters
    }
}
