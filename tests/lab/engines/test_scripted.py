"""The scripted engine through its wire: every script in every dialect, with the stub agent's own code as the client."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from msgspec import structs

from benchmarks.lab.clients import stub_agent
from benchmarks.lab.dialects import DIALECTS
from benchmarks.lab.engines import find
from benchmarks.lab.engines.base import Endpoint, TrialContext
from benchmarks.lab.engines.scripted import textual, toolbox
from benchmarks.lab.engines.scripted.scripts import ESCAPE_NAME, OTHER_MODEL, SCRIPTS, UNROUTED_HOST
from benchmarks.lab.engines.scripted.talk import Conversation, Tool, words
from benchmarks.lab.errors import LabError, UsageError
from benchmarks.lab.model import Backend, Dialect

ORIGINAL = b"def f(x):\n    return x + 1\n"
EXCISED = b"def f(x):\n    raise NotImplementedError\n"
PROMPT = "Write the body of f in code.py."
SOLVING = ["solve", "read_history", "reasoning", "no_usage", "slow_prefill", "other_model"]
dialects = pytest.mark.parametrize("dialect", DIALECTS)
whole_or_streamed = pytest.mark.parametrize("whole", [False, True], ids=["streamed", "whole"])


def quiet(line: str) -> None:
    """Progress nobody reads."""


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with find("scripted").serve(Backend(name="s", engine="scripted"), tmp_path_factory.mktemp("s"), quiet) as served:
        yield served


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code.py").write_bytes(EXCISED)
    (tmp_path / "test_code.py").write_text("def test_f():\n    assert False\n")
    return tmp_path


def context(script: str, **fields: Any) -> TrialContext:
    given = {"solution": {"code.py": ORIGINAL}, "files": ("code.py",), "tests": "test_code.py", **fields}
    return TrialContext(script=script, **given)


def settings(endpoint: Endpoint, dialect: Dialect, **plan: Any) -> dict[str, Any]:
    return {
        "base_url": endpoint.base_url,
        "dialect": dialect,
        "model": endpoint.model,
        "cap": None,
        "session": "s",
        "plan": plan,
    }


def body_of(dialect: Dialect, *, stream: bool, tools: bool = True, cap: int | None = None) -> dict[str, Any]:
    given = {"model": "m", "stream": stream, "tools": tools, "cap": cap}
    return stub_agent.DIALECTS[dialect].body(given, PROMPT, [])


def post(endpoint: Endpoint, dialect: Dialect, *, stream: bool = False, **more: Any) -> httpx.Response:
    body = body_of(dialect, stream=stream, **more)
    return httpx.post(endpoint.base_url + DIALECTS[dialect].path, json=body, timeout=30)


def first_answer(endpoint: Endpoint, dialect: Dialect) -> stub_agent.Answer:
    return stub_agent.ask(settings(endpoint, dialect), {"tools": True, "turn": 0}, PROMPT, [])


def command(call: stub_agent.Call) -> str:
    return str(json.loads(call.arguments)["command"])


@dialects
@whole_or_streamed
@pytest.mark.parametrize("script", SOLVING)
def test_solving_scripts_write_the_original_back(
    endpoint: Endpoint, workspace: Path, script: str, dialect: Dialect, whole: bool
) -> None:
    with endpoint.trial(context(script, options={"prefill_seconds": 0.01})):
        stub_agent.work(settings(endpoint, dialect, whole=whole), PROMPT)
    assert (workspace / "code.py").read_bytes() == ORIGINAL


@dialects
def test_any_bytes_survive_and_big_files_go_in_several_commands(
    endpoint: Endpoint, workspace: Path, dialect: Dialect
) -> None:
    noise = b"".join(str(number * 7919 % 104729).encode() * 3 for number in range(20_000))
    files = {"code.py": b"\xff\xfe'\"$`\r\n\x00" + noise, "with space'.txt": b""}
    with endpoint.trial(context("solve", solution=files)):
        stub_agent.work(settings(endpoint, dialect), PROMPT)
    assert {name: (workspace / name).read_bytes() for name in files} == files
    assert max(map(len, toolbox.put_file("code.py", files["code.py"]))) < 128 * 1024
    assert not list(workspace.glob("*.new"))


@dialects
def test_wrong_changes_the_file_and_nop_does_not(endpoint: Endpoint, workspace: Path, dialect: Dialect) -> None:
    with endpoint.trial(context("nop")):
        stub_agent.work(settings(endpoint, dialect), PROMPT)
    assert (workspace / "code.py").read_bytes() == EXCISED
    with endpoint.trial(context("wrong")):
        stub_agent.work(settings(endpoint, dialect), PROMPT)
    assert (workspace / "code.py").read_bytes() == b"def f(x):\n    return None\n"


@dialects
def test_case_14_edit_tests_leaves_the_body_and_makes_the_tests_easy(
    endpoint: Endpoint, workspace: Path, dialect: Dialect
) -> None:
    with endpoint.trial(context("edit_tests")):
        stub_agent.work(settings(endpoint, dialect), PROMPT)
    assert (workspace / "code.py").read_bytes() == EXCISED
    assert "assert True" in (workspace / "test_code.py").read_text()
    assert (workspace / "conftest.py").is_file()


@dialects
def test_B01_nonce_tells_where_the_tool_stands(endpoint: Endpoint, workspace: Path, dialect: Dialect) -> None:
    with endpoint.trial(context("nonce", nonce="nonce-7f3a.txt")):
        stub_agent.work(settings(endpoint, dialect), PROMPT)
    assert (workspace / "nonce-7f3a.txt").read_text().strip() == str(workspace)


@dialects
def test_case_12_read_history_asks_git_first(endpoint: Endpoint, dialect: Dialect) -> None:
    with endpoint.trial(context("read_history")):
        asked = command(first_answer(endpoint, dialect).calls[0])
    assert "git log -p" in asked


@dialects
@pytest.mark.parametrize(
    ("script", "sign"), [("spawn_daemon", "setsid sleep"), ("reach_out", UNROUTED_HOST), ("escape", ESCAPE_NAME)]
)
def test_case_5_misdeeds_come_first_and_then_the_solution(
    endpoint: Endpoint, dialect: Dialect, script: str, sign: str
) -> None:
    """Their commands are looked at, not run: outside a sandbox they would do harm."""
    with endpoint.trial(context(script)):
        first = first_answer(endpoint, dialect)
        done = stub_agent.Turn(first, ["ok"])
        second = stub_agent.ask(settings(endpoint, dialect), {"tools": True, "turn": 1}, PROMPT, [done])
    assert sign in command(first.calls[0])
    assert "code.py" in command(second.calls[0])
    shell = subprocess.run(["bash", "-n", "-c", command(first.calls[0])], capture_output=True, check=False)
    assert shell.returncode == 0


@dialects
def test_case_18_reasoning_comes_before_anything_else(endpoint: Endpoint, dialect: Dialect) -> None:
    with endpoint.trial(context("reasoning")):
        text = post(endpoint, dialect, stream=True).text
    assert 0 < text.index("gone") < text.index("printf")


@dialects
@whole_or_streamed
def test_B39_no_usage_tells_no_count(endpoint: Endpoint, dialect: Dialect, whole: bool) -> None:
    with endpoint.trial(context("no_usage")):
        text = post(endpoint, dialect, stream=not whole).text
    assert '"usage": {' not in text
    assert "timings" not in text


@dialects
def test_case_20_other_model_answers_under_its_name(endpoint: Endpoint, dialect: Dialect) -> None:
    with endpoint.trial(context("other_model")):
        assert first_answer(endpoint, dialect).model == OTHER_MODEL
    with endpoint.trial(context("solve")):
        assert first_answer(endpoint, dialect).model == endpoint.model


@dialects
@pytest.mark.parametrize("tools", [True, False], ids=["turn", "aside"])
def test_case_24_context_overflow_is_told_as_llama_cpp_does(endpoint: Endpoint, dialect: Dialect, tools: bool) -> None:
    with endpoint.trial(context("context_overflow")):
        reply = post(endpoint, dialect, stream=True, tools=tools)
    error = reply.json()["error"]
    assert (reply.status_code, error["type"]) == (400, "exceed_context_size_error")
    assert error["n_prompt_tokens"] > error["n_ctx"] > 0


@dialects
def test_case_4_http_500_every_time(endpoint: Endpoint, dialect: Dialect) -> None:
    with endpoint.trial(context("http_500")):
        assert [post(endpoint, dialect).status_code for _ in range(3)] == [500, 500, 500]


@dialects
@whole_or_streamed
def test_case_18_disconnect_cuts_the_reply(endpoint: Endpoint, dialect: Dialect, whole: bool) -> None:
    with endpoint.trial(context("disconnect")), pytest.raises(httpx.RemoteProtocolError):
        post(endpoint, dialect, stream=not whole)


@dialects
def test_case_25_stall_accepts_and_says_nothing(endpoint: Endpoint, dialect: Dialect) -> None:
    with endpoint.trial(context("stall")) as box, pytest.raises(httpx.ReadTimeout):
        httpx.post(endpoint.base_url + DIALECTS[dialect].path, json=body_of(dialect, stream=True), timeout=0.2)
    assert box.result is not None
    assert box.result.output == 0


def wait_for_request(endpoint: Any) -> None:
    """Until the server has read it: nothing on the wire tells."""
    until = time.monotonic() + 30
    while not endpoint._server._answers:
        assert time.monotonic() < until
        time.sleep(0.005)


def test_a_stalled_connection_is_closed_when_the_trial_ends(endpoint: Endpoint) -> None:
    parts = urlsplit(endpoint.base_url)
    data = json.dumps(body_of("openai-chat", stream=True)).encode()
    head = f"POST {DIALECTS['openai-chat'].path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n".encode()
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as line:
        with endpoint.trial(context("stall")):
            line.sendall(head + data)
            wait_for_request(endpoint)
        with contextlib.suppress(ConnectionResetError):
            assert line.recv(1) == b""


def test_an_idle_connection_lives_on_from_trial_to_trial(endpoint: Endpoint) -> None:
    """A proxy that keeps it would else report an engine that closes in the middle."""
    with httpx.Client(base_url=endpoint.base_url) as client:
        seen = set()
        for _ in range(100):  # a trial that ends just when its last reply was read is a matter of microseconds
            with endpoint.trial(context("nop")):
                reply = client.post(DIALECTS["openai-chat"].path, json=body_of("openai-chat", stream=True))
                seen.add(reply.extensions["network_stream"].get_extra_info("client_addr"))
    assert len(seen) == 1


@dialects
def test_runaway_goes_on_until_the_client_leaves(endpoint: Endpoint, dialect: Dialect) -> None:
    with endpoint.trial(context("runaway", options={"token_seconds": 0.0})) as box:
        body = body_of(dialect, stream=True, cap=4)
        with httpx.stream("POST", endpoint.base_url + DIALECTS[dialect].path, json=body, timeout=30) as reply:
            lines = sum(1 for _, _ in zip(range(1000), reply.iter_lines(), strict=False))
    assert lines == 1000
    assert box.result is not None
    assert box.result.output is not None
    assert box.result.output >= 200


@dialects
def test_loop_repeats_the_same_call(endpoint: Endpoint, workspace: Path, dialect: Dialect) -> None:
    turns: list[stub_agent.Turn] = []
    with endpoint.trial(context("loop")):
        for turn in range(3):
            given = stub_agent.ask(settings(endpoint, dialect), {"tools": True, "turn": turn}, PROMPT, turns)
            turns.append(stub_agent.Turn(given, ["code.py"]))
    assert len({(turn.answer.calls[0].name, turn.answer.calls[0].arguments) for turn in turns}) == 1
    assert len({turn.answer.calls[0].id for turn in turns}) == 3


@dialects
@whole_or_streamed
def test_case_21_bad_json_args_do_not_parse_and_come_to_an_end(
    endpoint: Endpoint, workspace: Path, dialect: Dialect, whole: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with endpoint.trial(context("bad_json_args")):
        stub_agent.work(settings(endpoint, dialect, whole=whole), PROMPT)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    tools = [event for event in events if event["type"] == "tool"]
    assert len(tools) == 3
    assert all(event["error"] for event in tools)
    assert (workspace / "code.py").read_bytes() == EXCISED


@dialects
def test_B52_tool_call_as_text_is_no_call(endpoint: Endpoint, dialect: Dialect) -> None:
    with endpoint.trial(context("tool_call_as_text")):
        answer = first_answer(endpoint, dialect)
    assert answer.calls == []
    assert answer.text.startswith("<tool_call>")
    assert '"bash"' in answer.text


@dialects
def test_B13_slow_prefill_sends_no_byte_before_its_time(endpoint: Endpoint, dialect: Dialect) -> None:
    with endpoint.trial(context("slow_prefill", options={"prefill_seconds": 0.4})):
        began = time.monotonic()
        body = body_of(dialect, stream=True)
        with httpx.stream("POST", endpoint.base_url + DIALECTS[dialect].path, json=body, timeout=30):
            assert time.monotonic() - began >= 0.4


@dialects
@whole_or_streamed
def test_clocked_takes_no_less_than_stated(endpoint: Endpoint, dialect: Dialect, whole: bool) -> None:
    timed = {"prefill_seconds": 0.2, "tokens": 10, "token_seconds": 0.02, "tool_seconds": 1.25}
    with endpoint.trial(context("clocked", options=timed)) as box:
        began = time.monotonic()
        answer = first_answer_by(endpoint, dialect, whole)
        took = time.monotonic() - began
    assert took >= 0.2 + 10 * 0.02
    assert command(answer.calls[0]) == "sleep 1.25"
    assert box.result is not None
    assert box.result.output == 10 + len(answer.calls[0].arguments.split())


def first_answer_by(endpoint: Endpoint, dialect: Dialect, whole: bool) -> stub_agent.Answer:
    return stub_agent.ask(settings(endpoint, dialect, whole=whole), {"tools": True, "turn": 0}, PROMPT, [])


def counts(usage: dict[str, Any]) -> tuple[int, int, int]:
    """Prompt new, prompt cached, output: the dialects name them differently, and one leaves the cached ones out."""
    if "cache_read_input_tokens" in usage:
        return usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]
    total = usage.get("prompt_tokens", usage.get("input_tokens", 0))
    details = usage.get("prompt_tokens_details") or usage["input_tokens_details"]
    output = usage.get("completion_tokens", usage.get("output_tokens", 0))
    return total - details["cached_tokens"], details["cached_tokens"], output


@dialects
@whole_or_streamed
def test_case_19_counters_equal_what_the_wire_told(
    endpoint: Endpoint, workspace: Path, dialect: Dialect, whole: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with endpoint.trial(context("read_history")) as box:
        stub_agent.work(settings(endpoint, dialect, whole=whole), PROMPT)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    told = [counts(event["usage"]) for event in events if event["type"] == "turn"]
    new, cached, output = (sum(column) for column in zip(*told, strict=True))
    assert box.result is not None
    assert (box.result.prompt_new, box.result.prompt_cached, box.result.output) == (new, cached, output)
    assert told[0][1] == 0
    assert told[1][1] > 0


def test_chat_usage_comes_only_when_asked_for_and_last(endpoint: Endpoint) -> None:
    body = body_of("openai-chat", stream=True)
    with endpoint.trial(context("nop")):
        told = httpx.post(endpoint.base_url + DIALECTS["openai-chat"].path, json=body).text
        untold = httpx.post(
            endpoint.base_url + DIALECTS["openai-chat"].path, json={**body, "stream_options": None}
        ).text
    last = json.loads(told.strip().split("\n\n")[-2].removeprefix("data: "))
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] > 0
    assert '"usage"' not in untold
    assert "timings" in untold


def test_messages_tells_the_prompt_first_and_the_output_last(endpoint: Endpoint) -> None:
    with endpoint.trial(context("nop")):
        text = post(endpoint, "anthropic-messages", stream=True).text
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    assert events[0]["message"]["usage"]["input_tokens"] > 0
    assert events[-2]["usage"]["output_tokens"] > 0
    assert [event["type"] for event in events][-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_responses_events_are_numbered_and_every_item_is_closed(endpoint: Endpoint) -> None:
    with endpoint.trial(context("reasoning")):
        text = post(endpoint, "openai-responses", stream=True).text
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    added = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    done = [event["output_index"] for event in events if event["type"] == "response.output_item.done"]
    assert added == done == [0, 1]
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "function_call"]


@dialects
def test_B05_a_request_aside_gets_a_harmless_text_and_moves_nothing(endpoint: Endpoint, dialect: Dialect) -> None:
    with endpoint.trial(context("solve")):
        aside = stub_agent.ask(settings(endpoint, dialect), {"tools": False, "turn": 0}, "A title, please", [])
        answer = first_answer(endpoint, dialect)
    assert aside.calls == []
    assert aside.text
    assert "code.py" in command(answer.calls[0])


@dialects
def test_case_23_the_same_request_gets_the_same_reply(endpoint: Endpoint, dialect: Dialect) -> None:
    with endpoint.trial(context("read_history")):
        first, again = first_answer(endpoint, dialect), first_answer(endpoint, dialect)
    assert [call.arguments for call in first.calls] == [call.arguments for call in again.calls]


@pytest.mark.parametrize(
    ("dialect", "sign"),
    [
        ("openai-chat", '"finish_reason": "length"'),
        ("anthropic-messages", '"stop_reason": "max_tokens"'),
        ("openai-responses", '"status": "completed"'),
    ],
)
def test_B45_a_cap_cuts_the_text_and_responses_hides_it(endpoint: Endpoint, dialect: Dialect, sign: str) -> None:
    with endpoint.trial(context("nop")) as box:
        text = post(endpoint, dialect, stream=False, cap=3).text
    assert sign in text
    assert box.result is not None
    assert box.result.output == 3


def test_compaction_for_ever_comes_to_an_end(endpoint: Endpoint) -> None:
    """A client that forgets the results of its calls would otherwise be told to start again for ever."""
    with endpoint.trial(context("solve")):
        answers = [first_answer(endpoint, "openai-chat") for _ in range(12)]
    assert answers[0].calls
    assert not answers[-1].calls


@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_every_script_says_what_it_does(script: str) -> None:
    assert (SCRIPTS[script].__doc__ or "").strip()


def test_an_unknown_script_is_a_sentence_that_lists_them(endpoint: Endpoint, tmp_path: Path) -> None:
    backend = Backend(name="mine", engine="scripted", script="slove")
    with pytest.raises(UsageError, match=r"backend 'mine': script 'slove'.*solve"):
        find("scripted").serve(backend, tmp_path, quiet).__enter__()


def test_an_unknown_option_is_a_sentence_that_lists_them(tmp_path: Path) -> None:
    backend = Backend(name="mine", engine="scripted", options={"prefil_seconds": 1})
    with pytest.raises(UsageError, match=r"option 'prefil_seconds'.*prefill_seconds"):
        find("scripted").serve(backend, tmp_path, quiet).__enter__()


def test_a_script_that_breaks_is_loud(endpoint: Endpoint) -> None:
    broken = context("clocked", options={"tokens": "many"})
    with pytest.raises(LabError, match="script 'clocked' broke"), endpoint.trial(broken):
        post(endpoint, "openai-chat")


def test_the_port_is_free_afterwards(tmp_path: Path) -> None:
    with find("scripted").serve(Backend(name="s", engine="scripted"), tmp_path, quiet) as served:
        parts = urlsplit(served.base_url)
        assert httpx.get(f"{served.base_url}/health").status_code == 200
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((parts.hostname, parts.port))


def test_models_and_counting_are_answered_and_props_are_not(endpoint: Endpoint) -> None:
    assert httpx.get(f"{endpoint.base_url}/v1/models").json()["data"][0]["id"] == endpoint.model
    counted = httpx.post(
        f"{endpoint.base_url}/v1/messages/count_tokens", json={"messages": [{"role": "user", "content": "one two"}]}
    )
    assert counted.json()["input_tokens"] >= 2
    assert httpx.get(f"{endpoint.base_url}/props").status_code == 404
    assert httpx.post(f"{endpoint.base_url}/v1/chat/completions", content=b"{no").status_code == 400


def test_words_join_to_the_text_again() -> None:
    for text in ["", "  ", "a", " a  b\n\nc ", "über\tall"]:
        assert "".join(words(text)) == text
        assert len(words(text)) == max(len(text.split()), int(bool(text)))


# ---- tools, as clients offer them ----

STRING = {"type": "string"}
CLAUDE_BASH = Tool(
    name="Bash",
    properties={"command": STRING, "timeout": {"type": "number"}, "description": STRING},
    required=("command",),
)
OPENCODE_BASH = Tool(
    name="bash", properties={"command": STRING, "description": STRING}, required=("command", "description")
)
CODEX_EXEC = Tool(name="exec_command", properties={"cmd": STRING, "workdir": STRING}, required=("cmd",))
CODEX_STDIN = Tool(name="write_stdin", properties={"session_id": STRING, "chars": STRING}, required=("session_id",))
QWEN_SHELL = Tool(
    name="run_shell_command",
    properties={"command": STRING, "is_background": {"type": "boolean"}},
    required=("command", "is_background"),
)
LIST_SHELL = Tool(
    name="shell", properties={"command": {"type": "array", "items": STRING}, "workdir": STRING}, required=("command",)
)
CLAUDE_WRITE = Tool(
    name="Write", properties={"file_path": STRING, "content": STRING}, required=("file_path", "content")
)
READ = Tool(name="Read", properties={"file_path": STRING}, required=("file_path",))


@pytest.mark.parametrize(
    "shell", [CLAUDE_BASH, OPENCODE_BASH, CODEX_EXEC, QWEN_SHELL, LIST_SHELL], ids=lambda t: t.name
)
def test_the_shell_is_found_among_other_tools_and_gets_all_it_requires(shell: Tool) -> None:
    found = toolbox.shell([READ, CODEX_STDIN, CLAUDE_WRITE, shell])
    assert found == shell
    arguments = json.loads(toolbox.run(shell, "ls -l").arguments)
    assert set(shell.required) <= set(arguments)
    assert "ls -l" in (arguments.get("command") or arguments.get("cmd"))


def offering(*tools: Tool) -> Conversation:
    return Conversation(
        model="m", stream=False, usage_wanted=True, system="", users=(), prompt="", results=0, tools=tools, cap=None
    )


def test_without_a_shell_files_go_through_the_writing_tool() -> None:
    reply = SCRIPTS["solve"](offering(READ, CLAUDE_WRITE), context("solve", workspace="/home/agent/w"))
    assert json.loads(reply.calls[0].arguments) == {"file_path": "/home/agent/w/code.py", "content": ORIGINAL.decode()}


def test_with_no_fit_tool_it_says_so() -> None:
    assert SCRIPTS["solve"](offering(READ), context("solve")).calls == ()


# ---- aider's edit formats ----


def aider(system: str, shown: str, path: str = "code.py", fence: str = "```") -> Conversation:
    text = f"I have *added these files to the chat*.\n\n{path}\n{fence}\n{shown}{fence}\n"
    return structs.replace(offering(), system=system, users=("example", text, PROMPT))


def applied(reply: str, shown: str) -> str:
    """What aider does with one block whose SEARCH matches exactly."""
    before, after = reply.split("<<<<<<< SEARCH\n")[1].split("=======\n")
    search, replace = before, after.split(">>>>>>> REPLACE")[0]
    assert shown.count(search) == 1
    return shown.replace(search, replace)


@pytest.mark.parametrize(
    ("original", "excised"),
    [
        (ORIGINAL.decode(), EXCISED.decode()),
        ("a\nb\n    x = 1\n    y = 2\nc\n", "a\nb\n    raise E\nc\n"),
        ("def a():\n    return 1\n\ndef b():\n    return 2\n", "def a():\n    raise E\n\ndef b():\n    raise E\n"),
        ("def a():\n    raise E\n\ndef b():\n    return 2\n", "def a():\n    raise E\n\ndef b():\n    raise E\n"),
    ],
    ids=["one line", "inside", "two bodies", "the second of two alike"],
)
def test_aider_diff_blocks_match_once_and_give_the_original(original: str, excised: str) -> None:
    asked = aider("every change must use a *SEARCH/REPLACE block*", excised)
    reply = SCRIPTS["solve"](asked, context("solve", solution={"code.py": original.encode()}))
    assert applied(reply.text, excised) == original


def test_aider_whole_gives_the_file_in_the_fence_that_was_used() -> None:
    asked = aider("To suggest changes you MUST return a *file listing*", "`x`\n", fence="````")
    reply = SCRIPTS["solve"](asked, context("solve"))
    assert f"code.py\n````\n{ORIGINAL.decode()}````\n" in reply.text


def test_aider_makes_the_nonce_by_an_edit() -> None:
    reply = SCRIPTS["nonce"](aider("SEARCH/REPLACE", "x\n"), context("nonce", nonce="n.txt"))
    assert "n.txt\n```\n<<<<<<< SEARCH\n=======\nn.txt\n>>>>>>> REPLACE" in reply.text


def test_a_summary_without_tools_is_no_edit_request() -> None:
    assert textual.edit_format(aider("Summarize this conversation", "x\n")) is None
