"""From a plan to what its trials need: servers, installations, environments, and clients that conform."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import msgspec

from benchmarks.lab import (
    clients,
    install,
    pairs,
    paths,
    smoke,
    trial,
)
from benchmarks.lab.batch.admission import admit, environments, leave_out_leaks
from benchmarks.lab.batch.bench import Bench, Write, refuse_if_none, work_folder
from benchmarks.lab.errors import Refused
from benchmarks.lab.install import Installation
from benchmarks.lab.model import Backend, Client, Environment
from benchmarks.lab.rows import SmokeRow
from benchmarks.lab.schedule import Cell
from benchmarks.lab.servers import Served
from benchmarks.lab.session import Rig


@dataclass(frozen=True)
class Setup:
    """What the trials need: rigs by cell, admitted tasks, and what was left out."""

    rigs: Mapping[Cell, Rig]
    assignments: Mapping[str, trial.Assignment]
    left_out: dict[str, str]


def serve(bench: Bench, stack: ExitStack) -> dict[str, Served]:
    """Every backend of the plan, by name, until `stack` closes. Raises LabError for one that does not answer."""
    servers = {}
    for name in dict.fromkeys(cell.backend for cell in bench.plan.cells):
        begin = time.monotonic()
        servers[name] = _serve(stack, bench.backends[name], bench.watcher.say)
        bench.watcher.say(f"backend {name}: ready after {time.monotonic() - begin:.1f} s")
    return servers


def prepare(bench: Bench, servers: Mapping[str, Served], write: Write) -> Setup:
    """Install, check conformance, run the controls. Raises Refused when nothing is left to try."""
    left_out: dict[str, str] = {}
    kits = _install(bench, write, left_out)
    built = environments(bench)
    rigs = _rigs(bench, servers, kits, write, left_out)
    if bench.plan.smoke and rigs:
        rigs = _conforming(bench, rigs, built, write, left_out)
    refuse_if_none("cell", rigs, left_out)
    assignments = admit(bench, built, write, left_out)
    leave_out_leaks(bench, assignments, rigs, left_out)
    refuse_if_none("task", assignments, left_out)
    return Setup(rigs=rigs, assignments=assignments, left_out=left_out)


def _install(bench: Bench, write: Write, left_out: dict[str, str]) -> dict[str, tuple[Client, Installation]]:
    kits = {}
    for name in dict.fromkeys(cell.client for cell in bench.plan.cells):
        client = clients.find(name)
        begin = time.monotonic()
        try:
            kits[name] = (client, install.install(client, paths.cache_dir(), bench.watcher.say))
        except Refused as refusal:
            seconds = round(time.monotonic() - begin, 3)
            row = SmokeRow(
                check="installs", party="client", client=name, outcome="failed", detail=str(refusal), seconds=seconds
            )
            write("smoke", row)
            left_out[name] = str(refusal)
            bench.watcher.say(str(refusal))
    return kits


def _serve(stack: ExitStack, backend: Backend, say: Callable[[str], None]) -> Served:
    server = Served(backend, paths.state_dir(), say)
    stack.callback(server.close)
    return server


def _rigs(
    bench: Bench,
    servers: Mapping[str, Served],
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
            write("smoke", _unsupported(cell, installation.version, why, time.monotonic() - begin))
            left_out[str(cell)] = f"unsupported: {why}"
            bench.watcher.say(f"{cell}: unsupported: {why}")
            continue
        rigs[cell] = Rig(client=client, installation=installation, server=server, isolation=bench.plan.isolation)
    return rigs


def _unsupported(cell: Cell, version: str, why: str, seconds: float) -> SmokeRow:
    return SmokeRow(
        check="can_work_together",
        party="pair",
        backend=cell.backend,
        client=cell.client,
        client_version=version,
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
            with work_folder("smoke") as work:
                name_kept = f"smoke/{work.name}"
                evidence = paths.evidence_dir(bench.machine.id) / name_kept
                rows = smoke.check_client(harness, work, evidence, readonly)
            for row in rows:
                write("smoke", msgspec.structs.replace(row, evidence=name_kept))
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
