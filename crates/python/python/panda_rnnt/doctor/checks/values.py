"""Losses and gradients against the reference, stored numbers and finite differences."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from panda_rnnt.doctor.batches import (
    Batch,
    patterned_batch,
    random_batch,
    stored_loss,
    uniform_batch,
    uniform_loss,
)
from panda_rnnt.doctor.checks.check import Check, Finding, failed, not_applicable, passed
from panda_rnnt.doctor.reference import Answer, Definition
from panda_rnnt.doctor.subject import Subject, deviation, reduction_weights
from panda_rnnt.doctor.variants import wrong_definitions

__all__ = ["CHECKS", "explain_gradient", "explain_values"]


def uniform_scores(subject: Subject) -> Finding:
    """Compares the loss of equal scores with the number of paths."""
    batch = uniform_batch(subject.definition)
    expected = uniform_loss(subject.definition, batch) * reduction_weights(subject.settings.result, batch)
    error = deviation(subject.values(batch), expected)
    if error <= subject.tolerance:
        return passed("the loss of equal scores follows from the number of paths", error)
    return failed(
        f"the loss of equal scores is not -log of the sum over all paths, {float(expected):.6f}", error
    )


def stored_number(subject: Subject) -> Finding:
    """Compares with a number that does not depend on the reference of this package."""
    loss = stored_loss(subject.definition)
    if loss is None:
        return not_applicable("no number is stored for these durations")
    batch = patterned_batch(subject.definition)
    expected = loss * reduction_weights(subject.settings.result, batch)
    error = deviation(subject.values(batch), expected)
    if error <= subject.tolerance:
        return passed("the loss of a stored example is right", error)
    return failed(f"the loss of a stored example is not {float(expected):.6f}", error)


def reference_values(subject: Subject) -> Finding:
    """Compares losses with the float64 reference; a mismatch is compared with wrong definitions."""
    batch = random_batch(subject.definition)
    found, expected = subject.values(batch), subject.expected(batch).losses
    error = deviation(found, expected)
    if error <= subject.tolerance:
        return passed("losses of random scores equal the float64 reference", error)
    return failed(explain_values(subject, batch, found, expected), error)


def explain_values(subject: Subject, batch: Batch, found: Tensor, expected: Tensor) -> str:
    """Describes the mistake in losses."""
    if not found.isfinite().all():
        return "losses of ordinary scores are not finite"
    tolerance = 1e-4
    if deviation(found, -expected) <= tolerance:
        return "the value is log P, not -log P: an optimizer would minimize the probability"
    for sentence, wrong in wrong_definitions(subject.definition, _classes(batch, subject.definition)):
        if deviation(found, subject.expected(batch, wrong).losses) <= tolerance:
            return sentence
    if subject.definition.loss == "tdt" and _is_regularized_rnnt(subject, batch):
        return (
            "this is an RNN-T loss with a regularizer of the durations: the durations do not move along the "
            "lattice, so they learn no alignment"
        )
    ratios = found / expected
    if deviation(ratios, ratios[:1].expand_as(ratios)) <= tolerance and len(ratios) > 1:
        return f"losses are {float(ratios[0]):.6g} times -log P"
    for name, lengths in (("frames", batch.logit_lengths), ("labels", batch.target_lengths)):
        if deviation(found * lengths, expected) <= tolerance:
            return f"losses are divided by the number of {name}, although no reduction was requested"
    return "losses differ from -log of the sum over all paths, and equal no known variant"


def _classes(batch: Batch, definition: Definition) -> int:
    return batch.scores.shape[-1] - definition.num_durations


def _is_regularized_rnnt(subject: Subject, batch: Batch) -> bool:
    """Returns True if the gradient of the tokens is that of the RNN-T loss."""
    rnnt = dataclasses.replace(subject.definition, loss="rnnt", durations=(), sigma=0.0)
    classes = _classes(batch, subject.definition)
    tokens = batch.with_scores(batch.scores[..., :classes])
    expected = dataclasses.replace(subject, definition=rnnt).expected(tokens).gradient
    return deviation(subject.compute(batch).gradient[..., :classes], expected) <= 1e-4


def reference_gradient(subject: Subject) -> Finding:
    """Compares the gradient with the float64 reference."""
    batch = random_batch(subject.definition, seed=1)
    expected = subject.expected(batch)
    found = subject.compute(batch).gradient
    error = deviation(found, expected.gradient)
    if error <= subject.tolerance:
        return passed("the gradient equals the float64 reference", error)
    return failed(explain_gradient(batch, found, expected), error)


def explain_gradient(batch: Batch, found: Tensor, expected: Answer) -> str:
    """Describes the mistake in a gradient."""
    padding = batch.padding()
    if not found.isfinite().all():
        where = "in padded sites" if found[~padding].isfinite().all() else "of sites that are used"
        return f"the gradient {where} is not finite, so one step destroys the weights"
    tolerance = 1e-4
    if deviation(found.masked_fill(padding, 0.0), expected.gradient) <= tolerance:
        return "only the gradient of padded sites is wrong: it is not 0, so padding trains the model"
    if deviation(found, -expected.gradient) <= tolerance:
        return "the gradient has the wrong sign"
    if deviation(found, expected.column_gradient) <= tolerance:
        return (
            "the gradient is that of the log-probabilities, not of the scores: the backward pass of the "
            "softmax is missing"
        )
    scale = float((found * expected.gradient).sum() / (expected.gradient**2).sum())
    if scale != 0.0 and deviation(found / scale, expected.gradient) <= tolerance:
        return f"the gradient is {scale:.6g} times the right one, which changes the learning rate"
    return "the gradient differs from that of the reference, so training minimizes something else"


def finite_differences(subject: Subject) -> Finding:
    """Compares directional derivatives with differences of the function's values."""
    if subject.definition.label_factor != 1.0 and "fastemit" not in subject.roles:
        return not_applicable("with FastEmit, the gradient is not the derivative of the value")
    batch = random_batch(subject.definition, seed=2)
    scores = subject.cast(batch).scores.double()
    # The gradient of padding is the subject of other checks.
    gradient = subject.compute(batch).gradient.masked_fill(batch.padding(), 0.0)
    is_double = subject.settings.dtype == torch.float64
    step, tolerance = (1e-3, 1e-7) if is_double else (2e-2, 5e-3)
    generator = torch.Generator().manual_seed(0)
    error = 0.0
    for direction_index in range(6):
        direction = torch.randn(scores.shape, generator=generator, dtype=torch.float64).sign()
        if direction_index >= 3:
            # A few elements, so that errors of large opposite elements do not cancel.
            direction *= torch.rand(scores.shape, generator=generator, dtype=torch.float64) < 0.02
        direction = direction.masked_fill(batch.padding(), 0.0)

        def value(distance: float, direction: Tensor = direction) -> float:
            return float(subject.values(batch.with_scores(scores + distance * direction)).sum())

        near, far = value(step) - value(-step), value(2 * step) - value(-2 * step)
        slope = (8 * near - far) / (12 * step)
        expected = float((gradient * direction).sum())
        difference = abs(slope - expected) / max(1.0, abs(slope))
        error = max(error, difference if math.isfinite(difference) else math.inf)
    if error <= tolerance:
        return passed("the gradient is the derivative of the value (finite differences)", error)
    return failed("the gradient is not the derivative of the value, so an optimizer does not descend", error)


CHECKS = (
    Check("equal scores", uniform_scores, "the sum over paths is wrong"),
    Check("stored example", stored_number, "the loss is wrong"),
    Check("reference losses", reference_values, "the loss is wrong"),
    Check("reference gradient", reference_gradient, "training needs the gradient"),
    Check("finite differences", finite_differences, "training needs the gradient"),
)
