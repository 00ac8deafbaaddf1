"""Codex CLI: Responses dialect only, state under CODEX_HOME, prompt by stdin, JSON events on stdout.

Its own sandbox is bypassed: the harness has one. Facts: docs/clients.md.
"""

from __future__ import annotations

import json
from typing import Final

from msgspec.structs import replace

from benchmarks.lab.clients import _transcript as transcript
from benchmarks.lab.model import Artifacts, Client, ClientReport, InstallRecipe, Launch, LaunchSpec, Tokens

_KEY: Final = "LOCAL_LAB_KEY"
_HOME: Final = ".codex"
# What asks other hosts (plugins, apps), starts a service, retries a refused connection for ever, or has no use here.
_FEATURES_OFF: Final = (
    *("apps", "daemon_auto_start", "goals", "plugins", "remote_plugin", "shell_snapshot"),
    "unbounded_connection_retries",
)
_STEPS: Final = ("command_execution", "file_change", "mcp_tool_call", "web_search")
_HELPER_REFUSED: Final = "Refusing to create helper binaries"


def launch(spec: LaunchSpec) -> Launch:
    """Command line, environment and config.toml of one run; the prompt goes byte-exact through stdin."""
    argv = (
        *("codex", "exec", "--json", "--ephemeral", "--skip-git-repo-check", "-C", spec.workspace),
        *("--dangerously-bypass-approvals-and-sandbox", "-"),
    )
    return Launch(
        argv=argv,
        env={"CODEX_HOME": f"{spec.home}/{_HOME}", _KEY: "local"},
        files={f"{_HOME}/config.toml": _config(spec)},
        stdin=spec.prompt,
    )


def _config(spec: LaunchSpec) -> str:
    endpoint = spec.endpoint
    settings: dict[str, object] = {"model": endpoint.model, "review_model": endpoint.model, "model_provider": "local"}
    if endpoint.context is not None:
        settings["model_context_window"] = endpoint.context
    if spec.reasoning_effort is not None:
        settings["model_reasoning_effort"] = spec.reasoning_effort
    settings |= {"check_for_update_on_startup": False, "web_search": "disabled"}
    tables: dict[str, dict[str, object]] = {
        "analytics": {"enabled": False},
        "features": dict.fromkeys(_FEATURES_OFF, False),
        "agents": {"enabled": False},
        "skills.bundled": {"enabled": False},
        "model_providers.local": {
            "name": "Local",
            "base_url": f"{endpoint.base_url}/v1",
            "wire_api": "responses",
            "env_key": _KEY,
            "request_max_retries": 1,
            "stream_max_retries": 1,
            "stream_idle_timeout_ms": 1_800_000,
        },
    }
    blocks = [_assignments(settings), *(f"[{name}]\n{_assignments(table)}" for name, table in tables.items())]
    return "\n".join(blocks)


def _assignments(table: dict[str, object]) -> str:
    # A JSON scalar in ASCII is also a TOML scalar.
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())


def read(artifacts: Artifacts) -> ClientReport:
    """What the events say; the number of model calls is not among it, so `turns` stays unknown."""
    report = transcript.report_of(artifacts, _take)
    if report.session_id is not None:
        none = ClientReport(tool_calls=0, tool_errors=0, retries=0)
        report = transcript.filled(report, none)
    for line in artifacts.stderr():
        if _HELPER_REFUSED in line:
            report = transcript.noted(report, "CODEX_HOME is under a temporary folder: it runs without its helpers")
        elif "codex-linux-sandbox" in line and report.error is None:
            report = replace(report, error=line[: transcript.WORDS_KEPT], error_kind="sandbox")
    return transcript.last_words(report, artifacts)


def _take(report: ClientReport, event: transcript.Event) -> ClientReport:
    match event.get("type"):
        case "thread.started":
            return replace(report, session_id=transcript.text(event, "thread_id"))
        case "turn.completed":
            tokens = transcript.add_tokens(report.tokens, _tokens(event))
            return replace(report, terminal="success", error=None, error_kind=None, tokens=tokens)
        case "turn.failed":
            words = transcript.text(event, "error", "message") or report.error or "turn.failed"
            return replace(report, terminal="error", error=words, error_kind=transcript.error_kind(words))
        case "error":
            words = transcript.text(event, "message") or "error"
            retries = transcript.add(report.retries, int(words.startswith("Reconnecting")))
            return replace(report, error=words, error_kind=transcript.error_kind(words), retries=retries)
        case "item.completed":
            return _item(report, event)
    return report


def _item(report: ClientReport, event: transcript.Event) -> ClientReport:
    kind = transcript.text(event, "item", "type")
    if kind == "error":
        # Not a failure: so it says of every local model that it has no description of (a smaller tool set, B21).
        return transcript.noted(report, transcript.text(event, "item", "message") or "error item")
    report = replace(report, error=None, error_kind=None)  # it went on: what failed before was retried
    if kind == "agent_message":
        return replace(report, final_message=transcript.text(event, "item", "text"))
    if kind in _STEPS:
        failed = transcript.text(event, "item", "status") in ("failed", "declined")
        return replace(
            report,
            tool_calls=transcript.add(report.tool_calls, 1),
            tool_errors=transcript.add(report.tool_errors, int(failed)),
        )
    return report


def _tokens(event: transcript.Event) -> Tokens | None:
    # Its input count includes what came from the cache.
    usage = transcript.at(event, "usage")
    return transcript.usage(
        total=transcript.count(usage, "input_tokens"),
        cached=transcript.count(usage, "cached_input_tokens"),
        output=transcript.count(usage, "output_tokens"),
        reasoning=transcript.count(usage, "reasoning_output_tokens"),
    )


CODEX: Final = Client(
    needs=("mixed_tools",),
    name="codex",
    dialects=("openai-responses",),
    pinned="0.171.0",
    install=InstallRecipe(kind="npm", lock="codex", bin="node_modules/@openai/codex-*/vendor/*/bin"),
    version_argv=("codex", "--version"),
    launch=launch,
    read=read,
    min_context=5200,
    notes=("a model it does not know gets no apply_patch tool: it edits through the shell",),
)
