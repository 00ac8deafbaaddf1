"""The house keeps its shape: which room of `benchmarks/lab` may import which, thin programs, a silent library.

The table below is the layer table of docs/design.md, compared with it. A new room gets one line in both first.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAB = ROOT / "benchmarks" / "lab"
PROGRAM_FOLDERS = ("agent", "codegen", "serving", "resyn")

BASE = {"errors", "model", "text"}
PLACES = {"paths", "fsio", "proc", "sandbox"}
FACTS = {"machine", "stamp", "rows", "ledger", "series", "lock", "labfile", "stats"}
TASKS = {"excise", "checkout", "judge", "grade", "tasks"}
WIRE = {"dialects", "meter", "shares"}
ADAPTERS = {"engines", "clients", "install"}
CONDUCT = {
    "verdict",
    "findings",
    "servers",
    "pairs",
    "session",
    "tally",
    "trial",
    "batch",
    "smoke",
    "schedule",
    "mine",
    "quality",
    "preflight",
}

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "model": set(),
    "text": set(),
    "paths": {"errors"},
    "stats": {"model"},
    **dict.fromkeys(("proc", "fsio", "sandbox"), BASE | PLACES),
    "yamlfile": BASE,
    "program": {"errors"},
    "flags": {"errors", "text"},
    **dict.fromkeys(("labfile", "tasks"), BASE | {"yamlfile"}),
    "shares": {"model"},
    "rows": {"errors", "model", "text"},
    **dict.fromkeys(("stamp", "ledger", "series", "lock"), BASE | PLACES | FACTS),
    "machine": BASE | PLACES | FACTS | {"yamlfile"},
    **dict.fromkeys(("excise", "checkout", "judge", "grade"), BASE | PLACES | FACTS | TASKS),
    **dict.fromkeys(("dialects", "meter"), BASE | PLACES | FACTS | WIRE),
    "install": {"errors", "model", "text", "paths", "proc", "fsio"},
    "engines": BASE | PLACES | FACTS | TASKS | WIRE | {"engines"},
    "clients": BASE | PLACES | FACTS | TASKS | WIRE | {"clients"},
    **dict.fromkeys(CONDUCT, BASE | PLACES | FACTS | TASKS | WIRE | ADAPTERS | CONDUCT),
    **dict.fromkeys(("report", "web"), BASE | {"fsio", "stats", "ledger", "series", "rows", "yamlfile"}),
}
PACKAGES_OF_ADAPTERS = ("engines", "clients")
LONGEST_PROGRAM = 400  # lines: a program is flags, a plan, calls and rendering


def modules(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*.py") if "__pycache__" not in p.parts)


def programs() -> list[Path]:
    return [p for name in PROGRAM_FOLDERS for p in modules(ROOT / "benchmarks" / name) if p.name != "__init__.py"]


def dotted(path: Path) -> tuple[str, ...]:
    """Module name of a file below the checkout: ("benchmarks", "lab", "engines", "base")."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imports(path: Path) -> Iterator[tuple[str, ...]]:
    """Every module a file imports, also inside functions and under TYPE_CHECKING; relative ones resolved."""
    package = dotted(path) if path.name == "__init__.py" else dotted(path)[:-1]
    return imported(path.read_text(encoding="utf-8"), package)


def imported(text: str, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = package[: len(package) - node.level + 1] if node.level else ()
            module = (*parent, *(node.module.split(".") if node.module else ()))
            yield module
            yield from ((*module, alias.name) for alias in node.names)


def lab_imports(path: Path) -> Iterator[tuple[str, ...]]:
    """Imported rooms of the library, as parts after `benchmarks.lab`: ("engines", "base")."""
    for name in imports(path):
        if name[:2] == ("benchmarks", "lab") and len(name) > 2:
            yield name[2:]


def room(path: Path) -> str:
    return path.relative_to(LAB).with_suffix("").parts[0]


LAB_MODULES = [p for p in modules(LAB) if p != LAB / "__init__.py"]
ids = [str(p.relative_to(LAB)) for p in LAB_MODULES]


def documented() -> dict[str, set[str]]:
    """Room -> rooms it may import, as docs/design.md says: names, and words for the groups it defines."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").split("\n## Layers\n")[1].split("\n## ")[0]
    groups = {
        word.lower(): set(re.findall(r"`(\w+)`", names)) for word, names in re.findall(r"\*(\w+)\*: ([^.]+)", text)
    }

    def rooms(cell: str) -> set[str]:
        said = cell.split(";", maxsplit=1)[0]
        words = set(re.findall(r"\w+", re.sub(r"`\w+`", "", said)))
        assert words <= set(groups) or said.strip() == "nothing of ours", f"docs/design.md: {cell!r}"
        return set(re.findall(r"`(\w+)`", said)).union(*(groups[word] for word in words & set(groups)))

    rows = re.findall(r"^\| (.+) \| (.+) \|$", text, flags=re.MULTILINE)[1:]
    return {name: rooms(allowed) for who, allowed in rows for name in rooms(who)}


def test_the_table_is_the_one_of_the_design_page() -> None:
    assert {name: may - {name} for name, may in documented().items()} == {
        name: may - {name} for name, may in MAY_IMPORT.items()
    }


def test_each_room_stands_in_the_table() -> None:
    unknown = {room(p) for p in LAB_MODULES} - set(MAY_IMPORT)
    assert not unknown, f"rooms without a line in MAY_IMPORT: {sorted(unknown)}"


@pytest.mark.parametrize("path", LAB_MODULES, ids=ids)
def test_a_room_imports_only_what_it_may(path: Path) -> None:
    allowed = MAY_IMPORT.get(room(path), set()) | {room(path)}
    wrong = {name[0] for name in lab_imports(path)} - allowed
    assert not wrong, f"{path.relative_to(ROOT)} may not import {sorted(wrong)}"


def test_every_exception_of_ours_stands_in_the_error_tree() -> None:
    told = ast.get_docstring(ast.parse((LAB / "errors.py").read_text(encoding="utf-8"))) or ""
    known = {"Exception", "LabError", "UsageError", "Refused"}
    made = {
        node.name
        for path in LAB_MODULES
        if path.name != "stub_agent.py"  # a program of its own inside the sandbox
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and (base.id in known or base.id.endswith("Error")) for base in node.bases)
    }
    assert made >= {"UsageError", "DiskFull", "HttpError"}
    assert {name for name in made if not re.search(rf"\b{name}\b", told)} == set()


def adapters(kind: str) -> set[str]:
    """The alternatives of a package: what its table in `__init__` names, but for the contract itself."""
    return {name[1] for name in lab_imports(LAB / kind / "__init__.py") if name[0] == kind and len(name) > 1} - {"base"}


BESIDE_THE_TABLES = [p for p in LAB_MODULES if room(p) in PACKAGES_OF_ADAPTERS and p != LAB / room(p) / "__init__.py"]


@pytest.mark.parametrize("path", BESIDE_THE_TABLES, ids=[str(p.relative_to(LAB)) for p in BESIDE_THE_TABLES])
def test_an_adapter_imports_no_other_adapter(path: Path) -> None:
    kind = room(path)
    own = path.relative_to(LAB / kind).with_suffix("").parts[0]
    siblings = {name[1] for name in lab_imports(path) if name[0] == kind and len(name) > 1} & (adapters(kind) - {own})
    assert not siblings, f"{path.relative_to(ROOT)} imports its siblings {sorted(siblings)}"


def test_the_adapters_are_found() -> None:
    assert {"embedded", "openai", "scripted"} <= adapters("engines")
    assert {"opencode", "claude", "codex", "aider"} <= adapters("clients")


@pytest.mark.parametrize("path", LAB_MODULES, ids=ids)
def test_the_library_imports_no_program_and_prints_nothing(path: Path) -> None:
    wrong = {n for n in imports(path) if n[:1] == ("benchmarks",) and len(n) > 1 and n[1] in PROGRAM_FOLDERS}
    assert not wrong, f"{path.relative_to(ROOT)} imports a program: {wrong}"
    printed = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not printed, f"{path.relative_to(ROOT)} prints on lines {printed}"


def program_ids() -> list[str]:
    return [str(p.relative_to(ROOT / "benchmarks")) for p in programs()]


def has_main(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body)


@pytest.mark.parametrize("path", programs(), ids=program_ids())
def test_nothing_imports_a_program(path: Path) -> None:
    """A file beside a program that is none itself (its display) may be imported, but only from the same folder."""
    beside = {dotted(p): p for p in programs() if p != path}
    used = {beside[n] for n in imports(path) if n in beside}
    used |= {p for p in beside.values() if (p.stem,) in set(imports(path))}
    wrong = {p.name for p in used if has_main(p) or p.parent != path.parent}
    assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}: what both need belongs into lab/"


def test_no_file_beside_a_program_hides_a_standard_module() -> None:
    """`uv run benchmarks/agent/run.py` puts its folder first on sys.path."""
    folders = [ROOT / "scripts", *(ROOT / "benchmarks" / name for name in PROGRAM_FOLDERS)]
    names = {p.stem for folder in folders for p in folder.glob("*.py")}
    assert not names & sys.stdlib_module_names


def is_thin(node: ast.stmt) -> bool:
    """Whether a statement at module level does no work: definitions, imports, constants, the main guard."""
    if isinstance(node, ast.If):
        return "__name__" in ast.unparse(node.test) or "TYPE_CHECKING" in ast.unparse(node.test)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign)


# A helper that people download as one file carries its own code.
SINGLE_FILES = {"resyn-bench.py"}


@pytest.mark.parametrize("path", [p for p in programs() if p.name not in SINGLE_FILES])
def test_a_program_is_thin(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree), f"{path.name} says nothing about itself"
    used = {n for other in programs() if other != path for n in imports(other)}
    assert has_main(path) or dotted(path) in used, f"{path.name} has no main(argv) and belongs to no program"
    working = [n.lineno for n in tree.body if not is_thin(n)]
    assert not working, f"{path.name} does work at import, lines {working}"
    assert len(text.splitlines()) <= LONGEST_PROGRAM, f"{path.name} is too long for a program; move work into lab/"
    modules_used = {n[0] for n in imports(path)}
    heavy = modules_used & {"subprocess", "socket", "sqlite3"}
    assert not heavy, f"{path.name} uses {heavy}: processes and files belong to lab/"


PACKAGE = ("benchmarks", "lab", "clients")


@pytest.mark.parametrize(
    "text",
    [
        "from ..engines import base",
        "from benchmarks.lab.engines.base import Engine",
        "import benchmarks.lab.engines.base",
        "def late():\n    from benchmarks.lab import engines",
    ],
)
def test_an_import_is_seen_however_it_is_written(text: str) -> None:
    assert any(name[:3] == ("benchmarks", "lab", "engines") for name in imported(text, PACKAGE))


def test_work_at_module_level_is_told_from_definitions() -> None:
    assert not is_thin(ast.parse("open('x')").body[0])
    assert not is_thin(ast.parse("for x in y: z(x)").body[0])
    assert is_thin(ast.parse("if __name__ == '__main__':\n    raise SystemExit(0)").body[0])
