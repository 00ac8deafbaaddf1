"""One batch: installations, conformance, controls and trials of a plan; each row is written the moment it exists.

It reads as the algorithm, top to bottom. Engines stay up for the whole batch; clients and environments come from the
cache. What a person sees goes through a `Watcher`: this room prints nothing and decides no verdict.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import msgspec

from benchmarks.lab import (
    checkout,
    clients,
    fsio,
    install,
    judge,
    ledger,
    pairs,
    paths,
    sandbox,
    session,
    smoke,
    stamp,
    trial,
)
from benchmarks.lab.errors import Refused
from benchmarks.lab.install import Installation
from benchmarks.lab.labfile import Lab
from benchmarks.lab.machine import Machine
from benchmarks.lab.meter import Live
from benchmarks.lab.model import Backend, Client, Environment, Judgement, Record, Task, Verdict
from benchmarks.lab.rows import BatchEnd, BatchStart, ControlRow, SmokeRow, TrialRow
from benchmarks.lab.schedule import Cell, Plan, Slot, owed, plan_digest, slots
from benchmarks.lab.servers import Server
from benchmarks.lab.session import Interrupts, Rig
from benchmarks.lab.tasks import Suite
from benchmarks.lab.text import count

MIN_FREE_BYTES: Final = 2 << 30  # what one trial may write, see `Budgets.disk_bytes`


class Watcher(Protocol):
    """Who is told what happens: `say` takes one line, the others drive a display."""

    def say(self, line: str) -> None:
        """One lasting line."""

    def trial_started(self, slot: Slot, position: int, of: int) -> None:
        """A trial begins: `position` of `of`, as far as is known now."""

    def live(self, live: Live) -> None:
        """The meter's counts of the trial under way, many times a second."""

    def trial_ended(self, row: TrialRow) -> None:
        """Its row was written."""


@dataclass(frozen=True)
class Bench:
    """What stays the same over a batch."""

    plan: Plan
    lab: Lab
    backends: Mapping[str, Backend]  # those of the plan's cells
    suite: Suite
    book: ledger.Ledger
    machine: Machine
    code: stamp.CodeStamp
    program: str
    argv: tuple[str, ...]
    locked: bool
    fresh: bool
    require_head: str | None
    watcher: Watcher
    interrupts: Interrupts


class Outcome(Record, frozen=True, kw_only=True):
    """How a batch ended. `left_out`: cells and tasks that could not be tried, with the reason."""

    batch: str
    done: int
    void: int
    given_up: int
    interrupted: bool
    left_out: Mapping[str, str]


@dataclass(frozen=True)
class Setup:
    """What the trials need: rigs by cell, admitted tasks, and what was left out."""

    rigs: Mapping[Cell, Rig]
    assignments: Mapping[str, trial.Assignment]
    left_out: dict[str, str]


def execute(bench: Bench) -> Outcome:
    """Run the plan to its end, or until the person stops it; a later call with the same plan goes on where it ended."""
    begin = time.monotonic()
    if bench.locked:
        _sweep(bench.watcher.say)
    batch, done = _open(bench)
    with ExitStack() as stack:
        setup = prepare(bench, stack, _writer(bench, batch))
        _run_owed(bench, setup, batch, done)
    plan_slots = [slot for slot in slots(bench.plan) if slot.cell in setup.rigs and slot.task in setup.assignments]
    still = owed(plan_slots, done)
    counted = {slot for slot, verdict in done if verdict != "void"}
    voids = sum(verdict == "void" for _, verdict in done)
    outcome = Outcome(
        batch=batch,
        done=len(counted),
        void=voids,
        given_up=len(plan_slots) - len(counted) - len(still),
        interrupted=bool(still),
        left_out=setup.left_out,
    )
    if not still:
        end = BatchEnd(
            done=outcome.done, void=voids, given_up=outcome.given_up, seconds=round(time.monotonic() - begin, 1)
        )
        bench.book.append("batch_end", end, machine=bench.machine.id, batch=batch)
    return outcome


# ---- beginning ----


def _sweep(say: Callable[[str], None]) -> None:
    """Remove work folders that a killed run left; whoever holds the machine's lock may."""
    left = sorted((paths.state_dir() / "work").glob("*"))
    for folder in left:
        fsio.remove_tree(folder)
    if left:
        say(f"removed {count(len(left), 'work folder')} that an earlier run left behind")


def _open(bench: Bench) -> tuple[str, list[tuple[Slot, Verdict]]]:
    """Continue the newest unfinished batch of this plan, or start one; its id and its results so far."""
    digest = plan_digest(bench.plan)
    found = None if bench.fresh else ledger.resume(ledger.read(bench.book.path), digest)
    if found is not None:
        done = [(Slot(**key._asdict()), verdict) for key, verdict in found.results]
        bench.watcher.say(f"continuing batch {found.batch}: {len(done)} rows are there already")
        return found.batch, done
    batch = ledger.new_id()
    start = BatchStart(
        program=bench.program,
        argv=bench.argv,
        plan=msgspec.to_builtins(bench.plan, str_keys=True),
        plan_digest=digest,
        slots=len(slots(bench.plan)),
    )
    bench.book.append("batch_start", start, machine=bench.machine.id, batch=batch, row_id=batch)
    return batch, []


Write = Callable[[str, Record], None]


def _writer(bench: Bench, batch: str) -> Write:
    def write(kind: str, body: Record) -> None:
        bench.book.append(kind, body, machine=bench.machine.id, batch=batch)

    return write


# ---- setting up ----


def prepare(bench: Bench, stack: ExitStack, write: Write) -> Setup:
    """Install, serve, check conformance, run the controls. Raises Refused when nothing is left to try."""
    left_out: dict[str, str] = {}
    kits = _install(bench, left_out)
    environments = _environments(bench)
    rigs = _rigs(bench, _servers(bench, stack), kits, write, left_out)
    if bench.plan.smoke:
        rigs = _conforming(bench, rigs, environments, write, left_out)
    if not rigs:
        raise Refused("no cell is left to try: " + "; ".join(f"{name}: {why}" for name, why in left_out.items()))
    assignments = admit(bench, environments, write, left_out)
    _leave_out_leaks(bench, assignments, rigs, left_out)
    if not assignments:
        raise Refused("no task is left to try: " + "; ".join(f"{name}: {why}" for name, why in left_out.items()))
    return Setup(rigs=rigs, assignments=assignments, left_out=left_out)


def _install(bench: Bench, left_out: dict[str, str]) -> dict[str, tuple[Client, Installation]]:
    kits = {}
    for name in dict.fromkeys(cell.client for cell in bench.plan.cells):
        client = clients.find(name)
        try:
            kits[name] = (client, install.install(client, paths.cache_dir(), bench.watcher.say))
        except Refused as refusal:
            left_out[name] = str(refusal)
            bench.watcher.say(str(refusal))
    return kits


def _environments(bench: Bench) -> dict[str, Environment]:
    wanted = {bench.suite.tasks[task].target for task in bench.plan.tasks}
    targets = {name: bench.suite.targets[name] for name in sorted(wanted)}
    return {
        name: checkout.environment(target, paths.cache_dir(), bench.watcher.say) for name, target in targets.items()
    }


def _servers(bench: Bench, stack: ExitStack) -> dict[str, Server]:
    servers = {}
    for name in dict.fromkeys(cell.backend for cell in bench.plan.cells):
        begin = time.monotonic()
        servers[name] = _serve(stack, bench.backends[name], bench.watcher.say)
        bench.watcher.say(f"backend {name}: ready after {time.monotonic() - begin:.1f} s")
    return servers


def _serve(stack: ExitStack, backend: Backend, say: Callable[[str], None]) -> Server:
    server = Server(backend, paths.state_dir(), say)
    stack.callback(server.close)
    return server


def _rigs(
    bench: Bench,
    servers: Mapping[str, Server],
    kits: Mapping[str, tuple[Client, Installation]],
    write: Write,
    left_out: dict[str, str],
) -> dict[Cell, Rig]:
    """Each client of the plan in front of each server it can work with; a row says why of the others."""
    rigs: dict[Cell, Rig] = {}
    for cell in bench.plan.cells:
        if cell.client not in kits:
            continue
        (client, installation), server = kits[cell.client], servers[cell.backend]
        begin = time.monotonic()
        why = pairs.unsupported(client, server.endpoint, server.backend)
        if why is not None:
            write("smoke", _unsupported(cell, why, time.monotonic() - begin))
            left_out[str(cell)] = f"unsupported: {why}"
            bench.watcher.say(f"{cell}: unsupported: {why}")
            continue
        rigs[cell] = Rig(client=client, installation=installation, server=server, isolation=bench.plan.isolation)
    return rigs


def _unsupported(cell: Cell, why: str, seconds: float) -> SmokeRow:
    return SmokeRow(
        check="can_work_together",
        party="pair",
        backend=cell.backend,
        client=cell.client,
        outcome="unsupported",
        detail=why,
        seconds=round(seconds, 3),
    )


# ---- conformance ----

HARNESS: Final = Backend(name="conformance", engine="scripted", purpose="harness", script="nonce")


def _conforming(
    bench: Bench,
    rigs: Mapping[Cell, Rig],
    environments: Mapping[str, Environment],
    write: Write,
    left_out: dict[str, str],
) -> dict[Cell, Rig]:
    """Check each client once against the scripted engine; the cells of those that fail are left out."""
    readonly = next(iter(environments.values())).readonly if environments else ()
    begin = time.monotonic()
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        server = _serve(stack, HARNESS, lambda line: None)
        for name, rig in {cell.client: rig for cell, rig in rigs.items()}.items():
            harness = dataclasses.replace(rig, server=server)
            with _work_folder("smoke") as work:
                evidence = paths.state_dir() / "evidence" / bench.machine.id / "smoke" / work.name
                rows = smoke.check_client(harness, work, evidence, readonly)
            for row in rows:
                write("smoke", row)
            wrong = [f"{row.check} ({row.detail})" for row in rows if row.outcome == "failed"]
            if wrong:
                failed[name] = "does not conform: " + "; ".join(wrong)
    bench.watcher.say(
        f"conformance of {', '.join(dict.fromkeys(c.client for c in rigs))}: {time.monotonic() - begin:.1f} s"
    )
    for name, why in failed.items():
        left_out[name] = why
        bench.watcher.say(f"{name} {why}")
    return {cell: rig for cell, rig in rigs.items() if cell.client not in failed}


# ---- controls ----


def rehearse(bench: Bench, left_out: dict[str, str]) -> dict[str, trial.Assignment]:
    """Run the controls and write nothing: the tasks that a real run would try."""
    return admit(bench, _environments(bench), lambda kind, body: None, left_out)


def admit(
    bench: Bench, environments: Mapping[str, Environment], write: Write, left_out: dict[str, str]
) -> dict[str, trial.Assignment]:
    """Run both controls of every task; the tasks whose answers came out as known, ready to be tried."""
    admitted = {}
    for name in bench.plan.tasks:
        task = bench.suite.tasks[name]
        target, environment = bench.suite.targets[task.target], environments[task.target]
        begin = time.monotonic()
        with _work_folder("control") as work:
            tree = checkout.prepare(target, task, environment, work / "tree")
            pair = judge.controls(target, task, environment, work / "controls", bench.plan.isolation)
            evidence = _keep_logs(bench, work / "controls", task.id)
        for row in _control_rows(bench, task, pair, evidence):
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
    kept = paths.state_dir() / "evidence" / bench.machine.id / name
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
    yield row("excised", pair.excised, not pair.excised.green)


def _leave_out_leaks(
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
    with _work_folder("leaks") as work:
        trees = [
            checkout.prepare(one.target, one.task, one.environment, work / name) for name, one in assignments.items()
        ]
        found = checkout.leak_scan(trees, exposed, paths.cache_dir(), sandbox.hidden(bench.plan.isolation))
    for task, leaks in found.items():
        if leaks:
            left_out[task] = f"its answer can be read in the sandbox: {leaks[0].path} ({leaks[0].evidence})"
            bench.watcher.say(f"{task}: left out, {left_out[task]}")
            del assignments[task]
    bench.watcher.say(
        f"no answer in sight of the remaining {len(assignments)} tasks ({time.monotonic() - begin:.1f} s)"
    )


@contextmanager
def _work_folder(purpose: str) -> Iterator[Path]:
    """A folder for a moment, gone afterwards."""
    folder = paths.state_dir() / "work" / f"{purpose}-{ledger.new_id()}"
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        fsio.remove_tree(folder)


# ---- trials ----


def _run_owed(bench: Bench, setup: Setup, batch: str, done: list[tuple[Slot, Verdict]]) -> None:
    """Run slot after slot until nothing is owed or the person asks to stop; `done` grows with each row."""
    order = [slot for slot in slots(bench.plan) if slot.cell in setup.rigs and slot.task in setup.assignments]
    bench.interrupts.trials_begun = True
    while (left := owed(order, done)) and not bench.interrupts.level:
        slot = left[0]
        _check_head(bench)
        _check_disk()
        position = len(done) + 1
        attempt = 1 + sum(earlier == slot for earlier, _ in done)
        bench.watcher.trial_started(slot, position, position + len(left) - 1)
        setup.rigs[slot.cell].server.ready(new_arm=bool(done) and done[-1][0].cell != slot.cell)
        row = _one(bench, setup, batch, trial.Turn(slot=slot, attempt=attempt, position=position))
        done.append((slot, row.verdict))
        bench.watcher.trial_ended(row)


def _one(bench: Bench, setup: Setup, batch: str, turn: trial.Turn) -> TrialRow:
    rig, assignment = setup.rigs[turn.slot.cell], setup.assignments[turn.slot.task]
    row_id = ledger.new_id()
    name = f"{batch}/{turn.slot.task}-{turn.slot.backend}-{turn.slot.client}-{turn.slot.trial}-{turn.attempt}"
    place = trial.Place(
        work=paths.state_dir() / "work" / f"trial-{row_id}",
        evidence=paths.state_dir() / "evidence" / bench.machine.id / name,
        evidence_name=name,
    )
    if place.evidence.exists():  # left by a run that was killed before its row was written
        shutil.rmtree(place.evidence)
    row = trial.run(
        rig,
        assignment,
        turn,
        place,
        interrupts=bench.interrupts,
        show=bench.watcher.live,
        locked=bench.locked,
    )
    digest = bench.book.append_stamp(_stamp(bench, rig, assignment), machine=bench.machine.id, batch=batch)
    bench.book.append("trial", row, machine=bench.machine.id, batch=batch, stamp=digest, row_id=row_id)
    return row


def _stamp(bench: Bench, rig: Rig, assignment: trial.Assignment) -> dict[str, Any]:
    work = {
        "client": rig.client.name,
        "client_version": rig.installation.version,
        "dialect": rig.dialect,
        "client_settings": session.told(rig),
        "suite_digest": bench.suite.digest,
        "prompt_digest": assignment.prompt_digest,
        "task_digest": hashlib.sha256(msgspec.json.encode(assignment.task, order="sorted")).hexdigest(),
        "target_digest": assignment.target_digest,
        "environment_digest": assignment.environment.digest,
        "budgets": msgspec.to_builtins(assignment.budgets),
        "isolation": rig.isolation,
    }
    return stamp.assemble(
        stamp.of_code(bench.code, program=bench.program, flags=bench.argv, lab_digest=bench.lab.digest),
        stamp.of_machine(bench.machine),
        stamp.of_backend(rig.backend, rig.endpoint.facts, engine_host=_other_host(rig.endpoint.base_url)),
        work,
    )


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
