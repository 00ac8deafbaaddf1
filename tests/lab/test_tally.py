"""What a trial's exchanges add up to: an unknown part makes an unknown sum, a refusal adds nothing."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.lab import tally
from benchmarks.lab.model import EngineCounters, Exchange, Tokens
from tests.lab.conftest import exchange

TOLD = Tokens(prompt_total=10, prompt_cached=4, prompt_new=6, output=3, reasoning=0)


def told(index: int, **changes: Any) -> Exchange:
    return exchange(index, **{"tokens": TOLD, **changes})


def test_sums_of_what_was_told() -> None:
    whole = Tokens(prompt_total=20, prompt_cached=8, prompt_new=12, output=6, reasoning=0)
    assert tally.tokens([told(0), told(1)]) == whole


@pytest.mark.parametrize(
    "refused",
    [
        {"status": 400},
        {"status": 503},
        {"status": 502, "ended": "engine_unreachable"},
    ],
)
def test_what_the_engine_refused_at_once_adds_nothing(refused: dict[str, Any]) -> None:
    assert tally.tokens([told(0), exchange(1, **refused)]) == TOLD


@pytest.mark.parametrize(
    "broken",
    [
        {"status": 500},
        {"status": 502, "ended": "engine_closed", "partial": True},
        {"ended": "client_closed", "partial": True},
    ],
)
def test_what_the_engine_read_and_did_not_tell_of_makes_the_sum_unknown(broken: dict[str, Any]) -> None:
    assert tally.tokens([told(0), exchange(1, **broken)]) == Tokens()


def test_counters_are_compared_where_both_sides_know() -> None:
    same = EngineCounters(prompt_new=6, prompt_cached=4, output=3)
    assert tally.counters_agree(TOLD, same, [told(0)]) is True
    assert tally.counters_agree(TOLD, EngineCounters(prompt_new=7), [told(0)]) is False
    assert tally.counters_agree(Tokens(output=3), same, [told(0)]) is True
    assert tally.counters_agree(TOLD, None, [told(0)]) is None
    assert tally.counters_agree(TOLD, EngineCounters(), [told(0)]) is None
    assert tally.counters_agree(TOLD, same, [told(0, partial=True)]) is None
