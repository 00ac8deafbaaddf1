"""A client under way: its end, its output, what its tree uses, what it tried to reach, and how everything is ended.

One watching thread per client notes the moment of its end, samples the tree, and keeps the packet socket empty.
Sampling takes well under a millisecond for a handful of processes; the walk over the disk takes at most a twentieth of
the time. How a client is started and found is the business of `bwrap` and `bare` (the protocol `Process`).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from benchmarks.lab import fsio
from benchmarks.lab.errors import LabError
from benchmarks.lab.model import EgressAttempt
from benchmarks.lab.proc import ProcessTree, Pump, Stray, end_tree
from benchmarks.lab.sandbox.egress import EgressLog
from benchmarks.lab.sandbox.spec import Limits, SandboxSpec

SAMPLE_SECONDS = 0.25
DISK_SECONDS = 1.0
DISK_ENTRIES = 200_000
SETTLE_SECONDS = 0.25  # what the client leaves may end by itself, say by an end of file, before it counts as stray
_BLIND_SECONDS = 0.02  # how often to ask where no descriptor tells of the end

End = tuple[int | None, int | None]
Stdio = tuple[int, int, int]


class Process(Protocol):
    """A started client as one isolation knows it."""

    pid: int
    tree: ProcessTree  # the client and all it started, nothing of ours

    def fileno(self) -> int | None:
        """A descriptor that becomes readable when `ended` may have news; None: ask again and again."""

    def ended(self) -> End | None:
        """Exit code and signal, one of them None, once the client ended. Asked by one thread only."""

    def signal(self, number: int) -> None:
        """Signal the client alone."""

    def finish(self) -> None:
        """End what is left of the surroundings (pid namespace, watchdog) for good."""


class Running:
    """A client that was started; the public face of `sandbox`. Methods may be called from any thread."""

    def __init__(
        self,
        process: Process,
        spec: SandboxSpec,
        pumps: Sequence[Pump],
        listener: socket.socket | None,
        egress: EgressLog | None,
    ) -> None:
        self.pid = process.pid  # on this host
        self.listener = listener
        self.ended_at: float | None = None  # monotonic
        self._process = process
        self._limits = spec.limits
        self._folders = (spec.workspace, spec.home)
        self._pumps = pumps
        self._egress = egress
        self._end: End | None = None
        self._gone = threading.Event()
        self._blind: str | None = None
        self._strays: tuple[Stray, ...] | None = None
        self._over: Literal["memory", "disk", "processes"] | None = None
        self._stop, stopper = os.pipe()
        self._stopper: int | None = stopper
        self._watcher = threading.Thread(target=self._watch, name=f"watch {spec.trial_id}", daemon=True)
        self._watcher.start()

    # ---- what is seen ----

    def poll(self) -> End | None:
        """(exit code, None) or (None, signal) once the client ended; None while it runs.

        Raises LabError if the watching thread broke, since the end would never be noticed then.
        """
        if self._blind is not None:
            raise LabError(f"the client could not be watched any more ({self._blind})")
        return self._end

    def wait(self, seconds: float) -> End | None:
        """`poll`, but wait up to `seconds` for the end."""
        self._gone.wait(seconds)
        return self._end

    def output_bytes(self) -> int:
        """Bytes the client wrote to stdout and stderr, kept or not."""
        return sum(pump.total for pump in self._pumps)

    def output_problem(self) -> str | None:
        """Why output could not be written (a full disk), if so."""
        return next((pump.problem for pump in self._pumps if pump.problem), None)

    def last_output(self) -> float | None:
        """Monotonic time of the last byte of output; None: there was none."""
        return max((pump.last for pump in self._pumps if pump.last is not None), default=None)

    def over_limit(self) -> Literal["memory", "disk", "processes"] | None:
        """The limit that was passed first; it stays named."""
        return self._over

    def egress(self) -> tuple[EgressAttempt, ...] | None:
        """What tried to leave; None where it cannot be observed."""
        return None if self._egress is None else self._egress.attempts()

    # ---- the end ----

    def end(self, grace_seconds: float) -> tuple[Stray, ...]:
        """End the client (SIGTERM, `grace_seconds`, SIGKILL) and then everything it left; nothing survives.

        Returns what had to be killed after the client was gone. A second call returns the same and does nothing.
        """
        if self._strays is None:
            if self._end is None:
                self._process.signal(signal.SIGTERM)
                if self.wait(grace_seconds) is None:
                    self._process.signal(signal.SIGKILL)
                    self.wait(5)
            self._strays = self._end_rest()
        return self._strays

    def _end_rest(self) -> tuple[Stray, ...]:
        deadline = time.monotonic() + SETTLE_SECONDS
        while self._process.tree.members() and time.monotonic() < deadline:
            time.sleep(0.02)
        strays = end_tree(self._process.tree, 0)
        self._process.finish()
        for pump in self._pumps:
            pump.finish(1.0)
        if self._stopper is not None:
            os.close(self._stopper)
            self._stopper = None
            self._watcher.join()
            os.close(self._stop)
        return strays

    # ---- the watching thread ----

    def _watch(self) -> None:
        try:
            self._look_until_stopped()
        except Exception as error:
            self._blind = f"{type(error).__name__}: {error}"
            self._gone.set()

    def _look_until_stopped(self) -> None:
        ready = select.poll()
        ready.register(self._stop, select.POLLIN)
        if self._egress is not None:
            ready.register(self._egress.packets, select.POLLIN)
        news = self._process.fileno()
        if news is not None:
            ready.register(news, select.POLLIN)
        due_sample, due_disk = 0.0, 0.0
        stopped = False
        while not stopped:
            if time.monotonic() >= due_sample:
                self._take_sample()
                due_sample = time.monotonic() + SAMPLE_SECONDS
            if time.monotonic() >= due_disk:
                due_disk = time.monotonic() + self._walk_disk()
            pause = due_sample - time.monotonic() if news is not None or self._end else _BLIND_SECONDS
            descriptors = [descriptor for descriptor, _ in ready.poll(max(pause, 0) * 1000)]
            stopped = self._stop in descriptors
            self._ask_for_end()
            if self._end is not None and news in descriptors:
                ready.unregister(news)
            if self._egress is not None:
                self._egress.drain()

    def _ask_for_end(self) -> None:
        if self._end is None and (end := self._process.ended()) is not None:
            self.ended_at = time.monotonic()
            self._end = end
            self._gone.set()

    def _take_sample(self) -> None:
        sample = self._process.tree.sample()
        if sample.memory_bytes > self._limits.memory_bytes:
            self._over = self._over or "memory"
        if sample.processes > self._limits.processes:
            self._over = self._over or "processes"

    def _walk_disk(self) -> float:
        """Walk the folders; returns the seconds until the next walk."""
        begun = time.monotonic()
        used = sum(fsio.tree_bytes(folder, DISK_ENTRIES) for folder in self._folders)  # a lower bound past the entries
        if used > self._limits.disk_bytes:
            self._over = self._over or "disk"
        return max(DISK_SECONDS, 20 * (time.monotonic() - begun))


Launcher = Callable[[Sequence[str], Mapping[str, str], Stdio], Process]


class Box:
    """An open box: where things are as seen inside, and the way to start one client in it."""

    def __init__(
        self,
        spec: SandboxSpec,
        *,
        workspace: str,
        home: str,
        port: int | None,
        listener: socket.socket | None,
        egress: EgressLog | None,
        env: Mapping[str, str],
        launch: Launcher,
    ) -> None:
        self.workspace = workspace
        self.home = home
        self.port = port
        self.listener = listener  # accept on it from outside: it is the box's own loopback
        self._spec = spec
        self._egress = egress
        self._env = dict(env)
        self._launch = launch
        self._running: Running | None = None

    def base_env(self) -> dict[str, str]:
        """The environment every client gets; see `spec.base_env`."""
        return dict(self._env)

    def start(  # noqa: PLR0917  (all six matter every time)
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        stdin: Path | None,
        stdout: Path,
        stderr: Path,
        output_limit: int,
    ) -> Running:
        """Start the one client of this box in its workspace; `env` is laid over `base_env`.

        `stdin` is a regular file or None for /dev/null. At most `output_limit` bytes of stdout and of stderr are kept.
        Raises LabError, naming the program, if it cannot be started.
        """
        if self._running is not None:
            raise RuntimeError("a box starts one client")
        given = os.open(stdin or os.devnull, os.O_RDONLY)
        out, out_inside = os.pipe()
        err, err_inside = os.pipe()
        try:
            whole = {**self._env, **env, "PWD": self.workspace}
            process = self._launch(argv, whole, (given, out_inside, err_inside))
        except BaseException:
            os.close(out)
            os.close(err)
            raise
        finally:
            for descriptor in (given, out_inside, err_inside):
                os.close(descriptor)
        pumps = (Pump(out, stdout, output_limit), Pump(err, stderr, output_limit))
        self._running = Running(process, self._spec, pumps, self.listener, self._egress)
        return self._running

    def close(self) -> None:
        """End the client, if one runs, without grace."""
        if self._running is not None:
            self._running.end(0)


def thread_limit(limits: Limits) -> int:
    """RLIMIT_NPROC counts threads, of which a node client has a dozen; this is the backstop behind the sampling."""
    return max(4096, 8 * limits.processes)
