"""Every package is pinned exactly, transitive ones too, and no lock file travels with the repository."""

from __future__ import annotations

import importlib.util
import subprocess
import tomllib
from collections import deque
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "uv.lock"  # made by `uv run`, ignored by git
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def pin() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pin", ROOT / "scripts" / "pin.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pins(key: str = "constraint-dependencies", project: Mapping[str, Any] = PROJECT) -> dict[str, list[Requirement]]:
    found: dict[str, list[Requirement]] = {}
    for line in project["tool"]["uv"][key]:
        found.setdefault(canonicalize_name(Requirement(line).name), []).append(Requirement(line))
    return found


def declared() -> list[Requirement]:
    groups: Iterable[list[str]] = PROJECT["dependency-groups"].values()
    return [Requirement(line) for group in ([PROJECT["project"]["dependencies"], *groups]) for line in group]


def version_of(requirement: Requirement) -> str:
    (specifier,) = requirement.specifier
    return specifier.version


def installed_closure() -> dict[str, str]:
    """Name to version of everything this environment needs for the project, markers of this platform applied."""
    open_: deque[Requirement] = deque(declared())
    seen: dict[str, str] = {}
    without_dependencies = {entry["name"] for entry in PROJECT["tool"]["uv"]["dependency-metadata"]}
    while open_:
        need = open_.popleft()
        name = canonicalize_name(need.name)
        if name in seen or (need.marker is not None and not need.marker.evaluate({"extra": ""})):
            continue
        found = metadata.distribution(name)
        seen[name] = found.version
        if name not in without_dependencies:
            open_.extend(
                r for r in map(Requirement, found.requires or ()) if not r.marker or r.marker.evaluate({"extra": ""})
            )
    return seen


@pytest.mark.parametrize("key", ["constraint-dependencies", "build-constraint-dependencies"])
def test_each_pin_is_one_exact_version(key: str) -> None:
    for name, found in pins(key).items():
        assert all([s.operator for s in r.specifier] == ["=="] for r in found), name
        assert all("*" not in version_of(r) for r in found), name
        assert all(r.url is None for r in found), name


def test_everything_declared_is_pinned() -> None:
    missing = {canonicalize_name(r.name) for r in declared()} - set(pins())
    assert not missing, f"not pinned: {sorted(missing)}; run `uv run scripts/pin.py`"
    builders = {canonicalize_name(Requirement(r).name) for r in PROJECT["build-system"]["requires"]}
    assert builders <= set(pins("build-constraint-dependencies"))


def test_what_is_installed_is_what_is_pinned() -> None:
    wrong = {}
    for name, version in installed_closure().items():
        here = [r for r in pins().get(name, []) if r.marker is None or r.marker.evaluate()]
        if [version_of(r) for r in here] != [version]:
            wrong[name] = (version, [str(r) for r in here])
    assert not wrong, (
        f"installed, and pinned otherwise or not at all: {wrong}; run `uv sync` or `uv run scripts/pin.py`"
    )


@pytest.mark.skipif(not LOCK.exists(), reason="no uv.lock here: the installed environment above is the only witness")
def test_a_lock_made_here_holds_only_pinned_versions() -> None:
    locked = {
        (canonicalize_name(p["name"]), p["version"])
        for p in tomllib.loads(LOCK.read_text(encoding="utf-8"))["package"]
        if "registry" in p["source"]
    }
    pinned = {(name, version_of(r)) for name, found in pins().items() for r in found}
    assert locked <= pinned, f"resolved but not pinned: {sorted(locked - pinned)}"


def test_no_lock_file_is_tracked() -> None:
    tracked = subprocess.run(
        ("git", "-c", "safe.directory=*", "ls-files", "uv.lock", "**/uv.lock"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert tracked == ""


def test_one_version_needs_no_marker_and_several_keep_theirs(pin: ModuleType) -> None:
    exported = """
    numpy==2.4.6 ; python_full_version < '3.12'
    numpy==2.5.5 ; python_full_version >= '3.12'
    colorama==0.4.6 ; sys_platform == 'win32'
    -e .
    """
    assert pin.tidy(exported) == (
        "colorama==0.4.6",
        "numpy==2.4.6 ; python_full_version < '3.12'",
        "numpy==2.5.5 ; python_full_version >= '3.12'",
    )


PLAIN = '[project]\nname = "x"\n\n[tool.uv]\n# why\ndependency-metadata = []\n\n[tool.ruff]\nline-length = 120\n'


@pytest.mark.parametrize(
    "text", [PLAIN, PLAIN.replace("\n\n[tool.ruff]", '\nconstraint-dependencies = ["a==0"]\n\n[tool.ruff]')]
)
def test_the_rest_of_the_project_file_stays(pin: ModuleType, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(pin, "resolve_runtime", lambda _: ("a==1", "b==2"))
    monkeypatch.setattr(pin, "resolve_build", lambda *_: ("c==3",))
    once = pin.pinned(text)
    assert pin.pinned(once) == once
    assert set(PLAIN.splitlines()) <= set(once.splitlines())
    uv = tomllib.loads(once)["tool"]["uv"]
    assert uv["constraint-dependencies"] == ["a==1", "b==2"]
    assert uv["build-constraint-dependencies"] == ["c==3"]


def test_a_project_file_without_the_section_is_refused_in_one_sentence(
    pin: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pin, "resolve_runtime", lambda _: ("a==1",))
    monkeypatch.setattr(pin, "resolve_build", lambda *_: ())
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n', encoding="utf-8")
    assert pin.main(["--project", str(tmp_path / "pyproject.toml")]) == 2
    assert "[tool.uv]" in capsys.readouterr().err
