"""A pump carries what a program prints into a bounded file, so that no full pipe and no full disk ever stops it."""

from __future__ import annotations

import os
import select
import threading
import time
from pathlib import Path

_READS_AFTER_STOP = 16  # what a full pipe may still hold; a writer that goes on for ever does not keep a pump


class Pump:
    """Carries what comes out of `descriptor` (which it owns) into the file `path`, at most `limit` bytes of it.

    It goes on reading past the limit, so the writer never blocks, and past a full disk (`problem` then says so).
    """

    def __init__(self, descriptor: int, path: Path, limit: int) -> None:
        self._descriptor = descriptor
        self._limit = limit
        self._file = path.open("wb", buffering=0)
        self._stop, self._stopper = os.pipe()
        self.total = 0  # bytes that came
        self.kept = 0  # bytes written
        self.last: float | None = None  # monotonic time of the last byte
        self.problem: str | None = None
        self._thread = threading.Thread(target=self._carry, name=f"pump {path.name}", daemon=True)
        self._thread.start()

    def finish(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the end of the stream, then stop. False: somebody still holds it open."""
        self._thread.join(timeout)
        ended = not self._thread.is_alive()
        if not self._file.closed:
            os.close(self._stopper)
            self._thread.join()
            for descriptor in (self._descriptor, self._stop):
                os.close(descriptor)
            self._file.close()
        return ended

    def _carry(self) -> None:
        ready = select.poll()
        ready.register(self._descriptor, select.POLLIN)
        ready.register(self._stop, select.POLLIN)
        rest = _READS_AFTER_STOP
        while rest:
            descriptors = {descriptor for descriptor, _ in ready.poll()}
            rest -= self._stop in descriptors
            if self._descriptor not in descriptors:
                return  # told to stop, and nothing is waiting
            data = os.read(self._descriptor, 1 << 18)
            if not data:
                return
            self.last = time.monotonic()
            self.total += len(data)
            self._keep(data[: self._limit - self.kept])

    def _keep(self, data: bytes) -> None:
        while data and self.problem is None:
            try:
                written = self._file.write(data)
            except OSError as problem:
                self.problem = problem.strerror
                return
            self.kept += written
            data = data[written:]
