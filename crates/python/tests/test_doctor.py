"""The loss doctor: correct losses pass, and each wrong one fails with the right explanation."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import panda_rnnt
import pytest
import reference
import torch
from panda_rnnt.doctor import Report, examine
from panda_rnnt.doctor.batches import (
    STORED_DURATIONS,
    STORED_LOSSES,
    patterned_batch,
    random_batch,
    uniform_batch,
    uniform_loss,
)
from panda_rnnt.doctor.command import main
from panda_rnnt.doctor.reference import Definition, evaluate
from panda_rnnt.torch import rnnt_loss, transducer_loss
from torch import Tensor

examine_values = functools.partial(examine, measures_cost=False)
examine_required = functools.partial(examine, required_only=True)


def failures(report: Report) -> list[str]:
    return [result.name for result in report.failures]


# The reference of the doctor.

DEFINITIONS = [
    Definition("rnnt", blank=2),
    Definition("modified"),
    Definition("tdt", durations=(0, 1, 2, 4), sigma=0.05),
    Definition("tdt", durations=(1, 3)),
    Definition("multi_blank", durations=(2, 3), big_blanks=(5, 6), sigma=0.1),
    Definition("hat"),
]


@pytest.mark.parametrize("definition", DEFINITIONS, ids=str)
def test_reference_equals_dense_losses(definition: Definition) -> None:
    batch = random_batch(definition)
    # The dense reference has the blank 0.
    order = [definition.blank, *(c for c in range(batch.scores.shape[-1]) if c != definition.blank)]
    scores = batch.scores.clone().requires_grad_()
    classes = torch.tensor(order).argsort()
    dense_batch = reference.Batch(
        *[torch.zeros(0)] * 4, classes[batch.targets], batch.logit_lengths, batch.target_lengths
    )
    big_blanks = [int(classes[c]) for c in definition.big_blanks]
    expected = reference.dense_losses(
        scores[..., order], dense_batch, definition.loss, definition.durations, big_blanks, definition.sigma
    )
    weights = torch.tensor([1.0, -0.5, 2.0])
    (gradient,) = torch.autograd.grad((expected * weights).sum(), scores)
    answer = evaluate(definition, batch, weights)
    torch.testing.assert_close(answer.losses, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(answer.gradient, gradient, rtol=1e-11, atol=1e-11)


def test_reference_equals_ctc_of_torch() -> None:
    batch = random_batch(Definition("ctc"))
    scores = batch.scores.clone().requires_grad_()
    expected = torch.nn.functional.ctc_loss(
        scores.log_softmax(-1).transpose(0, 1),
        batch.targets,
        batch.logit_lengths,
        batch.target_lengths,
        reduction="none",
    )
    answer = evaluate(Definition("ctc"), batch)
    torch.testing.assert_close(answer.losses, expected.detach())
    torch.testing.assert_close(answer.gradient, torch.autograd.grad(expected.sum(), scores)[0])


@pytest.mark.parametrize("loss", STORED_LOSSES)
@pytest.mark.parametrize("blank", [0, 5])
def test_reference_equals_stored_losses(loss: Any, blank: int) -> None:
    big_blanks = (1, 2) if loss == "multi_blank" else ()
    definition = Definition(loss, blank, STORED_DURATIONS.get(loss, ()), big_blanks)
    losses = evaluate(definition, patterned_batch(definition)).losses
    assert losses.tolist() == pytest.approx([STORED_LOSSES[loss]], rel=1e-13)
    uniform = uniform_batch(definition)
    assert float(evaluate(definition, uniform).losses) == pytest.approx(uniform_loss(definition, uniform))


# Correct losses.


def own_loss(logits: Tensor, targets: Tensor, frames: Tensor, labels: Tensor, **options: Any) -> Tensor:
    return rnnt_loss(logits, targets, frames, labels, reduction="none", **options)


@pytest.mark.parametrize("loss", ["rnnt", "modified", "tdt", "multi_blank", "ctc"])
def test_own_losses_of_scores_pass(loss: Any) -> None:
    report = examine_values(rnnt_loss, loss=loss)
    assert report.has_passed, str(report)
    assert {result.verdict for result in report.results} <= {"pass", "not applicable"}, str(report)


@pytest.mark.parametrize("loss", ["rnnt", "hat", "tdt", "ctc"])
def test_own_fused_losses_pass(loss: Any) -> None:
    report = examine_required(transducer_loss, loss=loss)
    assert report.has_passed, str(report)
    assert report["reference gradient"].verdict == "pass"


def test_functions_of_four_tensors_and_modules_pass() -> None:
    def loss(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        return own_loss(a, b, c, d, blank=6)

    report = examine_required(loss, blank=-1)
    assert report.has_passed, str(report)
    assert report["blank option"].verdict == "not applicable"
    module = panda_rnnt.RnntLoss(panda_rnnt.LossOptions(loss="tdt", durations=(0, 2, 3), fastemit=0.25))
    report = examine_required(module, loss="tdt", durations=(0, 2, 3), fastemit=0.25)
    assert report.has_passed, str(report)
    assert report["FastEmit"].verdict == "pass" and report["reductions"].verdict == "pass"
    assert report["finite differences"].verdict == "not applicable"


def test_ctc_of_torch_passes() -> None:
    for function in (torch.nn.functional.ctc_loss, torch.nn.CTCLoss):
        report = examine_values(function)
        assert report.loss == "ctc" and report.has_passed, str(report)
        assert report["reductions"].verdict == "differs by convention"
        assert "divided by its number of labels" in report["reductions"].explanation
        # Documented: infinite losses have NaN gradients unless zero_infinity is set.
        assert report["no path"].verdict == "fail" and not report["no path"].is_required


def test_torchaudio_passes_with_known_failures() -> None:
    torchaudio = pytest.importorskip("torchaudio")
    report = examine(torchaudio.functional.rnnt_loss)
    assert report.loss == "rnnt" and report.has_passed, str(report)
    for name in ("float64", "index types"):
        assert report[name].verdict == "differs by convention", str(report)
    crash = report["no frames in the batch"]
    assert crash.is_known and "SIGSEGV" in crash.explanation, str(report)
    assert report["label beyond the classes"].verdict == "fail", str(report)
    assert report.cost["milliseconds"] > 0 and report.cost["panda_milliseconds"] > 0


def test_tdt_loss_of_transformers_passes_with_known_failures() -> None:
    original = pytest.importorskip("transformers.loss.loss_tdt")
    report = examine_values(original.tdt_loss)
    assert report.loss == "tdt" and report.has_passed, str(report)
    assert report["durations without 0"].is_known and "NaN" in report["durations without 0"].explanation
    from panda_rnnt.transformers import tdt_loss

    report = examine_required(tdt_loss)
    assert report.has_passed and report["durations without 0"].verdict == "pass", str(report)


# Wrong losses.

TdtLoss = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, int, Sequence[int]], Tensor]


def tdt(
    token_logits: Tensor,
    duration_logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    durations: Sequence[int],
) -> Tensor:
    logits = torch.cat([token_logits, duration_logits], -1)
    options: dict[str, Any] = {"loss": "tdt", "blank": blank, "durations": durations}
    return own_loss(logits, targets, logit_lengths, target_lengths, **options)


def regularized_rnnt(
    token_logits: Tensor,
    duration_logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    durations: Sequence[int],
) -> Tensor:
    """An RNN-T loss, and the entropy of the durations of all sites."""
    is_frame = torch.arange(token_logits.shape[1]) < logit_lengths[:, None]
    is_position = torch.arange(token_logits.shape[2]) <= target_lengths[:, None]
    is_site = is_frame[:, :, None] & is_position[:, None]
    entropy = -(duration_logits.softmax(-1) * duration_logits.log_softmax(-1)).sum(-1)
    penalty = torch.where(is_site, entropy, 0.0).sum((1, 2)) / is_site.sum((1, 2))
    return own_loss(token_logits, targets, logit_lengths, target_lengths, blank=blank) + 0.1 * penalty


def indices_as_durations(*arguments: Any, first: int) -> Tensor:
    *rest, durations = arguments
    return tdt(*rest, range(first, first + len(durations)))


def indices(
    token_logits: Tensor,
    duration_logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    durations: Sequence[int],
) -> Tensor:
    rest = (targets, logit_lengths, target_lengths, blank, durations)
    return indices_as_durations(token_logits, duration_logits, *rest, first=0)


def indices_plus_one(
    token_logits: Tensor,
    duration_logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    durations: Sequence[int],
) -> Tensor:
    rest = (targets, logit_lengths, target_lengths, blank, durations)
    return indices_as_durations(token_logits, duration_logits, *rest, first=1)


def joint_softmax(
    token_logits: Tensor,
    duration_logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
) -> Tensor:
    """Tokens and durations share a softmax; blank 0, durations 0, 1, 2 and 4."""
    classes = token_logits.shape[-1]
    columns = torch.cat([token_logits, duration_logits], -1).double().log_softmax(-1)
    batch = reference.Batch(*[columns] * 4, targets, logit_lengths, target_lengths)
    durations = (0, 1, 2, 4)
    tokens, scores = columns[..., :classes], columns[..., classes:]
    arcs = reference.Arcs(tokens, [(0, d) for d in durations], durations, scores)
    return reference.path_losses(arcs, batch)


def overshooting(
    token_logits: Tensor,
    duration_logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
) -> Tensor:
    """Labels may lead to the end; blank 0, durations 0, 1 and 2."""
    batch = reference.Batch(*[token_logits] * 4, targets, logit_lengths, target_lengths)
    durations = (0, 1, 2)
    tokens, scores = token_logits.log_softmax(-1), duration_logits.log_softmax(-1)
    blanks = [(0, d) for d in durations]
    arcs = reference.Arcs(tokens, blanks, durations, scores, labels_may_end=True)
    return reference.path_losses(arcs, batch)


WRONG_TDT: list[tuple[Any, dict[str, Any], list[str], str, str]] = [
    (
        regularized_rnnt,
        {},
        ["reference losses", "durations in the lattice", "durations are frames", "stored example"],
        "durations in the lattice",
        "RNN-T loss with a duration regularizer",
    ),
    (
        indices,
        {},
        ["reference losses", "durations are frames", "stored example"],
        "durations are frames",
        "indices of the durations are used as numbers of frames, (0, 1, 2) for (0, 1, 3)",
    ),
    (
        indices_plus_one,
        {},
        ["reference losses", "durations are frames", "stored example"],
        "reference losses",
        "indices of the durations plus 1 are used as numbers of frames, (1, 2, 3, 4) for (0, 1, 2, 4)",
    ),
    (
        indices,
        {"durations": (0, 1, 2)},
        ["durations are frames"],
        "durations are frames",
        "indices of the durations are used",
    ),
    (
        joint_softmax,
        {"loss": "tdt"},
        ["reference losses", "shift of scores", "reference gradient", "stored example"],
        "shift of scores",
        "they share one softmax",
    ),
    (
        overshooting,
        {"loss": "tdt", "durations": (0, 1, 2)},
        ["reference losses", "reference gradient"],
        "reference losses",
        "a label may lead to the end",
    ),
]


@pytest.mark.parametrize(
    ("function", "options", "expected", "check", "sentence"),
    WRONG_TDT,
    ids=[f"{c[0].__name__}-{c[1]}" for c in WRONG_TDT],
)
def test_wrong_tdt_losses_fail(
    function: Any, options: dict[str, Any], expected: list[str], check: str, sentence: str
) -> None:
    report = examine_required(function, **options)
    assert set(expected) <= set(failures(report)), str(report)
    assert sentence in report[check].explanation, str(report)
    if function is joint_softmax:
        assert "tokens and durations share one softmax" in report["reference losses"].explanation
    # The function is the derivative of its own value, and treats batches correctly.
    for name in ("finite differences", "batch composition", "permutation", "padding values"):
        assert report[name].verdict == "pass", str(report)


def fastemit_value(
    logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor, fastemit: float
) -> Tensor:
    """Scales the value by 1 + lambda; the gradient is right."""
    losses = own_loss(logits, targets, logit_lengths, target_lengths, fastemit=fastemit)
    return losses + fastemit * losses.detach()


def fastemit_everything(
    logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor, fastemit: float
) -> Tensor:
    """Scales the whole gradient."""
    losses = own_loss(logits, targets, logit_lengths, target_lengths)
    return losses + fastemit * (losses - losses.detach())


def fastemit_blank(
    logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor, fastemit: float
) -> Tensor:
    """Scales the gradient of the blanks: that of all minus that of the labels."""
    losses = own_loss(logits, targets, logit_lengths, target_lengths)
    scaled = own_loss(logits, targets, logit_lengths, target_lengths, fastemit=fastemit)
    return losses + (1 + fastemit) * (losses - losses.detach()) - (scaled - scaled.detach())


def fastemit_nothing(
    logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor, fastemit: float
) -> Tensor:
    return own_loss(logits, targets, logit_lengths, target_lengths)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (fastemit_value, "the value is 1 + lambda times -log P"),
        (fastemit_everything, "the whole gradient is scaled by 1 + lambda, blanks included"),
        (fastemit_blank, "the gradient of blanks is scaled by 1 + lambda, and that of labels is not"),
        (fastemit_nothing, "the gradient of labels is not scaled"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_wrong_fastemit_fails(function: Any, sentence: str) -> None:
    report = examine_required(function)
    assert failures(report) == ["FastEmit"], str(report)
    assert sentence in report["FastEmit"].explanation
    # A lambda that the function always applies is given by an option.
    fixed = functools.partial(function, fastemit=0.25)
    report = examine_required(fixed, fastemit=0.25)
    assert "FastEmit" in failures(report) and sentence in report["FastEmit"].explanation, str(report)


def nemo_like(
    acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor, fastemit_lambda: float = 0.0
) -> Tensor:
    return fastemit_value(acts, labels, act_lens, label_lens, fastemit_lambda)


def test_fastemit_of_nemo_is_a_convention() -> None:
    report = examine_required(nemo_like)
    assert report.has_passed and report["FastEmit"].verdict == "differs by convention", str(report)


def padding_in_value(
    logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor
) -> Tensor:
    """A z-loss that includes padded sites."""
    losses = own_loss(logits, targets, logit_lengths, target_lengths)
    return losses + 1e-3 * logits.logsumexp(-1).square().mean((1, 2))


def padding_in_gradient(
    logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor
) -> Tensor:
    """Padded sites have a gradient, and no influence on the value."""
    losses = own_loss(logits, targets, logit_lengths, target_lengths)
    frames = torch.arange(logits.shape[1]) >= logit_lengths[:, None]
    penalty = torch.where(frames[..., None, None], logits, 0.0).sum((1, 2, 3))
    return losses + 0.01 * (penalty - penalty.detach())


def nan_gradient_in_padding(
    logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor
) -> Tensor:
    """Padding is masked after an operation: 0 times NaN in its backward pass."""
    frames = torch.arange(logits.shape[1]) >= logit_lengths[:, None]
    masked = torch.where(frames[..., None, None], 0.0, logits.log_softmax(-1))
    return own_loss(masked, targets, logit_lengths, target_lengths)


def nan_gradient_of_any_padding(
    logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor
) -> Tensor:
    """The backward pass divides the gradient of padding, 0, by 0."""
    frames = torch.arange(logits.shape[1]) < logit_lengths[:, None]
    masked = logits / frames[..., None, None].to(logits.dtype)
    return own_loss(masked, targets, logit_lengths, target_lengths)


@pytest.mark.parametrize(
    ("function", "expected", "check", "sentence"),
    [
        (padding_in_value, ["padding values", "NaN in padding"], "padding values", "padding leaks"),
        (padding_in_gradient, ["padding gradient"], "padding gradient", "is not 0"),
        (nan_gradient_in_padding, ["NaN in padding"], "NaN in padding", "their gradient NaN"),
        (
            nan_gradient_of_any_padding,
            ["padding gradient", "reference gradient"],
            "padding gradient",
            "gradient of padded sites is NaN",
        ),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_leaking_padding_fails(function: Any, expected: list[str], check: str, sentence: str) -> None:
    report = examine_required(function)
    assert set(expected) <= set(failures(report)), str(report)
    assert sentence in report[check].explanation, str(report)
    assert report["permutation"].verdict == "pass"


def scaled(function: Any, change: Callable[[Tensor], Tensor]) -> Any:
    def loss(logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor) -> Tensor:
        return change(function(logits, targets, logit_lengths, target_lengths))

    return loss


def without_softmax(logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor) -> Tensor:
    batch = reference.Batch(*[logits] * 4, targets, logit_lengths, target_lengths)
    return reference.path_losses(reference.Arcs(logits, [(0, 1)], [0]), batch)


def last_class_as_blank(
    logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor
) -> Tensor:
    batch = reference.Batch(*[logits] * 4, targets, logit_lengths, target_lengths)
    return reference.path_losses(reference.Arcs(logits.log_softmax(-1), [(6, 1)], [0]), batch)


class Doubled(torch.autograd.Function):
    """Doubles the gradient, not the value."""

    @staticmethod
    def forward(ctx: Any, losses: Tensor) -> Tensor:
        return losses.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


@pytest.mark.parametrize(
    ("function", "check", "sentence"),
    [
        (scaled(own_loss, lambda losses: -losses), "reference losses", "log P, not -log P"),
        (scaled(own_loss, Doubled.apply), "reference gradient", "is 2 times the right one"),
        (scaled(own_loss, Doubled.apply), "finite differences", "not the derivative"),
        (scaled(own_loss, lambda losses: losses.detach()), "reference gradient", "no gradient"),
        (scaled(own_loss, lambda losses: 3 * losses), "reference losses", "3 times -log P"),
        (scaled(own_loss, lambda losses: losses.cumsum(0)), "batch composition", "other utterances"),
        (functools.partial(own_loss, loss="modified"), "reference losses", "the modified topology"),
        (last_class_as_blank, "reference losses", "class 6 is used as the blank"),
        (without_softmax, "shift of scores", "no softmax normalizes the scores"),
    ],
)
def test_other_wrong_losses_fail(function: Any, check: str, sentence: str) -> None:
    report = examine_required(function, signature="positional", loss="rnnt")
    assert check in failures(report) and sentence in report[check].explanation, str(report)


# Guards, and results that are no failures.


def hanging(logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor) -> Tensor:
    """Ends the process for a bad label, and never returns for NaN."""
    if bool((targets >= logits.shape[-1]).any()):
        os.abort()
    if bool(logits[0, 1, 0].isnan().any()):
        time.sleep(60)
    return own_loss(logits, targets, logit_lengths, target_lengths)


def test_crashes_and_endless_loops_are_results() -> None:
    report = examine_values(hanging, seconds=4.0)
    assert report.has_passed, str(report)
    crash, timeout = report["label beyond the classes"], report["NaN in scores"]
    assert crash.verdict == "fail" and "SIGABRT" in crash.explanation
    assert timeout.verdict == "fail" and "no result after 4 s" in timeout.explanation
    assert "fail (optional)" in str(report)


def only_mean(logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor) -> Tensor:
    return rnnt_loss(logits.float(), targets, logit_lengths, target_lengths, reduction="mean_volume")


def test_a_reduced_loss_is_graded_as_such() -> None:
    report = examine_values(only_mean)
    assert report.has_passed, str(report)
    assert "number of labels of the batch" in report["reductions"].explanation
    assert report["float64"].verdict == "differs by convention"


class OldLoss(torch.nn.Module):
    """Arguments and types of warp-transducer, with the mean as its only other reduction."""

    def __init__(self, blank: int = 0, reduction: str = "mean") -> None:
        super().__init__()
        self.options: dict[str, Any] = {"blank": blank, "reduction": reduction}

    def forward(self, acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor) -> Tensor:
        for name, tensor in {"labels": labels, "act_lens": act_lens, "label_lens": label_lens}.items():
            if tensor.dtype != torch.int32:
                raise TypeError(f"{name} must be int32")
        return rnnt_loss(acts.float(), labels, act_lens, label_lens, **self.options)


def test_classes_are_built_with_their_options() -> None:
    report = examine_values(OldLoss)
    assert report.has_passed, str(report)
    assert report.call == "OldLoss(blank=0, reduction='none')(acts, labels, act_lens, label_lens)"
    assert report["blank option"].verdict == "pass"
    assert report["index types"].verdict == "differs by convention"


def test_the_boundary_of_fast_rnnt() -> None:
    def loss(
        logits: Tensor,
        symbols: Tensor,
        termination_symbol: int,
        boundary: Tensor,
        rnnt_type: str = "regular",
        reduction: str = "mean",
    ) -> Tensor:
        name: Any = {"regular": "rnnt", "modified": "modified"}[rnnt_type]
        return rnnt_loss(
            logits,
            symbols,
            boundary[:, 3],
            boundary[:, 2],
            loss=name,
            blank=termination_symbol,
            reduction=reduction,  # type: ignore[arg-type]
        )

    for name in ("rnnt", "modified"):
        report = examine_required(loss, loss=name)
        assert report.has_passed and report["blank option"].verdict == "pass", str(report)


def test_big_blanks_of_nemo() -> None:
    class MultiblankLoss(torch.nn.Module):
        def __init__(self, blank: int, big_blank_durations: Sequence[int], sigma: float = 0.0) -> None:
            super().__init__()
            self.options: dict[str, Any] = {
                "loss": "multi_blank",
                "blank": blank,
                "durations": list(big_blank_durations),
                "big_blanks": [blank - 1 - i for i in range(len(big_blank_durations))],
                "sigma": sigma,
            }

        def forward(self, acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor) -> Tensor:
            return own_loss(acts, labels, act_lens, label_lens, **self.options)

    report = examine_required(MultiblankLoss)
    assert report.loss == "multi_blank" and report.has_passed, str(report)
    assert "blank=6, big_blank_durations=[2, 4]" in report.call


# Command line, report, and errors.


def correct(logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor) -> Tensor:
    return own_loss(logits, targets, logit_lengths, target_lengths)


def test_command(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    path = tmp_path / "report.json"
    assert main(["test_doctor:correct", "--no-time", "--json", str(path)]) == 0
    output = capsys.readouterr().out
    assert "test_doctor.correct: rnnt loss" in output and "PASS: no required check fails" in output
    assert all(len(line) <= 110 for line in output.splitlines())
    document = json.loads(path.read_text())
    assert document["has_passed"] and len(document["results"]) > 25
    assert {"name", "verdict", "explanation", "error", "is_required"} <= document["results"][0].keys()
    assert main(["test_doctor:fastemit_nothing", "--required", "--json", "-"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert not document["has_passed"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["test_doctor"], "function: expected MODULE:FUNCTION"),
        (["no_such_module:loss"], "function: ModuleNotFoundError: No module named"),
        (["test_doctor:missing"], "no attribute 'missing'"),
        (["test_doctor:DEFINITIONS"], "function: expected a function"),
        (["test_doctor:correct", "--blank", "9"], "blank: expected a class"),
        (["test_doctor:correct", "--durations", "1,2"], "durations: expected none"),
        (
            ["test_doctor:correct", "--loss", "tdt", "--durations", "0"],
            "durations: expected numbers of frames",
        ),
        (["test_doctor:failures"], "signature: expected parameters"),
        (["test_doctor:refusing"], "function: expected a loss.*always refused"),
        (["test_doctor:correct", "--fastemit", "-1"], "fastemit: expected a number above 0"),
    ],
    ids=str,
)
def test_errors_of_the_command(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--no-time"]) == 2
    assert re.search(message, capsys.readouterr().err)


def refusing(logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor) -> Tensor:
    raise RuntimeError("always refused")


def test_numbers_of_a_report_are_json() -> None:
    report = examine_required(scaled(own_loss, lambda losses: losses * math.nan))
    assert report["reference losses"].error == math.inf
    document = json.loads(report.to_json(), parse_constant=lambda name: pytest.fail(name))
    assert {r["name"]: r["error"] for r in document["results"]}["reference losses"] == "inf"
    with pytest.raises(KeyError, match="expected one of"):
        report["no such check"]
    assert dataclasses.replace(report, results=()).has_passed
