"""The records that rooms hand to each other: frozen, typed, no behaviour beyond a derived value.

Vocabulary is the house's (docs/design.md). `None` is "not known", never zero. Times are seconds (float); times inside a
trial count from the start of its client on the monotonic clock; sizes are bytes; `digest` is a hex SHA-256.
It knows nothing of files, processes or the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

Dialect = Literal["openai-chat", "openai-responses", "anthropic-messages"]
Isolation = Literal["bwrap", "seatbelt", "none"]
Purpose = Literal["measure", "demo", "harness"]
Verdict = Literal["passed", "failed", "void"]
FailCause = Literal[
    "wrong",
    "no_edit",
    "loop",
    "malformed_tool_calls",
    "budget_wall",
    "budget_turns",
    "budget_tokens",
    "budget_disk",
    "budget_memory",
    "budget_processes",
    "stalled",
    "client_error",
    "engine_error",
    "context_overflow",
    "too_slow",
    "out_of_memory",
]
VoidReason = Literal[
    "wrong_workspace",
    "prompt_altered",
    "model_mismatch",
    "hosted_model",
    "answer_leaked",
    "control_broken",
    "machine_slept",
    "disk_full",
    "meter_error",
    "harness_error",
    "engine_restarted",
    "client_impatient",
    "version_drift",
    "gpu_busy",
    "interrupted",
]
Who = Literal["model", "client", "engine", "backend"]
Order = Literal["interleaved", "blocked"]
EndedBy = Literal["client", "wall", "stall", "turns", "tokens", "loop", "disk", "memory", "processes", "interrupt"]
SuiteEnd = Literal["suite", "wall", "memory", "disk", "processes", "crash"]
ExchangeEnd = Literal["complete", "client_closed", "engine_closed", "engine_unreachable", "error_event", "refused"]
ClientErrorKind = Literal["context", "loop", "provider", "connection", "permission", "sandbox", "format", "other"]
RewriteName = Literal["sampler", "max_tokens", "include_usage", "fold_system"]
SamplerName = Literal[
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "repeat_penalty",
    "repeat_last_n",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "mirostat",
    "seed",
]
EngineErrorKind = Literal["context", "overloaded", "template", "tool_json", "other"]
Flag = Literal[
    "would_pass",
    "cut_off",
    "egress_attempted",
    "history_read",
    "touched_tests",
    "client_rc",
    "forged_results",
    "counters_differ",
]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every record: immutable, keyword-only, and an unknown key is an error where it enters."""


# ---- targets and tasks ----


class Source(Record, frozen=True, kw_only=True):
    """Where a target's tree comes from.

    kind `pypi`: `name`, `version`, `sha256` of the source archive.
    kind `git`: `url` and the full `commit`. kind `path`: a local repository `path` and the full `commit`.
    """

    kind: Literal["pypi", "git", "path"]
    name: str | None = None
    version: str | None = None
    sha256: str | None = None
    url: str | None = None
    path: str | None = None
    commit: str | None = None


class Target(Record, frozen=True, kw_only=True):
    """A real repository pinned by digest, with the environment and the command that run its suite."""

    name: str
    source: Source
    language: str
    license: str
    imports: tuple[str, ...]  # import names that must resolve inside the workspace, never in the environment
    requires: tuple[str, ...]  # exact pins, transitive too, of what the suite needs (never the target itself)
    suite: tuple[str, ...]  # argv after the environment's python, run in the workspace root
    source_roots: tuple[str, ...] = (".",)  # put on PYTHONPATH, relative to the workspace
    suite_seconds: float = 120.0  # wall limit of one judged run


class Excision(Record, frozen=True, kw_only=True):
    """One body to take out: `symbol` is dotted (`Class.method`, `outer.inner`) inside the file `path`."""

    path: str
    symbol: str


class Task(Record, frozen=True, kw_only=True):
    """One or more bodies excised from a target, and the tests that judge them."""

    id: str
    target: str
    tier: Literal[1, 2, 3, 4]
    excise: tuple[Excision, ...]
    fail_to_pass: tuple[str, ...]  # test ids that must flip; the gold control proves they do
    tags: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()  # further paths that may change; the excised files always may
    note: str = ""


class Environment(Record, frozen=True, kw_only=True):
    """The target's built interpreter and what must be visible for it to work, all read-only."""

    python: Path
    readonly: tuple[Path, ...]
    digest: str


class Checkout(Record, frozen=True, kw_only=True):
    """A workspace ready for an agent: the pinned tree, excised, one commit, no history, no caches."""

    task: Task
    target: Target
    environment: Environment
    workspace: Path
    prompt: str
    prompt_digest: str
    removed_lines: int
    allowed: tuple[str, ...]  # paths relative to the workspace that may change
    given: Mapping[str, bytes]  # allowed path -> content as the agent finds it
    solution: Mapping[str, bytes]  # allowed path -> original content; never inside the workspace
    target_digest: str  # digest of the pinned tree
    source_intact: bool | None  # `path:` sources: head and status equal before and after the export; else None


class Patch(Record, frozen=True, kw_only=True):
    """What the agent left behind, read without trusting its git: only allowed paths are ever judged."""

    files: Mapping[str, bytes | None]  # allowed path -> new content, None if deleted; only those that changed
    diff: bytes  # unified diff of `files`, for evidence
    lines_added: int
    lines_removed: int
    touched_tests: tuple[str, ...]  # test and test-configuration files it changed outside the allowed paths
    touched_other: tuple[str, ...]  # further changed paths, bounded
    unreadable: tuple[str, ...]  # paths that could not be read (FIFO, permissions, too large), bounded


class Judgement(Record, frozen=True, kw_only=True):
    """One run of the repository's own suite on a fresh export with a patch applied."""

    green: bool
    passed: int
    failed: int
    skipped: int
    collected: int
    missing: tuple[str, ...]  # required tests that did not pass, bounded
    seconds: float
    ended_by: SuiteEnd
    forged: bool  # a canary that must fail was reported green
    outcomes: Mapping[str, str]  # test id -> passed | failed | skipped | error
    log: Path | None


# ---- the cell ----


class Budgets(Record, frozen=True, kw_only=True):
    """What ends a trial. None: no such limit."""

    wall_seconds: float = 900.0
    stall_seconds: float = 300.0
    turns: int | None = 60
    output_tokens: int | None = 60_000
    loop_repeats: int | None = 8  # identical tool call, consecutively
    memory_bytes: int = 8 << 30
    processes: int = 512
    disk_bytes: int = 2 << 30  # workspace and home together
    output_bytes: int = 64 << 20  # kept of the client's stdout and of its stderr; the rest is counted


class Backend(Record, frozen=True, kw_only=True):
    """A named entry of the lab file: model × engine × settings."""

    name: str
    engine: str
    model: str | None = None  # the name to ask for; None: the engine's own
    aliases: tuple[str, ...] = ()  # further names the engine may answer with
    purpose: Purpose = "measure"
    note: str | None = None  # for people: said at the end of a batch of what its failures are no evidence of
    base_url: str | None = None
    api_key_env: str | None = None
    model_path: str | None = None  # a file, or `package:file` of an installed distribution
    weights_id: str | None = None
    quantization: str | None = None
    context: int | None = None
    max_tokens: int | None = None  # output cap per exchange, told to the client and pinned by rewrite when declared
    sampler: Mapping[str, float | int] = {}
    reasoning_effort: str | None = None
    rewrite: tuple[str, ...] = ()  # of `RewriteName`
    slots: int | None = None
    restart: Literal["never", "arm", "trial"] = "never"
    script: str | None = None  # scripted engine only
    options: Mapping[str, Any] = {}  # engine's own settings, checked by the engine


class ClientEndpoint(Record, frozen=True, kw_only=True):
    """What a client is told about the model. `base_url` has no path: http://127.0.0.1:PORT."""

    base_url: str
    dialect: Dialect
    model: str
    context: int | None
    output_cap: int | None


class LaunchSpec(Record, frozen=True, kw_only=True):
    """All a client adapter may know. Paths are as the client sees them inside the sandbox."""

    prompt: str
    endpoint: ClientEndpoint
    workspace: str
    home: str
    budgets: Budgets
    session_id: str  # a UUID
    files: tuple[str, ...]  # paths the task may touch, relative to the workspace
    reasoning_effort: str | None = None


class Launch(Record, frozen=True, kw_only=True):
    """How to start a client. `argv[0]` is looked up in the client's installation; env is added to the sandbox's own."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, str]  # path relative to the private home -> text, written before the start
    stdin: str | None  # given as a regular file; None: /dev/null


class ExitStatus(Record, frozen=True, kw_only=True):
    """How the client's process ended. `signal` when it was killed; `ended_by` says who ended it."""

    code: int | None
    signal: int | None
    ended_by: EndedBy


class Artifacts(Record, frozen=True, kw_only=True):
    """What a client left for `read`: bounded line iterators (undecodable bytes replaced) and its home on the host."""

    stdout: Callable[[], Iterable[str]]
    stderr: Callable[[], Iterable[str]]
    home: Path
    exit: ExitStatus


class Tokens(Record, frozen=True, kw_only=True):
    """Tokens of one exchange or of a sum; each None when not told. prompt_total = prompt_cached + prompt_new."""

    prompt_total: int | None = None
    prompt_cached: int | None = None
    prompt_new: int | None = None
    output: int | None = None
    reasoning: int | None = None


class ClientReport(Record, frozen=True, kw_only=True):
    """What the client itself says, None where it does not: it decides causes of failures, and void wrong_workspace."""

    terminal: Literal["success", "error"] | None = None  # its own closing event
    error: str | None = None  # its own words
    error_kind: ClientErrorKind | None = None
    turns: int | None = None
    tokens: Tokens | None = None
    session_id: str | None = None
    final_message: str | None = None
    tool_calls: int | None = None
    tool_errors: int | None = None
    retries: int | None = None
    context_assumed: int | None = None
    workspace: str | None = None  # the folder it says it worked in
    notes: tuple[str, ...] = ()


class InstallRecipe(Record, frozen=True, kw_only=True):
    """How a pinned client is installed: `npm` from a committed lock folder, or `pip` into an environment of its own."""

    kind: Literal["npm", "pip", "none"]
    lock: str | None = None  # folder beside the adapters, holding package-lock.json or requirements.txt
    bin: str = ""  # folder of executables inside the installation
    python: str | None = None  # pip: version request, e.g. ">=3.10,<3.13"


class Client(Record, frozen=True, kw_only=True):
    """An agent program as data and two pure functions."""

    name: str
    dialects: tuple[Dialect, ...]  # in order of preference
    pinned: str
    install: InstallRecipe
    version_argv: tuple[str, ...]
    launch: Callable[[LaunchSpec], Launch]
    read: Callable[[Artifacts], ClientReport]
    tool_loop: bool = True  # False: edits by text (aider)
    needs: tuple[Literal["mid_system", "mixed_tools"], ...] = ()  # what its requests ask of an engine, see `pairs`
    min_context: int = 0  # tokens its own first request needs, as measured; 0: unknown
    notes: tuple[str, ...] = ()  # fairness notes printed in docs


# ---- engines and the wire ----


class EngineFacts(Record, frozen=True, kw_only=True):
    """What an engine tells of itself; each None when it does not tell."""

    engine: str | None = None
    version: str | None = None
    model_id: str | None = None
    model_digest: str | None = None
    quantization: str | None = None
    context: int | None = None
    context_trained: int | None = None
    sampler: Mapping[str, Any] | None = None
    slots: int | None = None
    speculative: bool | None = None
    template_tools: bool | None = None
    started: str | None = None  # ISO 8601: since when this server process runs
    process: str | None = None  # identity of the server process, to see a restart


class EngineCounters(Record, frozen=True, kw_only=True):
    """Difference of the engine's own totals over one trial, to check the meter; None: it keeps none."""

    prompt_new: int | None = None
    prompt_cached: int | None = None
    output: int | None = None


class ToolCall(Record, frozen=True, kw_only=True):
    """A tool call in a reply. `arguments` is the raw text, bounded; `parsed` says whether it is a JSON object."""

    name: str
    arguments: str
    parsed: bool


class EngineTimings(Record, frozen=True, kw_only=True):
    """Seconds as the engine itself states them."""

    prompt_seconds: float | None = None
    output_seconds: float | None = None


class Exchange(Record, frozen=True, kw_only=True):
    """One request and its response as the meter saw it. All `t_*` are seconds since the trial's start."""

    index: int
    dialect: Dialect | None  # None: not a model call (health, models, count_tokens)
    method: str
    path: str
    status: int | None
    stream: bool
    auxiliary: bool  # a title, compaction, count or side request, not a turn of the agent
    model_asked: str | None
    model_answered: str | None
    request_bytes: int
    request_digest: str
    response_bytes: int
    response_digest: str
    prefix_shared: int  # longest common prefix with an earlier request of this trial, bytes
    duplicate_of: int | None  # index of the earlier identical request
    t_start: float
    t_request_end: float
    t_first_byte: float | None
    t_first_token: float | None  # first non-empty fragment of any kind
    t_first_answer: float | None  # first fragment of visible content or of a tool call
    t_last_token: float | None
    t_end: float
    tokens: Tokens
    tokens_source: Literal["usage", "timings"] | None
    timings: EngineTimings | None
    finish_reason: str | None
    cut_off: bool | None  # the cap ended it; by reason, or by a count equal to the cap
    output_cap: int | None  # as sent
    sampler: Mapping[str, Any]  # sampling parameters as sent by the client
    calls: tuple[ToolCall, ...]
    calls_textual: int  # tool calls written as plain text
    user_text_digest: str | None
    prompt_found: bool | None  # the trial's prompt stands contiguously in the decoded user text
    tools: tuple[str, ...]  # names offered
    ended: ExchangeEnd
    error: str | None  # the engine's own words, bounded
    error_kind: EngineErrorKind | None
    rewritten: tuple[str, ...]  # names of the declared rewrites that changed this body
    partial: bool  # cancelled or cut: its token counts are not the whole truth


class Shares(Record, frozen=True, kw_only=True):
    """Where a trial's wall time went, seconds; they add up to `wall`. Overlapping exchanges count once (union)."""

    wall: float
    startup: float  # before the first exchange
    prefill: float
    decode: float
    model_unsplit: float  # model time that cannot be split (non-streaming, cancelled)
    client_and_tool: float
    tail: float  # after the last exchange


class EgressAttempt(Record, frozen=True, kw_only=True):
    """A connection or name look-up that left for somewhere else than the meter, and was refused."""

    kind: Literal["tcp", "udp", "dns"]
    destination: str  # host:port or the name asked for
    count: int = 1


# ---- rows ----


class Ruling(Record, frozen=True, kw_only=True):
    """What the verdict table says of a trial."""

    verdict: Verdict
    cause: FailCause | None = None
    who: Who | None = None
    reason: VoidReason | None = None
    detail: str | None = None  # one sentence with the facts, for people
    flags: tuple[Flag, ...] = ()
