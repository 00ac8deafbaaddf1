"""The documents say what is there: commands and paths exist, links resolve, tables agree with the code.

Every Markdown file that travels with the repository is read, generated ones included.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args
from urllib.parse import unquote

import pytest
from packaging.requirements import Requirement

from benchmarks.lab import stats
from benchmarks.lab.model import FailCause, Flag, VoidReason
from benchmarks.lab.tasks import load_suite

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("benchmarks", "scripts", "docs", "tests", "hardware", ".ci", ".github")
# Made by running a program, named in docs all the same.
MADE = {"lab.local.yaml", "uv.lock"}
EXAMPLE = "acme"  # the made-up name of guides: "copy a file to clients/acme.py"


def documents() -> list[Path]:
    listed = subprocess.run(
        ("git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"),
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    found = [ROOT / name for name in listed.split("\0") if name]
    # Prompts of the tasks are shown to agents, not to readers.
    return sorted(path for path in found if path.exists() and "tasks/prompts" not in path.as_posix())


DOCUMENTS = documents()
IDS = [str(path.relative_to(ROOT)) for path in DOCUMENTS]


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def prose(path: Path) -> str:
    """A document without its code blocks and inline code."""
    without = re.sub(r"^(```|~~~).*?^\1", "", text(path), flags=re.MULTILINE | re.DOTALL)
    without = re.sub(r"(?:^(?: {4}|\t).*\n?)+", "", without, flags=re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", without)


def code_lines(path: Path) -> Iterator[str]:
    """Lines of fenced and indented code, and inline code."""
    for block in re.findall(r"^(?:```|~~~)[^\n]*\n(.*?)^(?:```|~~~)", text(path), flags=re.MULTILINE | re.DOTALL):
        yield from block.splitlines()
    yield from (line.strip() for line in text(path).splitlines() if line.startswith("    "))
    yield from re.findall(r"`([^`\n]+)`", text(path))


def commands(path: Path) -> Iterator[list[str]]:
    """Commands a reader is told to type: `uv run ...`, `bash .ci/run`, prompt signs and comments taken off."""
    for line in code_lines(path):
        found = re.match(r"^\$?\s*((?:[A-Z_]+=\S+\s+)*(?:uv run|bash|git|uv) .+)$", line)
        spoken = line.replace('"..."', "")  # a value that the reader chooses
        if found is None or any(sign in spoken for sign in ("<", "…", "...")):
            continue
        try:
            yield shlex.split(found[1], comments=True)
        except ValueError:
            continue


def slug(heading: str) -> str:
    """The anchor GitHub makes of a heading."""
    plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    return {slug(found) for found in re.findall(r"^#+ (.+)$", text(path), flags=re.MULTILINE)}


# ---- links and paths ----


@pytest.mark.parametrize("path", DOCUMENTS, ids=IDS)
def test_links_resolve(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)", prose(path)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = unquote(target).partition("#")
        aimed = (path.parent / name).resolve() if name else path
        assert aimed.exists(), f"{path.relative_to(ROOT)} links to {target}"
        if anchor and aimed.suffix == ".md":
            assert anchor in anchors(aimed), f"{path.relative_to(ROOT)} links to {target}, no such heading"


def named_paths(path: Path) -> Iterator[str]:
    """Inline code that is a path of this repository: begins with one of its folders, is no example."""
    for code in re.findall(r"`([^`\n]+)`", text(path)):
        name = code.removeprefix("./").split(":")[0].rstrip("/")
        if re.fullmatch(r"[\w./-]+", name) and name.split("/")[0] in PARTS and EXAMPLE not in name:
            yield name


@pytest.mark.parametrize("path", DOCUMENTS, ids=IDS)
def test_paths_that_are_named_exist(path: Path) -> None:
    lost = [name for name in named_paths(path) if name not in MADE and not (ROOT / name).exists()]
    assert not lost, f"{path.relative_to(ROOT)} names {lost}"


# ---- commands ----


def programs_in(words: list[str]) -> list[str]:
    return [word for word in words if word.endswith(".py") or word == ".ci/run"]


@cache
def help_of(program: str, command: str | None = None) -> str:
    """What `program --help` prints, or `program command --help` where it has commands."""
    words = (program, "--help") if command is None else (program, command, "--help")
    done = subprocess.run((sys.executable, *words), cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.stdout


@pytest.mark.parametrize("path", DOCUMENTS, ids=IDS)
def test_commands_name_programs_that_exist(path: Path) -> None:
    for words in commands(path):
        lost = [name for name in programs_in(words) if "*" not in name and not (ROOT / name).exists()]
        assert not lost, f"{path.relative_to(ROOT)}: {shlex.join(words)}"


WITH_COMMANDS = ("scripts/ledger.py",)


def flags_used() -> list[tuple[str, str, str | None, str]]:
    """(document, program, its command if it has any, flag) of every flag that a reader is told to type."""
    found = set()
    for path in DOCUMENTS:
        for words in commands(path):
            programs = [name for name in programs_in(words) if name.endswith(".py") and (ROOT / name).exists()]
            if len(programs) == 1:
                after = words[words.index(programs[0]) + 1 :]
                flags = {word.split("=")[0] for word in after if re.fullmatch(r"--[a-z][\w-]*(=.*)?", word)}
                command = after[0] if programs[0] in WITH_COMMANDS else None
                found |= {(str(path.relative_to(ROOT)), programs[0], command, flag) for flag in flags}
    return sorted(found, key=str)


@pytest.mark.parametrize(("document", "program", "command", "flag"), flags_used())
def test_flags_in_commands_are_in_the_help(document: str, program: str, command: str | None, flag: str) -> None:
    # A description may quote flags: only the lines that explain one count.
    told = re.findall(r"^ +(?:-\w(?: \S+)?, )?(--[\w-]+)", help_of(program, command), re.MULTILINE)
    assert flag in told, f"{document}: {program} {command or ''} has no {flag}"


def test_the_readme_has_the_two_commands_and_ci_runs_its_test_command() -> None:
    readme = [shlex.join(words) for words in commands(ROOT / "README.md")]
    assert any(command.startswith("uv run benchmarks/agent/run.py") for command in readme)
    assert "uv run pytest" in readme
    assert re.search(r"^step tests uv run pytest$", text(ROOT / ".ci" / "run"), flags=re.MULTILINE)
    assert "bash .ci/run" in text(ROOT / ".github" / "workflows" / "ci.yml")


# ---- tables ----


def test_each_dependency_has_its_reason_and_each_reason_its_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = [project["project"]["dependencies"], *project["dependency-groups"].values()]
    needed = {Requirement(line).name for group in (*groups, project["build-system"]["requires"]) for line in group}
    rows = re.findall(r"^\| ([\w-]+) \| (.+) \|$", text(ROOT / "docs" / "dependencies.md"), flags=re.MULTILINE)
    assert {name for name, _ in rows} - {"package", "---"} == needed


def test_verdicts_names_every_void_reason_in_order_every_cause_and_every_flag() -> None:
    before, after = text(ROOT / "docs" / "verdicts.md").split("2. **failed** by a budget")
    reasons = re.findall(r"\w+", before.split("in this order:")[1])
    assert tuple(reasons) == get_args(VoidReason)
    for word in (*get_args(FailCause), *get_args(Flag)):
        assert re.search(rf"\b{word}\b", after.split("\n## ")[0]), word


def test_runbook_has_a_row_for_every_void_reason() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", text(ROOT / "docs" / "runbook.md"), flags=re.MULTILINE)
    assert tuple(rows) == get_args(VoidReason)


def test_methodology_knows_how_many_tasks_the_largest_target_has() -> None:
    told = re.search(r"largest target of the\s+shipped suite has (\d+) tasks", text(ROOT / "docs" / "methodology.md"))
    assert told is not None
    tasks = load_suite(ROOT / "benchmarks" / "agent" / "tasks").tasks.values()
    (largest,) = Counter(task.target for task in tasks).most_common(1)
    assert int(told[1]) == largest[1] < stats.FEWEST_TASKS


# ---- what may not stand in any file ----

HOSTS = re.compile(r"(?:files\.pythonhosted|pypi|registry\.npmjs|deb\.debian|npmjs)\.(?:org|com)", re.IGNORECASE)


def test_no_tracked_file_names_a_package_host() -> None:
    listed = subprocess.run(
        ("git", "-c", "safe.directory=*", "ls-files", "-z"), cwd=ROOT, capture_output=True, check=True
    ).stdout.decode()
    wrong = []
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.is_symlink() or not path.is_file():
            continue
        if HOSTS.search(path.read_bytes().decode("utf-8", "replace")):
            wrong.append(name)
    assert not wrong, f"these files name a package host: {wrong}"


# ---- that the checks see something ----


def test_the_checks_see_commands_paths_and_anchors() -> None:
    assert [c for c in commands(ROOT / "docs" / "dependencies.md") if c[:2] == ["uv", "run"]]
    assert "benchmarks/lab/stats.py" in set(named_paths(ROOT / "docs" / "methodology.md"))
    assert slug("Between `a` and b: what?") == "between-a-and-b-what"
    assert ("docs/dependencies.md", "scripts/pin.py", None, "--upgrade") in flags_used()
    assert ("docs/runbook.md", "scripts/ledger.py", "retract", "--reason") in flags_used()
