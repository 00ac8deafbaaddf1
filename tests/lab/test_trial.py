"""What a trial says of its surroundings: answers in the wrong folder, an engine that changed, what its stamp is of."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from benchmarks.lab.errors import LabError
from benchmarks.lab.model import Checkout, EngineFacts
from benchmarks.lab.session import Rig
from benchmarks.lab.trial import engine_voids, stray_answers

BEFORE = EngineFacts(version="1", model_digest="aa", context=4096, process="7", started="2026-01-01T00:00:00+00:00")


class Engine:
    """An engine that tells these facts when asked again."""

    def __init__(self, now: EngineFacts | None) -> None:
        self.now = now
        self.endpoint = self

    def facts_now(self) -> EngineFacts:
        if self.now is None:
            raise LabError("gone")
        return self.now


def voids(**changes: Any) -> dict[str, str]:
    rig = cast("Rig", Engine(msgspec.structs.replace(BEFORE, **changes)))
    return {str(reason): detail for reason, detail in engine_voids(rig, BEFORE).items()}


def test_an_engine_that_tells_the_same_voids_nothing() -> None:
    assert voids() == voids(started="2026-01-01T00:00:01+00:00") == voids(context=None) == {}
    assert engine_voids(cast("Rig", Engine(None)), BEFORE) == {}


def test_case_25_an_engine_of_another_process_was_restarted() -> None:
    assert voids(process="8", context=1) == {
        "engine_restarted": "during the trial the engine's process was 7 and is 8, context was 4096 and is 1"
    }


@pytest.mark.parametrize(("name", "value"), [("model_digest", "bb"), ("context", 2048), ("version", "2")])
def test_an_engine_that_changed_under_a_trial_voids_it(name: str, value: object) -> None:
    (reason,) = voids(**{name: value})
    assert reason == "version_drift"


def test_case_01_an_edited_copy_is_an_answer_elsewhere_and_a_backup_is_none(tmp_path: Path) -> None:
    tree = cast("Checkout", type("Tree", (), {"allowed": ("pkg/a.py",), "given": {"pkg/a.py": b"as given"}}))
    for name, content in (("backup", b"as given"), ("elsewhere", b"edited")):
        (tmp_path / name / "pkg").mkdir(parents=True)
        (tmp_path / name / "pkg" / "a.py").write_bytes(content)
    (tmp_path / "linked" / "pkg").mkdir(parents=True)
    (tmp_path / "linked" / "pkg" / "a.py").symlink_to("/etc/passwd")
    assert stray_answers(tmp_path, tree) == ("elsewhere/pkg/a.py",)
