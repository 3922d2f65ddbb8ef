"""Checks of the options of recognizers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from panda_rnnt._options import _finite, _integer


def _optional(check: Any, name: str, value: object, *limits: object) -> Any:
    return None if value is None else check(name, value, *limits)


def _count(name: str, value: object, smallest: int, largest: int) -> int:
    count = _integer(name, value)
    if not smallest <= count <= largest:
        raise ValueError(f"{name}: expected an integer from {smallest} to {largest}, found {count}")
    return count


def _number(name: str, value: object, smallest: float, largest: float) -> float:
    number = _finite(name, value)
    if not smallest <= number <= largest:
        raise ValueError(f"{name}: expected a number from {smallest:g} to {largest:g}, found {value!r}")
    return number


def _exponent(name: str, value: object) -> float:
    exponent = _finite(name, value)
    if not 0.0 < exponent <= 10.0:
        raise ValueError(f"{name}: expected a number above 0, at most 10, found {value!r}")
    return exponent


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}: expected True or False, found {value!r}")
    return value


def _choice(name: str, value: object, choices: Any) -> object:
    names = get_args(choices)
    if value not in names:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, names))}, found {value!r}")
    return value


def _scripts(scripts: Any) -> list[str]:
    """Returns names of scripts, which a text separates by commas."""
    names = scripts.split(",") if isinstance(scripts, str) else _texts("allow_script", scripts, "names")
    if not names:
        raise ValueError("allow_script: expected at least one name of a script, found none")
    return names


def _characters(characters: Any) -> str | bytes | None:
    """Returns the path of a file with characters, or the characters."""
    if characters is None or isinstance(characters, (str, os.PathLike)):
        return _path(characters)
    return "".join(_texts("allow_characters", characters, "a path or characters")).encode()


def _token_lines(tokens: Any) -> str | bytes | None:
    """Returns the path of a file with a token on each line, or the lines."""
    if tokens is None or isinstance(tokens, (str, os.PathLike)):
        return _path(tokens)
    lines = _texts("forbid_tokens", tokens, "a path or tokens")
    for token in lines:
        if not token or len(token.splitlines()) > 1:
            raise ValueError(f"forbid_tokens: expected tokens in one line each, found {token!r}")
    return "\n".join(lines).encode()


def _path(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)


def _texts(name: str, values: object, expected: str) -> list[str]:
    if not isinstance(values, Iterable) or isinstance(values, bytes):
        raise TypeError(f"{name}: expected {expected}, found {type(values).__name__}")
    texts = list(values)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{name}: expected texts, found {text!r}")
    return texts


def _phrase_lines(phrases: Any) -> str | bytes | None:
    """Returns the path of a file, or lines with a phrase and optionally a tab and its score."""
    if phrases is None or isinstance(phrases, (str, os.PathLike)):
        return _path(phrases)
    if not isinstance(phrases, Iterable):
        raise TypeError(f"phrases: expected a path or phrases, found {type(phrases).__name__}")
    scores = phrases if isinstance(phrases, Mapping) else dict.fromkeys(phrases)
    return "".join(_phrase_line(phrase, score) for phrase, score in scores.items()).encode()


def _phrase_line(phrase: object, score: object) -> str:
    if not isinstance(phrase, str):
        raise TypeError(f"phrases: expected texts, found {phrase!r}")
    if not phrase.strip() or phrase.startswith("#") or any(mark in phrase for mark in "\t\n"):
        raise ValueError(
            f"phrases: expected texts without tabs, line ends and # at the start, found {phrase!r}"
        )
    return f"{phrase}\n" if score is None else f"{phrase}\t{_finite('phrases', score)!r}\n"


def _coverage_seconds(
    coverage: object, gap: float | None, tolerance: float | None
) -> tuple[float, float] | None:
    """Returns the seconds of the options of a coverage, or None without a coverage."""
    default_seconds = 0.3
    seconds = []
    for name, value in (("coverage_gap", gap), ("coverage_tolerance", tolerance)):
        if value is not None and not _flag("coverage", coverage):
            raise ValueError(f"{name}: expected None without coverage=True, found {value!r}")
        seconds.append(default_seconds if value is None else _number(name, value, 0.0, 3600.0))
    return (seconds[0], seconds[1]) if _flag("coverage", coverage) else None
