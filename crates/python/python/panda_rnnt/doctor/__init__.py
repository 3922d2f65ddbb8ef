"""Grades transducer and CTC losses for PyTorch.

``python -m panda_rnnt.doctor torchaudio.functional:rnnt_loss`` prints a table of checks and exits
with 0 if all required ones pass. :func:`examine` returns the same :class:`Report`.

A loss is compared with a float64 sum over all paths of the lattice, with stored numbers, and with
itself: finite differences, padding, composition and order of the batch, scale and shift. A failed
check names the mistake where it is a known one.
"""

from __future__ import annotations

from panda_rnnt.doctor.examination import examine
from panda_rnnt.doctor.report import Report, Result, Verdict
from panda_rnnt.doctor.signatures import SIGNATURES

__all__ = ["SIGNATURES", "Report", "Result", "Verdict", "examine"]
