"""What kind of trouble an engine's error text means: texts as seen in llama.cpp, Ollama, vLLM and public threads.

It rules on nothing: what a kind means for a trial is `findings`' and `verdict`'s. Clients' own words are read by
their adapters.
"""

from __future__ import annotations

import re
from typing import Final

from benchmarks.lab.model import EngineErrorKind

# First match wins; `tool_json` stands before `template` since both may speak of tools.
KINDS: Final[tuple[tuple[EngineErrorKind, re.Pattern[str]], ...]] = (
    (
        "context",
        re.compile(
            r"exceed\w*[ _](the )?(available )?context|context[ _](length|size|window)|maximum context"
            r"|prompt is too long|too many tokens|\bn_ctx\b|maximum prompt length",
            re.I,
        ),
    ),
    (
        "tool_json",
        re.compile(
            r"(error|fail\w*|unable|cannot|could not) (to )?pars\w* (the )?(tool|function)"
            r"|invalid (tool|function) call|tool call arguments|(tool|function)[ _]call.{0,40}(json|pars)",
            re.I,
        ),
    ),
    (
        "template",
        re.compile(r"system message must|role: input should be|jinja|chat[ _]template|roles must alternate", re.I),
    ),
    (
        "overloaded",
        re.compile(r"overloaded|loading model|model is loading|rate.?limit|server (is )?busy|queue.{0,20}full", re.I),
    ),
)
BUSY: Final = frozenset({429, 503, 529})


def kind_of_error(status: int | None, text: str | None) -> EngineErrorKind | None:
    """The kind of an error by its words, else by its HTTP status; None if there was none."""
    if text is None and (status is None or status < 400):
        return None
    for kind, pattern in KINDS:
        if text and pattern.search(text):
            return kind
    return "overloaded" if status in BUSY else "other"
