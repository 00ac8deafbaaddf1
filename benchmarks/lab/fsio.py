"""Files: whole-or-nothing writes, appended lines, digests, sizes, bounded reading, and removal of what an agent left.

It covers local file systems with POSIX locks. It does not cover network file systems whose O_APPEND or flock is not
atomic between hosts, nor files with an immutable attribute.
"""

# An agent's file names need not be text, and pathlib has no bytes:
# ruff: noqa: PTH101, PTH104, PTH106, PTH108, PTH112, PTH114, PTH208

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from benchmarks.lab.errors import LabError

Lines = Iterator[str]
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskFull(LabError):
    """There was no room for a write; what was there before is unchanged."""


def void_reason(error: BaseException) -> Literal["disk_full", "harness_error"]:
    """Which of the ledger's reasons an unexpected error stands for, looking at what caused it, too."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, DiskFull) or (isinstance(cause, OSError) and cause.errno in _DISK_FULL):
            return "disk_full"
        cause = cause.__cause__ or cause.__context__
    return "harness_error"


# ---- writing ----


def write_atomic(path: Path, data: bytes | str) -> None:
    """Replace `path` by `data` (text as UTF-8): a reader sees the old content or the new, also after a crash.

    Raises DiskFull, leaving the old content.
    """
    content = data.encode() if isinstance(data, str) else data
    new = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with new.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            new.chmod(stat.S_IMODE(path.stat().st_mode))
        new.replace(path)
    except OSError as problem:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise _translated(problem, path) from problem
    _sync_folder(path.parent)


def append_line(path: Path, line: bytes, *, is_whole: Callable[[bytes], bool] = lambda _: False) -> bytes | None:
    """Append one line to `path` (made if missing) under a lock and sync it. `line` may end in its newline, or not.

    If the last writer was killed inside a line, that torn tail is moved to `<path>.torn` first and returned, so that
    nothing is glued to it; where `is_whole(tail)` says that only the newline is missing, it is completed instead.
    Raises DiskFull, with the file as it was before; ValueError for a newline inside the line.
    """
    whole = line.removesuffix(b"\n") + b"\n"
    if whole.count(b"\n") != 1:
        raise ValueError("a line holds no newline")
    with _locked(path) as descriptor:
        torn = _set_torn_tail_aside(descriptor, path, is_whole)
        size = os.fstat(descriptor).st_size
        try:
            if os.write(descriptor, whole) != len(whole):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
        except OSError as problem:
            os.ftruncate(descriptor, size)
            raise _translated(problem, path) from problem
    return torn


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """The file opened for appending and locked; opened again if somebody replaced it while we waited."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    yield descriptor
                    return
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def hold_folder(folder: Path, *, shared: bool = False) -> Iterator[bool]:
    """Hold a folder (made if missing) while in use, alone or `shared`; False, at once, if somebody else's hold forbids.

    The hold is the kernel's, so it ends with its holder however that dies.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _set_torn_tail_aside(descriptor: int, path: Path, is_whole: Callable[[bytes], bool]) -> bytes | None:
    size = os.fstat(descriptor).st_size
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return None
    start = _last_line_start(descriptor, size)
    tail = os.pread(descriptor, size - start, start)
    if is_whole(tail):
        os.write(descriptor, b"\n")
        return None
    with path.with_name(path.name + ".torn").open("ab") as aside:
        aside.write(tail + b"\n")
    os.ftruncate(descriptor, start)
    return tail


def _last_line_start(descriptor: int, size: int) -> int:
    end = size
    while end > 0:
        begin = max(0, end - (1 << 16))
        found = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def _translated(problem: OSError, path: Path) -> LabError:
    if problem.errno in _DISK_FULL:
        return DiskFull(f"No room to write {path}: {problem.strerror}. Free some space and start again.")
    return LabError(f"Cannot write {path}: {problem.strerror}.")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- reading ----


def digest_file(path: Path) -> str:
    """SHA-256 of a file's content, hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tree_bytes(root: Path, budget_entries: int) -> int:
    """Bytes on disk below `root` (blocks, so a sparse file counts what it occupies); links are not followed.

    Looks at no more than `budget_entries` entries: a lower bound past that. What vanishes meanwhile counts nothing.
    """
    total, left = 0, budget_entries
    folders = [os.fspath(root)]
    while folders and left > 0:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                left -= 1
                if left <= 0:
                    break
                with contextlib.suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
    return total


def lines(path: Path, max_line: int = 1 << 20) -> Lines:
    """Lines of a file without their newlines, undecodable bytes replaced; of a longer line the first `max_line` bytes.

    Memory stays bounded whatever the file holds.
    """
    with path.open("rb") as file:
        while line := file.readline(max_line + 1):
            cut = line
            while not line.endswith(b"\n") and (line := file.readline(1 << 16)):
                pass  # the rest of a line that is too long
            yield cut.removesuffix(b"\n")[:max_line].decode("utf-8", "replace")


def find_suffix(root: Path, suffix: str, budget_entries: int = 100_000) -> tuple[Path, ...]:
    """Files below `root` whose path ends in the relative path `suffix`, whole names; links are not followed.

    Looks at no more than `budget_entries` entries, and passes over what may not be read.
    """
    wanted = Path(suffix).parts
    seen, found = 0, []
    for folder, _, names in os.walk(root):
        seen += 1 + len(names)
        if wanted[-1] in names and (Path(folder) / wanted[-1]).parts[-len(wanted) :] == wanted:
            found.append(Path(folder) / wanted[-1])
        if seen > budget_entries:
            break
    return tuple(found)


# ---- removing ----


def remove_tree(path: Path) -> None:
    """Remove a folder and all in it, whatever an agent left: no permissions, FIFOs, odd names, any depth or number.

    Links are removed, never followed. Nothing happens if it is not there. Raises LabError naming what stays.
    """
    for attempt in (_remove_fast, _remove_stubborn):
        if not os.path.lexists(path):
            return
        attempt(os.fsencode(path))
    if os.path.lexists(path):
        raise LabError(f"Cannot remove {path}; something in it belongs to another user or is in use.")


def _remove_fast(path: bytes) -> None:
    with contextlib.suppress(OSError, RecursionError):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)


def _remove_stubborn(path: bytes) -> None:
    """Gives itself every permission; folders too deep for a path are moved up, and met again by the next pass."""
    moved = itertools.count()
    while _empty(path, path, 0, moved):
        pass


def _names(folder: bytes) -> list[bytes]:
    try:
        return os.listdir(folder)
    except PermissionError:
        return []


_DEEPEST = 100  # folders, far below PATH_MAX with the longest names


def _empty(folder: bytes, top: bytes, depth: int, moved: Iterator[int]) -> bool:
    """Remove a folder as far as possible; whether something deep was moved up to `top`."""
    again = False
    with contextlib.suppress(OSError):
        os.chmod(folder, 0o700)
    for name in _names(folder):
        entry = folder + b"/" + name
        with contextlib.suppress(OSError):
            if not stat.S_ISDIR(os.lstat(entry).st_mode):
                os.unlink(entry)
            elif depth < _DEEPEST:
                again |= _empty(entry, top, depth + 1, moved)
            else:
                os.chmod(entry, 0o700)
                os.rename(entry, top + b"/.removed-%d" % next(moved))
                again = True
    with contextlib.suppress(OSError):
        os.rmdir(folder)
    return again
