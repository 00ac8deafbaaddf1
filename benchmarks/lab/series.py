"""Series: which rows may be pooled. One table, taken from the stamp's keys; null and known are different.

Two scopes: rows of one *cell* share a series when every "cell" key agrees; rows of one *task* may be pooled when the
"task" keys (its definition, its target, the environment of its suite, its budgets) agree as well. Changing one task
does not age the rows of the others. It reads no file and knows no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from benchmarks.lab import stamp
from benchmarks.lab.text import digest_of

# The stamp's table marks them; these are its two lists, in its order.
CELL_KEYS: Final = tuple(name for name, key in stamp.KEYS.items() if key.series == "cell")
TASK_KEYS: Final = tuple(name for name, key in stamp.KEYS.items() if key.series == "task")
KEYS: Final = (*CELL_KEYS, *TASK_KEYS)
MEANINGS: Final[Mapping[str, str]] = {name: stamp.KEYS[name].meaning for name in KEYS}

# What a row itself says and may not be pooled across either.
ROW_KEYS: Final = ("locked",)

ID_LENGTH: Final = 10

Key = tuple[str, ...]


def key(body: Mapping[str, Any], values: Mapping[str, Any] | None) -> Key:
    """The series of a row's cell: hashable, equal exactly when rows of different tasks may stand in one table.

    `body` is the row's own keys, `values` its stamp's; a row without a stamp agrees with no row that has one.
    """
    return _key(CELL_KEYS, body, values)


def task_key(body: Mapping[str, Any], values: Mapping[str, Any] | None) -> Key:
    """As `key`, with the keys of the task: equal exactly when trials of one task may be pooled into one rate."""
    return _key(KEYS, body, values)


def series_id(found: Key) -> str:
    """Short name of a series, for reports and selectors."""
    return digest_of("\0".join(found))[:ID_LENGTH]


def explain(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None, *, task: bool = True) -> tuple[str, ...]:
    """Which stamp keys keep two rows apart, in the table's order; () when they may be pooled."""
    left, right = a or {}, b or {}
    return tuple(name for name in (KEYS if task else CELL_KEYS) if _text(left.get(name)) != _text(right.get(name)))


def _key(names: tuple[str, ...], body: Mapping[str, Any], values: Mapping[str, Any] | None) -> Key:
    stamped = ("" if values is None else _text(values.get(name)) for name in names)
    return (*stamped, *(_text(body.get(name)) for name in ROW_KEYS))


def _text(value: Any) -> str:
    # JSON with sorted keys: hashable, and null, "null", 0 and false stay apart. 1 and 1.0 are one setting.
    return msgspec.json.encode(_whole(value), order="deterministic").decode()


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {name: _whole(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(part) for part in value]
    return value
