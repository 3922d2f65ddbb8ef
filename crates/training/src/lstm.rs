//! The LSTM layer as one candle operation: ragged batches, one or two directions, hand-written backward.
//!
//! A framework that records every gate of every step pays for ten small tensors a frame. Here a layer is a single node of the
//! graph: inside, frames are packed without padding (`layout.rs`), products run over all frames at once, in blocks of rows
//! (`direction.rs`), and only the recurrent product is left to the steps, of each group of utterances (`steps.rs`) or, where a
//! layer is wide and groups are few, of each strip of units (`strips.rs`). The cut depends on shapes only, so that the bits are
//! the same for every number of threads.
mod carried;
mod cell;
mod direction;
mod layer;
mod layout;
mod steps;
mod strips;

use std::sync::Mutex;

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout as TensorLayout, Shape, Tensor, WithDType};
pub use carried::{CarriedLstm, LstmState};
use direction::{Gradients, Tape};
use kernels::Real;
pub use layer::Lstm;
use layout::{Cut, Layout, Sizes};
use rayon::prelude::*;

use crate::tensors::{self, with_slice};
use crate::{Error, Result};

/// The weights of one direction of an LSTM layer, in candle's layout.
///
/// Gates are in the order i, f, g, o. There is one bias: of the two that other toolkits add up, `bias_ih` plus `bias_hh`.
#[derive(Debug, Clone)]
pub struct LstmWeights {
    /// `weight_ih` `[4H, D]`
    pub input: Tensor,
    /// `weight_hh` `[4H, H]`
    pub recurrent: Tensor,
    /// `bias_ih` `[4H]`
    pub bias: Tensor,
}

/// Runs an LSTM layer over a ragged batch, in one direction or two.
///
/// ```text
/// [i f g o] = x_t W_ihᵀ + h_{t-1} W_hhᵀ + b     c_t = σ(f) c_{t-1} + σ(i) tanh(g)     h_t = σ(o) tanh(c_t)
/// ```
/// The second direction starts at each utterance's own last frame. Padding is neither read nor computed: the output there is 0.
///
/// # Shapes
/// `x [B, T, D]`; `lengths` has B entries of at most T; the weights of each direction as [`LstmWeights`] says. Returns `[B, T, H]`
/// for one direction and `[B, T, 2H]` for two.
///
/// # Errors
/// [`Error::Shape`] if shapes, lengths or dtypes do not fit; candle's own errors are passed on.
///
/// Cost: `O(Σ T_b · (D + H) · H)` time, and for the backward pass `Σ T_b · (D + 7H)` numbers a direction; `4H` more a frame while
/// either pass of a wide layer runs.
pub fn lstm(x: &Tensor, lengths: &[usize], directions: &[LstmWeights]) -> Result<Tensor> {
    let (batch, frames, input) =
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
    let Some(first) = directions.first().filter(|_| directions.len() <= 2) else {
        return Err(Error::shape("directions", "1 or 2", format!("{}", directions.len())));
    };
    let hidden = first.recurrent.dims().last().copied().unwrap_or(0);
    for LstmWeights { input: w_ih, recurrent, bias } in directions {
        let shapes: [(&str, &Tensor, &[usize]); 3] = [
            ("weight_ih", w_ih, &[4 * hidden, input]),
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
    let (x, sizes) = (x.contiguous()?, Sizes { frames, input, hidden });
    match x.dtype() {
        candle_core::DType::F32 => apply::<f32>(&x, lengths, sizes, directions),
        candle_core::DType::F64 => apply::<f64>(&x, lengths, sizes, directions),
        other => Err(Error::shape("x", "f32 or f64", format!("{other:?}"))),
    }
}

fn apply<F: Real + WithDType>(
    x: &Tensor,
    lengths: &[usize],
    sizes: Sizes,
    directions: &[LstmWeights],
) -> Result<Tensor> {
    let cut = layout::cut(lengths.len(), directions.len(), sizes.hidden);
    apply_cut::<F>(x, lengths, sizes, directions, cut)
}

fn apply_cut<F: Real + WithDType>(
    x: &Tensor,
    lengths: &[usize],
    sizes: Sizes,
    directions: &[LstmWeights],
    cut: Cut,
) -> Result<Tensor> {
    // An operation has at most three differentiable arguments: the weights of a direction go in one after another.
    let flat = |LstmWeights { input, recurrent, bias }: &LstmWeights| {
        Tensor::cat(&[&input.flatten_all()?, &recurrent.flatten_all()?, bias], 0)
    };
    let count = directions.len();
    let layouts = (0..count).map(|direction| Layout::new(lengths, cut, direction == 1)).collect();
    let op = Operation::<F> { batch: lengths.len(), sizes, layouts, tape: Mutex::new(None) };
    Ok(match directions {
        [only] => x.apply_op2(&flat(only)?, op)?,
        [forth, back] => x.apply_op3(&flat(forth)?, &flat(back)?, op)?,
        _ => unreachable!("checked by the caller"),
    })
}

/// The graph node. The tape lives here between forward and backward; a second backward pass recomputes it.
struct Operation<F> {
    batch: usize,
    sizes: Sizes,
    /// Packed rows of each direction.
    layouts: Vec<Layout>,
    tape: Mutex<Option<Vec<Tape<F>>>>,
}

impl<F: Real + WithDType> Operation<F> {
    fn forward(&self, x: &[F], weights: &[&[F]]) -> (Vec<Tape<F>>, Vec<F>) {
        let Sizes { frames, hidden, .. } = self.sizes;
        let width = hidden * weights.len();
        let run = |(layout, weights): (&Layout, &&[F])| direction::forward(layout, self.sizes, x, weights);
        let (tapes, states): (Vec<_>, Vec<_>) = self.layouts.par_iter().zip(weights).map(run).unzip();
        let mut out = vec![F::ZERO; self.batch * frames * width];
        direction::each_row(&mut out, width, |at, out| {
            for ((layout, states), out) in self.layouts.iter().zip(&states).zip(out.chunks_exact_mut(hidden))
            {
                let Some(row) = layout.row(at / frames, at % frames) else { continue };
                out.copy_from_slice(&states[row * hidden..][..hidden]);
            }
        });
        (tapes, out)
    }

    fn cpu(&self, x: &[F], weights: &[&[F]]) -> (CpuStorage, Shape) {
        let (tapes, out) = self.forward(x, weights);
        *self.tape.lock().expect("no panic while locked") = Some(tapes);
        (
            F::to_cpu_storage_owned(out),
            Shape::from((self.batch, self.sizes.frames, self.sizes.hidden * weights.len())),
        )
    }

    /// Gradients of the input (if it is part of the graph) and of the weights.
    fn backward(
        &self,
        x: &Tensor,
        weights: &[&Tensor],
        above: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Vec<Tensor>)> {
        let Sizes { frames, input, hidden } = self.sizes;
        let input_wanted = x.track_op();
        let above = above.contiguous()?;
        let gradients: Vec<Gradients<F>> = tensors::with_slices(weights, |weights: &[&[F]]| {
            let tapes = self.tape.lock().expect("no panic while locked").take();
            let tapes = match tapes {
                Some(tapes) => tapes,
                None => with_slice(x, |x| Ok(self.forward(x, weights).0))?,
            };
            with_slice(&above, |above: &[F]| {
                let width = hidden * weights.len();
                let all = self.layouts.par_iter().zip(weights).zip(tapes).enumerate();
                let gradients = all.map(|(direction, ((layout, weights), tape))| {
                    direction::backward(layout, self.sizes, tape, weights, input_wanted, |b, t, row| {
                        let from = (b * frames + t) * width + direction * hidden;
                        row.copy_from_slice(&above[from..from + hidden]);
                    })
                });
                Ok(gradients.collect())
            })
        })?;
        let mut dx = vec![<F as Real>::ZERO; if input_wanted { self.batch * frames * input } else { 0 }];
        direction::each_row(&mut dx, input, |at, dx| {
            for (layout, gradient) in self.layouts.iter().zip(&gradients) {
                let row = layout.row(at / frames, at % frames);
                let Some((rows, row)) = gradient.input.as_ref().zip(row) else { continue };
                kernels::add(dx, &rows[row * input..][..input]);
            }
        });
        let dx = if input_wanted { Some(tensors::from_vec(dx, (self.batch, frames, input))?) } else { None };
        let weights = gradients.into_iter().map(|gradient| {
            let count = gradient.weights.len();
            tensors::from_vec(gradient.weights, count)
        });
        Ok((dx, weights.collect::<candle_core::Result<_>>()?))
    }
}

impl<F: Real + WithDType> CustomOp2 for Operation<F> {
    fn name(&self) -> &'static str {
        "lstm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &TensorLayout,
        w: &CpuStorage,
        w_layout: &TensorLayout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok(self.cpu(tensors::slice(x, x_layout)?, &[tensors::slice(w, w_layout)?]))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        _: &Tensor,
        above: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let (dx, mut dw) = self.backward(x, &[w], above)?;
        Ok((dx, dw.pop()))
    }
}

impl<F: Real + WithDType> CustomOp3 for Operation<F> {
    fn name(&self) -> &'static str {
        "bidirectional lstm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &TensorLayout,
        forth: &CpuStorage,
        forth_layout: &TensorLayout,
        back: &CpuStorage,
        back_layout: &TensorLayout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let weights = [tensors::slice(forth, forth_layout)?, tensors::slice(back, back_layout)?];
        Ok(self.cpu(tensors::slice(x, x_layout)?, &weights))
    }

    fn bwd(
        &self,
        x: &Tensor,
        forth: &Tensor,
        back: &Tensor,
        _: &Tensor,
        above: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (dx, mut dw) = self.backward(x, &[forth, back], above)?;
        let d_back = dw.pop();
        Ok((dx, dw.pop(), d_back))
    }
}

#[cfg(test)]
mod tests;
