"""Trains an LSTM transducer on the connected digits of this repository, with torch and panda_rnnt.

    python examples/python/train_digits.py [--epochs 12] [--utterances N] [--data data/digits]

It needs torch, torchaudio (features) and soundfile (FLAC). It prints the mean loss of each epoch, and
the word error rate of greedy search on the test set.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import soundfile
import torch
import torchaudio
from panda_rnnt import transducer_loss
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

BLANK = 0
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
STACKED_FRAMES = 3
MAX_LABELS_PER_FRAME = 3

Utterance = tuple[Tensor, Tensor]
"""Features ``[T, D]`` and labels ``[U]``."""


class Transducer(nn.Module):
    """Encoder, predictor and joint network; both outputs are projected to the joint width."""

    def __init__(self, features: int, width: int = 128) -> None:
        super().__init__()
        classes = 1 + len(WORDS)
        self.encoder = nn.LSTM(features, width, num_layers=2, batch_first=True, bidirectional=True)
        self.encoder_projection = nn.Linear(2 * width, width)
        self.embedding = nn.Embedding(classes, width)
        self.predictor = nn.LSTM(width, width, batch_first=True)
        self.predictor_projection = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)

    def encode(self, features: Tensor) -> Tensor:
        rows: Tensor = self.encoder_projection(self.encoder(features)[0])
        return rows

    def predict(
        self, labels: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        rows, state = self.predictor(self.embedding(labels), state)
        return self.predictor_projection(rows), state

    def forward(self, utterances: list[Utterance]) -> Tensor:
        """Returns the mean loss of the utterances."""
        features, labels = zip(*utterances, strict=True)
        # The blank starts the label sequence, so that there are U+1 predictor rows.
        predictor_input = pad_sequence(
            [nn.functional.pad(label, (1, 0), value=BLANK) for label in labels], True
        )
        return transducer_loss(
            self.encode(pad_sequence(list(features), batch_first=True)),
            self.predict(predictor_input)[0],
            self.head.weight,
            self.head.bias,
            pad_sequence(list(labels), batch_first=True),
            torch.tensor([len(rows) for rows in features]),
            torch.tensor([len(label) for label in labels]),
        )

    @torch.no_grad()
    def recognize(self, features: Tensor) -> list[int]:
        """Greedy search: the most probable class at each site, up to a limit per frame."""
        labels: list[int] = []
        predicted, state = self.predict(torch.tensor([[BLANK]]))
        for encoded in self.encode(features[None])[0]:
            for _ in range(MAX_LABELS_PER_FRAME):
                label = int(self.head(torch.tanh(encoded + predicted[0, 0])).argmax())
                if label == BLANK:
                    break
                labels.append(label)
                predicted, state = self.predict(torch.tensor([[label]]), state)
        return labels


def load(manifest: Path, limit: int | None, stacked: int = STACKED_FRAMES) -> list[Utterance]:
    """Reads recordings as rows of `stacked` frames of log-mel features, and their labels from 1."""
    mel = torchaudio.transforms.MelSpectrogram(8000, n_fft=256, hop_length=80, n_mels=40)
    utterances = []
    for line in manifest.read_text().splitlines()[:limit]:
        entry = json.loads(line)
        samples, _ = soundfile.read(manifest.parent / entry["file"], dtype="float32")
        features = mel(torch.from_numpy(samples)).clamp(min=1e-6).log().T
        features = (features - features.mean(0)) / features.std(0).clamp(min=0.05)
        frames = len(features) // stacked * stacked
        labels = [1 + WORDS.index(word) for word in entry["text"].split()]
        utterances.append((features[:frames].reshape(-1, 40 * stacked), torch.tensor(labels)))
    return utterances


def edit_distance(reference: list[int], hypothesis: list[int]) -> int:
    row = list(range(len(hypothesis) + 1))
    for i, expected in enumerate(reference):
        previous, row[0] = row[0], i + 1
        for j, found in enumerate(hypothesis):
            previous, row[j + 1] = row[j + 1], min(row[j] + 1, row[j + 1] + 1, previous + (expected != found))
    return row[-1]


def print_word_error_rate(model: Transducer, test: list[Utterance]) -> None:
    errors = sum(edit_distance(labels.tolist(), model.recognize(features)) for features, labels in test)
    words = sum(len(labels) for _, labels in test)
    print(f"test: {100 * errors / words:.2f} % word error rate ({errors} of {words} words)")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("data/digits"))
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--utterances", type=int, help="use this many utterances of each set")
    arguments = parser.parse_args()
    # LSTMs of this size are faster on one thread.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    train = load(arguments.data / "train.jsonl", arguments.utterances)
    test = load(arguments.data / "test.jsonl", arguments.utterances)
    model = Transducer(40 * STACKED_FRAMES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(arguments.epochs):
        random.shuffle(train)
        losses = []
        for first in range(0, len(train), arguments.batch):
            loss = model(train[first : first + arguments.batch])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            losses.append(float(loss.detach()))
        print(f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.3f}", flush=True)
    print_word_error_rate(model, test)


if __name__ == "__main__":
    main()
