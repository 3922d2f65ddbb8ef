"""Time and memory of one loss step: joint network, last layer, loss and all gradients.

    python benchmarks/loss_step.py [--batch 1] [--frames 188] [--labels 60] [--classes 8193 ...]
        [--rounds 5] [--systems NAME ...] [--activation relu] [--svg FILE]

Systems run in alternation; each time is a median. Memory is the growth of the resident set during a
step of a new process, gradients included, against the state after a small step and the inputs. With
``--svg``, time and memory over several numbers of classes are drawn (this needs matplotlib).
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
from typing import Literal

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


def panda(
    sizes: argparse.Namespace, loss: Literal["rnnt", "tdt"], precision: Literal["full", "bf16x3"] = "full"
) -> Callable[[], Tensor]:
    from panda_rnnt.torch import transducer_loss

    durations = DURATIONS if loss == "tdt" else ()
    arguments = inputs(sizes, len(durations))

    def step() -> Tensor:
        value = transducer_loss(
            *arguments,
            loss=loss,
            durations=durations,
            activation=sizes.activation,
            budget=sizes.budget << 20,
            precision=precision,
        )
        value.backward()
        return value

    return step


def scores(sizes: argparse.Namespace, arguments: list[Tensor]) -> Tensor:
    encoded, predicted, weight, bias = arguments[:4]
    hidden = getattr(torch, sizes.activation)(encoded[:, :, None] + predicted[:, None])
    return torch.nn.functional.linear(hidden, weight, bias)


def products(sizes: argparse.Namespace) -> Callable[[], Tensor]:
    """The products of the last layer alone: scores and both gradients."""
    arguments = inputs(sizes, len(DURATIONS))

    def step() -> Tensor:
        logits = scores(sizes, arguments)
        logits.backward(torch.ones(()).expand_as(logits))
        return logits.detach().flatten()[0]

    return step


def torchaudio(sizes: argparse.Namespace) -> Callable[[], Tensor]:
    import torchaudio.functional

    arguments = inputs(sizes, 0)

    def step() -> Tensor:
        indices = [tensor.int() for tensor in arguments[4:]]
        value: Tensor = torchaudio.functional.rnnt_loss(scores(sizes, arguments), *indices, blank=0)
        value.backward()
        return value

    return step


def transformers(sizes: argparse.Namespace) -> Callable[[], Tensor]:
    from transformers.loss.loss_tdt import tdt_loss

    arguments = inputs(sizes, len(DURATIONS))

    def step() -> Tensor:
        logits = scores(sizes, arguments)
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
    "panda rnnt bf16x3": functools.partial(panda, loss="rnnt", precision="bf16x3"),
    "panda tdt bf16x3": functools.partial(panda, loss="tdt", precision="bf16x3"),
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


def measure_time(sizes: argparse.Namespace) -> dict[str, float]:
    """Median seconds of a step of each system, after one step without measurement."""
    steps = {name: SYSTEMS[name](sizes) for name in sizes.systems}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for round_index in range(sizes.rounds + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if round_index > 0:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def measure(sizes: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """Seconds and MiB of a step of each system."""
    results = {}
    for name, seconds in measure_time(sizes).items():
        command = [sys.executable, __file__, "--memory-of", json.dumps({**vars(sizes), "memory_of": name})]
        grown = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        results[name] = (seconds, grown / 2**20)
    return results


def draw(results: dict[int, dict[str, tuple[float, float]]], path: str) -> None:
    """Draws time and memory over the number of classes; gray text is legible on white and black."""
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "panda", "text.color": "gray", "axes.edgecolor": "gray"})
    plt.rcParams.update({"axes.labelcolor": "gray", "xtick.color": "gray", "ytick.color": "gray"})
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, index, label in zip(
        axes, (0, 1), ("time of a step (s)", "memory of a step (MiB)"), strict=True
    ):
        for name in next(iter(results.values())):
            points = [(classes, row[name][index]) for classes, row in results.items()]
            axis.plot(*zip(*points, strict=True), marker="o", label=name)
        axis.set(xscale="log", yscale="log", xlabel="classes", ylabel=label)
        axis.set_xticks(list(results), [f"{classes:,}" for classes in results])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].legend(frameon=False)
    figure.savefig(path, transparent=True, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in {
        "batch": 1,
        "frames": 188,
        "labels": 60,
        "width": 640,
        "budget": 48,
        "rounds": 5,
        "threads": 2,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--classes", type=int, nargs="+", default=[8193])
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--activation", choices=["relu", "tanh"], default="relu")
    parser.add_argument("--svg", help="draw time and memory over the classes")
    parser.add_argument("--memory-of", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sizes = argparse.Namespace(**(arguments.memory_of or vars(arguments)))
    torch.set_num_threads(sizes.threads)
    import panda_rnnt

    panda_rnnt.set_num_threads(sizes.threads)
    if arguments.memory_of:
        print(json.dumps(measure_memory(sizes.memory_of, sizes)))
        return
    results = {}
    for classes in arguments.classes:
        results[classes] = measure(argparse.Namespace(**{**vars(arguments), "classes": classes}))
        base, _ = next(iter(results[classes].values()))
        for name, (seconds, memory) in results[classes].items():
            ratio = seconds / base
            print(
                f"{classes:6} classes  {name:18} {seconds:8.3f} s  {ratio:6.2f} x  {memory:8.1f} MiB",
                flush=True,
            )
    if arguments.svg:
        draw(results, arguments.svg)


if __name__ == "__main__":
    main()
