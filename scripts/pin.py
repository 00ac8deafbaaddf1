"""Write exact pins of every package, transitive ones too, into pyproject.toml's `[tool.uv]` constraints.

The pins come from a universal resolution (every platform, every Python this project accepts) that uv makes in a
temporary folder. Names and versions are all that is kept: a lock file would also keep the addresses of the index it was
made from, and people here use mirrors (so `uv.lock` is git-ignored).

Without `--upgrade` existing pins hold, and only what is new or gone changes; running it twice changes nothing.
It does not install anything and does not touch the rest of pyproject.toml.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from benchmarks.lab import flags, proc, program
from benchmarks.lab.errors import LabError, UsageError

RUNTIME_KEY = "constraint-dependencies"
BUILD_KEY = "build-constraint-dependencies"
UV_SECONDS = 600.0
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;]+)\s*(?:;\s*(?P<marker>.+))?$")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse flags, resolve, write. Exit 0: pins are in place; 1: `--check` found others; 2: could not resolve."""
    return program.answer("pin.py", lambda: _main(_parser().parse_args(argv)))


def _main(args: argparse.Namespace) -> int:
    project = Path(args.project) if args.project else Path(__file__).resolve().parents[1] / "pyproject.toml"
    try:
        before = project.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{project} cannot be read ({error}); name a pyproject.toml with --project") from None
    try:
        after = pinned(before, upgrade=args.upgrade)
    except LabError as error:
        raise UsageError(str(error)) from error
    if args.check:
        sys.stdout.write("pins are up to date\n" if before == after else "pins differ: run `uv run scripts/pin.py`\n")
        return int(before != after)
    if before != after:
        project.write_text(after, encoding="utf-8")
    sys.stdout.write(f"{'wrote' if before != after else 'unchanged:'} {project}\n")
    return 0


def pinned(text: str, *, upgrade: bool = False) -> str:
    """The text of pyproject.toml with both constraint arrays replaced by a fresh resolution."""
    start = _with_array(_with_array(text, RUNTIME_KEY, ()), BUILD_KEY, ()) if upgrade else text
    tables = tomllib.loads(start)
    uv = tables.get("tool", {}).get("uv", {})
    runtime = resolve_runtime(start)
    build = resolve_build(tables.get("build-system", {}).get("requires", ()), uv.get(BUILD_KEY, ()))
    return _with_array(_with_array(text, RUNTIME_KEY, runtime), BUILD_KEY, build)


def resolve_runtime(text: str) -> tuple[str, ...]:
    """Pins of all that the project and its groups need, from `uv lock` in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pyproject.toml").write_text(text, encoding="utf-8")
        (Path(folder) / "README.md").touch()
        _uv(("lock", "--quiet"), cwd=folder)
        flags = ("--all-groups", "--all-extras", "--frozen", "--no-emit-project", "--no-hashes", "--no-annotate")
        return tidy(_uv(("export", "--quiet", "--no-header", *flags), cwd=folder))


def resolve_build(requires: Sequence[str], held: Sequence[str]) -> tuple[str, ...]:
    """Pins of the build backend and what it needs; `held` pins stay."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "build.in").write_text("\n".join(requires), encoding="utf-8")
        (Path(folder) / "held.txt").write_text("\n".join(held), encoding="utf-8")
        flags = ("--universal", "--no-header", "--no-annotate", "--python-version", "3.11", "--constraint", "held.txt")
        return tidy(_uv(("pip", "compile", "--quiet", *flags, "build.in"), cwd=folder))


def tidy(output: str) -> tuple[str, ...]:
    """`name==version` lines, sorted; a marker is kept only where one package is pinned at several versions."""
    found = [match for line in output.splitlines() if (match := _PIN.match(line.strip()))]
    versions: dict[str, set[str]] = {}
    for match in found:
        versions.setdefault(match["name"], set()).add(match["version"])
    pins = {
        f"{m['name']}=={m['version']}" + (f" ; {m['marker']}" if len(versions[m["name"]]) > 1 and m["marker"] else "")
        for m in found
    }
    return tuple(sorted(pins))


def _with_array(text: str, key: str, pins: Sequence[str]) -> str:
    lines = "".join(f'    "{pin}",\n' for pin in pins)
    array = f"{key} = [\n{lines}]\n" if pins else ""
    old = re.compile(rf"^{re.escape(key)} = \[[^\]]*\]\n", re.MULTILINE)
    if old.search(text):
        return old.sub(lambda _: array, text, count=1)
    section = re.search(r"^\[tool\.uv\]\n(?:(?!\[).*\n)*?(?=\n*(?:^\[|\Z))", text, re.MULTILINE)
    if section is None:
        raise LabError("pyproject.toml has no [tool.uv] section to write the pins into")
    return text[: section.end()] + array + text[section.end() :]


def _uv(argv: Sequence[str], cwd: str) -> str:
    uv = proc.uv()
    if uv is None:
        raise LabError("uv is not on PATH; install it with `pip install uv`")
    # `uv run` announces its environment; in the temporary folder that would only cause a warning.
    env = {name: value for name, value in proc.downloading().items() if name != "VIRTUAL_ENV"}
    done = proc.run_quiet((uv, *argv), UV_SECONDS, cwd=Path(cwd), env=env, limit=None)
    if done.code != 0:
        why = f"longer than {UV_SECONDS:.0f} s" if done.timed_out else done.stderr.decode(errors="replace").strip()
        raise LabError(f"`uv {argv[0]}` failed: {why}")
    return done.stdout.decode()


def _parser() -> argparse.ArgumentParser:
    parser = flags.Parser(description="Pin every package, transitive ones too, in pyproject.toml.")
    parser.add_argument("--upgrade", action="store_true", help="let go of the present pins and take the newest")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the pins would change")
    parser.add_argument("--project", type=flags.text, metavar="PATH", help="another pyproject.toml")
    return parser


if __name__ == "__main__":
    program.leave("pin.py", main)
