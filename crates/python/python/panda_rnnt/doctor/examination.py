"""Runs all checks of a loss."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from panda_rnnt.doctor.batches import CLASSES
from panda_rnnt.doctor.checks import CHECKS, Check, Finding
from panda_rnnt.doctor.checks.cost import measure_cost
from panda_rnnt.doctor.guard import Outcome, run_guarded
from panda_rnnt.doctor.known import known_failures
from panda_rnnt.doctor.probe import probe
from panda_rnnt.doctor.reference import Definition, Loss
from panda_rnnt.doctor.report import Report, Result
from panda_rnnt.doctor.signatures import Signature, detect_loss, detect_signature
from panda_rnnt.doctor.subject import REDUCTIONS, Subject

__all__ = ["LOSSES", "examine"]

LOSSES: tuple[Loss, ...] = ("rnnt", "modified", "tdt", "multi_blank", "hat", "ctc")


def examine(
    function: Callable[..., Any],
    *,
    loss: Loss | None = None,
    blank: int | None = None,
    durations: Sequence[int] | None = None,
    big_blanks: Sequence[int] | None = None,
    signature: str | None = None,
    reduction: str | None = None,
    fastemit: float | None = None,
    required_only: bool = False,
    measures_cost: bool = True,
    seconds: float = 60.0,
) -> Report:
    """Grades a loss for PyTorch: values, gradients, invariants, bad input and cost.

    Each check calls the function in a child process (where the system can fork), so that a crash or
    an endless loop is a result. Batches have 7 classes and at most 8 frames.

    Args:
        function: A function, or a subclass or instance of ``torch.nn.Module``. Parameters are
            recognized by the names that published losses use; four parameters of other names are
            scores, labels, numbers of frames and numbers of labels. Scores are
            ``[B, T, U+1, C]``, for ``tdt`` with the durations last, for ``ctc`` ``[B, T, C]``
            (``[T, B, C]`` if called as torch's loss).
        loss: What it should compute; None recognizes it by the parameters.
        blank: Class of the blank, from the end if negative; 0 by default, in NeMo's multi-blank
            loss the last.
        durations: Frames of the durations of ``tdt``, (0, 1, 2, 4) by default, or of the big blanks
            of ``multi_blank``, (2, 4) by default.
        big_blanks: Classes of the big blanks; by default those next to the blank.
        signature: A name of ``panda_rnnt.doctor.SIGNATURES``, for functions without such parameters.
        reduction: Reduction that is passed, or that a function without this option has; None finds
            it out.
        fastemit: Lambda of a function that always applies FastEmit, or that is passed.
        required_only: Run only the checks that can fail the report.
        measures_cost: Measure time and memory.
        seconds: Limit of a check.

    Returns:
        A report; ``str(report)`` is a table.

    Raises:
        ValueError: Options that do not match, or a function that returns no loss for valid input.

    Example::

        import torchaudio
        from panda_rnnt.doctor import examine

        print(examine(torchaudio.functional.rnnt_loss))

    Cost: some 100 calls of the function, and a few seconds.
    """
    if not callable(function):
        raise ValueError(f"function: expected a function, found {function!r}")
    loss = detect_loss(function) if loss is None else loss
    if loss not in LOSSES:
        raise ValueError(f"loss: expected one of {', '.join(LOSSES)}, found {loss!r}")
    if reduction is not None and reduction not in REDUCTIONS:
        raise ValueError(f"reduction: expected one of {', '.join(REDUCTIONS)}, found {reduction!r}")
    if fastemit is not None and not (math.isfinite(fastemit) and fastemit > 0):
        raise ValueError(f"fastemit: expected a number above 0, found {fastemit}")
    call = detect_signature(function, loss, signature)
    definition = _definition(loss, call, blank, durations, big_blanks)
    subject = Subject(function, call, definition)
    if fastemit is not None and "fastemit" in call.roles:
        subject = dataclasses.replace(subject, fastemit=fastemit)
    elif fastemit is not None:
        definition = dataclasses.replace(definition, label_factor=1.0 + fastemit)
        subject = dataclasses.replace(subject, definition=definition)
    subject = dataclasses.replace(subject, settings=probe(subject, reduction, seconds))
    results = _run_checks(subject, required_only, seconds)
    cost: dict[str, float] = {}
    if measures_cost and not required_only:
        finding, cost = measure_cost(subject, seconds)
        results.append(Result("time and memory", finding.verdict, finding.explanation, is_required=False))
    name = function_name(function)
    described = call.describe(name.rpartition(".")[2], subject.options(definition))
    return Report(name, loss, described, tuple(results), cost)


def function_name(function: Callable[..., Any]) -> str:
    """Returns the name of a function with its module; that of the class for an instance."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _definition(
    loss: Loss,
    call: Signature,
    blank: int | None,
    durations: Sequence[int] | None,
    big_blanks: Sequence[int] | None,
) -> Definition:
    if durations is not None and loss not in ("tdt", "multi_blank"):
        raise ValueError(f"durations: expected none for loss {loss!r}, found {tuple(durations)}")
    if blank is None:
        blank = CLASSES - 1 if call.uses_nemo_classes else 0
    if not -CLASSES <= blank < CLASSES:
        raise ValueError(f"blank: expected a class from {-CLASSES} to {CLASSES - 1}, found {blank}")
    definition = Definition(loss, blank % CLASSES)
    if loss == "tdt":
        durations = (0, 1, 2, 4) if durations is None else durations
        if not durations or min(durations) < 0 or max(durations) == 0:
            raise ValueError(f"durations: expected numbers of frames, one above 0, found {tuple(durations)}")
        return dataclasses.replace(definition, durations=tuple(durations))
    if loss != "multi_blank":
        return definition
    durations = (2, 4) if durations is None else durations
    if not durations or min(durations) < 1 or len(durations) > 3:
        raise ValueError(f"durations: expected 1 to 3 numbers of frames above 0, found {tuple(durations)}")
    if big_blanks is None:
        step = 1 if definition.blank == 0 else -1
        big_blanks = [definition.blank + step * (i + 1) for i in range(len(durations))]
    classes = set(big_blanks) | {definition.blank}
    is_valid = len(big_blanks) == len(durations) and len(classes) == len(durations) + 1
    if not is_valid or not all(0 <= c < CLASSES for c in classes):
        raise ValueError(
            f"big_blanks: expected {len(durations)} classes from 0 to {CLASSES - 1} other than the blank, "
            f"found {tuple(big_blanks)}"
        )
    return dataclasses.replace(definition, durations=tuple(durations), big_blanks=tuple(big_blanks))


def _run_checks(subject: Subject, required_only: bool, seconds: float) -> list[Result]:
    """Runs the checks that apply: isolated ones in a process each, the others together."""
    loss = subject.definition.loss
    checks = [check for check in CHECKS if not check.losses or loss in check.losses]
    checks = [check for check in checks if check.is_required or not required_only]
    groups = [[check for check in checks if not check.is_isolated]]
    groups += [[check] for check in checks if check.is_isolated]
    results = {}
    known = known_failures(subject.function)
    for group in groups:
        outcomes = run_guarded([_task(check, subject) for check in group], seconds)
        for check, outcome in zip(group, outcomes, strict=True):
            results[check.name] = _result(check, outcome, known.get(check.name))
    return [results[check.name] for check in checks]


def _task(check: Check, subject: Subject) -> Callable[[], Finding]:
    return lambda: check.run(subject)


def _result(check: Check, outcome: Outcome, known: str | None) -> Result:
    finding = outcome.value if outcome.kind == "value" else _without_value(check, outcome)
    is_known = finding.verdict == "fail" and known is not None
    explanation = f"{finding.explanation} (known: {known})" if is_known else finding.explanation
    return Result(check.name, finding.verdict, explanation, finding.error, check.is_required, is_known)


def _without_value(check: Check, outcome: Outcome) -> Finding:
    if outcome.kind != "exception":
        return Finding("fail", f"{outcome.message}; {check.importance}")
    if check.on_exception == "pass":
        return Finding("pass", f"it is refused: {outcome.message}")
    return Finding(check.on_exception, f"{outcome.message}; {check.importance}")
