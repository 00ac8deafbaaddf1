"""aider: Chat Completions dialect, no tool loop: it edits by text blocks in the files it is told.

It prints text for people, so `read` knows little; its token counts are estimates and rounded. The price list
it fetches at start is put in place beforehand, with the real context of the model. Facts: docs/clients.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from msgspec.structs import replace

from benchmarks.lab.clients import _transcript as transcript
from benchmarks.lab.model import Artifacts, Client, ClientReport, InstallRecipe, Launch, LaunchSpec, Tokens

_STATE: Final = "aider"
_PROMPT: Final = f"{_STATE}/prompt.md"
_METADATA: Final = f"{_STATE}/model-metadata.json"
_SETTINGS: Final = f"{_STATE}/model-settings.yml"
_PRICES: Final = ".aider/caches/model_prices_and_context_window.json"
_SWITCHES: Final = (
    *("--yes-always", "--no-auto-commits", "--no-dirty-commits", "--no-gitignore", "--no-analytics"),
    *("--no-check-update", "--no-show-release-notes", "--no-show-model-warnings", "--no-detect-urls"),
    *("--no-suggest-shell-commands", "--no-pretty", "--stream", "--edit-format", "diff", "--timeout", "1800"),
    # Else it has the model summarise the one exchange there is, before it leaves: a whole prefill for nothing.
    *("--max-chat-history-tokens", "1000000"),
)
_TOKENS: Final = re.compile(r"^Tokens: ([\d.,]{1,12})([kM]?) sent(?:, .*?)?, ([\d.,]{1,12})([kM]?) received")
_FAILED: Final = re.compile(r"^litellm\.\w+(?:Error|Exception|Timeout)\b")
_RETRYING: Final = re.compile(r"^Retrying in ")
_MISFORMED: Final = re.compile(r"SEARCH/REPLACE blocks? failed|did not conform to the edit format|^The LLM did not")
_APPLIED: Final = "Applied edit to "
_LONGEST_ERROR: Final = 20  # lines
_FACTORS: Final = {"": 1, "k": 1000, "M": 1_000_000}


def launch(spec: LaunchSpec) -> Launch:
    """Command line, environment and files of one run; the prompt is given as a file, its histories lie in the home."""
    model = f"openai/{spec.endpoint.model}"
    own = {name: f"{spec.home}/{_STATE}/{name}" for name in ("chat-history", "input-history", "llm-history")}
    argv = (
        *("aider", "--model", model, "--weak-model", model, "--editor-model", model, *_SWITCHES),
        *("--model-metadata-file", f"{spec.home}/{_METADATA}", "--model-settings-file", f"{spec.home}/{_SETTINGS}"),
        *(part for name, path in own.items() for part in (f"--{name}-file", path)),
        *("--message-file", f"{spec.home}/{_PROMPT}"),
        *(f"--file={file}" for file in spec.files),
    )
    env = {
        "OPENAI_API_BASE": f"{spec.endpoint.base_url}/v1",
        "OPENAI_API_KEY": "local",
        "AIDER_ANALYTICS": "false",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    metadata = json.dumps({model: _metadata(spec)}, indent=2) + "\n"
    settings = json.dumps([_settings(spec, model)], indent=2) + "\n"  # JSON is YAML
    files = {_PROMPT: spec.prompt, _METADATA: metadata, _SETTINGS: settings, _PRICES: metadata}
    return Launch(argv=argv, env=env, files=files, stdin=None)


def _metadata(spec: LaunchSpec) -> dict[str, Any]:
    cap = transcript.output_cap(spec.endpoint)
    limits = {"max_tokens": cap, "max_input_tokens": spec.endpoint.context, "max_output_tokens": cap}
    told = {name: limit for name, limit in limits.items() if limit is not None}
    # A list without an entry would be fetched again.
    return {**told, "litellm_provider": "openai", "mode": "chat", "input_cost_per_token": 0, "output_cost_per_token": 0}


def _settings(spec: LaunchSpec, model: str) -> dict[str, Any]:
    cap = transcript.output_cap(spec.endpoint)
    extra: dict[str, Any] = {"stream_options": {"include_usage": True}, "max_retries": 0}
    if cap is not None:
        extra["max_tokens"] = cap
    if spec.reasoning_effort is not None:
        extra["extra_body"] = {"reasoning_effort": spec.reasoning_effort}
    return {
        "name": model,
        "edit_format": "diff",
        "weak_model_name": model,
        "editor_model_name": model,
        "use_repo_map": True,
        "extra_params": extra,
    }


def read(artifacts: Artifacts) -> ClientReport:
    """What its lines say. It has no closing event: the line of token counts after each reply is taken for it."""
    report = ClientReport()
    edits = 0
    for paragraph in _paragraphs(artifacts.stdout()):
        edits += paragraph.startswith(_APPLIED)
        report = _take(report, paragraph)
    if edits:
        report = transcript.noted(report, f"edits applied: {edits}")
    if report.tokens is not None:
        report = transcript.noted(report, "its token counts are its own estimates, rounded to two digits")
    return transcript.last_words(report, artifacts)


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Lines, where one that tells an error is joined with those it was wrapped into (it wraps at 80 columns)."""
    telling: list[str] = []
    for line in lines:
        wrapped = bool(line.strip()) and len(telling) < _LONGEST_ERROR
        if telling and wrapped and not _FAILED.match(line) and not _RETRYING.match(line):
            telling.append(line.strip())
            continue
        if telling:
            yield " ".join(telling)
        telling = [line.strip()] if _FAILED.match(line) else []
        if not telling:
            yield line
    if telling:
        yield " ".join(telling)


def _take(report: ClientReport, line: str) -> ClientReport:
    if tokens := _tokens(line):
        return replace(
            report,
            terminal="success",
            error=None,
            error_kind=None,
            turns=transcript.add(report.turns, 1),
            tokens=transcript.add_tokens(report.tokens, tokens),
        )
    if _FAILED.match(line):
        words = line[: transcript.WORDS_KEPT]
        return replace(report, terminal="error", error=words, error_kind=transcript.error_kind(words))
    if _RETRYING.match(line):
        return replace(report, terminal=None, retries=transcript.add(report.retries, 1))
    if _MISFORMED.search(line):
        return replace(report, tool_errors=transcript.add(report.tool_errors, 1))
    return report


def _tokens(line: str) -> Tokens | None:
    found = _TOKENS.match(line)
    if found is None:
        return None
    sent, sent_unit, received, received_unit = found.groups()
    return transcript.usage(total=_number(sent, sent_unit), output=_number(received, received_unit))


def _number(digits: str, unit: str) -> int | None:
    try:
        return round(float(digits.replace(",", "")) * _FACTORS[unit])
    except ValueError:
        return None


AIDER: Final = Client(
    name="aider",
    dialects=("openai-chat",),
    pinned="0.86.2",
    install=InstallRecipe(kind="pip", lock="aider", bin="bin", python=">=3.10,<3.13"),
    version_argv=("aider", "--version"),
    launch=launch,
    read=read,
    tool_loop=False,
    min_context=2200,
    notes=("must be told the files to edit", "sends temperature 0 by itself"),
)
