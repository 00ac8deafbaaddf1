"""From flags and the lab file to one frozen plan, its rehearsal, and its estimate.

It runs no trial and writes no row (`lab/batch` does) and reads no command line (the programs do).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from benchmarks.lab import batch, clients, engines, labfile, ledger, machine, paths, sandbox, schedule, stamp, tasks
from benchmarks.lab.engines.scripted.engine import check_script
from benchmarks.lab.errors import Refused, UsageError
from benchmarks.lab.model import Backend, Budgets, Isolation, Order, Record
from benchmarks.lab.schedule import Cell, Plan
from benchmarks.lab.session import Interrupts
from benchmarks.lab.text import count, listing, suggest

MOST_TRIALS: Final = 100_000  # a plan stands whole in memory, and none of this size would come to its end


class Options(Record, frozen=True, kw_only=True):
    """What a person asked for; empty or None means: what the lab file says."""

    backends: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    trials: int | None = None
    results: Path | None = None
    require_head: str | None = None
    dry_run: bool = False
    lock: bool = True
    smoke: bool = True
    isolation: Isolation | None = None
    order: Order | None = None
    stall_seconds: float | None = None
    fresh: bool = False


def bench(
    options: Options, program: str, arguments: tuple[str, ...], watcher: batch.Watcher, interrupts: Interrupts
) -> batch.Bench:
    """Everything a batch needs, every name checked; UsageError names the flag that is wrong."""
    lab = labfile.load(*labfile.files(paths.checkout_root()))
    suite = tasks.load_suite(paths.checkout_root() / "benchmarks" / "agent" / "tasks")
    code = stamp.code()
    _require_head(options.require_head, code)
    here = machine.describe()
    chosen = _backends(options, lab)
    plan = Plan(
        suite=suite.name,
        suite_digest=suite.digest,
        tasks=_tasks(options, suite, chosen, lab),
        cells=tuple(Cell(backend=one.name, client=client) for one in chosen for client in _clients(options, lab)),
        trials=options.trials or lab.defaults.trials,
        order=options.order or lab.defaults.order,
        isolation=sandbox.choose(options.isolation or lab.defaults.isolation),
        budgets=_budgets(options, lab),
        backends_digest=stamp.digest({one.name: msgspec.to_builtins(one) for one in chosen}),
        code_digest=code.digest,
        smoke=options.smoke,
    )
    if (total := len(plan.tasks) * len(plan.cells) * plan.trials) > MOST_TRIALS:
        raise UsageError(f"--trials {plan.trials}: that makes {total} trials; one batch has at most {MOST_TRIALS}")
    book = ledger.Ledger(options.results or default_ledger(here.id), watcher.say)
    return batch.Bench(
        plan=plan,
        lab=lab,
        backends={one.name: one for one in chosen},
        suite=suite,
        book=book,
        machine=here,
        code=code,
        program=program,
        argv=arguments,
        locked=options.lock,
        fresh=options.fresh,
        require_head=options.require_head,
        watcher=watcher,
        interrupts=interrupts,
    )


def default_ledger(machine_id: str) -> Path:
    """The machine's own ledger of agent trials."""
    return paths.checkout_root() / "hardware" / machine_id / "trials.jsonl"


def prefix(bench: batch.Bench) -> str:
    """What every printed line starts with."""
    return stamp.prefix(bench.code, bench.machine.label)


def dry_run(bench: batch.Bench) -> None:
    """Say the plan with an estimate, then run the controls; no model is called and no row is written."""
    say = bench.watcher.say
    plan = bench.plan
    _say_plan(bench, plan.tasks)
    say(f"rows would go to {bench.book.path}")
    say(f"running the controls of {count(len(plan.tasks), 'task')}: each suite with the original body and without")
    left_out: dict[str, str] = {}
    assignments = batch.rehearse(bench, left_out)
    batch.refuse_if_none("task", assignments, left_out)
    if left_out:
        say(f"left out by its controls: {', '.join(left_out)}")
        _say_plan(bench, tuple(assignments))
    else:
        say("every control came out as known")


def _say_plan(bench: batch.Bench, tasks: Sequence[str]) -> None:
    plan = bench.plan
    cells = ", ".join(map(str, plan.cells))
    total = len(plan.cells) * len(tasks) * plan.trials
    bench.watcher.say(
        f"plan: {count(len(tasks), 'task')} x {count(len(plan.cells), 'cell')} ({cells}) x "
        f"{count(plan.trials, 'trial')} = {count(total, 'trial')}, {plan.order}, isolation {plan.isolation}"
    )
    bench.watcher.say(f"tasks: {', '.join(tasks)}")
    bench.watcher.say(_estimate(bench, tasks))


def closing_words(bench: batch.Bench, outcome: batch.Outcome) -> Iterator[str]:
    """How the batch ended, and what its rows are not evidence of."""
    how = f"{count(outcome.done, 'trial')} counted, {outcome.void} void, {outcome.given_up} given up"
    yield f"batch {outcome.batch}: {how}; rows in {bench.book.path}"
    for name, why in outcome.left_out.items():
        yield f"left out: {name}: {why}"
    if outcome.interrupted:
        yield "interrupted: the same command continues this batch"
    for demo in (one for one in bench.backends.values() if one.purpose == "demo" and outcome.done):
        yield (
            f"{demo.note or f'{demo.name} is a demo'}: its failures say nothing about clients. That the harness works "
            "is shown by the controls and by `uv run benchmarks/agent/run.py --backend scripted --tag starter`, which "
            "solves them through the same client"
        )


def _estimate(bench: batch.Bench, admitted: Sequence[str]) -> str:
    """Median wall times of this ledger's own rows; a cell without rows is unknown, bounded by its budget."""
    walls = _earlier_walls(bench.book.path)
    known: list[float] = []
    bounds: list[float] = []
    for slot in schedule.slots(bench.plan):
        if slot.task not in admitted:
            continue
        earlier = walls.get((slot.task, slot.backend, slot.client))
        if earlier:
            known.append(median(earlier))
        else:
            bounds.append(bench.plan.budgets[bench.suite.tasks[slot.task].tier].wall_seconds)
    bound = f"at most {sum(bounds) / 60:.0f} min, where their budgets end them"
    if not known:
        return f"estimate: none, this ledger has no earlier rows of these trials; {bound}"
    told = f"estimate: {sum(known) / 60:.0f} min for {count(len(known), 'trial')} by earlier rows of this ledger"
    return told if not bounds else f"{told}; {count(len(bounds), 'trial')} without: {bound}"


def _earlier_walls(path: Path) -> dict[tuple[str, str, str], list[float]]:
    """Wall seconds of the ledger's counted trials by task, backend and client."""
    found = defaultdict(list)
    for one in ledger.effective(ledger.read(path)):
        if one.row.kind == "trial" and one.counts:
            row = ledger.trial(one.row)
            if row.verdict != "void" and row.wall_seconds is not None:
                found[row.task, row.backend, row.client].append(row.wall_seconds)
    return found


def _require_head(wanted: str | None, code: stamp.CodeStamp) -> None:
    if wanted is None:
        return
    if not re.fullmatch("[0-9a-f]{7,40}", wanted):  # an empty variable of a shell would guard nothing
        raise UsageError(f"--require-harness-head {wanted!r} is no commit; give 7 to 40 hexadecimal digits")
    if code.head is None or not (code.head.startswith(wanted) or wanted.startswith(code.head)):
        raise Refused(f"--require-harness-head {wanted}: this checkout is at {code.head or 'no commit'}; check it out")
    if code.dirty:
        raise Refused(f"--require-harness-head {wanted}: the code differs from that commit; commit or undo the changes")


def _backends(options: Options, lab: labfile.Lab) -> tuple[Backend, ...]:
    return tuple(_backend(lab, name) for name in dict.fromkeys(options.backends or lab.defaults.backends))


def _backend(lab: labfile.Lab, given: str) -> Backend:
    """The entry of that name; `scripted:SCRIPT` is the scripted entry with another script."""
    name, colon, script = given.partition(":")
    if not colon:
        backend = labfile.find_backend(lab, given)
    else:
        backend = msgspec.structs.replace(labfile.find_backend(lab, name), name=given, script=script)
        if backend.engine != "scripted":
            raise UsageError(f"--backend {given}: only a scripted backend plays scripts; name it as --backend {name}")
        check_script(given, script)
    engines.find(backend.engine)
    return backend


def _clients(options: Options, lab: labfile.Lab) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(options.clients or lab.defaults.clients))
    where = "--client" if options.clients else f"`clients` of defaults in {listing(map(str, lab.files))}"
    for name in names:
        clients.find(name, where)
    return names


def _tasks(options: Options, suite: tasks.Suite, backends: Sequence[Backend], lab: labfile.Lab) -> tuple[str, ...]:
    for name in options.tasks:
        if name not in suite.tasks:
            hint = f"{suggest(name, suite.tasks)}; it has {listing(suite.tasks, 20)}"
            raise UsageError(f"--task {name}: suite {suite.name} has no such task{hint}")
    tags = {tag for task in suite.tasks.values() for tag in task.tags}
    for tag in options.tags:
        if tag not in tags:
            raise UsageError(f"--tag {tag}: no task has it{suggest(tag, tags)}; tags are {listing(sorted(tags))}")
    wanted = options.tags
    if not options.tasks and not options.tags and all(backend.purpose == "demo" for backend in backends):
        wanted = lab.defaults.demo_tags
    if not options.tasks and not wanted:
        return tuple(suite.tasks)
    return tuple(name for name, task in suite.tasks.items() if name in options.tasks or set(task.tags) & set(wanted))


def _budgets(options: Options, lab: labfile.Lab) -> dict[int, Budgets]:
    if options.stall_seconds is None:
        return dict(lab.tiers)
    return {
        tier: msgspec.structs.replace(budgets, stall_seconds=options.stall_seconds)
        for tier, budgets in lab.tiers.items()
    }
