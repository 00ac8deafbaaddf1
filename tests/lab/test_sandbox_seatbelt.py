"""The macOS profile as text (it cannot be run here)."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.lab.sandbox import SandboxSpec
from benchmarks.lab.sandbox.seatbelt import profile

TEMPORARY = Path("/private/var/folders/x/local-lab-1")


@pytest.fixture
def spec() -> SandboxSpec:
    return SandboxSpec(
        isolation="seatbelt",
        workspace=Path('/Users/me/state/it\'s "w" \\ ö'),
        home=Path("/Users/me/state/home"),
        readonly=(Path("/Users/me/cache/node"),),
        trial_id="t",
    )


def rules(text: str) -> list[str]:
    return text.splitlines()


def test_everything_is_denied_first(spec: SandboxSpec) -> None:
    assert rules(profile(spec, TEMPORARY, 4000))[:2] == ["(version 1)", "(deny default)"]
    assert "(allow default)" not in profile(spec, TEMPORARY, 4000)


def test_only_workspace_home_and_the_temporary_folder_are_written(spec: SandboxSpec) -> None:
    written = [line for line in rules(profile(spec, TEMPORARY, 4000)) if "file-write" in line and "subpath" in line]
    assert len(written) == 1
    assert '(subpath "/Users/me/state/home")' in written[0]
    assert f'(subpath "{TEMPORARY}")' in written[0]
    assert "cache/node" not in written[0]


def test_read_only_paths_and_the_system_are_read_but_not_the_operators_home(spec: SandboxSpec) -> None:
    read = next(line for line in rules(profile(spec, TEMPORARY, 4000)) if line.startswith("(allow file-read* (subpath"))
    assert '(subpath "/Users/me/cache/node")' in read
    assert '(subpath "/usr")' in read
    assert '(subpath "/Users/me")' not in read
    assert '(subpath "/Users")' not in read


def test_the_network_is_the_meters_port_or_nothing(spec: SandboxSpec) -> None:
    with_meter = [line for line in rules(profile(spec, TEMPORARY, 4000)) if "network" in line]
    assert with_meter == ['(allow network-outbound (remote tcp "localhost:4000"))']
    assert "network" not in profile(spec, TEMPORARY, None)


def test_quotes_and_backslashes_in_paths_are_escaped_and_parentheses_balance(spec: SandboxSpec) -> None:
    text = profile(spec, TEMPORARY, 4000)
    assert '(subpath "/Users/me/state/it\'s \\"w\\" \\\\ ö")' in text
    assert text.count("(") == text.count(")")
