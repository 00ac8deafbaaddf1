"""The table of engines. To add one: a file beside this one, and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.lab.engines.base import Engine
from benchmarks.lab.engines.embedded import EmbeddedEngine
from benchmarks.lab.engines.openai import OpenAIEngine
from benchmarks.lab.engines.scripted.engine import ScriptedEngine
from benchmarks.lab.errors import UsageError

ENGINES: Final[Mapping[str, Engine]] = {
    "embedded": EmbeddedEngine(),
    "openai": OpenAIEngine(),
    "scripted": ScriptedEngine(),
}


def find(name: str) -> Engine:
    """The engine of that name. Raises UsageError that lists the known ones."""
    if name not in ENGINES:
        raise UsageError(
            f"engine '{name}' is unknown; there are: {', '.join(ENGINES)}. `openai` is any server that runs already: "
            "Ollama, LM Studio, llama-server, vLLM"
        )
    return ENGINES[name]
