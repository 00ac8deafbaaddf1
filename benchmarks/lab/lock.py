"""One machine-wide lock for everything that measures: agent, codegen, serving and resyn runs of all users.

The lock is the kernel's (flock), so it ends with its holder however that dies; the file says who holds it. It lies in
/tmp, where every user may lock it, and is opened so that a link, a FIFO or a second name of somebody's file is refused,
not followed or overwritten. It does not reach into containers with a /tmp of their own.
"""

from __future__ import annotations

import errno
import fcntl
import getpass
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
import psutil

from benchmarks.lab.errors import Refused
from benchmarks.lab.model import Record
from benchmarks.lab.text import Say, shorten

VARIABLE: Final = "LOCAL_LAB_LOCK"  # for tests of whole programs; a lock of one's own protects nothing
DEFAULT: Final = Path("/tmp/local-lab.lock")  # not TMPDIR, which differs by user
LARGEST: Final = 4096
SAME_START_SECONDS: Final = 1.0


class Holder(Record, frozen=True, kw_only=True):
    """Who holds the lock. `started` is the process's start, seconds since the epoch: a pid alone may be given again."""

    lock: str = "local-lab"
    pid: int
    started: float
    program: str
    argv: str
    user: str
    since: str  # ISO 8601


@contextmanager
def machine_lock(program: str, say: Say, path: Path | None = None) -> Iterator[None]:
    """Hold the machine while measuring. Refused names the holder; a lock left behind is taken, and `say` is told."""
    where = path or _place()
    descriptor = _open(where)
    try:
        _take(descriptor, where)
        left = _holder(descriptor)
        if left is not None:
            say(f"the lock of {_words(left)} was left behind ({_fate(left)}); it is taken over")
        _write(descriptor, _me(program))
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def is_alive(holder: Holder) -> bool:
    """Whether the very process that took the lock still runs; a later one with its pid is another."""
    try:
        process = psutil.Process(holder.pid)
        return (
            abs(process.create_time() - holder.started) < SAME_START_SECONDS
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except psutil.Error:
        return False


def _place() -> Path:
    return Path(os.environ.get(VARIABLE) or DEFAULT)


def _take(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        found = _holder(descriptor)
        if found is None:
            who = f"a program that has just begun ({path})"
        elif is_alive(found):
            who = _words(found)
        else:
            who = f"a process that {_words(found)} left behind"
        raise Refused(
            f"this machine is being measured by {who}: two measurements would spoil each other. "
            "Wait for it or end it; --no-lock runs all the same, and the rows say so"
        ) from None
    except OSError as error:
        raise Refused(f"{path}: this file system cannot lock files ({error.strerror})") from None
    if not _is_at(descriptor, path):
        raise Refused(f"{path} was replaced while it was taken; start again")


def _open(path: Path) -> int:
    """The lock file, open for locking; made if it is missing, so that every user may lock it."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        try:
            # Without O_CREAT first: Linux forbids even root to "create" another user's file in a sticky folder.
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            descriptor = _create(path, flags)
    except (OSError, ValueError) as error:
        raise _no_lock(path, _why_closed(error)) from None
    if (wrong := _unfit(os.fstat(descriptor))) is not None:
        os.close(descriptor)
        raise _no_lock(path, f"is {wrong}")
    return descriptor


def _no_lock(path: Path, why: str) -> Refused:
    """What stands in the lock's place cannot be the lock. What a person named is not to be removed, but named anew."""
    if os.environ.get(VARIABLE) == str(path):
        return Refused(f"the variable {VARIABLE} names {str(path)!r}, which {why}; name another file, or unset it")
    return Refused(f"{path} {why}, so it is not the lock of this machine: remove it")


def _why_closed(error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.errno == errno.ELOOP:
        return "is a link, and the lock follows none"
    return f"cannot be opened ({error.strerror if isinstance(error, OSError) else error})"


def _create(path: Path, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:  # somebody else was quicker
        return os.open(path, flags)
    os.fchmod(descriptor, 0o666)  # whatever the umask
    return descriptor


def _unfit(status: os.stat_result) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return "no plain file"
    if status.st_nlink > 1:
        return "a second name of another file"
    return "a large file" if status.st_size > LARGEST else None


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _holder(descriptor: int) -> Holder | None:
    try:  # a FIFO cannot be read at an offset: OSError
        return msgspec.json.decode(os.pread(descriptor, LARGEST, 0), type=Holder)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _write(descriptor: int, me: Holder) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, msgspec.json.encode(me) + b"\n", 0)


def _me(program: str) -> Holder:
    return Holder(
        pid=os.getpid(),
        started=psutil.Process().create_time(),
        program=program,
        argv=shorten(" ".join(sys.argv), 160),
        user=_user(),
        since=datetime.now().astimezone().isoformat(timespec="seconds"),
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _words(found: Holder) -> str:
    # Any user may write the file: only what prints is shown.
    shown = "".join(c if c.isprintable() else "?" for c in f"{found.program} (pid {found.pid}, user {found.user}")
    argv = "".join(c if c.isprintable() else "?" for c in found.argv)
    return f"{shown}, since {_clock(found.since)}: {argv})"


def _clock(since: str) -> str:
    try:
        return f"{datetime.fromisoformat(since):%Y-%m-%d %H:%M}"
    except ValueError:
        return "an unknown time"


def _fate(left: Holder) -> str:
    if is_alive(left):
        return "it runs on without it"
    return "its pid belongs to another process now" if psutil.pid_exists(left.pid) else "that process is gone"
