"""What a person sees while a batch runs: stamped lines, and how far the trial under way is: live on a terminal, else
a line a minute.

It measures nothing and decides nothing; tables and pages are `lab/report`'s.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from rich.console import Console
from rich.live import Live as Screen
from rich.text import Text

from benchmarks.lab.meter import Live
from benchmarks.lab.rows import TrialRow
from benchmarks.lab.schedule import Slot
from benchmarks.lab.session import Interrupts
from benchmarks.lab.text import count

REFRESH_SECONDS = 0.25
LINE_SECONDS = 60.0  # where there is no terminal: often enough to see that a long trial goes on


class TerminalWatcher:
    """Stamped lines for everything that lasts; `screen`, if there is one, for what changes by the second."""

    def __init__(self, console: Console, screen: Screen | None, interrupts: Interrupts) -> None:
        self.prefix = ""
        self._console = console
        self._screen = screen
        self._interrupts = interrupts
        self._heard = False
        self._slot: Slot | None = None
        self._place = (0, 0)
        self._started = 0.0
        self._shown = 0.0
        self._walls: list[float] = []

    def say(self, line: str) -> None:
        """One lasting line."""
        self._console.print(Text(f"{self.prefix} {line}".lstrip()), soft_wrap=True)

    def trial_started(self, slot: Slot, position: int, of: int) -> None:
        """A trial begins; it is `position` of `of` as far as is known now."""
        self._slot, self._place, self._started = slot, (position, of), time.monotonic()
        self._shown = self._started
        if self._screen is None:
            self.say(f"trial {position}/{of} {_name(slot)}: started")

    def live(self, live: Live) -> None:
        """The meter's counts of the trial under way."""
        if self._interrupts.level and not self._heard:  # not said by the signal handler: it may come amid a line
            self._heard = True
            self.say("stopping when this trial has ended; Ctrl-C again ends it now, and it is void")
        now = time.monotonic()
        every = LINE_SECONDS if self._screen is None else REFRESH_SECONDS
        if self._slot is None or now - self._shown < every:
            return
        self._shown = now
        position, of = self._place
        status = (
            f"{position}/{of} {_name(self._slot)}  {now - self._started:.0f} s  rest: {self._remaining(now)}  "
            f"turns {live.turns}  prompt {_known(live.prompt_total)}  output {_known(live.output)}"
        )
        if self._screen is None:
            self.say(f"trial {status}")
        else:
            self._screen.update(Text(status, no_wrap=True, overflow="ellipsis"))

    def trial_ended(self, row: TrialRow) -> None:
        """A row was written."""
        position, of = self._place
        if row.wall_seconds is not None:
            self._walls.append(row.wall_seconds)
        if self._screen is not None:
            self._screen.update(Text(""))
        self.say(f"trial {position}/{of} {row.task} {row.backend}/{row.client} #{row.trial}: {_result(row)}")

    def _remaining(self, now: float) -> str:
        position, of = self._place
        if not self._walls:
            return "unknown"
        usual = median(self._walls)
        left = max(usual - (now - self._started), 0.0) + usual * (of - position)
        return f"about {left / 60:.0f} min"


@contextmanager
def open_watcher(interrupts: Interrupts) -> Iterator[TerminalWatcher]:
    """A watcher for this terminal, or for a pipe."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        yield TerminalWatcher(console, None, interrupts)
        return
    with Screen(Text(""), console=console, refresh_per_second=4, transient=True) as screen:
        yield TerminalWatcher(console, screen, interrupts)


def _name(slot: Slot) -> str:
    return f"{slot.task} {slot.backend}/{slot.client} #{slot.trial}"


def _known(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _result(row: TrialRow) -> str:
    why = row.cause or row.reason
    blame = f" ({why}{f', {row.who}' if row.who else ''})" if why else ""
    wall = "" if row.wall_seconds is None else f", {row.wall_seconds:.1f} s"
    tokens = (
        "" if row.tokens is None else f", prompt {_known(row.tokens.prompt_total)} output {_known(row.tokens.output)}"
    )
    turns = "" if row.turns is None else f", {count(row.turns, 'turn')}"
    flags = f" [{', '.join(row.flags)}]" if row.flags else ""
    detail = f": {row.detail}" if row.detail else ""
    return f"{row.verdict}{blame}{wall}{turns}{tokens}{flags}{detail}"
