"""scripts/admit.py refuses what it cannot mean; its controls themselves are tested with the judge."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "admit.py"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("toolz-grupby",), 'has no task toolz-grupby (did you mean "toolz-groupby"?)'),
        (("toolz-groupby", "--runs", "0"), "give a whole number from 1"),
    ],
)
def test_mistakes_are_one_sentence_with_code_2(arguments: tuple[str, ...], sentence: str) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
