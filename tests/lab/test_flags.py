"""What a flag may not say is refused at the flag, in one sentence with its name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.lab import flags
from benchmarks.lab.errors import UsageError


def mistake(kind: object, given: str) -> str:
    parser = flags.Parser(prog="some.py")
    parser.add_argument("--flag", type=kind)  # type: ignore[arg-type]
    with pytest.raises(UsageError) as caught:
        parser.parse_args(["--flag", given])
    sentence = str(caught.value)
    assert sentence.startswith("--flag: ")
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize("kind", [flags.text, flags.ledger_to_read, flags.ledger_to_write])
def test_what_is_empty_or_no_text_is_refused(kind: object) -> None:
    assert "it is empty" in mistake(kind, "")
    assert "it is empty" in mistake(kind, "  ")
    assert "is no UTF-8 text" in mistake(kind, "/tmp/\udcff.jsonl")


def test_an_unknown_flag_gets_the_one_it_may_be_meant_for() -> None:
    parser = flags.Parser(prog="some.py", allow_abbrev=False)
    parser.add_argument("--backend")
    with pytest.raises(UsageError, match=r'^unrecognized arguments: --bakend=x \(did you mean "--backend"\?\)$'):
        parser.parse_args(["--bakend=x"])


@pytest.mark.parametrize("given", ["0", "-5", "11", "1.5", "²", "x", "", "9" * 5000])
def test_a_number_is_whole_and_within_its_limits(given: str) -> None:
    sentence = mistake(flags.whole(1, 10, "days"), given)
    assert "is no number of days; give a whole number from 1 to 10" in sentence
    assert len(sentence) < 150
    assert flags.whole(1, 10, "days")("10") == 10


def test_a_ledger_to_write_is_a_file_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "fifo")
    for name, words in (
        ("", "is a folder; name a file in it"),
        ("file/x/trials.jsonl", "file is no folder"),
        ("fifo", "is no plain file"),
        ("loop/trials.jsonl", "loop is no folder"),
        ("n" * 300, "cannot be a file"),
    ):
        assert words in mistake(flags.ledger_to_write, str(tmp_path / name)), name
    assert "is no plain file" in mistake(flags.ledger_to_write, "/dev/null")
    for name in ("file", "new.jsonl", "new/folder/trials.jsonl"):
        assert flags.ledger_to_write(str(tmp_path / name)) == tmp_path / name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "file", "loop"], "it only looks"


def test_a_ledger_to_read_is_there(tmp_path: Path) -> None:
    assert "is no file" in mistake(flags.ledger_to_read, str(tmp_path))
    assert "is no file" in mistake(flags.ledger_to_read, str(tmp_path / "none.jsonl"))
