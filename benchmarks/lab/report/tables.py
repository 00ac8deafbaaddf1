"""From gathered rows and their figures to the blocks of a report: which tables there are and what they say.

Words here never claim more than `figures` decided: a table ranks nothing, and "no difference measured" is not "equal".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from benchmarks.lab import series
from benchmarks.lab.report import words
from benchmarks.lab.report.blocks import Block, Bullets, Heading, Paragraph, Table
from benchmarks.lab.report.figures import CLAIM, Comparison, Entry, Figures, Tally, figures
from benchmarks.lab.report.gather import Column, Gathered, Section, Trial
from benchmarks.lab.text import count, listing, shorten

MATRIX_WIDTH = 4  # columns of cells in one per-task table; more cells make more tables
PAIRS_APART = 6  # pairs without a difference that get a sentence each

WHO_SAYS = {
    "measured": "Cells are listed by name: their order ranks nothing.",
    "unranked": (
        "These backends are marked `demo` or `harness`: they show that the harness works on this machine. "
        "They are in no ranking and no comparison."
    ),
}


def machine_blocks(gathered: Gathered, computed: Sequence[Figures] | None = None) -> list[Block]:
    """Everything about one machine's agent trials, without the page's own heading."""
    blocks: list[Block] = [*_banners(gathered)]
    if not gathered.sections:
        return [*blocks, Paragraph(text="No trial that counts is recorded."), *_controls(gathered)]
    found = computed or [figures(section) for section in gathered.sections]
    for section, numbers in zip(gathered.sections, found, strict=True):
        blocks += section_blocks(section, numbers)
    return [*blocks, *_replaced(gathered), *_controls(gathered)]


def section_blocks(section: Section, found: Figures) -> list[Block]:
    """One section: its cells, the per-task tables, target rates, comparisons, causes."""
    return [
        Heading(level=2, text=_title(section)),
        Paragraph(text=_intro(section, found)),
        _cells(section),
        *_matrices(section, found),
        _targets(section, found),
        *_pairs(found),
        *_causes(section, found),
    ]


def _title(section: Section) -> str:
    kind = "Measured cells" if section.kind == "measured" else "Demo and harness cells"
    beside = "" if section.locked else ", beside other work (--no-lock)"
    return f"{kind}{beside}" if section.latest else f"Other series: {kind.lower()}{beside}"


def _intro(section: Section, found: Figures) -> str:
    said = [WHO_SAYS[section.kind]]
    if not section.locked:
        said.append(
            "These trials ran without the lock of the machine, beside work that nothing here describes: they share no "
            "table with locked ones and are in no comparison."
        )
    if not section.latest:
        said.append(
            "The series of these cells that count stand above, for each cell the newest with a counted trial; rows are "
            "not pooled across series."
        )
    if found.screening:
        which = "All cells" if len(found.screening) == len(section.columns) else listing(found.screening, 26)
        said.append(
            f"{which}: at most three counted trials of each task, a screening run: it shows what to measure and "
            "decides little."
        )
    shared = {name: words.known(section.shared[name]) for name in ("isolation", "measurement_version", "os")}
    facts = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shared.items())
    return " ".join((*said, f"Common to all cells of this section: {facts}."))


# ---- what the tables are of ----


def _of(trials: Sequence[Trial]) -> str:
    """Tasks, n, dates, versions, head."""
    counted = sum(trial.counted for trial in trials)
    return ", ".join((
        f"{count(len({t.task for t in trials}), 'task')} of {_suites(trials)}",
        f"n = {counted} counted, {len(trials) - counted} void",
        words.days(t.at for t in trials),
        *_versions(trials),
        f"head {listing(sorted({_head(t.values) for t in trials}), 3)}",
    ))  # fmt: skip


def _suites(trials: Sequence[Trial]) -> str:
    return f"suite {listing(sorted({trial.row.suite for trial in trials}))}"


def _versions(trials: Sequence[Trial]) -> list[str]:
    pairs = {
        f"{trial.values.get(what) or mark} {words.known(trial.values.get(f'{what}_version'))}"
        for trial in trials
        for what, mark in (("client", trial.row.client), ("engine", "engine"))
    }
    return [listing(sorted(pairs), 8)]


def _head(values: Mapping[str, object]) -> str:
    return words.short(values.get("head")) + ("-dirty" if values.get("dirty") else "")


# ---- tables ----


def _cells(section: Section) -> Table:
    dirty = sum(bool(trial.values.get("dirty")) for trial in section.trials)
    notes = (f"{count(dirty, 'trial')} ran uncommitted code (-dirty): a guide, not for publication.",) if dirty else ()
    return Table(
        title="Cells",
        of=_of(section.trials),
        columns=("", "machine × backend × client", "model, engine, client", "settings", "trials"),
        rows=tuple(_cell(column) for column in section.columns),
        notes=notes,
    )


def _cell(column: Column) -> tuple[str, ...]:
    values = {name: words.known(value) for name, value in column.values.items()}
    told = {name: values.get(name, words.UNKNOWN) for name in _CELL_KEYS}
    model, sampler = words.model(column.values.get("model")), words.sampler(column.sampler, 40)
    void = sum(not trial.counted for trial in column.trials)
    return (
        column.letter,
        f"{column.trials[-1].machine}\n× {column.name}"
        + ("" if column.purpose == "measure" else f"\n({column.purpose})"),
        f"{model}, {told['quantization']}\n{told['engine']} {told['engine_version']}\n"
        f"{column.client} {told['client_version']}",
        f"context {told['context']}\nsampler {sampler}\noutput cap {told['max_tokens']}",
        f"{len(column.trials) - void} counted, {void} void\n{words.days(t.at for t in column.trials)}\n"
        f"series {column.series}\nhead {listing(sorted({_head(trial.values) for trial in column.trials}), 2)}",
    )


_CELL_KEYS = (
    "quantization", "engine", "engine_version", "client_version", "context", "max_tokens"
)  # fmt: skip


def _matrices(section: Section, found: Figures) -> list[Block]:
    parts = [section.columns[at : at + MATRIX_WIDTH] for at in range(0, len(section.columns), MATRIX_WIDTH)]
    return [_matrix(section, part, found.entries) for part in parts]


def _matrix(section: Section, columns: Sequence[Column], entries: Sequence[Entry]) -> Table:
    by_place = {(e.place, e.column): e for e in entries}
    rows = tuple(
        (
            f"{task.task}\n{task.target}" + (f"\ndefinition {task.variant}" if task.variant else ""),
            *(entry_text(by_place[task.place, column.letter]) for column in columns),
        )
        for task in section.tasks
    )
    return Table(
        title="Per task",
        of=_of([trial for column in columns for trial in column.trials]),
        columns=("task", *(f"{column.letter}: {column.name}" for column in columns)),
        rows=rows,
        notes=(
            "Passed/counted trials with Wilson's 95 % interval; median wall time (fastest–slowest), from 6 trials on "
            "with its 95 % interval in brackets; share of wall time in which prompts were read (prefill).",
            *_variants(section),
        ),
    )


def _variants(section: Section) -> list[str]:
    """Which keys make several definitions of one task."""
    told = []
    for target, name in sorted({(task.target, task.task) for task in section.tasks if task.variant}):
        keys = [task.key for task in section.tasks if (task.target, task.task) == (target, name)]
        differ = [
            key for key, values in zip(series.TASK_KEYS, zip(*keys, strict=True), strict=True) if len(set(values)) > 1
        ]
        what = listing([f"{key} ({series.MEANINGS[key]})" for key in differ])
        told.append(f"{name} of {target} has {len(keys)} definitions, not pooled: they differ in {what}.")
    return told


def entry_text(entry: Entry) -> str:
    """One entry of the per-task table, a line per figure."""
    if not entry.n and not entry.void:
        return "not run"
    void = (f"{entry.void} void",) if entry.void else ()
    if not entry.n:
        return "\n".join((f"0/0 {words.UNKNOWN}", *void))
    mixed = 0 < entry.k < entry.n and entry.wall_passed is not None
    at_least = "≥ " if entry.prefill_is_least and entry.prefill_share is not None else ""
    return "\n".join((
        words.rate(entry.k, entry.n, entry.interval),
        f"wall {words.median_wall(entry.wall)}",
        *((f"passed ones {words.median_wall(entry.wall_passed)}",) if mixed else ()),
        f"prefill {at_least}{words.share(entry.prefill_share)}",
        *void,
    ))  # fmt: skip


def _targets(section: Section, found: Figures) -> Table:
    targets = sorted({rate.target for rate in found.targets})
    rates = {(rate.column, rate.target): rate for rate in found.targets}
    macro = {average.column: average for average in found.macro}

    def line(column: Column) -> tuple[str, ...]:
        entries = []
        for target in targets:
            rate = rates.get((column.letter, target))
            if rate is None or not rate.n:
                entries.append("not run" if rate is None else f"0/0 {words.UNKNOWN}\n{rate.void} void")
                continue
            interval = words.percent_interval(rate.interval) or words.UNKNOWN
            void = f"\n{rate.void} void" if rate.void else ""
            entries.append(f"{rate.k}/{rate.n}\n{words.share(rate.rate)} {interval}{void}")
        average = macro[column.letter]
        return (
            f"{column.letter}: {column.name}",
            *entries,
            f"{words.share(average.rate)}\nof {count(average.targets, 'target')}",
        )

    return Table(
        title="Per target, and the macro-average over targets",
        of=_of(section.trials),
        columns=("cell", *targets, "macro-average"),
        rows=tuple(line(column) for column in section.columns),
        notes=(
            "A target's percentage is the mean over its tasks; the macro-average is the mean over targets. An interval "
            "resamples whole tasks and needs 8 that did not all end alike.",
            *_older_definitions(section),
            *_unlike_tasks(section, found),
        ),
    )


def _older_definitions(section: Section) -> tuple[str, ...]:
    if len(section.current) == len(section.tasks):
        return ()
    return ("Of a task with several definitions only the newest with a counted trial is in these rates.",)


def _unlike_tasks(section: Section, found: Figures) -> tuple[str, ...]:
    run = {
        column.letter: section.current & {e.place for e in found.entries if e.column == column.letter and e.n}
        for column in section.columns
    }
    if len(set(run.values())) <= 1:
        return ()
    return ("The cells have not run the same tasks: their rates do not compare; the tables per task do.",)


def _pairs(found: Figures) -> list[Block]:
    if not found.comparisons:
        return []
    how = (
        "Between cells, pass rates on the tasks both ran (exact test within tasks, Holm-adjusted over "
        f"{count(len(found.comparisons), 'pair')}; a claim needs p ≤ {CLAIM}):"
    )
    return [Paragraph(text=how), Bullets(items=tuple(_sentences(found.comparisons)))]


def _sentences(pairs: Sequence[Comparison]) -> list[str]:
    """One sentence for each pair; of many pairs, those without a difference share one."""
    silent = [pair for pair in pairs if pair.tasks and pair.more is None]
    if len(silent) <= PAIRS_APART:
        return [comparison_text(pair) for pair in pairs]
    told = [comparison_text(pair) for pair in pairs if pair not in silent]
    between = "; ".join(
        f"{p.a} and {p.b} ({p.k_a}/{p.n_a} against {p.k_b}/{p.n_b}"
        f"{f', unlike in {listing(p.differ)}' if p.differ else ''})"
        for p in silent
    )
    return [*told, f"No difference measured between {between}."]


def comparison_text(pair: Comparison) -> str:
    """What the data say of two cells' pass rates, in one sentence."""
    if not pair.tasks:
        return f"{pair.a} and {pair.b}: not compared, they share no task with a counted trial."
    seen = f"{pair.k_a}/{pair.n_a} against {pair.k_b}/{pair.n_b} on {count(pair.tasks, 'task')}"
    may = "hide one" if pair.more is None else "be the cause"
    unlike = f" They also differ in {listing(pair.differ)}, which may {may}." if pair.differ else ""
    if pair.p is None:
        return f"{pair.a} and {pair.b}: no difference measured ({seen}; in each task every trial ended alike).{unlike}"
    p = f"adjusted p {words.p_value(pair.adjusted)}"
    if pair.more is None:
        return f"{pair.a} and {pair.b}: no difference measured ({seen}, {p}).{unlike}"
    return f"{pair.more} passes more often: {pair.a} {seen} for {pair.b} ({p}).{unlike}"


def _causes(section: Section, found: Figures) -> list[Block]:
    of = _of(section.trials)
    tables = [
        Table(
            title="Why trials failed",
            of=of,
            columns=("cell", "cause", "who answers", "trials"),
            rows=tuple((*_said(section, t), words.known(t.who), str(t.count)) for t in found.failures),
        ),
        Table(
            title="Void trials: they measured something else and are in no rate",
            of=of,
            columns=("cell", "reason", "trials"),
            rows=tuple((*_said(section, t), str(t.count)) for t in found.voids),
        ),
        Table(
            title="Flags beside the verdicts",
            of=of,
            columns=("cell", "flag", "trials"),
            rows=tuple((*_said(section, t), str(t.count)) for t in found.flags),
        ),
    ]
    return [table for table in tables if table.rows]


def _said(section: Section, tally: Tally) -> tuple[str, str]:
    name = next(column.name for column in section.columns if column.letter == tally.column)
    return f"{tally.column}: {name}", tally.what


# ---- across sections ----


def _banners(gathered: Gathered) -> Iterable[Block]:
    for gone in gathered.retracted:
        told = [f"**Retracted on {gone.at[:10]}: {count(gone.hit, 'trial')} of this ledger, in no figure here.**"]
        told.append(gone.row.reason)
        if gone.row.document:
            told.append(f"See {gone.row.document}.")
        if gone.row.replaced_by:
            told.append(f"Replaced by {gone.row.replaced_by}.")
        yield Paragraph(text=" ".join(told))
    if gathered.duplicates:
        yield Paragraph(text=f"{count(gathered.duplicates, 'row')} repeated a slot that had its result: not counted.")
    if gathered.unstamped:
        told_of = f"{count(gathered.unstamped, 'trial')} carries no known stamp"
        yield Paragraph(text=f"{told_of}: what produced it is not known, so it is pooled with nothing that is stamped.")


def _replaced(gathered: Gathered) -> list[Block]:
    """Where one cell has several series: which keys keep them apart, with both values."""
    by_cell: dict[tuple[str, str], list[Column]] = {}
    for column in (column for section in gathered.sections for column in section.columns):
        by_cell.setdefault((column.backend, column.client), []).append(column)
    rows = [
        (
            f"{new.letter} and {old.letter}: {new.name}",
            name,
            words.known(_value(new, name)),
            words.known(_value(old, name)),
        )
        for columns in by_cell.values()
        for new, old in pairwise(columns)
        for name in (*series.explain(new.values, old.values, task=False), *_row_keys(new, old))
    ]
    if not rows:
        return []
    return [
        Heading(level=2, text="What keeps the series of one cell apart"),
        Table(
            title="Keys that differ",
            of=f"{count(len(by_cell), 'cell')}; rows are pooled only where every key of a series agrees",
            columns=("series", "key", "first", "second"),
            rows=tuple(tuple(shorten(part, 80) for part in row) for row in rows),
        ),
    ]


def _row_keys(new: Column, old: Column) -> tuple[str, ...]:
    return tuple(name for name in series.ROW_KEYS if _value(new, name) != _value(old, name))


def _value(column: Column, name: str) -> object:
    return getattr(column.trials[-1].row, name) if name in series.ROW_KEYS else column.values.get(name)


def _controls(gathered: Gathered) -> list[Block]:
    if not gathered.controls:
        return []
    rows = []
    for target, task in sorted({(control.target, control.task) for control in gathered.controls}):
        mine = [control for control in gathered.controls if (control.target, control.task) == (target, task)]
        why = next((control.why for control in reversed(mine) if not control.admissible), None)
        by_kind = {kind: [c.as_expected for c in mine if c.control == kind] for kind in ("gold", "excised")}
        told = [f"{sum(by_kind[kind])}/{len(by_kind[kind])}" for kind in ("gold", "excised")]
        rows.append((f"{task}\n{target}", *told, "yes" if mine[-1].admissible else f"no: {words.known(why)}"))
    return [
        Heading(level=2, text="Controls"),
        Table(
            title="Runs whose answer is known",
            of=f"{count(len(rows), 'task')}, {count(len(gathered.controls), 'run')}",
            columns=("task", "original body back: passed", "nothing done: failed", "admissible"),
            rows=tuple(rows),
        ),
    ]
