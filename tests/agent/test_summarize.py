"""The program: what it shows, which mistakes it names, and that the results pages here are what the ledgers give."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.agent import summarize
from benchmarks.lab import ledger, machine, stamp
from benchmarks.lab.ledger import Row
from benchmarks.lab.paths import checkout_root

HERE = "linux-x86_64-test-16g-abcdef"


def rows(verdicts: str, **body: Any) -> list[Row]:
    """A stamp and a trial row per letter: p(assed), f(ailed), v(oid)."""
    values = stamp.assemble({"machine": HERE, "head": "abc123456", "client": "codex", "purpose": "measure"})
    digest = stamp.digest(values)
    found = [row(0, "stamp", {"values": values}, digest)]
    outcome: Mapping[str, dict[str, Any]] = {
        "p": {"verdict": "passed"},
        "f": {"verdict": "failed", "cause": "no_edit", "who": "model"},
        "v": {"verdict": "void", "reason": "disk_full"},
    }
    base = {
        "task": "toolz-merge",
        "target": "toolz",
        "suite": "core-1",
        "tier": 1,
        "backend": "qwen",
        "client": "codex",
        "purpose": "measure",
        "isolation": "bwrap",
        "trial": 1,
        "position": 1,
        "started": "2026-11-01T00:00:00+00:00",
        "wall_seconds": 12.0,
        "attempt": 1,
        "locked": True,
        "volatile": {},
        "volatile_end": {},
        "evidence": "batch/trial",
    }
    return found + [
        row(number, "trial", {**base, **outcome[letter], **body}, digest) for number, letter in enumerate(verdicts, 1)
    ]


def row(number: int, kind: str, body: Mapping[str, Any], digest: str) -> Row:
    at = f"2026-11-01T00:00:{number:02d}.000+00:00"
    return Row(v=1, kind=kind, id=f"row{number:03d}", at=at, machine=HERE, stamp=digest, body=body)


def write(path: Path, found: list[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(ledger.encode, found)))
    return path


@pytest.fixture
def book(tmp_path: Path) -> Path:
    return write(tmp_path / "trials.jsonl", rows("ppfv"))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one machine's ledger, in place of ours."""
    monkeypatch.setattr(summarize, "checkout_root", lambda: tmp_path)
    write(tmp_path / "hardware" / HERE / "trials.jsonl", rows("ppfv"))
    (tmp_path / "hardware" / HERE / "machine.yaml").write_text("label: box\n", encoding="utf-8")
    return tmp_path


def test_a_ledger_is_shown_with_a_stamped_first_line(book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert summarize.main(["--results", str(book)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(stamp.prefix(stamp.code(), HERE)[:10])
    assert "2/3 [21–94 %]" in shown
    assert "1 void" in shown
    assert "no_edit" in shown


def test_json_has_the_same_figures_unrounded(book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert summarize.main(["--results", str(book), "--json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out)
    (entry,) = found["sections"][0]["entries"]
    assert (entry["k"], entry["n"], entry["void"], entry["wall"]["median"]) == (2, 3, 1, 12.0)
    assert entry["interval"]["low"] == pytest.approx(0.2077, abs=1e-4)
    assert entry["prefill_share"] is None


def test_markdown_is_markdown(book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert summarize.main(["--results", str(book), "--markdown"]) == 0
    assert "|---|" in capsys.readouterr().out


def test_filters_leave_what_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = rows("pp") + [msgspec.structs.replace(r, id="x" + r.id) for r in rows("ff", backend="other")[1:]]
    path = write(tmp_path / "trials.jsonl", both)
    assert summarize.main(["--results", str(path), "--backend", "other", "--json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out)
    assert [(e["k"], e["n"]) for section in found["sections"] for e in section["entries"]] == [(0, 2)]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--client", "codx"], 'did you mean "codex"'),
        (["--task", "nothing-like-it"], "there are toolz-merge"),
        (["--machine", "elsewhere"], "has no trial of"),
    ],
)
def test_a_name_that_is_not_there_is_a_sentence_and_exit_2(
    book: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    assert summarize.main(["--results", str(book), *flags]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert flags[0] in error
    assert error.count("\n") == 1


def test_a_missing_ledger_is_a_sentence_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert summarize.main(["--results", str(tmp_path / "no.jsonl")]) == 2
    assert "--results" in capsys.readouterr().err


def test_rows_of_two_machines_are_not_mixed_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixed = rows("pp")
    mixed[-1] = msgspec.structs.replace(mixed[-1], machine="other")
    path = write(tmp_path / "trials.jsonl", mixed)
    assert summarize.main(["--results", str(path)]) == 2
    assert "never pooled" in capsys.readouterr().err
    assert summarize.main(["--results", str(path), "--machine", "other", "--json"]) == 0
    assert '"n": 1' in capsys.readouterr().out


def test_case_17_a_line_in_the_middle_that_cannot_be_read_is_named(
    book: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = book.read_bytes().splitlines(keepends=True)
    book.write_bytes(b"".join([lines[0], b'{"v":1,\n', *lines[1:]]))
    assert summarize.main(["--results", str(book)]) == 3
    assert f"{book}:2:" in capsys.readouterr().err


def test_a_torn_last_line_is_told_and_left_out(book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book.write_bytes(book.read_bytes() + b'{"v":1,"kind":"tri')
    assert summarize.main(["--results", str(book), "--json"]) == 0
    told = capsys.readouterr()
    assert "torn" in told.err
    assert '"n": 3' in told.out


def test_this_machines_ledger_is_the_default_and_a_label_names_another(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert root.is_dir()
    assert summarize.main([]) == 2
    assert f"--machine shows one of {HERE}" in capsys.readouterr().err
    assert summarize.main(["--machine", "box", "--json"]) == 0
    found = machine.describe()
    monkeypatch.setattr(machine, "describe", lambda: msgspec.structs.replace(found, id=HERE))
    assert summarize.main([]) == 0
    assert "@box]" in capsys.readouterr().out


def test_pages_are_written_once_and_drift_is_seen(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert summarize.main(["--check"]) == 1
    assert summarize.main(["--write"]) == 0
    page = root / "hardware" / HERE / "RESULTS.md"
    assert "2/3 [21–94 %]" in page.read_text(encoding="utf-8")
    before = page.stat().st_mtime_ns
    assert summarize.main(["--write"]) == 0
    assert page.stat().st_mtime_ns == before
    assert summarize.main(["--check"]) == 0
    page.write_text(page.read_text(encoding="utf-8").replace("2/3", "3/3"), encoding="utf-8")
    capsys.readouterr()
    assert summarize.main(["--check"]) == 1
    assert f"hardware/{HERE}/RESULTS.md" in capsys.readouterr().out


def test_a_page_that_is_no_text_or_a_folder_is_told(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert summarize.main(["--write"]) == 0
    page = root / "hardware" / HERE / "RESULTS.md"
    page.write_bytes(b"\xff")
    assert summarize.main(["--check"]) == 1
    assert summarize.main(["--write"]) == 0
    page.unlink()
    page.mkdir()
    assert summarize.main(["--check"]) == 1
    capsys.readouterr()
    assert summarize.main(["--write"]) == 3
    assert capsys.readouterr().err == f"summarize.py: Cannot write {page}: Is a directory.\n"


@pytest.mark.parametrize("flag", ["--results", "--machine", "--task", "--client", "--backend"])
def test_a_flag_without_a_value_is_refused(root: Path, capsys: pytest.CaptureFixture[str], flag: str) -> None:
    assert root.is_dir()
    assert summarize.main([flag, "", "--write"]) == 2
    assert f"summarize.py: {flag}: it is empty" in capsys.readouterr().err


def test_a_machine_of_another_world_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = rows("p")
    found[-1] = msgspec.structs.replace(found[-1], machine="\0")
    path = write(tmp_path / "trials.jsonl", found)
    assert summarize.main(["--results", str(path)]) == 3
    assert f"{path}:2: row row001: its `machine`" in capsys.readouterr().err


def test_pages_take_no_selection(book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert summarize.main(["--write", "--results", str(book)]) == 2
    assert "--results: --write and --check take all ledgers" in capsys.readouterr().err


def test_the_results_pages_of_this_checkout_are_what_its_ledgers_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert summarize.main(["--check"]) == 0, capsys.readouterr().out


def test_help_comes_without_loading_numbers(tmp_path: Path) -> None:
    program = checkout_root() / "benchmarks" / "agent" / "summarize.py"
    code = (
        "import sys, runpy\nsys.argv = ['summarize.py', '--help']\n"
        f"try:\n    runpy.run_path({str(program)!r}, run_name='__main__')\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('scipy', 'numpy', 'pandas', 'rich', 'psutil') if m in sys.modules])"
    )
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "--results" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
