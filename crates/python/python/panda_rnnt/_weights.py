"""Transducers of exported weights, for the searches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from panda_rnnt import _native
from panda_rnnt._options import Activation, LossOptions, _integer
from panda_rnnt._rows import backend_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

TransducerLossName = Literal["rnnt", "modified", "constrained", "hat", "tdt", "multi_blank"]


class WeightModel:
    """A transducer of exported weights, which is decoded in float32 without Python.

    The joint network is ``head(act(encoder_projection(x) + predictor_projection(g)))``.

    ===================================  ==========================  ===================================
    weights                              shape                       notes
    ===================================  ==========================  ===================================
    ``embedding.weight``                 ``[ids, I]``                with a row for ``start``
    ``lstm.weight_ih_l0``                ``[4P, I]``                 the names of ``torch.nn.LSTM``;
    ``lstm.weight_hh_l0``                ``[4P, P]``                 layers l1, l2, .. follow
    ``lstm.bias_ih_l0``, ``bias_hh_l0``  ``[4P]``
    ``conv.weight``                      ``[P, I/groups, context]``  without LSTM: a stateless predictor
    ``conv.bias``                        ``[P]``
    ``encoder_projection.weight``        ``[H, E]``                  absent: E = H
    ``predictor_projection.weight``      ``[H, P]``                  absent: P = H
    ``head.weight``                      ``[C + D, H]``              durations last
    ===================================  ==========================  ===================================

    Projections and head may have a ``bias``; biases are 0 where absent. C: classes; D: durations; E, P, H:
    widths of the rows of encoder, predictor and joint network; I: width of an embedding.

    Args:
        weights: Arrays or tensors by name.
        loss: Name of the loss of the model, which determines the frames that each class advances.
        blank: Class of the blank.
        durations: Frames of each duration (``tdt``) or big blank (``multi_blank``).
        big_blanks: Classes of the big blanks, one for each of the durations.
        activation: Activation of the joint network.
        predictor_activation: That of a stateless predictor.
        start: Label before the first one; the blank if None. A stateless predictor has zeros before.

    Raises:
        ValueError: Missing or unknown names, shapes that do not match, numbers that are not finite.
        TypeError: Arrays of another type.

    Cost: the weights are copied; a table of the first LSTM layer takes ``16 ids P`` bytes, unless
    these are more than 256 MiB.
    """

    def __init__(
        self,
        weights: Mapping[str, Any],
        *,
        loss: TransducerLossName = "rnnt",
        blank: int = 0,
        durations: Sequence[int] = (),
        big_blanks: Sequence[int] = (),
        activation: Activation = "tanh",
        predictor_activation: Activation = "relu",
        start: int | None = None,
    ) -> None:
        options = transducer_options(loss, blank, durations, big_blanks, activation)
        arrays = _weight_arrays(weights)
        arrays["start"] = start_label(start, blank)
        arrays["predictor_activation"] = predictor_activation
        self.loss = loss
        self._model = _native.WeightModel(arrays, options.to_json())

    @property
    def classes(self) -> int:
        """Number of classes, blanks included."""
        return self._model.classes

    def _search(self, encoder: Any, lengths: list[int], fusion: Any, options: str) -> list[list[Any]]:
        rows = backend_of("encoder", encoder).floats("encoder", encoder)
        return _native.decode_weights(self._model, rows, lengths, fusion, options)


def parakeet_model(model: Any) -> WeightModel:
    """Exports decoder and joint network of a Parakeet of transformers, fused or not.

    ``get_audio_features`` of the model computes the encoder output, which is projected already::

        features = model.get_audio_features(**inputs, output_attention_mask=True)
        lengths = features.attention_mask.sum(-1)
        hypotheses = greedy_search(parakeet_model(model), features.pooler_output, lengths)

    With ``max_symbols=model.config.max_symbols_per_step`` for ``ParakeetForRNNT``, and ``max_symbols=None``
    for ``ParakeetForTDT``, the labels are those of ``generate``.

    Args:
        model: A ``ParakeetForRNNT`` or ``ParakeetForTDT``; later changes of its weights have no effect.

    Raises:
        TypeError: Another model.
        ValueError: Adapters that are not merged (``merge_and_unload`` of peft merges them); an
            activation that is not ReLU or tanh.
    """
    config, decoder, joint = (getattr(model, name, None) for name in ("config", "decoder", "joint"))
    parts: list[Any] = [getattr(decoder, name, None) for name in ("embedding", "lstm", "decoder_projector")]
    parts.append(getattr(joint, "head", None))
    if config is None or any(part is None for part in parts):
        found = type(model).__name__
        raise TypeError(f"model: expected ParakeetForRNNT or ParakeetForTDT, found {found}")
    weights: dict[str, Any] = {}
    names = ("embedding", "lstm", "predictor_projection", "head")
    for name, part in zip(names, parts, strict=True):
        if hasattr(part, "get_base_layer"):
            raise ValueError("model: expected merged adapters, found adapters; call merge_and_unload()")
        weights.update({f"{name}.{key}": value for key, value in part.state_dict().items()})
    durations = getattr(config, "durations", ())
    return WeightModel(
        weights,
        loss="tdt" if durations else "rnnt",
        blank=config.blank_token_id,
        durations=durations,
        activation=_parakeet_activation(config.hidden_act),
    )


def _parakeet_activation(name: Any) -> Activation:
    if name not in ("relu", "tanh"):
        raise ValueError(f"model.config.hidden_act: expected 'relu' or 'tanh', found {name!r}")
    activation: Activation = name
    return activation


def transducer_options(
    loss: str,
    blank: int,
    durations: Sequence[int],
    big_blanks: Sequence[int],
    activation: Activation = "tanh",
) -> LossOptions:
    """Returns checked options of the loss that a model was trained with."""
    if loss == "ctc":
        raise ValueError("loss: expected that of a transducer, found 'ctc'")
    name: Any = loss
    return LossOptions(
        loss=name, blank=blank, durations=durations, big_blanks=big_blanks, activation=activation
    )


def start_label(start: int | None, blank: int) -> int:
    return _integer("start", blank if start is None else start)


def _weight_arrays(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arrays that the native model takes, in float32."""
    arrays = {str(name): _weight(str(name), array) for name, array in weights.items()}

    def take(name: str, axes: int) -> NDArray[np.float32] | None:
        array = arrays.pop(name, None)
        if array is not None and array.ndim != axes:
            raise ValueError(f"{name}: expected {axes} axes, found {array.shape}")
        return array

    def take_required(name: str, axes: int) -> NDArray[np.float32]:
        array = take(name, axes)
        if array is None:
            raise ValueError(f"weights: expected {name!r}, found {sorted(weights)}")
        return array

    embedding = take_required("embedding.weight", 2)
    layers: list[tuple[Any, Any, Any]] = []
    while f"lstm.weight_ih_l{len(layers)}" in arrays:
        index = len(layers)
        inputs = take_required(f"lstm.weight_ih_l{index}", 2)
        recurrent = take_required(f"lstm.weight_hh_l{index}", 2)
        bias = np.zeros(len(inputs), np.float32)
        for name in (f"lstm.bias_ih_l{index}", f"lstm.bias_hh_l{index}"):
            part = take(name, 1)
            if part is not None and part.shape != bias.shape:
                raise ValueError(f"{name}: expected shape {bias.shape}, found {part.shape}")
            bias = bias if part is None else bias + part
        layers.append((inputs, recurrent, bias))
    convolution = None
    if not layers:
        kernel = take_required("conv.weight", 3)
        dense = _dense_kernel(kernel, embedding.shape[1])
        kernel_bias = take("conv.bias", 1)
        convolution = (dense, np.zeros(len(kernel), np.float32) if kernel_bias is None else kernel_bias)
        output_width = len(kernel)
    else:
        output_width = layers[-1][1].shape[1]
    encoder_weight = take("encoder_projection.weight", 2)
    encoder_bias = take("encoder_projection.bias", 1)
    if encoder_weight is None and encoder_bias is not None:
        raise ValueError("weights: expected 'encoder_projection.weight' with its bias, found only the bias")
    label_weight = take("predictor_projection.weight", 2)
    if label_weight is None:
        label_weight = np.eye(output_width, dtype=np.float32)
    native = {
        "embedding": embedding,
        "layers": layers,
        "convolution": convolution,
        "encoder_projection": None if encoder_weight is None else (encoder_weight, encoder_bias),
        "predictor_projection": (label_weight, take("predictor_projection.bias", 1)),
        "head": (take_required("head.weight", 2), take("head.bias", 1)),
    }
    if arrays:
        raise ValueError(f"weights: expected the names of WeightModel, found also {sorted(arrays)}")
    return native


def _weight(name: str, array: Any) -> NDArray[np.float32]:
    values = np.asarray(backend_of(name, array).floats(name, array))
    if not np.isfinite(values).all():
        raise ValueError(f"{name}: expected finite numbers, found NaN or infinity")
    return values


def _dense_kernel(kernel: NDArray[np.float32], inputs: int) -> NDArray[np.float32]:
    """Returns the weight ``[P, context, I]`` of a grouped convolution ``[P, I/groups, context]``."""
    outputs, group_inputs, context = kernel.shape
    groups = inputs // max(group_inputs, 1)
    if group_inputs == 0 or groups * group_inputs != inputs or outputs % max(groups, 1):
        expected = f"[P, {inputs}/groups, context] with a divisor of P as groups"
        raise ValueError(f"conv.weight: expected shape {expected}, found {kernel.shape}")
    dense = np.zeros((outputs, context, inputs), np.float32)
    for group in range(groups):
        rows = slice(group * outputs // groups, (group + 1) * outputs // groups)
        columns = slice(group * group_inputs, (group + 1) * group_inputs)
        dense[rows, :, columns] = kernel[rows].transpose(0, 2, 1)
    return dense
