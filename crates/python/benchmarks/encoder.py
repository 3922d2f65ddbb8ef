"""Time and memory of FastConformer encoders with random weights: torch, onnxruntime and panda.

    python benchmarks/encoder.py [--bench target/release/bench] [--rounds 3] [--threads 2]
        [--cases 110m,30 ...] [--systems torch-f32 panda-q8 ...] [--json FILE] [--svg FILE]

A case is a shape of a public model and the seconds of audio. torch runs transformers' encoder:
torch-int8 has its linear layers in dynamic 8-bit quantization; onnx-f32 and onnx-int8 are the
exported graph, without and with onnxruntime's dynamic quantization. The systems run in
alternation, each in a new process. A time is the median of the rounds, and a round's time the
median of its steps, without the first of a short case. Memory is the peak of the resident set;
that of panda is without weights.
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
import typing

if typing.TYPE_CHECKING:
    import collections.abc

    import torch

CASES = ["110m,30", "0.6b,30", "110m,300", "0.6b,300"]
TORCH = ["torch-f32", "torch-bf16", "torch-int8"]
ONNX = ["onnx-f32", "onnx-int8"]
PANDA = ["panda", "panda-bf16", "panda-q8"]
# Layers, width and mel bands.
SHAPES = {"110m": (17, 512, 80), "0.6b": (24, 1024, 128)}

Measured = dict[str, float]


class Encoder(typing.NamedTuple):
    """An encoder of transformers with random weights, and its input."""

    model: torch.nn.Module
    features: torch.Tensor
    mask: torch.Tensor


def build(case: str, dtype: torch.dtype) -> Encoder:
    import torch
    from transformers import ParakeetEncoder, ParakeetEncoderConfig

    name, seconds = case.split(",")
    layers, width, mels = SHAPES[name]
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
    frames = int(seconds) * 100
    features = torch.randn(1, frames, mels, dtype=dtype)
    mask = torch.ones(1, frames, dtype=torch.bool)
    return Encoder(ParakeetEncoder(config).eval().to(dtype), features, mask)


def measure(step: collections.abc.Callable[[], object], case: str) -> Measured:
    times = []
    # The first step of a short case prepares buffers.
    skipped, steps = (0, 1) if int(case.split(",")[1]) > 30 else (1, 4)
    for _ in range(steps):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": statistics.median(times[skipped:]), "peak_mb": peak / 1e3}


def measure_torch(case: str, system: str, threads: int) -> Measured:
    import torch

    torch.set_num_threads(threads)
    model, features, mask = build(case, torch.bfloat16 if system == "torch-bf16" else torch.float32)
    if system == "torch-int8":
        model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    with torch.inference_mode():
        return measure(lambda: model(features, attention_mask=mask), case)


def export_onnx(case: str, folder: pathlib.Path) -> None:
    """Writes the graph in f32 and after dynamic quantization."""
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model, features, _ = build(case, torch.float32)
    path = folder / "onnx-f32.onnx"
    torch.onnx.export(model, (features,), path, dynamo=False, opset_version=17)
    quantize_dynamic(
        path,
        folder / "onnx-int8.onnx",
        weight_type=QuantType.QInt8,
        op_types_to_quantize=["MatMul", "Gemm"],
        use_external_data_format=True,
        extra_options={"DefaultTensorType": 1},
    )


def measure_onnx(case: str, system: str, threads: int, folder: pathlib.Path) -> Measured:
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(folder / f"{system}.onnx", options)
    name, seconds = case.split(",")
    shape = (1, int(seconds) * 100, SHAPES[name][2])
    features = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    inputs = {session.get_inputs()[0].name: features}
    return measure(lambda: session.run(None, inputs), case)


def run_child(case: str, system: str, threads: int, folder: pathlib.Path) -> Measured:
    command = [sys.executable, __file__, "--child", case, system, folder, "--threads", str(threads)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    measured: Measured = json.loads(result.stdout.splitlines()[-1])
    return measured


def measure_child(case: str, system: str, folder: pathlib.Path, threads: int) -> Measured:
    if system == "export":
        export_onnx(case, folder)
        return {}
    if system in ONNX:
        return measure_onnx(case, system, threads, folder)
    return measure_torch(case, system, threads)


def run_panda(bench: pathlib.Path, case: str, system: str, threads: int) -> Measured:
    name, seconds = case.split(",")
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        options = ["--case", f"{name}, {seconds} s", "--threads", str(threads), "--repeats", "1"]
        command = [bench, "encoder", *options, "--system", system, "--json", report]
        subprocess.run(command, check=True, capture_output=True)
        (row,) = json.loads(report.read_text())["rows"]
    return {"seconds": row["median_ms"] / 1e3, "peak_mb": row["peak_bytes"] / 1e6}


def bar_chart(rows: list[dict[str, typing.Any]]) -> str:
    """Draws the seconds of all rows as bars, those of a case side by side, as SVG."""
    bar, left, top, height = 56, 16, 40, 200
    cases = list(dict.fromkeys(row["case"] for row in rows))
    width = left + bar * (len(rows) + len(cases))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top + height + 60}"'
        ' font-family="sans-serif" font-size="11" text-anchor="middle">',
        f'<rect width="{width}" height="{top + height + 60}" fill="white"/>',
    ]
    x = left
    for case in cases:
        case_rows = [row for row in rows if row["case"] == case]
        slowest = max(row["seconds"] for row in case_rows)
        name, seconds = case.split(",")
        middle = x + bar * len(case_rows) / 2
        parts.append(f'<text x="{middle}" y="20" font-size="13">{name}, {seconds} s of audio</text>')
        for row in case_rows:
            length = height * row["seconds"] / slowest
            color = "#1f77b4" if row["system"] in PANDA else "#b0b0b0"
            y, center = top + height - length, x + bar / 2
            parts += [
                f'<rect x="{x + 6}" y="{y:.1f}" width="{bar - 12}" height="{length:.1f}" fill="{color}"/>',
                f'<text x="{center}" y="{y - 4:.1f}">{row["seconds"]:.2f} s</text>',
            ]
            for line, word in enumerate(row["system"].split("-")):
                parts.append(f'<text x="{center}" y="{top + height + 16 + 14 * line}">{word}</text>')
            x += bar
        x += bar
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", type=pathlib.Path, default=pathlib.Path("target/release/bench"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cases", nargs="+", default=CASES)
    parser.add_argument("--systems", nargs="+", default=TORCH + PANDA, choices=TORCH + ONNX + PANDA)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--svg", type=pathlib.Path)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    threads = arguments.threads
    if arguments.child:
        case, system, folder = arguments.child
        print(json.dumps(measure_child(case, system, pathlib.Path(folder), threads)))
        return
    rows = []
    print(f"{'case':10} {'system':12} {'seconds':>9} {'/ panda-q8':>11} {'peak MB':>9}")
    for case in arguments.cases:
        results: dict[str, list[Measured]] = {system: [] for system in arguments.systems}
        with tempfile.TemporaryDirectory() as folder:
            if any(system in ONNX for system in results):
                run_child(case, "export", threads, pathlib.Path(folder))
            for _ in range(arguments.rounds):
                for system, measured in results.items():
                    if system in PANDA:
                        measured.append(run_panda(arguments.bench, case, system, threads))
                    else:
                        measured.append(run_child(case, system, threads, pathlib.Path(folder)))
        medians = {s: statistics.median(m["seconds"] for m in ms) for s, ms in results.items()}
        for system, seconds in medians.items():
            peak = max(measured["peak_mb"] for measured in results[system])
            rows.append({"case": case, "system": system, "seconds": seconds, "peak_mb": peak})
            ratio = seconds / medians.get("panda-q8", seconds)
            print(f"{case:10} {system:12} {seconds:9.3f} {ratio:11.2f} {peak:9.0f}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    if arguments.svg:
        arguments.svg.write_text(bar_chart(rows))


if __name__ == "__main__":
    main()
