"""Time and memory of FastConformer encoders, with random weights: transformers and panda.

    python benchmarks/encoder.py [--bench target/release/bench] [--rounds 3] [--threads 2]
        [--cases 110m,30,f32 ...]

A case is a shape of a public model, the seconds of audio, and f32 or bf16. The systems run in
alternation, each in a new process. A time is the median of the rounds, and a round's time the
fastest of its steps in transformers, the median in panda. Memory is the peak of the resident set.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

CASES = ["110m,30,f32", "110m,30,bf16", "0.6b,30,f32", "0.6b,30,bf16", "110m,300,f32", "0.6b,300,bf16"]
# Layers, width and mel bands.
SHAPES = {"110m": (17, 512, 80), "0.6b": (24, 1024, 128)}


def measure_transformers(case: str, threads: int) -> dict[str, float]:
    import torch
    from transformers import ParakeetEncoder, ParakeetEncoderConfig

    name, seconds, number_format = case.split(",")
    layers, width, mels = SHAPES[name]
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    config = ParakeetEncoderConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=8,
        intermediate_size=4 * width,
        num_mel_bins=mels,
        subsampling_conv_channels=256,
        conv_kernel_size=9,
        subsampling_factor=8,
        scale_input=False,
        attn_implementation="sdpa",
    )
    dtype = torch.bfloat16 if number_format == "bf16" else torch.float32
    model = ParakeetEncoder(config).eval().to(dtype)
    frames = int(seconds) * 100
    features = torch.randn(1, frames, mels, dtype=dtype)
    mask = torch.ones(1, frames, dtype=torch.bool)
    times = []
    with torch.inference_mode():
        for _ in range(1 if frames > 3000 else 3):
            start = time.perf_counter()
            model(features, attention_mask=mask)
            times.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": min(times), "peak_mb": peak / 1e3}


def run_transformers(case: str, threads: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", case, "--threads", str(threads)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    measured: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return measured


def run_panda(bench: pathlib.Path, case: str, threads: int) -> dict[str, float]:
    name, seconds, number_format = case.split(",")
    system = "panda-bf16" if number_format == "bf16" else "panda"
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        options = ["--case", f"{name}, {seconds} s", "--threads", str(threads), "--repeats", "1"]
        subprocess.run([bench, "encoder", *options, "--json", report], check=True, capture_output=True)
        rows = json.loads(report.read_text())["rows"]
    (row,) = [row for row in rows if row["system"] == system]
    return {"seconds": row["median_ms"] / 1e3, "peak_mb": row["peak_bytes"] / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", type=pathlib.Path, default=pathlib.Path("target/release/bench"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cases", nargs="+", default=CASES)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure_transformers(arguments.child, arguments.threads)))
        return
    print(f"{'case':16} {'transformers s':>15} {'panda s':>9} {'ratio':>6} {'their peak MB':>14}")
    for case in arguments.cases:
        theirs, ours = [], []
        for _ in range(arguments.rounds):
            theirs.append(run_transformers(case, arguments.threads))
            ours.append(run_panda(arguments.bench, case, arguments.threads))
        slow = statistics.median(measured["seconds"] for measured in theirs)
        fast = statistics.median(measured["seconds"] for measured in ours)
        peak = max(measured["peak_mb"] for measured in theirs)
        print(f"{case:16} {slow:15.3f} {fast:9.3f} {slow / fast:6.2f} {peak:14.0f}", flush=True)


if __name__ == "__main__":
    main()
