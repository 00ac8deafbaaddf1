"""Admit tasks: run both controls several times, record which tests flip, and what it took.

    uv run scripts/admit.py [TASK ...] [--runs 3] [--refresh] [--isolation none]

Without --refresh it only says whether the tasks, as they stand, are admissible. With it the list `fail_to_pass` (the
last field of a task's file) and measured.json are written anew. Exit 0: all admissible, 3: some are not.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import yaml

from benchmarks.lab import checkout, sandbox
from benchmarks.lab.errors import EXIT_DONE, EXIT_REFUSED, LabError
from benchmarks.lab.fsio import remove_tree, write_atomic
from benchmarks.lab.judge import Admission, ControlPair, admit, controls
from benchmarks.lab.model import Isolation, Task
from benchmarks.lab.paths import cache_dir, checkout_root
from benchmarks.lab.tasks import Measured, Suite, load_suite

ROOT = checkout_root() / "benchmarks" / "agent" / "tasks"


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run, report."""
    parser = argparse.ArgumentParser(description="Admit tasks by repeating their controls.")
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="task ids (default: all of the suite)")
    parser.add_argument("--runs", type=int, default=3, help="how often each control runs (default 3)")
    parser.add_argument("--refresh", action="store_true", help="write fail_to_pass and measured.json")
    parser.add_argument("--isolation", choices=["bwrap", "seatbelt", "none"], help="default: the best there is")
    args = parser.parse_args(argv)
    try:
        suite = load_suite(ROOT)
        isolation = sandbox.choose(args.isolation)
        names = args.tasks or list(suite.tasks)
        codes = [_admit(suite, name, args.runs, isolation, refresh=args.refresh) for name in names]
    except LabError as problem:
        print(problem, file=sys.stderr)
        return problem.exit_code
    return max(codes, default=EXIT_DONE)


def _admit(suite: Suite, name: str, runs: int, isolation: Isolation, *, refresh: bool) -> int:
    task = suite.tasks[name]
    target = suite.targets[task.target]
    environment = checkout.environment(target, cache_dir(), print)
    work = Path(tempfile.mkdtemp(prefix="admit-"))

    def pair() -> ControlPair:
        folder = Path(tempfile.mkdtemp(dir=work))
        return controls(target, wanted, environment, folder, isolation)

    wanted = task
    try:
        if refresh:
            first = admit(pair, 1)
            wanted = msgspec.structs.replace(task, fail_to_pass=first.flipping or task.fail_to_pass)
        admission = admit(pair, runs)
        removed = checkout.prepare(target, task, environment, work / "workspace").removed_lines
    finally:
        remove_tree(work)
    if refresh and admission.admissible:
        _write(wanted, admission, removed, runs)
    gold, excised = max(admission.gold_seconds), max(admission.excised_seconds)
    said = admission.why or "admissible"
    print(f"{name}: {said} ({len(wanted.fail_to_pass)} flip, gold {gold:.1f} s, excised {excised:.1f} s)", flush=True)
    return EXIT_DONE if admission.admissible else EXIT_REFUSED


def _write(task: Task, admission: Admission, removed: int, runs: int) -> None:
    file = ROOT / "core-1" / f"{task.id}.yaml"
    head, _, _ = file.read_text(encoding="utf-8").partition("fail_to_pass:")
    tests = yaml.safe_dump(list(task.fail_to_pass), allow_unicode=True, width=10_000)
    write_atomic(file, f"{head}fail_to_pass:\n{''.join(f'  {line}' for line in tests.splitlines(keepends=True))}")
    suite = load_suite(ROOT)
    measured = {
        **{name: value for name, value in suite.measured.items() if name in suite.tasks},
        task.id: Measured(
            gold_seconds=round(sorted(admission.gold_seconds)[runs // 2], 2),
            excised_seconds=round(sorted(admission.excised_seconds)[runs // 2], 2),
            flake_rate=admission.flake_rate,
            runs=runs,
            removed_lines=removed,
            tests=admission.tests,
            python=platform.python_version(),
        ),
    }
    text = msgspec.json.format(msgspec.json.encode(dict(sorted(measured.items()))), indent=2)
    write_atomic(file.with_name("measured.json"), text + b"\n")


if __name__ == "__main__":
    sys.exit(main())
