//! The transducer loss out of candle's own tensor operations, so that autograd supplies the gradients.
//!
//! The forward recursion goes along anti-diagonals `t + u = d` with the whole batch and all label positions in one vector
//! operation, because candle's backward walks the graph recursively: a graph some 5,000 operations deep overflows the
//! 2 MiB stack of a test thread. A diagonal costs eight operations, hence [`MAX_DIAGONALS`].
//!
//! "No path" is the finite number [`NO_PATH`] and not -inf: `exp(-inf - -inf)` would be NaN, and so would every gradient
//! behind it. Any sum holding one `NO_PATH` is below every sum of real log-probabilities by so much that its exp is
//! exactly zero.

use candle_core::{D, DType, Device, Tensor};
use candle_nn::ops::log_softmax;
use kernels::Activation;

use crate::batch::Batch;
use crate::error::{Error, Result, shape};

/// Log-probability of what cannot happen; large enough to vanish under exp, small enough that sums stay finite in f32.
pub const NO_PATH: f64 = -1e30;

/// The most anti-diagonals `T + U` that a loss may have.
pub const MAX_DIAGONALS: usize = 450;

/// Logits of every site of a padded batch: `act(f_t + g_u) W^T + b`.
///
/// Padding rows must be finite here: a NaN in one would reach the gradient of `weight` as 0 · NaN.
///
/// # Shapes
/// `frames` `[B, T, H]`, `labels` `[B, U + 1, H]`, `weight` `[C, H]`, `bias` `[C]`; returns `[B, T, U + 1, C]`.
///
/// # Errors
/// Shapes that do not fit together.
///
/// Cost: O(B T U C H) time, O(B T U (C + H)) memory.
pub fn joint_logits(
    frames: &Tensor,
    labels: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    activation: Activation,
) -> Result<Tensor> {
    let (batch, most_frames, width) = dims3("frames", frames)?;
    let (label_batch, rows, label_width) = dims3("labels", labels)?;
    if (label_batch, label_width) != (batch, width) {
        return Err(shape("labels", format!("[{batch}, U + 1, {width}]"), format!("{:?}", labels.dims())));
    }
    if weight.rank() != 2 || weight.dims()[1] != width {
        return Err(shape("weight", format!("[C, {width}]"), format!("{:?}", weight.dims())));
    }
    let classes = weight.dims()[0];
    if bias.dims() != [classes] {
        return Err(shape("bias", format!("[{classes}]"), format!("{:?}", bias.dims())));
    }
    let sum = frames.unsqueeze(2)?.broadcast_add(&labels.unsqueeze(1)?)?;
    let hidden = match activation {
        Activation::Tanh => sum.tanh()?,
        Activation::Relu => sum.relu()?,
    };
    let logits = head(&hidden.reshape((batch * most_frames * rows, width))?, weight, bias)?;
    Ok(logits.reshape((batch, most_frames, rows, classes))?)
}

/// `h W^T + b`, with the bias as one more column of the weight: added by an operation of its own, it would keep a second tensor as
/// large as the logits alive.
///
/// # Shapes
/// `hidden` `[N, H]`, `weight` `[C, H]`, `bias` `[C]`; returns `[N, C]`.
///
/// # Errors
/// Candle's own errors.
pub fn head(hidden: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let ones = Tensor::ones((hidden.dim(0)?, 1), hidden.dtype(), hidden.device())?;
    let weight = Tensor::cat(&[weight, &bias.unsqueeze(1)?], 1)?;
    Ok(Tensor::cat(&[hidden, &ones], 1)?.matmul(&weight.t()?)?)
}

/// Transducer loss of each utterance from full logits, differentiable by candle's autograd.
///
/// `loss_b = -log Σ_paths Π p(arc)`, regular topology: a blank goes one frame on, a label one label on, and the path ends
/// with a blank from `(T_b - 1, U_b)`. An utterance without a path has loss +inf and zero gradient. Padded sites may hold
/// anything, NaN included; their gradient is exactly zero.
///
/// # Shapes
/// `logits` `[B, T, U + 1, C]` in f32 or f64; `frames` and `labels` have one entry an utterance; returns `[B]`.
///
/// # Errors
/// Lengths or ids that do not fit the shape, another dtype, NaN, +inf or nothing but -inf at a real site, more than
/// [`MAX_DIAGONALS`] anti-diagonals.
///
/// Cost: O(B T U C) and, for candle's narrow backward, O(B U (T + U)²); memory alike.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// // One frame, one label, three equal classes: a label and a blank, each with probability 1/3.
/// let logits = Tensor::zeros((1, 1, 2, 3), DType::F64, &Device::Cpu)?;
/// let loss = oracle::dense::transducer_loss(&logits, &[1], &[vec![2]], 0)?.to_vec1::<f64>()?;
/// assert!((loss[0] - 9f64.ln()).abs() < 1e-12);
/// # Ok::<(), oracle::Error>(())
/// ```
pub fn transducer_loss(logits: &Tensor, frames: &[usize], labels: &[Vec<u32>], blank: u32) -> Result<Tensor> {
    transducer_loss_fastemit(logits, frames, labels, blank, 0.0)
}

/// [`transducer_loss`] with FastEmit: the gradient of every label's log-probability times `1 + lambda`, the value as it is.
///
/// # Shapes, errors and cost
/// Those of [`transducer_loss`].
pub fn transducer_loss_fastemit(
    logits: &Tensor,
    frames: &[usize],
    labels: &[Vec<u32>],
    blank: u32,
    lambda: f64,
) -> Result<Tensor> {
    let batch = batch(logits, frames, labels, blank)?;
    batch.check_rows(&logits.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?)?;
    let [size, frames, rows, _] = batch.dims;
    let sites: Vec<u8> = (0..size * frames * rows)
        .map(|i| u8::from(batch.is_site(i / rows / frames, i / rows % frames, i % rows)))
        .collect();
    let sites = Tensor::from_vec(sites, (size, frames, rows, 1), logits.device())?;
    // Selection, not multiplication: 0 · NaN is NaN.
    let logits = sites.broadcast_as(logits.shape())?.where_cond(logits, &logits.zeros_like()?)?;
    // Made of primitive operations, so that it has a gradient, which candle's `softmax_last_dim` has not.
    loss(&log_softmax(&logits, D::Minus1)?.gather(&classes(&batch, &logits)?, 3)?, &batch, lambda)
}

/// [`transducer_loss`] by [`select_log_probs`], for benchmarks: padded sites must be finite as well, and no score is looked at.
///
/// # Shapes and cost
/// Those of [`transducer_loss`].
///
/// # Errors
/// Those of [`transducer_loss`], but for values of logits.
pub fn lean_transducer_loss(
    logits: &Tensor,
    frames: &[usize],
    labels: &[Vec<u32>],
    blank: u32,
) -> Result<Tensor> {
    let batch = batch(logits, frames, labels, blank)?;
    loss(&select_log_probs(logits, &classes(&batch, logits)?)?, &batch, 0.0)
}

/// Log-probabilities of some classes of each row, by as few tensors as large as the logits as candle allows: those of the other
/// classes are never written down.
///
/// # Shapes
/// `logits` `[..., C]`, `classes` `[..., S]` in u32; returns `[..., S]`.
///
/// # Errors
/// Candle's own errors.
pub fn select_log_probs(logits: &Tensor, classes: &Tensor) -> Result<Tensor> {
    // The maximum is a constant: it cancels, so it carries no gradient.
    let max = logits.max_keepdim(D::Minus1)?.detach();
    let log_sum = (logits.broadcast_sub(&max)?.exp()?.sum_keepdim(D::Minus1)?.log()? + max)?;
    Ok(logits.gather(classes, D::Minus1)?.broadcast_sub(&log_sum)?)
}

fn batch<'a>(logits: &Tensor, frames: &'a [usize], labels: &'a [Vec<u32>], blank: u32) -> Result<Batch<'a>> {
    let dims: [usize; 4] = logits
        .dims()
        .try_into()
        .map_err(|_| shape("logits", "[B, T, U + 1, C]", format!("{:?}", logits.dims())))?;
    if !matches!(logits.dtype(), DType::F32 | DType::F64) {
        return Err(shape("logits", "f32 or f64", format!("{:?}", logits.dtype())));
    }
    let batch = Batch::new(dims, frames, labels, blank)?;
    let [_, most_frames, rows, _] = dims;
    if most_frames + rows - 1 > MAX_DIAGONALS {
        let found = (most_frames + rows - 1) as f64;
        return Err(Error::TooLarge { what: "anti-diagonals T + U", limit: MAX_DIAGONALS, found });
    }
    Ok(batch)
}

/// The blank and the next label of each site, `[B, T, U + 1, 2]`.
fn classes(batch: &Batch, logits: &Tensor) -> Result<Tensor> {
    let [size, frames, rows, _] = batch.dims;
    // Any id will do beyond the last label: no path that ends at (T_b - 1, U_b) goes there.
    let next = |i: usize| batch.labels[i / rows / frames].get(i % rows).copied().unwrap_or(batch.blank);
    let ids = (0..size * frames * rows).flat_map(|i| [batch.blank, next(i)]).collect();
    Ok(Tensor::from_vec(ids, (size, frames, rows, 2), logits.device())?)
}

/// Loss of each utterance from the log-probabilities of the blank and of the next label, `[B, T, U + 1, 2]`.
fn loss(log_probs: &Tensor, batch: &Batch, lambda: f64) -> Result<Tensor> {
    let [size, frames, rows, _] = batch.dims;
    let log_probs = possible(log_probs)?;
    let column = |column: usize| log_probs.narrow(3, column, 1)?.reshape((size, frames, rows));
    let (blanks, labels) = (column(0)?, column(1)?);
    let labels = (&labels + ((&labels - labels.detach())? * lambda)?)?;
    let loss = forward(&skewed(&blanks)?, &skewed(&labels)?, batch)?.neg()?;
    // No path is a value: +inf, and nothing flows back.
    let endless = Tensor::full(f64::INFINITY, loss.shape(), loss.device())?.to_dtype(loss.dtype())?;
    Ok(loss.lt(-NO_PATH / 2.0)?.where_cond(&loss, &endless)?)
}

/// Replaces -inf by [`NO_PATH`], cutting its gradient.
fn possible(log_probs: &Tensor) -> Result<Tensor> {
    let floor = constant(log_probs.dims(), log_probs)?;
    Ok(log_probs.gt(NO_PATH)?.where_cond(log_probs, &floor)?)
}

fn constant(dims: &[usize], like: &Tensor) -> Result<Tensor> {
    Ok(Tensor::full(NO_PATH, dims, &Device::Cpu)?.to_dtype(like.dtype())?)
}

/// `[B, T, U + 1]` by frame to `[B, T + U, U + 1]` by anti-diagonal; [`NO_PATH`] off the lattice.
fn skewed(by_frame: &Tensor) -> Result<Tensor> {
    let (batch, frames, rows) = by_frame.dims3()?;
    let diagonals = frames + rows - 1;
    let off = (frames * rows) as u32;
    let places: Vec<u32> = (0..diagonals * rows)
        .map(|i| match (i / rows).checked_sub(i % rows) {
            Some(t) if t < frames => (t * rows + i % rows) as u32,
            _ => off,
        })
        .collect();
    let flat = by_frame.reshape((batch, frames * rows))?;
    let flat = Tensor::cat(&[&flat, &constant(&[batch, 1], by_frame)?], 1)?;
    let places = Tensor::from_vec(places, diagonals * rows, by_frame.device())?;
    Ok(flat.index_select(&places, 1)?.reshape((batch, diagonals, rows))?)
}

/// Log-likelihood `[B]` from skewed emissions `[B, T + U, U + 1]`.
///
/// `alpha_d[u] = log( exp(alpha_{d-1}[u] + blank_{d-1}[u]) + exp(alpha_{d-1}[u-1] + label_{d-1}[u-1]) )`
fn forward(blanks: &Tensor, labels: &Tensor, batch: &Batch) -> Result<Tensor> {
    let (size, diagonals, rows) = blanks.dims3()?;
    let device = blanks.device();
    let wall = constant(&[size, 1], blanks)?;
    let start: Vec<f64> = (0..size * rows).map(|i| if i % rows == 0 { 0.0 } else { NO_PATH }).collect();
    let mut alpha = Tensor::from_vec(start, (size, rows), device)?.to_dtype(blanks.dtype())?;
    // The path of utterance b ends with the blank that leaves diagonal T_b - 1 + U_b at label position U_b.
    let mut ends = Vec::with_capacity(diagonals);
    for d in 0..diagonals {
        let stay = (&alpha + blanks.narrow(1, d, 1)?.squeeze(1)?)?;
        let step = (&alpha + labels.narrow(1, d, 1)?.squeeze(1)?)?;
        let step = match rows {
            1 => wall.clone(),
            _ => Tensor::cat(&[&wall, &step.narrow(1, 0, rows - 1)?], 1)?,
        };
        alpha = log_add(&stay, &step)?;
        ends.push(stay);
    }
    let ends = Tensor::stack(&ends, 1)?.reshape((size, diagonals * rows))?;
    let places: Vec<u32> = (0..size)
        .map(|b| {
            let last = batch.labels[b].len();
            ((batch.frames[b] - 1 + last) * rows + last) as u32
        })
        .collect();
    Ok(ends.gather(&Tensor::from_vec(places, (size, 1), device)?, 1)?.squeeze(1)?)
}

/// `log(exp(a) + exp(b))`; the maximum is a constant, it cancels.
fn log_add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let top = a.maximum(b)?.detach();
    let sum = ((a - &top)?.exp()? + (b - &top)?.exp()?)?;
    Ok((sum.log()? + top)?)
}

fn dims3(argument: &'static str, tensor: &Tensor) -> Result<(usize, usize, usize)> {
    tensor.dims3().map_err(|_| shape(argument, "three axes", format!("{:?}", tensor.dims())))
}
