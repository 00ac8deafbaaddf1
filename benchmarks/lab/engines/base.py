"""What every engine offers: the two protocols, the trial's out-of-band context, and checks of a backend's entry.

An engine is found in the table of `engines/__init__.py`. Nothing here starts a process or opens a connection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import psutil

from benchmarks.lab.errors import UsageError
from benchmarks.lab.model import Backend, Dialect, EngineCounters, EngineFacts, Record
from benchmarks.lab.text import Say


class TrialContext(Record, frozen=True, kw_only=True):
    """What `scripted` must know of the trial under way; handed over in process, never through the wire.

    `solution` maps allowed paths (relative to the workspace) to original bytes. `workspace` is the folder as the client
    sees it. `nonce` is the *name* of the file the `nonce` script makes. `options` overrides the backend's own.
    """

    script: str | None = None
    solution: Mapping[str, bytes] = {}
    files: tuple[str, ...] = ()
    workspace: str = "."
    tests: str | None = None
    nonce: str | None = None
    options: Mapping[str, Any] = {}


class ServerProcess(Record, frozen=True, kw_only=True):
    """One server process for good: a process id alone may be given to another one later."""

    pid: int
    created: float  # seconds since the epoch

    def __str__(self) -> str:
        return f"{self.pid}@{self.created:.2f}"

    @property
    def started(self) -> str:
        """When it was started, ISO 8601."""
        return datetime.fromtimestamp(self.created, UTC).isoformat(timespec="seconds")


@dataclass
class CounterBox:
    """Filled when a trial's bracket closes; None when the engine keeps no totals or they cannot be trusted."""

    result: EngineCounters | None = None


class Endpoint(Protocol):
    """A served model. `base_url` has no path; `model` is the name to ask for, `names` those that may answer."""

    base_url: str
    model: str
    names: tuple[str, ...]
    dialects: tuple[Dialect, ...]
    facts: EngineFacts
    api_key: str | None

    def facts_now(self) -> EngineFacts:
        """The facts asked for again, to see a restart or another model."""
        ...

    def trial(self, context: TrialContext) -> AbstractContextManager[CounterBox]:
        """Bracket one trial."""
        ...


class Engine(Protocol):
    """A way to serve a model, or to reach one that is served."""

    name: str
    dialects: tuple[Dialect, ...]

    def probe(self, base_url: str, api_key: str | None = None) -> EngineFacts:
        """What the server at `base_url` tells of itself."""
        ...

    def serve(self, backend: Backend, state: Path, say: Say) -> AbstractContextManager[Endpoint]:
        """Start or attach; ready when a real one-token completion came back; on exit nothing it started is left."""
        ...


def process_of(pid: int) -> ServerProcess | None:
    """The identity of a running process, or None if it is gone."""
    try:
        return ServerProcess(pid=pid, created=psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def is_running(process: ServerProcess) -> bool:
    """Whether that very process still runs (a zombie does not)."""
    try:
        found = psutil.Process(process.pid)
        return abs(found.create_time() - process.created) < 0.05 and found.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def refuse_hosted(backend: str, model: str) -> None:
    """Raise UsageError for names that a local server passes on to its vendor's machines (field case B31)."""
    if re.search(r"(:|-)cloud$", model.strip().lower()):
        raise UsageError(
            f"backend '{backend}': field model names '{model}', which runs on the vendor's machines and not here; "
            "name a local model"
        )


def only_options(backend: Backend, known: tuple[str, ...]) -> None:
    """Raise UsageError if the backend's `options` hold a key that the engine does not know."""
    for key in backend.options:
        if key not in known:
            listed = ", ".join(known) or "none"
            raise UsageError(
                f"backend '{backend.name}': option '{key}' is unknown to engine '{backend.engine}'; known: {listed}"
            )
