"""Scorers of label sequences: language models and phrases for the searches."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from panda_rnnt import _native
from panda_rnnt._options import _finite, _integer


class Scorer:
    """A score of label sequences, for the argument ``fusion`` of a search; see its subclasses."""

    def __init__(self, scorer: _native.LabelScorer, classes: int) -> None:
        self._scorer = scorer
        self.classes = classes


class Ngram(Scorer):
    """A back-off n-gram of an ARPA file.

    Args:
        path: The file.
        names: Name of each class, as in the file; empty for blanks. A space is ``<space>`` there.
        words: Whether the n-gram is one of words that the classes spell: characters with a space, or
            pieces with the mark U+2581. A token within a word then has the score of the best word that
            continues it, and the sum over a word is that of the word.
        unknown_character: Score per character of a word that the n-gram does not list.

    A class that the file does not list has the probability of ``<unk>``, or 10^-100 without one.

    Raises:
        ValueError: A file of another form; no name is in it; names that are not unique.
        OSError: A file that cannot be read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        names: Sequence[str],
        *,
        words: bool = False,
        unknown_character: float = -2.0,
    ) -> None:
        penalty = _finite("unknown_character", unknown_character)
        names = _names(names)
        scorer = _native.LabelScorer.ngram(Path(path).read_bytes(), names, penalty if words else None)
        super().__init__(scorer, len(names))


class Phrases(Scorer):
    """Bonuses for phrases that are likely to occur.

    A phrase matches whole words. After k of its m labels, ``score (k/m)^2`` is added (with
    ``depth_scaling`` 1); the label that breaks the match subtracts it again. The sum over a text is, for
    each position, the score of the longest phrase that occurs there.

    Args:
        phrases: Labels of each phrase.
        names: Name of each class, which determines where words begin: characters with a space, pieces
            with the mark U+2581, or words; empty for blanks.
        scores: Score of each phrase, a natural logarithm, or one number for all.
        depth_scaling: Bonus of each later label of a phrase, relative to the first.

    Raises:
        ValueError: A phrase without labels, a class that is no label, a score that is not finite.
        TypeError: Values of another type.
    """

    def __init__(
        self,
        phrases: Sequence[Sequence[int]],
        names: Sequence[str],
        *,
        scores: float | Sequence[float] = 1.0,
        depth_scaling: float = 1.0,
    ) -> None:
        labels = [[_integer("phrases", label) for label in phrase] for phrase in phrases]
        values = [scores] * len(labels) if isinstance(scores, int | float) else list(scores)
        if len(values) != len(labels):
            raise ValueError(f"scores: expected {len(labels)} numbers, one per phrase, found {len(values)}")
        pairs = [(phrase, _finite("scores", score)) for phrase, score in zip(labels, values, strict=True)]
        names, scaling = _names(names), _finite("depth_scaling", depth_scaling)
        super().__init__(_native.LabelScorer.phrases(pairs, names, scaling), len(names))


class ClassScores(Scorer):
    """A constant score of each class, such as a bonus for labels that begin a word.

    Args:
        scores: Score of each class, a natural logarithm.

    Raises:
        ValueError: A score that is not finite.
        TypeError: Values of another type.
    """

    def __init__(self, scores: Sequence[float]) -> None:
        values = [_finite("scores", score) for score in scores]
        super().__init__(_native.LabelScorer.class_scores(values), len(values))


def _names(names: Sequence[str]) -> list[str]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"names: expected a list of text, found {names!r}")
    return list(names)
