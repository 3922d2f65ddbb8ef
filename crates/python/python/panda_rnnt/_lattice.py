"""Contexts and alignments of recognition lattices; each library's functions take the same ones."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from panda_rnnt import _native
from panda_rnnt._options import _integer

Normalize = Literal["hat", "log_softmax"]
"""Local normalization of the arcs from a state.

- ``hat``: a probability of the blank, then a softmax over labels, arXiv 2003.07705.
- ``log_softmax``: one softmax over blank and labels.
"""
WeightKind = Literal["joint", "joint_rnn", "table", "utterance_table"]

_JOINT = (
    "weight_fn/project_context_embeddings/kernel",
    "weight_fn/project_frame/kernel",
    "weight_fn/joint_bias",
    "weight_fn/Dense_0/kernel",
    "weight_fn/Dense_0/bias",
    "weight_fn/Dense_1/kernel",
    "weight_fn/Dense_1/bias",
)
PARAMETER_NAMES: dict[WeightKind, tuple[str, ...]] = {
    "joint": (*_JOINT, "weight_fn_cacher/context_embeddings"),
    "joint_rnn": (
        *_JOINT,
        "weight_fn_cacher/Embed_0/embedding",
        *(f"weight_fn_cacher/rnn_cell/i{gate}/kernel" for gate in "ifgo"),
        *(f"weight_fn_cacher/rnn_cell/h{gate}/kernel" for gate in "ifgo"),
        *(f"weight_fn_cacher/rnn_cell/h{gate}/bias" for gate in "ifgo"),
    ),
    "table": ("table",),
    "utterance_table": ("table",),
}
"""Names of the parameters of each weight function, those of LAST, in the order of the native module."""


@dataclasses.dataclass(frozen=True)
class FullNGram:
    """The context of the last ``context_size`` labels.

    A state is the string of the last labels, at most ``context_size`` of them. States are ordered by
    length, then lexicographically, oldest label first; state 0 is the empty string. There are
    ``sum(vocab_size**i for i in range(context_size + 1))`` states. Labels are 1 to ``vocab_size``.

    Raises:
        ValueError: No labels, or more than 2^31 states.
        TypeError: Sizes that are not integers.

    Example:
        >>> FullNGram(vocab_size=3, context_size=2).walk_states([2, 3, 1])
        [0, 2, 9, 10]
    """

    vocab_size: int
    context_size: int
    num_states: int = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context_size"):
            object.__setattr__(self, name, _integer(name, getattr(self, name)))
        states = _native.n_gram_states(self.vocab_size, self.context_size)
        object.__setattr__(self, "num_states", states)

    def shape(self) -> tuple[int, int]:
        """Returns the numbers of states and labels."""
        return self.num_states, self.vocab_size

    def start(self) -> int:
        """Returns the start state."""
        return 0

    def next_state(self, state: int, label: int) -> int:
        """Returns the state after a label; label 0 keeps the state."""
        return self._walk(state, [label])[1]

    def walk_states(self, labels: Iterable[int]) -> list[int]:
        """Returns the states before, between and after labels."""
        return self._walk(0, labels)

    def _walk(self, state: int, labels: Iterable[int]) -> list[int]:
        labels = [_integer(f"labels[{i}]", label) for i, label in enumerate(labels)]
        return _native.n_gram_walk(_integer("state", state), labels, self.vocab_size, self.context_size)


@dataclasses.dataclass(frozen=True)
class NextStateTable:
    """A context given by its next states: any complete deterministic automaton.

    ``next_states[state][label - 1]`` is the state after a label, 1 to V; state 0 is the start. It
    may be a pruned n-gram, a trie or a grammar.

    Args:
        next_states: Rows of next states ``[C, V]``: sequences, or an array.

    Raises:
        ValueError: No states or labels; rows of different lengths; an entry that is not a state.
        TypeError: An entry that is not an integer.
    """

    next_states: Sequence[Sequence[int]] = dataclasses.field(repr=False)
    num_states: int = dataclasses.field(init=False)
    vocab_size: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        rows: Any = self.next_states
        rows = rows.tolist() if hasattr(rows, "tolist") else rows
        if not all(isinstance(row, Iterable) for row in rows):
            raise TypeError("next_states: expected rows of next states, found numbers")
        table = tuple(tuple(_integer("next_states", state) for state in row) for row in rows)
        states, labels = len(table), len(table[0]) if table else 0
        if states == 0 or labels == 0:
            raise ValueError(
                f"next_states: expected at least one state and one label, found {states} x {labels}"
            )
        for state, row in enumerate(table):
            if len(row) != labels:
                raise ValueError(f"next_states[{state}]: expected {labels} states, found {len(row)}")
            for label, found in enumerate(row):
                if found >= states:
                    raise ValueError(
                        f"next_states[{state}][{label}]: expected a state below {states}, found {found}"
                    )
        for name, value in (("next_states", table), ("num_states", states), ("vocab_size", labels)):
            object.__setattr__(self, name, value)

    @classmethod
    def from_histories(cls, vocab_size: int, histories: Iterable[Sequence[int]]) -> NextStateTable:
        """Returns the pruned n-gram whose states are some label histories and their prefixes.

        The state after a label sequence is its longest suffix that is a state. A history is given
        oldest label first.

        Raises:
            ValueError: No labels; a label out of range.
        """
        strings = [[_integer("histories", label) for label in history] for history in histories]
        return cls(_native.history_table(_integer("vocab_size", vocab_size), strings))

    def shape(self) -> tuple[int, int]:
        """Returns the numbers of states and labels."""
        return self.num_states, self.vocab_size

    def start(self) -> int:
        """Returns the start state."""
        return 0

    def next_state(self, state: int, label: int) -> int:
        """Returns the state after a label; label 0 keeps the state."""
        if not 0 <= state < self.num_states:
            raise ValueError(f"state: expected a state from 0 to {self.num_states - 1}, found {state}")
        if not 0 <= label <= self.vocab_size:
            raise ValueError(f"label: expected a label from 0 to {self.vocab_size}, found {label}")
        return self.next_states[state][label - 1] if label > 0 else state

    def walk_states(self, labels: Iterable[int]) -> list[int]:
        """Returns the states before, between and after labels."""
        states = [0]
        for label in labels:
            states.append(self.next_state(states[-1], label))
        return states


@dataclasses.dataclass(frozen=True)
class FrameDependent:
    """Alignments in which each frame emits a blank or exactly one label."""

    @property
    def max_expansions(self) -> None:
        """None: a label ends the frame."""
        return None


@dataclasses.dataclass(frozen=True)
class FrameLabelDependent:
    """Alignments in which each frame emits at most ``max_expansions`` labels, then a blank."""

    max_expansions: int

    def __post_init__(self) -> None:
        expansions = _integer("max_expansions", self.max_expansions)
        if expansions > 1 << 16:
            raise ValueError(f"max_expansions: expected at most {1 << 16} labels, found {expansions}")
        object.__setattr__(self, "max_expansions", expansions)


Context = FullNGram | NextStateTable
Alignment = FrameDependent | FrameLabelDependent


def lattice_text(
    context: Context,
    alignment: Alignment,
    weights: WeightKind,
    normalize: Normalize | None,
    budget: int | None,
) -> str:
    """Returns the components of a lattice as text, the form that the native module reads.

    Raises:
        TypeError: A context or an alignment of another type; a budget that is not an integer.
        ValueError: An unknown normalization; a negative budget.
    """
    if not isinstance(context, Context):
        raise TypeError(f"context: expected FullNGram or NextStateTable, found {context!r}")
    if not isinstance(alignment, Alignment):
        raise TypeError(f"alignment: expected FrameDependent or FrameLabelDependent, found {alignment!r}")
    if normalize not in (None, "hat", "log_softmax"):
        raise ValueError(f"normalize: expected 'hat', 'log_softmax' or None, found {normalize!r}")
    fields = {
        "vocab_size": context.vocab_size,
        "context_size": context.context_size if isinstance(context, FullNGram) else None,
        "max_expansions": alignment.max_expansions,
        "weights": weights,
        "normalize": normalize,
        "budget": None if budget is None else _integer("budget", budget),
    }
    return json.dumps(fields)


def labels_per_frame(lattice: str) -> int:
    """Returns the largest number of labels of a frame, from the text of a lattice."""
    expansions = json.loads(lattice)["max_expansions"]
    return 1 if expansions is None else int(expansions)
