"""YAML files that people write, read strictly: every way in which one can be wrong is one sentence with file and line.

It does not know what the files say (labfile, tasks, machine, report).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from benchmarks.lab.errors import UsageError

T = TypeVar("T")

LARGEST: Final = 1 << 53  # whole numbers up to here are the same everywhere that JSON is read


class Unfit(yaml.MarkedYAMLError):
    """A value that is YAML, and that no file here may hold."""


class Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, and numbers that are not finite or too large to be kept exactly."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping; of two equal keys the first would be lost in silence."""
        keys = [key.value for key, _ in node.value]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                raise Unfit(problem=f'the key "{key}" stands twice', problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """A whole number that fits."""
        return _checked(node, lambda: super(Loader, self).construct_yaml_int(node))

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        """A finite number."""
        return _checked(node, lambda: super(Loader, self).construct_yaml_float(node))


N = TypeVar("N", int, float)


def _checked(node: yaml.ScalarNode, construct: Callable[[], N]) -> N:
    value = construct()
    if abs(value) > LARGEST or not math.isfinite(value):
        raise Unfit(problem="a number here must be finite and below 2^53", problem_mark=node.start_mark)
    return value


Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
Loader.add_constructor("tag:yaml.org,2002:float", Loader.construct_yaml_float)


def read(path: Path, build: Callable[[str], T]) -> T:
    """What `build` makes of the file's text; UsageError for a file that cannot be read or is no YAML."""
    try:
        return build(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text; save it as UTF-8") from None
    except RecursionError:
        raise UsageError(f"{path} is nested too deeply; take levels out of it") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        what = "" if isinstance(error, Unfit) else "this is no YAML: "
        raise UsageError(f"{path}:{line}: {what}{error.problem}") from None
    except yaml.YAMLError:
        raise UsageError(f"{path} is no YAML text; it holds characters that YAML does not allow") from None
    except ValueError as error:
        raise UsageError(f"{path} holds a value that is not understood ({error}); quote it if it is text") from None


def load(path: Path) -> Any:
    """The values of a YAML file."""
    return read(path, lambda text: yaml.load(text, Loader))
