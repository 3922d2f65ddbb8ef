//! Weight functions: what an arc weighs, by frame, context state and label.
//!
//! A [`WeightFn`] borrows parameters; [`WeightFn::open`] computes what depends on them alone, once a call. [`Weights`] then goes
//! from group to group of frames: [`weigh`](Weights::weigh) gives the arc weights of whole frames,
//! [`weigh_chain`](Weights::weigh_chain) those along one string of labels, and [`pull`](Weights::pull) and
//! [`pull_chain`](Weights::pull_chain) take their adjoints back to parameters and frames.
mod joint;
mod locally_normalized;
mod shared_rnn;
mod table;

use std::collections::BTreeMap;

use kernels::Real;

#[doc(hidden)]
pub use joint::JointSizes;
pub(crate) use joint::screened::Screened;
pub use joint::{Embeddings, Joint};
pub use locally_normalized::{LocallyNormalized, Normalize};
pub use shared_rnn::SharedRnn;
pub use table::Table;

use crate::{
    Result,
    panels::{Panels, Screens},
};

/// Parameters by the names of the reference implementation, such as `project_frame/kernel`; or their gradients.
pub type Parameters<F> = BTreeMap<String, Vec<F>>;

/// Arc weights, or their adjoints, of some frames: *n x C* blank and *n x C x V* lexical; along a chain *n x (U + 1)* each.
#[derive(Debug, Clone, Copy)]
pub struct Arcs<'a, F> {
    /// `b`
    pub blank: &'a [F],
    /// `l`
    pub lexical: &'a [F],
}

/// [`Arcs`] to be written.
#[derive(Debug)]
pub struct ArcsMut<'a, F> {
    /// `b`
    pub blank: &'a mut [F],
    /// `l`
    pub lexical: &'a mut [F],
}

/// One string of labels in a context: the states `c_0 .. c_U` and the label that follows each; none follows the last. Weight
/// functions take both as they are, whether or not a label leads from its state to the next.
#[derive(Debug, Clone, Copy)]
pub struct Chain<'a> {
    /// *U + 1*
    pub states: &'a [usize],
    /// *U*, 1 to V.
    pub labels: &'a [u32],
}

/// What a group of utterances asks of a weight function, by which its memory is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Frames of the group.
    pub frames: usize,
    /// Frames that are weighed or pulled at once.
    pub wave: usize,
    /// *U + 1* of the longest chain; 0 without chains.
    pub positions: usize,
    /// Whether anything is pulled.
    pub gradients: bool,
    /// What best arcs are looked for among without most weights, where there is a way; nothing if all are weighed.
    pub screened: Screens,
}

/// What an arc weighs. `x` is a frame, `p` a context state: `(b_t[p], l_t[p, 1..V])`.
pub trait WeightFn<F: Real>: Sync {
    /// V
    fn vocabulary(&self) -> usize;

    /// C
    fn states(&self) -> usize;

    /// F; none for any.
    fn frame_size(&self) -> Option<usize>;

    /// Utterances that it has weights of their own for; none for any.
    fn utterances(&self) -> Option<usize> {
        None
    }

    /// Whether the weights of the arcs from each state are log-probabilities, so that a loss needs no denominator.
    fn is_locally_normalized(&self) -> bool {
        false
    }

    /// Whether parameters and frames are looked at, so that no weight is ever NaN or +inf. Searches look at the weights of others.
    fn is_checked(&self) -> bool {
        false
    }

    /// This, if it is a joint network, whose normaliser needs no row of V weights.
    #[doc(hidden)]
    fn as_joint(&self) -> Option<&Joint<'_, F>> {
        None
    }

    /// Sizes of this, if it is a joint network.
    #[doc(hidden)]
    fn joint_sizes(&self) -> Option<JointSizes> {
        None
    }

    /// Bytes that [`Weights`] hold at most for groups of such a load, gradients included if there are any; beside what each thread
    /// keeps for the packing of products ([`kernels::packing_bytes`]).
    fn bytes(&self, load: Load) -> usize;

    /// Whether best arcs are found sooner among so much without most weights.
    fn screens(&self, among: Screens) -> bool {
        let _ = among;
        false
    }

    /// What depends on the parameters alone.
    ///
    /// # Errors
    /// Parameters that do not fit together or are NaN or infinite where they must not be.
    fn open(&self) -> Result<Box<dyn Weights<F> + '_>>;

    /// [`open`](Self::open) with buffers of earlier [`Weights`], as [`Weights::spare`] gave them: whoever has some use for them asks
    /// for no fresh memory.
    ///
    /// # Errors
    /// As there.
    fn open_with(&self, spare: &mut Vec<Vec<F>>) -> Result<Box<dyn Weights<F> + '_>> {
        let _ = spare;
        self.open()
    }
}

/// A weight function at work.
pub trait Weights<F: Real>: Send + Sync {
    /// Goes on to other frames, packed rows *n x F*, each of an utterance. They are called 0 to n - 1 from here on; gradients of
    /// the last ones are lost.
    ///
    /// # Errors
    /// Frames that the weights are not defined for.
    fn enter(&mut self, rows: &[F], utterances: &[u32]) -> Result<()>;

    /// Weights of all arcs of some frames. Every task of it depends on its own arcs alone.
    fn weigh(&self, frames: &[usize], arcs: ArcsMut<F>);

    /// Weights of the arcs from one state; returns that of the blank.
    fn weigh_state(&self, frame: usize, state: usize, lexical: &mut [F]) -> F;

    /// Gets ready to look for best arcs in a context, for so many utterances at once.
    #[doc(hidden)]
    fn screen(&mut self, panels: Panels, utterances: usize) {
        let _ = (panels, utterances);
    }

    /// A look for best arcs that does without most weights, where there is one.
    #[doc(hidden)]
    fn screened(&self) -> Option<Screened<'_, F>> {
        None
    }

    /// Takes adjoints of [`weigh`](Self::weigh)'s results back.
    fn pull(&mut self, frames: &[usize], adjoints: Arcs<F>);

    /// Weights along a chain in successive frames from `first` on. The last lexical one of each frame is -inf.
    fn weigh_chain(&self, first: usize, chain: Chain, arcs: ArcsMut<F>) -> Result<()>;

    /// Takes adjoints of [`weigh_chain`](Self::weigh_chain)'s results back.
    fn pull_chain(&mut self, first: usize, chain: Chain, adjoints: Arcs<F>) -> Result<()>;

    /// Gradient of the frames entered last, *n x F*, which are given once more.
    fn frame_gradient(&mut self, rows: &[F]) -> Vec<F>;

    /// Large buffers that nobody needs once the last is weighed and pulled.
    fn spare(&mut self) -> Vec<Vec<F>> {
        Vec::new()
    }

    /// Gradients of the parameters.
    fn finish(self: Box<Self>) -> Parameters<F>;
}

/// A buffer of so many elements, whatever is in them: one of those that are left over, or a new one.
pub(crate) fn reuse<F: Real>(spare: &mut Vec<Vec<F>>, len: usize) -> Vec<F> {
    let fits = |(at, buffer): (usize, &Vec<F>)| (buffer.capacity() >= len).then_some((buffer.capacity(), at));
    match spare.iter().enumerate().filter_map(fits).min() {
        Some((_, at)) => {
            let mut buffer = spare.swap_remove(at);
            buffer.resize(len, F::ZERO);
            buffer
        }
        None => {
            // None of them is of use, and old and new need not be there at once.
            spare.clear();
            kernels::alloc(len, F::ZERO)
        }
    }
}
