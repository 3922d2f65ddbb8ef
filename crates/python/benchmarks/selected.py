"""Time and memory of two log-probabilities per site and their gradients, next to dense scores.

    python benchmarks/selected.py [--sites 4096] [--width 640] [--classes 1024 4096 16384 65536]

A step computes the log-probabilities of blank and target at each site from hidden rows, then the
gradients of rows, weight and bias from given adjoints. Dense is `log_softmax` of all scores and
`gather`, with autograd. Systems run in alternation; each time is a median. Memory is the growth of the
peak resident set by a step of a new process, gradients included, after a small step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

Step = Callable[[], Tensor]


def inputs(sites: int, width: int, classes: int) -> list[Tensor]:
    torch.manual_seed(0)
    hidden, weight = torch.randn(sites, width).tanh(), torch.randn(classes, width) / width**0.5
    targets = torch.randint(1, classes, (sites,))
    targets[::17] = -1
    floats = [tensor.requires_grad_() for tensor in (hidden, weight, torch.zeros(classes))]
    return [*floats, targets, torch.randn(sites, 2)]


def panda(sites: int, width: int, classes: int, tile_c: int) -> Step:
    from panda_rnnt.selected import build_standard_blank_target_set, selected_log_probs

    *floats, targets, adjoints = inputs(sites, width, classes)

    def step() -> Tensor:
        ids, mask = build_standard_blank_target_set(targets, 0, num_classes=classes)
        logp = selected_log_probs(*floats, ids, mask, tile_c=tile_c).selected_logp
        value = (logp * adjoints).sum()
        value.backward()
        return value.detach()

    return step


def dense(sites: int, width: int, classes: int, _: int) -> Step:
    *floats, targets, adjoints = inputs(sites, width, classes)

    def step() -> Tensor:
        ids = torch.stack([targets.clamp(min=0), torch.zeros_like(targets)], 1)
        mask = torch.stack([targets >= 0, torch.ones_like(targets, dtype=torch.bool)], 1)
        logp = torch.nn.functional.linear(*floats).log_softmax(1).gather(1, ids)
        value = (torch.where(mask, logp, 0.0) * adjoints).sum()
        value.backward()
        return value.detach()

    return step


def products(sites: int, width: int, classes: int, _: int) -> Step:
    """The products of the last layer alone: scores and both gradients."""
    *floats, _targets, _adjoints = inputs(sites, width, classes)

    def step() -> Tensor:
        logits = torch.nn.functional.linear(*floats)
        logits.backward(torch.ones(()).expand_as(logits))
        return logits.detach()[0, 0]

    return step


SYSTEMS: dict[str, Callable[[int, int, int, int], Step]] = {
    "selected": panda,
    "dense": dense,
    "torch products": products,
}


def peak_bytes() -> int:
    with open("/proc/self/status") as file:
        peak = next(line for line in file if line.startswith("VmHWM"))
    return int(peak.split()[1]) * 1024


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sites", type=int, default=4096)
    parser.add_argument("--width", type=int, default=640)
    parser.add_argument("--classes", type=int, nargs="+", default=[1024, 4096, 16384, 65536])
    parser.add_argument("--tile-c", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--systems", nargs="*", default=list(SYSTEMS))
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    import panda_rnnt

    panda_rnnt.set_num_threads(arguments.threads)
    sizes = (arguments.sites, arguments.width)
    if arguments.memory_of:
        create = SYSTEMS[arguments.memory_of]
        create(64, arguments.width, 16, arguments.tile_c)()
        step = create(*sizes, arguments.classes[0], arguments.tile_c)
        before = resident_bytes()
        step()
        print(json.dumps(peak_bytes() - before))
        return
    for classes in arguments.classes:
        steps = {name: SYSTEMS[name](*sizes, classes, arguments.tile_c) for name in arguments.systems}
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        for round_index in range(arguments.rounds + 1):
            for name, step in steps.items():
                start = time.perf_counter()
                step()
                if round_index > 0:
                    seconds[name].append(time.perf_counter() - start)
        for name, times in seconds.items():
            options = ["--classes", str(classes), "--memory-of", name]
            for option in ("sites", "width", "tile_c", "threads"):
                options += [f"--{option.replace('_', '-')}", str(getattr(arguments, option))]
            command = [sys.executable, __file__, *options]
            grown = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            median = statistics.median(times)
            print(f"{classes:6} {name:15} {median:8.3f} s {grown / 2**20:8.1f} MiB", flush=True)


if __name__ == "__main__":
    main()
