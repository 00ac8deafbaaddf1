"""Process trees, tool calls, clocks, and pumps that carry a client's output into bounded files.

A tree is found by three marks: descent from its root, the root's session, and the environment variable LOCAL_LAB_TRIAL
that every child inherits; what was a member once stays one, wherever it is re-parented. Not found without a pid
namespace: a process that cleared its environment, took a session of its own and lost its parent all between two looks.
On macOS the environment of some system programs cannot be read, so there the third mark is weaker.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from benchmarks.lab.errors import LabError
from benchmarks.lab.model import Record

MARKER = "LOCAL_LAB_TRIAL"
_COMMAND_CHARACTERS = 200
_READS_AFTER_STOP = 16  # what a full pipe may still hold; a writer that goes on for ever does not keep a pump


class Stray(Record, frozen=True, kw_only=True):
    """A process that outlived the program that started it and had to be killed."""

    pid: int
    name: str
    command: str  # its argv joined by spaces, cut


class Sample(Record, frozen=True, kw_only=True):
    """What a tree used at one moment: resident bytes (shared pages counted once, by their largest user), processes."""

    memory_bytes: int
    processes: int


class Clocks(Record, frozen=True, kw_only=True):
    """One reading of three clocks, seconds. `boottime` goes on while the machine sleeps; None where there is none."""

    monotonic: float
    wall: float
    boottime: float | None


class Finished(Record, frozen=True, kw_only=True):
    """A tool call that ended. `code` None: killed by `signal`; output is the first bytes of each stream."""

    code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool
    seconds: float


# ---- clocks ----


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


# ---- trees ----


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


# ---- starting ----


@functools.cache
def _starter() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="starter")


def start_long_lived(argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """`subprocess.Popen` from a thread that lives as long as this program.

    The kernel's parent-death signal (`bwrap --die-with-parent`) fires when the forking *thread* ends, so what is to
    outlive the calling thread must be forked elsewhere.
    """
    return _starter().submit(lambda: subprocess.Popen(list(argv), **options)).result()


def downloading() -> dict[str, str]:
    """The environment for tools that download: ours, and the system's certificates are trusted unless it says other.

    Companies put the certificates of their proxies and mirrors into the system's store, which uv and node leave unread.
    """
    return {"UV_SYSTEM_CERTS": "1", "NODE_USE_SYSTEM_CA": "1", **os.environ}


def uv() -> str | None:
    """Path of uv: what `uv run` says in UV, else the one on PATH; None if there is none."""
    return os.environ.get("UV") or shutil.which("uv")


def run_quiet(
    argv: Sequence[str | os.PathLike[str]],
    timeout: float,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    limit: int | None = 1 << 20,
) -> Finished:
    """Run a tool to its end without a terminal, keeping at most `limit` bytes of each stream (None: all).

    After `timeout` seconds its whole tree is killed. A daemon it leaves cannot hold this call up: the output goes to
    unnamed files. Raises LabError if the program cannot be started. The exit code is the caller's business.
    """
    begun = time.monotonic()
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        try:
            process = subprocess.Popen(
                argv, stdin=given, stdout=out, stderr=err, cwd=cwd, env=env, start_new_session=True
            )
        except OSError as problem:
            raise LabError(f"Cannot start {os.fspath(argv[0])}: {problem.strerror}.") from problem
        timed_out = False
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            if process.poll() is None:
                end_tree(ProcessTree(process.pid), 0)
                process.wait()
        out.seek(0)
        err.seek(0)
        return Finished(
            code=process.returncode if process.returncode >= 0 else None,
            signal=-process.returncode if process.returncode < 0 else None,
            stdout=out.read(limit if limit is not None else -1),
            stderr=err.read(limit if limit is not None else -1),
            timed_out=timed_out,
            seconds=time.monotonic() - begun,
        )


# ---- pumps ----


class Pump:
    """Carries what comes out of `descriptor` (which it owns) into the file `path`, at most `limit` bytes of it.

    It goes on reading past the limit, so the writer never blocks, and past a full disk (`problem` then says so).
    """

    def __init__(self, descriptor: int, path: Path, limit: int) -> None:
        self._descriptor = descriptor
        self._limit = limit
        self._file = path.open("wb", buffering=0)
        self._stop, self._stopper = os.pipe()
        self.total = 0  # bytes that came
        self.kept = 0  # bytes written
        self.last: float | None = None  # monotonic time of the last byte
        self.problem: str | None = None
        self._thread = threading.Thread(target=self._carry, name=f"pump {path.name}", daemon=True)
        self._thread.start()

    def finish(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the end of the stream, then stop. False: somebody still holds it open."""
        self._thread.join(timeout)
        ended = not self._thread.is_alive()
        if not self._file.closed:
            os.close(self._stopper)
            self._thread.join()
            for descriptor in (self._descriptor, self._stop):
                os.close(descriptor)
            self._file.close()
        return ended

    def _carry(self) -> None:
        ready = select.poll()
        ready.register(self._descriptor, select.POLLIN)
        ready.register(self._stop, select.POLLIN)
        rest = _READS_AFTER_STOP
        while rest:
            descriptors = {descriptor for descriptor, _ in ready.poll()}
            rest -= self._stop in descriptors
            if self._descriptor not in descriptors:
                return  # told to stop, and nothing is waiting
            data = os.read(self._descriptor, 1 << 18)
            if not data:
                return
            self.last = time.monotonic()
            self.total += len(data)
            self._keep(data[: self._limit - self.kept])

    def _keep(self, data: bytes) -> None:
        while data and self.problem is None:
            try:
                written = self._file.write(data)
            except OSError as problem:
                self.problem = problem.strerror
                return
            self.kept += written
            data = data[written:]
