"""Losses of scores and their gradients, for modules with the interface of another package."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from panda_rnnt.torch import _call_scores, _common_device, _finite_weights, _result_type


class ArgumentNames(NamedTuple):
    """Names that error messages use."""

    logits: str = "logits"
    targets: str = "targets"
    logit_lengths: str = "logit_lengths"
    target_lengths: str = "target_lengths"


def check_arguments(
    logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor, names: ArgumentNames
) -> None:
    """Raises TypeError or ValueError unless types and devices are supported."""
    tensors = dict(zip(names, (logits, targets, logit_lengths, target_lengths), strict=True))
    _common_device(tensors, None)
    _result_type({names.logits: logits})


def check_sizes(logits: Tensor, logit_lengths: Tensor, target_lengths: Tensor, names: ArgumentNames) -> None:
    """Raises ValueError unless the largest lengths are the sizes of the padded scores.

    Lengths of another rank or type are not checked here.
    """
    if logits.dim() != 4:
        raise ValueError(f"{names.logits}: expected 4 axes, found {tuple(logits.shape)}")
    for name, lengths, expected in (
        (names.logit_lengths, logit_lengths, logits.shape[1]),
        (names.target_lengths, target_lengths, logits.shape[2] - 1),
    ):
        if lengths.dim() == 1 and lengths.numel() > 0 and lengths.max() != expected:
            raise ValueError(
                f"{name}: expected {expected} as the largest length, as {names.logits} of shape "
                f"{tuple(logits.shape)} has, found {lengths.max()}"
            )


def score_losses(
    logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor, options: str
) -> Tensor:
    """Returns losses ``[B]``: float64 for scores in float64, and float32 otherwise."""
    dtype = _result_type({"logits": logits})
    losses, _ = _call_scores(logits.to(dtype), targets, logit_lengths, target_lengths, None, options)
    return losses.to(dtype)


def score_gradient(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    losses: Tensor,
    d_losses: Tensor,
    options: str,
) -> Tensor:
    """Returns the gradient of the scores, in their type.

    A clamp acts on the gradient of each utterance's loss, before ``d_losses`` scale it.
    """
    weights = _finite_weights(d_losses, losses)
    scores = logits.to(losses.dtype).contiguous()
    arguments = (scores, targets, logit_lengths, target_lengths, None, weights, options, False)
    gradient: Tensor = torch.ops.panda_rnnt.score_loss_sum(*arguments)[2]
    return gradient.to(logits.dtype)


def fake_losses(logits: Tensor) -> Tensor:
    """Returns an empty tensor like the result of :func:`score_losses`."""
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return logits.new_empty(logits.shape[0], dtype=dtype)
