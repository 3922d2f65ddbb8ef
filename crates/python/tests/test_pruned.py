"""The pruned loss against dense losses of both passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import panda_rnnt.numpy
import panda_rnnt.torch
import pytest
import reference
import torch
from panda_rnnt import LossOptions
from panda_rnnt.torch import SimpleJoiner, TransducerLoss, pruned_loss, transducer_loss
from torch import Tensor

EXCLUDED = -1e5
"""Log-probability of arcs outside the bands: their probability is 0, without infinite derivatives."""
OPTIONS: list[dict[str, Any]] = [
    {},
    {"topology": "modified", "prune_range": 2},
    {"prune_range": 2, "simple_loss_scale": 0.25, "pruned_loss_scale": 0.75},
    {"prune_range": 3, "lm_only_scale": 0.25, "am_only_scale": 0.1},
    {"prune_range": 100},
]


def batch_with_joiner(seed: int, **sizes: Any) -> tuple[reference.Batch, SimpleJoiner]:
    batch = reference.random_batch(seed, frames=7, labels=5, **sizes)
    generator = torch.Generator().manual_seed(seed + 100)
    am, lm = (
        torch.randn(*rows.shape[:2], 7, generator=generator, dtype=torch.float64).to(rows.dtype)
        for rows in (batch.encoded, batch.predicted)
    )
    return batch, SimpleJoiner(am, lm)


def layers(batch: reference.Batch, seed: int) -> SimpleJoiner:
    """Linear layers over rows of widths 4 and 6."""
    generator = torch.Generator().manual_seed(seed + 200)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(batch.encoded.dtype)

    rows = normal(*batch.encoded.shape[:2], 4), normal(*batch.predicted.shape[:2], 6)
    return SimpleJoiner(*rows, normal(7, 4), normal(7), normal(7, 6), normal(7))


def matrices(simple: SimpleJoiner) -> SimpleJoiner:
    assert simple.encoded_weight is not None and simple.predicted_weight is not None
    am = simple.encoded @ simple.encoded_weight.T + simple.encoded_bias
    return SimpleJoiner(am, simple.predicted @ simple.predicted_weight.T + simple.predicted_bias)


def simple_arcs(simple: SimpleJoiner, batch: reference.Batch, options: dict[str, Any]) -> reference.Arcs:
    """Arcs of the simple joiner, with smoothing."""
    am, lm = simple.encoded, simple.predicted
    lm_share, am_share = options.get("lm_only_scale", 0.0), options.get("am_only_scale", 0.0)
    tokens = (am[:, :, None] + lm[:, None]).log_softmax(-1) * (1 - lm_share - am_share)
    if lm_share > 0:
        tokens = tokens + lm_share * lm.log_softmax(-1)[:, None]
    if am_share > 0:
        pairs = zip(lm, batch.target_lengths, strict=True)
        unigram = torch.stack([rows[: length + 1].softmax(-1).mean(0) for rows, length in pairs])
        tokens = tokens + am_share * (am + unigram.log()[:, None]).log_softmax(-1)[:, :, None]
    return with_topology(tokens, options)


def with_topology(tokens: Tensor, options: dict[str, Any]) -> reference.Arcs:
    is_modified = options.get("topology") == "modified"
    return reference.Arcs(tokens, [(0, 1)], [1 if is_modified else 0], labels_may_end=is_modified)


def is_kept(bands: Tensor, positions: int) -> Tensor:
    """Whether each frame keeps each label position ``[B, T, U+1]``."""
    position = torch.arange(positions)
    return (bands[..., :1] <= position) & (position < bands[..., 1:])


def expected_losses(
    batch: reference.Batch, simple: SimpleJoiner, bands: Tensor, options: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Losses of the simple joiner, and of the joint network within bands."""
    tokens = reference.scores(batch).log_softmax(-1)
    outside = ~is_kept(bands, batch.predicted.shape[1])
    arcs = with_topology(tokens.masked_fill(outside[..., None], EXCLUDED), options)
    simple_losses = reference.path_losses(simple_arcs(simple, batch, options), batch)
    return simple_losses, reference.path_losses(arcs, batch)


def finite_sum(losses: Tensor) -> Tensor:
    return losses.masked_fill(~(losses < 1e4), 0.0).sum()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("has_layers", [False, True])
def test_pruned_loss_equals_dense_losses(options: dict[str, Any], seed: int, has_layers: bool) -> None:
    batch, simple = batch_with_joiner(seed)
    if has_layers:
        simple = layers(batch, seed)
    floats = [tensor.requires_grad_() for tensor in (*batch.floats(), *simple) if tensor is not None]
    arguments = (*batch.floats(), *batch.indices())
    found = pruned_loss(*arguments, simple=simple, reduction="none", **options)
    scores = matrices(simple) if has_layers else simple
    simple_losses, pruned_losses = expected_losses(batch, scores, found.bands, options)
    has_path = simple_losses.isfinite()
    torch.testing.assert_close(found.simple_losses, simple_losses.detach(), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(found.pruned_losses[has_path], pruned_losses[has_path].detach())
    scales = options.get("simple_loss_scale", 0.5), options.get("pruned_loss_scale", 1.0)
    expected = scales[0] * simple_losses + scales[1] * pruned_losses
    torch.testing.assert_close(found.loss[has_path], expected[has_path], rtol=1e-11, atol=1e-11)
    assert found.loss[~has_path].isinf().all()
    expected_gradients = torch.autograd.grad(finite_sum(expected), floats)
    summed = pruned_loss(*arguments, simple=simple, reduction="sum", zero_infinity=True, **options)
    torch.testing.assert_close(summed.loss, finite_sum(expected), rtol=1e-11, atol=1e-11)
    assert torch.equal(summed.bands, found.bands)
    for loss in (finite_sum(found.loss), summed.loss):
        for gradient, other in zip(torch.autograd.grad(loss, floats), expected_gradients, strict=True):
            torch.testing.assert_close(gradient, other, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        transducer_loss(
            *batch.floats(), *batch.indices(), simple=simple, loss="pruned", reduction="none", **options
        ),
        found.loss,
    )


@pytest.mark.parametrize("seed", range(5))
def test_bands_keep_the_most_occupancy(seed: int) -> None:
    batch, simple = batch_with_joiner(seed)
    width = 3
    bands = pruned_loss(*batch.floats(), *batch.indices(), simple=simple, prune_range=width).bands
    tokens = simple_arcs(simple, batch, {}).tokens.detach().requires_grad_()
    losses = reference.path_losses(reference.Arcs(tokens, [(0, 1)], [0]), batch)
    posterior = -torch.autograd.grad(losses.sum(), tokens)[0]
    for b in range(3):
        frames, labels = int(batch.logit_lengths[b]), int(batch.target_lengths[b])
        r = min(max(width, -(-labels // frames) + 1), labels + 1)
        starts, ends = bands[b, :frames].T
        assert (ends - starts == r).all() and (bands[b, frames:] == 0).all()
        assert int(starts[0]) == 0 and int(ends[-1]) == labels + 1
        steps = starts[1:] - starts[:-1]
        assert (steps >= 0).all() and (steps <= r - 1).all()
        # Equation 9 of arXiv 2206.13236; the last band ends at U, and starts do not decrease.
        preferred = []
        for t in range(frames):
            kept = [
                float(posterior[b, t, s : s + r, 0].sum())
                - (float(posterior[b, t, s - 1, batch.targets[b, s - 1]]) if s > 0 else 0.0)
                for s in range(labels + 2 - r)
            ]
            preferred.append(max(range(len(kept)), key=kept.__getitem__))
        preferred[-1] = labels + 1 - r
        for t in reversed(range(frames - 1)):
            preferred[t] = min(preferred[t], preferred[t + 1])
        for t in reversed(range(frames - 1)):
            preferred[t] = max(preferred[t], preferred[t + 1] - (r - 1))
        assert starts.tolist() == [min(start, t * (r - 1)) for t, start in enumerate(preferred)]


def test_wide_bands_give_the_full_loss() -> None:
    batch, simple = batch_with_joiner(7)
    found = pruned_loss(*batch.floats(), *batch.indices(), simple=simple, prune_range=6, reduction="none")
    full = transducer_loss(*batch.floats(), *batch.indices(), reduction="none")
    torch.testing.assert_close(found.pruned_losses, full)


@pytest.mark.parametrize("reduction", ["sum", "mean", "mean_per_target", "mean_volume"])
def test_reductions_and_weights(reduction: Any) -> None:
    batch, simple = batch_with_joiner(8)
    floats = [tensor.requires_grad_() for tensor in (*batch.floats(), *simple) if tensor is not None]
    weights = torch.tensor([0.5, 0.0, 2.0])
    arguments = (*batch.floats(), *batch.indices())
    deferred = pruned_loss(*arguments, simple=simple, reduction="none", weights=weights).loss
    lengths = batch.target_lengths.double()
    factors = {
        "sum": torch.ones(3).double(),
        "mean": torch.full((3,), 1 / 3).double(),
        "mean_per_target": 1 / (3 * lengths.clamp(min=1)),
        "mean_volume": torch.ones(3).double() / lengths.sum(),
    }[reduction]
    found = pruned_loss(*arguments, simple=simple, reduction=reduction, weights=weights)
    torch.testing.assert_close(found.loss, (deferred * factors).sum())
    pairs = zip(
        torch.autograd.grad(found.loss, floats),
        torch.autograd.grad((deferred * factors).sum(), floats),
        strict=True,
    )
    for gradient, expected in pairs:
        torch.testing.assert_close(gradient, expected)


def test_gradcheck_with_one_band() -> None:
    batch, _ = batch_with_joiner(9, batch=2)
    floats = [tensor.requires_grad_() for tensor in (*batch.floats(), *layers(batch, 9))]  # type: ignore[union-attr]

    def function(*tensors: Tensor) -> Tensor:
        joiner = SimpleJoiner(*tensors[4:])
        return pruned_loss(*tensors[:4], *batch.indices(), simple=joiner, prune_range=6, reduction="sum").loss

    assert torch.autograd.gradcheck(function, floats)


def test_padding_has_no_influence_and_no_gradient() -> None:
    batch, simple = batch_with_joiner(10, dtype=torch.float32)
    expected = pruned_loss(*batch.floats(), *batch.indices(), simple=simple, reduction="none")
    for b in range(3):
        for rows, length in (
            (batch.encoded, batch.logit_lengths[b]),
            (simple.encoded, batch.logit_lengths[b]),
            (batch.predicted, batch.target_lengths[b] + 1),
            (simple.predicted, batch.target_lengths[b] + 1),
        ):
            rows[b, length:] = torch.nan
    rows = [batch.encoded, batch.predicted, simple.encoded, simple.predicted]
    for tensor in rows:
        tensor.requires_grad_()
    found = pruned_loss(*batch.floats(), *batch.indices(), simple=simple, reduction="none")
    assert torch.equal(found.loss, expected.loss) and torch.equal(found.bands, expected.bands)
    found.loss.sum().backward()
    for tensor in rows:
        assert tensor.grad is not None and tensor.grad.isfinite().all()
    for b in range(3):
        assert (simple.encoded.grad[b, batch.logit_lengths[b] :] == 0).all()  # type: ignore[index]
        assert (simple.predicted.grad[b, batch.target_lengths[b] + 1 :] == 0).all()  # type: ignore[index]


def test_module_compile_and_opcheck() -> None:
    batch, simple = batch_with_joiner(11, dtype=torch.float32)
    floats = [tensor.requires_grad_() for tensor in (*batch.floats(), *simple) if tensor is not None]
    module = TransducerLoss(LossOptions(loss="pruned", prune_range=3))

    def function(*tensors: Tensor) -> Tensor:
        return module(*tensors[:4], *batch.indices(), simple=SimpleJoiner(*tensors[4:]))

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    found, expected = compiled(*floats), function(*floats)
    torch.testing.assert_close(found, expected)
    pairs = zip(torch.autograd.grad(found, floats), torch.autograd.grad(expected, floats), strict=True)
    for gradient, expected_gradient in pairs:
        torch.testing.assert_close(gradient, expected_gradient)
    inputs = [*batch.floats(), *simple]
    text, weights = module.options.to_json(), torch.ones(3, dtype=torch.float64)
    operations = torch.ops.panda_rnnt
    torch.library.opcheck(operations.pruned_losses.default, (*inputs, *batch.indices(), None, text))
    torch.library.opcheck(
        operations.pruned_loss_sum.default, (*inputs, *batch.indices(), None, weights, text, False)
    )


def test_numpy_has_the_same_losses_and_gradients() -> None:
    batch, _ = batch_with_joiner(12)
    for simple in (batch_with_joiner(12)[1], layers(batch, 12)):
        floats = [tensor.requires_grad_() for tensor in (*batch.floats(), *simple) if tensor is not None]
        options = LossOptions(loss="pruned", prune_range=3)
        weights = torch.tensor([1.0, 2.0, 0.5])
        expected = pruned_loss(
            *batch.floats(), *batch.indices(), simple=simple, prune_range=3, reduction="sum", weights=weights
        )
        arrays = [tensor.detach().numpy() for tensor in batch.floats()]
        joiner = [None if tensor is None else tensor.detach().numpy() for tensor in simple]
        array_joiner = panda_rnnt.numpy.SimpleJoiner(*joiner)  # type: ignore[arg-type]
        arguments = (*arrays, *(tensor.numpy() for tensor in batch.indices()))
        found = panda_rnnt.numpy.pruned_loss(
            *arguments, simple=array_joiner, weights=weights.numpy(), options=options
        )
        assert np.dot(found.losses, weights.numpy()) == pytest.approx(expected.loss.item(), rel=1e-12)
        assert np.array_equal(found.bands, expected.bands.numpy())
        assert np.array_equal(found.simple_losses, expected.simple_losses.numpy())
        assert found.gradients is not None and found.simple_gradients is not None
        gradients = [*found.gradients, *found.simple_gradients]
        pairs = zip(
            [gradient for gradient in gradients if gradient is not None],
            torch.autograd.grad(expected.loss, floats),
            strict=True,
        )
        for gradient, other in pairs:
            np.testing.assert_allclose(gradient, other.numpy(), rtol=1e-11, atol=1e-12)
        without = panda_rnnt.numpy.pruned_loss(*arguments, simple=array_joiner, options=options)
        assert without.gradients is None and without.simple_gradients is None
        np.testing.assert_allclose(without.losses, found.losses, rtol=1e-12)


ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"prune_range": 1}, r"prune_range: expected at least 2 label positions, found 1"),
    ({"topology": "tdt"}, r"topology: expected 'regular', 'modified' or 'constrained', found 'tdt'"),
    ({"simple_loss_scale": -1.0}, r"simple_loss_scale: expected a number of at least 0, found -1"),
    ({"lm_only_scale": 1.5}, r"lm_only_scale: expected a number from 0 to 1, found 1.5"),
    ({"lm_only_scale": 0.7, "am_only_scale": 0.6}, r"lm_only_scale \+ am_only_scale: expected"),
    ({"sigma": 0.1}, r"sigma: expected 0 for loss 'pruned'"),
    ({"durations": (1,)}, r"durations: expected none for loss 'pruned'"),
]


@pytest.mark.parametrize(("options", "message"), ERRORS, ids=[str(case[0]) for case in ERRORS])
def test_bad_options(options: dict[str, Any], message: str) -> None:
    batch, simple = batch_with_joiner(13)
    with pytest.raises(ValueError, match=message):
        pruned_loss(*batch.floats(), *batch.indices(), simple=simple, **options)


def test_bad_joiners() -> None:
    batch, simple = batch_with_joiner(14)
    with pytest.raises(ValueError, match=r"simple_encoded: expected an array for loss 'pruned', found None"):
        transducer_loss(*batch.floats(), *batch.indices(), loss="pruned")
    with pytest.raises(ValueError, match=r"prune_range: expected 5 for loss 'rnnt', found 3"):
        transducer_loss(*batch.floats(), *batch.indices(), prune_range=3)
    with pytest.raises(ValueError, match=r"simple_encoded: expected None for loss 'rnnt', found an array"):
        transducer_loss(*batch.floats(), *batch.indices(), simple=simple)
    for joiner, message in [
        (simple._replace(encoded=simple.encoded[:, :6]), r"simple_encoded: expected shape \[3, 7, 7\]"),
        (simple._replace(predicted=simple.predicted[..., :6]), r"simple_predicted: expected shape"),
        (layers(batch, 0)._replace(predicted_weight=None), r"simple_predicted_bias: expected None"),
        (
            layers(batch, 0)._replace(predicted_weight=None, predicted_bias=None),
            r"simple_encoded_weight, simple_predicted_weight: expected both or none",
        ),
        (layers(batch, 0)._replace(encoded_bias=torch.zeros(3)), r"simple_encoded_bias: expected 7 elements"),
        (simple._replace(encoded=simple.encoded * torch.nan), r"NaN|nan"),
    ]:
        with pytest.raises(ValueError, match=message):
            pruned_loss(*batch.floats(), *batch.indices(), simple=joiner)
