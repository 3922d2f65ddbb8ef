"""How a loss is called: which parameter has which role."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import typing_extensions

from panda_rnnt.doctor.reference import Loss

__all__ = ["SIGNATURES", "Signature", "detect_loss", "detect_signature"]

# Parameter names of published losses, by role.
_DATA = {
    "scores": ("logits", "acts", "log_probs", "scores", "joint", "joint_outputs", "activations", "emissions"),
    "token_scores": ("token_logits", "token_scores", "token_acts"),
    "duration_scores": ("duration_logits", "duration_scores", "duration_acts"),
    "encoded": ("encoded",),
    "predicted": ("predicted",),
    "weight": ("weight",),
    "bias": ("bias",),
    "targets": ("targets", "labels", "symbols", "target", "y"),
    "logit_lengths": (
        "logit_lengths",
        "act_lens",
        "input_lengths",
        "logits_lengths",
        "logit_lens",
        "encoded_lengths",
        "frame_lengths",
        "x_lens",
    ),
    "target_lengths": ("target_lengths", "label_lens", "label_lengths", "target_lens", "y_lens"),
    "boundary": ("boundary",),
}
_OPTIONS = {
    "blank": ("blank", "blank_id", "blank_token_id", "blank_idx", "blank_index", "termination_symbol"),
    "durations": ("durations", "big_blank_durations"),
    "big_blanks": ("big_blanks",),
    "sigma": ("sigma",),
    "fastemit": ("fastemit", "fastemit_lambda"),
    "reduction": ("reduction",),
    "topology": ("rnnt_type",),
    "loss": ("loss",),
}
_INDICES = ("targets", "logit_lengths", "target_lengths")

SIGNATURES: dict[str, tuple[str, ...]] = {
    "positional": ("logits", *_INDICES),
    "torchaudio": ("logits", *_INDICES, "blank", "reduction"),
    "transformers": ("logits", *_INDICES, "blank_token_id", "reduction"),
    "transformers_tdt": (
        "token_logits",
        "duration_logits",
        *_INDICES,
        "blank_token_id",
        "durations",
        "sigma",
        "reduction",
    ),
    "warp_transducer": ("acts", "labels", "act_lens", "label_lens", "blank", "reduction"),
    "nemo": ("acts", "labels", "act_lens", "label_lens"),
    "fast_rnnt": ("logits", "symbols", "termination_symbol", "boundary", "rnnt_type", "reduction"),
    "torch_ctc": ("log_probs", "targets", "input_lengths", "target_lengths", "blank", "reduction"),
    "panda": (
        "logits",
        *_INDICES,
        "loss",
        "blank",
        "durations",
        "big_blanks",
        "sigma",
        "fastemit",
        "reduction",
    ),
    "panda_fused": (
        "encoded",
        "predicted",
        "weight",
        "bias",
        *_INDICES,
        "loss",
        "activation",
        "blank",
        "durations",
        "big_blanks",
        "sigma",
        "fastemit",
        "reduction",
    ),
}
"""Parameter names that ``--signature`` selects, for functions that do not show theirs."""


@dataclasses.dataclass(frozen=True)
class Signature:
    """How a loss is called.

    Args:
        data: Role and parameter of the tensors, in the order of the call.
        options: Parameter of each option of the call, by role.
        constructor: Parameter of each option of a class's constructor, by role; None for functions.
        is_positional: Tensors are passed by position; options always are keywords.
        has_activation: The fused loss of this package: its joint network is switched to ReLU.
        is_log_softmax: The scores are log-probabilities ``[T, B, C]``, as torch's CTC loss takes them.
        uses_nemo_classes: The big blanks are the classes before the blank, as in NeMo.
        scales_value: The value with FastEmit is that of NeMo and warp-transducer, times 1 + lambda.
    """

    data: tuple[tuple[str, str], ...]
    options: Mapping[str, str]
    constructor: Mapping[str, str] | None = None
    is_positional: bool = False
    has_activation: bool = False
    is_log_softmax: bool = False
    uses_nemo_classes: bool = False
    scales_value: bool = False

    @property
    def roles(self) -> set[str]:
        return {*(role for role, _ in self.data), *self.options, *(self.constructor or {})}

    def describe(self, name: str, options: Mapping[str, object]) -> str:
        """Returns the text of a call with these options, by role."""
        data = [parameter for _, parameter in self.data]
        call = [*data, *(f"{p}={options[r]!r}" for r, p in self.options.items() if r in options)]
        built = ""
        if self.constructor is not None:
            given = [f"{p}={options[r]!r}" for r, p in self.constructor.items() if r in options]
            built = f"({', '.join(given)})"
        return f"{name}{built}({', '.join(call)})"


def detect_signature(function: Callable[..., Any], loss: Loss, name: str | None = None) -> Signature:
    """Returns how a function, class or module is called.

    Args:
        function: A function, a subclass of ``torch.nn.Module``, or an instance of one.
        loss: The loss that it computes.
        name: A name of :data:`SIGNATURES`; None reads the names of the parameters.

    Raises:
        ValueError: An unknown name; parameters of unknown names.
    """
    constructor: list[str] | None = None
    if inspect.isclass(function):
        if not issubclass(function, torch.nn.Module):
            raise ValueError(
                f"function: expected a function or a torch.nn.Module, found class {function.__name__}"
            )
        constructor = [p.name for p in _parameters(function.__init__)[1:]]
    is_positional = name is not None
    if name is not None:
        if name not in SIGNATURES:
            raise ValueError(f"signature: expected one of {', '.join(SIGNATURES)}, found {name!r}")
        names: Sequence[str] = SIGNATURES[name]
        if name == "transformers" and loss == "tdt":
            names = SIGNATURES["transformers_tdt"]
        required = [n for n in names if _role(n, _DATA)]
    else:
        parameters = _parameters(_called(function))
        fixed = function.keywords if isinstance(function, functools.partial) else {}
        named = [p for p in parameters if p.name not in fixed and p.kind != p.VAR_POSITIONAL]
        names = [p.name for p in named]
        required = [p.name for p in named if p.default is p.empty]
        is_positional = any(p.kind == p.POSITIONAL_ONLY for p in named)
    if len(required) == 4 and not any(_role(n, _DATA) for n in required):
        # Four parameters of other names: the order that all transducer losses share.
        roles = ["scores", "targets", "logit_lengths", "target_lengths"]
        options = _options(n for n in names if n not in required)
        return Signature(tuple(zip(roles, required, strict=True)), options, is_positional=True)
    data = [(_role(n, _DATA), n) for n in names if _role(n, _DATA)]
    roles = [role for role, _ in data]
    unknown = [n for n in required if not _role(n, _DATA) and not _role(n, _OPTIONS)]
    _check_roles(roles, unknown, names)
    options = _options(names)
    is_warp = any(n in ("acts", "act_lens", "label_lens") for n in names)
    all_options = {*names, *(constructor or ())}
    return Signature(
        tuple(data),
        options,
        None if constructor is None else _options(constructor),
        is_positional=is_positional,
        has_activation="encoded" in roles and "activation" in names,
        is_log_softmax=loss == "ctc" and "log_probs" in names and "input_lengths" in names,
        uses_nemo_classes="big_blank_durations" in all_options,
        scales_value=is_warp and "fastemit_lambda" in all_options,
    )


def _check_roles(roles: Sequence[str], unknown: Sequence[str], names: Sequence[str]) -> None:
    has_scores = "scores" in roles or {"token_scores", "duration_scores"} <= set(roles)
    has_scores = has_scores or {"encoded", "predicted", "weight"} <= set(roles)
    has_lengths = {"logit_lengths", "target_lengths"} <= set(roles) or "boundary" in roles
    if unknown or not has_scores or "targets" not in roles or not has_lengths:
        found = f"{_show(names)}" + (f"; unknown: {_show(unknown)}" if unknown else "")
        raise ValueError(
            "signature: expected parameters such as (logits, targets, logit_lengths, target_lengths), "
            f"found {found}; choose one with --signature, or write a function with these parameters"
        )


def _show(names: Sequence[str]) -> str:
    return f"({', '.join(names)})"


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what a call runs: the forward method of a module."""
    if inspect.isclass(function):
        forward: Callable[..., Any] = functools.partial(function.forward, None)
        return forward
    return function.forward if isinstance(function, torch.nn.Module) else function


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return [inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)]
    named = [p for p in parameters if p.kind != p.VAR_KEYWORD]
    unpacked = len(named) < len(parameters)
    return [*named, *_unpacked_keywords(function)] if unpacked else named


def _unpacked_keywords(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Returns the keywords of ``**options: Unpack[Options]``, where Options is a TypedDict."""
    try:
        hints = typing_extensions.get_type_hints(function).values()
    except (NameError, TypeError):
        return []
    unpack: Any = typing_extensions.Unpack
    keys = [
        key
        for hint in hints
        if typing_extensions.get_origin(hint) == unpack
        for key in typing_extensions.get_type_hints(typing_extensions.get_args(hint)[0])
    ]
    return [inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None) for key in keys]


def _role(name: str, roles: Mapping[str, Sequence[str]]) -> str:
    return next((role for role, names in roles.items() if name in names), "")


def _options(names: Iterable[str]) -> dict[str, str]:
    options = {_role(name, _OPTIONS): name for name in names if _role(name, _OPTIONS)}
    if "big_blanks" not in options:
        # Only the functions of this package select their loss by a name.
        options.pop("loss", None)
    return options


def detect_loss(function: Callable[..., Any]) -> Loss:
    """Returns the loss that the names of a function and its parameters show; ``rnnt`` by default."""
    names = {p.name for p in _parameters(_called(function))}
    if inspect.isclass(function):
        names |= {p.name for p in _parameters(function.__init__)}
    named = function if hasattr(function, "__name__") else type(function)
    title = getattr(named, "__name__", "").lower()
    if "big_blank_durations" in names or "multiblank" in title or "multi_blank" in title:
        return "multi_blank"
    if "duration_logits" in names or "tdt" in title or ("durations" in names and "big_blanks" not in names):
        return "tdt"
    if "ctc" in title:
        return "ctc"
    return "hat" if "hat_loss" in title else "rnnt"
