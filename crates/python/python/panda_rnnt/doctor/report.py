"""Results of checks, as a table and as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import textwrap
from typing import Any, Literal

__all__ = ["Report", "Result", "Verdict"]

Verdict = Literal["pass", "fail", "differs by convention", "not applicable"]

_COLUMNS = 110
_NAME_COLUMNS = 28
_VERDICT_COLUMNS = 16
_ERROR_COLUMNS = 9


@dataclasses.dataclass(frozen=True)
class Result:
    """Result of one check.

    Args:
        name: Name of the check.
        verdict: ``pass``, ``fail``, ``differs by convention`` or ``not applicable``.
        explanation: One sentence: what was found, and why it matters.
        error: Largest deviation, relative to the larger of 1 and the expected number.
        is_required: A failure fails the report.
        is_known: A documented failure of a published library; it does not fail the report.
    """

    name: str
    verdict: Verdict
    explanation: str
    error: float | None = None
    is_required: bool = True
    is_known: bool = False

    @property
    def fails_report(self) -> bool:
        return self.verdict == "fail" and self.is_required and not self.is_known

    @property
    def label(self) -> str:
        """Returns the verdict as the table shows it."""
        if self.verdict == "fail" and not self.fails_report:
            return "fail (known)" if self.is_known else "fail (optional)"
        return {"differs by convention": "convention", "not applicable": "n/a"}.get(
            self.verdict, self.verdict.upper() if self.verdict == "fail" else self.verdict
        )


@dataclasses.dataclass(frozen=True)
class Report:
    """Results of all checks of a loss.

    ``str(report)`` is a table, ``to_json()`` its machine-readable form.

    Args:
        function: Name of the function.
        loss: Name of the loss that it was compared with.
        call: How the function was called.
        results: One result for each check, in order.
        cost: Milliseconds and MiB of a call of the function and of ``panda_rnnt``, where measured.
    """

    function: str
    loss: str
    call: str
    results: tuple[Result, ...]
    cost: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def has_passed(self) -> bool:
        """Returns True if no required check fails."""
        return not self.failures

    @property
    def failures(self) -> list[Result]:
        """Returns the failed required checks."""
        return [result for result in self.results if result.fails_report]

    def __getitem__(self, name: str) -> Result:
        for result in self.results:
            if result.name == name:
                return result
        raise KeyError(f"check: expected one of {[r.name for r in self.results]}, found {name!r}")

    def to_json(self) -> str:
        """Returns the report as a JSON object."""
        document: dict[str, Any] = {
            "function": self.function,
            "loss": self.loss,
            "call": self.call,
            "has_passed": self.has_passed,
            "cost": self.cost,
            "results": [
                {**dataclasses.asdict(result), "error": _json_number(result.error)} for result in self.results
            ],
        }
        return json.dumps(document, indent=2)

    def __str__(self) -> str:
        lines = [f"{self.function}: {self.loss} loss, called as", f"  {self.call}", ""]
        lines.append(_row("check", "verdict", "error", "explanation"))
        lines.append("-" * _COLUMNS)
        lines += [
            _row(result.name, result.label, _format_error(result.error), result.explanation)
            for result in self.results
        ]
        lines.append("")
        verdicts = [result.verdict for result in self.results]
        counts = ", ".join(
            f"{verdicts.count(verdict)} {text}"
            for verdict, text in (
                ("pass", "passed"),
                ("fail", "failed"),
                ("differs by convention", "differ by convention"),
                ("not applicable", "not applicable"),
            )
            if verdict in verdicts
        )
        names = ", ".join(result.name for result in self.failures)
        summary = f"FAIL: {names}" if names else "PASS: no required check fails"
        return "\n".join([*lines, f"{len(verdicts)} checks: {counts}", summary])


def _row(name: str, verdict: str, error: str, explanation: str) -> str:
    head = f"{name:{_NAME_COLUMNS}} {verdict:{_VERDICT_COLUMNS}} {error:>{_ERROR_COLUMNS}}  "
    return textwrap.fill(
        explanation,
        _COLUMNS,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
    )


def _format_error(error: float | None) -> str:
    return "" if error is None else f"{error:.1e}"


def _json_number(number: float | None) -> float | str | None:
    """Returns text for infinite numbers and NaN, which JSON does not have."""
    return number if number is None or math.isfinite(number) else str(number)
