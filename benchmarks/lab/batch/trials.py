"""The trials of a batch, one after the other: each row is written with its stamp the moment it exists."""

from __future__ import annotations

import shutil
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from benchmarks.lab import (
    ledger,
    paths,
    session,
    stamp,
    trial,
)
from benchmarks.lab.batch.bench import Bench
from benchmarks.lab.batch.setup import Setup
from benchmarks.lab.errors import Refused
from benchmarks.lab.model import EngineFacts, Verdict
from benchmarks.lab.rows import TrialRow
from benchmarks.lab.schedule import Slot, owed, slots
from benchmarks.lab.session import Rig

MIN_FREE_BYTES: Final = 2 << 30  # what one trial may write, see `Budgets.disk_bytes`


def run_owed(bench: Bench, setup: Setup, batch: str, done: list[tuple[Slot, Verdict]]) -> None:
    """Run slot after slot until nothing is owed or the person asks to stop; `done` grows with each row."""
    order = [slot for slot in slots(bench.plan) if slot.cell in setup.rigs and slot.task in setup.assignments]
    bench.interrupts.trials_begun = True
    while (left := owed(order, done, bench.plan.void_reruns)) and not bench.interrupts.level:
        slot = left[0]
        _check_head(bench)
        _check_disk()
        position = len(done) + 1
        attempt = 1 + sum(earlier == slot for earlier, _ in done)
        bench.watcher.trial_started(slot, position, position + len(left) - 1)
        setup.rigs[slot.cell].server.ready(new_arm=bool(done) and done[-1][0].cell != slot.cell)
        row = _one(bench, setup, batch, trial.Attempt(slot=slot, attempt=attempt, position=position))
        done.append((slot, row.verdict))
        bench.watcher.trial_ended(row)


def _one(bench: Bench, setup: Setup, batch: str, which: trial.Attempt) -> TrialRow:
    rig, assignment = setup.rigs[which.slot.cell], setup.assignments[which.slot.task]
    row_id = ledger.new_id()
    name = f"{batch}/{which.slot.task}-{which.slot.backend}-{which.slot.client}-{which.slot.trial}-{which.attempt}"
    name += f"-{row_id[-6:]}"  # a killed run, or a retracted row, may have left this attempt's evidence already
    place = trial.Place(
        work=paths.state_dir() / "work" / f"trial-{row_id}",
        evidence=paths.evidence_dir(bench.machine.id) / name,
        evidence_name=name,
    )
    facts = rig.endpoint.facts_now()
    stamped = _stamp(bench, rig, assignment, facts)  # first, so that what cannot be stamped costs no trial
    row = trial.run(
        rig,
        assignment,
        which,
        place,
        facts=facts,
        interrupts=bench.interrupts,
        show=bench.watcher.live,
        locked=bench.locked,
    )
    digest = bench.book.append_stamp(stamped, machine=bench.machine.id, batch=batch)
    bench.book.append("trial", row, machine=bench.machine.id, batch=batch, stamp=digest, row_id=row_id)
    return row


def _stamp(bench: Bench, rig: Rig, assignment: trial.Assignment, facts: EngineFacts) -> dict[str, Any]:
    work = {
        "client": rig.client.name,
        "client_version": rig.installation.version,
        "dialect": rig.dialect,
        "client_settings": session.told(rig),
        "suite_digest": bench.suite.digest,
        "prompt_digest": assignment.prompt_digest,
        "task_digest": _task_digest(assignment),
        "target_digest": assignment.target_digest,
        "environment_digest": assignment.environment.digest,
        "budgets": msgspec.to_builtins(assignment.budgets),
        "isolation": rig.isolation,
    }
    return stamp.assemble(
        stamp.of_code(bench.code, program=bench.program, flags=bench.argv, lab_digest=bench.lab.digest),
        stamp.of_machine(bench.machine),
        stamp.of_backend(rig.backend, facts, engine_host=_other_host(rig.endpoint.base_url)),
        work,
    )


def _task_digest(assignment: trial.Assignment) -> str:
    """Of what a task asks and how it is judged; its note and its tags are for people."""
    asked = msgspec.structs.replace(assignment.task, note="", tags=())
    return stamp.digest({"task": msgspec.to_builtins(asked), "suite_seconds": assignment.target.suite_seconds})


def _other_host(base_url: str) -> str | None:
    """The host the engine runs on, None when it is this machine."""
    host = urlsplit(base_url).hostname
    return None if host in ("127.0.0.1", "localhost", "::1") else host


def _check_head(bench: Bench) -> None:
    """With `--require-harness-head`: stop as soon as the code on disk is not that commit any more."""
    if bench.require_head is None:
        return
    now = stamp.code()
    if now.digest != bench.code.digest or now.head != bench.code.head:
        raise Refused(
            f"--require-harness-head {bench.require_head}: the code moved during the batch (now {now.head}"
            f"{', changed' if now.dirty else ''}); finished trials are kept, check the commit out and run again"
        )


def _check_disk() -> None:
    free = shutil.disk_usage(paths.state_dir()).free
    if free < MIN_FREE_BYTES:
        raise Refused(
            f"only {free / 1e9:.1f} GB are free where {paths.state_dir()} lies; make room (trials need "
            f"{MIN_FREE_BYTES / 1e9:.1f} GB), or set LOCAL_LAB_STATE to another disk"
        )
