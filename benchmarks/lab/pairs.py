"""Can this client work in front of this engine at all? Asked before a trial is spent on the pair.

By what both say of themselves, and by one small direct request for each odd thing that the client's requests hold.
An engine that does not answer such a request is not blamed here: the trials will tell.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import httpx

from benchmarks.lab.dialects import DIALECTS, rewrite, rewrites_of
from benchmarks.lab.engines import ask
from benchmarks.lab.engines.base import Endpoint
from benchmarks.lab.model import Backend, Client, Dialect
from benchmarks.lab.text import shorten

ANSWER_SECONDS: Final = 120.0
_FUNCTION: Final = {
    "type": "function",
    "name": "probe",
    "description": "A tool.",
    "parameters": {"type": "object", "properties": {}},
    "strict": False,
}


class Need(NamedTuple):
    """A request of a kind that a client sends, in its dialect, and what to do if that is refused and `plain` is not."""

    dialect: Dialect
    plain: Mapping[str, Any]
    odd: Mapping[str, Any]
    means: str


NEEDS: Final[Mapping[str, Need]] = {
    "mid_system": Need(
        "anthropic-messages",
        {"max_tokens": 1, "system": "Be brief.", "messages": [{"role": "user", "content": "Hello."}]},
        {
            "max_tokens": 1,
            "system": "Be brief.",
            "messages": [{"role": "user", "content": "Hello."}, {"role": "system", "content": "One word."}],
        },
        "a system message inside the conversation; add `rewrite: [fold_system]` to the backend (stamped on its rows)",
    ),
    "mixed_tools": Need(
        "openai-responses",
        {"max_output_tokens": 1, "input": "Hello.", "tools": [_FUNCTION]},
        {"max_output_tokens": 1, "input": "Hello.", "tools": [_FUNCTION, {"type": "web_search"}]},
        "tools of other types than `function` beside functions; use a newer build of the engine",
    ),
}


def unsupported(client: Client, endpoint: Endpoint, backend: Backend) -> str | None:
    """Why this pair cannot work, as one sentence with the numbers; None if nothing speaks against it."""
    if not set(client.dialects) & set(endpoint.dialects):
        return f"{client.name} speaks {', '.join(client.dialects)}; {backend.name} only {', '.join(endpoint.dialects)}"
    if backend.purpose == "demo":
        return None  # it shows the machinery; that the model cannot do the work is known and said
    context, cap = endpoint.facts.context, backend.max_tokens or 0
    if context is not None and client.min_context + cap > context:
        reply = f" and {cap} for the reply" if cap else ""
        return (
            f"{client.name} needs {client.min_context} tokens for its own first prompt{reply}; {backend.name} has a "
            f"context of {context}: serve it with a larger one (docs/runbook.md)"
        )
    if client.tool_loop and endpoint.facts.template_tools is False:
        return (
            f"the chat template of {backend.name} renders no tools, and {client.name} edits through tools only; give "
            "the server a template that does, or take a client that edits by text blocks (docs/clients.md)"
        )
    return next((why for name in client.needs if (why := _refused(client, endpoint, backend, NEEDS[name]))), None)


def _refused(client: Client, endpoint: Endpoint, backend: Backend, need: Need) -> str | None:
    """The sentence if the engine takes the plain request and refuses the odd one."""
    if need.dialect not in endpoint.dialects:
        return None
    plain = _answer(endpoint, backend, need.dialect, need.plain)
    odd = _answer(endpoint, backend, need.dialect, need.odd)
    if plain is None or odd is None or plain.is_error or not odd.is_error:
        return None
    words = shorten(odd.text, 160)
    return f"{client.name} sends {need.means} ({backend.name} answered {odd.status_code}: {words})"


def _answer(endpoint: Endpoint, backend: Backend, dialect: Dialect, body: Mapping[str, Any]) -> httpx.Response | None:
    """The engine's answer to `body` as the meter would forward it; None if there is none."""
    sent, _ = rewrite(dialect, json.dumps({"model": endpoint.model, **body}).encode(), rewrites_of(backend))
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    address = ask.Address(base_url=endpoint.base_url, who=f"backend {backend.name}", api_key=endpoint.api_key)
    try:
        with address.client(ANSWER_SECONDS) as http:
            return http.post(DIALECTS[dialect].path, content=sent, headers=headers)
    except httpx.HTTPError:
        return None
