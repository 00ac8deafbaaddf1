"""docs/engines.md says what the engines are: names, dialects, options, and which facts each server tells."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lab.engines import ENGINES, ask
from benchmarks.lab.engines.base import process_of
from benchmarks.lab.engines.embedded import EmbeddedEndpoint
from benchmarks.lab.engines.openai import read_facts
from benchmarks.lab.model import Backend, EngineFacts
from tests.lab.engines.conftest import fake

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "engines.md").read_text(encoding="utf-8")
UNTOLD = EngineFacts()

# Replies rich enough for every fact that a server of the kind could tell.
PARAMS = {"temperature": 0.8, "speculative.types": "none"}
LLAMA = {
    "/v1/models": {"data": [{"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx_train": 9, "ftype": "Q4_0"}}]},
    "/props": {
        "default_generation_settings": {"n_ctx": 8, "params": PARAMS},
        "build_info": "b1",
        "model_alias": "m",
        "model_path": "/m.gguf",
        "total_slots": 1,
    },
    "/slots": [{"n_ctx": 8, "speculative": False}],
    "/apply-template": {"prompt": ask.PROBE_TOOL},
}
PLAIN = {"/v1/models": {"data": [{"id": "m"}]}}
LOADED = {"name": "m", "context_length": 8, "digest": "d", "details": {"quantization_level": "Q4_0"}}
STUDIO = {"id": "m", "quantization": "Q4_0", "loaded_context_length": 8, "max_context_length": 9}
SERVERS: Mapping[str, Mapping[str, Any]] = {
    "`openai`: llama.cpp": LLAMA,
    "`openai`: vLLM": {
        "/v1/models": {"data": [{"id": "m", "root": "org/m", "max_model_len": 8}]},
        "/version": {"version": "1"},
    },
    "`openai`: Ollama": {**PLAIN, "/api/version": {"version": "1"}, "/api/ps": {"models": [LOADED]}},
    "`openai`: LM Studio": {**PLAIN, "/api/v0/models": {"data": [STUDIO]}},
    "`openai`: any other": PLAIN,
}


def table(first: str) -> list[dict[str, str]]:
    """Rows of the table whose first column is `first`."""
    lines = [line for line in TEXT.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    begin = next(number for number, row in enumerate(rows) if row[0] == first)
    body = []
    for row in rows[begin + 2 :]:
        if len(row) != len(rows[begin]) or not row[0].startswith("`"):
            break
        body.append(dict(zip(rows[begin], row, strict=True)))
    return body


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def told(facts: EngineFacts) -> set[str]:
    return {name for name in facts.__struct_fields__ if getattr(facts, name) != getattr(UNTOLD, name)}


def documented(column: str) -> set[str]:
    """Facts marked `yes`; `here` depends on the system and is left out on both sides."""
    return {names(row["fact"])[0] for row in table("fact") if row[column] == "yes"}


def test_the_table_names_every_engine_once() -> None:
    assert [names(row["engine"])[0] for row in table("engine")] == list(ENGINES)


@pytest.mark.parametrize("name", ENGINES)
def test_dialects_are_those_of_the_code(name: str) -> None:
    row = next(row for row in table("engine") if row["engine"] == f"`{name}`")
    assert row["dialects"].split(", ") == list(ENGINES[name].dialects)


@pytest.mark.parametrize("name", ENGINES)
def test_options_are_those_that_the_engine_takes(name: str) -> None:
    row = next(row for row in table("engine") if row["engine"] == f"`{name}`")
    known = sys.modules[type(ENGINES[name]).__module__].OPTIONS
    assert names(row["options"]) == list(known)


@pytest.mark.parametrize("name", ENGINES)
def test_every_option_has_its_meaning(name: str) -> None:
    section = TEXT.split(f"\n## `{name}`\n")[1].split("\n## ")[0]
    explained = [option for line in re.findall(r"^\| (`.+?) \|", section, re.MULTILINE) for option in names(line)]
    assert explained == list(sys.modules[type(ENGINES[name]).__module__].OPTIONS)


def test_every_fact_has_its_row() -> None:
    assert [names(row["fact"])[0] for row in table("fact")] == list(EngineFacts.__struct_fields__)
    assert {cell for row in table("fact") for cell in list(row.values())[1:]} <= {"yes", "here", "–"}


@pytest.mark.parametrize("column", SERVERS)
def test_an_attached_server_tells_what_the_table_says(column: str) -> None:
    with fake(SERVERS[column]) as url:
        facts = read_facts(ask.Address(base_url=url, who="fake"), "m")
    assert told(facts) - {"started", "process"} == documented(column)


def test_the_embedded_engine_tells_what_the_table_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_LAB_CACHE", str(tmp_path / "cache"))
    weights = tmp_path / "m.gguf"
    weights.write_bytes(b"weights")
    with fake(LLAMA) as url:
        server = ask.Address(base_url=url, who="fake")
        endpoint = EmbeddedEndpoint(server, Backend(name="e", engine="embedded"), _myself(), weights)
    assert told(endpoint.facts) == documented("`embedded`")


def _myself() -> Any:
    return process_of(os.getpid())


def test_the_scripted_engine_tells_what_the_table_says(tmp_path: Path) -> None:
    with ENGINES["scripted"].serve(Backend(name="s", engine="scripted"), tmp_path, print) as endpoint:
        assert told(endpoint.facts) == documented("`scripted`")
