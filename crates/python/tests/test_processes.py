"""Calls from threads and forked children neither wait forever nor leak."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest
from panda_rnnt import LossOptions
from panda_rnnt.numpy import SimpleJoiner, align, posteriors, pruned_loss, transducer_loss


def arguments(seed: int) -> tuple[list[np.ndarray], tuple[np.ndarray, ...]]:
    random = np.random.default_rng(seed)
    floats = [random.normal(size=shape) for shape in ((2, 20, 8), (2, 6, 8), (50, 8), (50,))]
    return floats, (random.integers(1, 50, (2, 5)), np.array([20, 15]), np.array([5, 3]))


def losses(seed: int) -> np.ndarray:
    floats, indices = arguments(seed)
    return transducer_loss(*floats, *indices, weights=np.ones(2)).losses


def pruned(seed: int) -> np.ndarray:
    floats, indices = arguments(seed)
    simple = SimpleJoiner(floats[0] @ floats[2].T, floats[1] @ floats[2].T)
    options = LossOptions(loss="pruned", prune_range=2)
    return pruned_loss(*floats, *indices, simple=simple, weights=np.ones(2), options=options).losses


def best_scores(seed: int) -> np.ndarray:
    floats, indices = arguments(seed)
    return align(*floats, *indices).scores


def arc_posteriors(seed: int) -> np.ndarray:
    floats, indices = arguments(seed)
    return posteriors(*floats, *indices).label


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_forked_children_compute() -> None:
    expected = losses(0)
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(4, context) as pool:
        for found in pool.map(losses, [0] * 100, timeout=120):
            assert np.array_equal(found, expected)


def test_threads_compute_the_same() -> None:
    expected = [losses(seed) for seed in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for index, found in enumerate(pool.map(losses, [seed % 8 for seed in range(800)])):
            assert np.array_equal(found, expected[index % 8])


def fork(work: Callable[[], bool]) -> int:
    """Runs ``work`` in a forked child, whose status is 0 if it returns true; returns its id."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            status = 0 if work() else 1
        finally:
            os._exit(status)
    return process


def exit_status(process: int, deadline: float) -> int:
    """Waits for a child; kills it after the deadline."""
    while time.monotonic() < deadline:
        finished, status = os.waitpid(process, os.WNOHANG)
        if finished:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return -signal.SIGKILL


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_threads_and_forks_together() -> None:
    """1,000 calls: 600 in threads while the process forks, 20 in threads of each of 20 children."""
    functions = [losses, pruned, best_scores, arc_posteriors]
    expected = [function(seed) for seed, function in enumerate(functions)]

    def is_correct(call: int) -> bool:
        index = call % len(functions)
        return np.array_equal(functions[index](index), expected[index])

    def compute_in_threads() -> bool:
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            return all(threads.map(is_correct, range(20)))

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        results = threads.map(is_correct, range(600))
        children = []
        for _ in range(20):
            children.append(fork(compute_in_threads))
            time.sleep(0.01)
        deadline = time.monotonic() + 60
        statuses = [exit_status(child, deadline) for child in children]
        assert all(results)
    assert statuses == [0] * 20


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of the process from /proc")
@pytest.mark.parametrize("function", [losses, pruned, best_scores, arc_posteriors])
def test_calls_do_not_leak(function: Callable[[int], np.ndarray]) -> None:
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for _ in range(50):
        function(0)
    before, tasks = resident(), len(os.listdir("/proc/self/task"))
    for _ in range(500):
        function(0)
    assert resident() - before < 4 << 20
    assert len(os.listdir("/proc/self/task")) <= tasks
