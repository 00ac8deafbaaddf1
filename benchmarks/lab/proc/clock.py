"""Three clocks read at once, and from two readings how long the machine slept."""

from __future__ import annotations

import sys
import time

from benchmarks.lab.model import Record


class Clocks(Record, frozen=True, kw_only=True):
    """One reading of three clocks, seconds. `boottime` goes on while the machine sleeps; None where there is none."""

    monotonic: float
    wall: float
    boottime: float | None


def clocks() -> Clocks:
    """Read the clocks; monotonic time does not run during sleep, so a growing gap to `boottime` is sleep."""
    boottime = None
    number = getattr(time, "CLOCK_BOOTTIME", None)
    if number is None and sys.platform == "darwin":
        number = time.CLOCK_MONOTONIC  # goes on during sleep there, unlike time.monotonic()
    if number is not None:
        boottime = time.clock_gettime(number)
    return Clocks(monotonic=time.monotonic(), wall=time.time(), boottime=boottime)


def slept_between(before: Clocks, after: Clocks) -> float:
    """Seconds the machine slept between two readings; without a boot clock, by how far the wall clock ran ahead."""
    ran = after.monotonic - before.monotonic
    if before.boottime is None or after.boottime is None:
        return max(0.0, (after.wall - before.wall) - ran)
    return max(0.0, (after.boottime - before.boottime) - ran)
