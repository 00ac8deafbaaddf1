"""The parser of every program, and types of flags that several take: text, a ledger file, a whole number.

Each type refuses, before any work is done, what could only fail later; the parser names the flag before its message.
"""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from benchmarks.lab.errors import UsageError
from benchmarks.lab.text import shorten, suggest


class Parser(ArgumentParser):
    """argparse's, whose mistakes are one sentence like all others, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        """UsageError with argparse's words, and the flag that an unknown one may be meant for."""
        unknown = message.removeprefix("unrecognized arguments: ")
        hint = "" if unknown == message else suggest(unknown.split("=")[0].split()[0], self._option_string_actions)
        raise UsageError(message.removeprefix("argument ") + hint)


def text(given: str) -> str:
    """A name or words: not empty, and text that can be written into a file."""
    if not given.strip():
        raise ArgumentTypeError("it is empty; give a value, or leave the flag out")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise ArgumentTypeError(f"{given!r} is no UTF-8 text; write it in UTF-8") from None
    return given


def whole(least: int, most: int, noun: str) -> Callable[[str], int]:
    """A whole number of `noun` from `least` to `most`."""

    def number(given: str) -> int:
        if not re.fullmatch("[0-9]{1,18}", given) or not least <= int(given) <= most:
            raise ArgumentTypeError(
                f"{shorten(given, 40)!r} is no number of {noun}; give a whole number from {least} to {most}"
            )
        return int(given)

    return number


def ledger_to_read(given: str) -> Path:
    """A ledger that is there."""
    path = Path(text(given))
    if not path.is_file():
        raise ArgumentTypeError(f"{given!r} is no file; name a ledger such as trials.jsonl")
    return path


def ledger_to_write(given: str) -> Path:
    """A ledger to append to: a plain file, or a name in a folder that exists or can be made."""
    path = Path(text(given))
    try:
        if path.is_dir():
            raise ArgumentTypeError(f"{given!r} is a folder; name a file in it, like {path / 'trials.jsonl'}")
        if path.exists() and not path.is_file():
            raise ArgumentTypeError(f"{given!r} is no plain file; name one, like trials.jsonl")
        nearest = next(place for place in (path, *path.parents) if os.path.lexists(place))
    except (OSError, ValueError) as error:
        raise ArgumentTypeError(f"{given!r} cannot be a file ({error}); name another") from None
    if nearest != path and not nearest.is_dir():
        raise ArgumentTypeError(f"{given!r} cannot be made, since {nearest} is no folder; name a file in one")
    if not os.access(nearest, os.W_OK):
        raise ArgumentTypeError(f"{given!r} may not be written, since {nearest} is closed to you; name another file")
    return path
