"""The fault scripts through the clients: what docs/verdicts.md says is what happens."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.agent import check
from benchmarks.lab import clients
from benchmarks.lab.engines.scripted.scripts import SCRIPTS
from tests.agent.test_run import wait_for

if TYPE_CHECKING:
    from tests.agent.conftest import Desk

ROOT = Path(__file__).resolve().parents[2]
REAL = sorted(set(clients.CLIENTS) - {"stub"})


def test_the_table_has_every_script_and_every_client() -> None:
    table = check.read_table(ROOT / check.TABLE)
    assert {script for script, _ in table} == set(SCRIPTS)
    assert {client for _, client in table} == set(clients.CLIENTS)


def test_a_name_that_is_not_in_the_table_names_the_flag(desk: Desk) -> None:
    code, output = desk.run("--script", "stal", program="check.py")
    assert code == 2
    assert "--script stal: docs/verdicts.md has no such entry" in output


def test_the_stub_agent_gets_the_documented_verdicts(desk: Desk) -> None:
    scripts = ("edit_tests", "http_500", "bad_json_args", "spawn_daemon", "escape", "reach_out", "read_history")
    flags = [word for script in scripts for word in ("--script", script)]
    code, output = desk.run("--client", "stub", "--task", "toolz-groupby", *flags, program="check.py")
    assert code == 0, output
    assert f"{len(scripts)} cases, 0 differ" in output


def test_ctrl_c_is_one_sentence_and_leaves_nothing(desk: Desk) -> None:
    run = desk.start("--client", "stub", "--task", "toolz-groupby", "--script", "stall", program="check.py")
    wait_for(lambda: any((desk.folder / "state" / "evidence").glob("*/*/*/exchanges")))
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 130, output
    assert "check.py: interrupted" in output
    assert "Traceback" not in output
    assert not desk.processes()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("client", REAL)
def test_case_12_B54_every_real_client_solves_a_task_by_the_scripted_engine(desk: Desk, client: str) -> None:
    code, output = desk.trial("--backend", "scripted", "--client", client)
    assert code == 0, output
    (row,) = desk.trials()
    assert (row.verdict, row.strays, row.egress_attempts) == ("passed", 0, ())
    assert row.counters_agree is True
    assert row.exchanges is not None
    assert row.exchanges.models_answered == ("scripted",)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("client", sorted(clients.CLIENTS))
def test_every_client_gets_every_documented_verdict(desk: Desk, client: str) -> None:
    code, output = desk.run("--client", client, "--task", "toolz-groupby", program="check.py")
    assert code == 0, output
