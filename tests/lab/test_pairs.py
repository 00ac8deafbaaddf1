"""Which pairs cannot work, asked of small servers that answer as real ones were seen to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.lab import clients, pairs
from benchmarks.lab.model import Backend, EngineFacts

Answer = Callable[[dict[str, Any]], int]
BACKEND = Backend(name="b", engine="openai")


@contextmanager
def server(answer: Answer) -> Iterator[str]:
    """A server whose status is `answer(body)`."""

    class Replies(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status = answer(body)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"{}" if status == 200 else b'{"error": {"message": "refused so"}}')

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Replies) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


def endpoint(url: str, **facts: Any) -> Any:
    dialects = ("openai-chat", "openai-responses", "anthropic-messages")
    return SimpleNamespace(
        base_url=url, model="m", names=("m",), dialects=dialects, api_key=None, facts=EngineFacts(**facts)
    )


def strict_template(body: dict[str, Any]) -> int:
    roles = [message["role"] for message in body.get("messages", [])]
    return 400 if "system" in roles[1:] else 200


def functions_only(body: dict[str, Any]) -> int:
    return 400 if any(tool["type"] != "function" for tool in body.get("tools", [])) else 200


def test_B10_a_template_that_refuses_a_late_system_message_does_not_go_with_claude() -> None:
    with server(strict_template) as url:
        why = pairs.unsupported(clients.find("claude"), endpoint(url), BACKEND)
        assert why is not None
        assert "fold_system" in why
        assert "refused so" in why
        folded = Backend(name="b", engine="openai", rewrite=("fold_system",))
        assert pairs.unsupported(clients.find("claude"), endpoint(url), folded) is None
        assert pairs.unsupported(clients.find("opencode"), endpoint(url), BACKEND) is None


def test_B18_an_engine_that_takes_function_tools_only_does_not_go_with_codex() -> None:
    with server(functions_only) as url:
        why = pairs.unsupported(clients.find("codex"), endpoint(url), BACKEND)
        assert why is not None
        assert "newer build" in why
        assert pairs.unsupported(clients.find("claude"), endpoint(url), BACKEND) is None


def test_an_engine_that_refuses_the_plain_request_too_is_not_blamed_for_the_odd_one() -> None:
    with server(lambda body: 401) as url:
        assert pairs.unsupported(clients.find("codex"), endpoint(url), BACKEND) is None


def test_case_24_B58_a_context_below_the_clients_own_prompt_is_told_with_all_numbers() -> None:
    with server(lambda body: 200) as url:
        capped = Backend(name="b", engine="openai", max_tokens=1000)
        why = pairs.unsupported(clients.find("claude"), endpoint(url, context=8192), capped)
    assert why is not None
    assert all(number in why for number in ("13800", "1000", "8192"))


def test_B46_a_template_without_tools_goes_only_with_a_client_that_edits_by_text() -> None:
    with server(lambda body: 200) as url:
        toolless = endpoint(url, template_tools=False, context=65536)
        assert "renders no tools" in (pairs.unsupported(clients.find("opencode"), toolless, BACKEND) or "")
        assert pairs.unsupported(clients.find("aider"), toolless, BACKEND) is None
        demo = Backend(name="b", engine="openai", purpose="demo")
        assert pairs.unsupported(clients.find("opencode"), toolless, demo) is None


def test_B17_no_shared_dialect_names_both_sides() -> None:
    only_chat = SimpleNamespace(**{**endpoint("http://127.0.0.1:9").__dict__, "dialects": ("openai-chat",)})
    why = pairs.unsupported(clients.find("codex"), only_chat, BACKEND)
    assert why == "codex speaks openai-responses; b only openai-chat"


@pytest.mark.parametrize("name", ["claude", "codex", "opencode", "aider", "qwen"])
def test_a_server_that_takes_everything_goes_with_every_client(name: str) -> None:
    with server(lambda body: 200) as url:
        assert pairs.unsupported(clients.find(name), endpoint(url, context=65536, template_tools=True), BACKEND) is None
