"""RNN-T, multi-blank and TDT losses with the arguments of NeMo's Numba losses, on the CPU.

``RNNTLossNumba`` and the other names of ``nemo.collections.asr.parts.numba.rnnt_loss`` exist too,
so that code changes its import only. NeMo's multi-blank and TDT losses need a GPU; these do not.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from panda_rnnt._warp_loss import WarpReduction, check_reduction, reduce_losses, warp_loss, warp_losses

__all__ = [
    "MultiblankRNNTLoss",
    "MultiblankRNNTLossNumba",
    "RNNTLoss",
    "RNNTLossNumba",
    "TDTLoss",
    "TDTLossNumba",
    "multiblank_rnnt_loss",
    "rnnt_loss",
    "tdt_loss",
]


def rnnt_loss(
    acts: Tensor,
    labels: Tensor,
    act_lens: Tensor,
    label_lens: Tensor,
    blank: int = 0,
    reduction: WarpReduction = "mean",
    fastemit_lambda: float = 0.0,
    clamp: float = 0.0,
) -> Tensor:
    """Computes the RNN-T loss of scores (logits).

    Args:
        acts: Scores ``[B, T, U+1, C]``, before log-softmax.
        labels: Labels ``[B, U]``, int32 or int64, padded with any number.
        act_lens: Frames of each utterance ``[B]``; the largest is T.
        label_lens: Labels of each utterance ``[B]``; the largest is U.
        blank: Class of the blank.
        reduction: ``mean`` (the sum divided by B), ``sum``, or ``none`` (or None).
        fastemit_lambda: FastEmit: multiplies the value, and the gradient of labels, by 1 + lambda.
        clamp: Clips the gradient of each utterance's loss to ``-clamp`` .. ``clamp``, before the
            reduction scales it, as NeMo does on GPUs; 0 does not clip.

    Returns:
        Shape ``[1]`` for ``mean`` and ``sum``, otherwise ``[B]``; in the type of ``acts``.

    Raises:
        ValueError: Shapes, lengths or labels that do not match; scores that are NaN; devices.
        TypeError: Tensors of another type.

    Cost: O(B T U C) time; memory for the gradient, of the size of ``acts``.
    """
    return warp_loss(
        acts,
        labels,
        act_lens,
        label_lens,
        blank=blank,
        reduction=reduction,
        fastemit_lambda=fastemit_lambda,
        clamp=_positive_clamp(clamp),
    )


def multiblank_rnnt_loss(
    acts: Tensor,
    labels: Tensor,
    act_lens: Tensor,
    label_lens: Tensor,
    blank: int,
    big_blank_durations: Sequence[int] | None = (),
    reduction: WarpReduction = "mean",
    fastemit_lambda: float = 0.0,
    clamp: float = 0.0,
    sigma: float = 0.0,
) -> Tensor:
    """Computes the multi-blank transducer loss (arXiv 2211.03541) of scores.

    Args:
        blank: Class of the blank; ``blank - 1 - i`` is the class of the big blank ``i``.
        big_blank_durations: Frames of each big blank.
        sigma: Logit under-normalization.

    Other arguments, result, errors and cost are those of :func:`rnnt_loss`.
    """
    durations = tuple(big_blank_durations or ())
    return warp_loss(
        acts,
        labels,
        act_lens,
        label_lens,
        loss="multi_blank" if durations else "rnnt",
        blank=blank,
        big_blanks=[blank - 1 - index for index in range(len(durations))],
        durations=durations,
        reduction=reduction,
        fastemit_lambda=fastemit_lambda,
        clamp=_positive_clamp(clamp),
        sigma=sigma,
    )


def tdt_loss(
    acts: Tensor,
    labels: Tensor,
    act_lens: Tensor,
    label_lens: Tensor,
    blank: int,
    durations: Sequence[int] | None = (),
    reduction: WarpReduction = "mean",
    fastemit_lambda: float = 0.0,
    clamp: float = 0.0,
    sigma: float = 0.0,
    omega: float = 0.0,
) -> Tensor:
    """Computes the token-and-duration transducer loss (arXiv 2304.06795) of scores.

    Args:
        acts: Scores of the tokens, followed by those of the durations, ``[B, T, U+1, C+D]``.
        durations: Frames of each duration class.
        clamp: As in :func:`rnnt_loss`, for the scores of the tokens; it doubles the cost.
        sigma: Logit under-normalization.
        omega: Probability of the RNN-T loss of the tokens instead, without ``sigma``; Python's
            ``random`` decides for the whole batch.

    Other arguments, result, errors and cost are those of :func:`rnnt_loss`.
    """
    durations = tuple(durations or ())
    classes = acts.shape[-1] - len(durations)
    if not 0.0 <= omega <= 1.0:
        raise ValueError(f"omega: expected a number from 0 to 1, found {omega!r}")
    if omega > 0.0 and random.uniform(0.0, 1.0) < omega:
        tokens = acts[..., :classes]
        return rnnt_loss(tokens, labels, act_lens, label_lens, blank, reduction, fastemit_lambda, clamp)

    def losses(scores: Tensor, limit: float | None) -> Tensor:
        return warp_losses(
            scores,
            labels,
            act_lens,
            label_lens,
            loss="tdt",
            blank=blank,
            durations=durations,
            fastemit_lambda=fastemit_lambda,
            clamp=limit,
            sigma=sigma,
        )

    check_reduction(reduction)
    limit = _positive_clamp(clamp)
    if limit is None or not acts.requires_grad:
        return reduce_losses(losses(acts, None), reduction).to(acts.dtype)
    # NeMo clips the gradient of the tokens only, so that of the durations has another pass.
    tokens, duration_scores = acts[..., :classes], acts[..., classes:]
    clipped = losses(torch.cat([tokens, duration_scores.detach()], -1), limit)
    unclipped = losses(torch.cat([tokens.detach(), duration_scores], -1), None)
    only_gradient = torch.where(unclipped.isfinite(), unclipped - unclipped.detach(), 0.0)
    return reduce_losses(clipped + only_gradient, reduction).to(acts.dtype)


class RNNTLoss(nn.Module):
    """The module of :func:`rnnt_loss`; a negative ``clamp`` does not clip."""

    def __init__(
        self,
        blank: int = 0,
        reduction: WarpReduction = "mean",
        fastemit_lambda: float = 0.0,
        clamp: float = -1.0,
    ) -> None:
        super().__init__()
        self.blank = blank
        self.reduction = check_reduction(reduction)
        self.fastemit_lambda = fastemit_lambda
        self.clamp = _module_clamp(clamp)

    def forward(self, acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor) -> Tensor:
        """Computes the loss; see :func:`rnnt_loss`."""
        return rnnt_loss(
            acts,
            labels,
            act_lens,
            label_lens,
            self.blank,
            self.reduction,
            self.fastemit_lambda,
            self.clamp,
        )


class MultiblankRNNTLoss(nn.Module):
    """The module of :func:`multiblank_rnnt_loss`; a negative ``clamp`` does not clip."""

    def __init__(
        self,
        blank: int,
        big_blank_durations: Sequence[int] | None,
        reduction: WarpReduction = "mean",
        fastemit_lambda: float = 0.0,
        clamp: float = -1.0,
        sigma: float = 0.0,
    ) -> None:
        super().__init__()
        self.blank = blank
        self.big_blank_durations = big_blank_durations
        self.reduction = check_reduction(reduction)
        self.fastemit_lambda = fastemit_lambda
        self.clamp = _module_clamp(clamp)
        self.sigma = sigma

    def forward(self, acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor) -> Tensor:
        """Computes the loss; see :func:`multiblank_rnnt_loss`."""
        return multiblank_rnnt_loss(
            acts,
            labels,
            act_lens,
            label_lens,
            self.blank,
            self.big_blank_durations,
            self.reduction,
            self.fastemit_lambda,
            self.clamp,
            self.sigma,
        )


class TDTLoss(nn.Module):
    """The module of :func:`tdt_loss`; a negative ``clamp`` does not clip."""

    def __init__(
        self,
        blank: int,
        durations: Sequence[int] | None = None,
        reduction: WarpReduction = "mean",
        fastemit_lambda: float = 0.0,
        clamp: float = -1.0,
        sigma: float = 0.0,
        omega: float = 0.0,
    ) -> None:
        super().__init__()
        self.blank = blank
        self.durations = durations if durations is not None else []
        self.reduction = check_reduction(reduction)
        self.fastemit_lambda = fastemit_lambda
        self.clamp = _module_clamp(clamp)
        self.sigma = sigma
        self.omega = omega

    def forward(self, acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor) -> Tensor:
        """Computes the loss; see :func:`tdt_loss`."""
        return tdt_loss(
            acts,
            labels,
            act_lens,
            label_lens,
            self.blank,
            self.durations,
            self.reduction,
            self.fastemit_lambda,
            self.clamp,
            self.sigma,
            self.omega,
        )


RNNTLossNumba = RNNTLoss
MultiblankRNNTLossNumba = MultiblankRNNTLoss
TDTLossNumba = TDTLoss


def _positive_clamp(clamp: float) -> float | None:
    """Returns the limit of the gradient, None for 0."""
    if clamp < 0.0:
        raise ValueError(f"clamp: expected at least 0, found {clamp}")
    return clamp if clamp != 0.0 else None


def _module_clamp(clamp: float) -> float:
    return float(clamp) if clamp > 0.0 else 0.0
