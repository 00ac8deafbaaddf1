"""What every isolation owes a trial: start, environment, output, limits, and an end after which nothing is alive."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.lab import sandbox
from benchmarks.lab.errors import LabError, Refused, UsageError
from benchmarks.lab.model import Isolation
from benchmarks.lab.sandbox import Box, Limits, Running, SandboxSpec

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 30.0


@pytest.fixture(params=["bwrap", "none"])
def isolation(request: pytest.FixtureRequest) -> Isolation:
    chosen: Isolation = request.param
    return chosen


class Bench:
    """A workspace, a home and the files of the output of one trial."""

    def __init__(self, folder: Path, isolation: Isolation) -> None:
        self.trial_id = f"test-{uuid.uuid4().hex}"
        self.workspace = folder / "work"
        self.home = folder / "home"
        self.out = folder / "out.txt"
        self.err = folder / "err.txt"
        self.isolation = isolation
        self.workspace.mkdir()
        self.home.mkdir()

    def spec(self, limits: Limits | None = None) -> SandboxSpec:
        return SandboxSpec(
            isolation=self.isolation,
            workspace=self.workspace,
            home=self.home,
            trial_id=self.trial_id,
            limits=limits or Limits(),
        )

    @contextlib.contextmanager
    def shell(self, script: str, limits: Limits | None = None, output_limit: int = 1 << 20) -> Iterator[Running]:
        with sandbox.open_box(self.spec(limits)) as box:
            yield self.start(box, script, output_limit)

    def start(self, box: Box, script: str, output_limit: int = 1 << 20, stdin: Path | None = None) -> Running:
        return box.start(["bash", "-c", script], {}, stdin, self.out, self.err, output_limit)

    def said(self) -> str:
        return self.out.read_text()

    def alive(self) -> list[int]:
        return marked(self.trial_id)


def marked(trial_id: str) -> list[int]:
    """Living processes whose environment carries the trial's marker, found without the code under test."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("LOCAL_LAB_TRIAL") == trial_id:
                found.append(process.pid)
    return found


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


@pytest.fixture
def bench(tmp_path: Path, isolation: Isolation) -> Bench:
    return Bench(tmp_path, isolation)


# ---- start and environment ----


def test_the_exit_code_and_the_signal_of_the_client_are_told_apart(bench: Bench) -> None:
    with bench.shell("exit 7") as running:
        assert running.wait(PATIENCE) == (7, None)
        assert running.ended_at is not None
    with bench.shell("kill -KILL $$") as running:
        assert running.wait(PATIENCE) == (None, signal.SIGKILL)


def test_a_program_that_is_not_there_is_named(bench: Bench) -> None:
    with sandbox.open_box(bench.spec()) as box, pytest.raises(LabError, match="no-such-program"):
        box.start(["no-such-program"], {}, None, bench.out, bench.err, 100)
    assert bench.alive() == []


def test_B01_the_client_starts_in_the_workspace_whatever_PWD_says(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PWD", str(tmp_path))
    with sandbox.open_box(bench.spec()) as box:
        running = bench.start(box, 'echo "$PWD" "$(pwd -P)"; pwd > nonce')
        assert running.wait(PATIENCE) == (0, None)
        running.end(1)
        assert bench.said().split() == [box.workspace, box.workspace]
    assert (bench.workspace / "nonce").exists()


def test_case_2_B02_stdin_is_at_its_end_or_a_regular_file(bench: Bench, tmp_path: Path) -> None:
    with bench.shell("cat; echo ended") as running:
        assert running.wait(PATIENCE) == (0, None)
    assert bench.said() == "ended\n"
    prompt = tmp_path / "prompt"
    prompt.write_text('Do "x"\nline2')
    with sandbox.open_box(bench.spec()) as box:
        running = bench.start(box, "test -f /dev/stdin && cat", stdin=prompt)
        assert running.wait(PATIENCE) == (0, None)
    assert bench.said() == 'Do "x"\nline2'


def test_the_environment_is_built_from_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "HTTPS_PROXY", "http_proxy", "PYTHONPATH", "VIRTUAL_ENV"):
        monkeypatch.setenv(name, "operator")
    with sandbox.open_box(bench.spec()) as box:
        running = box.start(["env"], {"EXTRA": "ä b"}, None, bench.out, bench.err, 10_000)
        assert running.wait(PATIENCE) == (0, None)
        running.end(1)
        seen = dict(line.split("=", 1) for line in bench.said().splitlines())
        assert "operator" not in seen.values()
        assert {name: seen.get(name) for name in box.base_env()} == box.base_env()
        assert seen["EXTRA"] == "ä b"
        assert "127.0.0.1" in seen["NO_PROXY"]
        assert seen["no_proxy"] == seen["NO_PROXY"]
        assert seen["HOME"] == box.home


def test_signals_that_python_ignores_are_not_ignored_by_the_client(bench: Bench) -> None:
    with bench.shell("grep SigIgn /proc/self/status") as running:
        assert running.wait(PATIENCE) == (0, None)
    ignored = int(bench.said().split()[1], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1))


@pytest.mark.parametrize("name", ["with space", 'it\'s "quoted"', "Größe-日本", "-dash", "back\\slash", "$HOME"])
def test_case_9_the_workspace_may_have_any_name(tmp_path: Path, isolation: Isolation, name: str) -> None:
    bench = Bench(tmp_path, isolation)
    bench.workspace = tmp_path / name
    bench.workspace.mkdir()
    with sandbox.open_box(bench.spec()) as box:
        running = bench.start(box, 'pwd -P; echo x > "$PWD/made"')
        assert running.wait(PATIENCE) == (0, None)
        running.end(1)
        assert Path(box.workspace).name == name
        assert bench.said() == box.workspace + "\n"
    assert (bench.workspace / "made").read_text() == "x\n"


def test_a_folder_that_is_not_there_is_the_callers_mistake(bench: Bench) -> None:
    bench.home.rmdir()
    with pytest.raises(UsageError, match="home"), sandbox.open_box(bench.spec()):
        pass


# ---- output ----


def test_case_7_a_full_pipe_blocks_nobody_and_the_file_is_bounded(bench: Bench) -> None:
    size = 200 << 20
    with bench.shell(f"head -c {size} /dev/zero; head -c 100000 /dev/zero >&2", output_limit=64 << 10) as running:
        assert running.wait(PATIENCE) == (0, None)
        running.end(1)
        assert running.output_bytes() == size + 100_000
        assert running.last_output() is not None
    assert bench.out.stat().st_size == bench.err.stat().st_size == 64 << 10


def test_case_6_a_daemon_that_holds_the_output_open_does_not_hold_up_the_end(bench: Bench) -> None:
    with bench.shell("setsid sleep 1000 & echo ready") as running:
        assert running.wait(PATIENCE) == (0, None)
        strays = running.end(1)
    assert [stray.name for stray in strays] == ["sleep"]
    assert bench.said() == "ready\n"
    assert bench.alive() == []


def test_no_output_has_no_time(bench: Bench) -> None:
    with bench.shell("exit 0") as running:
        running.wait(PATIENCE)
        assert running.last_output() is None


# ---- the end ----


def test_case_5_B15_children_in_sessions_of_their_own_do_not_survive(bench: Bench) -> None:
    script = "(setsid sh -c '(sleep 1000 & sleep 1001) & sleep 1002' &) ; echo up; wait; sleep 1003"
    with bench.shell(script) as running:
        until(lambda: len(bench.alive()) >= 5)
        strays = running.end(0.2)
        assert running.poll() == (None, signal.SIGTERM)
    assert {stray.command for stray in strays} >= {"sleep 1000", "sleep 1001", "sleep 1002"}
    assert bench.alive() == []


def test_a_daemon_that_lost_its_parent_is_found(bench: Bench) -> None:
    daemon = (
        "import os, time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "open('up', 'w').close()\n"
        "time.sleep(1000)\n"
    )
    (bench.workspace / "daemon.py").write_text(daemon)
    with bench.shell(f"{Path(sys.executable).resolve()} daemon.py; exit 0") as running:
        assert running.wait(PATIENCE) == (0, None)
        until((bench.workspace / "up").exists)
        assert len(running.end(1)) == 1
    assert bench.alive() == []


def test_a_client_that_ignores_SIGTERM_is_killed(bench: Bench) -> None:
    with bench.shell("trap '' TERM; echo up; while :; do sleep 1000; done") as running:
        until(running.output_bytes)
        running.end(0.1)
        assert running.poll() == (None, signal.SIGKILL)
    assert bench.alive() == []


def test_a_client_that_ends_on_SIGTERM_has_its_own_exit_code_and_no_strays(bench: Bench) -> None:
    with bench.shell("trap 'kill $!; exit 5' TERM; sleep 1000 & echo up; wait") as running:
        until(running.output_bytes)
        assert running.end(PATIENCE) == ()
        assert running.poll() == (5, None)
        assert running.end(PATIENCE) == ()


def test_a_storm_of_forks_is_seen_and_ended(bench: Bench) -> None:
    with bench.shell("for i in $(seq 200); do sleep 1000 & done; wait", Limits(processes=100)) as running:
        until(running.over_limit)
        assert running.over_limit() == "processes"
        running.end(0)
    assert bench.alive() == []


def test_leaving_the_box_ends_what_runs_also_after_an_error(bench: Bench) -> None:
    with contextlib.suppress(ZeroDivisionError), bench.shell("sleep 1000") as running:
        assert running.poll() is None
        raise ZeroDivisionError
    assert bench.alive() == []


HARNESS = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from benchmarks.lab import sandbox
folder = Path(sys.argv[2])
spec = sandbox.SandboxSpec(isolation=sys.argv[3], workspace=folder / "work", home=folder / "home", trial_id=sys.argv[4])
with sandbox.open_box(spec) as box:
    running = box.start(["bash", "-c", "trap '' TERM HUP; setsid sleep 1000 & echo up; sleep 1001"],
                        {}, None, folder / "out.txt", folder / "err.txt", 1000)
    while not running.output_bytes():
        time.sleep(0.01)
    print("up", flush=True)
    time.sleep(1000)
"""


def test_kill_9_of_the_harness_leaves_nothing(bench: Bench, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", HARNESS, str(ROOT), str(tmp_path), bench.isolation, bench.trial_id]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as harness:
        try:
            assert harness.stdout is not None
            assert harness.stdout.readline() == b"up\n"
            assert len(bench.alive()) >= 2
        finally:
            harness.kill()
    until(lambda: bench.alive() == [])


def test_a_box_outlives_the_thread_that_opened_it(bench: Bench) -> None:
    """The kernel's parent-death signal comes when the forking thread ends, not the process."""
    import threading  # noqa: PLC0415

    with contextlib.ExitStack() as stack:
        started: list[Running] = []
        opener = threading.Thread(target=lambda: started.append(stack.enter_context(bench.shell("sleep 0.3; exit 9"))))
        opener.start()
        opener.join()
        assert started[0].wait(PATIENCE) == (9, None)


# ---- limits ----


def test_a_file_cannot_grow_past_its_limit(bench: Bench) -> None:
    with bench.shell("head -c 3000000 /dev/zero > big; echo $?", Limits(file_bytes=1 << 20)) as running:
        assert running.wait(PATIENCE) == (0, None)
    assert (bench.workspace / "big").stat().st_size == 1 << 20
    assert bench.said() != "0\n"


def test_memory_of_the_whole_tree_is_watched(bench: Bench) -> None:
    hog = "head -c 80000000 /dev/zero | tail | sleep 1000"
    with bench.shell(f"{hog} & {hog} & wait", Limits(memory_bytes=120_000_000)) as running:
        until(running.over_limit)
        assert running.over_limit() == "memory"


def test_case_10_a_filled_disk_is_seen_and_sparse_files_do_not_count(bench: Bench) -> None:
    limits = Limits(disk_bytes=20 << 20)
    with bench.shell("truncate -s 1G sparse; echo up; read -t 2 < <(sleep 3); exit 0", limits) as running:
        until(running.output_bytes)
        assert running.wait(PATIENCE) == (0, None)
        assert running.over_limit() is None
    with bench.shell('head -c 30000000 /dev/urandom > "$HOME/real"; sleep 1000', limits) as running:
        until(running.over_limit)
        assert running.over_limit() == "disk"


def test_case_10_the_workspace_may_be_made_unreadable_or_deleted(bench: Bench) -> None:
    with bench.shell('cd /; rm -rf "$OLDPWD"; chmod 0 "$OLDPWD" "$HOME"; echo done') as running:
        assert running.wait(PATIENCE) == (0, None)
        running.end(0)
        assert running.over_limit() is None
    assert bench.said() == "done\n"


# ---- choosing ----


def test_none_is_only_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sandbox.choose("none") == "none"
    assert sandbox.choose(None) == "bwrap"

    def blocked() -> None:
        raise Refused("No sandbox works here (user namespaces are blocked): pass --isolation none.")

    monkeypatch.setattr(sandbox.bwrap, "find", blocked)
    either: tuple[Isolation | None, ...] = (None, "bwrap")
    for wanted in either:
        with pytest.raises(Refused, match="--isolation none"):
            sandbox.choose(wanted)
    assert sandbox.choose("none") == "none"


def test_a_blocked_bwrap_gives_one_sentence_with_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sandbox.bwrap, "_candidates", lambda: [str(broken)])
    with pytest.raises(Refused) as refused:
        sandbox.bwrap.find.__wrapped__()
    assert "setting up uid map: Permission denied" in str(refused.value)
    assert "apparmor_restrict_unprivileged_userns=0" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_seatbelt_is_refused_where_it_does_not_exist() -> None:
    if os.uname().sysname == "Darwin":
        assert sandbox.choose("seatbelt") == "seatbelt"
    else:
        with pytest.raises(Refused, match="macOS"):
            sandbox.choose("seatbelt")
