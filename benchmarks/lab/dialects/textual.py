"""Tool calls that a model wrote as plain text instead of calling: counted, never repaired.

Only shapes around the name of a tool that was offered count, so prose about tool calls does not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

# Each shape has a place NAME for the alternation of tool names. Order matters: an outer shape hides what it encloses.
SHAPES: Final = (
    r"<tool_call>\s*(?=[{<\[]|NAME\b)(?:(?!</?tool_call>).){0,20000}?\bNAME\b(?:(?!<tool_call>).){0,200000}?(?:</tool_call>|\Z)",
    r"<function=\s*\"?NAME\b.{0,200000}?(?:</function>|\Z)",
    r"<invoke name=\"NAME\".{0,200000}?(?:</invoke>|\Z)",
    r"<\|channel\|>\s*\w+\s+to=(?:functions\.)?NAME\b",
    r"(?:<\|tool_calls?(?:_begin)?\|>|<｜tool▁calls?▁begin｜>).{0,200}?\bNAME\b",
    r"\[TOOL_CALLS\]\s*.{0,200}?\bNAME\b",
)
PYTHONIC: Final = r"^\s*\[?\s*(?:functions\.)?NAME\((?:\s*\w+\s*=.*)\)\s*(?:,\s*NAME\(.*\)\s*)*\]?\s*$"
OBJECT: Final = re.compile(r'\{\s*"')
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
    pythonic = re.compile(PYTHONIC.replace("NAME", f"(?:{'|'.join(named)})"), re.MULTILINE)
    return found + len(pythonic.findall(text))


def _bare_objects(text: str, tools: frozenset[str]) -> int:
    """JSON objects (alone, fenced, or in an array) that name a tool and give it arguments."""
    decoder, found = json.JSONDecoder(), 0
    start = OBJECT.search(text)
    while start:
        end = start.start() + 1
        try:
            value, end = decoder.raw_decode(text, start.start())
            found += _names_tool(value, tools)
        except (ValueError, RecursionError):
            pass
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
