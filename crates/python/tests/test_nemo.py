"""panda_rnnt.nemo and panda_rnnt.warp_transducer against dense references."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import panda_rnnt.nemo
import panda_rnnt.warp_transducer
import pytest
import reference
import torch
import warprnnt_pytorch
from panda_rnnt.nemo import (
    MultiblankRNNTLoss,
    RNNTLoss,
    TDTLoss,
    multiblank_rnnt_loss,
    rnnt_loss,
    tdt_loss,
)
from torch import Tensor

CLASSES = 7
Losses = tuple[Any, dict[str, Any]]

CASES: list[Losses] = [
    (RNNTLoss, {}),
    (RNNTLoss, {"fastemit_lambda": 0.3}),
    (RNNTLoss, {"fastemit_lambda": 0.3, "clamp": 0.1}),
    (MultiblankRNNTLoss, {"big_blank_durations": [2, 4], "sigma": 0.1}),
    (MultiblankRNNTLoss, {"big_blank_durations": [3], "fastemit_lambda": 0.2, "clamp": 0.05}),
    (MultiblankRNNTLoss, {"big_blank_durations": None, "sigma": 0.1}),
    (TDTLoss, {"durations": [0, 1, 2, 4], "sigma": 0.05}),
    (TDTLoss, {"durations": [1, 2], "fastemit_lambda": 0.5}),
    (TDTLoss, {"durations": [0, 1, 2], "fastemit_lambda": 0.1, "clamp": 0.1}),
    (panda_rnnt.warp_transducer.RNNTLoss, {}),
    (panda_rnnt.warp_transducer.RNNTLoss, {"fastemit_lambda": 0.3}),
]


def random_call(module: Any, options: dict[str, Any], seed: int) -> tuple[Tensor, reference.Batch, int]:
    """Scores in float64, indices, and the blank: the last token."""
    durations = len(options.get("durations", ()))
    blank = CLASSES - 1
    blanks = [blank - index for index in range(1 + len(options.get("big_blank_durations") or ()))]
    batch = reference.random_batch(
        seed, batch=1 + seed % 4, classes=CLASSES, durations=durations, blanks=blanks, frames=5 + seed % 3
    )
    return 2 * reference.scores(batch), batch, blank


def dense_reference(
    acts: Tensor, batch: reference.Batch, blank: int, reduction: str | None, options: dict[str, Any]
) -> list[Tensor]:
    """Value, and gradient of its weighted sum, by the definitions of NeMo's losses."""
    acts = acts.detach().requires_grad_()
    durations, fastemit = options.get("durations"), options.get("fastemit_lambda", 0.0)
    classes = acts.shape[-1] - len(durations or ())
    tokens = acts[..., :classes].log_softmax(-1) - options.get("sigma", 0.0)
    big_blanks = list(enumerate(options.get("big_blank_durations") or ()))
    # FastEmit: the derivatives of labels are larger, the values the same.
    is_label = torch.ones(classes, dtype=torch.bool)
    is_label[[blank, *(blank - 1 - index for index, _ in big_blanks)]] = False
    tokens = tokens + fastemit * torch.where(is_label, tokens - tokens.detach(), 0.0)
    if durations:
        scores = acts[..., classes:].log_softmax(-1)
        blanks = [(blank, frames) for frames in durations]
        arcs = reference.Arcs(tokens, blanks, durations, scores)
    else:
        blanks = [(blank, 1), *((blank - 1 - index, frames) for index, frames in big_blanks)]
        arcs = reference.Arcs(tokens, blanks, [0])
    losses = reference.path_losses(arcs, batch)
    finite = losses.where(losses.isfinite(), 0.0).sum()
    (gradient,) = torch.autograd.grad(finite, acts)
    if "clamp" in options:
        gradient[..., :classes] = gradient[..., :classes].clamp(-options["clamp"], options["clamp"])
    losses = (1 + fastemit) * losses.detach()
    if reduction == "none" or reduction is None:
        weights = 1.0 + torch.arange(len(losses)).double()
        return [losses, gradient * weights[:, None, None, None]]
    scale = 1 / len(losses) if reduction == "mean" else 1.0
    # As in value_and_gradient, the gradient of an infinite sum is 0.
    scaled = gradient * scale if losses.isfinite().all() else torch.zeros_like(gradient)
    return [losses.sum()[None] * scale, scaled]


def value_and_gradient(loss: Any, acts: Tensor, indices: list[Tensor]) -> list[Tensor]:
    acts = acts.detach().clone().requires_grad_()
    value = loss(acts, *indices)
    weights = 1.0 + torch.arange(value.numel()).to(value)
    finite = torch.where(value.isfinite(), value * weights, 0.0).sum()
    (gradient,) = torch.autograd.grad(finite, acts)
    return [value.detach(), gradient]


@pytest.mark.parametrize("seed", range(9))
@pytest.mark.parametrize(("module", "options"), CASES, ids=str)
def test_losses_and_gradients_equal_dense_ones(module: Any, options: dict[str, Any], seed: int) -> None:
    acts, batch, blank = random_call(module, options, seed)
    reduction = ["mean", "sum", "none", None][seed % 4]
    expected = dense_reference(acts, batch, blank, reduction, options)
    found = value_and_gradient(module(blank=blank, reduction=reduction, **options), acts, batch.indices())
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("module", "options"), CASES, ids=str)
def test_single_and_half_precision(module: Any, options: dict[str, Any]) -> None:
    acts, batch, blank = random_call(module, options, 1)
    loss = module(blank=blank, reduction="mean", **options)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 1e-2), (torch.bfloat16, 5e-2)):
        rounded = acts.to(dtype)
        found = value_and_gradient(loss, rounded, [index.int() for index in batch.indices()])
        assert all(tensor.dtype == dtype for tensor in found)
        expected = dense_reference(rounded.double(), batch, blank, "mean", options)
        expected = [tensor.to(dtype) for tensor in expected]
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("module", "options"), CASES, ids=str)
def test_padding_and_strides_do_not_matter(module: Any, options: dict[str, Any]) -> None:
    acts, batch, blank = random_call(module, options, 3)
    loss = module(blank=blank, reduction="none", **options)
    expected = value_and_gradient(loss, acts, batch.indices())
    is_padding = torch.zeros(acts.shape[:3], dtype=torch.bool)
    for b in range(len(acts)):
        is_padding[b, batch.logit_lengths[b] :] = True
        is_padding[b, :, batch.target_lengths[b] + 1 :] = True
    acts = acts.detach().clone()
    acts[is_padding] = torch.nan
    strided = acts.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    mixed = [batch.targets.int(), batch.logit_lengths, batch.target_lengths.int()]
    found = value_and_gradient(loss, strided, mixed)
    assert is_padding.any() and (found[1][is_padding] == 0).all()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(("module", "options"), CASES, ids=str)
def test_copies_and_compiled_modules(module: Any, options: dict[str, Any]) -> None:
    acts, batch, blank = random_call(module, options, 2)
    loss = module(blank=blank, **options)
    expected = value_and_gradient(loss, acts, batch.indices())
    for copied in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        torch.testing.assert_close(
            value_and_gradient(copied, acts, batch.indices()), expected, rtol=0, atol=0
        )
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(value_and_gradient(compiled, acts, batch.indices()), expected)


def test_functions_equal_modules() -> None:
    for function, module, options in (
        (rnnt_loss, RNNTLoss, {"clamp": 0.1}),
        (multiblank_rnnt_loss, MultiblankRNNTLoss, {"big_blank_durations": [2], "sigma": 0.1}),
        (tdt_loss, TDTLoss, {"durations": [0, 1], "sigma": 0.1}),
        (panda_rnnt.warp_transducer.rnnt_loss, panda_rnnt.warp_transducer.RNNTLoss, {}),
    ):
        acts, batch, blank = random_call(module, options, 5)
        found = function(acts, *batch.indices(), blank=blank, **options)
        assert torch.equal(found, module(blank, **options)(acts, *batch.indices())) and found.shape == (1,)


def test_omega_is_the_probability_of_the_rnnt_loss() -> None:
    options = {"durations": [0, 1, 2], "sigma": 0.1}
    acts, batch, blank = random_call(TDTLoss, options, 4)
    tdt = value_and_gradient(TDTLoss(blank, **options), acts, batch.indices())
    rnnt = value_and_gradient(RNNTLoss(blank), acts[..., :CLASSES], batch.indices())
    rnnt[1] = torch.nn.functional.pad(rnnt[1], (0, 3))
    for omega, expected in ((0.0, tdt), (1.0, rnnt)):
        loss = TDTLoss(blank, omega=omega, **options)
        torch.testing.assert_close(value_and_gradient(loss, acts, batch.indices()), expected)
    for omega in (-1.0, 2.0, float("nan")):
        with pytest.raises(ValueError, match="omega: expected a number from 0 to 1, found"):
            TDTLoss(blank, omega=omega, **options)(acts, *batch.indices())
    random.seed(0)
    draws = [random.uniform(0.0, 1.0) < 0.3 for _ in range(20)]
    random.seed(0)
    loss = TDTLoss(blank, omega=0.3, **options)
    for is_rnnt in draws:
        expected_value = (rnnt if is_rnnt else tdt)[0]
        torch.testing.assert_close(loss(acts, *batch.indices()), expected_value)


def test_reduction_may_change_as_in_nemo() -> None:
    acts, batch, blank = random_call(RNNTLoss, {}, 3)
    loss = warprnnt_pytorch.RNNTLoss(blank=blank, reduction="none")
    loss.reduction = None
    labels, act_lens, label_lens = batch.indices()
    found = loss(acts=acts, labels=labels, act_lens=act_lens, label_lens=label_lens)
    assert found.shape == (4,)
    total = warprnnt_pytorch.rnnt_loss(acts, labels, act_lens, label_lens, blank, "sum")
    torch.testing.assert_close(total, found.sum()[None])


def test_no_path_gives_infinity_and_no_gradient() -> None:
    acts = torch.randn(2, 3, 3, 6, dtype=torch.float64, requires_grad=True)
    indices = (torch.tensor([[1, 2], [1, 2]]), torch.tensor([2, 3]), torch.tensor([2, 1]))
    for clamp in (-1.0, 0.1):
        losses = TDTLoss(3, [1, 2], "none", clamp=clamp)(acts, *indices)
        assert losses.isinf().tolist() == [True, False]
        (gradient,) = torch.autograd.grad(losses.sum(), acts)
        assert (gradient[0] == 0).all() and gradient.isfinite().all() and (gradient[1, ..., 4:] != 0).any()


def test_names_of_the_originals() -> None:
    assert panda_rnnt.nemo.RNNTLossNumba is RNNTLoss
    assert panda_rnnt.nemo.MultiblankRNNTLossNumba is MultiblankRNNTLoss
    assert panda_rnnt.nemo.TDTLossNumba is TDTLoss
    assert warprnnt_pytorch.RNNTLoss is panda_rnnt.warp_transducer.RNNTLoss
    assert warprnnt_pytorch.__all__ == ["RNNTLoss", "rnnt_loss"]


BAD_CALLS: list[tuple[str, dict[str, Any], dict[str, Any], type[Exception], str]] = [
    ("reduction", {}, {"reduction": "mean_batch"}, ValueError, r"reduction: .*found 'mean_batch'"),
    ("clamp", {}, {"clamp": -1.0}, ValueError, r"clamp: expected at least 0, found -1.0"),
    ("blank", {}, {"blank": 4}, ValueError, r"blank: expected a class from 0 to 3, found 4"),
    ("negative blank", {}, {"blank": -1}, ValueError, r"blank: .*found -1"),
    ("fastemit", {}, {"fastemit_lambda": -0.5}, ValueError, r"fastemit"),
    ("label", {"labels": [[1, 4], [3, 0]]}, {}, ValueError, r"labels\[0, 1\]: .*0 to 3, found 4"),
    ("label = blank", {"labels": [[1, 0], [3, 0]]}, {}, ValueError, r"labels\[0, 1\].*found 0, a blank"),
    ("frames", {"act_lens": [2, 2]}, {}, ValueError, r"act_lens: expected 3 .*acts.*found 2"),
    ("long", {"act_lens": [4, 2]}, {}, ValueError, r"act_lens: expected 3 .*found 4"),
    ("labels", {"label_lens": [1, 1]}, {}, ValueError, r"label_lens: expected 2 .*acts.*found 1"),
    ("no frames", {"act_lens": [3, 0]}, {}, ValueError, r"act_lens\[1\]: .*found 0"),
    ("few lengths", {"label_lens": [2]}, {}, ValueError, r"label_lens: expected 2 utterances, found 1"),
    ("rank", {"acts": torch.zeros(3, 3, 4)}, {}, ValueError, r"acts: expected 4 axes"),
    ("float", {"labels": [[1.0, 2.0], [3.0, 0.0]]}, {}, TypeError, r"labels: expected int32 or int64"),
    ("integer", {"acts": torch.zeros(2, 3, 3, 4).int()}, {}, TypeError, r"acts: expected float16"),
    ("meta", {"act_lens": torch.zeros(2, device="meta")}, {}, ValueError, r"act_lens: expected a tensor on"),
]


@pytest.mark.parametrize(
    ("changes", "options", "error", "message"), [c[1:] for c in BAD_CALLS], ids=[c[0] for c in BAD_CALLS]
)
def test_bad_calls(
    changes: dict[str, Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments: dict[str, Any] = {
        "acts": torch.zeros(2, 3, 3, 4, requires_grad=True),
        "labels": [[1, 2], [3, 0]],
        "act_lens": [3, 2],
        "label_lens": [2, 1],
        **changes,
    }
    arguments = {
        name: torch.tensor(value) if isinstance(value, list) else value for name, value in arguments.items()
    }
    functions = [rnnt_loss] if "clamp" in options else [rnnt_loss, panda_rnnt.warp_transducer.rnnt_loss]
    for function in functions:
        with pytest.raises(error, match=message) as caught:
            function(**arguments, **options)
        copied = pickle.loads(pickle.dumps(caught.value))
        assert type(copied) is type(caught.value) and str(copied) == str(caught.value)


def test_operation_passes_opcheck() -> None:
    acts, batch, blank = random_call(RNNTLoss, {}, 1)
    options = panda_rnnt.LossOptions(blank=blank).to_json()
    arguments = (acts.detach().requires_grad_(), *batch.indices(), options)
    torch.library.opcheck(torch.ops.panda_rnnt.warp_losses.default, arguments)


def test_second_derivatives_are_refused() -> None:
    acts, batch, blank = random_call(RNNTLoss, {}, 1)
    acts = acts.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(rnnt_loss(acts**3, *batch.indices(), blank), acts, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(gradient.sum(), acts)
