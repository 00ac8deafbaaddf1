"""scripts/ledger.py and scripts/hardware_id.py as a person runs them."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lab import ledger, lock, stamp
from benchmarks.lab.ledger import Ledger

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
DAY = 86_400

Run = Callable[..., int]


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"script_{name}", SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("LOCAL_LAB_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("LOCAL_LAB_LOCK", str(tmp_path / "machine.lock"))
    main: Run = load("ledger").main
    return lambda *argv: main([str(word) for word in argv])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger with a codex trial that passed and a claude trial that failed."""
    found = tmp_path / "hardware" / "m" / "trials.jsonl"
    book = Ledger(found)
    book.append(
        "batch_start",
        {"program": "run.py", "argv": [], "plan": {}, "plan_digest": "p", "slots": 2},
        machine="m",
        batch="b1",
    )
    for client, verdict in (("codex", {"verdict": "passed"}), ("claude", {"verdict": "failed", "cause": "wrong"})):
        digest = book.append_stamp(stamp.assemble({"client": client, "dirty": True}), machine="m")
        book.append("trial", {**TRIAL, "client": client, **verdict}, machine="m", batch="b1", stamp=digest)
    return found


TRIAL: dict[str, Any] = {
    "task": "toolz-merge",
    "target": "toolz",
    "suite": "starter",
    "tier": 1,
    "backend": "scripted",
    "purpose": "harness",
    "isolation": "bwrap",
    "trial": 1,
    "position": 1,
    "started": "2026-11-30T20:15:00+00:00",
    "wall_seconds": 2.5,
    "attempt": 1,
    "locked": True,
    "volatile": {},
    "volatile_end": {},
    "evidence": "b1/one",
}


def id_of(path: Path, client: str) -> str:
    return next(row.id for row in ledger.read(path) if row.body.get("client") == client)


def test_list_shows_one_line_a_row_and_how_many(script: Run, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script("list", "--ledger", path, "--kind", "trial") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "toolz-merge scripted codex  passed" in lines[0]
    assert "toolz-merge scripted claude  failed  wrong" in lines[1]
    assert lines[2] == "2 rows"


def test_list_says_when_it_hides_rows(script: Run, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script("list", "--ledger", path, "--limit", "1") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "5 rows, the newest 1 shown (--limit 0 for all)"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--client", "codx"), '--client: no row has "codx" (did you mean "codex"?); there are claude, codex'),
        (("--kind", "trail"), '--kind: no row has "trail" (did you mean "trial"?)'),
        (("--engine", "vllm"), '--engine: no row has "vllm"; none has one'),
        (("--batch", "b2"), '--batch: no row has "b2"'),
        (("--limit", "-5"), "--limit: '-5' is no number of rows"),
        (("--series", ""), "--series: it is empty"),
    ],
)
def test_a_choice_that_can_mean_nothing_names_its_flag(
    script: Run, path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], words: str
) -> None:
    assert script("list", "--ledger", path, *flags) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"ledger.py: {words}")
    assert error.count("\n") == 1


def test_names_that_are_there_but_not_together_are_no_mistake(
    script: Run, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script("list", "--ledger", path, "--client", "codex", "--kind", "smoke") == 0
    assert capsys.readouterr().out == "0 rows\n"


def test_a_file_named_twice_is_read_once(
    script: Run, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "link.jsonl").symlink_to(path)
    around = path.parent / ".." / path.parent.name / path.name
    files = ("--ledger", path, "--ledger", around, "--ledger", tmp_path / "link.jsonl")
    assert script("list", *files) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "5 rows"
    assert script("retract", *files, "--client", "codex", "--reason", "slip") == 0
    assert [row.kind for row in ledger.read(path)].count("retraction") == 1


@pytest.mark.parametrize("flags", [("--reason", ""), ("--id", ""), ("--series", ""), ("--document", "")])
def test_a_retraction_by_or_for_nothing_is_refused(
    script: Run, path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    before = path.read_bytes()
    assert script("retract", "--ledger", path, "--client", "codex", "--reason", "slip", *flags) == 2
    assert f"{flags[0]}: it is empty" in capsys.readouterr().err
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "stamp", "values": "x", "stamp": "ab"},
        {"kind": "retraction", "ids": 5, "count": 1, "reason": "x"},
        {"kind": "control"},
    ],
    ids=str,
)
def test_a_line_that_nothing_can_use_names_file_and_line(
    script: Run, path: Path, capsys: pytest.CaptureFixture[str], line: dict[str, Any]
) -> None:
    whole = {"v": 1, "id": "zz", "at": "2026-11-01T00:00:00+00:00", "machine": "m", "batch": None, "stamp": None}
    path.write_bytes(path.read_bytes() + json.dumps({**whole, **line}).encode() + b"\n")
    for command in (("list",), ("show", "0"), ("retract", "--client", "codex", "--reason", "x")):
        assert script(*command, "--ledger", path) == 3
        assert capsys.readouterr().err.startswith(f"ledger.py: {path}:6: row zz is no {line['kind']}")


def test_show_finds_a_row_by_the_beginning_of_its_id(
    script: Run, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script("show", id_of(path, "codex"), "--ledger", path) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["row"]["client"] == shown["stamp"]["client"] == "codex"
    assert shown["counts"] is True
    assert "dirty is true" in shown["not_publishable_because"]


@pytest.mark.parametrize(("name", "words"), [("zzz", "no row has an id"), ("0", "is the beginning of")])
def test_show_says_which_id_it_needs(
    script: Run, path: Path, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    assert script("show", name, "--ledger", path) == 2
    assert words in capsys.readouterr().err


def test_retract_by_selector_appends_and_shows(script: Run, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = path.read_bytes()
    dry = ("retract", "--ledger", path, "--client", "codex", "--reason", "wrong sampler", "--dry-run")
    assert script(*dry) == 0
    assert path.read_bytes() == before
    assert script(*dry[:-1], "--document", "docs/log.md") == 0
    assert path.read_bytes().startswith(before)
    row = list(ledger.read(path))[-1]
    assert row.body["ids"] == [id_of(path, "codex")]
    assert row.body["selector"]["client"] == "codex"
    capsys.readouterr()
    script("list", "--ledger", path, "--client", "codex")
    assert "retracted" in capsys.readouterr().out.splitlines()[0]
    assert script(*dry[:-1]) == 2
    assert "nothing is selected" in capsys.readouterr().err


def test_retract_by_id_and_undo(script: Run, path: Path) -> None:
    assert script("retract", "--ledger", path, "--id", id_of(path, "claude"), "--reason", "slip") == 0
    retraction = list(ledger.read(path))[-1].id
    assert script("retract", "--ledger", path, "--id", retraction, "--reason", "no slip") == 0
    assert all(one.counts for one in ledger.effective(ledger.read(path)) if one.row.kind == "trial")


def test_retract_without_a_choice_is_refused(script: Run, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script("retract", "--ledger", path, "--reason", "all of it") == 2
    assert "--id" in capsys.readouterr().err


def test_check_tells_sound_from_damaged(script: Run, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script("check", "--ledger", path) == 0
    assert capsys.readouterr().out == "1 file, 0 problems\n"
    with path.open("ab") as file:
        file.write(b"nonsense\n")
    assert script("check", "--ledger", path) == 1
    assert f"{path}:6: " in capsys.readouterr().out


def test_a_ledger_that_is_not_there_is_one_sentence(
    script: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script("check", "--ledger", tmp_path / "none.jsonl") == 2
    assert capsys.readouterr().err == (
        f"ledger.py: --ledger: '{tmp_path / 'none.jsonl'}' is no file; name a ledger such as trials.jsonl\n"
    )


def evidence(tmp_path: Path, batch: str, trial: str, age_days: float) -> Path:
    folder = tmp_path / "state" / "evidence" / "m" / batch / trial
    folder.mkdir(parents=True)
    (folder / "stdout").write_text("private code", encoding="utf-8")
    then = time.time() - age_days * DAY
    for entry in (folder / "stdout", folder):
        os.utime(entry, (then, then))
    return folder


def test_clean_deletes_old_evidence_and_nothing_else(script: Run, path: Path, tmp_path: Path) -> None:
    old, young = evidence(tmp_path, "b1", "t1", 40), evidence(tmp_path, "b2", "t1", 20)
    before = path.read_bytes()
    outside = tmp_path / "precious"
    outside.mkdir()
    (old / "link").symlink_to(outside)
    os.utime(old, (1, 1))
    os.utime(old / "link", (1, 1), follow_symlinks=False)
    assert script("clean", "--dry-run") == 0
    assert old.exists()
    assert script("clean") == 0
    assert not old.parent.exists()
    assert young.exists()
    assert outside.exists()
    assert path.read_bytes() == before
    assert script("clean", "--days", "10") == 0
    assert not young.exists()


@pytest.mark.parametrize("days", ["9" * 400, "36501", "-1"])
def test_days_that_no_clock_can_count_back_are_refused(
    script: Run, capsys: pytest.CaptureFixture[str], days: str
) -> None:
    assert script("clean", "--days", days) == 2
    assert "is no number of days; give a whole number from 0 to 36500" in capsys.readouterr().err


def test_clean_waits_for_no_running_measurement(
    script: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = evidence(tmp_path, "b1", "t1", 40)
    with lock.machine_lock("agent/run.py", print):
        assert script("clean") == 3
    assert "agent/run.py" in capsys.readouterr().err
    assert old.exists()


def test_clean_with_nothing_there(script: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert script("clean", "--days", "1") == 0
    assert capsys.readouterr().out.startswith("deleted 0 folders of evidence older than 1 day in ")


def test_fields_are_the_tables_of_the_document(script: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert script("fields") == 0
    printed = {line for line in capsys.readouterr().out.splitlines() if line.startswith("| `")}
    assert printed <= set((SCRIPTS.parent / "docs" / "ledger.md").read_text(encoding="utf-8").splitlines())
    assert len(printed) > 100


def test_hardware_id_prints_one_word_and_the_same_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    main = load("hardware_id").main
    assert main([]) == main([]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second
    assert " " not in first
    assert main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == first
