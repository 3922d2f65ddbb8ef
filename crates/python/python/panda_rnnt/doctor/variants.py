"""Wrong definitions of a loss, which a failed check is compared with."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from panda_rnnt.doctor.reference import Definition

__all__ = ["wrong_definitions"]


def wrong_definitions(definition: Definition, classes: int) -> Iterator[tuple[str, Definition]]:
    """Yields wrong definitions, each with the sentence that describes it.

    Args:
        definition: The right one.
        classes: Number of classes without durations.
    """
    change = dataclasses.replace
    yield (
        "the scores are used as log-probabilities, without a softmax, so paths do not sum to 1",
        change(definition, normalization="none"),
    )
    if definition.loss == "tdt":
        yield from _wrong_tdt(definition)
    if definition.loss in ("rnnt", "modified", "hat", "multi_blank"):
        yield (
            "the blank that ends a path is missing, so the end of the utterance is not learned",
            change(definition, has_final_blank=False),
        )
    if definition.loss == "rnnt":
        yield (
            "a label advances a frame: this is the modified topology, which allows one label per frame",
            change(definition, loss="modified"),
        )
    if definition.loss == "modified":
        yield "a label stays on its frame: this is the RNN-T loss", change(definition, loss="rnnt")
        yield (
            "a label may not lead to the end, so the last frame needs a blank",
            change(definition, label_may_end=False),
        )
    if definition.loss == "hat":
        yield (
            "the blank shares the softmax of the labels: this is the RNN-T loss",
            change(definition, loss="rnnt"),
        )
    if definition.loss == "multi_blank":
        yield from _wrong_multi_blank(definition)
    if definition.loss == "ctc":
        yield (
            "equal neighbors need no blank between them, so their paths also spell fewer labels",
            change(definition, skips_repeats=True),
        )
    if definition.sigma:
        yield "sigma has no influence", change(definition, sigma=0.0)
    for blank in (0, classes - 1):
        if blank not in definition.blanks:
            yield f"class {blank} is used as the blank", change(definition, blank=blank)


def _wrong_tdt(definition: Definition) -> Iterator[tuple[str, Definition]]:
    change, count = dataclasses.replace, len(definition.durations)
    yield (
        "the indices of the durations are used as numbers of frames, "
        f"{tuple(range(count))} for {definition.durations}, so labels are aligned to wrong frames",
        change(definition, durations=tuple(range(count))),
    )
    yield (
        "the indices of the durations plus 1 are used as numbers of frames, "
        f"{tuple(range(1, count + 1))} for {definition.durations}, so labels are aligned to wrong frames",
        change(definition, durations=tuple(range(1, count + 1))),
    )
    yield (
        "tokens and durations share one softmax: they compete for probability, and a decoder that "
        "normalizes them separately uses another model",
        change(definition, normalization="joint"),
    )
    yield (
        "a label may lead to the end, but in the definition the last token is a blank",
        change(definition, label_may_end=True),
    )
    yield (
        "a blank may pass the end: durations are clipped to the frames that are left",
        change(definition, clips_duration=True),
    )


def _wrong_multi_blank(definition: Definition) -> Iterator[tuple[str, Definition]]:
    change, count = dataclasses.replace, len(definition.durations)
    yield (
        "big blanks advance one frame: their durations have no influence",
        change(definition, durations=(1,) * count),
    )
    yield (
        "the durations belong to the big blanks in the reverse order",
        change(definition, big_blanks=definition.big_blanks[::-1]),
    )
    yield "big blanks are not used: this is the RNN-T loss", change(definition, big_blanks=(), durations=())
    yield (
        "a big blank may pass the end: durations are clipped to the frames that are left",
        change(definition, clips_duration=True),
    )
