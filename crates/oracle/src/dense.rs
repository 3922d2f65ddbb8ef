//! Dense reference of the transducer loss: candle's tensor operations and autograd.
//!
//! The forward recursion processes anti-diagonals `t + u = d`, with the whole batch and all label
//! positions in one vector operation: candle's backward is recursive over the graph, and a graph
//! some 5,000 operations deep overflows the 2 MiB stack of a test thread. A diagonal takes eight
//! operations, hence [`MAX_DIAGONALS`].
//!
//! "No path" is the finite number [`NO_PATH`] and not -inf, because `exp(-inf - -inf)` and all
//! gradients that depend on it would be NaN. A sum that contains one `NO_PATH` is so far below
//! every sum of real log-probabilities that its exp is exactly zero.

use candle_core::{D, DType, Device, Tensor};
use candle_nn::ops::log_softmax;
use kernels::Activation;

use crate::batch::Batch;
use crate::error::{Error, Result, shape_error};

/// Log-probability of an impossible event.
///
/// It is low enough to vanish under exp, and high enough that sums stay finite in f32.
pub const NO_PATH: f64 = -1e30;

/// Largest number of anti-diagonals `T + U` of a loss.
pub const MAX_DIAGONALS: usize = 450;

/// Returns the logits of all sites of a padded batch: `act(f_t + g_u) W^T + b`.
///
/// Padding rows must be finite: a NaN would enter the gradient of `weight` as 0 · NaN.
///
/// # Shapes
/// `frames` `[B, T, H]`, `labels` `[B, U + 1, H]`, `weight` `[C, H]`, `bias` `[C]`; returns
/// `[B, T, U + 1, C]`.
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
    let (batch, max_frames, width) = dims3("frames", frames)?;
    let (label_batch, positions, label_width) = dims3("labels", labels)?;
    if (label_batch, label_width) != (batch, width) {
        return Err(shape_error(
            "labels",
            format!("[{batch}, U + 1, {width}]"),
            format!("{:?}", labels.dims()),
        ));
    }
    if weight.rank() != 2 || weight.dims()[1] != width {
        return Err(shape_error("weight", format!("[C, {width}]"), format!("{:?}", weight.dims())));
    }
    let classes = weight.dims()[0];
    if bias.dims() != [classes] {
        return Err(shape_error("bias", format!("[{classes}]"), format!("{:?}", bias.dims())));
    }
    let joint_sum = frames.unsqueeze(2)?.broadcast_add(&labels.unsqueeze(1)?)?;
    let hidden = match activation {
        Activation::Tanh => joint_sum.tanh()?,
        Activation::Relu => joint_sum.relu()?,
    };
    let logits = head_logits(&hidden.reshape((batch * max_frames * positions, width))?, weight, bias)?;
    Ok(logits.reshape((batch, max_frames, positions, classes))?)
}

/// Returns `h W^T + b`.
///
/// The bias is one more column of the weight: a separate addition would store a second tensor as
/// large as the logits.
///
/// # Shapes
/// `hidden` `[N, H]`, `weight` `[C, H]`, `bias` `[C]`; returns `[N, C]`.
///
/// # Errors
/// An operation of candle fails, for example for shapes that do not fit together.
pub fn head_logits(hidden: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let bias_input = Tensor::ones((hidden.dim(0)?, 1), hidden.dtype(), hidden.device())?;
    let weight = Tensor::cat(&[weight, &bias.unsqueeze(1)?], 1)?;
    Ok(Tensor::cat(&[hidden, &bias_input], 1)?.matmul(&weight.t()?)?)
}

/// Returns the transducer loss of each utterance, differentiable by candle's autograd.
///
/// `loss_b = -log Σ_paths Π p(arc)` in the regular topology: a blank advances by one frame, a label
/// by one label, and a path ends with a blank from `(T_b - 1, U_b)`. An utterance without a path
/// has loss +inf and zero gradient. Padded sites may contain any values, NaN included; their
/// gradient is exactly zero.
///
/// # Shapes
/// `logits` `[B, T, U + 1, C]` in f32 or f64; `frames` and `labels` have one entry an utterance;
/// returns `[B]`.
///
/// # Errors
/// Lengths or ids that do not fit the shape; another dtype; NaN, +inf or only -inf at a real site;
/// more than [`MAX_DIAGONALS`] anti-diagonals.
///
/// Cost: O(B T U C) and, for candle's narrow backward, O(B U (T + U)²), in time and memory.
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

/// [`transducer_loss`] with FastEmit.
///
/// The gradients of label log-probabilities are multiplied by `1 + lambda`; the loss is unchanged.
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
    let batch = check_batch(logits, frames, labels, blank)?;
    batch.check_rows(&logits.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?)?;
    let [batch_size, frames, positions, _] = batch.dims;
    let is_site: Vec<u8> = (0..batch_size * frames * positions)
        .map(|i| u8::from(batch.is_site(i / positions / frames, i / positions % frames, i % positions)))
        .collect();
    let is_site = Tensor::from_vec(is_site, (batch_size, frames, positions, 1), logits.device())?;
    // Selection, not multiplication: 0 · NaN is NaN.
    let logits = is_site.broadcast_as(logits.shape())?.where_cond(logits, &logits.zeros_like()?)?;
    // Composed of primitive operations, because candle's `softmax_last_dim` has no gradient.
    loss_of_emissions(
        &log_softmax(&logits, D::Minus1)?.gather(&selected_classes(&batch, &logits)?, 3)?,
        &batch,
        lambda,
    )
}

/// [`transducer_loss`] by [`select_log_probs`], for benchmarks.
///
/// Padded sites must be finite as well, and the values of logits are not checked.
///
/// # Shapes and cost
/// Those of [`transducer_loss`].
///
/// # Errors
/// Those of [`transducer_loss`], except for values of logits.
pub fn low_memory_transducer_loss(
    logits: &Tensor,
    frames: &[usize],
    labels: &[Vec<u32>],
    blank: u32,
) -> Result<Tensor> {
    let batch = check_batch(logits, frames, labels, blank)?;
    loss_of_emissions(&select_log_probs(logits, &selected_classes(&batch, logits)?)?, &batch, 0.0)
}

/// Returns the log-probabilities of selected classes of each row.
///
/// Uses as few tensors of the size of the logits as candle allows: log-probabilities of other
/// classes are never stored.
///
/// # Shapes
/// `logits` `[..., C]`, `classes` `[..., S]` in u32; returns `[..., S]`.
///
/// # Errors
/// An operation of candle fails, for example for shapes that do not fit together.
pub fn select_log_probs(logits: &Tensor, classes: &Tensor) -> Result<Tensor> {
    // The maximum is a constant: it cancels, so it carries no gradient.
    let max = logits.max_keepdim(D::Minus1)?.detach();
    let log_sum = (logits.broadcast_sub(&max)?.exp()?.sum_keepdim(D::Minus1)?.log()? + max)?;
    Ok(logits.gather(classes, D::Minus1)?.broadcast_sub(&log_sum)?)
}

/// Checks lengths, ids and dtype of logits.
fn check_batch<'a>(
    logits: &Tensor,
    frames: &'a [usize],
    labels: &'a [Vec<u32>],
    blank: u32,
) -> Result<Batch<'a>> {
    let dims: [usize; 4] = logits
        .dims()
        .try_into()
        .map_err(|_| shape_error("logits", "[B, T, U + 1, C]", format!("{:?}", logits.dims())))?;
    if !matches!(logits.dtype(), DType::F32 | DType::F64) {
        return Err(shape_error("logits", "f32 or f64", format!("{:?}", logits.dtype())));
    }
    let batch = Batch::new(dims, frames, labels, blank)?;
    let [_, max_frames, positions, _] = dims;
    if max_frames + positions - 1 > MAX_DIAGONALS {
        let diagonals = (max_frames + positions - 1) as f64;
        return Err(Error::TooLarge {
            argument: "anti-diagonals T + U",
            limit: MAX_DIAGONALS,
            found: diagonals,
        });
    }
    Ok(batch)
}

/// The blank and the next label of each site, `[B, T, U + 1, 2]`.
fn selected_classes(batch: &Batch, logits: &Tensor) -> Result<Tensor> {
    let [batch_size, frames, positions, _] = batch.dims;
    // After the last label any id works: no path that ends at (T_b - 1, U_b) uses it.
    let next_label =
        |i: usize| batch.labels[i / positions / frames].get(i % positions).copied().unwrap_or(batch.blank);
    let ids = (0..batch_size * frames * positions).flat_map(|i| [batch.blank, next_label(i)]).collect();
    Ok(Tensor::from_vec(ids, (batch_size, frames, positions, 2), logits.device())?)
}

/// Computes the loss of each utterance from `[B, T, U + 1, 2]` log-probabilities: blank and next
/// label.
fn loss_of_emissions(log_probs: &Tensor, batch: &Batch, lambda: f64) -> Result<Tensor> {
    let [batch_size, frames, positions, _] = batch.dims;
    let log_probs = replace_impossible(log_probs)?;
    let column = |column: usize| log_probs.narrow(3, column, 1)?.reshape((batch_size, frames, positions));
    let (blanks, labels) = (column(0)?, column(1)?);
    let labels = (&labels + ((&labels - labels.detach())? * lambda)?)?;
    let loss = log_likelihood(&skew_to_diagonals(&blanks)?, &skew_to_diagonals(&labels)?, batch)?.neg()?;
    // An utterance without a path has the value +inf and no gradient.
    let infinite = Tensor::full(f64::INFINITY, loss.shape(), loss.device())?.to_dtype(loss.dtype())?;
    Ok(loss.lt(-NO_PATH / 2.0)?.where_cond(&loss, &infinite)?)
}

/// Replaces -inf by [`NO_PATH`], cutting its gradient.
fn replace_impossible(log_probs: &Tensor) -> Result<Tensor> {
    let no_path = no_path_tensor(log_probs.dims(), log_probs)?;
    Ok(log_probs.gt(NO_PATH)?.where_cond(log_probs, &no_path)?)
}

/// A tensor of [`NO_PATH`] with the dtype of `like`.
fn no_path_tensor(dims: &[usize], like: &Tensor) -> Result<Tensor> {
    Ok(Tensor::full(NO_PATH, dims, &Device::Cpu)?.to_dtype(like.dtype())?)
}

/// `[B, T, U + 1]` by frame to `[B, T + U, U + 1]` by anti-diagonal, [`NO_PATH`] outside the
/// lattice.
fn skew_to_diagonals(by_frame: &Tensor) -> Result<Tensor> {
    let (batch, frames, positions) = by_frame.dims3()?;
    let diagonals = frames + positions - 1;
    let outside = (frames * positions) as u32;
    let indices: Vec<u32> = (0..diagonals * positions)
        .map(|i| match (i / positions).checked_sub(i % positions) {
            Some(t) if t < frames => (t * positions + i % positions) as u32,
            _ => outside,
        })
        .collect();
    let sites = by_frame.reshape((batch, frames * positions))?;
    let sites = Tensor::cat(&[&sites, &no_path_tensor(&[batch, 1], by_frame)?], 1)?;
    let indices = Tensor::from_vec(indices, diagonals * positions, by_frame.device())?;
    Ok(sites.index_select(&indices, 1)?.reshape((batch, diagonals, positions))?)
}

/// Log-likelihood `[B]` from skewed emissions `[B, T + U, U + 1]`.
///
/// ```text
/// α_d[u] = log(exp(α_{d-1}[u] + blank_{d-1}[u]) + exp(α_{d-1}[u-1] + label_{d-1}[u-1]))
/// ```
fn log_likelihood(blanks: &Tensor, labels: &Tensor, batch: &Batch) -> Result<Tensor> {
    let (batch_size, diagonals, positions) = blanks.dims3()?;
    let device = blanks.device();
    let no_path = no_path_tensor(&[batch_size, 1], blanks)?;
    let start: Vec<f64> =
        (0..batch_size * positions).map(|i| if i % positions == 0 { 0.0 } else { NO_PATH }).collect();
    let mut alpha = Tensor::from_vec(start, (batch_size, positions), device)?.to_dtype(blanks.dtype())?;
    // α of each diagonal from the diagonal before it.
    // The path of utterance b ends with the blank that leaves diagonal T_b - 1 + U_b at label
    // position U_b.
    let mut ends = Vec::with_capacity(diagonals);
    for d in 0..diagonals {
        let by_blank = (&alpha + blanks.narrow(1, d, 1)?.squeeze(1)?)?;
        let by_label = (&alpha + labels.narrow(1, d, 1)?.squeeze(1)?)?;
        let by_label = match positions {
            1 => no_path.clone(),
            _ => Tensor::cat(&[&no_path, &by_label.narrow(1, 0, positions - 1)?], 1)?,
        };
        alpha = log_add(&by_blank, &by_label)?;
        ends.push(by_blank);
    }
    let ends = Tensor::stack(&ends, 1)?.reshape((batch_size, diagonals * positions))?;
    let indices: Vec<u32> = (0..batch_size)
        .map(|b| {
            let label_count = batch.labels[b].len();
            ((batch.frames[b] - 1 + label_count) * positions + label_count) as u32
        })
        .collect();
    Ok(ends.gather(&Tensor::from_vec(indices, (batch_size, 1), device)?, 1)?.squeeze(1)?)
}

/// `log(exp(a) + exp(b))`; the maximum is a constant, it cancels.
fn log_add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let max = a.maximum(b)?.detach();
    let sum = ((a - &max)?.exp()? + (b - &max)?.exp()?)?;
    Ok((sum.log()? + max)?)
}

/// Sizes of a tensor with three axes.
fn dims3(argument: &'static str, tensor: &Tensor) -> Result<(usize, usize, usize)> {
    tensor.dims3().map_err(|_| shape_error(argument, "three axes", format!("{:?}", tensor.dims())))
}
