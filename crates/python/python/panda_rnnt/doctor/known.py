"""Documented failures of published losses; they are reported, and do not fail the report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["known_failures"]

_NAN_DURATIONS = "transformers masks arcs that do not exist after their logarithm, which gives NaN gradients"
_NAN_PADDING = "transformers computes padded sites and masks them afterwards"
_TORCHAUDIO_EMPTY = "torchaudio does not check sizes of 0"
_FAILURES = {
    "torchaudio.functional.functional.rnnt_loss": {
        "no frames in the batch": _TORCHAUDIO_EMPTY,
        "utterance without frames": _TORCHAUDIO_EMPTY,
        "no labels in the batch": _TORCHAUDIO_EMPTY,
        "empty batch": _TORCHAUDIO_EMPTY,
    },
    "transformers.loss.loss_tdt.tdt_loss": {
        "durations without 0": _NAN_DURATIONS,
        "NaN in padding": _NAN_PADDING,
    },
}


def known_failures(function: Callable[..., Any]) -> dict[str, str]:
    """Returns the reason of each known failure of a function, by check."""
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    return _FAILURES.get(name, {})
