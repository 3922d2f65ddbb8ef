"""panda_rnnt.fast_rnnt and panda_rnnt.k2 against sums over paths, dense references and torchaudio."""

from __future__ import annotations

import dataclasses
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import panda_rnnt
import pytest
import torch
import torchaudio
from panda_rnnt import fast_rnnt, k2
from torch import Tensor

TYPES = ["regular", "modified", "constrained"]


def boundary_rows(batch: int, symbols: int, frames: int, rnnt_type: str, *, anywhere: bool) -> Tensor:
    """Random boundaries; the first utterance has the full size."""
    rows = [[0, 0, symbols, frames]]
    for _ in range(batch - 1):
        used_symbols = random.randint(0, symbols)
        used_frames = random.randint(1 if rnnt_type == "regular" else max(1, used_symbols), frames)
        s = random.randint(0, symbols - used_symbols) if anywhere else 0
        t = random.randint(0, frames - used_frames) if anywhere else 0
        if rnnt_type != "regular" and t + used_frames < s + used_symbols:
            s, t = 0, 0
        rows.append([s, t, s + used_symbols, t + used_frames])
    return torch.tensor(rows)


@dataclasses.dataclass
class Batch:
    lm: Tensor
    am: Tensor
    logits: Tensor
    symbols: Tensor
    blank: int
    boundary: Tensor

    def arguments(self) -> tuple[Tensor, int, Tensor]:
        return self.symbols, self.blank, self.boundary


def random_batch(
    seed: int, rnnt_type: str = "regular", *, dtype: torch.dtype = torch.float64, anywhere: bool = True
) -> Batch:
    """A ragged batch; padding of the symbols is -100, a symbol may be the blank."""
    random.seed(seed)
    torch.manual_seed(seed)
    batch, symbols, frames, classes = (random.randint(1, n) for n in (4, 4, 6, 5))
    if rnnt_type != "regular":
        frames += symbols
    boundary = boundary_rows(batch, symbols, frames, rnnt_type, anywhere=anywhere)
    labels = torch.randint(0, classes, (batch, symbols))
    for row, (begin, _, end, _) in zip(labels, boundary.tolist(), strict=True):
        row[:begin], row[end:] = -100, -100
    scores = [
        torch.randn(shape, dtype=torch.float64).to(dtype)
        for shape in (
            (batch, symbols + 1, classes),
            (batch, frames, classes),
            (batch, frames, symbols + 1, classes),
        )
    ]
    return Batch(*scores, labels, random.randrange(classes), boundary)


def paths(s: int, t: int, end: tuple[int, int], step: int) -> Iterator[list[tuple[str, int, int]]]:
    """All paths from (s, t) to the end, as arcs; a symbol consumes ``step`` frames."""
    if (s, t) == end:
        yield []
    if s < end[0] and t + step <= end[1]:
        yield from ([("px", s, t), *rest] for rest in paths(s + 1, t + step, end, step))
    if t < end[1]:
        yield from ([("py", s, t), *rest] for rest in paths(s, t + 1, end, step))


def reference_recursion(px: Tensor, py: Tensor, boundary: Tensor) -> Tensor:
    """The recursion, one addition at a time, in float64."""
    step = 1 - (px.shape[2] - py.shape[2])
    px, py = px.double(), py.double()
    sums = []
    for b, (s0, t0, s1, t1) in enumerate(boundary.tolist()):
        p: dict[tuple[int, int], Tensor] = {(s0, t0): torch.zeros((), dtype=torch.float64)}
        for s in range(s0, s1 + 1):
            for t in range(t0, t1 + 1):
                terms = [p[s, t]] if (s, t) == (s0, t0) else []
                if s > s0 and t - step >= t0 and (s - 1, t - step) in p:
                    terms.append(p[s - 1, t - step] + px[b, s - 1, t - step])
                if t > t0 and (s, t - 1) in p:
                    terms.append(p[s, t - 1] + py[b, s, t - 1])
                terms = [term for term in terms if term > -torch.inf]
                if terms:
                    p[s, t] = torch.stack(terms).logsumexp(0)
        sums.append(p.get((s1, t1), torch.tensor(-torch.inf).double()))
    return torch.stack(sums)


def reference_log_probs(
    log_probs: Tensor, symbols: Tensor, blank: int, boundary: Tensor, rnnt_type: str
) -> tuple[Tensor, Tensor]:
    """px and py of log-probabilities ``[B, T, S+1, C]``."""
    index = symbols.clamp(min=0)[:, None, :, None].expand(-1, log_probs.shape[1], -1, 1)
    px = log_probs[:, :, :-1].gather(3, index).squeeze(3).transpose(1, 2)
    py = log_probs[..., blank].transpose(1, 2)
    if rnnt_type == "constrained":
        px = px + py[:, 1:]
    if rnnt_type == "regular":
        px = torch.cat([px, torch.full_like(px[:, :, :1], -torch.inf)], 2)
        for b, end in enumerate(boundary[:, 3].tolist()):
            px[b, :, end:] = -torch.inf
    return px, py


def reference_losses(log_probs: Tensor, batch: Batch, rnnt_type: str, delay_penalty: float = 0.0) -> Tensor:
    px, py = reference_log_probs(log_probs.double(), *batch.arguments(), rnnt_type)
    middle = (batch.boundary[:, 3].double() - 1).reshape(-1, 1, 1) / 2
    penalty = delay_penalty * (middle - torch.arange(px.shape[2]))
    return -reference_recursion(px + penalty, py, batch.boundary)


def sum_log_probs(batch: Batch) -> Tensor:
    return (batch.am[:, :, None] + batch.lm[:, None]).log_softmax(-1)


def smoothed_log_probs(batch: Batch, lm_scale: float, am_scale: float) -> Tensor:
    lm = batch.lm.log_softmax(-1)
    unigram = lm.exp().mean((0, 1)).log()
    am = (batch.am + unigram).log_softmax(-1)
    mixed = (1 - lm_scale - am_scale) * sum_log_probs(batch)
    return mixed + lm_scale * lm[:, None] + am_scale * am[:, :, None]


def assert_same_gradients(
    found: Tensor, expected: Tensor, tensors: list[Tensor], tolerance: float = 1e-10
) -> None:
    """Losses and gradients agree; utterances without a path are left out of the gradients."""
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    torch.manual_seed(0)
    weights = torch.rand(found.shape, dtype=torch.float64) + 0.5

    def gradients(losses: Tensor) -> tuple[Tensor, ...]:
        total = (losses.where(losses.isfinite(), 0.0) * weights).sum()
        if not total.requires_grad:  # No utterance of the reference has a path.
            return tuple(torch.zeros_like(tensor) for tensor in tensors)
        return torch.autograd.grad(total, tensors, materialize_grads=True)

    for gradient, reference in zip(gradients(found), gradients(expected), strict=True):
        torch.testing.assert_close(gradient, reference, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("columns", [0, 1], ids=["modified", "regular"])
def test_recursion_sums_over_all_paths(columns: int) -> None:
    for seed in range(30):
        random.seed(seed)
        torch.manual_seed(seed)
        batch, symbols, frames = random.randint(1, 3), random.randint(0, 3), random.randint(0, 4)
        px = torch.randn(batch, symbols, frames + columns, dtype=torch.float64)
        py = torch.randn(batch, symbols + 1, frames, dtype=torch.float64)
        ranges = [
            [sorted(random.randint(0, size) for _ in range(2)) for size in (symbols, frames)]
            for _ in range(batch)
        ]
        boundary = torch.tensor([[s[0], t[0], s[1], t[1]] for s, t in ranges])
        scores, (px_grad, py_grad) = fast_rnnt.mutual_information_recursion(
            px, py, boundary, return_grad=True
        )
        assert scores.shape == (batch,) and px_grad.shape == px.shape and py_grad.shape == py.shape
        for b, (s0, t0, s1, t1) in enumerate(boundary.tolist()):
            arrays = {"px": px[b], "py": py[b]}
            posteriors = {name: torch.zeros_like(array) for name, array in arrays.items()}
            all_paths = list(paths(s0, t0, (s1, t1), 1 - columns))
            weights = [
                sum((arrays[name][s, t] for name, s, t in path), px.new_zeros(())) for path in all_paths
            ]
            total = torch.stack(weights).logsumexp(0) if weights else torch.tensor(-torch.inf).double()
            torch.testing.assert_close(scores[b], total, rtol=1e-12, atol=1e-12)
            for path, weight in zip(all_paths, weights, strict=True):
                for name, s, t in path:
                    posteriors[name][s, t] += (weight - total).exp()
            torch.testing.assert_close(px_grad[b], posteriors["px"], rtol=1e-11, atol=1e-12)
            torch.testing.assert_close(py_grad[b], posteriors["py"], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_recursion_has_the_gradient_of_the_reference(dtype: torch.dtype) -> None:
    for seed in range(30):
        random.seed(seed)
        torch.manual_seed(seed)
        rnnt_type = random.choice(TYPES)
        batch, symbols = random.randint(1, 4), random.randint(1, 5)
        frames = symbols + random.randint(0, 6)
        boundary = boundary_rows(batch, symbols, frames, rnnt_type, anywhere=True)
        columns = frames + (rnnt_type == "regular")
        px, py = torch.randn(batch, symbols, columns), torch.randn(batch, symbols + 1, frames)
        px[torch.rand(px.shape) < 0.1] = -torch.inf
        px, py = px.to(dtype).requires_grad_(), py.to(dtype).requires_grad_()
        scores = fast_rnnt.mutual_information_recursion(px, py, boundary)
        assert scores.dtype == dtype
        expected = reference_recursion(px, py, boundary)
        assert_same_gradients(scores, expected, [px, py], 1e-10 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=str)
def test_losses_equal_dense_losses_on_ragged_batches(dtype: torch.dtype, tolerance: float) -> None:
    for seed in range(100):
        rnnt_type = TYPES[seed % 3]
        batch = random_batch(seed, rnnt_type, dtype=dtype)
        lm, am, logits = (tensor.requires_grad_() for tensor in (batch.lm, batch.am, batch.logits))
        penalty = random.choice([0.0, 0.125])
        options: dict[str, Any] = {"rnnt_type": rnnt_type, "delay_penalty": penalty, "reduction": "none"}
        losses = fast_rnnt.rnnt_loss(logits, *batch.arguments(), **options)
        assert losses.dtype == dtype
        expected = reference_losses(logits.double().log_softmax(-1), batch, rnnt_type, penalty)
        assert_same_gradients(losses, expected, [logits], tolerance)
        exact = dataclasses.replace(batch, lm=lm.double(), am=am.double())
        losses = fast_rnnt.rnnt_loss_simple(lm, am, *batch.arguments(), **options)
        expected = reference_losses(sum_log_probs(exact), batch, rnnt_type, penalty)
        assert_same_gradients(losses, expected, [lm, am], tolerance)
        scales = random.choice([(0.0, 0.0), (0.25, 0.0), (0.0, 0.3), (0.1, 0.2), (0.5, 0.5)])
        losses = fast_rnnt.rnnt_loss_smoothed(
            lm, am, batch.symbols, batch.blank, *scales, batch.boundary, **options
        )
        expected = reference_losses(smoothed_log_probs(exact, *scales), batch, rnnt_type, penalty)
        assert_same_gradients(losses, expected, [lm, am], tolerance)


@pytest.mark.parametrize("has_factored_blank", [False, True], ids=["softmax", "hat"])
def test_pruned_losses_equal_dense_losses(has_factored_blank: bool) -> None:
    for seed in range(60):
        rnnt_type = TYPES[seed % 3]
        batch = random_batch(1000 + seed, rnnt_type, anywhere=False)
        if has_factored_blank:
            if batch.logits.shape[3] == 1:
                continue
            batch.blank = 0
            batch.symbols = batch.symbols.where(batch.symbols != 0, 1)
        _, (px_grad, py_grad) = fast_rnnt.rnnt_loss_simple(
            batch.lm, batch.am, *batch.arguments(), rnnt_type=rnnt_type, return_grad=True
        )
        ranges = fast_rnnt.get_rnnt_prune_ranges(
            px_grad, py_grad, batch.boundary, random.randint(2, batch.symbols.shape[1] + 1)
        )
        index = ranges[..., None].expand(-1, -1, -1, batch.logits.shape[3])
        logits = batch.logits.gather(2, index).requires_grad_()
        if has_factored_blank:
            blank = torch.nn.functional.logsigmoid(logits[..., :1])
            labels = torch.nn.functional.logsigmoid(-logits[..., :1]) + logits[..., 1:].log_softmax(-1)
            log_probs = torch.cat([blank, labels], -1)
        else:
            log_probs = logits.log_softmax(-1)
        dense = torch.full_like(batch.logits, -torch.inf).scatter(2, index, log_probs)
        expected = reference_losses(dense, batch, rnnt_type)
        assert expected.isfinite().all()
        module = k2 if has_factored_blank else fast_rnnt
        options: dict[str, Any] = {"use_hat_loss": True} if has_factored_blank else {}
        losses = module.rnnt_loss_pruned(
            logits, batch.symbols, ranges, batch.blank, batch.boundary, rnnt_type, reduction="none", **options
        )
        assert_same_gradients(losses, expected, [logits])


def test_regular_losses_equal_torchaudio() -> None:
    for seed in range(40):
        batch = random_batch(2000 + seed, dtype=torch.float32, anywhere=False)
        classes = batch.logits.shape[3]
        if classes == 1:
            continue
        symbols = batch.symbols.where(batch.symbols != batch.blank, (batch.blank + 1) % classes)
        logits = batch.logits.requires_grad_()
        px, py = fast_rnnt.get_rnnt_logprobs_joint(logits, symbols, batch.blank, batch.boundary)
        losses = -fast_rnnt.mutual_information_recursion(px, py, batch.boundary)
        lengths = (batch.boundary[:, 3].int(), batch.boundary[:, 2].int())
        expected = torchaudio.functional.rnnt_loss(
            logits, symbols.clamp(min=0).int(), *lengths, blank=batch.blank, reduction="none"
        )
        assert_same_gradients(losses, expected.double(), [logits], 2e-5)
        torch.testing.assert_close(
            fast_rnnt.rnnt_loss(logits, symbols, batch.blank, batch.boundary), expected.mean()
        )


def test_without_boundary_all_symbols_and_frames_count() -> None:
    for rnnt_type in TYPES:
        batch = random_batch(5, rnnt_type)
        symbols = batch.symbols.clamp(min=0)
        rows = torch.tensor([[0, 0, symbols.shape[1], batch.am.shape[1]]] * len(symbols))
        for penalty in (0.0, 0.25):
            options: dict[str, Any] = {"rnnt_type": rnnt_type, "delay_penalty": penalty}
            for function, scores in (
                (fast_rnnt.rnnt_loss, (batch.logits,)),
                (fast_rnnt.rnnt_loss_simple, (batch.lm, batch.am)),
                (fast_rnnt.rnnt_loss_smoothed, (batch.lm, batch.am)),
            ):
                arguments = (*scores, symbols, batch.blank)
                assert torch.equal(
                    function(*arguments, **options), function(*arguments, boundary=rows, **options)
                )


@pytest.mark.parametrize("rnnt_type", TYPES)
def test_padding_has_no_influence_and_no_gradient(rnnt_type: str) -> None:
    batch = random_batch(12, rnnt_type)
    batch.boundary[1:3] = torch.tensor([[0, 1, 2, 4], [1, 0, 2, 3]])
    symbols = batch.symbols.clamp(min=0)
    batch.symbols = torch.full_like(symbols, -100)
    for b, (begin, _, end, _) in enumerate(batch.boundary.tolist()):
        batch.symbols[b, begin:end] = symbols[b, begin:end]

    def losses(batch: Batch) -> list[Tensor]:
        options: dict[str, Any] = {"rnnt_type": rnnt_type, "reduction": "none"}
        sums = (batch.lm, batch.am, *batch.arguments())
        px, py = fast_rnnt.get_rnnt_logprobs_joint(batch.logits, *batch.arguments(), rnnt_type=rnnt_type)
        padded_px, padded_py = px.clone(), py.clone()
        for b, (s0, t0, s1, t1) in enumerate(batch.boundary.tolist()):
            for array, end in ((padded_px, s1), (padded_py, s1 + 1)):
                array[b, :s0], array[b, end:], array[b, :, :t0] = torch.nan, torch.nan, torch.nan
            padded_px[b, :, t1 + 1 :], padded_py[b, :, t1:] = torch.nan, torch.nan
        joint = fast_rnnt.joint_mutual_information_recursion([padded_px], [padded_py], batch.boundary)[0]
        return [
            fast_rnnt.rnnt_loss(batch.logits, *batch.arguments(), **options),
            fast_rnnt.rnnt_loss_simple(*sums, **options),
            fast_rnnt.rnnt_loss_smoothed(*sums[:4], 0.1, 0.0, batch.boundary, **options),
            -fast_rnnt.mutual_information_recursion(padded_px, padded_py, batch.boundary),
            -joint,
        ]

    expected = losses(batch)
    padded = dataclasses.replace(batch, lm=batch.lm.clone(), am=batch.am.clone(), logits=batch.logits.clone())
    outside = [torch.ones_like(tensor, dtype=torch.bool) for tensor in (batch.lm, batch.am, batch.logits)]
    for b, (s0, t0, s1, t1) in enumerate(batch.boundary.tolist()):
        outside[0][b, s0 : s1 + 1], outside[1][b, t0:t1], outside[2][b, t0:t1, s0 : s1 + 1] = (
            False,
            False,
            False,
        )
    tensors = [padded.lm, padded.am, padded.logits]
    for tensor, mask in zip(tensors, outside, strict=True):
        tensor[mask] = torch.nan
        tensor.requires_grad_()
    found = losses(padded)
    for value, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(value, reference, rtol=1e-12, atol=1e-12)
    sum(value.sum() for value in found).backward()  # type: ignore[union-attr]
    for tensor, mask in zip(tensors, outside, strict=True):
        assert tensor.grad is not None and (tensor.grad[mask] == 0).all() and tensor.grad.isfinite().all()


def test_smoothing_leaves_out_padding_without_a_softmax() -> None:
    batch = random_batch(3)
    batch.boundary[:, [0, 2]] = 0
    batch.lm[:, 1:] = torch.nan
    lm = batch.lm.requires_grad_()
    loss = fast_rnnt.rnnt_loss_smoothed(lm, batch.am, batch.symbols, batch.blank, 0.1, 0.3, batch.boundary)
    alone = fast_rnnt.rnnt_loss_smoothed(
        lm[:, :1], batch.am, batch.symbols[:, :0], batch.blank, 0.1, 0.3, batch.boundary
    )
    torch.testing.assert_close(loss, alone)
    loss.backward()
    assert lm.grad is not None and (lm.grad[:, 1:] == 0).all()


def test_an_utterance_does_not_depend_on_its_batch_or_threads() -> None:
    for rnnt_type in TYPES:
        batch = random_batch(12, rnnt_type, dtype=torch.float32)
        arguments = (batch.logits, *batch.arguments(), rnnt_type, 0.0, "none")
        losses = fast_rnnt.rnnt_loss(*arguments)
        threads = panda_rnnt.num_threads()
        panda_rnnt.set_num_threads(1)
        assert torch.equal(fast_rnnt.rnnt_loss(*arguments), losses)
        panda_rnnt.set_num_threads(threads)
        for b in range(len(losses)):
            one = (batch.logits[b : b + 1], batch.symbols[b : b + 1], batch.blank, batch.boundary[b : b + 1])
            assert torch.equal(fast_rnnt.rnnt_loss(*one, rnnt_type, 0.0, "none"), losses[b : b + 1])


def test_layouts_and_index_types_do_not_matter() -> None:
    batch = random_batch(5, dtype=torch.float32)
    expected = fast_rnnt.rnnt_loss(batch.logits, *batch.arguments())
    strided = batch.logits.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)
    narrow = (batch.symbols.int(), batch.blank, batch.boundary.int())
    assert not strided.is_contiguous() or strided.shape[3] == 1
    assert torch.equal(fast_rnnt.rnnt_loss(strided, *narrow), expected)
    assert torch.equal(
        fast_rnnt.rnnt_loss(batch.logits, batch.symbols.int(), *batch.arguments()[1:]), expected
    )
    rows = batch.boundary[:1].expand(len(batch.boundary), 4)
    full = (batch.symbols.clamp(min=0), batch.blank)
    assert torch.equal(
        fast_rnnt.rnnt_loss(batch.logits, *full, rows), fast_rnnt.rnnt_loss(batch.logits, *full)
    )
    one = (batch.logits[:1], batch.symbols[:1], batch.blank, batch.boundary[:1])
    wide = torch.cat([one[0], one[0]], 2)[:, :, : one[0].shape[2]]
    assert torch.equal(fast_rnnt.rnnt_loss(wide, *one[1:]), fast_rnnt.rnnt_loss(*one))
    lm, am = (torch.stack([tensor, tensor], -1)[..., 0] for tensor in (batch.lm, batch.am))
    torch.testing.assert_close(
        fast_rnnt.rnnt_loss_simple(lm, am, *narrow),
        fast_rnnt.rnnt_loss_simple(batch.lm, batch.am, *batch.arguments()),
    )


def test_strides_of_axes_of_size_one_do_not_matter() -> None:
    px, py = torch.randn(1, 1, 6)[:, :, :4], torch.randn(1, 2, 3)
    assert px.is_contiguous() and px.stride() != (4, 4, 1)
    recursion = fast_rnnt.mutual_information_recursion
    assert torch.equal(recursion(px, py), recursion(px.clone(), py))


def test_utterances_without_symbols_frames_or_paths() -> None:
    logits = torch.randn(2, 3, 1, 4, requires_grad=True)
    none = torch.empty(2, 0, dtype=torch.int64)
    for rnnt_type in TYPES:
        losses = fast_rnnt.rnnt_loss(logits, none, 1, None, rnnt_type, 0.0, "none")
        torch.testing.assert_close(losses, -logits.log_softmax(-1)[:, :, 0, 1].sum(1))
        loss, grads = fast_rnnt.rnnt_loss_simple(
            logits[:, :1, 0], logits[:, :, 0], none, 1, rnnt_type=rnnt_type, return_grad=True
        )
        assert loss.isfinite()
        ranges = k2.get_rnnt_prune_ranges(*grads, torch.tensor([[0, 0, 0, 3]] * 2), 2)
        assert torch.equal(ranges, torch.zeros(2, 3, 1, dtype=torch.int64))
    for columns in (3, 4):
        px, py = torch.randn(3, 2, columns), torch.randn(3, 3, 3)
        py[0, :, 2] = -torch.inf
        boundary = torch.tensor([[0, 0, 2, 3], [1, 2, 1, 2], [0, 1, 2, 1]])
        px, py = px.requires_grad_(), py.requires_grad_()
        scores = fast_rnnt.mutual_information_recursion(px, py, boundary)
        assert scores[1] == 0  # The empty path.
        assert (scores[2] == -torch.inf) == (columns == 3)
        scores.sum().backward()
        assert px.grad is not None and px.grad.isfinite().all() and (px.grad[1] == 0).all()
    empty = fast_rnnt.rnnt_loss(torch.empty(0, 3, 2, 4), torch.empty(0, 1).long(), 0, reduction="none")
    assert empty.shape == (0,)


def test_a_symbol_may_be_the_blank() -> None:
    logits = torch.randn(1, 4, 3, 3, dtype=torch.float64, requires_grad=True)
    batch = Batch(
        logits[:, 0], logits[:, :, 0], logits, torch.tensor([[1, 1]]), 1, torch.tensor([[0, 0, 2, 4]])
    )
    losses = fast_rnnt.rnnt_loss(logits, *batch.arguments(), reduction="none")
    assert_same_gradients(losses, reference_losses(logits.log_softmax(-1), batch, "regular"), [logits])


def test_sums_whose_terms_underflow_are_exact() -> None:
    batch = random_batch(12, dtype=torch.float32)
    classes = batch.am.shape[2]
    assert classes > 2
    batch.am[..., 0] += 200
    batch.lm[..., 1] += 210
    batch.am[0, 0, 2] = -torch.inf
    lm, am = batch.lm.double().requires_grad_(), batch.am.double().requires_grad_()
    exact = dataclasses.replace(batch, lm=lm, am=am)
    expected = reference_losses(sum_log_probs(exact), batch, "regular")
    losses = fast_rnnt.rnnt_loss_simple(lm.float(), am.float(), *batch.arguments(), reduction="none")
    finite = expected.isfinite()
    torch.testing.assert_close(losses[finite].double(), expected[finite], rtol=1e-5, atol=1e-4)
    found = torch.autograd.grad(losses[finite].sum(), [lm, am], retain_graph=True)
    for gradient, reference in zip(found, torch.autograd.grad(expected[finite].sum(), [lm, am]), strict=True):
        torch.testing.assert_close(gradient, reference.nan_to_num(), rtol=1e-4, atol=2e-4)


def test_joint_recursion_splits_the_log_sum() -> None:
    for seed in range(10):
        random.seed(seed)
        torch.manual_seed(seed)
        columns = 6 + seed % 2
        boundary = boundary_rows(3, 4, 6, TYPES[1 - seed % 2], anywhere=True)
        px = [torch.randn(3, 4, columns, dtype=torch.float64, requires_grad=True) for _ in range(3)]
        py = [torch.randn(3, 5, 6, dtype=torch.float64, requires_grad=True) for _ in range(3)]
        rows = fast_rnnt.joint_mutual_information_recursion(px, py, boundary)
        assert rows.shape == (3, 3)
        px_sum, py_sum = px[0] + px[1] + px[2], py[0] + py[1] + py[2]
        scores, (px_grad, py_grad) = fast_rnnt.mutual_information_recursion(
            px_sum, py_sum, boundary, return_grad=True
        )
        torch.testing.assert_close(rows.sum(0), scores)
        expectation = (px_grad * px[2]).sum((1, 2)) + (py_grad * py[2]).sum((1, 2))
        torch.testing.assert_close(rows[2], expectation)
        found = torch.autograd.grad(rows.sum(), [*px, *py], retain_graph=True)
        expected = torch.autograd.grad(scores.sum(), [*px, *py])
        for gradient, reference in zip(found, expected, strict=True):
            torch.testing.assert_close(gradient, reference)


@pytest.mark.parametrize("rnnt_type", TYPES)
@pytest.mark.parametrize("rule", [k2.get_rnnt_prune_ranges, k2.get_rnnt_prune_ranges_deprecated])
def test_ranges_keep_a_path(rnnt_type: str, rule: Callable[..., Tensor]) -> None:
    for seed in range(20):
        batch = random_batch(3000 + seed, rnnt_type, anywhere=False)
        symbols, frames = batch.symbols.shape[1], batch.am.shape[1]
        _, grads = fast_rnnt.rnnt_loss_simple(
            batch.lm, batch.am, *batch.arguments(), rnnt_type=rnnt_type, return_grad=True
        )
        widths = range(2 if rnnt_type == "regular" else 1, symbols + 3)
        for width in widths:
            if rnnt_type == "regular" and (width - 1) * int(batch.boundary[:, 3].min()) < symbols:
                continue
            ranges = rule(*grads, batch.boundary, width)
            kept = min(width, symbols + 1)
            assert ranges.shape == (len(batch.symbols), frames, kept)
            starts = ranges[:, :, 0]
            assert torch.equal(ranges, starts[:, :, None] + torch.arange(kept))
            steps = starts.diff(dim=1)
            assert (starts[:, 0] == 0).all() and (steps >= 0).all() and (ranges <= symbols).all()
            assert (steps <= (kept - 1 if rnnt_type == "regular" else 1)).all()
            for b, (_, _, end_symbol, end_frame) in enumerate(batch.boundary.tolist()):
                # The last frame may emit the last symbol, unless the lattice is regular.
                last = ranges[b, end_frame - 1]
                assert end_symbol in last or (rnnt_type != "regular" and end_symbol - 1 in last)


def test_ranges_keep_the_most_probable_positions() -> None:
    batch = random_batch(12, anywhere=False)
    batch.symbols, batch.boundary = batch.symbols.clamp(min=0), torch.tensor([[0, 0, 3, 6], [0, 0, 3, 5]] * 2)
    _, (px_grad, py_grad) = fast_rnnt.rnnt_loss_simple(
        batch.lm * 3, batch.am * 3, *batch.arguments(), return_grad=True
    )
    width = 3
    ranges = fast_rnnt.get_rnnt_prune_ranges(px_grad, py_grad, batch.boundary, width)
    for b, (_, _, end_symbol, end_frame) in enumerate(batch.boundary.tolist()):
        starts = []
        for t in range(py_grad.shape[2]):
            kept = [
                float(py_grad[b, s : s + width, t].sum() - (px_grad[b, s - 1, t] if s > 0 else 0.0))
                for s in range(py_grad.shape[1] - width + 1)
            ]
            last = max(end_symbol - width + 1, 0)
            starts.append(kept.index(max(kept)) if t < end_frame - 1 else last)
        for t in reversed(range(len(starts) - 1)):
            starts[t] = min(starts[t], starts[t + 1])
        limited = [(width - 1) * t - start for t, start in enumerate(starts)]
        for t in reversed(range(len(limited) - 1)):
            limited[t] = min(limited[t], limited[t + 1])
        expected = [(width - 1) * t - max(value, 0) for t, value in enumerate(limited)]
        assert ranges[b, :, 0].tolist() == expected


def test_ranges_of_all_positions_give_the_whole_loss() -> None:
    for rnnt_type in TYPES:
        batch = random_batch(4, rnnt_type, anywhere=False)
        positions = torch.arange(batch.lm.shape[1]).expand(len(batch.lm), batch.am.shape[1], -1)
        am, lm = fast_rnnt.do_rnnt_pruning(batch.am, batch.lm, positions)
        assert torch.equal(am + lm, batch.am[:, :, None] + batch.lm[:, None])
        options: dict[str, Any] = {"boundary": batch.boundary, "rnnt_type": rnnt_type, "reduction": "none"}
        pruned = fast_rnnt.rnnt_loss_pruned(am + lm, batch.symbols, positions, batch.blank, **options)
        simple = fast_rnnt.rnnt_loss_simple(batch.lm, batch.am, batch.symbols, batch.blank, **options)
        torch.testing.assert_close(pruned, simple)
        assert torch.equal(fast_rnnt.rnnt_loss(am + lm, batch.symbols, batch.blank, **options), pruned)


def test_too_small_a_range_is_raised() -> None:
    px_grad, py_grad = torch.rand(1, 7, 4), torch.rand(1, 8, 3)
    with pytest.warns(UserWarning, match="s_range: raised from 2 to 4"):
        ranges = fast_rnnt.get_rnnt_prune_ranges(px_grad, py_grad, torch.tensor([[0, 0, 7, 3]]), 2)
    assert ranges.shape == (1, 3, 4)


def test_monotonic_lower_bound() -> None:
    x = torch.tensor([[0, 2, 1, 3, 6, 5, 8], [12, 18, 5, 4, 18, 17, 17]])
    expected = torch.tensor([[0, 1, 1, 3, 5, 5, 8], [4, 4, 4, 4, 17, 17, 17]])
    assert torch.equal(fast_rnnt.monotonic_lower_bound(x), expected)
    assert torch.equal(fast_rnnt.monotonic_lower_bound_(x), expected) and torch.equal(x, expected)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_reductions_and_returned_posteriors(reduction: Any) -> None:
    batch = random_batch(9)
    ranges = torch.arange(batch.lm.shape[1]).expand(len(batch.lm), batch.am.shape[1], -1)
    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (fast_rnnt.rnnt_loss, (batch.logits, *batch.arguments())),
        (fast_rnnt.rnnt_loss_simple, (batch.lm, batch.am, *batch.arguments())),
        (
            fast_rnnt.rnnt_loss_smoothed,
            (batch.lm, batch.am, *batch.arguments()[:2], 0.1, 0.1, batch.boundary),
        ),
        (fast_rnnt.rnnt_loss_pruned, (batch.logits, batch.symbols, ranges, *batch.arguments()[1:])),
    ]
    for function, arguments in calls:
        losses = function(*arguments, reduction="none")
        value, (px_grad, py_grad) = function(*arguments, reduction=reduction, return_grad=True)
        expected = {"none": losses, "mean": losses.mean(), "sum": losses.sum()}[reduction]
        torch.testing.assert_close(value, expected)
        assert torch.equal(function(*arguments, reduction=reduction), value)
        symbols = (batch.boundary[:, 2] - batch.boundary[:, 0]).double()
        frames = (batch.boundary[:, 3] - batch.boundary[:, 1]).double()
        torch.testing.assert_close(px_grad.sum((1, 2)), symbols)
        torch.testing.assert_close(py_grad.sum((1, 2)), frames)


def test_k2_orders_its_arguments() -> None:
    batch = random_batch(10, "modified")
    found = k2.get_rnnt_logprobs_joint(batch.logits, batch.symbols, batch.blank, "modified", batch.boundary)
    expected = fast_rnnt.get_rnnt_logprobs_joint(
        batch.logits, batch.symbols, batch.blank, batch.boundary, "modified"
    )
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    assert k2.with_cuda is False and fast_rnnt.with_cuda() is False


@pytest.mark.parametrize("rnnt_type", TYPES)
def test_gradcheck(rnnt_type: str) -> None:
    batch = random_batch(13, rnnt_type)
    arguments = (*batch.arguments(), rnnt_type, 0.1)
    lm, am, logits = (tensor.requires_grad_() for tensor in (batch.lm, batch.am, batch.logits))
    assert torch.autograd.gradcheck(lambda x: fast_rnnt.rnnt_loss(x, *arguments), logits, fast_mode=True)
    assert torch.autograd.gradcheck(
        lambda *x: fast_rnnt.rnnt_loss_simple(*x, *arguments), (lm, am), fast_mode=True
    )
    smoothed = (batch.symbols, batch.blank, 0.2, 0.3, batch.boundary, rnnt_type)
    assert torch.autograd.gradcheck(
        lambda *x: fast_rnnt.rnnt_loss_smoothed(*x, *smoothed), (lm, am), fast_mode=True
    )
    px, py = (
        tensor.detach().clamp(min=-9).requires_grad_()
        for tensor in fast_rnnt.get_rnnt_logprobs_joint(logits, *batch.arguments(), rnnt_type)
    )
    recursion = fast_rnnt.mutual_information_recursion
    assert torch.autograd.gradcheck(lambda *x: recursion(*x, batch.boundary), (px, py), fast_mode=True)


def test_opcheck() -> None:
    batch = random_batch(12, dtype=torch.float32)
    lm, am, logits = (tensor.requires_grad_() for tensor in (batch.lm, batch.am, batch.logits))
    symbols = batch.symbols.clamp(min=0)
    ranges = torch.arange(lm.shape[1]).expand(len(lm), am.shape[1], -1).contiguous()
    px, py = (
        tensor.detach().requires_grad_()
        for tensor in fast_rnnt.get_rnnt_logprobs(lm, am, *batch.arguments()[:2], boundary=batch.boundary)
    )
    operations = torch.ops.panda_rnnt
    sites = (symbols, None, batch.boundary, batch.blank, False)
    cases = [
        (operations.check_symbols, (batch.symbols, batch.boundary, am.shape[1], am.shape[2], False)),
        (operations.site_log_probs, (logits, *sites)),
        (operations.site_log_probs, (logits, symbols, ranges, batch.boundary, batch.blank, False)),
        (
            operations.site_log_probs_backward,
            (logits.detach(), *sites, torch.ones_like(px[..., 1:]), torch.ones_like(py)),
        ),
        (operations.sum_normalizers, (lm, am)),
        (operations.lattice_recursion, (px, py, batch.boundary, True)),
        (operations.lattice_recursion, (px.detach(), py.detach(), batch.boundary, False)),
    ]
    for operation, arguments in cases:
        torch.library.opcheck(operation.default, arguments)


def test_compile_traces_the_whole_loss() -> None:
    batch = random_batch(13, "constrained", dtype=torch.float32)
    tensors = [tensor.requires_grad_() for tensor in (batch.lm, batch.am, batch.logits)]
    ranges = torch.arange(batch.lm.shape[1]).expand(len(batch.lm), batch.am.shape[1], -1)

    def function(lm: Tensor, am: Tensor, logits: Tensor) -> Tensor:
        options: dict[str, Any] = {
            "boundary": batch.boundary,
            "rnnt_type": "constrained",
            "delay_penalty": 0.1,
        }
        symbols, blank = batch.symbols, batch.blank
        simple, (px_grad, _) = fast_rnnt.rnnt_loss_simple(lm, am, symbols, blank, return_grad=True, **options)
        total = simple + px_grad.sum() + fast_rnnt.rnnt_loss(logits, symbols, blank, **options)
        total = total + fast_rnnt.rnnt_loss_smoothed(lm, am, symbols, blank, **options)
        pruned = torch.tanh(sum(fast_rnnt.do_rnnt_pruning(am, lm, ranges)))
        return total + fast_rnnt.rnnt_loss_pruned(pruned, symbols, ranges, blank, **options)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    expected, found = function(*tensors), compiled(*tensors)
    torch.testing.assert_close(found, expected)
    pairs = zip(torch.autograd.grad(found, tensors), torch.autograd.grad(expected, tensors), strict=True)
    for gradient, reference in pairs:
        torch.testing.assert_close(gradient, reference)


def test_half_precision_and_autocast_compute_in_float32() -> None:
    batch = random_batch(14, dtype=torch.float32)
    for dtype in (torch.float16, torch.bfloat16):
        lm, am, logits = (tensor.to(dtype).requires_grad_() for tensor in (batch.lm, batch.am, batch.logits))
        for losses, exact in (
            (
                fast_rnnt.rnnt_loss(logits, *batch.arguments()),
                fast_rnnt.rnnt_loss(logits.float(), *batch.arguments()),
            ),
            (
                fast_rnnt.rnnt_loss_simple(lm, am, *batch.arguments()),
                fast_rnnt.rnnt_loss_simple(lm.float(), am.float(), *batch.arguments()),
            ),
        ):
            assert losses.dtype == torch.float32 and torch.equal(losses, exact)
            losses.backward()
        assert logits.grad is not None and logits.grad.dtype == dtype and am.grad is not None
    lm, am = batch.lm.requires_grad_(), batch.am.requires_grad_()
    arguments = (batch.symbols.clamp(min=0), batch.blank)
    expected = torch.autograd.grad(fast_rnnt.rnnt_loss_smoothed(lm, am, *arguments), [lm, am])
    with torch.autocast("cpu", torch.bfloat16):
        loss = fast_rnnt.rnnt_loss_smoothed(lm, am, *arguments)
        found = torch.autograd.grad(loss, [lm, am])
    for gradient, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, reference)


def test_second_derivatives_are_refused() -> None:
    batch = random_batch(5)
    lm, am, logits = (tensor.requires_grad_() for tensor in (batch.lm, batch.am, batch.logits))
    for loss, tensor in (
        (fast_rnnt.rnnt_loss(logits**2, *batch.arguments()), logits),
        (fast_rnnt.rnnt_loss_simple(lm**2, am, *batch.arguments()), lm),
        (fast_rnnt.mutual_information_recursion(lm[:, :-1] ** 2, lm[:, :, 1:]).sum(), lm),
    ):
        (gradient,) = torch.autograd.grad(loss, tensor, create_graph=True)
        with pytest.raises(RuntimeError, match="second derivatives"):
            torch.autograd.grad(gradient.sum(), tensor)


def test_gradients_that_are_not_finite_are_passed_on() -> None:
    batch = random_batch(16)
    logits = batch.logits.requires_grad_()
    for value in (torch.inf, torch.nan):
        logits.grad = None
        (fast_rnnt.rnnt_loss(logits, *batch.arguments()) * value).backward()
        assert logits.grad is not None and logits.grad.isnan().any()


Change = Callable[[Batch], object]
SHARED_ERRORS: list[tuple[str, Change, type[Exception], str]] = [
    ("class", lambda b: b.symbols.__setitem__((0, 0), 99), ValueError, r"symbols\[0, 0\].*found 99"),
    ("negative", lambda b: b.symbols.__setitem__((0, 1), -1), ValueError, r"symbols\[0, 1\].*found -1"),
    ("symbols", lambda b: setattr(b, "symbols", b.symbols[:, 1:]), ValueError, r"symbols: expected"),
    ("float", lambda b: setattr(b, "symbols", b.symbols.float()), TypeError, r"symbols: expected int"),
    ("blank", lambda b: setattr(b, "blank", 99), ValueError, r"termination_symbol: .*found 99"),
    ("blank -1", lambda b: setattr(b, "blank", -1), ValueError, r"termination_symbol: .*found -1"),
    ("order", lambda b: b.boundary.__setitem__((0, 1), 7), ValueError, r"boundary\[0\].*found \[0, 7"),
    ("end", lambda b: b.boundary.__setitem__((1, 3), 99), ValueError, r"boundary\[1\]"),
    ("begin", lambda b: b.boundary.__setitem__((1, 0), -1), ValueError, r"boundary\[1\]"),
    ("rows", lambda b: setattr(b, "boundary", b.boundary[:1]), ValueError, r"boundary: expected 4 utt"),
    ("columns", lambda b: setattr(b, "boundary", b.boundary[:, :3]), ValueError, r"boundary: expected 4 col"),
    ("floats", lambda b: setattr(b, "boundary", b.boundary.float()), TypeError, r"boundary: expected int"),
    ("meta", lambda b: setattr(b, "boundary", b.boundary.to("meta")), ValueError, r"boundary: .*meta"),
]


@pytest.mark.parametrize(("change", "error", "message"), [case[1:] for case in SHARED_ERRORS])
def test_bad_arguments(change: Change, error: type[Exception], message: str) -> None:
    for is_joint in (False, True):
        batch = random_batch(12, anywhere=False)
        assert batch.symbols.shape[1] > 1 and len(batch.boundary) == 4
        change(batch)
        with pytest.raises(error, match=message) as caught:
            if is_joint:
                fast_rnnt.rnnt_loss(batch.logits, *batch.arguments())
            else:
                fast_rnnt.rnnt_loss_simple(batch.lm, batch.am, *batch.arguments())
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def call(function: Callable[..., Any], **changes: Any) -> None:
    batch = random_batch(12, anywhere=False)
    arguments: dict[str, Any] = {
        "rnnt_loss": {"logits": batch.logits},
        "rnnt_loss_simple": {"lm": batch.lm, "am": batch.am},
        "rnnt_loss_smoothed": {"lm": batch.lm, "am": batch.am},
        "rnnt_loss_pruned": {
            "logits": batch.logits,
            "ranges": torch.arange(batch.lm.shape[1]).repeat(len(batch.lm), batch.am.shape[1], 1),
        },
    }[function.__name__]
    arguments |= {"symbols": batch.symbols, "termination_symbol": batch.blank, "boundary": batch.boundary}
    for name, change in changes.items():
        arguments[name] = change(arguments[name]) if callable(change) else change
    function(**arguments)


def with_value(index: tuple[int, ...], value: float) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        tensor[index] = value
        return tensor

    return change


BAD_VALUES: list[tuple[Callable[..., Any], dict[str, Any], type[Exception], str]] = [
    (fast_rnnt.rnnt_loss, {"reduction": "max"}, ValueError, "reduction: expected .*'max'"),
    (fast_rnnt.rnnt_loss, {"reduction": None}, ValueError, "reduction: expected .*None"),
    (fast_rnnt.rnnt_loss_simple, {"rnnt_type": "other"}, ValueError, "rnnt_type: expected .*'other'"),
    (fast_rnnt.rnnt_loss, {"delay_penalty": float("nan")}, ValueError, "delay_penalty: .*nan"),
    (fast_rnnt.rnnt_loss, {"logits": with_value((0, 1, 0, 1), torch.nan)}, ValueError, r"logits\[0, 1, 0\]"),
    (fast_rnnt.rnnt_loss, {"logits": with_value((0, 1, 0), -torch.inf)}, ValueError, r"logits\[0, 1, 0\]"),
    (fast_rnnt.rnnt_loss, {"logits": lambda x: x[0]}, ValueError, "logits: expected 4 axes"),
    (fast_rnnt.rnnt_loss, {"logits": lambda x: x.long()}, TypeError, "logits: expected float"),
    (fast_rnnt.rnnt_loss_simple, {"lm": with_value((0, 1, 1), torch.nan)}, ValueError, r"lm\[0, 1\] \+ am"),
    (fast_rnnt.rnnt_loss_smoothed, {"am": with_value((0, 1, 1), torch.inf)}, ValueError, r"am\[0, 1\]"),
    (fast_rnnt.rnnt_loss_simple, {"am": lambda x: x[:, :, 1:]}, ValueError, "lm: expected batch and cla"),
    (fast_rnnt.rnnt_loss_simple, {"am": lambda x: x[0]}, ValueError, "am: expected 3 axes"),
    (fast_rnnt.rnnt_loss_pruned, {"ranges": lambda x: x + 1}, ValueError, r"ranges\[0, 0\].* from 0 to"),
    (fast_rnnt.rnnt_loss_pruned, {"ranges": with_value((0, 1, 1), 0)}, ValueError, r"ranges\[0, 1\].*conse"),
    (fast_rnnt.rnnt_loss_pruned, {"ranges": lambda x: x[:, 1:]}, ValueError, "ranges: expected"),
    (fast_rnnt.rnnt_loss_pruned, {"ranges": lambda x: x.float()}, TypeError, "ranges: expected int"),
    (k2.rnnt_loss_pruned, {"use_hat_loss": True, "termination_symbol": 1}, ValueError, "expected 0 for a"),
    (
        k2.rnnt_loss_pruned,
        {"use_hat_loss": True, "termination_symbol": 0, "symbols": lambda x: x * 0},
        ValueError,
        "symbols: expected symbols other than the factored blank",
    ),
    (
        fast_rnnt.rnnt_loss,
        {"rnnt_type": "modified", "boundary": with_value((0, 3), 1)},
        ValueError,
        r"boundary\[0\]: expected an end frame of at least the end symbol",
    ),
]


@pytest.mark.parametrize(("function", "changes", "error", "message"), BAD_VALUES)
def test_bad_values(
    function: Callable[..., Any], changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(function, **changes)


def test_bad_scores_of_the_recursion() -> None:
    recursion = fast_rnnt.mutual_information_recursion
    px, py = torch.zeros(2, 3, 5), torch.zeros(2, 4, 4)
    for arguments, error, message in (
        ((px[0], py), ValueError, "px: expected 3 axes"),
        ((px, py[:, 1:]), ValueError, "py: expected 4 symbol positions"),
        ((px[:, :, 2:], py), ValueError, r"px: expected 5 columns \(regular\) or 4"),
        ((px[:1], py), ValueError, "py: expected 1 utterances"),
        ((px.double(), py), TypeError, "py: expected torch.float64"),
        ((px.half(), py.half()), TypeError, "px: expected float32 or float64"),
        ((px.to("meta"), py), ValueError, "py: expected a tensor on meta"),
        ((px, py, torch.tensor([[0, 0, 3, 5]] * 2)), ValueError, r"boundary\[0\]"),
        ((px, with_value((1, 2, 3), torch.nan)(py.clone())), ValueError, r"py\[1, 2, 3\].*found NaN"),
        ((with_value((1, 2, 4), torch.inf)(px.clone()), py), ValueError, r"px\[1, 2, 4\].*found inf"),
    ):
        with pytest.raises(error, match=message):
            recursion(*arguments)
    modified = with_value((0, 1, 2), torch.nan)(px[:, :, :4].clone())
    with pytest.raises(ValueError, match=r"px\[0, 1, 2\]"):
        recursion(modified, py)
    with pytest.raises(ValueError, match="at least one, found 0 and 0"):
        fast_rnnt.joint_mutual_information_recursion([], [])
    with pytest.raises(ValueError, match=r"px\[1\]: expected shape"):
        fast_rnnt.joint_mutual_information_recursion([px, px[:, 1:]], [py, py])


def test_bad_posteriors_of_ranges() -> None:
    px_grad, py_grad, boundary = torch.rand(1, 3, 5), torch.rand(1, 4, 4), torch.tensor([[0, 0, 3, 4]])
    for arguments, message in (
        ((px_grad[0], py_grad, boundary, 2), "px_grad: expected 3 axes"),
        ((px_grad, py_grad[:, 1:], boundary, 2), "py_grad: expected"),
        ((px_grad, py_grad, boundary[0], 2), "boundary: expected shape"),
        ((px_grad, py_grad, boundary, 1), "s_range: expected at least 2"),
        ((px_grad[..., :4], py_grad, boundary, 0), "s_range: expected at least 1"),
        ((px_grad, py_grad, boundary * 0, 2), "boundary: expected end frames of at least 1"),
        ((px_grad[..., :4], py_grad, torch.tensor([[0, 0, 3, 2]]), 2), "at least the end symbol"),
        ((px_grad, py_grad, torch.tensor([[0, 0, 4, 4]]), 2), r"boundary\[0\]: .* of at most 3 symbols"),
        ((px_grad, py_grad, torch.tensor([[0, 0, 3, 5]]), 2), "and 4 frames"),
        ((px_grad, py_grad, torch.tensor([[0, -1, 3, 4]]), 2), "begins from 0"),
        ((px_grad, py_grad * torch.nan, boundary, 2), "py_grad: expected posteriors, found NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            fast_rnnt.get_rnnt_prune_ranges(*arguments)
    with pytest.raises(TypeError, match="boundary: expected int64"):
        fast_rnnt.get_rnnt_prune_ranges(px_grad, py_grad, boundary.float(), 2)
    am, lm = torch.rand(1, 4, 2), torch.rand(1, 4, 2)
    with pytest.raises(TypeError, match="ranges: expected integers"):
        fast_rnnt.do_rnnt_pruning(am, lm, torch.zeros(1, 4, 2))
    for position in (-1, 4):
        with pytest.raises(ValueError, match=f"positions from 0 to 3, found {position}"):
            fast_rnnt.do_rnnt_pruning(am, lm, torch.full((1, 4, 2), position))
    with pytest.raises(ValueError, match="ranges: expected batch and frames"):
        fast_rnnt.do_rnnt_pruning(torch.rand(1, 4, 2), torch.rand(1, 4, 2), torch.zeros(1, 3, 2).long())
