"""Running the real programs as a person does, each test with a state folder, a lock and a ledger of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from benchmarks.lab import ledger
from benchmarks.lab.ledger import Row
from benchmarks.lab.rows import TrialRow

ROOT = Path(__file__).resolve().parents[2]
QUICK_TASK = "toolz-groupby"


@dataclass(frozen=True)
class Desk:
    """One person's corner: what run.py is given, and what it left."""

    folder: Path

    @property
    def results(self) -> Path:
        return self.folder / "trials.jsonl"

    @property
    def env(self) -> dict[str, str]:
        own = {"LOCAL_LAB_STATE": str(self.folder / "state"), "LOCAL_LAB_LOCK": str(self.folder / "lock")}
        return {**os.environ, **own, "COLUMNS": "120"}

    def start(self, *flags: str, program: str = "run.py", stderr: int = subprocess.STDOUT) -> subprocess.Popen[str]:
        argv = [sys.executable, str(ROOT / "benchmarks" / "agent" / program), *flags]
        return subprocess.Popen(
            argv, env=self.env, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=stderr, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, *flags: str, program: str = "run.py", timeout: float = 1700.0) -> tuple[int, str]:
        """Exit code and everything printed."""
        process = self.start(*flags, program=program)
        output, _ = process.communicate(timeout=timeout)
        return process.returncode, output

    def trial(self, *flags: str) -> tuple[int, str]:
        """`run` into this desk's ledger, one trial of the quick task unless the flags say otherwise."""
        usual = ["--results", str(self.results), "--trials", "1", "--skip-smoke"]
        usual += [] if "--task" in flags else ["--task", QUICK_TASK]
        usual += [] if "--client" in flags else ["--client", "stub"]
        return self.run(*usual, *flags)

    def rows(self, kind: str) -> list[Row]:
        return [row for row in ledger.read(self.results) if row.kind == kind]

    def trials(self) -> list[TrialRow]:
        return [ledger.trial(row) for row in self.rows("trial")]

    def processes(self) -> list[psutil.Process]:
        """Processes that carry this desk's state folder in their environment: run.py's own children, and boxes."""
        found = []
        mark = str(self.folder)
        for process in psutil.process_iter():
            try:
                if process.environ().get("LOCAL_LAB_STATE", "").startswith(mark) or mark in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return found


LabFile = Callable[[str], Path]


@pytest.fixture
def lab_file(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> LabFile:
    """Writes the lab file that this desk's programs read; its path."""

    def write(text: str) -> Path:
        path = desk.folder / "mine.yaml"
        path.write_text(text)
        monkeypatch.setenv("LAB_FILE", str(path))
        return path

    return write


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    own = Desk(tmp_path)
    yield own
    clear(own)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Desk, str]]:
    """A desk where one whole batch was run, with what it printed; several tests look at it."""
    own = Desk(tmp_path_factory.mktemp("done"))
    flags = ("--backend", "scripted", "--client", "stub", "--task", QUICK_TASK, "--trials", "1")
    code, output = own.run("--results", str(own.results), *flags)
    assert code == 0, output
    yield own, output
    clear(own)


def clear(own: Desk) -> None:
    for process in own.processes():
        process.send_signal(signal.SIGKILL)
    shutil.rmtree(own.folder / "state", ignore_errors=True)
