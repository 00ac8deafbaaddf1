"""A small agent program, standard library only, that the harness is tested with: one tool, any of the three dialects.

It asks the model, runs the `bash` calls it gets, and goes on until a reply holds none. It prints one JSON event a line.
Settings are read from `config.json` beside it, the prompt from standard input. A `plan` among the settings makes it
misbehave; it is run inside the sandbox, so it must not import anything of the project.

Plan (all optional):
  startup_seconds, linger_seconds   sleep before the first request, after the last reply
  hang            true: never makes a request
  ignore_term     true: SIGTERM does nothing
  flood_bytes     so many bytes to standard output before the first request
  daemon_seconds  a child in a session of its own that keeps our standard output open
  chdir           works in another folder
  write_elsewhere path of a file to write
  alter_prompt    text put into the middle of the prompt
  title           true: one request without tools first
  whole           turns (from 0) that ask for a reply in one piece; true: all
  overlap         so many further copies of the first request, `overlap_delay` seconds (0.5) apart
  cancel_after    the first request is dropped after so many events and sent again
  timeout_seconds a request that takes longer is sent again, identical
  retry           how often a failed request is sent again; -1: for ever. `retry_seconds` (0.2) apart
  crash           "start", or "turn": abort after the first reply
  exit_code       leave with it, whatever happened
  max_turns       stop after so many replies (50)
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

TOOL_SECONDS = 120
SYSTEM = "You are a coding agent. Work in the current folder with the tool you have. When the task is done, say so."
COMMAND = {
    "type": "object",
    "properties": {"command": {"type": "string", "description": "A bash command."}},
    "required": ["command"],
}
TOOL = {"name": "bash", "description": "Run a command in the current folder.", "parameters": COMMAND}


class Call(NamedTuple):
    """A tool call as it arrived."""

    id: str
    name: str
    arguments: str


class Answer(NamedTuple):
    """One reply of the model."""

    text: str
    calls: list[Call]
    usage: dict[str, Any]
    model: str | None


class Turn(NamedTuple):
    """A reply and what its calls gave."""

    answer: Answer
    results: list[str]


class ServerError(Exception):
    """The server answered with an error, or cut the reply short."""


class Dialect(NamedTuple):
    """How to ask and how to read, in one wire dialect."""

    path: str
    body: Callable[[dict[str, Any], str, list[Turn]], dict[str, Any]]
    whole: Callable[[dict[str, Any]], Answer]
    streamed: Callable[[Iterator[dict[str, Any]]], Answer]


def main() -> int:
    """Work until the model makes no more calls."""
    settings = json.loads(Path(__file__).with_name("config.json").read_text())
    plan = settings["plan"]
    code = _begin(plan)
    prompt = sys.stdin.read()
    if "alter_prompt" in plan:
        middle = len(prompt) // 2
        prompt = prompt[:middle] + plan["alter_prompt"] + prompt[middle:]
    say("start", session=settings["session"], cwd=str(Path.cwd()))
    try:
        text = work(settings, prompt)
        say("end", success=True, text=text)
    except (ServerError, OSError, http.client.HTTPException) as error:
        say("error", message=f"{type(error).__name__}: {error}")
        say("end", success=False, text="")
        code = 1
    time.sleep(plan.get("linger_seconds", 0))
    return int(plan.get("exit_code", code))


def work(settings: dict[str, Any], prompt: str) -> str:
    """Ask and act in turns; returns the last text."""
    plan = settings["plan"]
    turns: list[Turn] = []
    if plan.get("title"):
        ask(settings, {"tools": False, "turn": 0}, f"A title for: {prompt[:60]}", [])
    for index in range(plan.get("max_turns", 50)):
        if index == 0:
            _overlap(settings, prompt)
        answer = ask(settings, {"tools": True, "turn": index}, prompt, turns)
        say("turn", index=index, usage=answer.usage, model=answer.model, calls=len(answer.calls))
        if plan.get("crash") == "turn":
            os.abort()
        if not answer.calls:
            return answer.text
        turns.append(Turn(answer, [run(call) for call in answer.calls]))
    return ""


def ask(settings: dict[str, Any], how: dict[str, Any], prompt: str, turns: list[Turn]) -> Answer:
    """One reply, sent again as often as the plan says."""
    plan = settings["plan"]
    left = plan.get("retry", 0)
    cancel = plan.get("cancel_after") if how["turn"] == 0 else None
    while True:
        try:
            return _exchange(settings, how, prompt, turns, cancel)
        except TimeoutError:
            say("retry", why="timeout")
        except (ServerError, OSError, http.client.HTTPException) as error:
            if cancel is None and left == 0:
                raise
            left -= 1 if cancel is None else 0
            say("retry", why=str(error))
            time.sleep(plan.get("retry_seconds", 0.2))
        cancel = None


def run(call: Call) -> str:
    """Run a call; whatever is wrong with it is told to the model."""
    try:
        command = json.loads(call.arguments)["command"]
    except (ValueError, KeyError, TypeError):
        say("tool", command=call.arguments[:200], exit=None, error="arguments are not what the tool takes")
        return "error: the arguments must be a JSON object with a string 'command'"
    try:
        done = subprocess.run(
            ["bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            timeout=TOOL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        say("tool", command=command[:200], exit=None, error="timeout")
        return "error: the command took too long"
    say("tool", command=command[:200], exit=done.returncode)
    return done.stdout[-8000:].decode(errors="replace") or f"(exit code {done.returncode})"


def say(kind: str, **fields: Any) -> None:
    """One event."""
    sys.stdout.write(json.dumps({"type": kind, **fields}) + "\n")
    sys.stdout.flush()


def _begin(plan: dict[str, Any]) -> int:
    """The misdeeds before the first request."""
    if plan.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if plan.get("crash") == "start":
        os.abort()
    if "daemon_seconds" in plan:
        subprocess.Popen(["sleep", str(plan["daemon_seconds"])], start_new_session=True)
    if "write_elsewhere" in plan:
        Path(plan["write_elsewhere"]).write_text("written by the stub agent\n")
    if "chdir" in plan:
        os.chdir(plan["chdir"])
    for _ in range(plan.get("flood_bytes", 0) // 65536):
        sys.stdout.write("x" * 65535 + "\n")
    while plan.get("hang"):
        time.sleep(3600)
    time.sleep(plan.get("startup_seconds", 0))
    return 0


def _overlap(settings: dict[str, Any], prompt: str) -> None:
    """Copies of the first request beside it; their replies are not used."""

    def copy(delay: float) -> None:
        time.sleep(delay)
        ask(settings, {"tools": True, "turn": 0}, prompt, [])

    for number in range(settings["plan"].get("overlap", 0)):
        delay = (number + 1) * settings["plan"].get("overlap_delay", 0.5)
        threading.Thread(target=copy, args=(delay,), daemon=True).start()


def _exchange(
    settings: dict[str, Any], how: dict[str, Any], prompt: str, turns: list[Turn], cancel: int | None
) -> Answer:
    """One request on a connection of its own."""
    plan, dialect = settings["plan"], DIALECTS[settings["dialect"]]
    whole = plan.get("whole", ())
    stream = not (whole is True or (whole and how["turn"] in whole))
    body = dialect.body({**settings, "stream": stream, "tools": how["tools"]}, prompt, turns)
    where = urlsplit(settings["base_url"])
    line = http.client.HTTPConnection(str(where.hostname), where.port, timeout=plan.get("timeout_seconds"))
    try:
        headers = {"content-type": "application/json", "authorization": "Bearer local", "x-api-key": "local"}
        line.request("POST", dialect.path, json.dumps(body), headers)
        reply = line.getresponse()
        if reply.status != 200:
            raise ServerError(f"{reply.status} {reply.read(2000).decode(errors='replace')}")
        if not stream:
            return dialect.whole(json.loads(reply.read()))
        return dialect.streamed(_events(reply, cancel))
    finally:
        line.close()


def _events(reply: http.client.HTTPResponse, cancel: int | None) -> Iterator[dict[str, Any]]:
    """The JSON data of server-sent events. Raises ServerError if they tell of an error, or if we drop the rest."""
    for raw in reply:
        text = raw.decode(errors="replace").strip()
        if not text.startswith("data:") or text == "data: [DONE]":
            continue
        event = json.loads(text[5:])
        if "error" in event and event.get("error"):
            raise ServerError(json.dumps(event["error"])[:2000])
        yield event
        if cancel is not None:
            cancel -= 1
            if cancel <= 0:
                raise ServerError("dropped by us")


# ---- openai-chat ----


def _chat_body(settings: dict[str, Any], prompt: str, turns: list[Turn]) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]
    for answer, results in turns:
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
        messages.append({"role": "assistant", "content": answer.text, "tool_calls": calls})
        for call, result in zip(answer.calls, results, strict=True):
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    body = {"model": settings["model"], "messages": messages, "stream": settings["stream"]}
    if settings["stream"]:
        body["stream_options"] = {"include_usage": True}
    if settings["cap"]:
        body["max_tokens"] = settings["cap"]
    return body | ({"tools": [{"type": "function", "function": TOOL}]} if settings["tools"] else {})


def _chat_whole(reply: dict[str, Any]) -> Answer:
    message = reply["choices"][0]["message"]
    calls = [
        Call(each["id"], each["function"]["name"], each["function"]["arguments"])
        for each in message.get("tool_calls") or []
    ]
    return Answer(message.get("content") or "", calls, reply.get("usage") or {}, reply.get("model"))


def _chat_streamed(events: Iterator[dict[str, Any]]) -> Answer:
    text, model, finished = "", None, False
    usage: dict[str, Any] = {}
    calls: dict[int, list[str]] = {}
    for event in events:
        model, usage = event.get("model") or model, event.get("usage") or usage
        for choice in event.get("choices") or []:
            delta = choice.get("delta") or {}
            text += delta.get("content") or ""
            for part in delta.get("tool_calls") or []:
                call = calls.setdefault(part["index"], ["", "", ""])
                function = part.get("function") or {}
                call[0] += part.get("id") or ""
                call[1] += function.get("name") or ""
                call[2] += function.get("arguments") or ""
            finished = finished or bool(choice.get("finish_reason"))
    if not finished:
        raise ServerError("the stream ended before the reply did")
    return Answer(text, [Call(*call) for call in calls.values()], usage, model)


# ---- anthropic-messages ----


def _messages_body(settings: dict[str, Any], prompt: str, turns: list[Turn]) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    for answer, results in turns:
        said = [{"type": "text", "text": answer.text}] if answer.text else []
        used = [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": _object(call.arguments)}
            for call in answer.calls
        ]
        given = [
            {"type": "tool_result", "tool_use_id": call.id, "content": result}
            for call, result in zip(answer.calls, results, strict=True)
        ]
        messages += [{"role": "assistant", "content": [*said, *used]}, {"role": "user", "content": given}]
    tool = {"name": TOOL["name"], "description": TOOL["description"], "input_schema": COMMAND}
    return {
        "model": settings["model"],
        "system": SYSTEM,
        "messages": messages,
        "max_tokens": settings["cap"] or 8192,
        "stream": settings["stream"],
        **({"tools": [tool]} if settings["tools"] else {}),
    }


def _messages_whole(reply: dict[str, Any]) -> Answer:
    text = "".join(block["text"] for block in reply["content"] if block["type"] == "text")
    calls = [
        Call(
            block["id"],
            block["name"],
            block["input"] if isinstance(block["input"], str) else json.dumps(block["input"]),
        )
        for block in reply["content"]
        if block["type"] == "tool_use"
    ]
    return Answer(text, calls, reply.get("usage") or {}, reply.get("model"))


def _messages_streamed(events: Iterator[dict[str, Any]]) -> Answer:
    text, model, finished = "", None, False
    usage: dict[str, Any] = {}
    calls: dict[int, list[str]] = {}
    for event in events:
        kind, delta = event.get("type"), event.get("delta") or {}
        if kind == "message_start":
            model, usage = event["message"].get("model"), dict(event["message"].get("usage") or {})
        elif kind == "content_block_start" and event["content_block"]["type"] == "tool_use":
            calls[event["index"]] = [event["content_block"]["id"], event["content_block"]["name"], ""]
        elif kind == "content_block_delta":
            text += delta.get("text") or ""
            if event["index"] in calls:
                calls[event["index"]][2] += delta.get("partial_json") or ""
        elif kind == "message_delta":
            usage |= event.get("usage") or {}
        finished = finished or kind == "message_stop"
    if not finished:
        raise ServerError("the stream ended before the reply did")
    return Answer(text, [Call(*call) for call in calls.values()], usage, model)


# ---- openai-responses ----


def _responses_body(settings: dict[str, Any], prompt: str, turns: list[Turn]) -> dict[str, Any]:
    items: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "input_text", "text": prompt}]}]
    for answer, results in turns:
        if answer.text:
            items.append({"role": "assistant", "content": [{"type": "output_text", "text": answer.text}]})
        for call, result in zip(answer.calls, results, strict=True):
            items.append({"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments})
            items.append({"type": "function_call_output", "call_id": call.id, "output": result})
    body = {"model": settings["model"], "instructions": SYSTEM, "input": items, "stream": settings["stream"]}
    if settings["cap"]:
        body["max_output_tokens"] = settings["cap"]
    return body | ({"tools": [{"type": "function", **TOOL}]} if settings["tools"] else {})


def _responses_whole(reply: dict[str, Any]) -> Answer:
    text, calls = "", []
    for item in reply["output"]:
        if item["type"] == "message":
            text += "".join(part.get("text", "") for part in item["content"])
        elif item["type"] == "function_call":
            calls.append(Call(item["call_id"], item["name"], item["arguments"]))
    return Answer(text, calls, reply.get("usage") or {}, reply.get("model"))


def _responses_streamed(events: Iterator[dict[str, Any]]) -> Answer:
    final = None
    for event in events:
        if event.get("type") in ("response.completed", "response.incomplete"):
            final = event["response"]
        elif event.get("type") == "response.failed":
            raise ServerError(json.dumps(event["response"].get("error"))[:2000])
    if final is None:
        raise ServerError("the stream ended before the reply did")
    return _responses_whole(final)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _object(arguments: str) -> dict[str, Any]:
    try:
        value = json.loads(arguments)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


DIALECTS = {
    "openai-chat": Dialect("/v1/chat/completions", _chat_body, _chat_whole, _chat_streamed),
    "anthropic-messages": Dialect("/v1/messages", _messages_body, _messages_whole, _messages_streamed),
    "openai-responses": Dialect("/v1/responses", _responses_body, _responses_whole, _responses_streamed),
}

if __name__ == "__main__":
    raise SystemExit(main())
