"""Dense reference losses of torch operations in float64, and random batches."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


@dataclasses.dataclass
class Batch:
    """A padded batch; padding of the labels is -100, padding of the rows is random."""

    encoded: Tensor
    predicted: Tensor
    weight: Tensor
    bias: Tensor
    targets: Tensor
    logit_lengths: Tensor
    target_lengths: Tensor

    def floats(self) -> list[Tensor]:
        return [self.encoded, self.predicted, self.weight, self.bias]

    def indices(self) -> list[Tensor]:
        return [self.targets, self.logit_lengths, self.target_lengths]


def random_batch(
    seed: int,
    *,
    batch: int = 3,
    frames: int = 6,
    labels: int = 4,
    width: int = 5,
    classes: int = 7,
    durations: int = 0,
    blanks: Sequence[int] = (0,),
    dtype: torch.dtype = torch.float64,
) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    logit_lengths = torch.randint(1, frames + 1, (batch,), generator=generator)
    target_lengths = torch.randint(0, labels + 1, (batch,), generator=generator)
    logit_lengths[0], target_lengths[0] = frames, labels
    allowed = torch.tensor([c for c in range(classes) if c not in blanks])
    targets = allowed[torch.randint(0, len(allowed), (batch, labels), generator=generator)]
    for row, length in zip(targets, target_lengths, strict=True):
        row[length:] = -100
    return Batch(
        normal(batch, frames, width),
        normal(batch, labels + 1, width),
        normal(classes + durations, width),
        normal(classes + durations),
        targets,
        logit_lengths,
        target_lengths,
    )


def scores(batch: Batch, activation: Callable[[Tensor], Tensor] = torch.tanh) -> Tensor:
    hidden = activation(batch.encoded[:, :, None] + batch.predicted[:, None])
    return hidden @ batch.weight.T + batch.bias


@dataclasses.dataclass
class Arcs:
    """Log-probabilities of tokens ``[B, T, U+1, C]``, and the arcs of a loss.

    ``blanks`` are pairs of class and frames; a label advances one of ``label_frames``. ``durations``
    are the log-probabilities of each of these frames ``[B, T, U+1, D]``.
    """

    tokens: Tensor
    blanks: Sequence[tuple[int, int]]
    label_frames: Sequence[int]
    durations: Tensor | None = None
    labels_may_end: bool = False


def arcs(
    logits: Tensor, loss: str, durations: Sequence[int], big_blanks: Sequence[int], sigma: float = 0.0
) -> Arcs:
    """Arcs of a loss of scores by its definition, blank 0."""
    classes = logits.shape[-1] - (len(durations) if loss == "tdt" else 0)
    tokens = logits[..., :classes].log_softmax(-1) - sigma
    if loss == "hat":
        blank = logits[..., :1]
        labels = logits[..., 1:].log_softmax(-1) + torch.nn.functional.logsigmoid(-blank)
        tokens = torch.cat([torch.nn.functional.logsigmoid(blank), labels], -1)
    if loss == "tdt":
        return Arcs(tokens, [(0, d) for d in durations], durations, logits[..., classes:].log_softmax(-1))
    if loss == "modified":
        return Arcs(tokens, [(0, 1)], [1], labels_may_end=True)
    return Arcs(tokens, [(0, 1), *zip(big_blanks, durations, strict=True)], [0])


def dense_losses(
    logits: Tensor, batch: Batch, loss: str, durations: Sequence[int], big_blanks: Sequence[int], sigma: float
) -> Tensor:
    """Losses of scores by their definitions, blank 0."""
    return path_losses(arcs(logits, loss, durations, big_blanks, sigma), batch)


@dataclasses.dataclass
class Step:
    """An arc of a path that leaves site (t, u)."""

    frame: int
    position: int
    token: int
    duration: int
    next_position: int
    log_prob: Tensor


def steps_from(arcs: Arcs, batch: Batch, b: int, t: int, u: int) -> list[Step]:
    """Arcs that leave a site and do not leave the lattice; the last one ends at (T, U)."""
    frames, labels = int(batch.logit_lengths[b]), int(batch.target_lengths[b])
    choices = [(blank, step, False) for blank, step in arcs.blanks if step > 0]
    if u < labels:
        choices += [(int(batch.targets[b, u]), step, True) for step in arcs.label_frames]
    steps = []
    for token, duration, is_label in choices:
        log_prob = arcs.tokens[b, t, u, token]
        if arcs.durations is not None:
            log_prob = log_prob + arcs.durations[b, t, u, list(arcs.label_frames).index(duration)]
        ends = t + duration == frames and u + is_label == labels
        if t + duration < frames or (ends and (arcs.labels_may_end or not is_label)):
            steps.append(Step(t, u, token, duration, u + is_label, log_prob))
    return steps


def all_paths(arcs: Arcs, batch: Batch, b: int) -> list[list[Step]]:
    """All paths of an utterance."""
    paths: list[list[Step]] = []

    def extend(path: list[Step], t: int, u: int) -> None:
        if t == int(batch.logit_lengths[b]):
            paths.append(path)
            return
        for step in steps_from(arcs, batch, b, t, u):
            extend([*path, step], t + step.duration, step.next_position)

    extend([], 0, 0)
    return paths


def path_losses(arcs: Arcs, batch: Batch) -> Tensor:
    """Sums over all paths by the forward recursion over (t, u)."""
    losses = []
    for b in range(len(batch.targets)):
        frames, labels = int(batch.logit_lengths[b]), int(batch.target_lengths[b])
        alpha: dict[tuple[int, int], list[Tensor]] = {(0, 0): [torch.zeros((), dtype=torch.float64)]}
        for t, u in itertools.product(range(frames), range(labels + 1)):
            if (t, u) not in alpha:
                continue
            value = torch.stack(alpha[t, u]).logsumexp(0)
            for step in steps_from(arcs, batch, b, t, u):
                next_site = (t + step.duration, step.next_position)
                alpha.setdefault(next_site, []).append(value + step.log_prob)
        final = alpha.get((frames, labels))
        losses.append(-torch.stack(final).logsumexp(0) if final else torch.tensor(torch.inf).double())
    return torch.stack(losses)
