"""Runs tasks in child processes, so that a crash or an endless loop is a result."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Literal

import torch

__all__ = ["Outcome", "run_guarded"]

Task = Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a task.

    Args:
        kind: ``value``, ``exception``, ``crash`` or ``timeout``.
        value: Result of the task.
        message: Type and text of the exception, or the end of the process.
    """

    kind: Literal["value", "exception", "crash", "timeout"]
    value: Any = None
    message: str = ""


def run_guarded(tasks: Sequence[Task], seconds: float) -> list[Outcome]:
    """Runs tasks one after the other in a child process, a new one after a crash.

    Where the system cannot fork, tasks run in this process, without protection.

    Args:
        tasks: Functions whose results can be pickled.
        seconds: Limit for each of them.

    Returns:
        One outcome for each task.
    """
    if not hasattr(os, "fork"):
        return [_run(task) for task in tasks]
    outcomes: list[Outcome] = []
    while len(outcomes) < len(tasks):
        outcomes += _run_in_child(tasks[len(outcomes) :], seconds)
    return outcomes


def _run_in_child(tasks: Sequence[Task], seconds: float) -> list[Outcome]:
    """Returns the outcomes up to the first crash or timeout, at least one."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(tasks, sender), daemon=True)
    with warnings.catch_warnings():
        # Newer versions of Python warn of threads at a fork; the child does not use them.
        warnings.simplefilter("ignore")
        process.start()
    sender.close()
    outcomes: list[Outcome] = []
    try:
        while len(outcomes) < len(tasks):
            if not receiver.poll(seconds):
                outcomes.append(Outcome("timeout", message=f"no result after {seconds:g} s"))
                break
            try:
                outcomes.append(receiver.recv())
            except EOFError:
                process.join()
                outcomes.append(Outcome("crash", message=_end_of_process(process.exitcode)))
                break
    finally:
        process.kill()
        process.join()
        receiver.close()
    return outcomes


def _child(tasks: Sequence[Task], sender: Connection) -> None:
    # The threads of a pool do not exist after a fork; one thread needs no pool.
    torch.set_num_threads(1)
    faulthandler.disable()
    # The report may be written to the standard output.
    with contextlib.suppress(OSError):
        os.dup2(2, 1)
    for task in tasks:
        sender.send(_run(task))


def _run(task: Task) -> Outcome:
    try:
        return Outcome("value", task())
    except Exception as error:
        text = " ".join(str(error).split())
        return Outcome("exception", message=f"{type(error).__name__}: {text[:160]}".removesuffix(": "))


def _end_of_process(code: int | None) -> str:
    if code is not None and code < 0:
        return f"the process ended by {signal.Signals(-code).name}"
    return f"the process ended with status {code}"
