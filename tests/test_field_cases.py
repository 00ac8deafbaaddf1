"""Every field case that the project promises to survive stands in the name of a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
NUMBERED = [f"case_{number:02d}" for number in range(1, 24)]
NAMED = [
    "B01", "B02", "B03", "B04", "B05", "B07", "B08", "B09", "B10", "B11", "B13", "B14", "B15", "B17", "B18", "B20",
    "B21", "B23", "B31", "B37", "B45", "B52", "B54", "B55", "B58", "B60", "B61", "B62",
]  # fmt: skip


def covered() -> set[str]:
    found: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8")):
            found.update(re.findall(r"B\d{2}", name))
            found.update(f"case_{int(number):02d}" for number in re.findall(r"case_(\d+)", name))
    return found


@pytest.mark.parametrize("case", [*NUMBERED, *NAMED])
def test_a_test_carries_the_case(case: str) -> None:
    assert case in covered()
