"""Where a trial's wall time went, from its exchanges: seconds per share, adding up to the wall. Pure.

An instant belongs to the first of these that holds for any exchange under way (overlaps count once):
  decode          between first and last token of a stream
  prefill         between the end of a streaming request and its first token
  model_unsplit   the engine at work without a sign of which: no stream, broken off before a token, count_tokens,
                  and what follows a stream's last token
and else to `startup` (before the first exchange), `tail` (after the last) or `client_and_tool` (between).
It does not use an engine's own `timings`: what the wire does not show stays unsplit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks.lab.model import Exchange, Shares

NANO: Final = 1_000_000_000
RANKS: Final = ("decode", "prefill", "model_unsplit")

Span = tuple[str, int, int]  # share, begin and end in nanoseconds


def shares(exchanges: Sequence[Exchange], wall: float) -> Shares:
    """Time shares of a trial that took `wall` seconds; times outside 0..wall are cut off. Sums hold to a nanosecond."""
    end = round(wall * NANO)
    begin = min((_nano(e.t_start, end) for e in exchanges), default=end)
    last = max((_nano(e.t_end, end) for e in exchanges), default=end)
    model = _union([span for e in exchanges for span in _spans(e, end)])
    return Shares(
        wall=wall,
        startup=begin / NANO,
        prefill=model["prefill"] / NANO,
        decode=model["decode"] / NANO,
        model_unsplit=model["model_unsplit"] / NANO,
        client_and_tool=(last - begin - sum(model.values())) / NANO,
        tail=(end - last) / NANO,
    )


def _spans(exchange: Exchange, wall: int) -> Iterator[Span]:
    start, end = _nano(exchange.t_request_end, wall), _nano(exchange.t_end, wall)
    if exchange.t_first_token is None or exchange.t_last_token is None:
        yield "model_unsplit", start, end
        return
    first, last = _nano(exchange.t_first_token, wall), _nano(exchange.t_last_token, wall)
    yield "prefill", start, first
    yield "decode", first, last
    yield "model_unsplit", last, end


def _union(spans: Sequence[Span]) -> dict[str, int]:
    """Nanoseconds per share; where spans overlap, the share that stands first in `RANKS` takes the time."""
    changes = sorted([(begin, 1, share) for share, begin, end in spans if end > begin]
                     + [(end, -1, share) for share, begin, end in spans if end > begin])  # fmt: skip
    total = dict.fromkeys(RANKS, 0)
    active = dict.fromkeys(RANKS, 0)
    before = 0
    for at, change, share in changes:
        under_way = next((rank for rank in RANKS if active[rank]), None)
        if under_way:
            total[under_way] += at - before
        active[share] += change
        before = at
    return total


def _nano(seconds: float, wall: int) -> int:
    return min(max(round(seconds * NANO), 0), wall)
