"""Input that has no loss, or that few callers test."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from panda_rnnt.doctor.batch import Batch
from panda_rnnt.doctor.batches import random_batch
from panda_rnnt.doctor.checks.check import Check, Finding, convention, failed, not_applicable, passed
from panda_rnnt.doctor.reference import Definition, has_path
from panda_rnnt.doctor.subject import Subject, deviation

__all__ = ["CHECKS"]


def empty_targets(subject: Subject) -> Finding:
    """Compares an utterance without labels in a batch."""
    batch = random_batch(subject.definition, seed=30, lengths=[(8, 3), (4, 0)])
    found, expected = subject.compute(batch), subject.expected(batch)
    error = max(deviation(found.values, expected.losses), deviation(found.gradient, expected.gradient))
    if error <= subject.tolerance:
        return passed("an utterance without labels has the loss of its blanks", error)
    if subject.settings.result != "none" and not found.values.isfinite().all():
        return failed(
            "an utterance without labels makes the reduced loss infinite: division by 0 labels", error
        )
    return failed(
        "the loss of an utterance without labels is wrong, and silence occurs in training data", error
    )


def no_labels(subject: Subject) -> Finding:
    """Compares a batch without any label, whose targets have the shape ``[B, 0]``."""
    batch = random_batch(subject.definition, seed=31, lengths=[(4, 0), (3, 0)])
    found, expected = subject.compute(batch), subject.expected(batch)
    error = max(deviation(found.values, expected.losses), deviation(found.gradient, expected.gradient))
    if error <= subject.tolerance:
        return passed("a batch without labels has the losses of its blanks", error)
    return failed("the losses of a batch without labels are wrong", error)


def empty_batch(subject: Subject) -> Finding:
    """Calls the function with no utterance."""
    batch = random_batch(subject.definition, seed=32).select([])
    settings = dataclasses.replace(subject.settings, result="unknown")
    values = dataclasses.replace(subject, settings=settings).values(batch)
    if values.numel() and not values.isfinite().all():
        return convention("the mean of an empty batch is NaN or infinite, as that of torch")
    return passed("an empty batch has no loss, or the loss 0")


def _refusal(subject: Subject, batch: Batch, what: str, harm: str) -> Finding:
    """Fails if the function returns a loss; exceptions become a pass by the check."""
    values = subject.compute(batch).values
    first = float(values[0])
    return failed(f"{what} is accepted, with the loss {first:.4g}: {harm}")


def no_frames(subject: Subject) -> Finding:
    """Calls the function with tensors of no frame."""
    batch = random_batch(subject.definition, seed=40, lengths=[(0, 1), (0, 2)], needs_path=False)
    return _without_frames(subject, batch, "a batch without frames")


def utterance_without_frames(subject: Subject) -> Finding:
    """Calls the function with an utterance of 0 frames in a batch."""
    batch = random_batch(subject.definition, seed=41, lengths=[(8, 3), (0, 1)], needs_path=False)
    return _without_frames(subject, batch, "an utterance of 0 frames")


def _without_frames(subject: Subject, batch: Batch, what: str) -> Finding:
    found = subject.compute(batch)
    value = float(found.values[-1])
    if not found.gradient.isfinite().all():
        return failed(f"{what} makes the gradient NaN")
    if value == math.inf or value > 1e3:
        return passed(f"{what} has the loss {value:.4g}, and a finite gradient")
    if value == 0.0:
        return convention(f"{what} has the loss 0, although its labels have no path")
    return failed(f"{what} has the loss {value:.4g}, although its labels have no path")


def label_is_blank(subject: Subject) -> Finding:
    """Passes the blank as a label."""
    batch = random_batch(subject.definition, seed=33)
    targets = batch.targets.clone()
    targets[0, 1] = subject.definition.blank
    found = subject.compute(dataclasses.replace(batch, targets=targets))
    if not found.values.isfinite().all() or not found.gradient.isfinite().all():
        return failed("a label that is the blank gives a loss or gradient that is not finite")
    return convention(
        "a label that is the blank is accepted, so that an error in the data, such as a shifted vocabulary, "
        "is not noticed"
    )


def label_beyond_classes(subject: Subject) -> Finding:
    """Passes a label that is no class."""
    batch = random_batch(subject.definition, seed=34)
    targets = batch.targets.clone()
    targets[0, 1] = batch.scores.shape[-1] - subject.definition.num_durations
    changed = dataclasses.replace(batch, targets=targets)
    return _refusal(subject, changed, "a label beyond the classes", "memory of other scores is read")


def negative_label(subject: Subject) -> Finding:
    """Passes -1 as a label."""
    batch = random_batch(subject.definition, seed=35)
    targets = batch.targets.clone()
    targets[0, 1] = -1
    changed = dataclasses.replace(batch, targets=targets)
    return _refusal(subject, changed, "the label -1", "memory of other scores is read")


def length_beyond_frames(subject: Subject) -> Finding:
    """Passes a number of frames beyond the scores."""
    batch = random_batch(subject.definition, seed=36)
    lengths = batch.logit_lengths.clone()
    lengths[0] = batch.scores.shape[1] + 3
    changed = dataclasses.replace(batch, logit_lengths=lengths)
    return _refusal(subject, changed, "a length beyond the frames", "memory of other scores is read")


def length_beyond_labels(subject: Subject) -> Finding:
    """Passes a number of labels beyond the targets."""
    batch = random_batch(subject.definition, seed=37)
    lengths = batch.target_lengths.clone()
    lengths[1] = batch.targets.shape[1] + 2
    changed = dataclasses.replace(batch, target_lengths=lengths)
    return _refusal(
        subject, changed, "a number of labels beyond the targets", "memory of other labels is read"
    )


def no_path(subject: Subject) -> Finding:
    """Passes an utterance with too few frames for its labels, next to a possible one."""
    definition = _definition_without_path(subject)
    lengths = [(8, 2), (2, 4)]
    batch = random_batch(definition, seed=38, lengths=lengths, needs_path=False)
    if has_path(definition, *batch.utterance(1)) or not has_path(definition, *batch.utterance(0)):
        return not_applicable("every number of labels has a path")
    changed = dataclasses.replace(subject, definition=definition)
    found, expected = changed.compute(batch), changed.expected(batch)
    if not found.gradient.isfinite().all():
        return failed(
            "an utterance with too few frames for its labels makes the gradient NaN, and one such utterance "
            "destroys the weights"
        )
    if subject.settings.result != "none":
        return passed("an utterance with too few frames for its labels leaves the gradient finite")
    error = deviation(found.gradient[0], expected.gradient[0])
    if error > subject.tolerance:
        return failed("an utterance without a path changes the gradient of another one", error)
    value = float(found.values[1])
    if value == math.inf:
        return passed(
            "an utterance with too few frames for its labels has the loss +inf, and no gradient", error
        )
    if value == 0.0 or value > 1e3:
        return convention(
            f"an utterance with too few frames for its labels has the loss {value:.4g}, not +inf", error
        )
    return failed(
        f"an utterance with too few frames for its labels has the loss {value:.4g}: no path exists", error
    )


def _definition_without_path(subject: Subject) -> Definition:
    """Returns durations without 0 for a TDT loss that has them as an option."""
    if subject.definition.loss == "tdt" and "durations" in subject.roles:
        return dataclasses.replace(subject.definition, durations=(1, 2))
    return subject.definition


def nan_scores(subject: Subject) -> Finding:
    """Passes NaN in a site that is used."""
    batch = random_batch(subject.definition, seed=39)
    scores = batch.scores.clone()
    scores[0, 1] = math.nan
    values = subject.compute(batch.with_scores(scores)).values
    if not values.isfinite().all():
        return passed("NaN in a site that is used gives a loss that is not finite")
    return failed("NaN in a site that is used gives a finite loss, which hides a diverged model")


def _bad(
    name: str, run: Callable[[Subject], Finding], importance: str, *, is_isolated: bool = False
) -> Check:
    """Returns a check of input that may be refused, by an exception."""
    return Check(name, run, importance, is_required=False, is_isolated=is_isolated, on_exception="pass")


CHECKS = (
    Check("empty targets", empty_targets, "silence occurs in training data"),
    Check(
        "no labels in the batch",
        no_labels,
        "small batches of silence stop a training run",
        is_required=False,
    ),
    _bad("empty batch", empty_batch, "the last shard of a data set may be empty"),
    _bad("label = blank", label_is_blank, "such a label is an error in the data"),
    # A function without checks may write outside of its memory here.
    _bad("label beyond the classes", label_beyond_classes, "it is an error in the data", is_isolated=True),
    _bad("negative label", negative_label, "it is an error in the data", is_isolated=True),
    _bad("length beyond the frames", length_beyond_frames, "it is an error of the caller", is_isolated=True),
    _bad("length beyond the labels", length_beyond_labels, "it is an error of the caller", is_isolated=True),
    _bad(
        "utterance without frames",
        utterance_without_frames,
        "a data filter can produce such a batch",
        is_isolated=True,
    ),
    _bad("no frames in the batch", no_frames, "a data filter can produce such a batch", is_isolated=True),
    Check(
        "no path",
        no_path,
        "one utterance with a wrong transcript stops a training run",
        is_required=False,
        on_exception="differs by convention",
    ),
    _bad("NaN in scores", nan_scores, "NaN must not be hidden"),
)
