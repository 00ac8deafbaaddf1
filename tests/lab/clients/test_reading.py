"""What every `read` must bear: garbage, cut lines, foreign JSON, no output; and the field cases that name a client."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.lab.clients import CLIENTS
from benchmarks.lab.clients import _transcript as transcript
from benchmarks.lab.model import Artifacts, Client, ClientReport, ExitStatus

RECORDINGS = Path(__file__).parent / "recordings"
EVERY = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
LEFT_WELL = ExitStatus(code=0, signal=None, ended_by="client")

WORDS = sorted(
    {
        *(
            "type",
            "subtype",
            "item",
            "part",
            "state",
            "message",
            "content",
            "usage",
            "tokens",
            "error",
            "data",
            "result",
        ),
        *(
            "status",
            "tool",
            "is_error",
            "terminal_reason",
            "modelUsage",
            "contextWindow",
            "permission_denials",
            "reason",
        ),
        *(
            "text",
            "name",
            "input_tokens",
            "cached_input_tokens",
            "output_tokens",
            "cache",
            "read",
            "num_turns",
            "model",
        ),
        *("sessionID", "thread_id", "session_id", "cwd", "error_status"),
    }
)
TYPES = ["thread.started", "turn.completed", "turn.failed", "item.completed", "error", "system", "assistant", "user"]
TYPES += ["result", "step_finish", "tool_use", "text", "init", "api_retry", "command_execution", "stop", "invalid"]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(TYPES) | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=6),
    max_leaves=12,
)
EVENTS = st.dictionaries(st.sampled_from(WORDS), VALUES, max_size=6).flatmap(
    lambda event: st.sampled_from(TYPES).map(lambda kind: json.dumps({**event, "type": kind}))
)
GARBAGE = st.text(max_size=60) | st.sampled_from(
    ['{"type": "result"', "[" * 5000, '"text"', "NaN", "9" * 5000, '{"type":"text","part":{"text":"\\ud800"}}']
)
PROSE = st.sampled_from(
    ["Tokens: 1.2k sent, 56 received.", "Tokens: ..,. sent, ,, received.", "litellm.APIError: no", "Retrying in 0.2 s"]
)


def said(stdout: Iterable[str], stderr: Iterable[str] = (), ended: ExitStatus = LEFT_WELL) -> Artifacts:
    return Artifacts(stdout=lambda: stdout, stderr=lambda: stderr, home=Path("/nowhere"), exit=ended)


def recorded(name: str) -> list[str]:
    return (RECORDINGS / name).read_text(encoding="utf-8").split("\n")


@EVERY
@settings(deadline=None, max_examples=60)
@given(out=st.lists(EVENTS | GARBAGE | PROSE, max_size=12), err=st.lists(GARBAGE, max_size=3), code=st.integers(0, 2))
def test_no_output_makes_reading_fail(client: Client, out: list[str], err: list[str], code: int) -> None:
    report = client.read(said(out, err, ExitStatus(code=code, signal=None, ended_by="client")))
    again = msgspec.json.decode(msgspec.json.encode(report), type=ClientReport)  # types and text fit for a row
    assert again == report
    assert len(report.notes) <= 20


@EVERY
def test_no_output_is_not_known_rather_than_zero(client: Client) -> None:
    assert client.read(said(())) == ClientReport()


@EVERY
def test_reading_takes_one_line_at_a_time(client: Client) -> None:
    """A million lines are not held: each is asked for only after the one before was taken."""
    alive: list[int] = []

    class Line(str):
        def __new__(cls, text: str) -> Line:
            alive.append(1)
            return super().__new__(cls, text)

        def __del__(self) -> None:
            alive.pop()

    most = 0

    def stream() -> Iterable[str]:
        nonlocal most
        for number in range(2000):
            yield Line(json.dumps({"type": "text", "part": {"text": f"{number}"}}))
            most = max(most, len(alive))

    client.read(said(stream()))
    assert most <= 40


@pytest.mark.parametrize("name", sorted({path.name.split("-")[0] for path in RECORDINGS.glob("*-ok.*.jsonl")}))
def test_lines_that_are_no_events_are_counted_and_skipped(name: str) -> None:
    (good,) = (path.name for path in RECORDINGS.glob(f"{name}-ok.*") if path.suffix == ".jsonl")
    clean = CLIENTS[name].read(said(recorded(good)))
    noisy = ["Update available!", *recorded(good)[:1], '{"type": "resu', *recorded(good)[1:], "[1, 2]", ""]
    report = CLIENTS[name].read(said(noisy))
    assert report.notes == (*clean.notes, "3 lines of its output are not JSON objects")
    assert msgspec.structs.replace(report, notes=clean.notes) == clean


def test_unicode_separators_inside_strings_end_no_line() -> None:
    event = json.dumps({"type": "text", "sessionID": "s", "part": {"text": "a\u2028b\u0085c"}}, ensure_ascii=False)
    assert CLIENTS["opencode"].read(said([event])).final_message == "a\u2028b\u0085c"


@pytest.mark.parametrize("name", ["claude", "codex", "opencode"])
def test_a_client_that_fails_before_its_first_event_is_quoted_from_stderr(name: str) -> None:
    left = ExitStatus(code=1, signal=None, ended_by="client")
    report = CLIENTS[name].read(said((), ("", "error: unknown option '--nonsense'"), left))
    assert (report.terminal, report.error) == (None, "error: unknown option '--nonsense'")


# ---- field cases ----


def test_B17_codex_says_that_the_chat_dialect_is_gone() -> None:
    told = ('Error loading config.toml: `wire_api = "chat"` is no longer supported.', 'Use `wire_api = "responses"`.')
    report = CLIENTS["codex"].read(said((), told, ExitStatus(code=1, signal=None, ended_by="client")))
    assert report.error == "\n".join(told)
    assert CLIENTS["codex"].dialects == ("openai-responses",)


def test_B21_codex_without_model_metadata_is_a_note_and_no_failure() -> None:
    report = CLIENTS["codex"].read(said(recorded("codex-ok.events.jsonl")))
    assert (report.terminal, report.error) == ("success", None)
    assert report.notes[0].startswith("Model metadata for `fake-model` not found")


def test_B23_codex_whose_sandbox_helper_is_missing_says_so() -> None:
    refused = 'WARNING: Refusing to create helper binaries under temporary dir "/tmp"'
    failed = "bwrap: execvp codex-linux-sandbox: No such file or directory"
    report = CLIENTS["codex"].read(said(recorded("codex-sandbox-broken.events.jsonl"), (refused, failed)))
    assert (report.error_kind, report.tool_calls) == ("sandbox", 0)
    assert any("temporary folder" in note for note in report.notes)


def test_B11_the_window_that_claude_assumes_is_reported() -> None:
    assert CLIENTS["claude"].read(said(recorded("claude-ok.events.jsonl"))).context_assumed == 1_000_000


@pytest.mark.parametrize(
    ("name", "recording", "kind"),
    [
        ("aider", "aider-ctx400.stdout.txt", "context"),
        ("opencode", "opencode-permission-rejected.events.jsonl", "permission"),
    ],
)
def test_B60_exit_code_0_after_a_fatal_error_hides_nothing(name: str, recording: str, kind: str) -> None:
    report = CLIENTS[name].read(said(recorded(recording)))
    assert (report.terminal, report.error_kind) == ("error", kind)


def test_B61_opencode_logs_a_malformed_call_as_completed_and_it_counts_as_an_error() -> None:
    assert CLIENTS["opencode"].read(said(recorded("opencode-bad-json-args.events.jsonl"))).tool_errors == 1


def test_B55_aider_counts_edit_blocks_that_did_not_fit() -> None:
    told = ["# 1 SEARCH/REPLACE block failed to match!", "Tokens: 2.0k sent, 1.1k received."]
    report = CLIENTS["aider"].read(said(told))
    assert (report.tool_errors, report.turns) == (1, 1)
    assert report.tokens is not None
    assert (report.tokens.prompt_total, report.tokens.output) == (2000, 1100)


def test_an_error_that_a_retry_overcame_is_no_error() -> None:
    retry = json.dumps({"type": "system", "subtype": "api_retry", "error_status": 500, "error": "server_error"})
    start, *rest = recorded("claude-ok.events.jsonl")
    report = CLIENTS["claude"].read(said([start, retry, *rest]))
    assert (report.terminal, report.error, report.retries) == ("success", None, 1)


def test_B60_a_reply_of_the_model_that_looks_like_an_error_is_no_error_of_aider() -> None:
    told = ["ValueError: raised on bad input", "Traceback (most recent call last):", "Tokens: 900 sent, 40 received."]
    assert CLIENTS["aider"].read(said(told)).error is None


# ---- the shared reader ----


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("400 the request exceeds the available context size", "context"),
        ("Prompt is too long", "context"),
        ("Connection failed: error sending request", "connection"),
        ("connect ECONNREFUSED 127.0.0.1:1", "connection"),
        ("We're currently experiencing high demand", "provider"),
        ("API Error: 500 boom", "provider"),
        ("The user rejected permission to use this specific tool call.", "permission"),
        ("bwrap: execvp codex-linux-sandbox", "sandbox"),
        ("Invalid tool arguments", "format"),
        ("it did not work", "other"),
        (None, None),
    ],
)
def test_the_kind_of_an_error_comes_from_its_words(words: str | None, kind: str | None) -> None:
    assert transcript.error_kind(words) == kind


def test_tokens_are_normalised_both_ways() -> None:
    includes = transcript.usage(total=1234, cached=1000, output=56)
    excludes = transcript.usage(new=234, cached=1000, output=56)
    assert includes == excludes
    assert includes is not None
    assert (includes.prompt_total, includes.prompt_cached, includes.prompt_new) == (1234, 1000, 234)


def test_zeros_throughout_are_a_placeholder_and_an_untold_cache_stays_unknown() -> None:
    assert transcript.usage(total=0, cached=0, output=0) is None
    told = transcript.usage(total=10, output=2)
    assert told is not None
    assert (told.prompt_cached, told.prompt_new) == (None, None)


@pytest.mark.parametrize("value", [-1, True, 1.5, "7", 10**13, None, [], {}])
def test_what_is_no_count_is_unknown(value: Any) -> None:
    assert transcript.count({"n": value}, "n") is None
