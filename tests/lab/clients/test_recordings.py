"""Every client in the table against what real clients printed, and against the start it must be given.

`recordings/` holds, per client, `NAME.launch.json` (the whole launch for the spec below) and recordings of real runs:
`NAME-SITUATION.*` (standard output), `.rc` (how it ended) and `.report.json` (what `read` must make of it, without
the fields that stay unknown). A new client adds files there and nothing here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.lab.clients import CLIENTS
from benchmarks.lab.model import Artifacts, Budgets, ClientEndpoint, ClientReport, ExitStatus, Launch, LaunchSpec

RECORDINGS = Path(__file__).parent / "recordings"
REAL = [name for name, client in CLIENTS.items() if client.install.kind != "none"]
REPORTS = sorted(RECORDINGS.glob("*.report.json"))
SPEC = LaunchSpec(
    prompt='Restore "clamp" in src/a b.py.\nRun `pytest`; $HOME, \\ and \u2028 stay as they are. Grüße.\n',
    endpoint=ClientEndpoint(
        base_url="http://127.0.0.1:4141", dialect="openai-chat", model="small-coder", context=32768, output_cap=4096
    ),
    workspace="/home/agent/work/a b",
    home="/home/agent",
    budgets=Budgets(),
    session_id="3f2b6a0e-9c1d-4e57-8a43-0d5f6b7c8e9f",
    files=("src/a b.py", "-odd.py"),
    reasoning_effort="low",
)


def lines(path: Path) -> Callable[[], Iterable[str]]:
    """A line iterator that splits on LF only, as the harness makes them."""

    def read() -> Iterator[str]:
        if path.exists():
            yield from path.read_text(encoding="utf-8", errors="replace").split("\n")

    return read


def artifacts(report: Path) -> Artifacts:
    stem = report.name.removesuffix(".report.json")
    known = {f"{stem}.rc", report.name, f"{stem}.stderr.txt"}
    (stdout,) = (path for path in RECORDINGS.glob(f"{stem}.*") if path.name not in known)
    code = int(re.findall(r"rc=(\d+)", (RECORDINGS / f"{stem}.rc").read_text())[0])
    ended = ExitStatus(code=None, signal=15, ended_by="stall")
    if code != 124:
        ended = ExitStatus(code=code, signal=None, ended_by="client")
    return Artifacts(
        stdout=lines(stdout), stderr=lines(RECORDINGS / f"{stem}.stderr.txt"), home=Path("/nowhere"), exit=ended
    )


def known_fields(report: ClientReport) -> dict[str, Any]:
    return {name: value for name, value in as_json(report).items() if value not in (None, [])}


def as_json(record: ClientReport | Launch) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(msgspec.json.encode(record))
    return fields


@pytest.mark.parametrize("name", REAL)
def test_the_whole_launch_is_the_one_recorded(name: str) -> None:
    made = as_json(CLIENTS[name].launch(SPEC))
    recorded = json.loads((RECORDINGS / f"{name}.launch.json").read_text(encoding="utf-8"))
    assert made == recorded, f"to record it: {json.dumps(made, indent=2)}"


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.name.removesuffix(".report.json"))
def test_case_3_a_recording_is_read_as_it_was_understood(report: Path) -> None:
    client = CLIENTS[report.name.split("-")[0]]
    made = known_fields(client.read(artifacts(report)))
    assert made == json.loads(report.read_text(encoding="utf-8")), f"to record it: {json.dumps(made, indent=2)}"


@pytest.mark.parametrize("name", REAL)
def test_each_client_has_a_recording_of_success_and_one_of_failure(name: str) -> None:
    terminals = {json.loads(path.read_text()).get("terminal") for path in REPORTS if path.name.startswith(f"{name}-")}
    assert {"success", "error"} <= terminals


def test_each_recording_says_what_it_should_be_read_as() -> None:
    said = {path.name.removesuffix(".report.json") for path in REPORTS}
    assert {path.name.removesuffix(".rc") for path in RECORDINGS.glob("*.rc")} == said
