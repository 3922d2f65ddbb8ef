"""A recognizer of tones whose weights are set by hand, and recordings of tones.

The words are tones. The texts of recordings are known without training: a tone is its word, unless it
has the same frequency as the tone before. ``high`` and ``hi`` are the same tone, and ``hi`` is less
probable.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping

import numpy as np

SAMPLE_RATE = 8000
FRAME_SECONDS = 0.02
WORDS = ("low", "middle", "high", "hi")
TONE_SECONDS = 0.2
PAUSE_SECONDS = 0.1

# Each tone is at the center of a mel band.
_FREQUENCIES = {"low": 386.0, "middle": 986.0, "high": 1922.0, "hi": 1922.0}
_BANDS = (2, 5, 8)
_TONE_OF_WORD = (0, 1, 2, 2)
_EDGE_SAMPLES = 200

RECIPE = """
seed = 1
[features]
sample_rate = 8000
mels = 12
preemphasis = 0.0
normalize = "none"
[tokens]
kind = "words"
[encoder]
stack = 1
stride = 2
layers = 1
hidden = 3
bidirectional = {bidirectional}
[predictor]
kind = "stateless"
embedding = 3
context = 1
[joint]
width = 6
[batch]
max_frames = 1600
max_utterances = 16
[training]
ctc_weight = 0.3
"""


def recording(text: str, *, rate: int = SAMPLE_RATE, end_seconds: float = 0.1) -> np.ndarray:
    """Returns the tones of a text as int16, each after a pause, with silence at the end."""
    parts = []
    for word in text.split():
        times = np.arange(round(TONE_SECONDS * rate)) / rate
        edge_seconds = _EDGE_SAMPLES / SAMPLE_RATE
        edges = np.minimum(np.minimum(times, TONE_SECONDS - times) / edge_seconds, 1.0)
        parts += [
            np.zeros(round(PAUSE_SECONDS * rate)),
            0.25 * edges * np.sin(2 * np.pi * _FREQUENCIES[word] * times),
        ]
    parts.append(np.zeros(round(end_seconds * rate)))
    return np.round(32768 * np.concatenate(parts)).astype(np.int16)


def start_of_word(index: int) -> float:
    """Returns the seconds before the tone of a word."""
    return PAUSE_SECONDS + index * (PAUSE_SECONDS + TONE_SECONDS)


def write_checkpoint(path: str | os.PathLike[str], *, bidirectional: bool = False) -> None:
    """Writes the checkpoint; a second direction contributes nothing."""
    tokenizer = json.dumps({"format": "panda-tokens/1", "kind": "words", "tokens": WORDS})
    progress = {"epoch": 0, "batch": 0, "step": 0, "best": None, "sums": [0] * 4, "simple": 0, "skipped": 0}
    fields = {
        "format": "panda checkpoint",
        "version": 3,
        "recipe": RECIPE.format(bidirectional=str(bidirectional).lower()),
        "tokenizer": tokenizer,
        "progress": progress,
        "data": None,
    }
    tensors = {f"weight/{name}": value.astype("<f4") for name, value in _weights(bidirectional).items()}
    names = sorted(tensors)
    checksums = {name: _checksum(tensors[name].tobytes()) for name in names}
    checksums[""] = _checksum(json.dumps(list(fields.values()), separators=(",", ":")).encode())
    metadata = {name: value for name, value in fields.items() if name != "data"}
    header: dict[str, object] = {"__metadata__": {"panda": json.dumps({**metadata, "checksums": checksums})}}
    offset = 0
    for name in names:
        end = offset + tensors[name].nbytes
        header[name] = {"dtype": "F32", "shape": tensors[name].shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(tensors[name].tobytes())


def _checksum(data: bytes) -> str:
    return f"{zlib.crc32(data):08x}"


def _weights(bidirectional: bool) -> Mapping[str, np.ndarray]:
    """Weights: a unit of the encoder for each tone, a unit of the predictor for the last tone."""
    tones, bands, words = len(_BANDS), 12, len(WORDS)
    tone_of_word = np.eye(tones)[list(_TONE_OF_WORD)]
    # Gates i, f, g, o: i and o are open, f is closed, g is positive if the band is above -8.
    gates = np.zeros((4, tones, bands))
    gates[2, range(tones), _BANDS] = 1.0
    biases = np.repeat([10.0, -10.0, 8.0, 10.0], tones)
    directions = 2 if bidirectional else 1
    encoder = {
        "encoder.layers.0.weight_ih_l0": gates.reshape(-1, bands),
        "encoder.layers.0.weight_hh_l0": np.zeros((4 * tones, tones)),
        "encoder.layers.0.bias_ih_l0": biases,
    }
    if bidirectional:
        encoder |= {f"{name}_reverse": np.zeros_like(value) for name, value in encoder.items()}
    from_encoder = np.zeros((2 * tones, directions * tones))
    from_encoder[:tones, :tones] = 2.0 * np.eye(tones)
    from_predictor = np.zeros((2 * tones, tones))
    from_predictor[tones:] = 4.0 * np.eye(tones)
    is_hi = np.array([word == "hi" for word in (*WORDS, "blank")])
    ctc = np.zeros((words + 1, directions * tones))
    ctc[:words, :tones] = 8.0 * tone_of_word
    return {
        **encoder,
        # The blank, the last class, is the start.
        "predictor.embedding.weight": np.vstack([4.0 * tone_of_word, np.zeros(tones)]),
        "predictor.context.weight": np.eye(tones),
        "predictor.context.bias": np.zeros(tones),
        "joint.encoder.weight": from_encoder,
        "joint.encoder.bias": np.zeros(2 * tones),
        "joint.predictor.weight": from_predictor,
        "joint.predictor.bias": np.zeros(2 * tones),
        # A present tone scores about 4.5, and that of the last word -7.5; the blank 0.
        "joint.head.weight": np.vstack(
            [np.hstack([5.0 * tone_of_word, -12.0 * tone_of_word]), np.zeros(2 * tones)]
        ),
        "joint.head.bias": -1.0 * is_hi,
        "ctc.weight": ctc,
        # CTC may repeat words, also in turns.
        "ctc.bias": -20.0 * is_hi,
    }
