"""Recognition lattices for PyTorch, on the CPU: globally normalized transducers (GNAT, LAST).

A recognition lattice has all label sequences of T frames. Paths visit states (frame, alignment
state, context state); the arcs of frame t leave context state p with a blank, of weight ``b_t[p]``,
or with label y, of weight ``l_t[p, y]``::

    D = log-sum of the weights of all paths
    S = log-sum of the weights of the paths of the labels
    loss = D - S        with globally normalized weights
    loss = -S           with locally normalized weights

(Variani et al., arXiv 2205.13674; Wu et al., arXiv 2304.13134.) A :class:`RecognitionLattice` has a
context (which labels a state remembers), an alignment (how many labels a frame may emit), and a
weight function. Names, parameters and initial values are those of LAST. Arc weights exist for a few
frames at a time; nothing of size frames x states x labels is stored unless :meth:`marginals
<RecognitionLattice.marginals>` returns it.

Example:
    >>> context = FullNGram(vocab_size=32, context_size=1)
    >>> lattice = RecognitionLattice(
    ...     context,
    ...     FrameDependent(),
    ...     JointWeightFn(context.vocab_size, frame_size=64, embedding_size=16, hidden_size=64),
    ...     SharedEmbCacher(context.num_states, embedding_size=16),
    ... )
    >>> frames, num_frames = torch.randn(2, 20, 64), torch.tensor([20, 15])
    >>> labels, num_labels = torch.randint(1, 33, (2, 5)), torch.tensor([5, 3])
    >>> lattice(frames, num_frames, labels, num_labels).backward()
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.dlpack import from_dlpack

from panda_rnnt import _native
from panda_rnnt._lattice import (
    PARAMETER_NAMES,
    Alignment,
    Context,
    FrameDependent,
    FrameLabelDependent,
    FullNGram,
    NextStateTable,
    Normalize,
    WeightKind,
    labels_per_frame,
    lattice_text,
)
from panda_rnnt._options import Reduction, _integer
from panda_rnnt.torch import (
    _array,
    _check_reduction,
    _check_same_device,
    _common_device,
    _finite_weights,
    _reduce,
    _result_type,
    _utterance_weights,
    _weighted_sum,
    _without_second_derivative,
)

__all__ = [
    "Alignment",
    "BestPath",
    "Context",
    "FrameDependent",
    "FrameLabelDependent",
    "FullNGram",
    "JointWeightFn",
    "LocallyNormalizedWeightFn",
    "Marginals",
    "NextStateTable",
    "RecognitionLattice",
    "SharedEmbCacher",
    "SharedRNNCacher",
    "TableWeightFn",
]


class BestPath(NamedTuple):
    """The best path of each utterance.

    L is T times the largest number of labels of a frame.
    """

    labels: Tensor
    """Labels of the path ``[B.., L]``, padded with 0."""
    frames: Tensor
    """Frame of each label ``[B.., L]``, padded with -1."""
    num_labels: Tensor
    """Number of labels ``[B..]``."""
    score: Tensor
    """Weight of the path ``[B..]``; -inf without a path, which then has no labels."""


class Marginals(NamedTuple):
    """Posteriors of the arcs, summed over alignment states; 0 in padding."""

    blank: Tensor
    """Posteriors of the blanks ``[B.., T, C]``."""
    labels: Tensor
    """Posteriors of the labels ``[B.., T, C, V]``; label y is at index y - 1."""


# Weight functions.


class _Projection(nn.Module):
    """Parameters of a linear layer without a bias, ``x kernel``."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(_lecun_normal(inputs, outputs))


class _Dense(_Projection):
    """Parameters of a linear layer, ``x kernel + bias``."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.bias = nn.Parameter(torch.zeros(outputs))


class JointWeightFn(nn.Module):
    """Weights from a joint network of frame and context.

    The context embeddings e are those of a cacher::

        h[t, p] = tanh(joint_bias + e[p] Wc + x[t] Wf)
        b_t[p] = h w0 + c0        l_t[p, y] = (h W1 + c1)[y - 1]

    Args:
        vocab_size: Number of labels V.
        frame_size: Number of features of a frame.
        embedding_size: Width of a context embedding.
        hidden_size: Width of the joint network.

    Cost: 2 C H (V + 1) floating-point operations and C H tanh for each frame.
    """

    def __init__(self, vocab_size: int, *, frame_size: int, embedding_size: int, hidden_size: int) -> None:
        super().__init__()
        self.vocab_size = _positive("vocab_size", vocab_size)
        self.frame_size = _positive("frame_size", frame_size)
        self.embedding_size = _positive("embedding_size", embedding_size)
        self.hidden_size = _positive("hidden_size", hidden_size)
        self.project_context_embeddings = _Projection(embedding_size, hidden_size)
        self.project_frame = _Projection(frame_size, hidden_size)
        self.joint_bias = nn.Parameter(torch.zeros(hidden_size))
        self.Dense_0 = _Dense(hidden_size, 1)
        self.Dense_1 = _Dense(hidden_size, vocab_size)

    def parameter_list(self) -> list[Tensor]:
        """Returns the parameters in the order of the native module."""
        blank, labels = self.Dense_0, self.Dense_1
        return [
            self.project_context_embeddings.kernel,
            self.project_frame.kernel,
            self.joint_bias,
            blank.kernel,
            blank.bias,
            labels.kernel,
            labels.bias,
        ]

    def extra_repr(self) -> str:
        return (
            f"vocab_size={self.vocab_size}, frame_size={self.frame_size}, "
            f"embedding_size={self.embedding_size}, hidden_size={self.hidden_size}"
        )


class TableWeightFn(nn.Module):
    """Weights from a table, for weights that are computed elsewhere.

    The first feature of a frame, truncated to an integer, selects the row: ``table[.., x, :, :]``,
    with the weight of the blank in column 0 and that of label y in column y. A frame at time t is
    usually the number t. -inf blocks an arc. Assign a new tensor to ``table`` to change the weights;
    gradients flow to it.

    Args:
        table: Weights ``[X, C, 1 + V]``, or ``[B.., X, C, 1 + V]`` with rows for each utterance.

    Raises:
        ValueError: Fewer than three axes or two columns.
        TypeError: A table that is not a floating-point tensor.
    """

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        if not isinstance(table, Tensor) or not table.is_floating_point():
            found = table.dtype if isinstance(table, Tensor) else type(table).__name__
            raise TypeError(f"table: expected a floating-point tensor, found {found}")
        if table.dim() < 3 or table.shape[-1] < 2:
            raise ValueError(f"table: expected shape [.., X, C, 1 + V], found {tuple(table.shape)}")
        if isinstance(table, nn.Parameter):
            self.table = table
        else:
            self.register_buffer("table", table)

    @property
    def vocab_size(self) -> int:
        """Number of labels."""
        return self.table.shape[-1] - 1

    @property
    def num_states(self) -> int:
        """Number of context states."""
        return self.table.shape[-2]

    def parameter_list(self) -> list[Tensor]:
        """Returns the table, with one axis of utterances if it has any."""
        batch = self.table.shape[:-3]
        return [self.table.reshape(batch.numel(), *self.table.shape[-3:]) if batch else self.table]


class LocallyNormalizedWeightFn(nn.Module):
    """Another weight function, normalized at each state: ``exp b + sum of exp l = 1``.

    The loss is then -S, without the sum over all paths.

    Args:
        weight_fn: A :class:`JointWeightFn` or :class:`TableWeightFn`.
        normalize: ``hat`` (a probability of the blank, then a softmax over labels) or
            ``log_softmax`` (one softmax).
    """

    def __init__(self, weight_fn: JointWeightFn | TableWeightFn, normalize: Normalize = "hat") -> None:
        super().__init__()
        if not isinstance(weight_fn, JointWeightFn | TableWeightFn):
            found = type(weight_fn).__name__
            raise TypeError(f"weight_fn: expected JointWeightFn or TableWeightFn, found {found}")
        if normalize not in ("hat", "log_softmax"):
            raise ValueError(f"normalize: expected 'hat' or 'log_softmax', found {normalize!r}")
        self.weight_fn = weight_fn
        self.normalize: Normalize = normalize

    def extra_repr(self) -> str:
        return f"normalize={self.normalize!r}"


class SharedEmbCacher(nn.Module):
    """Context embeddings from a table.

    Args:
        num_context_states: Number of context states C.
        embedding_size: Width of an embedding.
    """

    def __init__(self, num_context_states: int, embedding_size: int) -> None:
        super().__init__()
        self.num_context_states = _positive("num_context_states", num_context_states)
        self.embedding_size = _positive("embedding_size", embedding_size)
        std = embedding_size**-0.5
        self.context_embeddings = nn.Parameter(torch.randn(num_context_states, embedding_size) * std)

    def parameter_list(self) -> list[Tensor]:
        """Returns the parameters in the order of the native module."""
        return [self.context_embeddings]

    def extra_repr(self) -> str:
        return f"num_context_states={self.num_context_states}, embedding_size={self.embedding_size}"


class SharedRNNCacher(nn.Module):
    """Context embeddings from an LSTM over the labels of a :class:`FullNGram` state.

    The embedding of a state is the output of the LSTM after a start symbol and the labels, from a
    zero state. An embedding has the width of the LSTM.

    Args:
        vocab_size: Number of labels V.
        context_size: Number of labels that a state remembers.
        rnn_size: Width of the LSTM.
        rnn_embedding_size: Width of the label embeddings; ``rnn_size`` if None.
    """

    def __init__(
        self, vocab_size: int, context_size: int, rnn_size: int, rnn_embedding_size: int | None = None
    ) -> None:
        super().__init__()
        self.vocab_size = _positive("vocab_size", vocab_size)
        self.context_size = _integer("context_size", context_size)
        self.rnn_size = _positive("rnn_size", rnn_size)
        width = rnn_size if rnn_embedding_size is None else rnn_embedding_size
        self.rnn_embedding_size = _positive("rnn_embedding_size", width)
        self.Embed_0 = nn.Module()
        self.Embed_0.embedding = nn.Parameter(torch.randn(vocab_size + 1, width) * width**-0.5)
        self.rnn_cell = nn.ModuleDict()
        for gate in "ifgo":
            self.rnn_cell[f"i{gate}"] = _Projection(width, rnn_size)
            recurrent = _Dense(rnn_size, rnn_size)
            nn.init.orthogonal_(recurrent.kernel)
            self.rnn_cell[f"h{gate}"] = recurrent

    @property
    def embedding_size(self) -> int:
        """Width of an embedding."""
        return self.rnn_size

    def parameter_list(self) -> list[Tensor]:
        """Returns the parameters in the order of the native module."""
        cell: Any = self.rnn_cell
        kernels = [cell[f"{source}{gate}"].kernel for source in "ih" for gate in "ifgo"]
        return [self.Embed_0.embedding, *kernels, *(cell[f"h{gate}"].bias for gate in "ifgo")]

    def extra_repr(self) -> str:
        return f"vocab_size={self.vocab_size}, context_size={self.context_size}, rnn_size={self.rnn_size}"


WeightFn = JointWeightFn | TableWeightFn | LocallyNormalizedWeightFn
WeightFnCacher = SharedEmbCacher | SharedRNNCacher


class RecognitionLattice(nn.Module):
    """A recognition lattice: context, alignment and weight function.

    Tensors may have any number of leading axes, also none: ``[B..]`` below. All of ``frames``,
    ``num_frames``, ``labels`` and ``num_labels`` must have the same ones. Padding is not read.

    Names of parameters are those of LAST with dots in place of slashes, such as
    ``weight_fn.project_frame.kernel``.

    Args:
        context: :class:`FullNGram` or :class:`NextStateTable`.
        alignment: :class:`FrameDependent` or :class:`FrameLabelDependent`.
        weight_fn: :class:`JointWeightFn`, :class:`TableWeightFn`, or a
            :class:`LocallyNormalizedWeightFn` of one.
        weight_fn_cacher: Context embeddings of a :class:`JointWeightFn`: :class:`SharedEmbCacher` or
            :class:`SharedRNNCacher`. None for a table.
        budget: Limit on the bytes of a call besides arguments and results; 256 MiB if None.
        device: ``"cpu"`` copies tensors of other devices to the CPU, and the gradients back.

    Raises:
        ValueError: Components whose sizes do not match.
        TypeError: Components of another type.
    """

    def __init__(
        self,
        context: Context,
        alignment: Alignment,
        weight_fn: WeightFn,
        weight_fn_cacher: WeightFnCacher | None = None,
        *,
        budget: int | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__()
        self.context = context
        self.alignment = alignment
        self.weight_fn = weight_fn
        self.weight_fn_cacher = weight_fn_cacher
        self.budget = budget
        self.device = device
        if not isinstance(weight_fn, WeightFn):
            expected = "JointWeightFn, TableWeightFn or LocallyNormalizedWeightFn"
            raise TypeError(f"weight_fn: expected {expected}, found {type(weight_fn).__name__}")
        normalize = weight_fn.normalize if isinstance(weight_fn, LocallyNormalizedWeightFn) else None
        kind = self._weight_kind()
        self._text = lattice_text(context, alignment, kind, normalize, budget)
        self._parameter_names = PARAMETER_NAMES[kind]
        self._check_sizes()
        table = torch.tensor(context.next_states) if isinstance(context, NextStateTable) else None
        self.register_buffer("_next_states", table, persistent=False)

    def forward(
        self,
        frames: Tensor,
        num_frames: Tensor,
        labels: Tensor,
        num_labels: Tensor,
        *,
        reduction: Reduction = "mean",
        zero_infinity: bool = False,
    ) -> Tensor:
        """Computes the loss; see :meth:`loss`."""
        return self.loss(
            frames, num_frames, labels, num_labels, reduction=reduction, zero_infinity=zero_infinity
        )

    def loss(
        self,
        frames: Tensor,
        num_frames: Tensor,
        labels: Tensor,
        num_labels: Tensor,
        *,
        reduction: Reduction = "mean",
        zero_infinity: bool = False,
    ) -> Tensor:
        """Computes the loss, with gradients for frames and parameters.

        Args:
            frames: Frames ``[B.., T, F]``, such as encoder output.
            num_frames: Number of frames of each utterance ``[B..]``, int32 or int64, 0 to T.
            labels: Labels ``[B.., U]``, 1 to V, padded with any number.
            num_labels: Number of labels of each utterance ``[B..]``, 0 to U.
            reduction: ``none``, ``sum``, ``mean`` (over utterances), ``mean_per_target`` (losses per
                label, then over utterances), or ``mean_volume`` (over all labels).
            zero_infinity: Replaces the loss of utterances without a path, +inf, by 0. Their gradient
                is 0 in any case.

        Returns:
            A scalar, or losses ``[B..]``; float64 if an argument is, float32 otherwise.

        Raises:
            ValueError: Shapes, lengths or labels that do not match; frames or parameters that are
                NaN or infinite; a budget below the smallest plan; devices.
            TypeError: Tensors of another type.

        Cost: arc weights of all frames twice or three times (forward and backward), and once more
        with ``reduction="none"``; a locally normalized lattice computes only those along the labels.
        Memory: a number for each frame and context state, and the arc weights of a few frames.
        """
        _check_reduction(reduction)
        arguments, shape = self._arguments(frames, num_frames, labels, num_labels)
        floats, counts = [arguments[0], *arguments[4]], num_labels.reshape(shape.numel())
        if reduction != "none" and torch.is_grad_enabled() and any(t.requires_grad for t in floats):
            weights = _utterance_weights(counts, shape.numel(), reduction)
            call = (*arguments, weights, self._text, zero_infinity)
            value: Tensor = torch.ops.panda_rnnt.lattice_loss_sum(*call)[0]
            return value
        losses = torch.ops.panda_rnnt.lattice_sums(*arguments, self._text, "ratio")
        result = _reduce(losses, counts, reduction, zero_infinity)
        return result.reshape(shape) if reduction == "none" else result

    def log_sum(
        self,
        frames: Tensor,
        num_frames: Tensor,
        labels: Tensor | None = None,
        num_labels: Tensor | None = None,
    ) -> Tensor:
        """Computes the log-sum over all paths, or over those of the labels, with gradients.

        ``log_sum(frames, num_frames, labels, num_labels) - log_sum(frames, num_frames)`` is the
        log-posterior of the labels.

        Args:
            frames: Frames ``[B.., T, F]``.
            num_frames: Number of frames of each utterance ``[B..]``.
            labels: Labels ``[B.., U]``, or None for all paths.
            num_labels: Number of labels of each utterance ``[B..]``, or None.

        Returns:
            Log-sums ``[B..]``; -inf, with a gradient of 0, without a path.

        Errors are those of :meth:`loss`.
        """
        arguments, shape = self._arguments(frames, num_frames, labels, num_labels)
        paths = "all" if labels is None else "labels"
        sums: Tensor = torch.ops.panda_rnnt.lattice_sums(*arguments, self._text, paths)
        return sums.reshape(shape)

    def best_path(
        self,
        frames: Tensor,
        num_frames: Tensor,
        labels: Tensor | None = None,
        num_labels: Tensor | None = None,
    ) -> BestPath:
        """Finds the best path of each utterance, or the best alignment of its labels.

        Equal paths are resolved in favor of the blank, then of the lowest state. The result has no
        gradient.

        Args:
            frames: Frames ``[B.., T, F]``.
            num_frames: Number of frames of each utterance ``[B..]``.
            labels: Labels ``[B.., U]`` to align, or None for the best of all paths.
            num_labels: Number of labels of each utterance ``[B..]``, or None.

        Errors are those of :meth:`loss`.

        Cost: arc weights of all frames once (with labels: those along the labels); 4 bytes for each
        frame, state and label of a frame.
        """
        arguments, shape = self._arguments(frames, num_frames, labels, num_labels, detach=True)
        best = torch.ops.panda_rnnt.lattice_best_path(*arguments, self._text)
        return BestPath(*(tensor.reshape(shape + tensor.shape[1:]) for tensor in best))

    def marginals(self, frames: Tensor, num_frames: Tensor) -> Marginals:
        """Computes the posteriors of all arcs, given the frames.

        They are 0 in padding, and for an utterance without a path. The result has no gradient.

        Args:
            frames: Frames ``[B.., T, F]``.
            num_frames: Number of frames of each utterance ``[B..]``.

        Errors are those of :meth:`loss`.

        Cost: as the gradient of a loss; the result has ``T C (1 + V)`` numbers for each utterance.
        """
        arguments, shape = self._arguments(frames, num_frames, None, None, detach=True)
        frames, num_frames, _, _, parameters, next_states = arguments
        call = (frames, num_frames, parameters, next_states, self._text)
        marginals = torch.ops.panda_rnnt.lattice_marginals(*call, *self.context.shape())
        return Marginals(*(tensor.reshape(shape + tensor.shape[1:]) for tensor in marginals))

    def extra_repr(self) -> str:
        return f"context={self.context}, alignment={self.alignment}"

    def _inner(self) -> JointWeightFn | TableWeightFn:
        """Returns the weight function without normalization."""
        weight_fn = self.weight_fn
        return weight_fn.weight_fn if isinstance(weight_fn, LocallyNormalizedWeightFn) else weight_fn

    def _weight_kind(self) -> WeightKind:
        weight_fn, cacher = self._inner(), self.weight_fn_cacher
        if isinstance(weight_fn, TableWeightFn):
            if cacher is not None:
                raise TypeError(f"weight_fn_cacher: expected None for a table, found {type(cacher).__name__}")
            return "table" if weight_fn.table.dim() == 3 else "utterance_table"
        if not isinstance(cacher, WeightFnCacher):
            found = type(cacher).__name__
            raise TypeError(f"weight_fn_cacher: expected SharedEmbCacher or SharedRNNCacher, found {found}")
        return "joint" if isinstance(cacher, SharedEmbCacher) else "joint_rnn"

    def _check_sizes(self) -> None:
        """Raises ValueError unless the components have the same sizes."""
        context, weight_fn, cacher = self.context, self._inner(), self.weight_fn_cacher
        sizes = [("weight_fn: expected vocab_size", context.vocab_size, weight_fn.vocab_size)]
        if isinstance(weight_fn, TableWeightFn):
            sizes.append(("table: expected context states", context.num_states, weight_fn.num_states))
        else:
            assert cacher is not None
            name = "weight_fn_cacher: expected embedding_size"
            sizes.append((name, weight_fn.embedding_size, cacher.embedding_size))
        if isinstance(cacher, SharedEmbCacher):
            name = "weight_fn_cacher: expected num_context_states"
            sizes.append((name, context.num_states, cacher.num_context_states))
        if isinstance(cacher, SharedRNNCacher):
            if not isinstance(context, FullNGram):
                raise TypeError(f"context: expected FullNGram for SharedRNNCacher, found {context}")
            sizes.append(("weight_fn_cacher: expected vocab_size", context.vocab_size, cacher.vocab_size))
            name = "weight_fn_cacher: expected context_size"
            sizes.append((name, context.context_size, cacher.context_size))
        for name, expected, found in sizes:
            if expected != found:
                raise ValueError(f"{name} {expected}, found {found}")

    def _arguments(
        self,
        frames: Tensor,
        num_frames: Tensor,
        labels: Tensor | None,
        num_labels: Tensor | None,
        detach: bool = False,
    ) -> tuple[_Arguments, torch.Size]:
        """Returns the tensors of an operation, with one leading axis, and the leading axes."""
        if (labels is None) != (num_labels is None):
            missing, present = ("labels", "num_labels") if labels is None else ("num_labels", "labels")
            raise ValueError(f"{missing}: expected a tensor with {present}, found None")
        if frames.dim() < 2:
            raise ValueError(f"frames: expected at least 2 axes, found {tuple(frames.shape)}")
        batch = frames.shape[:-2]
        _check_leading_axes("num_frames", num_frames.shape, batch)
        indices = {"num_frames": num_frames}
        if labels is not None and num_labels is not None:
            if labels.dim() < 1:
                raise ValueError("labels: expected at least 1 axis, found none")
            _check_leading_axes("labels", labels.shape[:-1], batch)
            _check_leading_axes("num_labels", num_labels.shape, batch)
            # torch.compile of torch 2.4 does not trace `|=`.
            indices = {**indices, "labels": labels, "num_labels": num_labels}
        inner, cacher = self._inner(), self.weight_fn_cacher
        parameters = inner.parameter_list() + (cacher.parameter_list() if cacher is not None else [])
        floats = {"frames": frames, **dict(zip(self._parameter_names, parameters, strict=True))}
        dtype = _result_type(floats)
        device = _common_device({**floats, **indices}, self.device)
        frames, *parameters = (tensor.to(device, dtype) for tensor in floats.values())
        if detach:
            frames, *parameters = (tensor.detach() for tensor in (frames, *parameters))
        size = batch.numel()
        indices = {name: tensor.to(device) for name, tensor in indices.items()}
        next_states = self._next_states
        arguments = (
            frames.reshape(size, *frames.shape[-2:]).contiguous(),
            indices["num_frames"].reshape(size).contiguous(),
            None if labels is None else indices["labels"].reshape(size, labels.shape[-1]).contiguous(),
            None if labels is None else indices["num_labels"].reshape(size).contiguous(),
            [parameter.contiguous() for parameter in parameters],
            next_states.to(device) if isinstance(next_states, Tensor) else None,
        )
        return arguments, batch


_Arguments = tuple[Tensor, Tensor, Tensor | None, Tensor | None, list[Tensor], Tensor | None]


def _check_leading_axes(name: str, found: torch.Size, expected: torch.Size) -> None:
    if found != expected:
        raise ValueError(f"{name}: expected leading axes {tuple(expected)}, as frames, found {tuple(found)}")


def _positive(name: str, value: int) -> int:
    number = _integer(name, value)
    if number == 0:
        raise ValueError(f"{name}: expected at least 1, found 0")
    return number


def _lecun_normal(inputs: int, outputs: int) -> Tensor:
    """Returns normal numbers of variance 1 / inputs, truncated at two standard deviations."""
    # Truncation reduces the standard deviation by this factor.
    std = inputs**-0.5 / 0.87962566103423978
    kernel = torch.empty(inputs, outputs)
    return nn.init.trunc_normal_(kernel, std=std, a=-2 * std, b=2 * std)


# Operations. `lattice_loss_sum` returns its gradients as results, and its backward pass scales them;
# `lattice_sums` calls the native module again in its backward pass, where the weights are known.

_LATTICE = (
    "Tensor frames, Tensor num_frames, Tensor? labels, Tensor? num_labels, Tensor[] parameters, "
    "Tensor? next_states"
)


@torch.library.custom_op(
    "panda_rnnt::lattice_loss_sum",
    mutates_args=(),
    schema=f"({_LATTICE}, Tensor weights, str lattice, bool zero_infinity) -> "
    "(Tensor, Tensor, Tensor, Tensor[])",
)
def _lattice_loss_sum(
    frames: Tensor,
    num_frames: Tensor,
    labels: Tensor | None,
    num_labels: Tensor | None,
    parameters: list[Tensor],
    next_states: Tensor | None,
    weights: Tensor,
    lattice: str,
    zero_infinity: bool,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Returns the weighted sum, the losses, and the gradients of frames and parameters."""
    batch = (frames, num_frames, labels, num_labels, parameters, next_states)
    losses, d_frames, d_parameters = _sums_and_gradients(batch, weights, lattice, "ratio")
    value = _weighted_sum(losses, weights, zero_infinity)
    return value.to(frames.dtype), losses.to(frames.dtype), d_frames, d_parameters


@_lattice_loss_sum.register_fake
def _(
    frames: Tensor,
    num_frames: Tensor,
    labels: Tensor | None,
    num_labels: Tensor | None,
    parameters: list[Tensor],
    next_states: Tensor | None,
    weights: Tensor,
    lattice: str,
    zero_infinity: bool,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    _check_same_device(frames, num_frames, labels, num_labels, *parameters, next_states, weights)
    losses = frames.new_empty(frames.shape[0])
    return frames.new_empty(()), losses, *_fake_gradients(frames, parameters)


def _save_gradients(
    ctx: torch.autograd.function.FunctionCtx,
    inputs: tuple[Any, ...],
    output: tuple[Tensor, Tensor, Tensor, list[Tensor]],
) -> None:
    _, losses, d_frames, d_parameters = output
    ctx.mark_non_differentiable(losses, d_frames, *d_parameters)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(d_frames, *d_parameters, inputs[0], *inputs[4])


def _scale_gradients(
    ctx: torch.autograd.function.FunctionCtx, d_value: Tensor | None, *_: object
) -> tuple[Any, ...]:
    saved: tuple[Tensor, ...] = ctx.saved_tensors  # type: ignore[attr-defined]
    gradients, floats = saved[: len(saved) // 2], saved[len(saved) // 2 :]
    scaled: list[Tensor | None] = [None] * len(gradients)
    if d_value is not None:
        scaled = _without_second_derivative(floats, [gradient * d_value for gradient in gradients])
    return scaled[0], None, None, None, scaled[1:], None, None, None, None


_lattice_loss_sum.register_autograd(_scale_gradients, setup_context=_save_gradients)


@torch.library.custom_op(
    "panda_rnnt::lattice_sum_gradients",
    mutates_args=(),
    schema=f"({_LATTICE}, Tensor weights, str lattice, str paths) -> (Tensor, Tensor[])",
)
def _lattice_sum_gradients(
    frames: Tensor,
    num_frames: Tensor,
    labels: Tensor | None,
    num_labels: Tensor | None,
    parameters: list[Tensor],
    next_states: Tensor | None,
    weights: Tensor,
    lattice: str,
    paths: str,
) -> tuple[Tensor, list[Tensor]]:
    batch = (frames, num_frames, labels, num_labels, parameters, next_states)
    return _sums_and_gradients(batch, weights, lattice, paths)[1:]


@_lattice_sum_gradients.register_fake
def _(
    frames: Tensor,
    num_frames: Tensor,
    labels: Tensor | None,
    num_labels: Tensor | None,
    parameters: list[Tensor],
    next_states: Tensor | None,
    weights: Tensor,
    lattice: str,
    paths: str,
) -> tuple[Tensor, list[Tensor]]:
    return _fake_gradients(frames, parameters)


@torch.library.custom_op(
    "panda_rnnt::lattice_sums", mutates_args=(), schema=f"({_LATTICE}, str lattice, str paths) -> Tensor"
)
def _lattice_sums(
    frames: Tensor,
    num_frames: Tensor,
    labels: Tensor | None,
    num_labels: Tensor | None,
    parameters: list[Tensor],
    next_states: Tensor | None,
    lattice: str,
    paths: str,
) -> Tensor:
    batch = (frames, num_frames, labels, num_labels, parameters, next_states)
    arrays = _arrays(batch)
    sums, _ = _native.lattice_loss(*arrays, None, lattice, paths)
    return from_dlpack(sums).to(frames.dtype)


@_lattice_sums.register_fake
def _(
    frames: Tensor,
    num_frames: Tensor,
    labels: Tensor | None,
    num_labels: Tensor | None,
    parameters: list[Tensor],
    next_states: Tensor | None,
    lattice: str,
    paths: str,
) -> Tensor:
    _check_same_device(frames, num_frames, labels, num_labels, *parameters, next_states)
    return frames.new_empty(frames.shape[0])


def _save_batch(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Any, ...], output: Tensor) -> None:
    frames, num_frames, labels, num_labels, parameters, next_states, lattice, paths = inputs
    optional = [labels, num_labels, next_states]
    present = [tensor for tensor in optional if tensor is not None]
    ctx.save_for_backward(output, frames, num_frames, *present, *parameters)
    ctx.is_present = [tensor is not None for tensor in optional]  # type: ignore[attr-defined]
    ctx.text = lattice, paths  # type: ignore[attr-defined]


def _lattice_sums_backward(ctx: torch.autograd.function.FunctionCtx, d_sums: Tensor) -> tuple[Any, ...]:
    sums, frames, num_frames, *rest = ctx.saved_tensors  # type: ignore[attr-defined]
    is_present: list[bool] = ctx.is_present  # type: ignore[attr-defined]
    remaining = iter(rest)
    labels, num_labels, next_states = (next(remaining) if present else None for present in is_present)
    parameters = list(remaining)
    batch = (frames, num_frames, labels, num_labels, parameters, next_states)
    weights = _finite_weights(d_sums, sums)
    d_frames, d_parameters = torch.ops.panda_rnnt.lattice_sum_gradients(*batch, weights, *ctx.text)  # type: ignore[attr-defined]
    gradients = _without_second_derivative([frames, *parameters], [d_frames, *d_parameters])
    return gradients[0], None, None, None, gradients[1:], None, None, None


_lattice_sums.register_autograd(_lattice_sums_backward, setup_context=_save_batch)


@torch.library.custom_op(
    "panda_rnnt::lattice_best_path",
    mutates_args=(),
    schema=f"({_LATTICE}, str lattice) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _lattice_best_path(
    frames: Tensor,
    num_frames: Tensor,
    labels: Tensor | None,
    num_labels: Tensor | None,
    parameters: list[Tensor],
    next_states: Tensor | None,
    lattice: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch = (frames, num_frames, labels, num_labels, parameters, next_states)
    *integers, score = _native.lattice_best_paths(*_arrays(batch), lattice)
    path_labels, path_frames, counts = (from_dlpack(array) for array in integers)
    return path_labels, path_frames, counts, from_dlpack(score).to(frames.dtype)


@_lattice_best_path.register_fake
def _(
    frames: Tensor,
    num_frames: Tensor,
    labels: Tensor | None,
    num_labels: Tensor | None,
    parameters: list[Tensor],
    next_states: Tensor | None,
    lattice: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check_same_device(frames, num_frames, labels, num_labels, *parameters, next_states)
    batch, padded = frames.shape[0], frames.shape[1] * labels_per_frame(lattice)
    path_labels, path_frames = (frames.new_empty(batch, padded, dtype=torch.int64) for _ in range(2))
    return path_labels, path_frames, frames.new_empty(batch, dtype=torch.int64), frames.new_empty(batch)


@torch.library.custom_op(
    "panda_rnnt::lattice_marginals",
    mutates_args=(),
    schema="(Tensor frames, Tensor num_frames, Tensor[] parameters, Tensor? next_states, str lattice, "
    "SymInt num_states, SymInt vocab_size) -> (Tensor, Tensor)",
)
def _lattice_marginals(
    frames: Tensor,
    num_frames: Tensor,
    parameters: list[Tensor],
    next_states: Tensor | None,
    lattice: str,
    num_states: int,
    vocab_size: int,
) -> tuple[Tensor, Tensor]:
    floats = [_array(parameter) for parameter in parameters]
    blank, labels = _native.lattice_marginals(
        _array(frames), _array(num_frames), floats, _array(next_states), lattice
    )
    return from_dlpack(blank), from_dlpack(labels)


@_lattice_marginals.register_fake
def _(
    frames: Tensor,
    num_frames: Tensor,
    parameters: list[Tensor],
    next_states: Tensor | None,
    lattice: str,
    num_states: int,
    vocab_size: int,
) -> tuple[Tensor, Tensor]:
    _check_same_device(frames, num_frames, *parameters, next_states)
    blank = frames.new_empty(*frames.shape[:2], num_states)
    return blank, frames.new_empty(*blank.shape, vocab_size)


def _fake_gradients(frames: Tensor, parameters: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    gradients = [parameter.new_empty(parameter.shape) for parameter in parameters]
    return frames.new_empty(frames.shape), gradients


# Calls of the native module.


def _arrays(
    batch: _Arguments,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, list[Tensor | None], Tensor | None]:
    """Returns what DLPack exports."""
    *indices, parameters, next_states = batch
    frames, num_frames, labels, num_labels = (_array(tensor) for tensor in indices)
    floats = [_array(parameter) for parameter in parameters]
    return frames, num_frames, labels, num_labels, floats, _array(next_states)


def _sums_and_gradients(
    batch: _Arguments, weights: Tensor, lattice: str, paths: str
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Returns the sums (float64), and the gradients of their weighted sum; NaN for such weights."""
    is_finite = bool(weights.isfinite().all())
    finite = weights if is_finite else torch.zeros_like(weights)
    sums, arrays = _native.lattice_loss(*_arrays(batch), _array(finite), lattice, paths)
    gradients = [from_dlpack(array) for array in arrays]
    if not is_finite:
        gradients = [gradient.fill_(torch.nan) for gradient in gradients]
    return from_dlpack(sums), gradients[0], gradients[1:]
