"""The ledger: no finished row is lost, no torn line is taken for data, nothing is edited, old lines are still read."""

from __future__ import annotations

import errno
import itertools
import json
import multiprocessing
import os
import re
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from benchmarks.lab import ledger, rows, series, stamp
from benchmarks.lab import trial as trials
from benchmarks.lab.errors import LabError, UsageError
from benchmarks.lab.fsio import DiskFull
from benchmarks.lab.ledger import Ledger, SlotKey
from benchmarks.lab.model import ClientReport, Record
from benchmarks.lab.rows import ClaimsRow, RetractionRow, Selector, TrialRow

ROOT = Path(__file__).resolve().parents[2]
MACHINE = "linux-x86_64-amd-epyc-24g-6b4564"


def a_trial(**changes: Any) -> TrialRow:
    given: dict[str, Any] = {
        "task": "cachetools-ttl",
        "target": "cachetools",
        "suite": "starter",
        "tier": 1,
        "backend": "embedded",
        "client": "codex",
        "purpose": "demo",
        "isolation": "bwrap",
        "trial": 1,
        "position": 1,
        "started": "2026-11-30T20:15:00+00:00",
        "verdict": "passed",
        "wall_seconds": 12.5,
        "attempt": 1,
        "locked": True,
        "volatile": {"load_1m": 0.5},
        "volatile_end": {"load_1m": 0.6},
        "evidence": "batch/trial",
    }
    return TrialRow(**{**given, **changes})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / MACHINE / "trials.jsonl"


@pytest.fixture
def book(path: Path) -> Ledger:
    return Ledger(path)


def put(book: Ledger, batch: str | None = "b1", stamped: str | None = None, **changes: Any) -> str:
    return book.append("trial", a_trial(**changes), machine=MACHINE, batch=batch, stamp=stamped)


def start(book: Ledger, batch: str, digest: str) -> None:
    body = {"program": "benchmarks/agent/run.py", "argv": [], "plan": {}, "plan_digest": digest, "slots": 3}
    book.append("batch_start", body, machine=MACHINE, batch=batch)


def end(book: Ledger, batch: str) -> None:
    book.append("batch_end", {"done": 3, "void": 0, "given_up": 0, "seconds": 9.0}, machine=MACHINE, batch=batch)


def ids(path: Path) -> list[str]:
    return [row.id for row in ledger.read(path)]


# ---- lines ----


def test_a_row_comes_back_as_it_was_written(book: Ledger, path: Path) -> None:
    name = put(book, trial=2, detail="naïve ☃\nsecond line")
    (row,) = ledger.read(path)
    assert (row.v, row.kind, row.id, row.machine, row.batch) == (1, "trial", name, MACHINE, "b1")
    assert ledger.trial(row) == a_trial(trial=2, detail="naïve ☃\nsecond line")
    assert path.read_bytes().count(b"\n") == 1


def test_case_16_each_row_is_on_disk_before_append_returns(book: Ledger, path: Path) -> None:
    for number in (1, 2, 3):
        put(book, trial=number)
        assert len(ids(path)) == number


def test_no_ledger_yet_is_no_rows(path: Path) -> None:
    assert list(ledger.read(path)) == []


def test_ids_are_unique_sort_by_time_and_survive_a_clock_that_jumps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [ledger.new_id() for _ in range(500)]
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    every = before + [ledger.new_id() for _ in range(500)]
    assert sorted(set(every)) == every
    assert {len(name) for name in every} == {26}


def test_unknown_kinds_are_kept(book: Ledger, path: Path) -> None:
    book.append("poem", {"lines": ["a", {"b": None}]}, machine=MACHINE)
    (row,) = ledger.read(path)
    assert (row.kind, row.body) == ("poem", {"lines": ["a", {"b": None}]})


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("trial", {"task": "x"}, "missing required field"),
        ("retraction", {"ids": [], "count": "none", "reason": "x"}, r"got `str` - at `\$.count`"),
        ("poem", {"id": "mine"}, "envelope's keys: id"),
    ],
)
def test_a_body_unfit_for_its_kind_is_not_written(
    book: Ledger, path: Path, kind: str, body: dict[str, Any], words: str
) -> None:
    with pytest.raises(LabError, match=words):
        book.append(kind, body, machine=MACHINE)
    assert not path.exists()


def test_what_a_newer_program_added_to_a_trial_does_not_stop_an_older_one(book: Ledger, path: Path) -> None:
    put(book)
    path.write_bytes(path.read_bytes().replace(b'"tier":1', b'"tier":1,"aura":"blue"'))
    (row,) = ledger.read(path)
    assert row.body["aura"] == "blue"
    assert ledger.trial(row) == a_trial()


# ---- torn lines and other damage ----


@pytest.mark.parametrize("kept", [1, 40, 200])
def test_case_17_a_torn_last_line_is_no_data_and_is_set_aside_by_the_next_writer(path: Path, kept: int) -> None:
    said: list[str] = []
    book = Ledger(path, said.append)
    first, _ = put(book, trial=1), put(book, trial=2)
    whole = path.read_bytes()
    torn = whole[: whole.index(b"\n") + 1 + kept]
    path.write_bytes(torn)
    assert ids(path) == [first]
    third = put(book, trial=3)
    assert ids(path) == [first, third]
    assert said == [f"{path}: its last line was torn ({kept} bytes); set aside in trials.jsonl.torn"]
    assert path.with_name("trials.jsonl.torn").read_bytes().strip() == torn[-kept:].strip()


def test_case_17_a_torn_only_line_leaves_a_ledger_that_can_be_used(book: Ledger, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"v":1,"kind":"tri')
    name = put(book)
    assert ids(path) == [name]


def test_case_17_a_whole_row_that_only_lacks_its_line_end_is_not_lost(book: Ledger, path: Path) -> None:
    first = put(book)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert ids(path) == [first]
    second = put(book, trial=2)
    assert ids(path) == [first, second]
    assert not list(path.parent.glob("*.torn*"))


def test_zeros_after_a_power_failure_are_no_data(book: Ledger, path: Path) -> None:
    first = put(book)
    with path.open("ab") as file:
        file.write(b"\0" * 5000)
    assert ids(path) == [first]
    second = put(book, trial=2)
    assert ids(path) == [first, second]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"<<<<<<< HEAD", "no JSON object"),
        (b"", "no JSON object"),
        (b"[1, 2]", "no JSON object"),
        (b"[" * 3000, "no JSON object"),
        (b"\xff\xfe", "no JSON object"),
        (b'{"kind": "trial"}', "no version"),
        (b'{"v": 1, "kind": "trial"}', "envelope"),
        (b'{"v": 2, "kind": "trial"}', "newer than this program"),
    ],
)
def test_an_unreadable_line_is_an_error_that_names_file_and_line(
    book: Ledger, path: Path, line: bytes, words: str
) -> None:
    put(book)
    with path.open("ab") as file:
        file.write(line + b"\n")
    put(book, trial=2)
    with pytest.raises(LabError, match=rf"{re.escape(str(path))}:2: .*{words}"):
        list(ledger.read(path))


def test_a_full_disk_is_one_sentence_and_leaves_the_file_as_it_was(
    book: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = put(book)
    before = path.read_bytes()
    real = os.write

    def half(descriptor: int, data: bytes) -> int:
        return real(descriptor, data[: len(data) // 2])

    def none(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for broken in (half, none):
        monkeypatch.setattr(os, "write", broken)
        with pytest.raises(DiskFull, match=r"trials\.jsonl.*No space left"):
            put(book, trial=2)
        assert path.read_bytes() == before
    monkeypatch.undo()
    second = put(book, trial=2)
    assert ids(path) == [first, second]


def write_with_room_for(path: Path, more: int) -> None:
    """Runs in a process of its own: a real short write, at the limit the kernel sets on this file's size."""
    size = path.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + more, size + more))
    try:
        put(Ledger(path), trial=2)
    except DiskFull:
        os._exit(7)


def test_a_row_that_does_not_fit_leaves_no_part_of_itself(book: Ledger, path: Path) -> None:
    first = put(book)
    before = path.read_bytes()
    process = multiprocessing.get_context("fork").Process(target=write_with_room_for, args=(path, 100))
    process.start()
    process.join()
    assert process.exitcode == 7
    assert path.read_bytes() == before
    assert ids(path) == [first]


def test_a_ledger_in_a_file_instead_of_a_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "hardware").write_text("", encoding="utf-8")
    with pytest.raises(LabError, match="could not be written, "):
        put(Ledger(tmp_path / "hardware" / "trials.jsonl"))


def write_many(path: Path, writer: int, times: int) -> None:
    for number in range(1, times + 1):
        put(Ledger(path), batch=f"writer-{writer}", trial=number, detail="x" * 3000)


def test_writers_at_the_same_time_lose_and_mix_nothing(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_many, args=(path, number, 25)) for number in range(4)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    found = list(ledger.read(path))
    assert len({row.id for row in found}) == len(found) == 100
    for number in range(4):
        assert [row.body["trial"] for row in found if row.batch == f"writer-{number}"] == list(range(1, 26))


def write_for_ever(path: Path, acknowledge: int) -> None:
    for number in itertools.count(1):
        name = Ledger(path).append("poem", {"number": number, "text": "x" * 20_000}, machine=MACHINE)
        os.write(acknowledge, name.encode() + b"\n")


def test_case_16_kill_9_while_writing_loses_no_row_that_was_acknowledged(path: Path) -> None:
    acknowledged: list[str] = []
    for turn in range(12):
        reading, writing = os.pipe()
        process = multiprocessing.get_context("fork").Process(target=write_for_ever, args=(path, writing))
        process.start()
        os.close(writing)
        with os.fdopen(reading, encoding="ascii") as pipe:
            acknowledged += [pipe.readline().strip() for _ in range(1 + turn % 3)]
            process.kill()
            acknowledged += [line.strip() for line in pipe if line.endswith("\n")]
        process.join()
    last = put(Ledger(path))
    found = ids(path)
    assert set(acknowledged) <= set(found)
    assert len(set(found)) == len(found)
    assert found[-1] == last


# ---- versions ----


def test_a_line_of_an_older_version_is_upgraded_in_memory_through_the_table(
    book: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(book)
    (new,) = ledger.read(path)
    old = {**json.loads(path.read_text(encoding="utf-8")), "v": 0}
    old["seconds"] = old.pop("wall_seconds")
    path.write_text(json.dumps(old) + "\n", encoding="utf-8")
    before = path.read_bytes()

    def seconds_became_wall_seconds(line: dict[str, Any]) -> dict[str, Any]:
        return {("wall_seconds" if name == "seconds" else name): value for name, value in line.items()}

    monkeypatch.setitem(ledger.UPGRADERS, 0, seconds_became_wall_seconds)
    (row,) = ledger.read(path)
    assert row.v == ledger.VERSION
    assert ledger.trial(row) == ledger.trial(new)
    assert path.read_bytes() == before


def test_a_line_too_old_for_the_table_is_an_error(book: Ledger, path: Path) -> None:
    put(book)
    path.write_bytes(path.read_bytes().replace(b'"v":1', b'"v":-1'))
    with pytest.raises(LabError, match="version -1, which cannot be read any more"):
        list(ledger.read(path))


# ---- stamps ----


def test_a_stamp_is_written_once_and_found_by_its_digest(book: Ledger, path: Path) -> None:
    one, other = stamp.assemble({"engine": "embedded"}), stamp.assemble({"engine": "ollama"})
    digests = [
        book.append_stamp(values, machine=MACHINE) for values in (one, other, dict(reversed(one.items())), other)
    ]
    assert digests[0] == digests[2] != digests[1] == digests[3]
    assert ledger.stamps(ledger.read(path)) == {digests[0]: one, digests[1]: other}
    assert len(ids(path)) == 2


def test_a_stamp_that_a_row_merely_mentions_is_still_written(book: Ledger, path: Path) -> None:
    values = stamp.assemble({})
    put(book, detail=stamp.digest(values), stamped=stamp.digest(values))
    book.append_stamp(values, machine=MACHINE)
    assert len(ledger.stamps(ledger.read(path))) == 1


# ---- retractions ----


def stamped_book(book: Ledger) -> dict[str, str]:
    """Three trials: codex 1.0, codex 1.1, claude 1.0, in this order."""
    found: dict[str, str] = {}
    for client, version in (("codex", "1.0"), ("codex", "1.1"), ("claude", "1.0")):
        values = stamp.assemble({"client": client, "client_version": version, "engine": "embedded"})
        digest = book.append_stamp(values, machine=MACHINE)
        found[f"{client} {version}"] = put(book, client=client, stamped=digest, trial=len(found) + 1)
    return found


def test_a_selector_means_the_rows_that_hold_all_its_conditions(book: Ledger, path: Path) -> None:
    by = stamped_book(book)
    every = list(ledger.read(path))

    def selected(**given: str) -> set[str]:
        return set(ledger.resolve(Selector(**given), every))

    assert selected(client="codex") == {by["codex 1.0"], by["codex 1.1"]}
    assert selected(client_version="1.0") == {by["codex 1.0"], by["claude 1.0"]}
    assert selected(client="codex", client_version="1.0") == {by["codex 1.0"]}
    assert selected(engine="embedded") == set(by.values())
    assert selected(engine_version="9") == set()
    assert selected(until="2026-01-01") == set()
    assert selected(since="2026-01-01") == set(by.values())


def test_a_selector_by_time_takes_the_start_and_leaves_the_end(book: Ledger, path: Path) -> None:
    put(book)
    (row,) = ledger.read(path)
    assert ledger.resolve(Selector(since=row.at), [row]) == (row.id,)
    assert ledger.resolve(Selector(until=row.at), [row]) == ()


def test_a_selector_by_series_takes_the_beginning_of_its_name(book: Ledger, path: Path) -> None:
    by = stamped_book(book)
    every = list(ledger.read(path))
    values = ledger.stamps(every)
    row = next(row for row in every if row.id == by["codex 1.1"])
    name = series.series_id(series.key(row.body, values[row.stamp or ""]))
    assert ledger.resolve(Selector(series=name[:6]), every) == (row.id,)


@pytest.mark.parametrize(
    ("selector", "words"),
    [(Selector(), "at least one condition"), (Selector(since="yesterday"), "--since 'yesterday' is no ISO 8601 time")],
)
def test_a_selector_that_says_nothing_sensible_is_refused(selector: Selector, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ledger.resolve(selector, [])


def retract(book: Ledger, **given: Any) -> str:
    body = ledger.retraction(ledger.read(book.path), reason="wrong sampler", document="docs/log.md", **given)
    return book.append("retraction", body, machine=MACHINE)


def test_a_retraction_marks_its_rows_and_edits_nothing(book: Ledger, path: Path) -> None:
    by = stamped_book(book)
    before = path.read_bytes()
    name = retract(book, selector=Selector(client="codex"), replaced_by="batch b2")
    assert path.read_bytes().startswith(before)
    marked = ledger.effective(ledger.read(path))
    assert {one.row.id for one in marked if not one.counts} == {by["codex 1.0"], by["codex 1.1"]}
    assert {one.retracted.id for one in marked if one.retracted} == {name}
    (row,) = [one.row for one in marked if one.row.kind == "retraction"]
    body = msgspec.convert(row.body, RetractionRow)
    assert (body.count, body.selector, body.replaced_by) == (2, Selector(client="codex"), "batch b2")


def test_rows_written_later_are_not_retracted_by_an_earlier_selector(book: Ledger, path: Path) -> None:
    stamped_book(book)
    retract(book, selector=Selector(client="codex"))
    later = put(book, trial=9)
    assert [one.counts for one in ledger.effective(ledger.read(path)) if one.row.id == later] == [True]


def test_retracting_a_retraction_undoes_it(book: Ledger, path: Path) -> None:
    name = put(book)
    first = retract(book, ids=(name,))
    second = retract(book, ids=(first,))
    assert all(one.counts for one in ledger.effective(ledger.read(path)) if one.row.kind == "trial")
    retract(book, ids=(second,))
    assert not any(one.counts for one in ledger.effective(ledger.read(path)) if one.row.kind == "trial")


def test_what_cannot_be_retracted_is_said(book: Ledger, path: Path) -> None:
    digest = book.append_stamp(stamp.assemble({}), machine=MACHINE)
    name = put(book, stamped=digest)
    (stamp_id,) = [row.id for row in ledger.read(path) if row.kind == "stamp"]
    for given, words in (
        ({"ids": ("nonsense",)}, "no row has the id nonsense"),
        ({"ids": (stamp_id,)}, "is a stamp"),
        ({"selector": Selector(client="aider")}, "nothing is selected"),
    ):
        with pytest.raises(UsageError, match=words):
            retract(book, **given)
    retract(book, ids=(name,))
    with pytest.raises(UsageError, match="nothing is selected"):
        retract(book, selector=Selector(client="codex"))


# ---- resuming ----


def slot(number: int) -> SlotKey:
    return SlotKey("cachetools-ttl", "embedded", "codex", number)


def test_case_16_an_interrupted_batch_goes_on_where_it_was(book: Ledger, path: Path) -> None:
    start(book, "b1", "plan")
    put(book, trial=1)
    put(book, trial=2, verdict="void", reason="interrupted")
    found = ledger.resume(ledger.read(path), "plan")
    assert found is not None
    assert (found.batch, found.results) == ("b1", ((slot(1), "passed"), (slot(2), "void")))


def test_a_finished_batch_is_not_continued(book: Ledger, path: Path) -> None:
    start(book, "b1", "plan")
    end(book, "b1")
    assert ledger.resume(ledger.read(path), "plan") is None


def test_only_the_newest_batch_of_a_plan_is_continued(book: Ledger, path: Path) -> None:
    start(book, "b1", "plan")  # abandoned
    start(book, "b2", "plan")
    end(book, "b2")
    assert ledger.resume(ledger.read(path), "plan") is None
    start(book, "b3", "plan")
    put(book, batch="b1", trial=1)
    assert ledger.resume(ledger.read(path), "plan") == ledger.Resume(batch="b3", results=())


def test_case_17_a_plan_that_changed_is_never_mixed_with_the_old_batch(book: Ledger, path: Path) -> None:
    start(book, "b1", "plan with the old task file")
    put(book)
    assert ledger.resume(ledger.read(path), "plan with the new task file") is None


def test_case_17_a_truncated_ledger_can_be_resumed(book: Ledger, path: Path) -> None:
    start(book, "b1", "plan")
    put(book, trial=1)
    put(book, trial=2)
    path.write_bytes(path.read_bytes()[:-30])
    found = ledger.resume(ledger.read(path), "plan")
    assert found is not None
    assert found.results == ((slot(1), "passed"),)


def test_case_17_two_results_for_one_slot_count_once_and_are_reported(book: Ledger, path: Path) -> None:
    start(book, "b1", "plan")
    first, second = put(book, verdict="failed", cause="wrong", who="model"), put(book)
    marked = {one.row.id: one for one in ledger.effective(ledger.read(path))}
    assert marked[first].counts
    assert marked[second].duplicate_of == first
    found = ledger.resume(ledger.read(path), "plan")
    assert found is not None
    assert found.results == ((slot(1), "failed"),)
    assert f"row {second} is a second result for the slot of row {first}" in ledger.check(path)[0]


def test_a_void_attempt_and_its_repetition_are_two_rows_of_one_slot(book: Ledger, path: Path) -> None:
    start(book, "b1", "plan")
    put(book, verdict="void", reason="machine_slept")
    put(book, attempt=2)
    assert all(one.counts for one in ledger.effective(ledger.read(path)))


def test_a_retracted_result_is_owed_again(book: Ledger, path: Path) -> None:
    start(book, "b1", "plan")
    retract(book, ids=(put(book),))
    found = ledger.resume(ledger.read(path), "plan")
    assert found is not None
    assert found.results == ()
    again = put(book)
    assert [one.counts for one in ledger.effective(ledger.read(path)) if one.row.id == again] == [True]


# ---- checking ----


def test_a_sound_ledger_has_no_problems(book: Ledger, path: Path) -> None:
    start(book, "b1", "plan")
    stamped_book(book)
    end(book, "b1")
    retract(book, selector=Selector(client="claude"))
    assert ledger.check(path) == []


def test_damage_is_found_line_by_line(book: Ledger, path: Path) -> None:
    start(book, "b1", "plan")
    digest = book.append_stamp(stamp.assemble({"engine": "embedded"}), machine=MACHINE)
    put(book, stamped=digest)
    put(book, stamped="0" * 64, trial=2)
    retraction = {"ids": ["gone"], "count": 1, "reason": "x"}
    book.append("retraction", retraction, machine=MACHINE)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b"embedded", b"ollama")
    lines[2] = lines[2].replace(b'"tier":1', b'"tier":"one"')
    path.write_bytes(b"".join([*lines, lines[0], b"nonsense\n", b'{"v":1']))
    problems = "\n".join(ledger.check(path))
    for words in (
        ":3: this is no row of kind trial",
        ":7: this line is no JSON object",
        ":8: torn last line",
        "1 id used more than once",
        "does not match its values",
        "1 stamp missing: 000000000000",
        "names rows that are not here: gone",
    ):
        assert words in problems


ODD: tuple[Any, ...] = (5, -5, 1e300, True, None, "", "x", "\x00", [], [1], {}, {"a": 1})


def test_case_17_no_value_in_any_field_is_a_traceback_or_read_as_what_it_is_not(book: Ledger, path: Path) -> None:
    start(book, "b1", "plan")
    stamped_book(book)
    retract(book, selector=Selector(client="claude"))
    end(book, "b1")
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        for changed in broken(json.loads(line)):
            path.write_bytes(b"".join([*lines[: number - 1], msgspec.json.encode(changed) + b"\n", *lines[number:]]))
            problems = ledger.check(path)
            if any(problem.startswith(f"{path}:{number}: ") for problem in problems):
                with pytest.raises(LabError, match=re.escape(f"{path}:{number}: ")):
                    list(ledger.read(path))
            else:
                rows = list(ledger.read(path))
                assert all(one.row in rows for one in ledger.effective(rows))
                assert ledger.resume(rows, "plan") is None or line is lines[0] or number == len(lines)
                assert set(ledger.resolve(Selector(client="codex"), rows)) <= {row.id for row in rows}


def broken(line: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The line with each field left out, and with each odd value in it."""
    for name in line:
        yield {key: value for key, value in line.items() if key != name}
        yield from ({**line, name: odd} for odd in ODD)


def test_a_line_that_a_merge_by_union_left_twice_counts_once(book: Ledger, path: Path) -> None:
    first = put(book, trial=1)
    void = put(book, trial=2, verdict="void", cause=None, reason="harness_error")
    path.write_bytes(path.read_bytes() * 2)
    marked = ledger.effective(ledger.read(path))
    assert [(one.row.id, one.counts, one.duplicate_of) for one in marked] == [
        (first, True, None), (void, True, None), (first, False, first), (void, False, void),
    ]  # fmt: skip


# ---- docs/ledger.md ----

Table = list[tuple[str, str, str, str]]


def documented() -> dict[str, Table]:
    """Heading -> rows of the table below it: name, type, unit, meaning."""
    found: dict[str, Table] = {}
    heading = ""
    for line in (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.strip("# `")
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("| `") else []
        if len(cells) >= 4:
            found.setdefault(heading, []).append((cells[0].strip("`"), cells[1], cells[2], cells[3]))
    return found


def in_code(record: type[Record]) -> Table:
    return [(one.name, one.type, one.unit, one.words) for one in rows.fields(record)]


def test_every_kind_and_each_of_its_fields_is_documented_as_the_code_has_it() -> None:
    docs = documented()
    for kind, record in rows.KINDS.items():
        assert docs.pop(kind) == in_code(record)
    for record in rows.nested():
        assert docs.pop(record.__name__) == in_code(record)
    for name, table in (("Keys of the stamp", stamp.KEYS), ("Volatile values", stamp.VOLATILE)):
        assert docs.pop(name) == [(key, stamp.TYPE_WORDS[one.type], one.unit, one.words) for key, one in table.items()]
    assert [name for name, *_ in docs.pop("Envelope")] == list(ledger.ENVELOPE)
    assert not docs, "documented, but not in the code"


def test_which_keys_make_a_series_is_documented_as_the_code_has_it() -> None:
    text = (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")
    marked = dict(re.findall(r"^\| `(\w+)` \|.*\| (cell|task|no) \|$", text, re.M))
    assert marked == {name: key.series for name, key in stamp.KEYS.items()}


def test_a_field_that_may_be_null_says_when_and_no_other_does() -> None:
    class Silent(Record, frozen=True, kw_only=True):
        told: Annotated[int | None, rows.said("count", "counted")]

    class Loud(Record, frozen=True, kw_only=True):
        told: Annotated[int, rows.said("count", "counted", "when nobody counts")]

    for record in (Silent, Loud):
        with pytest.raises(TypeError, match=rf"{record.__name__}\.told must say when it is null"):
            rows.fields(record)


def test_what_a_row_keeps_of_a_client_s_report_is_all_but_its_last_words() -> None:
    assert {*ClaimsRow.__struct_fields__, "final_message"} == set(ClientReport.__struct_fields__)
    report = ClientReport(turns=3, final_message="private", error="words")
    assert "private" not in repr(trials.claims(report))
    assert trials.claims(report) == ClaimsRow(turns=3, error="words")


@pytest.mark.parametrize("path", sorted((ROOT / "hardware").glob("*/trials.jsonl")), ids=lambda path: path.parent.name)
def test_the_ledgers_that_were_committed_can_be_read(path: Path) -> None:
    assert list(ledger.read(path))
    assert ledger.check(path) == []


def test_nested_records_of_other_rooms_are_described_whole() -> None:
    for record, described in rows.NESTED.items():
        assert tuple(described) == record.__struct_fields__


@pytest.mark.parametrize("path", ["/dev/zero", "fifo", "."])
def test_what_is_no_plain_file_is_refused_and_neither_waited_for_nor_read_for_ever(tmp_path: Path, path: str) -> None:
    place = tmp_path / path
    if path == "fifo":
        os.mkfifo(place)
    with pytest.raises(LabError, match="no plain file"):
        list(ledger.read(place))


def test_a_trial_without_the_keys_of_one_is_named_by_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    path.write_text(
        '{"v":1,"kind":"trial","id":"x","at":"2026-11-30T20:00:00+00:00","machine":"m","batch":"b","trial":"one"}\n'
    )
    with pytest.raises(LabError, match=r"trials\.jsonl:1: row x is no trial"):
        list(ledger.read(path))
