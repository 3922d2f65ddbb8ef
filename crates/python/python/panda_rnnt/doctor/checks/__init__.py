"""Checks of a loss, in the order of the report."""

from __future__ import annotations

from panda_rnnt.doctor.checks import bad_input, durations, invariants, options, values
from panda_rnnt.doctor.checks.check import Check, Finding

__all__ = ["CHECKS", "Check", "Finding"]

CHECKS: tuple[Check, ...] = (
    *values.CHECKS,
    *durations.CHECKS,
    *options.CHECKS,
    *invariants.CHECKS,
    *bad_input.CHECKS,
)
