"""The dialect `openai-chat`: POST /v1/chat/completions (OpenAI; llama.cpp, Ollama, LM Studio, vLLM, mlx-lm).

`usage.prompt_tokens` is the whole prompt, cached part included. A stream tells usage only when asked to, in a last
chunk with empty `choices`; llama.cpp sends `timings` in its last chunk all the same.
"""

from __future__ import annotations

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


def request(body: JsonObject) -> RequestFacts:
    """What a chat request asks for."""
    messages = [obj(message) for message in items(body.get("messages"))]
    return RequestFacts(
        model=text_or_none(body.get("model")),
        stream=body.get("stream") is True,
        output_cap=count(body.get("max_completion_tokens")) or count(body.get("max_tokens")),
        sampler=sampling(body),
        tools=tuple(text(obj(obj(tool).get("function")).get("name")) for tool in items(body.get("tools"))),
        user_texts=tuple(t for m in messages if m.get("role") == "user" for t in content_texts(m.get("content"))),
        system_text="\n".join(
            t for m in messages if m.get("role") in ("system", "developer") for t in content_texts(m.get("content"))
        ),
    )


def parts(body: JsonObject) -> list[Part]:
    """Prompt pieces: leading system messages, tools, then the conversation (most templates render tools there)."""
    messages = flat("messages", body.get("messages"))
    roles = [obj(message).get("role") for message in items(body.get("messages"))]
    leading = next((i for i, role in enumerate(roles) if role not in ("system", "developer")), len(roles))
    return messages[:leading] + flat("tools", body.get("tools")) + messages[leading:]


def event(reply: Reply, name: str, data: JsonObject, at: float) -> None:
    """One chunk of a chat stream."""
    _common(reply, data)
    if name == "error" or data.get("error"):
        reply.fail(data)
    for choice in items(data.get("choices")):
        delta = obj(obj(choice).get("delta"))
        reply.think(delta.get("reasoning_content") or delta.get("reasoning"), at)
        reply.say(delta.get("content") or delta.get("refusal"), at)
        for fragment in items(delta.get("tool_calls")):
            _call_fragment(reply, obj(fragment), at)
        reply.finish = text_or_none(obj(choice).get("finish_reason")) or reply.finish


def whole(reply: Reply, data: JsonObject) -> None:
    """A chat reply in one piece."""
    _common(reply, data)
    reply.done = "choices" in data
    for choice in items(data.get("choices")):
        message = obj(obj(choice).get("message"))
        reply.think(message.get("reasoning_content") or message.get("reasoning"), 0.0)
        reply.say(message.get("content"), 0.0)
        for index, call in enumerate(items(message.get("tool_calls"))):
            _call_fragment(reply, {"index": index, **obj(call)}, 0.0)
        reply.finish = text_or_none(obj(choice).get("finish_reason")) or reply.finish


def usage(data: JsonObject) -> Tokens:
    """Counts of a chat `usage`; DeepSeek's name for the cached part is understood too."""
    cached = count(obj(data.get("prompt_tokens_details")).get("cached_tokens"))
    if cached is None:
        cached = count(data.get("prompt_cache_hit_tokens"))
    reasoning = count(obj(data.get("completion_tokens_details")).get("reasoning_tokens"))
    return prompt_tokens(count(data.get("prompt_tokens")), cached, count(data.get("completion_tokens")), reasoning)


def _common(reply: Reply, data: JsonObject) -> None:
    reply.model = text_or_none(data.get("model")) or reply.model
    reply.usage = obj(data.get("usage")) or reply.usage
    reply.timings = obj(data.get("timings")) or reply.timings


def _call_fragment(reply: Reply, fragment: JsonObject, at: float) -> None:
    """File a fragment of a tool call. Engines were seen to leave out `index`, leave `id` empty, or reuse index 0."""
    function = obj(fragment.get("function"))
    name, arguments = text(function.get("name")), text(function.get("arguments"))
    if not name and not arguments:
        return
    reply.token(at, answer=True)
    call = reply.call(_call_key(reply, fragment, name))
    call.call_id = text(fragment.get("id")) or call.call_id
    call.name = name or call.name
    call.add(arguments)


def _call_key(reply: Reply, fragment: JsonObject, name: str) -> str:
    index = count(fragment.get("index"))
    last = next(reversed(reply.calls), "0")
    if index is None:
        return f"new {len(reply.calls)}" if name else last
    known = [key for key in reply.calls if key.split()[0] == str(index)]
    if not known:
        return str(index)
    call_id = text(fragment.get("id"))
    another = bool(name and call_id) and call_id != reply.calls[known[-1]].call_id
    return f"{index} {len(reply.calls)}" if another else known[-1]


READER: Final = DialectReader(
    path="/v1/chat/completions",
    mark="choices",
    request=request,
    parts=parts,
    event=event,
    whole=whole,
    usage=usage,
    cut_reasons=frozenset({"length", "max_tokens"}),
)
