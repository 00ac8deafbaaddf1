"""How every program ends: one sentence instead of a traceback, a documented code, and output that may be lost.

`answer` turns what stopped the work into a sentence on standard error and an exit code; `leave` runs a whole process:
it minds the three standard descriptors, takes SIGTERM and SIGHUP for Ctrl-C, and exits. It knows no flag and no file.

Output is lost when nobody reads it any more (a closed pipe or terminal: exit 141, no sentence) or when it cannot be
written (a full disk: exit 3). The first write that fails is told to the program, later ones are dropped: by default the
program ends there; one whose rows matter more than its words goes on (`when_output_is_lost`).
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NoReturn, TextIO

from benchmarks.lab.errors import EXIT_INTERRUPTED, LabError, Refused

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

EXIT_UNREAD: Final = 128 + signal.SIGPIPE
CODES: Final = "3 refused, 130 interrupted, 141 nobody reads the output any more"

_NOBODY: Final = (errno.EPIPE, errno.EIO, errno.ENXIO)  # a pipe without its reader; a terminal that was closed


class OutputLost(LabError):
    """Standard output cannot be written. Without words if nobody is there to read."""


class Unread(OutputLost):
    """Whoever read the output has gone away."""

    exit_code = EXIT_UNREAD


Tell = Callable[[OutputLost], None]
Handler = Callable[[int, object], None]


def answer(name: str, work: Callable[[], int]) -> int:
    """Do the work of the program `name`; its exit code. What it printed has been written when this returns."""
    try:
        try:
            code = work()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
        _raise_lost()
        return code
    except KeyboardInterrupt as stopped:
        if isinstance(lost := _lost(), Unread):
            return lost.exit_code
        complain(f"{name}: {lost or f'interrupted {stopped}'.rstrip()}")
        return EXIT_INTERRUPTED if lost is None else lost.exit_code
    except LabError as error:
        if str(error):
            complain(f"{name}: {error}")
        return error.exit_code


def leave(name: str, main: Callable[[], int]) -> NoReturn:
    """Run `main`, which does its work in `answer`, as the process that this is, and exit with its code."""
    closed = _open_standard_descriptors()
    sys.stderr = _guarded(2, sys.stderr, _pass_over)
    sys.stdout = _guarded(1, sys.stdout, _end)
    with handling({signal.SIGTERM: _interrupt, signal.SIGHUP: _interrupt}):
        sys.exit(answer(name, _refuse_closed) if 1 in closed else main())


def complain(sentence: str) -> None:
    """One line on standard error, if there is one."""
    with contextlib.suppress(OSError, AttributeError):
        sys.stderr.write(f"{sentence}\n")
        sys.stderr.flush()


@contextlib.contextmanager
def handling(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Within, these signals are handled so; those that are ignored (`nohup`) stay ignored."""
    heard = {number: one for number, one in handlers.items() if signal.getsignal(number) is not signal.SIG_IGN}
    before = {number: signal.signal(number, handler) for number, handler in heard.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def when_output_is_lost(tell: Tell) -> Iterator[None]:
    """Within, `tell` is called once when standard output is lost, instead of ending the program. It may raise."""
    output = _output()
    if output is None:
        yield
        return
    before, output.when_lost = output.when_lost, tell
    try:
        yield
    finally:
        output.when_lost = before


# ---- the standard descriptors ----


class _Output(io.FileIO):
    """A standard descriptor whose first failure is told, and which swallows everything after it.

    There is no buffer of bytes above it, which would write them again when a signal interrupts a write that was done.
    """

    def __init__(self, descriptor: int, tell: Tell) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.lost: OutputLost | None = None
        self.when_lost = tell

    def write(self, data: ReadableBuffer, /) -> int:
        size = memoryview(data).nbytes
        if self.lost is not None:
            return size
        try:
            self._write_all(memoryview(data))
        except OSError as error:
            self.lost = _loss(error)
            self.when_lost(self.lost)
        return size

    def _write_all(self, left: memoryview) -> None:
        while left:
            written: int | None = super().write(left)
            if written is None:  # somebody made the descriptor non-blocking
                select.select((), (self,), ())
            left = left[written or 0 :]


def _loss(error: OSError) -> OutputLost:
    if error.errno in _NOBODY:
        return Unread()
    return OutputLost(f"standard output cannot be written ({error.strerror}); send it somewhere else")


def _guarded(descriptor: int, stream: TextIO | None, tell: Tell) -> TextIO:
    """A text stream like `stream` on the descriptor; what its encoding has no letters for is written as escapes."""
    encoding = "utf-8" if stream is None else stream.encoding
    # Line by line, so that an error is met where it happens, and lines of both streams keep their order.
    return io.TextIOWrapper(_Output(descriptor, tell), encoding, "backslashreplace", line_buffering=True)


def _open_standard_descriptors() -> tuple[int, ...]:
    """Open what is closed of 0, 1 and 2, so that no ledger gets its number; which they were."""
    closed = []
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            closed.append(descriptor)
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    return tuple(closed)


def _output() -> _Output | None:
    raw = getattr(sys.stdout, "buffer", None)
    return raw if isinstance(raw, _Output) else None


def _lost() -> OutputLost | None:
    output = _output()
    return None if output is None else output.lost


def _raise_lost() -> None:
    if (lost := _lost()) is not None:
        raise lost


def _end(lost: OutputLost) -> None:
    raise lost


def _pass_over(lost: OutputLost) -> None:
    """Standard error is for people; there is nobody to tell that they are not told."""


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _refuse_closed() -> int:
    raise Refused("standard output is closed; open it, or send it to /dev/null")
