"""What the turns of a trial say about reuse of the engine's cached prefix: who broke it, what it cost, what cures it.

Pure: bodies and exchanges in, notes out. The comparison itself is `dialects.prefix`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from benchmarks.lab.dialects import DIALECTS
from benchmarks.lab.dialects.prefix import (
    CacheFault,
    Divergence,
    cache_fault,
    cost_seconds,
    diverge,
    lost_tokens,
    reread_tokens,
)
from benchmarks.lab.model import Exchange, Record


class PrefixNote(Record, frozen=True, kw_only=True):
    """Two turns, one after the other, where the later lost cached prefix. None where it cannot be told."""

    earlier: int  # indices of the exchanges
    later: int
    found: Divergence
    lost: int | None  # tokens without use in the cache, estimated
    reread: int | None  # tokens of the later prompt that the engine read again
    seconds: float | None  # of the later turn's prefill spent on them, estimated
    fault: CacheFault | None


def sentence(note: PrefixNote) -> str:
    """The note for a person: where reuse ended, by whom, what it cost, and the setting that cures it."""
    found = note.found
    where = f" at {found.where}" if found.where else ""
    lost = "unknown" if note.lost is None else f"about {note.lost:,}"
    reread = "unknown" if note.reread is None else f"{note.reread:,}"
    seconds = "unknown" if note.seconds is None else f"about {note.seconds:.1f}"
    fault = f", {note.fault}" if note.fault else ""
    cure = f"; {found.cure}" if found.cure else ""
    return (
        f"request {note.later}: prefix reuse lost{where} ({found.kind}{fault}), "
        f"tokens lost: {lost}, read again: {reread}, seconds: {seconds}{cure}"
    )


def prefix_notes(
    exchanges: Sequence[Exchange], bodies: Mapping[int, bytes], reasoning: Mapping[int, int]
) -> tuple[PrefixNote, ...]:
    """Notes on neighbouring turns among those whose bodies were kept. `reasoning`: characters in each reply."""
    notes = (
        _note(earlier, later, bodies, reasoning.get(earlier.index, 0))
        for earlier, later in itertools.pairwise(_turns(exchanges))
        if earlier.index in bodies and later.index in bodies
    )
    return tuple(note for note in notes if note is not None and (note.found.kind != "extends" or note.fault))


def reread_in_all(exchanges: Sequence[Exchange], bodies: Mapping[int, bytes]) -> int | None:
    """Tokens read again, over all turns; None if the engine did not tell of one, or its body was not kept."""
    total = 0
    for earlier, later in itertools.pairwise(_turns(exchanges)):
        note = _note(earlier, later, bodies, 0) if earlier.index in bodies and later.index in bodies else None
        if note is None or note.reread is None:
            return None
        total += note.reread
    return total


def _turns(exchanges: Sequence[Exchange]) -> list[Exchange]:
    return [e for e in exchanges if not e.auxiliary and e.duplicate_of is None]


def _note(earlier: Exchange, later: Exchange, bodies: Mapping[int, bytes], reasoning: int) -> PrefixNote | None:
    if later.dialect is None or earlier.dialect != later.dialect:
        return None
    found = diverge(DIALECTS[later.dialect], bodies[earlier.index], bodies[later.index], reasoning)
    reread = reread_tokens(found, earlier.tokens, later.tokens)
    prefill = None if later.t_first_token is None else later.t_first_token - later.t_request_end
    return PrefixNote(
        earlier=earlier.index,
        later=later.index,
        found=found,
        lost=lost_tokens(found, earlier.tokens),
        reread=reread,
        seconds=cost_seconds(reread, later.tokens, prefill),
        fault=cache_fault(found, earlier.tokens, later.tokens),
    )
