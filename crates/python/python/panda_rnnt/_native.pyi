from typing import Any, final

__all__ = [
    "Array",
    "__version__",
    "check_options",
    "check_symbols",
    "hidden_loss",
    "joint_loss",
    "lattice_recursion",
    "num_threads",
    "score_loss",
    "set_num_threads",
    "site_log_probs",
    "site_log_probs_gradient",
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
def check_symbols(
    symbols: object, boundary: object, frames: int, classes: int, one_symbol_per_frame: bool
) -> Array: ...
def lattice_recursion(
    px: object, py: object, boundary: object, needs_posteriors: bool
) -> tuple[Array, list[Array]]: ...
def site_log_probs(
    logits: object,
    symbols: object,
    ranges: object | None,
    boundary: object,
    blank: int,
    has_factored_blank: bool,
) -> tuple[Array, Array]: ...
def site_log_probs_gradient(
    logits: object,
    symbols: object,
    ranges: object | None,
    boundary: object,
    blank: int,
    has_factored_blank: bool,
    d_px: object,
    d_py: object,
) -> Array: ...
def num_threads() -> int: ...
def set_num_threads(threads: int) -> None: ...
