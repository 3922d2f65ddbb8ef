"""Transducer losses for PyTorch, on the CPU.

:func:`transducer_loss` fuses joint network, last layer and loss; :func:`rnnt_loss` takes scores.
Both work with autograd, autocast, ``torch.compile`` and ``torch.export``. The first derivative is
computed in the forward pass, so that memory does not grow with the batch; with
``reduction="none"``, where the weights of the utterances are not known, it is computed in the
backward pass. Second derivatives are refused.

:func:`align` and :func:`posteriors` return the best paths of a model, and probabilities of its arcs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.dlpack import from_dlpack
from typing_extensions import Unpack

from panda_rnnt import _native
from panda_rnnt._options import LossArguments, LossOptions, Reduction, ScoreLossArguments
from panda_rnnt._results import Alignment, Posteriors, SkippedSites, split_posteriors

__all__ = [
    "Alignment",
    "Posteriors",
    "PrunedLoss",
    "RnntLoss",
    "SimpleJoiner",
    "SkippedSites",
    "TransducerLoss",
    "align",
    "align_scores",
    "posteriors",
    "pruned_loss",
    "rnnt_loss",
    "score_posteriors",
    "skipped_sites",
    "transducer_loss",
]


class SimpleJoiner(NamedTuple):
    """The simple joiner of a pruned loss: adds scores of frames and of label positions.

    Scores are given, as in k2, or computed by linear layers over rows, which are evaluated for some
    classes at a time and take no memory for scores.

    Args:
        encoded: Scores of the frames ``[B, T, C]``; with weights encoder rows ``[B, T, E]``.
        predicted: Scores of the positions ``[B, U+1, C]``; with weights predictor rows ``[B, U+1, P]``.
        encoded_weight: Weight of the encoder's layer ``[C, E]``.
        encoded_bias: Bias of the encoder's layer ``[C]``.
        predicted_weight: Weight of the predictor's layer ``[C, P]``.
        predicted_bias: Bias of the predictor's layer ``[C]``.
    """

    encoded: Tensor
    predicted: Tensor
    encoded_weight: Tensor | None = None
    encoded_bias: Tensor | None = None
    predicted_weight: Tensor | None = None
    predicted_bias: Tensor | None = None


class PrunedLoss(NamedTuple):
    """A pruned loss, and its parts without gradients.

    Args:
        loss: ``simple_loss_scale * simple + pruned_loss_scale * pruned``, reduced.
        simple_losses: Losses of the simple joiner ``[B]``, float64.
        pruned_losses: Losses of the joint network over the kept sites ``[B]``, float64.
        bands: First label position that each frame keeps, and the last one + 1 ``[B, T, 2]``; 0 in
            padding.
    """

    loss: Tensor
    simple_losses: Tensor
    pruned_losses: Tensor
    bands: Tensor


def transducer_loss(
    encoded: Tensor,
    predicted: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    *,
    weights: Tensor | None = None,
    token_weights: Tensor | None = None,
    simple: SimpleJoiner | None = None,
    reduction: Reduction = "mean",
    zero_infinity: bool = False,
    device: str | None = None,
    **options: Unpack[LossArguments],
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
        weights: Factor of each utterance's loss ``[B]``, before the reduction; gradients of the
            weights are supported. An utterance of weight 0 adds 0, even without a path.
        token_weights: Factor of the gradient of each label's log-probability ``[B, U]``; the loss does
            not change.
        simple: The simple joiner, for ``loss="pruned"``.
        reduction: ``none``, ``sum``, ``mean`` (over utterances), ``mean_per_target`` (losses per
            label, then over utterances), or ``mean_volume`` (over all labels).
        zero_infinity: Replaces the loss of utterances without a path, +inf, by 0. Their gradient is
            0 in any case.
        device: ``"cpu"`` copies tensors of other devices to the CPU, and the gradients back.
        **options: Those of :class:`panda_rnnt.LossOptions`:

            - loss: ``rnnt``, ``modified``, ``constrained``, ``tdt``, ``multi_blank``, ``hat``, ``ctc``
              or ``pruned``.
            - blank: Class of the blank; 0 by default.
            - durations: Frames of each duration class (``tdt``) or big blank (``multi_blank``).
            - big_blanks: Classes of the big blanks, one for each of the durations.
            - activation: ``tanh`` or ``relu``.
            - sigma: Logit under-normalization of ``tdt`` and ``multi_blank``.
            - omega: Share of the RNN-T loss in a TDT loss, from 0 to 1.
            - fastemit: FastEmit lambda: scales the gradient of labels by 1 + lambda, not the loss.
            - delay_penalty: Adds ``delay_penalty * ((T - 1) / 2 - t)`` to each label's log-probability.
            - label_smoothing: Share of the mean over all classes in each token's log-probability.
            - z_loss: Adds ``z_loss`` times the mean of the squared log-normalizer over the sites.
            - clamp: Clips each element of the score gradient to ``-clamp`` .. ``clamp``.
            - skip: Sites whose occupancies sum to less than this share get no gradient; 0 is exact;
              :func:`skipped_sites` bounds the error.
            - budget: Limit on the bytes of a call; 56 MiB if None.
            - precision: ``bf16`` rounds the factors of the last layer's products to bf16; ``bf16x3``
              splits each into two bf16 numbers (relative errors of gradients of about 2e-6), which a
              processor with AMX multiplies about twice as fast as float32.
            - topology, prune_range, simple_loss_scale, pruned_loss_scale, lm_only_scale,
              am_only_scale: Those of ``pruned``.

    Returns:
        A scalar, or losses ``[B]``; float64 if an argument is, float32 otherwise.

    Raises:
        ValueError: Shapes, lengths or labels that do not match; scores that are NaN; devices.
        TypeError: Tensors of another type; unknown options.

    Cost: 6 to 8 N H C floating-point operations for N sites (t, u), half of them without gradients.
    """
    inputs = _inputs(encoded, predicted, weight, bias, simple)
    indices = _indices(targets, logit_lengths, target_lengths, token_weights)
    text = _options_text(**_constants(dict(options)))
    value, _ = _loss(inputs, indices, text, weights, reduction, zero_infinity, device)
    return value


def rnnt_loss(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    *,
    weights: Tensor | None = None,
    token_weights: Tensor | None = None,
    reduction: Reduction = "mean",
    zero_infinity: bool = False,
    device: str | None = None,
    **options: Unpack[ScoreLossArguments],
) -> Tensor:
    """Computes the transducer loss of scores (logits).

    For scores that exist already; :func:`transducer_loss` needs far less memory.

    Args:
        logits: Scores ``[B, T, U+1, C]``; for ``loss="tdt"`` the scores of the durations follow in
            the last axis; for ``loss="ctc"`` ``[B, T, C]``.
        targets: Labels ``[B, U]``, int32 or int64, padded with any number.
        logit_lengths: Frames of each utterance ``[B]``.
        target_lengths: Labels of each utterance ``[B]``.
        **options: loss, blank, durations, big_blanks, sigma, omega, fastemit, delay_penalty, clamp.

    The other arguments, result and errors are those of :func:`transducer_loss`.

    Cost: O(B T U C) time; memory for the gradient, of the size of ``logits``.
    """
    indices = _indices(targets, logit_lengths, target_lengths, token_weights)
    text = _score_options_text(**_constants(dict(options)))
    value, _ = _loss({"logits": logits}, indices, text, weights, reduction, zero_infinity, device)
    return value


def pruned_loss(
    encoded: Tensor,
    predicted: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    *,
    simple: SimpleJoiner,
    weights: Tensor | None = None,
    token_weights: Tensor | None = None,
    reduction: Reduction = "mean",
    zero_infinity: bool = False,
    device: str | None = None,
    **options: Unpack[LossArguments],
) -> PrunedLoss:
    """Computes a pruned transducer loss, with the losses of both passes.

    The loss is that of :func:`transducer_loss` with ``loss="pruned"``, which returns only the sum.
    The simple joiner's posteriors select ``prune_range`` label positions of each frame; the joint
    network is evaluated at these sites only. No gradient passes through the selection. Kuang et al.,
    arXiv 2206.13236.

    Example::

        simple = SimpleJoiner(am_projection(encoder_output), lm_projection(predictor_output))
        result = pruned_loss(encoded, predicted, head.weight, head.bias, *targets, simple=simple)
        result.loss.backward()
    """
    inputs = _inputs(encoded, predicted, weight, bias, simple)
    indices = _indices(targets, logit_lengths, target_lengths, token_weights)
    if options.setdefault("loss", "pruned") != "pruned":
        raise ValueError(f"loss: expected 'pruned', found {options['loss']!r}")
    text = _options_text(**_constants(dict(options)))
    value, parts = _loss(inputs, indices, text, weights, reduction, zero_infinity, device)
    return PrunedLoss(value, *parts)


def align(
    encoded: Tensor,
    predicted: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    *,
    options: LossOptions | None = None,
    device: str | None = None,
) -> Alignment[Tensor]:
    """Aligns labels with frames by the best paths, without gradients.

    Loss, blank, durations, activation, precision and budget are those of the options; their
    regularizers are ignored. Arguments and errors are those of :func:`transducer_loss`.

    Cost: 2 N H C floating-point operations; utterances are processed one at a time.
    """
    inputs = _inputs(encoded, predicted, weight, bias, None)
    return _align(inputs, _indices(targets, logit_lengths, target_lengths), options, device)


def align_scores(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    *,
    options: LossOptions | None = None,
    device: str | None = None,
) -> Alignment[Tensor]:
    """Aligns labels with frames by scores (logits); see :func:`align` and :func:`rnnt_loss`."""
    indices = _indices(targets, logit_lengths, target_lengths)
    return _align({"logits": logits}, indices, options, device)


def posteriors(
    encoded: Tensor,
    predicted: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    *,
    options: LossOptions | None = None,
    device: str | None = None,
) -> Posteriors[Tensor]:
    """Computes the posteriors of blank and labels at each site, without gradients.

    Arguments, errors and cost are those of :func:`align`.
    """
    inputs = _inputs(encoded, predicted, weight, bias, None)
    return _posteriors(inputs, _indices(targets, logit_lengths, target_lengths), options, device)


def score_posteriors(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    *,
    options: LossOptions | None = None,
    device: str | None = None,
) -> Posteriors[Tensor]:
    """Computes posteriors of scores (logits); see :func:`posteriors` and :func:`rnnt_loss`."""
    indices = _indices(targets, logit_lengths, target_lengths)
    return _posteriors({"logits": logits}, indices, options, device)


def skipped_sites(
    encoded: Tensor,
    predicted: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    *,
    options: LossOptions,
    weights: Tensor | None = None,
    reduction: Reduction = "mean",
    device: str | None = None,
) -> SkippedSites:
    """Bounds the error that ``options.skip`` causes in the gradients of :func:`transducer_loss`.

    It computes loss and gradients, and is meant for choosing ``skip``: the bounds are proportional
    to the weights of the utterances, which ``weights`` and ``reduction`` determine.
    """
    inputs = _inputs(encoded, predicted, weight, bias, None)
    arguments = _arguments(inputs, _indices(targets, logit_lengths, target_lengths), device)
    factors = _utterance_weights(arguments["target_lengths"], encoded.shape[0], reduction, weights)
    arrays = {name: _array(tensor) for name, tensor in {**arguments, "weights": factors}.items()}
    return SkippedSites(*_native.loss(arrays, options.to_json())[3])


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

    def _loss(
        self,
        inputs: Mapping[str, Tensor | None],
        indices: Mapping[str, Tensor | None],
        weights: Tensor | None,
    ) -> Tensor:
        rest = (self._options_text, weights, self.reduction, self.zero_infinity, self.device)
        return _loss(inputs, indices, *rest)[0]


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
        *,
        weights: Tensor | None = None,
        token_weights: Tensor | None = None,
        simple: SimpleJoiner | None = None,
    ) -> Tensor:
        """Computes the loss; see :func:`transducer_loss`."""
        inputs = _inputs(encoded, predicted, weight, bias, simple)
        indices = _indices(targets, logit_lengths, target_lengths, token_weights)
        return self._loss(inputs, indices, weights)


class RnntLoss(_LossModule):
    """The module of :func:`rnnt_loss`; options are those of :class:`panda_rnnt.LossOptions`."""

    def forward(
        self,
        logits: Tensor,
        targets: Tensor,
        logit_lengths: Tensor,
        target_lengths: Tensor,
        *,
        weights: Tensor | None = None,
        token_weights: Tensor | None = None,
    ) -> Tensor:
        """Computes the loss; see :func:`rnnt_loss`."""
        indices = _indices(targets, logit_lengths, target_lengths, token_weights)
        return self._loss({"logits": logits}, indices, weights)


# Calls. Tensors are passed by the names of the native module; absent ones are None.


def _inputs(
    encoded: Tensor,
    predicted: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    simple: SimpleJoiner | None,
) -> dict[str, Tensor | None]:
    joint = {"encoded": encoded, "predicted": predicted, "weight": weight, "bias": bias}
    if simple is None:
        return joint
    if not isinstance(simple, SimpleJoiner):
        raise TypeError(f"simple: expected a SimpleJoiner, found {type(simple).__name__}")
    return {
        **joint,
        "simple_encoded": simple.encoded,
        "simple_predicted": simple.predicted,
        "simple_encoded_weight": simple.encoded_weight,
        "simple_encoded_bias": simple.encoded_bias,
        "simple_predicted_weight": simple.predicted_weight,
        "simple_predicted_bias": simple.predicted_bias,
    }


def _indices(
    targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor, token_weights: Tensor | None = None
) -> dict[str, Tensor | None]:
    return {
        "targets": targets,
        "logit_lengths": logit_lengths,
        "target_lengths": target_lengths,
        "token_weights": token_weights,
    }


def _arguments(
    inputs: Mapping[str, Tensor | None], indices: Mapping[str, Tensor | None], device: str | None
) -> dict[str, Tensor]:
    """Returns the tensors of a call: on one device, contiguous, floats of one type."""
    floats = {name: tensor for name, tensor in inputs.items() if tensor is not None}
    others = {name: tensor for name, tensor in indices.items() if tensor is not None}
    dtype = _result_type(floats)
    target_device = _common_device({**floats, **others}, device)
    if "token_weights" in others:
        _result_type({"token_weights": others["token_weights"]})
        others["token_weights"] = others["token_weights"].detach().to(torch.float64)
    floats = {name: tensor.to(target_device, dtype).contiguous() for name, tensor in floats.items()}
    others = {name: tensor.to(target_device).contiguous() for name, tensor in others.items()}
    return {**floats, **others}


def _loss(
    inputs: Mapping[str, Tensor | None],
    indices: Mapping[str, Tensor | None],
    options: str,
    weights: Tensor | None,
    reduction: Reduction,
    zero_infinity: bool,
    device: str | None,
) -> tuple[Tensor, Sequence[Tensor]]:
    """Returns the reduced loss and the outputs of the first pass."""
    arguments = _arguments(inputs, {**indices, "weights": weights}, device)
    operations = _operations(inputs)
    floats = [arguments.get(name) for name in operations.inputs]
    tensors = (*floats, *(arguments.get(name) for name in _INDICES))
    lengths, weights = arguments["target_lengths"], arguments.get("weights")
    is_trained = any(tensor is not None and tensor.requires_grad for tensor in floats)
    has_trained_weights = weights is not None and weights.requires_grad
    if reduction == "none" or not torch.is_grad_enabled() or not is_trained or has_trained_weights:
        results = operations.losses(*tensors, options)
        losses, *parts = results if operations.parts else (results,)
        return _reduce(losses, lengths, reduction, zero_infinity, weights), parts
    batch = arguments[operations.inputs[0]].shape[0]
    factors = _utterance_weights(lengths, batch, reduction, weights)
    value, *results = operations.loss_sum(*tensors, factors, options, zero_infinity)
    return value, results[1 + len(floats) :]


def _align(
    inputs: Mapping[str, Tensor | None],
    indices: Mapping[str, Tensor | None],
    options: LossOptions | None,
    device: str | None,
) -> Alignment[Tensor]:
    arguments = {name: _array(tensor) for name, tensor in _arguments(inputs, indices, device).items()}
    arrays = _native.align(arguments, (options or LossOptions()).to_json())
    return Alignment(**{name: from_dlpack(array) for name, array in arrays.items()})


def _posteriors(
    inputs: Mapping[str, Tensor | None],
    indices: Mapping[str, Tensor | None],
    options: LossOptions | None,
    device: str | None,
) -> Posteriors[Tensor]:
    options = options or LossOptions()
    arguments = {name: _array(tensor) for name, tensor in _arguments(inputs, indices, device).items()}
    arrays = _native.posteriors(arguments, options.to_json())
    columns, losses = from_dlpack(arrays["posteriors"]), from_dlpack(arrays["losses"])
    return split_posteriors(columns, losses, options)


# Operations, for each kind of inputs. `loss_sum` returns the gradients as results, and its backward pass
# scales them; `losses` calls it in the backward pass. Schemas are explicit, since torch 2.4 does not read
# postponed annotations.

_INDICES = ("targets", "logit_lengths", "target_lengths", "token_weights")
_PARTS = ("simple_losses", "pruned_losses", "bands")


class _Operations(NamedTuple):
    """Operations over inputs of some names."""

    inputs: tuple[str, ...]
    parts: tuple[str, ...]
    loss_sum: Any
    losses: Any


def _define_operations(kind: str, inputs: tuple[str, ...], parts: tuple[str, ...] = ()) -> _Operations:
    """Defines ``{kind}_loss_sum`` and ``{kind}_losses``.

    Their arguments are the inputs and indices, all but the first input may be None, and options. Both
    return losses and ``parts``, outputs of the first pass.
    """
    count, num_tensors = len(inputs), len(inputs) + len(_INDICES)
    tensors = ", ".join([f"Tensor {inputs[0]}", *(f"Tensor? {name}" for name in (*inputs[1:], *_INDICES))])

    def results(number: int) -> str:
        return ", ".join(["Tensor"] * number)

    def call(arguments: Sequence[Any], weights: Tensor | None, options: str) -> tuple[Any, Any, Any]:
        arrays = {name: _array(tensor) for name, tensor in zip(inputs + _INDICES, arguments, strict=True)}
        losses, gradients, outputs, _ = _native.loss({**arrays, "weights": _array(weights)}, options)
        named = {name: from_dlpack(gradient) for name, gradient in gradients.items()}
        return from_dlpack(losses), named, [from_dlpack(outputs[name]) for name in parts]

    def fake_parts(first: Tensor) -> list[Tensor]:
        if not parts:
            return []
        losses = [first.new_empty(first.shape[0], dtype=torch.float64) for _ in range(2)]
        return [*losses, first.new_empty((*first.shape[:2], 2), dtype=torch.int64)]

    @torch.library.custom_op(
        f"panda_rnnt::{kind}_loss_sum",
        mutates_args=(),
        schema=f"({tensors}, Tensor weights, str options, bool zero_infinity) -> "
        f"({results(2 + count + len(parts))})",
    )
    def loss_sum(*arguments: Any) -> tuple[Tensor, ...]:
        """Returns the weighted sum, the losses, the gradients of the inputs, and the parts."""
        *call_arguments, weights, options, zero_infinity = arguments
        first = arguments[0]
        is_finite = bool(weights.isfinite().all())
        finite_weights = weights if is_finite else torch.zeros_like(weights)
        losses, named, outputs = call(call_arguments, finite_weights, options)
        pairs = zip(inputs, arguments, strict=False)
        gradients = [first.new_empty(0) if tensor is None else named[name] for name, tensor in pairs]
        if not is_finite:
            gradients = [gradient.fill_(torch.nan) for gradient in gradients]
        value = _weighted_sum(losses, weights, zero_infinity).to(first.dtype)
        return value, losses.to(first.dtype), *gradients, *outputs

    @loss_sum.register_fake
    def _(*arguments: Any) -> tuple[Tensor, ...]:
        *call_arguments, weights, _, _ = arguments
        _check_same_device(*call_arguments, weights)
        first, floats = arguments[0], arguments[:count]
        gradients = [first.new_empty(0) if x is None else x.new_empty(x.shape) for x in floats]
        return first.new_empty(()), first.new_empty(first.shape[0]), *gradients, *fake_parts(first)

    def save_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:count], *output[2 : 2 + count])

    def scale_gradients(ctx: Any, d_value: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if d_value is None:
            return (None,) * (num_tensors + 3)
        # Checkpointing allows one access to the saved tensors.
        saved = ctx.saved_tensors
        floats, gradients = saved[:count], saved[count:]
        pairs = zip(floats, gradients, strict=True)
        scaled = [None if tensor is None else gradient * d_value for tensor, gradient in pairs]
        recorded = _without_second_derivative(floats, scaled)
        return (*recorded, *[None] * (num_tensors + 3 - count))

    loss_sum.register_autograd(scale_gradients, setup_context=save_gradients)

    @torch.library.custom_op(
        f"panda_rnnt::{kind}_losses",
        mutates_args=(),
        schema=f"({tensors}, str options) -> ({results(1 + len(parts))})",
    )
    def losses(*arguments: Any) -> Any:
        *call_arguments, options = arguments
        losses, _, outputs = call(call_arguments, None, options)
        losses = losses.to(arguments[0].dtype)
        return (losses, *outputs) if parts else losses

    @losses.register_fake
    def _(*arguments: Any) -> Any:
        _check_same_device(*arguments[:num_tensors])
        first = arguments[0]
        losses = first.new_empty(first.shape[0])
        return (losses, *fake_parts(first)) if parts else losses

    def save_arguments(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        losses, *outputs = output if parts else (output,)
        ctx.mark_non_differentiable(*outputs)
        ctx.set_materialize_grads(False)
        _save_arguments(ctx, inputs, losses)

    def losses_backward(ctx: Any, d_losses: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if d_losses is None:
            return (None,) * (num_tensors + 1)
        arguments, losses = _saved_arguments(ctx)
        weights = _finite_weights(d_losses, losses)
        results = operations.loss_sum(*arguments, weights, ctx.options, False)[2 : 2 + count]
        pairs = zip(arguments, results, strict=False)
        gradients = [None if tensor is None else gradient for tensor, gradient in pairs]
        recorded = _without_second_derivative(arguments[:count], gradients)
        return (*recorded, *[None] * (num_tensors + 1 - count))

    losses.register_autograd(losses_backward, setup_context=save_arguments)
    names = (f"{kind}_loss_sum", f"{kind}_losses")
    operations = _Operations(inputs, parts, *(getattr(torch.ops.panda_rnnt, name) for name in names))
    return operations


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


_JOINT_INPUTS = ("encoded", "predicted", "weight", "bias")
_SIMPLE_INPUTS = tuple(f"simple_{name}" for name in SimpleJoiner._fields)
_SCORE_OPERATIONS = _define_operations("score", ("logits",))
_JOINT_OPERATIONS = _define_operations("joint", _JOINT_INPUTS)
_PRUNED_OPERATIONS = _define_operations("pruned", _JOINT_INPUTS + _SIMPLE_INPUTS, _PARTS)


def _operations(inputs: Mapping[str, Tensor | None]) -> _Operations:
    """Returns the operations over some inputs."""
    if "logits" in inputs:
        return _SCORE_OPERATIONS
    return _PRUNED_OPERATIONS if "simple_encoded" in inputs else _JOINT_OPERATIONS


def _call_scores(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    weights: Tensor | None,
    options: str,
) -> tuple[Tensor, list[Tensor]]:
    """Returns losses of scores and their gradient, for operations of other modules."""
    arguments = {**_indices(targets, logit_lengths, target_lengths), "logits": logits, "weights": weights}
    arrays = {name: _array(tensor) for name, tensor in arguments.items()}
    losses, gradients, _, _ = _native.loss(arrays, options)
    return from_dlpack(losses), [from_dlpack(gradient) for gradient in gradients.values()]


def _array(tensor: Tensor | None) -> Tensor | None:
    """Returns what DLPack exports: without autograd, contiguous."""
    if tensor is not None and tensor.is_meta:
        raise ValueError("expected tensors with data, found one on device meta")
    return None if tensor is None else tensor.detach().contiguous()


# Checks and reductions.


def _loss_text(**options: Any) -> str:
    # Checks take longer than a small loss. Sequences are not cached: 1 and 1.0 are equal elements.
    if all(isinstance(value, (int, float, str, type(None))) for value in options.values()):
        return _cached_text(**options)
    return LossOptions(**options).to_json()


@functools.lru_cache(maxsize=256, typed=True)
def _cached_text(**options: Any) -> str:
    return LossOptions(**options).to_json()


def _score_loss_text(**options: Any) -> str:
    for name in options:
        if name not in ScoreLossArguments.__annotations__:
            raise TypeError(f"{name}: expected options of a loss of scores, found another argument")
    return _loss_text(**options)


# Functions whose results are constants of `torch.compile`. Torch 2.4 assigns a result to the global name
# of the function, so that names of calls must differ from it.
_options_text = torch.compiler.assume_constant_result(_loss_text)  # type: ignore[no-untyped-call]
_score_options_text = torch.compiler.assume_constant_result(_score_loss_text)  # type: ignore[no-untyped-call]


def _constants(options: dict[str, Any]) -> dict[str, Any]:
    """Makes numbers constants of ``torch.compile``, which traces some as symbols."""
    if not torch.compiler.is_compiling():
        return options
    return {name: _constant(value) for name, value in options.items()}


def _constant(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_constant(element) for element in value)
    # The keys of a dictionary are constants.
    return next(iter({value: None}))


def _check_tensors(arguments: Mapping[str, object]) -> None:
    for name, argument in arguments.items():
        if not isinstance(argument, Tensor):
            raise TypeError(f"{name}: expected a tensor, found {type(argument).__name__}")


def _result_type(tensors: dict[str, Tensor]) -> torch.dtype:
    """Returns float64 if any tensor has it, float32 otherwise."""
    _check_tensors(tensors)
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
    _check_tensors(tensors)
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


def _utterance_weights(
    target_lengths: Tensor, batch: int, reduction: Reduction, weights: Tensor | None = None
) -> Tensor:
    """Returns the factor of each utterance's loss in the sum."""
    _check_reduction(reduction)
    factors = torch.ones(batch, dtype=torch.float64, device=target_lengths.device)
    if weights is not None:
        _result_type({"weights": weights})
        if weights.shape != (batch,):
            raise ValueError(f"weights: expected shape ({batch},), found {tuple(weights.shape)}")
        factors = weights.to(torch.float64)
    if reduction == "mean":
        return factors / max(batch, 1)
    labels = target_lengths.to(torch.float64)
    if reduction == "mean_per_target":
        return factors / (batch * labels.clamp(min=1))
    if reduction == "mean_volume":
        return factors / labels.sum().clamp(min=1)
    return factors


def _reduce(
    losses: Tensor,
    target_lengths: Tensor,
    reduction: Reduction,
    zero_infinity: bool,
    weights: Tensor | None = None,
) -> Tensor:
    if reduction == "none" and weights is None:
        return losses.masked_fill(losses.isinf(), 0.0) if zero_infinity else losses
    factors = _utterance_weights(target_lengths, losses.shape[0], reduction, weights)
    weighted = _weighted(losses, factors, zero_infinity)
    return (weighted if reduction == "none" else weighted.sum()).to(losses.dtype)


def _weighted_sum(losses: Tensor, weights: Tensor, zero_infinity: bool) -> Tensor:
    return _weighted(losses, weights, zero_infinity).sum()


def _weighted(losses: Tensor, weights: Tensor, zero_infinity: bool) -> Tensor:
    # 0 times an infinite loss is not a number.
    is_dropped = losses.isinf() if zero_infinity else losses.isinf() & (weights == 0)
    return losses.to(torch.float64).masked_fill(is_dropped, 0.0) * weights


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
    inputs: Sequence[Tensor | None], gradients: list[Tensor | None]
) -> list[Tensor | None]:
    """Makes the second derivative an error where autograd records the backward pass."""
    if not torch.is_grad_enabled():
        return gradients
    tensors = [tensor for tensor in inputs if tensor is not None]
    present = [gradient for gradient in gradients if gradient is not None]
    recorded = iter(_FirstDerivative.apply(len(tensors), *tensors, *present))  # type: ignore[no-untyped-call]
    return [None if gradient is None else next(recorded) for gradient in gradients]
