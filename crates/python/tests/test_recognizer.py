"""Recognizers and streams, on recordings of tones whose texts are known."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import math
import multiprocessing
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import wave
from collections.abc import Callable
from typing import Any

import numpy as np
import panda_rnnt
import pytest
import tones
from panda_rnnt.recognition import Recognizer, Transcript, Word

TEXT = "low high middle low"
TEXTS = [TEXT, "high", "middle low", "low middle high low middle"]

ARPA = """\\data\\
ngram 1=6

\\1-grams:
-99 <s>
-1 </s>
-1 low
-1 middle
-3 high
-0.3 hi
\\end\\
"""


def write_wav(path: pathlib.Path, samples: np.ndarray, rate: int = tones.SAMPLE_RATE) -> str:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())
    return str(path)


def quiet_start() -> np.ndarray:
    """A recording whose first words are too quiet for the model."""
    return np.concatenate([tones.recording("middle high") // 400, tones.recording("low high middle")])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with checkpoints, recordings, and an n-gram that prefers ``hi`` to ``high``."""
    folder = tmp_path_factory.mktemp("tones")
    tones.write_checkpoint(folder / "tones.safetensors")
    tones.write_checkpoint(folder / "bidirectional.safetensors", bidirectional=True)
    for index, text in enumerate(TEXTS):
        write_wav(folder / f"{index}.wav", tones.recording(text))
    (folder / "words.arpa").write_text(ARPA)
    (folder / "phrases.txt").write_text("# comment\nhi\t3\n")
    (folder / "letters.txt").write_text("low hi\n midle\n")
    (folder / "tokens.txt").write_text("high\n")
    write_wav(folder / "quiet.wav", quiet_start())
    return folder


@pytest.fixture(scope="module")
def checkpoint(folder: pathlib.Path) -> pathlib.Path:
    return folder / "tones.safetensors"


@pytest.fixture(scope="module")
def recognizer(checkpoint: pathlib.Path) -> Recognizer:
    return Recognizer.from_checkpoint(checkpoint)


# Results.


def test_files_have_texts_times_and_confidences(recognizer: Recognizer, folder: pathlib.Path) -> None:
    transcript = recognizer.transcribe(folder / "0.wav")
    assert transcript.text == TEXT and not transcript.is_silence and transcript.nbest == ()
    assert [word.text for word in transcript.words] == TEXT.split()
    for index, word in enumerate(transcript.words):
        # A frame of 25 ms that contains the start of the tone.
        assert -0.026 <= word.start - tones.start_of_word(index) <= 0.021
        assert word.end == pytest.approx(word.start + tones.FRAME_SECONDS)
        assert 0.6 < word.confidence < 1.0
    # The probability of a tone with two words is less than that of the others.
    assert transcript.words[1].confidence < 0.8 < transcript.words[0].confidence
    for token, word in zip(transcript.tokens, transcript.words, strict=True):
        assert (token.text, token.start, token.end) == (word.text, word.start, word.end)
        assert recognizer.tokens[token.label] == token.text
        assert token.frame * recognizer.frame_seconds == pytest.approx(token.start)
    assert transcript.score == pytest.approx(sum(token.log_prob for token in transcript.tokens))
    assert recognizer.sample_rate == tones.SAMPLE_RATE
    assert recognizer.frame_seconds == pytest.approx(tones.FRAME_SECONDS)


def test_results_are_frozen_and_can_be_pickled(recognizer: Recognizer, folder: pathlib.Path) -> None:
    transcript = recognizer.transcribe(folder / "0.wav")
    assert pickle.loads(pickle.dumps(transcript)) == transcript
    with pytest.raises(dataclasses.FrozenInstanceError):
        transcript.text = ""  # type: ignore[misc]


@pytest.mark.parametrize(
    "convert",
    [
        lambda samples: samples,
        lambda samples: (samples / 32768).astype(np.float32),
        lambda samples: samples / 32768,
        lambda samples: np.stack([samples, 0 * samples], axis=1)[:, 0],
        lambda samples: np.frombuffer(samples.tobytes(), np.int16),
        lambda samples: samples.astype(">i2"),
        lambda samples: np.frombuffer(bytearray(b"x" + samples.tobytes()), np.uint8)[1:].view(np.int16),
    ],
    ids=["int16", "float32", "float64", "strided", "read-only", "big-endian", "unaligned"],
)
def test_arrays_give_the_transcripts_of_files(
    convert: Callable[[np.ndarray], np.ndarray], recognizer: Recognizer, folder: pathlib.Path
) -> None:
    samples = convert(tones.recording(TEXT))
    expected = recognizer.transcribe(folder / "0.wav")
    assert recognizer.transcribe(samples, sample_rate=tones.SAMPLE_RATE) == expected


def test_masked_arrays_are_refused(recognizer: Recognizer) -> None:
    masked = np.ma.masked_array(tones.recording(TEXT), False)
    with pytest.raises(TypeError, match="samples: expected an array without a mask"):
        recognizer.transcribe(masked, sample_rate=tones.SAMPLE_RATE)


def test_tensors_give_the_transcripts_of_files(recognizer: Recognizer, folder: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    samples = torch.from_numpy(tones.recording(TEXT))
    floats = (samples / 32768).requires_grad_()
    strided = torch.stack([floats, floats], dim=1)[:, 1]
    expected = recognizer.transcribe(folder / "0.wav")
    for tensor in (samples, floats, strided):
        assert recognizer.transcribe(tensor, sample_rate=tones.SAMPLE_RATE) == expected


def test_lists_give_the_transcripts_of_their_recordings(recognizer: Recognizer, folder: pathlib.Path) -> None:
    paths = [folder / f"{index % len(TEXTS)}.wav" for index in range(21)]
    expected = [recognizer.transcribe(path) for path in paths]
    assert [transcript.text for transcript in expected[: len(TEXTS)]] == TEXTS
    assert recognizer.transcribe(paths) == expected
    assert recognizer.transcribe(str(path) for path in paths) == expected
    arrays = [tones.recording(TEXTS[index % len(TEXTS)]) for index in range(21)]
    assert recognizer.transcribe(arrays, sample_rate=tones.SAMPLE_RATE) == expected
    assert recognizer.transcribe([]) == []


def test_results_do_not_depend_on_the_number_of_threads(recognizer: Recognizer, folder: pathlib.Path) -> None:
    paths = [folder / f"{index}.wav" for index in range(len(TEXTS))]
    threads = panda_rnnt.num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            panda_rnnt.set_num_threads(count)
            results.append(recognizer.transcribe(paths))
    finally:
        panda_rnnt.set_num_threads(threads)
    assert results[0] == results[1] == results[2]


def test_other_sample_rates_are_resampled_on_request(
    checkpoint: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    samples = tones.recording(TEXT, rate=16_000)
    path = write_wav(tmp_path / "16000.wav", samples, 16_000)
    recognizer = Recognizer.from_checkpoint(checkpoint, resample=True)
    transcript = recognizer.transcribe(path)
    assert transcript.text == TEXT
    assert recognizer.transcribe(samples, sample_rate=16_000) == transcript


def test_channels_are_selected(checkpoint: pathlib.Path, tmp_path: pathlib.Path) -> None:
    channels = [tones.recording("low high"), tones.recording("middle low")]
    path = write_wav(tmp_path / "two.wav", np.stack(channels, axis=1))
    for channel, text in ((1, "low high"), (2, "middle low")):
        assert Recognizer.from_checkpoint(checkpoint, channel=channel).transcribe(path).text == text
    with pytest.raises(ValueError, match=r"two\.wav: expected a file with a channel 3, found 2"):
        Recognizer.from_checkpoint(checkpoint, channel=3).transcribe(path)


def test_long_recordings_are_processed_in_parts(folder: pathlib.Path, recognizer: Recognizer) -> None:
    for name in ("tones", "bidirectional"):
        in_parts = Recognizer.from_checkpoint(folder / f"{name}.safetensors", long=0.5, window=2.0)
        text = " ".join(["low middle high"] * 20)
        samples = tones.recording(text)
        transcript = in_parts.transcribe(samples, sample_rate=tones.SAMPLE_RATE)
        assert transcript == recognizer.transcribe(samples, sample_rate=tones.SAMPLE_RATE)
        assert transcript.text == text
        assert in_parts.transcribe(write_wav(folder / "long.wav", samples)) == transcript


def test_silence_has_no_text_and_improbable_texts_are_discarded(checkpoint: pathlib.Path) -> None:
    recognizer = Recognizer.from_checkpoint(checkpoint, silence=1.0)
    discarded = recognizer.transcribe(tones.recording(TEXT), sample_rate=tones.SAMPLE_RATE)
    assert discarded == Transcript("", (), (), is_silence=True)
    silence = recognizer.transcribe(np.zeros(8000, np.float32), sample_rate=tones.SAMPLE_RATE)
    assert silence == Transcript("", (), ())


# Searches.


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "high"),
        ({"beam": 4}, "high"),
        ({"beam": 4, "beam_search": "malsd", "max_symbols": 2}, "high"),
        ({"beam": 4, "beam_search": "alsd"}, "high"),
        ({"beam": 4, "beam_search": "maes"}, "high"),
        ({"beam": 4, "ctc_weight": 0.5}, "high"),
        ({"ctc": True}, "high"),
        ({"ctc": True, "beam": 4}, "high"),
        ({"phrases": ["hi"], "phrase_score": 3}, "hi"),
        ({"phrases": {"hi": np.float32(3.0)}}, "hi"),
        ({"phrases": {"hi": 0.5}}, "high"),
        ({"phrases": "phrases.txt"}, "hi"),
        ({"beam": 4, "phrases": {"hi": 3.0}}, "hi"),
        ({"lm": "words.arpa", "lm_weight": 1.0}, "hi"),
        ({"beam": 4, "lm": "words.arpa", "lm_weight": 0.5}, "hi"),
        ({"beam": 4, "lm": "words.arpa", "minus_lm": "words.arpa", "lm_units": "words"}, "high"),
        ({"allow_script": "latin"}, "high"),
        ({"allow_script": ["Greek", "latn"]}, "high"),
        ({"allow_script": "greek,latin", "forbid_tokens": ["high"]}, "hi"),
        ({"allow_characters": "letters.txt"}, "hi"),
        ({"allow_characters": {"l", "o", "w", "midle", "h"}}, "hi"),
        ({"allow_script": "greek", "allow_characters": ["lowmidhgle"]}, "high"),
        ({"beam": 4, "forbid_tokens": "tokens.txt"}, "hi"),
        ({"ctc": True, "forbid_tokens": ["hi"]}, "high"),
        ({"confidence": "renyi_exp", "confidence_exponent": 0.33, "word_confidence": "product"}, "high"),
    ],
    ids=str,
)
def test_searches(options: dict[str, Any], word: str, folder: pathlib.Path) -> None:
    for name in ("lm", "minus_lm", "phrases", "allow_characters", "forbid_tokens"):
        if isinstance(options.get(name), str):
            options = {**options, name: folder / options[name]}
    recognizer = Recognizer.from_checkpoint(folder / "tones.safetensors", **options)
    transcript = recognizer.transcribe(folder / "0.wav")
    assert transcript.text == TEXT.replace("high", word)
    assert all(0.0 <= item.confidence <= 1.0 + 1e-9 for item in transcript.words)


def test_beams_have_alternatives(checkpoint: pathlib.Path, folder: pathlib.Path) -> None:
    transcript = Recognizer.from_checkpoint(checkpoint, beam=8, nbest=3).transcribe(folder / "0.wav")
    texts = [alternative.text for alternative in transcript.nbest]
    assert len(texts) == 3 and texts[0] == transcript.text == TEXT
    assert TEXT.replace("high", "hi") in texts
    scores = [alternative.score for alternative in transcript.nbest]
    assert scores == sorted(scores, reverse=True) and transcript.score == scores[0]
    # The words of a tone differ by a score of 1.
    other = transcript.nbest[texts.index(TEXT.replace("high", "hi"))]
    assert transcript.nbest[0].log_prob - other.log_prob == pytest.approx(1.0, abs=0.05)


def test_a_blank_bonus_deletes_words(checkpoint: pathlib.Path, folder: pathlib.Path) -> None:
    recognizer = Recognizer.from_checkpoint(checkpoint, beam=4, blank_penalty=-30.0)
    assert recognizer.transcribe(folder / "0.wav").text == ""


def test_phrases_without_tokens_are_skipped_with_a_warning(checkpoint: pathlib.Path) -> None:
    with pytest.warns(UserWarning, match="phrases: 1 of 2 phrases are skipped, .* line 2; line 2: "):
        Recognizer.from_checkpoint(checkpoint, phrases=["hi", "hello"])


def test_tokens_that_are_not_allowed_are_not_in_alternatives(
    checkpoint: pathlib.Path, folder: pathlib.Path
) -> None:
    options: dict[str, Any] = {"beam": 8, "nbest": 4}
    recognizer = Recognizer.from_checkpoint(checkpoint, forbid_tokens=["hi", "middle"], **options)
    texts = [alternative.text for alternative in recognizer.transcribe(folder / "0.wav").nbest]
    assert texts and not {"hi", "middle"} & set(" ".join(texts).split())


# Coverage.


def test_coverage_accounts_for_every_second(recognizer: Recognizer, folder: pathlib.Path) -> None:
    plain = recognizer.transcribe(folder / "quiet.wav")
    assert plain.text == "low high middle" and plain.coverage is None
    covered = recognizer.transcribe(folder / "quiet.wav", coverage=True)
    assert covered.text == "middle high low high middle"
    assert [word.is_recovered for word in covered.words] == [True, True, False, False, False]
    assert tuple(word for word in covered.words if not word.is_recovered) == plain.words
    coverage = covered.coverage
    assert coverage is not None
    assert [word.text for word in coverage.recovered] == ["middle", "high"]
    seconds = dataclasses.asdict(coverage.seconds)
    assert sum(seconds.values()) == pytest.approx(coverage.duration) == len(quiet_start()) / 8000
    assert seconds["recovered"] > 0.0 and seconds["words"] > 0.0
    edges = [0.0, *(segment.end for segment in coverage.segments)]
    assert edges[:-1] == [segment.start for segment in coverage.segments]
    assert edges[-1] == coverage.duration
    assert pickle.loads(pickle.dumps(covered)) == covered
    array = recognizer.transcribe(quiet_start(), sample_rate=tones.SAMPLE_RATE, coverage=True)
    assert array == covered


def test_gaps_remain_where_the_silence_filter_discards_words(
    checkpoint: pathlib.Path, folder: pathlib.Path
) -> None:
    recognizer = Recognizer.from_checkpoint(checkpoint, silence=1.0)
    for gap, status in ((0.15, "unrecovered"), (60.0, "short")):
        transcript = recognizer.transcribe(folder / "0.wav", coverage=True, coverage_gap=gap)
        assert transcript.coverage is not None and transcript.text == ""
        gaps = transcript.coverage.gaps
        assert gaps and {gap.status for gap in gaps} == {status}
        assert all(gap.energy_db > 0.0 for gap in gaps)
        assert [(gap.start, gap.end) for gap in gaps] == [
            (segment.start, segment.end) for segment in transcript.coverage.segments if segment.kind == "gap"
        ]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"coverage": 1}, TypeError, "coverage: expected True or False, found 1"),
        ({"coverage_gap": 1.0}, ValueError, "coverage_gap: expected None without coverage=True, found 1.0"),
        ({"coverage_tolerance": 0}, ValueError, "coverage_tolerance: expected None without coverage=True"),
        (
            {"coverage": True, "coverage_gap": -1},
            ValueError,
            "coverage_gap: expected a number from 0 to 3600",
        ),
        ({"coverage": True, "coverage_tolerance": "1"}, TypeError, "coverage_tolerance: expected a number"),
    ],
    ids=str,
)
def test_bad_options_of_a_coverage(
    options: dict[str, Any], error: type[Exception], message: str, recognizer: Recognizer
) -> None:
    with pytest.raises(error, match=message):
        recognizer.transcribe("none.wav", **options)


# Streams.


def parts(samples: np.ndarray, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return np.split(samples, np.sort(random.integers(0, len(samples), 12)))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("options", [{}, {"beam": 4}], ids=["greedy", "beam"])
def test_streams_give_the_words_of_whole_recordings(
    options: dict[str, Any], seed: int, checkpoint: pathlib.Path
) -> None:
    recognizer = Recognizer.from_checkpoint(checkpoint, **options)
    samples = tones.recording(TEXT)
    expected = recognizer.transcribe(samples, sample_rate=tones.SAMPLE_RATE)
    stream = recognizer.stream(tones.SAMPLE_RATE, pause=0, latest=0)
    assert stream.is_immediate
    words: list[Word] = []
    for chunk in parts(samples, seed):
        update = stream.push(chunk)
        words += update.words
        assert update.utterances == () and " ".join(word.text for word in words) == update.text
        assert (stream.text, stream.partial) == (update.text, update.partial)
        assert TEXT.startswith(f"{update.text} {update.partial}".strip())
    last = stream.finish()
    assert words + list(last.words) == list(expected.words)
    (utterance,) = last.utterances
    assert (utterance.text, utterance.words) == (expected.text, expected.words)
    assert utterance.tokens == expected.tokens


def test_words_are_partial_before_they_are_final(recognizer: Recognizer) -> None:
    stream = recognizer.stream(tones.SAMPLE_RATE)
    update = stream.push(tones.recording("low", end_seconds=0.0))
    assert (update.words, update.text, update.partial) == ((), "", "low")
    update = stream.push(tones.recording("high"))
    assert ([word.text for word in update.words], update.text, update.partial) == (["low"], "low", "high")
    update = stream.finish()
    assert [word.text for word in update.words] == ["high"] and (update.text, update.partial) == ("", "")
    assert [utterance.text for utterance in update.utterances] == ["low high"]


def test_pauses_end_utterances(recognizer: Recognizer) -> None:
    samples = np.concatenate([tones.recording(text, end_seconds=2.0) for text in ("low high", "middle")])
    for seed in range(3):
        stream = recognizer.stream(tones.SAMPLE_RATE, pause=0.8)
        updates = [stream.push(chunk) for chunk in parts(samples, seed)]
        utterances = [utterance for update in updates for utterance in update.utterances]
        assert [utterance.text for utterance in utterances] == ["low high", "middle"]
        assert utterances[1].words[0].start == pytest.approx(2.7, abs=0.03)
        assert stream.finish().utterances == ()
    # All of the recording at once: no utterance is lost.
    update = recognizer.stream(tones.SAMPLE_RATE, pause=0.8).push(samples)
    assert [utterance.text for utterance in update.utterances] == ["low high", "middle"]


def test_streams_are_resampled(checkpoint: pathlib.Path) -> None:
    samples = tones.recording(TEXT, rate=16_000)
    recognizer = Recognizer.from_checkpoint(checkpoint, resample=True)
    stream = recognizer.stream(16_000, pause=0)
    for chunk in parts(samples, 0):
        stream.push(chunk)
    (utterance,) = stream.finish().utterances
    assert utterance.words == recognizer.transcribe(samples, sample_rate=16_000).words


def test_streams_of_bidirectional_models_use_windows(folder: pathlib.Path) -> None:
    recognizer = Recognizer.from_checkpoint(folder / "bidirectional.safetensors", window=1.0, overlap=0.4)
    stream = recognizer.stream(tones.SAMPLE_RATE)
    assert not stream.is_immediate
    stream.push(tones.recording(TEXT))
    assert [utterance.text for utterance in stream.finish().utterances] == [TEXT]


def test_ended_streams_are_refused(recognizer: Recognizer) -> None:
    ended = recognizer.stream(tones.SAMPLE_RATE)
    assert ended.finish().utterances == ()
    with recognizer.stream(tones.SAMPLE_RATE) as closed:
        closed.push(tones.recording("low"))
    closed.close()
    for stream in (ended, closed):
        with pytest.raises(ValueError, match="stream: expected an open stream"):
            stream.push(tones.recording("low"))
        with pytest.raises(ValueError, match="stream: expected an open stream"):
            stream.finish()


def test_bad_samples_leave_a_stream_unchanged(recognizer: Recognizer) -> None:
    samples = (tones.recording(TEXT) / 32768).astype(np.float32)
    stream = recognizer.stream(tones.SAMPLE_RATE)
    stream.push(samples[:4000])
    with pytest.raises(ValueError, match=r"samples: audio: expected finite samples.*NaN at sample 7"):
        stream.push(np.where(np.arange(100) == 7, np.nan, samples[4000:4100]))
    with pytest.raises(ValueError, match="samples: expected 1 axes"):
        stream.push(samples[None])
    with pytest.raises(TypeError, match="samples: expected float32, float64 or int16, found int64"):
        stream.push(samples.astype(np.int64))
    with pytest.raises(TypeError, match="samples: expected an array, found list"):
        stream.push([0.0])  # type: ignore[arg-type]
    assert stream.push(samples[:0]).words == ()
    stream.push(samples[4000:])
    assert stream.finish().utterances[0].text == TEXT


def test_searches_without_streams_are_refused(checkpoint: pathlib.Path, recognizer: Recognizer) -> None:
    for options in ({"ctc": True}, {"beam": 2, "nbest": 2}, {"beam": 2, "beam_search": "malsd"}):
        with pytest.raises(ValueError, match=r"expected|support"):
            Recognizer.from_checkpoint(checkpoint, **options).stream(tones.SAMPLE_RATE)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"sample_rate: expected 8000.*found 16000; resample=True"):
        recognizer.stream(16_000)
    with pytest.raises(ValueError, match=r"pause: expected a number from 0 to 1e.06, found -1"):
        recognizer.stream(8000, pause=-1)


# Errors.


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"beam": 0}, ValueError, "beam: expected an integer from 1 to 10000, found 0"),
        ({"beam": 2.0}, TypeError, "beam: expected integers, found 2.0"),
        ({"beam_search": "modern"}, ValueError, "beam_search: expected one of 'modified'.*found 'modern'"),
        ({"nbest": 2}, ValueError, "nbest: expected a beam search .*found greedy search"),
        ({"blank_penalty": 1.0}, ValueError, "blank_penalty: expected a beam search.*found greedy"),
        ({"beam": 2, "max_symbols": 3}, ValueError, "max_symbols: expected greedy search or"),
        ({"beam": 2, "confidence": "max_prob"}, ValueError, "confidence: expected greedy search"),
        ({"ctc": True, "beam_search": "maes"}, ValueError, "beam_search: .*found a search with the CTC"),
        ({"beam": 2, "temperature": 0}, ValueError, "temperature: expected a number from 0.001 to 1000"),
        ({"beam": 2, "temperature": math.nan}, ValueError, "temperature: expected a finite number"),
        ({"beam": 2, "temperature": "1"}, TypeError, "temperature: expected a number, found '1'"),
        ({"internal_lm": 0.5}, ValueError, "internal_lm: expected 0, as the joint network has no"),
        ({"confidence": "max-prob"}, ValueError, "confidence: expected one of 'max_prob'"),
        ({"confidence_exponent": 0}, ValueError, "confidence_exponent: expected a number above 0"),
        ({"ctc": 1}, TypeError, "ctc: expected True or False, found 1"),
        ({"silence": 1.5}, ValueError, "silence: expected a number from 0 to 1, found 1.5"),
        ({"window": 4, "overlap": 5}, ValueError, "overlap: expected seconds from 0 to less than the win"),
        ({"channel": 0}, ValueError, "channel: expected an integer from 1"),
        ({"phrases": {"hi": "much"}}, TypeError, "phrases: expected a number, found 'much'"),
        ({"phrases": {"hi": 1e12}}, ValueError, "phrases, line 1: expected a finite score"),
        ({"phrases": ["#hi"]}, ValueError, "phrases: expected texts without tabs.*found '#hi'"),
        ({"phrases": [7]}, TypeError, "phrases: expected texts, found 7"),
        ({"phrases": 7}, TypeError, "phrases: expected a path or phrases, found int"),
        ({"phrases": "none.txt"}, FileNotFoundError, "none.txt"),
        ({"allow_script": "elvish"}, ValueError, "allow_script: script: expected the name of a Unicode"),
        ({"allow_script": []}, ValueError, "allow_script: expected at least one name of a script, found"),
        ({"allow_script": [7]}, TypeError, "allow_script: expected texts, found 7"),
        ({"allow_script": "greek"}, ValueError, "allow_script, .*: expected at least one of the model's 4"),
        ({"allow_characters": []}, ValueError, "allow_characters: expected at least one character, found"),
        ({"allow_characters": 7}, TypeError, "allow_characters: expected a path or characters, found int"),
        ({"allow_characters": "none.txt"}, FileNotFoundError, "none.txt: could not read the file"),
        ({"forbid_tokens": ["lowest"]}, ValueError, 'forbid_tokens: .*names of the model.*found "lowest"'),
        ({"forbid_tokens": ["a\nb"]}, ValueError, "forbid_tokens: expected tokens in one line each"),
        ({"forbid_tokens": []}, ValueError, "forbid_tokens: expected one token per line, found none"),
        ({"forbid_tokens": b"low"}, TypeError, "forbid_tokens: expected a path or tokens, found bytes"),
        ({"lm": "none.arpa"}, FileNotFoundError, "none.arpa: could not read the file"),
        ({"lm": __file__}, ValueError, "test_recognizer.py: "),
    ],
    ids=str,
)
def test_bad_options(
    options: dict[str, Any], error: type[Exception], message: str, checkpoint: pathlib.Path
) -> None:
    with pytest.raises(error, match=message) as caught:
        Recognizer.from_checkpoint(checkpoint, **options)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert type(copied) is type(caught.value) and str(copied) == str(caught.value)


def test_bad_checkpoints(checkpoint: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.safetensors: could not read the checkpoint"):
        Recognizer.from_checkpoint(tmp_path / "none.safetensors")
    with pytest.raises(OSError, match=tmp_path.name):
        Recognizer.from_checkpoint(tmp_path)
    with pytest.raises(ValueError, match=r"test_recognizer\.py: expected a whole safetensors file"):
        Recognizer.from_checkpoint(__file__)
    data = checkpoint.read_bytes()
    damaged = tmp_path / "damaged.safetensors"
    for changed, message in (
        (data[:-5], "expected a whole safetensors file"),
        (data[:-4] + b"\0\0\0\x40", "damaged"),
        (data.replace(b"panda checkpoint", b"other checkpoint"), "expected format"),
    ):
        damaged.write_bytes(changed)
        with pytest.raises(ValueError, match=message):
            Recognizer.from_checkpoint(damaged)
    with pytest.raises(TypeError):
        Recognizer.from_checkpoint(7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "rate", "error", "message"),
    [
        ("none.wav", None, FileNotFoundError, "none.wav"),
        (__file__, None, ValueError, "test_recognizer.py: expected"),
        (__file__, 8000, ValueError, "sample_rate: expected None for files, found 8000"),
        (np.zeros(800), None, ValueError, "sample_rate: expected the sample rate of the arrays"),
        (np.zeros(800), 16_000, ValueError, "sample_rate: expected 8000, .*found 16000; resample=True"),
        (np.zeros(800), 0, ValueError, "sample_rate: expected an integer from 1"),
        (np.zeros(800), 8000.0, TypeError, "sample_rate: expected integers, found 8000.0"),
        (np.full(800, np.nan), 8000, ValueError, "samples: audio: .*NaN at sample 0"),
        ([np.zeros(800), np.full(800, np.inf)], 8000, ValueError, r"samples\[1\]: audio: .*inf at sample 0"),
        (np.zeros(0), 8000, ValueError, "samples: .*expected at least one sample, found none"),
        (np.zeros((2, 800)), 8000, ValueError, r"samples: expected 1 axes, found \[2, 800\]"),
        (np.zeros(800, np.int32), 8000, TypeError, "samples: expected float32, .*found int32"),
        (np.zeros(800, bool), 8000, TypeError, "samples: expected float32, .*found bool"),
        (b"x.wav", None, TypeError, "samples: expected a path or an array, found bytes"),
        ([0.0, 1.0], 8000, TypeError, r"samples\[0\]: expected a path or an array, found float"),
        (7, None, TypeError, "source: expected a path, an array, or several, found int"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_bad_recordings(
    source: Any, rate: Any, error: type[Exception], message: str, recognizer: Recognizer
) -> None:
    with pytest.raises(error, match=message) as caught:
        recognizer.transcribe(source, sample_rate=rate)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert type(copied) is type(caught.value) and str(copied) == str(caught.value)


def test_files_of_another_rate_are_refused(recognizer: Recognizer, tmp_path: pathlib.Path) -> None:
    path = write_wav(tmp_path / "16000.wav", tones.recording(TEXT, rate=16_000), 16_000)
    message = r"16000\.wav: expected audio at 8000 Hz, found 16000 Hz; resample=True converts it"
    with pytest.raises(ValueError, match=message):
        recognizer.transcribe(path)


# Threads and processes.


def test_threads_share_a_recognizer(recognizer: Recognizer, folder: pathlib.Path) -> None:
    paths = [folder / f"{index % len(TEXTS)}.wav" for index in range(8)]
    expected = recognizer.transcribe(paths)
    samples = tones.recording(TEXT)

    def transcribe(index: int) -> bool:
        if index % 3 == 0:
            return recognizer.transcribe(paths) == expected
        with recognizer.stream(tones.SAMPLE_RATE) as stream:
            stream.push(samples)
            return stream.finish().utterances[0].text == TEXT

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert all(pool.map(transcribe, range(120), timeout=120))


def test_the_lock_of_the_interpreter_is_released(recognizer: Recognizer) -> None:
    samples = np.tile(tones.recording(TEXT), 100)
    done = threading.Event()

    def transcribe() -> None:
        recognizer.transcribe(samples, sample_rate=tones.SAMPLE_RATE)
        done.set()

    thread = threading.Thread(target=transcribe)
    thread.start()
    waits = 0
    while not done.wait(0.001):
        waits += 1
    thread.join()
    assert waits > 3


def transcribe_in_child(recognizer: Recognizer, path: str, results: Any) -> None:
    try:
        results.put(recognizer.transcribe(path).text)
    except RuntimeError as error:
        results.put(str(error))


def fork(recognizer: Recognizer, path: str) -> str:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=transcribe_in_child, args=(recognizer, path, results))
    child.start()
    text: str = results.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0
    return text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_forked_children_transcribe(recognizer: Recognizer, folder: pathlib.Path) -> None:
    path = str(folder / "0.wav")
    assert recognizer.transcribe(path).text == TEXT
    for _ in range(5):
        assert fork(recognizer, path) == TEXT


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_children_forked_during_a_call_do_not_wait_forever(
    recognizer: Recognizer, folder: pathlib.Path
) -> None:
    samples = np.tile(tones.recording(TEXT), 300)
    thread = threading.Thread(target=recognizer.transcribe, args=(samples,), kwargs={"sample_rate": 8000})
    thread.start()
    outcome = fork(recognizer, str(folder / "0.wav"))
    thread.join()
    assert outcome == TEXT or outcome.startswith("recognizer: expected one that no thread used")
    assert fork(recognizer, str(folder / "0.wav")) == TEXT


def test_no_other_library_is_imported(checkpoint: pathlib.Path, folder: pathlib.Path) -> None:
    program = (
        "import sys, panda_rnnt\n"
        f"recognizer = panda_rnnt.Recognizer.from_checkpoint({str(checkpoint)!r})\n"
        f"assert recognizer.transcribe({str(folder / '0.wav')!r}).text == {TEXT!r}\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# The program `panda`; PANDA_PROGRAM is its path.

PROGRAM = os.environ.get("PANDA_PROGRAM")
needs_program = pytest.mark.skipif(not PROGRAM, reason="PANDA_PROGRAM is not set to the program panda")


def run_program(arguments: list[str]) -> list[dict[str, Any]]:
    command = [str(PROGRAM), "transcribe", *arguments, "--format", "json"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in output.splitlines()]


def as_json(transcript: Transcript) -> dict[str, Any]:
    """Returns a transcript with the keys of the program's output."""
    fields = dataclasses.asdict(transcript)
    tokens = [{k: v for k, v in token.items() if k not in ("label", "frame")} for token in fields["tokens"]]
    for word in fields["words"]:
        if word.pop("is_recovered"):
            word["recovered"] = True
    # Tuples become lists.
    coverage = json.loads(json.dumps(fields["coverage"]))
    return {
        "text": transcript.text,
        "words": list(fields["words"]),
        "tokens": tokens,
        "silence": transcript.is_silence,
        **({"nbest": list(fields["nbest"])} if transcript.nbest else {}),
        **({"coverage": coverage} if transcript.coverage else {}),
    }


@needs_program
@pytest.mark.parametrize("name", ["tones", "bidirectional"])
@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({}, []),
        ({"beam": 4, "nbest": 3}, ["--beam", "4", "--nbest", "3"]),
        ({"lm": "words.arpa", "lm_weight": 0.3}, ["--lm", "words.arpa", "--lm-weight", "0.3"]),
        ({"beam": 4, "phrases": "phrases.txt"}, ["--beam", "4", "--phrases", "phrases.txt"]),
        ({"ctc": True, "beam": 3, "by_sum": True}, ["--ctc", "--beam", "3", "--by-sum"]),
        ({"beam": 4, "ctc_weight": 0.3}, ["--beam", "4", "--ctc-weight", "0.3"]),
        (
            {"long": 0.5, "window": 1.0, "confidence": "gibbs_lin"},
            ["--long", "0.5", "--window", "1", "--confidence", "gibbs-lin"],
        ),
        ({"allow_script": ["greek", "latin"]}, ["--allow-script", "greek,latin"]),
        ({"allow_characters": "letters.txt"}, ["--allow-characters", "letters.txt"]),
        (
            {"beam": 4, "nbest": 3, "allow_script": "latin", "forbid_tokens": ["high"]},
            ["--beam", "4", "--nbest", "3", "--allow-script", "latin", "--forbid-tokens", "tokens.txt"],
        ),
        ({"ctc": True, "forbid_tokens": "tokens.txt"}, ["--ctc", "--forbid-tokens", "tokens.txt"]),
    ],
    ids=str,
)
def test_transcripts_equal_those_of_the_program(
    name: str, options: dict[str, Any], arguments: list[str], folder: pathlib.Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(folder)
    paths = [f"{index}.wav" for index in range(len(TEXTS))]
    recognizer = Recognizer.from_checkpoint(f"{name}.safetensors", **options)
    expected = run_program([f"{name}.safetensors", *paths, *arguments])
    found = [
        {"id": path, **as_json(transcript)}
        for path, transcript in zip(paths, recognizer.transcribe(paths), strict=True)
    ]
    assert found == expected


@needs_program
@pytest.mark.parametrize("name", ["tones", "bidirectional"])
@pytest.mark.parametrize(
    ("options", "coverage", "arguments"),
    [
        ({}, {}, []),
        ({"beam": 4, "nbest": 2}, {}, ["--beam", "4", "--nbest", "2"]),
        ({"ctc": True}, {"coverage_gap": 0.1}, ["--ctc", "--coverage-gap", "0.1"]),
        ({"silence": 1.0}, {"coverage_gap": 0.15}, ["--silence", "1", "--coverage-gap", "0.15"]),
        ({"long": 0.5, "window": 1.0}, {}, ["--long", "0.5", "--window", "1"]),
        (
            {"forbid_tokens": ["high"]},
            {"coverage_gap": 5.0, "coverage_tolerance": 0.05},
            ["--forbid-tokens", "tokens.txt", "--coverage-gap", "5", "--coverage-tolerance", "0.05"],
        ),
    ],
    ids=str,
)
def test_coverages_equal_those_of_the_program(
    name: str,
    options: dict[str, Any],
    coverage: dict[str, Any],
    arguments: list[str],
    folder: pathlib.Path,
    monkeypatch: Any,
) -> None:
    monkeypatch.chdir(folder)
    paths = ["quiet.wav", *(f"{index}.wav" for index in range(len(TEXTS)))]
    recognizer = Recognizer.from_checkpoint(f"{name}.safetensors", **options)
    expected = run_program([f"{name}.safetensors", *paths, "--coverage", *arguments])
    transcripts = recognizer.transcribe(paths, coverage=True, **coverage)
    found = [{"id": path, **as_json(transcript)} for path, transcript in zip(paths, transcripts, strict=True)]
    assert found == expected


@needs_program
@pytest.mark.parametrize("beam", [1, 4])
def test_streams_equal_those_of_the_program(
    beam: int, checkpoint: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    samples = np.concatenate([tones.recording(text, end_seconds=2.0) for text in TEXTS])
    path = write_wav(tmp_path / "stream.wav", samples)
    arguments = ["--stream", "--pace", "0", "--chunk", "100", "--pause", "0.8", "--beam", str(beam)]
    events = run_program([str(checkpoint), path, *arguments])
    expected, words = [], []
    for event in events:
        words += [Word(**word) for word in event["words"]]
        if event["endpoint"]:
            expected.append(tuple(words))
            words = []
    stream = Recognizer.from_checkpoint(checkpoint, beam=beam).stream(tones.SAMPLE_RATE, pause=0.8)
    updates = [stream.push(chunk) for chunk in np.array_split(samples, 50)] + [stream.finish()]
    found = [utterance.words for update in updates for utterance in update.utterances]
    assert found == [utterance for utterance in expected if utterance] and len(found) >= len(TEXTS)
