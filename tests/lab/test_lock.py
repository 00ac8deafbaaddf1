"""One lock for the machine: who is refused, what a dead holder leaves, and what a stranger puts in its place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from benchmarks.lab import lock
from benchmarks.lab.errors import Refused

HOLD = """
import sys
from pathlib import Path
from benchmarks.lab.lock import machine_lock
with machine_lock("serving/run.py", print, Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_program(path: Path) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "machine.lock"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A sticky folder like /tmp; pytest's own folders are closed to other users."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o1777)
        yield Path(name)


def take(path: Path) -> list[str]:
    said: list[str] = []
    with lock.machine_lock("agent/run.py", said.append, path):
        assert msgspec.json.decode(path.read_bytes(), type=lock.Holder).pid == os.getpid()
    return said


def leave(path: Path, *, pid: int, started: float) -> None:
    holder = lock.Holder(
        pid=pid, started=started, program="agent/run.py", argv="run.py", user="ann", since="2026-11-30T20:15:00+00:00"
    )
    path.write_bytes(msgspec.json.encode(holder))


def test_a_second_program_is_refused_and_told_who_measures(path: Path) -> None:
    with another_program(path) as process, pytest.raises(Refused, match=rf"serving/run.py \(pid {process.pid}, user"):
        take(path)


def test_the_same_program_cannot_take_it_twice(path: Path) -> None:
    with lock.machine_lock("agent/run.py", print, path), pytest.raises(Refused, match=f"pid {os.getpid()}"):
        take(path)


def test_after_the_end_nothing_is_said(path: Path) -> None:
    assert take(path) == []
    assert take(path) == []
    assert path.read_bytes() == b""


def test_after_an_error_it_is_free(path: Path) -> None:
    with pytest.raises(ZeroDivisionError), lock.machine_lock("agent/run.py", print, path):
        raise ZeroDivisionError
    assert take(path) == []


def test_a_killed_holder_leaves_a_lock_that_is_taken_over(path: Path) -> None:
    with another_program(path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        said = take(path)
    assert len(said) == 1
    assert f"pid {process.pid}" in said[0]
    assert "that process is gone" in said[0]


def test_a_pid_that_was_given_again_is_recognised(path: Path) -> None:
    leave(path, pid=os.getpid(), started=psutil.Process().create_time() - 3600)
    assert "its pid belongs to another process now" in take(path)[0]


def test_every_user_may_lock_the_file_whatever_the_umask(path: Path) -> None:
    mask = os.umask(0o077)
    try:
        take(path)
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_and_can_take_it_afterwards(open_folder: Path) -> None:
    path = open_folder / "machine.lock"
    reader = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from benchmarks.lab.errors import Refused
from benchmarks.lab.lock import machine_lock
os.setgid(65534); os.setuid(65534)
try:
    with machine_lock("x", print, Path({str(path)!r})):
        print("taken")
except Refused as error:
    print(error)
"""

    def as_nobody() -> str:
        return subprocess.run([sys.executable, "-c", reader], capture_output=True, text=True, check=True).stdout

    with lock.machine_lock("agent/run.py", print, path):
        assert f"agent/run.py (pid {os.getpid()}, user root" in as_nobody()
    assert as_nobody() == "taken\n"


def test_a_link_in_its_place_is_not_followed(path: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep", encoding="utf-8")
    path.symlink_to(precious)
    with pytest.raises(Refused, match="is a link"):
        take(path)
    assert precious.read_text(encoding="utf-8") == "keep"


@pytest.mark.parametrize("named", ["/tmp", "/dev/null", "/no/such/folder/lock"])
def test_a_place_that_a_person_named_is_named_with_its_variable(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(lock.VARIABLE, named)
    with (
        pytest.raises(Refused, match=f"the variable LOCAL_LAB_LOCK names '{named}', which .*; name another file") as it,
        lock.machine_lock("agent/run.py", print),
    ):
        pass
    assert "remove" not in str(it.value)


def test_a_second_name_of_a_file_is_not_overwritten(path: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep", encoding="utf-8")
    path.hardlink_to(precious)
    with pytest.raises(Refused, match="second name"):
        take(path)
    assert precious.read_text(encoding="utf-8") == "keep"


def test_a_fifo_in_its_place_does_not_block(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(Refused, match="no plain file"):
        take(path)


def test_what_a_stranger_wrote_into_it_cannot_move_the_cursor(path: Path) -> None:
    leave(path, pid=os.getpid(), started=0.0)
    path.write_bytes(path.read_bytes().replace(b"agent/run.py", b"\\u001b[2J"))
    assert "\x1b" not in take(path)[0]


def test_nonsense_in_it_is_no_obstacle(path: Path) -> None:
    path.write_bytes(b"\xff\xfe not JSON")
    assert take(path) == []
