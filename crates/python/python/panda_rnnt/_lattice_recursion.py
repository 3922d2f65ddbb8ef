"""Log-sums over the paths of lattices, as an operation of torch.

A path leads from (begin symbol, begin frame) to (end symbol, end frame); ``p[s, t]`` is the log-sum
over its beginnings of s symbols and t frames, 0 at the start::

    regular    p[s, t] = logaddexp(p[s-1, t]   + px[s-1, t],   p[s, t-1] + py[s, t-1])
    modified   p[s, t] = logaddexp(p[s-1, t-1] + px[s-1, t-1], p[s, t-1] + py[s, t-1])
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal, overload

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from panda_rnnt import _native
from panda_rnnt.torch import _array, _check_same_device, _common_device, _without_second_derivative

Posteriors = tuple[Tensor, Tensor]
"""Derivatives of the log-sums with respect to px and py."""


@overload
def mutual_information_recursion(
    px: Tensor, py: Tensor, boundary: Tensor | None = None, return_grad: Literal[False] = False
) -> Tensor: ...
@overload
def mutual_information_recursion(
    px: Tensor, py: Tensor, boundary: Tensor | None = None, *, return_grad: Literal[True]
) -> tuple[Tensor, Posteriors]: ...
def mutual_information_recursion(
    px: Tensor, py: Tensor, boundary: Tensor | None = None, return_grad: bool = False
) -> Tensor | tuple[Tensor, Posteriors]:
    """Computes the log-sum over all paths of each lattice.

    A symbol consumes no frame if ``px`` has T+1 columns, and one frame if it has T.

    Args:
        px: Log-scores of the symbols, ``[B, S, T+1]`` or ``[B, S, T]``, float32 or float64.
        py: Log-scores of the steps in time, ``[B, S+1, T]``.
        boundary: Begin symbol, begin frame, end symbol and end frame ``[B, 4]``; None is
            ``[0, 0, S, T]``. Scores outside are not read.
        return_grad: Whether to return the derivatives with respect to ``px`` and ``py``, which are
            the posteriors of their elements.

    Returns:
        Log-sums ``[B]``, -inf without a path; with ``return_grad`` a tuple of them and of the pair of
        derivatives, which are 0 outside the boundaries.

    Raises:
        ValueError: Shapes or boundaries that do not match; a score that is NaN or +inf.
        TypeError: Tensors of another type.

    Cost: O(B S T) time on all threads, float64 inside; some 80 bytes for each (s, t) of one
    utterance, for each thread.

    Example::

        px, py = torch.zeros(1, 2, 4), torch.zeros(1, 3, 3)
        mutual_information_recursion(px, py)  # log 10: two symbols in 3 frames
    """
    log_sums, posteriors = lattice_recursion(px, py, boundary, return_grad)
    return (log_sums, posteriors) if return_grad else log_sums


def lattice_recursion(
    px: Tensor, py: Tensor, boundary: Tensor | None, needs_posteriors: bool
) -> tuple[Tensor, Posteriors]:
    """Returns the log-sums and the posteriors of px and py, which are empty unless needed."""
    for name, scores in (("px", px), ("py", py)):
        if scores.dim() != 3:
            raise ValueError(f"{name}: expected 3 axes, found {tuple(scores.shape)}")
    if px.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"px: expected float32 or float64, found {px.dtype}")
    if py.dtype != px.dtype:
        raise TypeError(f"py: expected {px.dtype}, as px, found {py.dtype}")
    px, py = px.contiguous(), py.contiguous()
    boundary = full_boundary(px, px.shape[1], py.shape[2]) if boundary is None else boundary
    _common_device({"px": px, "py": py, "boundary": boundary}, None)
    requires_grad = torch.is_grad_enabled() and (px.requires_grad or py.requires_grad)
    log_sums, px_posteriors, py_posteriors = torch.ops.panda_rnnt.lattice_recursion(
        px, py, boundary, needs_posteriors or requires_grad
    )
    return log_sums, (px_posteriors, py_posteriors)


def joint_mutual_information_recursion(
    px: Sequence[Tensor], py: Sequence[Tensor], boundary: Tensor | None = None
) -> Tensor:
    """Splits the log-sum over all paths into the contributions of several scores.

    The recursion is that of :func:`mutual_information_recursion` over ``sum(px)`` and ``sum(py)``.
    Row n of the result is the expectation of the scores ``px[n]``, ``py[n]`` along a path. Row 0 has
    in addition the log-sum minus all expectations, so that the rows sum to the log-sum.

    Args:
        px: N tensors ``[B, S, T+1]`` or ``[B, S, T]``.
        py: N tensors ``[B, S+1, T]``.
        boundary: As in :func:`mutual_information_recursion`.

    Returns:
        A tensor ``[N, B]``. Its gradient takes the posteriors as constants.

    Raises:
        ValueError: Lists of different lengths; tensors of different shapes; as
            :func:`mutual_information_recursion`.
        TypeError: Tensors of another type.
    """
    if len(px) == 0 or len(px) != len(py):
        raise ValueError(f"px, py: expected as many tensors, at least one, found {len(px)} and {len(py)}")
    for name, tensors in (("px", px), ("py", py)):
        for index, tensor in enumerate(tensors):
            if tensor.shape != tensors[0].shape:
                shapes = tuple(tensors[0].shape), tuple(tensor.shape)
                raise ValueError(f"{name}[{index}]: expected shape {shapes[0]}, found {shapes[1]}")
    with torch.no_grad():
        log_sums, (px_posteriors, py_posteriors) = lattice_recursion(
            functools.reduce(torch.add, px), functools.reduce(torch.add, py), boundary, True
        )
    rows = [
        _expectation(px_posteriors, px_scores) + _expectation(py_posteriors, py_scores)
        for px_scores, py_scores in zip(px, py, strict=True)
    ]
    with torch.no_grad():
        offset = log_sums - functools.reduce(torch.add, rows)
    rows[0] = rows[0] + offset
    return torch.stack(rows)


def full_boundary(like: Tensor, symbols: int, frames: int) -> Tensor:
    """Returns the boundaries of a batch without padding, for the batch and the device of a tensor."""
    row = torch.tensor([0, 0, symbols, frames], dtype=torch.int64, device=like.device)
    return row.expand(like.shape[0], 4)


def _expectation(posteriors: Tensor, scores: Tensor) -> Tensor:
    """Returns ``sum(posteriors * scores)`` of each utterance; scores of posterior 0 may be -inf or NaN."""
    return (posteriors * scores.masked_fill(posteriors == 0, 0.0)).sum(dim=(1, 2))


@torch.library.custom_op(
    "panda_rnnt::lattice_recursion",
    mutates_args=(),
    schema="(Tensor px, Tensor py, Tensor boundary, bool needs_posteriors) -> (Tensor, Tensor, Tensor)",
)
def _lattice_recursion(
    px: Tensor, py: Tensor, boundary: Tensor, needs_posteriors: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the log-sums, and their derivatives or empty tensors."""
    log_sums, posteriors = _native.lattice_recursion(
        _array(px), _array(py), _array(boundary), needs_posteriors
    )
    px_posteriors, py_posteriors = (
        [from_dlpack(array) for array in posteriors]
        if needs_posteriors
        else [px.new_empty(0), py.new_empty(0)]
    )
    return from_dlpack(log_sums).to(px.dtype), px_posteriors, py_posteriors


@_lattice_recursion.register_fake
def _(px: Tensor, py: Tensor, boundary: Tensor, needs_posteriors: bool) -> tuple[Tensor, Tensor, Tensor]:
    _check_same_device(px, py, boundary)
    shapes = (px.shape, py.shape) if needs_posteriors else ((0,), (0,))
    return px.new_empty(px.shape[0]), px.new_empty(shapes[0]), py.new_empty(shapes[1])


def _save_posteriors(
    ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: tuple[Tensor, ...]
) -> None:
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.has_posteriors = inputs[3]  # type: ignore[attr-defined]
    ctx.save_for_backward(*output[1:], *inputs[:2])  # type: ignore[arg-type]


def _scale_posteriors(
    ctx: torch.autograd.function.FunctionCtx, d_log_sums: Tensor | None, *_: None
) -> tuple[Tensor | None, ...]:
    if d_log_sums is None:
        return (None,) * 4
    if not ctx.has_posteriors:  # type: ignore[attr-defined]
        raise RuntimeError("lattice_recursion: a gradient needs needs_posteriors=True")
    px_posteriors, py_posteriors, px, py = ctx.saved_tensors  # type: ignore[attr-defined]
    scale = d_log_sums.reshape(-1, 1, 1)
    gradients: list[Tensor | None] = [px_posteriors * scale, py_posteriors * scale]
    return (*_without_second_derivative([px, py], gradients), None, None)


_lattice_recursion.register_autograd(_scale_posteriors, setup_context=_save_posteriors)
