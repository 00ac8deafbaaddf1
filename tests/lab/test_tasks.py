"""Reading targets and tasks: what is right becomes records, what is wrong becomes one sentence with file and field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.lab.errors import UsageError
from benchmarks.lab.tasks import load_suite
from benchmarks.lab.text import count, listing, shorten, suggest

TARGET = """name: parcel
source: {kind: pypi, name: parcel, version: "1.0", sha256: %s}
language: python
license: MIT
imports: [parcel]
requires: [pytest==9.2.0]
suite: [-m, pytest, -q]
""" % ("a" * 64)
TASK = """id: parcel-postage
target: parcel
tier: 1
tags: [starter]
excise:
  - {path: parcel/rates.py, symbol: postage}
fail_to_pass: [tests/test_rates.py::test_postage]
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "targets").mkdir()
    (tmp_path / "core-1").mkdir()
    (tmp_path / "prompts").mkdir()
    (tmp_path / "targets/parcel.yaml").write_text(TARGET)
    (tmp_path / "core-1/parcel-postage.yaml").write_text(TASK)
    return tmp_path


def test_a_suite_is_read_with_the_targets_it_uses(root: Path) -> None:
    (root / "targets/unused.yaml").write_text(TARGET.replace("name: parcel\n", "name: unused\n", 1))
    suite = load_suite(root)
    assert list(suite.targets) == ["parcel"]
    assert suite.tasks["parcel-postage"].excise[0].symbol == "postage"
    assert suite.measured == {}


def test_the_digest_follows_the_content_and_not_the_measured_values(root: Path) -> None:
    before = load_suite(root).digest
    (root / "core-1/measured.json").write_text("{}")
    (root / "core-1/parcel-postage.yaml").write_text("# a comment\n" + TASK)
    assert load_suite(root).digest == before
    (root / "core-1/parcel-postage.yaml").write_text(TASK.replace("tier: 1", "tier: 2"))
    assert load_suite(root).digest != before


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("task", "excise:", "exise:", 'exise: there is no such field (did you mean "excise"?)'),
        ("task", "symbol:", "simbol:", 'excise[0].simbol: there is no such field (did you mean "symbol"?)'),
        ("task", "tier: 1", "tier: one", "tier: Expected `int`, got `str`"),
        ("task", "tier: 1", "tier: 7", "tier: Invalid enum value 7"),
        ("task", "tags: [starter]", "tags: starter", "tags: Expected `array`, got `str`"),
        ("task", "target: parcel", "target: parsel", 'there is no targets/parsel.yaml (did you mean "parcel"?)'),
        ("task", "id: parcel-postage", "id: other", 'id: it is "other" but the file is parcel-postage.yaml'),
        ("task", "parcel/rates.py", "../rates.py", 'excise[0].path: "../rates.py" must be a path inside the target'),
        ("task", "parcel/rates.py", "/etc/rates.py", "must be a path inside the target"),
        ("task", "tier: 1", "tier: 1\ntier: 2", "parcel-postage.yaml:4: `tier` stands here twice, first on line 3"),
        ("task", "[starter]", "[starter", "yaml:"),
        ("task", "[starter]", "[" * 3000, "is nested too deeply"),
        ("task", "tier: 1", "tier: 1" + "0" * 400, "a number here must be finite"),
        ("target", "imports: [parcel]", "imports: [parcel]\nsuite_seconds: .nan", "a number here must be finite"),
        ("task", "[tests/test_rates.py::test_postage]", "[]", "fail_to_pass: at least one is needed"),
        ("task", "tier: 1\n", "", "Object missing required field `tier`"),
        ("target", "kind: pypi", "kind: pipy", "source.kind: Invalid enum value 'pipy'"),
        ("target", "kind: pypi", "kind: git", "source.url: a source of kind git needs it"),
        ("target", "name: parcel, ", "", "source.name: a source of kind pypi needs it"),
        ("target", "kind: pypi,", "kind: pypi, commit: abc,", "source.commit: a source of kind pypi has no such field"),
        ("target", "a" * 64, "abc", 'source.sha256: "abc" is not 64 hex digits'),
        ("target", "pytest==9.2.0", "pytest>=9", 'requires[0]: "pytest>=9" is not an exact pin; write name==version'),
        ("target", "[-m, pytest, -q]", "[-m, unittest]", 'suite: it must begin with "-m", "pytest"'),
        ("target", "imports: [parcel]", "imports: []", "imports: at least one is needed"),
    ],
)
def test_a_mistake_is_one_sentence_with_file_and_field(root: Path, file: str, old: str, new: str, says: str) -> None:
    path = root / ("core-1/parcel-postage.yaml" if file == "task" else "targets/parcel.yaml")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(UsageError, match=re.escape(path.name)) as refusal:
        load_suite(root)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_an_empty_file_and_a_wrong_suite_name_are_told(root: Path) -> None:
    with pytest.raises(UsageError, match=r'no task suite "core-2" \(did you mean "core-1"\?\)'):
        load_suite(root, "core-2")
    (root / "core-1/parcel-postage.yaml").write_text("")
    with pytest.raises(UsageError, match="it must hold fields of a task"):
        load_suite(root)


def test_measured_values_that_cannot_be_read_say_how_to_write_them_anew(root: Path) -> None:
    (root / "core-1/measured.json").write_text('{"parcel-postage": {"gold_seconds": "fast"}}')
    with pytest.raises(UsageError, match=r"measured\.json: .*write it anew with scripts/admit\.py"):
        load_suite(root)


def test_suggestions_are_made_when_something_is_close() -> None:
    assert suggest("slugfy", ["slugify", "camel2under"]) == ' (did you mean "slugify"?)'
    assert suggest("Popitem", ["A.popitem"]) == ' (did you mean "A.popitem"?)'
    assert suggest("xyz", ["slugify"]) == ""
    assert suggest("x", []) == ""


def test_short_texts_for_people() -> None:
    assert listing("abcdefg") == "a, b, c, d, e and 2 more"
    assert (count(1, "test"), count(2, "test")) == ("1 test", "2 tests")
    assert shorten("abcdef", 4) == "abc…"
    assert shorten("abcd", 4) == "abcd"
