"""Check this installation: every fault script of the scripted engine, through every client, against docs/verdicts.md.

    uv run benchmarks/agent/check.py                               # all scripts, all clients of the table
    uv run benchmarks/agent/check.py --client codex --script stall

Runs on one starter task with small budgets; writes its rows into a ledger of its own. After the batch it looks for what
must not be there: a process that carries a trial's mark, a file written outside the workspace.
Exit codes: 0 all as the table says, 1 something differs, 2 usage, 3 refused, 130 interrupted, 141 nobody reads the
output any more.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import re
import tempfile
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import psutil

from benchmarks.agent import display, planning
from benchmarks.lab import batch, flags, ledger, lock, paths, proc, program
from benchmarks.lab.engines.scripted.scripts import ESCAPE_NAME
from benchmarks.lab.errors import EXIT_DONE, EXIT_FOUND, UsageError
from benchmarks.lab.rows import TrialRow
from benchmarks.lab.schedule import Cell
from benchmarks.lab.session import Interrupts
from benchmarks.lab.text import count, suggest

PROGRAM: Final = "benchmarks/agent/check.py"
TABLE: Final = "docs/verdicts.md"
NOT_APPLICABLE: Final = "n/a"
# Small, so that the scripts that never end end soon; a client's own start must still fit into the stall limit, and an
# edit that aider is given as text into the tokens (`wrong` takes 6,500 on toolz).
STALL_SECONDS: Final = 15.0
LIMITS: Final = {"stall_seconds": STALL_SECONDS, "wall_seconds": 120.0, "output_tokens": 8000, "turns": 40}
# Where the `escape` script writes to, as far as it could be reached from a sandbox that leaks.
ESCAPES: Final = ("/tmp", "/var/tmp", "/etc", "/usr/local", "/home")

Expected = dict[tuple[str, str], str]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the check; returns the exit code."""
    return program.answer("check.py", lambda: _main(_parser().parse_args(argv)))


def _main(given: argparse.Namespace) -> int:
    expected = chosen(read_table(paths.checkout_root() / TABLE), given.client, given.script)
    with (
        program.when_output_is_lost(_stop),
        tempfile.TemporaryDirectory(prefix="local-lab-check-") as folder,
    ):
        differing = list(check(expected, Path(folder) / "trials.jsonl", given.task, locked=not given.no_lock))
    for line in differing:
        print(f"differs: {line}")
    print(f"{count(len(expected), 'case')}, {len(differing)} differ from {TABLE}")
    return EXIT_FOUND if differing else EXIT_DONE


def _stop(lost: program.OutputLost) -> None:
    raise KeyboardInterrupt  # which nothing takes for a failure of the trial under way


def _parser() -> argparse.ArgumentParser:
    parser = flags.Parser(
        prog="check.py",
        description="Play every fault script of the scripted engine through every client, on one task, and compare the "
        "verdicts with docs/verdicts.md. A client takes some minutes and is installed if need be.",
        epilog=f"Exit codes: 0 as the table says, 1 something differs, 2 a flag is wrong, {program.CODES}.",
    )
    for name in ("client", "script"):
        parser.add_argument(
            f"--{name}",
            action="append",
            default=[],
            type=flags.text,
            metavar="NAME",
            help=f"only this {name} of the table; may be repeated",
        )
    parser.add_argument("--task", type=flags.text, metavar="ID", help="task to use; default: the first starter")
    parser.add_argument("--no-lock", action="store_true", help="run beside a measurement (and disturb it)")
    return parser


def check(expected: Expected, results: Path, task: str | None, *, locked: bool) -> Iterator[str]:
    """Run all cases as one batch and yield a line for everything that is not as the table says."""
    outcome = _run(expected, results, task, locked=locked)
    for name, why in outcome.left_out.items():
        yield f"{name} was left out: {why}"
    rows = {(row.backend.partition(":")[2], row.client): row for row in _rows(results)}
    for case, wanted in expected.items():
        seen = describe(rows[case]) if case in rows else "no row"
        if seen != wanted:
            detail = rows[case].detail if case in rows else None
            yield f"{case[0]} x {case[1]}: expected {wanted}, seen {seen}{f' ({detail})' if detail else ''}"
    yield from leftovers({f"trial-{row.id}" for row in ledger.read(results)})


def describe(row: TrialRow) -> str:
    """A row in the words of the table: `passed`, `failed no_edit (model)`, `void model_mismatch`, flags in brackets."""
    words = [row.verdict, row.cause or row.reason or "", f"({row.who})" if row.who else ""]
    flags = f"[{', '.join(row.flags)}]" if row.flags else ""
    return " ".join(word for word in (*words, flags) if word)


def read_table(path: Path) -> Expected:
    """(script, client) -> expected words, cases that do not apply left out. UsageError for a table that is none."""
    rows = [
        [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("|") and not re.fullmatch(r"[|\s:-]+", line)
    ]
    head = next((row for row in rows if row[0] == "script"), None)
    if head is None:
        raise UsageError(f"{path}: there is no table whose first column is `script`")
    body = [row for row in rows[rows.index(head) + 1 :] if len(row) == len(head)]
    return {
        (row[0], client): words
        for row in body
        for client, words in zip(head[1:], row[1:], strict=True)
        if words != NOT_APPLICABLE
    }


def chosen(expected: Expected, clients: Sequence[str], scripts: Sequence[str]) -> Expected:
    """The cases asked for; UsageError naming the flag for one that the table does not have."""
    for flag, names, known in (
        ("--script", scripts, {script for script, _ in expected}),
        ("--client", clients, {client for _, client in expected}),
    ):
        for name in names:
            if name not in known:
                raise UsageError(f"{flag} {name}: {TABLE} has no such entry{suggest(name, known)}")
    return {
        (script, client): words
        for (script, client), words in expected.items()
        if (not scripts or script in scripts) and (not clients or client in clients)
    }


def leftovers(marks: Container[str]) -> Iterator[str]:
    """What must not be there afterwards: processes with the mark of one of these trials, escaped files."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(proc.MARKER) in marks:
                yield f"process {process.pid} ({process.name()}) of a trial is still there"
        except psutil.Error:
            continue
    for folder in ESCAPES:
        if (Path(folder) / ESCAPE_NAME).exists():
            yield f"the escape script wrote {folder}/{ESCAPE_NAME}"


def _run(expected: Expected, results: Path, task: str | None, *, locked: bool) -> batch.Outcome:
    cells = tuple(Cell(backend=f"scripted:{script}", client=client) for script, client in expected)
    options = planning.Options(
        backends=tuple(dict.fromkeys(cell.backend for cell in cells)),
        clients=tuple(dict.fromkeys(cell.client for cell in cells)),
        tasks=(task,) if task else (),
        tags=() if task else ("starter",),
        trials=1,
        results=results,
        lock=locked,
        smoke=False,
        fresh=True,
    )
    interrupts = Interrupts()  # never raised: Ctrl-C ends a check at once, for its rows are not kept
    with display.open_watcher(interrupts) as watcher:
        bench = planning.bench(options, PROGRAM, (), watcher, interrupts)
        watcher.prefix = planning.prefix(bench)
        small = {tier: msgspec.structs.replace(one, **LIMITS) for tier, one in bench.plan.budgets.items()}
        plan = msgspec.structs.replace(
            bench.plan, budgets=small, tasks=bench.plan.tasks[:1], cells=cells, void_reruns=0
        )
        bench = dataclasses.replace(bench, plan=plan)
        with lock.machine_lock(PROGRAM, watcher.say) if locked else contextlib.nullcontext():
            return batch.execute(bench)


def _rows(results: Path) -> Iterator[TrialRow]:
    for row in ledger.read(results):
        if row.kind == "trial":
            yield ledger.trial(row)


if __name__ == "__main__":
    program.leave("check.py", main)
