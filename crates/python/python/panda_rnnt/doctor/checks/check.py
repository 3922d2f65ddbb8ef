"""A check, and what it finds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from panda_rnnt.doctor.report import Verdict
from panda_rnnt.doctor.subject import Subject

__all__ = ["Check", "Finding", "convention", "failed", "not_applicable", "passed"]


class Finding(NamedTuple):
    """Verdict of a check, one sentence, and the measured error."""

    verdict: Verdict
    explanation: str
    error: float | None = None


def passed(explanation: str, error: float | None = None) -> Finding:
    return Finding("pass", explanation, error)


def failed(explanation: str, error: float | None = None) -> Finding:
    return Finding("fail", explanation, error)


def convention(explanation: str, error: float | None = None) -> Finding:
    return Finding("differs by convention", explanation, error)


def not_applicable(explanation: str) -> Finding:
    return Finding("not applicable", explanation)


@dataclasses.dataclass(frozen=True)
class Check:
    """A check of a loss.

    Args:
        name: Name in the report.
        run: Calls the function and compares.
        importance: Why a failure matters, the end of a sentence.
        losses: The losses that it applies to; all if empty.
        is_required: A failure fails the report.
        is_isolated: Runs in a process that no other check uses, since it may corrupt memory.
        on_exception: Verdict where the function raises an exception.
    """

    name: str
    run: Callable[[Subject], Finding]
    importance: str
    losses: frozenset[str] = frozenset()
    is_required: bool = True
    is_isolated: bool = False
    on_exception: Verdict = "fail"
