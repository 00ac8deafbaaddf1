"""The engines of a batch: each backend served once behind a meter, restarted as its entry says or when it died.

It starts and ends engines through their own `serve`; it does not know what a trial is.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from benchmarks.lab import engines
from benchmarks.lab.engines.base import Endpoint
from benchmarks.lab.errors import LabError
from benchmarks.lab.meter import Meter, Upstream, rewrites_of
from benchmarks.lab.model import Backend
from benchmarks.lab.text import Say


class Served:
    """One backend under way. `endpoint` and `meter` change with every restart: ask for them, do not keep them."""

    def __init__(self, backend: Backend, state: Path, say: Say) -> None:
        self.backend = backend
        self._state = state
        self._say = say
        self._stack = ExitStack()
        self._served = self._serve()

    @property
    def endpoint(self) -> Endpoint:
        """The engine as it is reached now."""
        return self._served[0]

    @property
    def meter(self) -> Meter:
        """The meter in front of it."""
        return self._served[1]

    def ready(self, *, new_arm: bool) -> None:
        """Before a trial: restart the engine if its policy says so, or if it does not answer any more.

        `new_arm`: the trial before belonged to another cell. Raises LabError if it cannot be served again.
        """
        policy = self.backend.restart
        if policy == "trial" or (policy == "arm" and new_arm):
            self.restart()
            return
        try:
            self.endpoint.facts_now()
        except LabError as error:
            self._say(f"backend {self.backend.name} does not answer any more ({error}); it is served anew")
            self.restart()

    def restart(self) -> None:
        """End it and serve it again."""
        self.close()
        self._served = self._serve()

    def close(self) -> None:
        """End the engine, if it is ours, and the meter."""
        stack, self._stack = self._stack, ExitStack()
        stack.close()

    def _serve(self) -> tuple[Endpoint, Meter]:
        engine = engines.find(self.backend.engine)
        try:
            endpoint = self._stack.enter_context(engine.serve(self.backend, self._state, self._say))
            upstream = Upstream(base_url=endpoint.base_url, api_key=endpoint.api_key)
            meter = self._stack.enter_context(Meter(upstream, rewrites_of(self.backend)))
        except BaseException:
            self.close()
            raise
        return endpoint, meter
