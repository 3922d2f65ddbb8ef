"""A padded batch of a check."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Batch:
    """A padded batch.

    Args:
        scores: Scores ``[B, T, U+1, C]``, for ``tdt`` with the durations last; CTC ``[B, T, C]``.
        targets: Labels ``[B, U]``; the padding is a label.
        logit_lengths: Frames of each utterance ``[B]``.
        target_lengths: Labels of each utterance ``[B]``.
    """

    scores: Tensor
    targets: Tensor
    logit_lengths: Tensor
    target_lengths: Tensor

    @property
    def size(self) -> int:
        return self.targets.shape[0]

    @property
    def is_ctc(self) -> bool:
        return self.scores.dim() == 3

    def utterance(self, b: int) -> tuple[list[int], int]:
        """Returns labels and number of frames."""
        return self.targets[b, : self.target_lengths[b]].tolist(), int(self.logit_lengths[b])

    def select(self, order: Sequence[int]) -> Batch:
        """Returns the batch of these utterances."""
        index = torch.tensor(order, dtype=torch.int64)
        return Batch(
            self.scores[index], self.targets[index], self.logit_lengths[index], self.target_lengths[index]
        )

    def alone(self, b: int) -> Batch:
        """Returns one utterance without padding."""
        frames, labels = int(self.logit_lengths[b]), int(self.target_lengths[b])
        scores = self.scores[b : b + 1, :frames]
        if not self.is_ctc:
            scores = scores[:, :, : labels + 1]
        one = self.select([b])
        # Copies, since parts have the strides of the whole batch.
        scores = scores.clone(memory_format=torch.contiguous_format)
        targets = one.targets[:, :labels].clone(memory_format=torch.contiguous_format)
        return dataclasses.replace(one, scores=scores, targets=targets)

    def padding(self) -> Tensor:
        """Returns a mask of the padding, in the shape of the scores."""
        is_padding = torch.arange(self.scores.shape[1]) >= self.logit_lengths[:, None]
        if not self.is_ctc:
            positions = torch.arange(self.scores.shape[2]) > self.target_lengths[:, None]
            is_padding = is_padding[:, :, None] | positions[:, None]
        return is_padding[..., None].expand(self.scores.shape)

    def with_scores(self, scores: Tensor) -> Batch:
        return dataclasses.replace(self, scores=scores)
