from collections.abc import Sequence
from typing import Any, final

__all__ = [
    "Array",
    "__version__",
    "check_options",
    "hidden_loss",
    "history_table",
    "joint_loss",
    "lattice_best_paths",
    "lattice_loss",
    "lattice_marginals",
    "n_gram_states",
    "n_gram_walk",
    "num_threads",
    "score_loss",
    "set_num_threads",
]

__version__: str

@final
class Array:
    """An array in the memory of the CPU, for `from_dlpack` and `numpy.asarray`."""

    @property
    def shape(self) -> list[int]: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

def check_options(options: str) -> None: ...
def joint_loss(
    encoded: object,
    predicted: object,
    weight: object,
    bias: object | None,
    targets: object,
    logit_lengths: object,
    target_lengths: object,
    weights: object | None,
    options: str,
) -> tuple[Array, list[Array]]: ...
def hidden_loss(
    hidden: object,
    weight: object,
    bias: object | None,
    targets: object,
    logit_lengths: object,
    target_lengths: object,
    weights: object | None,
    options: str,
) -> tuple[Array, list[Array]]: ...
def score_loss(
    scores: object,
    targets: object,
    logit_lengths: object,
    target_lengths: object,
    weights: object | None,
    options: str,
) -> tuple[Array, list[Array]]: ...
def lattice_loss(
    frames: object,
    num_frames: object,
    labels: object | None,
    num_labels: object | None,
    parameters: Sequence[object],
    next_states: object | None,
    weights: object | None,
    lattice: str,
    paths: str,
) -> tuple[Array, list[Array]]: ...
def lattice_best_paths(
    frames: object,
    num_frames: object,
    labels: object | None,
    num_labels: object | None,
    parameters: Sequence[object],
    next_states: object | None,
    lattice: str,
) -> tuple[Array, Array, Array, Array]: ...
def lattice_marginals(
    frames: object,
    num_frames: object,
    parameters: Sequence[object],
    next_states: object | None,
    lattice: str,
) -> tuple[Array, Array]: ...
def n_gram_states(vocab_size: int, context_size: int) -> int: ...
def n_gram_walk(state: int, labels: Sequence[int], vocab_size: int, context_size: int) -> list[int]: ...
def history_table(vocab_size: int, histories: Sequence[Sequence[int]]) -> list[list[int]]: ...
def num_threads() -> int: ...
def set_num_threads(threads: int) -> None: ...
