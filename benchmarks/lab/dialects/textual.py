"""Tool calls that a model wrote as plain text instead of calling: counted, never repaired.

Only shapes around the name of a tool that was offered count, so prose about tool calls does not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final


def _block(opening: str, closing: str) -> str:
    """A shape that runs from `opening` to `closing`, the next `opening` or the end: linear in the text's length."""
    tag = opening.partition("NAME")[0]
    return rf"{opening}(?:(?!{tag}).)*?(?:{closing}|(?={tag})|\Z)"


# Each shape has a place NAME for the alternation of tool names. Order matters: an outer shape hides what it encloses.
SHAPES: Final = (
    r"<tool_call>\s*(?=[{<\[]|NAME\b)(?:(?!</?tool_call>).)*?\bNAME\b(?:(?!<tool_call>).)*?(?:</tool_call>|(?=<tool_call>)|\Z)",
    _block(r"<function=\"?NAME\b", "</function>"),
    _block(r"<invoke name=\"NAME\"", "</invoke>"),
    r"<\|channel\|>\s*\w+\s+to=(?:functions\.)?NAME\b",
    r"(?:<\|tool_calls?(?:_begin)?\|>|<｜tool▁calls?▁begin｜>).{0,200}?\bNAME\b",
    r"\[TOOL_CALLS\].{0,200}?\bNAME\b",
)
PYTHONIC: Final = r"\[?(?:functions\.)?NAME\(\s*\w+\s*=.*\)\]?"
OBJECT: Final = re.compile(r'\{\s*"(?:name|tool|type|function|id|arguments|parameters)"')
OBJECT_LIMIT: Final = 1 << 16  # characters of one object
FAILURES: Final = 100  # objects that do not parse, after which a runaway's text is left alone
ARGUMENT_KEYS: Final = ("arguments", "parameters", "input", "args")


def textual_calls(text: str, tools: Sequence[str]) -> int:
    """How many calls of `tools` stand in `text` as text."""
    named = [re.escape(name) for name in tools if name]
    if not text or not named:
        return 0
    found = 0
    for shape in SHAPES:
        pattern = re.compile(shape.replace("NAME", f"(?:{'|'.join(named)})"), re.DOTALL)
        text, seen = pattern.subn(" ", text)
        found += seen
    found += _bare_objects(text, frozenset(tools))
    pythonic = re.compile(PYTHONIC.replace("NAME", f"(?:{'|'.join(named)})"))
    return found + sum(pythonic.fullmatch(line.strip()) is not None for line in text.splitlines())


def _bare_objects(text: str, tools: frozenset[str]) -> int:
    """JSON objects (alone, fenced, or in an array) that name a tool and give it arguments."""
    decoder, found, failed = json.JSONDecoder(), 0, 0
    start = OBJECT.search(text)
    while start and failed < FAILURES:
        end = start.start() + 1
        try:
            value, length = decoder.raw_decode(text[start.start() : start.start() + OBJECT_LIMIT])
            found += _names_tool(value, tools)
            end = start.start() + length
        except (ValueError, RecursionError):
            failed += 1
        start = OBJECT.search(text, end)
    return found


def _names_tool(value: object, tools: frozenset[str]) -> bool:
    if not isinstance(value, dict):
        return False
    inner = value.get("function")
    if isinstance(inner, dict):
        return _names_tool(inner, tools)
    name = value.get("name", value.get("tool", inner))
    return isinstance(name, str) and name in tools and any(key in value for key in ARGUMENT_KEYS)
