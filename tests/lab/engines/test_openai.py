"""The `openai` engine against servers of every kind: the scripted one, and small fakes that answer as real ones do."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.lab.dialects import DIALECTS
from benchmarks.lab.engines import ask, find
from benchmarks.lab.engines import openai as attached
from benchmarks.lab.engines.base import Endpoint, TrialContext, refuse_hosted
from benchmarks.lab.errors import LabError, Refused, UsageError
from benchmarks.lab.model import Backend, EngineCounters, EngineFacts
from tests.lab.engines.conftest import Answer, Routes, fake

CHAT = {"model": "m", "choices": [{"index": 0, "message": {"role": "assistant", "content": "H"}}]}
MODELS = {"data": [{"id": "m"}]}


@contextlib.contextmanager
def attach(url: str, **fields: Any) -> Iterator[Endpoint]:
    backend = Backend(**{"name": "mine", "engine": "openai", "base_url": url, **fields})
    with find("openai").serve(backend, Path(), print) as endpoint:
        yield endpoint


def html() -> Answer:
    return 200, "text/html; charset=utf-8", "<html><body>Welcome to nginx</body></html>"


# ---- attaching ----


def test_it_attaches_to_a_plain_server_and_finds_its_dialects(tmp_path: Path) -> None:
    with find("scripted").serve(Backend(name="s", engine="scripted"), tmp_path, print) as served:
        with attach(served.base_url + "/v1/") as endpoint:
            assert endpoint.base_url == served.base_url
            assert endpoint.model == "scripted"
            assert set(endpoint.dialects) == set(DIALECTS)
            with endpoint.trial(TrialContext()) as box:
                pass
        assert box.result is None


def test_only_dialects_that_are_answered_count() -> None:
    routes = {"/v1/models": MODELS, DIALECTS["openai-chat"].path: CHAT, DIALECTS["anthropic-messages"].path: html}
    with fake(routes) as url, attach(url) as endpoint:
        assert endpoint.dialects == ("openai-chat",)


def test_declared_dialects_are_not_probed() -> None:
    asked: list[str] = []

    def messages() -> Answer:
        asked.append("messages")
        return 200, "application/json", json.dumps({"model": "m", "content": []})

    routes = {"/v1/models": MODELS, DIALECTS["anthropic-messages"].path: messages}
    with fake(routes) as url, attach(url, options={"dialects": ["anthropic-messages"]}) as endpoint:
        assert endpoint.dialects == ("anthropic-messages",)
    assert asked == ["messages"]
    with fake(routes) as url, pytest.raises(UsageError, match=r"option dialects must be a list of: openai-chat"):
        attach(url, options={"dialects": ["chat"]}).__enter__()


def test_case_25_readiness_waits_while_completions_are_503_and_health_says_ok() -> None:
    left = iter([503, 503])

    def chat() -> Answer:
        if next(left, 200) == 503:
            return 503, "application/json", '{"error": {"message": "Loading model"}}'
        return 200, "application/json", json.dumps(CHAT)

    with fake({"/health": {"status": "ok"}, DIALECTS["openai-chat"].path: chat}) as url:
        server = ask.Address(base_url=url, who="backend 'mine': field base_url")
        ready = ask.wait_ready(server, "m", "openai-chat", 30, lambda: True)
    assert ready.health_seconds is not None
    assert ready.health_seconds < ready.completion_seconds
    assert next(left, None) is None


# ---- mistakes, one sentence each ----


def loading() -> Answer:
    return 503, "application/json", '{"error": {"message": "Loading model"}}'


def test_a_server_that_stays_503_is_named_with_its_words() -> None:
    with (
        fake({"/v1/models": MODELS, DIALECTS["openai-chat"].path: loading}) as url,
        pytest.raises(Refused, match=r"backend 'mine': field base_url.*503.*Loading model"),
    ):
        attach(url, options={"ready_seconds": 0.3}).__enter__()


def test_nothing_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(Refused, match=f"backend 'mine': field base_url: nothing listens at {url}"):
            attach(url).__enter__()


def test_a_web_page_instead_of_json() -> None:
    with (
        fake({"/v1/models": html}) as url,
        pytest.raises(UsageError, match=r"backend 'mine': field base_url.*a web page instead of JSON"),
    ):
        attach(url).__enter__()


def test_a_web_page_instead_of_a_completion() -> None:
    with (
        fake({"/v1/models": MODELS, DIALECTS["openai-chat"].path: html}) as url,
        pytest.raises(UsageError, match="completion with a web page instead of JSON"),
    ):
        attach(url).__enter__()


def test_a_web_page_as_an_error_is_named_and_not_repeated() -> None:
    routes = {DIALECTS["openai-chat"].path: lambda: (501, "text/html", "<!DOCTYPE HTML>\n<title>Error</title>")}
    with fake(routes) as url, pytest.raises(Refused) as caught:
        attach(url, model="m").__enter__()
    assert str(caught.value) == (
        f"backend 'mine': field base_url: {url} did not complete one token; it answers 501 with a web page, as no "
        "model server does; correct the host or the port"
    )


def test_a_path_too_much_in_the_address_is_named() -> None:
    with (
        fake({}) as url,
        pytest.raises(Refused, match="if /v1/chat/completions is not where it stands, leave that out of the address"),
    ):
        attach(f"{url}/v1/chat/completions", model="m").__enter__()


def test_a_refusal_of_several_lines_becomes_one() -> None:
    refused = {DIALECTS["openai-chat"].path: lambda: (400, "text/plain", "no\n  such\nmodel")}
    with fake(refused) as url, pytest.raises(Refused, match=r"its last answer: 400 no such model$"):
        attach(url, model="m").__enter__()


def test_a_host_that_is_not_there_is_no_silent_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(*asked: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with pytest.raises(
        UsageError, match=r"field base_url: no host has the name in http://no-such\.invalid:80; correct"
    ):
        attach("http://no-such.invalid:80").__enter__()


def test_a_build_without_its_number_tells_no_version() -> None:
    props = {"default_generation_settings": {"params": {}}, "build_info": "b0-unknown"}
    with fake({"/props": props, "/v1/models": MODELS}) as url:
        told = ask.llama_facts(ask.Address(base_url=url, who="it"))
    assert told is not None
    assert told.version is None


def test_case_25_accepts_and_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Refused, match=r"backend 'mine': field base_url.*accepts connections but does not answer"):
            attach(url, options={"answer_seconds": 0.2}).__enter__()


def test_something_that_does_not_speak_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def babble() -> None:
            line, _ = other.accept()
            with line:
                line.recv(4096)
                line.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        threading.Thread(target=babble, daemon=True).start()
        with pytest.raises(Refused, match=r"field base_url.*does not speak HTTP"):
            attach(f"http://127.0.0.1:{other.getsockname()[1]}").__enter__()


def test_a_key_is_wanted_and_a_named_variable_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    with fake({"/v1/models": lambda: (401, "application/json", "{}")}) as url:
        with pytest.raises(UsageError, match="wants a key; name its environment variable in api_key_env"):
            attach(url).__enter__()
        with pytest.raises(UsageError, match="field api_key_env names MY_KEY, which is not set"):
            attach(url, api_key_env="MY_KEY").__enter__()


@pytest.mark.parametrize("url", ["http://user:hunter2@host:1/v1", "http://host/?key=hunter2", "ftp://hunter2"])
def test_an_unfit_address_names_the_field_and_is_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="backend 'mine': field base_url") as caught:
        attach(url).__enter__()
    assert "hunter2" not in str(caught.value)


def test_a_sampler_that_nobody_would_set_is_refused() -> None:
    with fake({"/v1/models": MODELS, DIALECTS["openai-chat"].path: CHAT}) as url:
        with pytest.raises(UsageError, match=r"field sampler changes nothing.*`rewrite: \[sampler\]`"):
            attach(url, sampler={"temperature": 0.2}).__enter__()
        with attach(url, sampler={"temperature": 0.2}, rewrite=("sampler",)) as endpoint:
            assert endpoint.model == "m"


def test_several_models_and_none_named_lists_them() -> None:
    with (
        fake({"/v1/models": {"data": [{"id": "a"}, {"id": "b"}]}}) as url,
        pytest.raises(UsageError, match=r"field model is missing.*serves 2 models \(a, b\)"),
    ):
        attach(url).__enter__()


def test_case_20_another_name_answers_unless_it_is_an_alias() -> None:
    routes = {"/v1/models": MODELS, DIALECTS["openai-chat"].path: {**CHAT, "model": "m-Q4_K_M.gguf"}}
    with fake(routes) as url:
        with pytest.raises(UsageError, match=r"asked for 'm', but 'm-Q4_K_M\.gguf' answers"):
            attach(url).__enter__()
        with attach(url, aliases=("m-Q4_K_M.gguf",)) as endpoint:
            assert endpoint.names == ("m", "m-Q4_K_M.gguf")


@pytest.mark.parametrize("name", ["qwen3-coder:480b-cloud", "glm:cloud", "x-CLOUD "])
def test_B31_hosted_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"backend 'mine': field model.*vendor's machines"):
        refuse_hosted("mine", name)
    refuse_hosted("mine", "cloud-7b")


def test_B31_a_model_that_the_server_passes_on_is_refused() -> None:
    with (
        fake({"/api/show": {"remote_host": "https://far.invalid"}, "/v1/models": MODELS}) as url,
        pytest.raises(UsageError, match="field model names 'm', which this server passes on"),
    ):
        attach(url, model="m").__enter__()


# ---- facts, each None when not told ----


def probe(routes: Routes) -> Any:
    with fake(routes) as url:
        return find("openai").probe(url)


def test_B24_facts_of_ollama_are_those_in_force() -> None:
    loaded = {"name": "m:latest", "context_length": 4096, "digest": "abc", "details": {"quantization_level": "Q4_K_M"}}
    facts = probe({"/v1/models": MODELS, "/api/version": {"version": "0.9"}, "/api/ps": {"models": [loaded]}})
    assert (facts.engine, facts.version, facts.context, facts.quantization) == ("ollama", "0.9", 4096, "Q4_K_M")
    unloaded = probe({"/v1/models": MODELS, "/api/version": {"version": "0.9"}, "/api/ps": {"models": []}})
    assert unloaded.context is None


def test_facts_of_lm_studio_are_those_in_force() -> None:
    entry = {"id": "m", "quantization": "Q8_0", "loaded_context_length": 8192, "max_context_length": 131072}
    facts = probe({"/v1/models": MODELS, "/api/v0/models": {"data": [entry]}})
    assert (facts.engine, facts.context, facts.context_trained) == ("lm studio", 8192, 131072)


def test_facts_of_vllm() -> None:
    models = {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 32768}]}
    facts = probe({"/v1/models": models, "/version": {"version": "0.12"}})
    assert (facts.engine, facts.version, facts.context) == ("vllm", "0.12", 32768)


def test_B33_facts_of_llama_cpp_take_the_context_of_a_slot() -> None:
    props = {"default_generation_settings": {"n_ctx": 4096, "params": {"temperature": 0.8}}, "total_slots": 4}
    slots = [{"id": number, "n_ctx": 1024} for number in range(4)]
    models = {"data": [{"id": "m", "owned_by": "llamacpp"}]}
    facts = probe({"/v1/models": models, "/props": props, "/slots": slots})
    assert (facts.engine, facts.context, facts.slots) == ("llama.cpp", 1024, 4)
    assert facts.sampler == {"temperature": 0.8}
    assert facts.template_tools is None


def test_B37_servers_are_named_by_what_they_answer_not_by_their_port() -> None:
    props = {"default_generation_settings": {"n_ctx": 4096, "params": {}}, "total_slots": 1}
    llama: Routes = {"/v1/models": {"data": [{"id": "m", "owned_by": "llamacpp"}]}, "/props": props}
    mlx: Routes = {"/v1/models": MODELS, "/health": {"status": "ok"}}
    with fake(llama) as first, fake(mlx) as second:
        engine = find("openai")
        assert (engine.probe(first).engine, engine.probe(second).engine) == ("llama.cpp", None)


def test_a_server_that_tells_nothing_more_leaves_all_else_unknown() -> None:
    facts = probe({"/v1/models": MODELS})
    assert facts.model_id == "m"
    assert (facts.engine, facts.context, facts.sampler, facts.slots) == (None, None, None, None)


def test_a_probe_of_nothing_is_one_sentence() -> None:
    with pytest.raises(LabError, match="nothing listens"):
        find("openai").probe("http://127.0.0.1:1")


def test_the_listening_process_is_found_on_loopback_only() -> None:
    with fake({}) as url:
        found = attached.listener(url)
        assert found is None or found.pid > 0
    assert attached.listener("http://192.0.2.1:8080") is None


# ---- counters ----


def metrics(*values: Callable[[], int]) -> Callable[[], Answer]:
    def answer() -> Answer:
        names = [*ask.COUNTERS.values(), *ask.BUSY]
        numbers = [value() for value in values] + [0, 0]
        return 200, "text/plain", "".join(f"# HELP {n} x\n{n} {v}\n" for n, v in zip(names, numbers, strict=True))

    return answer


def test_counters_of_a_llama_cpp_server_are_differences_over_the_trial() -> None:
    total = [100]
    routes = {
        "/v1/models": MODELS,
        DIALECTS["openai-chat"].path: CHAT,
        "/metrics": metrics(lambda: total[0], lambda: 7, lambda: total[0] * 2),
    }
    with fake(routes) as url, attach(url) as endpoint, endpoint.trial(TrialContext()) as box:
        total[0] += 5
    assert box.result == EngineCounters(prompt_new=5, prompt_cached=0, output=10)


def test_case_26_a_server_that_is_never_idle_gives_no_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attached, "IDLE_SECONDS", 0.2)
    busy = "".join(f"{name} 1\n" for name in [*ask.COUNTERS.values(), *ask.BUSY])
    routes = {"/v1/models": MODELS, DIALECTS["openai-chat"].path: CHAT, "/metrics": lambda: (200, "text/plain", busy)}
    with fake(routes) as url, attach(url) as endpoint, endpoint.trial(TrialContext()) as box:
        pass
    assert box.result is None


@pytest.mark.parametrize(
    "routes",
    [
        {"/v1/models": {"data": [{"id": "m", "max_model_len": True, "root": 5}]}, "/version": {"version": [1]}},
        {"/v1/models": {"data": [{"id": "m", "max_model_len": 1e400}]}, "/version": "0.9"},
        {"/v1/models": MODELS, "/api/version": {"version": 5}, "/api/ps": {"models": [5, {"name": "m", "details": 1}]}},
        {"/v1/models": MODELS, "/api/version": {"version": None}, "/api/ps": {"models": {"name": "m"}}},
        {"/v1/models": MODELS, "/api/v0/models": {"data": [None, {"id": "m", "loaded_context_length": "many"}]}},
        {"/v1/models": MODELS, "/props": {"default_generation_settings": [1]}, "/slots": [{"n_ctx": -1}]},
        {"/v1/models": MODELS, "/props": {"default_generation_settings": {"params": 5, "n_ctx": "x"}}},
        {"/v1/models": {"data": [{"id": "m", "owned_by": "llamacpp", "meta": 3}]},
         "/props": {"default_generation_settings": {}, "build_info": 7, "total_slots": 0}},
    ],
)  # fmt: skip
def test_what_a_server_tells_in_another_type_is_not_told(routes: Routes) -> None:
    with fake({**routes, DIALECTS["openai-chat"].path: CHAT}) as url, attach(url) as endpoint:
        facts = endpoint.facts
    assert msgspec.convert(msgspec.to_builtins(facts), EngineFacts) == facts
    assert (facts.version, facts.quantization, facts.context, facts.context_trained, facts.slots) == (None,) * 5


def test_a_whole_number_counts_also_when_it_is_written_as_a_fraction() -> None:
    routes = {"/v1/models": {"data": [{"id": "m", "max_model_len": 8192.0}]}, DIALECTS["openai-chat"].path: CHAT}
    with fake(routes) as url, attach(url) as endpoint:
        assert type(endpoint.facts.context) is int
        assert endpoint.facts.context == 8192


def test_counters_that_are_no_numbers_are_no_counters() -> None:
    def metrics() -> Answer:
        return 200, "text/plain", "".join(f"{name} NaN\n" for name in ask.COUNTERS.values())

    with fake({"/metrics": metrics}) as url:
        assert ask.counters(ask.Address(base_url=url, who="x")) is None
