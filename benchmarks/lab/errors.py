"""The errors that reach a person: one tree, and what a program leaves with.

LabError             exit 3 one clear sentence, shown without a traceback
├── UsageError       exit 2 a flag, file or field the person wrote is wrong; the message names it and the fix
├── Refused          exit 3 the program will not measure as things stand (lock held, no sandbox, code moved)
├── DiskFull         exit 3 no room for a write (fsio, which leaves what was there as it was)
├── CommandFailed    exit 3 git, uv or another tool ended with an error (checkout)
└── OutputLost       exit 3 standard output cannot be written (program)
    └── Unread     exit 141 nobody reads it any more: no sentence

Foreign errors (httpx, OSError, msgspec, subprocess) are translated at the border of the room that meets them. Three
more exceptions are signals inside the library and never reach a person: Unreadable (checkout), HttpError and
EngineGoneError (meter). AssertionError, ValueError and TypeError mean a mistake of ours.
"""

from __future__ import annotations

from typing import Final

EXIT_DONE: Final = 0
EXIT_FOUND: Final = 1  # a check found something
EXIT_USAGE: Final = 2
EXIT_REFUSED: Final = 3
EXIT_INTERRUPTED: Final = 130


class LabError(Exception):
    """A sentence for a person: what is wrong, where, and what to do. `exit_code` is what the program leaves with."""

    exit_code = EXIT_REFUSED


class UsageError(LabError):
    """A mistake in a flag, a file or a field; the message names it and says the fix."""

    exit_code = EXIT_USAGE


class Refused(LabError):
    """The program could run but would not measure what it says; the message says why and the cure."""

    exit_code = EXIT_REFUSED
