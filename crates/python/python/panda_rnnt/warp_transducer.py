"""The loss of warp-transducer's ``warprnnt_pytorch``, on the CPU.

Names, arguments and results are those of the original, so that code changes its import only. The
package also has a module named ``warprnnt_pytorch``, for code that cannot change it, such as NeMo.
"""

from __future__ import annotations

from torch import Tensor, nn

from panda_rnnt._warp_loss import WarpReduction, check_reduction, warp_loss

__all__ = ["RNNTLoss", "rnnt_loss"]


def rnnt_loss(
    acts: Tensor,
    labels: Tensor,
    act_lens: Tensor,
    label_lens: Tensor,
    blank: int = 0,
    reduction: WarpReduction = "mean",
    fastemit_lambda: float = 0.0,
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
    )


class RNNTLoss(nn.Module):
    """The module of :func:`rnnt_loss`."""

    def __init__(
        self, blank: int = 0, reduction: WarpReduction = "mean", fastemit_lambda: float = 0.0
    ) -> None:
        super().__init__()
        self.blank = blank
        self.reduction = check_reduction(reduction)
        self.fastemit_lambda = fastemit_lambda

    def forward(self, acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor) -> Tensor:
        """Computes the loss; see :func:`rnnt_loss`."""
        return rnnt_loss(acts, labels, act_lens, label_lens, self.blank, self.reduction, self.fastemit_lambda)
