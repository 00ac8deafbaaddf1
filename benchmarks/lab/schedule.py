"""Which trial comes next: the plan's slots, their order, and which are still owed after an interruption. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from benchmarks.lab.model import Budgets, Isolation, Order, Record, Verdict
from benchmarks.lab.text import digest_of_json

MAX_VOID_RERUNS: Final = 2


class Cell(Record, frozen=True, kw_only=True):
    """A backend and a client; the machine is the one the plan runs on."""

    backend: str
    client: str

    def __str__(self) -> str:
        return f"{self.backend}/{self.client}"


class Slot(Record, frozen=True, kw_only=True):
    """One owed result: task × cell × trial number (from 1)."""

    task: str
    backend: str
    client: str
    trial: int

    @property
    def cell(self) -> Cell:
        """The cell this slot belongs to."""
        return Cell(backend=self.backend, client=self.client)


class Plan(Record, frozen=True, kw_only=True):
    """Everything a batch will do, fixed before it starts; two plans with one digest are the same batch."""

    suite: str
    suite_digest: str
    tasks: tuple[str, ...]
    cells: tuple[Cell, ...]
    trials: int
    order: Order
    isolation: Isolation
    budgets: Mapping[int, Budgets]  # by tier
    backends_digest: str  # of the cells' own entries: others may be added to the lab file meanwhile
    code_digest: str | None
    smoke: bool
    void_reruns: int = MAX_VOID_RERUNS


def plan_digest(plan: Plan) -> str:
    """SHA-256 of the plan's canonical JSON."""
    return digest_of_json(msgspec.to_builtins(plan, str_keys=True))


def slots(plan: Plan) -> tuple[Slot, ...]:
    """All slots in running order.

    `interleaved`: the cells take turns on each task, in an order reversed from one turn to the next (A-B-B-A), so
    that drift of the machine falls on all of them alike. `blocked`: one cell after the other.
    """
    if plan.order == "blocked":
        return tuple(
            _slot(task, cell, trial)
            for cell in plan.cells
            for trial in range(1, plan.trials + 1)
            for task in plan.tasks
        )
    found: list[Slot] = []
    for trial in range(1, plan.trials + 1):
        for turn, task in enumerate(plan.tasks):
            cells = plan.cells if (trial + turn) % 2 else plan.cells[::-1]
            found.extend(_slot(task, cell, trial) for cell in cells)
    return tuple(found)


def owed(
    order: Sequence[Slot], done: Iterable[tuple[Slot, Verdict]], reruns: int = MAX_VOID_RERUNS
) -> tuple[Slot, ...]:
    """The slots without a counted result, in running order.

    A void slot is run again at most `reruns` times, and only after every other slot had its first run.
    """
    voids: Counter[Slot] = Counter()
    settled: set[Slot] = set()
    for slot, verdict in done:
        if verdict == "void":
            voids[slot] += 1
        else:
            settled.add(slot)
    first = [slot for slot in order if slot not in settled and not voids[slot]]
    again = [slot for slot in order if slot not in settled and 0 < voids[slot] <= reruns]
    return (*first, *again)


def given_up(every: Sequence[Slot], still: Sequence[Slot], done: Iterable[tuple[Slot, Verdict]]) -> int:
    """Slots of the plan that will have no counted result: void thrice, or left out; `still` are owed yet."""
    return len(set(every) - set(still) - {slot for slot, verdict in done if verdict != "void"})


def _slot(task: str, cell: Cell, trial: int) -> Slot:
    return Slot(task=task, backend=cell.backend, client=cell.client, trial=trial)
