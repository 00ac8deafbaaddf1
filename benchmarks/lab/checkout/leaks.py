"""Is the answer readable anywhere? Looks for distinctive lines of the removed bodies in all that a sandbox exposes.

Files are searched as bytes, archives (zip, wheel, tar, gzip) inside too, and compiled modules by their place. All tasks
of a suite are searched for in one pass, so the cost is that of reading. Results are kept per file tree and needles.
A body that was reworded, encoded or compressed otherwise (git packs, zstd) is not seen.

How: every occurrence of a line of 15 bytes or more covers one whole word of 8 bytes that is aligned in the file; the
words of the file are looked up, by numpy, among the 8 possible such words of each line, and hits are then compared.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import lzma
import os
import sys
import tarfile
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Final

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.lab.checkout.workspace import excised_tree
from benchmarks.lab.excise import candidate_lines, distinctive_lines
from benchmarks.lab.fsio import write_atomic
from benchmarks.lab.model import Checkout, Record
from benchmarks.lab.text import digest_of

_FORMAT: Final = 1  # raise it when the scan would find something else in the same bytes
_BLOCK: Final = 256 << 10  # with its temporary arrays it stays in a core's cache
_MEMBER_LIMIT: Final = 64 << 20
_WORD: Final = 8
_OWN_SHARE: Final = 0.8  # siblings in the same file share lines; a copy shares nearly all
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_TABLE_BITS: Final = 20  # 1 MB, which stays in a core's cache
_SHIFT: Final = np.uint64(64 - _TABLE_BITS)
_COMPILED: Final = "compiled from a module that bodies were taken from"
_NOT_READABLE: Final = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    NotImplementedError,
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
)


class Leak(Record, frozen=True, kw_only=True):
    """A place where the answer of `task` can be read; `evidence` says what was recognised."""

    task: str
    path: str
    evidence: str


class Needles(Record, frozen=True, kw_only=True):
    """What to look for: lines of the body that its own excised tree does not hold, and the modules it comes from."""

    task: str
    lines: tuple[bytes, ...]
    modules: tuple[str, ...]  # excised files, relative to the pinned tree


def leak_scan(
    checkouts: Sequence[Checkout], exposed: Sequence[Path], cache: Path, hidden: Sequence[Path] = ()
) -> dict[str, tuple[Leak, ...]]:
    """Task id -> places below `exposed` and in its own tree where its removed bodies can be read.

    `hidden` are folders below `exposed` that look empty from inside. All tasks are looked for in one reading, so the
    cost does not grow with them. A tree is looked at once per process for changes since it was last scanned: what is
    exposed is read-only.
    """
    unseen = frozenset(str(path.resolve()) for path in hidden)
    found: dict[str, list[Leak]] = {checkout.task.id: list(_own_tree(checkout)) for checkout in checkouts}
    needles = tuple(needles_of(checkout) for checkout in checkouts)
    for root in _separate(exposed):
        for leak in _scan_kept(needles, root, cache, unseen):
            found[leak.task].append(leak)
    return {task: tuple(leaks) for task, leaks in found.items()}


def needles_of(checkout: Checkout) -> Needles:
    """The lines and modules that identify the removed bodies of a task."""
    made = excised_tree(checkout.target, checkout.task)
    bodies = [body for one in made.removed.values() for body in one.bodies]
    lines = distinctive_lines(bodies, (content for _, content in _contents(made.tree)))
    return Needles(task=checkout.task.id, lines=lines, modules=tuple(made.removed))


def _own_tree(checkout: Checkout) -> Iterator[Leak]:
    """A file of the target itself that repeats most of a removed body (a vendored copy, a build folder)."""
    made = excised_tree(checkout.target, checkout.task)
    lines = candidate_lines(body for one in made.removed.values() for body in one.bodies)
    for path, content in _contents(made.tree):
        held = sum(line in content for line in lines)
        if lines and held >= _OWN_SHARE * len(lines):
            yield Leak(task=checkout.task.id, path=path, evidence=_lines_held(held, len(lines)))


def _contents(tree: Path) -> Iterator[tuple[str, bytes]]:
    for folder, folders, files in os.walk(tree):
        folders[:] = sorted(name for name in folders if name != ".git")
        for path in (Path(folder, name) for name in sorted(files)):
            if not path.is_symlink():
                yield str(path.relative_to(tree)), path.read_bytes()


def _enough(held: int, lines: int) -> bool:
    """Half of the lines, at least two of them; where there is one line only, that one."""
    return held >= max(min(lines, 2), (lines + 1) // 2) > 0


def _lines_held(held: int, lines: int) -> str:
    return f"holds {held} of {lines} distinctive lines of the removed body"


class _Index:
    """Lines prepared for searching: for each of 8 alignments one whole word of the line, in a table of mixed words."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._places: dict[int, list[tuple[bytes, int]]] = defaultdict(list)
        for line in dict.fromkeys(lines):
            for phase in range(_WORD):
                offset = max(range(phase, len(line) - _WORD + 1, _WORD), key=lambda at: len(set(line[at : at + _WORD])))
                self._places[int.from_bytes(line[offset : offset + _WORD], sys.byteorder)].append((line, offset))
        self._table = np.zeros(1 << _TABLE_BITS, dtype=bool)
        self._table[self._mixed(np.array(list(self._places), dtype=np.uint64))] = True
        self._overlap = max((len(line) for line in lines), default=0)

    @staticmethod
    def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        return (words * _MIX) >> _SHIFT

    def search(self, file: IO[bytes], limit: int | None = None) -> set[bytes]:
        """Return the lines that stand in the first `limit` bytes of `file`."""
        found: set[bytes] = set()
        tail = b""
        left = limit
        while block := file.read(_BLOCK if left is None else min(_BLOCK, left)):
            left = None if left is None else left - len(block)
            buffer = tail + block
            found |= self.search_in(buffer)
            tail = buffer[-self._overlap :] if self._overlap else b""
        return found

    def search_in(self, buffer: bytes) -> set[bytes]:
        """Return the lines that stand in `buffer`."""
        words = np.frombuffer(buffer, dtype=np.uint64, count=len(buffer) // _WORD)
        at = np.flatnonzero(self._table[self._mixed(words)])
        found: set[bytes] = set()
        for word, position in zip(words[at].tolist(), at.tolist(), strict=True):
            for line, offset in self._places.get(word, ()):
                start = position * _WORD - offset
                if start >= 0 and buffer.startswith(line, start):
                    found.add(line)
        return found


# ---- exposed trees ----


def _separate(exposed: Sequence[Path]) -> list[Path]:
    """The real folders, without those inside another."""
    roots = sorted({path.resolve() for path in exposed})
    return [root for root in roots if not any(root != other and root.is_relative_to(other) for other in roots)]


def _scan_kept(needles: Sequence[Needles], root: Path, cache: Path, hidden: frozenset[str]) -> list[Leak]:
    """Scan `root` for the needles that were not looked for in this very tree before."""
    tree = fingerprint(root, hidden)
    places = {one.task: _kept_place(cache, one, tree) for one in needles}
    new = [one for one in needles if not places[one.task].is_file()]
    if new:
        found = scan(new, root, hidden)
        for one in new:
            places[one.task].parent.mkdir(parents=True, exist_ok=True)
            own = [leak for leak in found if leak.task == one.task]
            write_atomic(places[one.task], msgspec.json.encode(own))
    return [leak for place in places.values() for leak in msgspec.json.decode(place.read_bytes(), type=list[Leak])]


def _kept_place(cache: Path, needles: Needles, tree: str) -> Path:
    key = digest_of(repr((_FORMAT, needles.task, needles.lines, needles.modules, tree)))
    return cache / "leaks" / f"{key}.json"


@functools.cache
def fingerprint(root: Path, hidden: frozenset[str] = frozenset()) -> str:
    """Digest of names, sizes, times and inodes below `root`: cheap, and different when anything was written there."""
    total = hashlib.sha256(os.fsencode(root))
    for path, about in files_below(root, hidden):
        total.update(os.fsencode(path) + b"\0%d %d %d" % (about.st_size, about.st_mtime_ns, about.st_ino))
    return total.hexdigest()


def files_below(root: Path, hidden: frozenset[str] = frozenset()) -> Iterator[tuple[str, os.stat_result]]:
    """(path, lstat) of the regular files at or below `root`, in a fixed order; unreadable folders are left out."""
    stack = [str(root)]
    while stack:
        place = stack.pop()
        try:
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except NotADirectoryError:
            yield place, os.lstat(place)
            continue
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.path not in hidden:
                    stack.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                yield entry.path, entry.stat(follow_symlinks=False)


def scan(needles: Sequence[Needles], root: Path, hidden: frozenset[str] = frozenset()) -> list[Leak]:
    """Look for all needles in all files below `root`, archives included."""
    index = _Index([line for one in needles for line in one.lines])
    compiled = defaultdict(list)
    for one in needles:
        for module in one.modules:
            compiled[PurePosixPath(module).parent.name, PurePosixPath(module).stem].append(one.task)
    leaks: list[Leak] = []
    for path, about in files_below(root, hidden):
        if path.endswith(".pyc"):
            leaks += [Leak(task=task, path=path, evidence=_COMPILED) for task in compiled.get(_module_of(path), ())]
            continue
        for name, held in _held(path, about.st_size, index):
            leaks += [leak for one in needles if (leak := _leak(one, name, held))]
    return leaks


def _leak(needles: Needles, path: str, held: set[bytes]) -> Leak | None:
    own = len(held.intersection(needles.lines))
    if not _enough(own, len(needles.lines)):
        return None
    return Leak(task=needles.task, path=path, evidence=_lines_held(own, len(needles.lines)))


def _module_of(path: str) -> tuple[str, str]:
    """(folder name, module name) of bytecode at folder/__pycache__/name.*.pyc or folder/name.pyc."""
    *_, outer, folder, name = ("", "", *path.split("/"))
    return (outer if folder == "__pycache__" else folder), name.partition(".")[0]


def _held(path: str, size: int, index: _Index) -> Iterator[tuple[str, set[bytes]]]:
    """(name, lines found) for a file and, if it is an archive, its members; only where something was found."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - runs for hundreds of thousands of files
            start = file.read(min(size, _BLOCK)) or b""
            found = index.search_in(start) if size <= _BLOCK else index.search(_from_start(file))
            if found:
                yield path, found
            for name, member in _members(path, file, start[:6]):
                if found := index.search(member, _MEMBER_LIMIT):
                    yield f"{path}!{name}", found
    except _NOT_READABLE:
        return


def _from_start(file: IO[bytes]) -> IO[bytes]:
    file.seek(0)
    return file


def _members(path: str, file: IO[bytes], start: bytes) -> Iterator[tuple[str, IO[bytes]]]:
    """(name, content) of the files in a zip, tar or gzip archive; nothing for other files."""
    if start.startswith(b"PK\3\4"):
        with zipfile.ZipFile(_from_start(file)) as archive:
            for info in archive.infolist():
                if info.filename.endswith(".class"):  # jars hold hundreds of thousands, and no source
                    continue
                with archive.open(info) as member:
                    yield info.filename, member
    elif path.endswith((".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar")):
        with tarfile.open(fileobj=_from_start(file)) as packed:
            for entry in packed:
                if entry.isfile() and (content := packed.extractfile(entry)):
                    yield entry.name, content
    elif start.startswith(b"\x1f\x8b"):
        with io.BufferedReader(gzip.GzipFile(fileobj=_from_start(file))) as unpacked:
            yield "", unpacked
