"""Starting a client without namespaces: isolation `none`, and under macOS's `sandbox-exec` (`seatbelt`).

Covered: own session, bounded file size and output, the environment from nothing, the same limits by sampling, and the
end of the whole tree, by a watchdog even if this program is killed.
Not covered: with `none` the client sees the whole file system and network as the user who runs it; what it tries to
reach is not observed; a process that clears its environment, takes its own session and loses its parent between two
looks is not found again (see `proc`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.lab import fsio
from benchmarks.lab.errors import LabError
from benchmarks.lab.paths import checkout_root
from benchmarks.lab.proc import MARKER, ProcessTree
from benchmarks.lab.sandbox.running import Box, End, Process, Stdio
from benchmarks.lab.sandbox.spec import SandboxSpec, base_env

Wrap = Callable[[SandboxSpec, Path, int | None], Sequence[str]]  # spec, temporary folder, port -> words before argv
_BLOCK = 512  # what POSIX `ulimit -f` counts in


@contextlib.contextmanager
def open_box(spec: SandboxSpec, wrap: Wrap = lambda *_: ()) -> Iterator[Box]:
    """A box with real paths and an ordinary loopback listener; `wrap` gives what is put in front of the client."""
    temporary = Path(tempfile.mkdtemp(prefix="local-lab-")).resolve()
    listener = socket.create_server(("127.0.0.1", 0), backlog=128) if spec.network else None
    port = listener.getsockname()[1] if listener is not None else None

    def launch(argv: Sequence[str], env: Mapping[str, str], stdio: Stdio) -> Process:
        return _Client(spec, [*wrap(spec, temporary, port), *_found(argv, env)], env, stdio)

    box = Box(
        spec,
        workspace=str(spec.workspace),
        home=str(spec.home),
        port=port,
        listener=listener,
        egress=None,
        env=base_env(spec, str(spec.workspace), str(spec.home), str(temporary)),
        launch=launch,
    )
    try:
        with contextlib.closing(box):
            yield box
    finally:
        if listener is not None:
            listener.close()
        fsio.remove_tree(temporary)


def _found(argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    program = shutil.which(argv[0], path=env.get("PATH"))
    if program is None:
        raise LabError(f"Cannot start {argv[0]}: it is not on the PATH of this isolation ({env.get('PATH')}).")
    return [program, *argv[1:]]


class _Client:
    """A client as a child of this program, as `running.Process` wants it."""

    def __init__(self, spec: SandboxSpec, argv: Sequence[str], env: Mapping[str, str], stdio: Stdio) -> None:
        self._watchdog = _start_watchdog(spec.trial_id)
        limited = [
            "/bin/sh",
            "-c",
            f'ulimit -c 0; ulimit -f {spec.limits.file_bytes // _BLOCK}; exec "$@"',
            "sh",
            *argv,
        ]
        try:
            self._process = subprocess.Popen(
                limited,
                stdin=stdio[0],
                stdout=stdio[1],
                stderr=stdio[2],
                cwd=spec.workspace,
                env=dict(env),
                start_new_session=True,
            )
        except OSError as problem:
            self.finish()
            raise LabError(f"Cannot start {argv[0]}: {problem.strerror}.") from problem
        self.pid = self._process.pid
        self.tree = ProcessTree(self.pid, spec.trial_id)
        _tell(self._watchdog, self.pid)

    def fileno(self) -> int | None:
        return None

    def ended(self) -> End | None:
        code = self._process.poll()
        if code is None:
            return None
        return (code, None) if code >= 0 else (None, -code)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def finish(self) -> None:
        self._watchdog.kill()
        self._watchdog.wait()
        if self._watchdog.stdin is not None:
            self._watchdog.stdin.close()


_WATCHDOG = """
import sys
sys.path.insert(0, sys.argv[1])
from benchmarks.lab.proc import ProcessTree, end_tree
root = sys.stdin.readline()
tree = ProcessTree(int(root) if root else None, sys.argv[2])
sys.stdin.read()
end_tree(tree, 0)
"""


def _start_watchdog(trial_id: str) -> subprocess.Popen[bytes]:
    """A process that waits for the end of this one (its stdin closes) and then kills the client's tree.

    It begins before the client, so that there is no moment in which the client has none.
    """
    return subprocess.Popen(
        [sys.executable, "-c", _WATCHDOG, str(checkout_root()), trial_id],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name != MARKER},
        start_new_session=True,
    )


def _tell(watchdog: subprocess.Popen[bytes], pid: int) -> None:
    if watchdog.stdin is not None:
        watchdog.stdin.write(f"{pid}\n".encode())
        watchdog.stdin.flush()
