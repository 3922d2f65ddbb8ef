"""Calls from threads and forked children neither wait forever nor leak."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import sys

import numpy as np
import pytest
from panda_rnnt.numpy import transducer_loss


def losses(seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    floats = [random.normal(size=shape) for shape in ((2, 20, 8), (2, 6, 8), (50, 8), (50,))]
    indices = (random.integers(1, 50, (2, 5)), np.array([20, 15]), np.array([5, 3]))
    return transducer_loss(*floats, *indices, weights=np.ones(2)).losses


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


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of the process from /proc")
def test_calls_do_not_leak() -> None:
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for _ in range(50):
        losses(0)
    before = resident()
    for _ in range(500):
        losses(0)
    assert resident() - before < 4 << 20
