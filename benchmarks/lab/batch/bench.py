"""What the parts of a batch share: the bench they work at, who is told, and folders for a moment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
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
from benchmarks.lab.errors import Refused
from benchmarks.lab.labfile import Lab
from benchmarks.lab.machine import Machine
from benchmarks.lab.meter import Live
from benchmarks.lab.model import Backend, Record
from benchmarks.lab.rows import TrialRow
from benchmarks.lab.schedule import Plan, Slot
from benchmarks.lab.session import Interrupts
from benchmarks.lab.tasks import Suite
from benchmarks.lab.text import Say, count

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
def work_place(say: Say, *, sweep: bool) -> Iterator[None]:
    """Hold the place of the work folders, as every program does that has some; a sweep leaves those of the living.

    With `sweep`, what a killed run left is removed first, unless another program (of --no-lock) is at work.
    """
    place = paths.state_dir() / "work"
    if sweep:
        with fsio.hold_folder(place) as alone:
            left = sorted(place.glob("*"))
            for folder in left if alone else ():
                fsio.remove_tree(folder)
        if left:
            done = (
                "removed {} that an earlier run left behind" if alone else "another program is at work: {} left alone"
            )
            say(done.format(count(len(left), "work folder")))
    with fsio.hold_folder(place, shared=True) as held:
        if not held:
            raise Refused(f"another program is clearing {place}; start again in a moment")
        yield


@contextmanager
def work_folder(purpose: str) -> Iterator[Path]:
    """A folder for a moment, gone afterwards."""
    folder = paths.state_dir() / "work" / f"{purpose}-{ledger.new_id()}"
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        fsio.remove_tree(folder)


def refuse_if_none(what: str, left: Collection[object], left_out: Mapping[str, str]) -> None:
    """Raise Refused with the reasons if no `what` is left."""
    if not left:
        raise Refused(f"no {what} is left to try: " + "; ".join(f"{name}: {why}" for name, why in left_out.items()))
