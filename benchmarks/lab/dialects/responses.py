"""The dialect `openai-responses`: POST /v1/responses (OpenAI's reference; llama.cpp, Ollama, LM Studio, vLLM; Codex).

`usage.input_tokens` is the whole prompt. llama.cpp says `completed` even where the cap ended the reply, so a count
equal to the cap is the only sign. Items that are not calls or texts (web search, images) are not read.
"""

from __future__ import annotations

import json
from typing import Final

from benchmarks.lab.dialects.facts import (
    DialectReader,
    JsonObject,
    Part,
    Reply,
    RequestFacts,
    content_texts,
    count,
    items,
    obj,
    prompt_tokens,
    sampling,
    text,
    text_or_none,
)
from benchmarks.lab.dialects.parts import flat
from benchmarks.lab.model import Tokens

CALLS: Final = ("function_call", "custom_tool_call", "local_shell_call")
ENDS: Final = ("response.completed", "response.incomplete", "response.failed", "response.done")
CALL_DELTAS: Final = ("response.function_call_arguments.delta", "response.custom_tool_call_input.delta")


def request(body: JsonObject) -> RequestFacts:
    """What a responses request asks for."""
    given = body.get("input")
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else [obj(item) for item in items(given)]
    leading = [m for m in messages if m.get("role") in ("system", "developer")]
    systems = [text(body.get("instructions")), *(t for m in leading for t in content_texts(m.get("content")))]
    return RequestFacts(
        model=text_or_none(body.get("model")),
        stream=body.get("stream") is True,
        output_cap=count(body.get("max_output_tokens")),
        sampler=sampling(body),
        tools=tuple(name for tool in items(body.get("tools")) for name in _tool_names(obj(tool))),
        user_texts=tuple(t for m in messages if m.get("role") == "user" for t in content_texts(m.get("content"))),
        system_text="\n".join(systems),
    )


def parts(body: JsonObject) -> list[Part]:
    """Prompt pieces: instructions, tools, input."""
    return [part for name in ("instructions", "tools", "input") for part in flat(name, body.get(name))]


def event(reply: Reply, name: str, data: JsonObject, at: float) -> None:
    """One event of a responses stream. The data's `type` decides; the event's name only where that is missing."""
    kind = text(data.get("type")) or name
    if kind == "response.output_text.delta":
        reply.say(data.get("delta"), at)
    elif kind in CALL_DELTAS:
        if data.get("delta"):
            reply.token(at, answer=True)
            reply.call(_key(data)).add(text(data.get("delta")))
    elif kind.startswith("response.reasoning") and kind.endswith(".delta"):
        reply.think(data.get("delta"), at)
    elif kind in ("response.output_item.added", "response.output_item.done"):
        new = kind.endswith("added") or _key(data) not in reply.calls
        _item(reply, _key(data), obj(data.get("item")), at if new else None)
    elif kind in ENDS or kind == "response.created":
        _response(reply, obj(data.get("response")))
        reply.done = kind in ENDS
    elif kind == "error":
        reply.fail(data)
    reply.timings = obj(data.get("timings")) or reply.timings


def whole(reply: Reply, data: JsonObject) -> None:
    """A responses reply in one piece."""
    _response(reply, data)
    reply.done = "output" in data
    for index, item in enumerate(items(data.get("output"))):
        _item(reply, str(index), obj(item), 0.0)
        for part in items(obj(item).get("content")):
            if obj(item).get("type") == "message":
                reply.say(obj(part).get("text"), 0.0)
            else:
                reply.think(obj(part).get("text"), 0.0)


def usage(data: JsonObject) -> Tokens:
    """Counts of a responses `usage`."""
    cached = count(obj(data.get("input_tokens_details")).get("cached_tokens"))
    reasoning = count(obj(data.get("output_tokens_details")).get("reasoning_tokens"))
    return prompt_tokens(count(data.get("input_tokens")), cached, count(data.get("output_tokens")), reasoning)


def _tool_names(tool: JsonObject) -> list[str]:
    """A tool's name; the names inside a `namespace`; the type of a tool that has no name (web_search)."""
    inner = [name for nested in items(tool.get("tools")) for name in _tool_names(obj(nested))]
    return inner or [text(tool.get("name")) or text(tool.get("type"))]


def _key(data: JsonObject) -> str:
    return str(count(data.get("output_index")) or 0)


def _item(reply: Reply, key: str, item: JsonObject, at: float | None) -> None:
    kind = item.get("type")
    if kind not in CALLS:
        return
    if at is not None:
        reply.token(at, answer=True)
    call = reply.call(key)
    call.name, call.call_id = text(item.get("name")) or text(kind), text(item.get("call_id"))
    call.free_text = kind == "custom_tool_call"
    given = item.get("input") if call.free_text else item.get("arguments", item.get("action"))
    if given:
        call.replace(given if isinstance(given, str) else json.dumps(given))


def _response(reply: Reply, response: JsonObject) -> None:
    reply.model = text_or_none(response.get("model")) or reply.model
    reply.usage = obj(response.get("usage")) or reply.usage
    reply.timings = obj(response.get("timings")) or reply.timings
    status = text(response.get("status"))
    if status and status not in ("in_progress", "queued"):
        reply.finish = text_or_none(obj(response.get("incomplete_details")).get("reason")) or status
    if status == "failed" or response.get("error"):
        reply.fail(response.get("error") or "the engine says the response failed, without a reason")


READER: Final = DialectReader(
    path="/v1/responses",
    mark="output",
    request=request,
    parts=parts,
    event=event,
    whole=whole,
    usage=usage,
    cut_reasons=frozenset({"max_output_tokens", "incomplete", "max_tokens", "length"}),
)
