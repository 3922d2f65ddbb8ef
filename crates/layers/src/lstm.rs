//! The LSTM layer as one candle operation, for ragged batches.
//!
//! A framework that records every gate of every step needs ten small tensors for each frame. Here a
//! layer is a single node of the graph. Frames are packed without padding (`layout.rs`). Products
//! with the input weights run over all frames at once, in blocks of rows (`direction.rs`); only the
//! recurrent product runs step by step (`steps.rs`). The task of a step is a group of utterances
//! or, if a layer is wide and groups are few, a strip of units of one frame. The blocking depends
//! on shapes only, so that the bits are the same for every number of threads.
mod direction;
mod handle;
mod layer;
mod layout;
mod packed;
mod quantized_steps;
mod steps;

use std::any::Any;
use std::sync::Mutex;

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout as TensorLayout, Shape, Tensor, WithDType};
use direction::{DirectionContext, DirectionGradients, DirectionWeights, GradientMask, Tape};
use handle::WeightsHandle;
use kernels::{BufferPool, PooledBuffer, Real};
pub use layer::Lstm;
use layout::{LayerBlocking, LayerSizes, TapeLayout};
pub use packed::{LstmState, PackedLstmLayer};
use rayon::prelude::*;

use crate::gradient_hooks::GradientHooks;
use crate::tensors;
use crate::{Error, Result};

/// The weights of one direction of an LSTM layer, in candle's layout.
///
/// Gates are in the order i, f, g, o. The one bias is the sum of `bias_ih` and `bias_hh` of
/// toolkits with two.
#[derive(Debug, Clone)]
pub struct LstmWeights {
    /// The weight of the input, `weight_ih` `[4H, D]`.
    pub input: Tensor,
    /// The weight of the previous state, `weight_hh` `[4H, H]`.
    pub recurrent: Tensor,
    /// The bias, `bias_ih` `[4H]`.
    pub bias: Tensor,
}

/// Buffers that layers reuse from call to call.
#[derive(Debug, Clone, Default)]
struct BufferPools {
    single_precision: BufferPool<f32>,
    double_precision: BufferPool<f64>,
}

impl BufferPools {
    /// Returns the pool of a number format.
    fn get<F: Real>(&self) -> &BufferPool<F> {
        let pools: [&dyn Any; 2] = [&self.single_precision, &self.double_precision];
        pools.into_iter().find_map(|pool| pool.downcast_ref()).expect("f32 or f64")
    }
}

/// Applies an LSTM layer to a ragged batch.
///
/// ```text
/// [i f g o] = x_t W_ihᵀ + h_{t-1} W_hhᵀ + b
/// c_t = σ(f) c_{t-1} + σ(i) tanh(g)     h_t = σ(o) tanh(c_t)
/// ```
/// The second direction starts at each utterance's own last frame. Padding is neither read nor
/// computed: the output there is 0.
///
/// # Shapes
/// `x [B, T, D]`; `lengths` has B entries of at most T; the weights of each direction have the
/// shapes of [`LstmWeights`]. Returns `[B, T, H]` for one direction and `[B, T, 2H]` for two.
///
/// # Errors
/// [`Error::Shape`] if shapes, lengths or dtypes do not match; errors of candle.
///
/// Cost: `O(Σ T_b · (D + H) · H)` time, and `Σ T_b · 5H` numbers for each direction, which are
/// saved for the backward pass.
pub fn lstm(x: &Tensor, lengths: &[usize], directions: &[LstmWeights]) -> Result<Tensor> {
    lstm_in_context(LstmContext::default(), x, lengths, directions)
}

/// Runs all directions, in parallel unless threads share the frames of each.
///
/// If threads share frames, every frame reads the whole recurrent weight, and the caches hold the
/// weight of one direction better than those of two.
fn run_directions<T: Send, R: Send>(
    layouts: &[TapeLayout],
    directions: Vec<T>,
    run: impl Fn(T) -> R + Send + Sync,
) -> Vec<R> {
    if layouts.iter().any(TapeLayout::uses_strips) {
        return directions.into_iter().map(run).collect();
    }
    directions.into_par_iter().map(run).collect()
}

/// The context of a call: the buffers of its layer, and the hooks of its training pass.
#[derive(Debug, Clone, Copy, Default)]
struct LstmContext<'a> {
    /// Buffers between calls.
    pools: Option<&'a BufferPools>,
    /// Hooks that send the gradients of the weights in the backward pass.
    hooks: Option<&'a GradientHooks>,
}

/// [`lstm`] in a context.
fn lstm_in_context(
    context: LstmContext,
    x: &Tensor,
    lengths: &[usize],
    directions: &[LstmWeights],
) -> Result<Tensor> {
    let (batch, frames, input_width) =
        x.dims3().map_err(|_| Error::shape("x", "three axes [B, T, D]", format!("{:?}", x.dims())))?;
    if lengths.len() != batch {
        return Err(Error::shape("lengths", format!("{batch} entries"), format!("{}", lengths.len())));
    }
    if let Some((b, &length)) = lengths.iter().enumerate().find(|&(_, &length)| length > frames) {
        return Err(Error::shape(
            "lengths",
            format!("at most {frames} frames"),
            format!("{length} for utterance {b}"),
        ));
    }
    let Some(first_direction) = directions.first().filter(|_| directions.len() <= 2) else {
        return Err(Error::shape("directions", "1 or 2", format!("{}", directions.len())));
    };
    let hidden = first_direction.recurrent.dims().last().copied().unwrap_or(0);
    for LstmWeights { input: w_ih, recurrent, bias } in directions {
        let shapes: [(&str, &Tensor, &[usize]); 3] = [
            ("weight_ih", w_ih, &[4 * hidden, input_width]),
            ("weight_hh", recurrent, &[4 * hidden, hidden]),
            ("bias_ih", bias, &[4 * hidden]),
        ];
        for (name, tensor, expected) in shapes {
            if hidden == 0 || tensor.dims() != expected || tensor.dtype() != x.dtype() {
                let expected = format!("{expected:?} of {:?}", x.dtype());
                return Err(Error::shape(
                    name,
                    expected,
                    format!("{:?} of {:?}", tensor.dims(), tensor.dtype()),
                ));
            }
        }
    }
    let (x, sizes) = (x.contiguous()?, LayerSizes { frames, input_width, hidden });
    match x.dtype() {
        candle_core::DType::F32 => apply::<f32>(context, &x, lengths, sizes, directions),
        candle_core::DType::F64 => apply::<f64>(context, &x, lengths, sizes, directions),
        other => Err(Error::shape("x", "f32 or f64", format!("{other:?}"))),
    }
}

/// Applies a layer of checked shapes, with the blocking of its shape.
fn apply<F: Real + WithDType>(
    context: LstmContext,
    x: &Tensor,
    lengths: &[usize],
    sizes: LayerSizes,
    directions: &[LstmWeights],
) -> Result<Tensor> {
    let blocking = layout::select_blocking(lengths.len(), directions.len(), sizes.hidden);
    apply_with_blocking::<F>(context, x, lengths, blocking, sizes, directions)
}

/// Applies a layer of checked shapes.
fn apply_with_blocking<F: Real + WithDType>(
    context: LstmContext,
    x: &Tensor,
    lengths: &[usize],
    blocking: LayerBlocking,
    sizes: LayerSizes,
    directions: &[LstmWeights],
) -> Result<Tensor> {
    let layouts =
        (0..directions.len()).map(|direction| TapeLayout::new(lengths, blocking, direction == 1)).collect();
    let handles_and_arguments: Vec<(WeightsHandle, Tensor)> = directions
        .iter()
        .map(|weights| WeightsHandle::new(weights, context.hooks))
        .collect::<candle_core::Result<_>>()?;
    let (handles, arguments): (Vec<_>, Vec<_>) = handles_and_arguments.into_iter().unzip();
    let (batch, pool, tape) =
        (lengths.len(), context.pools.map(|pools| pools.get().clone()), Mutex::new(None));
    let operation = LstmOperation::<F> { batch, sizes, layouts, handles, pool, tape };
    Ok(match &arguments[..] {
        [argument] => x.apply_op2(argument, operation)?,
        [first, second] => x.apply_op3(first, second, operation)?,
        _ => unreachable!("checked by the caller"),
    })
}

/// The node of the graph, which owns the tape: the activations saved for the backward pass.
///
/// The backward pass consumes the tape; a second one computes it again.
struct LstmOperation<F> {
    batch: usize,
    sizes: LayerSizes,
    /// Packed rows of each direction.
    layouts: Vec<TapeLayout>,
    /// Weights of each direction.
    handles: Vec<WeightsHandle>,
    pool: Option<BufferPool<F>>,
    tape: Mutex<Option<Vec<Tape<F>>>>,
}

impl<F: Real + WithDType> LstmOperation<F> {
    /// Calls `read` with the weights of all directions.
    fn with_weights<R>(
        &self,
        read: impl FnOnce(&[DirectionWeights<F>]) -> candle_core::Result<R>,
    ) -> candle_core::Result<R> {
        let weights = self.handles.iter().map(|handle| &handle.weights);
        let tensors: Vec<&Tensor> =
            weights.flat_map(|LstmWeights { input, recurrent, bias }| [input, recurrent, bias]).collect();
        tensors::with_slices(&tensors, |slices: &[&[F]]| {
            let by_direction = slices.as_chunks().0.iter();
            let weights =
                by_direction.map(|&[input, recurrent, bias]| DirectionWeights { input, recurrent, bias });
            read(&weights.collect::<Vec<_>>())
        })
    }

    fn direction_context<'a>(&'a self, layout: &'a TapeLayout) -> DirectionContext<'a, F> {
        DirectionContext { layout, sizes: self.sizes, pool: self.pool.as_ref() }
    }

    /// Runs the forward pass; returns the tape of each direction, and the padded output.
    fn forward(&self, x: &[F], weights: &[DirectionWeights<F>]) -> (Vec<Tape<F>>, Vec<F>) {
        let LayerSizes { frames, input_width, hidden } = self.sizes;
        let width = hidden * weights.len();
        let input_row = |b: usize, t: usize| &x[(b * frames + t) * input_width..][..input_width];
        let run = |(layout, &weights)| direction::forward(self.direction_context(layout), input_row, weights);
        let (tapes, states): (Vec<_>, Vec<_>) =
            run_directions(&self.layouts, self.layouts.iter().zip(weights).collect(), run)
                .into_iter()
                .unzip();
        let mut out = kernels::alloc(self.batch * frames * width, F::ZERO);
        direction::for_each_row(&mut out, width, |index, out_row| {
            let directions = self.layouts.iter().zip(&states);
            for ((layout, states), out) in directions.zip(out_row.chunks_exact_mut(hidden)) {
                let Some(row) = layout.row(index / frames, index % frames) else { continue };
                out.copy_from_slice(&states[row * hidden..][..hidden]);
            }
        });
        (tapes, out)
    }

    /// Runs the forward pass, and stores its tape.
    fn forward_on_cpu(&self, x: &[F]) -> candle_core::Result<(CpuStorage, Shape)> {
        let (tapes, out) = self.with_weights(|weights| Ok(self.forward(x, weights)))?;
        *self.tape.lock().expect("no panic while locked") = Some(tapes);
        let width = self.sizes.hidden * self.handles.len();
        Ok((F::to_cpu_storage_owned(out), Shape::from((self.batch, self.sizes.frames, width))))
    }

    /// Computes the input's gradient, and stores those of the weights.
    ///
    /// Returns the input's gradient and a gradient for each argument (`handle.rs`); none for those
    /// that are not part of the graph.
    fn backward(
        &self,
        x: &Tensor,
        arguments: &[&Tensor],
        out: &Tensor,
        d_out: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Vec<Option<Tensor>>)> {
        let is_input_needed = x.track_op();
        let tapes = self.tape.lock().expect("no panic while locked").take();
        let gradients: Vec<DirectionGradients<F>> = self.with_weights(|weights| {
            tensors::with_slices(&[x, out, &d_out.contiguous()?], |tensors: &[&[F]]| {
                let &[x, out, d_out] = tensors else { unreachable!("three tensors") };
                let tapes = tapes.unwrap_or_else(|| self.forward(x, weights).0);
                let directions = self.layouts.iter().zip(weights).zip(tapes).enumerate().collect();
                Ok(run_directions(&self.layouts, directions, |(direction, ((layout, &weights), tape))| {
                    let LayerSizes { frames, input_width, hidden } = self.sizes;
                    let input_row = |b: usize, t: usize| &x[(b * frames + t) * input_width..][..input_width];
                    let [out_row, d_out_row] = [out, d_out].map(|rows| {
                        move |b: usize, t: usize| {
                            &rows[((b * frames + t) * arguments.len() + direction) * hidden..][..hidden]
                        }
                    });
                    let mask =
                        GradientMask { input: is_input_needed, weights: arguments[direction].track_op() };
                    direction::backward(
                        self.direction_context(layout),
                        tape,
                        weights,
                        mask,
                        &input_row,
                        &out_row,
                        &d_out_row,
                    )
                }))
            })
        })?;
        let (inputs, weights): (Vec<_>, Vec<_>) =
            gradients.into_iter().map(|DirectionGradients { input, weights }| (input, weights)).unzip();
        let dx = if is_input_needed { Some(self.unpack_sum(inputs)?) } else { None };
        let LayerSizes { input_width, hidden, .. } = self.sizes;
        let weights = self.handles.iter().zip(weights).map(|(handle, gradients)| {
            let Some([d_input, d_recurrent, d_bias]) = gradients else { return Ok(None) };
            let gradients = [
                tensors::from_vec(d_input, (4 * hidden, input_width))?,
                tensors::from_vec(d_recurrent, (4 * hidden, hidden))?,
                tensors::from_vec(d_bias, 4 * hidden)?,
            ];
            handle.store(gradients).map(Some)
        });
        Ok((dx, weights.collect::<candle_core::Result<_>>()?))
    }

    /// Adds the directions' packed gradients of the input, as a padded tensor.
    fn unpack_sum(&self, gradients: Vec<Option<PooledBuffer<F>>>) -> candle_core::Result<Tensor> {
        let LayerSizes { frames, input_width, .. } = self.sizes;
        let mut dx = kernels::alloc(self.batch * frames * input_width, <F as Real>::ZERO);
        direction::for_each_row(&mut dx, input_width, |index, dx_row| {
            for (layout, rows) in self.layouts.iter().zip(gradients.iter().flatten()) {
                let Some(row) = layout.row(index / frames, index % frames) else { continue };
                kernels::add(dx_row, &rows[row * input_width..][..input_width]);
            }
        });
        tensors::from_vec(dx, (self.batch, frames, input_width))
    }
}

impl<F: Real + WithDType> CustomOp2 for LstmOperation<F> {
    fn name(&self) -> &'static str {
        "lstm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        layout: &TensorLayout,
        _: &CpuStorage,
        _: &TensorLayout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        self.forward_on_cpu(tensors::storage_slice(x, layout)?)
    }

    fn bwd(
        &self,
        x: &Tensor,
        argument: &Tensor,
        out: &Tensor,
        d_out: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let (dx, mut weights) = self.backward(x, &[argument], out, d_out)?;
        Ok((dx, weights.pop().flatten()))
    }
}

impl<F: Real + WithDType> CustomOp3 for LstmOperation<F> {
    fn name(&self) -> &'static str {
        "bidirectional lstm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        layout: &TensorLayout,
        _: &CpuStorage,
        _: &TensorLayout,
        _: &CpuStorage,
        _: &TensorLayout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        self.forward_on_cpu(tensors::storage_slice(x, layout)?)
    }

    fn bwd(
        &self,
        x: &Tensor,
        first: &Tensor,
        second: &Tensor,
        out: &Tensor,
        d_out: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (dx, mut weights) = self.backward(x, &[first, second], out, d_out)?;
        let second = weights.pop().flatten();
        Ok((dx, weights.pop().flatten(), second))
    }
}

#[cfg(test)]
mod tests;
