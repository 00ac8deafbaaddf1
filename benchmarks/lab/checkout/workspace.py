"""A workspace as an agent meets it: pinned tree, excised, no caches, one commit without history, and the prompt.

The excised tree of a task is made once and kept; `prepare` copies it. The original bodies stay in the cache and in the
record handed to the harness. It does not look for leaks (leaks) and does not run the suite (judge).
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Final

import filelock
import msgspec

from benchmarks.lab.checkout.commands import git
from benchmarks.lab.checkout.environment import prove
from benchmarks.lab.checkout.sources import export, source_state
from benchmarks.lab.errors import UsageError
from benchmarks.lab.excise import Excised, excise
from benchmarks.lab.model import Checkout, Environment, Target, Task
from benchmarks.lab.paths import cache_dir, checkout_root
from benchmarks.lab.text import count, digest_of

PROMPT_VERSION: Final = "v1"
_LAYOUT: Final = "2"  # raise it when an excised tree of the same task would come out differently
_TOOL_CACHES: Final = {".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox", ".eggs", ".cache"}
CACHES: Final = _TOOL_CACHES | {"__pycache__", ".venv", "venv", "node_modules"}
_COMMIT_ENV: Final = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "local-lab"), ("EMAIL", "local-lab@localhost"), ("DATE", "2000-01-01T00:00:00+0000"))
}


class ExcisedTree(msgspec.Struct, frozen=True):
    """The kept excised tree of a task: `tree` (with its .git), the pinned tree beside it, and what was taken."""

    tree: Path
    pinned: Path
    pinned_digest: str
    removed: dict[str, Excised]


def _contents(root: Path, paths: Sequence[str]) -> dict[str, bytes]:
    return {path: (root / path).read_bytes() for path in paths if (root / path).is_file()}


def prepare(target: Target, task: Task, environment: Environment, destination: Path) -> Checkout:
    """Lay the task's workspace at `destination` (which must not exist) and describe it.

    Raises UsageError naming task file and field for a symbol or path that is not there, or a target that the
    environment could import by itself.
    """
    before = source_state(target.source)
    made = excised_tree(target, task)
    prove(target, environment, made.pinned)
    copy_tree(made.tree, destination, with_git=True)
    allowed = tuple(dict.fromkeys([*(e.path for e in task.excise), *task.allow]))
    prompt = _prompt(target, task, made, str(environment.python))
    return Checkout(
        task=task,
        target=target,
        environment=environment,
        workspace=destination,
        prompt=prompt,
        # The interpreter's place differs between machines, the question does not.
        prompt_digest=digest_of(_prompt(target, task, made, "python")),
        removed_lines=sum(one.removed_lines for one in made.removed.values()),
        allowed=allowed,
        given=_contents(made.tree, allowed),
        solution=_contents(made.pinned, allowed),
        target_digest=made.pinned_digest,
        source_intact=None if before is None else before == source_state(target.source),
    )


def copy_excised(checkout: Checkout, destination: Path) -> None:
    """Lay a fresh excised tree, without git, at `destination`."""
    copy_tree(excised_tree(checkout.target, checkout.task).tree, destination, with_git=False)


def excised_tree(target: Target, task: Task) -> ExcisedTree:
    """Return the task's excised tree from the cache, made on first use."""
    return _excised_tree(target, task, cache_dir())


@functools.lru_cache(maxsize=256)
def _excised_tree(target: Target, task: Task, cache: Path) -> ExcisedTree:
    pinned, digest = export(target, cache, _nothing)
    removed = _excise(target, task, pinned)
    key = digest_of(repr((_LAYOUT, digest, [(path, one.text) for path, one in removed.items()])))
    place = cache / "excised" / key
    place.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{place}.lock"):
        if not (place / "complete").is_file():
            shutil.rmtree(place, ignore_errors=True)
            _lay(pinned, removed, place / "tree")
            (place / "complete").touch()
    return ExcisedTree(place / "tree", pinned, digest, removed)


def _excise(target: Target, task: Task, pinned: Path) -> dict[str, Excised]:
    symbols: dict[str, list[str]] = defaultdict(list)
    for excision in task.excise:
        symbols[excision.path].append(excision.symbol)
    removed = {}
    for path, names in symbols.items():
        try:
            source = (pinned / path).read_bytes()
            removed[path] = excise(source, target.language, names, path)
        except OSError as failure:
            raise UsageError(f'{task.id}.yaml: excise.path: "{path}" is not a file of {target.name}') from failure
        except UsageError as failure:
            raise UsageError(f"{task.id}.yaml: excise: {failure}") from failure
    return removed


def _lay(pinned: Path, removed: dict[str, Excised], tree: Path) -> None:
    """Write the excised tree and commit it."""
    copy_tree(pinned, tree, with_git=False)
    for path, one in removed.items():
        (tree / path).write_bytes(one.text)
    commit_all(tree)
    git("repack", "-a", "-d", "--quiet", cwd=tree, isolated=True)  # few files, so that copies are quick


def commit_all(tree: Path) -> None:
    """Make `tree` a git repository of one commit by a fixed author at a fixed date, without remote or reflog."""
    git("init", "--quiet", "--template=", "--initial-branch=main", cwd=tree, isolated=True)
    # Ignored files belong to the pinned tree like all others; the config keeps bytes as they are and no reflog.
    for setting in ("core.autocrlf=false", "core.logAllRefUpdates=false", "gc.auto=0"):
        git("config", *setting.split("="), cwd=tree, isolated=True)
    git("add", "--all", "--force", cwd=tree, isolated=True)
    git("commit", "--quiet", "--no-gpg-sign", "-m", "Import", cwd=tree, isolated=True, env=_COMMIT_ENV)


def copy_tree(source: Path, destination: Path, *, with_git: bool) -> None:
    """Copy a tree without bytecode and tool caches, links as links, every file writable for its owner."""

    def skipped(folder: str, names: list[str]) -> list[str]:
        return [
            name for name in names if is_cache(name) or (name == ".git" and not (with_git and folder == str(source)))
        ]

    shutil.copytree(source, destination, symlinks=True, ignore=skipped, copy_function=_copy_file)


def is_cache(name: str) -> bool:
    """Whether a file or folder of this name is bytecode or a tool's cache, never part of a target or a diff."""
    return name in CACHES or name.endswith((".pyc", ".pyo"))


def _copy_file(source: str, destination: str) -> str:
    shutil.copyfile(source, destination, follow_symlinks=False)
    if not os.path.islink(destination):  # noqa: PTH114 - copytree hands out strings, and this runs per file
        os.chmod(destination, 0o755 if os.stat(source).st_mode & 0o100 else 0o644)  # noqa: PTH101, PTH116
    return destination


# ---- the prompt ----


def suite_command(target: Target, python: str) -> str:
    """The shell line that runs the whole suite from the workspace's root."""
    words = [python, *target.suite]
    if target.source_roots != (".",):
        words = ["env", f"PYTHONPATH={os.pathsep.join(target.source_roots)}", *words]
    return shlex.join(words)


def _prompt(target: Target, task: Task, made: ExcisedTree, python: str) -> str:
    template = checkout_root() / "benchmarks" / "agent" / "tasks" / "prompts" / f"{PROMPT_VERSION}.md"
    bodies = [f"- `{e.symbol}` in `{e.path}`" for e in task.excise]
    lines = sum(one.removed_lines for one in made.removed.values())
    return Template(template.read_text(encoding="utf-8")).substitute(
        project=target.name,
        bodies="\n".join(bodies),
        removed=count(lines, "line"),
        allowed="\n".join(f"- `{path}`" for path in dict.fromkeys([*(e.path for e in task.excise), *task.allow])),
        command=suite_command(target, python),
    )


def _nothing(_: str) -> None: ...
