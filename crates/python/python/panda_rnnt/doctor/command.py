"""Command line of the loss doctor."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from panda_rnnt.doctor.examination import LOSSES, examine
from panda_rnnt.doctor.signatures import SIGNATURES
from panda_rnnt.doctor.subject import REDUCTIONS

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0 if all required checks pass, 1 if some fail, 2 on errors."""
    options = _parser().parse_args(arguments)
    try:
        report = examine(
            _load(options.function),
            loss=options.loss,
            blank=options.blank,
            durations=options.durations,
            big_blanks=options.big_blanks,
            signature=options.signature,
            reduction=options.reduction,
            fastemit=options.fastemit,
            required_only=options.required,
            measures_cost=not options.no_time,
            seconds=options.seconds,
        )
        if options.json == "-":
            print(report.to_json())
        else:
            print(report)
        if options.json not in (None, "-"):
            Path(options.json).write_text(report.to_json() + "\n")
    except (ValueError, OSError) as error:
        print(f"panda_rnnt.doctor: {error}", file=sys.stderr)
        return 2
    return 0 if report.has_passed else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m panda_rnnt.doctor",
        description="Grade a transducer or CTC loss for PyTorch.",
        epilog="Exit status: 0 if all required checks pass, 1 if some fail, 2 if the command could not run.",
    )
    parser.add_argument(
        "function", metavar="MODULE:FUNCTION", help="function, or class or instance of torch.nn.Module"
    )
    parser.add_argument(
        "--loss", choices=LOSSES, help="what it should compute (default: recognized by its parameters)"
    )
    parser.add_argument("--blank", type=int, help="class of the blank, from the end if negative (default: 0)")
    parser.add_argument(
        "--durations",
        type=_integers,
        metavar="LIST",
        help="frames of the durations (default: 0,1,2,4) or of the big blanks (default: 2,4)",
    )
    parser.add_argument(
        "--big-blanks",
        type=_integers,
        metavar="LIST",
        help="classes of the big blanks (default: next to the blank)",
    )
    parser.add_argument(
        "--signature",
        choices=sorted(SIGNATURES),
        help="how the function is called (default: recognized by the names of its parameters)",
    )
    parser.add_argument(
        "--reduction",
        choices=REDUCTIONS,
        help="reduction that is passed, or that a function without this option has (default: found out)",
    )
    parser.add_argument(
        "--fastemit",
        type=float,
        metavar="LAMBDA",
        help="lambda that is passed, or that the function always applies",
    )
    parser.add_argument(
        "--required", action="store_true", help="run only the checks that can fail the report"
    )
    parser.add_argument("--no-time", action="store_true", help="do not measure time and memory")
    parser.add_argument(
        "--json", metavar="FILE", help="write the report as JSON; - writes it instead of the table"
    )
    parser.add_argument(
        "--seconds", type=_seconds, default=60.0, help="limit of a check in seconds (default: 60)"
    )
    return parser


def _integers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError(text)
    return seconds


def _load(text: str) -> Callable[..., Any]:
    """Imports ``module:attribute``."""
    module, separator, path = text.partition(":")
    if not separator or not module or not path:
        raise ValueError(f"function: expected MODULE:FUNCTION, found {text!r}")
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except Exception as error:
        # The import runs code of the user, which may raise anything.
        raise ValueError(f"function: {type(error).__name__}: {error}") from error
    loaded: Callable[..., Any] = found
    return loaded
