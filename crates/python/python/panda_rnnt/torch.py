"""Transducer losses for PyTorch, on the CPU.

:func:`transducer_loss` fuses joint network, last layer and loss; :func:`rnnt_loss` takes scores.
Both work with autograd, autocast, ``torch.compile`` and ``torch.export``. The first derivative is
computed in the forward pass, so that memory does not grow with the batch; with
``reduction="none"``, where the weights of the utterances are not known, it is computed in the
backward pass. Second derivatives are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.dlpack import from_dlpack

from panda_rnnt import _native
from panda_rnnt._options import Activation, LossName, LossOptions, Precision, Reduction

__all__ = ["RnntLoss", "TransducerLoss", "rnnt_loss", "transducer_loss"]


def transducer_loss(
    encoded: Tensor,
    predicted: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    *,
    loss: LossName = "rnnt",
    blank: int = 0,
    durations: Sequence[int] = (),
    big_blanks: Sequence[int] = (),
    activation: Activation = "tanh",
    sigma: float = 0.0,
    omega: float = 0.0,
    fastemit: float = 0.0,
    delay_penalty: float = 0.0,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    clamp: float | None = None,
    skip: float = 0.0,
    reduction: Reduction = "mean",
    zero_infinity: bool = False,
    budget: int | None = None,
    precision: Precision = "full",
    device: str | None = None,
) -> Tensor:
    """Computes the transducer loss of a joint network and its last layer.

    Scores ``z = act(encoded[t] + predicted[u]) weight^T + bias`` are never stored: a call takes at
    most ``budget`` bytes besides arguments, result and gradients. Losses and gradients are exact.

    Args:
        encoded: Projected encoder output ``[B, T, H]``; for ``loss="ctc"`` the hidden rows.
        predicted: Projected predictor output ``[B, U+1, H]``, the first row for the start of the
            sequence; None for ``loss="ctc"``.
        weight: Weight of the last layer ``[C, H]``; for ``loss="tdt"`` the rows of the durations follow.
        bias: Bias of the last layer ``[C]``, or None.
        targets: Labels ``[B, U]``, int32 or int64, padded with any number.
        logit_lengths: Frames of each utterance ``[B]``.
        target_lengths: Labels of each utterance ``[B]``.
        loss: ``rnnt``, ``modified``, ``constrained``, ``tdt``, ``multi_blank``, ``hat`` or ``ctc``.
        blank: Class of the blank.
        durations: Frames of each duration class (``tdt``) or big blank (``multi_blank``).
        big_blanks: Classes of the big blanks, one for each of the durations.
        activation: ``tanh`` or ``relu``.
        sigma: Logit under-normalization of ``tdt`` and ``multi_blank``.
        omega: Share of the RNN-T loss in a TDT loss, from 0 to 1.
        fastemit: FastEmit lambda: scales the gradient of labels by 1 + lambda, not the loss.
        delay_penalty: Adds ``delay_penalty * ((T - 1) / 2 - t)`` to each label's log-probability.
        label_smoothing: Share of the mean over all classes in each token's log-probability.
        z_loss: Adds ``z_loss`` times the mean of the squared log-normalizer over the sites.
        clamp: Clips each element of the score gradient to ``-clamp`` .. ``clamp``.
        skip: Sites whose occupancies sum to less than this share get no gradient; 0 is exact.
        reduction: ``none``, ``sum``, ``mean`` (over utterances), ``mean_per_target`` (losses per
            label, then over utterances), or ``mean_volume`` (over all labels).
        zero_infinity: Replaces the loss of utterances without a path, +inf, by 0. Their gradient is
            0 in any case.
        budget: Limit on the bytes of a call; 56 MiB if None.
        precision: ``bf16`` rounds the factors of the last layer's products to bf16.
        device: ``"cpu"`` copies tensors of other devices to the CPU, and the gradients back.

    Returns:
        A scalar, or losses ``[B]``; float64 if an argument is, float32 otherwise.

    Raises:
        ValueError: Shapes, lengths or labels that do not match; scores that are NaN; devices.
        TypeError: Tensors of another type.

    Cost: 6 to 8 N H C floating-point operations for N sites (t, u), half of them without gradients.
    """
    options = _options_text(
        loss=loss,
        blank=blank,
        durations=durations,
        big_blanks=big_blanks,
        activation=activation,
        sigma=sigma,
        omega=omega,
        fastemit=fastemit,
        delay_penalty=delay_penalty,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
        clamp=clamp,
        skip=skip,
        budget=budget,
        precision=precision,
    )
    return _transducer_loss(
        encoded,
        predicted,
        weight,
        bias,
        targets,
        logit_lengths,
        target_lengths,
        options,
        loss,
        reduction,
        zero_infinity,
        device,
    )


def _transducer_loss(
    encoded: Tensor,
    predicted: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    options: str,
    loss: str,
    reduction: Reduction,
    zero_infinity: bool,
    device: str | None,
) -> Tensor:
    if (predicted is None) != (loss == "ctc"):
        expected = "None" if loss == "ctc" else "a tensor"
        found = "None" if predicted is None else "a tensor"
        raise ValueError(f"predicted: expected {expected} for loss {loss!r}, found {found}")
    if encoded.dim() != 3:
        raise ValueError(f"encoded: expected 3 axes, found {tuple(encoded.shape)}")
    named = {"encoded": encoded, "predicted": predicted, "weight": weight, "bias": bias}
    floats = {name: tensor for name, tensor in named.items() if tensor is not None}
    dtype = _result_type(floats)
    indices = {"targets": targets, "logit_lengths": logit_lengths, "target_lengths": target_lengths}
    target_device = _common_device({**floats, **indices}, device)
    floats = {name: tensor.to(target_device, dtype).contiguous() for name, tensor in floats.items()}
    targets, logit_lengths, target_lengths = (
        tensor.to(target_device).contiguous() for tensor in indices.values()
    )
    arguments = (
        floats["encoded"],
        floats.get("predicted"),
        floats["weight"],
        floats.get("bias"),
        targets,
        logit_lengths,
        target_lengths,
    )
    needs_gradients = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in floats.values())
    if reduction == "none" or not needs_gradients:
        losses = torch.ops.panda_rnnt.joint_losses(*arguments, options)
        return _reduce(losses, target_lengths, reduction, zero_infinity)
    weights = _utterance_weights(target_lengths, encoded.shape[0], reduction)
    value: Tensor = torch.ops.panda_rnnt.joint_loss_sum(*arguments, weights, options, zero_infinity)[0]
    return value


def rnnt_loss(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    *,
    loss: LossName = "rnnt",
    blank: int = 0,
    durations: Sequence[int] = (),
    big_blanks: Sequence[int] = (),
    sigma: float = 0.0,
    omega: float = 0.0,
    fastemit: float = 0.0,
    delay_penalty: float = 0.0,
    clamp: float | None = None,
    reduction: Reduction = "mean",
    zero_infinity: bool = False,
    device: str | None = None,
) -> Tensor:
    """Computes the transducer loss of scores (logits).

    For scores that exist already; :func:`transducer_loss` needs far less memory.

    Args:
        logits: Scores ``[B, T, U+1, C]``; for ``loss="tdt"`` the scores of the durations follow in
            the last axis; for ``loss="ctc"`` ``[B, T, C]``.
        targets: Labels ``[B, U]``, int32 or int64, padded with any number.
        logit_lengths: Frames of each utterance ``[B]``.
        target_lengths: Labels of each utterance ``[B]``.

    The other arguments, result and errors are those of :func:`transducer_loss`.

    Cost: O(B T U C) time; memory for the gradient, of the size of ``logits``.
    """
    options = _options_text(
        loss=loss,
        blank=blank,
        durations=durations,
        big_blanks=big_blanks,
        sigma=sigma,
        omega=omega,
        fastemit=fastemit,
        delay_penalty=delay_penalty,
        clamp=clamp,
    )
    return _rnnt_loss(
        logits, targets, logit_lengths, target_lengths, options, reduction, zero_infinity, device
    )


def _rnnt_loss(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    options: str,
    reduction: Reduction,
    zero_infinity: bool,
    device: str | None,
) -> Tensor:
    if logits.dim() not in (3, 4):
        raise ValueError(f"logits: expected 4 axes, 3 for CTC, found {tuple(logits.shape)}")
    dtype = _result_type({"logits": logits})
    indices = {"targets": targets, "logit_lengths": logit_lengths, "target_lengths": target_lengths}
    target_device = _common_device({"logits": logits, **indices}, device)
    scores = logits.to(target_device, dtype).contiguous()
    targets, logit_lengths, target_lengths = (
        tensor.to(target_device).contiguous() for tensor in indices.values()
    )
    if reduction == "none" or not (torch.is_grad_enabled() and logits.requires_grad):
        losses = torch.ops.panda_rnnt.score_losses(scores, targets, logit_lengths, target_lengths, options)
        return _reduce(losses, target_lengths, reduction, zero_infinity)
    weights = _utterance_weights(target_lengths, logits.shape[0], reduction)
    arguments = (scores, targets, logit_lengths, target_lengths, weights, options, zero_infinity)
    value: Tensor = torch.ops.panda_rnnt.score_loss_sum(*arguments)[0]
    return value


class _LossModule(torch.nn.Module):
    """Options of a loss, and their text for the operations."""

    def __init__(
        self,
        options: LossOptions | None = None,
        *,
        reduction: Reduction = "mean",
        zero_infinity: bool = False,
        device: str | None = None,
    ) -> None:
        super().__init__()
        self.options = options or LossOptions()
        self.reduction = _check_reduction(reduction)
        self.zero_infinity = zero_infinity
        self.device = device

    @property
    def options(self) -> LossOptions:
        return self._options

    @options.setter
    def options(self, options: LossOptions) -> None:
        self._options = options
        self._options_text = options.to_json()

    def extra_repr(self) -> str:
        return f"{self.options}, reduction={self.reduction!r}"


class TransducerLoss(_LossModule):
    """The module of :func:`transducer_loss`; options are those of :class:`panda_rnnt.LossOptions`."""

    def forward(
        self,
        encoded: Tensor,
        predicted: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        logit_lengths: Tensor,
        target_lengths: Tensor,
    ) -> Tensor:
        """Computes the loss; see :func:`transducer_loss`."""
        return _transducer_loss(
            encoded,
            predicted,
            weight,
            bias,
            targets,
            logit_lengths,
            target_lengths,
            self._options_text,
            self.options.loss,
            self.reduction,
            self.zero_infinity,
            self.device,
        )


class RnntLoss(_LossModule):
    """The module of :func:`rnnt_loss`; options are those of :class:`panda_rnnt.LossOptions`."""

    def forward(
        self, logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor
    ) -> Tensor:
        """Computes the loss; see :func:`rnnt_loss`."""
        return _rnnt_loss(
            logits,
            targets,
            logit_lengths,
            target_lengths,
            self._options_text,
            self.reduction,
            self.zero_infinity,
            self.device,
        )


# Operations. `joint_loss_sum` and `score_loss_sum` return their gradients as results, and their
# backward pass scales them; `joint_losses` and `score_losses` call them in the backward pass. Schemas
# are explicit, since torch 2.4 does not read postponed annotations.

_INDICES = "Tensor targets, Tensor logit_lengths, Tensor target_lengths"
_JOINT = f"Tensor encoded, Tensor? predicted, Tensor weight, Tensor? bias, {_INDICES}"
_SCORES = f"Tensor logits, {_INDICES}"


@torch.library.custom_op(
    "panda_rnnt::joint_loss_sum",
    mutates_args=(),
    schema=f"({_JOINT}, Tensor weights, str options, bool zero_infinity) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _joint_loss_sum(
    encoded: Tensor,
    predicted: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    weights: Tensor,
    options: str,
    zero_infinity: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns the weighted sum, the losses, and the gradients of the first four arguments."""
    is_finite = bool(weights.isfinite().all())
    losses, gradients = _call_joint(
        encoded,
        predicted,
        weight,
        bias,
        targets,
        logit_lengths,
        target_lengths,
        weights if is_finite else torch.zeros_like(weights),
        options,
    )
    if not is_finite:
        gradients = [gradient.fill_(torch.nan) for gradient in gradients]
    if predicted is None:
        gradients.insert(1, encoded.new_empty(0))
    value = _weighted_sum(losses, weights, zero_infinity)
    return value.to(encoded.dtype), losses.to(encoded.dtype), *gradients  # type: ignore[return-value]


@_joint_loss_sum.register_fake
def _(
    encoded: Tensor,
    predicted: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    weights: Tensor,
    options: str,
    zero_infinity: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    _check_same_device(encoded, predicted, weight, bias, targets, logit_lengths, target_lengths, weights)
    return (
        encoded.new_empty(()),
        encoded.new_empty(encoded.shape[0]),
        torch.empty_like(encoded),
        encoded.new_empty(0) if predicted is None else torch.empty_like(predicted),
        torch.empty_like(weight),
        encoded.new_empty(weight.shape[0]),
    )


def _save_joint_gradients(
    ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: tuple[Tensor, ...]
) -> None:
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.has_predicted = inputs[1] is not None  # type: ignore[attr-defined]
    ctx.has_bias = inputs[3] is not None  # type: ignore[attr-defined]
    floats = [tensor for tensor in inputs[:4] if isinstance(tensor, Tensor)]
    ctx.save_for_backward(*output[2:], *floats)


def _scale_joint_gradients(
    ctx: torch.autograd.function.FunctionCtx, d_value: Tensor | None, *_: None
) -> tuple[Tensor | None, ...]:
    if d_value is None:
        return (None,) * 10
    is_present = (True, ctx.has_predicted, True, ctx.has_bias)  # type: ignore[attr-defined]
    gradients, floats = ctx.saved_tensors[:4], ctx.saved_tensors[4:]  # type: ignore[attr-defined]
    pairs = zip(gradients, is_present, strict=True)
    scaled = [gradient * d_value if present else None for gradient, present in pairs]
    return (*_without_second_derivative(floats, scaled), None, None, None, None, None, None)


_joint_loss_sum.register_autograd(_scale_joint_gradients, setup_context=_save_joint_gradients)


@torch.library.custom_op(
    "panda_rnnt::joint_losses", mutates_args=(), schema=f"({_JOINT}, str options) -> Tensor"
)
def _joint_losses(
    encoded: Tensor,
    predicted: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    options: str,
) -> Tensor:
    losses, _ = _call_joint(
        encoded, predicted, weight, bias, targets, logit_lengths, target_lengths, None, options
    )
    return losses.to(encoded.dtype)


@_joint_losses.register_fake
def _(
    encoded: Tensor,
    predicted: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    options: str,
) -> Tensor:
    _check_same_device(encoded, predicted, weight, bias, targets, logit_lengths, target_lengths)
    return encoded.new_empty(encoded.shape[0])


def _save_arguments(
    ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: Tensor
) -> None:
    tensors = [argument for argument in inputs if isinstance(argument, Tensor)]
    ctx.save_for_backward(*tensors, output)
    ctx.is_tensor = [isinstance(argument, Tensor) for argument in inputs]  # type: ignore[attr-defined]
    ctx.options = inputs[-1]  # type: ignore[attr-defined]


def _saved_arguments(ctx: torch.autograd.function.FunctionCtx) -> tuple[list[Tensor | None], Tensor]:
    """Returns the tensor arguments, None for those that were, and the losses."""
    *tensors, losses = ctx.saved_tensors  # type: ignore[attr-defined]
    remaining = iter(tensors)
    is_tensor = ctx.is_tensor[:-1]  # type: ignore[attr-defined]
    return [next(remaining) if given else None for given in is_tensor], losses


def _joint_losses_backward(
    ctx: torch.autograd.function.FunctionCtx, d_losses: Tensor
) -> tuple[Tensor | None, ...]:
    arguments, losses = _saved_arguments(ctx)
    weights = _finite_weights(d_losses, losses)
    gradients: list[Tensor | None] = list(
        torch.ops.panda_rnnt.joint_loss_sum(*arguments, weights, ctx.options, False)[2:]  # type: ignore[attr-defined]
    )
    floats = [tensor for tensor in arguments[:4] if tensor is not None]
    kept = [gradient if arguments[i] is not None else None for i, gradient in enumerate(gradients)]
    return (*_without_second_derivative(floats, kept), None, None, None, None)


_joint_losses.register_autograd(_joint_losses_backward, setup_context=_save_arguments)


@torch.library.custom_op(
    "panda_rnnt::score_loss_sum",
    mutates_args=(),
    schema=f"({_SCORES}, Tensor weights, str options, bool zero_infinity) -> (Tensor, Tensor, Tensor)",
)
def _score_loss_sum(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    weights: Tensor,
    options: str,
    zero_infinity: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the weighted sum, the losses, and the gradient of the scores."""
    is_finite = bool(weights.isfinite().all())
    finite_weights = weights if is_finite else torch.zeros_like(weights)
    losses, gradients = _call_scores(logits, targets, logit_lengths, target_lengths, finite_weights, options)
    if not is_finite:
        gradients = [gradient.fill_(torch.nan) for gradient in gradients]
    value = _weighted_sum(losses, weights, zero_infinity)
    return value.to(logits.dtype), losses.to(logits.dtype), gradients[0]


@_score_loss_sum.register_fake
def _(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    weights: Tensor,
    options: str,
    zero_infinity: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    _check_same_device(logits, targets, logit_lengths, target_lengths, weights)
    return logits.new_empty(()), logits.new_empty(logits.shape[0]), torch.empty_like(logits)


def _save_score_gradient(
    ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: tuple[Tensor, ...]
) -> None:
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[2], *inputs[:1])  # type: ignore[arg-type]


def _scale_score_gradient(
    ctx: torch.autograd.function.FunctionCtx, d_value: Tensor | None, *_: None
) -> tuple[Tensor | None, ...]:
    if d_value is None:
        return (None,) * 7
    gradient, logits = ctx.saved_tensors  # type: ignore[attr-defined]
    return (*_without_second_derivative([logits], [gradient * d_value]), None, None, None, None, None, None)


_score_loss_sum.register_autograd(_scale_score_gradient, setup_context=_save_score_gradient)


@torch.library.custom_op(
    "panda_rnnt::score_losses", mutates_args=(), schema=f"({_SCORES}, str options) -> Tensor"
)
def _score_losses(
    logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor, options: str
) -> Tensor:
    losses, _ = _call_scores(logits, targets, logit_lengths, target_lengths, None, options)
    return losses.to(logits.dtype)


@_score_losses.register_fake
def _(logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor, options: str) -> Tensor:
    _check_same_device(logits, targets, logit_lengths, target_lengths)
    return logits.new_empty(logits.shape[0])


def _score_losses_backward(
    ctx: torch.autograd.function.FunctionCtx, d_losses: Tensor
) -> tuple[Tensor | None, ...]:
    arguments, losses = _saved_arguments(ctx)
    weights = _finite_weights(d_losses, losses)
    gradient = torch.ops.panda_rnnt.score_loss_sum(*arguments, weights, ctx.options, False)[2]  # type: ignore[attr-defined]
    floats = [tensor for tensor in arguments[:1] if tensor is not None]
    return (*_without_second_derivative(floats, [gradient]), None, None, None, None)


_score_losses.register_autograd(_score_losses_backward, setup_context=_save_arguments)


# Calls of the native module.


def _call_joint(
    encoded: Tensor,
    predicted: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    weights: Tensor | None,
    options: str,
) -> tuple[Tensor, list[Tensor]]:
    head = (_array(weight), _array(bias))
    rest = (_array(targets), _array(logit_lengths), _array(target_lengths), _array(weights))
    if predicted is None:
        losses, gradients = _native.hidden_loss(_array(encoded), *head, *rest, options)
    else:
        losses, gradients = _native.joint_loss(_array(encoded), _array(predicted), *head, *rest, options)
    return from_dlpack(losses), [from_dlpack(gradient) for gradient in gradients]


def _call_scores(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    weights: Tensor | None,
    options: str,
) -> tuple[Tensor, list[Tensor]]:
    rest = (_array(targets), _array(logit_lengths), _array(target_lengths), _array(weights))
    losses, gradients = _native.score_loss(_array(logits), *rest, options)
    return from_dlpack(losses), [from_dlpack(gradient) for gradient in gradients]


def _array(tensor: Tensor | None) -> Tensor | None:
    """Returns what DLPack exports: without autograd, contiguous.

    The views reset the strides of axes of size 1, which torch ignores and DLPack exports.
    """
    return None if tensor is None else tensor.detach().contiguous().view(-1).view(tensor.shape)


# Checks and reductions.


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _options_text(**options: Any) -> str:
    return LossOptions(**options).to_json()


def _result_type(tensors: dict[str, Tensor]) -> torch.dtype:
    """Returns float64 if any tensor has it, float32 otherwise."""
    for name, tensor in tensors.items():
        if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            raise TypeError(f"{name}: expected float16, bfloat16, float32 or float64, found {tensor.dtype}")
        if torch.compiler.is_compiling():
            continue
        if forward_ad.unpack_dual(tensor).tangent is not None:  # type: ignore[no-untyped-call]
            raise RuntimeError(f"{name}: forward-mode derivatives of a transducer loss are not supported")
    is_double = any(tensor.dtype == torch.float64 for tensor in tensors.values())
    return torch.float64 if is_double else torch.float32


def _common_device(tensors: dict[str, Tensor], device: str | None) -> torch.device:
    """Returns the device of a call: the CPU, or meta if all tensors are there."""
    if device is not None:
        if torch.device(device).type != "cpu":
            raise ValueError(f"device: expected 'cpu', found {device!r}")
        for name, tensor in tensors.items():
            if tensor.device.type == "meta":
                raise ValueError(f"{name}: expected a tensor with data, found one on device meta")
        return torch.device("cpu")
    first = next(iter(tensors.values())).device
    for name, tensor in tensors.items():
        if tensor.device.type not in ("cpu", "meta"):
            raise ValueError(
                f"{name}: expected a tensor on the CPU, found {tensor.device}; device='cpu' copies it"
            )
        if tensor.device != first:
            raise ValueError(f"{name}: expected a tensor on {first}, found {tensor.device}")
    return first


def _check_same_device(*tensors: Tensor | None) -> None:
    devices = {tensor.device for tensor in tensors if tensor is not None}
    if len(devices) > 1:
        raise ValueError(f"expected tensors on one device, found {sorted(map(str, devices))}")


def _check_reduction(reduction: Reduction) -> Reduction:
    names = ("none", "sum", "mean", "mean_per_target", "mean_volume")
    if reduction not in names:
        raise ValueError(f"reduction: expected one of {names}, found {reduction!r}")
    return reduction


def _utterance_weights(target_lengths: Tensor, batch: int, reduction: Reduction) -> Tensor:
    """Returns the weight of each utterance in the sum."""
    _check_reduction(reduction)
    ones = torch.ones(batch, dtype=torch.float64, device=target_lengths.device)
    if reduction == "mean":
        return ones / max(batch, 1)
    labels = target_lengths.to(torch.float64)
    if reduction == "mean_per_target":
        return ones / (batch * labels.clamp(min=1))
    if reduction == "mean_volume":
        return ones / labels.sum().clamp(min=1)
    return ones


def _reduce(losses: Tensor, target_lengths: Tensor, reduction: Reduction, zero_infinity: bool) -> Tensor:
    if zero_infinity:
        losses = losses.masked_fill(losses.isinf(), 0.0)
    if _check_reduction(reduction) == "none":
        return losses
    weights = _utterance_weights(target_lengths, losses.shape[0], reduction)
    return (losses.to(torch.float64) * weights).sum().to(losses.dtype)


def _weighted_sum(losses: Tensor, weights: Tensor, zero_infinity: bool) -> Tensor:
    if zero_infinity:
        losses = losses.masked_fill(losses.isinf(), 0.0)
    return (losses * weights).sum()


def _finite_weights(d_losses: Tensor, losses: Tensor) -> Tensor:
    """Returns the weights in the backward pass, 0 for utterances without a path."""
    return torch.where(losses.isfinite(), d_losses, 0.0).to(torch.float64).contiguous()


class _FirstDerivative(torch.autograd.Function):
    """Passes gradients on; its derivative with respect to the inputs is an error."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, num_inputs: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        return tensors[num_inputs:]

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *_: Tensor) -> tuple[None, ...]:
        raise RuntimeError("panda_rnnt: second derivatives of a transducer loss are not supported")


def _without_second_derivative(
    inputs: Sequence[Tensor], gradients: list[Tensor | None]
) -> list[Tensor | None]:
    """Makes the second derivative an error where autograd records the backward pass."""
    if not torch.is_grad_enabled():
        return gradients
    present = [gradient for gradient in gradients if gradient is not None]
    recorded = iter(_FirstDerivative.apply(len(inputs), *inputs, *present))  # type: ignore[no-untyped-call]
    return [None if gradient is None else next(recorded) for gradient in gradients]
