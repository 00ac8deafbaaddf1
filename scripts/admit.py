"""Admit tasks: run both controls several times, record which tests flip, and what it took.

    uv run scripts/admit.py [TASK ...] [--runs 3] [--refresh] [--isolation none]

Without --refresh it only says whether the tasks, as they stand, are admissible. With it the list `fail_to_pass` (the
last field of a task's file) and measured.json are written anew. Exit codes: 0 all admissible, 2 usage, 3 some are not,
130 interrupted, 141 nobody reads the output any more.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import yaml

from benchmarks.lab import checkout, flags, program, sandbox
from benchmarks.lab.errors import EXIT_DONE, EXIT_REFUSED, UsageError
from benchmarks.lab.fsio import remove_tree, write_atomic
from benchmarks.lab.judge import Admission, ControlPair, admit, controls
from benchmarks.lab.lock import machine_lock
from benchmarks.lab.model import Isolation, Task
from benchmarks.lab.paths import cache_dir, checkout_root
from benchmarks.lab.tasks import Measured, Suite, load_suite
from benchmarks.lab.text import suggest

ROOT = checkout_root() / "benchmarks" / "agent" / "tasks"


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run, report."""
    return program.answer("admit.py", lambda: _main(_parser().parse_args(argv)))


def _main(args: argparse.Namespace) -> int:
    suite = load_suite(ROOT)
    names = args.tasks or list(suite.tasks)
    for name in names:
        if name not in suite.tasks:
            raise UsageError(f"suite {suite.name} has no task {name}{suggest(name, suite.tasks)}")
    isolation = sandbox.choose(args.isolation)
    with machine_lock("scripts/admit.py", print):  # the seconds it records are measured
        codes = [_admit(suite, name, args.runs, isolation, refresh=args.refresh) for name in names]
    return max(codes, default=EXIT_DONE)


def _parser() -> argparse.ArgumentParser:
    parser = flags.Parser(description="Admit tasks by repeating their controls.")
    parser.add_argument(
        "tasks", nargs="*", type=flags.text, metavar="TASK", help="task ids (default: all of the suite)"
    )
    runs = flags.whole(1, 1000, "runs")
    parser.add_argument("--runs", type=runs, metavar="N", default=3, help="how often each control runs (default 3)")
    parser.add_argument("--refresh", action="store_true", help="write fail_to_pass and measured.json")
    parser.add_argument("--isolation", choices=["bwrap", "seatbelt", "none"], help="default: the best there is")
    return parser


def _admit(suite: Suite, name: str, runs: int, isolation: Isolation, *, refresh: bool) -> int:
    task = suite.tasks[name]
    target = suite.targets[task.target]
    environment = checkout.environment(target, cache_dir(), print)
    work = Path(tempfile.mkdtemp(prefix="admit-"))

    def pair(of: Task) -> ControlPair:
        return controls(target, of, environment, Path(tempfile.mkdtemp(dir=work)), isolation)

    try:
        flipping = admit(lambda: pair(task), 1).flipping if refresh else ()
        wanted = msgspec.structs.replace(task, fail_to_pass=flipping or task.fail_to_pass)
        admission = admit(lambda: pair(wanted), runs)
        removed = checkout.prepare(target, task, environment, work / "workspace").removed_lines
    finally:
        remove_tree(work)
    if refresh and admission.admissible:
        _write(suite.name, wanted, admission, removed, runs)
    gold, excised = max(admission.gold_seconds), max(admission.excised_seconds)
    said = admission.why or "admissible"
    print(f"{name}: {said} ({len(wanted.fail_to_pass)} flip, gold {gold:.1f} s, excised {excised:.1f} s)", flush=True)
    return EXIT_DONE if admission.admissible else EXIT_REFUSED


def _write(suite_name: str, task: Task, admission: Admission, removed: int, runs: int) -> None:
    file = ROOT / suite_name / f"{task.id}.yaml"
    head, _, _ = file.read_text(encoding="utf-8").partition("fail_to_pass:")
    tests = yaml.safe_dump(list(task.fail_to_pass), allow_unicode=True, width=10_000)
    write_atomic(file, f"{head}fail_to_pass:\n{''.join(f'  {line}' for line in tests.splitlines(keepends=True))}")
    suite = load_suite(ROOT, suite_name)
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
    program.leave("admit.py", main)
