"""Run trials of coding agents on this machine and append a stamped row for each to its ledger.

    uv run benchmarks/agent/run.py --trials 3

Without further flags it uses what lab.yaml ships: a small model in a Python package, the client OpenCode, three tasks.
Exit codes: 0 done, 2 a flag, file or field is wrong, 3 refused (the message says why and the cure), 130 interrupted,
141 nobody reads the output any more. Rows are kept however it ends.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from benchmarks.lab import flags, program
from benchmarks.lab.errors import EXIT_DONE, EXIT_INTERRUPTED

if TYPE_CHECKING:
    from benchmarks.agent.planning import Options
    from benchmarks.lab.batch import Bench, Outcome
    from benchmarks.lab.session import Interrupts

PROGRAM = "benchmarks/agent/run.py"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    arguments = tuple(sys.argv[1:] if argv is None else argv)
    return program.answer("run.py", lambda: run(parse(arguments), arguments))


def run(options: Options, arguments: tuple[str, ...]) -> int:
    """Plan, take the machine, execute, report."""
    from benchmarks.agent import display, planning  # noqa: PLC0415 - heavy imports stay out of --help
    from benchmarks.lab import batch, lock  # noqa: PLC0415

    with _interrupts() as interrupts, display.open_watcher(interrupts) as watcher:
        bench = planning.bench(options, PROGRAM, arguments, watcher, interrupts)
        watcher.prefix = planning.prefix(bench)
        with lock.machine_lock(PROGRAM, watcher.say) if options.lock else nullcontext():
            if options.dry_run:
                planning.dry_run(bench)  # it runs suites, which another measurement would feel
                return EXIT_DONE
            outcome = batch.execute(bench)
    return _report(bench, outcome)


def _report(bench: Bench, outcome: Outcome) -> int:
    """How the batch ended, its table, and the pages of this machine made anew."""
    from benchmarks.agent import planning  # noqa: PLC0415
    from benchmarks.lab import machine, paths  # noqa: PLC0415
    from benchmarks.lab.report import blocks, gather, pages, reading, tables  # noqa: PLC0415

    for line in planning.closing_words(bench, outcome):
        print(f"{planning.prefix(bench)} {line}")
    rows = [row for row in reading.read(bench.book.path) if row.batch == outcome.batch or row.kind == "stamp"]
    width = max(60, shutil.get_terminal_size((100, 24)).columns)
    print(blocks.terminal(tables.machine_blocks(gather.gather(bench.machine.id, rows)), width))
    if bench.book.path.resolve() == planning.default_ledger(bench.machine.id).resolve():
        machine.record(bench.machine)
        for path in pages.write_stale(paths.checkout_root()):
            print(f"{planning.prefix(bench)} wrote {path}")
    return EXIT_INTERRUPTED if outcome.interrupted else EXIT_DONE


def parse(arguments: Sequence[str]) -> Options:
    """Flags to `Options`; leaves with code 2 and one sentence on a wrong one."""
    given = _parser().parse_args(arguments)
    from benchmarks.agent.planning import Options  # noqa: PLC0415 - heavy imports stay out of --help

    return Options(
        backends=tuple(given.backend),
        clients=tuple(given.client),
        tasks=tuple(given.task),
        tags=tuple(given.tag),
        trials=given.trials,
        results=given.results,
        require_head=given.require_harness_head,
        dry_run=given.dry_run,
        lock=not given.no_lock,
        smoke=not given.skip_smoke,
        isolation=given.isolation,
        order=given.order,
        stall_seconds=given.stall_seconds,
        fresh=given.fresh,
    )


def _parser() -> argparse.ArgumentParser:
    parser = flags.Parser(
        prog="run.py",
        description="Let coding agents repair real repositories against locally served models, judge the result by the "
        "repositories' own tests, and append one stamped row per trial to this machine's ledger.",
        epilog="An interrupted batch is continued by the same command. Ctrl-C once: finish this trial and stop; "
        "twice: stop now. A closed terminal ends the trial at once; a reader of the output that goes away, or a full "
        "disk under it, is asking once. Exit codes: 0 done, 2 a flag, file or field is wrong, "
        f"{program.CODES}.",
        allow_abbrev=False,
    )
    names: dict[str, Any] = {"action": "append", "default": [], "type": flags.text}
    what = parser.add_argument_group(
        "what to try (each flag may be repeated; the cells are all backends x all clients)"
    )
    what.add_argument("--backend", **names, metavar="NAME", help="entry of lab.yaml or lab.local.yaml")
    what.add_argument("--client", **names, metavar="NAME", help="agent program (docs/clients.md)")
    what.add_argument("--task", **names, metavar="ID", help="task of the suite (benchmarks/agent/tasks)")
    what.add_argument(
        "--tag",
        **names,
        metavar="TAG",
        help="tasks with this tag; without --task and --tag: the starters for a demo backend, else the whole suite",
    )
    what.add_argument(
        "--trials", type=_count, metavar="N", help="trials of each task by each cell (3 is a screening run)"
    )
    how = parser.add_argument_group("how to run")
    how.add_argument(
        "--order",
        choices=("interleaved", "blocked"),
        help="interleaved: cells take turns, so that drift falls on all alike (default); blocked: one after the other",
    )
    how.add_argument(
        "--isolation",
        choices=("bwrap", "seatbelt", "none"),
        help="sandbox of the clients; default: the best this machine has. none exposes your files to the agent",
    )
    how.add_argument("--stall-seconds", type=_seconds, metavar="S", help="end a trial after S seconds without progress")
    how.add_argument("--skip-smoke", action="store_true", help="do not check first that each client works at all")
    how.add_argument("--fresh", action="store_true", help="start a new batch instead of continuing an unfinished one")
    how.add_argument("--no-lock", action="store_true", help="measure beside another measurement; the rows will say so")
    how.add_argument(
        "--dry-run",
        action="store_true",
        help="run the controls, print the plan and an estimate; ask no server, write nothing",
    )
    out = parser.add_argument_group("what is written")
    out.add_argument(
        "--results",
        type=flags.ledger_to_write,
        metavar="PATH",
        help="ledger to append to; default hardware/<machine>/trials.jsonl",
    )
    out.add_argument(
        "--require-harness-head",
        metavar="SHA",
        help="refuse unless the code is this commit, unchanged, from the first trial to the last",
    )
    return parser


def _count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of trials; give a whole number from 1")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return seconds


@contextmanager
def _interrupts() -> Iterator[Interrupts]:
    """What asks the batch to stop; before the first trial the usual KeyboardInterrupt ends the program.

    Ctrl-C and SIGTERM ask for one level more. A closed terminal cannot ask twice, so SIGHUP means now. Lost output asks
    for the first level only: Ctrl-C ends the reader of a pipe as well, and is one wish.
    """
    from benchmarks.lab.session import STOP_NOW, Interrupts  # noqa: PLC0415

    interrupts = Interrupts()

    def stop() -> None:
        if not interrupts.trials_begun:
            raise KeyboardInterrupt("before the first trial")

    def asked(number: int, frame: object) -> None:
        if interrupts.raise_level(time.monotonic()):
            stop()

    def hung_up(number: int, frame: object) -> None:
        interrupts.level = STOP_NOW
        stop()

    def unread(lost: program.OutputLost) -> None:
        when = " when this trial has ended" if interrupts.trials_begun else ""
        program.complain(f"run.py: {str(lost) or 'nobody reads the output any more'}; stopping{when}")
        interrupts.level = max(interrupts.level, 1)
        stop()

    handlers = {signal.SIGINT: asked, signal.SIGTERM: asked, signal.SIGHUP: hung_up}
    with program.handling(handlers), program.when_output_is_lost(unread):
        yield interrupts


if __name__ == "__main__":
    program.leave("run.py", main)
