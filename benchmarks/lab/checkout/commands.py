"""Running git and uv for the checkout room: quiet, bounded in time, their failures told in one sentence.

It knows no target and no task; how a tool is run and ended is `proc`'s.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.lab import proc
from benchmarks.lab.errors import LabError, Refused
from benchmarks.lab.text import shorten

# Set when we are started from a git hook, and would point git at that repository.
_REPOSITORY_VARIABLES: Final = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")
_GIT_ENV: Final = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
# A person's filters, hooks and signing must neither run on a workspace nor change what it holds.
_ISOLATED: Final = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


class CommandFailed(LabError):
    """A tool ended with an error; `detail` is the last line it said."""

    def __init__(self, argv: Sequence[str], detail: str) -> None:
        super().__init__(f"{Path(argv[0]).name} {argv[1] if len(argv) > 1 else ''}: {detail}")
        self.detail = detail


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    timeout: float = 600,
) -> bytes:
    """Run a tool with `env` added to ours and return its whole stdout; CommandFailed with its last words otherwise."""
    words = [str(word) for word in argv]
    inherited = {name: value for name, value in proc.downloading().items() if name not in _REPOSITORY_VARIABLES}
    try:
        done = proc.run_quiet(words, timeout, cwd=cwd, env={**inherited, **(env or {})}, stdin=stdin, limit=None)
    except LabError as failure:
        raise CommandFailed(words, str(failure)) from failure
    if done.timed_out:
        raise CommandFailed(words, f"it took longer than {timeout:.0f} s and was ended")
    if done.code != 0:
        said = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        ended = f"signal {done.signal}" if done.code is None else f"exit {done.code}"
        raise CommandFailed(words, shorten(" ".join(line.strip() for line in said[-3:]) or ended, 400))
    return done.stdout


def git(
    *words: str | Path, cwd: Path, isolated: bool = False, env: Mapping[str, str] | None = None, stdin: bytes = b""
) -> bytes:
    """Run git on the repository at `cwd`; `isolated`: without anybody's configuration (a workspace, not a fetch)."""
    alone = _ISOLATED if isolated else {}
    return run(["git", *words], cwd=cwd, env={**_GIT_ENV, **alone, **(env or {})}, stdin=stdin)


def uv_program() -> str:
    """Path of uv; Refused with the cure if there is none."""
    found = proc.uv()
    if found is None:
        raise Refused("uv is not on PATH; start the program by `uv run` or install uv")
    return found
