"""One judged run: fresh export, patch, suite in a box without network, outcomes per test.

Tests, conftest and configuration come from the pin, since only allowed paths of a patch are laid down. Exit codes and
printed text decide nothing; outcomes come from `plugin.py`. It knows no verdicts and compares no runs.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.lab.checkout import copy_excised
from benchmarks.lab.checkout.patch import Unreadable, read_inside
from benchmarks.lab.fsio import remove_tree
from benchmarks.lab.model import Checkout, Isolation, Judgement, Record, SuiteEnd
from benchmarks.lab.sandbox import Limits, Running, SandboxSpec, open_box

MEMORY_BYTES: Final = 4 << 30
DISK_BYTES: Final = 1 << 30
CANARY: Final = "lab_canary_"  # as in plugin.py, which only the judged interpreter may import
MISSING_KEPT: Final = 50
_OUTPUT_LIMIT: Final = 8 << 20
_REPORT: Final = "outcomes"
_REPORT_LIMIT: Final = 64 << 20
_FIXED_ENV: Final = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONNOUSERSITE": "1",
    "TZ": "UTC",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "COLUMNS": "80",
}


class Reported(Record, frozen=True, kw_only=True):
    """What the plugin's file says: outcomes of the suite's own tests, and whether it can be believed."""

    outcomes: Mapping[str, str]
    collected: int
    complete: bool  # the suite reached its end
    forged: bool


def judge(  # noqa: PLR0917 (the contract's order)
    checkout: Checkout,
    patch_files: Mapping[str, bytes | None],
    required: Sequence[str],
    isolation: Isolation,
    work: Path,
    log: Path,
) -> Judgement:
    """Run the target's suite on the excised tree with `patch_files` laid over it (None: the file is deleted).

    `work` is a folder that is made, used and removed again; `log` receives what the suite printed. Green means that
    every required test passed, the suite ended by itself and no result was forged. Files outside `checkout.allowed` are
    not laid down.
    """
    work.mkdir(parents=True)
    try:
        tree = work / checkout.workspace.name
        copy_excised(checkout, tree)
        _lay(tree, {path: content for path, content in patch_files.items() if path in checkout.allowed})
        key = secrets.token_hex(16)
        report, seconds, ended_by = _run(checkout, tree, key, isolation, log)
        reported = read_report(report, key)
    finally:
        remove_tree(work)
    if ended_by == "suite" and not reported.complete:
        ended_by = "crash"
    return _judgement(reported, required, seconds, ended_by, log)


def _judgement(reported: Reported, required: Sequence[str], seconds: float, ended_by: SuiteEnd, log: Path) -> Judgement:
    values = list(reported.outcomes.values())
    missing = [test for test in required if reported.outcomes.get(test) != "passed"]
    return Judgement(
        green=not missing and bool(required) and ended_by == "suite" and not reported.forged,
        passed=values.count("passed"),
        failed=values.count("failed") + values.count("error"),
        skipped=values.count("skipped"),
        collected=reported.collected,
        missing=tuple(missing[:MISSING_KEPT]),
        seconds=seconds,
        ended_by=ended_by,
        forged=reported.forged,
        outcomes=reported.outcomes,
        log=log if log.is_file() else None,
    )


def _lay(tree: Path, files: Mapping[str, bytes | None]) -> None:
    for path, content in files.items():
        place = tree / path
        place.unlink(missing_ok=True)
        if content is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)


def suite_argv(checkout: Checkout) -> list[str]:
    """The target's command with our plugin in front of its own options."""
    suite = list(checkout.target.suite)
    after = suite.index("pytest") + 1
    options = ["-p", "lab_report", "-p", "no:cacheprovider"]
    return [str(checkout.environment.python), *suite[:after], *options, *suite[after:]]


def read_report(report: bytes, key: str) -> Reported:
    """Read the plugin's lines; a line that does not carry the chain on, or a canary that passed, makes it forged."""
    lines = list(_chained(report, key))
    known = [line for line in lines if line is not None]
    phases: dict[str, list[Mapping[str, Any]]] = {}
    for line in known:
        if line["kind"] == "phase":
            phases.setdefault(line["id"], []).append(line)
    broken = {line["id"] for line in known if line["kind"] == "subtest" and line["outcome"] == "failed"}
    outcomes = {test: "failed" if test in broken else _outcome(seen) for test, seen in phases.items()}
    canaries = {test.rpartition("::")[2]: outcomes.pop(test) for test in list(outcomes) if f"::{CANARY}" in test}
    wrong = [name for name, outcome in canaries.items() if (outcome == "passed") != name.endswith("_passes")]
    collected = sum(line["count"] for line in known if line["kind"] == "collected")
    complete = bool(known) and known[-1]["kind"] == "end"
    return Reported(
        outcomes=outcomes,
        collected=collected,
        complete=complete,
        forged=None in lines or bool(wrong) or (complete and collected > 0 and not canaries),
    )


def _chained(report: bytes, key: str) -> Iterator[dict[str, Any] | None]:
    """The lines whose digest carries the chain on; None for the first that does not, and nothing after it."""
    chain = b""
    for row in report.splitlines():
        signature, _, line = row.partition(b" ")
        chain = hmac.digest(key.encode(), chain + line, "sha256")
        if signature != chain.hex().encode():
            yield None
            return
        yield json.loads(line)


def _outcome(phases: Sequence[Mapping[str, Any]]) -> str:
    """passed, failed, skipped or error, of the phases of one test; an expected failure counts as skipped."""
    by_phase = {phase["when"]: phase for phase in phases}
    if len(by_phase) != len(phases):
        return "error"  # the same test twice: not to be believed
    if any(phase["outcome"] == "failed" for when, phase in by_phase.items() if when != "call"):
        return "error"
    call = by_phase.get("call")
    if call is None or call["outcome"] == "skipped":
        return "skipped"
    return str(call["outcome"])


def _run(checkout: Checkout, tree: Path, key: str, isolation: Isolation, log: Path) -> tuple[bytes, float, SuiteEnd]:
    """Run the suite in a box; returns (the plugin's report, seconds, what ended it)."""
    plugin, home = tree.parent / "plugin", tree.parent / "home"
    home.mkdir()
    plugin.mkdir()
    shutil.copyfile(Path(__file__).with_name("plugin.py"), plugin / "lab_report.py")
    python = checkout.environment.python
    spec = SandboxSpec(
        isolation=isolation,
        workspace=tree,
        home=home,
        readonly=(*checkout.environment.readonly, plugin),
        network=False,
        limits=Limits(memory_bytes=MEMORY_BYTES, disk_bytes=DISK_BYTES),
        trial_id=f"judge-{secrets.token_hex(8)}",
        path=(python.parent,),
    )
    log.parent.mkdir(parents=True, exist_ok=True)
    with open_box(spec) as box:
        roots = [f"{box.workspace}/{root}" for root in checkout.target.source_roots]
        secret = {"LOCAL_LAB_JUDGE_KEY": key, "LOCAL_LAB_JUDGE_FILE": f"{box.home}/{_REPORT}"}
        env = {**_FIXED_ENV, **secret, "PYTHONPATH": os.pathsep.join([str(plugin), *roots])}
        start = time.monotonic()
        running = box.start(suite_argv(checkout), env, None, log, log.with_suffix(".err"), _OUTPUT_LIMIT)
        ended_by = _wait(running, start + checkout.target.suite_seconds)
        seconds = (running.ended_at or time.monotonic()) - start
        running.end(0)
    try:
        report = read_inside(home, _REPORT, _REPORT_LIMIT)
    except Unreadable:
        report = None
    return report or b"", seconds, ended_by


def _wait(running: Running, deadline: float) -> SuiteEnd:
    while running.wait(0.1) is None:
        if over := running.over_limit():
            return over
        if time.monotonic() > deadline:
            return "wall"
    return running.over_limit() or "suite"
