"""The fused loss in models of transformers, and its loss functions.

:func:`fuse` replaces the last layer and the loss of a Parakeet model by
:func:`panda_rnnt.torch.transducer_loss`; nothing else of the model changes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from transformers import ParakeetForCTC, ParakeetForRNNT, ParakeetForTDT, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.parakeet.modeling_parakeet import ParakeetRNNTOutput
from transformers.utils.generic import can_return_tuple

from panda_rnnt._options import Activation, Reduction
from panda_rnnt.torch import rnnt_loss as _rnnt_loss
from panda_rnnt.torch import transducer_loss

__all__ = ["fuse", "rnnt_loss", "tdt_loss", "unfuse"]

Model = TypeVar("Model", bound=nn.Module)
TransducerReduction = Literal["mean_volume", "mean_batch", "mean", "sum", "none"]

_REDUCTIONS: dict[str, Reduction] = {
    "mean_volume": "mean_volume",
    "mean_batch": "mean",
    "mean": "mean_per_target",
    "sum": "sum",
    "none": "none",
}
_CTC_REDUCTIONS: dict[str, Reduction] = {"mean": "mean_per_target", "sum": "sum", "none": "none"}


def fuse(model: Model, *, budget: int | None = None, device: str | None = None) -> Model:
    """Replaces last layer and loss of a model by the fused loss, in place.

    With labels, the model computes the same loss with the same gradients, but no scores:
    ``outputs.logits`` is None unless ``output_logits=True`` is passed. Without labels, the model,
    its ``state_dict``, ``generate`` and ``save_pretrained`` are unchanged.

    Args:
        model: A ``ParakeetForRNNT``, ``ParakeetForTDT`` or ``ParakeetForCTC``, or a model of peft
            around one.
        budget: Limit on the bytes of a loss besides its arguments and gradients; 56 MiB if None.
        device: ``"cpu"`` computes the loss on the CPU for a model on another device.

    Returns:
        The model.

    Raises:
        TypeError: Another model.
        ValueError: A last layer or an activation that the fused loss does not have.
    """
    inner = _inner_model(model)
    _effective_head(inner)
    _activation(inner)
    inner.__class__ = _fused_class(_original_class(inner))
    inner._fused_options = {"budget": budget, "device": device}
    return model


def unfuse(model: Model) -> Model:
    """Restores a model that :func:`fuse` has changed, in place; returns it."""
    inner = _inner_model(model)
    inner.__class__ = _original_class(inner)
    inner.__dict__.pop("_fused_options", None)
    return model


def tdt_loss(
    token_logits: Tensor,
    duration_logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    blank_token_id: int,
    durations: Sequence[int],
    sigma: float = 0.0,
    reduction: TransducerReduction = "mean",
) -> Tensor:
    """Computes the TDT loss with the arguments of transformers' ``tdt_loss``.

    Args:
        token_logits: Scores of the tokens ``[B, T, U+1, C]``.
        duration_logits: Scores of the durations ``[B, T, U+1, D]``.
        targets: Labels ``[B, U]``.
        logit_lengths: Frames of each utterance ``[B]``.
        target_lengths: Labels of each utterance ``[B]``.
        blank_token_id: Class of the blank.
        durations: Frames of each duration class.
        sigma: Logit under-normalization.
        reduction: ``mean_volume`` (over all labels), ``mean_batch`` (over utterances), ``mean``
            (losses per label, then over utterances), ``sum`` or ``none``.

    Raises:
        ValueError: Shapes, lengths or labels that do not match.
    """
    return _rnnt_loss(
        torch.cat([token_logits, duration_logits], -1),
        *_indices(targets, logit_lengths, target_lengths),
        loss="tdt",
        blank=blank_token_id,
        durations=durations,
        sigma=sigma,
        reduction=_reduction(reduction, _REDUCTIONS),
    )


def rnnt_loss(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    blank_token_id: int,
    reduction: TransducerReduction = "mean_volume",
) -> Tensor:
    """Computes the RNN-T loss with the arguments of transformers' ``rnnt_loss``; see :func:`tdt_loss`."""
    return _rnnt_loss(
        logits,
        *_indices(targets, logit_lengths, target_lengths),
        blank=blank_token_id,
        reduction=_reduction(reduction, _REDUCTIONS),
    )


def _indices(*tensors: Tensor) -> list[Tensor]:
    return [tensor if tensor.dtype == torch.int32 else tensor.long() for tensor in tensors]


def _reduction(reduction: str, names: dict[str, Reduction]) -> Reduction:
    if reduction not in names:
        raise ValueError(f"reduction: expected one of {tuple(names)}, found {reduction!r}")
    return names[reduction]


def _inner_model(model: nn.Module) -> Any:
    """Returns the transformers model in a model of peft."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    if not isinstance(inner, ParakeetForCTC | ParakeetForRNNT):
        expected = "ParakeetForRNNT, ParakeetForTDT or ParakeetForCTC"
        raise TypeError(f"model: expected {expected}, found {type(inner).__name__}")
    return inner


def _original_class(model: PreTrainedModel) -> Any:
    return next(base for base in type(model).__mro__ if not issubclass(base, _Fused))


@functools.cache
def _fused_class(original: Any) -> type[PreTrainedModel]:
    """Returns a subclass with the name of the original, which save_pretrained writes."""
    fused = _FusedCtc if issubclass(original, ParakeetForCTC) else _FusedTransducer
    return type(original.__name__, (fused, original), {"__module__": original.__module__})


def _restore(original: Any) -> PreTrainedModel:
    fused = _fused_class(original)
    return fused.__new__(fused)


class _Fused:
    """Forward pass with the fused loss; the other base class is the original model."""

    _fused_options: dict[str, Any]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _restore, (_original_class(self),), self.__dict__  # type: ignore[arg-type]


class _FusedTransducer(_Fused):
    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self: Any,
        input_features: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_cache: Any = None,
        use_decoder_cache: bool | None = None,
        encoder_outputs: Any = None,
        labels: Tensor | None = None,
        output_logits: bool = False,
        **kwargs: Any,
    ) -> ParakeetRNNTOutput:
        if labels is None:
            outputs: ParakeetRNNTOutput = super().forward(  # type: ignore[misc]
                input_features=input_features,
                attention_mask=attention_mask,
                decoder_input_ids=decoder_input_ids,
                decoder_cache=decoder_cache,
                use_decoder_cache=use_decoder_cache,
                encoder_outputs=encoder_outputs,
                return_dict=True,
                **kwargs,
            )
            return outputs
        is_tdt = isinstance(self, ParakeetForTDT)
        reduction = kwargs.pop("reduction", "mean" if is_tdt else "mean_volume")
        sigma = kwargs.pop("sigma", 0.0)
        if encoder_outputs is None:
            encoder_outputs = self.get_audio_features(
                input_features=input_features, attention_mask=attention_mask, return_dict=True, **kwargs
            )
        predicted = self.decoder(decoder_input_ids)
        encoded = encoder_outputs.pooler_output
        padding = self.config.pad_token_id if is_tdt else self.config.blank_token_id
        weight, bias = _effective_head(self)
        loss = transducer_loss(
            encoded,
            predicted,
            weight,
            bias,
            *_indices(labels, encoder_outputs.attention_mask.sum(-1), (labels != padding).sum(-1)),
            loss="tdt" if is_tdt else "rnnt",
            durations=self.config.durations if is_tdt else (),
            sigma=sigma if is_tdt else 0.0,
            blank=self.config.blank_token_id,
            activation=_activation(self),
            reduction=_reduction(reduction, _REDUCTIONS),
            **self._fused_options,
        )
        logits = None
        if output_logits:
            logits = self.joint(
                encoder_hidden_states=encoded[:, :, None, :], decoder_hidden_states=predicted[:, None, :, :]
            )
        return ParakeetRNNTOutput(
            loss=loss,
            logits=logits,
            last_hidden_state=encoder_outputs.last_hidden_state,
            pooler_output=encoded,
            hidden_states=encoder_outputs.hidden_states,
            attentions=encoder_outputs.attentions,
            decoder_cache=decoder_cache,
        )


class _FusedCtc(_Fused):
    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self: Any,
        input_features: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        output_logits: bool = False,
        **kwargs: Any,
    ) -> CausalLMOutput:
        if labels is None:
            outputs: CausalLMOutput = super().forward(  # type: ignore[misc]
                input_features=input_features, attention_mask=attention_mask, return_dict=True, **kwargs
            )
            return outputs
        kwargs.setdefault("output_attention_mask", True)
        encoder_outputs = self.encoder(
            input_features=input_features, attention_mask=attention_mask, return_dict=True, **kwargs
        )
        hidden = encoder_outputs.last_hidden_state
        blank = self.config.pad_token_id
        weight, bias = _effective_head(self)
        is_label = (labels != blank) & (labels != -100)
        # Labels move to the front of their row, in order; padding may stand anywhere.
        order = (~is_label).long().argsort(dim=-1, stable=True)
        loss = transducer_loss(
            hidden,
            None,
            weight,
            bias,
            *_indices(labels.gather(-1, order), encoder_outputs.attention_mask.sum(-1), is_label.sum(-1)),
            loss="ctc",
            blank=blank,
            reduction=_reduction(self.config.ctc_loss_reduction, _CTC_REDUCTIONS),
            zero_infinity=self.config.ctc_zero_infinity,
            **self._fused_options,
        )
        return CausalLMOutput(
            loss=loss,
            logits=self.ctc_head(hidden) if output_logits else None,
            hidden_states=encoder_outputs.hidden_states,
            attentions=encoder_outputs.attentions,
        )


def _activation(model: Any) -> Activation:
    """Returns the activation of the joint network; CTC has none."""
    if isinstance(model, ParakeetForCTC):
        return "tanh"
    name = model.config.hidden_act
    if name not in ("relu", "tanh"):
        raise ValueError(f"model.config.hidden_act: expected 'relu' or 'tanh', found {name!r}")
    activation: Activation = name
    return activation


def _effective_head(model: Any) -> tuple[Tensor, Tensor | None]:
    """Returns weight and bias of the last layer, with the adapters of LoRA added."""
    layer: Any = model.ctc_head if isinstance(model, ParakeetForCTC) else model.joint.head
    base: Any = layer.get_base_layer() if hasattr(layer, "get_base_layer") else layer
    if not isinstance(base, nn.Linear | nn.Conv1d):
        raise ValueError(f"model: expected a linear last layer, found {type(base).__name__}")
    weight = base.weight
    if base is not layer:
        _check_adapters(layer)
        for adapter in layer.active_adapters:
            if adapter in layer.lora_A and not layer.merged and not layer.disable_adapters:
                weight = weight + layer.get_delta_weight(adapter)
    return weight.reshape(weight.shape[0], -1), base.bias


def _check_adapters(layer: Any) -> None:
    """Raises ValueError unless the adapters of the last layer only add to its weight."""
    if not hasattr(layer, "get_delta_weight") or not hasattr(layer, "lora_A"):
        raise ValueError(f"model: expected adapters of LoRA on the last layer, found {type(layer).__name__}")
    if layer.merged and layer.disable_adapters:
        raise ValueError("model: expected adapters on the last layer that are not both merged and disabled")
    for adapter in layer.active_adapters:
        if adapter not in layer.lora_A:
            continue
        variant = getattr(layer, "lora_variant", {})
        if layer.use_dora.get(adapter) or adapter in variant or layer.lora_B[adapter].bias is not None:
            raise ValueError("model: expected plain LoRA on the last layer, without DoRA or a bias")
        if layer.training and not isinstance(layer.lora_dropout[adapter], nn.Identity):
            raise ValueError("model: expected adapters without dropout on the last layer")
