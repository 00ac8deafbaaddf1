"""How a program ends: codes and sentences for errors, signals, and output that is not read or cannot be written."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.lab import program
from benchmarks.lab.errors import Refused, UsageError

HEAD = """
import contextlib, os, signal, sys, time
from benchmarks.lab import program
from benchmarks.lab.errors import UsageError
"""
MANY = "def work():\n    for _ in range(9_999): print('a line of words')\n    return 0\n"
LEAVE = "program.leave('some.py', lambda: program.answer('some.py', work))\n"


def start(work: str, redirection: str = "") -> subprocess.Popen[str]:
    """A program with this `work`, started by a shell with a redirection."""
    return subprocess.Popen(
        ("bash", "-c", f'exec "$@" {redirection}', "bash", sys.executable, "-c", HEAD + work + LEAVE),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def ended(work: str, redirection: str = "") -> tuple[int, str]:
    """Exit code and what stood on standard error."""
    process = start(work, redirection)
    _, error = process.communicate(timeout=60)
    return process.returncode, error


def test_what_a_program_meets_becomes_a_code_and_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    def raising(error: BaseException) -> int:
        def work() -> int:
            raise error

        return program.answer("some.py", work)

    assert program.answer("some.py", lambda: 7) == 7
    assert raising(UsageError("--flag: wrong")) == 2
    assert raising(Refused("not now")) == 3
    assert raising(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "some.py: --flag: wrong\nsome.py: not now\nsome.py: interrupted\n"


def test_a_reader_that_goes_away_ends_the_program_without_a_word() -> None:
    process = start(MANY)
    assert process.stdout is not None
    assert process.stdout.readline() == "a line of words\n"
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(60) == 141


@pytest.mark.parametrize("work", [MANY, "def work():\n    print('short')\n    return 0\n"], ids=["many", "short"])
def test_output_that_cannot_be_written_is_one_sentence(work: str) -> None:
    sentence = "some.py: standard output cannot be written (No space left on device); send it somewhere else\n"
    assert ended(work, ">/dev/full") == (3, sentence)


def test_a_closed_output_is_refused_before_any_work(tmp_path: Path) -> None:
    done = tmp_path / "done"
    work = f"def work():\n    open({str(done)!r}, 'w')\n    return 0\n"
    code, error = ended(work, ">&-")
    assert (code, error) == (3, "some.py: standard output is closed; open it, or send it to /dev/null\n")
    assert not done.exists()


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "<&-"])
def test_lost_errors_and_no_input_change_no_code_and_no_file(tmp_path: Path, redirection: str) -> None:
    book = tmp_path / "book"
    work = f"def work():\n    with open({str(book)!r}, 'w'):\n        os.write(2, b'noise'); raise UsageError('x')\n"
    work = work.replace("os.write(2, b'noise')", "contextlib.suppress(OSError).__enter__(); sys.stderr.write('noise')")
    assert ended(work, redirection)[0] == 2
    assert book.read_text() == ""


def test_a_program_whose_rows_matter_goes_on_and_tells_it_in_its_code() -> None:
    work = MANY.replace("for _", "with program.when_output_is_lost(lambda lost: None):\n     for _")
    work = work.replace("return 0", "sys.stderr.write('to the end'); return 0")
    process = start(work)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == "to the end"
    assert process.wait(60) == 141


def test_letters_that_the_encoding_lacks_are_escaped() -> None:
    code, error = ended("def work():\n    print('\\udcff \\u2013'); return 0\n")
    assert (code, error) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_asks_to_end_unwinds_as_ctrl_c_does(number: signal.Signals) -> None:
    process = start("def work():\n    try: print('here', flush=True); time.sleep(60)\n    finally: print('tidied')\n")
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.send_signal(number)
    output, error = process.communicate(timeout=60)
    assert (process.returncode, output, error) == (130, "tidied\n", "some.py: interrupted\n")


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    work = "def work():\n    os.kill(os.getpid(), signal.SIGHUP); return 0\n"
    ignoring = "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    assert ended(ignoring + work) == (0, "")


def test_a_terminal_that_is_closed_counts_as_a_reader_gone() -> None:
    work = "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + MANY.replace("for _", "sys.stdin.read(); \n    for _")
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        (sys.executable, "-c", HEAD + work + LEAVE),
        stdin=subprocess.PIPE,
        stdout=follower,
        stderr=subprocess.DEVNULL,
    )
    os.close(follower)
    os.close(leader)
    process.communicate(timeout=60)
    assert process.returncode == 141
