"""Recognition lattices for NumPy; gradients are results.

Parameters are arrays by the names that LAST gives them, such as ``weight_fn/project_frame/kernel``
(:func:`parameter_names` lists them), or ``{"table": ...}`` for weights that are computed elsewhere.
:mod:`panda_rnnt.lattice` describes lattices, and has them for PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from panda_rnnt import _native
from panda_rnnt._lattice import (
    PARAMETER_NAMES,
    Alignment,
    Context,
    FrameDependent,
    FrameLabelDependent,
    FullNGram,
    NextStateTable,
    Normalize,
    WeightKind,
    lattice_text,
)
from panda_rnnt.numpy import _floats, _integers, _weights

if TYPE_CHECKING:
    from panda_rnnt.numpy import FloatArray, IntArray

__all__ = [
    "BestPath",
    "FrameDependent",
    "FrameLabelDependent",
    "FullNGram",
    "LatticeLoss",
    "Marginals",
    "NextStateTable",
    "best_path",
    "lattice_loss",
    "marginals",
    "parameter_names",
]


class LatticeLoss(NamedTuple):
    """Losses ``[B]`` (float64), and the gradients of their weighted sum."""

    losses: FloatArray
    frames: FloatArray | None
    """Gradient of the frames ``[B, T, F]``."""
    parameters: dict[str, FloatArray]
    """Gradients of the parameters by name; empty without weights."""


class BestPath(NamedTuple):
    """The best path of each utterance; L is T times the largest number of labels of a frame."""

    labels: IntArray
    """Labels of the path ``[B, L]``, padded with 0."""
    frames: IntArray
    """Frame of each label ``[B, L]``, padded with -1."""
    num_labels: IntArray
    """Number of labels ``[B]``."""
    score: FloatArray
    """Weight of the path ``[B]`` (float64); -inf without a path."""


class Marginals(NamedTuple):
    """Posteriors of blanks ``[B, T, C]`` and labels ``[B, T, C, V]``; 0 in padding."""

    blank: FloatArray
    labels: FloatArray


def parameter_names(*, rnn: bool = False, normalize: Normalize | None = None) -> tuple[str, ...]:
    """Returns the names of the parameters of a joint network.

    Args:
        rnn: Whether context embeddings come from an LSTM; otherwise from a table.
        normalize: Local normalization of the weights; LAST's names then have one more level.
    """
    return tuple(_name(name, normalize) for name in PARAMETER_NAMES["joint_rnn" if rnn else "joint"])


def lattice_loss(
    context: Context,
    alignment: Alignment,
    parameters: Mapping[str, FloatArray],
    frames: FloatArray,
    num_frames: IntArray,
    labels: IntArray,
    num_labels: IntArray,
    *,
    weights: FloatArray | None = None,
    normalize: Normalize | None = None,
    budget: int | None = None,
) -> LatticeLoss:
    """Computes losses of a recognition lattice.

    Args:
        context: :class:`FullNGram` or :class:`NextStateTable`.
        alignment: :class:`FrameDependent` or :class:`FrameLabelDependent`.
        parameters: Arrays of the weight function by name.
        frames: Frames ``[B, T, F]``.
        num_frames: Number of frames of each utterance ``[B]``, 0 to T.
        labels: Labels ``[B, U]``, 1 to V, padded with any number.
        num_labels: Number of labels of each utterance ``[B]``.
        weights: Weights of the utterances ``[B]`` in the sum; without them no gradients.
        normalize: ``hat`` or ``log_softmax`` for locally normalized weights.
        budget: Limit on the bytes of a call besides arguments and results; 256 MiB if None.

    Returns:
        Losses (+inf, with a gradient of 0, without a path) and gradients in the type of the
        arguments.

    Raises:
        ValueError: Names, shapes, lengths or labels that do not match; numbers that are not finite.
        TypeError: Arrays of another type.
    """
    text, names, arrays, rest = _arguments(context, alignment, parameters, frames, normalize, budget)
    indices = (_integers("num_frames", num_frames), *_labels(labels, num_labels))
    losses, gradients = _native.lattice_loss(
        arrays[0], *indices, arrays[1:], rest, _weights("weights", weights), text, "ratio"
    )
    if not gradients:
        return LatticeLoss(np.asarray(losses), None, {})
    d_frames, *d_parameters = (np.asarray(gradient) for gradient in gradients)
    return LatticeLoss(np.asarray(losses), d_frames, dict(zip(names, d_parameters, strict=True)))


def best_path(
    context: Context,
    alignment: Alignment,
    parameters: Mapping[str, FloatArray],
    frames: FloatArray,
    num_frames: IntArray,
    labels: IntArray | None = None,
    num_labels: IntArray | None = None,
    *,
    normalize: Normalize | None = None,
    budget: int | None = None,
) -> BestPath:
    """Finds the best path of each utterance, or the best alignment of its labels.

    Arguments and errors are those of :func:`lattice_loss`; labels are optional.
    """
    text, _, arrays, rest = _arguments(context, alignment, parameters, frames, normalize, budget)
    indices = (_integers("num_frames", num_frames), *_labels(labels, num_labels))
    results = _native.lattice_best_paths(arrays[0], *indices, arrays[1:], rest, text)
    return BestPath(*(np.asarray(array) for array in results))


def marginals(
    context: Context,
    alignment: Alignment,
    parameters: Mapping[str, FloatArray],
    frames: FloatArray,
    num_frames: IntArray,
    *,
    normalize: Normalize | None = None,
    budget: int | None = None,
) -> Marginals:
    """Computes the posteriors of all arcs; arguments and errors are those of :func:`lattice_loss`."""
    text, _, arrays, rest = _arguments(context, alignment, parameters, frames, normalize, budget)
    num_frames = _integers("num_frames", num_frames)
    results = _native.lattice_marginals(arrays[0], num_frames, arrays[1:], rest, text)
    return Marginals(*(np.asarray(array) for array in results))


def _name(name: str, normalize: Normalize | None) -> str:
    is_inner = normalize is not None and name.startswith("weight_fn/")
    return f"weight_fn/{name}" if is_inner else name


def _arguments(
    context: Context,
    alignment: Alignment,
    parameters: Mapping[str, FloatArray],
    frames: FloatArray,
    normalize: Normalize | None,
    budget: int | None,
) -> tuple[str, list[str], list[FloatArray | None], IntArray | None]:
    """Returns the text of the lattice, names, frames with parameters, and next states."""
    kind: WeightKind = "joint"
    if "table" in parameters:
        kind = "table" if np.ndim(parameters["table"]) == 3 else "utterance_table"
    elif any(name.startswith("weight_fn_cacher/Embed_0/") for name in parameters):
        kind = "joint_rnn"
    text = lattice_text(context, alignment, kind, normalize, budget)
    names = [_name(name, normalize) for name in PARAMETER_NAMES[kind]]
    if set(names) != set(parameters):
        missing, unknown = sorted(set(names) - set(parameters)), sorted(set(parameters) - set(names))
        raise ValueError(f"parameters: expected {names}; missing {missing}, unknown {unknown}")
    floats = {"frames": frames, **{name: parameters[name] for name in names}}
    arrays: list[FloatArray | None] = list(_floats(floats).values())
    next_states = None
    if isinstance(context, NextStateTable):
        next_states = np.array(context.next_states, np.int64)
    return text, names, arrays, next_states


def _labels(labels: IntArray | None, num_labels: IntArray | None) -> tuple[IntArray | None, IntArray | None]:
    if labels is None or num_labels is None:
        if (labels is None) != (num_labels is None):
            missing, present = ("labels", "num_labels") if labels is None else ("num_labels", "labels")
            raise ValueError(f"{missing}: expected an array with {present}, found None")
        return None, None
    return _integers("labels", labels), _integers("num_labels", num_labels)
