"""What the display says of a trial under way. The clock is the test's."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from benchmarks.agent import display
from benchmarks.lab.meter import Live
from benchmarks.lab.schedule import Slot
from benchmarks.lab.session import Interrupts


def test_without_a_terminal_a_long_trial_gets_a_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    out = io.StringIO()
    watcher = display.TerminalWatcher(Console(file=out, width=200), None, Interrupts())
    watcher.trial_started(Slot(task="t", backend="b", client="c", trial=1), 2, 9)
    for now[0] in (101.0, 159.9, 160.0, 190.0, 221.0):
        watcher.live(Live(open=1, turns=3, prompt_total=2513, output=7, last_progress=None, repeats=0))
    assert out.getvalue().splitlines() == [
        "trial 2/9 t b/c #1: started",
        "trial 2/9 t b/c #1  60 s  rest: unknown  turns 3  prompt 2,513  output 7",
        "trial 2/9 t b/c #1  121 s  rest: unknown  turns 3  prompt 2,513  output 7",
    ]
