"""One folder an installation: found again, or made beside its place, checked, and put there by one rename."""

from __future__ import annotations

import contextlib
import hashlib
import platform
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import filelock
import msgspec

from benchmarks.lab import fsio
from benchmarks.lab.errors import LabError, Refused
from benchmarks.lab.install import npm, pip
from benchmarks.lab.install.commands import BIN, check_version, lock_folder, printed_version
from benchmarks.lab.model import Client, Record
from benchmarks.lab.text import Say

_RECIPE_VERSION: Final = "1"  # raise when installations made before must not be used any more
_RECORD: Final = "installed.json"
# Kind -> makes it in the folder `staging`, which becomes `root`; returns what to expose, relative to it or absolute.
_MAKERS: Final[Mapping[str, Callable[[Client, Path, Path, Say], list[str]]]] = {"npm": npm.make, "pip": pip.make}


class Installation(Record, frozen=True, kw_only=True):
    """A client ready to be started: `path` for PATH (its own commands, nothing else), `readonly` to expose of it."""

    root: Path
    path: tuple[Path, ...]
    readonly: tuple[Path, ...]
    version: str


def install(client: Client, cache: Path, say: Say) -> Installation:
    """The client's installation below `cache`, made now if it is not there yet.

    Raises Refused when it cannot be installed, or prints another version than the one pinned (npm on an old node
    silently takes an older one), in one sentence; other clients are not touched by it.
    """
    if client.install.kind == "none":
        return _foreign(client)
    root = _root(client, cache)
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        with _locked(root, client, say):
            made = _recorded(root, client)
            if made is None:
                _make(client, root, say)
                made = _recorded(root, client)
    except OSError as error:
        raise Refused(f"client {client.name}: cannot install into {root.parent}: {error}.") from error
    if made is None:
        raise Refused(f"client {client.name}: {root} cannot be read back; delete it and run again.")
    return made


def _root(client: Client, cache: Path) -> Path:
    name = re.sub(r"[^A-Za-z0-9._-]", "_", f"{client.name}-{client.pinned}")
    return cache / "clients" / f"{name}-{_digest(client)[:12]}"


def _digest(client: Client) -> str:
    what = hashlib.sha256()
    for part in (_RECIPE_VERSION, sys.platform, platform.machine(), client.install.bin, client.install.python or ""):
        what.update(part.encode() + b"\0")
    for file in sorted(lock_folder(client).iterdir()):
        what.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return what.hexdigest()


@contextmanager
def _locked(root: Path, client: Client, say: Say) -> Iterator[None]:
    lock = filelock.FileLock(f"{root}.lock")
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        say(f"waiting for another program that is installing {client.name} {client.pinned}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


class _Made(msgspec.Struct, frozen=True):
    """What installed.json holds: enough to see that the commands are still those whose version was checked."""

    version: str
    readonly: list[str]
    commands: dict[str, list[int]]  # file inside bin/ -> size and mtime in ns of what it leads to


def _recorded(root: Path, client: Client) -> Installation | None:
    try:
        made = msgspec.json.decode((root / _RECORD).read_bytes(), type=_Made)
    except (OSError, msgspec.MsgspecError):
        return None
    if made.version != client.pinned or made.commands != _commands(root):
        return None
    return Installation(
        root=root,
        path=(root / BIN,),
        readonly=tuple(Path(entry) if Path(entry).is_absolute() else root / entry for entry in made.readonly),
        version=made.version,
    )


def _commands(root: Path) -> dict[str, list[int]]:
    found = {}
    for entry in sorted((root / BIN).glob("*")):
        try:
            state = entry.stat()
        except OSError:
            continue
        found[entry.name] = [state.st_size, state.st_mtime_ns]
    return found


def _make(client: Client, root: Path, say: Say) -> None:
    """Build beside `root`, check, and rename; the lock is held."""
    for stale in [root, *root.parent.glob(f".{root.name}.*")]:
        _clear(stale)
    staging = root.parent / f".{root.name}.{uuid.uuid4().hex[:8]}"
    (staging / BIN).mkdir(parents=True)
    say(f"installing {client.name} {client.pinned} (once; into {root})")
    started = time.monotonic()
    try:
        readonly = _MAKERS[client.install.kind](client, staging, root, say)
        made = _Made(version=client.pinned, readonly=[BIN, *readonly], commands=_commands(staging))
        (staging / _RECORD).write_bytes(msgspec.json.encode(made))
        staging.rename(root)
    finally:
        _clear(staging)
    say(f"installed {client.name} {client.pinned} in {time.monotonic() - started:.0f} s")


def _clear(folder: Path) -> None:
    # What an orphan of a killed installer still writes to is cleared by a later one; a folder in the way is told by
    # the rename.
    with contextlib.suppress(LabError):
        fsio.remove_tree(folder)


def _foreign(client: Client) -> Installation:
    """A client that is there already: commands in the absolute folder `install.bin`, or on the system's PATH."""
    folders = (Path(client.install.bin),) if client.install.bin else ()
    version = printed_version(client, folders) if client.version_argv else client.pinned
    check_version(client, version)
    return Installation(root=Path("/"), path=folders, readonly=folders, version=client.pinned)
