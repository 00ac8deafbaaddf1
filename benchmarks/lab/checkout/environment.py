"""The interpreter that runs a target's suite: a virtual environment of exact pins, built once, shared read-only.

The target itself is never installed in it; `prove` shows that importing it can only find the workspace. It is made with
the Python that runs this program. It does not choose pins (targets/*.yaml do) and builds nothing for clients.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Final

import filelock

from benchmarks.lab.checkout.commands import CommandFailed, run, uv_program
from benchmarks.lab.errors import LabError, UsageError
from benchmarks.lab.model import Environment, Target
from benchmarks.lab.text import Say, digest_of, listing

_ORIGINS: Final = """
import importlib.util, json, sys
def origin(name):
    found = importlib.util.find_spec(name)
    return found and [found.origin or "", *(found.submodule_search_locations or [])]
names = sys.argv[1].split(",")
before = {name: origin(name) for name in names}
sys.path[:0] = sys.argv[2:]
importlib.invalidate_caches()
print(json.dumps([before, {name: origin(name) for name in names}]))
"""


def environment(target: Target, cache: Path, say: Say) -> Environment:
    """Return the target's environment, built on first use.

    Raises LabError naming the field `requires` when a pin cannot be had, or is missing among them.
    """
    interpreter = Path(sys.executable).resolve()
    what = [platform.python_implementation(), platform.python_version(), platform.machine(), sys.platform]
    digest = _key(*what, *sorted(target.requires))
    folder = cache / "environments" / _key(digest, str(interpreter))[:24]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{folder}.lock"):
        if not (folder / "complete").is_file():
            say(f"building the environment of {target.name}")
            _build(target, interpreter, folder)
    return Environment(python=folder / "bin" / "python", readonly=(folder, Path(sys.base_prefix)), digest=digest)


def prove(target: Target, environment: Environment, tree: Path) -> None:
    """Raise UsageError unless the target's imports resolve below `tree` and nowhere in the environment alone.

    Proven once per environment and source; the proof is kept beside the environment.
    """
    proof = environment.python.parents[1].with_suffix(f".{_key(target.name, str(tree))[:16]}.proven")
    if proof.is_file():
        return
    roots = [str((tree / root).resolve()) for root in target.source_roots]
    answer = run([environment.python, "-I", "-B", "-c", _ORIGINS, ",".join(target.imports), *roots], cwd=tree)
    before, after = json.loads(answer)
    if installed := [name for name, origin in before.items() if origin]:
        raise UsageError(
            f"targets/{target.name}.yaml: imports: {listing(installed)} can be imported from the environment itself; "
            "a package that the suite's own tools ship is unfit as a target"
        )
    inside = str(tree.resolve()) + os.sep
    for name, origin in after.items():
        if not origin or not all(place.startswith(inside) for place in origin if place):
            raise UsageError(f'targets/{target.name}.yaml: imports: "{name}" is not found below source_roots')
    proof.touch()


def _build(target: Target, interpreter: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    uv = uv_program()
    python = folder / "bin" / "python"
    try:
        run([uv, "venv", "--quiet", "--no-project", "--no-config", "--python", interpreter, folder])
        # Links into uv's cache would let a write to one environment reach all others.
        options: list[str | Path] = [
            "--quiet",
            "--python",
            python,
            "--no-deps",
            "--link-mode",
            "copy",
            "--compile-bytecode",
        ]
        pins = "\n".join(target.requires).encode()
        run([uv, "pip", "install", *options, "--requirements", "-"], cwd=folder, stdin=pins)
        run([uv, "pip", "check", "--python", python], cwd=folder)
    except CommandFailed as failure:
        raise LabError(f"targets/{target.name}.yaml: requires: {failure.detail}") from failure
    (folder / "complete").touch()
    _forbid_writing(folder)


def _forbid_writing(folder: Path) -> None:
    for where, _, files in os.walk(folder):
        for path in (Path(where, name) for name in files):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & ~0o222)


def _key(*parts: str) -> str:
    return digest_of("\0".join(parts))
