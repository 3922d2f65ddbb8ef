"""Greedy and beam search of transducers: RNN-T, HAT, TDT and multi-blank models.

A model is given as two functions over whole batches, :class:`CallbackModel`, or as exported weights,
:class:`WeightModel`, which are decoded without Python. :func:`parakeet_model` exports those of a Parakeet
of transformers. :func:`greedy_search` takes the best class at each site (a frame after the labels so
far), :func:`beam_search` keeps several hypotheses and returns the n best.

Example::

    model = CallbackModel(predict, joint, classes=1025, blank=1024)
    for hypothesis in greedy_search(model, encoder, lengths):
        print(hypothesis.labels, hypothesis.frames)
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np

from panda_rnnt import _native
from panda_rnnt._callbacks import CallbackModel
from panda_rnnt._options import _finite, _integer
from panda_rnnt._rows import backend_of, is_tensor
from panda_rnnt._scorers import ClassScores, Ngram, Phrases, Scorer
from panda_rnnt._weights import WeightModel, parakeet_model

__all__ = [
    "BeamHypothesis",
    "CallbackModel",
    "ClassScores",
    "GreedyHypothesis",
    "Hypothesis",
    "Ngram",
    "Phrases",
    "Scorer",
    "WeightModel",
    "beam_search",
    "greedy_search",
    "parakeet_model",
]

BeamKind = Literal["modified", "alsd", "malsd", "maes"]
ConfidenceMeasure = Literal[
    "max_prob", "gibbs_lin", "gibbs_exp", "tsallis_lin", "tsallis_exp", "renyi_lin", "renyi_exp"
]
Fusion: TypeAlias = "Sequence[tuple[Scorer, float]]"
"""Scorers with the weights of their scores."""

AnyHypothesis = TypeVar("AnyHypothesis", bound="Hypothesis")

_MAX_WEIGHT = 1e6
_MAX_WIDTH = 10_000
_BEAM_KINDS = ("modified", "alsd", "malsd", "maes")
_CONFIDENCES = ("max_prob", "gibbs_lin", "gibbs_exp", "tsallis_lin", "tsallis_exp", "renyi_lin", "renyi_exp")


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """Labels of an utterance, with one entry per label in each tuple.

    Args:
        labels: Classes of the labels.
        frames: Encoder frame that emits each label.
        durations: Frames that each label advances; 0 for ``rnnt``, 1 for ``modified``.
        log_probs: Natural log-probability of each label among all classes.
        duration_log_probs: That of its duration among the durations; 0 without durations.
        fusion_scores: Weighted sum of the scorers of each label.
        log_prob: Greedy search: the sum of ``log_probs``. Beam search: that of all paths of the
            labels in the beam, blanks, durations and scorers included.
        score: Number that ranks hypotheses: ``log_prob``, in a beam normalized by length.
    """

    labels: tuple[int, ...]
    frames: tuple[int, ...]
    durations: tuple[int, ...]
    log_probs: tuple[float, ...]
    duration_log_probs: tuple[float, ...]
    fusion_scores: tuple[float, ...]
    log_prob: float
    score: float


@dataclasses.dataclass(frozen=True)
class GreedyHypothesis(Hypothesis):
    """Result of a greedy search.

    Args:
        confidences: Confidence of each label, from 0 to 1; 1 unless requested.
        end_frame: Frame at which the search ended: the number of frames, or more.
        is_capped: Whether the limit on the labels of an utterance ended the search.
    """

    confidences: tuple[float, ...]
    end_frame: int
    is_capped: bool


@dataclasses.dataclass(frozen=True)
class BeamHypothesis(Hypothesis):
    """One of the n best hypotheses of a beam search; log-probabilities include the temperature."""


def greedy_search(
    model: CallbackModel | WeightModel,
    encoder: Any,
    lengths: Any = None,
    *,
    max_symbols: int | None = 8,
    max_labels: int | None = None,
    look_ahead: int = 32,
    confidence: ConfidenceMeasure | None = None,
    confidence_exponent: float = 0.33,
    fusion: Fusion = (),
    internal_lm: float = 0.0,
) -> list[GreedyHypothesis]:
    """Decodes a batch by taking the best class at each site (label-looping, arXiv 2406.06220).

    The joint network is evaluated to the next label of each utterance, then the predictor once for all:
    ``1 + U`` steps for the largest number of labels U. Results do not depend on the batch.

    Args:
        model: The model.
        encoder: Encoder output ``[B, T, E]``, a tensor of torch or an array of NumPy. For a
            :class:`CallbackModel` it may have more axes.
        lengths: Frames of each utterance ``[B]``, 0 included; None: T. Other frames are not read.
        max_symbols: Most labels of a frame; None: unlimited.
        max_labels: Most labels of an utterance. None: unlimited, or 100 per frame without
            ``max_symbols``, so that the search ends.
        look_ahead: Most frames that are scored before the next label is known.
        confidence: Measure of the confidences (arXiv 2212.08703); without it they are 1.
        confidence_exponent: Exponent of the measure, above 0 and at most 10.
        fusion: Scorers with their weights. The model decides between blank and label, model and
            scorers together choose the label.
        internal_lm: Weight of the internal language model, which only a :class:`WeightModel` with
            ``loss="hat"`` has; its scores are subtracted.

    Returns:
        A hypothesis for each utterance.

    Raises:
        ValueError: Shapes, lengths or options that do not match; scores that are NaN or +inf.
        TypeError: Values of another type.

    Cost per utterance: scores of at most T + U sites, and of frames that look-ahead computes in addition.
    """
    options: dict[str, Any] = {
        "search": "greedy",
        "max_symbols": _optional_integer("max_symbols", max_symbols),
        "max_labels": _optional_integer("max_labels", max_labels),
        "look_ahead": _integer("look_ahead", look_ahead),
        "confidence": None,
        "internal_lm": _finite("internal_lm", internal_lm),
    }
    if confidence is not None:
        _check_name("confidence", confidence, _CONFIDENCES)
        exponent = _finite("confidence_exponent", confidence_exponent)
        if not 0.0 < exponent <= 10.0:
            raise ValueError(f"confidence_exponent: expected a number above 0, at most 10, found {exponent}")
        options["confidence"] = {"measure": confidence, "exponent": exponent}
    results = _search(model, encoder, lengths, fusion, options)
    return [_hypothesis(GreedyHypothesis, fields) for (fields,) in results]


def beam_search(
    model: CallbackModel | WeightModel,
    encoder: Any,
    lengths: Any = None,
    *,
    kind: BeamKind | None = None,
    width: int = 4,
    nbest: int = 1,
    normalize_by_length: bool = True,
    blank_penalty: float = 0.0,
    temperature: float = 1.0,
    fusion: Fusion = (),
    internal_lm: float = 0.0,
    end_scores: bool = True,
    max_symbols: int = 8,
    max_labels: int | None = None,
    expansions: int = 2,
    beta: int = 2,
    gamma: float | None = 2.3,
    prefix: int = 1,
) -> list[tuple[BeamHypothesis, ...]]:
    """Decodes a batch by beam search; returns the n best hypotheses of each utterance.

    The probability of a hypothesis is the sum over its paths in the beam. Results do not depend on the
    batch; ties go to the better hypothesis of the previous step, then to the lower class.

    ============  =====================================  ================  ===  ==========  ========
    ``kind``      search                                 labels per frame  TDT  big blanks  modified
    ============  =====================================  ================  ===  ==========  ========
    ``modified``  that of k2's recipes                   at most one       no   yes         yes
    ``alsd``      Saon et al., ICASSP 2020               any number        no   no          no
    ``malsd``     the same for any topology, as in NeMo  ``max_symbols``   yes  yes         yes
    ``maes``      Kim et al., arXiv 2010.14606           ``expansions``    no   no          no
    ============  =====================================  ================  ===  ==========  ========

    Args:
        model: The model.
        encoder: Encoder output ``[B, T, E]``, as for :func:`greedy_search`.
        lengths: Frames of each utterance ``[B]``; None: T.
        kind: Algorithm; None: ``malsd`` for ``loss="tdt"``, otherwise ``modified``.
        width: Hypotheses of an utterance that are kept.
        nbest: Most hypotheses of a result.
        normalize_by_length: Whether to rank by ``log_prob / (labels + context)``; the context is that of
            a stateless predictor for ``modified`` and ``maes``, otherwise 1.
        blank_penalty: Subtracted from the scores of blanks; above 0 it reduces deletions.
        temperature: Divides the scores of the classes, from 0.001 to 1000.
        fusion: Scorers with their weights, added to the log-probabilities of labels.
        internal_lm: Weight of the internal language model, as for :func:`greedy_search`.
        end_scores: Whether scorers score the end: ``</s>`` of an n-gram, an open phrase.
        max_symbols: Most labels of a frame (``malsd``).
        max_labels: Most labels of an utterance (``alsd``); None: 2 T.
        expansions: Most labels of a frame (``maes``).
        beta: Classes that are expanded in addition to ``width`` (``maes``).
        gamma: Largest distance of an expansion's log-probability from the best (``maes``); None: any.
        prefix: Largest difference in length for prefix search (``maes``).

    Returns:
        At most ``nbest`` hypotheses for each utterance, best first, with different labels; none if the
        scorers forbid all of them.

    Raises:
        ValueError: Shapes, lengths or options that do not match; a search that does not support the
            model; scores that are NaN or +inf.
        TypeError: Values of another type.

    Cost per utterance: scores of at most ``width`` sites for each frame or step, and a predictor step for
    each new label of a hypothesis.
    """
    if kind is None:
        kind = "malsd" if getattr(model, "loss", None) == "tdt" else "modified"
    _check_name("kind", kind, _BEAM_KINDS)
    options = {
        "search": "beam",
        "kind": kind,
        "width": _limited("width", width),
        "nbest": _integer("nbest", nbest),
        "normalize_by_length": _boolean("normalize_by_length", normalize_by_length),
        "blank_penalty": _finite("blank_penalty", blank_penalty),
        "temperature": _finite("temperature", temperature),
        "internal_lm": _finite("internal_lm", internal_lm),
        "end_scores": _boolean("end_scores", end_scores),
        "max_symbols": _integer("max_symbols", max_symbols),
        "max_labels": _optional_integer("max_labels", max_labels),
        "expansions": _limited("expansions", expansions),
        "beta": _integer("beta", beta),
        "gamma": None if gamma is None else _finite("gamma", gamma),
        "prefix": _integer("prefix", prefix),
    }
    results = _search(model, encoder, lengths, fusion, options)
    return [tuple(_hypothesis(BeamHypothesis, fields) for fields in nbest) for nbest in results]


def _limited(name: str, value: int) -> int:
    integer = _integer(name, value)
    if integer > _MAX_WIDTH:
        raise ValueError(f"{name}: expected numbers to {_MAX_WIDTH}, found {integer}")
    return integer


def _search(
    model: CallbackModel | WeightModel, encoder: Any, lengths: Any, fusion: Fusion, options: dict[str, Any]
) -> list[list[dict[str, Any]]]:
    if not isinstance(model, CallbackModel | WeightModel):
        raise TypeError(f"model: expected CallbackModel or WeightModel, found {type(model).__name__}")
    backend_of("encoder", encoder)
    if encoder.ndim < 3:
        raise ValueError(f"encoder: expected 3 axes, found {tuple(encoder.shape)}")
    batch, frames = (int(size) for size in encoder.shape[:2])
    counts = _lengths(lengths, batch, frames)
    scorers = _native_fusion(fusion, model.classes)
    if batch == 0:
        return []
    return model._search(encoder, counts, scorers, json.dumps(options))


def _lengths(lengths: Any, batch: int, frames: int) -> list[int]:
    if lengths is None:
        return [frames] * batch
    array = np.asarray(lengths.detach().cpu() if is_tensor(lengths) else lengths)
    if array.size == 0:
        array = array.astype(np.int64)
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"lengths: expected integers, found {array.dtype}")
    if array.shape != (batch,):
        raise ValueError(f"lengths: expected an array of shape ({batch},), found {array.shape}")
    for utterance, length in enumerate(array.tolist()):
        if not 0 <= length <= frames:
            raise ValueError(f"lengths[{utterance}]: expected a number from 0 to {frames}, found {length}")
    return [int(length) for length in array.tolist()]


def _native_fusion(fusion: Fusion, classes: int) -> list[tuple[_native.LabelScorer, float]]:
    pairs = []
    for index, pair in enumerate(fusion):
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], Scorer):
            raise TypeError(f"fusion[{index}]: expected a scorer and its weight, found {pair!r}")
        scorer, weight = pair
        if scorer.classes != classes:
            raise ValueError(
                f"fusion[{index}]: expected a scorer of {classes} classes, found {scorer.classes}"
            )
        weight = _finite(f"fusion[{index}]", weight)
        if abs(weight) > _MAX_WEIGHT:
            raise ValueError(f"fusion[{index}]: expected a weight from -1e6 to 1e6, found {weight}")
        pairs.append((scorer._scorer, weight))
    return pairs


def _hypothesis(kind: type[AnyHypothesis], fields: dict[str, Any]) -> AnyHypothesis:
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        value = fields[field.name]
        values[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


def _check_name(argument: str, found: str, names: Sequence[str]) -> None:
    if found not in names:
        raise ValueError(f"{argument}: expected one of {tuple(names)}, found {found!r}")


def _optional_integer(name: str, value: int | None) -> int | None:
    return None if value is None else _integer(name, value)


def _boolean(name: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}: expected True or False, found {value!r}")
    return value
