"""The scripted engine: serves the scripts on a free port of 127.0.0.1 from a thread of its own.

It needs no model and no process. What a trial must know (script, original bodies) is handed to `trial` in process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.lab.dialects import DIALECTS
from benchmarks.lab.engines.base import CounterBox, TrialContext, only_options
from benchmarks.lab.engines.scripted.scripts import BROKEN, SCRIPTS
from benchmarks.lab.engines.scripted.server import ScriptedServer
from benchmarks.lab.errors import UsageError
from benchmarks.lab.model import Backend, Dialect, EngineFacts
from benchmarks.lab.text import Say

MODEL: Final = "scripted"
CONTEXT: Final = 131_072  # words; no request is refused for its length unless a script says so
OPTIONS: Final = ("prefill_seconds", "tokens", "token_seconds", "tool_seconds")


class ScriptedEndpoint:
    """A running scripted server."""

    dialects: tuple[Dialect, ...] = tuple(DIALECTS)
    api_key: str | None = None

    def __init__(self, server: ScriptedServer, backend: Backend) -> None:
        self._server = server
        self._backend = backend
        self.base_url = server.base_url
        self.model = backend.model or MODEL
        self.names = (self.model, *backend.aliases)
        self.facts = EngineFacts(
            engine="scripted", version="1", model_id=self.model, context=backend.context or CONTEXT, slots=1,
            speculative=False, template_tools=True,
        )  # fmt: skip

    def facts_now(self) -> EngineFacts:
        """The same facts: nothing of it can change."""
        return self.facts

    @contextmanager
    def trial(self, context: TrialContext) -> Iterator[CounterBox]:
        """Play the context's script (else the backend's, else `nop`); afterwards every open connection is closed."""
        name = context.script or self._backend.script or "nop"
        check_script(self._backend.name, name)
        options: dict[str, Any] = {**self._backend.options, **context.options}
        box = CounterBox()
        self._server.begin(name, SCRIPTS[name], msgspec.structs.replace(context, options=options), aside=name in BROKEN)
        try:
            yield box
        finally:
            box.result = self._server.end()


class ScriptedEngine:
    """`engine: scripted` in the lab file; `script:` names what to play."""

    name = "scripted"
    dialects: tuple[Dialect, ...] = tuple(DIALECTS)

    def probe(self, base_url: str, api_key: str | None = None) -> EngineFacts:
        """Nothing to ask: it runs only inside this program."""
        return EngineFacts(engine="scripted", version="1")

    @contextmanager
    def serve(self, backend: Backend, state: Path, say: Say) -> Iterator[ScriptedEndpoint]:
        """Run the server; when the bracket closes its thread has ended and its port is free."""
        only_options(backend, OPTIONS)
        check_script(backend.name, backend.script or "nop")
        with ScriptedServer(backend.model or MODEL) as server:
            yield ScriptedEndpoint(server, backend)


def check_script(backend: str, name: str) -> None:
    """Raise UsageError unless there is such a script."""
    if name not in SCRIPTS:
        raise UsageError(f"backend '{backend}': script '{name}' is unknown; there are: {', '.join(SCRIPTS)}")
