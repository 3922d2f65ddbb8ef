"""Losses with the arguments, checks and reductions of warp-transducer, which NeMo shares."""

from __future__ import annotations

import re
from typing import Any, Literal, cast

import torch
from torch import Tensor

from panda_rnnt._scores import (
    ArgumentNames,
    check_arguments,
    check_sizes,
    fake_losses,
    score_gradient,
    score_losses,
)
from panda_rnnt.torch import (
    _check_same_device,
    _options_text,
    _save_arguments,
    _saved_arguments,
    _without_second_derivative,
)

WarpReduction = Literal["none", "mean", "sum"] | None

_NAMES = ArgumentNames("acts", "labels", "act_lens", "label_lens")


def warp_loss(
    acts: Tensor,
    labels: Tensor,
    act_lens: Tensor,
    label_lens: Tensor,
    *,
    reduction: WarpReduction,
    fastemit_lambda: float,
    **options: Any,
) -> Tensor:
    """Computes the loss of scores; ``options`` are those of :class:`panda_rnnt.LossOptions`.

    Returns:
        Shape ``[1]`` for ``mean``, the sum over utterances divided by their number, and ``sum``;
        losses ``[B]`` otherwise; in the type of the scores.
    """
    check_reduction(reduction)
    losses = warp_losses(acts, labels, act_lens, label_lens, fastemit_lambda=fastemit_lambda, **options)
    return reduce_losses(losses, reduction).to(acts.dtype)


def warp_losses(
    acts: Tensor,
    labels: Tensor,
    act_lens: Tensor,
    label_lens: Tensor,
    *,
    fastemit_lambda: float,
    **options: Any,
) -> Tensor:
    """Returns losses ``[B]``; FastEmit scales them, and the gradient of labels, by 1 + lambda."""
    check_arguments(acts, labels, act_lens, label_lens, _NAMES)
    text = _options_text(fastemit=fastemit_lambda, **options)
    losses: Tensor = torch.ops.panda_rnnt.warp_losses(acts, labels, act_lens, label_lens, text)
    return losses + fastemit_lambda * losses.detach() if fastemit_lambda > 0.0 else losses


def reduce_losses(losses: Tensor, reduction: WarpReduction) -> Tensor:
    """Returns the sum or its share of an utterance ``[1]``, or the losses themselves."""
    if reduction in (None, "none"):
        return losses
    total = losses.sum().unsqueeze(-1)
    return total / losses.shape[0] if reduction == "mean" else total


def check_reduction(reduction: WarpReduction) -> WarpReduction:
    """Raises ValueError unless a reduction is supported; returns it."""
    if reduction not in (None, "none", "mean", "sum"):
        raise ValueError(f"reduction: expected None, 'none', 'mean' or 'sum', found {reduction!r}")
    return reduction


@torch.library.custom_op(
    "panda_rnnt::warp_losses",
    mutates_args=(),
    schema="(Tensor acts, Tensor labels, Tensor act_lens, Tensor label_lens, str options) -> Tensor",
)
def _warp_losses(acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor, options: str) -> Tensor:
    check_sizes(acts, act_lens, label_lens, _NAMES)
    try:
        return score_losses(acts, labels, act_lens, label_lens, options)
    except (TypeError, ValueError) as error:
        raise type(error)(_with_our_names(str(error))) from None


@_warp_losses.register_fake
def _(acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor, options: str) -> Tensor:
    _check_same_device(acts, labels, act_lens, label_lens)
    return fake_losses(acts)


def _warp_losses_backward(
    ctx: torch.autograd.function.FunctionCtx, d_losses: Tensor
) -> tuple[Tensor | None, ...]:
    arguments, losses = _saved_arguments(ctx)
    acts, labels, act_lens, label_lens = cast("list[Tensor]", arguments)
    options = ctx.options  # type: ignore[attr-defined]
    gradient = score_gradient(acts, labels, act_lens, label_lens, losses, d_losses, options)
    return (*_without_second_derivative([acts], [gradient]), None, None, None, None)


_warp_losses.register_autograd(_warp_losses_backward, setup_context=_save_arguments)


def _with_our_names(message: str) -> str:
    """Replaces the argument names of a message by those of this module."""
    names = dict(zip(ArgumentNames(), _NAMES, strict=True))
    return re.sub(rf"\b({'|'.join(names)})\b", lambda match: names[match[0]], message)
