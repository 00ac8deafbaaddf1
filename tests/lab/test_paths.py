"""Folders that a person named by a variable: made, closed to others, or refused in a sentence that names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.lab import paths
from benchmarks.lab.errors import UsageError


def test_the_state_folder_is_made_and_closed_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_LAB_STATE", str(tmp_path / "a" / "b"))
    assert paths.state_dir() == tmp_path / "a" / "b"
    assert paths.state_dir().stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("/dev/null", "it is no folder, or lies in none"),
        ("/dev/null/below", "it is no folder, or lies in none"),
        ("/tmp", "it belongs to all users of this machine"),
        ("/", "it belongs to all users of this machine"),
        ("/tmp/\udcff", "its name is no UTF-8 text"),
        ("~no-such-user-here/x", "cannot be used"),
        ("/tmp/" + "n" * 300, "File name too long"),
    ],
)
def test_a_variable_that_names_no_folder_is_named(named: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Path("/tmp").stat().st_mode
    monkeypatch.setenv("LOCAL_LAB_STATE", named)
    with pytest.raises(UsageError, match="the variable LOCAL_LAB_STATE names") as caught:
        paths.state_dir()
    assert why in str(caught.value)
    assert Path("/tmp").stat().st_mode == before
