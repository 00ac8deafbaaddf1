"""What every kind of installation needs: its lock folder, installer commands, the version that a client prints."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.lab import fsio, proc, text
from benchmarks.lab.errors import LabError, Refused
from benchmarks.lab.model import Client
from benchmarks.lab.text import Say

_LOCKS: Final = Path(__file__).parents[1] / "clients" / "locks"
BIN: Final = "bin"
_LONGEST: Final = 1800.0  # seconds for one installer command
SLOWEST_START: Final = 300.0  # seconds for a client to print its version
_BEAT: Final = 5.0  # seconds between two lines of progress
_COUNTED: Final = 50_000  # files looked at for a line of progress
SYSTEM_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_TELLING: Final = re.compile(r"error|code E|fail|missing|no (interpreter|solution)", re.IGNORECASE)
_VERSION: Final = re.compile(r"\d+\.\d+(?:\.\d+)?(?:[-+.][0-9A-Za-z.]+)?")


def lock_folder(client: Client) -> Path:
    """The committed folder of pins; Refused if the adapter names one that is not there."""
    folder = _LOCKS / (client.install.lock or client.name)  # an absolute path replaces the folder of ours
    if not folder.is_dir():
        raise Refused(
            f"client {client.name}: its lock folder {folder} does not exist; the adapter names it in `install`."
        )
    return folder


def printed_version(client: Client, path: Sequence[Path]) -> str | None:
    """The version the client prints of itself, started with an empty home; None if it cannot be started."""
    with tempfile.TemporaryDirectory(prefix="local-lab-") as home:
        folders = os.pathsep.join([*map(str, path), SYSTEM_PATH])
        command = shutil.which(client.version_argv[0], path=folders)
        if command is None:
            return None
        env = {"PATH": folders, "HOME": home, "LANG": "C.UTF-8", "NO_COLOR": "1"}
        try:
            done = proc.run_quiet([command, *client.version_argv[1:]], SLOWEST_START, env=env, cwd=Path(home))
        except LabError:
            return None
        if done.timed_out:
            return None
    found = _VERSION.search(done.stdout.decode(errors="replace"))
    return found.group() if found else None


def check_version(client: Client, version: str | None) -> None:
    """Refused unless the version that was printed is the one pinned."""
    if version is None:
        command = " ".join(client.version_argv)
        raise Refused(f"client {client.name}: `{command}` does not print a version on this machine.")
    if version != client.pinned:
        raise Refused(
            f"client {client.name}: it prints version {version} but {client.pinned} is pinned; "
            f"correct `pinned` in its adapter or its lock folder {client.install.lock!r}."
        )


def run(
    client: Client,
    argv: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    *,
    say: Say,
    cure: str = "look for a network or registry trouble (proxy, npmrc, index settings) and run again",
) -> None:
    """Run one installer command, saying every few seconds that it is still at work; Refused if it fails."""
    log = folder.parent / f"{folder.name.split('.', 1)[1].rsplit('.', 1)[0]}.log"
    with log.open("ab") as out:
        began = out.tell()
        process = subprocess.Popen(
            argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
        try:
            code = _wait(process, client, folder, say)
        finally:
            _stop(process)
    if code != 0:
        words = _last_words(log, began)
        raise Refused(f"client {client.name}: {cure}; the installer said: {words} (all of it: {log}).")


def _wait(process: subprocess.Popen[bytes], client: Client, folder: Path, say: Say) -> int | None:
    started = time.monotonic()
    while (passed := time.monotonic() - started) < _LONGEST:
        try:
            return process.wait(_BEAT)
        except subprocess.TimeoutExpired:
            size = fsio.tree_bytes(folder, _COUNTED)
            say(f"installing {client.name}: {passed + _BEAT:.0f} s, {size / 1e6:.0f} MB so far")
    return None


def _stop(process: subprocess.Popen[bytes]) -> None:
    # The command has a session of its own, so that an interrupt of ours ends it here and nowhere else.
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_words(log: Path, began: int) -> str:
    with log.open("rb") as file:
        file.seek(began)
        lines = file.read(1 << 20).decode(errors="replace").splitlines()
    said = [line.removeprefix("npm error").strip() for line in lines]
    telling = [line for line in said if _TELLING.search(line)] or [line for line in said if line]
    return text.shorten(" / ".join(telling[:3]) or "nothing", 400)
