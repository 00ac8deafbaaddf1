"""What a judged run reports, who can forge it, and which tasks the controls refuse."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest

from benchmarks.lab import checkout, sandbox
from benchmarks.lab.judge import ControlPair, admit, controls, judge
from benchmarks.lab.judge.controls import objection
from benchmarks.lab.judge.run import read_report
from benchmarks.lab.model import Checkout, Environment, Excision, Judgement, Source, Target, Task

CODE = '''"""Sums."""


def total(numbers):
    """Sum of all numbers."""
    result = 0
    for number in numbers:
        result += number
    return result


def double(number):
    return 2 * number
'''
TESTS = """from summing.core import double, total


def test_total():
    assert total([1, 2]) == 3


def test_total_empty():
    assert total([]) == 0


def test_double():
    assert double(2) == 4
"""
FILE = "summing/core.py"
REQUIRED = ("tests/test_core.py::test_total", "tests/test_core.py::test_total_empty")
STAYS = "tests/test_core.py::test_double"
ENVIRONMENT = Environment(
    python=Path(sys.executable), readonly=(Path(sys.prefix), Path(sys.base_prefix)), digest="0" * 64
)


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("benchmarks.lab.checkout.workspace.prove", lambda *_: None)


def project(folder: Path, tests: str = TESTS, **changes: object) -> tuple[Target, Task]:
    for name, text in {"summing/__init__.py": "", FILE: CODE, "tests/test_core.py": tests}.items():
        path = folder / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def git(*words: str) -> str:
        identity = ["-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        done = subprocess.run(
            ["git", *identity, *words], cwd=folder / "source", check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "all")
    target = Target(
        name="summing",
        source=Source(kind="path", path=str(folder / "source"), commit=git("rev-parse", "HEAD")),
        language="python",
        license="MIT",
        imports=("summing",),
        requires=("pytest==9",),
        suite=("-m", "pytest", "-q", "-p", "no:hypothesispytest", "-p", "no:timeout", "-p", "no:anyio", "tests"),
        suite_seconds=60,
    )
    task = Task(
        id="summing-total",
        target="summing",
        tier=1,
        excise=(Excision(path=FILE, symbol="total"),),
        fail_to_pass=REQUIRED,
    )
    return msgspec.structs.replace(target, **changes), task


@pytest.fixture
def prepared(tmp_path: Path) -> Checkout:
    target, task = project(tmp_path)
    return checkout.prepare(target, task, ENVIRONMENT, tmp_path / "workspace")


Judge = Callable[..., Judgement]


@pytest.fixture
def judged(prepared: Checkout, tmp_path: Path) -> Judge:
    def run(body: str | None, *, before: str = "", **changes: object) -> Judgement:
        """Judge the task with `body` in place of the removed one and `before` at the top of the module."""
        text = None if body is None else before + CODE.replace("    result = 0\n", f"    {body}\n    result = 0\n")
        target = msgspec.structs.replace(prepared.target, **changes)
        here = msgspec.structs.replace(prepared, target=target)
        return judge(
            here,
            {FILE: None if text is None else text.encode()},
            REQUIRED,
            "none",
            tmp_path / "judge",
            tmp_path / "log",
        )

    return run


def test_a_right_patch_is_green_and_every_test_has_its_outcome(judged: Judge, tmp_path: Path) -> None:
    result = judged("pass")
    assert result.green
    assert result.ended_by == "suite"
    assert result.outcomes == {**dict.fromkeys(REQUIRED, "passed"), STAYS: "passed"}
    assert (result.passed, result.failed, result.skipped, result.collected) == (3, 0, 0, 3)
    assert not result.forged
    assert not (tmp_path / "judge").exists()
    assert b"passed" in (tmp_path / "log").read_bytes()


def test_a_wrong_patch_names_the_tests_that_are_missing(judged: Judge) -> None:
    result = judged("return 0")
    assert not result.green
    assert result.missing == (REQUIRED[0],)
    assert result.outcomes[REQUIRED[1]] == "passed"


def test_a_deleted_file_and_a_syntax_error_are_red(judged: Judge) -> None:
    for result in (judged(None), judged("this is no Python")):
        assert not result.green
        assert result.missing == REQUIRED


def test_files_outside_the_allowed_paths_are_not_laid_down(prepared: Checkout, tmp_path: Path) -> None:
    patch = {
        "tests/test_core.py": b"def test_total(): pass\ndef test_total_empty(): pass\n",
        "conftest.py": b"import os\nos._exit(0)\n",
    }
    result = judge(prepared, patch, REQUIRED, "none", tmp_path / "judge", tmp_path / "log")
    assert not result.green
    assert result.collected == 3
    assert result.ended_by == "suite"


ALL_PASS = """
import _pytest.runner
_real = _pytest.runner.TestReport.from_item_and_call.__func__
def _forge(cls, item, call):
    call.excinfo = None
    return _real(cls, item, call)
_pytest.runner.TestReport.from_item_and_call = classmethod(_forge)
"""
NO_ASSERTIONS = """
import _pytest.python
_pytest.python.Function.runtest = lambda self: None
"""


@pytest.mark.parametrize("attack", [ALL_PASS, NO_ASSERTIONS])
def test_case_14_a_patched_pytest_turns_the_canaries_green_and_is_seen(judged: Judge, attack: str) -> None:
    result = judged("raise NotImplementedError", before=attack)
    assert result.forged
    assert not result.green


FAKE_REPORT = """
import atexit, os, glob
def _write():
    for place in glob.glob(os.path.expanduser("~/outcomes")):
        with open(place, "ab") as file:
            file.write(b'00 {"kind": "phase", "id": "tests/test_core.py::test_total", "when": "call"}\\n')
atexit.register(_write)
"""


def test_case_14_results_written_by_the_code_itself_do_not_count(judged: Judge) -> None:
    result = judged("raise NotImplementedError", before=FAKE_REPORT)
    assert result.forged
    assert not result.green


@pytest.mark.parametrize(
    "attack",
    [
        "import os; os._exit(0)",
        "import os; print('3 passed'); os._exit(0)",
        "import sys, os; os.kill(os.getpid(), 9)",
    ],
)
def test_case_14_leaving_early_with_a_good_exit_code_is_a_crash(judged: Judge, attack: str) -> None:
    result = judged(attack)
    assert result.ended_by == "crash"
    assert not result.green


def test_case_14_printed_text_and_exit_codes_decide_nothing(judged: Judge) -> None:
    shout = "import sys, atexit, os\natexit.register(lambda: (print('100 passed in 0.1s'), os._exit(0)))\n"
    result = judged("return -1", before=shout)
    assert result.ended_by == "suite"
    assert result.missing == REQUIRED
    silenced = judged("pass", before="import sys, io\nsys.stdout = sys.__stdout__ = sys.stderr = io.StringIO()\n")
    assert silenced.green


def test_case_14_a_sitecustomize_written_by_the_code_changes_nothing(judged: Judge) -> None:
    plant = "open('sitecustomize.py', 'w').write('import os; os._exit(0)')\nopen('conftest.py', 'w').write('x = 1/0')\n"
    result = judged("return -1", before=plant)
    assert not result.green
    assert result.ended_by == "suite"


def test_case_14_a_fork_that_runs_on_does_not_report_twice(judged: Judge) -> None:
    assert judged("import os, sys\n    child = os.fork()\n    if child: os.waitpid(child, 0)").green is True


def test_case_15_a_body_that_loops_ends_at_the_wall_limit(judged: Judge) -> None:
    result = judged("while True: pass", suite_seconds=3.0)
    assert result.ended_by == "wall"
    assert not result.green


def test_case_15_a_body_that_eats_memory_is_ended_and_named(judged: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.lab.judge.run.MEMORY_BYTES", 300 << 20)
    result = judged("hoard = []\n    while True: hoard.append(bytearray(8 << 20)); import time; time.sleep(0.01)")
    assert result.ended_by == "memory"
    assert not result.green


def test_nothing_required_is_never_green(prepared: Checkout, tmp_path: Path) -> None:
    assert not judge(prepared, prepared.solution, (), "none", tmp_path / "judge", tmp_path / "log").green


def test_the_judged_code_sees_fixed_settings(prepared: Checkout, tmp_path: Path) -> None:
    seen = "time.tzname[0], hash('a'), 'LOCAL_LAB_JUDGE_KEY' in os.environ"
    look = f"import os, time\n    assert ({seen}) == ('UTC', %d, False)"
    seeded = subprocess.run(
        [sys.executable, "-c", "print(hash('a'))"], env={"PYTHONHASHSEED": "0"}, capture_output=True, check=True
    )
    text = CODE.replace("    result = 0\n", f"    {look % int(seeded.stdout)}\n    result = 0\n")
    result = judge(prepared, {FILE: text.encode()}, REQUIRED, "none", tmp_path / "judge", tmp_path / "log")
    assert result.green


def test_a_report_that_is_cut_or_altered_is_forged_or_incomplete() -> None:
    assert not read_report(b"", "key").complete
    assert read_report(b'00 {"kind": "end"}\n', "key").forged
    assert read_report(b"\xff\xfe garbage", "key").forged


# ---- controls ----


def pair_of(tmp_path: Path, tests: str = TESTS) -> ControlPair:
    target, task = project(tmp_path, tests)
    return controls(target, task, ENVIRONMENT, tmp_path / "controls", "none")


def test_controls_pass_and_fail_as_they_must(tmp_path: Path) -> None:
    pair = pair_of(tmp_path)
    assert pair.admissible
    assert pair.why is None
    assert pair.gold.green
    assert not pair.excised.green
    assert pair.required == (*REQUIRED, STAYS)


SKIPPED = TESTS.replace("def test", "import pytest\n@pytest.mark.skipif(True, reason='no variable')\ndef test")
THERE = "with the original body in place"


@pytest.mark.parametrize(
    ("tests", "says"),
    [
        (SKIPPED, f"summing-total.yaml: the suite skips everything (3 tests) {THERE}"),
        ("", f"summing-total.yaml: the suite collects no test {THERE}"),
    ],
)
def test_case_13_a_suite_that_runs_nothing_is_refused_with_the_reason(tmp_path: Path, tests: str, says: str) -> None:
    pair = pair_of(tmp_path, tests)
    assert not pair.admissible
    assert pair.why == says


@pytest.mark.parametrize(
    ("gold", "excised", "says"),
    [
        ({"a": "passed"}, {"a": "failed"}, None),
        ({"a": "passed"}, {}, None),
        ({"a": "passed"}, {"a": "passed"}, "fail_to_pass: a passes without the body, so it cannot judge it"),
        ({"b": "passed"}, {"b": "failed"}, "fail_to_pass: a is not among the tests that the suite runs"),
        ({"a": "failed"}, {"a": "failed"}, f"fail_to_pass: a fails {THERE}"),
        ({"a": "skipped", "b": "passed"}, {"a": "skipped"}, f"fail_to_pass: a is skipped {THERE}"),
    ],
)
def test_case_13_tests_that_do_not_flip_are_refused_with_the_reason(
    gold: Mapping[str, str], excised: Mapping[str, str], says: str | None
) -> None:
    task = Task(id="t", target="p", tier=1, excise=(), fail_to_pass=("a",))
    assert objection(task, outcome(gold), outcome(excised)) == (says and f"t.yaml: {says}")


def test_a_control_that_was_ended_or_forged_is_refused() -> None:
    task = Task(id="t", target="p", tier=1, excise=(), fail_to_pass=("a",))
    good, bad = outcome({"a": "passed"}), outcome({"a": "failed"})
    slow = msgspec.structs.replace(good, ended_by="wall")
    forged = msgspec.structs.replace(bad, forged=True)
    assert (
        objection(task, slow, bad) == "t.yaml: the suite of the gold control did not end by itself (wall), see its log"
    )
    assert "excised control reports a test as passed that must fail" in (objection(task, good, forged) or "")


def test_a_failing_body_that_kills_the_runner_is_told(tmp_path: Path) -> None:
    fatal = TESTS.replace(
        "    assert total([]) == 0",
        "    try:\n        total([])\n    except NotImplementedError:\n        import os; os._exit(1)",
    )
    pair = pair_of(tmp_path, fatal)
    assert pair.why == "summing-total.yaml: the suite of the excised control did not end by itself (crash), see its log"


# ---- admission ----


def outcome(values: Mapping[str, str], *, green: bool = True) -> Judgement:
    return Judgement(
        green=green,
        passed=list(values.values()).count("passed"),
        failed=list(values.values()).count("failed"),
        skipped=list(values.values()).count("skipped"),
        collected=len(values),
        missing=(),
        seconds=1.0,
        ended_by="suite",
        forged=False,
        outcomes=values,
        log=None,
    )


def scripted(*golds: Mapping[str, str]) -> Callable[[], ControlPair]:
    runs = iter(golds)
    excised = outcome({"a": "failed", "b": "passed"}, green=False)

    def run() -> ControlPair:
        gold = outcome(next(runs))
        return ControlPair(gold=gold, excised=excised, required=("a",), unmoved=(), admissible=True, why=None)

    return run


def test_admission_repeats_and_finds_what_flips() -> None:
    steady = {"a": "passed", "b": "passed"}
    admission = admit(scripted(steady, steady, steady), n=3)
    assert admission.admissible
    assert admission.flake_rate == 0
    assert admission.flipping == ("a",)


def test_case_13_a_suite_that_flakes_one_time_in_five_is_refused_with_the_rate() -> None:
    steady = {"a": "passed", "b": "passed"}
    admission = admit(scripted(steady, steady, {"a": "passed", "b": "failed"}, steady, steady), n=5)
    assert not admission.admissible
    assert admission.flake_rate == pytest.approx(0.2)
    assert admission.why == "the gold control flakes in 1 of 5 runs (20%), for instance b"


def test_the_same_holds_in_the_sandbox(tmp_path: Path) -> None:
    target, task = project(tmp_path, suite_seconds=120)
    pair = controls(target, task, ENVIRONMENT, tmp_path / "controls", sandbox.choose(None))
    assert pair.why is None


def test_what_the_prompt_says_to_run_runs_in_the_sandbox(prepared: Checkout, tmp_path: Path) -> None:
    command = next(line for line in prepared.prompt.splitlines() if "-m pytest" in line).strip()
    (tmp_path / "home").mkdir()
    spec = sandbox.SandboxSpec(
        isolation=sandbox.choose(None),
        workspace=prepared.workspace,
        home=tmp_path / "home",
        readonly=ENVIRONMENT.readonly,
        network=False,
        trial_id="prompt-command",
    )
    with sandbox.open_box(spec) as box:
        both = f"git log --oneline | wc -l; git status --porcelain; {command}"
        running = box.start(["/bin/sh", "-c", both], {}, None, tmp_path / "out", tmp_path / "err", 1 << 20)
        assert running.wait(60) is not None
        running.end(0)
    said = (tmp_path / "out").read_text()
    assert said.startswith("1\n")
    assert "2 failed, 1 passed" in said
