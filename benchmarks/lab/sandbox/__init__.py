"""Where a client runs: workspace and home writable, the system read-only, the meter the only thing on the network.

    with sandbox.open_box(spec) as box:
        running = box.start(argv, env, stdin, stdout, stderr, output_limit)
        ...                                  # accept on box.listener, look at running
        strays = running.end(grace_seconds)

`bwrap` (Linux) and `seatbelt` (macOS) enforce it; `none` only asks politely, and must be asked for by name. What each
covers and what it does not stands at the top of its module. Levels are stamped and never pooled.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.lab.errors import Refused, UsageError
from benchmarks.lab.model import Isolation
from benchmarks.lab.proc import Stray
from benchmarks.lab.sandbox import bare, bwrap, seatbelt
from benchmarks.lab.sandbox.running import Box, Running
from benchmarks.lab.sandbox.spec import Limits, SandboxSpec

__all__ = ["Box", "Limits", "Running", "SandboxSpec", "Stray", "choose", "exposed", "hidden", "open_box"]

_OPEN: dict[Isolation, Callable[[SandboxSpec], AbstractContextManager[Box]]] = {
    "bwrap": bwrap.open_box,
    "seatbelt": seatbelt.open_box,
    "none": bare.open_box,
}


def choose(isolation: Isolation | None) -> Isolation:
    """The isolation to use: the one asked for, or the best there is.

    Raises Refused, in one sentence with the cure, if it does not work here; `none` is never chosen for anybody.
    """
    if isolation == "none":
        return "none"
    wanted = isolation or ("seatbelt" if sys.platform == "darwin" else "bwrap")
    if wanted == "bwrap":
        if sys.platform != "linux":
            raise Refused("Isolation bwrap works on Linux only; leave --isolation out to get the one of this system.")
        bwrap.find()
    elif not seatbelt.PROGRAM.exists():
        raise Refused(f"Isolation seatbelt needs {seatbelt.PROGRAM} (macOS); leave --isolation out, or pass none.")
    return wanted


@contextlib.contextmanager
def open_box(spec: SandboxSpec) -> Iterator[Box]:
    """Open a box for one client; on leaving, everything in it is ended."""
    for name, folder in (("workspace", spec.workspace), ("home", spec.home)):
        if not folder.is_absolute() or not folder.is_dir():
            raise UsageError(f"The sandbox's {name} {folder} must be an existing folder, given as an absolute path.")
    with _OPEN[spec.isolation](spec) as box:
        yield box


def exposed(isolation: Isolation) -> tuple[Path, ...]:
    """Host folders that a client can read besides workspace, home and `spec.readonly`; no answer may lie in them.

    With `none` everything is readable and this is only where programs and their packages usually are.
    """
    if isolation == "bwrap":
        return bwrap.exposed()
    if isolation == "seatbelt":
        return tuple(path for path in map(Path, seatbelt.SYSTEM) if path.exists())
    return (Path("/usr"), Path(sys.base_prefix))


def hidden(isolation: Isolation) -> tuple[Path, ...]:
    """Folders below exposed ones that look empty from inside."""
    return bwrap.hidden() if isolation == "bwrap" else ()
