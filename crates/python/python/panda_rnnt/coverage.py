"""The coverage of a recording: words, silence and gaps of every second.

:meth:`panda_rnnt.Recognizer.transcribe` returns it with ``coverage=True``; the fields are those of
``panda transcribe --coverage --format json``.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

__all__ = ["Coverage", "CoverageGap", "CoverageSegment", "CoverageShares", "RecoveredWord"]

CoverageKind = Literal["words", "recovered", "silence", "gap"]
"""Contents of a part of a recording.

- ``words``: words of the ordinary search.
- ``recovered``: words of the second search.
- ``silence``: no evidence of speech, and no word.
- ``gap``: evidence of speech without words.
"""


@dataclasses.dataclass(frozen=True)
class CoverageShares:
    """A number for each kind of segment.

    Args:
        words: Words of the ordinary search.
        recovered: Words of the second search.
        silence: No evidence of speech, and no word.
        gap: Evidence of speech without words.
    """

    words: float
    recovered: float
    silence: float
    gap: float


@dataclasses.dataclass(frozen=True)
class CoverageSegment:
    """A part of a recording of one kind.

    Args:
        start: Start in seconds.
        end: End in seconds.
        kind: The kind.
    """

    start: float
    end: float
    kind: CoverageKind


@dataclasses.dataclass(frozen=True)
class RecoveredWord:
    """A word of the second search.

    Args:
        text: The word.
        start: Seconds from the start of the recording to the word's first token.
        end: Seconds to the end of its last token.
        confidence: Confidence from 0 to 1, from those of its tokens.
        posterior: Product of the posteriors of its tokens; 1 in recognition lattices.
    """

    text: str
    start: float
    end: float
    confidence: float
    posterior: float


@dataclasses.dataclass(frozen=True)
class CoverageGap:
    """Evidence of speech without words.

    Args:
        start: Start in seconds.
        end: End in seconds.
        energy_db: Mean level over the noise floor in dB.
        posterior: Largest posterior of a label within the gap, or None if it is unknown.
        status: ``unrecovered``, or ``short`` if the gap is too short to be searched again.
    """

    start: float
    end: float
    energy_db: float
    posterior: float | None
    status: Literal["unrecovered", "short"]


@dataclasses.dataclass(frozen=True)
class Coverage:
    """The contents of every second of a recording.

    Args:
        duration: Length of the recording in seconds.
        seconds: Seconds of each kind; they sum to the duration.
        fractions: Fractions of the duration; 0 for an empty recording.
        segments: Segments from 0 to the duration; each begins where the previous one ends.
        recovered: Words of the second search, in order of time.
        gaps: Gaps that remain, in order of time.
    """

    duration: float
    seconds: CoverageShares
    fractions: CoverageShares
    segments: tuple[CoverageSegment, ...]
    recovered: tuple[RecoveredWord, ...]
    gaps: tuple[CoverageGap, ...]


def _coverage(fields: dict[str, Any]) -> Coverage:
    """Returns a coverage from the fields of its JSON form."""
    return Coverage(
        fields["duration"],
        CoverageShares(**fields["seconds"]),
        CoverageShares(**fields["fractions"]),
        tuple(CoverageSegment(**segment) for segment in fields["segments"]),
        tuple(RecoveredWord(**word) for word in fields["recovered"]),
        tuple(CoverageGap(**gap) for gap in fields["gaps"]),
    )
