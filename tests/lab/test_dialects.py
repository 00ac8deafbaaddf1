"""What the three dialects say of requests and replies, streamed in any pieces and whole."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.lab.dialects import (
    DIALECTS,
    Reply,
    Rewrite,
    decode,
    dialect_of,
    engine_timings,
    kind_of_error,
    obj,
    read_request,
    rewrite,
    rewrites_of,
    tokens_of,
)
from benchmarks.lab.dialects.rewrites import STEPS
from benchmarks.lab.dialects.sse import EVENT_LIMIT, EventStream
from benchmarks.lab.dialects.textual import textual_calls
from benchmarks.lab.errors import UsageError
from benchmarks.lab.model import Backend, Dialect, EngineTimings, RewriteName, Tokens

ALL: tuple[Dialect, ...] = get_args(Dialect)


def streamed(dialect: Dialect, *events: dict[str, Any]) -> Reply:
    """A reply after `events`, which arrive at 1.0, 2.0, ..."""
    reply = Reply()
    for at, event in enumerate(events, start=1):
        DIALECTS[dialect].event(reply, "", event, float(at))
    return reply


def whole(dialect: Dialect, data: dict[str, Any]) -> Reply:
    reply = Reply()
    DIALECTS[dialect].whole(reply, data)
    return reply


def test_each_dialect_has_a_reader_and_a_path_of_its_own() -> None:
    assert tuple(DIALECTS) == ALL
    assert [dialect_of("POST", reader.path) for reader in DIALECTS.values()] == list(ALL)


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def fragment(index: int | None, arguments: str = "", name: str | None = None, call_id: str = "") -> dict[str, Any]:
    call: dict[str, Any] = {"id": call_id, "function": {"name": name, "arguments": arguments}}
    return chunk(tool_calls=[call if index is None else {"index": index, **call}])


def calls(reply: Reply) -> list[tuple[str, str, bool]]:
    return [(call.name, call.arguments, call.parsed) for call in (c.call() for c in reply.calls.values())]


# ---- which requests are model calls ----


@pytest.mark.parametrize(
    ("method", "target", "dialect"),
    [
        ("POST", "/v1/chat/completions", "openai-chat"),
        ("POST", "/v1/responses", "openai-responses"),
        ("POST", "/v1/messages?beta=true", "anthropic-messages"),
        ("POST", "/v1/messages/count_tokens?beta=true", None),
        ("GET", "/v1/models", None),
        ("GET", "/props", None),
        ("GET", "/v1/responses/abc", None),
        ("POST", "/apply-template", None),
    ],
)
def test_only_posts_to_the_three_paths_are_model_calls(method: str, target: str, dialect: Dialect | None) -> None:
    assert dialect_of(method, target) == dialect


# ---- requests ----


def test_a_chat_request_is_read() -> None:
    body = {
        "model": "m", "max_tokens": 4096, "stream": True, "temperature": 0, "tools": [{"function": {"name": "bash"}}],
        "messages": [
            {"role": "system", "content": "rules"},
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "image_url"}]},
            {"role": "user", "content": "two"},
            {"role": "tool", "content": "output"},
        ],
    }  # fmt: skip
    facts = read_request("openai-chat", json.dumps(body).encode())
    assert (facts.model, facts.stream, facts.output_cap, facts.tools) == ("m", True, 4096, ("bash",))
    assert (facts.user_texts, facts.system_text, facts.sampler) == (("one", "two"), "rules", {"temperature": 0})


def test_a_messages_request_is_read_and_tool_results_are_no_user_text() -> None:
    content = [{"type": "tool_result", "tool_use_id": "t", "content": "output"}, {"type": "text", "text": "go on"}]
    body = {
        "model": "m", "max_tokens": 32000, "system": [{"type": "text", "text": "rules"}], "tools": [{"name": "Bash"}],
        "messages": [{"role": "user", "content": content}, {"role": "system", "content": "reminder"}],
        "thinking": {"type": "adaptive"},
    }  # fmt: skip
    facts = read_request("anthropic-messages", json.dumps(body).encode())
    assert (facts.stream, facts.output_cap, facts.tools) == (False, 32000, ("Bash",))
    assert (facts.user_texts, facts.system_text) == (("go on",), "rules\nreminder")
    assert facts.sampler == {"thinking": {"type": "adaptive"}}


def test_a_responses_request_is_read_with_namespaced_and_nameless_tools() -> None:
    tools = [
        {"type": "function", "name": "shell"},
        {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]},
        {"type": "web_search"},
    ]
    developer = {"role": "developer", "content": [{"type": "input_text", "text": "rules"}]}
    user = {"role": "user", "content": [{"type": "input_text", "text": "go"}]}
    body = {"model": "m", "stream": True, "input": [developer, user], "tools": tools, "max_output_tokens": 7}
    facts = read_request("openai-responses", json.dumps(body).encode())
    assert (facts.tools, facts.user_texts, facts.output_cap) == (("shell", "spawn", "web_search"), ("go",), 7)
    assert "rules" in facts.system_text
    assert read_request("openai-responses", b'{"input": "plain"}').user_texts == ("plain",)


FIELDS = """
    type role content text model usage choices delta message tool_calls function name arguments index input messages
    tools output item response error content_block system prompt_tokens input_tokens output_tokens timings cache_n
    prompt_ms status max_tokens
"""
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS.split()), inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(ALL), JSON, st.sampled_from(["", "error", "message_start", "response.completed"]))
def test_foreign_shapes_give_counts_that_add_up_or_none_and_bodies_that_are_json(
    dialect: Dialect, value: object, name: str
) -> None:
    reply = Reply()
    DIALECTS[dialect].event(reply, name, obj(value), 1.0)
    DIALECTS[dialect].whole(reply, obj(value))
    tokens = tokens_of(dialect, reply)
    counts = (tokens.prompt_total, tokens.prompt_cached, tokens.prompt_new, tokens.output, tokens.reasoning)
    assert all(count is None or (type(count) is int and count >= 0) for count in counts)
    if tokens.prompt_total is not None and tokens.prompt_cached is not None and tokens.prompt_new is not None:
        assert tokens.prompt_total == tokens.prompt_cached + tokens.prompt_new
    timings = engine_timings(reply.timings)
    assert timings is None or all(
        value is None or value >= 0 for value in (timings.prompt_seconds, timings.output_seconds)
    )
    body = json.dumps(value).encode()
    assert all(isinstance(text, str) for text in read_request(dialect, body).user_texts)
    assert all(isinstance(text, str) for _, text in DIALECTS[dialect].parts(obj(value)))
    steps = [Rewrite(name="fold_system"), Rewrite(name="max_tokens", cap=5), Rewrite(name="include_usage")]
    sent, changed = rewrite(dialect, body, steps)
    assert isinstance(json.loads(sent), dict) if changed else sent == body


@given(st.binary(max_size=200))
def test_bytes_that_are_no_json_ask_for_nothing(body: bytes) -> None:
    facts = read_request("openai-chat", b"\xff" + body)
    assert (facts.model, facts.user_texts) == (None, ())


# ---- chat replies ----


def test_case_18_a_role_alone_is_no_token() -> None:
    reply = streamed("openai-chat", chunk(role="assistant", content=""), chunk(content="a"), chunk(content="b"))
    assert (reply.first_token, reply.first_answer, reply.last_token, reply.fragments) == (2.0, 2.0, 3.0, 2)


def test_case_18_reasoning_comes_first_and_is_a_token_but_no_answer() -> None:
    for field in ("reasoning_content", "reasoning"):
        reply = streamed("openai-chat", chunk(**{field: "hm"}), chunk(content="a"))
        assert (reply.first_token, reply.first_answer, reply.reasoning_size) == (1.0, 2.0, 2)


def test_case_18_tokens_bundled_in_the_first_chunk_count_there() -> None:
    reply = streamed("openai-chat", chunk(role="assistant", content="all of it", finish="stop"))
    assert (reply.first_token, reply.last_token, reply.finish) == (1.0, 1.0, "stop")


def test_case_18_usage_in_a_chunk_with_empty_choices_is_read() -> None:
    usage = {"prompt_tokens": 1234, "completion_tokens": 56, "prompt_tokens_details": {"cached_tokens": 1000}}
    reply = streamed("openai-chat", chunk(content="a"), {"model": "m", "choices": [], "usage": usage})
    assert tokens_of("openai-chat", reply) == Tokens(prompt_total=1234, prompt_cached=1000, prompt_new=234, output=56)


def test_case_18_an_error_inside_a_stream_is_seen_in_every_dialect() -> None:
    chat = streamed("openai-chat", chunk(content="a"), {"error": {"message": "slot died", "code": 500}})
    messages = streamed("anthropic-messages", {"type": "error", "error": {"type": "api_error", "message": "slot died"}})
    failed = {"type": "response.failed", "response": {"status": "failed", "error": {"message": "slot died"}}}
    responses = streamed("openai-responses", failed)
    assert [(r.failed, r.error) for r in (chat, messages, responses)] == [(True, "slot died")] * 3


def test_B39_a_stream_without_usage_falls_back_to_timings() -> None:
    timings = {"cache_n": 1000, "prompt_n": 234, "prompt_ms": 1500.0, "predicted_n": 56, "predicted_ms": 700.0}
    reply = streamed("openai-chat", chunk(content="a"), {**chunk("stop"), "timings": timings})
    assert tokens_of("openai-chat", reply) == Tokens(prompt_total=1234, prompt_cached=1000, prompt_new=234, output=56)
    assert engine_timings(reply.timings) == EngineTimings(prompt_seconds=1.5, output_seconds=0.7)


def test_B39_a_stream_that_tells_nothing_stays_unknown() -> None:
    assert tokens_of("openai-chat", streamed("openai-chat", chunk(content="a"))) == Tokens()


def test_B30_usage_without_a_cached_field_is_unknown_and_never_zero() -> None:
    usage = {"prompt_tokens": 1234, "completion_tokens": 56}
    assert tokens_of("openai-chat", whole("openai-chat", {"choices": [], "usage": usage})) == Tokens(
        prompt_total=1234, output=56
    )
    zero = {"prompt_tokens": 1234, "completion_tokens": 56, "prompt_tokens_details": {"cached_tokens": 0}}
    assert tokens_of("openai-chat", whole("openai-chat", {"choices": [], "usage": zero})).prompt_cached == 0


@pytest.mark.parametrize("details", [None, {"cached_tokens": None}, {}])
def test_B51_a_cached_count_of_null_is_unknown(details: dict[str, Any] | None) -> None:
    usage = {"prompt_tokens": 1234, "completion_tokens": 56, "prompt_tokens_details": details}
    found = tokens_of("openai-chat", whole("openai-chat", {"choices": [], "usage": usage}))
    assert (found.prompt_total, found.prompt_cached, found.prompt_new) == (1234, None, None)


def test_B30_a_prompt_of_no_tokens_is_an_engine_that_does_not_tell() -> None:
    usage = {"prompt_tokens": 0, "completion_tokens": 56}
    assert tokens_of("openai-chat", whole("openai-chat", {"usage": usage})).prompt_total is None


def test_case_21_two_calls_in_one_reply_are_two() -> None:
    reply = streamed(
        "openai-chat",
        fragment(0, name="bash", call_id="a"),
        fragment(0, '{"command": '),
        fragment(1, '{"path": "x"}', name="read", call_id="b"),
        fragment(0, '"ls"}'),
    )
    assert calls(reply) == [("bash", '{"command": "ls"}', True), ("read", '{"path": "x"}', True)]


@pytest.mark.parametrize("index", [0, None])
def test_case_21_calls_that_share_an_index_or_have_none_are_two(index: int | None) -> None:
    reply = streamed("openai-chat", fragment(index, "{}", "bash", "a"), fragment(index, "{}", "read", "b"))
    assert calls(reply) == [("bash", "{}", True), ("read", "{}", True)]


def test_case_21_an_empty_call_id_does_no_harm() -> None:
    reply = streamed("openai-chat", fragment(0, name="bash"), fragment(0, '{"a":'), fragment(0, "1}"))
    assert calls(reply) == [("bash", '{"a":1}', True)]


@pytest.mark.parametrize("arguments", ['{"command": "ls', "ls -l", '["ls"]', ""])
def test_case_21_arguments_that_are_no_json_object_are_malformed(arguments: str) -> None:
    message = {"tool_calls": [{"id": "a", "function": {"name": "bash", "arguments": arguments}}]}
    reply = whole("openai-chat", {"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    assert calls(reply) == [("bash", arguments, False)]


# ---- messages replies ----

MESSAGE_START = {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 234, "cache_read_input_tokens": 1000, "output_tokens": 0}}}  # fmt: skip  # noqa: E501


def test_case_19_messages_input_leaves_the_cached_part_out() -> None:
    delta = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 56}}
    reply = streamed("anthropic-messages", MESSAGE_START, delta, {"type": "message_stop"})
    assert tokens_of("anthropic-messages", reply) == Tokens(
        prompt_total=1234, prompt_cached=1000, prompt_new=234, output=56
    )
    assert (reply.finish, reply.done, reply.model) == ("end_turn", True, "m")


def test_case_19_cache_writes_are_part_of_the_prompt_and_new() -> None:
    usage = {"input_tokens": 4, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 230, "output_tokens": 1}
    tokens = tokens_of("anthropic-messages", whole("anthropic-messages", {"content": [], "usage": usage}))
    assert (tokens.prompt_total, tokens.prompt_cached, tokens.prompt_new) == (1234, 1000, 234)


def test_counts_that_come_only_in_the_last_event_replace_the_zeros_of_the_first() -> None:
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 0, "output_tokens": 0}}}
    last = {"type": "message_delta", "delta": {}, "usage": {"input_tokens": 50, "output_tokens": 9}}
    assert tokens_of("anthropic-messages", streamed("anthropic-messages", start, last)) == Tokens(
        prompt_total=50, output=9
    )


def test_a_zero_in_the_last_event_does_not_replace_the_count_of_the_first() -> None:
    last = {"type": "message_delta", "delta": {}, "usage": {"input_tokens": 0, "output_tokens": 56}}
    tokens = tokens_of("anthropic-messages", streamed("anthropic-messages", MESSAGE_START, last))
    assert (tokens.prompt_total, tokens.output) == (1234, 56)


def test_messages_tool_input_is_put_together() -> None:
    block = {"type": "tool_use", "id": "t", "name": "Bash", "input": {}}
    pieces = [{"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": p}} for p in ('{"c":', "1}")]  # fmt: skip  # noqa: E501
    reply = streamed("anthropic-messages", {"type": "content_block_start", "index": 1, "content_block": block}, *pieces)
    assert calls(reply) == [("Bash", '{"c":1}', True)]
    assert (reply.first_answer, reply.last_token) == (1.0, 3.0)


def test_a_messages_call_without_input_is_an_empty_object() -> None:
    block = {"type": "tool_use", "id": "t", "name": "ListFiles", "input": {}}
    assert calls(whole("anthropic-messages", {"content": [block]})) == [("ListFiles", "{}", True)]


def test_thinking_and_pings_are_no_answer() -> None:
    thinking = {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}}
    text = {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "a"}}
    reply = streamed("anthropic-messages", MESSAGE_START, {"type": "ping"}, thinking, text)
    assert (reply.first_token, reply.first_answer) == (3.0, 4.0)


# ---- responses replies ----


def test_case_19_responses_input_holds_the_cached_part() -> None:
    usage = {"input_tokens": 1234, "input_tokens_details": {"cached_tokens": 1000}, "output_tokens": 56,
             "output_tokens_details": {"reasoning_tokens": 20}}  # fmt: skip
    done = {"type": "response.completed", "response": {"status": "completed", "model": "m", "usage": usage}}
    reply = streamed("openai-responses", done)
    assert tokens_of("openai-responses", reply) == Tokens(
        prompt_total=1234, prompt_cached=1000, prompt_new=234, output=56, reasoning=20
    )
    assert (reply.done, reply.finish) == (True, "completed")


def test_responses_say_why_they_are_incomplete() -> None:
    response = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    assert (
        streamed("openai-responses", {"type": "response.incomplete", "response": response}).finish
        == "max_output_tokens"
    )


def test_responses_calls_are_put_together_and_counted_once() -> None:
    item = {"type": "function_call", "name": "shell", "call_id": "c", "arguments": ""}
    reply = streamed(
        "openai-responses",
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '{"cmd":'},
        {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": "1}"},
        {"type": "response.output_item.done", "output_index": 0, "item": {**item, "arguments": '{"cmd":1}'}},
    )
    assert calls(reply) == [("shell", '{"cmd":1}', True)]
    assert (reply.first_token, reply.last_token, reply.fragments) == (1.0, 3.0, 3)


def test_a_custom_tool_takes_text_that_is_no_json() -> None:
    item = {"type": "custom_tool_call", "name": "apply_patch", "call_id": "c", "input": "*** Begin Patch"}
    assert calls(whole("openai-responses", {"output": [item]})) == [("apply_patch", "*** Begin Patch", True)]


def test_responses_text_and_reasoning_in_one_piece() -> None:
    output = [
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hmm"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "hi"}]},
    ]
    reply = whole("openai-responses", {"output": output, "status": "completed"})
    assert ("".join(reply.text), reply.reasoning_size, reply.done) == ("hi", 3, True)


# ---- events in any pieces ----

STREAM = (
    ': keep-alive\n\nevent: a\ndata: {"t": "h\u00e9llo \u2713"}\n\nid: 7\ndata: one\ndata: two\n\n\n\n'
    "data:bare\n\ndata: [DONE]\n\n"
)
EVENTS = [("a", '{"t": "h\u00e9llo \u2713"}'.encode()), ("", b"one\ntwo"), ("", b"bare"), ("", b"[DONE]")]


def fed(pieces: Iterable[bytes]) -> list[tuple[str, bytes]]:
    stream = EventStream()
    return [event for piece in pieces for event in stream.feed(piece)] + stream.finish()


@given(st.lists(st.integers(0, 200), max_size=12), st.sampled_from(["\n", "\r\n", "\r"]))
def test_case_18_events_are_the_same_however_the_bytes_are_cut(cuts: list[int], newline: str) -> None:
    data = STREAM.replace("\n", newline).encode()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    assert fed(data[a:b] for a, b in itertools.pairwise(edges)) == EVENTS


def test_case_18_events_byte_by_byte() -> None:
    for newline in ("\n", "\r\n", "\r"):
        data = STREAM.replace("\n", newline).encode()
        assert fed(data[i : i + 1] for i in range(len(data))) == EVENTS


def test_a_last_event_without_its_blank_line_is_read() -> None:
    assert fed([b"data: [DONE]\n"]) == [("", b"[DONE]")]


def test_an_endless_event_is_skipped_and_memory_stays_bounded() -> None:
    stream = EventStream()
    for _ in range(3 * EVENT_LIMIT >> 20):
        assert stream.feed(b"x" * (1 << 20)) == []
        assert len(stream._rest) <= EVENT_LIMIT + (1 << 20)
    assert stream.feed(b"\n\ndata: next\n\n") == [("", b"next")]
    assert stream.skipped == 1


# ---- calls as text ----

TOOLS = ("bash", "read_file")


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>',
        '<tool_call>{"name": "bash", "arguments": {"comm',
        "<tool_call><function=bash><parameter=command>ls</parameter></function></tool_call>",
        "<function=bash>{}</function>",
        '<invoke name="bash"><parameter name="command">ls</parameter></invoke>',
        '<|channel|>commentary to=functions.bash <|constrain|>json<|message|>{"command":"ls"}',
        '[TOOL_CALLS] [{"name": "bash", "arguments": {"command": "ls"}}]',
        '{"name": "bash", "arguments": {"command": "ls"}}',
        'I will look.\n```json\n{"name": "bash", "parameters": {"command": "ls"}}\n```',
        '{"type": "function", "function": {"name": "bash", "arguments": "{}"}}',
        '[bash(command="ls -l")]',
        'bash(command="ls")',
    ],
)
def test_B52_a_tool_call_written_as_text_is_counted_once(text: str) -> None:
    assert textual_calls(text, TOOLS) == 1


def test_case_21_two_calls_written_as_text_are_two() -> None:
    one = '<tool_call>{"name": "bash", "arguments": {}}</tool_call>'
    assert textual_calls(f"{one}\n{one.replace('bash', 'read_file')}", TOOLS) == 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I would use <tool_call> for that, and bash is fine.",
        '{"name": "other_tool", "arguments": {}}',
        'The file has {"name": "bash"} in it.',
        "Run bash(1) or call bash (with care).",
        "def bash(command): ...",
    ],
)
def test_prose_about_tools_is_no_call(text: str) -> None:
    assert textual_calls(text, TOOLS) == 0


def test_B52_without_offered_tools_nothing_is_a_call() -> None:
    assert textual_calls('{"name": "bash", "arguments": {}}', ()) == 0


# ---- errors ----


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (400, "the request exceeds the available context size (exceed_context_size_error)", "context"),
        (400, "This model's maximum context length is 4096 tokens", "context"),
        (400, "prompt is too long: 210000 tokens > 200000 maximum", "context"),
        (500, "error parsing tool call: raw='{\"a', err=unexpected end of JSON input", "tool_json"),
        (500, "System message must be at the beginning.", "template"),
        (400, "messages.1.role: Input should be 'user' or 'assistant'", "template"),
        (503, "Loading model", "overloaded"),
        (429, "slow down", "overloaded"),
        (500, "something", "other"),
        (200, None, None),
        (None, None, None),
    ],
)
def test_B29_errors_are_told_apart_by_their_words(status: int | None, text: str | None, kind: str | None) -> None:
    assert kind_of_error(status, text) == kind


# ---- declared rewrites ----


def changed(dialect: Dialect, body: dict[str, Any], *steps: Rewrite) -> tuple[dict[str, Any], tuple[str, ...]]:
    data, names = rewrite(dialect, json.dumps(body).encode(), steps)
    return obj(decode(data)), names


def test_without_a_need_the_bytes_stay_the_same() -> None:
    body = b'{ "model" : "m",  "max_tokens": 5, "stream":false }'
    steps = (Rewrite(name="max_tokens", cap=9), Rewrite(name="include_usage"), Rewrite(name="fold_system"))
    assert rewrite("openai-chat", body, steps) == (body, ())
    assert rewrite("openai-chat", b"no json", steps) == (b"no json", ())


def test_the_sampler_is_pinned_over_what_the_client_sent() -> None:
    step = Rewrite(name="sampler", values={"temperature": 0.8, "top_k": 40})
    assert changed("openai-chat", {"temperature": 0, "model": "m"}, step) == (
        {"temperature": 0.8, "model": "m", "top_k": 40},
        ("sampler",),
    )


@pytest.mark.parametrize(
    ("dialect", "body", "field"),
    [
        ("openai-chat", {}, "max_tokens"),
        ("openai-chat", {"max_completion_tokens": 32000}, "max_completion_tokens"),
        ("openai-responses", {}, "max_output_tokens"),
        ("anthropic-messages", {"max_tokens": 32000}, "max_tokens"),
    ],
)
def test_the_cap_is_pinned_under_the_dialects_own_name(dialect: Dialect, body: dict[str, Any], field: str) -> None:
    assert changed(dialect, body, Rewrite(name="max_tokens", cap=8192)) == ({field: 8192}, ("max_tokens",))


def test_a_request_for_less_than_the_cap_keeps_it() -> None:
    assert changed("anthropic-messages", {"max_tokens": 1}, Rewrite(name="max_tokens", cap=8192))[1] == ()


def test_B39_usage_is_asked_for_in_chat_streams_only() -> None:
    step = Rewrite(name="include_usage")
    assert changed("openai-chat", {"stream": True}, step)[0]["stream_options"] == {"include_usage": True}
    assert changed("openai-chat", {"stream": False}, step)[1] == ()
    assert changed("anthropic-messages", {"stream": True}, step)[1] == ()


def test_a_system_message_in_mid_conversation_becomes_part_of_the_user_turn() -> None:
    user = {"role": "user", "content": [{"type": "text", "text": "fix it"}]}
    body = {"messages": [user, {"role": "system", "content": "be brief"}, {"role": "assistant", "content": "ok"}]}
    got, names = changed("anthropic-messages", body, Rewrite(name="fold_system"))
    joined = [{"type": "text", "text": "fix it"}, {"type": "text", "text": "be brief"}]
    assert got["messages"] == [{"role": "user", "content": joined}, {"role": "assistant", "content": "ok"}]
    assert names == ("fold_system",)


def test_a_system_message_between_other_turns_becomes_one_user_turn() -> None:
    body = {"messages": [
        {"role": "system", "content": "rules"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
        {"role": "system", "content": "note"}, {"role": "user", "content": "c"},
    ]}  # fmt: skip
    got, _ = changed("openai-chat", body, Rewrite(name="fold_system"))
    assert [(m["role"], m["content"]) for m in got["messages"]] == [
        ("system", "rules"), ("user", "a"), ("assistant", "b"), ("user", "note\n\nc"),
    ]  # fmt: skip


def test_two_leading_developer_messages_become_one() -> None:
    items = [
        {"role": role, "content": [{"type": "input_text", "text": text}]}
        for role, text in (("developer", "a"), ("developer", "b"), ("user", "c"))
    ]
    got, _ = changed("openai-responses", {"input": items}, Rewrite(name="fold_system"))
    assert [(i["role"], len(i["content"])) for i in got["input"]] == [("developer", 2), ("user", 1)]


def test_a_backend_declares_its_rewrites_and_mistakes_name_the_field() -> None:
    backend = Backend(name="b", engine="openai", rewrite=("sampler", "max_tokens"), sampler={"top_p": 1}, max_tokens=9)
    assert rewrites_of(backend) == (Rewrite(name="sampler", values={"top_p": 1}), Rewrite(name="max_tokens", cap=9))
    with pytest.raises(UsageError, match="needs a field `sampler`"):
        rewrites_of(Backend(name="b", engine="openai", rewrite=("sampler",)))
    with pytest.raises(UsageError, match="knows no 'translat'"):
        rewrites_of(Backend(name="b", engine="openai", rewrite=("translat",)))


def test_every_rewrite_that_a_lab_file_may_name_is_known_to_the_meter() -> None:
    assert set(STEPS) == set(get_args(RewriteName))
