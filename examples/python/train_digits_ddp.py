"""Trains the transducer of train_digits.py in several processes, with DistributedDataParallel.

    python examples/python/train_digits_ddp.py [--ranks 2] [--epochs 12] [--utterances N]

Each process (rank) computes the loss of its utterances of a batch; gloo averages the gradients. A rank
gets its share of the cores: each process would otherwise compute losses on all of them.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from pathlib import Path

import panda_rnnt
import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from train_digits import STACKED_FRAMES, Transducer, load, print_word_error_rate


def train(rank: int, rendezvous: str, arguments: argparse.Namespace) -> None:
    ranks = arguments.ranks
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    panda_rnnt.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    torch.manual_seed(0)
    # The same order of utterances in all ranks.
    order = random.Random(0)
    utterances = load(arguments.data / "train.jsonl", arguments.utterances)
    model = Transducer(40 * STACKED_FRAMES)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(arguments.epochs):
        order.shuffle(utterances)
        losses = []
        # The mean over ranks is the mean over utterances, since all ranks have equally many.
        for first in range(0, len(utterances) - arguments.batch + 1, arguments.batch):
            loss = parallel(utterances[first + rank : first + arguments.batch : ranks])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            losses.append(loss.detach())
        mean = torch.stack(losses).mean()
        torch.distributed.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {mean / ranks:.3f}", flush=True)
    if rank == 0:
        print_word_error_rate(model, load(arguments.data / "test.jsonl", arguments.utterances))
    torch.distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("data/digits"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8, help="utterances of all ranks together")
    parser.add_argument("--utterances", type=int, help="use this many utterances of each set")
    arguments = parser.parse_args()
    if arguments.batch % arguments.ranks:
        parser.error(f"--batch: expected a multiple of {arguments.ranks} ranks, found {arguments.batch}")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(  # type: ignore[attr-defined, no-untyped-call]
            train, (f"file://{folder}/rendezvous", arguments), nprocs=arguments.ranks
        )


if __name__ == "__main__":
    main()
