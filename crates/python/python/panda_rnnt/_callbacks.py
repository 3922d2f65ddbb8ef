"""Transducers given as functions over whole batches, for the searches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from panda_rnnt import _native
from panda_rnnt._options import _integer
from panda_rnnt._rows import Backend, RowLayout, backend_of, scores_of
from panda_rnnt._weights import TransducerLossName, start_label, transducer_options

if TYPE_CHECKING:
    from numpy.typing import NDArray


# Searches allocate memory for each class before the functions show how many there are.
_MAX_CLASSES = 2**24


@dataclasses.dataclass(frozen=True)
class CallbackModel:
    """A transducer given as functions over whole batches.

    Both functions get tensors of torch, on the device of the encoder output, or arrays of NumPy, as
    the encoder output is. They run in the calling thread; an exception ends the search and is raised.

    Args:
        predict: ``predict(labels, states) -> (outputs, states)``, a step of the predictor for n
            hypotheses. ``labels`` are int64 ``[n]``. Outputs and states are arrays with n rows, or
            tuples or lists of arrays; states may also be None. The first call of a search is
            ``predict([start], None)``: it creates the states. A row must not depend on other rows.
        joint: ``joint(encoder_rows, outputs) -> scores``: scores (logits) ``[n, C + D]`` of n sites,
            the D durations last, from encoder rows ``[n, E]`` and the predictor's outputs.
        classes: Number of classes C, with blanks and without durations.
        loss: Name of the loss of the model, which determines the frames that each class advances.
            With ``hat``, the scores are those before the factored blank.
        blank: Class of the blank.
        durations: Frames of each duration (``tdt``) or big blank (``multi_blank``).
        big_blanks: Classes of the big blanks, one for each of the durations.
        start: Label before the first one; the blank if None.
        state_axis: Axis of the rows in states: 1 for the states of ``torch.nn.LSTM``.

    Raises:
        ValueError: An unknown name, a number out of range.
        TypeError: A value of another type.

    Outputs and states are copied to the CPU between calls, bit by bit; scores become float32.

    Example::

        def predict(labels, states):
            outputs, states = lstm(embedding(labels)[:, None], states)
            return outputs[:, 0], states

        model = CallbackModel(predict, lambda x, g: head(torch.tanh(x + g)), classes=30, state_axis=1)
    """

    predict: Callable[[Any, Any], tuple[Any, Any]]
    joint: Callable[[Any, Any], Any]
    classes: int
    loss: TransducerLossName = "rnnt"
    blank: int = 0
    durations: Sequence[int] = ()
    big_blanks: Sequence[int] = ()
    start: int | None = None
    state_axis: int = 0

    def __post_init__(self) -> None:
        for name in ("predict", "joint"):
            if not callable(getattr(self, name)):
                raise TypeError(f"{name}: expected a function, found {getattr(self, name)!r}")
        for name in ("classes", "state_axis"):
            object.__setattr__(self, name, _integer(name, getattr(self, name)))
        if not 1 <= self.classes <= _MAX_CLASSES:
            raise ValueError(f"classes: expected numbers from 1 to {_MAX_CLASSES}, found {self.classes}")
        options = transducer_options(self.loss, self.blank, self.durations, self.big_blanks)
        for name in ("blank", "durations", "big_blanks"):
            object.__setattr__(self, name, getattr(options, name))
        object.__setattr__(self, "start", start_label(self.start, self.blank))
        for name, blanks in (("blank", (self.blank,)), ("big_blanks", self.big_blanks)):
            for found in blanks:
                if found >= self.classes:
                    raise ValueError(f"{name}: expected a class from 0 to {self.classes - 1}, found {found}")

    def _columns(self) -> int:
        return self.classes + (len(self.durations) if self.loss == "tdt" else 0)

    def _search(self, encoder: Any, lengths: list[int], fusion: Any, options: str) -> list[list[Any]]:
        backend = backend_of("encoder", encoder)
        with backend.no_gradients():
            callbacks = _Callbacks(self, backend, encoder)
            start = callbacks.start()
            loss_options = transducer_options(self.loss, self.blank, self.durations, self.big_blanks)
            return _native.decode_callbacks(
                callbacks, start, self.classes, loss_options.to_json(), lengths, fusion, options
            )


class _Callbacks:
    """Calls the functions of a model for the native search."""

    def __init__(self, model: CallbackModel, backend: Backend, encoder: Any) -> None:
        self._model, self._backend, self._encoder = model, backend, encoder
        labels = backend.integers(np.array([model.start], np.int64), encoder)
        outputs, states = self._predict(labels, None)
        self._outputs = RowLayout("outputs", outputs, 0, backend)
        self._states = RowLayout("states", states, model.state_axis, backend)
        if self._outputs.words == 0:
            raise ValueError("predict: expected outputs with at least one number per row, found none")
        self._start = (self._outputs.pack(outputs, 1)[0], self._states.pack(states, 1)[0])

    def start(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return self._start

    def predict(
        self, labels: _native.Array, states: _native.Array
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        indices = np.asarray(labels)
        outputs, new_states = self._predict(
            self._backend.integers(indices, self._encoder), self._states.unpack(np.asarray(states))
        )
        count = len(indices)
        return self._outputs.pack(outputs, count), self._states.pack(new_states, count)

    def _predict(self, labels: Any, states: Any) -> tuple[Any, Any]:
        result: Any = self._model.predict(labels, states)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TypeError(f"predict: expected outputs and states, found {type(result).__name__}")
        return result[0], result[1]

    def score(self, utterances: _native.Array, frames: _native.Array, outputs: _native.Array) -> Any:
        backend, encoder = self._backend, self._encoder
        rows = encoder[
            backend.integers(np.asarray(utterances), encoder), backend.integers(np.asarray(frames), encoder)
        ]
        scores = self._model.joint(rows, self._outputs.unpack(np.asarray(outputs)))
        return scores_of(backend, "joint", scores, (len(rows), self._model._columns()))
