"""The selected normalizer against dense references in float64, and its operations."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import panda_rnnt
import pytest
import torch
from panda_rnnt import selected
from panda_rnnt.selected import (
    build_standard_blank_target_set,
    dense_selected_reference,
    dense_standard_blank_target_reference,
    selected_backward,
    selected_forward_backward,
    selected_log_probs,
    standard_blank_target_forward_backward,
    tensor_metrics,
    validate_selected_set,
)
from torch import Tensor
from torch.autograd import forward_ad


@dataclasses.dataclass
class Problem:
    """A random problem; ids and adjoints of inactive entries are not valid."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor
    ids: Tensor
    mask: Tensor
    adjoints: Tensor
    d_log_z: Tensor

    def floats(self) -> list[Tensor]:
        return [self.hidden, self.weight, self.bias]

    def arguments(self) -> list[Tensor]:
        return [*self.floats(), self.ids, self.mask]


def random_problem(
    seed: int,
    *,
    sites: int = 7,
    width: int = 5,
    classes: int = 11,
    per_site: int = 3,
    dtype: torch.dtype = torch.float64,
) -> Problem:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    mask = torch.rand(sites, per_site, generator=generator) < 0.7
    orders = [torch.randperm(classes, generator=generator) for _ in range(sites)]
    ids = torch.full((sites, per_site), -1)
    for site, order in enumerate(orders):
        count = min(per_site, classes)
        ids[site, :count] = order[:count]
        mask[site, count:] = False
    invalid = torch.tensor([-1, -100, classes, 2**40])
    padding = invalid[torch.randint(0, len(invalid), (sites, per_site), generator=generator)]
    adjoints = normal(sites, per_site)
    return Problem(
        normal(sites, width),
        normal(classes, width),
        normal(classes),
        torch.where(mask, ids, padding),
        mask,
        torch.where(mask, adjoints, torch.nan),
        normal(sites),
    )


def dense(floats: list[Tensor], problem: Problem) -> tuple[Tensor, Tensor]:
    """Log-probabilities and logZ by their definitions, in float64."""
    hidden, weight, bias = (tensor.double() for tensor in floats)
    scores = hidden @ weight.T + bias
    log_z = scores.exp().sum(1).log()
    ids = torch.where(problem.mask, problem.ids, 0)
    return torch.where(problem.mask, scores.gather(1, ids) - log_z[:, None], 0.0), log_z


def objective(logp: Tensor, log_z: Tensor, problem: Problem) -> Tensor:
    adjoints = torch.where(problem.mask, problem.adjoints, 0.0)
    return (adjoints * logp).sum() + (problem.d_log_z * log_z).sum()


def random_sizes(seed: int) -> dict[str, int]:
    generator = torch.Generator().manual_seed(seed)
    ranges = {"sites": (0, 40), "width": (1, 20), "classes": (1, 60), "per_site": (0, 6)}
    return {
        name: int(torch.randint(first, last, (), generator=generator))
        for name, (first, last) in ranges.items()
    }


def strided(tensor: Tensor) -> Tensor:
    return torch.stack([tensor, tensor], -1)[..., 0]


def test_names_are_those_of_the_package() -> None:
    assert len(selected.__all__) == 14 and sorted(selected.__all__) == selected.__all__
    assert all(hasattr(selected, name) for name in selected.__all__)


@pytest.mark.parametrize(
    ("dtype", "tolerance", "count"), [(torch.float64, 1e-11, 200), (torch.float32, 2e-5, 80)]
)
def test_random_problems_equal_their_definition(dtype: torch.dtype, tolerance: float, count: int) -> None:
    for seed in range(count):
        problem = random_problem(seed, dtype=dtype, **random_sizes(seed))
        floats = [tensor.requires_grad_() for tensor in problem.floats()]
        expected_logp, expected_log_z = dense(floats, problem)
        value = objective(expected_logp, expected_log_z, problem)
        expected = torch.autograd.grad(value, floats)
        ids = problem.ids.clamp(max=2**31 - 1).int() if seed % 2 else problem.ids
        arguments = [*floats, ids, problem.mask]
        if seed % 3 == 0:
            arguments = [strided(tensor) for tensor in arguments]
        result = selected_log_probs(*arguments, tile_c=1 + seed % 70)
        assert result.selected_logp.dtype == result.logZ.dtype == dtype
        close = {"rtol": tolerance, "atol": tolerance, "check_dtype": False}
        torch.testing.assert_close(result.selected_logp, expected_logp, **close)
        torch.testing.assert_close(result.logZ, expected_log_z, **close)
        found = torch.autograd.grad(objective(result.selected_logp, result.logZ, problem), floats)
        for gradient, expected_gradient in zip(found, expected, strict=True):
            assert gradient.dtype == dtype
            torch.testing.assert_close(gradient, expected_gradient, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 2e-5)])
def test_explicit_gradients_equal_the_dense_reference(dtype: torch.dtype, tolerance: float) -> None:
    for seed in range(30):
        problem = random_problem(seed, dtype=dtype, **random_sizes(seed))
        expected = dense_selected_reference(*problem.arguments(), problem.adjoints)
        tile_c = 1 + seed % 70
        found = selected_forward_backward(*problem.arguments(), problem.adjoints, tile_c=tile_c)
        log_z = found.logZ
        gradients = selected_backward(*problem.arguments(), problem.adjoints, log_z, tile_c=tile_c)
        for result in (found, gradients):
            for field in dataclasses.fields(result):
                value = getattr(result, field.name)
                if isinstance(value, Tensor):
                    other = getattr(expected, field.name)
                    assert value.dtype == dtype and not value.requires_grad
                    torch.testing.assert_close(value, other, rtol=tolerance, atol=10 * tolerance)
        classes = len(problem.weight)
        assert found.largest_logits_tile_shape == (len(problem.hidden), min(tile_c, classes))
        assert not found.persistent_full_logits and not gradients.persistent_full_grad_logits
        assert expected.full_logits_shape == (len(problem.hidden), classes)


def test_dense_reference_equals_the_definition() -> None:
    problem = random_problem(0)
    problem.d_log_z.zero_()
    floats = [tensor.requires_grad_() for tensor in problem.floats()]
    logp, log_z = dense(floats, problem)
    value = objective(logp, log_z, problem)
    found = dense_selected_reference(*problem.arguments(), problem.adjoints)
    torch.testing.assert_close(found.selected_logp, logp)
    torch.testing.assert_close(found.logZ, log_z)
    torch.testing.assert_close(found.loss, value)
    gradients = (found.grad_hidden, found.grad_weight, found.grad_bias)
    for gradient, expected in zip(gradients, torch.autograd.grad(value, floats), strict=True):
        torch.testing.assert_close(gradient, expected)
    assert found.materializes_full_logits and found.uses_autograd


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_blank_and_target(dtype: torch.dtype) -> None:
    problem = random_problem(1, per_site=2)
    targets = torch.tensor([3, -1, 5, -100, 7, 0, 10], dtype=dtype)
    ids, mask = build_standard_blank_target_set(targets, 2, num_classes=11)
    assert ids.dtype == torch.int64 and mask.dtype == torch.bool
    assert ids.tolist() == [[3, 2], [0, 2], [5, 2], [0, 2], [7, 2], [0, 2], [10, 2]]
    assert mask[:, 0].tolist() == (targets >= 0).tolist() and bool(mask[:, 1].all())
    d_target, d_blank = torch.randn(2, 7, dtype=torch.float64)
    d_target[targets < 0] = torch.nan
    arguments = (*problem.floats(), targets, 2, d_target, d_blank)
    found = standard_blank_target_forward_backward(*arguments, tile_c=4)
    expected = dense_standard_blank_target_reference(*arguments)
    direct = selected_forward_backward(*problem.floats(), ids, mask, torch.stack([d_target, d_blank], 1))
    for name in ("selected_logp", "logZ", "loss", "grad_hidden", "grad_weight", "grad_bias"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))
        torch.testing.assert_close(getattr(found, name), getattr(direct, name))


def test_gradcheck() -> None:
    problem = random_problem(2)
    floats = [tensor.requires_grad_() for tensor in problem.floats()]

    def function(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        result = selected_log_probs(*tensors, problem.ids, problem.mask, tile_c=4)
        return result.selected_logp, result.logZ

    assert torch.autograd.gradcheck(function, floats)


def test_opcheck() -> None:
    problem = random_problem(3, dtype=torch.float32)
    operations = torch.ops.panda_rnnt
    emissions, log_z, *state = operations.selected_forward(*problem.arguments(), 4)
    adjoints = torch.where(problem.mask, problem.adjoints, 0.0).double()
    for given in (emissions, None):
        arguments = (*problem.arguments(), given, *state, adjoints, torch.zeros_like(log_z), 4, True)
        torch.library.opcheck(operations.selected_backward.default, arguments)
    torch.library.opcheck(operations.blank_target_set.default, (torch.tensor([1, -1]), 0, 5))
    for tensor in problem.floats():
        tensor.requires_grad_()
    torch.library.opcheck(operations.selected_forward.default, (*problem.arguments(), 4))


def test_compile_traces_all_functions() -> None:
    problem = random_problem(4, dtype=torch.float32)
    floats = [tensor.requires_grad_() for tensor in problem.floats()]
    targets = torch.tensor([3, -1, 5, -1, 7, 0, 10])

    def function(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        result = selected_log_probs(*tensors, problem.ids, problem.mask, tile_c=4)
        value = objective(result.selected_logp, result.logZ, problem)
        zeros = torch.zeros(7)
        gradients = standard_blank_target_forward_backward(*tensors, targets, 2, zeros, zeros + 1.0)
        return value, gradients.grad_weight

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for found, expected in zip(compiled(*floats), function(*floats), strict=True):
        torch.testing.assert_close(found, expected)
    pairs = zip(
        torch.autograd.grad(compiled(*floats)[0], floats),
        torch.autograd.grad(function(*floats)[0], floats),
        strict=True,
    )
    for gradient, expected in pairs:
        torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("padding", [torch.nan, torch.inf])
def test_padding_has_no_influence_and_no_gradient(dtype: torch.dtype, padding: float) -> None:
    problem = random_problem(5, dtype=dtype)
    problem.mask[2] = problem.mask[6] = False
    problem.adjoints[2] = problem.adjoints[6] = torch.nan
    expected = selected_forward_backward(*problem.arguments(), problem.adjoints)
    problem.hidden[2] = padding
    problem.hidden[6, 1] = padding
    is_padding = torch.tensor([False, False, True, False, False, False, True])
    found = selected_forward_backward(*problem.arguments(), problem.adjoints)
    for name in ("selected_logp", "loss", "grad_hidden", "grad_weight", "grad_bias"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert torch.equal(found.logZ, expected.logZ.where(~is_padding, 0.0))
    assert bool((found.grad_hidden[is_padding] == 0).all())
    log_z = found.logZ.where(~is_padding, torch.nan)
    gradients = selected_backward(*problem.arguments(), problem.adjoints, log_z)
    torch.testing.assert_close(gradients.grad_weight, expected.grad_weight)
    assert bool((gradients.grad_hidden[is_padding] == 0).all())
    reference = dense_selected_reference(*problem.arguments(), problem.adjoints)
    torch.testing.assert_close(reference.grad_weight, found.grad_weight)
    torch.testing.assert_close(reference.logZ, found.logZ)
    # Adjoints of the normalizers of padding are not read either.
    floats = [tensor.requires_grad_() for tensor in problem.floats()]
    result = selected_log_probs(*problem.arguments())
    (result.selected_logp.sum() + (result.logZ**2).sum()).backward()
    assert all(tensor.grad is not None and bool(tensor.grad.isfinite().all()) for tensor in floats)
    assert problem.hidden.grad is not None and bool((problem.hidden.grad[is_padding] == 0).all())


@pytest.mark.parametrize(
    "sizes",
    [{"sites": 0}, {"per_site": 0}, {"classes": 1}, {"sites": 0, "per_site": 0}, {"sites": 1, "width": 1}],
    ids=str,
)
def test_empty_and_smallest_sizes(sizes: dict[str, int]) -> None:
    problem = random_problem(6, **sizes)
    found = selected_forward_backward(*problem.arguments(), problem.adjoints)
    expected = dense_selected_reference(*problem.arguments(), problem.adjoints)
    for name in ("selected_logp", "logZ", "loss", "grad_hidden", "grad_weight", "grad_bias"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-12, atol=1e-12)
    floats = [tensor.requires_grad_() for tensor in problem.floats()]
    selected_log_probs(*problem.arguments()).selected_logp.sum().backward()
    assert all(tensor.grad is not None and tensor.grad.shape == tensor.shape for tensor in floats)


def test_expanded_and_transposed_tensors() -> None:
    problem = random_problem(7, dtype=torch.float32)
    row = problem.hidden[:1].expand(7, -1)
    weight = problem.weight.T.contiguous().T
    rest = (problem.bias, problem.ids.T.contiguous().T, problem.mask.T.contiguous().T)
    found = selected_log_probs(row, weight, *rest)
    expected = selected_log_probs(row.contiguous(), problem.weight, problem.bias, problem.ids, problem.mask)
    assert torch.equal(found.selected_logp, expected.selected_logp)
    row = problem.hidden[:1].clone().requires_grad_()
    selected_log_probs(row.expand(7, -1), weight, *rest).selected_logp.sum().backward()
    assert row.grad is not None and row.grad.shape == (1, 5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_converted(dtype: torch.dtype) -> None:
    problem = random_problem(8, dtype=dtype)
    exact = selected_forward_backward(
        *[tensor.float() for tensor in problem.floats()], problem.ids, problem.mask, problem.adjoints
    )
    found = selected_forward_backward(*problem.arguments(), problem.adjoints)
    assert torch.equal(found.selected_logp, exact.selected_logp)
    assert found.grad_weight.dtype == torch.float32 and torch.equal(found.grad_weight, exact.grad_weight)
    floats = [tensor.requires_grad_() for tensor in problem.floats()]
    selected_log_probs(*problem.arguments()).selected_logp.sum().backward()
    assert all(tensor.grad is not None and tensor.grad.dtype == dtype for tensor in floats)


def test_a_common_offset_keeps_digits() -> None:
    # Scores are integers below 2^24, exact in float32, with an offset that logZ cannot resolve.
    offset = float(2**20)
    hidden, weight = torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [1.0], [2.0]])
    ids, mask = torch.tensor([[0, 2], [0, 2]]), torch.ones(2, 2, dtype=torch.bool)
    adjoints = torch.tensor([[1.0, 0.5], [0.25, -1.0]])
    found = selected_forward_backward(hidden, weight, torch.full((3,), offset), ids, mask, adjoints)
    exact = dense_selected_reference(hidden.double(), weight.double(), torch.zeros(3), ids, mask, adjoints)
    torch.testing.assert_close(found.selected_logp.double(), exact.selected_logp, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.grad_bias.double(), exact.grad_bias, rtol=1e-6, atol=1e-6)


def test_a_masked_class_has_no_probability_and_no_gradient() -> None:
    problem = random_problem(9, per_site=2)
    problem.bias[4] = -torch.inf
    problem.ids[:], problem.mask[:] = torch.tensor([4, 5]), True
    problem.adjoints = torch.zeros(7, 2).index_fill(1, torch.tensor(1), 1.0)
    found = selected_forward_backward(*problem.arguments(), problem.adjoints)
    assert bool((found.selected_logp[:, 0] == -torch.inf).all()) and bool(found.loss.isfinite())
    assert bool((found.grad_weight[4] == 0).all()) and bool(found.grad_weight.isfinite().all())


def test_sums_of_gradients() -> None:
    problem = random_problem(10, sites=50, classes=33)
    found = selected_forward_backward(*problem.arguments(), problem.adjoints)
    # The score gradient sums to 0 over the classes of each site.
    assert abs(float(found.grad_bias.sum())) < 1e-12
    torch.testing.assert_close(found.grad_weight.sum(0), torch.zeros(5).double(), rtol=0, atol=1e-12)


def test_results_do_not_depend_on_threads_and_hardly_on_tiles() -> None:
    problem = random_problem(11, sites=300, width=20, classes=700, dtype=torch.float32)
    results = [
        selected_forward_backward(*problem.arguments(), problem.adjoints, tile_c=tile_c)
        for tile_c in (1, 7, 64, 1024, 2**62)
    ]
    threads = panda_rnnt.num_threads()
    panda_rnnt.set_num_threads(3)
    again = selected_forward_backward(*problem.arguments(), problem.adjoints, tile_c=7)
    panda_rnnt.set_num_threads(threads)
    for name in ("selected_logp", "logZ", "loss", "grad_hidden", "grad_weight", "grad_bias"):
        assert torch.equal(getattr(again, name), getattr(results[1], name)), name
        for result in results[1:]:
            torch.testing.assert_close(getattr(result, name), getattr(results[0], name), rtol=2e-6, atol=2e-5)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of the process from /proc")
def test_scores_are_never_stored() -> None:
    program = """
import torch
from panda_rnnt.selected import build_standard_blank_target_set, selected_log_probs
def peak():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["VmHWM"].split()[0]) * 1024
def step(sites, classes):
    hidden, weight = torch.randn(sites, 8, requires_grad=True), torch.randn(classes, 8, requires_grad=True)
    ids, mask = build_standard_blank_target_set(torch.ones(sites).long(), 0, num_classes=classes)
    selected_log_probs(hidden, weight, torch.zeros(classes), ids, mask).selected_logp.sum().backward()
step(8, 16)
before = peak()
step(4096, 16384)
print(peak() - before)
"""
    grown = int(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout)
    assert grown < 4096 * 16384 * 4 // 4


def test_threads_compute_the_same() -> None:
    problems = [random_problem(seed, sites=30, classes=50, dtype=torch.float32) for seed in range(4)]
    expected = [selected_forward_backward(*p.arguments(), p.adjoints).grad_weight for p in problems]

    def run(index: int) -> Tensor:
        problem = problems[index % 4]
        return selected_forward_backward(*problem.arguments(), problem.adjoints).grad_weight

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for index, found in enumerate(pool.map(run, range(200))):
            assert torch.equal(found, expected[index % 4])


CASES: list[tuple[str, Callable[[Problem], object], type[Exception], str]] = [
    ("rank", lambda p: setattr(p, "hidden", p.hidden[0]), ValueError, r"hidden: expected 2 axes"),
    ("width", lambda p: setattr(p, "weight", p.weight[:, :3]), ValueError, r"weight: .* 5 numbers.*found 3"),
    ("no width", lambda p: setattr(p, "hidden", p.hidden[:, :0]), ValueError, r"hidden: expected rows of"),
    ("no class", lambda p: setattr(p, "weight", p.weight[:0]), ValueError, r"weight: expected at least 1"),
    ("bias", lambda p: setattr(p, "bias", p.bias[:3]), ValueError, r"bias: expected shape \[11\].*\[3\]"),
    ("bias rank", lambda p: setattr(p, "bias", p.bias[0]), ValueError, r"bias: expected 1 axes"),
    ("no bias", lambda p: setattr(p, "bias", None), TypeError, r"bias: expected a tensor, found NoneType"),
    ("sites", lambda p: setattr(p, "hidden", p.hidden[:6]), ValueError, r"selected_ids: expected 6 sites"),
    ("mask shape", lambda p: setattr(p, "mask", p.mask[:, :2]), ValueError, r"selected_mask: expected shape"),
    ("mask type", lambda p: setattr(p, "mask", p.mask.long()), TypeError, r"selected_mask: expected bool"),
    ("float ids", lambda p: setattr(p, "ids", p.ids.float()), TypeError, r"selected_ids: expected int32"),
    ("int rows", lambda p: setattr(p, "hidden", p.hidden.long()), TypeError, r"hidden: expected float16"),
    ("class", lambda p: p.ids.__setitem__((1, 2), 11), ValueError, r"selected_ids\[1, 2\].*\[0, 11\).* 11"),
    ("negative", lambda p: p.ids.__setitem__((3, 0), -1), ValueError, r"selected_ids\[3, 0\].*found -1"),
    ("large", lambda p: p.ids.__setitem__((0, 0), 2**32), ValueError, r"selected_ids\[0, 0\].*4294967296"),
    ("twice", lambda p: p.ids.__setitem__(2, 5), ValueError, r"selected_ids\[2\].*distinct within each site"),
    ("NaN row", lambda p: p.hidden.__setitem__((4, 1), torch.nan), ValueError, r"hidden\[4\].*NaN or \+inf"),
    ("inf weight", lambda p: p.weight.__setitem__((6, 0), torch.inf), ValueError, r"weight\[6\].*found inf"),
    ("NaN weight", lambda p: p.weight.__setitem__((6, 0), torch.nan), ValueError, r"hidden\[0\].*found NaN"),
    ("masked", lambda p: p.bias.fill_(-torch.inf), ValueError, r"hidden\[0\].*found -inf for all classes"),
    ("meta", lambda p: setattr(p, "bias", p.bias.to("meta")), ValueError, r"bias: expected a tensor on cpu"),
    ("adjoint", lambda p: p.adjoints.__setitem__((5, 1), torch.inf), ValueError, r"selected_adjoints\[5\]"),
    ("adjoints", lambda p: setattr(p, "adjoints", p.adjoints[:, 1:]), ValueError, r"selected_adjoints: exp"),
]


@pytest.mark.parametrize(("change", "error", "message"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_bad_tensors(change: Callable[[Problem], object], error: type[Exception], message: str) -> None:
    problem = random_problem(12)
    problem.ids[:], problem.mask[:] = torch.tensor([1, 2, 3]), True
    problem.adjoints = torch.ones(7, 3)
    change(problem)
    with pytest.raises(error, match=message) as caught:
        selected_forward_backward(*problem.arguments(), problem.adjoints)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert type(copied) is type(caught.value) and str(copied) == str(caught.value)
    if "adjoint" in message:
        return
    with pytest.raises(error, match=message):
        selected_log_probs(*problem.arguments())


@pytest.mark.parametrize(
    ("tile_c", "error"), [(0, ValueError), (-3, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_bad_tiles(tile_c: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"tile_c: expected"):
        selected_log_probs(*random_problem(13).arguments(), tile_c=tile_c)


@pytest.mark.parametrize(
    ("targets", "blank", "classes", "error", "message"),
    [
        ([1, 2, 3], 2, 8, ValueError, r"target_ids\[1\].*distinct from blank_id 2, found 2"),
        ([1, 8, 3], 2, 8, ValueError, r"target_ids\[1\].*in \[0, 8\), found 8"),
        ([1], 8, 8, ValueError, r"blank_id: expected a class in \[0, 8\), found 8"),
        ([1], -1, 8, ValueError, r"blank_id: .*found -1"),
        ([[1]], 0, 8, ValueError, r"target_ids: expected 1 axes"),
        ([1.0], 0, 8, TypeError, r"target_ids: expected int32 or int64"),
        ([1], 0.0, 8, TypeError, r"blank_id: expected an integer"),
        ([1], 0, -8, ValueError, r"num_classes: expected a number"),
    ],
)
def test_bad_targets(targets: Any, blank: Any, classes: int, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build_standard_blank_target_set(torch.tensor(targets), blank, num_classes=classes)


def test_validation() -> None:
    ids, mask = torch.tensor([[1, 1], [-1, 9]]), torch.tensor([[True, True], [False, True]])
    validate_selected_set(ids, mask, num_classes=10, reject_duplicates=False)
    validate_selected_set(ids[1:].int(), mask[1:], num_classes=10)
    validate_selected_set(ids[:0], mask[:0], num_classes=0)
    with pytest.raises(ValueError, match=r"selected_ids\[0\]: .*distinct within each site, found 1 twice"):
        validate_selected_set(ids, mask, num_classes=10)
    with pytest.raises(ValueError, match=r"selected_ids\[1, 1\]: .*\[0, 9\), found 9"):
        validate_selected_set(ids, mask, num_classes=9, reject_duplicates=False)
    with pytest.raises(TypeError, match="positional"):
        validate_selected_set(ids, mask, 10)  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional"):
        build_standard_blank_target_set(torch.tensor([1]), 0, 10)  # type: ignore[misc]


def test_targets_need_matching_adjoints() -> None:
    problem = random_problem(14)
    targets = torch.full((7,), 3)
    with pytest.raises(ValueError, match=r"dblank: expected shape \(7,\), found \(6,\)"):
        standard_blank_target_forward_backward(*problem.floats(), targets, 0, torch.ones(7), torch.ones(6))


def test_log_z_of_other_arguments_is_refused() -> None:
    problem = random_problem(15, dtype=torch.float32)
    problem.mask[:, 0], problem.ids = True, torch.tensor([1, 2, 3]).expand(7, -1)
    problem.adjoints = torch.ones(7, 3)
    arguments = (*problem.arguments(), problem.adjoints)
    with pytest.raises(ValueError, match=r"logZ\[3\]: expected a finite number, found NaN"):
        selected_backward(*arguments, torch.zeros(7).index_fill(0, torch.tensor(3), torch.nan))
    with pytest.raises(ValueError, match=r"logZ: expected shape \[7\], found \[5\]"):
        selected_backward(*arguments, torch.zeros(5))
    with pytest.raises(ValueError, match=r"grad_hidden: expected finite numbers"):
        selected_backward(*arguments, torch.full((7,), -1e4))


def test_results_are_frozen_and_arguments_keyword_only() -> None:
    problem = random_problem(16)
    result = selected_log_probs(*problem.arguments())
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.logZ = problem.bias  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional"):
        selected_log_probs(*problem.arguments(), 8)  # type: ignore[misc]


def test_derivatives_that_do_not_exist_are_refused() -> None:
    problem = random_problem(17)
    x = problem.hidden.requires_grad_()

    def function(hidden: Tensor) -> Tensor:
        return selected_log_probs(hidden, *problem.arguments()[1:]).selected_logp.sum()

    (gradient,) = torch.autograd.grad(function(x**3), x, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(gradient.sum(), x)
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="hidden: forward-mode"):
        function(forward_ad.make_dual(problem.hidden.detach(), problem.hidden.detach()))


def test_upstream_gradients_that_are_not_finite_give_nan() -> None:
    problem = random_problem(18)
    for value in (torch.inf, torch.nan):
        problem.hidden.grad = None
        problem.hidden.requires_grad_()
        (selected_log_probs(*problem.arguments()).selected_logp * value).sum().backward()
        assert problem.hidden.grad is not None and bool(problem.hidden.grad.isnan().any())


def test_arguments_changed_before_the_backward_pass_are_refused() -> None:
    problem = random_problem(19)
    problem.weight.requires_grad_()
    value = selected_log_probs(*problem.arguments()).selected_logp.sum()
    problem.hidden.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


def test_devices() -> None:
    problem = random_problem(20)
    meta = [tensor.to("meta") for tensor in problem.arguments()]
    assert selected_log_probs(*meta).selected_logp.device.type == "meta"
    with pytest.raises(ValueError, match="expected a tensor with data, found one on device meta"):
        selected_log_probs(*meta, device="cpu")
    with pytest.raises(ValueError, match="device: expected 'cpu', found 'cuda'"):
        selected_log_probs(*problem.arguments(), device="cuda")


def test_metrics() -> None:
    found, expected = torch.tensor([3.0, 4.0]), torch.tensor([[3.0], [0.0]])
    metrics = tensor_metrics(found, expected)
    assert metrics == pytest.approx({"max_abs": 4.0, "rel_L2": 4 / 3, "cosine": 0.6})
    assert tensor_metrics(torch.zeros(0), torch.zeros(0)) == {"max_abs": 0.0, "rel_L2": 0.0, "cosine": 0.0}
    with pytest.raises(ValueError, match="got: expected 2 elements, as ref, found 1"):
        tensor_metrics(found[:1], expected)
    if not torch.cuda.is_available():
        selected.reset_cuda_peak()
        assert selected.cuda_peak_mib() == {"allocated": None, "reserved": None}
