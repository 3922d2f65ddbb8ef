from typing import Any, final

__all__ = [
    "Array",
    "__version__",
    "align",
    "check_options",
    "loss",
    "num_threads",
    "posteriors",
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

def align(arguments: dict[str, Any], options: str) -> dict[str, Array]: ...
def posteriors(arguments: dict[str, Any], options: str) -> dict[str, Array]: ...
def check_options(options: str) -> None: ...
def loss(
    arguments: dict[str, Any], options: str
) -> tuple[Array, dict[str, Array], dict[str, Array], tuple[int, int, float, float, float, float]]: ...
def num_threads() -> int: ...
def set_num_threads(threads: int) -> None: ...
