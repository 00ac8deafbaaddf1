"""OpenCode 1.x: Chat Completions dialect, state under XDG folders, prompt by stdin, JSON events on stdout.

A title is given, so that it asks no model for one; the small model is pinned to the one model. Its version 2 has
other commands and a shared service, and is not covered. Facts: docs/clients.md.
"""

from __future__ import annotations

import json
from typing import Any, Final

from msgspec.structs import replace

from benchmarks.lab.clients import _transcript as transcript
from benchmarks.lab.model import Artifacts, Client, ClientReport, InstallRecipe, Launch, LaunchSpec, Tokens

_STATE: Final = "opencode"  # not `.opencode`, which it would take for a folder of configuration
_CONFIG: Final = f"{_STATE}/opencode.json"
_PATIENCE_MS: Final = 1_800_000
_OFF: Final = ("MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD", "CLAUDE_CODE", "PROJECT_CONFIG", "SHARE")
_XDG: Final = ("CONFIG", "DATA", "STATE", "CACHE")


def launch(spec: LaunchSpec) -> Launch:
    """Command line, environment and configuration of one run; the prompt goes byte-exact through stdin."""
    argv = (
        *("opencode", "run", "--format", "json", "--auto", "--thinking", "--title", "trial"),
        *("--dir", spec.workspace, "-m", f"local/{spec.endpoint.model}"),
    )
    env = {
        **{f"XDG_{kind}_HOME": f"{spec.home}/{_STATE}/{kind.lower()}" for kind in _XDG},
        **{f"OPENCODE_DISABLE_{feature}": "1" for feature in _OFF},
        "OPENCODE_CONFIG": f"{spec.home}/{_CONFIG}",
    }
    files = {_CONFIG: json.dumps(_config(spec), indent=2) + "\n", **_plugin_installed()}
    return Launch(argv=argv, env=env, files=files, stdin=spec.prompt)


def _plugin_installed() -> dict[str, str]:
    """Files by which it believes its plugin package installed, which else it fetches from a registry at every start.

    Nothing uses the package where there are no plugins (`Npm.install` of its source).
    """
    folder = f"{_STATE}/config/opencode"
    lock = {"packages": {"": {"dependencies": {"@opencode-ai/plugin": "*"}}}}
    return {f"{folder}/node_modules/.keep": "", f"{folder}/package-lock.json": json.dumps(lock) + "\n"}


def _config(spec: LaunchSpec) -> dict[str, Any]:
    endpoint = spec.endpoint
    model: dict[str, Any] = {}
    cap = transcript.output_cap(endpoint)
    if endpoint.context is not None and cap is not None:
        model["limit"] = {"context": endpoint.context, "output": cap}
    if spec.reasoning_effort is not None:
        model["options"] = {"reasoningEffort": spec.reasoning_effort}
    name = f"local/{endpoint.model}"
    options = {
        "baseURL": f"{endpoint.base_url}/v1",
        "apiKey": "local",
        "timeout": False,
        "headerTimeout": False,
        "chunkTimeout": _PATIENCE_MS,
    }
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {endpoint.model: model}}
    return {
        "provider": {"local": provider},
        "model": name,
        "small_model": name,
        "autoupdate": False,
        "share": "disabled",
        "permission": {"doom_loop": "deny"},
    }


def read(artifacts: Artifacts) -> ClientReport:
    """What the events say; a run has no closing event but the `step_finish` whose reason is `stop`."""
    return transcript.last_words(transcript.report_of(artifacts, _take), artifacts)


def _take(report: ClientReport, event: transcript.Event) -> ClientReport:
    session = transcript.text(event, "sessionID")
    if session is not None and report.session_id is None:
        report = replace(report, session_id=session, tool_calls=0, tool_errors=0, turns=0)
    match event.get("type"):
        case "step_finish":
            return _step(report, event)
        case "tool_use":
            return _tool(report, event)
        case "text":
            return replace(report, final_message=transcript.text(event, "part", "text"))
        case "error":
            name = transcript.text(event, "error", "name") or "error"
            words = f"{name}: {transcript.text(event, 'error', 'data', 'message') or ''}".removesuffix(": ")
            return replace(report, terminal="error", error=words, error_kind=transcript.error_kind(words))
    return report


def _step(report: ClientReport, event: transcript.Event) -> ClientReport:
    reason = transcript.text(event, "part", "reason")
    report = replace(
        report,
        turns=transcript.add(report.turns, 1),
        tokens=transcript.add_tokens(report.tokens, _tokens(event)),
    )
    if reason == "stop":
        return replace(report, terminal="success", error=None, error_kind=None)
    if reason != "tool-calls":
        report = transcript.noted(report, f"a reply ended with reason {reason}")
    # A rejected tool call ends the run after this event, with exit code 0; anything else goes on from here.
    return report if report.error_kind == "permission" else replace(report, terminal=None, error=None, error_kind=None)


def _tool(report: ClientReport, event: transcript.Event) -> ClientReport:
    status = transcript.text(event, "part", "state", "status")
    # A call whose arguments do not parse is logged as the tool `invalid`, with status `completed` (B61).
    failed = status == "error" or transcript.text(event, "part", "tool") == "invalid"
    report = replace(
        report,
        tool_calls=transcript.add(report.tool_calls, 1),
        tool_errors=transcript.add(report.tool_errors, int(failed)),
    )
    words = transcript.text(event, "part", "state", "error")
    if status == "error" and transcript.error_kind(words) == "permission":
        return replace(report, terminal="error", error=words, error_kind="permission")
    return replace(report, terminal=None, error=None, error_kind=None)


def _tokens(event: transcript.Event) -> Tokens | None:
    # Its input count leaves out what was read from the cache and what was written to it, its output the reasoning.
    spent = transcript.at(event, "part", "tokens")
    reasoning = transcript.count(spent, "reasoning")
    return transcript.usage(
        new=transcript.add(transcript.count(spent, "input"), transcript.count(spent, "cache", "write")),
        cached=transcript.count(spent, "cache", "read"),
        output=transcript.add(transcript.count(spent, "output"), reasoning),
        reasoning=reasoning,
    )


OPENCODE: Final = Client(
    name="opencode",
    dialects=("openai-chat",),
    pinned="1.18.33",
    install=InstallRecipe(kind="npm", lock="opencode", bin="node_modules/opencode-*/bin"),
    version_argv=("opencode", "--version"),
    launch=launch,
    read=read,
    min_context=7200,
    notes=("retries a failing server for ever without an event: only the stall budget ends it",),
)
