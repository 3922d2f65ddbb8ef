"""Speech recognition with a checkpoint of ``panda train``.

:class:`Recognizer` transcribes files and arrays, and :class:`Stream` audio that is still arriving.
Results are those of ``panda transcribe``. Arrays of NumPy and PyTorch are shared by DLPack; neither
library is needed::

    recognizer = panda_rnnt.Recognizer.from_checkpoint("runs/digits/best.safetensors")
    transcript = recognizer.transcribe("hello.flac")
    print(transcript.text, [(word.text, word.start, word.end) for word in transcript.words])
"""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, Protocol, TypeAlias, overload

from panda_rnnt import _native
from panda_rnnt._recognizer_options import (
    _characters,
    _choice,
    _count,
    _coverage_seconds,
    _exponent,
    _flag,
    _number,
    _optional,
    _path,
    _phrase_lines,
    _scripts,
    _token_lines,
)
from panda_rnnt.coverage import Coverage, _coverage

__all__ = ["Alternative", "Recognizer", "Stream", "StreamUpdate", "Token", "Transcript", "Word"]

BeamSearch = Literal["modified", "malsd", "alsd", "maes"]
"""Algorithm of a beam search.

- ``modified``: of k2's recipes, at most one label per frame; the default without durations.
- ``malsd``: of NeMo, step by step; the default for models with durations.
- ``alsd``: Saon et al. 2020.
- ``maes``: Kim et al., arXiv 2010.14606.
"""
NgramUnits = Literal["auto", "words", "tokens"]
ConfidenceMeasure = Literal[
    "max_prob", "gibbs_lin", "gibbs_exp", "tsallis_lin", "tsallis_exp", "renyi_lin", "renyi_exp"
]
"""Confidence of a token from the distribution over all classes, arXiv 2212.08703."""
WordConfidence = Literal["min", "mean", "max", "product"]
EncoderFormat = Literal["f32", "bf16", "q8"]
"""Number format of an encoder's weights and products."""

_RECORDINGS_PER_BATCH = 16
_MAX_WEIGHT = 1e6
_MAX_SECONDS = 1e9


class Samples(Protocol):
    """An array of one axis that exports DLPack: float32, float64 or int16, on the CPU."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...


Recording: TypeAlias = "str | os.PathLike[str] | Samples"
"""A path of an audio file, or samples."""


@dataclasses.dataclass(frozen=True)
class Word:
    """A word with its time.

    Args:
        text: The word.
        start: Seconds from the start of the recording to the word's first token.
        end: Seconds to the end of its last token.
        confidence: Confidence from 0 to 1, from those of its tokens.
        is_recovered: Whether the second search of a coverage found it.
    """

    text: str
    start: float
    end: float
    confidence: float
    is_recovered: bool = False


@dataclasses.dataclass(frozen=True)
class Token:
    """A token with its time.

    Args:
        text: The token.
        label: Label of the token, its index in :attr:`Recognizer.tokens`.
        frame: Encoder frame at ``start``.
        start: Seconds from the start of the recording to the token's emission.
        end: Seconds to its end: one frame, or its duration, after the emission.
        log_prob: Natural log-probability of the token where it is emitted.
        confidence: Confidence from 0 to 1.
    """

    text: str
    label: int
    frame: int
    start: float
    end: float
    log_prob: float
    confidence: float


@dataclasses.dataclass(frozen=True)
class Alternative:
    """One of the n best texts.

    Args:
        text: The text.
        score: Score by which the texts are ordered; log_prob per label unless ``by_sum``.
        log_prob: Natural log-probability of the labels, with language models and phrases.
    """

    text: str
    score: float
    log_prob: float


@dataclasses.dataclass(frozen=True)
class Transcript:
    """A recognized text.

    Args:
        text: The text.
        words: Words with their times.
        tokens: Tokens with their times.
        nbest: The n best texts, best first; empty unless ``nbest`` is above 1.
        is_silence: Whether a text was discarded by the silence filter.
        coverage: Words, silence and gaps of every second, if requested.
    """

    text: str
    words: tuple[Word, ...]
    tokens: tuple[Token, ...]
    nbest: tuple[Alternative, ...] = ()
    is_silence: bool = False
    coverage: Coverage | None = None

    @property
    def score(self) -> float:
        """Score of the best of several texts, otherwise the sum of ``log_prob`` of the tokens."""
        return self.nbest[0].score if self.nbest else sum(token.log_prob for token in self.tokens)


@dataclasses.dataclass(frozen=True)
class StreamUpdate:
    """New results of a stream.

    Args:
        words: Words that have become final.
        text: Final text of the current utterance.
        partial: Text after it that may change.
        utterances: Utterances that have ended.
    """

    words: tuple[Word, ...]
    text: str
    partial: str
    utterances: tuple[Transcript, ...]


class Recognizer:
    """A trained model with its front end, tokenizer and search.

    Threads may share a recognizer; their calls take turns, without the lock of the interpreter.
    ``panda_rnnt.set_num_threads`` sets the number of threads of each call.
    """

    def __init__(self, native: _native.Recognizer) -> None:
        self._native = native
        self._tokens = tuple(native.tokens)
        self._labels = {token: label for label, token in enumerate(self._tokens)}

    @classmethod
    def from_checkpoint(
        cls,
        path: str | os.PathLike[str],
        *,
        beam: int = 1,
        beam_search: BeamSearch | None = None,
        nbest: int = 1,
        ctc: bool = False,
        ctc_weight: float = 0.0,
        max_symbols: int | None = None,
        blank_penalty: float = 0.0,
        temperature: float = 1.0,
        by_sum: bool = False,
        lm: str | os.PathLike[str] | None = None,
        lm_weight: float = 0.2,
        minus_lm: str | os.PathLike[str] | None = None,
        minus_lm_weight: float = 0.2,
        lm_units: NgramUnits = "auto",
        unknown_character: float = -2.0,
        word_bonus: float = 0.0,
        internal_lm: float = 0.0,
        phrases: str | os.PathLike[str] | Mapping[str, float] | Iterable[str] | None = None,
        phrase_score: float = 1.0,
        allow_script: str | Iterable[str] | None = None,
        allow_characters: str | os.PathLike[str] | Iterable[str] | None = None,
        forbid_tokens: str | os.PathLike[str] | Iterable[str] | None = None,
        confidence: ConfidenceMeasure | None = None,
        confidence_exponent: float | None = None,
        word_confidence: WordConfidence = "min",
        silence: float = 0.2,
        omit_special: bool = False,
        channel: int | None = None,
        resample: bool = False,
        encoder_format: EncoderFormat | None = None,
        long: float = 60.0,
        window: float = 20.0,
        overlap: float | None = None,
    ) -> Recognizer:
        """Loads a checkpoint, with averaged weights if it has them.

        Options are those of ``panda transcribe``; an option that the search does not use is an error.

        Args:
            path: A checkpoint of ``panda train``.
            beam: Number of hypotheses; 1 is greedy search.
            beam_search: Algorithm of the beam search.
            nbest: Number of texts of a beam search that a transcript has.
            ctc: Searches with the CTC head only.
            ctc_weight: Weight of the CTC head's prefix scores in a beam search, usually 0.3.
            max_symbols: Largest number of labels per frame in greedy search and ``malsd``; 8 if None.
            blank_penalty: Subtracted from the blank's log-probability in a beam search.
            temperature: Divides the scores of the joint network in a beam search.
            by_sum: Ranks by log-probability instead of log-probability per label.
            lm: ARPA file of an n-gram of words or tokens.
            lm_weight: Weight of ``lm``.
            minus_lm: ARPA file of an n-gram that is subtracted (density ratio).
            minus_lm_weight: Weight of ``minus_lm``.
            lm_units: Units of the n-grams; ``auto`` are tokens if all of their words are tokens.
            unknown_character: Score per character of a word that an n-gram does not have.
            word_bonus: Score per word.
            internal_lm: Weight of the subtracted internal language model (factored blank only).
            phrases: Phrases to favor: a file with one per line, phrases, or phrases with scores.
            phrase_score: Score of phrases without a score, a natural logarithm.
            allow_script: Unicode scripts of the tokens that a search may emit (language lock): names
                such as ``["latin", "greek"]``, or one text with commas. Characters that all scripts
                share, such as digits, are always allowed, and so are special words.
            allow_characters: A text file with further characters of these tokens, or a list of
                characters; white space is ignored. Without ``allow_script``, the only ones.
            forbid_tokens: A text file with a token on each line, or a list of tokens, that are never
                emitted.
            confidence: Confidence measure of greedy search; ``max_prob`` if None.
            confidence_exponent: Exponent of the measure, above 0 and at most 10; 1 if None.
            word_confidence: Combines the confidences of tokens to that of a word.
            silence: Texts in which no word reaches this posterior are discarded; 0 keeps all.
            omit_special: Leaves special words such as ``<unk>`` out of texts.
            channel: Channel of files with several, from 1; None averages all.
            resample: Converts other sample rates, which are errors otherwise.
            encoder_format: ``bf16`` halves the memory of FastConformer encoders, ``q8`` needs little
                more than a quarter for every kind; by default that of the checkpoint.
            long: Seconds from which recordings are processed in parts, in constant memory.
            window: Seconds of the windows of long recordings and streams (bidirectional models).
            overlap: Seconds of overlap of the windows; a quarter of ``window``, at most 5, if None.

        Raises:
            ValueError: A file that is no checkpoint, or an option out of range or not supported.
            TypeError: An option of another type.
            OSError: A file that cannot be read.
        """
        search = {
            "beam": _count("beam", beam, 1, 10_000),
            "beam_search": _optional(_choice, "beam_search", beam_search, BeamSearch),
            "nbest": _count("nbest", nbest, 1, 10_000),
            "ctc": _flag("ctc", ctc),
            "ctc_weight": _number("ctc_weight", ctc_weight, 0.0, 1000.0),
            "max_symbols": _optional(_count, "max_symbols", max_symbols, 1, 1000),
            "blank_penalty": _number("blank_penalty", blank_penalty, -_MAX_WEIGHT, _MAX_WEIGHT),
            "temperature": _number("temperature", temperature, 0.001, 1000.0),
            "by_sum": _flag("by_sum", by_sum),
            "lm_weight": _number("lm_weight", lm_weight, -_MAX_WEIGHT, _MAX_WEIGHT),
            "minus_lm_weight": _number("minus_lm_weight", minus_lm_weight, -_MAX_WEIGHT, _MAX_WEIGHT),
            "lm_units": _choice("lm_units", lm_units, NgramUnits),
            "unknown_character": _number("unknown_character", unknown_character, -_MAX_WEIGHT, _MAX_WEIGHT),
            "word_bonus": _number("word_bonus", word_bonus, -_MAX_WEIGHT, _MAX_WEIGHT),
            "internal_lm": _number("internal_lm", internal_lm, -_MAX_WEIGHT, _MAX_WEIGHT),
            "phrase_score": _number("phrase_score", phrase_score, -1e9, 1e9),
            "allow_script": [] if allow_script is None else _scripts(allow_script),
            "confidence": _optional(_choice, "confidence", confidence, ConfidenceMeasure),
            "confidence_exponent": _optional(_exponent, "confidence_exponent", confidence_exponent),
            "word_confidence": _choice("word_confidence", word_confidence, WordConfidence),
        }
        options = {
            "search": search,
            "silence": _number("silence", silence, 0.0, 1.0),
            "omit_special": _flag("omit_special", omit_special),
            "channel": _optional(_count, "channel", channel, 1, 2**32 - 1),
            "resample": _flag("resample", resample),
            "encoder_format": _optional(_choice, "encoder_format", encoder_format, EncoderFormat),
            "long": _number("long", long, 0.0, _MAX_SECONDS),
            "window": _number("window", window, 0.0, 3600.0),
            "overlap": _optional(_number, "overlap", overlap, 0.0, _MAX_SECONDS),
        }
        sources = {
            "lm": _path(lm),
            "minus_lm": _path(minus_lm),
            "phrases": _phrase_lines(phrases),
            "allow_characters": _characters(allow_characters),
            "forbid_tokens": _token_lines(forbid_tokens),
        }
        native = _native.Recognizer(os.fspath(path), json.dumps(options), sources)
        for message in native.warnings:
            warnings.warn(message, stacklevel=2)
        return cls(native)

    @property
    def sample_rate(self) -> int:
        """Sample rate of the model in hertz."""
        return self._native.sample_rate

    @property
    def frame_seconds(self) -> float:
        """Seconds from one encoder frame to the next."""
        return self._native.frame_seconds

    @property
    def tokens(self) -> tuple[str, ...]:
        """Texts of the labels; U+2581 marks the start of a word in models of word pieces."""
        return self._tokens

    # A text is a path, although it is an iterable of texts.
    @overload
    def transcribe(  # type: ignore[overload-overlap]
        self,
        source: Recording,
        *,
        sample_rate: int | None = None,
        coverage: bool = False,
        coverage_gap: float | None = None,
        coverage_tolerance: float | None = None,
    ) -> Transcript: ...
    @overload
    def transcribe(
        self,
        source: Iterable[Recording],
        *,
        sample_rate: int | None = None,
        coverage: bool = False,
        coverage_gap: float | None = None,
        coverage_tolerance: float | None = None,
    ) -> list[Transcript]: ...
    def transcribe(
        self,
        source: Recording | Iterable[Recording],
        *,
        sample_rate: int | None = None,
        coverage: bool = False,
        coverage_gap: float | None = None,
        coverage_tolerance: float | None = None,
    ) -> Transcript | list[Transcript]:
        """Transcribes a recording, or several in batches of 16.

        Recordings of more than ``long`` seconds are processed in parts if the search supports streams.

        Args:
            source: A path of an audio file, or samples: an array of one axis, int16, or float32 or
                float64 from -1 to 1, or several of them. Formats: WAV, FLAC, MP3, AAC, M4A, Ogg, Opus,
                AIFF and CAF.
            sample_rate: Sample rate of the arrays in hertz; None for files.
            coverage: Accounts for every second (:attr:`Transcript.coverage`): speech without words is
                searched again, and recovered words are inserted into the transcript. Long recordings
                are in memory as a whole.
            coverage_gap: Seconds from which a gap is searched again; 0.3 if None.
            coverage_tolerance: Seconds around a token whose speech belongs to its word; 0.3 if None.

        Returns:
            A transcript, or a list with one for each recording.

        Raises:
            ValueError: Audio that is empty, damaged, not finite, or of another sample rate. The error
                names the first such recording; there are no results for the others.
            TypeError: An object that is neither path nor array, or samples of another type.
            OSError: A file that cannot be read.
        """
        seconds = _coverage_seconds(coverage, coverage_gap, coverage_tolerance)
        if _is_recording(source):
            return self._transcribe([_native_recording("samples", source, sample_rate)], seconds)[0]
        if not isinstance(source, Iterable):
            raise TypeError(f"source: expected a path, an array, or several, found {type(source).__name__}")
        recordings = [
            _native_recording(f"samples[{index}]", recording, sample_rate)
            for index, recording in enumerate(source)
        ]
        transcripts: list[Transcript] = []
        for start in range(0, len(recordings), _RECORDINGS_PER_BATCH):
            transcripts += self._transcribe(recordings[start : start + _RECORDINGS_PER_BATCH], seconds)
        return transcripts

    def stream(self, sample_rate: int, *, pause: float = 1.2, latest: float = 1.0) -> Stream:
        """Starts streaming recognition.

        Args:
            sample_rate: Sample rate of the samples in hertz.
            pause: Seconds without a word that end an utterance; 0 never ends one.
            latest: Seconds after which a word is final although the beam disagrees; 0 waits, so that
                the text equals that of :meth:`transcribe`.

        Raises:
            ValueError: A search that does not support streams, or another sample rate.
        """
        rate = _count("sample_rate", sample_rate, 1, 2**32 - 1)
        pause, latest = (_number("pause", pause, 0.0, 1e6), _number("latest", latest, 0.0, 1e6))
        return Stream(self, self._native.stream(rate, pause, latest))

    def _transcribe(
        self, recordings: list[str | tuple[str, object, int]], coverage: tuple[float, float] | None
    ) -> list[Transcript]:
        return [self._transcript(result) for result in self._native.transcribe(recordings, coverage)]

    def _transcript(self, result: _native._Transcript) -> Transcript:
        text, words, tokens, nbest, is_silence, coverage = result
        return Transcript(
            text,
            tuple(Word(*word) for word in words),
            tuple(self._token(*token) for token in tokens),
            tuple(Alternative(*alternative) for alternative in nbest),
            is_silence,
            None if coverage is None else _coverage(json.loads(coverage)),
        )

    def _token(self, text: str, start: float, end: float, log_prob: float, confidence: float) -> Token:
        # A start on a frame may be rounded down.
        frame = int(start / self.frame_seconds + 1e-6)
        return Token(text, self._labels[text], frame, start, end, log_prob, confidence)


class Stream:
    """Streaming recognition of audio that is still arriving, in constant memory.

    The words do not depend on the lengths of the pushed arrays. Those of a causal model arrive at
    once, those of other models about a window later (:attr:`is_immediate`). A stream belongs to one
    thread at a time. As a context manager it is closed at the end::

        with recognizer.stream(16_000) as stream:
            for samples in microphone:
                update = stream.push(samples)
                print(update.text, update.partial)
            rest = stream.finish()
    """

    def __init__(self, recognizer: Recognizer, native: _native.Stream) -> None:
        self._recognizer = recognizer
        self._native = native
        self._utterance: list[Transcript] = []
        self._partial = ""

    @property
    def is_immediate(self) -> bool:
        """Whether words arrive without the delay of windows: the model is causal."""
        return self._native.is_immediate

    @property
    def text(self) -> str:
        """Final text of the current utterance."""
        return _joined_text(self._utterance)

    @property
    def partial(self) -> str:
        """Text after the final text, which may change."""
        return self._partial

    def push(self, samples: Samples) -> StreamUpdate:
        """Processes the next samples, of any number.

        Args:
            samples: An array of one axis: int16, or float32 or float64 from -1 to 1.

        Raises:
            ValueError: Samples that are not finite, which the stream ignores; a stream that has ended.
            TypeError: Samples of another type.
        """
        if not _is_array(samples):
            raise TypeError(f"samples: expected an array, found {type(samples).__name__}")
        return self._update(self._native.push(_exportable(samples)))

    def finish(self) -> StreamUpdate:
        """Ends the stream and its last utterance.

        Raises:
            ValueError: A stream that has ended.
        """
        update = self._update(self._native.finish())
        rest = self._end_utterance()
        self._partial = ""
        return StreamUpdate(update.words, "", "", update.utterances + rest)

    def close(self) -> None:
        """Ends the stream without results; it may have ended before."""
        self._native.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _update(self, results: list[_native._Update]) -> StreamUpdate:
        words: tuple[Word, ...] = ()
        utterances: tuple[Transcript, ...] = ()
        for result, partial, is_end in results:
            transcript = self._recognizer._transcript(result)
            words += transcript.words
            self._utterance.append(transcript)
            self._partial = partial
            if is_end:
                utterances += self._end_utterance()
        return StreamUpdate(words, self.text, self._partial, utterances)

    def _end_utterance(self) -> tuple[Transcript, ...]:
        """Returns the current utterance, if it has words, and starts the next one."""
        parts, self._utterance = self._utterance, []
        words = tuple(word for part in parts for word in part.words)
        tokens = tuple(token for part in parts for token in part.tokens)
        return (Transcript(_joined_text(parts), words, tokens),) if words else ()


def _joined_text(parts: list[Transcript]) -> str:
    return " ".join(part.text for part in parts if part.text)


# Recordings.


def _is_array(source: object) -> bool:
    return hasattr(source, "__dlpack__")


def _is_recording(source: object) -> bool:
    return isinstance(source, (str, bytes, os.PathLike)) or _is_array(source)


def _native_recording(name: str, recording: Any, sample_rate: int | None) -> str | tuple[str, object, int]:
    """Returns a recording as the native module takes it: a path, or name, samples and rate."""
    if isinstance(recording, (str, os.PathLike)):
        if sample_rate is not None:
            raise ValueError(f"sample_rate: expected None for files, found {sample_rate!r}")
        return os.fspath(recording)
    if not _is_array(recording):
        raise TypeError(f"{name}: expected a path or an array, found {type(recording).__name__}")
    if hasattr(recording, "mask"):  # NumPy
        raise TypeError(f"{name}: expected an array without a mask")
    if sample_rate is None:
        raise ValueError("sample_rate: expected the sample rate of the arrays in hertz, found None")
    return name, _exportable(recording), _count("sample_rate", sample_rate, 1, 2**32 - 1)


def _exportable(samples: Any) -> Any:
    """Returns samples that DLPack exports: contiguous, aligned, writable, in native byte order."""
    if hasattr(samples, "detach"):  # PyTorch
        return samples.detach().contiguous()
    flags = getattr(samples, "flags", None)  # NumPy
    if flags is not None and not samples.dtype.isnative:
        return samples.astype(samples.dtype.newbyteorder("="))
    if flags is not None and not (flags.c_contiguous and flags.aligned and flags.writeable):
        return samples.copy()
    return samples
