"""Checks of token-and-duration losses."""

from __future__ import annotations

import dataclasses

import torch

from panda_rnnt.doctor.batches import random_batch
from panda_rnnt.doctor.checks.check import Check, Finding, failed, not_applicable, passed
from panda_rnnt.doctor.checks.values import explain_gradient, explain_values
from panda_rnnt.doctor.reference import Definition
from panda_rnnt.doctor.subject import Subject, deviation

__all__ = ["CHECKS"]

_TDT = frozenset({"tdt"})


def lattice_has_durations(subject: Subject) -> Finding:
    """Tests that the influence of durations depends on the tokens.

    The mixed difference ``L(a, d) - L(a', d) - L(a, d') + L(a', d')`` of token scores a and duration
    scores d is 0 for a sum of a token loss and a duration loss.
    """
    first, second = random_batch(subject.definition, seed=3), random_batch(subject.definition, seed=4)
    classes = first.scores.shape[-1] - subject.definition.num_durations
    differences = []
    for is_reference in (False, True):
        total = torch.zeros(())
        for tokens, durations, sign in (
            (first, first, 1),
            (second, first, -1),
            (first, second, -1),
            (second, second, 1),
        ):
            scores = torch.cat([tokens.scores[..., :classes], durations.scores[..., classes:]], -1)
            batch = first.with_scores(scores)
            values = subject.expected(batch).losses if is_reference else subject.values(batch)
            total = total + sign * values
        differences.append(total)
    found, expected = differences
    error = deviation(found, expected)
    if error <= 10 * subject.tolerance:
        return passed("tokens and durations interact along the paths as in the reference", error)
    if float(found.abs().max()) <= 1e-3 * float(expected.abs().max()):
        return failed(
            "the loss is a sum of a token loss and a duration loss, an RNN-T loss with a duration "
            "regularizer: the durations do not move along the lattice and learn no alignment",
            error,
        )
    return failed("tokens and durations do not interact as along the paths of a TDT lattice", error)


def durations_are_frames(subject: Subject) -> Finding:
    """Compares losses for durations that differ from their indices."""
    durations = (0, 1, 3)
    if "durations" not in subject.roles:
        if _differ_from_indices(subject.definition.durations):
            return not_applicable(
                "the durations of the function are fixed, and tested by the reference losses"
            )
        return not_applicable("the durations of the function are fixed and equal their indices")
    return _compare(
        subject, durations, "durations that are not their own indices are used as numbers of frames"
    )


def durations_without_zero(subject: Subject) -> Finding:
    """Compares losses and gradients where each token advances."""
    if "durations" not in subject.roles:
        return not_applicable("the durations of the function are fixed")
    return _compare(subject, (1, 2, 3), "losses and gradients are right where no duration is 0")


def _differ_from_indices(durations: tuple[int, ...]) -> bool:
    return durations != tuple(range(len(durations)))


def _compare(subject: Subject, durations: tuple[int, ...], sentence: str) -> Finding:
    definition: Definition = dataclasses.replace(subject.definition, durations=durations)
    changed = dataclasses.replace(subject, definition=definition)
    batch = random_batch(definition, seed=5)
    expected, found = changed.expected(batch), changed.compute(batch)
    error = deviation(found.values, expected.losses)
    if not error <= subject.tolerance:
        text = explain_values(changed, batch, found.values, expected.losses)
        return failed(f"with durations {durations}, {text}", error)
    error = deviation(found.gradient, expected.gradient)
    if not error <= subject.tolerance:
        text = explain_gradient(batch, found.gradient, expected)
        return failed(f"with durations {durations}, {text}", error)
    return passed(sentence, error)


CHECKS = (
    Check("durations in the lattice", lattice_has_durations, "durations learn no alignment", _TDT),
    Check("durations are frames", durations_are_frames, "labels are aligned to wrong frames", _TDT),
    Check("durations without 0", durations_without_zero, "such models exist", _TDT),
)
