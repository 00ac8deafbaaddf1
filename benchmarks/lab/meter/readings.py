"""What several exchanges together say that one alone cannot: which are turns, and how often a call repeats. Pure.

Sums are `tally`'s, reasons to void or fail are `findings`'.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from benchmarks.lab.model import Exchange, ToolCall


def classify(exchanges: Sequence[Exchange]) -> tuple[Exchange, ...]:
    """`exchanges` with `auxiliary` settled: where any request of the trial offers tools, one that offers none is a
    side request (title, compaction); calls that are no model calls always are."""
    any_tools = any(exchange.tools for exchange in exchanges)
    return tuple(
        msgspec.structs.replace(exchange, auxiliary=exchange.auxiliary or (any_tools and not exchange.tools))
        for exchange in exchanges
    )


def is_answered(exchange: Exchange) -> bool:
    """A model call that the engine answered to the end."""
    whole = exchange.ended == "complete" and exchange.status is not None and exchange.status < 400
    return whole and exchange.dialect is not None


def is_turn(exchange: Exchange) -> bool:
    """A turn of the agent: an answered model call that is no side request."""
    return is_answered(exchange) and not exchange.auxiliary


def trailing_repeats(calls: Sequence[ToolCall]) -> int:
    """How many times the last call stands at the end without another between; 0 where there is none."""
    run = 0
    for call in reversed(calls):
        if call != calls[-1]:
            break
        run += 1
    return run
