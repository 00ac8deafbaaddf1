"""kill -9 of run.py at random moments: what was finished stays, nothing is doubled, nothing survives."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from benchmarks.lab import ledger

if TYPE_CHECKING:
    from tests.agent.conftest import Desk

POINTS = 100
LONGEST_SECONDS = 14.0  # a warm run of two short trials takes about as long


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_kill_9_at_a_hundred_random_points(desk: Desk) -> None:
    chance = random.Random(20261130)
    flags = ("--results", str(desk.results), "--backend", "scripted", "--client", "stub", "--task", "toolz-groupby",
             "--trials", "40", "--skip-smoke")  # fmt: skip
    seen: dict[str, str] = {}
    for _ in range(POINTS):
        run = desk.start(*flags)
        time.sleep(chance.uniform(0.0, LONGEST_SECONDS))
        run.send_signal(signal.SIGKILL)
        run.communicate()
        deadline = time.monotonic() + 30
        while desk.processes():
            assert time.monotonic() < deadline, [process.cmdline() for process in desk.processes()]
            time.sleep(0.05)
        rows = {row.id: row.body["verdict"] for row in ledger.read(desk.results) if row.kind == "trial"}
        assert seen.items() <= rows.items(), "a finished row is gone or changed"
        seen = rows
    book = list(ledger.read(desk.results))
    slots = Counter((row.batch, slot) for row in book if (slot := ledger.slot_of(row)) is not None)
    assert seen
    assert max(slots.values()) == 1
    # A kill may fall between the end of a batch and the end of its program; only then is there a batch after it.
    started, ended = ([row.batch for row in book if row.kind == kind] for kind in ("batch_start", "batch_end"))
    assert ended == started[: len(ended)]
    assert len(started) - len(ended) <= 1
    assert ledger.check(desk.results) == []
