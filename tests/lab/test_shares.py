"""Time shares: every instant belongs to one share, and overlaps count once."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.lab.model import Exchange
from benchmarks.lab.shares import shares
from tests.lab.conftest import exchange


def timed(start: float, end: float, first: float | None = None, last: float | None = None, **other: Any) -> Exchange:
    """An exchange of these times, seconds; without `first` it was not streamed."""
    tokens: dict[str, Any] = {"t_first_byte": first, "t_first_token": first, "t_first_answer": first}
    return exchange(
        stream=first is not None, t_start=start, t_request_end=start, t_last_token=last, t_end=end, **tokens, **other
    )


def test_one_streamed_turn_splits_into_its_parts() -> None:
    got = shares([timed(1.0, 5.0, first=3.0, last=4.5)], wall=6.0)
    assert (got.startup, got.prefill, got.decode, got.model_unsplit, got.client_and_tool, got.tail) == pytest.approx(
        (1.0, 2.0, 1.5, 0.5, 0.0, 1.0)
    )


def test_an_unstreamed_reply_cannot_be_split() -> None:
    got = shares([timed(1.0, 5.0)], wall=6.0)
    assert (got.prefill, got.decode, got.model_unsplit) == (0.0, 0.0, 4.0)


def test_a_request_broken_off_before_its_first_token_cannot_be_split() -> None:
    assert shares([timed(0.0, 3.0, ended="client_closed", partial=True)], wall=3.0).model_unsplit == 3.0


def test_time_between_exchanges_is_the_clients() -> None:
    got = shares([timed(0.0, 2.0, 1.0, 2.0), timed(3.5, 5.5, 4.5, 5.5)], wall=5.5)
    assert got.client_and_tool == 1.5


def test_overlapping_exchanges_count_once_and_decode_goes_first() -> None:
    turn = timed(0.0, 10.0, first=4.0, last=10.0)
    title = timed(1.0, 6.0, first=3.0, last=6.0)
    got = shares([turn, title], wall=10.0)
    assert (got.prefill, got.decode, got.model_unsplit) == (3.0, 7.0, 0.0)


def test_prefill_goes_before_unsplit() -> None:
    got = shares([timed(0.0, 4.0), timed(1.0, 3.0, first=2.0, last=3.0)], wall=4.0)
    assert (got.prefill, got.decode, got.model_unsplit) == (1.0, 1.0, 2.0)


def test_without_an_exchange_all_is_startup() -> None:
    got = shares([], wall=7.5)
    assert (got.startup, got.tail, got.client_and_tool) == (7.5, 0.0, 0.0)


TIMES = st.floats(min_value=-1, max_value=120, allow_nan=False)


@st.composite
def random_exchange(draw: st.DrawFn) -> Exchange:
    start, first, last, end = sorted(draw(st.tuples(TIMES, TIMES, TIMES, TIMES)))
    return timed(start, end, first, last) if draw(st.booleans()) else timed(start, end)


@given(st.lists(random_exchange(), max_size=12), st.floats(min_value=0, max_value=100))
def test_shares_add_up_to_the_wall_and_none_is_negative(exchanges: list[Exchange], wall: float) -> None:
    got = shares(exchanges, wall)
    parts = (got.startup, got.prefill, got.decode, got.model_unsplit, got.client_and_tool, got.tail)
    assert sum(parts) == pytest.approx(wall, abs=2e-9)
    assert min(parts) >= 0


@given(st.lists(random_exchange(), min_size=1, max_size=8))
def test_every_instant_belongs_to_the_first_share_that_holds(exchanges: list[Exchange]) -> None:
    wall = 100.0
    got = shares(exchanges, wall)
    edges = sorted({0.0, wall, *(min(max(t, 0.0), wall) for e in exchanges for t in moments(e))})
    decode = sum(b - a for a, b in itertools.pairwise(edges) if any(decodes(e, (a + b) / 2) for e in exchanges))
    assert got.decode == pytest.approx(decode, abs=1e-6)


def moments(e: Exchange) -> list[float]:
    return [t for t in (e.t_start, e.t_first_token, e.t_last_token, e.t_end) if t is not None]


def decodes(e: Exchange, at: float) -> bool:
    return e.t_first_token is not None and e.t_last_token is not None and e.t_first_token < at < e.t_last_token
