"""The stamp: what produced a row. One table of keys, the code's own identity, and the volatile state of the machine.

Covers: `KEYS` and `VOLATILE` (type, unit, meaning, part in a series, what may be published), assembling and digesting
a stamp, `code()` (digest of the code that runs, dirty, head), `volatile()`.
Does not cover: where stamps are written (ledger), which rows may be pooled (series), the machine's identity (machine),
nor what engines and clients tell of themselves, digests of weights among it (engines, clients). Unknown is None, never
a guess.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec
import psutil

from benchmarks.lab import machine as machines
from benchmarks.lab import proc
from benchmarks.lab.errors import LabError
from benchmarks.lab.machine import Machine
from benchmarks.lab.model import Backend, EngineFacts, Record
from benchmarks.lab.paths import checkout_root
from benchmarks.lab.text import digest_of_json

# Raised by one when a change of the code moves numbers; rows of different versions are never pooled.
# 1  first version
# 2  sums with an untold part are null; tokens read again are the engine's counts; side requests move no blame; an
#    engine that changes under a trial voids it
MEASUREMENT_VERSION: Final = 2

T = TypeVar("T")
Scope = Literal["cell", "task", "no"]


class Key(Record, frozen=True, kw_only=True):
    """One key of a stamp.

    `series`: "cell" must agree before rows are pooled at all, "task" must agree before rows of one task are pooled
    (other tasks have other values), "no" is informative. `publishable`: what a published row needs; None: anything.
    `null` goes on after "null" ("when ..."); None: a whole stamp always has a value.
    """

    type: type
    unit: str
    meaning: str
    series: Scope
    publishable: Callable[[Any], bool] | None = None
    null: str | None = None

    @property
    def words(self) -> str:
        """What it means, and when it is null."""
        return self.meaning if self.null is None else f"{self.meaning}; null {self.null}"


def _known(value: Any) -> bool:
    return value is not None


def _key(
    kind: type,
    unit: str,
    meaning: str,
    series: Scope = "cell",
    publishable: Callable[[Any], bool] | None = None,
    *,
    null: str | None = None,
) -> Key:
    return Key(type=kind, unit=unit, meaning=meaning, series=series, publishable=publishable, null=null)


_UNTOLD: Final = "when the server does not tell"

KEYS: Final[Mapping[str, Key]] = {
    # the code
    "code_digest": _key(
        str,
        "digest",
        "files of benchmarks/, scripts/ and pyproject.toml as they ran",
        "no",
        _known,
        null="when one of them cannot be read",
    ),
    "dirty": _key(
        bool,
        "",
        "those files differ from head",
        "no",
        lambda value: value is False,
        null="outside a git checkout of its own, or without a commit",
    ),
    "head": _key(
        str,
        "",
        "commit of the checkout; informative",
        "no",
        _known,
        null="outside a git checkout of its own, or without a commit",
    ),
    "measurement_version": _key(int, "", "raised when a change of the code moves numbers", "cell", _known),
    "program": _key(str, "", "path of the program in the checkout", "no"),
    "flags": _key(list, "", "its flags as given", "no"),
    "lab_digest": _key(str, "digest", "resolved lab file, all entries", "no"),
    # the machine
    "machine": _key(str, "", "machine id", "cell", _known),
    "os": _key(str, "", "operating system with its version"),
    "kernel": _key(str, "", "kernel release"),
    "chip": _key(str, "", "processor as it names itself", null="when it names itself nowhere"),
    "cores": _key(int, "count", "logical processors this process may use"),
    "memory_bytes": _key(int, "B", "memory of the machine, rounded to an installable size"),
    "memory_limit_bytes": _key(int, "B", "limit set on this container", null="when there is none"),
    "gpus": _key(
        list,
        "",
        "graphics processors that tell their name",
        null="when none does (only NVIDIA's driver on Linux tells)",
    ),
    "power_source": _key(str, "", "mains or battery", null="when the system does not tell"),
    "power_mode": _key(
        str,
        "",
        "platform profile, frequency governor, or low, normal, high (macOS)",
        null="when the system does not tell",
    ),
    # the engine
    "backend": _key(str, "", "entry of the lab file", "no"),
    "purpose": _key(str, "", "measure, demo or harness", "cell", lambda value: value == "measure"),
    "engine": _key(str, "", "program that serves the weights", "cell", _known),
    "engine_version": _key(str, "", "its version or commit", "cell", _known, null=_UNTOLD),
    "engine_flags": _key(dict, "", "its settings as the lab file gives them"),
    "engine_host": _key(str, "", "host the engine runs on", null="when it is this machine"),
    "restart": _key(str, "", "restart policy of the server: never, arm, trial"),
    "model": _key(str, "", "model as the engine names it", "cell", _known, null=_UNTOLD),
    "model_digest": _key(str, "digest", "file of the weights", null=_UNTOLD),
    "weights_id": _key(str, "", "ties conversions of the same weights", "no", null="when the lab file gives none"),
    "quantization": _key(str, "", "as the engine tells it", null=_UNTOLD),
    "context": _key(int, "tokens", "context in force, read from the engine", "cell", _known, null=_UNTOLD),
    "sampler": _key(
        dict,
        "",
        "the engine's defaults as it tells them, overlaid by what the meter pins",
        null="when the server does not tell and the meter pins none",
    ),
    "sampler_set_by": _key(str, "", "who set it: engine, backend (start flags), meter (declared rewrite)"),
    "sampler_pinned": _key(dict, "", "the part of it that the meter pins, whatever the client sends"),
    "max_tokens": _key(int, "tokens", "output cap per exchange", null="when the lab file gives none"),
    "reasoning_effort": _key(str, "", "as asked for", null="when the lab file gives none"),
    "rewrite": _key(list, "", "declared edits of the meter"),
    "slots": _key(int, "count", "parallel slots of the engine", null=_UNTOLD),
    "speculative": _key(bool, "", "speculative decoding configured", null=_UNTOLD),
    "script": _key(str, "", "script of the scripted engine", null="of every other engine, and when none was named"),
    # the client
    "client": _key(str, "", "agent program"),
    "client_version": _key(str, "", "version it printed"),
    "dialect": _key(str, "", "wire dialect in use"),
    "client_settings": _key(dict, "", "settings that change its behaviour"),
    # the work
    "suite_digest": _key(str, "digest", "all targets and tasks of the suite", "no"),
    "prompt_digest": _key(str, "digest", "prompt as the client is given it, but for the interpreter's place", "task"),
    "task_digest": _key(
        str, "digest", "definition of this task without note and tags, and the time limit of its suite", "task"
    ),
    "target_digest": _key(str, "digest", "pinned tree of its target", "task"),
    "environment_digest": _key(str, "digest", "interpreter and packages that run its suite", "task"),
    "budgets": _key(dict, "", "what ends a trial", "task"),
    "isolation": _key(str, "", "sandbox level", "cell", lambda value: value in ("bwrap", "seatbelt")),
    "clock": _key(str, "", "clocks behind `at` and durations", "no"),
}

VOLATILE: Final[Mapping[str, Key]] = {
    "load_1m": _key(float, "processes", "load average over the last minute", "no"),
    "uptime_seconds": _key(float, "s", "since the machine started", "no", null="when the system does not tell"),
    "memory_available_bytes": _key(int, "B", "memory that can be had without swapping", "no"),
    "swap_used_bytes": _key(int, "B", "swap in use", "no", null="when the system does not tell"),
    "cpu_pressure": _key(
        float,
        "%",
        "share of the last 10 s in which work waited for a processor",
        "no",
        null="where the kernel keeps no such record (macOS, older Linux)",
    ),
    "memory_pressure": _key(
        float,
        "%",
        "the same, waiting for memory",
        "no",
        null="where the kernel keeps no such record (macOS, older Linux)",
    ),
    "io_pressure": _key(
        float,
        "%",
        "the same, waiting for storage",
        "no",
        null="where the kernel keeps no such record (macOS, older Linux)",
    ),
    "temperature_celsius": _key(float, "°C", "hottest sensor that tells", "no", null="when none tells"),
    "thermal": _key(str, "", "nominal or throttled", "no", null="on Linux, and when the Mac does not tell"),
    "battery_percent": _key(float, "%", "charge", "no", null="without a battery"),
    "engine_uptime_seconds": _key(
        float,
        "s",
        "since the server process started",
        "no",
        null="where its process cannot be seen, and at a trial's end",
    ),
}

CLOCK: Final = "ISO 8601 with offset; durations on the monotonic clock"
TYPE_WORDS: Final = {str: "text", bool: "true or false", int: "integer", float: "number", list: "list", dict: "object"}


# ---- assembling ----


def assemble(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a whole stamp: every key of `KEYS` in its order, null where no part tells; later parts win.

    An unknown key or a value of another type is the caller's bug: LabError names it.
    """
    told: dict[str, Any] = {"clock": CLOCK}
    for part in parts:
        told.update(msgspec.to_builtins(part))
    for name, value in told.items():
        if name not in KEYS:
            raise LabError(f"stamp key {name} is not in the table benchmarks/lab/stamp.py KEYS; add it there first")
        wanted = KEYS[name].type
        if value is not None and type(value) is not wanted and not (wanted is float and type(value) is int):
            raise LabError(f"stamp key {name} is {type(value).__name__}, the table says {wanted.__name__}")
    return {name: told.get(name) for name in KEYS}


def digest(values: Mapping[str, Any]) -> str:
    """Content address of a stamp: SHA-256 of its JSON with sorted keys."""
    return digest_of_json(values)


def unpublishable(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Reasons why rows of this stamp may guide but not be published: `dirty is true`, `head is null`."""
    reasons = []
    for name, key in KEYS.items():
        value = values.get(name)
        if key.publishable is not None and not key.publishable(value):
            reasons.append(f"{name} is {msgspec.json.encode(value).decode()}")
    return tuple(reasons)


def of_code(code: CodeStamp, *, program: str, flags: tuple[str, ...], lab_digest: str | None) -> dict[str, Any]:
    """The code's keys."""
    return {
        "code_digest": code.digest,
        "dirty": code.dirty,
        "head": code.head,
        "measurement_version": code.measurement_version,
        "program": program,
        "flags": list(flags),
        "lab_digest": lab_digest,
    }


def of_machine(machine: Machine) -> dict[str, Any]:
    """The machine's keys, with the power source and mode of this moment."""
    return {
        "machine": machine.id,
        "os": machine.os,
        "kernel": machine.kernel,
        "chip": machine.chip,
        "cores": machine.cores,
        "memory_bytes": machine.memory_bytes,
        "memory_limit_bytes": machine.memory_limit_bytes,
        "gpus": None if machine.gpus is None else list(machine.gpus),
        **machines.power(),
    }


def of_backend(backend: Backend, facts: EngineFacts, *, engine_host: str | None = None) -> dict[str, Any]:
    """The engine's keys: what it tells of itself; the lab file's word only for what is ours to set."""
    return {
        "backend": backend.name,
        "purpose": backend.purpose,
        "engine": facts.engine or backend.engine,
        "engine_version": facts.version,
        "engine_flags": dict(backend.options),
        "engine_host": engine_host,
        "restart": backend.restart,
        "model": facts.model_id,
        "model_digest": facts.model_digest,
        "weights_id": backend.weights_id,
        "quantization": facts.quantization,
        "context": facts.context,
        "sampler": _sampler_in_force(backend, facts),
        "sampler_set_by": _sampler_set_by(backend),
        "sampler_pinned": _pinned(backend),
        "max_tokens": backend.max_tokens,
        "reasoning_effort": backend.reasoning_effort,
        "rewrite": list(backend.rewrite),
        "slots": facts.slots,
        "speculative": facts.speculative,
        "script": backend.script,
    }


def _sampler_in_force(backend: Backend, facts: EngineFacts) -> dict[str, Any] | None:
    """The engine's defaults, overlaid by what the meter pins; None when it does not tell and nothing is pinned."""
    pinned = _pinned(backend)
    if facts.sampler is None and not pinned:
        return None
    return {**(facts.sampler or {}), **pinned}


def _pinned(backend: Backend) -> dict[str, Any]:
    return dict(backend.sampler) if "sampler" in backend.rewrite else {}


def _sampler_set_by(backend: Backend) -> str:
    if "sampler" in backend.rewrite:
        return "meter"
    return "backend" if backend.sampler else "engine"


# ---- the code ----

CODE_PATHS: Final = ("benchmarks", "scripts", "pyproject.toml")
_NOT_CODE: Final = frozenset({"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".DS_Store"})
GIT_SECONDS: Final = 20.0


class CodeStamp(Record, frozen=True, kw_only=True):
    """Which code ran. `note` says in one sentence what could not be known."""

    digest: str | None
    dirty: bool | None
    head: str | None
    measurement_version: int = MEASUREMENT_VERSION
    note: str | None = None


def code(root: Path | None = None) -> CodeStamp:
    """Identify the code below `root` (default: this checkout) as it stands on disk now.

    The digest is taken of the files' contents, so an exported tree has the same one as the checkout it came from.
    `dirty` regards `CODE_PATHS` only. Without git, or outside a work tree of its own, head and dirty are None.
    """
    root = (root or checkout_root()).resolve()
    if (top := _git(root, "rev-parse", "--show-toplevel")) is None or Path(top.strip()).resolve() != root:
        return CodeStamp(
            digest=_tree_digest(root, _walk(root)),
            dirty=None,
            head=None,
            note="this tree is no git checkout of its own: head and dirty are unknown",
        )
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *CODE_PATHS)
    files = sorted(set(filter(None, listed.split("\0")))) if listed is not None else _walk(root)
    tree = _tree_digest(root, files)
    head = _git(root, "rev-parse", "--short=9", "--verify", "--quiet", "HEAD")
    if head is None:
        return CodeStamp(digest=tree, dirty=None, head=None, note="this checkout has no commit yet")
    status = _git(root, "status", "--porcelain", "-z", "--untracked-files=all", "--", *CODE_PATHS)
    return CodeStamp(digest=tree, dirty=None if status is None else bool(status), head=head.strip())


def prefix(code_stamp: CodeStamp, label: str) -> str:
    """`[<head>[-dirty]@<machine label>]`, the start of every line printed while measuring."""
    name = code_stamp.head or (f"code-{code_stamp.digest[:9]}" if code_stamp.digest else "unknown")
    return f"[{name}{'-dirty' if code_stamp.dirty else ''}@{label}]"


def _git(root: Path, *arguments: str) -> str | None:
    """Output of git at `root`, None if it failed. A caller's GIT_* variables (hooks set them) are not passed on."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # Another user's clone is "dubious" to git; we run its code anyway, and only read here.
    argv = ("git", "--no-optional-locks", "-c", f"safe.directory={root}", "-c", "core.fsmonitor=false", *arguments)
    try:
        done = proc.run_quiet(argv, GIT_SECONDS, cwd=root, env={**environment, "LC_ALL": "C"}, limit=None)
    except LabError:
        return None
    return os.fsdecode(done.stdout) if done.code == 0 else None


def _walk(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for name in CODE_PATHS for path in _code_files(root / name))


def _code_files(path: Path) -> Iterator[Path]:
    if path.name in _NOT_CODE or path.suffix == ".pyc":
        return
    if path.is_dir() and not path.is_symlink():
        for entry in path.iterdir():
            yield from _code_files(entry)
    elif path.exists():
        yield path


def _tree_digest(root: Path, files: list[str]) -> str | None:
    """SHA-256 over names, executable bits and contents; None if a file cannot be read. A deleted file is left out."""
    whole = hashlib.sha256()
    for name in files:
        path = root / name
        try:
            content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
            mode = b"l" if path.is_symlink() else b"x" if path.stat().st_mode & 0o100 else b"-"
        except FileNotFoundError:
            continue
        except OSError:
            return None
        whole.update(os.fsencode(name) + b"\0" + mode + hashlib.sha256(content).digest())
    return whole.hexdigest()


# ---- volatile state ----


def volatile(engine_started: str | None = None) -> dict[str, Any]:
    """State of the machine now, every key of `VOLATILE`, null where it does not tell; takes below 0.1 s.

    `engine_started`: when the server process started, ISO 8601; None where that is not known.
    """
    swap = _quietly(psutil.swap_memory)
    battery = machines.battery()
    told = {
        "load_1m": round(os.getloadavg()[0], 2),
        "uptime_seconds": machines.uptime_seconds(),
        "memory_available_bytes": psutil.virtual_memory().available,
        "swap_used_bytes": None if swap is None else swap.used,
        "cpu_pressure": machines.pressure("cpu"),
        "memory_pressure": machines.pressure("memory"),
        "io_pressure": machines.pressure("io"),
        "temperature_celsius": machines.temperature_celsius(),
        "thermal": machines.thermal(),
        "battery_percent": None if battery is None else float(battery.percent),
        "engine_uptime_seconds": None if engine_started is None else _seconds_since(engine_started),
    }
    return {name: told.get(name) for name in VOLATILE}


def _seconds_since(moment: str) -> float:
    return round((datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds(), 1)


def _quietly(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except (OSError, RuntimeError):
        return None
