from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, final

__all__ = [
    "Array",
    "LabelScorer",
    "Recognizer",
    "Stream",
    "WeightModel",
    "__version__",
    "align",
    "check_options",
    "check_selection",
    "check_symbols",
    "ctc_best_path",
    "decode_callbacks",
    "decode_weights",
    "emission_loss",
    "history_table",
    "lattice_best_paths",
    "lattice_loss",
    "lattice_marginals",
    "lattice_recursion",
    "loss",
    "n_gram_states",
    "n_gram_walk",
    "num_threads",
    "posteriors",
    "selected_backward",
    "selected_forward",
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

@final
class LabelScorer:
    """A scorer of label sequences, for the searches."""

    @staticmethod
    def ngram(arpa: bytes, names: Sequence[str], unknown_character: float | None) -> LabelScorer: ...
    @staticmethod
    def phrases(
        phrases: Sequence[tuple[Sequence[int], float]], names: Sequence[str], depth_scaling: float
    ) -> LabelScorer: ...
    @staticmethod
    def class_scores(scores: Sequence[float]) -> LabelScorer: ...

@final
class Recognizer:
    def __new__(cls, path: str, options: str, sources: Mapping[str, str | bytes | None]) -> Recognizer: ...
    @property
    def warnings(self) -> list[str]: ...
    @property
    def sample_rate(self) -> int: ...
    @property
    def frame_seconds(self) -> float: ...
    @property
    def tokens(self) -> list[str]: ...
    def transcribe(
        self, recordings: list[str | tuple[str, object, int]], coverage: tuple[float, float] | None
    ) -> list[_Transcript]: ...
    def stream(self, sample_rate: int, pause: float, latest: float) -> Stream: ...

@final
class Stream:
    @property
    def is_immediate(self) -> bool: ...
    def push(self, samples: object) -> list[_Update]: ...
    def finish(self) -> list[_Update]: ...
    def close(self) -> None: ...

@final
class WeightModel:
    """Predictor and joint network of exported weights."""

    def __new__(cls, arrays: Mapping[str, Any], options: str) -> WeightModel: ...
    @property
    def classes(self) -> int: ...

_Alternative: TypeAlias = tuple[str, float, float]
_Token: TypeAlias = tuple[str, float, float, float, float]
_Transcript: TypeAlias = tuple[str, list[_Word], list[_Token], list[_Alternative], bool, str | None]
_Update: TypeAlias = tuple[_Transcript, str, bool]
_Word: TypeAlias = tuple[str, float, float, float, bool]

def align(arguments: dict[str, Any], options: str) -> dict[str, Array]: ...
def check_options(options: str) -> None: ...
def check_selection(
    selected_ids: object, selected_mask: object, num_classes: int, reject_duplicates: bool
) -> None: ...
def check_symbols(
    symbols: object, boundary: object, frames: int, classes: int, one_symbol_per_frame: bool
) -> Array: ...
def ctc_best_path(emissions: object, labels: object) -> Array: ...
def decode_callbacks(
    callbacks: object,
    start: tuple[object, object],
    classes: int,
    model_options: str,
    lengths: Sequence[int],
    fusion: Sequence[tuple[LabelScorer, float]],
    options: str,
) -> list[list[dict[str, Any]]]: ...
def decode_weights(
    model: WeightModel,
    encoder: object,
    lengths: Sequence[int],
    fusion: Sequence[tuple[LabelScorer, float]],
    options: str,
) -> list[list[dict[str, Any]]]: ...
def emission_loss(
    emissions: object,
    targets: object,
    logit_lengths: object,
    target_lengths: object,
    classes: int,
    options: str,
) -> tuple[Array, Array]: ...
def history_table(vocab_size: int, histories: Sequence[Sequence[int]]) -> list[list[int]]: ...
def lattice_best_paths(
    frames: object,
    num_frames: object,
    labels: object | None,
    num_labels: object | None,
    parameters: Sequence[object],
    next_states: object | None,
    lattice: str,
) -> tuple[Array, Array, Array, Array]: ...
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
def lattice_marginals(
    frames: object,
    num_frames: object,
    parameters: Sequence[object],
    next_states: object | None,
    lattice: str,
) -> tuple[Array, Array]: ...
def lattice_recursion(
    px: object, py: object, boundary: object, needs_posteriors: bool
) -> tuple[Array, list[Array]]: ...
def loss(
    arguments: dict[str, Any], options: str
) -> tuple[Array, dict[str, Array], dict[str, Array], tuple[int, int, float, float, float, float]]: ...
def n_gram_states(vocab_size: int, context_size: int) -> int: ...
def n_gram_walk(state: int, labels: Sequence[int], vocab_size: int, context_size: int) -> list[int]: ...
def num_threads() -> int: ...
def posteriors(arguments: dict[str, Any], options: str) -> dict[str, Array]: ...
def selected_backward(
    hidden: object,
    weight: object,
    bias: object,
    selected_ids: object,
    selected_mask: object,
    emissions: object | None,
    max: object,
    log_sum: object,
    d_emissions: object,
    d_log_z: object,
    tile_c: int,
) -> tuple[Array, Array, Array]: ...
def selected_forward(
    hidden: object, weight: object, bias: object, selected_ids: object, selected_mask: object, tile_c: int
) -> tuple[Array, Array, Array, Array]: ...
def set_num_threads(threads: int) -> None: ...
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
