"""Series: what may be pooled, what keeps rows apart, and that unknown agrees only with unknown."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.lab import series, stamp

VALUES = stamp.assemble(
    {
        "machine": "m",
        "engine": "embedded",
        "context": 8192,
        "sampler": {"temperature": 0.8, "top_k": 40},
        "client": "codex",
        "client_version": "0.171.0",
        "isolation": "bwrap",
        "task_digest": "t1",
        "head": "abc",
    }
)
ROW: dict[str, Any] = {"locked": True}


def key(**changes: Any) -> series.Key:
    return series.key(ROW, {**VALUES, **changes})


@pytest.mark.parametrize("name", series.CELL_KEYS)
def test_case_30_a_difference_in_any_key_of_the_cell_starts_another_series(name: str) -> None:
    assert key(**{name: "another"}) != key()


@pytest.mark.parametrize("name", series.TASK_KEYS)
def test_keys_of_the_task_keep_trials_of_one_task_apart_but_not_the_cell(name: str) -> None:
    other = {**VALUES, name: "another"}
    assert series.key(ROW, other) == key()
    assert series.task_key(ROW, other) != series.task_key(ROW, VALUES)


@pytest.mark.parametrize("name", [name for name, one in stamp.KEYS.items() if one.series == "no"])
def test_informative_keys_start_no_series(name: str) -> None:
    other = {**VALUES, name: "another"}
    assert series.task_key(ROW, other) == series.task_key(ROW, VALUES)
    assert series.explain(VALUES, other) == ()


def test_unknown_and_known_are_different_and_unknown_is_not_zero_or_false() -> None:
    found = [key(speculative=value) for value in (None, False, 0, "null", "", True)]
    assert len(set(found)) == 6


def test_a_row_without_a_stamp_agrees_with_no_stamped_row() -> None:
    assert series.key(ROW, None) != series.key(ROW, dict.fromkeys(stamp.KEYS))


def test_order_of_names_and_the_form_of_a_number_make_no_difference() -> None:
    assert key(sampler={"top_k": 40.0, "temperature": 0.8}) == key()
    assert key(sampler={"top_k": 41, "temperature": 0.8}) != key()


def test_rows_measured_without_the_lock_are_apart() -> None:
    assert series.key({"locked": False}, VALUES) != series.key({"locked": True}, VALUES)


def test_explain_names_the_keys_that_differ_in_the_order_of_the_table() -> None:
    other = {**VALUES, "task_digest": "t2", "client_version": None, "context": 4096, "head": "def"}
    assert series.explain(VALUES, other) == ("context", "client_version", "task_digest")
    assert series.explain(VALUES, other, task=False) == ("context", "client_version")
    assert series.explain(VALUES, VALUES) == ()


def test_what_differs_in_nothing_is_one_series_and_the_other_way_round() -> None:
    for name in series.KEYS:
        other = {**VALUES, name: "another"}
        assert series.explain(VALUES, other) == (name,)


def test_a_series_has_a_short_name_that_follows_its_key() -> None:
    assert series.series_id(key()) == series.series_id(key())
    assert series.series_id(key()) != series.series_id(key(context=4096))
    assert len(series.series_id(key())) == series.ID_LENGTH


def test_code_commits_do_not_end_a_series_but_measurement_versions_do() -> None:
    assert key(code_digest="x", dirty=True) == key()
    assert key(measurement_version=2) != key(measurement_version=1)
