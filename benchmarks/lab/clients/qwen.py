"""qwen-code: Chat Completions dialect, state under QWEN_HOME, prompt by stdin, Claude-like JSON events on stdout.

Facts: docs/clients.md.
"""

from __future__ import annotations

import json
from typing import Any, Final

from msgspec.structs import replace

from benchmarks.lab.clients import _transcript as transcript
from benchmarks.lab.model import Artifacts, Client, ClientReport, InstallRecipe, Launch, LaunchSpec, Tokens

_HOME: Final = ".qwen"
_PATIENCE_MS: Final = 1_800_000


def launch(spec: LaunchSpec) -> Launch:
    """Command line, environment and settings of one run; the prompt goes through stdin."""
    endpoint = spec.endpoint
    argv = (
        *("qwen", "--auth-type", "openai", "-m", endpoint.model, "--yolo", "-o", "stream-json"),
        *("--session-id", spec.session_id),
    )
    env = {
        "QWEN_HOME": f"{spec.home}/{_HOME}",
        "OPENAI_API_KEY": "local",
        "OPENAI_BASE_URL": f"{endpoint.base_url}/v1",
        "OPENAI_MODEL": endpoint.model,
        "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
    }
    return Launch(
        argv=argv,
        env=env,
        files={f"{_HOME}/settings.json": json.dumps(_settings(spec), indent=2) + "\n"},
        stdin=spec.prompt,
    )


def _settings(spec: LaunchSpec) -> dict[str, Any]:
    generation: dict[str, Any] = {"timeout": _PATIENCE_MS, "maxRetries": 1}
    if spec.endpoint.context is not None:
        generation["contextWindowSize"] = spec.endpoint.context
    cap = transcript.output_cap(spec.endpoint)
    sampling: dict[str, Any] = {} if cap is None else {"max_tokens": cap}
    if spec.reasoning_effort is not None:
        sampling["reasoning_effort"] = spec.reasoning_effort
    if sampling:
        generation["samplingParams"] = sampling
    return {
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False},
        "model": {"generationConfig": generation},
    }


def read(artifacts: Artifacts) -> ClientReport:
    """What the events say; tokens from the closing `result`."""
    return transcript.last_words(transcript.report_of(artifacts, _take), artifacts)


def _take(report: ClientReport, event: transcript.Event) -> ClientReport:
    blocks = transcript.items(event, "message", "content")
    match event.get("type"), event.get("subtype"):
        case "system", "init":
            session, folder = transcript.text(event, "session_id"), transcript.text(event, "cwd")
            return replace(report, session_id=session, workspace=folder, tool_calls=0, tool_errors=0, retries=0)
        case "system", "retry":
            return replace(report, retries=transcript.add(report.retries, 1))
        case "assistant", _:
            calls = sum(transcript.at(block, "type") == "tool_use" for block in blocks)
            return replace(report, tool_calls=transcript.add(report.tool_calls, calls))
        case "user", _:
            errors = sum(transcript.at(block, "is_error") is True for block in blocks)
            return replace(report, tool_errors=transcript.add(report.tool_errors, errors))
        case "result", _:
            return _result(report, event)
    return report


def _result(report: ClientReport, event: transcript.Event) -> ClientReport:
    failed = event.get("subtype") != "success" or event.get("is_error") is True
    words = transcript.text(event, "error", "message") or transcript.text(event, "subtype") or "error"
    error = words if failed else None
    report = replace(
        report,
        terminal="error" if failed else "success",
        error=error,
        error_kind=transcript.error_kind(error),
        turns=transcript.count(event, "num_turns"),
        tokens=_tokens(event),
        final_message=transcript.text(event, "result"),
    )
    denied = len(transcript.items(event, "permission_denials"))
    return transcript.noted(report, f"{denied} tool calls were denied permission") if denied else report


def _tokens(event: transcript.Event) -> Tokens | None:
    # Its input count includes what came from the cache.
    spent = transcript.at(event, "usage")
    return transcript.usage(
        total=transcript.count(spent, "input_tokens"),
        cached=transcript.count(spent, "cache_read_input_tokens"),
        output=transcript.count(spent, "output_tokens"),
    )


QWEN: Final = Client(
    name="qwen",
    dialects=("openai-chat",),
    pinned="0.24.4",
    install=InstallRecipe(kind="npm", lock="qwen", bin="node_modules/.bin"),
    version_argv=("qwen", "--version"),
    launch=launch,
    read=read,
    min_context=17800,
    notes=("searches with its own grep: the ripgrep it ships is not executable without install scripts",),
)
