"""Files under bad circumstances: full disks, torn lines, several writers, and what an agent leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.lab import fsio
from benchmarks.lab.errors import LabError
from benchmarks.lab.sandbox import bwrap

ROOT = Path(__file__).resolve().parents[2]

# ---- appended lines ----


def test_lines_are_appended_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert fsio.append_line(path, b"one") is None
    assert fsio.append_line(path, b"two\n") is None
    assert path.read_bytes() == b"one\ntwo\n"
    with pytest.raises(ValueError, match="newline"):
        fsio.append_line(path, b"a\nb")


def test_a_torn_tail_is_set_aside_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    torn = b'{"torn": "' + b"x" * 100_000
    path.write_bytes(b"one\n" + torn)
    assert fsio.append_line(path, b"two") == torn
    assert path.read_bytes() == b"one\ntwo\n"
    assert (tmp_path / "rows.jsonl.torn").read_bytes() == torn + b"\n"


def test_a_tail_that_lacks_its_newline_only_is_completed(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"{}")
    assert fsio.append_line(path, b"two", is_whole=lambda tail: tail == b"{}") is None
    assert path.read_bytes() == b"{}\ntwo\n"


WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from benchmarks.lab.fsio import append_line
for number in range(100):
    append_line(Path(sys.argv[2]), (sys.argv[3] * 5000 + str(number)).encode())
"""


def test_two_writers_do_not_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    argv = [sys.executable, "-c", WRITER, str(ROOT), str(path)]
    writers = [subprocess.Popen([*argv, letter]) for letter in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    lines = path.read_text().splitlines()
    for letter in "ab":
        mine = [line for line in lines if line.startswith(letter)]
        assert mine == [letter * 5000 + str(number) for number in range(100)]
    assert len(lines) == 200


def test_a_file_replaced_while_waiting_for_the_lock_gets_the_line(tmp_path: Path) -> None:
    """As git does on a pull: the old inode must not swallow a row."""
    path = tmp_path / "rows.jsonl"
    fsio.append_line(path, b"one")
    with fsio._locked(path):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(ROOT), str(path), "a"])
        new = tmp_path / "new"
        new.write_bytes(b"new\n")
        new.replace(path)
    assert writer.wait() == 0
    assert path.read_bytes().startswith(b"new\na")


FULL = """
import json, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from benchmarks.lab import fsio
path, kept = Path("/mnt/rows.jsonl"), 0
line = json.dumps({"row": "x" * 3000}).encode()
try:
    while True:
        fsio.append_line(path, line)
        kept += 1
except fsio.DiskFull as problem:
    message = str(problem)
try:
    fsio.write_atomic(path, b"y" * 1_000_000)
except fsio.DiskFull:
    pass
rows = [json.loads(row) for row in path.read_bytes().splitlines()]
left = sorted(entry.name for entry in path.parent.iterdir())
print(json.dumps([kept, len(rows), path.read_bytes().endswith(b"\\n"), message, left]))
"""


def test_disk_full_while_writing_a_row_keeps_every_row_and_tears_none() -> None:
    """On a file system of 64 KB, which root and an ordinary user get alike from bwrap."""
    box = [bwrap.find().binary, "--unshare-user", "--bind", "/", "/", "--size", "65536", "--tmpfs", "/mnt"]
    done = subprocess.run([*box, sys.executable, "-c", FULL, str(ROOT)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    kept, rows, ended, message, left = json.loads(done.stdout)
    assert 10 < kept == rows
    assert ended is True
    assert "/mnt/rows.jsonl" in message
    assert "Free some space" in message
    assert left == ["rows.jsonl"]


def test_a_full_disk_gives_a_trial_its_own_void_reason() -> None:
    outer = RuntimeError("writing evidence")
    outer.__cause__ = OSError(28, "No space left on device")
    assert fsio.void_reason(outer) == "disk_full"
    assert fsio.void_reason(fsio.DiskFull("x")) == "disk_full"
    assert fsio.void_reason(ValueError()) == "harness_error"


# ---- whole files ----


def test_write_atomic_replaces_and_keeps_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "RESULTS.md"
    fsio.write_atomic(path, "ä")
    path.chmod(0o640)
    fsio.write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert [entry.name for entry in tmp_path.iterdir()] == ["RESULTS.md"]
    with pytest.raises(LabError, match="Cannot write"):
        fsio.write_atomic(tmp_path / "missing" / "file", b"")


# ---- digests ----


def tree(root: Path) -> Path:
    (root / "a").mkdir(parents=True)
    (root / "a" / "file").write_bytes(b"content")
    (root / "a" / "link").symlink_to("file")
    os.mkfifo(root / "fifo")
    (Path(os.fsdecode(os.fsencode(root) + b"/\xff\xfe"))).write_bytes(b"odd")
    return root


def test_a_link_out_of_the_tree_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path / "outside")
    before = fsio.tree_bytes(root, 100)
    (tmp_path / "outside" / "file").write_bytes(b"x" * 100_000)
    assert fsio.tree_bytes(root, 100) == before


# ---- sizes and lines ----


def test_tree_bytes_counts_what_is_on_disk_and_stops_at_its_budget(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / str(number)).write_bytes(b"x" * 100_000)
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 30)
    whole = fsio.tree_bytes(tmp_path, 1000)
    assert 1_000_000 <= whole < 2_000_000
    assert 0 < fsio.tree_bytes(tmp_path, 5) < whole
    assert fsio.tree_bytes(tmp_path / "missing", 5) == 0


@given(st.lists(st.binary(max_size=60).map(lambda data: data.replace(b"\n", b""))), st.integers(1, 40))
def test_lines_are_cut_at_their_bound_and_never_merged(
    tmp_path_factory: pytest.TempPathFactory, rows: list[bytes], bound: int
) -> None:
    path = tmp_path_factory.mktemp("lines") / "file"
    path.write_bytes(b"".join(row + b"\n" for row in rows))
    assert list(fsio.lines(path, bound)) == [row[:bound].decode("utf-8", "replace") for row in rows]


def test_a_last_line_without_its_newline_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"one\n" + b"x" * 300_000 + b"\ntwo")
    assert list(fsio.lines(tmp_path / "file", 10)) == ["one", "x" * 10, "two"]


def test_find_suffix_wants_whole_names(tmp_path: Path) -> None:
    for name in ("deep/pkg/mod.py", "pkg/mod.py", "otherpkg/mod.py", "pkg/xmod.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = {str(path.relative_to(tmp_path)) for path in fsio.find_suffix(tmp_path, "pkg/mod.py")}
    assert found == {"deep/pkg/mod.py", "pkg/mod.py"}


# ---- removing ----


def test_case_9_case_10_whatever_an_agent_left_can_be_removed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("keep")
    root = tree(tmp_path / "root")
    (root / "out").symlink_to(outside)
    (root / "locked" / "inner").mkdir(parents=True)
    (root / "locked" / "inner" / "file").touch()
    (root / "locked" / "inner").chmod(0)
    (root / "locked").chmod(0)
    (root / "a" / "file").chmod(0)
    (root / "a").chmod(0o500)
    fsio.remove_tree(root)
    assert not root.exists()
    assert (outside / "keep").read_text() == "keep"
    fsio.remove_tree(root)


def test_case_10_a_hundred_thousand_files_are_removed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    descriptor = os.open(root, os.O_RDONLY)
    for number in range(100_000):
        os.mknod(str(number), dir_fd=descriptor)
    os.close(descriptor)
    fsio.remove_tree(root)
    assert not root.exists()


def test_a_tree_deeper_than_a_path_can_be_long_is_removed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    here = os.open(root, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d" * 20, dir_fd=here)
        below = os.open("d" * 20, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    fsio.remove_tree(root)
    assert not root.exists()


def test_a_link_given_as_the_tree_is_removed_and_not_its_target(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    fsio.remove_tree(tmp_path / "link")
    assert (tmp_path / "target").is_dir()
    assert not (tmp_path / "link").is_symlink()


UNPRIVILEGED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from benchmarks.lab import fsio
root = Path(sys.argv[2])
inner = root / "closed" / "inner"
inner.mkdir(parents=True)
(inner / "file").touch()
inner.chmod(0)
inner.parent.chmod(0)
fsio.remove_tree(root)
print(os.geteuid() != 0, root.exists())
"""


def test_case_10_folders_without_permissions_are_removed_by_an_ordinary_user(tmp_path: Path) -> None:
    """Root is let in everywhere; permissions only matter to somebody else."""
    argv = [sys.executable, "-c", UNPRIVILEGED, str(ROOT), str(tmp_path / "open" / "root")]
    (tmp_path / "open").mkdir()
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        assert setpriv is not None, "setpriv (util-linux) is needed to test as an ordinary user"
        argv = [setpriv, "--reuid", "65534", "--regid", "65534", "--clear-groups", *argv]
        argv[-1] = "/tmp/" + tmp_path.parent.name + tmp_path.name
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd="/")
    assert done.stdout == "True False\n", done.stderr


def test_a_held_folder_is_shared_by_those_who_share_and_by_nobody_else(tmp_path: Path) -> None:
    place = tmp_path / "made" / "place"
    with fsio.hold_folder(place, shared=True) as one, fsio.hold_folder(place, shared=True) as two:
        assert (one, two) == (True, True)
        with fsio.hold_folder(place) as alone:
            assert not alone
    with fsio.hold_folder(place) as alone, fsio.hold_folder(place, shared=True) as shared:
        assert (alone, shared) == (True, False)
