"""Small pure helpers for text: suggestions, shortening and plurals for people, digests for machines.

It does not format tables or colour (report, programs) and does not read files.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

Say = Callable[[str], None]  # who is told one line for people


def suggest(name: str, options: Iterable[str]) -> str:
    """Return ' (did you mean "x"?)' for the option closest to `name`, or '' when none is close.

    Several known names joined by commas get the hint that there must be one each.
    """
    choices = sorted(set(options))
    if "," in name and set(map(str.strip, name.split(","))) <= set(choices):
        return " (one name at a time: repeat the flag)"
    folded = {choice.casefold(): choice for choice in choices}
    tail = {choice.rsplit(".", 1)[-1].casefold(): choice for choice in choices}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    if close:
        return f' (did you mean "{folded[close[0]]}"?)'
    same_tail = tail.get(name.rsplit(".", 1)[-1].casefold())
    return f' (did you mean "{same_tail}"?)' if same_tail else ""


def listing(names: Iterable[str], limit: int = 5) -> str:
    """Join up to `limit` names by commas and say how many more there are."""
    every = list(names)
    more = len(every) - limit
    return ", ".join(every[:limit]) + (f" and {more} more" if more > 0 else "")


def count(number: int, noun: str) -> str:
    """'1 test', '2 tests'."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def shorten(text: str, limit: int) -> str:
    """Cut `text` to at most `limit` characters, the last of them an ellipsis when something was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def digest_of(content: bytes | str) -> str:
    """SHA-256 of bytes, or of text as UTF-8, hex. (Of a file: `fsio.digest_file`.)"""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def digest_of_json(value: Any) -> str:
    """SHA-256 of a value's JSON, hex; whatever the order of mappings, records in the order of their fields."""
    return digest_of(msgspec.json.encode(value, order="deterministic"))
