"""From what a trial left behind to the evidence that the verdict table reads. Pure: records in, records out.

Covers: which void reasons the exchanges, the client's report and its files prove; whose fault an ending was; the flags.
Does not cover: voids that only the running harness can see (sleep, disk full, interruption): `trial` hands those over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.lab import tally
from benchmarks.lab.model import (
    ClientReport,
    EgressAttempt,
    Exchange,
    ExitStatus,
    Judgement,
    Patch,
    Record,
    VoidReason,
    Who,
)
from benchmarks.lab.verdict import Evidence

# `git log` in a workspace of one orphan commit shows nothing; a run that looked is still told apart.
_HISTORY: Final = re.compile(r"\bgit\b[^\n|;&]*\b(log|show|reflog|fsck|cat-file|rev-list|blame|stash)\b|\.git/objects")

_ENGINE_ENDS: Final = ("engine_closed", "engine_unreachable", "error_event")


class Seen(Record, frozen=True, kw_only=True):
    """Everything one trial left, and what was expected of it. Paths are as the client saw them."""

    exchanges: tuple[Exchange, ...]
    report: ClientReport
    exit: ExitStatus
    ended_detail: str | None  # which budget ended it, if one did
    counters_agree: bool | None
    patch: Patch
    judgement: Judgement | None
    egress: tuple[EgressAttempt, ...] | None
    voids: Mapping[VoidReason, str]  # seen by the harness itself
    model: str  # the name the client was told to ask for
    names: tuple[str, ...]  # names that may answer
    workspace: str
    stray_answers: tuple[str, ...]  # edited files like an allowed path, outside the workspace
    judge_limit_seconds: float
    gold_seconds: float | None


def evidence(seen: Seen) -> Evidence:
    """The evidence of a trial, ready for `verdict.rule`."""
    calls = tally.model_calls(seen.exchanges)
    changed = bool(seen.patch.files)
    stall_by, stall_detail = stalled_by(calls)
    return Evidence(
        voids={**void_reasons(seen, calls), **seen.voids},
        ended_by=seen.exit.ended_by,
        changed=changed,
        judgement=seen.judgement,
        judge_limit_seconds=seen.judge_limit_seconds,
        gold_seconds=seen.gold_seconds,
        ended_detail=seen.ended_detail,
        stall_by=stall_by,
        stall_detail=stall_detail,
        engine_fatal=engine_fatal(last_call(calls, seen.report)),
        context_refused=context_refused(last_call(calls, seen.report), seen.report),
        looped=seen.report.error if seen.report.error_kind == "loop" else None,
        client_fatal=client_fatal(seen.report, seen.exit),
        malformed=malformed(calls, only_last=changed),
        cut_off=any(exchange.cut_off for exchange in calls),
        egress_attempted=bool(seen.egress),
        history_read=any(_HISTORY.search(call.arguments) for exchange in calls for call in exchange.calls),
        touched_tests=bool(seen.patch.touched_tests),
        client_rc=seen.exit.ended_by == "client" and seen.exit.code != 0,
        counters_differ=seen.counters_agree is False,
    )


def void_reasons(seen: Seen, calls: Sequence[Exchange]) -> dict[VoidReason, str]:
    """The void reasons that the records prove, each with its facts."""
    found: dict[VoidReason, str | None] = {
        "wrong_workspace": _wrong_workspace(seen),
        "prompt_altered": _prompt_altered(calls),
        "model_mismatch": _model_mismatch(calls, seen.model, seen.names),
        "client_impatient": _impatient(calls),
    }
    return {reason: detail for reason, detail in found.items() if detail is not None}


def stalled_by(calls: Sequence[Exchange]) -> tuple[Who, str]:
    """Who owed the next byte when nothing moved any more, and the sentence that says so."""
    if not calls:
        return "client", "no request was ever made"
    last = calls[-1]
    repeats = sum(exchange.duplicate_of is not None for exchange in calls)
    if _engine_failed(last):
        return "engine", f"{len(calls)} requests ({repeats} identical), the last one: {_engine_words(last)}"
    if last.t_first_byte is None:
        return "engine", f"request {last.index} waited {last.t_end - last.t_request_end:.0f} s without a byte"
    if last.partial:
        return "engine", f"the reply to request {last.index} stopped in the middle"
    return "client", f"nothing happened after the reply to request {last.index}"


def last_call(calls: Sequence[Exchange], report: ClientReport) -> Exchange | None:
    """The call whose failure may have ended the run: the last turn; a side request only if the client itself failed.

    The agent's own commands reach the engine too: what they provoke there is no failure of the run.
    """
    turns = [call for call in calls if not call.auxiliary]
    return (calls if report.terminal == "error" or not turns else turns)[-1] if calls else None


def engine_fatal(last: Exchange | None) -> str | None:
    """The engine's failure that ended the run: the last model call failed for another reason than its context."""
    if last is None or not _engine_failed(last):
        return None
    return None if last.error_kind in ("context", "tool_json") else _engine_words(last)


def context_refused(last: Exchange | None, report: ClientReport) -> str | None:
    """The engine's refusal for want of context, if it ended the run."""
    if last is not None and last.error_kind == "context":
        return last.error or "the engine refused the prompt as larger than its context"
    if report.error_kind == "context":
        return report.error or "the client gave up: context exceeded"
    return None


def client_fatal(report: ClientReport, exit_status: ExitStatus) -> str | None:
    """The client's own end: a crash, or a closing event that says error."""
    if exit_status.ended_by != "client":
        return None
    if exit_status.signal is not None:
        return f"the client died of signal {exit_status.signal}"
    if report.terminal == "error":
        return report.error or "the client's closing event says error, without words"
    if report.terminal is None and (exit_status.code or report.error):
        return report.error or f"the client left with code {exit_status.code} and no closing event"
    return None


def malformed(calls: Sequence[Exchange], *, only_last: bool) -> str | None:
    """Tool calls that no client can carry out: arguments that are no JSON object, or calls written as plain text."""
    looked_at = [exchange for exchange in calls if not exchange.auxiliary]
    if only_last:
        looked_at = looked_at[-1:]
    unparsed = sum(not call.parsed for exchange in looked_at for call in exchange.calls)
    unparsed += sum(exchange.error_kind == "tool_json" for exchange in looked_at)
    textual = sum(exchange.calls_textual for exchange in looked_at)
    if not unparsed and not textual:
        return None
    return f"{unparsed} tool calls with arguments that do not parse, {textual} written as text"


def _engine_failed(exchange: Exchange) -> bool:
    return exchange.ended in _ENGINE_ENDS or (exchange.status is not None and exchange.status >= 400)


def _engine_words(exchange: Exchange) -> str:
    if exchange.error:
        return f"status {exchange.status}: {exchange.error}"
    if exchange.ended == "complete":
        return f"status {exchange.status}"
    return exchange.ended.replace("_", " ")


def _wrong_workspace(seen: Seen) -> str | None:
    said = seen.report.workspace
    if said is not None and said.rstrip("/") != seen.workspace.rstrip("/"):
        return f"the client worked in {said}, not in {seen.workspace}"
    # A client that says where it worked was there; a copy elsewhere is the model's own doing.
    if said is None and seen.stray_answers and not seen.patch.files:
        return f"the client wrote {seen.stray_answers[0]}, outside {seen.workspace}"
    return None


def _prompt_altered(calls: Sequence[Exchange]) -> str | None:
    turns = [exchange for exchange in calls if not exchange.auxiliary and exchange.prompt_found is not None]
    if turns and not turns[0].prompt_found:
        return f"the user text of request {turns[0].index} does not contain the prompt as it was given"
    return None


def _model_mismatch(calls: Sequence[Exchange], model: str, names: Sequence[str]) -> str | None:
    for exchange in calls:
        asked, answered = exchange.model_asked, exchange.model_answered
        if asked is not None and asked != model and asked not in names:
            return f'the client asked for model "{asked}" in request {exchange.index}; it was told "{model}"'
        if answered is not None and answered not in names:
            return f'model "{answered}" answered request {exchange.index}; the backend names {", ".join(names)}'
    return None


def _impatient(calls: Sequence[Exchange]) -> str | None:
    """A request given up before its first byte and sent again: the client's time-out was shorter than the prefill."""
    by_index = {exchange.index: exchange for exchange in calls}
    for exchange in calls:
        first = by_index.get(exchange.duplicate_of) if exchange.duplicate_of is not None else None
        if first is not None and first.ended == "client_closed" and first.t_first_token is None:
            waited = first.t_end - first.t_request_end
            return (
                f"request {first.index} was given up after {waited:.0f} s of reading and sent again as {exchange.index}"
            )
    return None
