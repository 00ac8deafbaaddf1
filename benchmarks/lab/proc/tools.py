"""Tool calls: run to their end without a terminal, or started to outlive the calling thread; and where uv is."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.lab.errors import LabError
from benchmarks.lab.model import Record
from benchmarks.lab.proc.trees import ProcessTree, end_tree


class Finished(Record, frozen=True, kw_only=True):
    """A tool call that ended. `code` None: killed by `signal`; output is the first bytes of each stream."""

    code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool
    seconds: float


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
