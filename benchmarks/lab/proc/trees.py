"""Process trees: found again at every look, watched, ended.

A tree is found by three marks: descent from its root, the root's session, and the environment variable LOCAL_LAB_TRIAL
that every child inherits; what was a member once stays one, wherever it is re-parented. Not found without a pid
namespace: a process that cleared its environment, took a session of its own and lost its parent all between two looks.
On macOS the environment of some system programs cannot be read, so there the third mark is weaker.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from benchmarks.lab.errors import LabError
from benchmarks.lab.model import Record

MARKER = "LOCAL_LAB_TRIAL"
_COMMAND_CHARACTERS = 200


class Stray(Record, frozen=True, kw_only=True):
    """A process that outlived the program that started it and had to be killed."""

    pid: int
    name: str
    command: str  # its argv joined by spaces, cut


class Sample(Record, frozen=True, kw_only=True):
    """What a tree used at one moment: resident bytes (shared pages counted once, by their largest user), processes."""

    memory_bytes: int
    processes: int


class ProcessTree:
    """All processes that come from `root`, found again at every look.

    `marker` is the trial id in LOCAL_LAB_TRIAL; None: by descent alone (enough where a pid namespace holds them).
    `root` itself belongs to the tree unless `with_root` is False; None: there is only the marker. The calling process
    never belongs to it. May be used by several threads.
    """

    def __init__(self, root: int | None, marker: str | None = None, *, with_root: bool = True) -> None:
        self._root = root
        self._with_root = with_root
        self._marker = f"{MARKER}={marker}".encode() if marker is not None else None
        self._session = root if marker is not None and root is not None and _session(root) == root else None
        self._known: dict[int, psutil.Process] = {}
        self._lock = threading.Lock()
        if root is not None:
            self._learn({root})

    def members(self, *, whole: bool = True) -> tuple[psutil.Process, ...]:
        """The living members. `whole=False` looks at descendants and known members only, which is much cheaper."""
        with self._lock:
            self._known = {pid: process for pid, process in self._known.items() if _alive(process)}
            found = _descendants(self._known)
            if whole and self._marker is not None:
                found |= _descendants(self._marked())
            self._learn(found - {os.getpid()} - self._known.keys())
            return tuple(process for pid, process in self._known.items() if self._with_root or pid != self._root)

    def sample(self) -> Sample:
        """Memory and number of the living members, by the cheap look."""
        own, shared, count = 0, 0, 0
        for process in self.members(whole=False):
            with contextlib.suppress(psutil.Error):
                memory = process.memory_info()
                common = getattr(memory, "shared", 0)
                own += memory.rss - common
                shared = max(shared, common)
                count += 1
        return Sample(memory_bytes=own + shared, processes=count)

    def _learn(self, pids: set[int]) -> None:
        for pid in pids:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if _alive(process):  # where pid 1 is a lazy one, orphans stay zombies for a while
                    self._known[pid] = process

    def _marked(self) -> set[int]:
        pids = psutil.pids()
        in_session = {pid for pid in pids if self._session is not None and _session(pid) == self._session}
        if not in_session:
            self._session = None  # the number is free again and may come to mean somebody else
        return in_session | {pid for pid in pids if self._marker is not None and self._marker in _environment(pid)}


def end_tree(tree: ProcessTree, grace_seconds: float) -> tuple[Stray, ...]:
    """End every member: SIGTERM, up to `grace_seconds`, then SIGKILL until a whole look finds nobody.

    Returns those that needed SIGKILL. Raises LabError if something cannot be killed (uninterruptible, not ours).
    """
    members = tree.members()
    if grace_seconds > 0:
        for process in members:
            send(process, signal.SIGTERM)
        _wait(members, grace_seconds)
    strays: dict[int, Stray] = {}
    deadline = time.monotonic() + 10
    while members := tree.members():
        for process in members:
            strays.setdefault(process.pid, describe(process))
            send(process, signal.SIGKILL)
        _wait(members, 1)
        if time.monotonic() > deadline:
            raise LabError(
                f"Process {members[0].pid} ({strays[members[0].pid].name}) cannot be killed; end it by hand."
            )
    return tuple(strays.values())


def describe(process: psutil.Process) -> Stray:
    """Name and command of a process, as far as they can still be read."""
    name, command = "", ""
    with contextlib.suppress(psutil.Error):
        name = process.name()
        command = " ".join(process.cmdline())[:_COMMAND_CHARACTERS]
    return Stray(pid=process.pid, name=name, command=command)


def send(process: psutil.Process, number: int) -> None:
    """Signal a process if it is still the same one; psutil compares the start time first, so no pid is hit by reuse."""
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)


def _wait(processes: Sequence[psutil.Process], seconds: float) -> None:
    """Until all are gone or wait to be reaped. (psutil's own wait reaps, and so takes a Popen's exit code away.)"""
    deadline = time.monotonic() + seconds
    while any(map(_alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.005)


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _environment(pid: int) -> list[bytes]:
    """The environment a process was started with, as NAME=value; empty where it may not be read."""
    if sys.platform == "linux":
        try:
            return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return []
    try:
        environment = psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return []
    return [f"{MARKER}={environment.get(MARKER)}".encode()]


def _descendants(roots: Iterable[int]) -> set[int]:
    """Every pid below the roots, and the roots themselves."""
    queue = list(roots)
    seen = set(queue)
    while queue:
        for child in _children(queue.pop()):
            if child not in seen:
                seen.add(child)
                queue.append(child)
    return seen


@functools.cache
def _lists_children() -> bool:
    return Path(f"/proc/self/task/{threading.get_native_id()}/children").exists()


def _children(pid: int) -> list[int]:
    if not _lists_children():
        try:
            return [child.pid for child in psutil.Process(pid).children()]
        except psutil.Error:
            return []
    found: list[int] = []
    with contextlib.suppress(OSError):  # a child hangs below the thread that forked it
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_bytes().split())
    return found
