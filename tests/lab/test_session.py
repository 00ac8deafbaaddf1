"""What a session makes of a person's wish to stop; the rest of it is seen in tests/agent, through run.py."""

from __future__ import annotations

import pytest

from benchmarks.lab.session import Interrupts


@pytest.mark.parametrize(
    ("signals", "new"),
    [
        ((10.0,), (True,)),
        ((10.0, 10.02), (True, False)),  # the same one, passed on by `uv run`
        ((10.0, 10.02, 11.0, 11.02), (True, False, True, False)),
    ],
)
def test_a_signal_and_its_echo_are_one_request(signals: tuple[float, ...], new: tuple[bool, ...]) -> None:
    interrupts = Interrupts()
    assert tuple(interrupts.raise_level(at) for at in signals) == new
    assert interrupts.level == sum(new)
