"""What the agent left behind, by comparing its tree with the excised one; its git is never asked.

Only allowed paths make the patch. Links are not followed, special files not opened, big files not read, and a tree of
any size is looked at only up to a bound. It applies nothing (judge) and rules on nothing (verdict).
"""

from __future__ import annotations

import difflib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from benchmarks.lab.checkout.workspace import excised_tree, is_cache
from benchmarks.lab.model import Checkout, Patch

FILE_LIMIT: Final = 4 << 20
ENTRIES_LIMIT: Final = 50_000
LISTED_LIMIT: Final = 100
_TEST_NAMES: Final = {"conftest.py", "pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", ".coveragerc"} | {
    "sitecustomize.py",
    "usercustomize.py",
}


class Unreadable(Exception):
    """A path that is there but cannot be read as a file of reasonable size."""


def collect(checkout: Checkout) -> Patch:
    """Compare the workspace with the task's excised tree. A workspace that is gone counts as every file deleted."""
    before_root = excised_tree(checkout.target, checkout.task).tree
    files: dict[str, bytes | None] = {}
    unreadable: list[str] = []
    diff: list[bytes] = []
    changed: list[bytes] = []
    for path in checkout.allowed:
        before = read_inside(before_root, path)
        try:
            after = read_inside(checkout.workspace, path)
        except Unreadable as problem:
            unreadable.append(f"{path} ({problem})")
            continue
        if after != before:
            files[path] = after
            header_and_lines = _unified(path, before, after)
            diff += header_and_lines
            changed += header_and_lines[2:]
    tests, other, unread = _touched(before_root, checkout)
    return Patch(
        files=files,
        diff=b"".join(diff),
        lines_added=sum(line.startswith(b"+") for line in changed),
        lines_removed=sum(line.startswith(b"-") for line in changed),
        touched_tests=tuple(tests[:LISTED_LIMIT]),
        touched_other=tuple(other[:LISTED_LIMIT]),
        unreadable=tuple([*unreadable, *unread][:LISTED_LIMIT]),
    )


def read_inside(root: Path, path: str, limit: int = FILE_LIMIT) -> bytes | None:
    """Content of root/path, None if nothing is there; no component below `root` may be a link.

    Raises Unreadable for a link, a folder, a special file, missing permission, or more than `limit` bytes.
    """
    folder = None
    try:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        *parents, name = PurePosixPath(path).parts
        for part in parents:
            deeper = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = deeper
        # Not blocking: opening a FIFO for reading would wait for a writer.
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as failure:
        raise Unreadable(_reason(failure)) from failure
    finally:
        if folder is not None:
            os.close(folder)
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            raise Unreadable("not a regular file")
        if about.st_size > limit:
            raise Unreadable(f"larger than {limit >> 20} MiB")
        with os.fdopen(file, "rb", closefd=False) as content:
            return content.read(limit)
    finally:
        os.close(file)


def _reason(failure: OSError) -> str:
    links = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)
    return "a link or not a folder on its way" if failure.errno in links else os.strerror(failure.errno or 0)


def _unified(path: str, before: bytes | None, after: bytes | None) -> list[bytes]:
    old = [] if before is None else before.splitlines(keepends=True)
    new = [] if after is None else after.splitlines(keepends=True)
    lines = difflib.diff_bytes(
        difflib.unified_diff,
        old,
        new,
        b"/dev/null" if before is None else b"a/" + os.fsencode(path),
        b"/dev/null" if after is None else b"b/" + os.fsencode(path),
        lineterm=b"\n",
    )
    return [line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in lines]


def _touched(before_root: Path, checkout: Checkout) -> tuple[list[str], list[str], list[str]]:
    """(tests and their configuration, other paths, unreadable ones) that differ outside the allowed paths."""
    before = dict(_entries(before_root))
    tests: list[str] = []
    other: list[str] = []
    unreadable: list[str] = []
    seen: set[str] = set()
    for number, (path, about) in enumerate(_entries(checkout.workspace)):
        if number >= ENTRIES_LIMIT:
            other.insert(0, f"(more than {ENTRIES_LIMIT} files; the rest was not looked at)")
            break
        seen.add(path)
        if path in checkout.allowed:
            continue
        differs = _differs(before_root, checkout.workspace, path, before.get(path), about)
        if differs is None:
            unreadable.append(_printable(path))
        elif differs:
            (tests if _is_test(path) else other).append(_printable(path))
    else:
        for path in before.keys() - seen - set(checkout.allowed):
            (tests if _is_test(path) else other).append(_printable(path))
    return sorted(tests), sorted(other), sorted(unreadable)


def _entries(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """(relative path, lstat) of all below `root` but folders, git's own and caches; what cannot be listed is left."""
    stack = [""]
    while stack:
        folder = stack.pop()
        try:
            entries = list(os.scandir(root / folder))
        except OSError:
            continue
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if is_cache(entry.name) or path == ".git":
                continue
            if entry.is_dir(follow_symlinks=False):
                stack.append(path)
            else:
                yield path, entry.stat(follow_symlinks=False)


def _differs(
    before_root: Path, after_root: Path, path: str, before: os.stat_result | None, after: os.stat_result
) -> bool | None:
    """Whether a path differs from the excised tree; None if that cannot be read."""
    if before is not None and stat.S_IFMT(before.st_mode) == stat.S_IFMT(after.st_mode) == stat.S_IFLNK:
        return (before_root / path).readlink() != (after_root / path).readlink()
    if before is not None and stat.S_ISREG(before.st_mode) and stat.S_ISREG(after.st_mode):
        if before.st_size != after.st_size:
            return True
        try:
            return read_inside(before_root, path, before.st_size) != read_inside(after_root, path, before.st_size)
        except Unreadable:
            return None
    return True if stat.S_ISREG(after.st_mode) or stat.S_ISLNK(after.st_mode) or before is not None else None


def _is_test(path: str) -> bool:
    parts = PurePosixPath(path).parts
    name = parts[-1]
    return (
        name in _TEST_NAMES
        or name.startswith("test_")
        or name.endswith("_test.py")
        or not {"tests", "test"}.isdisjoint(parts[:-1])
    )


def _printable(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")
