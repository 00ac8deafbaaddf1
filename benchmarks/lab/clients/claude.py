"""Claude Code: Anthropic Messages dialect, state under CLAUDE_CONFIG_DIR, prompt by stdin, stream-json on stdout.

Every model alias is pinned to the one model, telemetry, updates and the per-session attribution block are off, and
the context that is told is the backend's own. Facts: docs/clients.md.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from benchmarks.lab.clients import _transcript as transcript
from benchmarks.lab.model import Artifacts, Client, ClientReport, InstallRecipe, Launch, LaunchSpec, Tokens

_HOME: Final = ".claude"
_PATIENCE_MS: Final = "1800000"
_SYNTHETIC: Final = "<synthetic>"  # the model of messages that the client writes itself
_ALIASES: Final = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "ANTHROPIC_DEFAULT_FABLE_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
)


def launch(spec: LaunchSpec) -> Launch:
    """Command line and environment of one run; the prompt goes byte-exact through stdin."""
    argv = [
        *("claude", "-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions"),
        *("--session-id", spec.session_id, "--model", spec.endpoint.model, "--strict-mcp-config"),
        *("--setting-sources", "", "--disable-slash-commands", "--no-session-persistence"),
    ]
    if spec.reasoning_effort is not None:
        argv += ["--effort", spec.reasoning_effort]
    return Launch(argv=tuple(argv), env=_environment(spec), files={}, stdin=spec.prompt)


def _environment(spec: LaunchSpec) -> dict[str, str]:
    endpoint = spec.endpoint
    env = {
        "CLAUDE_CONFIG_DIR": f"{spec.home}/{_HOME}",
        "ANTHROPIC_BASE_URL": endpoint.base_url,
        "ANTHROPIC_AUTH_TOKEN": "local",
        **dict.fromkeys(_ALIASES, endpoint.model),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "API_TIMEOUT_MS": _PATIENCE_MS,
        "CLAUDE_STREAM_FIRST_BYTE_TIMEOUT_MS": _PATIENCE_MS,
        "CLAUDE_STREAM_IDLE_TIMEOUT_MS": _PATIENCE_MS,
        "CLAUDE_CODE_MAX_RETRIES": "2",
        "IS_SANDBOX": "1",  # else it refuses to work unasked as root
    }
    if endpoint.context is not None:
        env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(endpoint.context)
    cap = transcript.output_cap(endpoint)
    if cap is not None:
        env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(cap)
    return env


def read(artifacts: Artifacts) -> ClientReport:
    """What the events say; tokens from the closing `result` only, since those before it are placeholders."""
    return transcript.last_words(transcript.report_of(artifacts, _take), artifacts)


def _take(report: ClientReport, event: transcript.Event) -> ClientReport:
    match event.get("type"), event.get("subtype"):
        case "system", "init":
            started = ClientReport(
                session_id=transcript.text(event, "session_id"),
                workspace=transcript.text(event, "cwd"),
                tool_calls=0,
                tool_errors=0,
                retries=0,
            )
            return transcript.filled(report, started)
        case "system", "api_retry":
            return _retried(report, event)
        case "assistant", _:
            calls = sum(transcript.at(block, "type") == "tool_use" for block in _blocks(event))
            report = replace(report, tool_calls=transcript.add(report.tool_calls, calls))
            spoke = transcript.text(event, "message", "model") != _SYNTHETIC
            return replace(report, error=None, error_kind=None) if spoke else report
        case "user", _:
            errors = sum(transcript.at(block, "is_error") is True for block in _blocks(event))
            return replace(report, tool_errors=transcript.add(report.tool_errors, errors))
        case "result", _:
            return _result(report, event)
    return report


def _blocks(event: transcript.Event) -> list[object]:
    return transcript.items(event, "message", "content")


def _retried(report: ClientReport, event: transcript.Event) -> ClientReport:
    status = transcript.count(event, "error_status")
    said = transcript.text(event, "error") or "unknown"
    words = f"api_retry: no connection ({said})" if status is None else f"api_retry: HTTP {status} ({said})"
    return replace(
        report,
        retries=transcript.add(report.retries, 1),
        error=words,
        error_kind="connection" if status is None else "provider",
    )


def _result(report: ClientReport, event: transcript.Event) -> ClientReport:
    reason = transcript.text(event, "terminal_reason")
    words = transcript.text(event, "result")
    failed = event.get("subtype") != "success" or event.get("is_error") is True
    error = words or reason or transcript.text(event, "subtype") or "error" if failed else None
    report = replace(
        report,
        terminal="error" if failed else "success",
        error=error,
        error_kind="context" if failed and reason == "prompt_too_long" else transcript.error_kind(error),
        turns=transcript.count(event, "num_turns"),
        tokens=_tokens(event),
        final_message=None if failed else words,
        context_assumed=_window(event),
    )
    denied = len(transcript.items(event, "permission_denials"))
    return transcript.noted(report, f"{denied} tool calls were denied permission") if denied else report


def _tokens(event: transcript.Event) -> Tokens | None:
    # Its input count leaves out what was read from the cache and what was written to it.
    spent = transcript.at(event, "usage")
    return transcript.usage(
        new=transcript.add(
            transcript.count(spent, "input_tokens"), transcript.count(spent, "cache_creation_input_tokens")
        ),
        cached=transcript.count(spent, "cache_read_input_tokens"),
        output=transcript.count(spent, "output_tokens"),
        reasoning=transcript.count(spent, "output_tokens_details", "thinking_tokens"),
    )


def _window(event: transcript.Event) -> int | None:
    used = transcript.at(event, "modelUsage")
    windows = [transcript.count(model, "contextWindow") for model in used.values()] if isinstance(used, dict) else []
    return next((window for window in windows if window), None)


CLAUDE: Final = Client(
    needs=("mid_system",),
    name="claude",
    dialects=("anthropic-messages",),
    pinned="2.1.332",
    install=InstallRecipe(kind="npm", lock="claude", bin="node_modules/@anthropic-ai/claude-code-*"),
    version_argv=("claude", "--version"),
    launch=launch,
    read=read,
    min_context=13800,
    notes=(
        "the name of the model changes its prompt and the window it assumes: the stamp holds the name",
        "sends a system message inside the conversation, which strict chat templates refuse",
    ),
)
