"""Changes of a batch that must not change its losses."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from panda_rnnt.doctor.batch import Batch
from panda_rnnt.doctor.batches import random_batch
from panda_rnnt.doctor.checks.check import Check, Finding, convention, failed, not_applicable, passed
from panda_rnnt.doctor.subject import Found, Subject, deviation, reduction_weights

__all__ = ["CHECKS"]


def shift(subject: Subject) -> Finding:
    """Adds a constant to all scores of a softmax, a different one at each site."""
    batch = random_batch(subject.definition, seed=11)
    classes = batch.scores.shape[-1] - subject.definition.num_durations
    generator = torch.Generator().manual_seed(1)
    offsets = 3 * torch.randn((*batch.scores.shape[:-1], 2), generator=generator, dtype=torch.float64)
    tokens = offsets[..., :1].expand(*offsets.shape[:-1], classes).clone()
    if subject.definition.loss == "hat":
        # The blank has a sigmoid, which a constant changes.
        tokens[..., subject.definition.blank] = 0.0
    durations = offsets[..., 1:].expand(*offsets.shape[:-1], subject.definition.num_durations)
    values = subject.values(batch)

    def error(*parts: Tensor) -> float:
        return deviation(subject.values(batch.with_scores(batch.scores + torch.cat(parts, -1))), values)

    separate = error(tokens, durations)
    if separate <= 10 * subject.tolerance:
        return passed("a constant added to all scores of a softmax does not change the loss", separate)
    if subject.definition.num_durations:
        joint = error(tokens, offsets[..., :1].expand(durations.shape))
        if joint <= 10 * subject.tolerance:
            return failed(
                "only a constant added to tokens and durations together leaves the loss unchanged: they "
                "share one softmax, so tokens and durations compete for probability",
                separate,
            )
    return failed(
        "a constant added to all scores of a site changes the loss: no softmax normalizes the scores",
        separate,
    )


def batch_composition(subject: Subject) -> Finding:
    """Compares the losses of a batch with those of each utterance, without padding."""
    batch = random_batch(subject.definition, seed=12)
    found = subject.compute(batch)
    weights = reduction_weights(subject.settings.result, batch)
    values, error = [], 0.0
    for b in range(batch.size):
        one = batch.alone(b)
        alone = subject.compute(one)
        # The reduction of a batch, from the reduction of batches of one utterance.
        factor = float(weights[b] / reduction_weights(subject.settings.result, one)[0])
        values.append(alone.values * factor)
        part = found.gradient[b : b + 1, : one.scores.shape[1]]
        if not batch.is_ctc:
            part = part[:, :, : one.scores.shape[2]]
        error = max(error, deviation(part, alone.gradient * factor))
    expected = torch.cat(values)
    if subject.settings.result != "none":
        expected = expected.sum()[None]
    error = max(error, deviation(found.values, expected))
    if error <= subject.tolerance:
        return passed("losses and gradients do not depend on the other utterances of the batch", error)
    return failed(
        "the loss of an utterance depends on the other utterances, or on the padding of a batch", error
    )


def permutation(subject: Subject) -> Finding:
    """Compares the losses of a batch in another order."""
    batch = random_batch(subject.definition, seed=13)
    order = [2, 0, 1]
    found, expected = subject.compute(batch.select(order)), subject.compute(batch)
    values = expected.values[order] if subject.settings.result == "none" else expected.values
    error = max(deviation(found.values, values), deviation(found.gradient, expected.gradient[order]))
    if error <= subject.tolerance:
        return passed("another order of the utterances gives the same losses and gradients", error)
    return failed(
        "the order of the utterances changes losses or gradients, for example by wrong lengths", error
    )


def padding_values(subject: Subject) -> Finding:
    """Replaces the scores of padded sites by large ones."""
    batch = random_batch(subject.definition, seed=14)
    values = subject.compute(batch).values
    changed = batch.with_scores(torch.where(batch.padding(), 40.0 * batch.scores, batch.scores))
    error = deviation(subject.compute(changed).values, values)
    if error <= subject.tolerance:
        return passed("scores of padded sites do not change the loss", error)
    return failed("padding leaks: scores of padded sites change the loss", error)


def padding_gradient(subject: Subject) -> Finding:
    """Tests that the gradient of padded sites is exactly 0."""
    batch = random_batch(subject.definition, seed=15)
    gradient = subject.compute(batch).gradient[batch.padding()]
    error = float(gradient.abs().nan_to_num(math.inf).max())
    if error == 0.0:
        return passed("the gradient of padded sites is exactly 0", error)
    if not gradient.isfinite().all():
        return failed("padding leaks: the gradient of padded sites is NaN, and destroys the weights", error)
    return failed("padding leaks: the gradient of padded sites is not 0, so padding trains the model", error)


def nan_in_padding(subject: Subject) -> Finding:
    """Fills padded sites with NaN."""
    batch = random_batch(subject.definition, seed=16)
    expected = subject.compute(batch)
    found = subject.compute(batch.with_scores(batch.scores.masked_fill(batch.padding(), math.nan)))
    error = deviation(found.values, expected.values)
    if error > subject.tolerance:
        return failed("padding leaks: NaN in padded sites changes the loss", error)
    return _compare_gradients(batch, found, expected, subject.tolerance)


def _compare_gradients(batch: Batch, found: Found, expected: Found, tolerance: float) -> Finding:
    padding = batch.padding()
    error = deviation(found.gradient, expected.gradient)
    if not found.gradient[~padding].isfinite().all():
        return failed("padding leaks: NaN in padded sites makes the gradient of other sites NaN", error)
    if not found.gradient[padding].isfinite().all():
        return failed("padding leaks: NaN in padded sites makes their gradient NaN, 0 times NaN", error)
    if error > tolerance:
        return failed("padding leaks: NaN in padded sites changes the gradient", error)
    return passed("NaN in padded sites changes neither losses nor gradients", error)


def larger_padding(subject: Subject) -> Finding:
    """Pads all utterances beyond the longest."""
    batch = random_batch(subject.definition, seed=17)
    shape = list(batch.scores.shape)
    for axis in (1,) if batch.is_ctc else (1, 2):
        shape[axis] += 2
    scores = batch.scores.new_zeros(shape)
    inside = tuple(slice(n) for n in batch.scores.shape)
    scores[inside] = batch.scores
    targets = torch.cat([batch.targets, batch.targets[:, :1].expand(-1, 2)], 1)
    larger = dataclasses.replace(batch, scores=scores, targets=targets)
    expected, found = subject.compute(batch), subject.compute(larger)
    error = max(
        deviation(found.values, expected.values), deviation(found.gradient[inside], expected.gradient)
    )
    if error <= subject.tolerance:
        return passed("tensors may be larger than the longest utterance", error)
    return failed(
        "a tensor larger than the longest utterance changes the loss: its size is used as a length", error
    )


def target_padding(subject: Subject) -> Finding:
    """Fills padded labels with -100."""
    batch = random_batch(subject.definition, seed=18)
    is_padding = torch.arange(batch.targets.shape[1]) >= batch.target_lengths[:, None]
    changed = dataclasses.replace(batch, targets=batch.targets.masked_fill(is_padding, -100))
    expected, found = subject.compute(batch), subject.compute(changed)
    error = max(deviation(found.values, expected.values), deviation(found.gradient, expected.gradient))
    if error <= subject.tolerance:
        return passed("padding of the labels such as -100 is not read", error)
    return failed("padded labels of -100 change the loss or its gradient", error)


def memory_layout(subject: Subject) -> Finding:
    """Passes tensors that are not contiguous."""
    if subject.signature.is_log_softmax or "encoded" in subject.roles:
        return not_applicable("the scores are rearranged before the call")
    batch = random_batch(subject.definition, seed=19)
    expected = subject.compute(batch).values
    cast = subject.cast(batch)
    strided = cast.with_scores(cast.scores.transpose(0, 1).contiguous().transpose(0, 1))
    # A part of a batch: torch ignores the strides of its first axis, of size 1.
    one = cast.alone(0)
    part = dataclasses.replace(one, targets=batch.targets[:1, : one.targets.shape[1]])
    with torch.no_grad():
        error = deviation(subject.call(strided).double(), expected)
        error = max(error, deviation(subject.call(part), subject.call(one)))
    if error <= subject.tolerance:
        return passed("scores and labels need not be contiguous", error)
    return failed("tensors that are not contiguous give another loss: strides are ignored", error)


def index_types(subject: Subject) -> Finding:
    """Passes labels and lengths as the other integer type."""
    batch = random_batch(subject.definition, seed=20)
    expected = subject.compute(batch).values
    is_long = subject.settings.index_dtype == torch.int64
    other = dataclasses.replace(subject.settings, index_dtype=torch.int32 if is_long else torch.int64)
    error = deviation(dataclasses.replace(subject, settings=other).values(batch), expected)
    if error <= subject.tolerance:
        return passed("labels and lengths are int32 or int64", error)
    return failed("int32 and int64 labels give different losses: the memory is misread", error)


def double_precision(subject: Subject) -> Finding:
    """Reports whether float64 scores give a result of that precision."""
    if subject.settings.dtype == torch.float64:
        return passed("float64 scores give float64 losses")
    return convention(
        "losses are computed in float32 at most, so that torch.autograd.gradcheck cannot be used"
    )


def repetition(subject: Subject) -> Finding:
    """Calls the function twice, and tests that its arguments are unchanged."""
    batch = subject.cast(random_batch(subject.definition, seed=21))
    copied = batch.scores.clone()
    first, second = subject.compute(batch), subject.compute(batch)
    error = max(deviation(second.values, first.values), deviation(second.gradient, first.gradient))
    with torch.no_grad():
        subject.call(batch)
    if not torch.equal(batch.scores, copied):
        return failed("the function writes to its scores, which other operations may need")
    if error <= subject.tolerance:
        return passed("a second call gives the same loss and gradient", error)
    return failed("a second call gives another loss: the function keeps a state", error)


def large_scores(subject: Subject) -> Finding:
    """Multiplies the scores by 100, which an unstable log-softmax does not survive."""
    batch = random_batch(subject.definition, seed=22)
    batch = batch.with_scores(100.0 * batch.scores)
    found, expected = subject.compute(batch), subject.expected(batch)
    error = deviation(found.values, expected.losses)
    if not found.values.isfinite().all() or not found.gradient.isfinite().all():
        return failed("scores of several hundreds overflow: the loss or its gradient is not finite", error)
    if error <= 1e-4:
        return passed("the loss of scores of several hundreds is exact", error)
    return failed("the loss of scores of several hundreds is inexact", error)


def half_precision(subject: Subject) -> Finding:
    """Passes float16 scores."""
    if subject.signature.is_log_softmax:
        return not_applicable("the caller computes the log-softmax, and chooses its type")
    batch = random_batch(subject.definition, seed=23)
    half = dataclasses.replace(subject.settings, dtype=torch.float16)
    changed = dataclasses.replace(subject, settings=half)
    found, expected = changed.compute(batch), changed.expected(batch)
    error = max(deviation(found.values, expected.losses), deviation(found.gradient, expected.gradient))
    if error <= 1e-2:
        return passed("float16 scores give losses and gradients of that precision", error)
    return failed(
        "float16 scores give wrong losses or gradients: sums of log-probabilities need float32", error
    )


CHECKS = (
    Check("shift of scores", shift, "the scores must be normalized"),
    Check("batch composition", batch_composition, "batches would train other models than utterances"),
    Check("permutation", permutation, "utterances would be mixed up"),
    Check("padding values", padding_values, "padding would train the model"),
    Check("padding gradient", padding_gradient, "padding would train the model"),
    Check("NaN in padding", nan_in_padding, "padding of masked or uninitialized memory may be NaN"),
    Check("repetition", repetition, "training would not be reproducible"),
    Check("large scores", large_scores, "trained models have such scores"),
    Check(
        "larger padding",
        larger_padding,
        "training on several devices may pad beyond the longest utterance",
        is_required=False,
        on_exception="differs by convention",
    ),
    Check(
        "padding of labels",
        target_padding,
        "-100 is the usual padding of labels",
        is_required=False,
        is_isolated=True,
        on_exception="differs by convention",
    ),
    Check(
        "memory layout",
        memory_layout,
        "transposed tensors need a copy by the caller",
        is_required=False,
        on_exception="differs by convention",
    ),
    Check(
        "index types",
        index_types,
        "labels of the other integer type need a copy by the caller",
        is_required=False,
        is_isolated=True,
        on_exception="differs by convention",
    ),
    Check("float64", double_precision, "gradcheck needs it", is_required=False),
    Check(
        "float16",
        half_precision,
        "scores of mixed precision need a conversion by the caller",
        is_required=False,
        on_exception="differs by convention",
    ),
)
