"""One run of a client against an endpoint in a sandbox: start, watch the budgets, end, and report what was seen.

It judges nothing and writes no row; `trial` and `smoke` do. It guarantees that after it returns no process of the run
is alive and the meter takes no more requests of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.lab import fsio, proc
from benchmarks.lab.engines.base import Endpoint, TrialContext
from benchmarks.lab.errors import UsageError
from benchmarks.lab.install import Installation
from benchmarks.lab.meter import Expectation, Live, MeterTrial, PrefixNote
from benchmarks.lab.model import (
    Artifacts,
    Backend,
    Budgets,
    Client,
    ClientEndpoint,
    ClientReport,
    Dialect,
    EgressAttempt,
    EndedBy,
    EngineCounters,
    Exchange,
    ExitStatus,
    Isolation,
    Launch,
    LaunchSpec,
    Record,
    VoidReason,
)
from benchmarks.lab.sandbox import Box, Limits, Running, SandboxSpec, Stray, open_box
from benchmarks.lab.servers import Served

POLL_SECONDS = 0.05
SLEEP_GAP_SECONDS = 5.0  # by which the clocks may disagree before the machine counts as having slept
END_GRACE_SECONDS = 2.0  # between SIGTERM and SIGKILL
MAX_LINE_BYTES = 1 << 20  # of one line of the client's output, when it is read
SAME_REQUEST_SECONDS = 0.3  # a person does not press Ctrl-C twice within this
STOP_NOW = 2  # level of interrupts that ends the trial under way


@dataclass(frozen=True)
class Rig:
    """What stays the same over the trials of a cell: the client, its engine behind a meter, and the sandbox level."""

    client: Client
    installation: Installation
    server: Served
    isolation: Isolation

    @property
    def backend(self) -> Backend:
        """The backend's entry."""
        return self.server.backend

    @property
    def endpoint(self) -> Endpoint:
        """The engine as it is reached now."""
        return self.server.endpoint

    @property
    def dialect(self) -> Dialect:
        """The dialect both sides speak, in the client's order of preference; UsageError if there is none."""
        for dialect in self.client.dialects:
            if dialect in self.endpoint.dialects:
                return dialect
        raise UsageError(
            f"client {self.client.name} speaks {', '.join(self.client.dialects)}, but backend {self.backend.name} only "
            f"{', '.join(self.endpoint.dialects)}: choose another client, or an engine that speaks one of them"
        )


class Brief(Record, frozen=True, kw_only=True):
    """What one run is given. `workspace`, `home` and `evidence` are folders on the host that exist and are its own."""

    trial_id: str
    session_id: str
    prompt: str
    workspace: Path
    home: Path
    evidence: Path
    files: tuple[str, ...]
    readonly: tuple[Path, ...]
    budgets: Budgets
    context: TrialContext


class Session(Record, frozen=True, kw_only=True):
    """What was seen of one run. Times in seconds; `counters` None when the engine keeps none."""

    exchanges: tuple[Exchange, ...]
    report: ClientReport
    exit: ExitStatus
    ended_detail: str | None  # which budget ended it, if one did
    wall: float
    workspace: str  # as the client saw it
    egress: tuple[EgressAttempt, ...] | None
    counters: EngineCounters | None
    strays: tuple[Stray, ...]
    refused_after_end: int
    output_bytes: int
    voids: Mapping[VoidReason, str]
    prefix_notes: tuple[PrefixNote, ...]  # turns that lost cached prompt
    reread_tokens: int | None


class Interrupts:
    """How often the person asked to stop: once, after this trial; twice, now. Shared with the signal handler."""

    def __init__(self) -> None:
        self.level = 0
        self.trials_begun = False
        self._last = -math.inf

    def raise_level(self, at: float) -> bool:
        """A signal came at this monotonic time; whether it is one more request to stop.

        `uv run` passes on a signal that the terminal, or `timeout`, has already sent to the whole group: the second of
        the pair is the same request.
        """
        new = at - self._last > SAME_REQUEST_SECONDS
        self.level += new
        self._last = at
        return new


def run(rig: Rig, brief: Brief, interrupts: Interrupts, show: Callable[[Live], None] = lambda live: None) -> Session:
    """Run the client once; returns when it and everything it started are gone."""
    spec = SandboxSpec(
        isolation=rig.isolation,
        workspace=brief.workspace,
        home=brief.home,
        readonly=(*rig.installation.readonly, *brief.readonly),
        path=rig.installation.path,
        network=True,
        limits=_limits(brief.budgets),
        trial_id=brief.trial_id,
    )
    expect = Expectation(prompt=brief.prompt)
    with open_box(spec) as box, rig.endpoint.trial(_seen_from(brief, box)) as counters:
        launch = rig.client.launch(_launch_spec(rig, brief, box))
        running = _start(box, launch, brief)
        if running.listener is None:
            raise AssertionError("a box with a network has a listener")
        try:
            metered = rig.server.meter.open_trial(brief.trial_id, running.listener, expect, brief.evidence)
            clocks = proc.clocks()
            started = time.monotonic()
            metered.set_start(started)
            ended_by, ended_detail = _Watched(running, metered, brief.budgets, interrupts, started).until_end(show)
            wall = time.monotonic() - started
            gone = running.poll()
        finally:
            strays = running.end(END_GRACE_SECONDS)
        exchanges = metered.close()
        slept = proc.slept_between(clocks, proc.clocks())
    code, killed_by = gone or (None, None)
    status = ExitStatus(code=code, signal=killed_by, ended_by=ended_by)
    return Session(
        exchanges=exchanges,
        report=_read(rig.client, brief, status),
        exit=status,
        ended_detail=ended_detail,
        wall=wall,
        workspace=box.workspace,
        egress=running.egress(),
        counters=counters.result,
        strays=strays,
        refused_after_end=metered.refused_after_end(),
        output_bytes=running.output_bytes(),
        voids=_voids(ended_by, slept, metered, running),
        prefix_notes=metered.prefix_notes(),
        reread_tokens=metered.reread_tokens(),
    )


def _limits(budgets: Budgets) -> Limits:
    return Limits(
        memory_bytes=budgets.memory_bytes,
        processes=budgets.processes,
        file_bytes=budgets.disk_bytes,
        disk_bytes=budgets.disk_bytes,
    )


def _seen_from(brief: Brief, box: Box) -> TrialContext:
    """The context handed to the engine out of band, with the workspace as the client sees it."""
    return msgspec.structs.replace(brief.context, workspace=box.workspace)


def told(rig: Rig) -> dict[str, Any]:
    """What the client is told of the model's limits, which changes how it behaves."""
    return {"context": rig.endpoint.facts.context or rig.backend.context, "output_cap": rig.backend.max_tokens}


def _launch_spec(rig: Rig, brief: Brief, box: Box) -> LaunchSpec:
    endpoint = ClientEndpoint(
        base_url=f"http://127.0.0.1:{box.port}", dialect=rig.dialect, model=rig.endpoint.model, **told(rig)
    )
    return LaunchSpec(
        prompt=brief.prompt,
        endpoint=endpoint,
        workspace=box.workspace,
        home=box.home,
        budgets=brief.budgets,
        session_id=brief.session_id,
        files=brief.files,
        reasoning_effort=rig.backend.reasoning_effort,
    )


def _start(box: Box, launch: Launch, brief: Brief) -> Running:
    for name, text in launch.files.items():
        path = brief.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    stdin = None
    if launch.stdin is not None:
        stdin = brief.evidence / "stdin.txt"
        stdin.write_bytes(launch.stdin.encode())
    return box.start(
        argv=launch.argv,
        env={**box.base_env(), **launch.env},
        stdin=stdin,
        stdout=brief.evidence / "stdout.txt",
        stderr=brief.evidence / "stderr.txt",
        output_limit=brief.budgets.output_bytes,
    )


@dataclass(frozen=True)
class _Watched:
    """A run under way and what may end it."""

    running: Running
    metered: MeterTrial
    budgets: Budgets
    interrupts: Interrupts
    started: float  # monotonic

    def until_end(self, show: Callable[[Live], None]) -> tuple[EndedBy, str | None]:
        """Wait until the client leaves or something ends the run; says what, and which limit was passed."""
        while self.running.poll() is None:
            live = self.metered.live()
            show(live)
            over = next(((name, words) for name, is_over, words in self._limits(live) if is_over), None)
            if over is not None:
                return over
            self.running.wait(POLL_SECONDS)
        return "client", None

    def _limits(self, live: Live) -> Iterator[tuple[EndedBy, bool, str]]:
        budgets, now = self.budgets, time.monotonic()
        moved = max(self.started, live.last_progress or 0.0, self.running.last_output() or 0.0)
        over = self.running.over_limit()
        wall, turns, tokens, repeats = budgets.wall_seconds, budgets.turns, budgets.output_tokens, budgets.loop_repeats
        yield "interrupt", self.interrupts.level >= STOP_NOW, "stopped by the person at the keyboard"
        yield "wall", now - self.started > wall, f"the budget is {wall:g} s"
        yield "stall", now - moved > budgets.stall_seconds, f"nothing moved for {budgets.stall_seconds:g} s"
        yield "turns", turns is not None and live.turns > turns, f"{live.turns} turns, the budget is {turns}"
        yield "tokens", tokens is not None and live.output > tokens, f"{live.output} tokens, the budget is {tokens}"
        yield "loop", repeats is not None and live.repeats >= repeats, f"the same call {live.repeats} times in a row"
        yield "disk", over == "disk", f"more than {budgets.disk_bytes} bytes written"
        yield "memory", over == "memory", f"more than {budgets.memory_bytes} bytes of memory"
        yield "processes", over == "processes", f"more than {budgets.processes} processes"


def _read(client: Client, brief: Brief, status: ExitStatus) -> ClientReport:
    def lines(name: str) -> Callable[[], Iterable[str]]:
        return lambda: fsio.lines(brief.evidence / name, MAX_LINE_BYTES)

    artifacts = Artifacts(stdout=lines("stdout.txt"), stderr=lines("stderr.txt"), home=brief.home, exit=status)
    return client.read(artifacts)


def _voids(ended_by: EndedBy, slept: float, metered: MeterTrial, running: Running) -> dict[VoidReason, str]:
    voids: dict[VoidReason, str] = {}
    if slept > SLEEP_GAP_SECONDS:
        voids["machine_slept"] = f"the machine slept for {slept:.0f} s during the trial"
    if ended_by == "interrupt":
        voids["interrupted"] = "stopped by the person at the keyboard"
    if faults := metered.faults():
        voids["meter_error"] = faults[0]
    if unwritten := running.output_problem() or metered.unwritten():
        voids["disk_full"] = f"what the trial printed or exchanged could not be kept: {unwritten}"
    return voids
