"""panda_rnnt.torchaudio against torchaudio and dense references."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import panda_rnnt.torchaudio
import pytest
import reference
import torch
from panda_rnnt.torchaudio import RNNTLoss, forced_align, rnnt_loss
from torch import Tensor

Arguments = tuple[Tensor, Tensor, Tensor, Tensor]


def random_arguments(seed: int, dtype: torch.dtype = torch.float32, blank: int = 0) -> Arguments:
    """Scores and indices of a ragged batch; padding of the labels is a class, as torchaudio needs."""
    generator = torch.Generator().manual_seed(seed)

    def integer(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    batch, frames, labels, classes = integer(1, 4), integer(1, 9), integer(1, 6), integer(2, 8)
    logits = 2 * torch.randn(batch, frames, labels + 1, classes, generator=generator, dtype=torch.float64)
    blank %= classes
    allowed = torch.tensor([c for c in range(classes) if c != blank])
    targets = allowed[torch.randint(0, len(allowed), (batch, labels), generator=generator)]
    lengths = [torch.randint(1, size + 1, (batch,), generator=generator) for size in (frames, labels)]
    for size, values in zip((frames, labels), lengths, strict=True):
        values[integer(0, batch - 1)] = size
    logit_lengths, target_lengths = (values.int() for values in lengths)
    return logits.to(dtype), targets.int(), logit_lengths, target_lengths


def value_and_gradient(function: Callable[..., Tensor], arguments: Arguments, **options: Any) -> list[Tensor]:
    logits = arguments[0].clone().requires_grad_()
    value = function(logits, *arguments[1:], **options)
    weights = 1.0 + torch.arange(value.numel()).to(value)
    (gradient,) = torch.autograd.grad((value * weights).sum(), logits)
    return [value.detach(), gradient]


def dense_reference(
    arguments: Arguments, blank: int, clamp: float, reduction: str, fused: bool
) -> list[Tensor]:
    """Loss and gradient of ``value_and_gradient`` in float64, by the definition."""
    logits = arguments[0].double().requires_grad_()
    batch = reference.Batch(logits, logits, logits, logits, *arguments[1:])
    tokens = logits.log_softmax(-1) if fused else logits
    arcs = reference.Arcs(tokens, [(blank % logits.shape[-1], 1)], [0])
    losses = reference.path_losses(arcs, batch)
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    if clamp > 0:
        gradient = gradient.clamp(-clamp, clamp)
    size = len(losses)
    weights = {
        "none": 1.0 + torch.arange(size).double(),
        "sum": torch.ones(size).double(),
        "mean": torch.full((size,), 1 / size, dtype=torch.float64),
    }[reduction]
    value = losses if reduction == "none" else (losses * weights).sum()
    return [value.detach(), gradient * weights[:, None, None, None]]


def options_of(seed: int) -> dict[str, Any]:
    return {
        "blank": [-1, 0, -2, 1][seed % 4],
        "clamp": [-1.0, 0.1, 0.0, 0.01, 5.0][seed % 5],
        "reduction": ["mean", "sum", "none"][seed % 3],
        "fused_log_softmax": seed % 7 not in (2, 5),
    }


def random_call(seed: int, dtype: torch.dtype = torch.float32) -> tuple[Arguments, dict[str, Any]]:
    options = options_of(seed)
    logits, *indices = random_arguments(seed, dtype, options["blank"])
    if not options["fused_log_softmax"]:
        logits = logits.log_softmax(-1)
    return (logits, *indices), options


def test_losses_and_gradients_equal_torchaudio() -> None:
    torchaudio = pytest.importorskip("torchaudio")
    for seed in range(200):
        arguments, options = random_call(seed)
        expected = value_and_gradient(torchaudio.functional.rnnt_loss, arguments, **options)
        module = torchaudio.transforms.RNNTLoss(**options)
        for theirs, ours in ((None, rnnt_loss), (module, RNNTLoss(**options))):
            if theirs is not None:
                expected, options = value_and_gradient(theirs, arguments), {}
            found = value_and_gradient(ours, arguments, **options)
            torch.testing.assert_close(
                found, expected, rtol=1e-5, atol=1e-5, msg=lambda m, s=seed: f"{s}: {m}"
            )


@pytest.mark.parametrize("seed", range(60))
def test_losses_and_gradients_equal_dense_ones(seed: int) -> None:
    arguments, options = random_call(seed, torch.float64)
    expected = dense_reference(
        arguments, options["blank"], options["clamp"], options["reduction"], options["fused_log_softmax"]
    )
    found = value_and_gradient(rnnt_loss, arguments, **options)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("fused", [True, False])
def test_gradients_equal_finite_differences(fused: bool) -> None:
    logits, *indices = random_arguments(3, torch.float64)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: rnnt_loss(x, *indices, blank=0, fused_log_softmax=fused), (logits,), atol=1e-7
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("fused", [True, False])
def test_half_precision(dtype: torch.dtype, fused: bool) -> None:
    arguments = random_arguments(4, dtype)
    if not fused:
        arguments = (arguments[0].float().log_softmax(-1).to(dtype), *arguments[1:])
    found = value_and_gradient(rnnt_loss, arguments, blank=0, fused_log_softmax=fused)
    assert all(tensor.dtype == dtype for tensor in found)
    expected = dense_reference(arguments, 0, -1.0, "mean", fused)
    torch.testing.assert_close(found, [tensor.to(dtype) for tensor in expected], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("fused", [True, False])
def test_padding_layouts_and_index_types_do_not_matter(fused: bool) -> None:
    logits, targets, logit_lengths, target_lengths = random_arguments(8)
    assert logits.shape[0] > 1
    logits = logits.log_softmax(-1)
    options = {"blank": 0, "fused_log_softmax": fused, "reduction": "none"}
    expected = value_and_gradient(rnnt_loss, (logits, targets, logit_lengths, target_lengths), **options)
    is_padding = torch.zeros(logits.shape[:3], dtype=torch.bool)
    targets = targets.clone()
    for b in range(len(logits)):
        is_padding[b, logit_lengths[b] :] = True
        is_padding[b, :, target_lengths[b] + 1 :] = True
        targets[b, target_lengths[b] :] = -100
    assert is_padding.any() and (expected[1][is_padding] == 0).all()
    logits[is_padding] = torch.nan
    strided = logits.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    mixed = (strided, targets.long().t().contiguous().t(), logit_lengths.long(), target_lengths)
    found = value_and_gradient(rnnt_loss, mixed, **options)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert (found[1][is_padding] == 0).all()


@pytest.mark.parametrize("fused", [True, False])
def test_empty_targets(fused: bool) -> None:
    logits = torch.randn(2, 3, 1, 4).log_softmax(-1)
    indices = (torch.zeros(2, 0, dtype=torch.int32), torch.tensor([3, 2]), torch.tensor([0, 0]))
    found = value_and_gradient(rnnt_loss, (logits, *indices), reduction="none", fused_log_softmax=fused)
    torch.testing.assert_close(found[0], -torch.stack([logits[0, :, 0, 3].sum(), logits[1, :2, 0, 3].sum()]))


class _NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        return None


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("fused", [True, False])
def test_undefined_gradients_are_zeros(reduction: str, fused: bool) -> None:
    logits, *indices = random_arguments(5)
    logits.requires_grad_()
    loss = rnnt_loss(logits, *indices, blank=0, reduction=reduction, fused_log_softmax=fused)
    _NoGradient.apply(loss).sum().backward()
    assert logits.grad is not None and (logits.grad == 0).all()


@pytest.mark.parametrize("seed", range(8))
def test_torch_script(seed: int, tmp_path: Path) -> None:
    arguments, options = random_call(seed)
    expected = value_and_gradient(rnnt_loss, arguments, **options)
    function = torch.jit.script(rnnt_loss)
    module = torch.jit.script(RNNTLoss(**options))
    module.save(str(tmp_path / "loss.pt"))
    for scripted in (module, torch.jit.load(str(tmp_path / "loss.pt"))):
        assert all(
            torch.equal(*pair) for pair in zip(value_and_gradient(scripted, arguments), expected, strict=True)
        )
    for _ in range(3):  # TorchScript optimizes a function after its first calls.
        found = value_and_gradient(function, arguments, **options)
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize("seed", [0, 2])
def test_compile_without_graph_breaks(seed: int) -> None:
    arguments, options = random_call(seed)
    expected = value_and_gradient(rnnt_loss, arguments, **options)
    torch._dynamo.reset()
    for compiled in (
        torch.compile(lambda *a: rnnt_loss(*a, **options), fullgraph=True, backend="aot_eager"),
        torch.compile(RNNTLoss(**options), fullgraph=True, backend="aot_eager"),
    ):
        torch.testing.assert_close(value_and_gradient(compiled, arguments), expected)


def test_operations_pass_opcheck() -> None:
    logits, *indices = random_arguments(6)
    logits.requires_grad_()
    for operation in (torch.ops.panda_rnnt.logit_losses, torch.ops.panda_rnnt.log_prob_losses):
        torch.library.opcheck(operation.default, (logits, *indices, 0, 0.1))
    log_probs = torch.randn(1, 6, 4).log_softmax(-1)
    lengths = (torch.tensor([6]), torch.tensor([2]))
    torch.library.opcheck(
        torch.ops.panda_rnnt.forced_align.default, (log_probs, torch.tensor([[1, 2]]), *lengths, 0)
    )


Change = Callable[[list[Tensor]], object]
BAD_CALLS: list[tuple[str, Change, dict[str, Any], type[Exception], str]] = [
    ("reduction", lambda a: None, {"reduction": "average"}, ValueError, r"reduction: .*found 'average'"),
    ("blank", lambda a: None, {"blank": 7}, ValueError, r"blank: expected a class from 0 to 3, found 7"),
    ("negative blank", lambda a: None, {"blank": -5}, ValueError, r"blank: .*found -1"),
    ("label", lambda a: a[1].__setitem__((0, 1), 4), {}, ValueError, r"targets\[0, 1\].*0 to 3, found 4"),
    ("label = blank", lambda a: a[1].__setitem__((0, 1), 0), {}, ValueError, r"targets\[0, 1\].*a blank"),
    ("long", lambda a: a[2].__setitem__(0, 4), {}, ValueError, r"logit_lengths: expected 3 .*found 4"),
    ("short", lambda a: a[2].fill_(2), {}, ValueError, r"logit_lengths: expected 3 .*found 2"),
    ("labels", lambda a: a[3].fill_(1), {}, ValueError, r"target_lengths: expected 2 .*found 1"),
    ("negative", lambda a: a[3].__setitem__(1, -1), {}, ValueError, r"target_lengths\[1\].*found -1"),
    ("rank", lambda a: a.__setitem__(0, a[0][0]), {}, ValueError, r"logits: expected 4 axes"),
    ("targets", lambda a: a.__setitem__(1, a[1][:, :1]), {}, ValueError, r"targets: expected shape"),
    ("batch", lambda a: a.__setitem__(2, a[2][:1]), {}, ValueError, r"logit_lengths: expected 2 utter"),
    ("float", lambda a: a.__setitem__(1, a[1].float()), {}, TypeError, r"targets: expected int32 or int64"),
    ("integer", lambda a: a.__setitem__(0, a[0].int()), {}, TypeError, r"logits: expected float16"),
    (
        "NaN",
        lambda a: a[0].__setitem__((1, 0, 0, 0), torch.nan),
        {},
        ValueError,
        r"utterance 1, frame 0.*NaN",
    ),
    ("meta", lambda a: a.__setitem__(1, a[1].to("meta")), {}, ValueError, r"targets: expected a tensor on"),
]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    ("change", "options", "error", "message"), [c[1:] for c in BAD_CALLS], ids=[c[0] for c in BAD_CALLS]
)
def test_bad_calls(
    change: Change, options: dict[str, Any], error: type[Exception], message: str, fused: bool
) -> None:
    arguments = [
        torch.zeros(2, 3, 3, 4, requires_grad=False),
        torch.tensor([[1, 2], [3, 0]]),
        torch.tensor([3, 2]),
        torch.tensor([2, 1]),
    ]
    change(arguments)
    with pytest.raises(error, match=message) as caught:
        rnnt_loss(*arguments, **{"blank": 0, "fused_log_softmax": fused, **options})
    copied = pickle.loads(pickle.dumps(caught.value))
    assert type(copied) is type(caught.value) and str(copied) == str(caught.value)


@pytest.mark.parametrize("fused", [True, False])
def test_second_derivatives_are_refused(fused: bool) -> None:
    logits, *indices = random_arguments(7)
    logits.requires_grad_()
    loss = rnnt_loss(logits**3, *indices, blank=0, fused_log_softmax=fused)
    (gradient,) = torch.autograd.grad(loss, logits, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(gradient.sum(), logits)


def random_alignment(seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, int]:
    generator = torch.Generator().manual_seed(seed)
    labels = int(torch.randint(1, 8, (), generator=generator))
    frames = 2 * labels + int(torch.randint(0, 9, (), generator=generator))
    log_probs = (2 * torch.randn(1, frames, 5, generator=generator)).log_softmax(-1)
    blank = seed % 5
    allowed = torch.tensor([c for c in range(5) if c != blank])
    targets = allowed[torch.randint(0, 4, (1, labels), generator=generator)]
    return log_probs.to(dtype), targets, blank


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_alignments_equal_torchaudio(dtype: torch.dtype) -> None:
    functional = pytest.importorskip("torchaudio").functional
    for seed in range(200):
        log_probs, targets, blank = random_alignment(seed, dtype)
        targets = targets.int() if seed % 2 else targets
        expected = functional.forced_align(log_probs, targets, blank=blank)
        lengths = (torch.tensor([log_probs.shape[1]]), torch.tensor([targets.shape[1]]))
        for found in (
            forced_align(log_probs, targets, blank=blank),
            forced_align(log_probs, targets, *lengths, blank),
        ):
            torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_alignments_of_few_frames_and_ties() -> None:
    functional = pytest.importorskip("torchaudio").functional
    for labels in ([1], [1, 1], [1, 2], [1, 2, 2, 1], [3, 3, 3]):
        targets = torch.tensor([labels])
        repetitions = sum(left == right for left, right in itertools.pairwise(labels))
        for extra in range(4):
            log_probs = torch.zeros(1, len(labels) + repetitions + extra, 4)
            expected = functional.forced_align(log_probs, targets)
            torch.testing.assert_close(forced_align(log_probs, targets), expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_alignment_of_half_precision(dtype: torch.dtype) -> None:
    log_probs, targets, blank = random_alignment(1, dtype)
    path, scores = forced_align(log_probs.float(), targets, blank=blank)
    found = forced_align(log_probs, targets, blank=blank)
    assert torch.equal(found[0], path) and torch.equal(found[1], scores.to(dtype))


def test_alignment_under_torch_script(tmp_path: Path) -> None:
    log_probs, targets, blank = random_alignment(2, torch.float32)
    expected = forced_align(log_probs, targets, blank=blank)
    scripted = torch.jit.script(forced_align)
    scripted.save(str(tmp_path / "align.pt"))
    for function in (scripted, torch.jit.load(str(tmp_path / "align.pt"))):
        torch.testing.assert_close(function(log_probs, targets, None, None, blank), expected, rtol=0, atol=0)
    compiled = torch.compile(forced_align, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(log_probs, targets, blank=blank), expected, rtol=0, atol=0)


BAD_ALIGNMENTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"targets": [[1, 0]]}, ValueError, r"targets\[0, 1\]: expected a label, found 0, the blank"),
    ({"targets": [[1, 4]]}, ValueError, r"targets\[0, 1\]: expected a class from 0 to 3, found 4"),
    ({"targets": [[1, -1]]}, ValueError, r"targets\[0, 1\].*found -1"),
    ({"targets": [[1, 1, 2]]}, RuntimeError, r"expected at most 3 .*found 3 labels and 1 repetitions"),
    ({"targets": [[1.0]]}, TypeError, r"targets: expected int32 or int64"),
    ({"targets": [[1], [2]]}, ValueError, r"targets: expected 2 axes and 1 utterance"),
    ({"log_probs": torch.zeros(2, 3, 4)}, ValueError, r"log_probs: expected 3 axes and 1 utterance"),
    ({"log_probs": torch.zeros(1, 3, 4).int()}, TypeError, r"log_probs: expected float16"),
    ({"log_probs": torch.full((1, 3, 4), torch.nan)}, ValueError, r"log_probs\[0, 0, \d\]: .*found nan"),
    ({"log_probs": torch.full((1, 3, 4), -torch.inf)}, RuntimeError, r"positive probability, found none"),
    ({"input_lengths": [2]}, ValueError, r"input_lengths: expected \[3\], found \[2\]"),
    ({"target_lengths": [2]}, ValueError, r"target_lengths: expected \[1\], found \[2\]"),
    ({"blank": 4}, ValueError, r"blank: expected a class from 0 to 3, found 4"),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD_ALIGNMENTS, ids=range(len(BAD_ALIGNMENTS)))
def test_bad_alignments(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments: dict[str, Any] = {"log_probs": torch.zeros(1, 3, 4), "targets": [[1]], **changes}
    arguments = {
        name: torch.tensor(value) if isinstance(value, list) else value for name, value in arguments.items()
    }
    with pytest.raises(error, match=message):
        forced_align(**arguments)


def test_names_are_those_of_torchaudio() -> None:
    assert panda_rnnt.torchaudio.__all__ == ["RNNTLoss", "forced_align", "rnnt_loss"]
