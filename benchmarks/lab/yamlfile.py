"""YAML files that people write, read strictly: each value with its line, a name that stands twice is a mistake.

A mistake is one sentence that names file and line; values are never repeated, they might be secrets. It does not know
what a file should hold (labfile, tasks), and resolves no merge keys (`<<`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.lab.errors import UsageError
from benchmarks.lab.model import Record

DEEPEST: Final = 20
LARGEST: Final = 1 << 53  # whole numbers up to here are the same everywhere that JSON is read


class At(Record, frozen=True, kw_only=True):
    """A YAML value and where it stands: a scalar, a list of At, or a dict of name -> At."""

    value: Any
    where: str  # file:line


def read(path: Path) -> At:
    """What stands in a file, an empty mapping if nothing does. UsageError names the first line that is wrong."""
    try:
        node = yaml.compose(path.read_text(encoding="utf-8-sig"), Loader=yaml.SafeLoader)
    except RecursionError:
        raise UsageError(f"{path}: this is nested too deeply; {_DEPTH}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text; save it as UTF-8") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(f"{path}:{line}: this is no YAML: {error.problem}") from None
    except yaml.YAMLError:
        raise UsageError(f"{path} is no YAML text; it holds characters that YAML does not allow") from None
    return At(value={}, where=f"{path}:1") if node is None else _located(node, path, 0)


_DEPTH: Final = f"no file here has use for more than {DEEPEST} levels"


def plain(at: At) -> Any:
    """The value without its places."""
    if isinstance(at.value, dict):
        return {name: plain(entry) for name, entry in at.value.items()}
    if isinstance(at.value, list):
        return [plain(entry) for entry in at.value]
    return at.value


def _located(node: yaml.Node, path: Path, depth: int) -> At:
    where = f"{path}:{node.start_mark.line + 1}"
    if depth > DEEPEST:
        raise UsageError(f"{where}: this is nested too deeply; {_DEPTH}")
    if isinstance(node, yaml.MappingNode):
        return At(value=_entries(node, path, depth), where=where)
    if isinstance(node, yaml.SequenceNode):
        return At(value=[_located(item, path, depth + 1) for item in node.value], where=where)
    try:
        value = yaml.SafeLoader("").construct_object(node)
    except (yaml.YAMLError, ValueError):
        raise UsageError(f"{where}: this value is not understood; put it in quotes if it is text") from None
    if isinstance(value, int | float) and not (abs(value) <= LARGEST):  # so is what is no number (.nan)
        raise UsageError(f"{where}: a number here must be finite and below 2^53")
    return At(value=value, where=where)


def _entries(node: yaml.MappingNode, path: Path, depth: int) -> dict[str, At]:
    found: dict[str, At] = {}
    lines: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise UsageError(f"{path}:{line}: the name of a setting must be plain text")
        if key.value in found:
            raise UsageError(f"{path}:{line}: `{key.value}` stands here twice, first on line {lines[key.value]}")
        lines[key.value] = line
        # A setting is where its name is, also when its value begins on a later line.
        found[key.value] = At(value=_located(value, path, depth + 1).value, where=f"{path}:{line}")
    return found
