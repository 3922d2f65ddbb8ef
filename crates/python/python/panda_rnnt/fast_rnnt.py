"""The functions of the package fast_rnnt, on the CPU: pruned and other transducer losses.

Replace ``import fast_rnnt`` by ``from panda_rnnt import fast_rnnt``. Names, arguments, shapes and
values are those of fast_rnnt 1.3. Instead of ``AssertionError``, functions raise ``ValueError`` or
``TypeError``. In addition

- scores outside the boundaries are not read, and their gradient is 0, also if they are NaN;
- utterances without symbols are accepted; those without a path have the loss +inf and the gradient 0;
- symbols and boundaries may be int32;
- log-sums are computed in float64, on all threads.

Kuang et al. 2022, "Pruned RNN-T for fast, memory-efficient ASR training", arXiv 2206.13236.

Example::

    import torch
    from panda_rnnt import fast_rnnt

    am, lm = torch.randn(1, 20, 50), torch.randn(1, 6, 50)  # B x T x C, B x (S+1) x C
    symbols, boundary = torch.randint(1, 50, (1, 5)), torch.tensor([[0, 0, 5, 20]])
    simple_loss, (px_grad, py_grad) = fast_rnnt.rnnt_loss_simple(
        lm, am, symbols, termination_symbol=0, boundary=boundary, return_grad=True
    )
    ranges = fast_rnnt.get_rnnt_prune_ranges(px_grad, py_grad, boundary, s_range=3)
    am_pruned, lm_pruned = fast_rnnt.do_rnnt_pruning(am, lm, ranges)
    logits = torch.tanh(am_pruned + lm_pruned)
    loss = fast_rnnt.rnnt_loss_pruned(logits, symbols, ranges, termination_symbol=0, boundary=boundary)
"""

from __future__ import annotations

from typing import Literal, overload

from torch import Tensor

from panda_rnnt._lattice_log_probs import (
    Reduction,
    RnntType,
    log_probs_of_logits,
    log_probs_of_sums,
    transducer_loss,
)
from panda_rnnt._lattice_recursion import (
    Posteriors,
    joint_mutual_information_recursion,
    mutual_information_recursion,
)
from panda_rnnt._pruning_ranges import do_rnnt_pruning, get_rnnt_prune_ranges, monotonic_lower_bound

__all__ = [
    "do_rnnt_pruning",
    "get_rnnt_logprobs",
    "get_rnnt_logprobs_joint",
    "get_rnnt_logprobs_pruned",
    "get_rnnt_logprobs_smoothed",
    "get_rnnt_prune_ranges",
    "joint_mutual_information_recursion",
    "monotonic_lower_bound",
    "monotonic_lower_bound_",
    "mutual_information_recursion",
    "rnnt_loss",
    "rnnt_loss_pruned",
    "rnnt_loss_simple",
    "rnnt_loss_smoothed",
    "with_cuda",
]


def get_rnnt_logprobs(
    lm: Tensor,
    am: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    rnnt_type: RnntType = "regular",
    boundary: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes the log-probabilities of a joiner that adds its inputs.

    With ``z = am[b, t] + lm[b, s]``::

        px[b, s, t] = z[symbols[b, s]] - logsumexp(z)    py[b, s, t] = z[blank] - logsumexp(z)

    Args:
        lm: Scores of the symbol positions ``[B, S+1, C]``, not normalized.
        am: Scores of the frames ``[B, T, C]``, not normalized.
        symbols: Classes ``[B, S]``, int32 or int64, padded with any number. A symbol may be the blank.
        termination_symbol: Class of the blank.
        rnnt_type: ``regular``, ``modified`` (a symbol consumes a frame), or ``constrained`` (it does,
            and the blank of that frame is a factor of its probability).
        boundary: Begin symbol, begin frame, end symbol and end frame ``[B, 4]``; None is
            ``[0, 0, S, T]``.

    Returns:
        ``px`` ``[B, S, T+1]``, without the last column unless ``regular``; ``py`` ``[B, S+1, T]``.
        Values outside the boundaries have no meaning. float64 if an argument is, float32 otherwise.

    Raises:
        ValueError: Shapes, symbols or boundaries that do not match; fewer frames than symbols, unless
            ``regular``; scores that are NaN.
        TypeError: Tensors of another type.

    Cost: O(B S T C) multiplications, as one matrix product per utterance; memory O(B S T). The
    normalizers are accurate to a few units of the last place of ``max(am) + max(lm)``.
    """
    return log_probs_of_sums(lm, am, symbols, termination_symbol, boundary, rnnt_type)


def get_rnnt_logprobs_smoothed(
    lm: Tensor,
    am: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    lm_only_scale: float = 0.1,
    am_only_scale: float = 0.1,
    boundary: Tensor | None = None,
    rnnt_type: RnntType = "regular",
) -> tuple[Tensor, Tensor]:
    """Computes log-probabilities of a sum, mixed with those of its parts.

    ::

        (1 - lm_only_scale - am_only_scale) * log_probs(am + lm)
            + lm_only_scale * log_probs(lm) + am_only_scale * log_probs(am + unigram)

    ``unigram`` is the logarithm of the mean of ``softmax(lm)`` over all rows of the batch. Rows of
    padding are part of it, as in fast_rnnt, and get its gradient; those with NaN are left out.

    Args:
        lm_only_scale: Weight of the log-probabilities of ``lm``.
        am_only_scale: Weight of the log-probabilities of ``am`` and the unigram.

    The other arguments, result and errors are those of :func:`get_rnnt_logprobs`.
    """
    return log_probs_of_sums(
        lm, am, symbols, termination_symbol, boundary, rnnt_type, lm_only_scale, am_only_scale
    )


def get_rnnt_logprobs_joint(
    logits: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    boundary: Tensor | None = None,
    rnnt_type: RnntType = "regular",
) -> tuple[Tensor, Tensor]:
    """Computes the log-probabilities of a joiner's output.

    Args:
        logits: Output of the joiner ``[B, T, S+1, C]``, not normalized.

    The other arguments, result and errors are those of :func:`get_rnnt_logprobs`. Values outside the
    boundaries are -inf. Cost: O(B T S C) time; memory for the gradient, of the size of ``logits``.
    """
    return log_probs_of_logits(logits, symbols, None, termination_symbol, boundary, rnnt_type)


def get_rnnt_logprobs_pruned(
    logits: Tensor,
    symbols: Tensor,
    ranges: Tensor,
    termination_symbol: int,
    boundary: Tensor | None = None,
    rnnt_type: RnntType = "regular",
) -> tuple[Tensor, Tensor]:
    """Computes the log-probabilities of a joiner's output for pruned positions.

    Args:
        logits: Output of the joiner ``[B, T, s_range, C]``, not normalized.
        ranges: Positions ``[B, T, s_range]`` of :func:`get_rnnt_prune_ranges`, consecutive in each
            frame.

    The other arguments, result and errors are those of :func:`get_rnnt_logprobs`. Values of other
    positions, and outside the boundaries, are -inf.
    """
    return log_probs_of_logits(logits, symbols, ranges, termination_symbol, boundary, rnnt_type)


@overload
def rnnt_loss_simple(
    lm: Tensor,
    am: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    boundary: Tensor | None = None,
    rnnt_type: RnntType = "regular",
    delay_penalty: float = 0.0,
    reduction: Reduction | None = "mean",
    return_grad: Literal[False] = False,
) -> Tensor: ...
@overload
def rnnt_loss_simple(
    lm: Tensor,
    am: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    boundary: Tensor | None = None,
    rnnt_type: RnntType = "regular",
    delay_penalty: float = 0.0,
    reduction: Reduction | None = "mean",
    *,
    return_grad: Literal[True],
) -> tuple[Tensor, Posteriors]: ...
def rnnt_loss_simple(
    lm: Tensor,
    am: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    boundary: Tensor | None = None,
    rnnt_type: RnntType = "regular",
    delay_penalty: float = 0.0,
    reduction: Reduction | None = "mean",
    return_grad: bool = False,
) -> Tensor | tuple[Tensor, Posteriors]:
    """Computes the transducer loss of a joiner that adds its inputs.

    Arguments without a description are those of :func:`get_rnnt_logprobs`.

    Args:
        delay_penalty: Adds ``delay_penalty * ((T - 1) / 2 - t)`` to the log-probability of a symbol
            at frame t, if it is positive; T is the end frame.
        reduction: ``none``, ``mean`` (over utterances) or ``sum``.
        return_grad: Whether to return the posteriors of px and py too, for
            :func:`get_rnnt_prune_ranges`.

    Returns:
        A scalar, or losses ``[B]``, +inf without a path; with ``return_grad`` a tuple of the loss and
        the pair of posteriors, which have no gradient.

    Raises:
        ValueError: An unknown name; as :func:`get_rnnt_logprobs`.
        TypeError: Tensors of another type.
    """
    px, py = log_probs_of_sums(lm, am, symbols, termination_symbol, boundary, rnnt_type)
    loss, posteriors = transducer_loss(px, py, boundary, delay_penalty, rnnt_type, reduction, return_grad)
    return (loss, posteriors) if return_grad else loss


@overload
def rnnt_loss_smoothed(
    lm: Tensor,
    am: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    lm_only_scale: float = 0.1,
    am_only_scale: float = 0.1,
    boundary: Tensor | None = None,
    rnnt_type: RnntType = "regular",
    delay_penalty: float = 0.0,
    reduction: Reduction | None = "mean",
    return_grad: Literal[False] = False,
) -> Tensor: ...
@overload
def rnnt_loss_smoothed(
    lm: Tensor,
    am: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    lm_only_scale: float = 0.1,
    am_only_scale: float = 0.1,
    boundary: Tensor | None = None,
    rnnt_type: RnntType = "regular",
    delay_penalty: float = 0.0,
    reduction: Reduction | None = "mean",
    *,
    return_grad: Literal[True],
) -> tuple[Tensor, Posteriors]: ...
def rnnt_loss_smoothed(
    lm: Tensor,
    am: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    lm_only_scale: float = 0.1,
    am_only_scale: float = 0.1,
    boundary: Tensor | None = None,
    rnnt_type: RnntType = "regular",
    delay_penalty: float = 0.0,
    reduction: Reduction | None = "mean",
    return_grad: bool = False,
) -> Tensor | tuple[Tensor, Posteriors]:
    """Computes the loss of smoothed log-probabilities.

    The log-probabilities are those of :func:`get_rnnt_logprobs_smoothed`; the other arguments, result
    and errors are those of :func:`rnnt_loss_simple`.
    """
    px, py = log_probs_of_sums(
        lm, am, symbols, termination_symbol, boundary, rnnt_type, lm_only_scale, am_only_scale
    )
    loss, posteriors = transducer_loss(px, py, boundary, delay_penalty, rnnt_type, reduction, return_grad)
    return (loss, posteriors) if return_grad else loss


@overload
def rnnt_loss(
    logits: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    boundary: Tensor | None = None,
    rnnt_type: RnntType = "regular",
    delay_penalty: float = 0.0,
    reduction: Reduction | None = "mean",
    return_grad: Literal[False] = False,
) -> Tensor: ...
@overload
def rnnt_loss(
    logits: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    boundary: Tensor | None = None,
    rnnt_type: RnntType = "regular",
    delay_penalty: float = 0.0,
    reduction: Reduction | None = "mean",
    *,
    return_grad: Literal[True],
) -> tuple[Tensor, Posteriors]: ...
def rnnt_loss(
    logits: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    boundary: Tensor | None = None,
    rnnt_type: RnntType = "regular",
    delay_penalty: float = 0.0,
    reduction: Reduction | None = "mean",
    return_grad: bool = False,
) -> Tensor | tuple[Tensor, Posteriors]:
    """Computes the transducer loss of a joiner's output.

    ``logits`` are those of :func:`get_rnnt_logprobs_joint`; the other arguments, result and errors are
    those of :func:`rnnt_loss_simple`.
    """
    px, py = log_probs_of_logits(logits, symbols, None, termination_symbol, boundary, rnnt_type)
    loss, posteriors = transducer_loss(px, py, boundary, delay_penalty, rnnt_type, reduction, return_grad)
    return (loss, posteriors) if return_grad else loss


@overload
def rnnt_loss_pruned(
    logits: Tensor,
    symbols: Tensor,
    ranges: Tensor,
    termination_symbol: int,
    boundary: Tensor | None = None,
    rnnt_type: RnntType = "regular",
    delay_penalty: float = 0.0,
    reduction: Reduction | None = "mean",
    return_grad: Literal[False] = False,
) -> Tensor: ...
@overload
def rnnt_loss_pruned(
    logits: Tensor,
    symbols: Tensor,
    ranges: Tensor,
    termination_symbol: int,
    boundary: Tensor | None = None,
    rnnt_type: RnntType = "regular",
    delay_penalty: float = 0.0,
    reduction: Reduction | None = "mean",
    *,
    return_grad: Literal[True],
) -> tuple[Tensor, Posteriors]: ...
def rnnt_loss_pruned(
    logits: Tensor,
    symbols: Tensor,
    ranges: Tensor,
    termination_symbol: int,
    boundary: Tensor | None = None,
    rnnt_type: RnntType = "regular",
    delay_penalty: float = 0.0,
    reduction: Reduction | None = "mean",
    return_grad: bool = False,
) -> Tensor | tuple[Tensor, Posteriors]:
    """Computes the transducer loss of a joiner's output for pruned positions.

    ``logits`` and ``ranges`` are those of :func:`get_rnnt_logprobs_pruned`; the other arguments, result
    and errors are those of :func:`rnnt_loss_simple`.
    """
    px, py = log_probs_of_logits(logits, symbols, ranges, termination_symbol, boundary, rnnt_type)
    loss, posteriors = transducer_loss(px, py, boundary, delay_penalty, rnnt_type, reduction, return_grad)
    return (loss, posteriors) if return_grad else loss


def monotonic_lower_bound_(x: Tensor) -> Tensor:
    """Applies :func:`monotonic_lower_bound` in place, as fast_rnnt 1.0."""
    return x.copy_(monotonic_lower_bound(x))


def with_cuda() -> bool:
    """Returns False: the functions run on the CPU."""
    return False
