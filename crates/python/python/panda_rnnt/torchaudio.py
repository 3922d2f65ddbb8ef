"""torchaudio's RNN-T loss and CTC alignment, in parallel and without its limits on types.

Names, arguments and results are those of torchaudio, so that code changes its import only.
Functions and modules work under ``torch.jit.script`` and ``torch.compile(fullgraph=True)``; import
this module before ``torch.jit.load`` loads them.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.utils.dlpack import from_dlpack

from panda_rnnt import _native
from panda_rnnt._options import LossOptions
from panda_rnnt._scores import (
    ArgumentNames,
    check_arguments,
    check_sizes,
    fake_losses,
    score_gradient,
    score_losses,
)
from panda_rnnt.torch import _array, _check_same_device, _finite_weights, _without_second_derivative

__all__ = ["RNNTLoss", "forced_align", "rnnt_loss"]


def rnnt_loss(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = -1,
    clamp: float = -1.0,
    reduction: str = "mean",
    fused_log_softmax: bool = True,
) -> Tensor:
    """Computes the RNN-T loss of scores, as ``torchaudio.functional.rnnt_loss``.

    Args:
        logits: Scores ``[B, T, U+1, C]``.
        targets: Labels ``[B, U]``, int32 or int64, padded with any number.
        logit_lengths: Frames of each utterance ``[B]``; the largest is T.
        target_lengths: Labels of each utterance ``[B]``; the largest is U.
        blank: Class of the blank; counted from the end if negative.
        clamp: Clips the gradient of each utterance's loss to ``-clamp`` .. ``clamp``, before the
            reduction scales it; not positive: does not clip.
        reduction: ``mean`` (over utterances), ``sum`` or ``none``.
        fused_log_softmax: False if ``logits`` are log-probabilities; the gradient is then that of
            the log-probabilities.

    Returns:
        A scalar, or losses ``[B]``, in the type of ``logits``.

    Raises:
        ValueError: Shapes, lengths or labels that do not match; scores that are NaN; devices; a
            wrong ``reduction``.
        TypeError: Tensors of another type.

    Cost: O(B T U C) time; memory for the gradient, of the size of ``logits``.
    """
    if reduction not in ["none", "mean", "sum"]:
        raise ValueError(f"reduction: expected 'none', 'mean' or 'sum', found '{reduction}'")
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        check_arguments(logits, targets, logit_lengths, target_lengths, ArgumentNames())
    if blank < 0:
        blank = blank + logits.shape[-1]
    if fused_log_softmax:
        losses = torch.ops.panda_rnnt.logit_losses(
            logits, targets, logit_lengths, target_lengths, blank, clamp
        )
    else:
        losses, _ = torch.ops.panda_rnnt.log_prob_losses(
            logits, targets, logit_lengths, target_lengths, blank, clamp
        )
    if reduction == "mean":
        losses = losses.mean()
    elif reduction == "sum":
        losses = losses.sum()
    result: Tensor = losses.to(logits.dtype)
    return result


class RNNTLoss(nn.Module):
    """The module of :func:`rnnt_loss`, as ``torchaudio.transforms.RNNTLoss``."""

    def __init__(
        self,
        blank: int = -1,
        clamp: float = -1.0,
        reduction: str = "mean",
        fused_log_softmax: bool = True,
    ) -> None:
        super().__init__()
        self.blank = blank
        self.clamp = float(clamp)
        self.reduction = reduction
        self.fused_log_softmax = fused_log_softmax

    def forward(
        self, logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor
    ) -> Tensor:
        """Computes the loss; see :func:`rnnt_loss`."""
        return rnnt_loss(
            logits,
            targets,
            logit_lengths,
            target_lengths,
            self.blank,
            self.clamp,
            self.reduction,
            self.fused_log_softmax,
        )


def forced_align(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | None = None,
    target_lengths: Tensor | None = None,
    blank: int = 0,
) -> tuple[Tensor, Tensor]:
    """Finds the best CTC alignment of labels, as ``torchaudio.functional.forced_align``.

    Args:
        log_probs: Log-probabilities of the classes ``[1, T, C]``.
        targets: Labels ``[1, U]``, int32 or int64.
        input_lengths: T, or None.
        target_lengths: U, or None.
        blank: Class of the blank.

    Returns:
        The class of each frame ``[1, T]`` in the type of ``targets``, and its log-probability.

    Raises:
        ValueError: Another batch size; lengths or labels that do not match; log-probabilities that
            are NaN or +inf.
        TypeError: Tensors of another type.
        RuntimeError: More labels than fit into the frames; no alignment of positive probability.

    Cost: O(T U) time, and 10 T U bytes.
    """
    if input_lengths is None:
        input_lengths = torch.full([log_probs.size(0)], log_probs.size(1), dtype=torch.int64)
    if target_lengths is None:
        target_lengths = torch.full([targets.size(0)], targets.size(1), dtype=torch.int64)
    paths = torch.ops.panda_rnnt.forced_align(log_probs, targets, input_lengths, target_lengths, blank)
    scores = log_probs.gather(-1, paths.to(torch.int64).unsqueeze(-1)).squeeze(-1)
    return paths, scores


# Operations. Each takes tensors and numbers of the functions above, so that TorchScript can call it.

_ARGUMENTS = (
    "Tensor logits, Tensor targets, Tensor logit_lengths, Tensor target_lengths, int blank, float clamp"
)


@torch.library.custom_op("panda_rnnt::logit_losses", mutates_args=(), schema=f"({_ARGUMENTS}) -> Tensor")
def _logit_losses(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    clamp: float,
) -> Tensor:
    _check_call(logits, targets, logit_lengths, target_lengths)
    options = _options(blank, clamp)
    return score_losses(logits, targets, logit_lengths, target_lengths, options)


@_logit_losses.register_fake
def _(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    clamp: float,
) -> Tensor:
    _check_same_device(logits, targets, logit_lengths, target_lengths)
    return fake_losses(logits)


def _save_logits(
    ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: Tensor
) -> None:
    *tensors, ctx.blank, ctx.clamp = inputs  # type: ignore[attr-defined]
    ctx.save_for_backward(*tensors, output)  # type: ignore[arg-type]


def _logit_losses_backward(
    ctx: torch.autograd.function.FunctionCtx, d_losses: Tensor
) -> tuple[Tensor | None, ...]:
    logits, targets, logit_lengths, target_lengths, losses = ctx.saved_tensors  # type: ignore[attr-defined]
    options = _options(ctx.blank, ctx.clamp)  # type: ignore[attr-defined]
    gradient = score_gradient(logits, targets, logit_lengths, target_lengths, losses, d_losses, options)
    return (*_without_second_derivative([logits], [gradient]), None, None, None, None, None)


_logit_losses.register_autograd(_logit_losses_backward, setup_context=_save_logits)


@torch.library.custom_op(
    "panda_rnnt::log_prob_losses", mutates_args=(), schema=f"({_ARGUMENTS}) -> (Tensor, Tensor)"
)
def _log_prob_losses(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    clamp: float,
) -> tuple[Tensor, Tensor]:
    """Returns losses, and their derivatives by the log-probabilities of blank and next label."""
    _check_call(logits, targets, logit_lengths, target_lengths)
    classes = logits.shape[-1]
    if not 0 <= blank < classes:
        raise ValueError(f"blank: expected a class from 0 to {classes - 1}, found {blank}")
    emissions = logits.new_zeros((*logits.shape[:3], 2), dtype=torch.float64)
    emissions[..., 0] = logits[..., blank]
    emissions[:, :, :-1, 1:] = logits[:, :, :-1].gather(-1, _label_index(logits, targets))
    indices = (_array(targets), _array(logit_lengths), _array(target_lengths))
    losses, adjoints = _native.emission_loss(emissions, *indices, classes, _options(blank, clamp))
    dtype = fake_losses(logits).dtype
    derivatives = from_dlpack(adjoints).to(dtype)
    return from_dlpack(losses).to(dtype), derivatives.clamp(-clamp, clamp) if clamp > 0.0 else derivatives


@_log_prob_losses.register_fake
def _(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    clamp: float,
) -> tuple[Tensor, Tensor]:
    _check_same_device(logits, targets, logit_lengths, target_lengths)
    losses = fake_losses(logits)
    return losses, losses.new_empty((*logits.shape[:3], 2))


def _save_derivatives(
    ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: tuple[Tensor, Tensor]
) -> None:
    ctx.mark_non_differentiable(output[1])
    logits, targets, *_ = inputs
    ctx.save_for_backward(logits, targets, *output)  # type: ignore[arg-type]
    ctx.blank = inputs[4]  # type: ignore[attr-defined]


def _log_prob_losses_backward(
    ctx: torch.autograd.function.FunctionCtx, d_losses: Tensor, _: Tensor
) -> tuple[Tensor | None, ...]:
    logits, targets, losses, derivatives = ctx.saved_tensors  # type: ignore[attr-defined]
    weights = _finite_weights(d_losses, losses).to(derivatives.dtype)
    scaled = (derivatives * weights[:, None, None, None]).to(logits.dtype)
    gradient = logits.new_zeros(logits.shape)
    gradient.select(-1, ctx.blank).copy_(scaled[..., 0])  # type: ignore[attr-defined]
    gradient[:, :, :-1].scatter_add_(-1, _label_index(logits, targets), scaled[:, :, :-1, 1:])
    return (*_without_second_derivative([logits], [gradient]), None, None, None, None, None)


_log_prob_losses.register_autograd(_log_prob_losses_backward, setup_context=_save_derivatives)


@torch.library.custom_op(
    "panda_rnnt::forced_align",
    mutates_args=(),
    schema="(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank) "
    "-> Tensor",
)
def _forced_align(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int
) -> Tensor:
    _check_alignment(log_probs, targets, input_lengths, target_lengths, blank)
    labels = targets[0].to(torch.int64)
    columns = torch.cat([labels.new_tensor([blank]), labels])
    emissions = log_probs[0].index_select(-1, columns).to(torch.float64)
    bad = (~(emissions < torch.inf)).nonzero()
    if bad.shape[0] > 0:
        frame, column = bad[0].tolist()
        raise ValueError(
            f"log_probs[0, {frame}, {columns[column]}]: expected a finite number or -inf, found "
            f"{emissions[frame, column]}"
        )
    path = from_dlpack(_native.ctc_best_path(emissions, labels))
    if path.shape[0] == 0:
        raise RuntimeError("log_probs: expected an alignment of positive probability, found none")
    return columns[path].to(targets.dtype).unsqueeze(0)


@_forced_align.register_fake
def _(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int
) -> Tensor:
    _check_same_device(log_probs, targets, input_lengths, target_lengths)
    return targets.new_empty((1, log_probs.shape[1]))


# Checks.


def _check_call(logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor) -> None:
    names = ArgumentNames()
    check_arguments(logits, targets, logit_lengths, target_lengths, names)
    check_sizes(logits, logit_lengths, target_lengths, names)
    expected = (logits.shape[0], logits.shape[2] - 1)
    if targets.shape != expected:
        raise ValueError(f"targets: expected shape {expected}, found {tuple(targets.shape)}")


def _check_alignment(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int
) -> None:
    """Raises TypeError, ValueError or RuntimeError unless a call has an alignment."""
    check_arguments(
        log_probs,
        targets,
        input_lengths,
        target_lengths,
        ArgumentNames("log_probs", "targets", "input_lengths", "target_lengths"),
    )
    for name, tensor, rank in (("log_probs", log_probs, 3), ("targets", targets, 2)):
        if tensor.dim() != rank or tensor.shape[0] != 1:
            raise ValueError(f"{name}: expected {rank} axes and 1 utterance, found {tuple(tensor.shape)}")
    frames, classes = log_probs.shape[1:]
    _check_integers("targets", targets)
    if not 0 <= blank < classes:
        raise ValueError(f"blank: expected a class from 0 to {classes - 1}, found {blank}")
    labels = targets[0].tolist()
    for position, label in enumerate(labels):
        if not 0 <= label < classes or label == blank:
            expected_label = "a label" if label == blank else f"a class from 0 to {classes - 1}"
            found = f"{label}, the blank" if label == blank else str(label)
            raise ValueError(f"targets[0, {position}]: expected {expected_label}, found {found}")
    for name, tensor, expected in (
        ("input_lengths", input_lengths, frames),
        ("target_lengths", target_lengths, targets.shape[1]),
    ):
        _check_integers(name, tensor)
        if tensor.tolist() != [expected]:
            raise ValueError(f"{name}: expected [{expected}], found {tensor.tolist()}")
    repetitions = sum(left == right for left, right in itertools.pairwise(labels))
    if frames < max(len(labels) + repetitions, 1):
        raise RuntimeError(
            f"targets length is too long for CTC: expected at most {frames} labels and repetitions, the "
            f"frames of log_probs, found {len(labels)} labels and {repetitions} repetitions"
        )


def _check_integers(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name}: expected int32 or int64, found {tensor.dtype}")


def _options(blank: int, clamp: float) -> str:
    return LossOptions(blank=blank, clamp=clamp if clamp > 0.0 else None).to_json()


def _label_index(logits: Tensor, targets: Tensor) -> Tensor:
    """Returns the class of the next label ``[B, T, U, 1]``; padding becomes a class."""
    batch, frames, positions, classes = logits.shape
    index = targets.to(torch.int64).clamp(0, classes - 1)
    return index[:, None, :, None].expand(batch, frames, positions - 1, 1)
