"""Log-probabilities px and py of lattices from logits, or from sums of frame and symbol scores.

``px[b, s, t]`` is the log-probability of symbol s after s symbols and t frames, ``py[b, s, t]`` that
of the termination symbol, the blank. What lies outside the boundaries has no influence and the
gradient 0, also if it is NaN.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from panda_rnnt import _native
from panda_rnnt._lattice_recursion import Posteriors, full_boundary, lattice_recursion
from panda_rnnt.torch import (
    _array,
    _check_same_device,
    _common_device,
    _result_type,
    _without_second_derivative,
)

RnntType = Literal["regular", "modified", "constrained"]
"""Kind of a lattice.

``regular``: a symbol consumes no frame. ``modified``: it consumes one. ``constrained``: the same, and
the blank of that frame after the symbol is a factor of its probability.
"""
Reduction = Literal["none", "mean", "sum"]

CHUNK_ELEMENTS = 1 << 20
"""Scores that an exact log-sum-exp of single pairs computes at a time."""


def log_probs_of_logits(
    logits: Tensor,
    symbols: Tensor,
    ranges: Tensor | None,
    termination_symbol: int,
    boundary: Tensor | None,
    rnnt_type: str,
    *,
    has_factored_blank: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns px and py of logits ``[B, T, S+1, C]``, or ``[B, T, R, C]`` with ranges ``[B, T, R]``."""
    if logits.dim() != 4:
        raise ValueError(f"logits: expected 4 axes, found {tuple(logits.shape)}")
    if ranges is not None and ranges.dim() != 3:
        raise ValueError(f"ranges: expected 3 axes, found {tuple(ranges.shape)}")
    if ranges is None and (symbols.dim() != 2 or symbols.shape[1] != logits.shape[2] - 1):
        expected, found = tuple(logits.shape), tuple(symbols.shape)
        raise ValueError(
            f"symbols: expected one column less than positions of logits {expected}, found {found}"
        )
    logits = logits.to(_result_type({"logits": logits}))
    symbols, boundary = _check_symbols(
        {"logits": logits}, symbols, termination_symbol, boundary, rnnt_type, logits.shape[1]
    )
    tensors = {"logits": logits} if ranges is None else {"logits": logits, "ranges": ranges}
    _common_device(tensors, None)
    px, py = torch.ops.panda_rnnt.site_log_probs(
        logits.contiguous(), symbols, ranges, boundary, termination_symbol, has_factored_blank
    )
    return _finish(px, py, boundary, rnnt_type)


def log_probs_of_sums(
    lm: Tensor,
    am: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    boundary: Tensor | None,
    rnnt_type: str,
    lm_only_scale: float = 0.0,
    am_only_scale: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Returns px and py of ``am[t] + lm[s]``, smoothed by log-probabilities of only one of them."""
    for name, scores in (("lm", lm), ("am", am)):
        if scores.dim() != 3:
            raise ValueError(f"{name}: expected 3 axes, found {tuple(scores.shape)}")
    if lm.shape[0] != am.shape[0] or lm.shape[2] != am.shape[2]:
        expected, found = tuple(am.shape), tuple(lm.shape)
        raise ValueError(f"lm: expected batch and classes of am, {expected}, found {found}")
    if lm.shape[1] == 0 or symbols.dim() != 2 or symbols.shape[1] != lm.shape[1] - 1:
        shapes = tuple(lm.shape), tuple(symbols.shape)
        raise ValueError(f"symbols: expected one column less than positions of lm, found {shapes}")
    dtype = _result_type({"lm": lm, "am": am})
    lm, am = lm.to(dtype), am.to(dtype)
    symbols, boundary = _check_symbols(
        {"lm": lm, "am": am}, symbols, termination_symbol, boundary, rnnt_type, am.shape[1]
    )
    outside = _outside(lm.shape[1], boundary[:, 0], boundary[:, 2] + 1)
    used_am = am.masked_fill(_outside(am.shape[1], boundary[:, 1], boundary[:, 3])[..., None], 0.0)
    used_lm = lm.masked_fill(outside[..., None], 0.0)
    normalizers, _ = torch.ops.panda_rnnt.sum_normalizers(used_lm, used_am)
    am_symbols = used_am.transpose(1, 2).gather(1, symbols.unsqueeze(2).expand(-1, -1, am.shape[1]))
    am_blank = used_am[:, None, :, termination_symbol]
    px = am_symbols + _select_symbols(used_lm, symbols) - normalizers[:, :-1]
    py = am_blank + used_lm[:, :, termination_symbol, None] - normalizers
    if lm_only_scale != 0.0 or am_only_scale != 0.0:
        lm_log_probs, log_unigram = _label_model(lm, outside)
        am_normalizers = (used_am + log_unigram).logsumexp(-1).unsqueeze(1)
        terms = [
            (1.0 - lm_only_scale - am_only_scale, px, py),
            (
                lm_only_scale,
                _select_symbols(lm_log_probs, symbols),
                lm_log_probs[:, :, termination_symbol, None],
            ),
            (
                am_only_scale,
                am_symbols + log_unigram[symbols].unsqueeze(2) - am_normalizers,
                am_blank + log_unigram[termination_symbol] - am_normalizers,
            ),
        ]
        # Terms of weight 0 are left out: 0 * -inf is NaN.
        px, py = torch.zeros_like(px), torch.zeros_like(py)
        for scale, px_term, py_term in terms:
            if scale != 0.0:
                px, py = px + scale * px_term, py + scale * py_term
    return _finish(px, py, boundary, rnnt_type)


def transducer_loss(
    px: Tensor,
    py: Tensor,
    boundary: Tensor | None,
    delay_penalty: float,
    rnnt_type: str,
    reduction: str | None,
    needs_posteriors: bool = False,
) -> tuple[Tensor, Posteriors]:
    """Returns the loss of px and py, and their posteriors, which are empty unless needed."""
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"reduction: expected 'none', 'mean' or 'sum', found {reduction!r}")
    if not math.isfinite(delay_penalty):
        raise ValueError(f"delay_penalty: expected a finite number, found {delay_penalty!r}")
    if delay_penalty > 0.0:
        px = px + (_frames_to_middle(px, boundary, rnnt_type) * delay_penalty).to(px.dtype)
    log_sums, posteriors = lattice_recursion(px, py, boundary, needs_posteriors)
    losses = -log_sums
    if reduction == "none":
        return losses, posteriors
    return (losses.mean() if reduction == "mean" else losses.sum()), posteriors


def _frames_to_middle(px: Tensor, boundary: Tensor | None, rnnt_type: str) -> Tensor:
    """Returns ``(T - 1) / 2 - t`` for each frame t; T is the end frame.

    With boundaries the type is the default one, as in fast_rnnt, so that losses match in float64.
    """
    columns = px.shape[2]
    if boundary is None:
        frames = columns - 1 if rnnt_type == "regular" else columns
        middle = torch.full((1, 1, 1), (frames - 1) / 2, dtype=px.dtype, device=px.device)
    else:
        middle = ((boundary[:, 3] - 1) / 2).reshape(-1, 1, 1)
    return middle - torch.arange(columns, device=px.device)


def _finish(px: Tensor, py: Tensor, boundary: Tensor, rnnt_type: str) -> tuple[Tensor, Tensor]:
    """Converts px ``[B, S, T]`` to the kind of the lattice."""
    if rnnt_type == "constrained":
        return px + py[:, 1:], py
    if rnnt_type == "modified":
        return px, py
    # No symbol follows the last blank.
    px = torch.nn.functional.pad(px, (0, 1), value=-torch.inf)
    is_end = torch.arange(px.shape[2], device=px.device) == boundary[:, 3, None]
    return px.masked_fill(is_end[:, None], -torch.inf), py


def _check_symbols(
    scores: dict[str, Tensor],
    symbols: Tensor,
    termination_symbol: int,
    boundary: Tensor | None,
    rnnt_type: str,
    frames: int,
) -> tuple[Tensor, Tensor]:
    """Returns the symbols with 0 for padding, and the boundaries."""
    if rnnt_type not in ("regular", "modified", "constrained"):
        raise ValueError(f"rnnt_type: expected 'regular', 'modified' or 'constrained', found {rnnt_type!r}")
    classes = next(iter(scores.values())).shape[-1]
    if not 0 <= termination_symbol < classes:
        raise ValueError(
            f"termination_symbol: expected a class from 0 to below {classes}, found {termination_symbol}"
        )
    if symbols.dim() != 2:
        raise ValueError(f"symbols: expected 2 axes, found {tuple(symbols.shape)}")
    if boundary is None:
        boundary = full_boundary(symbols, symbols.shape[1], frames)
    _common_device({**scores, "symbols": symbols, "boundary": boundary}, None)
    symbols = torch.ops.panda_rnnt.check_symbols(symbols, boundary, frames, classes, rnnt_type != "regular")
    return symbols, boundary


def _outside(rows: int, begin: Tensor, end: Tensor) -> Tensor:
    """Returns which rows of each utterance are outside ``begin`` to below ``end``."""
    index = torch.arange(rows, device=begin.device)
    return (index < begin[:, None]) | (index >= end[:, None])


def _select_symbols(rows: Tensor, symbols: Tensor) -> Tensor:
    """Returns the score of the next symbol in each row but the last, ``[B, S, 1]``."""
    return rows[:, :-1].gather(2, symbols.unsqueeze(2))


def _label_model(lm: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities of lm, and the logarithm of their mean over all rows.

    Rows of padding count, as in fast_rnnt, unless they have no softmax.
    """
    excluded = outside & ~lm.detach().logsumexp(-1).isfinite()
    log_probs = lm.masked_fill(excluded[..., None], 0.0).log_softmax(-1)
    weights = (~excluded).to(lm.dtype)
    unigram = (log_probs.exp() * weights[..., None]).sum((0, 1)) / weights.sum()
    return log_probs, (unigram + torch.finfo(lm.dtype).tiny).log()


@torch.library.custom_op(
    "panda_rnnt::check_symbols",
    mutates_args=(),
    schema="(Tensor symbols, Tensor boundary, SymInt frames, SymInt classes, bool one_symbol_per_frame)"
    " -> Tensor",
)
def _check_symbols_op(
    symbols: Tensor, boundary: Tensor, frames: int, classes: int, one_symbol_per_frame: bool
) -> Tensor:
    return from_dlpack(
        _native.check_symbols(_array(symbols), _array(boundary), frames, classes, one_symbol_per_frame)
    )


@_check_symbols_op.register_fake
def _(symbols: Tensor, boundary: Tensor, frames: int, classes: int, one_symbol_per_frame: bool) -> Tensor:
    _check_same_device(symbols, boundary)
    return symbols.new_empty(symbols.shape, dtype=torch.int64)


# Log-probabilities of logits.

_SITES = "Tensor logits, Tensor symbols, Tensor? ranges, Tensor boundary, int blank, bool has_factored_blank"


@torch.library.custom_op(
    "panda_rnnt::site_log_probs", mutates_args=(), schema=f"({_SITES}) -> (Tensor, Tensor)"
)
def _site_log_probs(
    logits: Tensor,
    symbols: Tensor,
    ranges: Tensor | None,
    boundary: Tensor,
    blank: int,
    has_factored_blank: bool,
) -> tuple[Tensor, Tensor]:
    """Returns px and py, ``[B, S, T]`` and ``[B, S+1, T]``."""
    px, py = _native.site_log_probs(
        _array(logits), _array(symbols), _array(ranges), _array(boundary), blank, has_factored_blank
    )
    return from_dlpack(px), from_dlpack(py)


@_site_log_probs.register_fake
def _(
    logits: Tensor,
    symbols: Tensor,
    ranges: Tensor | None,
    boundary: Tensor,
    blank: int,
    has_factored_blank: bool,
) -> tuple[Tensor, Tensor]:
    _check_same_device(logits, symbols, ranges, boundary)
    (batch, frames), max_symbols = logits.shape[:2], symbols.shape[1]
    return (
        logits.new_empty(batch, max_symbols, frames),
        logits.new_empty(batch, max_symbols + 1, frames),
    )


@torch.library.custom_op(
    "panda_rnnt::site_log_probs_backward",
    mutates_args=(),
    schema=f"({_SITES}, Tensor d_px, Tensor d_py) -> Tensor",
)
def _site_log_probs_backward(
    logits: Tensor,
    symbols: Tensor,
    ranges: Tensor | None,
    boundary: Tensor,
    blank: int,
    has_factored_blank: bool,
    d_px: Tensor,
    d_py: Tensor,
) -> Tensor:
    """Returns the gradient of the logits; NaN if that of px or py is not finite."""
    is_finite = bool(d_px.isfinite().all() and d_py.isfinite().all())
    if not is_finite:
        d_px, d_py = torch.zeros_like(d_px), torch.zeros_like(d_py)
    arguments = (_array(logits), _array(symbols), _array(ranges), _array(boundary), blank, has_factored_blank)
    gradient = from_dlpack(_native.site_log_probs_gradient(*arguments, _array(d_px), _array(d_py)))
    return gradient if is_finite else gradient.fill_(torch.nan)


@_site_log_probs_backward.register_fake
def _(
    logits: Tensor,
    symbols: Tensor,
    ranges: Tensor | None,
    boundary: Tensor,
    blank: int,
    has_factored_blank: bool,
    d_px: Tensor,
    d_py: Tensor,
) -> Tensor:
    _check_same_device(logits, symbols, ranges, boundary, d_px, d_py)
    return torch.empty_like(logits)


def _save_site_arguments(
    ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: tuple[Tensor, Tensor]
) -> None:
    tensors = [argument for argument in inputs[:4] if isinstance(argument, Tensor)]
    ctx.save_for_backward(*tensors)
    ctx.has_ranges = inputs[2] is not None  # type: ignore[attr-defined]
    ctx.options = inputs[4:]  # type: ignore[attr-defined]


def _site_log_probs_gradient(
    ctx: torch.autograd.function.FunctionCtx, d_px: Tensor, d_py: Tensor
) -> tuple[Tensor | None, ...]:
    logits, symbols, *ranges, boundary = ctx.saved_tensors  # type: ignore[attr-defined]
    gradient = torch.ops.panda_rnnt.site_log_probs_backward(
        logits,
        symbols,
        ranges[0] if ctx.has_ranges else None,  # type: ignore[attr-defined]
        boundary,
        *ctx.options,  # type: ignore[attr-defined]
        d_px,
        d_py,
    )
    return (*_without_second_derivative([logits], [gradient]), None, None, None, None, None)


_site_log_probs.register_autograd(_site_log_probs_gradient, setup_context=_save_site_arguments)


# Normalizers of sums.


@torch.library.custom_op(
    "panda_rnnt::sum_normalizers", mutates_args=(), schema="(Tensor lm, Tensor am) -> (Tensor, Tensor)"
)
def _sum_normalizers(lm: Tensor, am: Tensor) -> tuple[Tensor, Tensor]:
    """Returns ``log(sum(exp(lm[b, s] + am[b, t])))``, ``[B, S+1, T]``, and the sums of the product.

    The sums are one product of exponentials, each relative to the maximum of its row. Pairs whose sum
    is so small that terms may have underflowed are computed one by one.
    """
    with torch.autocast(lm.device.type, enabled=False):
        (lm_probs, lm_max), (am_probs, am_max) = _exp_rows(lm), _exp_rows(am)
        sums = torch.matmul(lm_probs, am_probs.transpose(1, 2))
        normalizers = sums.log() + lm_max + am_max.transpose(1, 2)
        for b, s, t in _underflowed_pairs(sums, lm.shape[2]):
            normalizers[b, s, t] = (lm[b, s] + am[b, t]).logsumexp(-1)
    if not bool(normalizers.isfinite().all()):
        utterance, symbol, frame = (~normalizers.isfinite()).nonzero()[0].tolist()
        raise ValueError(
            f"lm[{utterance}, {symbol}] + am[{utterance}, {frame}]: expected scores that are finite or -inf, "
            "and a finite one, found NaN, +inf or only -inf"
        )
    return normalizers, sums


@_sum_normalizers.register_fake
def _(lm: Tensor, am: Tensor) -> tuple[Tensor, Tensor]:
    _check_same_device(lm, am)
    shape = (lm.shape[0], lm.shape[1], am.shape[1])
    return lm.new_empty(shape), lm.new_empty(shape)


@torch.library.custom_op(
    "panda_rnnt::sum_normalizers_backward",
    mutates_args=(),
    schema="(Tensor lm, Tensor am, Tensor normalizers, Tensor sums, Tensor d_normalizers)"
    " -> (Tensor, Tensor)",
)
def _sum_normalizers_backward(
    lm: Tensor, am: Tensor, normalizers: Tensor, sums: Tensor, d_normalizers: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of lm and am."""
    with torch.autocast(lm.device.type, enabled=False):
        lm_probs, am_probs = _exp_rows(lm)[0], _exp_rows(am)[0]
        pairs = _underflowed_pairs(sums, lm.shape[2])
        ratios = d_normalizers / sums
        for b, s, t in pairs:
            ratios[b, s, t] = 0.0
        d_lm = torch.matmul(ratios, am_probs).mul_(lm_probs)
        d_am = torch.matmul(ratios.transpose(1, 2), lm_probs).mul_(am_probs)
        for b, s, t in pairs:
            posteriors = (lm[b, s] + am[b, t] - normalizers[b, s, t, None]).exp()
            gradient = posteriors * d_normalizers[b, s, t, None]
            d_lm.index_put_((b, s), gradient, accumulate=True)
            d_am.index_put_((b, t), gradient, accumulate=True)
    return d_lm, d_am


@_sum_normalizers_backward.register_fake
def _(
    lm: Tensor, am: Tensor, normalizers: Tensor, sums: Tensor, d_normalizers: Tensor
) -> tuple[Tensor, Tensor]:
    _check_same_device(lm, am, normalizers, sums, d_normalizers)
    return lm.new_empty(lm.shape), am.new_empty(am.shape)


def _save_sums(
    ctx: torch.autograd.function.FunctionCtx,
    inputs: tuple[Tensor, Tensor],
    output: tuple[Tensor, Tensor],
) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs, *output)


def _sum_normalizers_gradient(
    ctx: torch.autograd.function.FunctionCtx, d_normalizers: Tensor, _: Tensor
) -> tuple[Tensor | None, ...]:
    lm, am, normalizers, sums = ctx.saved_tensors  # type: ignore[attr-defined]
    gradients = torch.ops.panda_rnnt.sum_normalizers_backward(lm, am, normalizers, sums, d_normalizers)
    return tuple(_without_second_derivative([lm, am], list(gradients)))


_sum_normalizers.register_autograd(_sum_normalizers_gradient, setup_context=_save_sums)


def _exp_rows(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Returns exponentials relative to the maximum of each row, and the maxima ``[B, rows, 1]``."""
    maxima = scores.amax(-1, keepdim=True)
    return (scores - maxima).exp(), maxima


def _underflowed_pairs(sums: Tensor, classes: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Returns the indices of sums that terms below the smallest number may change, in chunks."""
    limits = torch.finfo(sums.dtype)
    pairs = (sums < classes * limits.tiny / limits.eps).nonzero()
    if len(pairs) == 0:
        return []
    chunks = torch.split(pairs, max(1, CHUNK_ELEMENTS // classes))
    return [(chunk[:, 0], chunk[:, 1], chunk[:, 2]) for chunk in chunks]
