"""The one table that says what a trial means: evidence in, ruling out, first match wins.

It is pure and knows nothing of how the evidence was seen (that is `findings`). Exit codes decide nothing here: several
clients leave with 0 after a fatal error, and one leaves with 1 after an error it recovered from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, get_args

from benchmarks.lab.model import EndedBy, FailCause, Flag, Judgement, Record, Ruling, SuiteEnd, VoidReason, Who

VOID_ORDER: Final[tuple[VoidReason, ...]] = get_args(VoidReason)

# The gold run must stay this many times below a judge's limit before exceeding the limit is the model's fault.
FAR_BELOW: Final = 4.0

_WHO: Final[Mapping[FailCause, Who]] = {
    "wrong": "model",
    "no_edit": "model",
    "loop": "model",
    "malformed_tool_calls": "model",
    "budget_wall": "model",
    "budget_turns": "model",
    "budget_tokens": "model",
    "budget_disk": "model",
    "budget_memory": "model",
    "budget_processes": "model",
    "too_slow": "model",
    "out_of_memory": "model",
    "client_error": "client",
    "engine_error": "engine",
    "context_overflow": "backend",
}

_BUDGET_CAUSE: Final[Mapping[EndedBy, FailCause]] = {
    "wall": "budget_wall",
    "stall": "stalled",
    "turns": "budget_turns",
    "tokens": "budget_tokens",
    "loop": "loop",
    "disk": "budget_disk",
    "memory": "budget_memory",
    "processes": "budget_processes",
}


_BROKEN_SUITE: Final[Mapping[SuiteEnd, str]] = {
    "disk": "the suite wrote more than its disk limit",
    "processes": "the suite started more processes than its limit",
    "crash": "the suite ended without its results",
}


class Evidence(Record, frozen=True, kw_only=True):
    """What was seen of one trial. A `str` is one sentence with the facts; None means it did not happen.

    `judgement` is None when no allowed path changed (the suite need not run: `excised` is known to fail).
    `stall_by` says who owed the next byte when a stall ended the trial.
    """

    voids: Mapping[VoidReason, str]
    ended_by: EndedBy
    changed: bool
    judgement: Judgement | None
    judge_limit_seconds: float
    gold_seconds: float | None
    ended_detail: str | None = None  # which budget, and how far it was passed
    stall_by: Who | None = None
    stall_detail: str | None = None
    engine_fatal: str | None = None
    context_refused: str | None = None
    looped: str | None = None  # the client's own guard against a model that repeats itself
    client_fatal: str | None = None
    malformed: str | None = None
    cut_off: bool = False
    egress_attempted: bool = False
    history_read: bool = False
    touched_tests: bool = False
    client_rc: bool = False
    counters_differ: bool = False  # the engine's own totals are not the meter's sums


def rule(evidence: Evidence) -> Ruling:
    """The verdict of the first row of the table that applies."""
    for row in _TABLE:
        ruling = row(evidence)
        if ruling is not None:
            return ruling
    raise AssertionError("the last row of the verdict table always applies")


def _void(evidence: Evidence) -> Ruling | None:
    for reason in VOID_ORDER:
        if reason in evidence.voids:
            return Ruling(verdict="void", reason=reason, detail=evidence.voids[reason], flags=_flags(evidence))
    return None


def _budget(evidence: Evidence) -> Ruling | None:
    cause = _BUDGET_CAUSE.get(evidence.ended_by)
    if cause is None:
        return None
    flags = _flags(evidence)
    if _green(evidence):
        flags = ("would_pass", *flags)
    who = (evidence.stall_by or "engine") if cause == "stalled" else _WHO[cause]
    detail = evidence.stall_detail if cause == "stalled" else evidence.ended_detail
    return Ruling(verdict="failed", cause=cause, who=who, detail=detail, flags=flags)


def _passed(evidence: Evidence) -> Ruling | None:
    return Ruling(verdict="passed", flags=_flags(evidence)) if _green(evidence) else None


def _judge_limits(evidence: Evidence) -> Ruling | None:
    judgement = evidence.judgement
    if judgement is None or judgement.ended_by not in ("wall", "memory"):
        return None
    gold = evidence.gold_seconds
    if judgement.ended_by == "wall" and (gold is None or gold * FAR_BELOW > evidence.judge_limit_seconds):
        seen = "unknown" if gold is None else f"{gold:.1f} s"
        detail = (
            f"the suite ran into its {evidence.judge_limit_seconds:.0f} s limit, but the gold run ({seen}) is near it"
        )
        return Ruling(verdict="void", reason="control_broken", detail=detail, flags=_flags(evidence))
    return _failed(evidence, "too_slow" if judgement.ended_by == "wall" else "out_of_memory")


def _not_green(evidence: Evidence) -> Ruling | None:
    causes: tuple[tuple[FailCause, str | None], ...] = (
        ("engine_error", evidence.engine_fatal),
        ("context_overflow", evidence.context_refused),
        ("loop", evidence.looped),
        ("client_error", evidence.client_fatal),
        ("malformed_tool_calls", evidence.malformed),
    )
    for cause, detail in causes:
        if detail is not None:
            return _failed(evidence, cause, detail)
    return _failed(evidence, "wrong", _broken_suite(evidence)) if evidence.changed else _failed(evidence, "no_edit")


def _broken_suite(evidence: Evidence) -> str | None:
    """Why a suite that ran with the change gave no results, if it did not."""
    ended_by = None if evidence.judgement is None else evidence.judgement.ended_by
    return _BROKEN_SUITE.get(ended_by) if ended_by is not None else None


_TABLE: Final[tuple[Callable[[Evidence], Ruling | None], ...]] = (
    _void,  # 1
    _budget,  # 2
    _passed,  # 3
    _judge_limits,  # 4
    _not_green,  # 5 (nothing changed) and 6 (changed): the same causes, then no_edit or wrong
)


def _failed(evidence: Evidence, cause: FailCause, detail: str | None = None) -> Ruling:
    return Ruling(verdict="failed", cause=cause, who=_WHO[cause], detail=detail, flags=_flags(evidence))


def _green(evidence: Evidence) -> bool:
    return evidence.judgement is not None and evidence.judgement.green


def _flags(evidence: Evidence) -> tuple[Flag, ...]:
    seen: tuple[tuple[Flag, bool], ...] = (
        ("cut_off", evidence.cut_off),
        ("egress_attempted", evidence.egress_attempted),
        ("history_read", evidence.history_read),
        ("touched_tests", evidence.touched_tests),
        ("client_rc", evidence.client_rc and _green(evidence)),
        ("forged_results", evidence.judgement is not None and evidence.judgement.forged),
        ("counters_differ", evidence.counters_differ),
    )
    return tuple(flag for flag, is_set in seen if is_set)
