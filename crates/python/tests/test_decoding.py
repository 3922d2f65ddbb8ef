"""Searches of panda_rnnt.decoding against enumeration in Python, on small random models."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
import pickle
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import panda_rnnt
import pytest
import torch
from panda_rnnt.decoding import (
    BeamHypothesis,
    CallbackModel,
    ClassScores,
    GreedyHypothesis,
    Hypothesis,
    Ngram,
    Phrases,
    WeightModel,
    beam_search,
    greedy_search,
)
from torch import Tensor, nn

CLASSES, ENCODER_WIDTH = 5, 3
BLANK = 1
NAMES = ["a", "", "b", "c", "d"]

LOSSES: list[dict[str, Any]] = [
    {"loss": "rnnt"},
    {"loss": "modified"},
    {"loss": "hat"},
    {"loss": "tdt", "durations": (0, 1, 2, 4)},
    {"loss": "tdt", "durations": (2, 1)},
    {"loss": "multi_blank", "durations": (2, 3), "big_blanks": (4, 0)},
]


@pytest.fixture(autouse=True)
def one_thread_of_torch() -> Iterator[None]:
    """Limits torch to one thread: the networks are tiny."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class LstmNetwork(nn.Module):
    """A transducer whose parameters have the names of WeightModel."""

    def __init__(self, seed: int, outputs: int = CLASSES, layers: int = 1) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(CLASSES, 4)
        self.lstm = nn.LSTM(4, 6, layers, batch_first=True)
        self.add_joint(outputs)

    def add_joint(self, outputs: int) -> None:
        self.encoder_projection = nn.Linear(ENCODER_WIDTH, 8)
        self.predictor_projection = nn.Linear(6, 8)
        self.head = nn.Linear(8, outputs)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.mul_(3.0)

    def predict(self, labels: Tensor, states: Any) -> tuple[Tensor, Any]:
        outputs, states = self.lstm(self.embedding(labels)[:, None], states)
        return outputs[:, 0], states

    def joint(self, rows: Tensor, outputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.encoder_projection(rows) + self.predictor_projection(outputs))
        scores: Tensor = self.head(hidden)
        return scores


class StatelessNetwork(LstmNetwork):
    """A transducer with a convolution over the last two labels."""

    def __init__(self, seed: int, outputs: int = CLASSES, groups: int = 2) -> None:
        nn.Module.__init__(self)
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(CLASSES, 4)
        self.conv = nn.Conv1d(4, 6, 2, groups=groups)
        self.add_joint(outputs)

    def predict(self, labels: Tensor, states: Any) -> tuple[Tensor, Any]:
        old = torch.full((len(labels), 2), -1) if states is None else states
        context = torch.stack([old[:, 1], labels], 1)
        embedded = self.embedding(context.clamp(min=0)) * (context >= 0)[..., None]
        return torch.relu(self.conv(embedded.transpose(1, 2))[:, :, 0]), context


def outputs_of(options: dict[str, Any]) -> int:
    return CLASSES + (len(options["durations"]) if options["loss"] == "tdt" else 0)


def callback_model(network: LstmNetwork, options: dict[str, Any]) -> CallbackModel:
    axis = 0 if isinstance(network, StatelessNetwork) else 1
    return CallbackModel(network.predict, network.joint, CLASSES, blank=BLANK, state_axis=axis, **options)


def weight_model(network: LstmNetwork, options: dict[str, Any]) -> WeightModel:
    return WeightModel(network.state_dict(), blank=BLANK, **options)


def random_encoder(seed: int, batch: int = 4, frames: int = 9) -> tuple[Tensor, Tensor]:
    """Returns encoder rows with NaN as padding, and lengths; one utterance is empty."""
    torch.manual_seed(1000 + seed)
    encoder = torch.randn(batch, frames, ENCODER_WIDTH)
    lengths = torch.randint(1, frames + 1, (batch,))
    lengths[0], lengths[-1] = frames, 0
    for utterance, length in enumerate(lengths):
        encoder[utterance, length:] = torch.nan
    return encoder, lengths


def log_probs_at(model: CallbackModel, row: Tensor, outputs: Any) -> tuple[list[float], list[float]]:
    """Returns the log-probabilities of classes and durations at a site."""
    with torch.no_grad():
        scores = model.joint(row[None], outputs)[0].double()
    tokens, durations = scores[: model.classes], scores[model.classes :]
    if model.loss == "hat":
        labels = tokens.clone()
        labels[model.blank] = -torch.inf
        blank = tokens[model.blank]
        tokens = nn.functional.logsigmoid(-blank) + labels.log_softmax(0)
        tokens[model.blank] = nn.functional.logsigmoid(blank)
    return tokens.log_softmax(0).tolist(), durations.log_softmax(0).tolist()


def blank_frames(model: CallbackModel, label: int, duration: int) -> int | None:
    """Returns the frames that a blank advances; None for a label."""
    if label in model.big_blanks:
        return model.durations[model.big_blanks.index(label)]
    if label != model.blank:
        return None
    return max(model.durations[duration], 1) if model.loss == "tdt" else 1


def label_frames(model: CallbackModel, duration: int) -> int:
    if model.loss == "tdt":
        return model.durations[duration]
    return int(model.loss in ("modified", "constrained"))


def step(model: CallbackModel, label: int, states: Any) -> tuple[Any, Any]:
    with torch.no_grad():
        return model.predict(torch.tensor([label]), states)


@dataclasses.dataclass
class Reference:
    """Labels of a greedy search with their frames, durations and log-probabilities."""

    labels: list[int] = dataclasses.field(default_factory=list)
    frames: list[int] = dataclasses.field(default_factory=list)
    durations: list[int] = dataclasses.field(default_factory=list)
    log_probs: list[float] = dataclasses.field(default_factory=list)
    duration_log_probs: list[float] = dataclasses.field(default_factory=list)
    end_frame: int = 0


def greedy_reference(
    model: CallbackModel,
    rows: Tensor,
    max_symbols: int | None,
    choose: Callable[[list[int], list[float]], int] | None = None,
) -> Reference:
    """Decodes one utterance frame by frame; `choose` replaces the best label."""
    result = Reference()
    outputs, states = step(model, model.blank, None)
    frame = symbols = 0
    while frame < len(rows):
        tokens, durations = log_probs_at(model, rows[frame], outputs)
        label = int(np.argmax(tokens))
        duration = int(np.argmax(durations)) if durations else 0
        advance = blank_frames(model, label, duration)
        if advance is None:
            if choose is not None:
                label = choose(result.labels, tokens)
            advance = label_frames(model, duration)
            result.labels.append(label)
            result.frames.append(frame)
            result.durations.append(advance)
            result.log_probs.append(tokens[label])
            result.duration_log_probs.append(durations[duration] if durations else 0.0)
            outputs, states = step(model, label, states)
            symbols += 1
            if advance == 0 and symbols == max_symbols:
                advance = 1
        if advance:
            frame, symbols = frame + advance, 0
    result.end_frame = frame
    return result


def assert_equals_reference(found: GreedyHypothesis, expected: Reference) -> None:
    assert list(found.labels) == expected.labels
    assert list(found.frames) == expected.frames
    assert list(found.durations) == expected.durations
    assert found.log_probs == pytest.approx(expected.log_probs, abs=1e-4)
    assert found.duration_log_probs == pytest.approx(expected.duration_log_probs, abs=1e-4)
    assert found.log_prob == found.score == pytest.approx(sum(expected.log_probs), abs=1e-3)
    assert found.end_frame == expected.end_frame and not found.is_capped
    assert found.confidences == (1.0,) * len(found.labels)


@pytest.mark.parametrize("options", LOSSES, ids=str)
@pytest.mark.parametrize("network_class", [LstmNetwork, StatelessNetwork])
@pytest.mark.parametrize("max_symbols", [1, 3])
def test_greedy_search_equals_frame_looping(
    options: dict[str, Any], network_class: Any, max_symbols: int
) -> None:
    labels = 0
    for seed in range(3):
        network = network_class(seed, outputs_of(options))
        model = callback_model(network, options)
        encoder, lengths = random_encoder(seed)
        expected = [
            greedy_reference(model, encoder[b, : lengths[b]], max_symbols) for b in range(len(lengths))
        ]
        for searched in (model, weight_model(network, options)):
            found = greedy_search(searched, encoder, lengths, max_symbols=max_symbols)
            for hypothesis, reference in zip(found, expected, strict=True):
                assert_equals_reference(hypothesis, reference)
        labels += sum(len(reference.labels) for reference in expected)
    assert labels > 10


def test_two_layers_and_ungrouped_convolutions() -> None:
    options = LOSSES[0]
    for network in (LstmNetwork(0, layers=2), StatelessNetwork(0, groups=1)):
        encoder, lengths = random_encoder(0)
        found = greedy_search(weight_model(network, options), encoder, lengths)
        model = callback_model(network, options)
        for b, hypothesis in enumerate(found):
            assert_equals_reference(hypothesis, greedy_reference(model, encoder[b, : lengths[b]], 8))


def test_unlimited_symbols_are_capped() -> None:
    network = LstmNetwork(0)
    with torch.no_grad():
        network.head.bias[BLANK] = -1000.0
    encoder, lengths = random_encoder(0, batch=2, frames=2)
    for model in (callback_model(network, LOSSES[0]), weight_model(network, LOSSES[0])):
        hypothesis = greedy_search(model, encoder, lengths, max_symbols=None)[0]
        assert len(hypothesis.labels) == 100 and hypothesis.is_capped and hypothesis.end_frame == 0
        assert len(greedy_search(model, encoder, lengths, max_labels=3)[0].labels) == 3


@pytest.mark.parametrize("options", LOSSES, ids=str)
def test_one_predictor_call_for_each_label_of_the_batch(options: dict[str, Any]) -> None:
    network = LstmNetwork(1, outputs_of(options))
    calls: dict[str, list[int]] = defaultdict(list)

    def predict(labels: Tensor, states: Any) -> tuple[Tensor, Any]:
        calls["predict"].append(len(labels))
        return network.predict(labels, states)

    def joint(rows: Tensor, outputs: Tensor) -> Tensor:
        calls["joint"].append(len(rows))
        return network.joint(rows, outputs)

    model = dataclasses.replace(callback_model(network, options), predict=predict, joint=joint)
    encoder, lengths = random_encoder(1, batch=6)
    found = greedy_search(model, encoder, lengths, look_ahead=1)
    counts = [len(hypothesis.labels) for hypothesis in found]
    # The start, then one call for the i-th labels of all utterances that have one.
    expected = [sum(count > i for count in counts) for i in range(max(counts))]
    assert calls["predict"] == [1, *expected] and max(counts) > 1
    # A blank costs no predictor call, and an utterance no call after its end.
    assert sum(calls["joint"]) <= int(lengths.sum()) + sum(counts)


def enumerate_labels(
    model: CallbackModel, rows: Tensor, kind: str, limit: int, bonus: Sequence[float] = (0.0,) * CLASSES
) -> dict[tuple[int, ...], float]:
    """Returns the log-probability of each label sequence, summed over all of its paths.

    `limit` is the largest number of labels of a frame (malsd) or of the utterance (alsd).
    """
    sums: dict[tuple[int, ...], float] = defaultdict(lambda: -math.inf)

    @functools.cache
    def state_after(labels: tuple[int, ...]) -> Any:
        if not labels:
            return step(model, model.blank, None)
        return step(model, labels[-1], state_after(labels[:-1])[1])

    @functools.cache
    def site(frame: int, labels: tuple[int, ...]) -> tuple[list[float], list[float]]:
        return log_probs_at(model, rows[frame], state_after(labels)[0])

    def walk(frame: int, symbols: int, labels: tuple[int, ...], total: float) -> None:
        if frame >= len(rows):
            sums[labels] = float(np.logaddexp(sums[labels], total))
            return
        tokens, durations = site(frame, labels)
        steps = []
        for label, token in enumerate(tokens):
            for duration in range(max(len(durations), 1)):
                value = token + (durations[duration] if durations else 0.0)
                if value > -math.inf:
                    steps.append((value, label, duration))
        is_full = symbols >= limit if kind == "malsd" else kind == "alsd" and len(labels) >= limit
        if is_full:
            blanks = [step for step in steps if blank_frames(model, *step[1:]) is not None]
            steps = [max(blanks)]
        for value, label, duration in steps:
            advance = blank_frames(model, label, duration)
            if advance is not None:
                walk(frame + advance, 0, labels, total + value)
                continue
            advance = 1 if kind == "modified" else label_frames(model, duration)
            new_symbols = 0 if advance else symbols + 1
            walk(frame + advance, new_symbols, (*labels, label), total + value + bonus[label])

    walk(0, 0, (), 0.0)
    return sums


def tiny_network(seed: int, options: dict[str, Any]) -> LstmNetwork:
    """A network with two labels, 2 and 3, besides the blanks; the others are almost impossible."""
    network = LstmNetwork(seed, outputs_of(options))
    blanks = (BLANK, *options.get("big_blanks", ()))
    with torch.no_grad():
        for label in set(range(CLASSES)) - {2, 3, *blanks}:
            network.head.weight[label] = 0.0
            network.head.bias[label] = -torch.inf
    return network


BEAMS = [
    (options, kind)
    for options in LOSSES
    for kind in ("modified", "alsd", "malsd", "maes")
    if kind == "malsd"
    or (kind == "modified" and options["loss"] != "tdt")
    or (options["loss"] in ("rnnt", "hat") and kind == "alsd")
]


@pytest.mark.parametrize(("options", "kind"), BEAMS, ids=str)
def test_wide_beams_sum_over_all_paths(options: dict[str, Any], kind: Any) -> None:
    for seed in range(2):
        network = tiny_network(seed, options)
        model = callback_model(network, options)
        encoder, _ = random_encoder(seed, batch=2, frames=3)
        lengths = [2, 1] if options["loss"] == "tdt" else [3, 2]
        encoder[1, :2] = torch.randn(2, ENCODER_WIDTH)
        limit = 2 if kind == "malsd" else 3
        arguments: dict[str, Any] = {"kind": kind, "width": 600, "nbest": 600, "normalize_by_length": False}
        arguments["max_labels" if kind == "alsd" else "max_symbols"] = limit
        bonus = [0.5, 0.0, -0.25, 0.75, 0.5]
        for fusion, scores in (((), [0.0] * CLASSES), (((ClassScores(bonus), 2.0),), [2 * b for b in bonus])):
            found = beam_search(model, encoder, lengths, fusion=fusion, **arguments)
            for b, hypotheses in enumerate(found):
                expected = enumerate_labels(model, encoder[b, : lengths[b]], kind, limit, scores)
                assert len(expected) > 2
                assert {h.labels: h.log_prob for h in hypotheses} == pytest.approx(expected, abs=1e-3)
                assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
                assert all(h.score == h.log_prob for h in hypotheses)


def is_tied(hypothesis: BeamHypothesis, nbest: Sequence[BeamHypothesis]) -> bool:
    """Returns whether rounding decides the place of a hypothesis."""
    return sum(abs(hypothesis.log_prob - other.log_prob) < 1e-3 for other in nbest) > 1


@pytest.mark.parametrize(("options", "kind"), [*BEAMS, (LOSSES[0], "maes"), (LOSSES[2], "maes")], ids=str)
@pytest.mark.parametrize("network_class", [LstmNetwork, StatelessNetwork])
def test_beams_of_weights_equal_those_of_functions(
    options: dict[str, Any], kind: Any, network_class: Any
) -> None:
    for seed in range(3):
        network = network_class(seed, outputs_of(options))
        encoder, lengths = random_encoder(seed)
        arguments: dict[str, Any] = {"kind": kind, "width": 3, "nbest": 3, "blank_penalty": 0.25}
        # Periodic labels on a frame would give ties, which rounding errors decide.
        arguments.update(temperature=1.5, normalize_by_length=False, max_symbols=2, max_labels=4)
        functions = beam_search(callback_model(network, options), encoder, lengths, **arguments)
        weights = beam_search(weight_model(network, options), encoder, lengths, **arguments)
        for expected, found in zip(functions, weights, strict=True):
            for a, b in zip(found, expected, strict=True):
                assert a.log_prob == pytest.approx(b.log_prob, abs=1e-3)
                if not is_tied(b, expected):
                    assert without_scores(a) == without_scores(b)
                    assert a.log_probs == pytest.approx(b.log_probs, abs=1e-3)
        assert functions[-1][0].labels == () and any(h.labels for nbest in functions for h in nbest)


def test_default_beam_and_length_normalization() -> None:
    for options, kind in ((LOSSES[0], "modified"), (LOSSES[3], "malsd")):
        network = LstmNetwork(3, outputs_of(options))
        encoder, lengths = random_encoder(3)
        for model in (callback_model(network, options), weight_model(network, options)):
            found = beam_search(model, encoder, lengths, nbest=2)
            assert found == beam_search(model, encoder, lengths, nbest=2, kind=kind)
            for hypothesis in found[0]:
                assert hypothesis.score == pytest.approx(hypothesis.log_prob / (len(hypothesis.labels) + 1))


def without_scores(hypothesis: Hypothesis) -> tuple[Any, ...]:
    return hypothesis.labels, hypothesis.frames, hypothesis.durations


@pytest.mark.parametrize("options", LOSSES, ids=str)
def test_results_do_not_depend_on_the_batch(options: dict[str, Any]) -> None:
    network = LstmNetwork(4, outputs_of(options))
    encoder, lengths = random_encoder(4, batch=5)
    weights, functions = weight_model(network, options), callback_model(network, options)
    greedy, beams = greedy_search(weights, encoder, lengths), beam_search(weights, encoder, lengths, nbest=3)
    for b, length in enumerate(lengths.tolist()):
        alone = encoder[b : b + 1, :length]
        assert greedy_search(weights, alone) == [greedy[b]]
        assert beam_search(weights, alone, nbest=3) == [beams[b]]
        assert without_scores(greedy_search(functions, alone)[0]) == without_scores(greedy[b])
        found = beam_search(functions, alone, nbest=3)[0]
        assert [without_scores(h) for h in found] == [without_scores(h) for h in beams[b]]
    for look_ahead in (1, 2, 100):
        assert greedy_search(weights, encoder, lengths, look_ahead=look_ahead) == greedy
    threads = panda_rnnt.num_threads()
    panda_rnnt.set_num_threads(1)
    assert greedy_search(weights, encoder, lengths) == greedy
    panda_rnnt.set_num_threads(threads)


class NumpyModel:
    """A predictor of NumPy whose states have several types; it checks that they arrive unchanged."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.table = random.normal(size=(CLASSES, CLASSES, 4)) * 2
        self.encoder_weight = random.normal(size=(ENCODER_WIDTH, 4))
        self.head = random.normal(size=(4, CLASSES)) * 2

    def predict(self, labels: np.ndarray, states: Any) -> tuple[Any, Any]:
        assert isinstance(labels, np.ndarray) and labels.dtype == np.int64
        if states is None:
            previous, sums, flags = labels, np.zeros((len(labels), 2)), np.zeros((len(labels), 1), bool)
        else:
            (previous, sums), [flags], nothing = states
            assert nothing is None and previous.dtype == np.int64 and flags.dtype == bool
            previous = previous - (1 << 40)
        outputs = self.table[previous, labels] + np.sin(sums[:, :1])
        new_sums = sums + np.stack([labels / 3.0, flags[:, 0] * 1e-12], 1)
        return outputs, ((labels + (1 << 40), new_sums), [~flags], None)

    def joint(self, rows: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        scores: np.ndarray = np.tanh(rows @ self.encoder_weight + outputs) @ self.head
        return scores

    def tensors(self) -> CallbackModel:
        """The same model over tensors."""

        def convert(value: Any, function: Callable[[Any], Any]) -> Any:
            if isinstance(value, tuple | list):
                return type(value)(convert(child, function) for child in value)
            return None if value is None else function(value)

        def predict(labels: Tensor, states: Any) -> tuple[Any, Any]:
            outputs, states = self.predict(labels.numpy(), convert(states, Tensor.numpy))
            return convert(outputs, torch.from_numpy), convert(states, torch.from_numpy)

        def joint(rows: Tensor, outputs: Tensor) -> Tensor:
            return torch.from_numpy(self.joint(rows.numpy(), outputs.numpy()))

        return CallbackModel(predict, joint, CLASSES, blank=BLANK)


def test_states_of_several_types_and_arrays_of_numpy() -> None:
    for seed in range(5):
        numpy_model = NumpyModel(seed)
        model = CallbackModel(numpy_model.predict, numpy_model.joint, CLASSES, blank=BLANK)
        tensors = numpy_model.tensors()
        encoder, lengths = random_encoder(seed)
        encoder = encoder.double()
        expected = [greedy_reference(tensors, encoder[b, : lengths[b]], 3) for b in range(len(lengths))]
        for found in (
            greedy_search(model, encoder.numpy(), lengths.numpy(), max_symbols=3),
            greedy_search(tensors, encoder, lengths.int(), max_symbols=3),
        ):
            for hypothesis, reference in zip(found, expected, strict=True):
                assert_equals_reference(hypothesis, reference)
        beams = beam_search(model, encoder.numpy(), lengths.tolist(), nbest=3)
        assert beam_search(tensors, encoder, lengths, nbest=3) == beams


def test_models_without_states_and_outputs_of_several_arrays() -> None:
    table = torch.randn(CLASSES, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.bfloat16)

    def predict(labels: Tensor, states: Any) -> tuple[Any, None]:
        assert states is None
        return [table[labels], (labels,)], None

    def joint(rows: Tensor, outputs: Any) -> Tensor:
        embedded, (labels,) = outputs
        assert embedded.dtype == torch.bfloat16 and torch.equal(embedded, table[labels])
        scores = torch.zeros(len(rows), CLASSES)
        scores[:, :3] = rows * embedded.float().sum(1)
        return scores

    model = CallbackModel(predict, joint, CLASSES, blank=BLANK)
    encoder, lengths = random_encoder(0)
    found = greedy_search(model, encoder, lengths, max_symbols=2)
    for b, hypothesis in enumerate(found):
        assert_equals_reference(hypothesis, greedy_reference(model, encoder[b, : lengths[b]], 2))
    assert beam_search(model, encoder, lengths)[0][0].labels


def test_encoder_types_and_projected_rows() -> None:
    network = LstmNetwork(5)
    encoder, lengths = random_encoder(5)
    model = weight_model(network, LOSSES[0])
    expected = greedy_search(model, encoder, lengths)
    read_only = encoder.numpy().copy()
    read_only.flags.writeable = False
    strided = torch.stack([encoder, encoder], -1)[..., 0].transpose(0, 1).contiguous().transpose(0, 1)
    gradient = encoder.clone().requires_grad_()
    for rows in (encoder.double(), encoder.numpy(), np.asfortranarray(encoder), read_only, strided, gradient):
        assert greedy_search(model, rows, lengths) == expected
    weights = {name: array.double().numpy() for name, array in network.state_dict().items()}
    assert greedy_search(WeightModel(weights, blank=BLANK), encoder, lengths) == expected
    del weights["encoder_projection.weight"], weights["encoder_projection.bias"]
    with torch.no_grad():
        projected = network.encoder_projection(encoder)
    found = greedy_search(WeightModel(weights, blank=BLANK), projected, lengths)
    assert [without_scores(h) for h in found] == [without_scores(h) for h in expected]
    # Without a projection of the predictor, its output has the joint width.
    label_bias = weights.pop("predictor_projection.bias")
    assert weights.pop("predictor_projection.weight").shape == (8, 6)
    narrow = {**weights, "head.weight": weights["head.weight"][:, :6]}
    rows = projected[..., :6] + torch.from_numpy(label_bias)[:6].float()
    identity = {**narrow, "predictor_projection.weight": np.eye(6)}
    found = greedy_search(WeightModel(narrow, blank=BLANK), rows, lengths)
    assert found == greedy_search(WeightModel(identity, blank=BLANK), rows, lengths)


def test_empty_batches_and_utterances() -> None:
    network = LstmNetwork(6)
    for model in (callback_model(network, LOSSES[0]), weight_model(network, LOSSES[0])):
        for encoder in (torch.zeros(2, 0, ENCODER_WIDTH), torch.full((2, 4, ENCODER_WIDTH), torch.nan)):
            (hypothesis, _) = greedy_search(model, encoder, torch.tensor([0, 0]))
            assert hypothesis == GreedyHypothesis((), (), (), (), (), (), 0.0, 0.0, (), 0, False)
            for kind in ("modified", "alsd", "malsd", "maes"):
                (nbest, _) = beam_search(model, encoder, [0, 0], kind=kind, nbest=3)
                assert nbest == (BeamHypothesis((), (), (), (), (), (), 0.0, 0.0),)
        assert greedy_search(model, torch.zeros(0, 5, ENCODER_WIDTH)) == []
        assert beam_search(model, np.zeros((0, 5, ENCODER_WIDTH)), np.zeros(0)) == []


def test_results_are_frozen_and_picklable() -> None:
    encoder, lengths = random_encoder(7)
    model = weight_model(LstmNetwork(7), LOSSES[3] | {"loss": "rnnt", "durations": ()})
    for hypothesis in (greedy_search(model, encoder, lengths)[0], beam_search(model, encoder, lengths)[0][0]):
        assert pickle.loads(pickle.dumps(hypothesis)) == hypothesis
        with pytest.raises(dataclasses.FrozenInstanceError):
            hypothesis.labels = ()  # type: ignore[misc]


@pytest.mark.parametrize("options", [LOSSES[0], LOSSES[3]], ids=str)
def test_confidences(options: dict[str, Any]) -> None:
    network = LstmNetwork(8, outputs_of(options))
    encoder, lengths = random_encoder(8)
    arguments: dict[str, Any] = {"confidence": "max_prob", "confidence_exponent": 1.0}
    for model in (callback_model(network, options), weight_model(network, options)):
        hypothesis = greedy_search(model, encoder, lengths, **arguments)[0]
        # (p v - 1) / (v - 1) for the largest probability p of v classes.
        expected = [(math.exp(p) * CLASSES - 1) / (CLASSES - 1) for p in hypothesis.log_probs]
        assert hypothesis.confidences == pytest.approx(expected, abs=1e-4) and expected
        default = greedy_search(model, encoder, lengths, confidence="tsallis_exp")[0].confidences
        assert all(0 <= c <= 1 for c in default) and default != hypothesis.confidences


ARPA = r"""\data\
ngram 1=6
ngram 2=3

\1-grams:
-1.0 <s> -0.3
-0.5 a -0.2
-0.9 b -0.1
-0.7 c
-1.2 </s>
-2.0 <unk>

\2-grams:
-0.1 <s> b
-0.2 a c
-0.3 b b

\end\
"""


def ngram_score(context: str, word: str) -> float:
    """Returns the natural log-probability of a word of `ARPA` after another one."""
    unigrams = {"a": -0.5, "b": -0.9, "c": -0.7, "d": -2.0, "</s>": -1.2}
    bigrams = {("<s>", "b"): -0.1, ("a", "c"): -0.2, ("b", "b"): -0.3}
    backoffs = {"<s>": -0.3, "a": -0.2, "b": -0.1}
    value = bigrams.get((context, word), backoffs.get(context, 0.0) + unigrams[word])
    return value * math.log(10.0)


def test_ngrams(tmp_path: Path) -> None:
    path = tmp_path / "model.arpa"
    path.write_text(ARPA)
    ngram, weight = Ngram(path, NAMES), 1.5

    def choose(labels: list[int], tokens: list[float]) -> int:
        context = NAMES[labels[-1]] if labels else "<s>"
        sums = [
            -math.inf if label == BLANK else tokens[label] + weight * ngram_score(context, NAMES[label])
            for label in range(CLASSES)
        ]
        return int(np.argmax(sums))

    changed = 0
    for seed in range(2):
        network = LstmNetwork(seed)
        model = callback_model(network, LOSSES[0])
        encoder, lengths = random_encoder(seed)
        for searched in (model, weight_model(network, LOSSES[0])):
            found = greedy_search(searched, encoder, lengths, fusion=[(ngram, weight)])
            plain = greedy_search(searched, encoder, lengths)
            changed += [h.labels for h in found] != [h.labels for h in plain]
            for b, hypothesis in enumerate(found):
                assert_equals_reference(
                    hypothesis, greedy_reference(model, encoder[b, : lengths[b]], 8, choose)
                )
                words = ["<s>", *(NAMES[label] for label in hypothesis.labels)]
                scores = [weight * ngram_score(*pair) for pair in itertools.pairwise(words)]
                assert hypothesis.fusion_scores == pytest.approx(scores, abs=1e-4)
        # In a wide beam, each sequence has the sum of its scores in addition.
        network = tiny_network(seed, LOSSES[0])
        model = callback_model(network, LOSSES[0])
        arguments: dict[str, Any] = {"kind": "malsd", "width": 500, "nbest": 500, "max_symbols": 2}
        plain_beam = beam_search(model, encoder[:1, :2], **arguments)[0]
        expected = {}
        for h in plain_beam:
            words = ["<s>", *(NAMES[label] for label in h.labels), "</s>"]
            added = sum(ngram_score(*pair) for pair in itertools.pairwise(words))
            expected[h.labels] = h.log_prob + 0.5 * added
        fused = beam_search(model, encoder[:1, :2], fusion=[(ngram, 0.5)], **arguments)[0]
        assert {h.labels: h.log_prob for h in fused} == pytest.approx(expected, abs=1e-3)
    assert changed > 0


def test_ngrams_of_words(tmp_path: Path) -> None:
    path = tmp_path / "words.arpa"
    path.write_text("\\data\\\nngram 1=2\n\n\\1-grams:\n-0.25 ab\n-0.5 </s>\n\\end\\\n")
    names = ["a", "", "b", " ", "c"]
    network = tiny_network(0, LOSSES[0])
    with torch.no_grad():
        network.head.bias[0] = 0.0
    encoder, _ = random_encoder(0)
    arguments: dict[str, Any] = {"kind": "malsd", "width": 500, "nbest": 500, "max_symbols": 2}
    model = callback_model(network, LOSSES[0])
    plain = {h.labels: h.log_prob for h in beam_search(model, encoder[:1, :2], **arguments)[0]}
    ngram = Ngram(path, names, words=True, unknown_character=-3.0)
    fused = {
        h.labels: h.log_prob
        for h in beam_search(model, encoder[:1, :2], fusion=[(ngram, 1.0)], **arguments)[0]
    }
    # The word "ab", then the end.
    assert fused[0, 2] - plain[0, 2] == pytest.approx(-0.75 * math.log(10.0), abs=1e-3)
    with pytest.raises(ValueError, match=r"names: .*U\+2581"):
        Ngram(path, NAMES, words=True)


def test_phrases() -> None:
    network = tiny_network(2, LOSSES[0])
    model = callback_model(network, LOSSES[0])
    encoder, _ = random_encoder(2)
    arguments: dict[str, Any] = {"kind": "malsd", "width": 500, "nbest": 500, "max_symbols": 2}
    plain = beam_search(model, encoder[:1, :2], **arguments)[0]
    phrases = Phrases([[2, 3], [3]], NAMES, scores=[4.0, 1.5])
    found = beam_search(model, encoder[:1, :2], fusion=[(phrases, 0.5)], **arguments)[0]
    expected = {}
    for h in plain:
        total = 0.0
        for i, label in enumerate(h.labels):
            if label == 2 and h.labels[i + 1 : i + 2] == (3,):
                total += 4.0
            total += 1.5 if label == 3 else 0.0
        expected[h.labels] = h.log_prob + 0.5 * total
    assert {h.labels: h.log_prob for h in found} == pytest.approx(expected, abs=1e-3)
    assert max(found, key=lambda h: h.log_prob).labels != max(plain, key=lambda h: h.log_prob).labels
    # One score for all phrases; greedy search adds the scores of the steps that match.
    boosted = Phrases([[2], [3]], NAMES, scores=2)
    for hypothesis in greedy_search(model, encoder[:1, :3], fusion=[(boosted, 0.5)]):
        assert hypothesis.fusion_scores == (1.0,) * len(hypothesis.labels) and hypothesis.labels


def test_internal_language_model_of_a_factored_blank() -> None:
    network = LstmNetwork(9)
    encoder, lengths = random_encoder(9)
    model = weight_model(network, {"loss": "hat"})
    found = greedy_search(model, encoder, lengths, internal_lm=0.5)
    assert any(h.fusion_scores and h.fusion_scores[0] > 0 for h in found)
    for other in (callback_model(network, {"loss": "hat"}), weight_model(network, LOSSES[0])):
        with pytest.raises(ValueError, match="internal_lm: expected 0"):
            greedy_search(other, encoder, lengths, internal_lm=0.5)


class CallbackError(Exception):
    """An exception with an argument that a conversion to text would lose."""


@pytest.mark.parametrize("search", [greedy_search, beam_search])
@pytest.mark.parametrize("failing_call", [0, 1, 3])
@pytest.mark.parametrize("name", ["predict", "joint"])
@pytest.mark.parametrize("kind", [CallbackError, KeyboardInterrupt])
def test_exceptions_of_functions_are_raised_unchanged(
    search: Any, failing_call: int, name: str, kind: type[BaseException]
) -> None:
    network = LstmNetwork(10)
    model = callback_model(network, LOSSES[0])
    encoder, lengths = random_encoder(10)
    expected = search(model, encoder, lengths)
    error, calls = kind(object()), 0

    def failing(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == failing_call + 1:
            raise error
        return getattr(network, name)(*arguments)

    failing_model = dataclasses.replace(model, **{name: failing})
    with pytest.raises(kind) as info:
        search(failing_model, encoder, lengths)
    assert info.value is error and calls == failing_call + 1
    assert search(failing_model, encoder, lengths) == expected


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["predict", "joint"])
def test_invalid_scores_are_errors(name: str, value: float) -> None:
    network = LstmNetwork(11)
    model = callback_model(network, LOSSES[0])
    encoder, lengths = random_encoder(11)

    def invalid(*arguments: Any) -> Any:
        result = getattr(network, name)(*arguments)
        if name == "joint":
            result[:, 3] = value
            return result
        return result[0] * torch.nan, result[1]

    for search in (greedy_search, beam_search):
        with pytest.raises(
            ValueError, match=r"utterance 0: score of class [03] at frame 0: .* found (NaN|inf)"
        ):
            search(dataclasses.replace(model, **{name: invalid}), encoder, lengths)
    encoder[1, 0] = torch.nan
    with pytest.raises(ValueError, match="utterance 1: score of class 0 at frame 0"):
        greedy_search(weight_model(network, LOSSES[0]), encoder, lengths)


def replaced(name: str, change: Callable[[Any], Any], first: int = 1) -> CallbackModel:
    """Returns a model one function of which changes its results, from a call on."""
    network = LstmNetwork(12)
    calls = 0

    def function(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        result = getattr(network, name)(*arguments)
        return change(result) if calls > first else result

    return dataclasses.replace(callback_model(network, LOSSES[0]), **{name: function})


@pytest.mark.parametrize(
    ("name", "change", "first", "error", "message"),
    [
        ("joint", lambda z: z[:, :4], 0, ValueError, r"joint: expected scores of shape \(\d+, 5\), found"),
        (
            "joint",
            lambda z: z[None],
            0,
            ValueError,
            r"expected scores of shape \(\d+, 5\), found \(1,",
        ),
        (
            "joint",
            lambda z: z.long(),
            0,
            TypeError,
            "joint: expected floating-point numbers, found torch.int64",
        ),
        (
            "joint",
            lambda z: z.numpy(),
            0,
            TypeError,
            "expected scores as an array of torch, found ndarray",
        ),
        (
            "joint",
            lambda z: None,
            0,
            TypeError,
            "expected scores as an array of torch, found NoneType",
        ),
        ("predict", lambda r: r[0], 0, TypeError, "predict: expected outputs and states, found Tensor"),
        ("predict", lambda r: (*r, 1), 0, TypeError, "predict: expected outputs and states, found tuple"),
        (
            "predict",
            lambda r: (None, r[1]),
            0,
            ValueError,
            "expected outputs with at least one number",
        ),
        ("predict", lambda r: (r[0], "x"), 0, TypeError, "states: expected arrays of torch in .* found str"),
        ("predict", lambda r: (r[0][0], r[1]), 0, ValueError, r"outputs\[0\]: expected 1 rows of shape \(\)"),
        (
            "predict",
            lambda r: (r[0], r[1][0][0, 0]),
            0,
            ValueError,
            "states: expected rows along axis 1",
        ),
        (
            "predict",
            lambda r: (r[0][:-1], r[1]),
            1,
            ValueError,
            r"outputs\[0\]: expected \d+ rows of",
        ),
        (
            "predict",
            lambda r: (r[0].double(), r[1]),
            1,
            ValueError,
            r"outputs\[0\]: .* found .*float64",
        ),
        ("predict", lambda r: (r[0], r[1][:1]), 1, TypeError, "states: expected .*'array', 'array'.* found"),
        ("predict", lambda r: (r[0], None), 1, TypeError, "states: expected .*, found None"),
        (
            "predict",
            lambda r: (r[0], (r[1][0], r[1][1][:, :1].expand(1, 9, 6))),
            1,
            ValueError,
            r"states\[1\]: ",
        ),
    ],
)
@pytest.mark.parametrize("search", [greedy_search, beam_search])
def test_bad_results_of_functions(
    search: Any, name: str, change: Any, first: int, error: type[Exception], message: str
) -> None:
    encoder, lengths = random_encoder(12)
    with pytest.raises(error, match=message) as info:
        search(replaced(name, change, first), encoder, lengths)
    copied = pickle.loads(pickle.dumps(info.value))
    assert type(copied) is error and str(copied) == str(info.value)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"lengths": [1, 2]}, ValueError, r"lengths: expected an array of shape \(4,\), found \(2,\)"),
        ({"lengths": [9, 10, 0, 0]}, ValueError, r"lengths\[1\]: expected a number from 0 to 9, found 10"),
        ({"lengths": [9, -1, 0, 0]}, ValueError, r"lengths\[1\]: expected a number from 0 to 9, found -1"),
        ({"lengths": [1.0] * 4}, TypeError, "lengths: expected integers, found float64"),
        ({"max_symbols": 0}, ValueError, "max_symbols: expected at least 1, found 0"),
        ({"max_symbols": 1.5}, TypeError, "max_symbols: expected integers, found 1.5"),
        ({"fusion": [1]}, TypeError, r"fusion\[0\]: expected a scorer and its weight, found 1"),
        ({"fusion": [(ClassScores([1.0]), 1.0)]}, ValueError, r"fusion\[0\]: expected a scorer of 5 classes"),
        ({"fusion": [(ClassScores([1.0] * 5), 1e9)]}, ValueError, r"fusion\[0\]: expected a weight from"),
        ({"fusion": [(ClassScores([1.0] * 5), math.nan)]}, ValueError, r"fusion\[0\]: expected a finite"),
        ({"encoder": torch.zeros(2, 3)}, ValueError, r"encoder: expected 3 axes, found \(2, 3\)"),
        (
            {"encoder": [[[1.0]]]},
            TypeError,
            "encoder: expected an array of NumPy or .*, found list",
        ),
        ({"model": None}, TypeError, "model: expected CallbackModel or WeightModel, found NoneType"),
    ],
)
@pytest.mark.parametrize("is_beam", [False, True])
def test_bad_arguments(
    is_beam: bool, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    network = LstmNetwork(13)
    encoder, lengths = random_encoder(13)
    for model in (callback_model(network, LOSSES[0]), weight_model(network, LOSSES[0])):
        named: dict[str, Any] = {"model": model, "encoder": encoder, "lengths": lengths, **arguments}
        with pytest.raises(error, match=message):
            if is_beam:
                beam_search(**named, kind="malsd")
            else:
                greedy_search(**named)


def test_bad_options_of_each_search() -> None:
    network = LstmNetwork(13)
    encoder, lengths = random_encoder(13)
    model: Any
    for model in (callback_model(network, LOSSES[0]), weight_model(network, LOSSES[0])):
        for options, message in [
            ({"confidence": "best"}, "confidence: expected one of"),
            (
                {"confidence": "max_prob", "confidence_exponent": 0.0},
                "confidence_exponent: expected a number above 0",
            ),
            ({"look_ahead": 0}, "look_ahead: expected at least 1"),
        ]:
            with pytest.raises(ValueError, match=message):
                greedy_search(model, encoder, lengths, **options)
        for options, message in [
            ({"kind": "best"}, "kind: expected one of"),
            ({"width": 0}, "width: expected at least 1, found 0"),
            ({"nbest": 0}, "nbest: expected at least 1"),
            ({"temperature": 0.0}, "temperature: expected a number from 0.001 to 1000, found 0"),
            ({"blank_penalty": 1e9}, "blank_penalty: expected"),
            ({"kind": "maes", "gamma": -1.0}, "gamma: expected at least 0"),
        ]:
            with pytest.raises(ValueError, match=message):
                beam_search(model, encoder, lengths, **options)
        with pytest.raises(TypeError, match="end_scores: expected True or False, found 1"):
            beam_search(model, encoder, lengths, end_scores=1)  # type: ignore[arg-type]
    tdt = weight_model(LstmNetwork(0, outputs_of(LOSSES[3])), LOSSES[3])
    with pytest.raises(ValueError, match="kind: modified beam search does not support durations"):
        beam_search(tdt, encoder, lengths, kind="modified")
    assert beam_search(model, encoder, lengths, kind="maes", gamma=None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head.weight": None}, "weights: expected 'head.weight', found"),
        ({"extra": torch.zeros(1)}, r"weights: expected the names of WeightModel, found also \['extra'\]"),
        ({"head.weight": torch.zeros(5)}, "head.weight: expected 2 axes"),
        ({"head.weight": torch.zeros(5, 7)}, "expected 7 outputs, as the head has inputs, found 8"),
        ({"head.bias": torch.zeros(4)}, "head: expected a bias of 5, found 4"),
        ({"head.bias": torch.full((5,), torch.nan)}, "head.bias: expected finite numbers"),
        ({"lstm.weight_hh_l0": None}, "weights: expected 'lstm.weight_hh_l0', found"),
        ({"lstm.weight_hh_l0": torch.zeros(24, 5)}, "weight_hh of layer 0: expected 144 values, found 120"),
        ({"lstm.bias_hh_l0": torch.zeros(20)}, r"lstm.bias_hh_l0: expected shape \(24,\), found \(20,\)"),
        ({"lstm.weight_ih_l0": None}, "weights: expected 'conv.weight', found"),
        ({"embedding.weight": torch.zeros(1, 4)}, "start: expected a label below 1, found 1"),
        ({"embedding.weight": torch.zeros(3, 4)}, "predictor: expected more than 4 ids, found 3"),
        ({"predictor_projection.weight": torch.zeros(8, 5)}, "joint: expected rows of 6, as the predictor's"),
        ({"encoder_projection.weight": None}, "weights: expected 'encoder_projection.weight' with its bias"),
    ],
)
def test_bad_weights(change: dict[str, Any], message: str) -> None:
    weights = {**LstmNetwork(14).state_dict(), **change}
    weights = {name: array for name, array in weights.items() if array is not None}
    with pytest.raises(ValueError, match=message):
        WeightModel(weights, blank=BLANK)


def test_bad_models() -> None:
    network = LstmNetwork(14)
    weights = network.state_dict()
    functions = (network.predict, network.joint, CLASSES)
    for create in (lambda **o: WeightModel(weights, **o), lambda **o: CallbackModel(*functions, **o)):
        for options, error, message in [
            ({"blank": 5}, ValueError, "blank: expected a class"),
            ({"blank": -1}, ValueError, "blank: expected numbers from 0"),
            ({"blank": 1.5}, TypeError, "blank: expected integers"),
            ({"loss": "ctc"}, ValueError, "loss: expected that of a transducer, found 'ctc'"),
            ({"loss": "best"}, ValueError, "loss: expected"),
            ({"loss": "tdt"}, ValueError, "durations: expected at least one"),
            ({"loss": "tdt", "durations": (0,)}, ValueError, "duration"),
            ({"loss": "multi_blank", "durations": (2,)}, ValueError, "big_blanks: expected 1 classes"),
            ({"start": -1}, ValueError, "start: expected numbers from 0"),
        ]:
            with pytest.raises(error, match=message):
                create(**options)
    with pytest.raises(ValueError, match="predictor_activation: expected 'tanh' or 'relu', found 'gelu'"):
        WeightModel(StatelessNetwork(0).state_dict(), predictor_activation="gelu")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="joint: expected a function, found 1"):
        CallbackModel(network.predict, 1, CLASSES)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"head.bias: expected floating-point numbers, found torch.int64"):
        WeightModel({**weights, "head.bias": torch.zeros(5).long()})
    model = WeightModel(weights, blank=BLANK)
    with pytest.raises(ValueError, match="encoder: expected rows of 3 numbers, found 4"):
        greedy_search(model, torch.zeros(1, 2, 4))
    with pytest.raises(ValueError, match=r"conv.weight: expected shape \[P, 4/groups, context\]"):
        WeightModel({**StatelessNetwork(0).state_dict(), "conv.weight": torch.zeros(6, 3, 2)})


def test_bad_scorers(tmp_path: Path) -> None:
    path = tmp_path / "bad.arpa"
    path.write_text("no header")
    with pytest.raises(ValueError, match="ARPA file: line"):
        Ngram(path, NAMES)
    with pytest.raises(OSError):
        Ngram(tmp_path / "missing.arpa", NAMES)
    with pytest.raises(TypeError, match="names: expected a list of text"):
        Phrases([[0]], "abc")
    with pytest.raises(ValueError, match="phrases, line 1: expected labels among 5 classes, found class 1"):
        Phrases([[BLANK]], NAMES)
    with pytest.raises(ValueError, match="phrases, line 2: expected a phrase, found none"):
        Phrases([[0], []], NAMES)
    with pytest.raises(ValueError, match="scores: expected 1 numbers, one per phrase, found 2"):
        Phrases([[0]], NAMES, scores=[1.0, 2.0])
    with pytest.raises(ValueError, match="scores: expected a finite number"):
        ClassScores([math.inf])


def test_functions_run_in_the_calling_thread_without_gradients() -> None:
    network = LstmNetwork(15)
    encoder, lengths = random_encoder(15)
    lock, threads, modes = threading.RLock(), set(), set()

    def joint(rows: Tensor, outputs: Tensor) -> Tensor:
        threads.add(threading.get_ident())
        modes.add(torch.is_grad_enabled())
        with lock:
            return network.joint(rows, outputs)

    model = dataclasses.replace(callback_model(network, LOSSES[0]), joint=joint)
    with lock:
        for search in (greedy_search, beam_search):
            search(model, encoder.requires_grad_(), lengths)  # type: ignore[operator]
    assert threads == {threading.get_ident()} and modes == {False}


def run_with_time_limit(function: Callable[[], Any], count: int) -> list[Any]:
    """Runs a function in several threads at once; fails if one of them hangs."""
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(function()), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive(), "a search hangs"
    return results


def test_nested_and_concurrent_searches_do_not_hang() -> None:
    network = LstmNetwork(16)
    encoder, lengths = random_encoder(16)
    weights = weight_model(network, LOSSES[0])
    expected = greedy_search(weights, encoder, lengths)

    def joint(rows: Tensor, outputs: Tensor) -> Tensor:
        # A search within a function of a search.
        assert greedy_search(weights, encoder, lengths) == expected
        return network.joint(rows, outputs)

    model = dataclasses.replace(callback_model(network, LOSSES[0]), joint=joint)
    threads = panda_rnnt.num_threads()
    panda_rnnt.set_num_threads(1)
    try:
        found = run_with_time_limit(lambda: greedy_search(model, encoder, lengths), 4)
        found += run_with_time_limit(lambda: beam_search(model, encoder, lengths), 2)
    finally:
        panda_rnnt.set_num_threads(threads)
    assert len(found) == 6 and found[0] == found[1] == found[2] == found[3] and found[4] == found[5]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_searches_of_a_forked_child() -> None:
    random = np.random.default_rng(0)
    numpy_model = NumpyModel(0)
    encoder = random.normal(size=(2, 6, ENCODER_WIDTH))
    functions = CallbackModel(numpy_model.predict, numpy_model.joint, CLASSES, blank=BLANK)
    weights = weight_model(LstmNetwork(0), LOSSES[0])
    expected = [greedy_search(model, encoder) for model in (functions, weights)]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            found = [greedy_search(model, encoder) for model in (functions, weights)]
            status = int(found != expected)
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_sizes_have_limits() -> None:
    network = LstmNetwork(0)
    encoder, lengths = random_encoder(0)
    with pytest.raises(ValueError, match="classes: expected numbers from 1 to 16777216, found 2147483648"):
        CallbackModel(network.predict, network.joint, 2**31)
    model = callback_model(network, LOSSES[0])
    for name in ("width", "expansions"):
        with pytest.raises(ValueError, match=f"{name}: expected numbers to 10000, found 2147483648"):
            beam_search(model, encoder, lengths, **{name: 2**31})
