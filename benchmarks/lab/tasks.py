"""Read targets, tasks and measured values from a folder of YAML files and check all that needs no download.

Layout: `targets/<name>.yaml`, `<suite>/<task id>.yaml`, `<suite>/measured.json`. A mistake is a UsageError of one
sentence with file and field. Whether symbols exist and tests flip is found later (checkout, judge).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

import msgspec

from benchmarks.lab import yamlfile
from benchmarks.lab.errors import UsageError
from benchmarks.lab.model import Record, Source, Target, Task
from benchmarks.lab.text import digest_of_json, listing, suggest

SUITE: Final = "core-1"
_FIELDS_OF_KIND: Final[Mapping[str, tuple[str, ...]]] = {
    "pypi": ("name", "version", "sha256"),
    "git": ("url", "commit"),
    "path": ("path", "commit"),
}
_PATTERNS: Final[Mapping[str, tuple[str, str]]] = {
    "sha256": (r"[0-9a-f]{64}", "64 hex digits"),
    "commit": (r"[0-9a-f]{40}([0-9a-f]{24})?", "a full commit id of 40 hex digits"),
}
_R = TypeVar("_R", bound=Record)


class Measured(Record, frozen=True, kw_only=True):
    """What admitting a task showed on one machine; written by scripts/admit.py, never by hand."""

    gold_seconds: float
    excised_seconds: float
    flake_rate: float
    runs: int
    removed_lines: int
    tests: int
    python: str


class Suite(Record, frozen=True, kw_only=True):
    """A versioned set of tasks with the targets they use; `digest` changes when either does."""

    name: str
    digest: str
    targets: Mapping[str, Target]
    tasks: Mapping[str, Task]
    measured: Mapping[str, Measured]  # task id -> values; a task not yet measured is absent


def load_suite(root: Path, name: str = SUITE) -> Suite:
    """Read the suite `name` below `root` (the folder benchmarks/agent/tasks)."""
    folder = root / name
    if not folder.is_dir():
        found = [path.name for path in root.iterdir() if path.is_dir() and path.name not in ("targets", "prompts")]
        raise UsageError(f'{root}: no task suite "{name}"{suggest(name, found)}; there is {listing(sorted(found))}')
    targets = {path.stem: read_target(path) for path in sorted((root / "targets").glob("*.yaml"))}
    tasks = {path.stem: read_task(path, targets) for path in sorted(folder.glob("*.yaml"))}
    used = {task.target: targets[task.target] for task in tasks.values()}
    return Suite(
        name=name,
        digest=digest_of_json([sorted(used.items()), sorted(tasks.items())]),
        targets=used,
        tasks=tasks,
        measured=_read_measured(folder / "measured.json"),
    )


def read_target(file: Path) -> Target:
    """Read and check one target."""
    target = _read(file, Target)
    _same_name(file, "name", target.name)
    _check_source(file, target.source)
    for index, pin in enumerate(target.requires):
        if not re.fullmatch(r"[A-Za-z0-9._-]+==[^\s;*]+( ?;.*)?", pin):
            raise UsageError(f'{file}: requires[{index}]: "{pin}" is not an exact pin; write name==version')
    if target.suite[:2] != ("-m", "pytest"):
        raise UsageError(f'{file}: suite: it must begin with "-m", "pytest"; its results are read by a pytest plugin')
    for field, values in (("imports", target.imports), ("requires", target.requires)):
        if not values:
            raise UsageError(f"{file}: {field}: at least one is needed")
    for index, place in enumerate(target.source_roots):
        _check_inside(file, f"source_roots[{index}]", place)
    return target


def read_task(file: Path, targets: Mapping[str, Target]) -> Task:
    """Read and check one task against the targets there are."""
    task = _read(file, Task)
    _same_name(file, "id", task.id)
    if task.target not in targets:
        raise UsageError(f"{file}: target: there is no targets/{task.target}.yaml{suggest(task.target, targets)}")
    for field, values in (("excise", task.excise), ("fail_to_pass", task.fail_to_pass)):
        if not values:
            raise UsageError(f"{file}: {field}: at least one is needed")
    for index, excision in enumerate(task.excise):
        _check_inside(file, f"excise[{index}].path", excision.path)
    for index, path in enumerate(task.allow):
        _check_inside(file, f"allow[{index}]", path)
    return task


def _same_name(file: Path, field: str, value: str) -> None:
    if value != file.stem:
        raise UsageError(f'{file}: {field}: it is "{value}" but the file is {file.name}; they must agree')


def _check_source(file: Path, source: Source) -> None:
    needed = _FIELDS_OF_KIND[source.kind]
    given = {name: value for name in Source.__struct_fields__ if (value := getattr(source, name)) is not None}
    for field in needed:
        if field not in given:
            raise UsageError(f"{file}: source.{field}: a source of kind {source.kind} needs it")
    if extra := [field for field in given if field not in (*needed, "kind")]:
        raise UsageError(f"{file}: source.{extra[0]}: a source of kind {source.kind} has no such field")
    for field, (pattern, meaning) in _PATTERNS.items():
        if field in given and not re.fullmatch(pattern, given[field]):
            raise UsageError(f'{file}: source.{field}: "{given[field]}" is not {meaning}')


def _check_inside(file: Path, field: str, place: str) -> None:
    path = PurePosixPath(place)
    if path.is_absolute() or ".." in path.parts or ".git" in path.parts:
        raise UsageError(f'{file}: {field}: "{place}" must be a path inside the target')


# ---- YAML into records ----


def _read(file: Path, kind: type[_R]) -> _R:
    data = yamlfile.plain(yamlfile.read(file))
    if not data or not isinstance(data, dict):
        raise UsageError(f"{file}: it must hold fields of a {kind.__name__.lower()}, one per line")
    for place, message in _unknown_keys(data, kind):
        raise UsageError(f"{file}: {place}: {message}")
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as failure:
        problem, _, place = str(failure).partition(" - at `$")
        field = place.rstrip("`").lstrip(".")
        raise UsageError(f"{file}: {field + ': ' if field else ''}{problem}") from failure


def _unknown_keys(data: Any, kind: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """(field, message) of every key that the record `kind` or the records inside it do not know."""
    if isinstance(kind, type) and issubclass(kind, Record) and isinstance(data, dict):
        info = {field.name: field for field in msgspec.structs.fields(kind)}
        for key, value in data.items():
            if key not in info:
                yield f"{place}{key}", f"there is no such field{suggest(str(key), info)}"
            else:
                yield from _unknown_keys(value, info[key].type, f"{place}{key}.")
    elif isinstance(data, list) and (inner := getattr(kind, "__args__", ())):
        for index, value in enumerate(data):
            yield from _unknown_keys(value, inner[0], f"{place.rstrip('.')}[{index}].")


def _read_measured(file: Path) -> dict[str, Measured]:
    if not file.is_file():
        return {}
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Measured])
    except (OSError, ValueError, RecursionError, msgspec.DecodeError) as failure:
        raise UsageError(f"{file}: {failure}; write it anew with scripts/admit.py") from failure
