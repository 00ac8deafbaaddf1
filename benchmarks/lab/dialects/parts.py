"""A request's prompt as ordered pieces (JSON path, text), so that two requests can be compared piece by piece.

The order of the pieces is each dialect's; how a template renders them is not known here.
"""

from __future__ import annotations

import json

from benchmarks.lab.dialects.facts import Part, items


def flat(name: str, value: object) -> list[Part]:
    """One piece per element of the array `value` (or one for a string): path `name[i]` and its text."""
    if isinstance(value, str):
        return [(name, value)]
    return [(f"{name}[{i}]", canonical(element)) for i, element in enumerate(items(value))]


def canonical(value: object) -> str:
    """`value` as JSON text that two equal values share; a `cache_control` mark is no part of a prompt."""
    return json.dumps(_unmarked(value), ensure_ascii=False, separators=(",", ":"))


def _unmarked(value: object) -> object:
    if isinstance(value, dict):
        return {key: _unmarked(inner) for key, inner in value.items() if key != "cache_control"}
    if isinstance(value, list):
        return [_unmarked(inner) for inner in value]
    return value
