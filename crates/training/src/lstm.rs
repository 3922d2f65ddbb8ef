//! The LSTM layer as one candle operation: ragged batches, one or two directions, hand-written backward.
//!
//! A framework that records every gate of every step pays for ten small tensors a frame. Here a layer is a single node of the
//! graph: inside, the utterances are cut into groups by length (the cut depends on shapes only), each (direction, group) is a
//! task that works on packed rows without padding (`group.rs`), and the gradients of the groups are summed in a fixed order.
//! The bits are therefore the same for every number of threads.
mod group;

use std::sync::Mutex;

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout as TensorLayout, Shape, Tensor, WithDType};
use group::{Layout, Sizes, Tape};
use panda_core::Real;
use rayon::prelude::*;

use crate::tensors::{self, with_slice};
use crate::{Error, Result};

/// Utterances that one task runs side by side; more would not make the products faster.
const GROUP: usize = 16;

/// Runs an LSTM layer over a ragged batch, in one direction or two.
///
/// ```text
/// [i f o g] = [x_t | h_{t-1} | 1] W     c_t = σ(f) c_{t-1} + σ(i) tanh(g)     h_t = σ(o) tanh(c_t)
/// ```
/// The second direction starts at each utterance's own last frame. Padding is neither read nor computed: the output there is 0.
///
/// # Shapes
/// `x [B, T, D]`; `lengths` has B entries of at most T; each weight `[D + H + 1, 4H]` with rows input, recurrent, bias and
/// columns in the order i, f, o, g. Returns `[B, T, H]` for one weight and `[B, T, 2H]` for two.
///
/// # Errors
/// [`Error::Shape`] if shapes, lengths or dtypes do not fit; candle's own errors are passed on.
///
/// Cost: `O(Σ T_b · (D + H) · H)` time, and for the backward pass `Σ T_b · (D + 7H + 1)` numbers a direction.
pub fn lstm(x: &Tensor, lengths: &[usize], weights: &[&Tensor]) -> Result<Tensor> {
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
    let Some(first) = weights.first().filter(|_| weights.len() <= 2) else {
        return Err(Error::shape("weights", "one tensor a direction, 1 or 2", format!("{}", weights.len())));
    };
    let hidden = first.dims().last().map_or(0, |n| n / 4);
    let sizes = Sizes { frames, input, hidden };
    for weight in weights {
        if hidden == 0 || weight.dims() != [sizes.row(), 4 * hidden] || weight.dtype() != x.dtype() {
            let expected = format!("[{input} + H + 1, 4H] of {:?}", x.dtype());
            return Err(Error::shape(
                "weight",
                expected,
                format!("{:?} of {:?}", weight.dims(), weight.dtype()),
            ));
        }
    }
    let x = x.contiguous()?;
    match x.dtype() {
        candle_core::DType::F32 => apply::<f32>(&x, lengths, sizes, weights),
        candle_core::DType::F64 => apply::<f64>(&x, lengths, sizes, weights),
        other => Err(Error::shape("x", "f32 or f64", format!("{other:?}"))),
    }
}

fn apply<F: Real + WithDType>(
    x: &Tensor,
    lengths: &[usize],
    sizes: Sizes,
    weights: &[&Tensor],
) -> Result<Tensor> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&b| (std::cmp::Reverse(lengths[b]), b));
    // At least two tasks, so that one direction can use two cores as well.
    let size = order.len().div_ceil(3 - weights.len()).clamp(1, GROUP);
    let layouts = (0..weights.len())
        .map(|direction| {
            order.chunks(size).map(|group| Layout::new(group.to_vec(), lengths, direction == 1)).collect()
        })
        .collect();
    let op = Lstm::<F> { batch: lengths.len(), sizes, layouts, tape: Mutex::new(None) };
    Ok(match weights {
        [weight] => x.apply_op2(&weight.contiguous()?, op)?,
        [forth, back] => x.apply_op3(&forth.contiguous()?, &back.contiguous()?, op)?,
        _ => unreachable!("checked by the caller"),
    })
}

/// The graph node. The tape lives here between forward and backward; a second backward pass recomputes it.
struct Lstm<F> {
    batch: usize,
    sizes: Sizes,
    /// Groups of each direction.
    layouts: Vec<Vec<Layout>>,
    tape: Mutex<Option<Vec<Tape<F>>>>,
}

impl<F: Real + WithDType> Lstm<F> {
    /// (direction, group layout) of every task, in the fixed order of sums.
    fn tasks(&self) -> Vec<(usize, &Layout)> {
        let tasks = self.layouts.iter().enumerate();
        tasks.flat_map(|(direction, groups)| groups.iter().map(move |group| (direction, group))).collect()
    }

    fn forward(&self, x: &[F], weights: &[&[F]]) -> (Vec<Tape<F>>, Vec<F>) {
        let Sizes { frames, hidden, .. } = self.sizes;
        let width = hidden * weights.len();
        let tasks = self.tasks();
        let done: Vec<(Tape<F>, Vec<F>)> = tasks
            .par_iter()
            .map(|&(direction, layout)| group::forward(layout, self.sizes, x, weights[direction]))
            .collect();
        let mut out = vec![F::ZERO; self.batch * frames * width];
        for ((direction, layout), (_, rows)) in tasks.iter().zip(&done) {
            layout.for_each(|b, t, row| {
                let to = (b * frames + t) * width + direction * hidden;
                out[to..to + hidden].copy_from_slice(&rows[row * hidden..][..hidden]);
            });
        }
        (done.into_iter().map(|(tape, _)| tape).collect(), out)
    }

    fn cpu(&self, x: &[F], weights: &[&[F]]) -> (CpuStorage, Shape) {
        let (tape, out) = self.forward(x, weights);
        *self.tape.lock().expect("no panic while locked") = Some(tape);
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
        let gradients = tensors::with_slices(weights, |weights: &[&[F]]| {
            let tape = self.tape.lock().expect("no panic while locked").take();
            let tape = match tape {
                Some(tape) => tape,
                None => with_slice(x, |x| Ok(self.forward(x, weights).0))?,
            };
            with_slice(&above, |above: &[F]| {
                let width = hidden * weights.len();
                let tasks: Vec<_> = self.tasks().into_iter().zip(tape).collect();
                let run = |((direction, layout), tape): ((usize, &Layout), Tape<F>)| {
                    let mut packed = vec![F::ZERO; tape.rows() * hidden];
                    layout.for_each(|b, t, row| {
                        let from = (b * frames + t) * width + direction * hidden;
                        packed[row * hidden..][..hidden].copy_from_slice(&above[from..from + hidden]);
                    });
                    group::backward(layout, self.sizes, tape, packed, weights[direction], input_wanted)
                };
                Ok(tasks.into_par_iter().map(run).collect::<Vec<_>>())
            })
        })?;
        let mut dx = vec![<F as Real>::ZERO; if input_wanted { self.batch * frames * input } else { 0 }];
        let mut dw: Vec<Option<Vec<F>>> = vec![None; weights.len()];
        for ((direction, layout), gradient) in self.tasks().into_iter().zip(gradients) {
            if let Some(rows) = gradient.input {
                layout.for_each(|b, t, row| {
                    let to = (b * frames + t) * input;
                    let to = &mut dx[to..to + input];
                    to.iter_mut().zip(&rows[row * input..][..input]).for_each(|(sum, &g)| *sum += g);
                });
            }
            match &mut dw[direction] {
                Some(sum) => sum.iter_mut().zip(&gradient.weight).for_each(|(sum, &g)| *sum += g),
                empty => *empty = Some(gradient.weight),
            }
        }
        let shape = (self.sizes.row(), 4 * hidden);
        let dw = dw
            .into_iter()
            .map(|dw| {
                let dw = dw.unwrap_or_else(|| vec![<F as Real>::ZERO; shape.0 * shape.1]);
                tensors::from_vec(dw, shape)
            })
            .collect::<candle_core::Result<_>>()?;
        let dx = if input_wanted { Some(tensors::from_vec(dx, (self.batch, frames, input))?) } else { None };
        Ok((dx, dw))
    }
}

impl<F: Real + WithDType> CustomOp2 for Lstm<F> {
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

impl<F: Real + WithDType> CustomOp3 for Lstm<F> {
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
