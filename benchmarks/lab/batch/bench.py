"""What the parts of a batch share: the bench they work at, who is told, and folders for a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.lab import (
    fsio,
    ledger,
    paths,
    stamp,
)
from benchmarks.lab.labfile import Lab
from benchmarks.lab.machine import Machine
from benchmarks.lab.meter import Live
from benchmarks.lab.model import Backend, Record
from benchmarks.lab.rows import TrialRow
from benchmarks.lab.schedule import Plan, Slot
from benchmarks.lab.session import Interrupts
from benchmarks.lab.tasks import Suite

Write = Callable[[str, Record], None]


class Watcher(Protocol):
    """Who is told what happens: `say` takes one line, the others drive a display."""

    def say(self, line: str) -> None:
        """One lasting line."""

    def trial_started(self, slot: Slot, position: int, of: int) -> None:
        """A trial begins: `position` of `of`, as far as is known now."""

    def live(self, live: Live) -> None:
        """The meter's counts of the trial under way, many times a second."""

    def trial_ended(self, row: TrialRow) -> None:
        """Its row was written."""


@dataclass(frozen=True)
class Bench:
    """What stays the same over a batch."""

    plan: Plan
    lab: Lab
    backends: Mapping[str, Backend]  # those of the plan's cells
    suite: Suite
    book: ledger.Ledger
    machine: Machine
    code: stamp.CodeStamp
    program: str
    argv: tuple[str, ...]
    locked: bool
    fresh: bool
    require_head: str | None
    watcher: Watcher
    interrupts: Interrupts


class Outcome(Record, frozen=True, kw_only=True):
    """How a batch ended. `left_out`: cells and tasks that could not be tried, with the reason."""

    batch: str
    done: int
    void: int
    given_up: int
    interrupted: bool
    left_out: Mapping[str, str]


@contextmanager
def work_folder(purpose: str) -> Iterator[Path]:
    """A folder for a moment, gone afterwards."""
    folder = paths.state_dir() / "work" / f"{purpose}-{ledger.new_id()}"
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        fsio.remove_tree(folder)
