"""Boxes by macOS's `sandbox-exec`: the profile text, and whether the program is there.

Covered, as the profile says: everything is denied but reading the system and `spec.readonly`, writing workspace, home
and a temporary folder, TCP to the meter's port on localhost, and signals within the sandbox. Not covered: the system's
own services (every Mach look-up is allowed, and a service may do for the client what it may not), names and sizes of
any file (metadata is readable), names of other processes, observation of refused connections, memory. The profile is
written and tested as text here; it has not been run on a Mac by these tests.
Language: Apple's sandbox profile language (SBPL), as in the system's own profiles below /System/Library/Sandbox.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.lab.sandbox import bare
from benchmarks.lab.sandbox.running import Box
from benchmarks.lab.sandbox.spec import SandboxSpec

PROGRAM = Path("/usr/bin/sandbox-exec")
SYSTEM = (
    "/System",
    "/usr",
    "/bin",
    "/sbin",
    "/Library/Apple",
    "/Library/Developer/CommandLineTools",
    "/Library/Frameworks",
    "/private/etc",
    "/private/var/db/dyld",
    "/private/var/db/timezone",
    "/dev",
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/dtracehelper")
_TERMINALS = '(regex #"^/dev/ttys[0-9]+$")'


@contextlib.contextmanager
def open_box(spec: SandboxSpec) -> Iterator[Box]:
    """A box with real paths whose client runs under the profile."""
    with bare.open_box(spec, _wrap) as box:
        yield box


def profile(spec: SandboxSpec, temporary: Path, port: int | None) -> str:
    """The profile as text; `port` None: no network at all."""
    readable = [*map(Path, SYSTEM), *spec.readonly]
    writable = [spec.workspace, spec.home, temporary]
    rules = [
        "(version 1)",
        "(deny default)",
        "(allow process-fork)",
        "(allow process-exec)",
        "(allow process-info* (target same-sandbox))",
        "(allow signal (target same-sandbox))",
        "(allow sysctl-read)",
        "(allow mach-lookup)",
        "(allow ipc-posix-shm)",
        "(allow ipc-posix-sem)",
        "(allow pseudo-tty)",
        "(allow file-ioctl)",
        "(allow file-read-metadata)",
        '(allow file-read* (literal "/"))',
        f"(allow file-read* {_subpaths(readable)})",
        f"(allow file-read* file-write* {_subpaths(writable)})",
        f"(allow file-read* file-write* {_literals(_DEVICES)} {_TERMINALS})",
    ]
    if port is not None:
        rules.append(f'(allow network-outbound (remote tcp "localhost:{port}"))')
    return "\n".join(rules) + "\n"


def _wrap(spec: SandboxSpec, temporary: Path, port: int | None) -> Sequence[str]:
    return [str(PROGRAM), "-p", profile(spec, temporary, port)]


def _subpaths(paths: Sequence[Path]) -> str:
    return " ".join(f"(subpath {_quoted(path)})" for both in paths for path in dict.fromkeys([both, both.resolve()]))


def _literals(paths: Sequence[str]) -> str:
    return " ".join(f"(literal {_quoted(Path(path))})" for path in paths)


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
