"""What each kind of ledger line says: one record per kind, each field with its unit and meaning beside its type.

These declarations are the only ones: `ledger` validates bodies with them and docs/ledger.md is compared with them.
It does not cover the envelope, the file or its history (ledger), nor the keys of a stamp (stamp).
Units: s seconds · B bytes · tokens · count · text · ISO 8601 · digest (hex SHA-256) · "" where the type says it all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from benchmarks.lab.model import (
    ClientErrorKind,
    EgressAttempt,
    EngineCounters,
    ExitStatus,
    FailCause,
    Flag,
    Isolation,
    Purpose,
    Record,
    Shares,
    SuiteEnd,
    Tokens,
    Verdict,
    VoidReason,
    Who,
)

LISTED_WORDS: Final = 6  # longer vocabularies have a document of their own (docs/verdicts.md)


UNMEASURED: Final = "when the harness itself failed, which makes the row void"


def said(unit: str, meaning: str, null: str | None = None) -> msgspec.Meta:
    """The unit and meaning of a field, kept in its annotation; `null` says when: "when ...", "unless ..."."""
    return msgspec.Meta(description=meaning, extra={"unit": unit, "null": null})


class JudgeRow(Record, frozen=True, kw_only=True):
    """One judged run of the repository's own suite, as the ledger keeps it."""

    green: Annotated[bool, said("", "every required test passed")]
    passed: Annotated[int, said("count", "tests that passed")]
    failed: Annotated[int, said("count", "tests that failed or erred")]
    skipped: Annotated[int, said("count", "tests that were skipped")]
    collected: Annotated[int, said("count", "tests that were collected")]
    required: Annotated[int, said("count", "fail-to-pass and pass-to-pass tests that had to pass")]
    missing: Annotated[tuple[str, ...], said("test ids", "required tests that did not pass, bounded")] = ()
    seconds: Annotated[float, said("s", "wall time of the judged run")]
    ended_by: Annotated[SuiteEnd, said("", "what ended the judged run")]
    forged: Annotated[bool, said("", "a canary that must fail was reported green")]


class PatchRow(Record, frozen=True, kw_only=True):
    """What the agent changed; only allowed paths are judged."""

    files: Annotated[tuple[str, ...], said("paths", "allowed paths that changed, relative to the workspace")]
    lines_added: Annotated[int, said("count", "lines added in allowed paths")]
    lines_removed: Annotated[int, said("count", "lines removed in allowed paths")]
    touched_tests: Annotated[tuple[str, ...], said("paths", "tests and test configuration it changed; put back")] = ()
    touched_other: Annotated[tuple[str, ...], said("paths", "other changed paths, bounded; not judged")] = ()
    unreadable: Annotated[tuple[str, ...], said("paths", "paths that could not be read, bounded")] = ()


class ExchangesRow(Record, frozen=True, kw_only=True):
    """The trial's exchanges in numbers; each of them is in the evidence."""

    total: Annotated[int, said("count", "model calls that the meter saw")]
    auxiliary: Annotated[int, said("count", "titles, compactions and side requests among them")]
    duplicates: Annotated[int, said("count", "identical requests sent again")]
    errors: Annotated[int, said("count", "calls that ended in an error")]
    partial: Annotated[int, said("count", "calls cancelled or cut: their token counts are not the whole truth")]
    cut_off: Annotated[int, said("count", "replies that the output cap ended")]
    tool_calls: Annotated[int, said("count", "tool calls in replies")]
    unparsed_calls: Annotated[int, said("count", "tool calls whose arguments are no JSON object")]
    textual_calls: Annotated[int, said("count", "tool calls written as plain text")]
    refused_after_end: Annotated[int, said("count", "requests refused because the trial had ended")]
    models_answered: Annotated[tuple[str, ...], said("names", "model names in the replies")] = ()
    first_token_seconds: Annotated[
        float | None, said("s", "median time from request to first token", "when no reply was streamed up to a token")
    ] = None
    reread_tokens: Annotated[
        int | None,
        said(
            "tokens",
            "prompt that the engine read though it had read it for the turn before",
            "when the engine did not tell a turn's prompt and cached tokens, or a turn's body was not kept to compare",
        ),
    ] = None
    sampler: Annotated[Mapping[str, Any], said("", "sampling parameters as the client sent them")] = {}
    rewritten: Annotated[tuple[str, ...], said("names", "declared rewrites that changed a body")] = ()


class ClaimsRow(Record, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """What the client itself says; it decides only the cause of a failure, and, by `workspace`, void wrong_workspace.

    A `ClientReport` without its final message, which may quote private code. Rows written before it was left out hold
    it as null; reading passes over the key.
    """

    terminal: Annotated[
        Literal["success", "error"] | None,
        said("", "its own closing event", "when it was ended, crashed or prints none"),
    ] = None
    error: Annotated[str | None, said("text", "its own words", "when it tells none, or went on after it")] = None
    error_kind: Annotated[ClientErrorKind | None, said("", "what kind of error", "when `error` is")] = None
    turns: Annotated[
        int | None, said("count", "turns it claims", "when it counts none (Codex), or ended before it told")
    ] = None
    tokens: Annotated[
        Tokens | None, said("tokens", "tokens it claims", "when it tells none or only zeros, or ended before it told")
    ] = None
    session_id: Annotated[str | None, said("", "its session", "when it names none (aider), or never began")] = None
    tool_calls: Annotated[
        int | None, said("count", "tool calls it claims", "when it has no tools (aider), or never began")
    ] = None
    tool_errors: Annotated[
        int | None, said("count", "tool calls that failed", "when it never began; aider: when no edit failed")
    ] = None
    retries: Annotated[
        int | None,
        said(
            "count",
            "requests it says it repeated",
            "when it does not tell (OpenCode), or never began; aider: when it repeated none",
        ),
    ] = None
    context_assumed: Annotated[
        int | None, said("tokens", "context window it believed in", "when it does not tell (all but Claude Code)")
    ] = None
    workspace: Annotated[
        str | None, said("path", "folder it says it worked in", "when it does not tell (OpenCode, Codex, aider)")
    ] = None
    notes: Annotated[tuple[str, ...], said("text", "further facts")] = ()


class TrialRow(Record, frozen=True, kw_only=True):
    """One task run once by one cell."""

    task: Annotated[str, said("", "task id")]
    target: Annotated[str, said("", "target of the task")]
    suite: Annotated[str, said("", "name of the task suite")]
    tier: Annotated[int, said("1-4", "what was excised: a body, several, a class, a module")]
    backend: Annotated[str, said("", "entry of the lab file")]
    client: Annotated[str, said("", "agent program")]
    purpose: Annotated[Purpose, said("", "of the backend; only `measure` enters rankings")]
    isolation: Annotated[Isolation, said("", "sandbox level; levels are never pooled")]
    trial: Annotated[int, said("from 1", "number of the trial within task × backend × client of the batch")]
    attempt: Annotated[int, said("from 1", "a void slot is run again at most twice")]
    position: Annotated[int, said("from 1", "place in the order in which the batch ran")]
    started: Annotated[str, said("ISO 8601", "when the trial began; its workspace is made first")]
    verdict: Annotated[Verdict, said("", "passed, failed or void (docs/verdicts.md)")]
    cause: Annotated[FailCause | None, said("", "why it failed", "unless the verdict is failed")] = None
    who: Annotated[Who | None, said("", "who answers for the failure", "unless the verdict is failed")] = None
    reason: Annotated[VoidReason | None, said("", "why it is void", "unless the verdict is void")] = None
    detail: Annotated[
        str | None,
        said(
            "text",
            "one sentence with the facts of the verdict",
            "when passed, or failed by no_edit, too_slow, out_of_memory, or wrong after a suite that ended by itself",
        ),
    ] = None
    flags: Annotated[tuple[Flag, ...], said("", "beside the verdict, never inside it")] = ()
    wall_seconds: Annotated[float | None, said("s", "client's start to its end, monotonic clock", UNMEASURED)]
    shares: Annotated[Shares | None, said("s", "where the wall time went", UNMEASURED)] = None
    tokens: Annotated[
        Tokens | None, said("tokens", "sums over all exchanges, as the meter normalised them", UNMEASURED)
    ] = None
    tokens_auxiliary: Annotated[
        Tokens | None, said("tokens", "part of `tokens` that auxiliary calls took", UNMEASURED)
    ] = None
    turns: Annotated[int | None, said("count", "exchanges that are turns of the agent", UNMEASURED)] = None
    exchanges: Annotated[ExchangesRow | None, said("", "the exchanges in numbers", UNMEASURED)] = None
    engine_counters: Annotated[
        EngineCounters | None,
        said(
            "tokens",
            "the engine's own totals over the trial",
            "when it keeps none, was not idle at either end or became another process, and " + UNMEASURED,
        ),
    ] = None
    counters_agree: Annotated[
        bool | None,
        said(
            "",
            "meter and engine count the same",
            "when `engine_counters` is, when a call was cancelled or cut, or when they know no sum in common",
        ),
    ] = None
    client_report: Annotated[ClaimsRow | None, said("", "what the client itself claims", UNMEASURED)] = None
    exit: Annotated[ExitStatus | None, said("", "how the client's process ended", UNMEASURED)] = None
    judge: Annotated[
        JudgeRow | None,
        said(
            "",
            "the suite on a fresh export with the agent's diff",
            "when no allowed path changed, so that nothing was judged, and " + UNMEASURED,
        ),
    ] = None
    patch: Annotated[PatchRow | None, said("", "what the agent changed", UNMEASURED)] = None
    egress_attempts: Annotated[
        tuple[EgressAttempt, ...] | None,
        said(
            "",
            "hosts it tried to reach and was refused",
            "where they cannot be seen (seatbelt, none, a box whose packets cannot be read), and " + UNMEASURED,
        ),
    ] = None
    source_repo_intact: Annotated[
        bool | None,
        said("", "`path:` sources: head and status as before", "for every other kind of source, and " + UNMEASURED),
    ] = None
    strays: Annotated[int | None, said("count", "processes that outlived the client and were ended", UNMEASURED)] = None
    output_bytes: Annotated[int | None, said("B", "stdout and stderr of the client, kept or not", UNMEASURED)] = None
    harness_seconds: Annotated[float | None, said("s", "time outside the client and the judge's suite", UNMEASURED)] = (
        None
    )
    locked: Annotated[bool, said("", "the machine-wide lock was held; false after `--no-lock`")]
    notes: Annotated[tuple[str, ...], said("text", "further facts for people")] = ()
    volatile: Annotated[Mapping[str, Any], said("", "state of the machine when the trial began (docs/ledger.md)")]
    volatile_end: Annotated[
        Mapping[str, Any], said("", "the same when it ended, engine_uptime_seconds not asked for and null")
    ]
    evidence: Annotated[str, said("path", "folder below the evidence folder of the machine that ran it")]


class ControlRow(Record, frozen=True, kw_only=True):
    """A trial whose answer is known: gold must pass, excised must fail."""

    task: Annotated[str, said("", "task id")]
    target: Annotated[str, said("", "target of the task")]
    suite: Annotated[str, said("", "name of the task suite")]
    control: Annotated[Literal["gold", "excised"], said("", "original body back, or nothing done")]
    as_expected: Annotated[
        bool, said("", "gold: green; excised: the suite ended by itself and no fail-to-pass test passed")
    ]
    admissible: Annotated[bool, said("", "trials of the task may run in this batch")]
    why: Annotated[str | None, said("text", "why the task is not admissible", "when it is")] = None
    judge: Annotated[JudgeRow, said("", "the judged run")]
    isolation: Annotated[Isolation, said("", "sandbox level of the judge")]
    evidence: Annotated[str, said("path", "folder below the evidence folder of the machine that ran it")]


class SmokeRow(Record, frozen=True, kw_only=True):
    """One check before machine time is spent: a client against the scripted engine, or a pair that cannot work."""

    check: Annotated[str, said("", "name of the check")]
    party: Annotated[Literal["client", "pair"], said("", "who is asked: the client, or client and backend together")]
    backend: Annotated[
        str | None,
        said("", "of a pair: entry of the lab file", "when the client is asked: it meets the scripted engine"),
    ] = None
    client: Annotated[str, said("", "agent program")]
    client_version: Annotated[str | None, said("", "as the program itself says", "when it could not be installed")] = (
        None
    )
    outcome: Annotated[Literal["ok", "failed", "unsupported"], said("", "what came of it")]
    detail: Annotated[str, said("text", "one sentence with the facts")]
    seconds: Annotated[float, said("s", "wall time of the check")]
    evidence: Annotated[
        str | None,
        said("path", "folder below the evidence folder of the machine that ran it", "when no client was run"),
    ] = None


class BatchStart(Record, frozen=True, kw_only=True):
    """A plan begins to be carried out; later invocations of the same plan continue it until there is a `batch_end`."""

    program: Annotated[str, said("", "path of the program in the checkout")]
    argv: Annotated[tuple[str, ...], said("", "its flags as given when the batch began")]
    plan: Annotated[Mapping[str, Any], said("", "the resolved plan")]
    plan_digest: Annotated[str, said("digest", "of `plan`: a batch is continued when it is equal")]
    slots: Annotated[int, said("count", "trials planned")]


class BatchEnd(Record, frozen=True, kw_only=True):
    """Every slot of the batch was done or given up; an interrupted batch has none and is continued."""

    done: Annotated[int, said("count", "slots with a verdict that counts")]
    void: Annotated[int, said("count", "void rows, repeated attempts included")]
    given_up: Annotated[int, said("count", "slots without a counted result: void in three attempts, or left out")]
    seconds: Annotated[float, said("s", "wall time since the batch started or was last continued")]


class StampRow(Record, frozen=True, kw_only=True):
    """The values behind a digest, written once per file. The envelope's `stamp` is the digest."""

    values: Annotated[Mapping[str, Any], said("", "keys of the stamp (below); unknown is null")]


NO_CONDITION: Final = "when that was no condition"


class Selector(Record, frozen=True, kw_only=True):
    """Which rows a retraction means; all given fields must hold. Versions are those of the rows' stamps."""

    batch: Annotated[str | None, said("", "batch id", NO_CONDITION)] = None
    task: Annotated[str | None, said("", "task id", NO_CONDITION)] = None
    backend: Annotated[str | None, said("", "entry of the lab file", NO_CONDITION)] = None
    client: Annotated[str | None, said("", "agent program", NO_CONDITION)] = None
    client_version: Annotated[str | None, said("", "its version", NO_CONDITION)] = None
    engine: Annotated[str | None, said("", "program that served the weights", NO_CONDITION)] = None
    engine_version: Annotated[str | None, said("", "its version", NO_CONDITION)] = None
    since: Annotated[str | None, said("ISO 8601", "rows written at or after", NO_CONDITION)] = None
    until: Annotated[str | None, said("ISO 8601", "rows written before", NO_CONDITION)] = None
    series: Annotated[str | None, said("", "id of a series, or its beginning", NO_CONDITION)] = None


class RetractionRow(Record, frozen=True, kw_only=True):
    """Rows that no longer count. Nothing is edited: reports show a banner. Retracting a retraction undoes it."""

    ids: Annotated[tuple[str, ...], said("row ids", "what is retracted, resolved when this was written")]
    count: Annotated[int, said("count", "number of ids")]
    selector: Annotated[Selector | None, said("", "how they were chosen", "when they were named one by one")] = None
    reason: Annotated[str, said("text", "what is wrong with them")]
    document: Annotated[
        str | None, said("path or URL", "where the story is told", "when `--document` was not given")
    ] = None
    replaced_by: Annotated[
        str | None, said("", "batch, rows or document that replace them", "when `--replaced-by` was not given")
    ] = None


# The kinds of trials.jsonl. Other programs have kinds of their own in files of their own; unknown kinds are kept.
KINDS: Final[Mapping[str, type[Record]]] = {
    "batch_start": BatchStart,
    "batch_end": BatchEnd,
    "control": ControlRow,
    "smoke": SmokeRow,
    "trial": TrialRow,
    "stamp": StampRow,
    "retraction": RetractionRow,
}

UNTOLD: Final = "when a call that the engine read, or the client, did not tell it"
NOT_KEPT: Final = "when the engine keeps no such total"

# Records of `model` that stand inside rows; they are shared with other rooms, so their words for people are here.
NESTED: Final[Mapping[type[Record], Mapping[str, msgspec.Meta]]] = {
    Shares: {
        "wall": said("s", "the whole; the others add up to it"),
        "startup": said("s", "before the first exchange"),
        "prefill": said("s", "reading prompts: request sent to first token"),
        "decode": said("s", "writing: first to last token"),
        "model_unsplit": said("s", "model time that cannot be split (not streamed, cancelled)"),
        "client_and_tool": said("s", "between exchanges: the client and its tools"),
        "tail": said("s", "after the last exchange"),
    },
    Tokens: {
        "prompt_total": said("tokens", "prompt_cached + prompt_new", UNTOLD),
        "prompt_cached": said("tokens", "taken from the engine's prompt cache", UNTOLD),
        "prompt_new": said("tokens", "processed", UNTOLD),
        "output": said("tokens", "generated, reasoning included", UNTOLD),
        "reasoning": said("tokens", "part of output that is reasoning", UNTOLD),
    },
    EngineCounters: {
        "prompt_new": said("tokens", "processed", NOT_KEPT),
        "prompt_cached": said("tokens", "taken from the prompt cache", NOT_KEPT),
        "output": said("tokens", "generated", NOT_KEPT),
    },
    ExitStatus: {
        "code": said("", "exit code; it decides nothing", "when a signal ended it, or the harness did"),
        "signal": said("", "signal that ended it", "when it left by itself, or the harness ended it"),
        "ended_by": said("", "who ended it: the client itself, a budget, a person"),
    },
    EgressAttempt: {
        "kind": said("", "tcp, udp or dns"),
        "destination": said("", "host:port, or the name asked for"),
        "count": said("count", "how often"),
    },
}


class Field(Record, frozen=True, kw_only=True):
    """One documented field. `null` says when it is null, None of a field that never is."""

    name: str
    type: str
    unit: str
    meaning: str
    null: str | None

    @property
    def words(self) -> str:
        """What it means, and when it is null."""
        return self.meaning if self.null is None else f"{self.meaning}; null {self.null}"


def fields(record: type[Record]) -> tuple[Field, ...]:
    """The documented fields of a row body or of a record nested in one, in their order.

    TypeError for a field without words, for one that may be null without saying when, and for one that says when though
    it never is.
    """
    hints = get_type_hints(record, include_extras=True)
    plain = get_type_hints(record)
    described = NESTED.get(record, {})
    found = []
    for name in record.__struct_fields__:
        meta = next((part for part in getattr(hints[name], "__metadata__", ()) if isinstance(part, msgspec.Meta)), None)
        meta = described.get(name, meta)
        if meta is None or meta.description is None or meta.extra is None:
            raise TypeError(f"{record.__name__}.{name} has no unit and meaning")
        null = meta.extra["null"]
        if (type(None) in get_args(plain[name])) is (null is None):
            raise TypeError(f"{record.__name__}.{name} must say when it is null, and only if it may be")
        found.append(
            Field(
                name=name,
                type=type_words(plain[name]),
                unit=meta.extra["unit"],
                meaning=meta.description,
                null=null,
            )
        )
    return tuple(found)


def nested() -> tuple[type[Record], ...]:
    """Records that stand inside rows, each with a table of its own in the docs."""
    return (JudgeRow, PatchRow, ExchangesRow, ClaimsRow, Selector, *NESTED)


def type_words(hint: Any) -> str:
    """A type as the docs write it: `text`, `integer`, `number or null`, `list of text`, `one of a, b`."""
    origin, arguments = get_origin(hint), get_args(hint)
    simple: dict[Any, str] = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null"}
    if hint in simple:
        return simple[hint]
    if origin is Literal:
        return "text" if len(arguments) > LISTED_WORDS else "one of " + ", ".join(str(value) for value in arguments)
    if origin is tuple:
        return f"list of {type_words(arguments[0])}"
    if isinstance(hint, type) and issubclass(hint, Record):
        return hint.__name__
    if arguments and type(None) in arguments:
        return " or ".join(type_words(argument) for argument in arguments)
    return "object"
