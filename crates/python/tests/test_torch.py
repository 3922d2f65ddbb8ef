"""Losses and gradients of panda_rnnt.torch against dense references, and its operations."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import panda_rnnt
import pytest
import reference
import torch
import torch.utils.checkpoint
from panda_rnnt.torch import RnntLoss, TransducerLoss, rnnt_loss, skipped_sites, transducer_loss
from torch import Tensor
from torch.autograd import forward_ad

LOSSES: list[dict[str, Any]] = [
    {"loss": "rnnt"},
    {"loss": "modified"},
    {"loss": "hat"},
    {"loss": "tdt", "durations": (0, 1, 2, 4), "sigma": 0.05},
    {"loss": "tdt", "durations": (1, 2)},
    {"loss": "multi_blank", "durations": (2, 3), "big_blanks": (5, 6), "sigma": 0.1},
]


def batch_for(options: dict[str, Any], seed: int, **sizes: Any) -> reference.Batch:
    durations = len(options.get("durations", ())) if options["loss"] == "tdt" else 0
    blanks = (0, *options.get("big_blanks", ()))
    return reference.random_batch(seed, durations=durations, blanks=blanks, **sizes)


def dense(batch: reference.Batch, options: dict[str, Any]) -> Tensor:
    return reference.dense_losses(
        reference.scores(batch),
        batch,
        options["loss"],
        options.get("durations", ()),
        options.get("big_blanks", ()),
        options.get("sigma", 0.0),
    )


def finite_sum(losses: Tensor) -> Tensor:
    return losses.where(losses.isfinite(), 0.0).sum()


@pytest.mark.parametrize("options", LOSSES, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_fused_loss_equals_dense_loss(options: dict[str, Any], seed: int) -> None:
    batch = batch_for(options, seed)
    floats = [tensor.requires_grad_() for tensor in batch.floats()]
    expected = dense(batch, options)
    expected_gradients = torch.autograd.grad(finite_sum(expected), floats)
    losses = transducer_loss(*floats, *batch.indices(), reduction="none", **options)
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)
    for name, gradients in {
        "none": torch.autograd.grad(finite_sum(losses), floats),
        "sum": torch.autograd.grad(
            transducer_loss(*floats, *batch.indices(), reduction="sum", zero_infinity=True, **options), floats
        ),
    }.items():
        for found, gradient in zip(gradients, expected_gradients, strict=True):
            torch.testing.assert_close(
                found, gradient, rtol=1e-11, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.parametrize("options", [options for options in LOSSES if options["loss"] != "hat"], ids=str)
def test_loss_of_scores_equals_dense_loss(options: dict[str, Any]) -> None:
    batch = batch_for(options, 3)
    logits = reference.scores(batch).requires_grad_()
    arguments = (batch, options["loss"], options.get("durations", ()), options.get("big_blanks", ()))
    expected = reference.dense_losses(logits, *arguments, options.get("sigma", 0.0))
    losses = rnnt_loss(logits, *batch.indices(), reduction="none", **options)
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)
    (expected_gradient,) = torch.autograd.grad(finite_sum(expected), logits)
    (gradient,) = torch.autograd.grad(finite_sum(losses), logits)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-11, atol=1e-11)
    summed = rnnt_loss(logits, *batch.indices(), reduction="sum", zero_infinity=True, **options)
    (gradient,) = torch.autograd.grad(summed, logits)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-11, atol=1e-11)


def test_ctc_equals_torch() -> None:
    batch = reference.random_batch(1, frames=9)
    floats = [batch.encoded, batch.weight, batch.bias]
    for tensor in floats:
        tensor.requires_grad_()
    scores = batch.encoded @ batch.weight.T + batch.bias
    expected = torch.nn.functional.ctc_loss(
        scores.log_softmax(-1).transpose(0, 1),
        batch.targets.clamp(min=1),
        batch.logit_lengths,
        batch.target_lengths,
        reduction="none",
        zero_infinity=True,
    )
    losses = transducer_loss(
        batch.encoded,
        None,
        batch.weight,
        batch.bias,
        *batch.indices(),
        loss="ctc",
        reduction="none",
        zero_infinity=True,
    )
    torch.testing.assert_close(losses, expected)
    gradients = torch.autograd.grad(finite_sum(losses), floats)
    for found, gradient in zip(gradients, torch.autograd.grad(finite_sum(expected), floats), strict=True):
        torch.testing.assert_close(found, gradient)
    of_scores = rnnt_loss(scores, *batch.indices(), loss="ctc", reduction="none", zero_infinity=True)
    torch.testing.assert_close(of_scores, expected)


@pytest.mark.parametrize("reduction", ["sum", "mean", "mean_per_target", "mean_volume"])
def test_reductions(reduction: Any) -> None:
    batch = reference.random_batch(2)
    losses = transducer_loss(*batch.floats(), *batch.indices(), reduction="none")
    lengths = batch.target_lengths.double()
    weights = {
        "sum": torch.ones(3).double(),
        "mean": torch.full((3,), 1 / 3).double(),
        "mean_per_target": 1 / (3 * lengths.clamp(min=1)),
        "mean_volume": torch.ones(3).double() / lengths.sum(),
    }[reduction]
    expected = (losses * weights).sum()
    torch.testing.assert_close(
        transducer_loss(*batch.floats(), *batch.indices(), reduction=reduction), expected
    )
    batch.weight.requires_grad_()
    value = transducer_loss(*batch.floats(), *batch.indices(), reduction=reduction)
    torch.testing.assert_close(value, expected)
    (gradient,) = torch.autograd.grad(value, batch.weight)
    losses = transducer_loss(*batch.floats(), *batch.indices(), reduction="none")
    (expected_gradient,) = torch.autograd.grad((losses * weights).sum(), batch.weight)
    torch.testing.assert_close(gradient, expected_gradient)


@pytest.mark.parametrize("options", LOSSES, ids=str)
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_gradcheck(options: dict[str, Any], reduction: Any) -> None:
    batch = batch_for(options, 4, batch=2, frames=4, labels=2)
    batch.logit_lengths.fill_(4)
    floats = [tensor.requires_grad_() for tensor in batch.floats()]

    def function(*tensors: Tensor) -> Tensor:
        return transducer_loss(*tensors, *batch.indices(), reduction=reduction, **options)

    assert torch.autograd.gradcheck(function, floats)
    if options["loss"] == "hat":
        return  # A factored blank needs a head.
    logits = reference.scores(batch).detach().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda logits: rnnt_loss(logits, *batch.indices(), reduction=reduction, **options), logits
    )


def test_opcheck() -> None:
    batch = reference.random_batch(5, dtype=torch.float32)
    floats = [tensor.requires_grad_() for tensor in batch.floats()]
    text = panda_rnnt.LossOptions().to_json()
    weights = torch.ones(3, dtype=torch.float64)
    operations = torch.ops.panda_rnnt
    logits = reference.scores(batch).detach().requires_grad_()
    ctc = panda_rnnt.LossOptions(loss="ctc").to_json()
    without, indices = (floats[0], None, floats[2], None), (*batch.indices(), None)
    weighted_tokens = (*batch.indices(), torch.ones(3, 4, dtype=torch.float64))
    for operation, arguments in [
        (operations.joint_loss_sum, (*floats, *indices, weights, text, False)),
        (operations.joint_losses, (*floats, *indices, text)),
        (operations.joint_losses, (*floats, *weighted_tokens, text)),
        (operations.joint_loss_sum, (*without, *indices, weights, ctc, True)),
        (operations.score_loss_sum, (logits, *indices, weights, text, False)),
        (operations.score_losses, (logits, *indices, text)),
    ]:
        torch.library.opcheck(operation.default, arguments)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_compile_traces_the_whole_loss(reduction: Any) -> None:
    batch = reference.random_batch(6, dtype=torch.float32)
    floats = [tensor.requires_grad_() for tensor in batch.floats()]

    def function(*tensors: Tensor) -> Tensor:
        value = transducer_loss(*tensors, *batch.indices(), reduction=reduction, fastemit=0.01)
        return value.sum() + rnnt_loss(reference.scores(batch), *batch.indices(), reduction=reduction).sum()

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    expected, found = function(*floats), compiled(*floats)
    torch.testing.assert_close(found, expected)
    pairs = zip(torch.autograd.grad(found, floats), torch.autograd.grad(expected, floats), strict=True)
    for gradient, expected_gradient in pairs:
        torch.testing.assert_close(gradient, expected_gradient)


def test_compile_with_dynamic_shapes_and_numbers() -> None:
    batch = reference.random_batch(6, dtype=torch.float32)

    def function(batch: reference.Batch, blank: int, fastemit: float, durations: list[int]) -> Tensor:
        floats, indices = batch.floats(), batch.indices()
        value = transducer_loss(*floats, *indices, blank=blank, fastemit=fastemit, clamp=fastemit)
        options: dict[str, Any] = {"loss": "tdt", "durations": durations, "reduction": "none"}
        value = value + transducer_loss(*floats, *indices, **options, blank=blank).sum()
        return value + rnnt_loss(reference.scores(batch), *indices, blank=blank, fastemit=fastemit)

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="eager")
    for frames, blank, fastemit, durations in [(6, 0, 0.01, [1, 2]), (9, 0, 0.5, [1, 3])]:
        batch = reference.random_batch(6, frames=frames, classes=9, dtype=torch.float32)
        batch.targets.clamp_(max=6)
        batch.weight.requires_grad_()
        found = compiled(batch, blank, fastemit, durations)
        expected = function(batch, blank, fastemit, durations)
        torch.testing.assert_close(found, expected)
        gradients = [torch.autograd.grad(value, batch.weight)[0] for value in (found, expected)]
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("options", LOSSES, ids=str)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "mean_per_target", "mean_volume"])
def test_weights_multiply_the_losses(options: dict[str, Any], reduction: Any) -> None:
    batch = batch_for(options, 17)
    floats = [tensor.requires_grad_() for tensor in batch.floats()]
    weights = torch.tensor([0.5, 0.0, -2.0], dtype=torch.float64)
    lengths = batch.target_lengths.double()
    factors = {
        "none": torch.ones(3).double(),
        "sum": torch.ones(3).double(),
        "mean": torch.full((3,), 1 / 3, dtype=torch.float64),
        "mean_per_target": 1 / (3 * lengths.clamp(min=1)),
        "mean_volume": torch.ones(3).double() / lengths.sum(),
    }[reduction]
    losses = dense(batch, options)
    expected = losses.where(losses.isfinite(), 0.0) * factors * weights
    if reduction != "none":
        expected = expected.sum()
    arguments = {"reduction": reduction, "zero_infinity": True, **options}
    found = transducer_loss(*floats, *batch.indices(), weights=weights, **arguments)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    pairs = zip(
        torch.autograd.grad(found.sum(), floats), torch.autograd.grad(expected.sum(), floats), strict=True
    )
    for gradient, expected_gradient in pairs:
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-11, atol=1e-11)
    # Weights may need gradients too: those are the losses.
    trained = weights.clone().requires_grad_()
    found = transducer_loss(*floats, *batch.indices(), weights=trained, **arguments)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    (gradient,) = torch.autograd.grad(found.sum(), trained)
    torch.testing.assert_close(gradient, losses.where(losses.isfinite(), 0.0).detach() * factors)


def test_an_utterance_of_weight_zero_may_have_no_path() -> None:
    batch = reference.random_batch(0)
    batch.encoded.requires_grad_()
    indices = (batch.targets, torch.tensor([3, 6, 6]), torch.tensor([4, 2, 2]))
    for reduction in ("none", "sum"):
        arguments: dict[str, Any] = {"loss": "modified", "reduction": reduction}
        weights = torch.tensor([0.0, 1.0, 1.0])
        loss = transducer_loss(*batch.floats(), *indices, weights=weights, **arguments).sum()
        assert loss.isfinite()
        (gradient,) = torch.autograd.grad(loss, batch.encoded)
        assert gradient.isfinite().all() and (gradient[0] == 0).all()
    logits = reference.scores(batch).detach()
    assert rnnt_loss(logits, *indices, weights=torch.zeros(3), loss="modified") == 0.0


@pytest.mark.parametrize("options", LOSSES[:2], ids=str)
def test_token_weights_multiply_the_gradients_of_labels(options: dict[str, Any]) -> None:
    batch = batch_for(options, 18)
    floats = [tensor.requires_grad_() for tensor in batch.floats()]
    weights = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)).double() * 2
    padded_weights = weights.clone()
    arcs = reference.arcs(reference.scores(batch), options["loss"], (), ())
    tokens = arcs.tokens.clone()
    for b, length in enumerate(batch.target_lengths.tolist()):
        for u in range(length):
            label = batch.targets[b, u]
            score = arcs.tokens[b, :, u, label]
            # The same value, and a gradient times the weight.
            tokens[b, :, u, label] = weights[b, u] * score + ((1 - weights[b, u]) * score).detach()
        padded_weights[b, length:] = torch.nan
    losses = reference.path_losses(dataclasses.replace(arcs, tokens=tokens), batch)
    expected = torch.autograd.grad(finite_sum(losses), floats)
    arguments = {"token_weights": padded_weights, "zero_infinity": True, "reduction": "sum", **options}
    found = transducer_loss(*floats, *batch.indices(), **arguments)
    torch.testing.assert_close(found, finite_sum(losses))
    for gradient, expected_gradient in zip(torch.autograd.grad(found, floats), expected, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-11, atol=1e-11)
    scored = rnnt_loss(reference.scores(batch), *batch.indices(), **arguments)
    for gradient, expected_gradient in zip(torch.autograd.grad(scored, floats), expected, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("options", [LOSSES[0], LOSSES[2], LOSSES[3]], ids=str)
def test_skipped_sites_bound_the_error(options: dict[str, Any]) -> None:
    batch = batch_for(options, 19, frames=20, labels=10)
    with torch.no_grad():
        for tensor in batch.floats():
            tensor *= 2
    floats = [tensor.requires_grad_() for tensor in batch.floats()]
    weights = torch.tensor([0.5, 1.0, 3.0])
    loss_options = panda_rnnt.LossOptions(skip=0.02, **options)
    arguments = {"reduction": "mean", "weights": weights}
    module = TransducerLoss(loss_options)
    found = torch.autograd.grad(module(*floats, *batch.indices(), weights=weights), floats)
    exact = torch.autograd.grad(
        transducer_loss(*floats, *batch.indices(), zero_infinity=True, **arguments, **options), floats
    )
    skipped = skipped_sites(*floats, *batch.indices(), options=loss_options, **arguments)  # type: ignore[arg-type]
    assert 0 < skipped.sites < 20 * 11 * 3
    limit = 0.02 * ((batch.logit_lengths + batch.target_lengths) * weights).sum() / 3
    assert 0 < skipped.mass <= limit * (1 + 1e-9)
    errors = [(a - b).abs() for a, b in zip(found, exact, strict=True)]
    assert 0 < float(errors[3].sum()) <= skipped.bias_error
    assert 0 < float(errors[2].max()) <= skipped.weight_error
    assert 0 < max(float(errors[0].max()), float(errors[1].max())) <= skipped.input_error
    without = skipped_sites(*floats, *batch.indices(), options=panda_rnnt.LossOptions(**options))
    assert without.sites == 0 and without.mass == without.weight_error == 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_converted(dtype: torch.dtype) -> None:
    batch = reference.random_batch(7, dtype=dtype)
    floats = [tensor.requires_grad_() for tensor in batch.floats()]
    loss = transducer_loss(*floats, *batch.indices())
    assert loss.dtype == torch.float32
    exact = transducer_loss(*[tensor.detach().float() for tensor in floats], *batch.indices())
    torch.testing.assert_close(loss, exact)
    loss.backward()
    assert all(tensor.grad is not None and tensor.grad.dtype == dtype for tensor in floats)


def test_padding_has_no_influence_and_no_gradient() -> None:
    batch = reference.random_batch(8, dtype=torch.float32)
    expected = transducer_loss(*batch.floats(), *batch.indices(), reduction="none")
    for b in range(3):
        batch.encoded[b, batch.logit_lengths[b] :] = torch.nan
        batch.predicted[b, batch.target_lengths[b] + 1 :] = torch.nan
    floats = [tensor.requires_grad_() for tensor in batch.floats()]
    losses = transducer_loss(*floats, *batch.indices(), reduction="none")
    assert torch.equal(losses, expected)
    losses.sum().backward()
    for b in range(3):
        assert batch.encoded.grad is not None and batch.predicted.grad is not None
        assert (batch.encoded.grad[b, batch.logit_lengths[b] :] == 0).all()
        assert (batch.predicted.grad[b, batch.target_lengths[b] + 1 :] == 0).all()


def test_layouts_and_index_types_do_not_matter() -> None:
    batch = reference.random_batch(9, dtype=torch.float32)
    expected = transducer_loss(*batch.floats(), *batch.indices())
    strided = [
        torch.stack([tensor, tensor], -1)[..., 0]
        if tensor.dim() < 3
        else tensor.transpose(0, 1).contiguous().transpose(0, 1)
        for tensor in batch.floats()
    ]
    indices = [tensor.int() for tensor in batch.indices()]
    assert torch.equal(transducer_loss(*strided, *indices), expected)
    mixed = (batch.targets.int(), batch.logit_lengths, batch.target_lengths.int())
    assert torch.equal(transducer_loss(*batch.floats(), *mixed), expected)
    one = batch.encoded[:1].expand(3, -1, -1)
    lengths = torch.full((3,), 6)
    assert torch.equal(
        transducer_loss(one, *batch.floats()[1:], batch.targets, lengths, batch.target_lengths),
        transducer_loss(one.contiguous(), *batch.floats()[1:], batch.targets, lengths, batch.target_lengths),
    )


def test_parts_of_a_batch_need_no_copy() -> None:
    batch = reference.random_batch(9)
    logits = reference.scores(batch)
    frames, labels = int(batch.logit_lengths[1]), int(batch.target_lengths[1])
    lengths = torch.stack([batch.logit_lengths, batch.target_lengths], 1)
    # Axes of size 1 have the strides of the whole batch.
    part = (logits[1:2, :frames, : labels + 1], batch.targets[1:2, :labels], lengths[1:2, 0], lengths[1:2, 1])
    losses = rnnt_loss(logits, *batch.indices(), reduction="none")
    torch.testing.assert_close(rnnt_loss(*part, reduction="none"), losses[1:2])


def test_a_loss_does_not_depend_on_batch_or_threads() -> None:
    batch = reference.random_batch(10, dtype=torch.float32)
    losses = transducer_loss(*batch.floats(), *batch.indices(), reduction="none")
    threads = panda_rnnt.num_threads()
    panda_rnnt.set_num_threads(1)
    assert torch.equal(transducer_loss(*batch.floats(), *batch.indices(), reduction="none"), losses)
    panda_rnnt.set_num_threads(threads)
    for b in range(3):
        one = (batch.encoded[b : b + 1], batch.predicted[b : b + 1], batch.weight, batch.bias)
        rest = [tensor[b : b + 1] for tensor in batch.indices()]
        assert torch.equal(transducer_loss(*one, *rest, reduction="none"), losses[b : b + 1])


def test_modules_equal_functions_and_survive_copies() -> None:
    batch = reference.random_batch(11)
    options = panda_rnnt.LossOptions(fastemit=0.1)
    module = TransducerLoss(options, reduction="sum")
    expected = transducer_loss(*batch.floats(), *batch.indices(), fastemit=0.1, reduction="sum")
    for copied in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(copied(*batch.floats(), *batch.indices()), expected)
    logits = reference.scores(batch)
    torch.testing.assert_close(RnntLoss(options, reduction="sum")(logits, *batch.indices()), expected)
    assert dataclasses.asdict(pickle.loads(pickle.dumps(options))) == dataclasses.asdict(options)


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_second_derivatives_are_refused(reduction: Any) -> None:
    batch = reference.random_batch(12)
    x = batch.encoded.requires_grad_()
    for function in (
        lambda: transducer_loss(x**3, *batch.floats()[1:], *batch.indices(), reduction=reduction),
        lambda: rnnt_loss(
            torch.tanh((x**3)[:, :, None] + batch.predicted[:, None]) @ batch.weight.T,
            *batch.indices(),
            reduction=reduction,
        ),
    ):
        (gradient,) = torch.autograd.grad(function().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="second derivatives"):
            torch.autograd.grad(gradient.sum(), x)


def test_forward_mode_is_refused() -> None:
    batch = reference.random_batch(16)

    def function(encoded: Tensor) -> Tensor:
        return transducer_loss(encoded, *batch.floats()[1:], *batch.indices())

    with pytest.raises(RuntimeError, match="encoded: forward-mode derivatives"):
        torch.func.jvp(function, (batch.encoded,), (batch.encoded,))
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="encoded: forward-mode"):
        function(forward_ad.make_dual(batch.encoded, batch.encoded))


def test_weights_that_are_not_finite_give_nan_gradients() -> None:
    batch = reference.random_batch(14)
    for value in (torch.inf, torch.nan):
        batch.encoded.grad = None
        losses = transducer_loss(
            batch.encoded.requires_grad_(), *batch.floats()[1:], *batch.indices(), reduction="none"
        )
        (losses * value).sum().backward()
        assert batch.encoded.grad is not None and batch.encoded.grad.isnan().any()


def test_modules_use_the_options_that_they_show() -> None:
    batch = reference.random_batch(15)
    module = TransducerLoss()
    module.options = panda_rnnt.LossOptions(sigma=0.4)
    expected = transducer_loss(*batch.floats(), *batch.indices(), sigma=0.4)
    assert torch.equal(module(*batch.floats(), *batch.indices()), expected)
    assert "sigma=0.4" in repr(module)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_activation_checkpointing_gives_the_same_gradient(reduction: Any) -> None:
    batch = reference.random_batch(3)

    def loss(encoded: Tensor) -> Tensor:
        indices = (batch.targets, batch.logit_lengths, batch.target_lengths)
        return transducer_loss(
            encoded, batch.predicted, batch.weight, batch.bias, *indices, reduction=reduction
        ).sum()

    gradients = []
    for function in (loss, lambda x: torch.utils.checkpoint.checkpoint(loss, x, use_reentrant=False)):
        encoded = batch.encoded.detach().clone().requires_grad_()
        gradients.append(torch.autograd.grad(function(encoded), encoded)[0])
    assert torch.equal(*gradients)


def test_autocast_computes_in_float32() -> None:
    batch = reference.random_batch(13, dtype=torch.float32)
    linear = torch.nn.Linear(5, 5)
    with torch.autocast("cpu", torch.bfloat16):
        encoded = linear(batch.encoded)
        assert encoded.dtype == torch.bfloat16
        loss = transducer_loss(encoded, *batch.floats()[1:], *batch.indices())
    assert loss.dtype == torch.float32
    loss.backward()
    assert linear.weight.grad is not None and linear.weight.grad.isfinite().all()
