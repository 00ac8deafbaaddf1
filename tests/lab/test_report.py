"""What a report shows of rows, and what it refuses to say. Rows are built here; no ledger of the checkout is read."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.lab import ledger, series, stamp
from benchmarks.lab.errors import LabError
from benchmarks.lab.ledger import Row
from benchmarks.lab.report import blocks, figures, gather, pages, plain, tables, words
from benchmarks.lab.report.blocks import Table
from benchmarks.lab.rows import Selector

MACHINE = "linux-x86_64-test-16g-abcdef"
STAMP: dict[str, Any] = {
    "head": "abc123456",
    "dirty": False,
    "measurement_version": 1,
    "machine": MACHINE,
    "os": "Debian 12",
    "engine": "llama.cpp",
    "engine_version": "b11549",
    "model": "qwen-9b",
    "quantization": "Q4_K_M",
    "context": 32768,
    "sampler": {"temperature": 0.2},
    "purpose": "measure",
    "client_version": "1.18.4",
    "isolation": "bwrap",
    "prompt_digest": "aa" * 32,
    "task_digest": "bb" * 32,
}


COUNTS = (
    "total", "auxiliary", "duplicates", "errors", "partial", "cut_off", "tool_calls", "unparsed_calls",
    "textual_calls", "refused_after_end",
)  # fmt: skip
EXCHANGES = dict.fromkeys(COUNTS, 0)
NUMBERS = {"passed": 9, "failed": 0, "skipped": 0, "collected": 9, "required": 9, "seconds": 1.0}
JUDGED = {**NUMBERS, "green": True, "ended_by": "suite", "forged": False}


class Book:
    """Rows in the order they were written, a minute apart."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.clock = itertools.count()

    def add(self, kind: str, body: Mapping[str, Any], digest: str | None = None, machine: str = MACHINE) -> Row:
        number = next(self.clock)
        row = Row(
            v=1,
            kind=kind,
            id=f"row{number:05d}",
            at=f"2026-11-{1 + number // 1440:02d}T{number // 60 % 24:02d}:{number % 60:02d}:00.000+00:00",
            machine=machine,
            batch=None,
            stamp=digest,
            body=msgspec.to_builtins(body),
        )
        self.rows.append(row)
        return row

    def trial(self, verdict: str = "passed", *, stamped: Mapping[str, Any] | None = None, **body: Any) -> Row:
        purpose = body.get("purpose", "measure")
        values = stamp.assemble(
            STAMP,
            {"client": body.get("client", "opencode"), "purpose": purpose},
            stamped if stamped is not None else {},
        )
        digest = stamp.digest(values)
        if all(row.stamp != digest for row in self.rows):
            self.add("stamp", {"values": values}, digest)
        base = {
            "task": "boltons-slugify",
            "target": "boltons",
            "suite": "core-1",
            "tier": 1,
            "backend": "local",
            "client": "opencode",
            "purpose": "measure",
            "isolation": "bwrap",
            "trial": 1,
            "position": 1,
            "started": "2026-11-01T00:00:00+00:00",
            "verdict": verdict,
            "wall_seconds": 30.0,
            "attempt": 1,
            "locked": True,
            "volatile": {},
            "volatile_end": {},
            "evidence": "batch/trial",
        }
        filled = {"failed": {"cause": "wrong", "who": "model"}, "void": {"reason": "machine_slept"}, "passed": {}}[
            verdict
        ]
        return self.add("trial", {**base, **filled, **body}, digest)

    def trials(self, passed: int, failed: int = 0, void: int = 0, **body: Any) -> None:
        for verdict, number in (("passed", passed), ("failed", failed), ("void", void)):
            for _ in range(number):
                self.trial(verdict, **body)

    def dated(self, at: str) -> None:
        """Give the last row another time."""
        self.rows[-1] = msgspec.structs.replace(self.rows[-1], at=at)

    def evidence(self) -> gather.Gathered:
        return gather.gather(MACHINE, self.rows)

    def text(self) -> str:
        return blocks.markdown(tables.machine_blocks(self.evidence()))

    def page(self) -> str:
        return pages.machine_page(pages.About(label="box"), MACHINE, self.rows)


@pytest.fixture
def book() -> Book:
    return Book()


def shares(wall: float, prefill: float, unsplit: float = 0.0) -> dict[str, float]:
    return {
        "wall": wall,
        "startup": 1.0,
        "prefill": prefill,
        "decode": wall - prefill - unsplit - 1.0,
        "model_unsplit": unsplit,
        "client_and_tool": 0.0,
        "tail": 0.0,
    }


def only_section(book: Book) -> gather.Section:
    (section,) = book.evidence().sections
    return section


def all_tables(book: Book) -> list[Table]:
    return [block for block in tables.machine_blocks(book.evidence()) if isinstance(block, Table)]


# ---- rates and times ----


def test_an_entry_says_passed_of_counted_interval_median_wall_prefill_and_void(book: Book) -> None:
    for wall in (20.0, 30.0):
        book.trial(wall_seconds=wall, shares=shares(wall, wall / 2))
    book.trial("failed", wall_seconds=10.0, shares=shares(10.0, 5.0))
    book.trial("void", wall_seconds=900.0, shares=shares(900.0, 0.0))
    (entry,) = figures.figures(only_section(book)).entries
    assert tables.entry_text(entry).split("\n") == [
        "2/3 [21–94 %]",
        "wall 20 s (10–30)",
        "passed ones 25 s (20–30)",
        "prefill 50 %",
        "1 void",
    ]


def test_case_27_three_of_three_against_two_of_three_is_no_difference_measured(book: Book) -> None:
    book.trials(3, backend="a")
    book.trials(2, 1, backend="b")
    text = book.text()
    assert "A and B: no difference measured (3/3 against 2/3 on 1 task, adjusted p 1.00)." in text
    assert "equal" not in text
    assert "passes more often" not in text


def test_case_27_all_void_is_no_rate_and_no_zero(book: Book) -> None:
    book.trials(0, 0, 3)
    (entry,) = figures.figures(only_section(book)).entries
    assert (entry.n, entry.interval, entry.wall, entry.prefill_share) == (0, None, None, None)
    assert tables.entry_text(entry) == "0/0 –\n3 void"
    assert "machine_slept" in book.text()


def test_case_27_no_rows_and_one_row(book: Book) -> None:
    assert "No trial that counts is recorded." in book.text()
    book.trial()
    (entry,) = figures.figures(only_section(book)).entries
    assert tables.entry_text(entry) == "1/1 [21–100 %]\nwall 30 s\nprefill –"


def test_case_28_the_median_of_the_passed_stands_beside_one_that_fast_failures_pull_down(book: Book) -> None:
    book.trial(wall_seconds=300.0)
    book.trials(0, 2, wall_seconds=20.0)
    (entry,) = figures.figures(only_section(book)).entries
    assert "wall 20 s (20–300)\npassed ones 300 s" in tables.entry_text(entry)


def test_model_time_that_could_not_be_split_makes_the_prefill_share_a_lower_bound(book: Book) -> None:
    book.trial(shares=shares(30.0, 6.0, unsplit=10.0))
    (entry,) = figures.figures(only_section(book)).entries
    assert "prefill ≥ 20 %" in tables.entry_text(entry)


def test_a_large_difference_on_the_same_tasks_is_claimed_with_its_figures(book: Book) -> None:
    for task in ("t1", "t2", "t3", "t4"):
        book.trials(4, task=task, backend="a")
        book.trials(0, 4, task=task, backend="b")
    text = book.text()
    assert "A passes more often: A 16/16 against 0/16 on 4 tasks for B (adjusted p < 0.001)" in text


def test_a_sampler_that_one_client_sends_by_itself_is_a_difference_unless_the_meter_pins_it(book: Book) -> None:
    pinned = {"sampler": {"temperature": 0.2}, "sampler_pinned": {"temperature": 0.2}}
    for client, sent, stamped in (
        ("one", {}, {}),
        ("sends", {"temperature": 0.0}, {}),
        ("pinned", {"temperature": 0.0}, pinned),
    ):
        for _ in range(4):
            book.trial(client=client, stamped=stamped, exchanges={**EXCHANGES, "sampler": sent})
    one, pins, sends = (column.sampler for column in sorted(only_section(book).columns, key=lambda c: c.client))
    assert one == pins == {"temperature": 0.2}
    assert sends == {"temperature": 0.0}
    assert book.text().count("They also differ in sampler, which may hide one.") == 2


def test_a_difference_with_another_sampler_names_it(book: Book) -> None:
    book.trials(9, backend="a")
    book.trials(0, 9, backend="b", stamped={"sampler": {"temperature": 1.0}})
    assert "They also differ in sampler" in book.text()


def test_many_pairs_need_more_than_one_pair_does(book: Book) -> None:
    book.trials(5, backend="a")
    book.trials(1, 4, backend="b")
    alone = figures.figures(only_section(book)).comparisons
    for name in ("c", "d", "e", "f"):
        book.trials(3, 2, backend=name)
    crowd = figures.figures(only_section(book)).comparisons
    first = next(pair for pair in crowd if (pair.a, pair.b) == ("A", "B"))
    assert first.p == alone[0].p
    assert first.adjusted is not None
    assert alone[0].adjusted is not None
    assert first.adjusted > alone[0].adjusted


def test_many_pairs_without_a_difference_share_a_sentence(book: Book) -> None:
    for name in ("a", "b", "c", "d", "e"):
        book.trials(2, 1, backend=name)
    text = book.text()
    assert text.count("o difference measured") == 1
    assert "D and E (2/3 against 2/3)." in text


def test_cells_without_a_common_task_are_not_compared(book: Book) -> None:
    book.trials(3, backend="a", task="t1")
    book.trials(0, 3, backend="b", task="t2")
    text = book.text()
    assert "A and B: not compared, they share no task" in text
    assert "The cells have not run the same tasks" in text
    assert "not run" in text


@pytest.mark.parametrize(("n", "said"), [(3, True), (4, False)])
def test_three_trials_are_called_a_screening_run(book: Book, n: int, said: bool) -> None:
    book.trials(n)
    assert ("a screening run" in book.text()) is said


# ---- suites ----


def test_rates_stand_per_target_and_the_average_over_targets_is_named_macro(book: Book) -> None:
    book.trials(4, task="t1", target="boltons")
    book.trials(0, 1, task="t2", target="boltons")
    book.trials(1, 0, task="t3", target="toolz")
    found = figures.figures(only_section(book))
    assert {(t.target, t.k, t.n, t.rate) for t in found.targets} == {("boltons", 4, 5, 0.5), ("toolz", 1, 1, 1.0)}
    assert [average.rate for average in found.macro] == [0.75]
    (table,) = [t for t in all_tables(book) if "macro-average" in t.columns]
    assert table.rows == (("A: local × opencode", "4/5\n50 % –", "1/1\n100 % –", "75 %\nof 2 targets"),)


# ---- series, purposes, retractions ----


def test_case_30_rows_of_two_client_versions_stand_apart_and_the_key_is_named(book: Book) -> None:
    book.trials(2, stamped={"client_version": "1.0"})
    book.trials(0, 2, stamped={"client_version": "1.1"})
    sections = book.evidence().sections
    assert [(s.latest, [len(c.trials) for c in s.columns]) for s in sections] == [(True, [2]), (False, [2])]
    assert [e.k for s in sections for e in figures.figures(s).entries] == [0, 2]
    text = book.text()
    assert "Other series: measured cells" in text
    assert re.search(r"\| A and B: local × opencode \| client_version \| 1\.1 \| 1\.0 \|", text)


@pytest.mark.parametrize(
    "other",
    [{"isolation": "none"}, {"sampler": {"temperature": 0.8}}, {"sampler": None}, {"measurement_version": 2}],
    ids=str,
)
def test_case_30_isolation_sampler_and_unknown_values_are_never_pooled(book: Book, other: dict[str, Any]) -> None:
    book.trials(2)
    book.trials(2, stamped=other)
    assert [len(column.trials) for s in book.evidence().sections for column in s.columns] == [2, 2]


def test_cells_of_another_isolation_do_not_share_a_table(book: Book) -> None:
    book.trials(5, backend="a")
    book.trials(0, 5, backend="b", stamped={"isolation": "none"})
    assert len(book.evidence().sections) == 2
    assert "passes more often" not in book.text()


def test_a_task_with_another_definition_is_another_task(book: Book) -> None:
    book.trials(3)
    book.trials(0, 3, stamped={"task_digest": "cc" * 32})
    entries = figures.figures(only_section(book)).entries
    assert [(e.variant, e.k, e.n) for e in entries] == [("1", 3, 3), ("2", 0, 3)]
    text = book.text()
    assert "definition 2" in text
    assert "boltons-slugify of boltons has 2 definitions, not pooled: they differ in task_digest (" in text


def test_rates_of_a_target_are_of_the_newest_definition_of_each_task(book: Book) -> None:
    book.trials(3)
    book.trials(0, 2, 1, stamped={"task_digest": "cc" * 32})
    book.trials(0, 0, 1)
    section = only_section(book)
    assert [(t.k, t.n, t.void) for t in figures.figures(section).targets] == [(0, 2, 1)]
    assert [task.latest for task in section.tasks] == [False, True]
    assert "only the newest with a counted trial is in these rates" in book.text()


def test_cells_that_ran_other_definitions_of_a_task_have_not_run_the_same_tasks(book: Book) -> None:
    book.trials(3, backend="a")
    book.trials(3, backend="b", stamped={"task_digest": "cc" * 32})
    assert "The cells have not run the same tasks" in book.text()


def test_demo_and_harness_cells_are_marked_and_kept_out_of_comparisons(book: Book) -> None:
    book.trials(9, backend="real")
    book.trials(0, 9, backend="embedded", purpose="demo")
    book.trials(9, backend="scripted", purpose="harness")
    sections = book.evidence().sections
    assert [(s.kind, [c.backend for c in s.columns]) for s in sections] == [
        ("measured", ["real"]),
        ("unranked", ["embedded", "scripted"]),
    ]
    text = book.text()
    assert "× embedded × opencode<br>(demo)" in text
    assert "no ranking and no comparison" in text
    assert "adjusted p" not in text


def test_retracted_rows_are_in_no_figure_and_a_banner_says_why(book: Book) -> None:
    kept, wrong = book.trial(), book.trial("failed")
    book.add(
        "retraction",
        {"ids": [wrong.id], "count": 1, "reason": "The proxy cut replies.", "document": "docs/findings.md"},
    )
    (column,) = only_section(book).columns
    assert [trial.id for trial in column.trials] == [kept.id]
    text = book.text()
    assert "1 trial of this ledger, in no figure here" in text
    assert "The proxy cut replies. See docs/findings.md." in text


def test_a_retraction_taken_back_counts_again(book: Book) -> None:
    wrong = book.trial("failed")
    mistake = book.add("retraction", {"ids": [wrong.id], "count": 1, "reason": "thought so"})
    book.add("retraction", {"ids": [mistake.id], "count": 1, "reason": "it was right"})
    assert [trial.id for trial in only_section(book).trials] == [wrong.id]


OLD, NEW = {"client_version": "1.0"}, {"client_version": "1.1"}


def standing(book: Book) -> list[tuple[str, bool, str]]:
    """Kind of section, whether it is the latest, and client version of every column."""
    return [(s.kind, s.latest, str(c.values["client_version"])) for s in book.evidence().sections for c in s.columns]


def test_the_newest_series_is_found_by_instant_not_by_text(book: Book) -> None:
    book.trial(stamped=OLD)
    book.dated("2026-11-01T02:50:00.000+02:00")  # 00:50 in UTC
    book.trial(stamped=NEW)
    book.dated("2026-11-01T02:10:00.000+01:00")  # 01:10 in UTC
    assert standing(book) == [("measured", True, "1.1"), ("measured", False, "1.0")]


def test_a_newer_series_of_void_trials_does_not_push_the_counted_one_out_of_the_comparisons(book: Book) -> None:
    book.trials(9, backend="other")
    book.trials(0, 9, stamped=OLD)
    book.trials(0, 0, 1, stamped=NEW)
    assert ("measured", True, "1.0") in standing(book)
    assert ("measured", False, "1.1") in standing(book)
    assert "B passes more often" in book.text()


def test_where_nothing_counts_the_newest_void_series_is_the_latest(book: Book) -> None:
    book.trials(0, 0, 1, stamped=OLD)
    book.trials(0, 0, 1, stamped=NEW)
    assert standing(book) == [("measured", True, "1.1"), ("measured", False, "1.0")]


def test_a_later_demo_row_of_the_same_name_leaves_the_measured_cell_where_it_is(book: Book) -> None:
    book.trials(2)
    book.trials(1, purpose="demo")
    assert [(kind, latest) for kind, latest, _ in standing(book)] == [("measured", True), ("unranked", True)]


def test_cells_measured_beside_other_work_stand_apart_and_are_not_compared(book: Book) -> None:
    book.trials(9, backend="a")
    book.trials(0, 9, backend="b", locked=False)
    book.trials(9, backend="c", locked=False)
    book.trials(1, backend="a", locked=False)
    sections = book.evidence().sections
    assert [(s.locked, s.latest, [c.backend for c in s.columns]) for s in sections] == [
        (True, True, ["a"]),
        (False, True, ["a", "b", "c"]),
    ]
    text = book.text()
    assert "## Measured cells, beside other work (--no-lock)" in text
    assert "without the lock of the machine" in text
    assert "adjusted p" not in text


def test_the_same_task_id_in_two_targets_is_two_tasks(book: Book) -> None:
    for target, failed in (("boltons", 0), ("toolz", 4)):
        for backend in ("a", "b"):
            book.trials(4 - failed, failed, task="merge", target=target, backend=backend)
            book.add(
                "control",
                {"task": "merge", "target": target, "suite": "core-1", "control": "gold", "isolation": "bwrap"}
                | {"judge": JUDGED, "evidence": "controls/one"}
                | {"as_expected": not failed, "admissible": not failed, "why": "it flips" if failed else None},
            )
    text = book.text()
    assert re.search(r"\| merge<br>boltons \| 4/4 .*\| 4/4 ", text)
    assert re.search(r"\| merge<br>toolz \| 0/4 .*\| 0/4 ", text)
    assert "(2 tasks of suite core-1" in text
    (pair,) = figures.figures(only_section(book)).comparisons
    assert (pair.tasks, pair.k_a, pair.n_a) == (2, 4, 8)
    assert "| merge<br>boltons | 2/2 | 0/0 | yes |" in text
    assert "| merge<br>toolz | 0/2 | 0/0 | no: it flips |" in text


def test_rows_without_a_stamp_are_said_to_be_of_unknown_making(book: Book) -> None:
    lost = book.trial()
    book.rows = [row for row in book.rows if row.kind != "stamp"]
    assert book.evidence().unstamped == 1
    assert "1 trial carries no known stamp" in book.text()
    assert lost.id in {trial.id for trial in only_section(book).trials}


def test_rows_of_two_machines_in_one_ledger_are_not_pooled(book: Book) -> None:
    book.trials(2)
    foreign = book.trial("failed")
    book.rows[-1] = msgspec.structs.replace(foreign, machine="other")
    assert sum(len(s.trials) for s in book.evidence().sections) == 3, "gather takes what it is given"
    page = book.page()
    assert "Rows of another machine: other" in page
    assert "n = 2 counted" in page


def test_causes_are_counted_by_who_answers(book: Book) -> None:
    book.trials(0, 2)
    book.trials(0, 1, cause="client_error", who="client", flags=["client_rc"])
    found = figures.figures(only_section(book))
    assert [(t.what, t.who, t.count) for t in found.failures] == [("wrong", "model", 2), ("client_error", "client", 1)]
    assert [(t.what, t.count) for t in found.flags] == [("client_rc", 1)]


def test_controls_show_how_often_they_ended_as_they_must(book: Book) -> None:
    book.trial()
    for control, good in (("gold", True), ("gold", True), ("excised", True)):
        book.add(
            "control",
            {
                "task": "boltons-slugify",
                "target": "boltons",
                "suite": "core-1",
                "control": control,
                "as_expected": good,
                "admissible": True,
                "judge": JUDGED,
                "isolation": "bwrap",
                "evidence": "controls/one",
            },
        )
    assert "| boltons-slugify<br>boltons | 2/2 | 1/1 | yes |" in book.text()


def test_uncommitted_code_is_said(book: Book) -> None:
    book.trial(stamped={"dirty": True})
    text = book.text()
    assert "abc123456-dirty" in text
    assert "not for publication" in text


# ---- tables and pages ----


def full(book: Book) -> Book:
    for task, target in (("t1", "boltons"), ("t2", "toolz")):
        for backend, client in itertools.product(("a", "b", "c"), ("opencode", "codex")):
            book.trials(2, 1, 1, task=task, target=target, backend=backend, client=client, shares=shares(30.0, 12.0))
    book.trials(0, 3, backend="embedded", purpose="demo")
    return book


def test_every_table_says_what_it_is_of(book: Book) -> None:
    measured = [t for t in all_tables(full(book)) if t.title not in ("Keys that differ", "Runs whose answer is known")]
    assert len(measured) > 5
    for table in measured:
        assert re.search(r"\d+ tasks? of suite core-1", table.of), table.title
        assert re.search(r"n = \d+ counted, \d+ void", table.of), table.title
        assert "2026-11-" in table.of, table.title
        assert "opencode 1.18.4" in table.of, table.title
        assert "head abc123456" in table.of, table.title


def test_six_cells_make_two_tables_of_at_most_four(book: Book) -> None:
    found = [t for t in all_tables(full(book)) if t.title == "Per task"]
    assert [len(t.columns) - 1 for t in found] == [4, 2, 1]


def test_letters_name_each_cell_once_on_a_page(book: Book) -> None:
    letters = [column.letter for s in full(book).evidence().sections for column in s.columns]
    assert letters == list("ABCDEFG")


def test_the_same_rows_give_the_same_page_in_any_order(book: Book) -> None:
    page = full(book).page()
    assert page == book.page()
    book.rows.reverse()
    assert page == book.page()


def test_the_unknown_sign_is_explained_once_and_nothing_unknown_is_zero(book: Book) -> None:
    book.trial(stamped={"quantization": None, "context": None, "sampler": None}, wall_seconds=None)
    page = book.page()
    assert page.count(words.UNKNOWN_MEANS) == 1
    assert "context –" in page
    assert "wall –" in page
    assert "None" not in page


def test_markdown_tables_have_as_many_entries_in_each_row(book: Book) -> None:
    lines = full(book).page().splitlines()
    for above, below in itertools.pairwise(lines):
        if above.startswith("|") and below.startswith("|"):
            assert above.count("|") - above.count("\\|") == below.count("|") - below.count("\\|")


def test_the_terminal_gets_lines_that_fit_or_lists(book: Book) -> None:
    text = blocks.terminal(tables.machine_blocks(full(book).evidence()), 100)
    tables_only = [line for line in text.splitlines() if "─" in line]
    assert tables_only
    assert max(map(len, tables_only)) <= 100
    assert "<br>" not in text


def test_a_list_joins_what_belongs_together_and_no_path_is_cut() -> None:
    table = Table(title="Cells", of="", columns=("", "cell"), rows=(("A", f"{'m' * 70}\n× b × c\n(demo)\nx 1"),))
    assert f"    cell: {'m' * 70} × b × c (demo) · x 1" in blocks.terminal([table], 60)
    path = "/a-long-folder/of-some-person/with-a-name/trials.jsonl"
    assert f" {path} " in blocks.terminal([blocks.Paragraph(text=f"six trials of {path} here")], 60).replace("\n", " ")


def test_models_and_samplers_are_told_briefly() -> None:
    names = ("/home/me/models/tiny.Q4.gguf", "C:\\models\\tiny.Q4.gguf", "Qwen/Qwen3-Coder", None)
    assert [words.model(name) for name in names] == ["tiny.Q4.gguf", "tiny.Q4.gguf", "Qwen/Qwen3-Coder", "–"]
    sampler = {"dry_multiplier": 0.0, "min_p": 0.1, "temperature": 0.699999988079071, "top_p": 0.8}
    assert words.sampler(sampler, 40) == "temperature 0.7, top_p 0.8, min_p 0.1, …"
    assert words.sampler(None, 40) == "–"


def test_json_values_are_plain_and_unknown_is_null(book: Book) -> None:
    book.trials(0, 0, 1)
    evidence = book.evidence()
    found = plain.plain(evidence, [figures.figures(section) for section in evidence.sections])
    decoded = msgspec.json.decode(msgspec.json.encode(found))
    (entry,) = decoded["sections"][0]["entries"]
    assert (entry["n"], entry["void"], entry["interval"], entry["wall"]) == (0, 1, None, None)


def written(root: Path, machine: str, rows: Sequence[Row]) -> None:
    folder = root / "hardware" / machine
    folder.mkdir(parents=True)
    (folder / pages.TRIALS).write_bytes(b"".join(map(ledger.encode, rows)))
    (folder / "machine.yaml").write_text("label: box\nchip: Test CPU\nmemory_gib: 16\ncores: 2\n", encoding="utf-8")


def test_pages_are_made_of_the_ledgers_of_each_machine(book: Book, tmp_path: Path) -> None:
    book.trials(2, 1)
    written(tmp_path, MACHINE, book.rows)
    found = pages.results_files(tmp_path)
    assert set(found) == {tmp_path / "RESULTS.md", tmp_path / "hardware" / MACHINE / "RESULTS.md"}
    index = found[tmp_path / "RESULTS.md"]
    assert f"[box](hardware/{MACHINE}/RESULTS.md) | Test CPU | 16 GiB | 1 | 0 | 3 | 0 |" in index
    assert "%" not in index, "no rate stands where machines are beside each other"


def test_a_checkout_without_results_has_an_index_that_says_so(tmp_path: Path) -> None:
    (text,) = pages.results_files(tmp_path).values()
    assert "No machine has recorded a trial yet" in text


def test_case_17_a_broken_line_names_file_and_line(book: Book, tmp_path: Path) -> None:
    book.trials(1)
    written(tmp_path, MACHINE, book.rows)
    path = tmp_path / "hardware" / MACHINE / pages.TRIALS
    path.write_bytes(b'{"v":1,"kind":\n' + path.read_bytes())
    with pytest.raises(LabError, match=r"trials\.jsonl:1:"):
        pages.results_files(tmp_path)


GOOD_SHARES = shares(30.0, 12.0)


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("trial", {"wall_seconds": -5.0}, "`wall_seconds` is -5.0, which cannot be"),
        ("trial", {"shares": {**GOOD_SHARES, "prefill": -1.0}}, "`shares.prefill` is -1.0"),
        ("trial", {"shares": {**GOOD_SHARES, "prefill": 99.0}}, "`shares` add up to 117.0 s of a wall time of 30.0 s"),
        ("trial", {"tokens": {"output": -3}}, "`tokens.output` is -3"),
        ("control", {"task": "t"}, "is no control of this program's version"),
        ("control", {"task": 5}, "is no control of this program's version"),
        ("stamp", {"values": 5}, "is no stamp of this program's version"),
        ("stamp", {"values": "x"}, "is no stamp of this program's version"),
        ("stamp", {"values": []}, "is no stamp of this program's version"),
        ("stamp", {"values": None}, "is no stamp of this program's version"),
        ("stamp", {}, "is no stamp of this program's version"),
        ("retraction", {"ids": 5, "count": 1, "reason": "x"}, "is no retraction of this program's version"),
    ],
    ids=str,
)
def test_case_17_a_line_that_no_report_can_use_names_file_and_line(
    book: Book, tmp_path: Path, kind: str, body: dict[str, Any], words: str
) -> None:
    book.trial()
    if kind == "trial":
        book.trial(**body)
    else:
        book.add(kind, body, "ab" * 32)
    written(tmp_path, MACHINE, book.rows)
    with pytest.raises(LabError, match=r"trials\.jsonl:3: row row00002") as caught:
        pages.results_files(tmp_path)
    assert words in str(caught.value)


def test_an_impossible_row_that_is_retracted_stands_in_nobodys_way(book: Book, tmp_path: Path) -> None:
    wrong = book.trial(wall_seconds=-5.0)
    book.add("retraction", {"ids": [wrong.id], "count": 1, "reason": "a clock that went back"})
    written(tmp_path, MACHINE, book.rows)
    assert "a clock that went back" in pages.results_files(tmp_path)[tmp_path / "hardware" / MACHINE / pages.RESULTS]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"machine": "\0"}, "its `machine` '\\x00' is no id of a machine"),
        ({"machine": "../up"}, "is no id of a machine"),
        ({"at": "yesterday"}, "its time `at` 'yesterday' is no ISO 8601 time with an offset"),
        ({"at": "2026-11-01T00:00:00"}, "is no ISO 8601 time with an offset"),
    ],
)
def test_an_envelope_that_no_report_can_use_names_file_and_line(
    book: Book, tmp_path: Path, change: dict[str, str], words: str
) -> None:
    book.trial()
    book.rows[-1] = msgspec.structs.replace(book.rows[-1], **change)
    written(tmp_path, MACHINE, book.rows)
    with pytest.raises(LabError, match=r"trials\.jsonl:2: ") as caught:
        pages.results_files(tmp_path)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"label: box\nmemory_gib: abc\n", "`memory_gib`: Expected `float | null`, got `str`"),
        (b"label: box\nmemory_gib: .nan\n", "machine.yaml:2: a number here must be finite"),
        (b"cores: {a: b}\n", "`cores`: Expected `int | null`, got `object`"),
        (b"label: [\n", "machine.yaml:2: this is no YAML"),
        (b"label: \xff\n", "is not UTF-8 text"),
        (b"- a\n- b\n", "must hold settings with their values"),
        (b"a: " + b"[" * 3000, "is nested too deeply"),
    ],
    ids=[f"yaml-{number}" for number in range(7)],
)
def test_a_machine_yaml_that_cannot_be_understood_is_one_sentence(
    book: Book, tmp_path: Path, content: bytes, words: str
) -> None:
    book.trial()
    written(tmp_path, MACHINE, book.rows)
    (tmp_path / "hardware" / MACHINE / "machine.yaml").write_bytes(content)
    with pytest.raises(LabError, match=r"machine\.yaml") as caught:
        pages.stale(tmp_path)
    assert words in str(caught.value)


def test_a_page_that_is_no_text_or_no_file_is_stale(book: Book, tmp_path: Path) -> None:
    book.trial()
    written(tmp_path, MACHINE, book.rows)
    (tmp_path / "RESULTS.md").write_bytes(b"\xff\xfe")
    (tmp_path / "hardware" / MACHINE / "RESULTS.md").mkdir()
    assert len(pages.stale(tmp_path)) == 2


def test_the_series_named_on_a_page_is_the_one_a_selector_takes(book: Book) -> None:
    row = book.trial()
    (column,) = only_section(book).columns
    assert ledger.resolve(Selector(series=column.series), book.rows) == (row.id,)


def test_what_makes_a_cell_is_part_of_its_series() -> None:
    assert not gather.CELL_OWN - set(series.CELL_KEYS)
    assert {"isolation", "measurement_version", "machine", "os"} <= set(gather.SHARED)
