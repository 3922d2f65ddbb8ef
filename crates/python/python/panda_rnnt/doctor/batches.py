"""Batches that a loss is tested with, and stored losses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

from panda_rnnt.doctor.batch import Batch
from panda_rnnt.doctor.reference import Definition, has_path

__all__ = ["Batch", "patterned_batch", "random_batch", "stored_loss", "uniform_batch", "uniform_loss"]

CLASSES = 7
"""Classes of the random batches, blanks included."""
LENGTHS = ((8, 3), (7, 4), (5, 1))
"""Frames and labels of the utterances of a random batch."""

STORED_DURATIONS = {"tdt": (0, 1, 2, 4), "multi_blank": (2, 4)}
STORED_LOSSES = {
    "rnnt": 15.04379641287603,
    "modified": 9.026554250934387,
    "tdt": 10.167741752389423,
    "multi_blank": 5.89406893965273,
    "hat": 5.838127522129684,
    "ctc": 4.180958305019649,
}
"""Losses of :func:`patterned_batch` by enumeration of all paths, in double precision."""


def random_batch(
    definition: Definition,
    seed: int = 0,
    lengths: Sequence[tuple[int, int]] = LENGTHS,
    *,
    classes: int = CLASSES,
    needs_path: bool = True,
) -> Batch:
    """Returns normally distributed scores; frames are added where no path exists otherwise."""
    generator = torch.Generator().manual_seed(seed)
    allowed = [c for c in range(classes) if c not in definition.blanks]
    choice = torch.randint(0, len(allowed), (len(lengths), max(u for _, u in lengths)), generator=generator)
    targets = torch.tensor(allowed)[choice]
    frames = []
    for row, (count, labels) in zip(targets, lengths, strict=True):
        row[labels:] = allowed[0]
        longest = count + labels + sum(definition.durations) if needs_path else count
        possible = (t for t in range(count, longest + 1) if has_path(definition, row[:labels].tolist(), t))
        frames.append(next(possible, count))
    shape = [len(lengths), max(frames), targets.shape[1] + 1, classes + definition.num_durations]
    if definition.loss == "ctc":
        del shape[2]
    scores = torch.randn(shape, generator=generator, dtype=torch.float64)
    counts = torch.tensor([labels for _, labels in lengths])
    return Batch(scores, targets, torch.tensor(frames), counts)


def patterned_batch(definition: Definition) -> Batch:
    """Returns one utterance of 5 frames and 2 labels with scores ``2 sin(1.7 i)``.

    In :data:`STORED_LOSSES`, class 0 is the blank, big blanks follow it, and the labels are the last
    two classes; classes are moved to those of the definition.
    """
    order = [*definition.blanks, *(c for c in range(CLASSES) if c not in definition.blanks)]
    shape = [1, 5, 3, CLASSES + definition.num_durations]
    if definition.loss == "ctc":
        del shape[2]
    pattern = 2 * torch.sin(1.7 * torch.arange(math.prod(shape), dtype=torch.float64)).reshape(shape)
    scores = pattern.clone()
    scores[..., order] = pattern[..., :CLASSES]
    return Batch(scores, torch.tensor([[order[-2], order[-1]]]), torch.tensor([5]), torch.tensor([2]))


def stored_loss(definition: Definition) -> float | None:
    """Returns the stored loss of the patterned batch; None for other durations."""
    if definition.durations != STORED_DURATIONS.get(definition.loss, ()) or definition.sigma:
        return None
    return STORED_LOSSES[definition.loss]


def uniform_batch(definition: Definition) -> Batch:
    """Returns one utterance of 4 frames and 2 labels; all scores are 0."""
    batch = random_batch(definition, lengths=[(4, 2)])
    return batch.with_scores(torch.zeros_like(batch.scores))


def uniform_loss(definition: Definition, batch: Batch) -> float:
    """Returns the loss of uniform scores by counting paths, without their probabilities.

    All arcs of a kind have the same probability, so that ``P = sum over paths of p^arcs``. Paths are
    enumerated as sequences of steps.
    """
    labels, frames = batch.utterance(0)
    classes = batch.scores.shape[-1] - definition.num_durations
    u, sigma = len(labels), definition.sigma
    if definition.loss == "ctc":
        outputs = itertools.product((definition.blank, *sorted(set(labels))), repeat=frames)
        count = sum(_collapse(output, definition.blank) == labels for output in outputs)
        return frames * math.log(classes) - math.log(count)
    if definition.loss == "rnnt":
        return (frames + u) * (math.log(classes) + sigma) - math.log(math.comb(frames + u - 1, u))
    if definition.loss == "modified":
        return frames * (math.log(classes) + sigma) - math.log(math.comb(frames, u))
    if definition.loss == "hat":
        label = math.log(2) + math.log(classes - 1)
        return frames * math.log(2) + u * label - math.log(math.comb(frames + u - 1, u))
    token = math.exp(-sigma) / classes
    blank_steps = [(step, token) for step in (1, *definition.durations)]
    label_steps = [(0, token)]
    if definition.loss == "tdt":
        share = token / len(definition.durations)
        blank_steps = [(step, share) for step in definition.durations if step > 0]
        label_steps = [(step, share) for step in definition.durations]

    def probability(frame: int, missing: int) -> float:
        """Returns the probability of all ways from a frame to the end."""
        total = 0.0
        for step, share in blank_steps:
            if frame + step < frames:
                total += share * probability(frame + step, missing)
            elif frame + step == frames and missing == 0:
                total += share
        for step, share in label_steps if missing else ():
            if frame + step < frames:
                total += share * probability(frame + step, missing - 1)
        return total

    return -math.log(probability(0, u))


def _collapse(output: Sequence[int], blank: int) -> list[int]:
    """Returns the labels of a CTC output: equal neighbors are merged, blanks are removed."""
    return [label for label, _ in itertools.groupby(output) if label != blank]
