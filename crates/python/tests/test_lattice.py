"""Recognition lattices against all paths, dense references, and golden vectors of LAST."""

from __future__ import annotations

import concurrent.futures
import copy
import io
import json
import math
import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import lattice_reference
import numpy as np
import panda_rnnt
import pytest
import torch
from panda_rnnt import numpy_lattice
from panda_rnnt._lattice import PARAMETER_NAMES
from panda_rnnt.lattice import (
    BestPath,
    FrameDependent,
    FrameLabelDependent,
    FullNGram,
    JointWeightFn,
    LocallyNormalizedWeightFn,
    NextStateTable,
    RecognitionLattice,
    SharedEmbCacher,
    SharedRNNCacher,
    TableWeightFn,
)
from safetensors.numpy import load_file
from torch import Tensor

PARITY = [[1, 0], [0, 1], [2, 2]]
"""Next states of two labels; the third state is never reached."""


class Batch(NamedTuple):
    """Frames ``[B, T, F]`` and labels ``[B, U]`` with their lengths."""

    frames: Tensor
    num_frames: Tensor
    labels: Tensor
    num_labels: Tensor


class Case(NamedTuple):
    """Components of a lattice."""

    weights: str = "joint"
    context_size: int | None = 1
    expansions: int | None = None
    normalize: str | None = None
    vocab_size: int = 2


CASES = [
    Case(),
    Case(context_size=0),
    Case(context_size=2),
    Case(context_size=None),
    Case(expansions=2),
    Case(expansions=1, context_size=2),
    Case(expansions=1, context_size=None),
    Case("rnn", context_size=2),
    Case("rnn", expansions=2),
    Case("rnn", context_size=0, normalize="hat"),
    Case(normalize="hat", vocab_size=3),
    Case(normalize="log_softmax", context_size=2),
    Case(normalize="hat", expansions=2),
    Case("rnn", expansions=1, normalize="log_softmax"),
    Case("table"),
    Case("table", context_size=2, expansions=2),
    Case("table", context_size=None, normalize="log_softmax"),
    Case("utterance_table", expansions=1),
    Case("utterance_table", normalize="hat"),
]


def make_lattice(
    case: Case, seed: int = 0, *, batch: int = 3, dtype: Any = torch.float64
) -> RecognitionLattice:
    torch.manual_seed(seed)
    vocab_size = case.vocab_size
    context = (
        NextStateTable(PARITY) if case.context_size is None else FullNGram(vocab_size, case.context_size)
    )
    alignment = FrameDependent() if case.expansions is None else FrameLabelDependent(case.expansions)
    cacher = None
    if "table" in case.weights:
        leading = (batch,) if case.weights == "utterance_table" else ()
        table = torch.randn(*leading, 5, context.num_states, 1 + vocab_size)
        weight_fn: Any = TableWeightFn(torch.nn.Parameter(table))
    else:
        weight_fn = JointWeightFn(vocab_size, frame_size=2, embedding_size=3, hidden_size=4)
        cacher = SharedEmbCacher(context.num_states, 3)
        if case.weights == "rnn":
            cacher = SharedRNNCacher(vocab_size, case.context_size or 0, 3, 2)
    if case.normalize is not None:
        weight_fn = LocallyNormalizedWeightFn(weight_fn, case.normalize)
    lattice = RecognitionLattice(context, alignment, weight_fn, cacher).to(dtype)
    for parameter in lattice.parameters():
        torch.nn.init.normal_(parameter)
    return lattice


def make_batch(case: Case, seed: int = 0, *, dtype: Any = torch.float64) -> Batch:
    """Three utterances of 4, 3 and 1 frames, and of 2, 0 and 1 labels."""
    random = torch.Generator().manual_seed(seed)
    frames = torch.randn(3, 4, 2, generator=random, dtype=dtype)
    if "table" in case.weights:
        frames[..., 0] = torch.randint(0, 5, (3, 4), generator=random)
    labels = torch.randint(1, case.vocab_size + 1, (3, 3), generator=random)
    return Batch(frames, torch.tensor([4, 3, 1]), labels, torch.tensor([2, 0, 1]))


def last_parameters(lattice: RecognitionLattice) -> dict[str, Tensor]:
    """Parameters by the names of LAST; a table is named as in its weight function."""
    named = {name.replace(".", "/"): tensor for name, tensor in lattice.named_parameters()}
    return {("table" if name.endswith("/table") else name): tensor for name, tensor in named.items()}


def next_states(lattice: RecognitionLattice) -> lattice_reference.Table:
    context = lattice.context
    if isinstance(context, NextStateTable):
        return context.next_states
    return lattice_reference.n_gram(context.vocab_size, context.context_size)


def reference_arcs(lattice: RecognitionLattice, case: Case, frames: Tensor) -> tuple[Tensor, Tensor]:
    strings = lattice_reference.histories(case.vocab_size, case.context_size or 0)
    return lattice_reference.arc_weights(last_parameters(lattice), frames, strings, case.normalize)


def reference_sums(
    lattice: RecognitionLattice, case: Case, batch: Batch, arcs: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Log-sums over all paths, and over those of the labels."""
    blank, labels = arcs or reference_arcs(lattice, case, batch.frames)
    sums: list[list[Tensor]] = [[], []]
    for b, count in enumerate(batch.num_labels.tolist()):
        arguments = (blank[b], labels[b], next_states(lattice), case.expansions, int(batch.num_frames[b]))
        sums[0].append(lattice_reference.log_sum(*arguments))
        sums[1].append(lattice_reference.log_sum(*arguments, batch.labels[b, :count].tolist()))
    return torch.stack(sums[0]), torch.stack(sums[1])


def reference_losses(lattice: RecognitionLattice, case: Case, batch: Batch) -> Tensor:
    all_paths, label_paths = reference_sums(lattice, case, batch)
    return -label_paths if case.normalize is not None else all_paths - label_paths


def inputs_of(lattice: RecognitionLattice, batch: Batch) -> list[Tensor]:
    return [batch.frames.requires_grad_(), *lattice.parameters()]


def gradients(value: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    found = torch.autograd.grad(value, inputs, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


def assert_all_close(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-10) -> None:
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_losses_and_gradients_equal_dense_references(case: Case, seed: int) -> None:
    lattice, batch = make_lattice(case, seed), make_batch(case, seed)
    inputs = inputs_of(lattice, batch)
    expected = reference_losses(lattice, case, batch)
    weights = torch.tensor([0.7, -1.5, 2.0], dtype=torch.float64)
    expected_gradients = gradients(expected @ weights, inputs)
    if case.context_size != 0:  # An LSTM forgets nothing before its first label.
        assert all((gradient != 0).any() for gradient in expected_gradients[1:])
    losses = lattice.loss(*batch, reduction="none")
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)
    assert_all_close(gradients(losses @ weights, inputs), expected_gradients)
    summed = lattice.loss(*batch, reduction="sum")
    torch.testing.assert_close(summed, expected.sum())
    assert_all_close(gradients(summed, inputs), gradients(expected.sum(), inputs), 1e-9)


@pytest.mark.parametrize("case", CASES[:8] + CASES[-3:], ids=str)
def test_log_sums_equal_dense_references(case: Case) -> None:
    lattice, batch = make_lattice(case, 2), make_batch(case, 2)
    inputs = inputs_of(lattice, batch)
    found = (lattice.log_sum(batch.frames, batch.num_frames), lattice.log_sum(*batch))
    for sums, expected in zip(found, reference_sums(lattice, case, batch), strict=True):
        torch.testing.assert_close(sums, expected, rtol=1e-12, atol=1e-12)
        assert_all_close(gradients(sums.sum(), inputs), gradients(expected.sum(), inputs))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_sums_and_best_paths_equal_those_of_all_paths(case: Case) -> None:
    lattice, batch = make_lattice(case, 3), make_batch(case, 3)
    blank, labels = (arcs.tolist() for arcs in reference_arcs(lattice, case, batch.frames))
    sums = lattice.log_sum(batch.frames, batch.num_frames).detach()
    best = lattice.best_path(batch.frames, batch.num_frames)
    aligned = lattice.best_path(*batch)
    for b, frames in enumerate(batch.num_frames.tolist()):
        all_paths = list(
            lattice_reference.paths(blank[b], labels[b], next_states(lattice), case.expansions, frames)
        )
        total = math.log(math.fsum(math.exp(weight) for weight, _ in all_paths))
        assert float(sums[b]) == pytest.approx(total, abs=1e-11)
        string = batch.labels[b, : batch.num_labels[b]].tolist()
        of_string = [path for path in all_paths if [label for label, _ in path[1]] == string]
        for found, candidates in ((best, all_paths), (aligned, of_string)):
            weight, arcs = max(candidates)
            count = int(found.num_labels[b])
            pairs = zip(found.labels[b, :count].tolist(), found.frames[b, :count].tolist(), strict=True)
            assert list(pairs) == arcs
            assert float(found.score[b]) == pytest.approx(weight, abs=1e-11)
            assert (found.labels[b, count:] == 0).all() and (found.frames[b, count:] == -1).all()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_marginals_are_derivatives_of_the_log_sum(case: Case) -> None:
    lattice, batch = make_lattice(case, 4), make_batch(case, 4)
    arcs = tuple(x.detach().requires_grad_() for x in reference_arcs(lattice, case, batch.frames))
    all_paths, _ = reference_sums(lattice, case, batch, arcs)  # type: ignore[arg-type]
    expected = torch.autograd.grad(all_paths.sum(), arcs, allow_unused=True)
    found = lattice.marginals(batch.frames, batch.num_frames)
    assert_all_close(
        list(found), [torch.zeros_like(a) if g is None else g for a, g in zip(arcs, expected, strict=True)]
    )
    assert not found.blank.requires_grad
    per_frame = found.blank.sum(-1) + (found.labels.sum((-2, -1)) if case.expansions is None else 0.0)
    is_frame = torch.arange(4) < batch.num_frames[:, None]
    torch.testing.assert_close(per_frame, is_frame.double())


@pytest.mark.parametrize("case", CASES[:2] + CASES[4:5] + CASES[7:8] + CASES[10:16], ids=str)
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_gradcheck(case: Case, reduction: Any) -> None:
    lattice, batch = make_lattice(case, 5), make_batch(case, 5)
    names = [name for name, _ in lattice.named_parameters()]
    frames = batch.frames if "table" in case.weights else batch.frames.requires_grad_()

    def function(frames: Tensor, *parameters: Tensor) -> Tensor:
        values = dict(zip(names, parameters, strict=True))
        arguments = (frames, *batch[1:])
        result: Tensor = torch.func.functional_call(lattice, values, arguments, {"reduction": reduction})
        return result

    parameters = [parameter.detach().requires_grad_() for parameter in lattice.parameters()]
    assert torch.autograd.gradcheck(function, (frames, *parameters))


@pytest.mark.parametrize("reduction", ["sum", "mean", "mean_per_target", "mean_volume"])
def test_reductions(reduction: Any) -> None:
    case = Case()
    lattice, batch = make_lattice(case, 6), make_batch(case, 6)
    inputs = inputs_of(lattice, batch)
    losses, counts = lattice.loss(*batch, reduction="none"), batch.num_labels.double()
    weights = {
        "sum": torch.ones(3).double(),
        "mean": torch.ones(3).double() / 3,
        "mean_per_target": 1 / (3 * counts.clamp(min=1)),
        "mean_volume": torch.ones(3).double() / counts.sum(),
    }[reduction]
    expected = losses @ weights
    found = lattice(*batch, reduction=reduction)
    torch.testing.assert_close(found, expected)
    assert_all_close(gradients(found, inputs), gradients(expected, inputs))
    with torch.no_grad():
        torch.testing.assert_close(lattice(*batch, reduction=reduction), expected)


def operation_arguments(case: Case, dtype: Any = torch.float32) -> dict[str, tuple[Any, ...]]:
    lattice, batch = make_lattice(case, 7, dtype=dtype), make_batch(case, 7, dtype=dtype)
    batch.frames.requires_grad_("table" not in case.weights)
    arguments, _ = lattice._arguments(*batch)
    without_labels, _ = lattice._arguments(batch.frames, batch.num_frames, None, None)
    text, weights = lattice._text, torch.ones(3, dtype=torch.float64)
    detached, _ = lattice._arguments(*batch, detach=True)
    marginals = (detached[0], detached[1], *detached[4:], text, *lattice.context.shape())
    return {
        "lattice_loss_sum": (*arguments, weights, text, False),
        "lattice_sums": (*without_labels, text, "all"),
        "lattice_sum_gradients": (*detached, weights, text, "ratio"),
        "lattice_best_path": (*detached, text),
        "lattice_marginals": marginals,
    }


OPERATIONS = [
    *((Case(), operation) for operation in operation_arguments(Case())),
    (Case("rnn", expansions=2, normalize="hat"), "lattice_loss_sum"),
    (Case("table", context_size=None), "lattice_sums"),
]


@pytest.mark.parametrize(("case", "operation"), OPERATIONS, ids=str)
def test_opcheck(case: Case, operation: str) -> None:
    arguments = operation_arguments(case)[operation]
    torch.library.opcheck(getattr(torch.ops.panda_rnnt, operation).default, arguments)


@pytest.mark.parametrize(
    ("case", "reduction"),
    [(Case(), "none"), (Case("rnn", normalize="hat"), "mean"), (Case(context_size=None), "sum")],
    ids=str,
)
def test_compile_traces_the_whole_loss(case: Case, reduction: Any) -> None:
    lattice = make_lattice(case, 8, dtype=torch.float32)
    batch = make_batch(case, 8, dtype=torch.float32)
    inputs = inputs_of(lattice, batch)

    def function(frames: Tensor) -> Tensor:
        loss = lattice(frames * 2, *batch[1:], reduction=reduction).sum()
        return loss + lattice.log_sum(frames, batch.num_frames).sum()

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    expected, found = function(batch.frames), compiled(batch.frames)
    torch.testing.assert_close(found, expected)
    assert_all_close(gradients(found, inputs), gradients(expected, inputs), 1e-5)


def test_compile_traces_searches() -> None:
    lattice, batch = make_lattice(Case(expansions=2), 9), make_batch(Case(), 9)

    def function(frames: Tensor) -> tuple[Tensor, ...]:
        return (*lattice.best_path(frames, batch.num_frames), *lattice.marginals(frames, batch.num_frames))

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for found, expected in zip(compiled(batch.frames), function(batch.frames), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("case", [Case(), Case("utterance_table"), Case("rnn", expansions=2)], ids=str)
def test_padding_has_no_influence_and_no_gradient(case: Case) -> None:
    lattice, batch = make_lattice(case, 10), make_batch(case, 10)
    expected = [*results(lattice, batch)]
    for b in range(3):
        batch.frames[b, batch.num_frames[b] :] = torch.nan
        batch.labels[b, batch.num_labels[b] :] = -100
    for found, value in zip(results(lattice, batch), expected, strict=True):
        assert torch.equal(found, value)
    for reduction in ("none", "mean"):
        frames = batch.frames.detach().requires_grad_()
        lattice(frames, *batch[1:], reduction=reduction).sum().backward()
        assert frames.grad is not None
        for b in range(3):
            assert (frames.grad[b, batch.num_frames[b] :] == 0).all()
            if case.weights == "joint":
                assert (frames.grad[b, : batch.num_frames[b]] != 0).any()


def results(lattice: RecognitionLattice, batch: Batch) -> Iterator[Tensor]:
    """Losses, sums, paths and posteriors of a batch."""
    yield lattice.loss(*batch, reduction="none").detach()
    yield lattice.log_sum(batch.frames, batch.num_frames).detach()
    yield from lattice.best_path(batch.frames, batch.num_frames)
    yield from lattice.best_path(*batch)
    yield from lattice.marginals(batch.frames, batch.num_frames)


@pytest.mark.parametrize("case", [Case(), Case("rnn", expansions=2), Case(normalize="hat")], ids=str)
def test_results_do_not_depend_on_batch_or_threads(case: Case) -> None:
    lattice = make_lattice(case, 11, dtype=torch.float32)
    batch = make_batch(case, 11, dtype=torch.float32)
    expected = [*results(lattice, batch)]
    threads = panda_rnnt.num_threads()
    panda_rnnt.set_num_threads(1)
    try:
        for found, value in zip(results(lattice, batch), expected, strict=True):
            assert torch.equal(found, value)
    finally:
        panda_rnnt.set_num_threads(threads)
    for b in range(3):
        one = Batch(*(tensor[b : b + 1] for tensor in batch))
        for found, value in zip(results(lattice, one), expected, strict=True):
            assert torch.equal(found, value[b : b + 1])


@pytest.mark.parametrize("case", [Case(), Case("utterance_table")], ids=str)
def test_leading_axes(case: Case) -> None:
    lattice, batch = make_lattice(case, 12, batch=4), make_batch(case, 12)
    order = torch.tensor([0, 1, 2, 0])
    batch = Batch(*(tensor[order] for tensor in batch))
    expected = [*results(lattice, batch)]
    table = lattice.weight_fn.table.detach() if isinstance(lattice.weight_fn, TableWeightFn) else None
    for axes in ((2, 2), (4, 1), (1, 2, 2)):
        if table is not None:
            weight_fn = TableWeightFn(table.reshape(*axes, *table.shape[1:]))
            lattice = RecognitionLattice(lattice.context, lattice.alignment, weight_fn)
        shaped = Batch(*(tensor.reshape(*axes, *tensor.shape[1:]) for tensor in batch))
        for found, value in zip(results(lattice, shaped), expected, strict=True):
            assert torch.equal(found, value.reshape(*axes, *value.shape[1:]))
    if table is None:
        for found, value in zip(results(lattice, Batch(*(x[1] for x in batch))), expected, strict=True):
            assert torch.equal(found, value[1])
        assert lattice(*(x[1] for x in batch)).shape == ()


def test_layouts_and_index_types_do_not_matter() -> None:
    case = Case()
    lattice, batch = make_lattice(case, 13), make_batch(case, 13)
    expected = lattice(*batch)
    strided = (
        torch.stack([batch.frames, batch.frames], -1)[..., 0].transpose(0, 1).contiguous().transpose(0, 1)
    )
    assert not strided.is_contiguous()
    assert torch.equal(lattice(strided, *(index.int() for index in batch[1:])), expected)
    mixed = (batch.num_frames.int(), batch.labels, batch.num_labels.int())
    assert torch.equal(lattice(batch.frames, *mixed), expected)
    labels = torch.stack([batch.labels, batch.labels], -1)[..., 0]
    assert torch.equal(lattice(batch.frames, batch.num_frames, labels, batch.num_labels), expected)
    with torch.no_grad():
        kernel = lattice.weight_fn.project_frame.kernel
        kernel.data = kernel.data.T.contiguous().T
        assert not kernel.is_contiguous()
    assert torch.equal(lattice(*batch), expected)
    one = batch.frames[:1].expand(3, -1, -1)
    assert torch.equal(lattice(one, *batch[1:]), lattice(one.contiguous(), *batch[1:]))


@pytest.mark.parametrize("case", [Case(), Case(normalize="hat"), Case("table")], ids=str)
def test_utterances_without_a_path(case: Case) -> None:
    lattice, batch = make_lattice(case, 14), make_batch(case, 14)
    inputs = inputs_of(lattice, batch)
    feasible = lattice.loss(*batch, reduction="none")
    expected = gradients(feasible[[0, 2]].sum(), inputs)
    batch.num_frames[1], batch.num_labels[1] = 2, 3
    losses = lattice.loss(*batch, reduction="none")
    assert losses[1] == torch.inf and torch.equal(losses[[0, 2]], feasible[[0, 2]])
    assert lattice.loss(*batch, reduction="sum") == torch.inf
    kept = lattice.loss(*batch, reduction="sum", zero_infinity=True)
    torch.testing.assert_close(kept, feasible[[0, 2]].sum())
    for value in (losses.sum(), lattice.loss(*batch, reduction="sum"), kept):
        assert_all_close(gradients(value, inputs), expected, 1e-12)
    assert lattice.log_sum(*batch)[1] == -torch.inf
    aligned = lattice.best_path(*batch)
    assert aligned.score[1] == -torch.inf and aligned.num_labels[1] == 0
    assert (aligned.labels[1] == 0).all() and (aligned.frames[1] == -1).all()


def test_blocked_arcs() -> None:
    case = Case("utterance_table")
    lattice, batch = make_lattice(case, 15), make_batch(case, 15)
    table = lattice.weight_fn.table
    expected = gradients(lattice.loss(*batch, reduction="none")[[0, 2]].sum(), [table])
    with torch.no_grad():
        table[1, :, :, 0] = -torch.inf  # The second utterance has no labels, and needs blanks.
    for reduction in ("none", "sum"):
        losses = lattice.loss(*batch, reduction=reduction)
        assert losses.max() == torch.inf
        assert_all_close(gradients(losses.sum(), [table]), expected, 1e-12)
    assert lattice.log_sum(batch.frames, batch.num_frames).isfinite().all()
    with torch.no_grad():
        table[1] = -torch.inf
    sums = lattice.log_sum(batch.frames, batch.num_frames)
    assert sums[1] == -torch.inf
    (gradient,) = gradients(sums.sum(), [table])
    assert gradient.isfinite().all() and (gradient[1] == 0).all() and (gradient[0] != 0).any()
    assert lattice.best_path(batch.frames, batch.num_frames).num_labels[1] == 0
    assert (lattice.marginals(batch.frames, batch.num_frames).blank[1] == 0).all()


def test_empty_sizes() -> None:
    case = Case()
    lattice, batch = make_lattice(case, 16), make_batch(case, 16)
    none = torch.zeros(3, dtype=torch.int64)
    losses = lattice.loss(batch.frames, none, batch.labels, none, reduction="none")
    assert torch.equal(losses, torch.zeros(3).double())
    losses = lattice.loss(batch.frames[:, :0], none, batch.labels[:, :0], none, reduction="none")
    assert torch.equal(losses, torch.zeros(3).double())
    assert lattice.best_path(batch.frames[:, :0], none).labels.shape == (3, 0)
    empty = Batch(*(tensor[:0] for tensor in batch))
    assert lattice.loss(*empty, reduction="none").shape == (0,)
    value = lattice.loss(empty.frames.requires_grad_(), *empty[1:], reduction="sum")
    assert value == 0.0
    value.backward()
    assert lattice.weight_fn.joint_bias.grad is not None and (lattice.weight_fn.joint_bias.grad == 0).all()


def test_weights_computed_by_torch() -> None:
    """A table of arc weights makes any weight function of torch possible, with gradients."""
    case = Case("utterance_table", vocab_size=3)
    batch = make_batch(case, 17)
    encoded = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    layer = torch.nn.Linear(5, 4 * 4).double()
    times = torch.arange(4.0).double()[:, None].expand(3, 4, 1)
    lattice = make_lattice(case, 17)
    lattice.weight_fn = TableWeightFn(layer(encoded).reshape(3, 4, 4, 4))
    loss = lattice(times, *batch[1:], reduction="sum")
    blank, labels = layer(encoded).reshape(3, 4, 4, 4).split([1, 3], -1)
    sums = reference_sums(lattice, case, batch, (blank[..., 0], labels))
    expected = (sums[0] - sums[1]).sum()
    torch.testing.assert_close(loss, expected)
    inputs = [encoded, *layer.parameters()]
    assert_all_close(gradients(loss, inputs), gradients(expected, inputs))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_converted(dtype: torch.dtype) -> None:
    lattice, batch = make_lattice(Case(), 18, dtype=dtype), make_batch(Case(), 18, dtype=dtype)
    loss = lattice(batch.frames.requires_grad_(), *batch[1:])
    exact = copy.deepcopy(lattice).float()(batch.frames.detach().float(), *batch[1:])
    assert loss.dtype == torch.float32 and torch.equal(loss, exact)
    loss.backward()
    for tensor in (batch.frames, *lattice.parameters()):
        assert tensor.grad is not None and tensor.grad.dtype == dtype and tensor.grad.isfinite().all()


def test_single_precision_is_accurate() -> None:
    case = Case(vocab_size=3, context_size=2)
    lattice, batch = make_lattice(case, 19), make_batch(case, 19)
    inputs = inputs_of(lattice, batch)
    expected = gradients(lattice(*batch), inputs)
    single = copy.deepcopy(lattice).float()
    frames = batch.frames.detach().float().requires_grad_()
    loss = single(frames, *batch[1:])
    torch.testing.assert_close(loss.double(), lattice(*batch), rtol=1e-6, atol=1e-6)
    found = gradients(loss, [frames, *single.parameters()])
    assert_all_close([gradient.double() for gradient in found], expected, 1e-5)


def test_autocast_computes_in_float32() -> None:
    lattice, batch = (
        make_lattice(Case(), 20, dtype=torch.float32),
        make_batch(Case(), 20, dtype=torch.float32),
    )
    linear = torch.nn.Linear(2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        frames = linear(batch.frames)
        assert frames.dtype == torch.bfloat16
        loss = lattice(frames, *batch[1:])
    assert loss.dtype == torch.float32
    loss.backward()
    assert linear.weight.grad is not None and linear.weight.grad.isfinite().all()


def test_modules_survive_copies() -> None:
    for case in (Case(), Case("rnn", normalize="hat"), Case("utterance_table"), Case(context_size=None)):
        lattice, batch = make_lattice(case, 21), make_batch(case, 21)
        expected = lattice(*batch)
        for copied in (copy.deepcopy(lattice), pickle.loads(pickle.dumps(lattice))):
            assert torch.equal(copied(*batch), expected)
        file = io.BytesIO()
        torch.save(lattice.state_dict(), file)
        file.seek(0)
        other = make_lattice(case, 22)
        assert not torch.equal(other(*batch), expected)
        other.load_state_dict(torch.load(file))
        assert torch.equal(other(*batch), expected)


def test_parameters_have_the_names_of_last() -> None:
    for case in (Case(), Case("rnn"), Case(normalize="hat"), Case("rnn", normalize="log_softmax")):
        names = numpy_lattice.parameter_names(rnn=case.weights == "rnn", normalize=case.normalize)
        assert set(last_parameters(make_lattice(case))) == set(names)


def test_initial_values() -> None:
    torch.manual_seed(0)
    weight_fn = JointWeightFn(10, frame_size=400, embedding_size=50, hidden_size=300)
    kernel = weight_fn.project_frame.kernel.detach()
    assert kernel.shape == (400, 300) and float(kernel.std()) == pytest.approx(400**-0.5, rel=0.02)
    assert float(kernel.abs().max()) <= 2 * 400**-0.5 / 0.8796 * 1.001
    assert (weight_fn.joint_bias == 0).all()
    assert float(SharedEmbCacher(500, 100).context_embeddings.detach().std()) == pytest.approx(0.1, rel=0.02)
    recurrent: Any = SharedRNNCacher(3, 1, 20).rnn_cell["hf"]
    torch.testing.assert_close(recurrent.kernel @ recurrent.kernel.T, torch.eye(20), atol=1e-5, rtol=0)


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_second_derivatives_are_refused(reduction: Any) -> None:
    lattice, batch = make_lattice(Case(), 23), make_batch(Case(), 23)
    x = batch.frames.requires_grad_()
    value = lattice(x**3, *batch[1:], reduction=reduction).sum()
    (gradient,) = torch.autograd.grad(value, x, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(gradient.sum(), x)


def test_weights_that_are_not_finite_give_nan_gradients() -> None:
    lattice, batch = make_lattice(Case(), 24), make_batch(Case(), 24)
    for value in (torch.inf, torch.nan):
        (gradient,) = torch.autograd.grad(
            (lattice.loss(*batch, reduction="none") * value).sum(), lattice.weight_fn.joint_bias
        )
        assert gradient.isnan().all()


def test_a_budget_changes_no_result() -> None:
    case = Case(context_size=2, expansions=1)
    lattice, batch = make_lattice(case, 25), make_batch(case, 25)
    expected = [*results(lattice, batch)]
    parts = (lattice.context, lattice.alignment, lattice.weight_fn, lattice.weight_fn_cacher)
    with pytest.raises(ValueError, match=r"budget: expected at least \d+ bytes, found 100") as caught:
        RecognitionLattice(*parts, budget=100)(*batch)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    smallest = int(str(caught.value).split("at least ")[1].split()[0])
    small = RecognitionLattice(*parts, budget=smallest)
    torch.testing.assert_close(small.loss(*batch, reduction="none"), expected[0], rtol=0, atol=0)


def test_contexts() -> None:
    for vocab_size, context_size in ((1, 0), (1, 3), (2, 0), (3, 1), (3, 2), (2, 3)):
        context = FullNGram(vocab_size, context_size)
        table = lattice_reference.n_gram(vocab_size, context_size)
        assert context.shape() == (len(table), vocab_size) and context.start() == 0
        for state, row in enumerate(table):
            assert context.next_state(state, 0) == state
            assert [context.next_state(state, y) for y in range(1, vocab_size + 1)] == list(row)
        same = NextStateTable(table)
        labels = [vocab_size, 1, 0, vocab_size, 1, 1]
        assert context.walk_states(labels) == same.walk_states(labels)
        strings = lattice_reference.histories(vocab_size, context_size)
        assert NextStateTable.from_histories(vocab_size, strings) == same
    assert FullNGram(3, 2).walk_states([2, 3, 1]) == [0, 2, 9, 10]
    pruned = NextStateTable.from_histories(3, [(1, 2), (3,)])
    assert pruned.num_states == 4 and pruned.walk_states([3, 1, 2, 2]) == [0, 2, 1, 3, 0]
    assert NextStateTable(np.array(PARITY)) == NextStateTable(torch.tensor(PARITY)) == NextStateTable(PARITY)
    for context in (FullNGram(3, 1), NextStateTable(PARITY), FrameLabelDependent(2)):
        assert pickle.loads(pickle.dumps(context)) == context and hash(context) == hash(copy.copy(context))


Change = Callable[[RecognitionLattice, dict[str, Any]], object]


def set_item(name: str, index: Any, value: Any) -> Change:
    return lambda _, batch: batch[name].__setitem__(index, value)


def replace(name: str, change: Callable[[Tensor], Tensor]) -> Change:
    return lambda _, batch: batch.__setitem__(name, change(batch[name]))


def set_parameter(name: str, value: float) -> Change:
    def change(lattice: RecognitionLattice, _: object) -> None:
        with torch.no_grad():
            lattice.get_parameter(name).flatten()[0] = value

    return change


BAD_TENSORS: dict[str, tuple[Change, type[Exception], str]] = {
    "rank": (replace("frames", lambda x: x[0, 0]), ValueError, r"frames: expected at least 2 axes"),
    "features": (
        replace("frames", lambda x: x[..., :1]),
        ValueError,
        r"weight_fn/project_frame/kernel: expected shape \[1, 4\], found \[2, 4\]",
    ),
    "batch": (replace("labels", lambda x: x[:2]), ValueError, r"labels: expected leading axes \(3,\)"),
    "lengths": (replace("num_frames", lambda x: x[:2]), ValueError, r"num_frames: expected leading axes"),
    "label lengths": (replace("num_labels", lambda x: x[None]), ValueError, r"num_labels: expected leading"),
    "label axes": (replace("labels", lambda x: x[0, 0]), ValueError, r"labels: expected at least 1 axis"),
    "no labels": (lambda _, b: b.__setitem__("labels", None), ValueError, r"labels: expected a tensor"),
    "no num_labels": (lambda _, b: b.__setitem__("num_labels", None), ValueError, r"num_labels: expected"),
    "float labels": (replace("labels", Tensor.float), TypeError, r"labels: expected int32 or int64"),
    "float lengths": (replace("num_frames", Tensor.double), TypeError, r"num_frames: expected int32"),
    "integer frames": (replace("frames", Tensor.long), TypeError, r"frames: expected float16.*int64"),
    "complex frames": (replace("frames", Tensor.cfloat), TypeError, r"frames: expected float16"),
    "zero label": (
        set_item("labels", (0, 1), 0),
        ValueError,
        r"labels\[0, 1\]: expected a label from 1 to 2, found 0",
    ),
    "negative label": (set_item("labels", (0, 0), -1), ValueError, r"labels\[0, 0\].* 1 to 2, found -1"),
    "large label": (set_item("labels", (2, 0), 2**40), ValueError, r"labels\[2, 0\].*found 1099511627776"),
    "many frames": (
        set_item("num_frames", 1, 5),
        ValueError,
        r"num_frames\[1\]: expected a number from 0 to 4, found 5",
    ),
    "negative frames": (set_item("num_frames", 0, -1), ValueError, r"num_frames\[0\].*found -1"),
    "many labels": (set_item("num_labels", 2, 4), ValueError, r"num_labels\[2\].* 0 to 3, found 4"),
    "NaN": (
        set_item("frames", (0, 3, 1), torch.nan),
        ValueError,
        r"frames: expected finite values in frame 3 of utterance 0, found NaN",
    ),
    "infinite": (set_item("frames", (1, 0), torch.inf), ValueError, r"frames: .*frame 0 of utterance 1"),
    "parameter": (
        set_parameter("weight_fn.Dense_1.kernel", torch.nan),
        ValueError,
        r"weight_fn/Dense_1/kernel: expected a finite value at index 0, found NaN",
    ),
    "embedding": (
        set_parameter("weight_fn_cacher.context_embeddings", torch.inf),
        ValueError,
        r"weight_fn_cacher/context_embeddings: expected a finite value",
    ),
    "meta": (replace("labels", lambda x: x.to("meta")), ValueError, r"labels: expected a tensor on cpu, fo"),
}


@pytest.mark.parametrize(("change", "error", "message"), BAD_TENSORS.values(), ids=BAD_TENSORS)
@pytest.mark.parametrize("method", ["loss", "no_grad", "best_path"])
def test_bad_tensors(change: Change, error: type[Exception], message: str, method: str) -> None:
    lattice, batch = make_lattice(Case(), 26), make_batch(Case(), 26)._asdict()
    change(lattice, batch)
    with torch.set_grad_enabled(method != "no_grad"), pytest.raises(error, match=message) as caught:
        getattr(lattice, "best_path" if method == "best_path" else "loss")(**batch)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert type(copied) is type(caught.value) and str(copied) == str(caught.value)


def test_bad_tables() -> None:
    case = Case("table")
    lattice, batch = make_lattice(case, 27), make_batch(case, 27)
    batch.frames[0, 1, 0] = 5.0
    with pytest.raises(ValueError, match=r"frames: expected rows of the table below 5, found 5 in frame 1"):
        lattice(*batch)
    batch.frames[0, 1, 0] = 0.0
    for value in (torch.nan, torch.inf):
        lattice.weight_fn.table.data[0, 0, 0] = value
        with pytest.raises(ValueError, match=r"table: expected a finite value or -inf at index 0"):
            lattice(*batch)
    shape = "utterance_table"
    lattice, batch = make_lattice(Case(shape), 28, batch=2), make_batch(Case(shape), 28)
    with pytest.raises(ValueError, match="frames: expected 2 utterances, as in the weights, found 3"):
        lattice(*batch)


def joint(**sizes: int) -> JointWeightFn:
    return JointWeightFn(**{"vocab_size": 2, "frame_size": 2, "embedding_size": 3, "hidden_size": 4, **sizes})


BAD_COMPONENTS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "vocab": (lambda: FullNGram(0, 1), ValueError, r"vocab_size: expected at least 1 label, found 0"),
    "negative": (lambda: FullNGram(2, -1), ValueError, r"context_size: expected numbers from 0"),
    "float": (lambda: FullNGram(2.0, 1), TypeError, r"vocab_size: expected integers, found 2.0"),
    "states": (lambda: FullNGram(1000, 5), ValueError, r"context_size: expected at most \d+ context states"),
    "state": (lambda: FullNGram(2, 1).next_state(3, 1), ValueError, r"state: .* from 0 to 2, found 3"),
    "label": (lambda: FullNGram(2, 1).walk_states([1, 3]), ValueError, r"labels\[1\]: .* to 2, found 3"),
    "table": (lambda: NextStateTable([[0, 2], [0, 0]]), ValueError, r"next_states\[0\]\[1\]: .* below 2, f"),
    "ragged": (lambda: NextStateTable([[0, 0], [0]]), ValueError, r"next_states\[1\]: expected 2 states, fo"),
    "no table": (lambda: NextStateTable([]), ValueError, r"next_states: expected at least one state"),
    "flat table": (lambda: NextStateTable([0, 0]), TypeError, r"next_states: expected rows"),  # type: ignore[list-item]
    "table state": (lambda: NextStateTable(PARITY).next_state(3, 1), ValueError, r"state: .*found 3"),
    "table label": (lambda: NextStateTable(PARITY).next_state(0, 3), ValueError, r"label: .*found 3"),
    "histories": (
        lambda: NextStateTable.from_histories(2, [[1], [1, 3]]),
        ValueError,
        r"histories\[1\]\[1\]: expected a label from 1 to 2, found 3",
    ),
    "expansions": (lambda: FrameLabelDependent(1 << 17), ValueError, r"max_expansions: expected at most"),
    "hidden": (lambda: joint(hidden_size=0), ValueError, r"hidden_size: expected at least 1, found 0"),
    "table axes": (lambda: TableWeightFn(torch.zeros(2, 3)), ValueError, r"table: expected shape"),
    "table type": (lambda: TableWeightFn(torch.zeros(1, 1, 2).long()), TypeError, r"table: .*int64"),
    "normalize": (
        lambda: LocallyNormalizedWeightFn(joint(), "softmax"),  # type: ignore[arg-type]
        ValueError,
        r"normalize: expected 'hat' or 'log_softmax', found 'softmax'",
    ),
    "nested": (
        lambda: LocallyNormalizedWeightFn(LocallyNormalizedWeightFn(joint())),  # type: ignore[arg-type]
        TypeError,
        r"weight_fn: expected JointWeightFn or TableWeightFn",
    ),
}

SIZES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "context": ({"context": 1}, TypeError, r"context: expected FullNGram or NextStateTable, found 1"),
    "alignment": ({"alignment": "fd"}, TypeError, r"alignment: expected FrameDependent or .* found 'fd'"),
    "weights": ({"weight_fn": torch.nn.Linear(1, 1)}, TypeError, r"weight_fn: expected JointWeightFn, Tab"),
    "vocab": ({"context": FullNGram(3, 1)}, ValueError, r"weight_fn: expected vocab_size 3, found 2"),
    "states": ({"context": FullNGram(2, 2)}, ValueError, r"cacher: expected num_context_states 7, found 3"),
    "embedding": (
        {"weight_fn_cacher": SharedEmbCacher(3, 5)},
        ValueError,
        r"weight_fn_cacher: expected embedding_size 3, found 5",
    ),
    "no cacher": ({"weight_fn_cacher": None}, TypeError, r"weight_fn_cacher: expected SharedEmbCacher or"),
    "table": ({"weight_fn": TableWeightFn(torch.zeros(1, 3, 3))}, TypeError, r"cacher: expected None for a"),
    "rnn": (
        {"weight_fn_cacher": SharedRNNCacher(2, 2, 3)},
        ValueError,
        r"weight_fn_cacher: expected context_size 1, found 2",
    ),
    "rnn of a table": (
        {"context": NextStateTable(PARITY), "weight_fn_cacher": SharedRNNCacher(2, 1, 3)},
        TypeError,
        r"context: expected FullNGram for SharedRNNCacher",
    ),
    "budget": ({"budget": -1}, ValueError, r"budget: expected numbers from 0"),
    "budget type": ({"budget": 1e9}, TypeError, r"budget: expected integers"),
}


@pytest.mark.parametrize(("create", "error", "message"), BAD_COMPONENTS.values(), ids=BAD_COMPONENTS)
def test_bad_components(create: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        create()


@pytest.mark.parametrize(("components", "error", "message"), SIZES.values(), ids=SIZES)
def test_components_that_do_not_match(components: Any, error: type[Exception], message: str) -> None:
    defaults = {
        "context": FullNGram(2, 1),
        "alignment": FrameDependent(),
        "weight_fn": joint(),
        "weight_fn_cacher": SharedEmbCacher(3, 3),
    }
    assert RecognitionLattice(**defaults).context.num_states == 3  # type: ignore[arg-type]
    with pytest.raises(error, match=message):
        RecognitionLattice(**{**defaults, **components})


def test_meta_tensors_have_shapes() -> None:
    lattice, batch = make_lattice(Case(), 29).to("meta"), make_batch(Case(), 29)
    batch = Batch(*(tensor.to("meta") for tensor in batch))
    assert lattice.loss(*batch, reduction="none").shape == (3,)
    assert lattice.best_path(*batch[:2]).labels.shape == (3, 4)
    assert lattice.marginals(*batch[:2]).labels.shape == (3, 4, 3, 2)


def test_another_device_is_refused_or_copied() -> None:
    lattice, batch = make_lattice(Case(), 30), make_batch(Case(), 30)
    parts = (lattice.context, lattice.alignment, lattice.weight_fn, lattice.weight_fn_cacher)
    assert torch.equal(RecognitionLattice(*parts, device="cpu")(*batch), lattice(*batch))
    with pytest.raises(ValueError, match="device: expected 'cpu', found 'cuda'"):
        RecognitionLattice(*parts, device="cuda")(*batch)


# NumPy.


@pytest.mark.parametrize("case", CASES, ids=str)
def test_numpy_equals_torch(case: Case) -> None:
    lattice, batch = make_lattice(case, 31), make_batch(case, 31)
    inputs = inputs_of(lattice, batch)
    weights = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
    losses = lattice.loss(*batch, reduction="none")
    expected = gradients(losses @ weights, inputs)
    parameters = {name: tensor.detach().numpy() for name, tensor in last_parameters(lattice).items()}
    components = (lattice.context, lattice.alignment, parameters)
    arrays = [tensor.detach().numpy() for tensor in batch]
    options: Any = {"normalize": case.normalize}
    result = numpy_lattice.lattice_loss(*components, *arrays, weights=weights.numpy(), **options)
    assert np.array_equal(result.losses, losses.detach().numpy())
    found = [result.frames, *(result.parameters[name] for name in last_parameters(lattice))]
    for array, gradient in zip(found, expected, strict=True):
        assert array is not None and np.array_equal(array, gradient.numpy())
    without = numpy_lattice.lattice_loss(*components, *arrays, **options)
    np.testing.assert_allclose(without.losses, result.losses, rtol=1e-14)
    assert without.frames is None and without.parameters == {}
    for labels in ((), tuple(arrays[2:])):
        path = numpy_lattice.best_path(*components, *arrays[:2], *labels, **options)
        for array, tensor in zip(path, lattice.best_path(*batch[: 2 + len(labels)]), strict=True):
            assert np.array_equal(array, tensor.numpy())
    marginals = numpy_lattice.marginals(*components, *arrays[:2], **options)
    for array, tensor in zip(marginals, lattice.marginals(*batch[:2]), strict=True):
        assert np.array_equal(array, tensor.numpy())


def test_numpy_errors() -> None:
    lattice, batch = make_lattice(Case(), 32), make_batch(Case(), 32)
    parameters = {name: tensor.detach().numpy() for name, tensor in last_parameters(lattice).items()}
    components = (lattice.context, lattice.alignment)
    arrays: Any = [tensor.numpy() for tensor in batch]
    with pytest.raises(ValueError, match=r"missing \['weight_fn/weight_fn/Dense_0/bias'"):
        numpy_lattice.lattice_loss(*components, parameters, *arrays, normalize="hat")
    with pytest.raises(ValueError, match="normalize: expected 'hat', 'log_softmax' or None, found 'softmax'"):
        numpy_lattice.lattice_loss(*components, parameters, *arrays, normalize="softmax")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_labels: expected an array with labels, found None"):
        numpy_lattice.best_path(*components, parameters, *arrays[:3])
    with pytest.raises(TypeError, match="num_frames: expected integers"):
        numpy_lattice.marginals(*components, parameters, arrays[0], arrays[1].astype(float))
    transposed = {**parameters, "weight_fn/Dense_1/kernel": parameters["weight_fn/Dense_1/kernel"].T}
    with pytest.raises(ValueError, match=r"Dense_1/kernel: expected shape \[4, 2\], found \[2, 4\]"):
        numpy_lattice.lattice_loss(*components, transposed, *arrays)


def lattice_losses(seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    shapes = [(16, 32), (16, 32), (32,), (32, 1), (1,), (32, 20), (20,), (21, 16)]
    floats = [random.normal(size=shape) for shape in shapes]
    parameters = dict(zip(numpy_lattice.parameter_names(), floats, strict=True))
    batch = (
        random.normal(size=(2, 30, 16)),
        np.array([30, 20]),
        random.integers(1, 21, (2, 5)),
        np.array([5, 3]),
    )
    components = (FullNGram(20, 1), FrameDependent(), parameters)
    return numpy_lattice.lattice_loss(*components, *batch, weights=np.ones(2)).losses


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_forked_children_and_threads_compute_the_same() -> None:
    expected = lattice_losses(0)
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(2, context) as processes:
        for found in processes.map(lattice_losses, [0] * 8, timeout=120):
            assert np.array_equal(found, expected)
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        for found in threads.map(lattice_losses, [0] * 40):
            assert np.array_equal(found, expected)


# Golden vectors of LAST.


def golden_folder() -> Path | None:
    folders = [parent / "shared" / "golden" / "last" for parent in Path(__file__).resolve().parents]
    return next((folder for folder in folders if folder.is_dir()), None)


GOLDEN = golden_folder()
GOLDEN_FILES = sorted(GOLDEN.glob("*_f*d*.json")) if GOLDEN else []


def test_golden_vectors_exist() -> None:
    if GOLDEN is None:
        if os.environ.get("CI") == "true":
            pytest.fail("the golden vectors of LAST are missing under CI=true")
        pytest.skip("the golden vectors of LAST are not there: shared/golden/last next to the repository")
    assert len(GOLDEN_FILES) >= 50


def golden_lattice(case: dict[str, Any], tensors: dict[str, Tensor]) -> RecognitionLattice:
    context = FullNGram(case["V"], case["n"])
    alignment = FrameDependent() if case["K"] is None else FrameLabelDependent(case["K"])
    if case["weights"] == "table":
        table = torch.nn.Parameter(tensors["in/table"])
        return RecognitionLattice(context, alignment, TableWeightFn(table))
    weight_fn: Any = JointWeightFn(
        case["V"], frame_size=case["F"], embedding_size=case["E"], hidden_size=case["H"]
    )
    cacher: Any = SharedEmbCacher(context.num_states, case["E"])
    if case["weights"] == "rnn":
        cacher = SharedRNNCacher(case["V"], case["n"], case["E"], case["RE"])
    if "local" in case:
        weight_fn = LocallyNormalizedWeightFn(weight_fn, case["local"])
    lattice = RecognitionLattice(context, alignment, weight_fn, cacher).to(tensors["in/frames"].dtype)
    prefix = "in/params/"
    parameters = {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
    lattice.load_state_dict({name.replace("/", "."): tensor for name, tensor in parameters.items()})
    return lattice


@pytest.mark.parametrize("path", GOLDEN_FILES, ids=lambda path: path.stem)
def test_golden_vectors(path: Path) -> None:
    case = json.loads(path.read_text())["case"]
    tensors = {name: torch.from_numpy(x) for name, x in load_file(path.with_suffix(".safetensors")).items()}
    exact = load_file(str(path.with_suffix(".safetensors")).replace(".f32.", ".f64."))
    exact = {name: torch.from_numpy(x) for name, x in exact.items()}
    is_single = ".f32." in str(path)
    tolerances = {"values": (2e-5, 1e-5 * 4), "gradients": (1e-4, 1e-5)}
    if not is_single:
        tolerances = dict.fromkeys(tolerances, (1e-10, 1e-12))

    def near(name: str, found: Tensor, kind: str) -> None:
        rtol, atol = tolerances[kind]
        expected = exact[name].reshape(found.shape)
        torch.testing.assert_close(
            found.double(), expected.double(), rtol=rtol, atol=atol, msg=lambda m: f"{name}: {m}"
        )

    lattice = golden_lattice(case, tensors)
    batch_axes = case["batch"]
    num_frames, num_labels = (
        tensors[f"in/{name}"].reshape(batch_axes) for name in ("num_frames", "num_labels")
    )
    batch = Batch(tensors["in/frames"].requires_grad_(), num_frames, tensors["in/labels"], num_labels)
    cotangent = tensors["in/loss_cotangent"].reshape(batch_axes)
    named = {name: tensor for name, tensor in last_parameters(lattice).items()}

    def near_gradients(name: str, value: Tensor) -> None:
        inputs = [batch.frames, *named.values()]
        found = gradients((value * cotangent)[value.isfinite()].sum(), inputs)
        if case["weights"] == "table":
            return near(f"out/grad_{name}/table", found[1], "gradients")
        near(f"out/grad_{name}/frames", found[0], "gradients")
        for parameter, gradient in zip(named, found[1:], strict=True):
            near(f"out/grad_{name}/params/{parameter}", gradient, "gradients")

    sums = {"denom_log": lattice.log_sum(*batch[:2]), "numer_log": lattice.log_sum(*batch)}
    for name, value in sums.items():
        near(f"out/{name}", value, "values")
        near_gradients(name, value)
    losses = lattice.loss(*batch, reduction="none")
    near("out/loss", losses, "values")
    if losses.isfinite().all():
        near_gradients("loss", losses)
    marginals = lattice.marginals(*batch[:2])
    near("out/blank_marginals", marginals.blank, "gradients")
    near("out/lexical_marginals", marginals.labels, "gradients")
    best = lattice.best_path(*batch[:2])
    near("out/shortest_path_weight", best.score, "values")
    near("out/numer_tropical", lattice.best_path(*batch).score, "values")
    expected = exact["out/shortest_path_alignment_labels"].reshape(*batch_axes, -1)
    assert torch.equal(
        alignment_labels(best, case["T"], 1 if case["K"] is None else case["K"] + 1), expected.long()
    )


def alignment_labels(path: BestPath, frames: int, alignment_states: int) -> Tensor:
    """Labels by frame and alignment state ``[B.., T A]``, as LAST returns them."""
    batch = path.num_labels.shape
    rows = torch.zeros(batch.numel(), frames, alignment_states, dtype=torch.int64)
    flat = [tensor.reshape(batch.numel(), -1).tolist() for tensor in (path.labels, path.frames)]
    for row, labels, times in zip(rows, *flat, strict=True):
        for label, t in zip(labels, times, strict=True):
            if t >= 0:
                row[t, int((row[t] != 0).sum())] = label
    return rows.reshape(*batch, -1)


def test_the_order_of_parameters_is_complete() -> None:
    for kind, case in (("joint", Case()), ("joint_rnn", Case("rnn"))):
        lattice = make_lattice(case, 33)
        arguments, _ = lattice._arguments(*make_batch(case, 33))
        by_name = dict(zip(PARAMETER_NAMES[kind], arguments[4], strict=True))  # type: ignore[index]
        for name, tensor in last_parameters(lattice).items():
            assert by_name[name].data_ptr() == tensor.data_ptr()
