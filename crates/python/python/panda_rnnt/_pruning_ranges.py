"""Pruning: the symbol positions of each frame that a pruned transducer loss keeps.

Kuang et al. 2022, arXiv 2206.13236, section 3.2.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor


def get_rnnt_prune_ranges(px_grad: Tensor, py_grad: Tensor, boundary: Tensor, s_range: int) -> Tensor:
    """Selects the symbol positions of each frame that have the most probability.

    The first position of a frame is ::

        argmax over s of sum(py_grad[b, s : s + s_range, t]) - px_grad[b, s - 1, t]

    and in the last frame the one with which the range ends at the end symbol. The positions are then
    lowered where needed, so that they start at 0, do not decrease, and leave out no symbol.

    Args:
        px_grad: Posteriors of px, ``[B, S, T+1]`` (regular) or ``[B, S, T]``, from ``return_grad=True``.
        py_grad: Posteriors of py, ``[B, S+1, T]``.
        boundary: Begin symbol, begin frame, end symbol and end frame ``[B, 4]``.
        s_range: Positions to keep, at least 2 for a regular lattice. A number that is too small for
            the symbols of an utterance is raised, with a warning.

    Returns:
        Positions ``[B, T, s_range]``, int64, at most S+1 for each frame.

    Raises:
        ValueError: Shapes that do not match; an ``s_range`` without a path; without frames; a boundary
            outside the lattice; NaN.
        TypeError: A boundary that is not int64.

    Cost: O(B S T s_range) additions.
    """
    symbols, frames, is_regular = _check_posteriors(px_grad, py_grad, boundary, s_range)
    if is_regular and len(boundary) > 0:
        # The least width w with (w - 1) T + 1 >= S + 1.
        end_symbols, end_frames = boundary[:, 2], boundary[:, 3]
        needed = int((end_symbols - 1).div(end_frames, rounding_mode="trunc").add(2).max())
        if s_range < needed:
            warnings.warn(
                f"s_range: raised from {s_range} to {needed}, which an utterance's symbols need", stacklevel=2
            )
            s_range = needed
    s_range = min(s_range, symbols + 1)
    starts = symbols + 2 - s_range
    kept = py_grad.unfold(1, s_range, 1).transpose(2, 3).sum(dim=2)
    before = torch.nn.functional.pad(px_grad, (0, 0, 1, 0))[:, :starts, :frames]
    return _ranges((kept - before).argmax(dim=1), boundary, s_range, is_regular)


def get_rnnt_prune_ranges_deprecated(
    px_grad: Tensor, py_grad: Tensor, boundary: Tensor, s_range: int
) -> Tensor:
    """Selects the positions of each frame with the most posteriors; an older rule of k2.

    The first position of a frame is ::

        argmax over s of sum(px_grad[b, s : s + s_range, t] + py_grad[b, s : s + s_range, t])

    Arguments, result and errors are those of :func:`get_rnnt_prune_ranges`; ``s_range`` is not raised.
    """
    symbols, frames, is_regular = _check_posteriors(px_grad, py_grad, boundary, s_range)
    s_range = min(s_range, symbols + 1)
    columns = px_grad.shape[2]
    totals = torch.nn.functional.pad(px_grad, (0, 0, 0, 1)) + torch.nn.functional.pad(
        py_grad, (0, columns - frames)
    )
    sums = torch.nn.functional.pad(totals, (0, 0, 1, 0)).cumsum(dim=1)
    kept = sums[:, s_range:] - sums[:, :-s_range]
    return _ranges(kept.argmax(dim=1)[:, :frames], boundary, s_range, is_regular)


def do_rnnt_pruning(am: Tensor, lm: Tensor, ranges: Tensor) -> tuple[Tensor, Tensor]:
    """Selects the rows of encoder and predictor that pruned logits need.

    Args:
        am: Encoder output ``[B, T, E]``.
        lm: Predictor output ``[B, S+1, P]``.
        ranges: Positions ``[B, T, s_range]`` of :func:`get_rnnt_prune_ranges`.

    Returns:
        ``am`` ``[B, T, s_range, E]``, a view, and the selected rows of ``lm`` ``[B, T, s_range, P]``.

    Raises:
        ValueError: Shapes that do not match; a position outside ``lm``.
        TypeError: Ranges that are not integers.
    """
    for name, tensor in (("am", am), ("lm", lm), ("ranges", ranges)):
        if tensor.dim() != 3:
            raise ValueError(f"{name}: expected 3 axes, found {tuple(tensor.shape)}")
    if ranges.is_floating_point() or ranges.is_complex() or ranges.dtype == torch.bool:
        raise TypeError(f"ranges: expected integers, found {ranges.dtype}")
    batch, frames, s_range = ranges.shape
    if am.shape[:2] != (batch, frames) or lm.shape[0] != batch:
        raise ValueError(
            f"ranges: expected batch and frames of am {tuple(am.shape)} and lm {tuple(lm.shape)}, found "
            f"{tuple(ranges.shape)}"
        )
    if not torch.compiler.is_compiling():
        is_outside = (ranges < 0) | (ranges >= lm.shape[1])
        if bool(is_outside.any()):
            position = int(ranges[is_outside][0])
            raise ValueError(f"ranges: expected positions from 0 to {lm.shape[1] - 1}, found {position}")
    index = ranges.reshape(batch, frames * s_range, 1).expand(-1, -1, lm.shape[2])
    selected = lm.gather(1, index.to(torch.int64)).reshape(batch, frames, s_range, lm.shape[2])
    return am.unsqueeze(2).expand(-1, -1, s_range, -1), selected


def monotonic_lower_bound(x: Tensor) -> Tensor:
    """Returns the largest nondecreasing sequence below ``x``, along the last axis.

    Example::

        monotonic_lower_bound(torch.tensor([0, 2, 1, 3, 6, 5, 8]))  # 0, 1, 1, 3, 5, 5, 8
    """
    return x.flip(-1).cummin(-1).values.flip(-1)


def _check_posteriors(
    px_grad: Tensor, py_grad: Tensor, boundary: Tensor, s_range: int
) -> tuple[int, int, bool]:
    """Returns S, T, and whether the lattice is regular."""
    for name, tensor in (("px_grad", px_grad), ("py_grad", py_grad)):
        if tensor.dim() != 3:
            raise ValueError(f"{name}: expected 3 axes, found {tuple(tensor.shape)}")
    batch, symbols, columns = px_grad.shape
    frames = py_grad.shape[2]
    if py_grad.shape[:2] != (batch, symbols + 1) or columns - frames not in (0, 1):
        expected, found = tuple(px_grad.shape), tuple(py_grad.shape)
        raise ValueError(f"py_grad: expected [B, S+1, T] for px_grad {expected}, found {found}")
    if tuple(boundary.shape) != (batch, 4):
        raise ValueError(f"boundary: expected shape ({batch}, 4), found {tuple(boundary.shape)}")
    is_regular = columns != frames
    needed = 2 if is_regular else 1
    if s_range < needed:
        raise ValueError(f"s_range: expected at least {needed}, since paths need it, found {s_range}")
    if batch > 0 and bool((boundary[:, 3] < (1 if is_regular else boundary[:, 2])).any()):
        least = "1" if is_regular else "the end symbol, since a symbol consumes a frame"
        raise ValueError(
            f"boundary: expected end frames of at least {least}, found {boundary[:, 3].tolist()}"
        )
    if boundary.dtype != torch.int64:
        raise TypeError(f"boundary: expected int64, found {boundary.dtype}")
    limits = boundary.new_tensor([symbols, frames])
    begins, ends = boundary[:, :2], boundary[:, 2:]
    is_valid = (begins >= 0) & (begins <= ends) & (ends <= limits)
    if not bool(is_valid.all()):
        row = int((~is_valid.all(dim=1)).nonzero()[0])
        raise ValueError(
            f"boundary[{row}]: expected begins from 0 to ends of at most {symbols} symbols and {frames} "
            f"frames, found {boundary[row].tolist()}"
        )
    for name, tensor in (("px_grad", px_grad), ("py_grad", py_grad)):
        if bool(tensor.isnan().any()):
            raise ValueError(f"{name}: expected posteriors, found NaN")
    return symbols, frames, is_regular


def _ranges(starts: Tensor, boundary: Tensor, s_range: int, is_regular: bool) -> Tensor:
    """Returns the positions from the preferred first position of each frame, ``[B, T]``."""
    index = torch.arange(starts.shape[1], device=starts.device)
    is_before_last = index < boundary[:, 3, None] - 1
    last_start = (boundary[:, 2, None] - s_range + 1).clamp(min=0)
    starts = monotonic_lower_bound(torch.where(is_before_last, starts, last_start))
    # A frame may be entered at any position that the previous one keeps: starts[t + 1] - starts[t]
    # is at most `step`, which means that `step * t - starts[t]` does not decrease.
    step = s_range - 1 if is_regular else 1
    limited = monotonic_lower_bound(step * index - starts).clamp(min=0)
    starts = step * index - limited
    return starts[:, :, None] + torch.arange(s_range, device=starts.device)
