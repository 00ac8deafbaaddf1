"""From rows to what may be shown together: trials, columns (one cell in one series), sections (one setting).

Nothing is pooled across series here, nothing retracted is counted, and demo or harness rows never share a section with
measured ones. It computes no statistic and writes no text; it decides what stands beside what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import count, product
from string import ascii_uppercase
from typing import Any, Final, Literal

import msgspec

from benchmarks.lab import ledger, series
from benchmarks.lab.ledger import Effective, Row
from benchmarks.lab.model import Purpose, Record
from benchmarks.lab.rows import ControlRow, RetractionRow, TrialRow

# Stamp keys in which two cells may differ and still stand side by side: they are what a cell *is*. In every other
# "cell" key of a series (isolation, measurement version, machine and its system) the cells of one section agree, and
# in what their rows say of the lock: an unlocked trial ran beside other work, which nothing describes.
CELL_OWN: Final = frozenset({
    "purpose", "engine", "engine_version", "engine_flags", "engine_host", "restart", "model", "model_digest",
    "quantization", "context", "sampler", "sampler_set_by", "sampler_pinned", "max_tokens", "reasoning_effort",
    "rewrite", "slots", "speculative", "script", "client", "client_version", "dialect", "client_settings",
})  # fmt: skip
SHARED: Final = tuple(name for name in series.CELL_KEYS if name not in CELL_OWN)

Kind = Literal["measured", "unranked"]
Task = tuple[str, str]  # target and id
Place = tuple[str, str, str]  # target, id, variant: what one line of a table is about


class Trial(Record, frozen=True, kw_only=True):
    """One trial row with its envelope and the values of its stamp (empty: the stamp is missing)."""

    id: str
    at: str
    moment: datetime  # `at` as an instant: machines that travel write several offsets
    machine: str
    row: TrialRow
    values: Mapping[str, Any]
    cell_key: series.Key  # rows of a cell may be pooled where it is equal
    task_key: series.Key  # the task's own part: what must agree, beside its name, before trials of it are one rate

    @property
    def counted(self) -> bool:
        """Whether it is part of a rate: everything but void."""
        return self.row.verdict != "void"

    @property
    def task(self) -> Task:
        """Target and task: two targets may have tasks of one name."""
        return (self.row.target, self.row.task)


class Column(Record, frozen=True, kw_only=True):
    """One cell in one series. `letter` names it within a page."""

    letter: str
    backend: str
    client: str
    purpose: Purpose
    series: str
    locked: bool
    latest: bool  # of the cell's series in this kind of section the newest with a counted trial
    trials: tuple[Trial, ...]

    @property
    def values(self) -> Mapping[str, Any]:
        """Stamp of the newest trial."""
        return self.trials[-1].values

    @property
    def sampler(self) -> Mapping[str, Any] | None:
        """What its turns were sampled with: the engine's defaults, what the client sent, what the meter pinned.

        None when neither engine nor client told anything.
        """
        exchanges = self.trials[-1].row.exchanges
        sent = exchanges.sampler if exchanges is not None else {}
        told = {**(self.values.get("sampler") or {}), **sent, **(self.values.get("sampler_pinned") or {})}
        return told or None

    @property
    def name(self) -> str:
        """Backend × client; the machine is the page's."""
        return f"{self.backend} × {self.client}"


class TaskVariant(Record, frozen=True, kw_only=True):
    """A task as one definition of it: rows whose task keys differ are not trials of the same task."""

    task: str
    target: str
    variant: str  # "" when the task has one definition on this page
    key: tuple[str, ...]
    latest: bool  # of the task's definitions the newest with a counted trial

    @property
    def place(self) -> Place:
        """What its entries are found by."""
        return (self.target, self.task, self.variant)


class Section(Record, frozen=True, kw_only=True):
    """Cells that may stand side by side: they agree in all that is not their own."""

    kind: Kind
    locked: bool  # False: measured beside other work
    latest: bool  # False: for every cell in it another series stands above
    shared: Mapping[str, Any]
    columns: tuple[Column, ...]
    tasks: tuple[TaskVariant, ...]

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials of the section."""
        return tuple(trial for column in self.columns for trial in column.trials)

    @property
    def current(self) -> frozenset[Place]:
        """The latest definition of each task: what a rate over tasks is made of."""
        return frozenset(task.place for task in self.tasks if task.latest)

    @property
    def ranked(self) -> bool:
        """Whether its cells may be compared in words."""
        return self.kind == "measured" and self.locked and self.latest


class Retracted(Record, frozen=True, kw_only=True):
    """A retraction and how many of the rows at hand it takes out."""

    at: str
    hit: int
    row: RetractionRow


class Gathered(Record, frozen=True, kw_only=True):
    """All that a page shows of one machine's rows."""

    machine: str
    sections: tuple[Section, ...]
    controls: tuple[ControlRow, ...]
    retracted: tuple[Retracted, ...]
    duplicates: int  # second results for one slot of a batch; not counted
    unstamped: int  # trials whose stamp is not in the ledger


def gather(machine: str, rows: Iterable[Row], keep: Callable[[TrialRow], bool] = lambda row: True) -> Gathered:
    """Sort one machine's rows, as `reading` checked them; `keep` filters trials. Other kinds are left aside."""
    every = ledger.effective(rows)
    stamps = ledger.stamps(one.row for one in every)
    trials = [_trial(one.row, stamps) for one in every if one.counts and one.row.kind == "trial"]
    kept = [trial for trial in trials if keep(trial.row)]
    tasks = {trial.task for trial in kept}
    return Gathered(
        machine=machine,
        sections=_sections(kept),
        controls=tuple(c for c in _controls(every) if (c.target, c.task) in tasks or len(kept) == len(trials)),
        retracted=_retracted(every),
        duplicates=sum(one.duplicate_of is not None for one in every),
        unstamped=sum(not trial.values for trial in kept),
    )


def _trial(row: Row, stamps: Mapping[str, Mapping[str, Any]]) -> Trial:
    values = stamps.get(row.stamp or "", {})
    whole = series.task_key(row.body, values or None)  # cell keys, task keys, keys of the row itself
    cell, task = len(series.CELL_KEYS), len(series.KEYS)
    return Trial(
        id=row.id,
        at=row.at,
        moment=datetime.fromisoformat(row.at),
        machine=row.machine,
        row=ledger.trial(row),
        values=values,
        cell_key=(*whole[:cell], *whole[task:]),
        task_key=whole[cell:task],
    )


def _controls(rows: Sequence[Effective]) -> list[ControlRow]:
    typed = (ledger.typed(one.row) for one in rows if one.counts)
    return [row for row in typed if isinstance(row, ControlRow)]


def _retracted(rows: Sequence[Effective]) -> tuple[Retracted, ...]:
    in_force = {one.retracted.id: one.retracted for one in rows if one.retracted is not None}
    hits = Counter(one.retracted.id for one in rows if one.retracted is not None and one.row.kind == "trial")
    typed = ((name, row.at, ledger.typed(row)) for name, row in in_force.items())
    return tuple(Retracted(at=at, hit=hits[name], row=row) for name, at, row in typed if isinstance(row, RetractionRow))


# ---- columns and sections ----


def _sections(trials: Sequence[Trial]) -> tuple[Section, ...]:
    columns = _columns(trials)
    places: dict[tuple[Any, ...], list[Column]] = {}
    for column in columns:
        setting = tuple(msgspec.json.encode(column.values.get(name), order="deterministic") for name in SHARED)
        places.setdefault((*_standing(column), setting), []).append(column)
    sections = [_section(members) for members in places.values()]
    newest = {id(section): max(trial.moment for trial in section.trials) for section in sections}
    # Newest first within: current measured cells, those measured beside other work, current demo and harness cells,
    # then the other series of these cells.
    sections.sort(key=lambda section: newest[id(section)], reverse=True)
    sections.sort(key=lambda section: (not section.latest, section.kind != "measured", not section.locked))
    return _lettered(sections)


def _standing(column: Column) -> tuple[bool, Kind, bool]:
    """What a section says of all its columns, beside the setting they share."""
    return column.latest, _kind(column.purpose), column.locked


def _section(columns: Sequence[Column]) -> Section:
    latest, kind, locked = _standing(columns[0])
    return Section(
        kind=kind,
        locked=locked,
        latest=latest,
        shared={name: columns[0].values.get(name) for name in SHARED},
        columns=tuple(columns),
        tasks=_tasks([trial for column in columns for trial in column.trials]),
    )


def _columns(trials: Sequence[Trial]) -> list[Column]:
    """One column for each cell in each series."""
    groups: dict[tuple[CellPlace, series.Key], list[Trial]] = {}
    for trial in sorted(trials, key=lambda trial: (trial.moment, trial.id)):
        groups.setdefault((_cell_place(trial), trial.cell_key), []).append(trial)
    newest: dict[CellPlace, list[Trial]] = {}
    for (place, _), members in groups.items():
        newest[place] = max(newest.get(place, members), members, key=_recency)
    columns = [
        Column(
            letter="",
            backend=members[-1].row.backend,
            client=members[-1].row.client,
            purpose=members[-1].row.purpose,
            series=series.series_id(found),
            locked=members[-1].row.locked,
            latest=members is newest[place],
            trials=tuple(members),
        )
        for (place, found), members in groups.items()
    ]
    return sorted(columns, key=lambda column: (column.backend, column.client, column.trials[0].moment))


CellPlace = tuple[str, str, Kind, bool]  # a cell in one kind of section: of its series there one is the latest


def _cell_place(trial: Trial) -> CellPlace:
    return trial.row.backend, trial.row.client, _kind(trial.row.purpose), trial.row.locked


def _recency(trials: Sequence[Trial]) -> tuple[bool, datetime, str]:
    """Of a cell's series, or a task's definitions, the one with the largest is the latest.

    Void trials decide only where nothing counts.
    """
    counted = [trial for trial in trials if trial.counted]
    last = (counted or trials)[-1]
    return bool(counted), last.moment, last.id


def _lettered(sections: Sequence[Section]) -> tuple[Section, ...]:
    names = ("".join(letters) for size in count(1) for letters in product(ascii_uppercase, repeat=size))
    return tuple(
        msgspec.structs.replace(
            section,
            columns=tuple(msgspec.structs.replace(column, letter=next(names)) for column in section.columns),
        )
        for section in sections
    )


def _kind(purpose: Purpose) -> Kind:
    return "measured" if purpose == "measure" else "unranked"


def _tasks(trials: Sequence[Trial]) -> tuple[TaskVariant, ...]:
    seen: dict[Task, dict[series.Key, list[Trial]]] = {}
    for trial in sorted(trials, key=lambda trial: (trial.moment, trial.id)):
        seen.setdefault(trial.task, {}).setdefault(trial.task_key, []).append(trial)
    return tuple(
        TaskVariant(
            task=task,
            target=target,
            variant=str(number) if len(definitions) > 1 else "",
            key=found,
            latest=members is max(definitions.values(), key=_recency),
        )
        for (target, task), definitions in sorted(seen.items())
        for number, (found, members) in enumerate(definitions.items(), 1)
    )
