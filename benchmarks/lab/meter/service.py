"""The meter as a service: one thread with one event loop, any number of trials one after another or side by side.

It starts and ends things; bytes are carried by `relay` and recorded by `trial`.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from benchmarks.lab.dialects import Rewrite
from benchmarks.lab.meter.connection import Connection
from benchmarks.lab.meter.observe import Expectation
from benchmarks.lab.meter.relay import serve
from benchmarks.lab.meter.trial import MeterTrial
from benchmarks.lab.meter.upstream import Address, Pool, Upstream

SWITCH_SECONDS = 0.0005  # a first token must not wait Python's usual 5 ms behind another thread that computes

T = TypeVar("T")


class Meter:
    """A recording pass-through to one engine: `with Meter(upstream) as meter: trial = meter.open_trial(...)`."""

    def __init__(self, upstream: Upstream, rewrites: Sequence[Rewrite] = ()) -> None:
        self._pool = Pool(Address.of(upstream))
        self._rewrites = tuple(rewrites)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="meter", daemon=True)
        self._trials: list[MeterTrial] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Meter:
        self._switch_interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        sys.setswitchinterval(self._switch_interval)

    def open_trial(
        self, trial_id: str, listener: socket.socket, expect: Expectation | None = None, evidence: Path | None = None
    ) -> MeterTrial:
        """Answer on `listener` (its own copy of the descriptor) for one trial.

        The listener may belong to another network namespace. Trials that were closed before let go of theirs now.
        """
        return self._run(self._open(trial_id, listener.dup(), expect or Expectation(), evidence))

    async def _open(
        self, trial_id: str, listener: socket.socket, expect: Expectation, evidence: Path | None
    ) -> MeterTrial:
        for old in [trial for trial in self._trials if trial.closed]:
            old.release()
            self._trials.remove(old)
        trial = MeterTrial(trial_id, expect, evidence, self._loop)
        listener.setblocking(False)
        connections: set[Connection] = set()

        def made(connection: Connection) -> None:
            connections.add(connection)
            task = self._loop.create_task(self._serve(connection, trial))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: connections.discard(connection))

        server = await self._loop.create_server(lambda: Connection(made), sock=listener, backlog=256)

        def release() -> None:
            server.close()
            for connection in tuple(connections):
                connection.abort()

        trial.release = release
        self._trials.append(trial)
        return trial

    async def _serve(self, connection: Connection, trial: MeterTrial) -> None:
        try:
            await serve(connection, trial, self._pool, self._rewrites)
        except Exception as error:
            trial.fault(error)
            connection.abort()

    async def _stop(self) -> None:
        for trial in self._trials:
            trial.closed = True
            trial.release()
        self._pool.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
