"""The function under test, called on batches in the form that it expects."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from panda_rnnt.doctor.batch import Batch
from panda_rnnt.doctor.reference import Answer, Definition, evaluate
from panda_rnnt.doctor.signatures import Signature

__all__ = ["REDUCTIONS", "Found", "Settings", "Subject", "deviation", "reduction_weights"]

REDUCTIONS = ("none", "mean", "sum", "mean_per_target", "mean_volume", "mean_per_frame")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What probing has found out.

    Args:
        dtype: Type of the scores: float64 if the result has that precision, float32 otherwise.
        index_dtype: Type of labels and lengths.
        reduction: Value that is passed as reduction; None passes none.
        result: What the function returns: one of :data:`REDUCTIONS`; ``unknown`` before probing.
    """

    dtype: torch.dtype = torch.float64
    index_dtype: torch.dtype = torch.int64
    reduction: str | None = "none"
    result: str = "none"


class Found(NamedTuple):
    """Losses ``[B]``, or their reduction ``[1]``, and the gradient of their weighted sum."""

    values: Tensor
    gradient: Tensor


@dataclasses.dataclass(frozen=True)
class Subject:
    """A loss under test.

    Args:
        function: The function, or a class or instance of a module.
        signature: How it is called.
        definition: What it computes.
        settings: Types and reduction of a call.
        fastemit: Lambda of the check of FastEmit, for functions with this option.
    """

    function: Callable[..., Any]
    signature: Signature
    definition: Definition
    settings: Settings = Settings()
    fastemit: float = 0.5

    @property
    def roles(self) -> set[str]:
        return self.signature.roles

    @property
    def tolerance(self) -> float:
        """Returns the largest accepted deviation."""
        return 1e-9 if self.settings.dtype == torch.float64 else 5e-5

    def options(self, definition: Definition) -> dict[str, object]:
        """Returns the values of all options, by role."""
        topology = "modified" if definition.loss == "modified" else "regular"
        options: dict[str, object] = {
            "blank": definition.blank,
            "durations": list(definition.durations),
            "big_blanks": list(definition.big_blanks),
            "sigma": definition.sigma,
            "fastemit": definition.label_factor - 1.0,
            "topology": topology,
            "loss": definition.loss,
        }
        if self.settings.reduction is not None:
            options["reduction"] = self.settings.reduction
        return options

    def call(
        self,
        batch: Batch,
        definition: Definition | None = None,
        *,
        indices: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Returns the losses ``[B]`` or their reduction ``[1]``.

        Args:
            batch: Scores are used as they are, with their type; labels and lengths are converted.
            definition: Options of the call, where the function has them.
            indices: Replaces tensors of the call, by role.

        Raises:
            TypeError: A result that is not a tensor of losses.
        """
        definition = definition or self.definition
        tensors = {**self._tensors(batch, definition), **(indices or {})}
        options = self.options(definition)
        function = self.function
        if self.signature.constructor is not None:
            function = function(**_keywords(self.signature.constructor, options))
        keywords = _keywords(self.signature.options, options)
        if self.signature.has_activation:
            keywords["activation"] = "relu"
        arguments: list[Tensor | None] = []
        for role, parameter in self.signature.data:
            if self.signature.is_positional and role != "boundary":
                arguments.append(tensors[role])
            else:
                keywords[parameter] = tensors[role]
        result = function(*arguments, **keywords)
        if isinstance(result, (tuple, list)) and result:
            result = result[0]
        if not isinstance(result, Tensor):
            raise TypeError(f"expected a tensor of losses, found {type(result).__name__}")
        if self.settings.result == "none" and result.numel() != batch.size:
            raise TypeError(f"expected {batch.size} losses, found a tensor of shape {tuple(result.shape)}")
        if self.settings.result not in ("none", "unknown") and result.numel() != 1:
            raise TypeError(f"expected a scalar loss, found a tensor of shape {tuple(result.shape)}")
        return result.reshape(-1)

    def cast(self, batch: Batch) -> Batch:
        """Returns the batch with scores rounded to the type of the call."""
        return batch.with_scores(batch.scores.to(self.settings.dtype).contiguous())

    def values(self, batch: Batch, definition: Definition | None = None) -> Tensor:
        """Returns the losses, or their reduction, in float64."""
        with torch.no_grad():
            return self.call(self.cast(batch), definition).double()

    def compute(
        self, batch: Batch, definition: Definition | None = None, *, weights: Tensor | None = None
    ) -> Found:
        """Returns losses and gradient in float64; the weights scale the gradient of each result."""
        leaf = self.cast(batch).scores.detach().clone().requires_grad_()
        values = self.call(batch.with_scores(leaf), definition)
        scale = torch.ones_like(values) if weights is None else weights.to(values)
        gradient = None
        if values.requires_grad:
            (gradient,) = torch.autograd.grad(values, leaf, scale, allow_unused=True)
        if gradient is None:
            raise RuntimeError("the result has no gradient with respect to the scores")
        return Found(values.detach().double(), gradient.double())

    def expected(
        self, batch: Batch, definition: Definition | None = None, *, weights: Tensor | None = None
    ) -> Answer:
        """Returns reference losses, reduced as the function reduces them, and their gradient."""
        definition = definition or self.definition
        batch = self.cast(batch)
        utterance_weights = reduction_weights(self.settings.result, batch)
        answer_weights = utterance_weights
        if weights is not None:
            answer_weights = utterance_weights * weights.double()
        answer = evaluate(definition, batch, answer_weights)
        if self.settings.result == "none":
            return answer
        return answer._replace(losses=(answer.losses * utterance_weights).sum()[None])

    def _tensors(self, batch: Batch, definition: Definition) -> dict[str, Tensor | None]:
        index_dtype = self.settings.index_dtype
        tensors: dict[str, Tensor | None] = {
            "scores": batch.scores,
            "targets": batch.targets.to(index_dtype),
            "logit_lengths": batch.logit_lengths.to(index_dtype),
            "target_lengths": batch.target_lengths.to(index_dtype),
        }
        if definition.num_durations:
            classes = batch.scores.shape[-1] - definition.num_durations
            tensors["token_scores"] = batch.scores[..., :classes]
            tensors["duration_scores"] = batch.scores[..., classes:]
        if "boundary" in self.roles:
            zeros = torch.zeros_like(batch.logit_lengths)
            ends = (batch.target_lengths, batch.logit_lengths)
            tensors["boundary"] = torch.stack([zeros, zeros, *ends], 1)
        if self.signature.is_log_softmax:
            # Padding is not normalized, so that NaN gradients are those of the function.
            padding = batch.padding()
            normalized = batch.scores.masked_fill(padding, 0.0).log_softmax(-1)
            scores = torch.where(padding, batch.scores, normalized)
            tensors["scores"] = scores.transpose(0, 1).contiguous()
        if "encoded" in self.roles:
            tensors.update(_fused_tensors(batch))
        return tensors


def _keywords(parameters: Mapping[str, str], options: Mapping[str, object]) -> dict[str, Any]:
    return {parameter: options[role] for role, parameter in parameters.items() if role in options}


def _fused_tensors(batch: Batch) -> dict[str, Tensor | None]:
    """Returns a joint network and last layer whose scores are those of the batch.

    With ReLU, ``encoded[b, t] + predicted[b, u]`` is 1 in the element of the site (b, t, u) and at
    most 0 in the others, so that the rows of ``weight`` are the scores of the sites.
    """
    scores = batch.scores if batch.scores.dim() == 4 else batch.scores[:, :, None]
    size, frames, positions, columns = scores.shape
    sites = torch.arange(size * frames * positions).reshape(size, frames, positions)
    encoded = torch.zeros(size, frames, sites.numel(), dtype=scores.dtype)
    predicted = torch.full((size, positions, sites.numel()), -1.0, dtype=scores.dtype)
    for b in range(size):
        for t in range(frames):
            encoded[b, t, sites[b, t]] = 1.0
        for u in range(positions):
            predicted[b, u, sites[b, :, u]] = 0.0
    is_nan = scores.detach().isnan().all(-1)
    encoded.masked_fill_(is_nan.all(2)[..., None], torch.nan)
    predicted.masked_fill_(is_nan.all(1)[..., None], torch.nan)
    weight = scores.reshape(-1, columns).masked_fill(is_nan.reshape(-1, 1), 0.0).T
    if batch.scores.dim() == 3:
        return {"encoded": encoded, "predicted": None, "weight": weight, "bias": None}
    return {"encoded": encoded, "predicted": predicted, "weight": weight, "bias": None}


def reduction_weights(reduction: str, batch: Batch) -> Tensor:
    """Returns the weight of each utterance in a reduction."""
    labels, frames = batch.target_lengths.double(), batch.logit_lengths.double()
    ones = torch.ones_like(labels)
    if reduction == "mean":
        return ones / max(batch.size, 1)
    if reduction == "mean_per_target":
        return ones / (batch.size * labels.clamp(min=1))
    if reduction == "mean_volume":
        return ones / labels.sum().clamp(min=1)
    if reduction == "mean_per_frame":
        return ones / (batch.size * frames)
    return ones


def deviation(found: Tensor, expected: Tensor) -> float:
    """Returns the largest difference, relative to the larger of 1 and the expected number."""
    if found.shape != expected.shape:
        return float("inf")
    if not found.numel():
        return 0.0
    found, expected = found.double(), expected.double()
    is_equal = (found == expected) | (found.isnan() & expected.isnan())
    difference = (found - expected).abs() / expected.abs().clamp(min=1.0)
    difference = difference.masked_fill(is_equal, 0.0)
    return float(difference.nan_to_num(torch.inf, torch.inf).max())
