"""What the turns of a trial say about reuse of the engine's cached prefix: who broke it, what it cost, what cures it.

Pure: bodies and exchanges in, notes out. The comparison itself is `dialects.prefix`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from benchmarks.lab.dialects import DIALECTS
from benchmarks.lab.dialects.prefix import CacheFault, Divergence, cache_fault, cost_seconds, diverge, lost_tokens
from benchmarks.lab.model import Exchange, Record


class PrefixNote(Record, frozen=True, kw_only=True):
    """Two turns, one after the other, where the later lost cached prefix. None where it cannot be told."""

    earlier: int  # indices of the exchanges
    later: int
    found: Divergence
    seconds: float | None  # of the later turn's prefill, estimated
    tokens: int | None  # to be read again, estimated
    fault: CacheFault | None


def sentence(note: PrefixNote) -> str:
    """The note for a person: where reuse ended, by whom, what it cost, and the setting that cures it."""
    found = note.found
    where = f" at {found.where}" if found.where else ""
    tokens = "unknown" if note.tokens is None else f"about {note.tokens:,}"
    seconds = "unknown" if note.seconds is None else f"about {note.seconds:.1f}"
    fault = f", {note.fault}" if note.fault else ""
    cure = f"; {found.cure}" if found.cure else ""
    return (
        f"request {note.later}: prefix reuse lost{where} ({found.kind}{fault}), "
        f"tokens read again: {tokens}, seconds: {seconds}{cure}"
    )


def prefix_notes(
    exchanges: Sequence[Exchange], bodies: Mapping[int, bytes], reasoning: Mapping[int, int]
) -> tuple[PrefixNote, ...]:
    """Notes on neighbouring turns among those whose bodies were kept. `reasoning`: characters in each reply."""
    turns = [e for e in exchanges if not e.auxiliary and e.duplicate_of is None and e.index in bodies]
    notes = (
        _note(earlier, later, bodies, reasoning.get(earlier.index, 0)) for earlier, later in itertools.pairwise(turns)
    )
    return tuple(note for note in notes if note is not None)


def _note(earlier: Exchange, later: Exchange, bodies: Mapping[int, bytes], reasoning: int) -> PrefixNote | None:
    if later.dialect is None or earlier.dialect != later.dialect:
        return None
    found = diverge(DIALECTS[later.dialect], bodies[earlier.index], bodies[later.index], reasoning)
    fault = cache_fault(found, later.tokens)
    if found.kind == "extends" and fault is None:
        return None
    prefill = None if later.t_first_token is None else later.t_first_token - later.t_request_end
    return PrefixNote(
        earlier=earlier.index,
        later=later.index,
        found=found,
        seconds=cost_seconds(found, prefill),
        tokens=lost_tokens(found, earlier.tokens),
        fault=fault,
    )
