"""Losses, alignments and posteriors for NumPy; gradients are results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from panda_rnnt import _native
from panda_rnnt._options import LossOptions
from panda_rnnt._results import Alignment, Posteriors, SkippedSites, split_posteriors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    FloatArray = NDArray[np.floating[Any]]
    IntArray = NDArray[np.integer[Any]]
    AnyArray = NDArray[Any]

__all__ = [
    "Alignment",
    "JointGradients",
    "JointLoss",
    "Posteriors",
    "PrunedLoss",
    "ScoreLoss",
    "SimpleJoiner",
    "SkippedSites",
    "align",
    "align_scores",
    "posteriors",
    "pruned_loss",
    "rnnt_loss",
    "score_posteriors",
    "skipped_sites",
    "transducer_loss",
]


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


class SimpleJoiner(NamedTuple):
    """The simple joiner of a pruned loss, or its gradients.

    Args:
        encoded: Scores of the frames ``[B, T, C]``; with weights encoder rows ``[B, T, E]``.
        predicted: Scores of the positions ``[B, U+1, C]``; with weights predictor rows ``[B, U+1, P]``.
        encoded_weight: Weight of the encoder's layer ``[C, E]``.
        encoded_bias: Bias of the encoder's layer ``[C]``.
        predicted_weight: Weight of the predictor's layer ``[C, P]``.
        predicted_bias: Bias of the predictor's layer ``[C]``.
    """

    encoded: FloatArray
    predicted: FloatArray
    encoded_weight: FloatArray | None = None
    encoded_bias: FloatArray | None = None
    predicted_weight: FloatArray | None = None
    predicted_bias: FloatArray | None = None


class PrunedLoss(NamedTuple):
    """Losses of a pruned transducer, and the gradients of their weighted sum.

    Args:
        losses: ``simple_loss_scale * simple + pruned_loss_scale * pruned`` ``[B]``.
        simple_losses: Losses of the simple joiner ``[B]``.
        pruned_losses: Losses of the joint network over the kept sites ``[B]``.
        bands: First label position that each frame keeps, and the last one + 1 ``[B, T, 2]``; 0 in
            padding.
        gradients: Gradients of the joint network.
        simple_gradients: Gradients of the simple joiner.
    """

    losses: FloatArray
    simple_losses: FloatArray
    pruned_losses: FloatArray
    bands: IntArray
    gradients: JointGradients | None
    simple_gradients: SimpleJoiner | None


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
    token_weights: FloatArray | None = None,
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
        token_weights: Factor of the gradient of each label's log-probability ``[B, U]``; the loss
            does not change.
        options: Options of the loss; for ``pruned``, call :func:`pruned_loss`.

    Returns:
        Losses (float64; +inf without a path) and gradients in the type of the arguments.

    Raises:
        ValueError: Shapes, lengths or labels that do not match; scores that are NaN.
        TypeError: Arrays of another type.
    """
    inputs = {"encoded": encoded, "predicted": predicted, "weight": weight, "bias": bias}
    indices = _indices(targets, logit_lengths, target_lengths)
    losses, gradients, _, _ = _loss(inputs, indices, weights, token_weights, options)
    return JointLoss(losses, _joint_gradients(gradients))


def rnnt_loss(
    logits: FloatArray,
    targets: IntArray,
    logit_lengths: IntArray,
    target_lengths: IntArray,
    *,
    weights: FloatArray | None = None,
    token_weights: FloatArray | None = None,
    options: LossOptions | None = None,
) -> ScoreLoss:
    """Computes losses of scores (logits).

    Args:
        logits: Scores ``[B, T, U+1, C]``; for TDT the scores of the durations follow; CTC ``[B, T, C]``.
        targets: Labels ``[B, U]``, padded with any number.
        logit_lengths: Frames of each utterance ``[B]``.
        target_lengths: Labels of each utterance ``[B]``.
        weights: Weights of the utterances ``[B]`` in the sum; without them no gradient.
        token_weights: Factor of the gradient of each label's log-probability ``[B, U]``.
        options: Options of the loss.

    Returns:
        Losses (float64; +inf without a path) and the gradient in the type of the scores.

    Raises:
        ValueError: Shapes, lengths or labels that do not match; scores that are NaN.
        TypeError: Arrays of another type.
    """
    indices = _indices(targets, logit_lengths, target_lengths)
    losses, gradients, _, _ = _loss({"logits": logits}, indices, weights, token_weights, options)
    return ScoreLoss(losses, gradients.get("logits"))


def pruned_loss(
    encoded: FloatArray,
    predicted: FloatArray,
    weight: FloatArray,
    bias: FloatArray | None,
    targets: IntArray,
    logit_lengths: IntArray,
    target_lengths: IntArray,
    *,
    simple: SimpleJoiner,
    weights: FloatArray | None = None,
    token_weights: FloatArray | None = None,
    options: LossOptions,
) -> PrunedLoss:
    """Computes losses of a pruned transducer; ``options.loss`` is ``pruned``.

    The posteriors of the simple joiner select ``prune_range`` label positions of each frame; the
    joint network is evaluated at these sites only. The arguments are those of
    :func:`transducer_loss`, and the simple joiner.

    Raises:
        ValueError, TypeError: As :func:`transducer_loss`.
    """
    inputs = {"encoded": encoded, "predicted": predicted, "weight": weight, "bias": bias}
    simple_inputs = {f"simple_{name}": array for name, array in simple._asdict().items()}
    indices = _indices(targets, logit_lengths, target_lengths)
    losses, gradients, parts, _ = _loss({**inputs, **simple_inputs}, indices, weights, token_weights, options)
    return PrunedLoss(
        losses,
        parts["simple_losses"],
        parts["pruned_losses"],
        parts["bands"],
        _joint_gradients(gradients),
        _simple_gradients(gradients),
    )


def align(
    encoded: FloatArray,
    predicted: FloatArray | None,
    weight: FloatArray,
    bias: FloatArray | None,
    targets: IntArray,
    logit_lengths: IntArray,
    target_lengths: IntArray,
    *,
    options: LossOptions | None = None,
) -> Alignment[AnyArray]:
    """Aligns labels with frames by the best paths.

    Loss, blank, durations, activation, precision and budget are those of the options; their
    regularizers are ignored. Arguments and errors are those of :func:`transducer_loss`.
    """
    inputs = {"encoded": encoded, "predicted": predicted, "weight": weight, "bias": bias}
    return _align(inputs, _indices(targets, logit_lengths, target_lengths), options)


def align_scores(
    logits: FloatArray,
    targets: IntArray,
    logit_lengths: IntArray,
    target_lengths: IntArray,
    *,
    options: LossOptions | None = None,
) -> Alignment[AnyArray]:
    """Aligns labels with frames by scores (logits); see :func:`align` and :func:`rnnt_loss`."""
    return _align({"logits": logits}, _indices(targets, logit_lengths, target_lengths), options)


def posteriors(
    encoded: FloatArray,
    predicted: FloatArray | None,
    weight: FloatArray,
    bias: FloatArray | None,
    targets: IntArray,
    logit_lengths: IntArray,
    target_lengths: IntArray,
    *,
    options: LossOptions | None = None,
) -> Posteriors[AnyArray]:
    """Computes the posteriors of blank and labels at each site; arguments as :func:`align`."""
    inputs = {"encoded": encoded, "predicted": predicted, "weight": weight, "bias": bias}
    return _posteriors(inputs, _indices(targets, logit_lengths, target_lengths), options)


def score_posteriors(
    logits: FloatArray,
    targets: IntArray,
    logit_lengths: IntArray,
    target_lengths: IntArray,
    *,
    options: LossOptions | None = None,
) -> Posteriors[AnyArray]:
    """Computes posteriors of scores (logits); see :func:`posteriors` and :func:`rnnt_loss`."""
    return _posteriors({"logits": logits}, _indices(targets, logit_lengths, target_lengths), options)


def skipped_sites(
    encoded: FloatArray,
    predicted: FloatArray,
    weight: FloatArray,
    bias: FloatArray | None,
    targets: IntArray,
    logit_lengths: IntArray,
    target_lengths: IntArray,
    *,
    weights: FloatArray,
    options: LossOptions,
) -> SkippedSites:
    """Bounds the error that ``options.skip`` causes in the gradients of :func:`transducer_loss`."""
    inputs = {"encoded": encoded, "predicted": predicted, "weight": weight, "bias": bias}
    return _loss(inputs, _indices(targets, logit_lengths, target_lengths), weights, None, options)[3]


def _loss(
    inputs: Mapping[str, FloatArray | None],
    indices: dict[str, IntArray],
    weights: FloatArray | None,
    token_weights: FloatArray | None,
    options: LossOptions | None,
) -> tuple[AnyArray, dict[str, AnyArray], dict[str, AnyArray], SkippedSites]:
    """Returns losses, gradients, outputs of the first pass, and skipped sites."""
    factors = {
        "weights": _weights("weights", weights),
        "token_weights": _weights("token_weights", token_weights),
    }
    arguments = {**_floats(inputs), **indices, **factors}
    losses, gradients, parts, skipped = _native.loss(arguments, (options or LossOptions()).to_json())
    return np.asarray(losses), _named(gradients), _named(parts), SkippedSites(*skipped)


def _align(
    inputs: Mapping[str, FloatArray | None], indices: dict[str, IntArray], options: LossOptions | None
) -> Alignment[AnyArray]:
    arrays = _native.align({**_floats(inputs), **indices}, (options or LossOptions()).to_json())
    return Alignment(**_named(arrays))


def _posteriors(
    inputs: Mapping[str, FloatArray | None], indices: dict[str, IntArray], options: LossOptions | None
) -> Posteriors[AnyArray]:
    options = options or LossOptions()
    arrays = _named(_native.posteriors({**_floats(inputs), **indices}, options.to_json()))
    return split_posteriors(arrays["posteriors"], arrays["losses"], options)


def _named(arrays: dict[str, _native.Array]) -> dict[str, AnyArray]:
    return {name: np.asarray(array) for name, array in arrays.items()}


def _joint_gradients(gradients: dict[str, AnyArray]) -> JointGradients | None:
    if not gradients:
        return None
    predicted = gradients.get("predicted")
    return JointGradients(gradients["encoded"], predicted, gradients["weight"], gradients["bias"])


def _simple_gradients(gradients: dict[str, AnyArray]) -> SimpleJoiner | None:
    if not gradients:
        return None
    return SimpleJoiner(**{name: gradients.get(f"simple_{name}") for name in SimpleJoiner._fields})  # type: ignore[arg-type]


def _result_type(arrays: Mapping[str, FloatArray | None]) -> np.dtype[Any]:
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


def _floats(inputs: Mapping[str, FloatArray | None]) -> dict[str, FloatArray]:
    """Returns the present inputs, of one type."""
    dtype = _result_type(inputs)
    present = {name: array for name, array in inputs.items() if array is not None}
    return {name: np.require(array, dtype, ["C", "A"]) for name, array in present.items()}


def _indices(targets: IntArray, logit_lengths: IntArray, target_lengths: IntArray) -> dict[str, IntArray]:
    indices = {"targets": targets, "logit_lengths": logit_lengths, "target_lengths": target_lengths}
    return {name: _integers(name, array) for name, array in indices.items()}


def _integers(name: str, array: IntArray) -> IntArray:
    dtype = np.asarray(array).dtype
    if not np.issubdtype(dtype, np.integer) or dtype == np.uint64:
        raise TypeError(f"{name}: expected integers of at most 63 bits, found {dtype}")
    return np.require(array, np.int64, ["C", "A"])


def _weights(name: str, weights: FloatArray | None) -> FloatArray | None:
    if weights is None:
        return None
    _check_floats(name, weights)
    return np.require(weights, np.float64, ["C", "A"])
