"""What a box is asked for, what a client sees of it, and the environment it starts from. No processes here."""

from __future__ import annotations

from pathlib import Path

from benchmarks.lab.model import Isolation, Record
from benchmarks.lab.proc import MARKER

SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")


class Limits(Record, frozen=True, kw_only=True):
    """What a client and everything it starts may use together; sizes in bytes.

    `file_bytes` is a resource limit of each process. The others are sampled (several times a second, disk about once a
    second), so a fast writer overshoots them before it is seen.
    """

    memory_bytes: int = 8 << 30
    processes: int = 512
    file_bytes: int = 2 << 30
    disk_bytes: int = 2 << 30  # workspace and home together; under bwrap /tmp and /dev/shm are bounded apart


class SandboxSpec(Record, frozen=True, kw_only=True):
    """One box. All paths are absolute paths of this host; `readonly` ones are seen at the same place inside."""

    isolation: Isolation
    workspace: Path
    home: Path
    readonly: tuple[Path, ...] = ()
    network: bool = True  # whether there is a listener for the meter; nothing else is reachable either way
    limits: Limits = Limits()
    trial_id: str
    path: tuple[Path, ...] = ()  # folders in front of the system's on PATH, each at or below a readonly entry


def base_env(spec: SandboxSpec, workspace: str, home: str, temporary: str) -> dict[str, str]:
    """The environment built from nothing: no key, proxy or setting of the operator comes through."""
    loopback = "127.0.0.1,localhost,::1"
    return {
        "PATH": ":".join([*map(str, spec.path), *SYSTEM_PATH]),
        "HOME": home,
        "PWD": workspace,
        "LANG": "C.UTF-8",
        "TMPDIR": temporary,
        "USER": "agent",
        "LOGNAME": "agent",
        "SHELL": "/bin/sh",
        "NO_PROXY": loopback,
        "no_proxy": loopback,
        MARKER: spec.trial_id,
    }
