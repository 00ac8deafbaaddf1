"""YAML with its lines: where each value stands, and what is no value at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.lab import yamlfile
from benchmarks.lab.errors import UsageError


def read(folder: Path, text: str) -> yamlfile.At:
    (folder / "x.yaml").write_text(text, encoding="utf-8")
    return yamlfile.read(folder / "x.yaml")


def test_a_setting_stands_where_its_name_is(tmp_path: Path) -> None:
    found = read(tmp_path, "a: 1\nb:\n  - x\n  - y\n")
    assert yamlfile.plain(found) == {"a": 1, "b": ["x", "y"]}
    assert found.value["b"].where == f"{tmp_path}/x.yaml:2"
    assert found.value["b"].value[1].where == f"{tmp_path}/x.yaml:4"


def test_nothing_is_an_empty_mapping(tmp_path: Path) -> None:
    assert yamlfile.plain(read(tmp_path, "# nothing\n")) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a:\n  b: 1\n  c: 2\n  b: 3\n", "x.yaml:4: `b` stands here twice, first on line 2"),
        ("a: 1\nb: [2\n", "x.yaml:3: this is no YAML"),
        ("a: 1\nb: !!int hunter2\n", "x.yaml:2: this value is not understood"),
    ],
)
def test_a_mistake_names_its_own_line_and_no_value(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError) as refusal:
        read(tmp_path, text)
    assert words in str(refusal.value)
    assert "hunter2" not in str(refusal.value)
