"""Fine-tunes a Parakeet-TDT model of transformers on the digits, with the fused loss and Trainer.

    python examples/python/finetune_parakeet.py [--steps 40] [--utterances N] [--model FOLDER]

Without --model, it starts from a small random model, and shows the way, not a good recognizer. It
prints the loss of the test set before and after.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from panda_rnnt.transformers import fuse, unfuse
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from train_digits import WORDS, Utterance, load
from transformers import ParakeetForTDT, ParakeetTDTConfig, Trainer, TrainingArguments

BLANK = len(WORDS)


def small_model() -> ParakeetForTDT:
    encoder = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "num_mel_bins": 40,
        "subsampling_conv_channels": 32,
        "subsampling_factor": 4,
        "layerdrop": 0.0,
    }
    config = ParakeetTDTConfig(
        vocab_size=len(WORDS) + 1,
        encoder_config=encoder,
        decoder_hidden_size=64,
        num_decoder_layers=1,
        durations=[0, 1, 2, 3, 4],
        blank_token_id=BLANK,
        pad_token_id=BLANK,
    )
    return ParakeetForTDT(config)


def collate(utterances: list[Utterance]) -> dict[str, Tensor]:
    """Returns a padded batch; the blank starts the input of the decoder, and pads labels."""
    features, labels = zip(*utterances, strict=True)
    frames = torch.tensor([len(rows) for rows in features])
    padded = pad_sequence(list(labels), batch_first=True, padding_value=BLANK)
    return {
        "input_features": pad_sequence(list(features), batch_first=True),
        "attention_mask": (torch.arange(int(frames.max())) < frames[:, None]).long(),
        "labels": padded,
        "decoder_input_ids": torch.nn.functional.pad(padded, (1, 0), value=BLANK),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("data/digits"))
    parser.add_argument(
        "--model",
        help="folder or name of a ParakeetForTDT with the digits as its vocabulary",
    )
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--utterances", type=int, help="use this many utterances of each set")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    # The encoder stacks frames itself, and labels start at 0.
    train, test = (
        [(rows, labels - 1) for rows, labels in load(arguments.data / name, arguments.utterances, stacked=1)]
        for name in ("train.jsonl", "test.jsonl")
    )
    model: Any = ParakeetForTDT.from_pretrained(arguments.model) if arguments.model else small_model()
    fuse(model)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                max_steps=arguments.steps,
                per_device_train_batch_size=arguments.batch,
                learning_rate=1e-3,
                remove_unused_columns=False,
                label_names=["labels"],
                prediction_loss_only=True,
                save_strategy="no",
                logging_steps=10,
                disable_tqdm=True,
                report_to=[],
                use_cpu=True,
            ),
            data_collator=collate,
            train_dataset=train,
            eval_dataset=test,
        )
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        after = trainer.evaluate()["eval_loss"]
    unfuse(model)
    print(f"test: loss per label {before:.3f} before, {after:.3f} after {arguments.steps} steps")


if __name__ == "__main__":
    main()
