"""The stub agent as a program of its own against the scripted engine, and its adapter's reading of what it prints."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
import pytest

from benchmarks.lab.clients.stub import STUB, stub
from benchmarks.lab.dialects import DIALECTS
from benchmarks.lab.engines import find
from benchmarks.lab.engines.base import Endpoint, TrialContext
from benchmarks.lab.engines.scripted.server import ScriptedServer
from benchmarks.lab.model import (
    Artifacts,
    Backend,
    Budgets,
    Client,
    ClientEndpoint,
    ClientReport,
    Dialect,
    EngineCounters,
    ExitStatus,
    LaunchSpec,
)

ORIGINAL = b"def f(x):\n    return x + 1\n"
PROMPT = 'Write the "body" of f in code.py.\nline 2: 日本\n'
LIMIT = 60.0


class Ran(NamedTuple):
    """What a run of the stub agent left."""

    report: ClientReport
    code: int
    stdout: str
    workspace: Path
    counters: EngineCounters | None


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with find("scripted").serve(Backend(name="s", engine="scripted"), tmp_path_factory.mktemp("s"), print) as served:
        yield served


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Bodies of the requests that reach the engine."""
    found: list[bytes] = []
    answer = ScriptedServer._answer

    async def spy(self: ScriptedServer, request: Any, line: Any) -> None:
        found.append(request.body)
        await answer(self, request, line)

    monkeypatch.setattr(ScriptedServer, "_answer", spy)
    return found


def placed(client: Client, endpoint: Endpoint, root: Path, dialect: Dialect) -> tuple[list[str], Path, Path]:
    """Home and workspace as the harness would prepare them; the command line."""
    home, workspace = root / "home", root / "work space"
    home.mkdir()
    workspace.mkdir()
    (workspace / "code.py").write_text("def f(x):\n    raise NotImplementedError\n")
    told = ClientEndpoint(
        base_url=endpoint.base_url, dialect=dialect, model=endpoint.model, context=None, output_cap=None
    )
    spec = LaunchSpec(
        prompt=PROMPT, endpoint=told, workspace=str(workspace), home=str(home), budgets=Budgets(), session_id="abc",
        files=("code.py",),
    )  # fmt: skip
    launch = client.launch(spec)
    for path, text in launch.files.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
    assert launch.stdin is not None
    (root / "stdin").write_text(launch.stdin)
    assert launch.argv[0] == "python3"
    return [sys.executable, *launch.argv[1:]], home, workspace


@contextlib.contextmanager
def started(argv: list[str], root: Path, workspace: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The agent under way, its output in files; killed if it still runs."""
    with (root / "stdin").open("rb") as given, (root / "out").open("wb") as out:
        process = subprocess.Popen(argv, cwd=workspace, stdin=given, stdout=out, env={"PATH": os.environ["PATH"]})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def run(
    endpoint: Endpoint,
    root: Path,
    plan: dict[str, Any],
    *,
    script: str = "solve",
    dialect: Dialect = "openai-chat",
    options: dict[str, Any] | None = None,
) -> Ran:
    client = stub(plan)
    argv, home, workspace = placed(client, endpoint, root, dialect)
    context = TrialContext(script=script, solution={"code.py": ORIGINAL}, nonce="nonce.txt", options=options or {})
    with endpoint.trial(context) as box, started(argv, root, workspace) as process:
        code = process.wait(LIMIT)
    out = root / "out"
    artifacts = Artifacts(
        stdout=lambda: out.read_text().splitlines(),
        stderr=lambda: [],
        home=home,
        exit=ExitStatus(code=code, signal=None, ended_by="client"),
    )
    return Ran(client.read(artifacts), code, out.read_text(), workspace, box.result)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_it_solves_in_every_dialect_and_tells_what_it_did(endpoint: Endpoint, tmp_path: Path, dialect: Dialect) -> None:
    ran = run(endpoint, tmp_path, {}, dialect=dialect, script="read_history")
    report = ran.report
    assert (ran.workspace / "code.py").read_bytes() == ORIGINAL
    assert (ran.code, report.terminal, report.turns, report.tool_calls) == (0, "success", 3, 2)
    assert (report.session_id, report.workspace) == ("abc", str(ran.workspace))
    assert report.tokens is not None
    assert ran.counters is not None
    assert (report.tokens.prompt_new, report.tokens.prompt_cached) == (
        ran.counters.prompt_new,
        ran.counters.prompt_cached,
    )
    assert report.tokens.output == ran.counters.output


def test_B08_the_prompt_arrives_byte_for_byte_unless_the_plan_alters_it(
    endpoint: Endpoint, tmp_path: Path, bodies: list[bytes]
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    run(endpoint, tmp_path / "a", {}, script="nop")
    assert told_prompt(bodies) == PROMPT
    run(endpoint, tmp_path / "b", {"alter_prompt": "XX"}, script="nop")
    assert PROMPT not in told_prompt(bodies)
    assert "XX" in told_prompt(bodies)


def told_prompt(bodies: list[bytes]) -> str:
    return str(json.loads(bodies[-1])["messages"][1]["content"])


def test_it_can_overlap_ask_aside_and_ask_for_the_whole(
    endpoint: Endpoint, tmp_path: Path, bodies: list[bytes]
) -> None:
    plan = {"title": True, "overlap": 2, "overlap_delay": 0.01, "whole": [0]}
    run(endpoint, tmp_path, plan, script="slow_prefill", options={"prefill_seconds": 0.3})
    streams = [b'"stream": true' in body for body in bodies]
    assert b'"tools"' not in bodies[0]
    assert streams.count(False) >= 3
    assert streams[-1] is True
    assert len(set(bodies)) < len(bodies)


def test_case_23_it_sends_the_identical_request_again_after_a_timeout(
    endpoint: Endpoint, tmp_path: Path, bodies: list[bytes]
) -> None:
    plan = {"timeout_seconds": 0.2}
    argv, _, workspace = placed(stub(plan), endpoint, tmp_path, "openai-chat")
    with endpoint.trial(TrialContext(script="stall")), started(argv, tmp_path, workspace) as process:
        while len(bodies) < 3 and process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
        assert process.poll() is None
    assert len(set(bodies)) == 1


def test_case_4_it_retries_an_error_as_often_as_told(endpoint: Endpoint, tmp_path: Path, bodies: list[bytes]) -> None:
    ran = run(endpoint, tmp_path, {"retry": 2, "retry_seconds": 0.01}, script="http_500")
    assert len(bodies) == 3
    assert (ran.code, ran.report.terminal, ran.report.retries) == (1, "error", 2)
    assert ran.report.error is not None
    assert "500" in ran.report.error
    assert ran.report.error_kind == "provider"


def test_a_dropped_first_request_is_sent_again_and_counted_by_the_engine(
    endpoint: Endpoint, tmp_path: Path, bodies: list[bytes]
) -> None:
    ran = run(endpoint, tmp_path, {"cancel_after": 3}, script="reasoning", options={})
    assert bodies[0] == bodies[1]
    assert (ran.workspace / "code.py").read_bytes() == ORIGINAL
    assert ran.report.retries == 1


@pytest.mark.parametrize(
    ("script", "kind"), [("context_overflow", "context"), ("disconnect", None), ("http_500", "provider")]
)
def test_B60_an_engine_that_fails_is_an_error_in_its_events(
    endpoint: Endpoint, tmp_path: Path, script: str, kind: str | None
) -> None:
    ran = run(endpoint, tmp_path, {"exit_code": 0}, script=script)
    assert (ran.code, ran.report.terminal) == (0, "error")
    assert kind is None or ran.report.error_kind == kind


def test_it_can_leave_with_an_error_after_success(endpoint: Endpoint, tmp_path: Path) -> None:
    ran = run(endpoint, tmp_path, {"exit_code": 7})
    assert (ran.code, ran.report.terminal) == (7, "success")
    assert (ran.workspace / "code.py").read_bytes() == ORIGINAL


@pytest.mark.parametrize("when", ["start", "turn"])
def test_it_can_crash(endpoint: Endpoint, tmp_path: Path, when: str) -> None:
    ran = run(endpoint, tmp_path, {"crash": when})
    assert ran.code == -signal.SIGABRT
    assert ran.report.terminal is None


def test_case_7_it_can_flood(endpoint: Endpoint, tmp_path: Path) -> None:
    ran = run(endpoint, tmp_path, {"flood_bytes": 1 << 20}, script="nop")
    assert len(ran.stdout) >= 1 << 20
    assert ran.report.terminal == "success"
    assert any("not JSON" in note for note in ran.report.notes)


def test_case_1_it_can_work_and_write_elsewhere(endpoint: Endpoint, tmp_path: Path) -> None:
    other, loose = tmp_path / "other", tmp_path / "loose.txt"
    other.mkdir()
    ran = run(endpoint, tmp_path, {"chdir": str(other), "write_elsewhere": str(loose)}, script="nonce")
    assert (other / "nonce.txt").read_text().strip() == str(other)
    assert loose.is_file()
    assert not (ran.workspace / "nonce.txt").exists()
    assert ran.report.workspace == str(other)


def test_case_2_it_can_hang_before_its_first_request_and_ignore_sigterm(
    endpoint: Endpoint, tmp_path: Path, bodies: list[bytes]
) -> None:
    plan = {"hang": True, "ignore_term": True, "write_elsewhere": str(tmp_path / "mark")}
    argv, _, workspace = placed(stub(plan), endpoint, tmp_path, "openai-chat")
    with started(argv, tmp_path, workspace) as process:
        while not (tmp_path / "mark").exists():
            assert process.poll() is None
        process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
    assert bodies == []


def test_case_6_its_daemon_outlives_it_and_holds_its_output(endpoint: Endpoint, tmp_path: Path) -> None:
    ran = run(endpoint, tmp_path, {"daemon_seconds": 321}, script="nop")
    found = [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == ["sleep", "321"]]
    mine = [each for each in found if each.cwd() == str(ran.workspace)]
    assert len(mine) == 1
    assert Path(f"/proc/{mine[0].pid}/fd/1").resolve() == tmp_path / "out" or sys.platform != "linux"
    mine[0].kill()


def test_case_2_an_open_stdin_is_waited_for(endpoint: Endpoint, tmp_path: Path, bodies: list[bytes]) -> None:
    argv, _, workspace = placed(STUB, endpoint, tmp_path, "openai-chat")
    with endpoint.trial(TrialContext(script="nop")):
        process = subprocess.Popen(argv, cwd=workspace, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        timer = threading.Timer(LIMIT, process.kill)
        timer.start()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        assert bodies == []
        process.communicate(PROMPT.encode())
        timer.cancel()
    assert process.returncode == 0
    assert httpx.get(f"{endpoint.base_url}/health").status_code == 200
