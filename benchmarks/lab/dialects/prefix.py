"""Where two requests of a conversation differ, and whether that cost the engine its cached prefix. Pure.

Prompts are compared piece by piece in the order a template renders them (system, tools, conversation), not byte by
byte of the body, since a body's field order is not the prompt's. Knows bodies and counts, not engines.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, AnyStr, Final, Literal

from benchmarks.lab.dialects.facts import DialectReader, Part, decode, obj
from benchmarks.lab.model import Record, Tokens

Kind = Literal["extends", "cache_buster", "reasoning_dropped", "client_prefix_change"]
CacheFault = Literal["engine_cache_miss", "client_prefix_change"]

REASONING: Final = ("reasoning_content", "reasoning", "thinking", "encrypted_content", "signature")
MODELS_OWN: Final = re.compile(r'"(assistant|function_call|custom_tool_call)"')
SAME_SHARE: Final = 0.9  # of the earlier prompt that must be the same for a cache miss to be the engine's
SMALL_PART: Final = 4096  # characters that may differ in a piece for it to count as a small changing part
CURES: Final = (
    (
        re.compile(r"x-anthropic-billing-header|\bcch=|cc_version="),
        "set CLAUDE_CODE_ATTRIBUTION_HEADER=0 in the client's environment",
    ),
    (
        re.compile(r"\d{1,2}:\d{2}(:\d{2})?|\d{4}-\d{2}-\d{2}"),
        "take the date or time out of the client's system prompt",
    ),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-|session", re.I), "give the client a fixed session id, or turn the id off"),
)


class Divergence(Record, frozen=True, kw_only=True):
    """How a later request's prompt differs from an earlier one's.

    where     JSON path of the first piece that differs, `system[0]`; None where the later only adds to the earlier
    byte      offset of the first differing byte of the two bodies as sent; None where they are the same
    shared    characters of prompt before the difference, of `earlier` characters of the earlier prompt
    lost      characters of the earlier prompt behind the difference, or of reasoning that left it: no use in the cache
    again     characters of `lost` that stand in the later prompt too: read once already, to be read again
    """

    kind: Kind
    where: str | None
    byte: int | None
    shared: int
    earlier: int
    lost: int
    again: int = 0
    cure: str | None = None


def diverge(reader: DialectReader, earlier: bytes, later: bytes, reasoning: int = 0) -> Divergence:
    """Compare two bodies. `reasoning`: characters of reasoning in the reply to `earlier`, 0 if there was none."""
    before, after = (reader.parts(obj(decode(body))) for body in (earlier, later))
    total = sum(len(text) for _, text in before)
    same = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a[1] != b[1]), None)
    at = len(before) if same is None and len(after) >= len(before) else same
    byte = _first_difference(earlier, later)
    if at is None:
        shared = sum(len(text) for _, text in after)
        where = before[len(after)][0]
        return Divergence(
            kind="client_prefix_change", where=where, byte=byte, shared=shared, earlier=total, lost=total - shared
        )
    if at == len(before):
        return _extended(after[at:], byte, total, reasoning)
    return _changed(before, after, at, byte, total)


def lost_tokens(found: Divergence, earlier: Tokens) -> int | None:
    """`found.lost` in tokens, at the earlier prompt's own characters per token; None if that is not known."""
    return _in_tokens(found.lost, found, earlier)


def reread_tokens(found: Divergence, earlier: Tokens, later: Tokens) -> int | None:
    """Tokens of the later prompt that the engine read though it had read them for the earlier one; None if not told.

    The engine's own counts where the later prompt holds all of the earlier one; else the part that it holds again is
    estimated at the earlier prompt's characters per token.
    """
    held = _in_tokens(found.shared + found.again, found, earlier)
    if held is None or later.prompt_cached is None or later.prompt_total is None:
        return None
    return max(0, min(held, later.prompt_total) - later.prompt_cached)


def cost_seconds(reread: int | None, later: Tokens, prefill_seconds: float | None) -> float | None:
    """Seconds of the later request's prefill that went into reading `reread` tokens again; None if not known.

    Their share of the tokens that the prefill read: prefill per token is not constant, so it is an estimate.
    """
    if reread is None or prefill_seconds is None or later.prompt_new is None:
        return None
    return prefill_seconds * reread / later.prompt_new if later.prompt_new else 0.0


def cache_fault(found: Divergence, earlier: Tokens, later: Tokens) -> CacheFault | None:
    """Whose doing it is that a later request found little in the cache; None where it found it, or nobody told.

    Less than half of the earlier prompt counts as little; what the later one adds to it could not be there.
    """
    if later.prompt_cached is None or later.prompt_total is None or earlier.prompt_total is None or found.earlier == 0:
        return None
    if later.prompt_cached >= min(earlier.prompt_total, later.prompt_total) / 2:
        return None
    return "engine_cache_miss" if found.shared / found.earlier >= SAME_SHARE else "client_prefix_change"


def _in_tokens(characters: int, found: Divergence, earlier: Tokens) -> int | None:
    if earlier.prompt_total is None or found.earlier == 0:
        return None
    return round(earlier.prompt_total * characters / found.earlier)


def _extended(added: list[Part], byte: int | None, total: int, reasoning: int) -> Divergence:
    """The later prompt goes on where the earlier ended: fine, unless the reply's reasoning is missing from it."""
    reply = added[0][1] if added else ""
    if reasoning and reply and not any(f'"{name}"' in reply for name in REASONING) and MODELS_OWN.search(reply):
        return Divergence(
            kind="reasoning_dropped", where=added[0][0], byte=byte, shared=total, earlier=total, lost=reasoning
        )
    return Divergence(kind="extends", where=None, byte=byte, shared=total, earlier=total, lost=0)


def _changed(before: list[Part], after: list[Part], at: int, byte: int | None, total: int) -> Divergence:
    path, old = before[at]
    new = after[at][1]
    inside = shared_prefix(old, new)
    shared = sum(len(text) for _, text in before[:at]) + inside
    kind: Kind = "client_prefix_change"
    cure = None
    if _without_reasoning(old) == _without_reasoning(new) and len(new) < len(old):
        kind = "reasoning_dropped"
    elif _is_small(old, new, inside) and _same_behind(before, after, at):
        kind = "cache_buster"
        cure = next((text for pattern, text in CURES if pattern.search(old[max(0, inside - 120) : inside + 60])), None)
    return Divergence(
        kind=kind,
        where=path,
        byte=byte,
        shared=shared,
        earlier=total,
        lost=total - shared,
        again=_ending(old[inside:], new[inside:]) + _standing_again(before[at + 1 :], after[at + 1 :]),
        cure=cure,
    )


def _standing_again(earlier: list[Part], later: list[Part]) -> int:
    """Characters of the earlier pieces that are among the later ones, each as often as it stands there."""
    both = Counter(text for _, text in earlier) & Counter(text for _, text in later)
    return sum(len(text) * times for text, times in both.items())


def _ending(first: str, second: str) -> int:
    return shared_prefix(first[::-1], second[::-1])


def _is_small(old: str, new: str, inside: int) -> bool:
    return max(len(old), len(new)) - inside - _ending(old[inside:], new[inside:]) <= SMALL_PART


def _same_behind(before: list[Part], after: list[Part], at: int) -> bool:
    """Whether all the earlier prompt holds behind the piece stands in the later one too."""
    behind = [text for _, text in before[at + 1 :]]
    return bool(behind) and behind == [text for _, text in after[at + 1 : len(before)]]


def _without_reasoning(text: str) -> object:
    return _strip(decode(text))


def _strip(value: Any) -> object:
    if isinstance(value, dict):
        return {key: _strip(inner) for key, inner in value.items() if key not in REASONING}
    if isinstance(value, list):
        return [_strip(inner) for inner in value if not (isinstance(inner, dict) and inner.get("type") in REASONING)]
    return value


def shared_prefix(first: AnyStr, second: AnyStr) -> int:
    """Length of the longest common prefix, by bisection: comparing slices is quicker than a loop over characters."""
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _first_difference(first: bytes, second: bytes) -> int | None:
    return None if first == second else shared_prefix(first, second)
