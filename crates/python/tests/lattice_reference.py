"""Recognition lattices by their definitions: next states, arc weights, sums, all paths."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

Table = Sequence[Sequence[int]]


def histories(vocab_size: int, context_size: int) -> list[tuple[int, ...]]:
    """Label strings of at most ``context_size`` labels, shorter ones first."""
    labels = range(1, vocab_size + 1)
    return [
        string for length in range(context_size + 1) for string in itertools.product(labels, repeat=length)
    ]


def n_gram(vocab_size: int, context_size: int) -> Table:
    """Next states of the context of the last labels."""
    states = histories(vocab_size, context_size)
    index = {string: state for state, string in enumerate(states)}
    labels = range(1, vocab_size + 1)
    return [[index[(*s, y)[max(0, len(s) + 1 - context_size) :]] for y in labels] for s in states]


def rnn_embeddings(parameters: Mapping[str, Tensor], strings: Sequence[Sequence[int]]) -> Tensor:
    """Outputs of the LSTM after the start symbol and the labels of each string."""

    def parameter(name: str) -> Tensor:
        return parameters[f"weight_fn_cacher/{name}"]

    rows = []
    for string in strings:
        hidden = cell = torch.zeros_like(parameter("rnn_cell/hi/bias"))
        for symbol in (0, *string):
            x = parameter("Embed_0/embedding")[symbol]
            gates = {
                gate: x @ parameter(f"rnn_cell/i{gate}/kernel")
                + hidden @ parameter(f"rnn_cell/h{gate}/kernel")
                + parameter(f"rnn_cell/h{gate}/bias")
                for gate in "ifgo"
            }
            cell = gates["f"].sigmoid() * cell + gates["i"].sigmoid() * gates["g"].tanh()
            hidden = gates["o"].sigmoid() * cell.tanh()
        rows.append(hidden)
    return torch.stack(rows)


def arc_weights(
    parameters: Mapping[str, Tensor],
    frames: Tensor,
    strings: Sequence[Sequence[int]],
    normalize: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Weights of blanks ``[B, T, C]`` and labels ``[B, T, C, V]``; ``strings`` are those of an LSTM."""
    if "table" in parameters:
        table = parameters["table"]
        rows = frames[..., 0].long()
        chosen = (
            table[rows] if table.dim() == 3 else torch.stack([t[r] for t, r in zip(table, rows, strict=True)])
        )
        blank, labels = chosen[..., 0], chosen[..., 1:]
    else:
        inner = "weight_fn/" if normalize is not None else ""

        def parameter(name: str) -> Tensor:
            return parameters[f"{inner}weight_fn/{name}"]

        embeddings = parameters.get("weight_fn_cacher/context_embeddings")
        if embeddings is None:
            embeddings = rnn_embeddings(parameters, strings)
        states = embeddings @ parameter("project_context_embeddings/kernel") + parameter("joint_bias")
        hidden = torch.tanh(states + (frames @ parameter("project_frame/kernel"))[:, :, None])
        blank = (hidden @ parameter("Dense_0/kernel") + parameter("Dense_0/bias"))[..., 0]
        labels = hidden @ parameter("Dense_1/kernel") + parameter("Dense_1/bias")
    if normalize == "hat":
        labels = labels.log_softmax(-1) + torch.nn.functional.logsigmoid(-blank)[..., None]
        return torch.nn.functional.logsigmoid(blank), labels
    if normalize == "log_softmax":
        scores = torch.cat([blank[..., None], labels], -1).log_softmax(-1)
        return scores[..., 0], scores[..., 1:]
    return blank, labels


def log_sum(
    blank: Tensor,
    labels: Tensor,
    next_states: Table,
    expansions: int | None,
    frames: int,
    string: Sequence[int] | None = None,
) -> Tensor:
    """Log-sum over all paths of an utterance, or over those of a string; -inf without a path.

    ``blank`` is ``[T, C]``, ``labels`` ``[T, C, V]``. A node is a number of labels (0 without a
    string) and a context state; arcs of weight -inf are left out.
    """
    Sums = dict[tuple[int, int], list[Tensor]]

    def reduce(sums: Sums) -> dict[tuple[int, int], Tensor]:
        return {node: torch.stack(terms).logsumexp(0) for node, terms in sums.items()}

    def add(sums: Sums, node: tuple[int, int], value: Tensor) -> None:
        if value > -torch.inf:
            sums.setdefault(node, []).append(value)

    def add_labels(sums: Sums, alpha: dict[tuple[int, int], Tensor], t: int) -> None:
        for (count, state), value in alpha.items():
            if string is None:
                for y, target in enumerate(next_states[state], 1):
                    add(sums, (0, target), value + labels[t, state, y - 1])
            elif count < len(string):
                y = string[count]
                add(sums, (count + 1, next_states[state][y - 1]), value + labels[t, state, y - 1])

    alpha = {(0, 0): torch.zeros((), dtype=blank.dtype)}
    for t in range(frames):
        sums: Sums = {}
        level = alpha
        for _ in range(1 if expansions is None else expansions + 1):
            for (count, state), value in level.items():
                add(sums, (count, state), value + blank[t, state])
            following: Sums = {}
            add_labels(sums if expansions is None else following, level, t)
            level = reduce(following)
        alpha = reduce(sums)
    final = [value for (count, _), value in alpha.items() if string is None or count == len(string)]
    return torch.stack(final).logsumexp(0) if final else torch.tensor(-torch.inf, dtype=blank.dtype)


Path = tuple[float, list[tuple[int, int]]]


def paths(
    blank: Sequence[Sequence[float]],
    labels: Sequence[Sequence[Sequence[float]]],
    next_states: Table,
    expansions: int | None,
    frames: int,
) -> Iterator[Path]:
    """All paths of an utterance: their weights, and labels with their frames."""

    def extend(
        t: int, emitted: int, state: int, weight: float, arcs: list[tuple[int, int]]
    ) -> Iterator[Path]:
        if t == frames:
            yield weight, arcs
            return
        yield from extend(t + 1, 0, state, weight + blank[t][state], arcs)
        if expansions is not None and emitted == expansions:
            return
        for y, target in enumerate(next_states[state], 1):
            after = weight + labels[t][state][y - 1]
            next_frame, count = (t + 1, 0) if expansions is None else (t, emitted + 1)
            yield from extend(next_frame, count, target, after, [*arcs, (y, t)])

    yield from extend(0, 0, 0, 0.0, [])
