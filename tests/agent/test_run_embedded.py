"""run.py in front of the real llama.cpp server, with a tiny random model that loads in an instant."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from tests.agent.conftest import Desk, LabFile

MAKER = Path(__file__).resolve().parents[1] / "lab" / "engines" / "mk_tiny_gguf.py"
CANCELLING = """
from benchmarks.lab.clients.stub import stub
CANCELS = stub({"cancel_after": 3, "max_turns": 1})
"""


@pytest.fixture
def tiny(desk: Desk, lab_file: LabFile, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A desk whose lab file has the backend `tiny`."""
    model = desk.folder / "tiny.gguf"
    subprocess.run([sys.executable, str(MAKER), str(model)], check=True)
    settings = f"engine: embedded, purpose: demo, model_path: {model}, context: 65536, max_tokens: 400"
    lab_file(f"backends:\n  tiny: {{{settings}}}\n")
    (desk.folder / "cancelling.py").write_text(CANCELLING)
    monkeypatch.setenv("PYTHONPATH", str(desk.folder))
    return desk


def servers(run: subprocess.Popen[str]) -> list[psutil.Process]:
    children = psutil.Process(run.pid).children(recursive=True)
    return [child for child in children if "benchmarks.lab.engines.embedded_server" in child.cmdline()]


def test_the_meters_sums_equal_the_engines_own_counters(tiny: Desk) -> None:
    code, output = tiny.trial("--backend", "tiny")
    assert code == 0, output
    (row,) = tiny.trials()
    assert row.counters_agree is True
    assert row.tokens is not None
    assert row.engine_counters is not None
    assert row.tokens.output == row.engine_counters.output
    assert "tiny is a demo: its failures say nothing about clients" in output


def test_a_cancelled_exchange_is_partial_and_its_sums_are_unknown_not_zero(tiny: Desk) -> None:
    code, output = tiny.trial("--backend", "tiny", "--client", "cancelling:CANCELS")
    assert code == 0, output
    (row,) = tiny.trials()
    assert row.exchanges is not None
    assert row.exchanges.partial == 1
    assert row.tokens is not None
    assert (row.tokens.output, row.counters_agree) == (None, None)
    assert row.engine_counters is not None
    assert row.engine_counters.output is not None
    assert row.engine_counters.output > 0


def test_an_engine_that_dies_in_a_trial_answers_for_it_and_is_served_anew_for_the_next(tiny: Desk) -> None:
    run = tiny.start("--results", str(tiny.results), "--backend", "tiny", "--client", "stub", "--task", "toolz-groupby",
                     "--trials", "2", "--skip-smoke")  # fmt: skip
    deadline = time.monotonic() + 200
    while not list((tiny.folder / "state" / "evidence").glob("*/*/*-tiny-stub-1-1-*/exchanges/*.request")):
        assert time.monotonic() < deadline, "the first trial never asked the engine"
        time.sleep(0.01)
    (server,) = servers(run)
    server.kill()
    output, _ = run.communicate(timeout=200)
    assert run.returncode == 0, output
    first, second = tiny.trials()
    assert (first.verdict, first.cause, first.who) == ("failed", "engine_error", "engine")
    assert (second.verdict, second.cause) == ("failed", "no_edit")
    assert "served anew" in output
