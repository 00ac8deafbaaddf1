"""The algorithm of a batch: open or continue it, set up, run what is owed, close it."""

from __future__ import annotations

import time
from contextlib import ExitStack

import msgspec

from benchmarks.lab import (
    fsio,
    ledger,
    paths,
)
from benchmarks.lab.batch.bench import Bench, Outcome, Write, work_place
from benchmarks.lab.batch.setup import prepare, serve
from benchmarks.lab.batch.trials import run_owed
from benchmarks.lab.errors import Refused
from benchmarks.lab.model import Record, Verdict
from benchmarks.lab.rows import BatchEnd, BatchStart
from benchmarks.lab.schedule import Slot, given_up, owed, plan_digest, slots
from benchmarks.lab.text import count


def execute(bench: Bench) -> Outcome:
    """Run the plan to its end, or until the person stops it; a later call with the same plan goes on where it ended."""
    with ExitStack() as held:
        held.enter_context(work_place(bench.watcher.say, sweep=bench.locked))
        return _execute(bench, held)


def _execute(bench: Bench, held: ExitStack) -> Outcome:
    begin = time.monotonic()
    with ExitStack() as stack:
        servers = serve(bench, stack)  # first: a wrong address costs no download, and leaves no batch in the ledger
        batch, done = _open(bench, held)
        setup = prepare(bench, servers, _writer(bench, batch))
        run_owed(bench, setup, batch, done)
    every = slots(bench.plan)
    still = owed(
        [slot for slot in every if slot.cell in setup.rigs and slot.task in setup.assignments],
        done,
        bench.plan.void_reruns,
    )
    counted = {slot for slot, verdict in done if verdict != "void"}
    voids = sum(verdict == "void" for _, verdict in done)
    outcome = Outcome(
        batch=batch,
        done=len(counted),
        void=voids,
        given_up=given_up(every, still, done),
        interrupted=bool(still),
        left_out=setup.left_out,
    )
    if not still:
        end = BatchEnd(
            done=outcome.done, void=voids, given_up=outcome.given_up, seconds=round(time.monotonic() - begin, 1)
        )
        bench.book.append("batch_end", end, machine=bench.machine.id, batch=batch)
    return outcome


def _open(bench: Bench, held: ExitStack) -> tuple[str, list[tuple[Slot, Verdict]]]:
    """Continue the newest unfinished batch of this plan, or start one; its id and its results so far.

    The batch is claimed until `held` closes: two programs that continue one batch would do its slots twice.
    """
    digest = plan_digest(bench.plan)
    claimed = None
    while (found := _unfinished(bench, digest)) is not None and found.batch != claimed:
        _claim(bench, found.batch, held)
        claimed = found.batch  # and look again: it may have grown, or ended, before it was ours
    if found is not None:
        done = [(Slot(**key._asdict()), verdict) for key, verdict in found.results]
        voids = sum(verdict == "void" for _, verdict in done)
        bench.watcher.say(
            f"continuing batch {found.batch}: {count(len(done) - voids, 'trial')} counted already, {voids} void"
        )
        return found.batch, done
    batch = ledger.new_id()
    _claim(bench, batch, held)
    start = BatchStart(
        program=bench.program,
        argv=bench.argv,
        plan=msgspec.to_builtins(bench.plan, str_keys=True),
        plan_digest=digest,
        slots=len(slots(bench.plan)),
    )
    bench.book.append("batch_start", start, machine=bench.machine.id, batch=batch, row_id=batch)
    return batch, []


def _unfinished(bench: Bench, digest: str) -> ledger.Resume | None:
    """This machine's: another one's trials, in a ledger that was carried over, are no results of this plan here."""
    own = (row for row in ledger.read(bench.book.path) if row.machine == bench.machine.id)
    return None if bench.fresh else ledger.resume(own, digest)


def _claim(bench: Bench, batch: str, held: ExitStack) -> None:
    evidence = paths.evidence_dir(bench.machine.id) / batch
    if not held.enter_context(fsio.hold_folder(evidence)):
        raise Refused(
            f"another program is running batch {batch}, which has this very plan, now; wait for it or end it; "
            "--fresh starts a batch of its own"
        )


def _writer(bench: Bench, batch: str) -> Write:
    def write(kind: str, body: Record) -> None:
        bench.book.append(kind, body, machine=bench.machine.id, batch=batch)

    return write
