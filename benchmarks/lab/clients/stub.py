"""The stub agent as a client: a small program of our own, with which the harness is tested without node.

`stub(plan)` makes a client that misbehaves as the plan says; the keys of a plan stand in `stub_agent.py`.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from benchmarks.lab.clients import _transcript as transcript
from benchmarks.lab.model import Artifacts, Client, ClientReport, InstallRecipe, Launch, LaunchSpec, Tokens

_FOLDER: Final = ".stub"
_PYTHON: Final = Path(sys.base_prefix) / "bin"  # the sandbox exposes this Python in any case


def stub(plan: Mapping[str, Any] | None = None) -> Client:
    """A client that runs the stub agent with this plan."""
    return Client(
        name="stub",
        dialects=("openai-chat", "anthropic-messages", "openai-responses"),
        pinned="1",
        install=InstallRecipe(kind="none", bin=str(_PYTHON)),
        version_argv=(),
        launch=functools.partial(launch, plan=dict(plan or {})),
        read=read,
        notes=("not an agent to be ranked: it tests the harness",),
    )


def launch(spec: LaunchSpec, plan: Mapping[str, Any]) -> Launch:
    """The program and its settings are put into the home; the prompt goes through stdin."""
    settings = {
        "base_url": spec.endpoint.base_url,
        "dialect": spec.endpoint.dialect,
        "model": spec.endpoint.model,
        "cap": spec.endpoint.output_cap,
        "session": spec.session_id,
        "plan": dict(plan),
    }
    files = {f"{_FOLDER}/agent.py": _program(), f"{_FOLDER}/config.json": json.dumps(settings)}
    argv = ("python3", "-I", f"{spec.home}/{_FOLDER}/agent.py")
    return Launch(argv=argv, env={}, files=files, stdin=spec.prompt)


def read(artifacts: Artifacts) -> ClientReport:
    """What its events say."""
    return transcript.report_of(artifacts, _take)


@functools.cache
def _program() -> str:
    return Path(__file__).with_name("stub_agent.py").read_text()


def _take(report: ClientReport, event: transcript.Event) -> ClientReport:
    kind = event.get("type")
    if kind == "start":
        begun = ClientReport(turns=0, tool_calls=0, tool_errors=0, retries=0)
        session, workspace = transcript.text(event, "session"), transcript.text(event, "cwd")
        return transcript.filled(replace(report, session_id=session, workspace=workspace), begun)
    if kind == "turn":
        tokens = transcript.add_tokens(report.tokens, _tokens(transcript.at(event, "usage")))
        return replace(report, turns=transcript.add(report.turns, 1), tokens=tokens)
    if kind == "tool":
        errors = transcript.add(report.tool_errors, int(transcript.at(event, "exit") != 0))
        return replace(report, tool_calls=transcript.add(report.tool_calls, 1), tool_errors=errors)
    if kind == "retry":
        return replace(report, retries=transcript.add(report.retries, 1))
    return _ending(report, event)


def _ending(report: ClientReport, event: transcript.Event) -> ClientReport:
    if event.get("type") == "error":
        words = transcript.text(event, "message")
        return replace(report, error=words, error_kind=transcript.error_kind(words))
    if event.get("type") == "end":
        success = transcript.at(event, "success") is True
        said = transcript.text(event, "text")
        return replace(report, terminal="success" if success else "error", final_message=said)
    return report


def _tokens(usage: object) -> Tokens | None:
    """It prints usage as the server told it, so each dialect's own names appear."""
    if transcript.at(usage, "prompt_tokens") is not None:
        return transcript.usage(
            total=transcript.count(usage, "prompt_tokens"),
            cached=transcript.count(usage, "prompt_tokens_details", "cached_tokens"),
            output=transcript.count(usage, "completion_tokens"),
        )
    if transcript.at(usage, "cache_read_input_tokens") is not None:
        return transcript.usage(
            new=transcript.count(usage, "input_tokens"),
            cached=transcript.count(usage, "cache_read_input_tokens"),
            output=transcript.count(usage, "output_tokens"),
        )
    return transcript.usage(
        total=transcript.count(usage, "input_tokens"),
        cached=transcript.count(usage, "input_tokens_details", "cached_tokens"),
        output=transcript.count(usage, "output_tokens"),
    )


STUB: Final = stub()
