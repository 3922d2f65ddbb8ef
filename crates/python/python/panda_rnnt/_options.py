"""Options of a loss; each library's functions take the same ones."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Literal

from panda_rnnt import _native

LossName = Literal["rnnt", "modified", "constrained", "tdt", "multi_blank", "hat", "ctc"]
"""Name of a loss.

- ``rnnt``: Graves 2012.
- ``modified``: a label also advances a frame, as in k2.
- ``constrained``: the same, with a forced blank after a label.
- ``tdt``: tokens and durations, arXiv 2304.06795.
- ``multi_blank``: blanks of several frames, arXiv 2211.03541.
- ``hat``: a factored blank, arXiv 2003.07705.
- ``ctc``: Graves et al. 2006.
"""
Activation = Literal["tanh", "relu"]
Precision = Literal["full", "bf16"]
Reduction = Literal["none", "sum", "mean", "mean_per_target", "mean_volume"]
"""Weighted sum of the losses of a batch.

``mean``: over utterances. ``mean_per_target``: each loss is divided by its number of labels, then
the mean over utterances. ``mean_volume``: the sum over all labels of the batch.
"""


@dataclasses.dataclass(frozen=True)
class LossOptions:
    """Options of a loss.

    Args:
        loss: Name of the loss.
        blank: Class of the blank.
        durations: Frames of each duration class (``tdt``) or big blank (``multi_blank``).
        big_blanks: Classes of the big blanks, one for each of the durations.
        activation: Nonlinearity of the joint network.
        sigma: Logit under-normalization, subtracted from each token's log-probability.
        omega: Share of the RNN-T loss in a TDT loss, from 0 to 1.
        fastemit: FastEmit lambda: scales the gradient of labels by 1 + lambda, not the loss.
        delay_penalty: Adds ``delay_penalty * ((T - 1) / 2 - t)`` to each label's log-probability.
        label_smoothing: Share of the mean over all classes in each token's log-probability.
        z_loss: Adds ``z_loss`` times the mean of the squared log-normalizer over the sites.
        clamp: Clips each element of the score gradient to ``-clamp`` .. ``clamp``.
        skip: Sites whose occupancies sum to less than this share get no gradient; 0 is exact.
        budget: Limit on the bytes of a call besides arguments and results; 56 MiB if None.
        precision: ``bf16`` rounds the factors of the head's products to bf16.

    Raises:
        ValueError: A value out of range or an unknown name.
    """

    loss: LossName = "rnnt"
    blank: int = 0
    durations: Sequence[int] = ()
    big_blanks: Sequence[int] = ()
    activation: Activation = "tanh"
    sigma: float = 0.0
    omega: float = 0.0
    fastemit: float = 0.0
    delay_penalty: float = 0.0
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    clamp: float | None = None
    skip: float = 0.0
    budget: int | None = None
    precision: Precision = "full"

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{field.name}: expected a finite number, found {value}")
        for name in ("blank", "durations", "big_blanks", "budget"):
            value = getattr(self, name)
            numbers = [value] if isinstance(value, int) else value or ()
            if any(number < 0 for number in numbers):
                raise ValueError(f"{name}: expected numbers from 0, found {value}")
        _native.check_options(self.to_json())

    def to_json(self) -> str:
        """Returns the options as text, the form that the native module reads."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields["durations"] = [int(duration) for duration in self.durations]
        fields["big_blanks"] = [int(blank) for blank in self.big_blanks]
        return json.dumps(fields)
