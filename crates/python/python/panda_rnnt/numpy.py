"""Losses for NumPy; gradients are results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from panda_rnnt import _native
from panda_rnnt._options import LossOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    FloatArray = NDArray[np.floating[Any]]
    IntArray = NDArray[np.integer[Any]]

__all__ = ["JointGradients", "JointLoss", "ScoreLoss", "rnnt_loss", "transducer_loss"]


class JointGradients(NamedTuple):
    """Gradients of the weighted sum of losses, each shaped like its argument."""

    encoded: FloatArray
    predicted: FloatArray | None
    weight: FloatArray
    bias: FloatArray


class JointLoss(NamedTuple):
    """Losses ``[B]`` of a joint network, and the gradients of their weighted sum."""

    losses: FloatArray
    gradients: JointGradients | None


class ScoreLoss(NamedTuple):
    """Losses ``[B]`` of scores, and the gradient of their weighted sum."""

    losses: FloatArray
    gradient: FloatArray | None


def transducer_loss(
    encoded: FloatArray,
    predicted: FloatArray | None,
    weight: FloatArray,
    bias: FloatArray | None,
    targets: IntArray,
    logit_lengths: IntArray,
    target_lengths: IntArray,
    *,
    weights: FloatArray | None = None,
    options: LossOptions | None = None,
) -> JointLoss:
    """Computes losses of a joint network and its head, without an array of scores.

    Args:
        encoded: Projected encoder output ``[B, T, H]``; for CTC the hidden rows.
        predicted: Projected predictor output ``[B, U+1, H]``; None for CTC.
        weight: Weight of the last layer ``[C, H]``; for TDT the rows of the durations follow.
        bias: Bias of the last layer ``[C]``.
        targets: Labels ``[B, U]``, padded with any number.
        logit_lengths: Frames of each utterance ``[B]``.
        target_lengths: Labels of each utterance ``[B]``.
        weights: Weights of the utterances ``[B]`` in the sum; without them no gradients.
        options: Options of the loss.

    Returns:
        Losses (float64; +inf without a path) and gradients in the type of the arguments.

    Raises:
        ValueError: Shapes, lengths or labels that do not match; scores that are NaN.
        TypeError: Arrays of another type.
    """
    dtype = _result_type(encoded=encoded, predicted=predicted, weight=weight, bias=bias)
    rows = [_floats(array, dtype) for array in (encoded, predicted, weight, bias)]
    indices = _indices(targets, logit_lengths, target_lengths)
    rest = (*indices, _weights(weights))
    text = (options or LossOptions()).to_json()
    if predicted is None:
        losses, gradients = _native.hidden_loss(rows[0], rows[2], rows[3], *rest, text)
    else:
        losses, gradients = _native.joint_loss(rows[0], rows[1], rows[2], rows[3], *rest, text)
    arrays = [np.asarray(gradient) for gradient in gradients]
    if not arrays:
        return JointLoss(np.asarray(losses), None)
    if predicted is None:
        return JointLoss(np.asarray(losses), JointGradients(arrays[0], None, arrays[1], arrays[2]))
    return JointLoss(np.asarray(losses), JointGradients(*arrays))


def rnnt_loss(
    logits: FloatArray,
    targets: IntArray,
    logit_lengths: IntArray,
    target_lengths: IntArray,
    *,
    weights: FloatArray | None = None,
    options: LossOptions | None = None,
) -> ScoreLoss:
    """Computes losses of scores (logits).

    Args:
        logits: Scores ``[B, T, U+1, C]``; for TDT the scores of the durations follow; CTC ``[B, T, C]``.
        targets: Labels ``[B, U]``, padded with any number.
        logit_lengths: Frames of each utterance ``[B]``.
        target_lengths: Labels of each utterance ``[B]``.
        weights: Weights of the utterances ``[B]`` in the sum; without them no gradient.
        options: Options of the loss.

    Returns:
        Losses (float64; +inf without a path) and the gradient in the type of the scores.

    Raises:
        ValueError: Shapes, lengths or labels that do not match; scores that are NaN.
        TypeError: Arrays of another type.
    """
    scores = _floats(logits, _result_type(logits=logits))
    indices = _indices(targets, logit_lengths, target_lengths)
    rest = (*indices, _weights(weights))
    losses, gradients = _native.score_loss(scores, *rest, (options or LossOptions()).to_json())
    gradient = np.asarray(gradients[0]) if gradients else None
    return ScoreLoss(np.asarray(losses), gradient)


def _result_type(**arrays: FloatArray | None) -> np.dtype[Any]:
    """Returns float64 if any array has it, float32 otherwise."""
    types = [_check_floats(name, array) for name, array in arrays.items() if array is not None]
    return np.dtype(np.float64 if np.float64 in types else np.float32)


def _check_floats(name: str, array: FloatArray) -> np.dtype[Any]:
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name}: expected an array without a mask")
    dtype = np.asarray(array).dtype
    if dtype not in (np.float16, np.float32, np.float64):
        raise TypeError(f"{name}: expected floating-point numbers of at most 64 bits, found {dtype}")
    return dtype


def _floats(array: FloatArray | None, dtype: np.dtype[Any]) -> FloatArray | None:
    return None if array is None else np.require(array, dtype, ["C", "A"])


def _indices(
    targets: IntArray, logit_lengths: IntArray, target_lengths: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    return (
        _integers("targets", targets),
        _integers("logit_lengths", logit_lengths),
        _integers("target_lengths", target_lengths),
    )


def _integers(name: str, array: IntArray) -> IntArray:
    dtype = np.asarray(array).dtype
    if not np.issubdtype(dtype, np.integer) or dtype == np.uint64:
        raise TypeError(f"{name}: expected integers of at most 63 bits, found {dtype}")
    return np.require(array, np.int64, ["C", "A"])


def _weights(weights: FloatArray | None) -> FloatArray | None:
    if weights is None:
        return None
    _check_floats("weights", weights)
    return np.require(weights, np.float64, ["C", "A"])
