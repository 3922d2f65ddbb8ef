"""Finds out by calls which types and reductions a function accepts."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from panda_rnnt.doctor.batch import Batch
from panda_rnnt.doctor.batches import random_batch
from panda_rnnt.doctor.guard import run_guarded
from panda_rnnt.doctor.subject import REDUCTIONS, Settings, Subject, deviation

__all__ = ["probe"]


def probe(subject: Subject, reduction: str | None, seconds: float) -> Settings:
    """Returns the first settings that work: no reduction, int64 and float64 are preferred.

    Args:
        subject: The function.
        reduction: Reduction of the function; None finds it out.
        seconds: Limit of a call.

    Raises:
        ValueError: No call returns a loss.
    """
    passed: Sequence[str | None] = [None]
    if "reduction" in subject.roles:
        passed = ["none", None] if reduction is None else [reduction]
    fixed_result = reduction if "reduction" not in subject.roles else None
    messages: list[str] = []
    for passed_reduction, index_dtype, dtype in itertools.product(
        passed, (torch.int64, torch.int32), (torch.float64, torch.float32)
    ):
        settings = Settings(dtype, index_dtype, passed_reduction, "unknown")
        trial = _trial(dataclasses.replace(subject, settings=settings), fixed_result)
        outcome = run_guarded([trial], seconds)[0]
        if outcome.kind == "value":
            result, is_double = outcome.value
            return dataclasses.replace(
                settings, result=result, dtype=torch.float64 if is_double else torch.float32
            )
        messages.append(outcome.message)
    reasons = "; ".join(dict.fromkeys(messages))
    raise ValueError(f"function: expected a loss or one loss per utterance, found: {reasons}")


def _trial(subject: Subject, fixed_result: str | None) -> Callable[[], tuple[str, bool]]:
    """Returns a call that finds the reduction, and whether the result is float64."""

    def trial() -> tuple[str, bool]:
        batch = random_batch(subject.definition)
        with torch.no_grad():
            values = subject.call(subject.cast(batch))
        result = fixed_result or _nearest_reduction(subject, batch, values)
        return result, values.dtype == torch.float64

    return trial


def _nearest_reduction(subject: Subject, batch: Batch, values: Tensor) -> str:
    """Returns the reduction whose reference is nearest to the values."""
    if values.numel() == batch.size:
        return "none"
    if values.numel() != 1:
        raise TypeError(f"expected a loss or {batch.size} losses, found {values.numel()} numbers")

    def distance(reduction: str) -> float:
        settings = dataclasses.replace(subject.settings, result=reduction)
        reduced = dataclasses.replace(subject, settings=settings)
        return deviation(values.double(), reduced.expected(batch).losses)

    return min(REDUCTIONS[1:], key=distance)
