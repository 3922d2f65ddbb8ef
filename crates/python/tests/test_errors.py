"""Bad input: each error names the argument, what was expected, and what was found."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import panda_rnnt
import pytest
import reference
import torch
from panda_rnnt.torch import SimpleJoiner, pruned_loss, rnnt_loss, transducer_loss

Change = Callable[[reference.Batch], object]

CASES: list[tuple[str, Change, type[Exception], str]] = [
    ("rank", lambda b: setattr(b, "encoded", b.encoded[0]), ValueError, r"encoded: expected 3 axes"),
    ("width", lambda b: setattr(b, "weight", b.weight[:, :4]), ValueError, r"weight: expected rows of 5"),
    ("bias", lambda b: setattr(b, "bias", b.bias[:3]), ValueError, r"bias: expected 7 elements, found 3"),
    ("batch", lambda b: setattr(b, "predicted", b.predicted[:2]), ValueError, r"predicted: expected 3 utter"),
    (
        "targets",
        lambda b: setattr(b, "targets", b.targets[:2]),
        ValueError,
        r"targets: expected 3 utterances",
    ),
    (
        "float targets",
        lambda b: setattr(b, "targets", b.targets.float()),
        TypeError,
        r"targets: expected int",
    ),
    (
        "integer rows",
        lambda b: setattr(b, "encoded", b.encoded.long()),
        TypeError,
        r"encoded: expected float",
    ),
    ("blank", lambda b: b.targets.__setitem__((0, 1), 0), ValueError, r"targets\[0, 1\].*found 0, a blank"),
    ("class", lambda b: b.targets.__setitem__((0, 2), 7), ValueError, r"targets\[0, 2\].* 0 to 6, found 7"),
    ("negative", lambda b: b.targets.__setitem__((0, 0), -1), ValueError, r"targets\[0, 0\].*found -1"),
    (
        "frames",
        lambda b: b.logit_lengths.__setitem__(1, 7),
        ValueError,
        r"logit_lengths\[1\].* 1 to 6, found 7",
    ),
    ("no frames", lambda b: b.logit_lengths.__setitem__(1, 0), ValueError, r"logit_lengths\[1\].*found 0"),
    ("labels", lambda b: b.target_lengths.__setitem__(2, 5), ValueError, r"target_lengths\[2\].* 0 to 4, fo"),
    (
        "few lengths",
        lambda b: setattr(b, "logit_lengths", b.logit_lengths[:1]),
        ValueError,
        r"logit_lengths: ",
    ),
    ("NaN", lambda b: b.encoded.__setitem__((0, 3), torch.nan), ValueError, r"utterance 0, frame 3.*NaN"),
    ("inf weight", lambda b: b.weight.__setitem__((0, 0), torch.inf), ValueError, r"inf"),
    ("meta", lambda b: setattr(b, "bias", b.bias.to("meta")), ValueError, r"bias: expected a tensor on cpu"),
    (
        "positions",
        lambda b: setattr(b, "predicted", b.predicted[:, :0]),
        ValueError,
        r"predicted: expected at",
    ),
]


@pytest.mark.parametrize(
    ("change", "error", "message"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
@pytest.mark.parametrize("with_gradients", [False, True])
def test_bad_tensors(change: Change, error: type[Exception], message: str, with_gradients: bool) -> None:
    batch = reference.random_batch(0)
    change(batch)
    if with_gradients and batch.predicted.is_floating_point():
        batch.predicted.requires_grad_()
    with pytest.raises(error, match=message) as caught:
        transducer_loss(*batch.floats(), *batch.indices())
    copied = pickle.loads(pickle.dumps(caught.value))
    assert type(copied) is type(caught.value) and str(copied) == str(caught.value)


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"loss": "rnn"}, r"loss: expected 'rnnt'.*found 'rnn'"),
    ({"activation": "gelu"}, r"activation: expected 'tanh' or 'relu', found 'gelu'"),
    ({"precision": "int8"}, r"precision: expected 'full', 'bf16' or 'bf16x3', found 'int8'"),
    ({"reduction": "average"}, r"reduction: expected one of.*found 'average'"),
    ({"blank": 9}, r"blank: expected a class from 0 to 6, found 9"),
    ({"blank": -1}, r"blank: expected numbers from 0 .*, found -1"),
    ({"blank": 2**32}, r"blank: expected numbers from 0 .*, found 4294967296"),
    ({"loss": "tdt"}, r"durations: expected at least one duration"),
    ({"durations": (1, 2)}, r"durations: expected none for loss 'rnnt'"),
    ({"loss": "multi_blank", "durations": (2,)}, r"big_blanks: expected 1 classes"),
    ({"loss": "tdt", "durations": (0,)}, r"duration"),
    ({"fastemit": float("nan")}, r"fastemit: expected a finite number, found nan"),
    ({"fastemit": -1.0}, r"fastemit"),
    ({"sigma": 0.1, "loss": "hat"}, r"sigma: expected 0 for loss 'hat'"),
    ({"omega": 0.1}, r"omega: expected 0 for loss 'rnnt'"),
    ({"budget": 10}, r"budget: expected at least \d+ bytes"),
    ({"skip": 1.5}, r"skip"),
    ({"loss": "ctc"}, r"predicted: expected None for loss 'ctc'"),
    ({"device": "cuda"}, r"device: expected 'cpu', found 'cuda'"),
]


@pytest.mark.parametrize(("options", "message"), OPTIONS, ids=[str(case[0]) for case in OPTIONS])
def test_bad_options(options: dict[str, Any], message: str) -> None:
    batch = reference.random_batch(0)
    with pytest.raises(ValueError, match=message):
        transducer_loss(*batch.floats(), *batch.indices(), **options)


@pytest.mark.parametrize(
    "options",
    [
        {"blank": True},
        {"blank": 1.0},
        {"durations": [1.5]},
        {"sigma": "0.1"},
        {"clamp": True},
        {"budget": 1e9},
    ],
    ids=str,
)
def test_options_of_another_type(options: dict[str, Any]) -> None:
    batch = reference.random_batch(0)
    for _ in range(2):
        with pytest.raises(TypeError, match=next(iter(options))):
            transducer_loss(*batch.floats(), *batch.indices(), **options)


def test_options_take_numbers_of_numpy_and_lists() -> None:
    options = panda_rnnt.LossOptions(loss="tdt", durations=[0, np.int64(2)], fastemit=np.float32(0.5))
    assert options.durations == (0, 2) and options.fastemit == 0.5
    assert hash(options) == hash(panda_rnnt.LossOptions(loss="tdt", durations=(0, 2), fastemit=0.5))


def test_unknown_options_are_refused() -> None:
    batch = reference.random_batch(0)
    with pytest.raises(TypeError, match="fast_emit"):
        transducer_loss(*batch.floats(), *batch.indices(), fast_emit=0.1)  # type: ignore[call-arg]
    logits = reference.scores(batch)
    with pytest.raises(TypeError, match="activation: expected options of a loss of scores"):
        rnnt_loss(logits, *batch.indices(), activation="relu")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ({"weights": torch.ones(2)}, ValueError, r"weights: expected shape \(3,\), found \(2,\)"),
        ({"weights": torch.ones(3).long()}, TypeError, r"weights: expected float16"),
        ({"weights": torch.ones(3).to("meta")}, ValueError, r"weights: expected a tensor on cpu, found meta"),
        (
            {"token_weights": torch.ones(3, 3)},
            ValueError,
            r"token_weights: expected shape \[3, 4\], as targets",
        ),
        ({"token_weights": torch.full((3, 4), torch.nan)}, ValueError, r"token.weight.*NaN"),
        ({"token_weights": torch.ones(3, 4).int()}, TypeError, r"token_weights: expected float16"),
    ],
    ids=str,
)
@pytest.mark.parametrize("with_gradients", [False, True])
def test_bad_weights(
    weights: dict[str, Any], error: type[Exception], message: str, with_gradients: bool
) -> None:
    batch = reference.random_batch(0)
    batch.weight.requires_grad_(with_gradients)
    with pytest.raises(error, match=message):
        transducer_loss(*batch.floats(), *batch.indices(), **weights)


@pytest.mark.parametrize("threads", [0, 10**9])
def test_numbers_of_threads(threads: int) -> None:
    with pytest.raises(ValueError, match=f"threads: expected a number from 1 to 1024, found {threads}"):
        panda_rnnt.set_num_threads(threads)


def test_options_are_checked_when_they_are_created() -> None:
    with pytest.raises(ValueError, match="loss: expected"):
        panda_rnnt.LossOptions(loss="transducer")  # type: ignore[arg-type]


def test_meta_tensors_give_a_meta_loss() -> None:
    batch = reference.random_batch(0)
    tensors = [tensor.to("meta") for tensor in (*batch.floats(), *batch.indices())]
    assert transducer_loss(*tensors, reduction="none").device.type == "meta"


def test_inputs_changed_before_the_backward_pass_are_refused() -> None:
    batch = reference.random_batch(0)
    batch.weight.requires_grad_()
    encoded = batch.encoded.clone()
    loss = transducer_loss(encoded, *batch.floats()[1:], *batch.indices(), reduction="none")
    encoded.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.sum().backward()


def test_scores_need_one_row_per_site() -> None:
    batch = reference.random_batch(0)
    with pytest.raises(ValueError, match="logits: expected 4 axes"):
        rnnt_loss(reference.scores(batch)[0], *batch.indices())


def test_no_path_gives_infinity_and_no_gradient() -> None:
    batch = reference.random_batch(0)
    batch.encoded.requires_grad_()
    arguments = (*batch.floats(), batch.targets, torch.tensor([3, 6, 6]), torch.tensor([4, 2, 2]))
    losses = transducer_loss(*arguments, loss="modified", reduction="none")
    assert losses.isinf().tolist() == [True, False, False]
    losses.sum().backward()
    assert batch.encoded.grad is not None and batch.encoded.grad.isfinite().all()
    assert (batch.encoded.grad[0] == 0).all() and (batch.encoded.grad[1] != 0).any()
    assert transducer_loss(*arguments, loss="modified").isinf()
    assert transducer_loss(*arguments, loss="modified", zero_infinity=True).isfinite()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": None}, "loss: expected a string, found None"),
        ({"loss": ["rnnt"]}, "loss: expected a string, found"),
        ({"durations": None}, "durations: expected .*found None"),
        ({"durations": 3}, "durations: expected a sequence of integers, found 3"),
        ({"sigma": None}, "sigma: expected float, found None"),
    ],
    ids=str,
)
def test_options_name_the_expected_type(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        panda_rnnt.LossOptions(**options)


def test_lists_and_arrays_are_no_tensors() -> None:
    batch = reference.random_batch(0)
    arguments = [batch.encoded, batch.predicted, batch.weight, batch.bias, batch.targets]
    arguments += [batch.logit_lengths, batch.target_lengths]
    names = ("encoded", "predicted", "weight", "bias", "targets", "logit_lengths", "target_lengths")
    for index, name in enumerate(names):
        for found in (arguments[index].tolist(), arguments[index].detach().numpy()):
            changed: list[Any] = [*arguments]
            changed[index] = found
            if name == "encoded":
                continue
            with pytest.raises(TypeError, match=f"{name}: expected a tensor, found {type(found).__name__}"):
                transducer_loss(*changed)
    with pytest.raises(TypeError, match="weights: expected a tensor, found list"):
        transducer_loss(*arguments, weights=[1.0, 1.0, 1.0])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="simple: expected a SimpleJoiner, found tuple"):
        transducer_loss(*arguments, loss="pruned", simple=(1, 2))  # type: ignore[arg-type]


def test_a_pruned_loss_has_no_other_name() -> None:
    batch = reference.random_batch(0)
    arguments = [batch.encoded, batch.predicted, batch.weight, batch.bias, batch.targets]
    with pytest.raises(ValueError, match="loss: expected 'pruned', found 'hat'"):
        pruned_loss(
            *arguments,
            batch.logit_lengths,
            batch.target_lengths,
            simple=SimpleJoiner(batch.encoded, batch.predicted),
            loss="hat",
        )
