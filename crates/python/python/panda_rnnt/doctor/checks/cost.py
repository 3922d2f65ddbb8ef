"""Time and memory of a call, next to the loss of this package."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable

import torch

import panda_rnnt
from panda_rnnt.doctor.batches import random_batch
from panda_rnnt.doctor.checks.check import Finding, not_applicable, passed
from panda_rnnt.doctor.guard import Outcome, run_guarded
from panda_rnnt.doctor.signatures import detect_signature
from panda_rnnt.doctor.subject import Settings, Subject

__all__ = ["measure_cost"]

LENGTHS = ((100, 20), (80, 15))
CLASSES = 512
MAX_CALLS = 5


def measure_cost(subject: Subject, seconds: float) -> tuple[Finding, dict[str, float]]:
    """Measures forward and backward pass in float32, on one thread; returns also the numbers.

    Args:
        subject: The function.
        seconds: Limit of a measurement.
    """
    theirs = dataclasses.replace(subject, settings=dataclasses.replace(subject.settings, dtype=torch.float32))
    outcome = run_guarded([_measurement(theirs, seconds)], seconds)[0]
    if outcome.kind != "value":
        return not_applicable(
            f"a batch of 2 utterances of 100 frames was not measured: {outcome.message}"
        ), {}
    cost = _cost("", outcome)
    text = f"B 2, T 100, U 20, C {CLASSES}, one thread: {_describe(cost, '')}"
    if subject.definition.loss == "hat":
        return passed(f"{text}; panda_rnnt has no hat loss of scores"), cost
    reference = Subject(
        panda_rnnt.rnnt_loss, detect_signature(panda_rnnt.rnnt_loss, "rnnt"), subject.definition, Settings()
    )
    reference = dataclasses.replace(
        reference, settings=dataclasses.replace(reference.settings, dtype=torch.float32)
    )
    outcome = run_guarded([_measurement(reference, seconds)], seconds)[0]
    if outcome.kind == "value":
        cost |= _cost("panda_", outcome)
        ratio = cost["milliseconds"] / cost["panda_milliseconds"]
        text += f"; panda_rnnt.rnnt_loss {_describe(cost, 'panda_')}; time ratio {ratio:.2g}"
    return passed(text), cost


def _cost(prefix: str, outcome: Outcome) -> dict[str, float]:
    milliseconds, mebibytes = outcome.value
    cost = {f"{prefix}milliseconds": milliseconds}
    if mebibytes is not None:
        cost[f"{prefix}mebibytes"] = mebibytes
    return cost


def _describe(cost: dict[str, float], prefix: str) -> str:
    text = f"{cost[f'{prefix}milliseconds']:.1f} ms"
    memory = cost.get(f"{prefix}mebibytes")
    return text if memory is None else f"{text}, {memory:.1f} MiB"


def _on_one_thread(measure: Callable[[], tuple[float, float | None]]) -> tuple[float, float | None]:
    """Runs a measurement with one thread of torch and of this package."""
    threads = (torch.get_num_threads(), panda_rnnt.num_threads())
    torch.set_num_threads(1)
    panda_rnnt.set_num_threads(1)
    try:
        return measure()
    finally:
        torch.set_num_threads(threads[0])
        panda_rnnt.set_num_threads(threads[1])


def _measurement(subject: Subject, seconds: float) -> Callable[[], tuple[float, float | None]]:
    """Returns a function that returns milliseconds of a call, and MiB, None where not measured."""

    def measure() -> tuple[float, float | None]:
        # Compiles and loads what the first call needs.
        subject.compute(random_batch(subject.definition))
        batch = random_batch(subject.definition, lengths=LENGTHS, classes=CLASSES)
        leaf = batch.scores.to(subject.settings.dtype).requires_grad_()
        batch = batch.with_scores(leaf)
        before = _reset_peak()
        times: list[float] = []
        peak = None
        while len(times) < MAX_CALLS and (not times or sum(times) + times[-1] < seconds / 4):
            start = time.perf_counter()
            values = subject.call(batch)
            torch.autograd.grad(values.sum(), leaf)
            times.append(time.perf_counter() - start)
            if len(times) == 1 and before is not None:
                peak = max(0.0, (_status_bytes("VmHWM") - before) / 2**20)
        return 1e3 * statistics.median(times), peak

    return functools.partial(_on_one_thread, measure)


def _reset_peak() -> int | None:
    """Resets the peak of resident memory to its present size and returns it; None if unsupported."""
    with contextlib.suppress(OSError):
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        return _status_bytes("VmRSS")
    return None


def _status_bytes(field: str) -> int:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status: expected a line {field}")
