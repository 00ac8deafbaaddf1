"""Every field case that the project promises to survive stands in the name of a test.

The list is the table of docs/design.md: it names the ids that tests carry, and no others.
"""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
DESIGN = TESTS.parent / "docs" / "design.md"


def covered() -> set[str]:
    """Ids in the names of tests."""
    found: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8")):
            found |= ids(name.replace("_", " "))
    return found


def promised() -> set[str]:
    """Ids in the section on guards."""
    section = DESIGN.read_text(encoding="utf-8").split("\n## Why each guard exists\n")[1].split("\n## ")[0]
    return ids("".join(line for line in section.splitlines(keepends=True) if line.startswith("|")))


def ids(text: str) -> set[str]:
    """`B09` of "B09", `case 12` of "case 12"."""
    return set(re.findall(r"\bB\d{2}\b", text)) | {f"case {int(n)}" for n in re.findall(r"\bcase (\d+)\b", text)}


def test_each_case_that_the_design_page_names_is_carried_by_a_test() -> None:
    assert promised() - covered() == set()


def test_each_case_that_a_test_carries_has_its_guard_on_the_design_page() -> None:
    assert covered() - promised() == set()


def test_no_numbered_case_of_harness_client_and_wire_is_missing() -> None:
    assert {f"case {number}" for number in range(1, 24)} <= promised()
