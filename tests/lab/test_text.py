"""Digests stand in committed ledgers: one that comes out otherwise makes new series of old settings."""

from __future__ import annotations

from benchmarks.lab import machine, schedule, series, stamp
from benchmarks.lab.model import Budgets
from benchmarks.lab.schedule import Cell, Plan
from benchmarks.lab.text import digest_of, digest_of_json

PLAN = Plan(
    suite="s",
    suite_digest="d",
    tasks=("t",),
    cells=(Cell(backend="b", client="c"),),
    trials=2,
    order="interleaved",
    isolation="none",
    budgets={2: Budgets(), 1: Budgets(turns=3)},
    backends_digest="x",
    code_digest=None,
    smoke=True,
)


def test_a_digest_is_sha256_of_the_bytes_or_of_the_text_as_utf_8() -> None:
    assert digest_of(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, B.1
    assert digest_of("é") == digest_of("é".encode())


def test_what_rows_carry_is_what_it_was() -> None:
    values = {"b": 1, "a": None, "c": {"y": 1.5, "x": "é"}}
    assert stamp.digest(values) == "2c4c97c8f251e1de2e9b7c23c6caa3bd45bc08b8ba3a40a5e4413ca934500b43"
    assert series.series_id(("a", "é", "")) == "0e9c47b687"


def test_a_record_is_digested_in_the_order_of_its_fields_and_a_mapping_in_that_of_its_names() -> None:
    assert digest_of_json({"b": 1, "a": 2}) == digest_of_json({"a": 2, "b": 1}) == digest_of('{"a":2,"b":1}')
    assert digest_of_json(Cell(client="c", backend="b")) == digest_of('{"backend":"b","client":"c"}')


def test_a_plan_is_one_with_itself_over_versions_of_this_program() -> None:
    """An unfinished batch is continued by its plan's digest."""
    assert schedule.plan_digest(PLAN) == "e3094a154e3408a63d9969c246e206662c8cdb33fb1906bcd35600f1c029908f"


def test_a_machine_keeps_its_folder() -> None:
    found = machine.Facts(system="macos", arch="arm64", chip="Apple M5 Max", model="Mac17,7", memory_bytes=128 << 30)
    assert machine.hardware_id(found) == "macos-arm64-apple-m5-max-128g-5659cd"
