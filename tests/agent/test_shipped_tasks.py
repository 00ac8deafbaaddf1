"""The shipped suite keeps its promises. What needs a download, the controls themselves, is run by scripts/admit.py."""

from __future__ import annotations

import re

import pytest

from benchmarks.lab.excise import language_of
from benchmarks.lab.model import Task
from benchmarks.lab.paths import checkout_root
from benchmarks.lab.tasks import load_suite

ROOT = checkout_root() / "benchmarks" / "agent" / "tasks"
SUITE = load_suite(ROOT)
UNFIT = {"packaging", "more-itertools", "networkx", "markdown-it-py"}  # pytest or a client ships them


def test_there_are_enough_tasks_over_enough_repositories() -> None:
    assert len(SUITE.tasks) >= 12
    assert len(SUITE.targets) >= 4
    assert sum(len(task.excise) > 1 for task in SUITE.tasks.values()) >= 2
    assert not UNFIT & set(SUITE.targets)


def test_a_first_run_has_tasks_of_more_than_one_target() -> None:
    starters = [task for task in SUITE.tasks.values() if "starter" in task.tags]
    assert len({task.target for task in starters}) > 1


def test_every_target_file_is_used_and_can_be_fetched_by_everybody() -> None:
    assert {path.stem for path in (ROOT / "targets").glob("*.yaml")} == set(SUITE.targets)
    assert "path" not in {target.source.kind for target in SUITE.targets.values()}, "a repository on this machine"


def test_every_task_was_measured_and_never_flaked() -> None:
    assert set(SUITE.measured) == set(SUITE.tasks)
    for name, measured in SUITE.measured.items():
        assert measured.flake_rate == 0, name
        assert measured.runs >= 3, name


def test_the_sizes_reach_from_small_to_long() -> None:
    sizes = [measured.removed_lines for measured in SUITE.measured.values()]
    assert min(sizes) < 12
    assert sum(size >= 60 for size in sizes) >= 2


@pytest.mark.parametrize("task", SUITE.tasks.values(), ids=list(SUITE.tasks))
def test_a_task_can_be_excised_and_is_judged_by_tests_outside_what_may_change(task: Task) -> None:
    assert task.id.startswith(f"{task.target}-")
    for excision in task.excise:
        assert language_of(excision.path) == SUITE.targets[task.target].language
    assert len(set(task.fail_to_pass)) == len(task.fail_to_pass)
    assert not any("test" in path for path in task.allow)


def test_the_prompt_template_uses_only_what_is_filled_in() -> None:
    text = (ROOT / "prompts" / "v1.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\$(\w+)", text)) == {"project", "bodies", "removed", "allowed", "command"}
