"""Arrays of NumPy and torch as rows of bytes, for the native search.

The search moves states of hypotheses as rows of 32-bit words, and does not compute with them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.float32]

_WORD_BYTES = 4


class Backend(Protocol):
    """Operations on the arrays of a library."""

    name: str

    def is_array(self, value: Any) -> bool:
        """Returns whether a value is an array of the library."""

    def integers(self, array: NDArray[np.int64], like: Any) -> Any:
        """Converts integers to an array on the device of another one."""

    def floats(self, argument: str, array: Any) -> Any:
        """Converts an array to contiguous float32 in the memory of the CPU."""

    def to_bytes(self, array: Any, axis: int) -> Bytes:
        """Returns the bytes ``[n, width]`` of an array with n rows along an axis."""

    def from_bytes(self, rows: Bytes, leaf: Leaf, axis: int) -> Any:
        """Converts the bytes of :meth:`to_bytes` back."""

    def device(self, array: Any) -> Any:
        """Returns the device of an array."""

    def no_gradients(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context without autograd."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """An array of a structure, without its axis of rows."""

    shape: tuple[int, ...]
    dtype: Any
    device: Any
    width: int
    """Bytes of a row."""


class RowLayout:
    """Layout of nested tuples and lists of arrays as rows of 32-bit words.

    Args:
        argument: Name in error messages.
        value: Arrays with one row along ``axis``, nested in tuples and lists, or None.
        axis: Axis of the rows.
        backend: Library of the arrays.
    """

    def __init__(self, argument: str, value: Any, axis: int, backend: Backend) -> None:
        self._argument, self._axis, self._backend = argument, axis, backend
        arrays: list[Any] = []
        self._structure = self._flatten(value, arrays)
        self._leaves = [self._leaf(array) for array in arrays]
        self._width = sum(leaf.width for leaf in self._leaves)
        self.words = -(-self._width // _WORD_BYTES)

    def pack(self, value: Any, count: int) -> Words:
        """Returns the words ``[n, words]`` of arrays with n rows."""
        arrays: list[Any] = []
        structure = self._flatten(value, arrays)
        if structure != self._structure:
            raise TypeError(f"{self._argument}: expected {self._structure}, found {structure}")
        rows = np.zeros((count, self.words * _WORD_BYTES), np.uint8)
        offset = 0
        for index, (array, leaf) in enumerate(zip(arrays, self._leaves, strict=True)):
            found = self._leaf(array)
            if found != leaf or array.shape[self._axis] != count:
                expected = f"{count} rows of shape {leaf.shape}, {leaf.dtype} on {leaf.device}"
                raise ValueError(
                    f"{self._argument}[{index}]: expected {expected}, found shape {tuple(array.shape)}, "
                    f"{found.dtype} on {found.device}, with rows along axis {self._axis}"
                )
            rows[:, offset : offset + leaf.width] = self._backend.to_bytes(array, self._axis)
            offset += leaf.width
        return rows.view(np.float32)

    def unpack(self, words: Words) -> Any:
        """Returns the arrays of words ``[n, words]``."""
        rows = np.ascontiguousarray(words).view(np.uint8)
        arrays, offset = [], 0
        for leaf in self._leaves:
            # A copy, also of a single row: it is aligned, and its strides are those of its shape.
            block = np.array(rows[:, offset : offset + leaf.width], order="C")
            arrays.append(self._backend.from_bytes(block, leaf, self._axis))
            offset += leaf.width
        return _unflatten(self._structure, iter(arrays))

    def _flatten(self, value: Any, arrays: list[Any]) -> Any:
        """Appends the arrays of a structure; returns the structure with names in their place."""
        if value is None:
            return None
        if isinstance(value, tuple | list):
            children = [self._flatten(child, arrays) for child in value]
            return tuple(children) if isinstance(value, tuple) else children
        if not self._backend.is_array(value):
            expected = f"arrays of {self._backend.name} in tuples or lists, or None"
            raise TypeError(f"{self._argument}: expected {expected}, found {type(value).__name__}")
        arrays.append(value)
        return "array"

    def _leaf(self, array: Any) -> Leaf:
        shape = tuple(int(size) for size in array.shape)
        if len(shape) <= self._axis:
            raise ValueError(f"{self._argument}: expected rows along axis {self._axis}, found shape {shape}")
        row = shape[: self._axis] + shape[self._axis + 1 :]
        width = int(np.prod(row, dtype=np.int64)) * int(array.dtype.itemsize)
        return Leaf(row, array.dtype, self._backend.device(array), width)


def _unflatten(structure: Any, arrays: Any) -> Any:
    if structure is None:
        return None
    if isinstance(structure, tuple):
        return tuple(_unflatten(child, arrays) for child in structure)
    if isinstance(structure, list):
        return [_unflatten(child, arrays) for child in structure]
    return next(arrays)


def backend_of(argument: str, array: Any) -> Backend:
    """Returns the library of an array."""
    if is_tensor(array):
        return _Torch()
    if isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray):
        return _Numpy()
    raise TypeError(
        f"{argument}: expected an array of NumPy or a tensor of torch, found {type(array).__name__}"
    )


def is_tensor(value: Any) -> bool:
    """Returns whether a value is a tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


class _Numpy:
    name = "NumPy"

    def is_array(self, value: Any) -> bool:
        return isinstance(value, np.ndarray) and not value.dtype.hasobject

    def integers(self, array: NDArray[np.int64], like: Any) -> Any:
        return array

    def floats(self, argument: str, array: Any) -> Any:
        if array.dtype not in (np.float16, np.float32, np.float64):
            raise TypeError(f"{argument}: expected floating-point numbers, found {array.dtype}")
        # Arrays that are not writable cannot be shared by DLPack.
        values = np.require(array, np.float32, ["C", "A", "W"])
        return values.reshape(-1).reshape(values.shape)

    def to_bytes(self, array: Any, axis: int) -> Bytes:
        rows = np.ascontiguousarray(np.moveaxis(array, axis, 0))
        return rows.reshape(len(rows), -1).view(np.uint8)

    def from_bytes(self, rows: Bytes, leaf: Leaf, axis: int) -> Any:
        array = rows.view(leaf.dtype).reshape(len(rows), *leaf.shape)
        return np.ascontiguousarray(np.moveaxis(array, 0, axis))

    def device(self, array: Any) -> Any:
        return "cpu"

    def no_gradients(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()


class _Torch:
    name = "torch"

    def __init__(self) -> None:
        import torch

        self._torch = torch

    def is_array(self, value: Any) -> bool:
        return isinstance(value, self._torch.Tensor)

    def integers(self, array: NDArray[np.int64], like: Any) -> Any:
        return self._torch.from_numpy(array).to(like.device)

    def floats(self, argument: str, array: Any) -> Any:
        if not array.is_floating_point():
            raise TypeError(f"{argument}: expected floating-point numbers, found {array.dtype}")
        values = array.detach().to("cpu", self._torch.float32).contiguous()
        # An axis of size 1 may have any stride, which DLPack does not accept.
        return values.reshape(-1).reshape(values.shape)

    def to_bytes(self, array: Any, axis: int) -> Bytes:
        rows = array.detach().movedim(axis, 0).to("cpu").contiguous()
        words: Bytes = rows.reshape(-1).view(self._torch.uint8).numpy()
        return words.reshape(len(rows), -1)

    def from_bytes(self, rows: Bytes, leaf: Leaf, axis: int) -> Any:
        flat = self._torch.from_numpy(rows.reshape(-1)).view(leaf.dtype)
        tensor = flat.reshape(len(rows), *leaf.shape)
        return tensor.movedim(0, axis).contiguous().to(leaf.device)

    def device(self, array: Any) -> Any:
        return array.device

    def no_gradients(self) -> contextlib.AbstractContextManager[Any]:
        return self._torch.no_grad()


def scores_of(backend: Backend, argument: str, scores: Any, expected: Sequence[int]) -> Any:
    """Returns scores of an expected shape as float32."""
    if not backend.is_array(scores):
        found = type(scores).__name__
        raise TypeError(f"{argument}: expected scores as an array of {backend.name}, found {found}")
    if tuple(scores.shape) != tuple(expected):
        shape = tuple(scores.shape)
        raise ValueError(f"{argument}: expected scores of shape {tuple(expected)}, found {shape}")
    return backend.floats(argument, scores)
