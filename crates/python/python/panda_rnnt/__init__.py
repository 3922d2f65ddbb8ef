"""Exact transducer losses (RNN-T, TDT, CTC) in little memory, on the CPU.

``panda_rnnt.torch`` has losses for PyTorch: functions and modules with autograd. ``panda_rnnt.numpy``
has the same losses for NumPy, with gradients as results. The functions of ``panda_rnnt.torch`` are
also attributes of this package; torch is imported when they are first used. ``Recognizer``
transcribes audio with a checkpoint of ``panda train``, without torch.

A transducer loss sums over all paths through a lattice of T frames and U+1 label positions::

    h(t, u) = act(encoded[t] + predicted[u])      z = h weight^T + bias
    loss    = -log sum over paths of the product of softmax(z) along the path

Losses of PyTorch need the scores z of all sites (t, u), `B x T x (U+1) x C` numbers. Here the joint
network, the last layer, and the loss are one operation, which computes z tile by tile in at most
``budget`` bytes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from panda_rnnt._native import __version__, num_threads, set_num_threads
from panda_rnnt._options import LossOptions
from panda_rnnt.recognition import Recognizer

if TYPE_CHECKING:
    from panda_rnnt.torch import RnntLoss, TransducerLoss, rnnt_loss, transducer_loss

__all__ = [
    "LossOptions",
    "Recognizer",
    "RnntLoss",
    "TransducerLoss",
    "__version__",
    "num_threads",
    "rnnt_loss",
    "set_num_threads",
    "transducer_loss",
]

_TORCH_NAMES = frozenset({"RnntLoss", "TransducerLoss", "rnnt_loss", "transducer_loss"})


def __getattr__(name: str) -> Any:
    if name in _TORCH_NAMES:
        return getattr(importlib.import_module("panda_rnnt.torch"), name)
    raise AttributeError(f"module 'panda_rnnt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
