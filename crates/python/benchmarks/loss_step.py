"""Time and memory of one loss step: joint network, last layer, loss and all gradients.

    python benchmarks/loss_step.py [--batch 1] [--frames 188] [--labels 60] [--classes 8193] [--rounds 5]

Systems run in alternation; each time is a median. Memory is the growth of the resident set during a
step of a new process, gradients included, against the state after a small step and the inputs.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import torch
from torch import Tensor

DURATIONS = (0, 1, 2, 3, 4)


def inputs(sizes: argparse.Namespace, durations: int) -> list[Tensor]:
    torch.manual_seed(0)
    batch, frames, labels, width = sizes.batch, sizes.frames, sizes.labels, sizes.width
    rows = sizes.classes + durations
    floats = [
        torch.randn(batch, frames, width),
        torch.randn(batch, labels + 1, width),
        torch.randn(rows, width) / width**0.5,
        torch.zeros(rows),
    ]
    targets = torch.randint(1, sizes.classes, (batch, labels))
    return [
        *[tensor.requires_grad_() for tensor in floats],
        targets,
        torch.full((batch,), frames),
        torch.full((batch,), labels),
    ]


def panda(sizes: argparse.Namespace, loss: str) -> Callable[[], Tensor]:
    from panda_rnnt.torch import transducer_loss

    durations = DURATIONS if loss == "tdt" else ()
    arguments = inputs(sizes, len(durations))

    def step() -> Tensor:
        value = transducer_loss(
            *arguments, loss=loss, durations=durations, activation="relu", budget=sizes.budget << 20
        )
        value.backward()
        return value

    return step


def scores(arguments: list[Tensor]) -> Tensor:
    encoded, predicted, weight, bias = arguments[:4]
    hidden = torch.relu(encoded[:, :, None] + predicted[:, None])
    return torch.nn.functional.linear(hidden, weight, bias)


def products(sizes: argparse.Namespace) -> Callable[[], Tensor]:
    """The products of the last layer alone: scores and both gradients."""
    arguments = inputs(sizes, len(DURATIONS))

    def step() -> Tensor:
        logits = scores(arguments)
        logits.backward(torch.ones(()).expand_as(logits))
        return logits.detach().flatten()[0]

    return step


def torchaudio(sizes: argparse.Namespace) -> Callable[[], Tensor]:
    import torchaudio.functional

    arguments = inputs(sizes, 0)

    def step() -> Tensor:
        indices = [tensor.int() for tensor in arguments[4:]]
        value: Tensor = torchaudio.functional.rnnt_loss(scores(arguments), *indices, blank=0)
        value.backward()
        return value

    return step


def transformers(sizes: argparse.Namespace) -> Callable[[], Tensor]:
    from transformers.loss.loss_tdt import tdt_loss

    arguments = inputs(sizes, len(DURATIONS))

    def step() -> Tensor:
        logits = scores(arguments)
        value: Tensor = tdt_loss(
            logits[..., : sizes.classes],
            logits[..., sizes.classes :],
            *arguments[4:],
            blank_token_id=0,
            durations=list(DURATIONS),
            reduction="mean_batch",
        )
        value.backward()
        return value

    return step


SYSTEMS: dict[str, Callable[[argparse.Namespace], Callable[[], Tensor]]] = {
    "panda rnnt": functools.partial(panda, loss="rnnt"),
    "panda tdt": functools.partial(panda, loss="tdt"),
    "torch products": products,
    "torchaudio rnnt": torchaudio,
    "transformers tdt": transformers,
}


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def measure_memory(name: str, sizes: argparse.Namespace) -> int:
    """Growth of the resident set during a step, after a small one that loads the code."""
    small = argparse.Namespace(**{**vars(sizes), "batch": 1, "frames": 8, "labels": 5, "classes": 16})
    SYSTEMS[name](small)()
    step = SYSTEMS[name](sizes)
    before, peak, done = resident(), [0], threading.Event()

    def watch() -> None:
        while not done.is_set():
            peak[0] = max(peak[0], resident())
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    step()
    done.set()
    watcher.join()
    return max(peak[0], resident()) - before


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in {
        "batch": 1,
        "frames": 188,
        "labels": 60,
        "width": 640,
        "classes": 8193,
        "budget": 48,
        "rounds": 5,
        "threads": 2,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--systems", nargs="*", default=list(SYSTEMS))
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    sizes = parser.parse_args()
    torch.set_num_threads(sizes.threads)
    import panda_rnnt

    panda_rnnt.set_num_threads(sizes.threads)
    if sizes.memory_of:
        print(json.dumps(measure_memory(sizes.memory_of, sizes)))
        return
    steps = {name: SYSTEMS[name](sizes) for name in sizes.systems}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for round_index in range(sizes.rounds + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if round_index > 0:
                seconds[name].append(time.perf_counter() - start)
    base = statistics.median(seconds[next(iter(steps))])
    for name, times in seconds.items():
        command = [sys.executable, __file__, *sys.argv[1:], "--memory-of", name]
        grown = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        median = statistics.median(times)
        print(f"{name:18} {median:8.3f} s  {median / base:6.2f} x  {grown / 2**20:8.1f} MiB")


if __name__ == "__main__":
    main()
