"""One trial from a prepared workspace to a row: run the client, read its diff, judge it, rule.

It knows nothing of batches, ledgers or engines' start-up; the caller hands over a `Rig` and writes the row. A failure
of the harness itself ends in a void row, never in a lost one.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.lab import checkout, findings, fsio, judge, session, shares, stamp, tally, verdict
from benchmarks.lab.engines.base import TrialContext
from benchmarks.lab.errors import LabError
from benchmarks.lab.meter import Live, sentence
from benchmarks.lab.model import (
    Budgets,
    Checkout,
    ClientReport,
    EngineFacts,
    Environment,
    Judgement,
    Patch,
    Ruling,
    Target,
    Task,
    VoidReason,
)
from benchmarks.lab.rows import ClaimsRow, JudgeRow, PatchRow, TrialRow
from benchmarks.lab.schedule import Slot

MAX_LISTED = 50  # of any list on a row: a row stays readable
# What must stay while a trial runs; `started` is told to the second by some and drifts.
ENGINE_IDENTITY = (
    "process", "engine", "version", "model_id", "model_digest", "quantization", "context", "sampler", "slots",
    "speculative",
)  # fmt: skip
MAX_LOOKED_AT = 50_000  # entries of the client's home


@dataclass(frozen=True)
class Assignment:
    """A task ready to be tried: admitted by this batch's controls, with the tests that must be green."""

    suite: str
    target: Target
    task: Task
    environment: Environment
    required: tuple[str, ...]
    gold_seconds: float
    budgets: Budgets
    prompt_digest: str
    target_digest: str


@dataclass(frozen=True)
class Place:
    """Folders of one trial: `work` is deleted afterwards, `evidence` is kept; `evidence_name` is what the row says."""

    work: Path
    evidence: Path
    evidence_name: str


@dataclass(frozen=True)
class Attempt:
    """Which slot this is, which attempt at it, and its place in the batch's order (both from 1)."""

    slot: Slot
    attempt: int
    position: int


def run(
    rig: session.Rig,
    assignment: Assignment,
    attempt: Attempt,
    place: Place,
    *,
    facts: EngineFacts,
    interrupts: session.Interrupts,
    show: Callable[[Live], None],
    locked: bool,
) -> TrialRow:
    """Run one trial; always returns a row, void when it measured something else than the cell.

    `facts`: what the engine tells of itself now, which the row's stamp says.
    """
    begin = time.monotonic()
    common: dict[str, Any] = {
        "task": assignment.task.id,
        "target": assignment.target.name,
        "suite": assignment.suite,
        "tier": assignment.task.tier,
        "backend": attempt.slot.backend,
        "client": attempt.slot.client,
        "purpose": rig.backend.purpose,
        "isolation": rig.isolation,
        "trial": attempt.slot.trial,
        "attempt": attempt.attempt,
        "position": attempt.position,
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "locked": locked,
        "evidence": place.evidence_name,
    }
    try:
        with _folders(place):
            common["volatile"] = stamp.volatile(facts.started)
            measured = _measure(rig, assignment, place, interrupts, show, facts=facts)
    except Exception as error:  # a bug of ours must not cost the batch, nor look like a failure of the cell
        now = stamp.volatile()
        return TrialRow(**{"volatile": now, **common}, **_void_fields(error), wall_seconds=None, volatile_end=now)
    spent = time.monotonic() - begin
    outside = spent - measured["wall_seconds"] - (measured["judge"].seconds if measured["judge"] else 0.0)
    return TrialRow(**common, **measured, harness_seconds=round(outside, 3), volatile_end=stamp.volatile())


def _measure(
    rig: session.Rig,
    assignment: Assignment,
    place: Place,
    interrupts: session.Interrupts,
    show: Callable[[Live], None],
    *,
    facts: EngineFacts,
) -> dict[str, Any]:
    """Prepare, run, read, judge, rule; the fields of the row that these give."""
    tree = checkout.prepare(assignment.target, assignment.task, assignment.environment, place.work / "workspace")
    seen = session.run(rig, _brief(rig, assignment, tree, place), interrupts, show)
    patch = checkout.collect(tree)
    (place.evidence / "patch.diff").write_bytes(patch.diff)
    judgement = _judge(rig, assignment, tree, patch, place) if patch.files else None
    known = _seen(rig, assignment, tree, place=place, seen=seen, patch=patch, judgement=judgement, facts=facts)
    ruling = verdict.rule(findings.evidence(known))
    return {
        **_ruled(ruling),
        **_session_fields(seen),
        "judge": judge_row(judgement, len(assignment.required)) if judgement else None,
        "patch": _patch_row(patch),
        "source_repo_intact": tree.source_intact,
    }


def _seen(
    rig: session.Rig,
    assignment: Assignment,
    tree: Checkout,
    *,
    place: Place,
    seen: session.Session,
    patch: Patch,
    judgement: Judgement | None,
    facts: EngineFacts,
) -> findings.Seen:
    return findings.Seen(
        exchanges=seen.exchanges,
        report=seen.report,
        exit=seen.exit,
        ended_detail=seen.ended_detail,
        counters_agree=_counters_agree(seen),
        patch=patch,
        judgement=judgement,
        egress=seen.egress,
        voids={**seen.voids, **engine_voids(rig, facts), **_source_void(tree)},
        model=rig.endpoint.model,
        names=rig.endpoint.names,
        workspace=seen.workspace,
        stray_answers=stray_answers(place.work / "home", tree),
        judge_limit_seconds=assignment.target.suite_seconds,
        gold_seconds=assignment.gold_seconds,
    )


def _brief(rig: session.Rig, assignment: Assignment, tree: Checkout, place: Place) -> session.Brief:
    return session.Brief(
        trial_id=place.work.name,
        session_id=str(uuid.uuid4()),
        prompt=tree.prompt,
        workspace=tree.workspace,
        home=place.work / "home",
        evidence=place.evidence,
        files=tree.allowed,
        readonly=assignment.environment.readonly,
        budgets=assignment.budgets,
        context=TrialContext(
            script=rig.backend.script,
            solution=tree.solution,
            files=tree.allowed,
            tests=_a_test_file(assignment.required, tree.allowed),
        ),
    )


def _a_test_file(required: Sequence[str], allowed: Sequence[str]) -> str | None:
    """A file of tests that the task may not change (doctests stand in the file that it may)."""
    return next((file for test in required if (file := test.split("::")[0]) not in allowed), None)


def _judge(rig: session.Rig, assignment: Assignment, tree: Checkout, patch: Patch, place: Place) -> Judgement:
    return judge.judge(
        tree, patch.files, assignment.required, rig.isolation, place.work / "judge", place.evidence / "judge.log"
    )


def stray_answers(home: Path, tree: Checkout) -> tuple[str, ...]:
    """Edited files in the client's home that end in an allowed path: an answer in the wrong folder (case 1).

    A copy of the file as it was given, a backup, is no answer.
    """
    found = (
        (path, str(file.relative_to(home)))
        for path in tree.allowed
        for file in fsio.find_suffix(home, path, MAX_LOOKED_AT)
    )
    return tuple(file for path, file in found if _text_of(home, file) not in (None, tree.given.get(path)))[:MAX_LISTED]


def _text_of(home: Path, file: str) -> bytes | None:
    try:
        return checkout.read_inside(home, file)
    except checkout.Unreadable:
        return None


def engine_voids(rig: session.Rig, before: EngineFacts) -> Mapping[VoidReason, str]:
    """An engine whose process is another one now was restarted by somebody, one that tells other facts was changed;
    one that is gone died by itself."""
    try:
        after = rig.endpoint.facts_now()
    except LabError:
        return {}
    moved = [name for name in ENGINE_IDENTITY if _differ(getattr(before, name), getattr(after, name))]
    if not moved:
        return {}
    told = ", ".join(f"{name} was {getattr(before, name)} and is {getattr(after, name)}" for name in moved)
    return {"engine_restarted" if "process" in moved else "version_drift": f"during the trial the engine's {told}"}


def _differ(before: object, after: object) -> bool:
    return before is not None and after is not None and before != after


def _session_fields(seen: session.Session) -> dict[str, Any]:
    calls = tally.model_calls(seen.exchanges)
    return {
        "wall_seconds": round(seen.wall, 3),
        "shares": shares.shares(seen.exchanges, seen.wall),
        "tokens": tally.tokens(calls),
        "tokens_auxiliary": tally.tokens([call for call in calls if call.auxiliary]),
        "turns": tally.turns(calls),
        "exchanges": tally.exchanges_row(calls, seen.refused_after_end, seen.reread_tokens),
        "engine_counters": seen.counters,
        "counters_agree": _counters_agree(seen),
        "client_report": claims(seen.report),
        "exit": seen.exit,
        "egress_attempts": seen.egress,
        "strays": len(seen.strays),
        "output_bytes": seen.output_bytes,
        "notes": tuple(sentence(note) for note in seen.prefix_notes[:MAX_LISTED]),
    }


def _counters_agree(seen: session.Session) -> bool | None:
    calls = tally.model_calls(seen.exchanges)
    return tally.counters_agree(tally.tokens(calls), seen.counters, calls)


def _source_void(tree: Checkout) -> Mapping[VoidReason, str]:
    """A person's own repository that changed while its export was made is not the pinned one."""
    if tree.source_intact is not False:
        return {}
    return {"harness_error": "the target's own repository changed during its export"}


def _ruled(ruling: Ruling) -> dict[str, Any]:
    return {name: getattr(ruling, name) for name in ("verdict", "cause", "who", "reason", "detail", "flags")}


def _void_fields(error: Exception) -> dict[str, Any]:
    words = str(error) if isinstance(error, LabError) else f"{type(error).__name__}: {error}"
    return {"verdict": "void", "reason": fsio.void_reason(error), "detail": words}


def claims(report: ClientReport) -> ClaimsRow:
    """What the ledger keeps of a client's report: not its last words, which may quote private code."""
    return ClaimsRow(**{name: getattr(report, name) for name in ClaimsRow.__struct_fields__})


def judge_row(judgement: Judgement, required: int) -> JudgeRow:
    """What the ledger keeps of a judged run."""
    return JudgeRow(
        green=judgement.green,
        passed=judgement.passed,
        failed=judgement.failed,
        skipped=judgement.skipped,
        collected=judgement.collected,
        required=required,
        missing=judgement.missing[:MAX_LISTED],
        seconds=round(judgement.seconds, 3),
        ended_by=judgement.ended_by,
        forged=judgement.forged,
    )


def _patch_row(patch: Patch) -> PatchRow:
    return PatchRow(
        files=tuple(patch.files),
        lines_added=patch.lines_added,
        lines_removed=patch.lines_removed,
        touched_tests=patch.touched_tests[:MAX_LISTED],
        touched_other=patch.touched_other[:MAX_LISTED],
        unreadable=patch.unreadable[:MAX_LISTED],
    )


@contextmanager
def _folders(place: Place) -> Iterator[None]:
    """The trial's own folders; the work folder is gone afterwards, whatever the agent did to it."""
    for folder in (place.work / "home", place.evidence):
        folder.mkdir(parents=True)
    try:
        yield
    finally:
        fsio.remove_tree(place.work)
