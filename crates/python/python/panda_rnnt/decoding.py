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
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np

from panda_rnnt import _native
from panda_rnnt._options import Activation, LossOptions, _finite, _integer
from panda_rnnt._rows import Backend, RowLayout, backend_of, is_tensor, scores_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

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

TransducerLossName = Literal["rnnt", "modified", "constrained", "hat", "tdt", "multi_blank"]
BeamKind = Literal["modified", "alsd", "malsd", "maes"]
ConfidenceMeasure = Literal[
    "max_prob", "gibbs_lin", "gibbs_exp", "tsallis_lin", "tsallis_exp", "renyi_lin", "renyi_exp"
]
Fusion: TypeAlias = "Sequence[tuple[Scorer, float]]"
"""Scorers with the weights of their scores."""

AnyHypothesis = TypeVar("AnyHypothesis", bound="Hypothesis")

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


@dataclasses.dataclass(frozen=True)
class CallbackModel:
    """A transducer given as functions over whole batches.

    Both functions get tensors of torch, on the device of the encoder output, or arrays of NumPy, as
    the encoder output is. They run in the calling thread; an exception ends the search and is raised.

    Args:
        predict: ``predict(labels, states) -> (outputs, states)``, a step of the predictor for n
            hypotheses. ``labels`` are int64 ``[n]``. Outputs and states are arrays with n rows, or
            tuples or lists of arrays; states may also be None. The first call of a search is
            ``predict([start], None)``: it creates the states. A row must not depend on other rows.
        joint: ``joint(encoder_rows, outputs) -> scores``: scores (logits) ``[n, C + D]`` of n sites,
            the D durations last, from encoder rows ``[n, E]`` and the predictor's outputs.
        classes: Number of classes C, with blanks and without durations.
        loss: Name of the loss of the model, which determines the frames that each class advances.
            With ``hat``, the scores are those before the factored blank.
        blank: Class of the blank.
        durations: Frames of each duration (``tdt``) or big blank (``multi_blank``).
        big_blanks: Classes of the big blanks, one for each of the durations.
        start: Label before the first one; the blank if None.
        state_axis: Axis of the rows in states: 1 for the states of ``torch.nn.LSTM``.

    Raises:
        ValueError: An unknown name, a number out of range.
        TypeError: A value of another type.

    Outputs and states are copied to the CPU between calls, bit by bit; scores become float32.

    Example::

        def predict(labels, states):
            outputs, states = lstm(embedding(labels)[:, None], states)
            return outputs[:, 0], states

        model = CallbackModel(predict, lambda x, g: head(torch.tanh(x + g)), classes=30, state_axis=1)
    """

    predict: Callable[[Any, Any], tuple[Any, Any]]
    joint: Callable[[Any, Any], Any]
    classes: int
    loss: TransducerLossName = "rnnt"
    blank: int = 0
    durations: Sequence[int] = ()
    big_blanks: Sequence[int] = ()
    start: int | None = None
    state_axis: int = 0

    def __post_init__(self) -> None:
        for name in ("predict", "joint"):
            if not callable(getattr(self, name)):
                raise TypeError(f"{name}: expected a function, found {getattr(self, name)!r}")
        for name in ("classes", "state_axis"):
            object.__setattr__(self, name, _integer(name, getattr(self, name)))
        object.__setattr__(self, "start", _start_label(self.start, self.blank))
        options = _transducer_options(self.loss, self.blank, self.durations, self.big_blanks)
        for name in ("blank", "durations", "big_blanks"):
            object.__setattr__(self, name, getattr(options, name))
        for found in (self.blank, *self.big_blanks):
            if found >= self.classes:
                raise ValueError(f"blank: expected a class from 0 to {self.classes - 1}, found {found}")

    def _columns(self) -> int:
        return self.classes + (len(self.durations) if self.loss == "tdt" else 0)

    def _search(self, encoder: Any, lengths: list[int], fusion: Any, options: str) -> list[list[Any]]:
        backend = backend_of("encoder", encoder)
        with backend.no_gradients():
            callbacks = _Callbacks(self, backend, encoder)
            start = callbacks.start()
            loss_options = _transducer_options(self.loss, self.blank, self.durations, self.big_blanks)
            return _native.decode_callbacks(
                callbacks, start, self.classes, loss_options.to_json(), lengths, fusion, options
            )


class WeightModel:
    """A transducer of exported weights, which is decoded in float32 without Python.

    The joint network is ``head(act(encoder_projection(x) + predictor_projection(g)))``.

    ======================================  =====================  ==========================
    weights                                 shape
    ======================================  =====================  ==========================
    ``embedding.weight``                    ``[ids, I]``           with a row for ``start``
    ``lstm.weight_ih_l0``                   ``[4P, I]``            the names of
    ``lstm.weight_hh_l0``                   ``[4P, P]``            ``torch.nn.LSTM``;
    ``lstm.bias_ih_l0``, ``bias_hh_l0``     ``[4P]``               layers l1, l2, .. follow
    ``conv.weight``                         ``[P, I/groups, ctx]`` instead of an LSTM: a
    ``conv.bias``                           ``[P]``                stateless predictor
    ``encoder_projection.weight``           ``[H, E]``             absent: E = H
    ``predictor_projection.weight``         ``[H, P]``             absent: P = H
    ``head.weight``                         ``[C + D, H]``         durations last
    ======================================  =====================  ==========================

    Projections and head may have a ``bias``; biases are 0 where absent. C: classes; D: durations; E, P, H:
    widths of the rows of encoder, predictor and joint network; I: width of an embedding.

    Args:
        weights: Arrays or tensors by name.
        loss: Name of the loss of the model, which determines the frames that each class advances.
        blank: Class of the blank.
        durations: Frames of each duration (``tdt``) or big blank (``multi_blank``).
        big_blanks: Classes of the big blanks, one for each of the durations.
        activation: Activation of the joint network.
        predictor_activation: That of a stateless predictor.
        start: Label before the first one; the blank if None. A stateless predictor has zeros before.

    Raises:
        ValueError: Missing or unknown names, shapes that do not match, numbers that are not finite.
        TypeError: Arrays of another type.

    Cost: the weights are copied; a table of the first LSTM layer takes ``16 ids P`` bytes, unless
    these are more than 256 MiB.
    """

    def __init__(
        self,
        weights: Mapping[str, Any],
        *,
        loss: TransducerLossName = "rnnt",
        blank: int = 0,
        durations: Sequence[int] = (),
        big_blanks: Sequence[int] = (),
        activation: Activation = "tanh",
        predictor_activation: Activation = "relu",
        start: int | None = None,
    ) -> None:
        options = _transducer_options(loss, blank, durations, big_blanks, activation)
        arrays = _weight_arrays(weights)
        arrays["start"] = _start_label(start, blank)
        arrays["predictor_activation"] = predictor_activation
        self.loss = loss
        self._model = _native.WeightModel(arrays, options.to_json())

    @property
    def classes(self) -> int:
        """Number of classes, blanks included."""
        return self._model.classes

    def _search(self, encoder: Any, lengths: list[int], fusion: Any, options: str) -> list[list[Any]]:
        rows = backend_of("encoder", encoder).floats("encoder", encoder)
        return _native.decode_weights(self._model, rows, lengths, fusion, options)


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

    All utterances advance to their next label, then one predictor step advances those that have one:
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

    Cost per utterance: scores of at most T + U sites, and those that look-ahead computes needlessly.
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
        "width": _integer("width", width),
        "nbest": _integer("nbest", nbest),
        "normalize_by_length": _boolean("normalize_by_length", normalize_by_length),
        "blank_penalty": _finite("blank_penalty", blank_penalty),
        "temperature": _finite("temperature", temperature),
        "internal_lm": _finite("internal_lm", internal_lm),
        "end_scores": _boolean("end_scores", end_scores),
        "max_symbols": _integer("max_symbols", max_symbols),
        "max_labels": _optional_integer("max_labels", max_labels),
        "expansions": _integer("expansions", expansions),
        "beta": _integer("beta", beta),
        "gamma": None if gamma is None else _finite("gamma", gamma),
        "prefix": _integer("prefix", prefix),
    }
    results = _search(model, encoder, lengths, fusion, options)
    return [tuple(_hypothesis(BeamHypothesis, fields) for fields in nbest) for nbest in results]


class Scorer:
    """A score of label sequences, for the argument ``fusion`` of a search; see its subclasses."""

    def __init__(self, scorer: _native.LabelScorer, classes: int) -> None:
        self._scorer = scorer
        self.classes = classes


class Ngram(Scorer):
    """A back-off n-gram of an ARPA file.

    Args:
        path: The file.
        names: Name of each class, as in the file; empty for blanks. A space is ``<space>`` there.
        words: Whether the n-gram is one of words that the classes spell: characters with a space, or
            pieces with the mark U+2581. A token within a word then has the score of the best word that
            continues it, and the sum over a word is that of the word.
        unknown_character: Score per character of a word that the n-gram does not list.

    A class that the file does not list has the probability of ``<unk>``, or 10^-100 without one.

    Raises:
        ValueError: A file of another form; no name is in it; names that are not unique.
        OSError: A file that cannot be read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        names: Sequence[str],
        *,
        words: bool = False,
        unknown_character: float = -2.0,
    ) -> None:
        penalty = _finite("unknown_character", unknown_character)
        names = _names(names)
        scorer = _native.LabelScorer.ngram(Path(path).read_bytes(), names, penalty if words else None)
        super().__init__(scorer, len(names))


class Phrases(Scorer):
    """Bonuses for phrases that are likely to occur.

    A phrase matches whole words. After k of its m labels, ``score (k/m)^2`` is added (with
    ``depth_scaling`` 1); the label that breaks the match subtracts it again. The sum over a text is, for
    each position, the score of the longest phrase that occurs there.

    Args:
        phrases: Labels of each phrase.
        names: Name of each class, which determines where words begin: characters with a space, pieces
            with the mark U+2581, or words; empty for blanks.
        scores: Score of each phrase, a natural logarithm, or one number for all.
        depth_scaling: Bonus of each later label of a phrase, relative to the first.

    Raises:
        ValueError: A phrase without labels, a class that is no label, a score that is not finite.
        TypeError: Values of another type.
    """

    def __init__(
        self,
        phrases: Sequence[Sequence[int]],
        names: Sequence[str],
        *,
        scores: float | Sequence[float] = 1.0,
        depth_scaling: float = 1.0,
    ) -> None:
        labels = [[_integer("phrases", label) for label in phrase] for phrase in phrases]
        values = [scores] * len(labels) if isinstance(scores, int | float) else list(scores)
        if len(values) != len(labels):
            raise ValueError(f"scores: expected {len(labels)} numbers, one per phrase, found {len(values)}")
        pairs = [(phrase, _finite("scores", score)) for phrase, score in zip(labels, values, strict=True)]
        names, scaling = _names(names), _finite("depth_scaling", depth_scaling)
        super().__init__(_native.LabelScorer.phrases(pairs, names, scaling), len(names))


class ClassScores(Scorer):
    """A constant score of each class, such as a bonus for labels that begin a word.

    Args:
        scores: Score of each class, a natural logarithm.

    Raises:
        ValueError: A score that is not finite.
        TypeError: Values of another type.
    """

    def __init__(self, scores: Sequence[float]) -> None:
        values = [_finite("scores", score) for score in scores]
        super().__init__(_native.LabelScorer.class_scores(values), len(values))


def parakeet_model(model: Any) -> WeightModel:
    """Exports decoder and joint network of a Parakeet of transformers, fused or not.

    ``get_audio_features`` of the model computes the encoder output, which is projected already::

        features = model.get_audio_features(**inputs, output_attention_mask=True)
        lengths = features.attention_mask.sum(-1)
        hypotheses = greedy_search(parakeet_model(model), features.pooler_output, lengths)

    With ``max_symbols=model.config.max_symbols_per_step`` for ``ParakeetForRNNT``, and ``max_symbols=None``
    for ``ParakeetForTDT``, the labels are those of ``generate``.

    Args:
        model: A ``ParakeetForRNNT`` or ``ParakeetForTDT``; later changes of its weights have no effect.

    Raises:
        TypeError: Another model.
        ValueError: Adapters that are not merged (``merge_and_unload`` of peft merges them); an
            activation that is not ReLU or tanh.
    """
    config, decoder, joint = (getattr(model, name, None) for name in ("config", "decoder", "joint"))
    parts = [getattr(decoder, name, None) for name in ("embedding", "lstm", "decoder_projector")]
    parts.append(getattr(joint, "head", None))
    if config is None or any(part is None for part in parts):
        found = type(model).__name__
        raise TypeError(f"model: expected ParakeetForRNNT or ParakeetForTDT, found {found}")
    weights: dict[str, Any] = {}
    names = ("embedding", "lstm", "predictor_projection", "head")
    for name, part in zip(names, parts, strict=True):
        if hasattr(part, "get_base_layer"):
            raise ValueError("model: expected merged adapters, found adapters; call merge_and_unload()")
        weights.update({f"{name}.{key}": value for key, value in part.state_dict().items()})
    durations = getattr(config, "durations", ())
    return WeightModel(
        weights,
        loss="tdt" if durations else "rnnt",
        blank=config.blank_token_id,
        durations=durations,
        activation=_parakeet_activation(config.hidden_act),
    )


def _parakeet_activation(name: str) -> Activation:
    if name == "relu" or name == "tanh":
        return name
    raise ValueError(f"model.config.hidden_act: expected 'relu' or 'tanh', found {name!r}")


class _Callbacks:
    """Calls the functions of a model for the native search."""

    def __init__(self, model: CallbackModel, backend: Backend, encoder: Any) -> None:
        self._model, self._backend, self._encoder = model, backend, encoder
        start = model.start if model.start is not None else model.blank
        labels = backend.integers(np.array([start], np.int64), encoder)
        outputs, states = self._predict(labels, None)
        self._outputs = RowLayout("outputs", outputs, 0, backend)
        self._states = RowLayout("states", states, model.state_axis, backend)
        if self._outputs.words == 0:
            raise ValueError("predict: expected outputs with at least one number per row, found none")
        self._start = (self._outputs.pack(outputs, 1)[0], self._states.pack(states, 1)[0])

    def start(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return self._start

    def predict(
        self, labels: _native.Array, states: _native.Array
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        indices = np.asarray(labels)
        outputs, new_states = self._predict(
            self._backend.integers(indices, self._encoder), self._states.unpack(np.asarray(states))
        )
        count = len(indices)
        return self._outputs.pack(outputs, count), self._states.pack(new_states, count)

    def _predict(self, labels: Any, states: Any) -> tuple[Any, Any]:
        result: Any = self._model.predict(labels, states)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TypeError(f"predict: expected outputs and states, found {type(result).__name__}")
        return result[0], result[1]

    def score(
        self, utterances: _native.Array, frames: _native.Array, outputs: _native.Array
    ) -> Any:
        backend, encoder = self._backend, self._encoder
        rows = encoder[
            backend.integers(np.asarray(utterances), encoder), backend.integers(np.asarray(frames), encoder)
        ]
        scores = self._model.joint(rows, self._outputs.unpack(np.asarray(outputs)))
        return scores_of(backend, "joint", scores, (len(rows), self._model._columns()))


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
            raise ValueError(f"fusion[{index}]: expected a scorer of {classes} classes, found {scorer.classes}")
        pairs.append((scorer._scorer, _finite(f"fusion[{index}]", weight)))
    return pairs


def _hypothesis(kind: type[AnyHypothesis], fields: dict[str, Any]) -> AnyHypothesis:
    values = {field.name: fields[field.name] for field in dataclasses.fields(kind)}
    return kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})


def _transducer_options(
    loss: str,
    blank: int,
    durations: Sequence[int],
    big_blanks: Sequence[int],
    activation: Activation = "tanh",
) -> LossOptions:
    """Returns checked options of the loss that a model was trained with."""
    if loss == "ctc":
        raise ValueError("loss: expected that of a transducer, found 'ctc'")
    name: Any = loss
    return LossOptions(
        loss=name, blank=blank, durations=durations, big_blanks=big_blanks, activation=activation
    )


def _start_label(start: int | None, blank: int) -> int:
    return _integer("start", blank if start is None else start)


def _weight_arrays(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arrays that the native model takes, in float32."""
    arrays = {str(name): _weight(str(name), array) for name, array in weights.items()}

    def take(name: str, axes: int) -> NDArray[np.float32] | None:
        array = arrays.pop(name, None)
        if array is not None and array.ndim != axes:
            raise ValueError(f"{name}: expected {axes} axes, found {array.shape}")
        return array

    def take_required(name: str, axes: int) -> NDArray[np.float32]:
        array = take(name, axes)
        if array is None:
            raise ValueError(f"weights: expected {name!r}, found {sorted(weights)}")
        return array

    embedding = take_required("embedding.weight", 2)
    layers: list[tuple[Any, Any, Any]] = []
    while f"lstm.weight_ih_l{len(layers)}" in arrays:
        index = len(layers)
        inputs = take_required(f"lstm.weight_ih_l{index}", 2)
        recurrent = take_required(f"lstm.weight_hh_l{index}", 2)
        bias = np.zeros(len(inputs), np.float32)
        for name in (f"lstm.bias_ih_l{index}", f"lstm.bias_hh_l{index}"):
            part = take(name, 1)
            if part is not None and part.shape != bias.shape:
                raise ValueError(f"{name}: expected shape {bias.shape}, found {part.shape}")
            bias = bias if part is None else bias + part
        layers.append((inputs, recurrent, bias))
    convolution = None
    if not layers:
        kernel = take_required("conv.weight", 3)
        bias = take("conv.bias", 1)
        dense = _dense_kernel(kernel, embedding.shape[1])
        convolution = (dense, np.zeros(len(kernel), np.float32) if bias is None else bias)
        output_width = len(kernel)
    else:
        output_width = layers[-1][1].shape[1]
    encoder_weight = take("encoder_projection.weight", 2)
    encoder_bias = take("encoder_projection.bias", 1)
    if encoder_weight is None and encoder_bias is not None:
        raise ValueError("weights: expected 'encoder_projection.weight' with its bias, found only the bias")
    label_weight = take("predictor_projection.weight", 2)
    if label_weight is None:
        label_weight = np.eye(output_width, dtype=np.float32)
    native = {
        "embedding": embedding,
        "layers": layers,
        "convolution": convolution,
        "encoder_projection": None if encoder_weight is None else (encoder_weight, encoder_bias),
        "predictor_projection": (label_weight, take("predictor_projection.bias", 1)),
        "head": (take_required("head.weight", 2), take("head.bias", 1)),
    }
    if arrays:
        raise ValueError(f"weights: expected the names of WeightModel, found also {sorted(arrays)}")
    return native


def _weight(name: str, array: Any) -> NDArray[np.float32]:
    values = np.asarray(backend_of(name, array).floats(name, array))
    if not np.isfinite(values).all():
        raise ValueError(f"{name}: expected finite numbers, found NaN or infinity")
    return values


def _dense_kernel(kernel: NDArray[np.float32], inputs: int) -> NDArray[np.float32]:
    """Returns the weight ``[P, context, I]`` of a grouped convolution ``[P, I/groups, context]``."""
    outputs, group_inputs, context = kernel.shape
    groups = inputs // max(group_inputs, 1)
    if group_inputs == 0 or groups * group_inputs != inputs or outputs % max(groups, 1):
        expected = f"[P, {inputs}/groups, context] with a divisor of P as groups"
        raise ValueError(f"conv.weight: expected shape {expected}, found {kernel.shape}")
    dense = np.zeros((outputs, context, inputs), np.float32)
    for group in range(groups):
        rows = slice(group * outputs // groups, (group + 1) * outputs // groups)
        columns = slice(group * group_inputs, (group + 1) * group_inputs)
        dense[rows, :, columns] = kernel[rows].transpose(0, 2, 1)
    return dense


def _names(names: Sequence[str]) -> list[str]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"names: expected a list of text, found {names!r}")
    return list(names)


def _check_name(argument: str, found: str, names: Sequence[str]) -> None:
    if found not in names:
        raise ValueError(f"{argument}: expected one of {tuple(names)}, found {found!r}")


def _optional_integer(name: str, value: int | None) -> int | None:
    return None if value is None else _integer(name, value)


def _boolean(name: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}: expected True or False, found {value!r}")
    return value
