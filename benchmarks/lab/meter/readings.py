"""What several exchanges together say: which are turns, which are retries, which models had a part. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.lab.model import Exchange, Tokens, ToolCall


def classify(exchanges: Sequence[Exchange]) -> tuple[Exchange, ...]:
    """`exchanges` with `auxiliary` settled: where any request of the trial offers tools, one that offers none is a
    side request (title, compaction); calls that are no model calls always are."""
    any_tools = any(exchange.tools for exchange in exchanges)
    return tuple(
        _auxiliary(exchange) if any_tools and not exchange.tools and not exchange.auxiliary else exchange
        for exchange in exchanges
    )


def is_turn(exchange: Exchange) -> bool:
    """A turn of the agent: a model call of its own that the engine answered to the end."""
    answered = exchange.ended == "complete" and exchange.status is not None and exchange.status < 400
    return answered and exchange.dialect is not None and not exchange.auxiliary


def client_retries(exchanges: Sequence[Exchange]) -> tuple[tuple[int, int], ...]:
    """Pairs (earlier, later) of identical model requests where the earlier had no whole answer when the later came."""
    by_index = {exchange.index: exchange for exchange in exchanges}
    return tuple(
        (exchange.duplicate_of, exchange.index)
        for exchange in exchanges
        if exchange.duplicate_of is not None and _unanswered(by_index[exchange.duplicate_of], exchange)
    )


def impatient(exchanges: Sequence[Exchange]) -> tuple[tuple[int, int], ...]:
    """Retries whose earlier request was still being read: the client gave up before the first token and asked again."""
    by_index = {exchange.index: exchange for exchange in exchanges}
    return tuple(
        (earlier, later)
        for earlier, later in client_retries(exchanges)
        if by_index[earlier].ended == "client_closed" and by_index[earlier].t_first_token is None
    )


def strangers(exchanges: Iterable[Exchange], names: Sequence[str]) -> tuple[str, ...]:
    """Model names that answered though they are not among `names`, in order of appearance."""
    answered = (exchange.model_answered for exchange in exchanges if exchange.dialect)
    return tuple(dict.fromkeys(name for name in answered if name is not None and name not in names))


def foreign_requests(exchanges: Iterable[Exchange], names: Sequence[str]) -> tuple[str, ...]:
    """Model names that the client asked for though they are not among `names` (an alias left at its default)."""
    asked = (exchange.model_asked for exchange in exchanges if exchange.dialect)
    return tuple(dict.fromkeys(name for name in asked if name is not None and name not in names))


def total_tokens(exchanges: Iterable[Exchange]) -> Tokens:
    """Sums over the model calls; a sum with an unknown term is unknown."""
    counts = [exchange.tokens for exchange in exchanges if exchange.dialect]
    return Tokens(
        prompt_total=_sum([c.prompt_total for c in counts]),
        prompt_cached=_sum([c.prompt_cached for c in counts]),
        prompt_new=_sum([c.prompt_new for c in counts]),
        output=_sum([c.output for c in counts]),
        reasoning=_sum([c.reasoning for c in counts]),
    )


def trailing_repeats(calls: Sequence[ToolCall]) -> int:
    """How many times the last call stands at the end without another between; 0 where there is none."""
    run = 0
    for call in reversed(calls):
        if call != calls[-1]:
            break
        run += 1
    return run


def _auxiliary(exchange: Exchange) -> Exchange:
    fields = {name: getattr(exchange, name) for name in exchange.__struct_fields__}
    return Exchange(**{**fields, "auxiliary": True})


def _unanswered(earlier: Exchange, later: Exchange) -> bool:
    return earlier.ended != "complete" or (earlier.status or 0) >= 400 or earlier.t_end > later.t_start


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
