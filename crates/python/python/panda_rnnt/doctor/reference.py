"""Reference losses in float64: a sum over the arcs of a lattice.

The nodes of a lattice are pairs (t, u); an arc has a log-probability e, the sum of one or two
columns of normalized scores::

    alpha(node) = log sum over arcs into node  exp(alpha(source) + e)      beta likewise, backwards
    loss        = -alpha(final)
    d loss / d column = -sum over its arcs  exp(alpha(source) + e + beta(target) + loss)

Wrong definitions of a loss differ from the right one in a field of :class:`Definition`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

if TYPE_CHECKING:
    from panda_rnnt.doctor.batch import Batch

__all__ = ["Answer", "Definition", "Loss", "evaluate", "has_path"]

Loss = Literal["rnnt", "modified", "tdt", "multi_blank", "hat", "ctc"]
Node = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Definition:
    """What a loss computes.

    Args:
        loss: Name of the loss.
        blank: Class of the blank.
        durations: Frames of each duration (``tdt``) or big blank (``multi_blank``).
        big_blanks: Classes of the big blanks.
        sigma: Subtracted from each token's log-probability.
        label_factor: Scales the derivative with respect to label tokens: 1 + lambda with FastEmit.
        blank_factor: Scales the derivative with respect to blanks; 1 is right.
        duration_factor: Scales that of the durations of labels; 1 is right.
        normalization: ``separate`` is right: tokens and durations have a softmax each.
        label_may_end: A label may lead to the end; None is right (only ``modified``).
        clips_duration: A blank may pass the end; False is right.
        has_final_blank: Paths end with a blank; True is right.
        skips_repeats: CTC needs no blank between equal labels; False is right.
    """

    loss: Loss
    blank: int = 0
    durations: tuple[int, ...] = ()
    big_blanks: tuple[int, ...] = ()
    sigma: float = 0.0
    label_factor: float = 1.0
    blank_factor: float = 1.0
    duration_factor: float = 1.0
    normalization: Literal["separate", "joint", "none"] = "separate"
    label_may_end: bool | None = None
    clips_duration: bool = False
    has_final_blank: bool = True
    skips_repeats: bool = False

    @property
    def num_durations(self) -> int:
        """Returns the number of duration columns, which follow the classes."""
        return len(self.durations) if self.loss == "tdt" else 0

    @property
    def blanks(self) -> tuple[int, ...]:
        return (self.blank, *self.big_blanks)


class Arc(NamedTuple):
    """An arc; columns are (t, u, column), the token first."""

    source: Node
    target: Node
    columns: tuple[tuple[int, int, int], ...]
    is_label: bool


class Answer(NamedTuple):
    """Losses ``[B]``, and derivatives of their weighted sum, in float64."""

    losses: Tensor
    gradient: Tensor
    """Derivative with respect to the scores."""
    column_gradient: Tensor
    """Derivative with respect to the log-probabilities."""


def evaluate(definition: Definition, batch: Batch, weights: Tensor | None = None) -> Answer:
    """Computes losses and gradient of a batch; the weights of the utterances are 1 by default."""
    scores = batch.scores.detach().double().requires_grad_()
    columns = _log_probabilities(definition, scores)
    # CTC has one label position.
    values = columns.detach() if columns.dim() == 4 else columns.detach()[:, :, None]
    adjoints = torch.zeros_like(values)
    losses = []
    for b in range(batch.size):
        weight = 1.0 if weights is None else float(weights[b])
        loss, column_adjoints = _forward_backward(definition, values[b].tolist(), *batch.utterance(b))
        losses.append(loss)
        for index, adjoint in column_adjoints.items():
            adjoints[(b, *index)] = weight * adjoint
    adjoints = adjoints.reshape(columns.shape)
    (gradient,) = torch.autograd.grad(columns, scores, adjoints)
    return Answer(torch.tensor(losses, dtype=torch.float64), gradient, adjoints)


def has_path(definition: Definition, labels: Sequence[int], frames: int) -> bool:
    """Returns True if a path spells the labels in this number of frames."""
    reached = {_start(definition)}
    for arc in _arcs(definition, labels, frames, 0):
        if arc.source in reached:
            reached.add(arc.target)
    return any(node in reached for node in _final_nodes(definition, labels, frames))


def _log_probabilities(definition: Definition, scores: Tensor) -> Tensor:
    classes = scores.shape[-1] - definition.num_durations
    tokens, durations = scores[..., :classes], scores[..., classes:]
    if definition.normalization == "joint":
        return scores.log_softmax(-1)
    if definition.normalization == "none":
        return scores
    if definition.loss == "hat":
        blank = tokens[..., definition.blank, None]
        is_blank = torch.arange(classes) == definition.blank
        labels = tokens.masked_fill(is_blank, -math.inf).log_softmax(-1)
        labels = labels.masked_fill(is_blank, 0.0) + logsigmoid(-blank)
        tokens = torch.where(is_blank, logsigmoid(blank), labels)
    else:
        tokens = tokens.log_softmax(-1) - definition.sigma
    return torch.cat([tokens, durations.log_softmax(-1)], -1) if definition.num_durations else tokens


def _forward_backward(
    definition: Definition, values: list[list[list[float]]], labels: Sequence[int], frames: int
) -> tuple[float, dict[tuple[int, int, int], float]]:
    """Returns the loss, and its derivative with respect to columns (t, u, column)."""
    classes = len(values[0][0]) - definition.num_durations
    arcs = list(_arcs(definition, labels, frames, classes))
    emissions = [sum(values[t][u][c] for t, u, c in arc.columns) for arc in arcs]
    alpha = {_start(definition): 0.0}
    for arc, emission in zip(arcs, emissions, strict=True):
        if arc.source in alpha:
            _add(alpha, arc.target, alpha[arc.source] + emission)
    beta = {node: 0.0 for node in _final_nodes(definition, labels, frames)}
    for arc, emission in zip(reversed(arcs), reversed(emissions), strict=True):
        if arc.target in beta:
            _add(beta, arc.source, beta[arc.target] + emission)
    log_probability = -math.inf
    for node in _final_nodes(definition, labels, frames):
        log_probability = _log_add(log_probability, alpha.get(node, -math.inf))
    adjoints: dict[tuple[int, int, int], float] = {}
    if log_probability == -math.inf:
        return math.inf, adjoints
    for arc, emission in zip(arcs, emissions, strict=True):
        if arc.source in alpha and arc.target in beta:
            posterior = math.exp(alpha[arc.source] + emission + beta[arc.target] - log_probability)
            factors = [definition.blank_factor, 1.0]
            if arc.is_label:
                factors = [definition.label_factor, definition.duration_factor]
            for column, factor in zip(arc.columns, factors, strict=False):
                adjoints[column] = adjoints.get(column, 0.0) - factor * posterior
    return -log_probability, adjoints


def _add(sums: dict[Node, float], node: Node, value: float) -> None:
    sums[node] = _log_add(sums.get(node, -math.inf), value)


def _log_add(a: float, b: float) -> float:
    low, high = min(a, b), max(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


def _start(definition: Definition) -> Node:
    return (0, -1) if definition.loss == "ctc" else (0, 0)


def _final_nodes(definition: Definition, labels: Sequence[int], frames: int) -> list[Node]:
    if definition.loss == "ctc":
        return [(frames, state) for state in (2 * len(labels), 2 * len(labels) - 1) if state >= 0]
    return [(frames if definition.has_final_blank else frames - 1, len(labels))]


def _arcs(definition: Definition, labels: Sequence[int], frames: int, classes: int) -> Iterator[Arc]:
    """Yields all arcs; arcs into a node precede arcs from it."""
    if definition.loss == "ctc":
        yield from _ctc_arcs(definition, labels, frames)
        return
    blank_steps: list[tuple[int, int, int | None]] = [(definition.blank, 1, None)]
    for token, step in zip(definition.big_blanks, definition.durations, strict=False):
        blank_steps.append((token, step, None))
    label_steps: list[tuple[int, int | None]] = [(1 if definition.loss == "modified" else 0, None)]
    if definition.loss == "tdt":
        columns = [(step, classes + i) for i, step in enumerate(definition.durations)]
        blank_steps = [(definition.blank, step, column) for step, column in columns if step > 0]
        label_steps = [*columns]
    label_may_end = definition.label_may_end
    if label_may_end is None:
        label_may_end = definition.loss == "modified"
    last = len(labels)
    for t in range(frames):
        for u in range(last + 1):
            for token, step, column in blank_steps:
                end = min(t + step, frames) if definition.clips_duration else t + step
                if end < frames or (end == frames and u == last):
                    yield Arc((t, u), (end, u), _columns(t, u, token, column), False)
            for step, column in label_steps if u < last else ():
                end = t + step
                if end < frames or (end == frames and u + 1 == last and label_may_end):
                    yield Arc((t, u), (end, u + 1), _columns(t, u, labels[u], column), True)


def _columns(t: int, u: int, token: int, duration: int | None) -> tuple[tuple[int, int, int], ...]:
    return ((t, u, token),) if duration is None else ((t, u, token), (t, u, duration))


def _ctc_arcs(definition: Definition, labels: Sequence[int], frames: int) -> Iterator[Arc]:
    """Yields the arcs of CTC: state 2 i + 1 is label i, even states are blanks."""
    classes = [definition.blank]
    for label in labels:
        classes += [label, definition.blank]
    for t in range(frames):
        for state in range(-1 if t == 0 else 0, 0 if t == 0 else len(classes)):
            for following in (state, state + 1, state + 2):
                if not 0 <= following < len(classes) or (following == state + 2 and following % 2 == 0):
                    continue
                is_repeat = following >= 2 and classes[following] == classes[following - 2]
                if following == state + 2 and state >= 0 and is_repeat and not definition.skips_repeats:
                    continue
                columns = ((t, 0, classes[following]),)
                yield Arc((t, state), (t + 1, following), columns, following % 2 == 1)
