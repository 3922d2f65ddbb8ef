"""Results that the modules of all libraries share."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, NamedTuple, TypeVar

from panda_rnnt._options import LossOptions

Array = TypeVar("Array")


@dataclasses.dataclass(frozen=True)
class Alignment(Generic[Array]):
    """The best path of each utterance, label by label.

    The next label follows at frame ``frames + durations`` or later. An utterance without a path has
    frames of -1 and the score -inf.

    Args:
        frames: Frame of each label ``[B, U]``; -1 in padding.
        durations: Frames that the label advances ``[B, U]``: 0 for ``rnnt``, ``multi_blank`` and
            ``hat``, 1 for ``modified`` and ``constrained``, the duration for ``tdt``; for ``ctc`` the
            frames of the label.
        log_probs: Log-probability of the label with its duration ``[B, U]``; 0 in padding.
        confidences: Posterior of the label at its frame, over all paths ``[B, U]``; 0 in padding.
        scores: Log-probability of the best path ``[B]``.
        losses: Negative log-probability of all paths ``[B]``.
    """

    frames: Array
    durations: Array
    log_probs: Array
    confidences: Array
    scores: Array
    losses: Array


@dataclasses.dataclass(frozen=True)
class Posteriors(Generic[Array]):
    """Posteriors of arcs: probabilities, given the labels, that a path uses them.

    They are 0 in padding and for utterances without a path.

    Args:
        blank: The blank at each site ``[B, T, U+1]``; for ``ctc`` at each frame ``[B, T]``.
        label: The next label at each site ``[B, T, U+1]``, 0 at the last position; for ``ctc`` each
            label at each frame ``[B, T, U]``.
        durations: Each duration at each site ``[B, T, U+1, D]``, only for ``tdt``.
        big_blanks: Each big blank at each site ``[B, T, U+1, D]``, only for ``multi_blank``.
        occupancies: Probability that a path visits each site ``[B, T, U+1]``, the sum of blank, label
            and big blanks; for ``ctc`` that a frame is used ``[B, T]``. With ``constrained``, a site
            whose blank a label forces is also visited.
        losses: Negative log-probability of all paths ``[B]``.
    """

    blank: Array
    label: Array
    durations: Array | None
    big_blanks: Array | None
    occupancies: Array
    losses: Array


class SkippedSites(NamedTuple):
    """Sites that ``skip`` leaves out of a gradient, with bounds on its error.

    With the summed occupancy D of these sites, times the weights of their utterances, the elements of
    a gradient differ from the exact ones by at most 2 D (bias), 2 D max ``|h|`` (weight), and
    2 D max ``|weight|`` (encoded, predicted); h is a hidden row. With durations, 2 is replaced by 4,
    with a factored blank by 3.
    """

    sites: int
    """Number of these sites."""
    zero_sites: int
    """Number of further sites whose gradient is 0, or negligible in float32."""
    mass: float
    """Summed occupancy D."""
    bias_error: float
    """Bound on the errors of the bias gradient, summed over classes."""
    weight_error: float
    """Bound on the error of each element of the weight gradient."""
    input_error: float
    """Bound on the error of each element of the gradients of encoded and predicted."""


def split_posteriors(columns: Any, losses: Any, options: LossOptions) -> Posteriors[Any]:
    """Names the columns of the native module's posteriors."""
    blank, label, extra = columns[..., 0], columns[..., 1:], None
    if options.loss != "ctc":
        label, extra = columns[..., 1], columns[..., 2:]
    has_durations, has_big_blanks = options.loss == "tdt", options.loss == "multi_blank"
    visited = columns[..., :2] if has_durations else columns
    return Posteriors(
        blank=blank,
        label=label,
        durations=extra if has_durations else None,
        big_blanks=extra if has_big_blanks else None,
        occupancies=visited.sum(-1),
        losses=losses,
    )
