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


def dense_losses(
    logits: Tensor, batch: Batch, loss: str, durations: Sequence[int], big_blanks: Sequence[int], sigma: float
) -> Tensor:
    """Losses of scores by their definitions, blank 0."""
    classes = logits.shape[-1] - (len(durations) if loss == "tdt" else 0)
    tokens = logits[..., :classes].log_softmax(-1) - sigma
    if loss == "hat":
        blank = logits[..., :1]
        labels = logits[..., 1:].log_softmax(-1) + torch.nn.functional.logsigmoid(-blank)
        tokens = torch.cat([torch.nn.functional.logsigmoid(blank), labels], -1)
    if loss == "tdt":
        duration_scores = logits[..., classes:].log_softmax(-1)
        return path_losses(
            tokens, batch, [(0, d) for d in durations], durations, (durations, duration_scores)
        )
    if loss == "modified":
        return path_losses(tokens, batch, [(0, 1)], [1], labels_may_end=True)
    return path_losses(tokens, batch, [(0, 1), *zip(big_blanks, durations, strict=True)], [0])


def path_losses(
    tokens: Tensor,
    batch: Batch,
    blanks: Sequence[tuple[int, int]],
    label_frames: Sequence[int],
    duration_scores: tuple[Sequence[int], Tensor] | None = None,
    labels_may_end: bool = False,
) -> Tensor:
    """Sums over all paths by the forward recursion over (t, u).

    ``tokens`` are log-probabilities ``[B, T, U+1, C]``; ``blanks`` are pairs of class and frames; a
    label advances one of ``label_frames``. ``duration_scores`` are the durations and their
    log-probabilities.
    """
    losses = []
    for b in range(len(batch.targets)):
        frames, labels = int(batch.logit_lengths[b]), int(batch.target_lengths[b])
        alpha: dict[tuple[int, int], list[Tensor]] = {(0, 0): [torch.zeros((), dtype=torch.float64)]}
        final: list[Tensor] = []
        for t, u in itertools.product(range(frames), range(labels + 1)):
            if (t, u) not in alpha:
                continue
            value = torch.stack(alpha[t, u]).logsumexp(0)
            arcs = [(blank, step, u) for blank, step in blanks if step > 0]
            if u < labels:
                label = int(batch.targets[b, u])
                arcs += [(label, step, u + 1) for step in label_frames]
            for token, step, next_u in arcs:
                arc = value + tokens[b, t, u, token]
                if duration_scores is not None:
                    durations, log_probabilities = duration_scores
                    arc = arc + log_probabilities[b, t, u, list(durations).index(step)]
                may_end = next_u == labels and (next_u == u or labels_may_end)
                if t + step < frames:
                    alpha.setdefault((t + step, next_u), []).append(arc)
                elif t + step == frames and may_end:
                    final.append(arc)
        losses.append(-torch.stack(final).logsumexp(0) if final else torch.tensor(torch.inf).double())
    return torch.stack(losses)
