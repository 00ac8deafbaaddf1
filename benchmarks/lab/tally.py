"""What the exchanges of one trial add up to: tokens, turns, errors. Pure.

A sum with an unknown part is unknown: the tokens of a cancelled reply, or of one that the engine died on, are not zero.
Calls that the engine refused at once add nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http import HTTPStatus
from statistics import median

from benchmarks.lab.meter import is_turn
from benchmarks.lab.model import EngineCounters, Exchange, Tokens
from benchmarks.lab.rows import ExchangesRow


def model_calls(exchanges: Iterable[Exchange]) -> tuple[Exchange, ...]:
    """The exchanges that asked a model for something: no health pages, nothing refused after the trial's end."""
    return tuple(exchange for exchange in exchanges if exchange.dialect is not None and exchange.ended != "refused")


def taken_up(calls: Iterable[Exchange]) -> tuple[Exchange, ...]:
    """The calls that the engine read: it was reached, and did not refuse at once (4xx, or 503 while it loads)."""
    return tuple(call for call in calls if call.ended != "engine_unreachable" and not _refused(call))


def _refused(call: Exchange) -> bool:
    status = call.status or 200
    return call.ended == "complete" and (400 <= status < 500 or status == HTTPStatus.SERVICE_UNAVAILABLE)


def tokens(calls: Sequence[Exchange]) -> Tokens:
    """Sums over the calls that the engine read; a part that one of them does not tell is None in the sum."""
    told = [call.tokens for call in taken_up(calls)]

    def total(name: str) -> int | None:
        return _sum(getattr(one, name) for one in told)

    return Tokens(
        prompt_total=total("prompt_total"),
        prompt_cached=total("prompt_cached"),
        prompt_new=total("prompt_new"),
        output=total("output"),
        reasoning=total("reasoning"),
    )


def turns(calls: Sequence[Exchange]) -> int:
    """Exchanges that are turns of the agent, answered to the end."""
    return sum(is_turn(call) for call in calls)


def counters_agree(metered: Tokens, engine: EngineCounters | None, calls: Sequence[Exchange]) -> bool | None:
    """Whether the meter's sums equal the engine's own totals; None when either side does not know."""
    if engine is None or any(call.partial for call in calls):
        return None
    pairs = (
        (metered.prompt_new, engine.prompt_new),
        (metered.prompt_cached, engine.prompt_cached),
        (metered.output, engine.output),
    )
    known = [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
    return all(ours == theirs for ours, theirs in known) if known else None


def exchanges_row(calls: Sequence[Exchange], refused_after_end: int, reread_tokens: int | None) -> ExchangesRow:
    """The trial's exchanges in numbers."""
    waits = [call.t_first_token - call.t_request_end for call in calls if call.t_first_token is not None]
    tool_calls = [one for call in calls for one in call.calls]
    turn_samplers = [call.sampler for call in calls if not call.auxiliary]
    return ExchangesRow(
        total=len(calls),
        auxiliary=sum(call.auxiliary for call in calls),
        duplicates=sum(call.duplicate_of is not None for call in calls),
        errors=len(calls) - sum(call.ended == "complete" and (call.status or 200) < 400 for call in calls),
        partial=sum(call.partial for call in calls),
        cut_off=sum(bool(call.cut_off) for call in calls),
        tool_calls=len(tool_calls),
        unparsed_calls=sum(not one.parsed for one in tool_calls),
        textual_calls=sum(call.calls_textual for call in calls),
        refused_after_end=refused_after_end,
        models_answered=tuple(sorted({call.model_answered for call in calls if call.model_answered})),
        reread_tokens=reread_tokens,
        first_token_seconds=round(median(waits), 4) if waits else None,
        sampler=turn_samplers[0] if turn_samplers else {},
        rewritten=tuple(sorted({name for call in calls for name in call.rewritten})),
    )


def _sum(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total
