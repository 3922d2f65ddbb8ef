"""The transducer functions of k2, on the CPU.

Replace ``import k2`` by ``from panda_rnnt import k2`` in code that uses only these functions. They are
those of :mod:`panda_rnnt.fast_rnnt`, with the arguments of k2 1.24: ``use_hat_loss``, the order of
``get_rnnt_logprobs_joint``, the older rule of pruning, and ``with_cuda`` as a constant.
"""

from __future__ import annotations

from typing import Final

from torch import Tensor

from panda_rnnt._lattice_log_probs import Reduction, RnntType, log_probs_of_logits, transducer_loss
from panda_rnnt._pruning_ranges import get_rnnt_prune_ranges_deprecated
from panda_rnnt.fast_rnnt import (
    do_rnnt_pruning,
    get_rnnt_logprobs,
    get_rnnt_logprobs_pruned,
    get_rnnt_logprobs_smoothed,
    get_rnnt_prune_ranges,
    joint_mutual_information_recursion,
    mutual_information_recursion,
    rnnt_loss,
    rnnt_loss_simple,
    rnnt_loss_smoothed,
)

__all__ = [
    "do_rnnt_pruning",
    "get_hat_logprobs_pruned",
    "get_rnnt_logprobs",
    "get_rnnt_logprobs_joint",
    "get_rnnt_logprobs_pruned",
    "get_rnnt_logprobs_smoothed",
    "get_rnnt_prune_ranges",
    "get_rnnt_prune_ranges_deprecated",
    "joint_mutual_information_recursion",
    "mutual_information_recursion",
    "rnnt_loss",
    "rnnt_loss_pruned",
    "rnnt_loss_simple",
    "rnnt_loss_smoothed",
    "with_cuda",
]

with_cuda: Final = False
"""The functions run on the CPU."""


def get_rnnt_logprobs_joint(
    logits: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    rnnt_type: RnntType = "regular",
    boundary: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes the log-probabilities of a joiner's output.

    As :func:`panda_rnnt.fast_rnnt.get_rnnt_logprobs_joint`, with the last two arguments in another
    order.
    """
    return log_probs_of_logits(logits, symbols, None, termination_symbol, boundary, rnnt_type)


def get_hat_logprobs_pruned(
    logits: Tensor,
    symbols: Tensor,
    ranges: Tensor,
    termination_symbol: int,
    boundary: Tensor | None = None,
    rnnt_type: RnntType = "regular",
) -> tuple[Tensor, Tensor]:
    """Computes log-probabilities with a factored blank, for pruned positions.

    With z the row of logits of a position (Variani et al. 2020, arXiv 2003.07705)::

        py = log sigmoid(z[0])    px = log sigmoid(-z[0]) + z[symbol] - logsumexp(z[1:])

    Arguments, result and errors are those of :func:`panda_rnnt.fast_rnnt.get_rnnt_logprobs_pruned`;
    ``termination_symbol`` must be 0, and no symbol may be 0.
    """
    if termination_symbol != 0:
        raise ValueError(f"termination_symbol: expected 0 for a factored blank, found {termination_symbol}")
    return log_probs_of_logits(
        logits, symbols, ranges, termination_symbol, boundary, rnnt_type, has_factored_blank=True
    )


def rnnt_loss_pruned(
    logits: Tensor,
    symbols: Tensor,
    ranges: Tensor,
    termination_symbol: int,
    boundary: Tensor | None = None,
    rnnt_type: RnntType = "regular",
    delay_penalty: float = 0.0,
    reduction: Reduction | None = "mean",
    use_hat_loss: bool = False,
) -> Tensor:
    """Computes the transducer loss of a joiner's output for pruned positions.

    As :func:`panda_rnnt.fast_rnnt.rnnt_loss_pruned`; ``use_hat_loss`` selects the log-probabilities of
    :func:`get_hat_logprobs_pruned`.
    """
    log_probs = get_hat_logprobs_pruned if use_hat_loss else get_rnnt_logprobs_pruned
    px, py = log_probs(logits, symbols, ranges, termination_symbol, boundary, rnnt_type)
    return transducer_loss(px, py, boundary, delay_penalty, rnnt_type, reduction)[0]
