"""Which tasks may be tried: both controls come out as known, and no answer lies in sight of a client."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.lab import (
    checkout,
    judge,
    ledger,
    paths,
    sandbox,
    trial,
)
from benchmarks.lab.batch.bench import Bench, Write, work_folder, work_place
from benchmarks.lab.model import Environment, Judgement, Task
from benchmarks.lab.rows import ControlRow
from benchmarks.lab.schedule import Cell
from benchmarks.lab.session import Rig
from benchmarks.lab.text import count


def rehearse(bench: Bench, left_out: dict[str, str]) -> dict[str, trial.Assignment]:
    """Run the controls and write nothing: the tasks that a real run would try."""
    with work_place(bench.watcher.say, sweep=False):
        return admit(bench, environments(bench), None, left_out)


def environments(bench: Bench) -> dict[str, Environment]:
    """The environment of every target of the plan, by target."""
    wanted = {bench.suite.tasks[task].target for task in bench.plan.tasks}
    targets = {name: bench.suite.targets[name] for name in sorted(wanted)}
    return {
        name: checkout.environment(target, paths.cache_dir(), bench.watcher.say) for name, target in targets.items()
    }


def admit(
    bench: Bench, environments: Mapping[str, Environment], write: Write | None, left_out: dict[str, str]
) -> dict[str, trial.Assignment]:
    """Run both controls of every task; the tasks whose answers came out as known, ready to be tried.

    Without `write` nothing is kept of the runs, no row and no log.
    """
    admitted = {}
    for name in bench.plan.tasks:
        task = bench.suite.tasks[name]
        target, environment = bench.suite.targets[task.target], environments[task.target]
        begin = time.monotonic()
        with work_folder("control") as work:
            tree = checkout.prepare(target, task, environment, work / "tree")
            pair = judge.controls(target, task, environment, work / "controls", bench.plan.isolation)
            if write is not None:
                for row in _control_rows(bench, task, pair, _keep_logs(bench, work / "controls", task.id)):
                    write("control", row)
        if not pair.admissible:
            left_out[name] = f"controls: {pair.why}"
            bench.watcher.say(f"{name}: left out, {pair.why}")
            continue
        bench.watcher.say(f"{name}: gold passes, excised fails ({time.monotonic() - begin:.1f} s)")
        admitted[name] = trial.Assignment(
            suite=bench.suite.name,
            target=target,
            task=task,
            environment=environment,
            required=pair.required,
            gold_seconds=pair.gold.seconds,
            budgets=bench.plan.budgets[task.tier],
            prompt_digest=tree.prompt_digest,
            target_digest=tree.target_digest,
        )
    return admitted


def _keep_logs(bench: Bench, folder: Path, task: str) -> str:
    """Copy the controls' logs to the evidence; the name that rows give."""
    name = f"controls/{task}-{ledger.new_id()}"
    kept = paths.evidence_dir(bench.machine.id) / name
    kept.mkdir(parents=True)
    for log in folder.glob("*.log"):
        shutil.copy(log, kept / log.name)
    return name


def _control_rows(bench: Bench, task: Task, pair: judge.ControlPair, evidence: str) -> Iterable[ControlRow]:
    def row(name: Any, judgement: Judgement, as_expected: bool) -> ControlRow:
        return ControlRow(
            task=task.id,
            target=task.target,
            suite=bench.suite.name,
            control=name,
            as_expected=as_expected,
            admissible=pair.admissible,
            why=pair.why,
            judge=trial.judge_row(judgement, len(pair.required)),
            isolation=bench.plan.isolation,
            evidence=evidence,
        )

    yield row("gold", pair.gold, pair.gold.green)
    yield row("excised", pair.excised, pair.excised_fails)


def leave_out_leaks(
    bench: Bench,
    assignments: dict[str, trial.Assignment],
    rigs: Mapping[Cell, Rig],
    left_out: dict[str, str],
) -> None:
    """Leave out every task whose removed text can be read somewhere in a sandbox of this batch."""
    begin = time.monotonic()
    installations = {rig.client.name: rig.installation for rig in rigs.values()}.values()
    exposed = [
        *sandbox.exposed(bench.plan.isolation),
        *(folder for installation in installations for folder in installation.readonly),
        *(folder for assignment in assignments.values() for folder in assignment.environment.readonly),
    ]
    bench.watcher.say("looking for the answers in all that a sandbox shows (once per change of it; may take a minute)")
    with work_folder("leaks") as work:
        trees = [
            checkout.prepare(one.target, one.task, one.environment, work / name) for name, one in assignments.items()
        ]
        found = checkout.leak_scan(trees, exposed, paths.cache_dir(), sandbox.hidden(bench.plan.isolation))
    for task, leaks in found.items():
        if leaks:
            left_out[task] = f"its answer can be read in the sandbox: {leaks[0].path} ({leaks[0].evidence})"
            bench.watcher.say(f"{task}: left out, {left_out[task]}")
            del assignments[task]
    bench.watcher.say(f"no answer in sight of {count(len(assignments), 'task')} ({time.monotonic() - begin:.1f} s)")
