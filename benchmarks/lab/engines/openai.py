"""The `openai` engine: any model server that is already running, by its base URL, on this host or another.

It starts and stops nothing. It asks llama.cpp's server, vLLM, Ollama and LM Studio for what each can tell, and sends a
few small requests: one until it is ready, and one per dialect unless the backend's option `dialects` names them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import msgspec
import psutil

from benchmarks.lab import labfile
from benchmarks.lab.dialects import DIALECTS
from benchmarks.lab.engines import ask
from benchmarks.lab.engines.base import (
    CounterBox,
    ServerProcess,
    TrialContext,
    only_options,
    process_of,
    refuse_hosted,
)
from benchmarks.lab.errors import UsageError
from benchmarks.lab.model import Backend, Dialect, EngineFacts
from benchmarks.lab.text import Say, listing

READY_SECONDS: Final = 120.0
DIALECT_SECONDS: Final = 60.0  # for one token
IDLE_SECONDS: Final = 60.0
OPTIONS: Final = ("dialects", "ready_seconds", "answer_seconds")


class AttachedEndpoint:
    """A server that somebody else started."""

    def __init__(
        self, server: ask.Address, backend: Backend, model: str, dialects: tuple[Dialect, ...], facts: EngineFacts
    ) -> None:
        self._server = server
        self.base_url = server.base_url
        self.api_key = server.api_key
        self.model = model
        self.names = (model, *backend.aliases)
        self.dialects = dialects
        self.facts = facts

    def facts_now(self) -> EngineFacts:
        """Ask the server again. Raises LabError if it is gone."""
        return read_facts(self._server, self.model)

    @contextmanager
    def trial(self, context: TrialContext) -> Iterator[CounterBox]:
        """Difference of the server's totals where it keeps any (llama.cpp's /metrics), else None."""
        box = CounterBox()
        keeps = ask.counters(self._server) is not None
        before = ask.counters(self._server) if keeps and ask.wait_idle(self._server, IDLE_SECONDS) else None
        yield box
        after = ask.counters(self._server) if keeps and ask.wait_idle(self._server, IDLE_SECONDS) else None
        box.result = ask.difference(before, after)


class OpenAIEngine:
    """`engine: openai` in the lab file; `base_url:` says where."""

    name = "openai"
    dialects: tuple[Dialect, ...] = tuple(DIALECTS)

    def probe(self, base_url: str, api_key: str | None = None) -> EngineFacts:
        """What the server at `base_url` tells of itself. Raises LabError with one sentence if it tells nothing."""
        who = "probe: base_url"
        server = ask.Address(base_url=labfile.base_url(base_url, who), who=who, api_key=api_key)
        with server.client() as client:
            listed = ask.served_models(client, server)
        return read_facts(server, str(listed[0].get("id")) if listed else None)

    @contextmanager
    def serve(self, backend: Backend, state: Path, say: Say) -> Iterator[AttachedEndpoint]:
        """Attach: find the model, wait for a real completion, see which dialects are spoken."""
        only_options(backend, OPTIONS)
        _check_sampler(backend)
        server = server_of(backend)
        limit = float(backend.options.get("ready_seconds", READY_SECONDS))
        say(f"backend {backend.name}: asking {server.base_url}")
        model = choose_model(backend, server)
        declared = declared_dialects(backend)
        ready = ask.wait_ready(server, model, declared[0] if declared else "openai-chat", limit, lambda: True)
        check_name(backend, model, ready.model_answered)
        dialects = declared or ask.speaks(server, model, DIALECT_SECONDS)
        if not dialects:
            raise UsageError(f"{server.who}: {server.base_url} speaks no known dialect; name one in option dialects")
        say(f"backend {backend.name}: {model} answers after {ready.completion_seconds:.1f} s in {', '.join(dialects)}")
        yield AttachedEndpoint(server, backend, model, dialects, read_facts(server, model))


def _check_sampler(backend: Backend) -> None:
    """Raise UsageError for a sampler that nobody would set: rows would say of a server what only the lab file says."""
    if backend.sampler and "sampler" not in backend.rewrite:
        raise UsageError(
            f"backend '{backend.name}': field sampler changes nothing at a server that runs already; add "
            "`rewrite: [sampler]`, or set it there and leave it out here"
        )


def server_of(backend: Backend) -> ask.Address:
    """The backend's server. Raises UsageError for a missing or unfit base_url or an empty key variable."""
    if not backend.base_url:
        raise UsageError(f"backend '{backend.name}': field base_url is missing; write it like http://127.0.0.1:8080")
    who = f"backend '{backend.name}': field base_url"
    key = os.environ.get(backend.api_key_env) if backend.api_key_env else None
    if backend.api_key_env and not key:
        raise UsageError(f"backend '{backend.name}': field api_key_env names {backend.api_key_env}, which is not set")
    return ask.Address(
        base_url=labfile.base_url(backend.base_url, who),
        who=who,
        api_key=key,
        seconds=float(backend.options.get("answer_seconds", ask.ANSWER_SECONDS)),
    )


def choose_model(backend: Backend, server: ask.Address) -> str:
    """The model to ask for. Raises UsageError unless it is named, or the only one served; hosted ones are refused."""
    if backend.model:
        refuse_hosted(backend.name, backend.model)
        _refuse_remote(backend.name, backend.model, server)
    with server.client() as client:
        served = [str(each["id"]) for each in ask.served_models(client, server) if each.get("id")]
    if backend.model:
        return backend.model
    if len(served) != 1:
        what = (
            f"serves {len(served)} models ({listing(served)}); name one"
            if served
            else "lists none at /v1/models; name one, or correct the address (scheme, host and port are enough)"
        )
        raise UsageError(f"backend '{backend.name}': field model is missing and {server.base_url} {what}")
    refuse_hosted(backend.name, served[0])
    return served[0]


def check_name(backend: Backend, model: str, answered: str | None) -> None:
    """Raise UsageError if another name answers than asked for: every trial would be void (field case 20)."""
    if answered and answered not in (model, *backend.aliases):
        raise UsageError(
            f"backend '{backend.name}': asked for '{model}', but '{answered}' answers; set field model to it, or add "
            "it to aliases if it is the same weights"
        )


def declared_dialects(backend: Backend) -> tuple[Dialect, ...]:
    """The option `dialects`, checked; empty if it is not given."""
    given = backend.options.get("dialects")
    if given is None:
        return ()
    try:
        return msgspec.convert(given, tuple[Dialect, ...])
    except msgspec.ValidationError:
        known = ", ".join(tuple(DIALECTS))
        raise UsageError(f"backend '{backend.name}': option dialects must be a list of: {known}") from None


def read_facts(server: ask.Address, model: str | None) -> EngineFacts:
    """Facts from whichever server it is. Raises LabError if nothing answers."""
    base = EngineFacts(model_id=model)
    with server.client() as client:
        entry = _entry(ask.served_models(client, server), model)
        if (entry or {}).get("owned_by") == "llamacpp" or not entry:
            found = ask.llama_facts(server) or base
        elif entry.get("max_model_len"):
            found = _vllm(client, server, entry)
        else:
            found = (
                _ollama(client, server, model) or _lm_studio(client, server, model) or ask.llama_facts(server) or base
            )
    return _with_process(found, server)


def listener(base_url: str) -> ServerProcess | None:
    """The process that listens at a loopback URL; None elsewhere or where the system does not tell."""
    parts = urlsplit(base_url)
    if parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        return None
    try:
        connections = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return None
    for each in connections:
        if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == parts.port and each.pid:
            return process_of(each.pid)
    return None


def _with_process(facts: EngineFacts, server: ask.Address) -> EngineFacts:
    process = listener(server.base_url)
    if process is None:
        return facts
    return msgspec.structs.replace(facts, process=str(process), started=process.started)


def _entry(listed: Sequence[Mapping[str, Any]], model: str | None) -> Mapping[str, Any] | None:
    return next((each for each in listed if each.get("id") == model), listed[0] if len(listed) == 1 else None)


def _vllm(client: httpx.Client, server: ask.Address, entry: Mapping[str, Any]) -> EngineFacts:
    version = ask.get_json(client, server, "/version")
    return ask.told(
        engine="vllm",
        version=ask.mapping(version).get("version"),
        model_id=entry.get("id"),
        context=entry.get("max_model_len"),
    )


def _ollama(client: httpx.Client, server: ask.Address, model: str | None) -> EngineFacts | None:
    """The context in force stands in /api/ps, and only once the model is loaded."""
    version = ask.get_json(client, server, "/api/version")
    if not isinstance(version, Mapping) or "version" not in version:
        return None
    running = ask.get_json(client, server, "/api/ps")
    entries = ask.entries(ask.mapping(running).get("models"))
    names = (model, f"{model}:latest")
    loaded: Mapping[str, Any] = next(
        (each for each in entries if each.get("name") in names or each.get("model") in names), {}
    )
    return ask.told(
        engine="ollama",
        version=version["version"],
        model_id=model,
        model_digest=loaded.get("digest"),
        quantization=ask.mapping(loaded.get("details")).get("quantization_level"),
        context=loaded.get("context_length"),
    )


def _lm_studio(client: httpx.Client, server: ask.Address, model: str | None) -> EngineFacts | None:
    listed = ask.get_json(client, server, "/api/v0/models")
    entries = ask.entries(ask.mapping(listed).get("data"))
    found = next((each for each in entries if each.get("id") == model), None)
    if found is None:
        return None
    return ask.told(
        engine="lm studio",
        model_id=model,
        quantization=found.get("quantization"),
        context=found.get("loaded_context_length"),
        context_trained=found.get("max_context_length"),
    )


def _refuse_remote(backend: str, model: str, server: ask.Address) -> None:
    """Ollama tells in /api/show if a model runs elsewhere, whatever its name (field case B31)."""
    with server.client() as client:
        shown = ask.post_json(client, server, "/api/show", {"model": model})
    if isinstance(shown, Mapping) and (shown.get("remote_host") or shown.get("remote_model")):
        raise UsageError(
            f"backend '{backend}': field model names '{model}', which this server passes on to another host; "
            "name a local model"
        )
