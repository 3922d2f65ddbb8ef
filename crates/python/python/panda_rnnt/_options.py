"""Options of a loss; each library's functions take the same ones."""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict

from panda_rnnt import _native

LossName = Literal["rnnt", "modified", "constrained", "tdt", "multi_blank", "hat", "ctc", "pruned"]
"""Name of a loss.

- ``rnnt``: Graves 2012.
- ``modified``: a label also advances a frame, as in k2.
- ``constrained``: the same, with a forced blank after a label.
- ``tdt``: tokens and durations, arXiv 2304.06795.
- ``multi_blank``: blanks of several frames, arXiv 2211.03541.
- ``hat``: a factored blank, arXiv 2003.07705.
- ``ctc``: Graves et al. 2006.
- ``pruned``: a simple joiner selects the sites of the joint network, arXiv 2206.13236.
"""
Topology = Literal["regular", "modified", "constrained"]
"""Arcs of a pruned loss: those of ``rnnt``, ``modified`` or ``constrained``."""
Activation = Literal["tanh", "relu"]
Precision = Literal["full", "bf16", "bf16x3"]
Reduction = Literal["none", "sum", "mean", "mean_per_target", "mean_volume"]
"""Weighted sum of the losses of a batch.

``mean``: over utterances. ``mean_per_target``: each loss is divided by its number of labels, then
the mean over utterances. ``mean_volume``: the sum over all labels of the batch.
"""


class ScoreLossArguments(TypedDict, total=False):
    """Options of a loss of scores, as keyword arguments; see :class:`LossOptions`."""

    loss: LossName
    blank: int
    durations: Sequence[int]
    big_blanks: Sequence[int]
    sigma: float
    omega: float
    fastemit: float
    delay_penalty: float
    clamp: float | None


class PruningArguments(TypedDict, total=False):
    """Options of a pruned loss only, as keyword arguments; see :class:`LossOptions`."""

    topology: Topology
    prune_range: int
    simple_loss_scale: float
    pruned_loss_scale: float
    lm_only_scale: float
    am_only_scale: float


class LossArguments(ScoreLossArguments, PruningArguments, total=False):
    """Options of a loss, as keyword arguments; see :class:`LossOptions`."""

    activation: Activation
    label_smoothing: float
    z_loss: float
    skip: float
    budget: int | None
    precision: Precision


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
        precision: ``bf16`` rounds the factors of the head's products to bf16; ``bf16x3`` splits each into
            two bf16 numbers, which a processor with AMX multiplies about twice as fast as float32.
        topology: Arcs of ``pruned``.
        prune_range: Label positions that each frame of ``pruned`` keeps, at least 2.
        simple_loss_scale: Factor of the simple joiner's loss in ``pruned``.
        pruned_loss_scale: Factor of the joint network's loss in ``pruned``.
        lm_only_scale: Share of the predictor's scores only in the simple joiner's log-probabilities.
        am_only_scale: Share of the encoder's scores with a unigram in these log-probabilities.

    Raises:
        ValueError: An unknown name, or numbers that are negative or infinite.
        TypeError: A value of another type.
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
    topology: Topology = "regular"
    prune_range: int = 5
    simple_loss_scale: float = 0.5
    pruned_loss_scale: float = 1.0
    lm_only_scale: float = 0.0
    am_only_scale: float = 0.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            found = getattr(self, field.name)
            if isinstance(field.default, str) and not isinstance(found, str):
                raise TypeError(f"{field.name}: expected a string, found {found!r}")
            if found is None and field.default is not None:
                raise TypeError(f"{field.name}: expected {field.type}, found None")
        for name in ("blank", "budget", "prune_range"):
            self._set(name, _integer)
        for name in ("durations", "big_blanks"):
            self._set(name, _integers)
        for field in dataclasses.fields(self):
            if isinstance(field.default, float) or field.name == "clamp":
                self._set(field.name, _finite)
        _native.check_options(self.to_json())
        for field in dataclasses.fields(self):
            name, default, found = field.name, field.default, getattr(self, field.name)
            if self.loss != "pruned" and name in PruningArguments.__annotations__ and found != default:
                raise ValueError(f"{name}: expected {default!r} for loss {self.loss!r}, found {found!r}")

    def _set(self, name: str, convert: Callable[[str, Any], object]) -> None:
        value = getattr(self, name)
        if value is not None:
            object.__setattr__(self, name, convert(name, value))

    def to_json(self) -> str:
        """Returns the options as text, the form that the native module reads."""
        return json.dumps({field.name: getattr(self, field.name) for field in dataclasses.fields(self)})


def _integer(name: str, value: Any) -> int:
    try:
        integer = operator.index(value)
    except TypeError:
        integer = None
    if integer is None or isinstance(value, bool):
        raise TypeError(f"{name}: expected integers, found {value!r}")
    limit = 2**63 if name == "budget" else 2**32
    if not 0 <= integer < limit:
        raise ValueError(f"{name}: expected numbers from 0 to below {limit}, found {integer}")
    return integer


def _integers(name: str, values: Any) -> tuple[int, ...]:
    try:
        elements = tuple(values)
    except TypeError:
        raise TypeError(f"{name}: expected a sequence of integers, found {values!r}") from None
    return tuple(_integer(name, value) for value in elements)


def _finite(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}: expected a number, found {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name}: expected a finite number, found {value!r}")
    return number
