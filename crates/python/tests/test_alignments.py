"""Alignments and posteriors against enumerated paths and derivatives of dense losses."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import panda_rnnt.numpy
import pytest
import reference
import torch
from panda_rnnt import LossOptions
from panda_rnnt.torch import Alignment, align, align_scores, posteriors, score_posteriors
from torch import Tensor

LOSSES: list[dict[str, Any]] = [
    {"loss": "rnnt"},
    {"loss": "modified"},
    {"loss": "hat"},
    {"loss": "tdt", "durations": (0, 1, 2)},
    {"loss": "tdt", "durations": (2, 1)},
    {"loss": "multi_blank", "durations": (2, 3), "big_blanks": (5, 6)},
]
REGULARIZERS = {"fastemit": 0.3, "delay_penalty": 0.2}


def batch_for(options: dict[str, Any], seed: int) -> reference.Batch:
    durations = len(options.get("durations", ())) if options["loss"] == "tdt" else 0
    blanks = (0, *options.get("big_blanks", ()))
    return reference.random_batch(seed, frames=4, labels=3, durations=durations, blanks=blanks)


def arcs_of(logits: Tensor, options: dict[str, Any]) -> reference.Arcs:
    return reference.arcs(
        logits, options["loss"], options.get("durations", ()), options.get("big_blanks", ())
    )


def score(path: list[reference.Step]) -> float:
    return float(sum(step.log_prob for step in path))


@pytest.mark.parametrize("options", LOSSES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_alignments_equal_the_best_of_all_paths(options: dict[str, Any], seed: int) -> None:
    batch = batch_for(options, seed)
    arcs = arcs_of(reference.scores(batch), options)
    found = align(*batch.floats(), *batch.indices(), options=LossOptions(**options, **REGULARIZERS))
    for b in range(3):
        labels = int(batch.target_lengths[b])
        assert (found.frames[b, labels:] == -1).all() and (found.log_probs[b, labels:] == 0).all()
        paths = reference.all_paths(arcs, batch, b)
        if not paths:
            assert found.scores[b] == -torch.inf and found.losses[b] == torch.inf
            assert (found.frames[b] == -1).all()
            continue
        best = max(paths, key=score)
        scores = torch.tensor([score(path) for path in paths], dtype=torch.float64)
        assert float(found.scores[b]) == pytest.approx(score(best), abs=1e-12)
        assert float(found.losses[b]) == pytest.approx(-float(scores.logsumexp(0)), abs=1e-12)
        emitted = [step for step in best if step.token not in dict(arcs.blanks)]
        assert [step.frame for step in emitted] == found.frames[b, :labels].tolist()
        assert [step.duration for step in emitted] == found.durations[b, :labels].tolist()
        assert [float(step.log_prob) for step in emitted] == pytest.approx(
            found.log_probs[b, :labels].tolist()
        )
        for position, step in enumerate(emitted):
            places = [[(s.frame, s.position) for s in path if s.token == step.token] for path in paths]
            uses = torch.tensor([(step.frame, position) in place for place in places])
            confidence = float((scores[uses].logsumexp(0) - scores.logsumexp(0)).exp())
            assert float(found.confidences[b, position]) == pytest.approx(confidence, abs=1e-12)


@pytest.mark.parametrize("options", LOSSES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_posteriors_equal_derivatives_of_the_dense_loss(options: dict[str, Any], seed: int) -> None:
    batch = batch_for(options, seed)
    arcs = arcs_of(reference.scores(batch), options)
    tokens = arcs.tokens.detach().requires_grad_()
    durations = None if arcs.durations is None else arcs.durations.detach().requires_grad_()
    losses = reference.path_losses(dataclasses.replace(arcs, tokens=tokens, durations=durations), batch)
    inputs = [tokens] if durations is None else [tokens, durations]
    derivatives = [-d for d in torch.autograd.grad(losses.where(losses.isfinite(), 0.0).sum(), inputs)]
    found = posteriors(*batch.floats(), *batch.indices(), options=LossOptions(**options, **REGULARIZERS))
    torch.testing.assert_close(found.losses, losses.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.blank, derivatives[0][..., 0], rtol=1e-10, atol=1e-12)
    labels = torch.zeros_like(found.label)
    for b, u in itertools.product(range(3), range(3)):
        if u < batch.target_lengths[b]:
            labels[b, :, u] = derivatives[0][b, :, u, batch.targets[b, u]]
    torch.testing.assert_close(found.label, labels, rtol=1e-10, atol=1e-12)
    expected_occupancies = found.blank + found.label
    if options["loss"] == "multi_blank":
        big_blanks = derivatives[0][..., list(options["big_blanks"])]
        torch.testing.assert_close(found.big_blanks, big_blanks, rtol=1e-10, atol=1e-12)
        expected_occupancies = expected_occupancies + big_blanks.sum(-1)
    torch.testing.assert_close(found.occupancies, expected_occupancies, rtol=1e-10, atol=1e-12)
    assert (found.durations is None) == (durations is None)
    if durations is not None:
        torch.testing.assert_close(found.durations, derivatives[1], rtol=1e-10, atol=1e-12)
    # Each path starts at the first site.
    has_path = losses.isfinite()
    torch.testing.assert_close(found.occupancies[:, 0, 0], has_path.double(), rtol=1e-12, atol=1e-12)


def test_constrained_paths_emit_each_label_once() -> None:
    batch = batch_for({"loss": "rnnt"}, 0)
    batch.logit_lengths[:] = 4
    options = LossOptions(loss="constrained")
    found = posteriors(*batch.floats(), *batch.indices(), options=options)
    for b in range(3):
        labels = int(batch.target_lengths[b])
        sums = found.label[b].sum(0)
        torch.testing.assert_close(sums[:labels], torch.ones(labels).double(), rtol=1e-12, atol=1e-12)
        assert (sums[labels:] == 0).all()
        # One blank for each frame, free or forced.
        assert float(found.blank[b].sum()) == pytest.approx(4.0)
    aligned = align(*batch.floats(), *batch.indices(), options=options)
    is_label = aligned.frames >= 0
    assert (aligned.durations[is_label] == 1).all()
    assert (aligned.frames[:, 1:] > aligned.frames[:, :-1])[is_label[:, 1:]].all()


def ctc_paths(frames: int, labels: list[int]) -> list[list[int]]:
    """All CTC alignments: for each frame 0, the blank, or the index of a label + 1."""
    paths = []
    for columns in itertools.product(range(len(labels) + 1), repeat=frames):
        runs = [column for column, _ in itertools.groupby(columns)]
        emitted = [column for column in runs if column > 0]
        adjacent = itertools.pairwise(runs)
        merged = any(a > 0 and b > 0 and labels[a - 1] == labels[b - 1] for a, b in adjacent)
        if emitted == list(range(1, len(labels) + 1)) and not merged:
            paths.append(list(columns))
    return paths


@pytest.mark.parametrize("seed", range(4))
def test_ctc_equals_all_alignments(seed: int) -> None:
    batch = reference.random_batch(seed, frames=5, labels=3, classes=4)
    batch.targets[0] = torch.tensor([2, 2, 1])
    logits = batch.encoded @ batch.weight.T + batch.bias
    options = LossOptions(loss="ctc", fastemit=0.5)
    found = align_scores(logits, *batch.indices(), options=options)
    fused = align(batch.encoded, None, batch.weight, batch.bias, *batch.indices(), options=options)
    probabilities = score_posteriors(logits, *batch.indices(), options=options)
    for b in range(3):
        frames, count = int(batch.logit_lengths[b]), int(batch.target_lengths[b])
        labels = batch.targets[b, :count].tolist()
        columns = logits[b].log_softmax(-1)[:, [0, *labels]]
        paths = ctc_paths(frames, labels)
        if not paths:
            assert found.scores[b] == -torch.inf and (found.frames[b] == -1).all()
            assert (probabilities.blank[b] == 0).all() and (probabilities.label[b] == 0).all()
            continue
        scores = torch.stack([columns[range(frames), path].sum() for path in paths])
        shares = scores.softmax(0)
        best = paths[int(scores.argmax())]
        assert float(found.scores[b]) == pytest.approx(float(scores.max()), abs=1e-12)
        assert float(found.losses[b]) == pytest.approx(-float(scores.logsumexp(0)), abs=1e-12)
        starts = [best.index(u + 1) for u in range(count)]
        assert found.frames[b, :count].tolist() == fused.frames[b, :count].tolist() == starts
        assert found.durations[b, :count].tolist() == [best.count(u + 1) for u in range(count)]
        for u, start in enumerate(starts):
            span = columns[[t for t in range(frames) if best[t] == u + 1], u + 1].sum()
            assert float(found.log_probs[b, u]) == pytest.approx(float(span), abs=1e-12)
            uses = torch.tensor([path.index(u + 1) == start for path in paths])
            assert float(found.confidences[b, u]) == pytest.approx(float(shares[uses].sum()), abs=1e-12)
        for t, column in itertools.product(range(frames), range(count + 1)):
            share = float(shares[torch.tensor([path[t] == column for path in paths])].sum())
            posterior = probabilities.blank[b, t] if column == 0 else probabilities.label[b, t, column - 1]
            assert float(posterior) == pytest.approx(share, abs=1e-12)
        assert (probabilities.label[b, :, count:] == 0).all()
        assert (probabilities.label[b, frames:] == 0).all()


@pytest.mark.parametrize("options", [options for options in LOSSES if options["loss"] != "hat"], ids=str)
def test_scores_and_joint_network_agree(options: dict[str, Any]) -> None:
    batch, loss_options = batch_for(options, 5), LossOptions(**options)
    logits = reference.scores(batch)
    for function, of_scores in ((align, align_scores), (posteriors, score_posteriors)):
        fused = function(*batch.floats(), *batch.indices(), options=loss_options)
        scored = of_scores(logits, *batch.indices(), options=loss_options)
        for name, tensor in dataclasses.asdict(fused).items():
            if tensor is not None:
                torch.testing.assert_close(getattr(scored, name), tensor, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_padding_strides_and_batch_have_no_influence(dtype: torch.dtype) -> None:
    batch = reference.random_batch(8, dtype=dtype)
    expected = align(*batch.floats(), *batch.indices())
    expected_posteriors = posteriors(*batch.floats(), *batch.indices())
    for b in range(3):
        batch.encoded[b, batch.logit_lengths[b] :] = torch.nan
        batch.predicted[b, batch.target_lengths[b] + 1 :] = torch.nan
    strided = [tensor.transpose(0, 1).contiguous().transpose(0, 1) for tensor in batch.floats()[:3]]
    indices = [tensor.int() for tensor in batch.indices()]
    for name, tensor in dataclasses.asdict(align(*strided, batch.bias, *indices)).items():
        assert torch.equal(tensor, getattr(expected, name)), name
    found = posteriors(*strided, batch.bias, *indices)
    assert torch.equal(found.label, expected_posteriors.label)
    for b in range(3):
        assert (found.occupancies[b, batch.logit_lengths[b] :] == 0).all()
        assert (found.occupancies[b, :, batch.target_lengths[b] + 1 :] == 0).all()
        one = (batch.encoded[b : b + 1], batch.predicted[b : b + 1], batch.weight, batch.bias)
        rest = [tensor[b : b + 1] for tensor in batch.indices()]
        assert torch.equal(align(*one, *rest).frames[0], expected.frames[b])


def test_gradients_do_not_pass() -> None:
    batch = reference.random_batch(9)
    floats = [tensor.requires_grad_() for tensor in batch.floats()]
    assert not posteriors(*floats, *batch.indices()).blank.requires_grad
    assert not align(*floats, *batch.indices()).scores.requires_grad


def test_empty_targets() -> None:
    batch = reference.random_batch(10)
    found = align(
        batch.encoded,
        batch.predicted[:, :1],
        batch.weight,
        None,
        batch.targets[:, :0],
        *(batch.logit_lengths, torch.zeros(3, dtype=torch.long)),
    )
    assert found.frames.shape == (3, 0)
    torch.testing.assert_close(found.scores, -found.losses)


def test_errors_name_the_utterance() -> None:
    batch = reference.random_batch(11)
    batch.logit_lengths[:] = 6
    batch.encoded[2, 4] = torch.nan
    for function in (align, posteriors):
        with pytest.raises(ValueError, match=r"utterance 2, frame 4, .*NaN"):
            function(*batch.floats(), *batch.indices())
        with pytest.raises(ValueError, match=r"loss: expected a loss over all sites.*'pruned'"):
            function(*batch.floats(), *batch.indices(), options=LossOptions(loss="pruned"))
        with pytest.raises(ValueError, match=r"bias: expected a tensor on cpu, found meta"):
            function(*batch.floats()[:3], batch.bias.to("meta"), *batch.indices())
        with pytest.raises(ValueError, match=r"expected tensors with data, found one on device meta"):
            function(*[tensor.to("meta") for tensor in (*batch.floats(), *batch.indices())])
    with pytest.raises(ValueError, match=r"budget: expected at least"):
        align(*batch.floats(), *batch.indices(), options=LossOptions(budget=10))


def test_numpy_has_the_same_results() -> None:
    for options in LOSSES:
        batch, loss_options = batch_for(options, 12), LossOptions(**options)
        tensors = (*batch.floats(), *batch.indices())
        arrays = [tensor.numpy() for tensor in tensors]
        modules = panda_rnnt.numpy, panda_rnnt.torch
        for name in ("align", "posteriors"):
            found, expected = (
                getattr(module, name)(*arguments, options=loss_options)
                for module, arguments in zip(modules, (arrays, tensors), strict=True)
            )
            for field in dataclasses.fields(expected):
                value, tensor = getattr(found, field.name), getattr(expected, field.name)
                assert (value is None) == (tensor is None)
                assert value is None or np.array_equal(value, tensor.numpy()), field.name
        if options["loss"] != "hat":
            logits = reference.scores(batch)
            found = panda_rnnt.numpy.align_scores(logits.numpy(), *arrays[4:], options=loss_options)
            expected = align_scores(logits, *batch.indices(), options=loss_options)
            assert isinstance(found, Alignment) and np.array_equal(found.frames, expected.frames.numpy())
