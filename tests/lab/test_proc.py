"""Process trees, tool calls, clocks and pumps."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchmarks.lab import proc
from benchmarks.lab.errors import LabError
from benchmarks.lab.proc import trees

PATIENCE = 30.0


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def started(script: str, marker: str | None = None) -> subprocess.Popen[bytes]:
    env = {**os.environ, **({"LOCAL_LAB_TRIAL": marker} if marker else {})}
    return subprocess.Popen(["bash", "-c", script], env=env, start_new_session=True)


# ---- trees ----


def test_B15_a_tree_is_found_by_descent_session_and_marker_and_ends_whole(tmp_path: Path) -> None:
    up = tmp_path / "up"
    script = f"sleep 1000 & (setsid sleep 1001 &); (env -i sleep 1002 &); touch {up}; wait"
    process = started(script, "test-proc-1")
    tree = proc.ProcessTree(process.pid, "test-proc-1")
    until(up.exists)
    until(lambda: len(tree.members()) == 4)
    process.kill()
    process.wait()
    strays = proc.end_tree(tree, 0)
    assert {stray.command for stray in strays} == {"sleep 1000", "sleep 1001", "sleep 1002"}
    assert tree.members() == ()


def test_only_what_ignores_SIGTERM_counts_as_stray(tmp_path: Path) -> None:
    up = tmp_path / "up"
    process = started(f"sleep 1000 & trap '' TERM; touch {up}; while :; do read -t 1 < <(sleep 1); done", "test-proc-2")
    tree = proc.ProcessTree(process.pid, "test-proc-2")
    until(up.exists)
    threading.Thread(target=process.wait).start()
    strays = proc.end_tree(tree, 0.3)
    assert process.pid in {stray.pid for stray in strays}
    assert "sleep 1000" not in {stray.command for stray in strays}


def test_a_marker_alone_is_enough_and_strangers_are_left_alone() -> None:
    ours, stranger = started("exec sleep 1000", "test-proc-3"), started("exec sleep 1000", "test-proc-33")
    try:
        until(lambda: psutil.Process(ours.pid).name() == psutil.Process(stranger.pid).name() == "sleep")
        threading.Thread(target=ours.wait).start()
        assert [stray.pid for stray in proc.end_tree(proc.ProcessTree(None, "test-proc-3"), 0)] == [ours.pid]
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_the_callers_own_session_is_never_taken_for_the_trees() -> None:
    """A root that shares our session (not started in its own) must not drag us, or our shell, along."""
    with subprocess.Popen(["sleep", "1000"]) as process, subprocess.Popen(["sleep", "1000"]) as sibling:
        threading.Thread(target=process.wait).start()
        assert [stray.pid for stray in proc.end_tree(proc.ProcessTree(process.pid, "test-proc-4"), 0)] == [process.pid]
        assert sibling.poll() is None
        sibling.kill()


def test_a_sample_counts_processes_and_their_memory() -> None:
    script = "import sys; data = b'x' * 50_000_000; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        sample = proc.ProcessTree(process.pid).sample()
        assert sample.processes == 1
        assert 50_000_000 < sample.memory_bytes < 120_000_000
        process.kill()


def test_children_are_found_without_the_kernels_lists_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "_lists_children", lambda: False)
    with started("sleep 1000 & sleep 1000") as process:
        until(lambda: len(proc.ProcessTree(process.pid).members()) == 3)
        threading.Thread(target=process.wait).start()
        assert len(proc.end_tree(proc.ProcessTree(process.pid), 0)) == 3


def test_what_only_waits_to_be_reaped_is_no_member() -> None:
    process = started("exit 0", "test-proc-5")
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
    assert proc.ProcessTree(process.pid, "test-proc-5").members() == ()
    process.wait()


# ---- tool calls ----


def test_run_quiet_returns_what_was_said(tmp_path: Path) -> None:
    done = proc.run_quiet(
        ["sh", "-c", "cat; pwd; echo $A >&2; exit 3"], PATIENCE, cwd=tmp_path, env={"A": "b"}, stdin=b"in\n"
    )
    assert (done.code, done.signal, done.timed_out) == (3, None, False)
    assert done.stdout == f"in\n{tmp_path.resolve()}\n".encode()
    assert done.stderr == b"b\n"


def test_run_quiet_ends_a_tree_that_takes_too_long() -> None:
    done = proc.run_quiet(["bash", "-c", "echo begun; sleep 1000 & sleep 1000"], 0.3)
    assert done.timed_out
    assert done.signal == 9
    assert done.stdout == b"begun\n"
    assert done.seconds < PATIENCE


def test_run_quiet_is_not_held_up_by_a_daemon_and_bounds_what_it_keeps(tmp_path: Path) -> None:
    script = f"sleep 1000 & echo $! > {tmp_path}/pid; head -c 100000 /dev/zero"
    done = proc.run_quiet(["bash", "-c", script], PATIENCE, limit=10)
    psutil.Process(int((tmp_path / "pid").read_text())).kill()
    assert (done.code, done.timed_out) == (0, False)
    assert len(done.stdout) == 10


def test_run_quiet_names_a_program_that_is_not_there() -> None:
    with pytest.raises(LabError, match="no-such-program"):
        proc.run_quiet(["no-such-program"], 1)


# ---- clocks ----


def reading(monotonic: float, wall: float, boottime: float | None) -> proc.Clocks:
    return proc.Clocks(monotonic=monotonic, wall=wall, boottime=boottime)


def test_B49_sleep_is_seen_and_a_clock_that_was_set_is_none() -> None:
    before = reading(10, 1000, 50)
    assert proc.slept_between(before, reading(20, 1010, 60)) == 0
    assert proc.slept_between(before, reading(20, 1310, 360)) == 300
    assert proc.slept_between(before, reading(20, 4610, 60)) == 0


def test_without_a_boot_clock_the_wall_clock_tells_of_sleep() -> None:
    assert proc.slept_between(reading(10, 1000, None), reading(20, 1310, None)) == 300


def test_the_clocks_of_this_machine_agree_while_it_is_awake() -> None:
    before = proc.clocks()
    assert before.boottime is not None
    assert proc.slept_between(before, proc.clocks()) < 1


# ---- pumps ----


def test_a_pump_keeps_the_beginning_and_counts_the_rest(tmp_path: Path) -> None:
    out, into = os.pipe()
    pump = proc.Pump(out, tmp_path / "file", 5)
    os.write(into, b"abc")
    os.write(into, b"defgh")
    os.close(into)
    assert pump.finish(PATIENCE) is True
    assert (pump.total, pump.kept) == (8, 5)
    assert (tmp_path / "file").read_bytes() == b"abcde"
    assert pump.last is not None


def test_case_6_a_pump_stops_though_the_pipe_stays_open_and_keeps_what_was_written(tmp_path: Path) -> None:
    out, into = os.pipe()
    pump = proc.Pump(out, tmp_path / "file", 100)
    os.write(into, b"abc")
    assert pump.finish(0) is False
    assert (tmp_path / "file").read_bytes() == b"abc"
    os.close(into)


def test_a_pump_stops_though_somebody_goes_on_writing_for_ever(tmp_path: Path) -> None:
    out, into = os.pipe()
    with subprocess.Popen(["cat", "/dev/zero"], stdout=into) as writer:
        os.close(into)
        pump = proc.Pump(out, tmp_path / "file", 100)
        until(lambda: pump.total > 1 << 20)
        assert pump.finish(0) is False
        writer.kill()


def test_a_full_disk_does_not_stop_the_pump(tmp_path: Path) -> None:
    out, into = os.pipe()
    (tmp_path / "file").symlink_to("/dev/full")
    pump = proc.Pump(out, tmp_path / "file", 1 << 20)
    os.write(into, b"abc")
    os.close(into)
    pump.finish(PATIENCE)
    assert (pump.total, pump.kept) == (3, 0)
    assert pump.problem == "No space left on device"
