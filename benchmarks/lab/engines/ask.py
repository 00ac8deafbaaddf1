"""Gentle questions to a running model server: readiness, dialects, facts, counters; shared by `embedded` and `openai`.

It sends a handful of small requests and starts nothing. What a server does not tell stays None. Where each fact is
found: the documentation and the running servers of llama.cpp, vLLM, Ollama and LM Studio.
"""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, get_args, get_type_hints
from urllib.parse import urlsplit

import httpx
import msgspec

from benchmarks.lab.dialects import DIALECTS
from benchmarks.lab.errors import LabError, Refused, UsageError
from benchmarks.lab.model import Dialect, EngineCounters, EngineFacts, Record, SamplerName
from benchmarks.lab.text import shorten

ANSWER_SECONDS: Final = 10.0  # for a question that needs no model
POLL_SECONDS: Final = 0.05
PROBE_TOOL: Final = "local_lab_probe"
SAMPLER_KEYS: Final = (*get_args(SamplerName), "samplers")  # the last: the order in which they apply
COUNTERS: Final = {
    "prompt_new": "llamacpp:prompt_tokens_total",
    "prompt_cached": "llamacpp:prompt_tokens_cached_total",
    "output": "llamacpp:tokens_predicted_total",
}
BUSY: Final = ("llamacpp:requests_processing", "llamacpp:requests_deferred")


class Address(Record, frozen=True, kw_only=True):
    """Where to ask and how to name it in a sentence: `who` is like "backend 'x': field base_url"."""

    base_url: str
    who: str
    api_key: str | None = None
    seconds: float = ANSWER_SECONDS

    def client(self, seconds: float | None = None) -> httpx.Client:
        """A client that ignores the operator's proxies: the server is asked directly."""
        headers = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return httpx.Client(
            base_url=self.base_url,
            timeout=seconds or self.seconds,
            headers=headers,
            trust_env=False,
            verify=self.base_url.startswith("https"),  # certificates cost 20 ms to load
        )


class Readiness(Record, frozen=True, kw_only=True):
    """A real completion came back. Seconds count from the first question.

    Some servers call themselves healthy long before they complete anything: `health_seconds` is None if no health route
    said so before the completion did.
    """

    health_seconds: float | None
    completion_seconds: float
    model_answered: str | None


def get_json(client: httpx.Client, server: Address, path: str) -> Any:
    """The JSON at `path`, or None if the server has no such route. Raises LabError with one sentence."""
    reply = _sent(server, lambda: client.get(path))
    if reply.status_code in (401, 403):
        raise UsageError(f"{server.who}: {server.base_url} wants a key; name its environment variable in api_key_env")
    if reply.status_code != 200:
        return None
    try:
        return reply.json()
    except ValueError:
        if path != "/v1/models":
            return None
        raise UsageError(
            f"{server.who}: {server.base_url} answers /v1/models with {_kind(reply)} instead of JSON, so it is no "
            "model server; correct the port or the path"
        ) from None


def post_json(client: httpx.Client, server: Address, path: str, body: Mapping[str, Any]) -> Any:
    """The JSON answered to a POST, or None if the server has no such route."""
    reply = _sent(server, lambda: client.post(path, json=body))
    try:
        return reply.json() if reply.status_code == 200 else None
    except ValueError:
        return None


def wait_ready(server: Address, model: str, dialect: Dialect, seconds: float, alive: Callable[[], bool]) -> Readiness:
    """Wait until a one-token completion comes back. Raises Refused after `seconds`, or once `alive` says no."""
    began = time.monotonic()
    health: float | None = None
    last: httpx.Response | None = None
    with server.client() as client:
        while (left := began + seconds - time.monotonic()) > 0:
            if not alive():
                raise Refused(f"{server.who}: the server ended while it was loading")
            if health is None and _is_healthy(client):
                health = time.monotonic() - began
            last = _completion(client, server, model, dialect, left)
            if last.status_code == 200:
                answered = _model_of(last, server)
                return Readiness(
                    health_seconds=health, completion_seconds=time.monotonic() - began, model_answered=answered
                )
            if last.status_code != 503:
                break
            time.sleep(POLL_SECONDS)
    raise Refused(f"{server.who}: {server.base_url} did not complete one token; {_last_words(last, server)}")


def speaks(server: Address, model: str, seconds: float) -> tuple[Dialect, ...]:
    """The dialects in which a one-token request gets a well-formed answer."""
    with server.client(seconds) as client:
        return tuple(dialect for dialect in DIALECTS if _speaks(client, server, model, dialect))


def one_token(model: str, dialect: Dialect) -> dict[str, Any]:
    """The body of the smallest request of a dialect. 16 is the least that some servers take on Responses."""
    user = [{"role": "user", "content": "Hi"}]
    if dialect == "openai-responses":
        return {"model": model, "input": "Hi", "max_output_tokens": 16, "store": False}
    return {"model": model, "messages": user, "max_tokens": 1}


def told(**fields: Any) -> EngineFacts:
    """Facts as a server told them; what has not the type of its field is as good as not told: None."""
    return EngineFacts(**{name: _fitting(value, _FACT_TYPES[name]) for name, value in fields.items()})


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def entries(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a list; none if it is no list."""
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


_FACT_TYPES: Final = get_type_hints(EngineFacts)


def _fitting(value: Any, wanted: Any) -> Any:
    if isinstance(value, float) and value.is_integer():  # 8192.0
        value = int(value)
    try:
        fit = msgspec.convert(value, wanted)
    except msgspec.ValidationError:
        return None
    return None if type(fit) is int and fit <= 0 else fit  # no count of a server is 0; some say -1 for unknown


def llama_facts(server: Address) -> EngineFacts | None:
    """What llama.cpp's server tells at /props, /slots and /v1/models; None if there is no /props."""
    with server.client() as client:
        props = get_json(client, server, "/props")
        if not isinstance(props, Mapping) or "default_generation_settings" not in props:
            return None
        slots = get_json(client, server, "/slots")
        listed = served_models(client, server)
        settings = mapping(props["default_generation_settings"])
        params = mapping(settings.get("params"))
        meta = mapping(listed[0].get("meta")) if listed else {}
        return told(
            engine="llama.cpp",
            version=_build(props.get("build_info")),
            model_id=props.get("model_alias") or (listed[0].get("id") if listed else None),
            quantization=props.get("model_ftype") or meta.get("ftype"),
            context=_slot_context(slots) or settings.get("n_ctx"),
            context_trained=meta.get("n_ctx_train"),
            sampler={key: params[key] for key in SAMPLER_KEYS if key in params} or None,
            slots=props.get("total_slots"),
            speculative=_speculative(slots, params),
            template_tools=_template_tools(client, server),
        )


def served_models(client: httpx.Client, server: Address) -> list[Mapping[str, Any]]:
    """Entries of /v1/models. Raises LabError when the answer is no such list."""
    listed = get_json(client, server, "/v1/models")
    return entries(mapping(listed).get("data"))


def counters(server: Address) -> EngineCounters | None:
    """Totals of llama.cpp's /metrics as they stand; None if it has none."""
    found = _metrics(server)
    if found is None or not all(name in found for name in COUNTERS.values()):
        return None
    return EngineCounters(**{field: int(found[name]) for field, name in COUNTERS.items()})


def wait_idle(server: Address, seconds: float) -> bool:
    """Wait until nothing is processed or queued; False if that did not happen in time or cannot be seen."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = _metrics(server)
        if found is None:
            return False
        if not any(found.get(name) for name in BUSY):
            return True
        time.sleep(POLL_SECONDS)
    return False


def difference(before: EngineCounters | None, after: EngineCounters | None) -> EngineCounters | None:
    """`after - before`, field by field; None if either is unknown or the totals went back (another process)."""
    if before is None or after is None:
        return None
    pairs = {name: (getattr(before, name), getattr(after, name)) for name in COUNTERS}
    if any(old is None or new is None or new < old for old, new in pairs.values()):
        return None
    return EngineCounters(**{name: new - old for name, (old, new) in pairs.items()})


def _sent(server: Address, send: Callable[[], httpx.Response]) -> httpx.Response:
    """The reply to `send`, with httpx's errors as one sentence each."""
    try:
        return send()
    except httpx.ConnectError as error:
        if _is_unknown_host(error):
            raise UsageError(
                f"{server.who}: no host has the name in {server.base_url}; correct the name, or write its address"
            ) from error
        raise Refused(
            f"{server.who}: nothing listens at {server.base_url}; start the server or correct the address"
        ) from error
    except httpx.TimeoutException as error:
        raise Refused(
            f"{server.who}: {server.base_url} accepts connections but does not answer; restart it, or correct the "
            "address (http or https)"
        ) from error
    except httpx.NetworkError as error:  # reset in the middle, as by a server that dies
        raise Refused(
            f"{server.who}: {server.base_url} broke off the connection; see whether the server runs"
        ) from error
    except httpx.HTTPError as error:
        raise Refused(f"{server.who}: {server.base_url} does not speak HTTP ({type(error).__name__})") from error


def _completion(client: httpx.Client, server: Address, model: str, dialect: Dialect, seconds: float) -> httpx.Response:
    body = one_token(model, dialect)
    return _sent(server, lambda: client.post(DIALECTS[dialect].path, json=body, timeout=seconds))


def _speaks(client: httpx.Client, server: Address, model: str, dialect: Dialect) -> bool:
    reader = DIALECTS[dialect]
    reply = _sent(server, lambda: client.post(reader.path, json=one_token(model, dialect)))
    try:
        body = reply.json()
    except ValueError:
        return False
    return reply.status_code == 200 and isinstance(body, Mapping) and isinstance(body.get(reader.mark), list)


def _is_healthy(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.HTTPError:
        return False


def _model_of(reply: httpx.Response, server: Address) -> str | None:
    try:
        body = reply.json()
    except ValueError:
        raise UsageError(
            f"{server.who}: {server.base_url} answers a completion with {_kind(reply)} instead of JSON; "
            "correct the port"
        ) from None
    found = body.get("model") if isinstance(body, Mapping) else None
    return str(found) if found else None


def _is_unknown_host(error: BaseException | None) -> bool:
    """Whether it was the look-up of the name that failed; httpx says so only in what it was raised from."""
    return isinstance(error, socket.gaierror) or (
        error is not None and _is_unknown_host(error.__cause__ or error.__context__)
    )


def _last_words(reply: httpx.Response | None, server: Address) -> str:
    """What a server answered instead of a completion, in one line, and what that suggests."""
    if reply is None:
        return "no answer came"
    if _is_page(reply):
        return f"it answers {reply.status_code} with a web page, as no model server does; correct the host or the port"
    path = urlsplit(server.base_url).path
    hint = f"; if {path} is not where it stands, leave that out of the address" if path else ""
    return f"its last answer: {reply.status_code} {shorten(' '.join(reply.text.split()), 200)}{hint}"


def _is_page(reply: httpx.Response) -> bool:
    return "html" in reply.headers.get("content-type", "")


def _kind(reply: httpx.Response) -> str:
    return "a web page" if _is_page(reply) else "something"


def _build(told: Any) -> Any:
    """A build that was made without its number says `b0-unknown`, which is no version."""
    return None if isinstance(told, str) and told.endswith("-unknown") else told


def _slot_context(slots: Any) -> int | None:
    """Context of one slot: what `-c` says is divided between them."""
    if isinstance(slots, list) and slots and isinstance(slots[0], Mapping):
        return slots[0].get("n_ctx")
    return None


def _speculative(slots: Any, params: Mapping[str, Any]) -> bool | None:
    if isinstance(slots, list) and slots and isinstance(slots[0], Mapping) and "speculative" in slots[0]:
        return bool(slots[0]["speculative"])
    kind = params.get("speculative.types")
    return None if kind is None else kind != "none"


def _template_tools(client: httpx.Client, server: Address) -> bool | None:
    """Whether the chat template renders a tool's name: without it tools are dropped in silence (field case B46)."""
    tool = {"type": "function", "function": {"name": PROBE_TOOL, "parameters": {"type": "object", "properties": {}}}}
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": [tool]}
    reply = _sent(server, lambda: client.post("/apply-template", json=body))
    if reply.status_code != 200:
        return None
    return PROBE_TOOL in reply.text


def _metrics(server: Address) -> dict[str, float] | None:
    """Prometheus samples without labels; None if the server has none or is gone."""
    try:
        with server.client() as client:
            reply = _sent(server, lambda: client.get("/metrics"))
    except LabError:
        return None
    if reply.status_code != 200:
        return None
    found: dict[str, float] = {}
    for line in reply.text.splitlines():
        name, _, value = line.partition(" ")
        if name and not name.startswith("#"):
            with contextlib.suppress(ValueError):
                found[name] = float(value)
    return {name: value for name, value in found.items() if math.isfinite(value)}
