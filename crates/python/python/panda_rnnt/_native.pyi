from typing import Any, TypeAlias, final

__all__ = [
    "Array",
    "Recognizer",
    "Stream",
    "__version__",
    "check_options",
    "hidden_loss",
    "joint_loss",
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
def num_threads() -> int: ...
def set_num_threads(threads: int) -> None: ...

_Word: TypeAlias = tuple[str, float, float, float]
_Token: TypeAlias = tuple[str, float, float, float, float]
_Alternative: TypeAlias = tuple[str, float, float]
_Transcript: TypeAlias = tuple[str, list[_Word], list[_Token], list[_Alternative], bool]
_Update: TypeAlias = tuple[_Transcript, str, bool]

@final
class Recognizer:
    def __new__(
        cls, path: str, options: str, lm: str | None, minus_lm: str | None, phrases: bytes | None
    ) -> Recognizer: ...
    @property
    def warnings(self) -> list[str]: ...
    @property
    def sample_rate(self) -> int: ...
    @property
    def frame_seconds(self) -> float: ...
    @property
    def tokens(self) -> list[str]: ...
    def transcribe(self, recordings: list[str | tuple[str, object, int]]) -> list[_Transcript]: ...
    def stream(self, sample_rate: int, pause: float, latest: float) -> Stream: ...

@final
class Stream:
    @property
    def is_immediate(self) -> bool: ...
    def push(self, samples: object) -> list[_Update]: ...
    def finish(self) -> list[_Update]: ...
    def close(self) -> None: ...
