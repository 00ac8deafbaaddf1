"""Declared changes to a request's body: the only edits the meter ever makes, each stamped with its backend.

Pure, bytes to bytes. A body that a rewrite would not change stays the same bytes; a changed one is written anew as
compact JSON. Replies are never rewritten.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from benchmarks.lab.dialects.facts import JsonObject, items, obj
from benchmarks.lab.errors import UsageError
from benchmarks.lab.model import Backend, Dialect, Record


class Rewrite(Record, frozen=True, kw_only=True):
    """One declared rewrite. `sampler` uses `values`, `max_tokens` uses `cap`."""

    name: str  # one of `STEPS`
    values: Mapping[str, float | int] = {}
    cap: int | None = None


def rewrites_of(backend: Backend) -> tuple[Rewrite, ...]:
    """The rewrites a backend declares, in its order; UsageError naming the field where one lacks its values."""
    return tuple(_declared(backend, name) for name in backend.rewrite)


def rewrite(dialect: Dialect, body: bytes, rewrites: Sequence[Rewrite]) -> tuple[bytes, tuple[str, ...]]:
    """`body` after `rewrites`, and the names of those that changed it. A body that is no JSON object stays as it is."""
    try:
        data = json.loads(body) if rewrites else None
    except ValueError:
        return body, ()
    if not isinstance(data, dict):
        return body, ()
    changed = tuple(step.name for step in rewrites if STEPS[step.name](dialect, data, step))
    return (json.dumps(data, separators=(",", ":")).encode(), changed) if changed else (body, ())


def _declared(backend: Backend, name: str) -> Rewrite:
    if name == "sampler" and backend.sampler:
        return Rewrite(name=name, values=dict(backend.sampler))
    if name == "max_tokens" and backend.max_tokens:
        return Rewrite(name=name, cap=backend.max_tokens)
    if name in ("include_usage", "fold_system"):
        return Rewrite(name=name)
    if name in ("sampler", "max_tokens"):
        raise UsageError(f"backend {backend.name}: rewrite names {name!r}, so the backend needs a field `{name}`.")
    known = ", ".join(STEPS)
    raise UsageError(f"backend {backend.name}: rewrite knows no {name!r}; use one of {known}.")


def _pin_sampler(dialect: Dialect, data: JsonObject, step: Rewrite) -> bool:
    """State each sampling parameter; a client that sent another value is overruled."""
    del dialect  # all three put sampling parameters at the top
    before = {name: data.get(name) for name in step.values}
    data.update(step.values)
    return before != dict(step.values)


def _pin_cap(dialect: Dialect, data: JsonObject, step: Rewrite) -> bool:
    """No exchange asks for more than the cap; one that asks for less (a title, a quota probe) keeps it."""
    field = _cap_field(dialect, data)
    asked = data.get(field)
    if isinstance(asked, int) and step.cap is not None and asked <= step.cap:
        return False
    data[field] = step.cap
    return True


def _cap_field(dialect: Dialect, data: JsonObject) -> str:
    if dialect == "openai-responses":
        return "max_output_tokens"
    return "max_completion_tokens" if "max_completion_tokens" in data else "max_tokens"


def _include_usage(dialect: Dialect, data: JsonObject, step: Rewrite) -> bool:
    """Ask a chat stream for its usage; the other dialects always tell it."""
    del step
    options = obj(data.get("stream_options"))
    if dialect != "openai-chat" or data.get("stream") is not True or options.get("include_usage") is True:
        return False
    data["stream_options"] = {**options, "include_usage": True}
    return True


def _fold_system(dialect: Dialect, data: JsonObject, step: Rewrite) -> bool:
    """Strict templates take one system message, first. Later leading ones join it, those in mid-conversation become
    part of the user turn they stand at (what Claude Code does itself when Anthropic's own error tells it to)."""
    del step
    field = "input" if dialect == "openai-responses" else "messages"
    turns = items(data.get(field))
    folded: list[Any] = []
    merge_next = False
    for turn in turns:
        system = obj(turn).get("role") in ("system", "developer")
        if system and not folded and dialect != "anthropic-messages":
            folded.append(turn)
        elif system and folded and len(folded) == 1 and obj(folded[0]).get("role") in ("system", "developer"):
            folded[0] = _joined(folded[0], turn)
        else:
            now = {**turn, "role": "user"} if system else turn
            if (system or merge_next) and folded and _is_user(folded[-1]) and _is_user(now):
                folded[-1] = _joined(folded[-1], now)
            else:
                folded.append(now)
            merge_next = system
    if folded == turns:
        return False
    data[field] = folded
    return True


def _is_user(turn: object) -> bool:
    return obj(turn).get("role") == "user"


def _joined(first: JsonObject, second: JsonObject) -> JsonObject:
    """`first` with the content of `second` behind its own; strings stay a string, lists a list."""
    one, two = first.get("content"), second.get("content")
    if isinstance(one, str) and isinstance(two, str):
        return {**first, "content": f"{one}\n\n{two}"}
    kind = next((part["type"] for part in [*items(one), *items(two)] if "type" in obj(part)), "text")
    return {**first, "content": _part_list(one, kind) + _part_list(two, kind)}


def _part_list(content: object, kind: str) -> list[Any]:
    return [{"type": kind, "text": content}] if isinstance(content, str) else items(content)


STEPS: Final[Mapping[str, Callable[[Dialect, JsonObject, Rewrite], bool]]] = {
    "sampler": _pin_sampler,
    "max_tokens": _pin_cap,
    "include_usage": _include_usage,
    "fold_system": _fold_system,
}
