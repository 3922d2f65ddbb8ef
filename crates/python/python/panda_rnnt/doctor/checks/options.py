"""Checks of options: blank, sigma, FastEmit and reductions."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from panda_rnnt.doctor.batch import Batch
from panda_rnnt.doctor.batches import CLASSES, random_batch
from panda_rnnt.doctor.checks.check import (
    Check,
    Finding,
    convention,
    failed,
    not_applicable,
    passed,
)
from panda_rnnt.doctor.checks.values import explain_values
from panda_rnnt.doctor.reference import Definition
from panda_rnnt.doctor.subject import Subject, deviation, reduction_weights

__all__ = ["CHECKS"]

SIGMA = 0.1


def blank_option(subject: Subject) -> Finding:
    """Compares losses for the first and the last class as blank."""
    if "blank" not in subject.roles or subject.definition.big_blanks:
        return not_applicable("the function has no option for the class of the blank")
    errors = []
    for blank in (0, CLASSES - 1):
        changed = dataclasses.replace(
            subject, definition=dataclasses.replace(subject.definition, blank=blank)
        )
        batch = random_batch(changed.definition, seed=6)
        found, expected = changed.values(batch), changed.expected(batch).losses
        errors.append(deviation(found, expected))
        if not errors[-1] <= subject.tolerance:
            text = explain_values(changed, batch, found, expected)
            return failed(f"with blank {blank}, {text}", errors[-1])
    return passed("the first and the last class can be the blank", max(errors))


def sigma_option(subject: Subject) -> Finding:
    """Compares losses with logit under-normalization."""
    if "sigma" not in subject.roles:
        return not_applicable("the function has no option for logit under-normalization")
    definition = dataclasses.replace(subject.definition, sigma=SIGMA)
    changed = dataclasses.replace(subject, definition=definition)
    batch = random_batch(definition, seed=7)
    found, expected = changed.values(batch), changed.expected(batch).losses
    error = deviation(found, expected)
    if error <= subject.tolerance:
        return passed("sigma is subtracted from the log-probability of each token", error)
    return failed(f"with sigma {SIGMA}, {explain_values(changed, batch, found, expected)}", error)


def fastemit(subject: Subject) -> Finding:
    """Compares value and gradient with FastEmit (arXiv 2010.11148)."""
    factor = subject.definition.label_factor
    if factor == 1.0:
        if "fastemit" not in subject.roles:
            return not_applicable("the function has no option for FastEmit")
        factor = 1.0 + subject.fastemit
    strength = factor - 1.0
    definition = dataclasses.replace(subject.definition, label_factor=factor)
    batch = random_batch(definition, seed=8)
    expected, found = subject.expected(batch, definition), subject.compute(batch, definition)
    value_error = deviation(found.values, expected.losses)
    gradient_error = deviation(found.gradient, expected.gradient)
    scales_value = deviation(found.values, factor * expected.losses) <= subject.tolerance
    problems: list[str] = []
    conventions: list[str] = []
    if scales_value and subject.signature.scales_value:
        conventions.append("the value is (1 + lambda) times -log P, as in warp-transducer and NeMo")
    elif scales_value:
        problems.append(
            "the value is 1 + lambda times -log P: FastEmit changes the gradient only, and values of runs "
            "with different lambdas cannot be compared"
        )
    elif value_error > subject.tolerance:
        problems.append("the value is not -log P: FastEmit changes the gradient only")
    durations_too = dataclasses.replace(definition, duration_factor=factor)
    if gradient_error <= subject.tolerance:
        pass
    elif deviation(found.gradient, subject.expected(batch, durations_too).gradient) <= subject.tolerance:
        conventions.append("the durations of labels are scaled in addition to their tokens")
    else:
        problems.append(_explain_fastemit(subject, definition, batch, found.gradient, strength))
    error = max(value_error, gradient_error)
    if problems:
        return failed(f"with lambda {strength:g}, {'; '.join(problems)}", error)
    if conventions:
        return convention(
            f"the gradient of labels is scaled by 1 + lambda; {' and '.join(conventions)}", error
        )
    return passed(
        "FastEmit scales the gradient of labels by 1 + lambda; value and blanks are unchanged", error
    )


def _explain_fastemit(
    subject: Subject, definition: Definition, batch: Batch, found: Tensor, strength: float
) -> str:
    factor, change = 1.0 + strength, dataclasses.replace
    variants = {
        "the token gradient of blanks is scaled by 1 + lambda too, so labels are not favored": change(
            definition, blank_factor=factor
        ),
        "the gradient of labels is not scaled: lambda has no influence": change(definition, label_factor=1.0),
        "the gradient of blanks is scaled by 1 + lambda, and that of labels is not, so labels become later": (
            change(definition, label_factor=1.0, blank_factor=factor)
        ),
        "the gradient of labels is scaled by lambda, not by 1 + lambda": change(
            definition, label_factor=strength
        ),
        "the gradient of labels is divided by 1 + lambda": change(definition, label_factor=1 / factor),
    }
    plain = subject.expected(batch, change(definition, label_factor=1.0)).gradient
    if deviation(found, factor * plain) <= 1e-4:
        return (
            "the whole gradient is scaled by 1 + lambda, blanks included, which is a larger learning rate "
            "and makes no label earlier"
        )
    for sentence, wrong in variants.items():
        if deviation(found, subject.expected(batch, wrong).gradient) <= 1e-4:
            return sentence
    return "the gradient is not that of FastEmit, 1 + lambda times the part of the labels"


def reductions(subject: Subject) -> Finding:
    """Compares the values of the reductions ``sum`` and ``mean``."""
    batch = random_batch(subject.definition, seed=9)
    losses = dataclasses.replace(subject, settings=dataclasses.replace(subject.settings, result="none"))
    expected = losses.expected(batch).losses
    if "reduction" not in subject.roles:
        result = subject.settings.result
        if result in ("none", "sum", "mean"):
            return passed(f"the function has one reduction, {result}")
        return convention(f"the function has one reduction: {_describe(result)}")
    names = {}
    for reduction in ("sum", "mean"):
        settings = dataclasses.replace(subject.settings, reduction=reduction, result="unknown")
        try:
            found = dataclasses.replace(subject, settings=settings).values(batch)
        except Exception:
            # Functions need not have every reduction.
            continue
        names[reduction] = _name_reduction(found, expected, batch, subject.tolerance)
    if not names:
        return convention("the function has neither of the reductions 'sum' and 'mean'")
    unknown = [reduction for reduction, name in names.items() if not name]
    if unknown:
        return failed(f"reduction {' and '.join(map(repr, unknown))} is no sum or mean of the losses")
    if names.get("sum", "sum") != "sum":
        return failed(f"reduction 'sum' returns {_describe(names['sum'])}")
    if names.get("mean", "mean") != "mean":
        return convention(
            f"reduction 'mean' returns {_describe(names['mean'])}, not the mean over utterances"
        )
    return passed(f"reduced over the utterances: {' and '.join(map(repr, names))}")


def _name_reduction(found: Tensor, expected: Tensor, batch: Batch, tolerance: float) -> str:
    if found.numel() != 1:
        return ""
    for name in ("sum", "mean", "mean_per_target", "mean_volume", "mean_per_frame"):
        if deviation(found, (expected * reduction_weights(name, batch)).sum()[None]) <= 10 * tolerance:
            return name
    return ""


def _describe(reduction: str) -> str:
    return {
        "sum": "the sum of the losses",
        "mean": "the mean over utterances",
        "mean_per_target": "the mean over utterances of the loss divided by its number of labels",
        "mean_volume": "the sum of the losses divided by the number of labels of the batch",
        "mean_per_frame": "the mean over utterances of the loss divided by its number of frames",
    }[reduction]


def upstream_gradient(subject: Subject) -> Finding:
    """Compares gradients of differently weighted losses."""
    batch = random_batch(subject.definition, seed=10)
    count = batch.size if subject.settings.result == "none" else 1
    weights = torch.tensor([-3.0, 0.5, 0.0][:count], dtype=torch.float64)
    expected = subject.expected(batch, weights=weights).gradient
    found = subject.compute(batch, weights=weights).gradient
    plain = subject.compute(batch).gradient
    error = deviation(found, expected)
    if error <= 10 * subject.tolerance:
        return passed("the gradient is scaled by the gradient of the result", error)
    if deviation(found, plain) <= subject.tolerance:
        return failed(
            "the gradient ignores that of the result: scaled losses, AMP and sums of losses train wrongly",
            error,
        )
    scaled = plain * weights.reshape([-1] + [1] * (plain.dim() - 1))
    if deviation(found, scaled) <= 10 * subject.tolerance:
        return passed("the gradient is scaled by the gradient of the result, but see the reference gradient")
    return failed(
        "the gradient is not proportional to that of the result, which AMP and sums of losses need", error
    )


CHECKS = (
    Check("blank option", blank_option, "models put the blank first or last"),
    Check(
        "sigma",
        sigma_option,
        "the option must have its meaning",
        frozenset({"tdt", "multi_blank"}) | {"rnnt"},
    ),
    Check("FastEmit", fastemit, "the option must have its meaning"),
    Check("reductions", reductions, "the learning rate depends on it"),
    Check("upstream gradient", upstream_gradient, "AMP and sums of losses need it"),
)
