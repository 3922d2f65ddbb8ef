"""Log-probabilities of selected classes, with the names of the PANDA package.

A transducer needs two log-probabilities per lattice site, normalized over all classes. For hidden
rows ``h[i]``, a last layer ``W``, ``b`` and selected classes ``id[i, s]``::

    z[i, c]     = h[i] . W[c] + b[c]
    logZ[i]     = log(sum over c of exp(z[i, c]))
    logp[i, s]  = z[i, id[i, s]] - logZ[i]

and, for adjoints ``a[i, s] = d loss / d logp[i, s]`` with row sums ``A[i]``::

    g[i, c]     = (sum of a[i, s] over s with id[i, s] = c) - A[i] exp(z[i, c] - logZ[i])
    grad_hidden = g W        grad_weight = g^T h        grad_bias = sum over i of g[i]

``z`` and ``g`` exist for at most ``tile_c`` classes and a few thousand sites at a time. The functions
are exact, and take what those of ``panda`` (Lewis-panda/panda-selected-normalizer) take::

    ids, mask = build_standard_blank_target_set(targets, blank_id=0, num_classes=len(weight))
    result = selected_log_probs(hidden, weight, bias, ids, mask)
    result.selected_logp.sum().backward()

Axes: N sites, H width, C classes, S selected classes of a site. Floats are float64 if hidden, weight
or bias is, and float32 otherwise; ids are int32 or int64. Inactive ids and their adjoints are not
read. Neither is the hidden row of a site without an active entry where it is not finite, such as
padding; its logZ is 0, and so is its gradient.
"""

from __future__ import annotations

import dataclasses
import operator

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from panda_rnnt import _native
from panda_rnnt.torch import _array, _check_same_device, _common_device, _result_type

__all__ = [
    "SelectedBackwardResult",
    "SelectedForwardBackwardResult",
    "SelectedNormalizerResult",
    "build_standard_blank_target_set",
    "cuda_peak_mib",
    "dense_selected_reference",
    "dense_standard_blank_target_reference",
    "reset_cuda_peak",
    "selected_backward",
    "selected_forward_backward",
    "selected_log_probs",
    "standard_blank_target_forward_backward",
    "tensor_metrics",
    "validate_selected_set",
]


@dataclasses.dataclass(frozen=True)
class SelectedNormalizerResult:
    """Result of :func:`selected_log_probs`.

    Attributes:
        selected_logp: Log-probabilities ``[N, S]``, 0 at inactive entries.
        logZ: Normalizers ``[N]``.
        largest_logits_tile_shape: Bound on the scores that exist at a time, in sites and classes.
        persistent_full_logits: False: scores of all sites and classes are never stored.
        persistent_full_grad_logits: False: the same holds for their gradient.
    """

    selected_logp: Tensor
    logZ: Tensor
    largest_logits_tile_shape: tuple[int, int]
    persistent_full_logits: bool = False
    persistent_full_grad_logits: bool = False


@dataclasses.dataclass(frozen=True)
class SelectedBackwardResult:
    """Result of :func:`selected_backward`: gradients shaped like their arguments.

    The other attributes are those of :class:`SelectedNormalizerResult`.
    """

    grad_hidden: Tensor
    grad_weight: Tensor
    grad_bias: Tensor
    largest_logits_tile_shape: tuple[int, int]
    persistent_full_logits: bool = False
    persistent_full_grad_logits: bool = False


@dataclasses.dataclass(frozen=True)
class SelectedForwardBackwardResult:
    """Result of :func:`selected_forward_backward`.

    ``loss`` is the sum of all active adjoints times their log-probabilities. The other attributes
    are those of :class:`SelectedNormalizerResult` and :class:`SelectedBackwardResult`.
    """

    selected_logp: Tensor
    logZ: Tensor
    loss: Tensor
    grad_hidden: Tensor
    grad_weight: Tensor
    grad_bias: Tensor
    largest_logits_tile_shape: tuple[int, int]
    persistent_full_logits: bool = False
    persistent_full_grad_logits: bool = False


@dataclasses.dataclass(frozen=True)
class DenseReferenceResult:
    """Result of :func:`dense_selected_reference`, which stores all scores."""

    selected_logp: Tensor
    logZ: Tensor
    loss: Tensor
    grad_hidden: Tensor
    grad_weight: Tensor
    grad_bias: Tensor
    full_logits_shape: tuple[int, int]
    materializes_full_logits: bool = True
    uses_autograd: bool = True


def validate_selected_set(
    selected_ids: Tensor, selected_mask: Tensor, *, num_classes: int, reject_duplicates: bool = True
) -> None:
    """Checks selected classes and their mask, both ``[N, S]``.

    Args:
        selected_ids: Selected classes; ids of inactive entries may be any number, such as -1.
        selected_mask: True for active entries.
        num_classes: Number of classes C.
        reject_duplicates: Whether a site must not select a class twice.

    Raises:
        ValueError: Shapes that differ; an active id that is not a class, or not distinct.
        TypeError: A mask that is not bool; ids that are not int32 or int64.
    """
    _check_axes(selected_ids=(selected_ids, 2), selected_mask=(selected_mask, 2))
    _check_mask(selected_mask)
    arguments = (_array(selected_ids.cpu()), _mask_array(selected_mask.cpu()))
    _native.check_selection(*arguments, _count("num_classes", num_classes), bool(reject_duplicates))


def build_standard_blank_target_set(
    target_ids: Tensor, blank_id: int, *, num_classes: int
) -> tuple[Tensor, Tensor]:
    """Selects target and blank of each site, in this order.

    Args:
        target_ids: Targets ``[N]``, int32 or int64; negative for sites without a target.
        blank_id: Class of the blank.
        num_classes: Number of classes C.

    Returns:
        Ids ``[N, 2]`` (int64, 0 for missing targets) and their mask ``[N, 2]``.

    Raises:
        ValueError: A blank or a target that is not a class; a target that is the blank.
        TypeError: Targets that are not int32 or int64.
    """
    _check_axes(target_ids=(target_ids, 1))
    if target_ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"target_ids: expected int32 or int64, found {target_ids.dtype}")
    blank, classes = _index("blank_id", blank_id), _count("num_classes", num_classes)
    if not 0 <= blank < classes:
        raise ValueError(f"blank_id: expected a class in [0, {classes}), found {blank}")
    ids, mask = torch.ops.panda_rnnt.blank_target_set(target_ids, blank, classes)
    return ids, mask


def selected_log_probs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    selected_ids: Tensor,
    selected_mask: Tensor,
    *,
    tile_c: int = 1024,
    device: str | None = None,
) -> SelectedNormalizerResult:
    """Computes log-probabilities of selected classes, exact over all classes.

    Log-probabilities and logZ are differentiable in hidden, weight and bias; the scores are computed
    again in the backward pass.

    Args:
        hidden: Hidden rows ``[N, H]``.
        weight: Weight of the last layer ``[C, H]``.
        bias: Bias of the last layer ``[C]``; -inf masks a class.
        selected_ids: Selected classes ``[N, S]``, distinct within a site.
        selected_mask: True for active entries ``[N, S]``.
        tile_c: Largest number of classes whose scores exist at a time; results differ by rounding.
        device: ``"cpu"`` copies tensors of other devices to the CPU, and the gradients back.

    Raises:
        ValueError: Shapes, ids or devices that do not match; scores that are NaN or +inf.
        TypeError: Tensors of another type.

    Cost: 2 N H C floating-point operations, 6 N H C in the backward pass, and ``(S + 2) N`` numbers
    between them. A pass takes at most some 56 MiB in addition, less with fewer classes per tile.
    """
    tensors, _ = _arguments(hidden, weight, bias, selected_ids, selected_mask, device)
    tile_classes = _tile_classes(tile_c, weight)
    emissions, log_z, _, _ = torch.ops.panda_rnnt.selected_forward(*tensors, tile_classes)
    dtype = tensors[0].dtype
    return SelectedNormalizerResult(
        selected_logp=emissions.to(dtype),
        logZ=log_z.to(dtype),
        largest_logits_tile_shape=(hidden.shape[0], tile_classes),
    )


def selected_backward(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    selected_ids: Tensor,
    selected_mask: Tensor,
    selected_adjoints: Tensor,
    logZ: Tensor,
    *,
    tile_c: int = 1024,
    device: str | None = None,
) -> SelectedBackwardResult:
    """Computes gradients of hidden, weight and bias from adjoints.

    Args:
        selected_adjoints: Derivatives of the loss with respect to the log-probabilities ``[N, S]``.
        logZ: Normalizers ``[N]`` of the same arguments, from :func:`selected_log_probs`.

    The other arguments and errors are those of :func:`selected_log_probs`. Also raises ValueError
    for adjoints or gradients that are not finite.

    Cost: 6 N H C floating-point operations over the sites with an adjoint that is not 0.
    """
    others = {"selected_adjoints": selected_adjoints, "logZ": logZ}
    with torch.no_grad():
        tensors, (adjoints, log_z) = _arguments(
            hidden, weight, bias, selected_ids, selected_mask, device, **others
        )
        tile_classes = _tile_classes(tile_c, weight)
        largest = log_z.to(tensors[0].dtype)
        state = (None, largest, log_z - largest)
        d_hidden, d_weight, d_bias = torch.ops.panda_rnnt.selected_backward(
            *tensors, *state, adjoints, torch.zeros_like(log_z), tile_classes, True
        )
    return SelectedBackwardResult(d_hidden, d_weight, d_bias, (hidden.shape[0], tile_classes))


def selected_forward_backward(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    selected_ids: Tensor,
    selected_mask: Tensor,
    selected_adjoints: Tensor,
    *,
    tile_c: int = 1024,
    device: str | None = None,
) -> SelectedForwardBackwardResult:
    """Computes log-probabilities, and gradients from given adjoints.

    Arguments and errors are those of :func:`selected_log_probs` and :func:`selected_backward`.

    Cost: 8 N H C floating-point operations.
    """
    with torch.no_grad():
        tensors, (adjoints,) = _arguments(
            hidden, weight, bias, selected_ids, selected_mask, device, selected_adjoints=selected_adjoints
        )
        tile_classes = _tile_classes(tile_c, weight)
        emissions, log_z, *state = torch.ops.panda_rnnt.selected_forward(*tensors, tile_classes)
        d_hidden, d_weight, d_bias = torch.ops.panda_rnnt.selected_backward(
            *tensors, emissions, *state, adjoints, torch.zeros_like(log_z), tile_classes, True
        )
        loss = _weighted_sum(adjoints, emissions, tensors[4])
    dtype = tensors[0].dtype
    return SelectedForwardBackwardResult(
        emissions.to(dtype),
        log_z.to(dtype),
        loss.to(dtype),
        d_hidden,
        d_weight,
        d_bias,
        (hidden.shape[0], tile_classes),
    )


def standard_blank_target_forward_backward(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    target_ids: Tensor,
    blank_id: int,
    dtarget: Tensor,
    dblank: Tensor,
    *,
    tile_c: int = 1024,
    device: str | None = None,
) -> SelectedForwardBackwardResult:
    """Computes log-probabilities of target and blank, and gradients.

    Args:
        target_ids: Targets ``[N]``; negative for sites without a target.
        blank_id: Class of the blank.
        dtarget: Derivatives of the loss with respect to the targets' log-probabilities ``[N]``;
            not read for sites without a target.
        dblank: Derivatives with respect to the blanks' log-probabilities ``[N]``.

    The other arguments and errors are those of :func:`selected_log_probs` and
    :func:`build_standard_blank_target_set`.
    """
    _check_axes(weight=(weight, 2))
    ids, mask = build_standard_blank_target_set(target_ids, blank_id, num_classes=weight.shape[0])
    adjoints = _blank_target_adjoints(target_ids, dtarget, dblank)
    return selected_forward_backward(hidden, weight, bias, ids, mask, adjoints, tile_c=tile_c, device=device)


def dense_selected_reference(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    selected_ids: Tensor,
    selected_mask: Tensor,
    selected_adjoints: Tensor,
) -> DenseReferenceResult:
    """Computes the same from scores of all classes, by autograd.

    A reference for tests: it stores several arrays of N x C numbers. Arguments are those of
    :func:`selected_forward_backward`, on any device.
    """
    floats = {"hidden": hidden, "weight": weight, "bias": bias}
    dtype = _result_type(floats)
    _check_axes(hidden=(hidden, 2), weight=(weight, 2), bias=(bias, 1))
    validate_selected_set(selected_ids, selected_mask, num_classes=weight.shape[0])
    _check_shape("selected_adjoints", selected_adjoints, selected_ids)
    rows, head, offset = (tensor.detach().to(dtype, copy=True).requires_grad_() for tensor in floats.values())
    is_padding = ~selected_mask.any(1) & ~hidden.isfinite().all(1)
    with torch.enable_grad():
        logits = torch.where(is_padding[:, None], 0.0, rows) @ head.T + offset
        log_z = torch.where(is_padding, 0.0, logits.logsumexp(1))
        ids = torch.where(selected_mask, selected_ids, 0).long()
        logp = torch.where(selected_mask, logits.log_softmax(1).gather(1, ids), 0.0)
        loss = _weighted_sum(selected_adjoints.to(dtype), logp, selected_mask)
        d_hidden, d_weight, d_bias = torch.autograd.grad(loss, (rows, head, offset))
    return DenseReferenceResult(
        logp.detach(),
        log_z.detach(),
        loss.detach(),
        d_hidden,
        d_weight,
        d_bias,
        (logits.shape[0], logits.shape[1]),
    )


def dense_standard_blank_target_reference(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    target_ids: Tensor,
    blank_id: int,
    dtarget: Tensor,
    dblank: Tensor,
) -> DenseReferenceResult:
    """Computes log-probabilities of target and blank from all scores, and gradients.

    The reference of :func:`standard_blank_target_forward_backward`, with the same arguments.
    """
    _check_axes(weight=(weight, 2))
    ids, mask = build_standard_blank_target_set(target_ids, blank_id, num_classes=weight.shape[0])
    adjoints = _blank_target_adjoints(target_ids, dtarget, dblank)
    return dense_selected_reference(hidden, weight, bias, ids, mask, adjoints)


def tensor_metrics(got: Tensor, ref: Tensor) -> dict[str, float]:
    """Compares two tensors of as many elements.

    Returns:
        ``max_abs``, the largest absolute difference; ``rel_L2``, the norm of the difference divided
        by that of ``ref``; ``cosine`` of the angle between both. Norms are at least 1e-12.

    Raises:
        ValueError: Tensors of different numbers of elements.
    """
    found, expected = (tensor.detach().reshape(-1).double().cpu() for tensor in (got, ref))
    if found.numel() != expected.numel():
        raise ValueError(f"got: expected {expected.numel()} elements, as ref, found {found.numel()}")
    difference = found - expected
    norm = torch.linalg.vector_norm
    product = (norm(found) * norm(expected)).clamp(min=1e-12)
    return {
        "max_abs": float(difference.abs().max()) if found.numel() else 0.0,
        "rel_L2": float(norm(difference) / norm(expected).clamp(min=1e-12)),
        "cosine": float(found.dot(expected) / product),
    }


def cuda_peak_mib() -> dict[str, float | None]:
    """Returns the peak memory of torch on the CUDA device, in MiB.

    The functions of this module compute on the CPU; both values are None without CUDA.
    """
    if not torch.cuda.is_available():
        return {"allocated": None, "reserved": None}
    torch.cuda.synchronize()
    peaks = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    return {name: peak / 2**20 for name, peak in peaks.items()}


def reset_cuda_peak() -> None:
    """Resets the peak memory of torch on the CUDA device, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


# Operations. `selected_forward` returns emissions and logZ, which are differentiable, and the two
# parts of logZ for the backward pass: the largest score and the logarithm of the remaining sum.

_SELECTION = "Tensor hidden, Tensor weight, Tensor bias, Tensor selected_ids, Tensor selected_mask"


@torch.library.custom_op(
    "panda_rnnt::blank_target_set",
    mutates_args=(),
    schema="(Tensor target_ids, SymInt blank_id, SymInt num_classes) -> (Tensor, Tensor)",
)
def _blank_target_set(target_ids: Tensor, blank_id: int, num_classes: int) -> tuple[Tensor, Tensor]:
    is_valid = target_ids >= 0
    is_bad = is_valid & ((target_ids == blank_id) | (target_ids >= num_classes))
    if bool(is_bad.any()):
        site = int(is_bad.nonzero()[0])
        found = int(target_ids[site])
        expected = f"distinct from blank_id {blank_id}" if found == blank_id else f"in [0, {num_classes})"
        raise ValueError(f"target_ids[{site}]: expected ids {expected}, found {found}")
    ids = torch.where(is_valid, target_ids, 0).long()
    return (
        torch.stack([ids, torch.full_like(ids, blank_id)], 1),
        torch.stack([is_valid, torch.ones_like(is_valid)], 1),
    )


@_blank_target_set.register_fake
def _(target_ids: Tensor, blank_id: int, num_classes: int) -> tuple[Tensor, Tensor]:
    shape = (target_ids.shape[0], 2)
    return target_ids.new_empty(shape, dtype=torch.int64), target_ids.new_empty(shape, dtype=torch.bool)


@torch.library.custom_op(
    "panda_rnnt::selected_forward",
    mutates_args=(),
    schema=f"({_SELECTION}, SymInt tile_c) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _selected_forward(
    hidden: Tensor, weight: Tensor, bias: Tensor, selected_ids: Tensor, selected_mask: Tensor, tile_c: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    arrays = (_array(hidden), _array(weight), _array(bias), _array(selected_ids), _mask_array(selected_mask))
    emissions, log_z, largest, log_sum = _native.selected_forward(*arrays, tile_c)
    return from_dlpack(emissions), from_dlpack(log_z), from_dlpack(largest), from_dlpack(log_sum)


@_selected_forward.register_fake
def _(
    hidden: Tensor, weight: Tensor, bias: Tensor, selected_ids: Tensor, selected_mask: Tensor, tile_c: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check_same_device(hidden, weight, bias, selected_ids, selected_mask)
    sites = hidden.shape[0]
    return (
        hidden.new_empty(selected_ids.shape, dtype=torch.float64),
        hidden.new_empty(sites, dtype=torch.float64),
        hidden.new_empty(sites),
        hidden.new_empty(sites, dtype=torch.float64),
    )


@torch.library.custom_op(
    "panda_rnnt::selected_backward",
    mutates_args=(),
    schema=f"({_SELECTION}, Tensor? emissions, Tensor largest, Tensor log_sum, Tensor d_emissions, "
    "Tensor d_log_z, SymInt tile_c, bool check_adjoints) -> (Tensor, Tensor, Tensor)",
)
def _selected_backward(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    selected_ids: Tensor,
    selected_mask: Tensor,
    emissions: Tensor | None,
    largest: Tensor,
    log_sum: Tensor,
    d_emissions: Tensor,
    d_log_z: Tensor,
    tile_c: int,
    check_adjoints: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients; unchecked adjoints that are not finite make them NaN, as in torch."""
    if not check_adjoints:
        active = torch.where(selected_mask, d_emissions, 0.0)
        if not bool(active.to(hidden.dtype).isfinite().all() & d_log_z.to(hidden.dtype).isfinite().all()):
            rows, head, offset = (torch.full_like(tensor, torch.nan) for tensor in (hidden, weight, bias))
            return rows, head, offset
    arrays = (_array(hidden), _array(weight), _array(bias), _array(selected_ids), _mask_array(selected_mask))
    state = (_array(emissions), _array(largest), _array(log_sum))
    gradients = _native.selected_backward(*arrays, *state, _array(d_emissions), _array(d_log_z), tile_c)
    d_hidden, d_weight, d_bias = (from_dlpack(gradient) for gradient in gradients)
    return d_hidden, d_weight, d_bias


@_selected_backward.register_fake
def _(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    selected_ids: Tensor,
    selected_mask: Tensor,
    emissions: Tensor | None,
    largest: Tensor,
    log_sum: Tensor,
    d_emissions: Tensor,
    d_log_z: Tensor,
    tile_c: int,
    check_adjoints: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    _check_same_device(hidden, weight, bias, selected_ids, selected_mask, largest, d_emissions, d_log_z)
    return hidden.new_empty(hidden.shape), weight.new_empty(weight.shape), bias.new_empty(bias.shape)


def _save_arguments(
    ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: tuple[Tensor, ...]
) -> None:
    emissions, _, largest, log_sum = output
    ctx.mark_non_differentiable(largest, log_sum)
    ctx.save_for_backward(*inputs[:5], emissions, largest, log_sum)  # type: ignore[arg-type]
    ctx.tile_c = inputs[5]  # type: ignore[attr-defined]


def _selected_forward_derivative(
    ctx: torch.autograd.function.FunctionCtx, d_emissions: Tensor, d_log_z: Tensor, *_: Tensor
) -> tuple[Tensor | None, ...]:
    tile_c: int = ctx.tile_c  # type: ignore[attr-defined]
    arguments = (*ctx.saved_tensors, d_emissions, d_log_z)  # type: ignore[attr-defined]
    gradients = torch.ops.panda_rnnt.selected_backward(*arguments, tile_c, False)
    return (*gradients, None, None, None)


_selected_forward.register_autograd(_selected_forward_derivative, setup_context=_save_arguments)


def _refuse_derivative(ctx: torch.autograd.function.FunctionCtx, *_: Tensor) -> tuple[None, ...]:
    raise RuntimeError("panda_rnnt: second derivatives of selected log-probabilities are not supported")


_selected_backward.register_autograd(_refuse_derivative)


# Arguments of the operations.


def _arguments(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    selected_ids: Tensor,
    selected_mask: Tensor,
    device: str | None,
    **others: Tensor,
) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    """Returns the first five arguments, and the others in float64, on one device."""
    axes = {"hidden": 2, "weight": 2, "bias": 1, "selected_ids": 2, "selected_mask": 2}
    tensors = dict(zip(axes, (hidden, weight, bias, selected_ids, selected_mask), strict=True))
    _check_axes(**{name: (tensor, axes[name]) for name, tensor in tensors.items()})
    _check_mask(selected_mask)
    for name, tensor in others.items():
        _check_axes(**{name: (tensor, 1 if name == "logZ" else 2)})
        if tensor.is_complex():
            raise TypeError(f"{name}: expected real numbers, found {tensor.dtype}")
    dtype = _result_type({"hidden": hidden, "weight": weight, "bias": bias})
    target = _common_device({**tensors, **others}, device)
    floats = [tensor.to(target, dtype).contiguous() for tensor in (hidden, weight, bias)]
    indices = [tensor.to(target).contiguous() for tensor in (selected_ids, selected_mask)]
    doubles = [tensor.to(target, torch.float64).contiguous() for tensor in others.values()]
    return (*floats, *indices), doubles


def _blank_target_adjoints(target_ids: Tensor, dtarget: Tensor, dblank: Tensor) -> Tensor:
    for name, tensor in (("dtarget", dtarget), ("dblank", dblank)):
        _check_axes(**{name: (tensor, 1)})
        _check_shape(name, tensor, target_ids)
    return torch.stack([dtarget.double(), dblank.double()], 1)


def _weighted_sum(adjoints: Tensor, emissions: Tensor, mask: Tensor) -> Tensor:
    """Returns the sum of active products; an adjoint of 0 also cancels -inf."""
    is_used = mask & (adjoints != 0)
    return (torch.where(is_used, adjoints, 0.0) * torch.where(is_used, emissions, 0.0)).sum()


def _mask_array(mask: Tensor) -> Tensor:
    """Returns the bytes of a mask; not every version of torch exports bool."""
    return mask.detach().contiguous().view(torch.uint8)


def _check_axes(**tensors: tuple[Tensor, int]) -> None:
    for name, (tensor, axes) in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: expected a tensor, found {type(tensor).__name__}")
        if tensor.dim() != axes:
            raise ValueError(f"{name}: expected {axes} axes, found {tuple(tensor.shape)}")


def _check_shape(name: str, tensor: Tensor, like: Tensor) -> None:
    if tensor.shape != like.shape:
        raise ValueError(f"{name}: expected shape {tuple(like.shape)}, found {tuple(tensor.shape)}")


def _check_mask(mask: Tensor) -> None:
    if mask.dtype != torch.bool:
        raise TypeError(f"selected_mask: expected bool, found {mask.dtype}")


def _tile_classes(tile_c: int, weight: Tensor) -> int:
    tile_classes = _index("tile_c", tile_c)
    if tile_classes <= 0:
        raise ValueError(f"tile_c: expected a positive number, found {tile_classes}")
    return min(tile_classes, max(weight.shape[0], 1))


def _count(name: str, value: int) -> int:
    count = _index(name, value)
    if not 0 <= count < 2**63:
        raise ValueError(f"{name}: expected a number from 0 to below {2**63}, found {count}")
    return count


def _index(name: str, value: int) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name}: expected an integer, found {value}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an integer, found {value!r}") from None
