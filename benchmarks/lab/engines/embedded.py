"""The `embedded` engine: the llama.cpp server of the wheel `xllamacpp`, in a child process on a free loopback port.

It needs no model server on the machine. The model is a file, or `package:file` of an installed distribution. It
measures nothing itself: counters are the server's own totals, read when it is idle.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from benchmarks.lab import paths, proc
from benchmarks.lab.dialects import DIALECTS
from benchmarks.lab.engines import ask
from benchmarks.lab.engines.base import (
    CounterBox,
    ServerProcess,
    TrialContext,
    is_running,
    only_options,
    process_of,
)
from benchmarks.lab.errors import LabError, Refused, UsageError
from benchmarks.lab.fsio import digest_file, write_atomic
from benchmarks.lab.model import Backend, Dialect, EngineFacts
from benchmarks.lab.text import Say

LOAD_SECONDS: Final = 300.0
IDLE_SECONDS: Final = 120.0  # a cancelled request goes on to the end of its batch of 2,048 prompt tokens
END_SECONDS: Final = 5.0
OPTIONS: Final = ("threads", "batch", "ubatch", "cache_ram_mib", "ready_seconds")
SAMPLING: Final[Mapping[str, str]] = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "seed": "seed",
    "repeat_penalty": "penalty_repeat",
    "presence_penalty": "penalty_present",
    "frequency_penalty": "penalty_freq",
}


class EmbeddedEndpoint:
    """The running child."""

    dialects: tuple[Dialect, ...] = tuple(DIALECTS)
    api_key: str | None = None

    def __init__(self, server: ask.Address, backend: Backend, process: ServerProcess, model_file: Path) -> None:
        self._server = server
        self._model_file = model_file
        self.base_url = server.base_url
        self.process = process
        self.model = backend.model or model_file.stem
        self.names = (self.model, *backend.aliases)
        self.facts = self.facts_now()

    def facts_now(self) -> EngineFacts:
        """Ask the server again. Raises Refused if it is gone."""
        told = ask.llama_facts(self._server) or EngineFacts()
        return msgspec.structs.replace(
            told,
            engine="embedded",
            version=f"xllamacpp {importlib.metadata.version('xllamacpp')}",
            model_digest=model_digest(self._model_file),
            started=self.process.started,
            process=str(self.process),
        )

    @contextmanager
    def trial(self, context: TrialContext) -> Iterator[CounterBox]:
        """Difference of the server's totals; None if it was not idle at either end, or is another process."""
        box = CounterBox()
        before = ask.counters(self._server) if ask.wait_idle(self._server, IDLE_SECONDS) else None
        yield box
        after = ask.counters(self._server) if ask.wait_idle(self._server, IDLE_SECONDS) else None
        box.result = ask.difference(before, after)


class EmbeddedEngine:
    """`engine: embedded` in the lab file."""

    name = "embedded"
    dialects: tuple[Dialect, ...] = tuple(DIALECTS)

    def probe(self, base_url: str, api_key: str | None = None) -> EngineFacts:
        """What a running llama.cpp server tells."""
        server = ask.Address(base_url=base_url, who="embedded server", api_key=api_key)
        return ask.llama_facts(server) or EngineFacts()

    @contextmanager
    def serve(self, backend: Backend, state: Path, say: Say) -> Iterator[EmbeddedEndpoint]:
        """Start the child, wait for a real completion, and on exit see it gone and its port free."""
        only_options(backend, OPTIONS)
        model_file = find_model(backend)
        state.mkdir(parents=True, exist_ok=True)
        log = state / f"engine-{backend.name}.log"
        limit = float(backend.options.get("ready_seconds", LOAD_SECONDS))
        say(f"backend {backend.name}: loading {model_file.name}, log in {log}")
        with _child(log) as child:
            server = _loaded(child, backend, model_file, log, limit)
            asked = backend.model or model_file.stem
            ready = ask.wait_ready(server, asked, "openai-chat", limit, lambda: child.poll() is None)
            say(f"backend {backend.name}: {_ready_sentence(ready)}")
            process = process_of(child.pid)
            if process is None:
                raise Refused(f"backend '{backend.name}': the server ended after it was ready; see {log}")
            yield EmbeddedEndpoint(server, backend, process, model_file)
        _check_gone(process, server.base_url)


def find_model(backend: Backend) -> Path:
    """The model file that `model_path` names. Raises UsageError naming the field."""
    where = f"backend '{backend.name}': field model_path"
    given = backend.model_path
    if not given:
        raise UsageError(f"{where} is missing; give a .gguf file, or package:file of an installed distribution")
    path = Path(given).expanduser()
    if path.is_file():
        return path.resolve()
    package, colon, name = given.partition(":")
    if not colon or "/" in package:
        raise UsageError(f"{where}: there is no file {given}")
    try:
        files = importlib.metadata.distribution(package).files or []
    except importlib.metadata.PackageNotFoundError:
        raise UsageError(f"{where}: the distribution '{package}' is not installed; run `uv sync`") from None
    found = [Path(str(each.locate())) for each in files if each.name == name]
    if not found or not found[0].is_file():
        raise UsageError(f"{where}: the distribution '{package}' holds no file '{name}'")
    return found[0].resolve()


def settings_of(backend: Backend, model_file: Path) -> dict[str, Any]:
    """What the child is told. `context` is that of one slot; 0 means the model's own. Raises UsageError."""
    unknown = [name for name in backend.sampler if name not in SAMPLING]
    if unknown:
        known = ", ".join(SAMPLING)
        raise UsageError(
            f"backend '{backend.name}': sampler '{unknown[0]}' is unknown to engine 'embedded'; known: {known}"
        )
    names = {"batch": "n_batch", "ubatch": "n_ubatch", "cache_ram_mib": "cache_ram_mib"}
    return {
        "model": str(model_file),
        "alias": backend.model or model_file.stem,
        "context": backend.context or 0,
        "slots": backend.slots or 1,
        "threads": backend.options.get("threads"),
        "params": {names[key]: value for key, value in backend.options.items() if key in names},
        "sampling": {SAMPLING[key]: value for key, value in backend.sampler.items()},
    }


def model_digest(path: Path) -> str | None:
    """SHA-256 of a model file, from a cache keyed by path, size, mtime and inode; None if it cannot be read."""
    store = paths.cache_dir() / "model-digests.json"
    try:
        status = path.stat()
        key = f"{path}|{status.st_size}|{status.st_mtime_ns}|{status.st_ino}"
        known = _known_digests(store)
        if key not in known:
            known[key] = digest_file(path)
            write_atomic(store, json.dumps(known, indent=1))
        return known[key]
    except OSError:
        return None


def _known_digests(store: Path) -> dict[str, str]:
    try:
        found = json.loads(store.read_text())
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


@contextmanager
def _child(log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The child process, ended when the bracket closes."""
    with log.open("ab") as output:
        child = proc.start_long_lived(
            [sys.executable, "-m", "benchmarks.lab.engines.embedded_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,  # a Ctrl-C meant for us must not end it in the middle of a trial
            cwd=paths.checkout_root(),
        )
    try:
        yield child
    finally:
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Close its standard input, which it takes as the end; kill it if it does not."""
    if child.stdin:
        with contextlib.suppress(OSError):
            child.stdin.close()
    try:
        child.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdout:
        child.stdout.close()


def _loaded(
    child: subprocess.Popen[bytes], backend: Backend, model_file: Path, log: Path, seconds: float
) -> ask.Address:
    """Send the settings and wait for the child's one line. Raises Refused naming the log."""
    where = f"backend '{backend.name}': engine 'embedded'"
    line = json.dumps(settings_of(backend, model_file)).encode() + b"\n"
    answer: dict[str, Any] = {}
    if child.stdin and child.stdout:
        with contextlib.suppress(OSError):
            child.stdin.write(line)
            child.stdin.flush()
        ready, _, _ = select.select([child.stdout], [], [], seconds)
        if not ready:
            raise Refused(f"{where} did not load {model_file.name} within {seconds:.0f} s; see {log}")
        with contextlib.suppress(ValueError):
            answer = json.loads(child.stdout.readline())
    if "base_url" not in answer:
        raise Refused(f"{where} could not load {model_file.name} ({answer.get('error', 'it ended')}); see {log}")
    return ask.Address(base_url=str(answer["base_url"]), who=where)


def _ready_sentence(ready: ask.Readiness) -> str:
    if ready.health_seconds is None:
        return f"first token after {ready.completion_seconds:.1f} s"
    gap = ready.completion_seconds - ready.health_seconds
    return f"healthy after {ready.health_seconds:.1f} s, first token {gap:.1f} s later"


def _check_gone(process: ServerProcess, base_url: str) -> None:
    """Raises LabError if the process or its port outlived the bracket."""
    parts = urlsplit(base_url)
    until = time.monotonic() + END_SECONDS
    while is_running(process) or _listens(str(parts.hostname), int(parts.port or 0)):
        if time.monotonic() > until:
            raise LabError(f"engine 'embedded': process {process.pid} or its port {parts.port} is still there")
        time.sleep(0.02)


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0
