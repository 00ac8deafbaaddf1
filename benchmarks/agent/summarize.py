"""What the recorded trials say, per task and cell: passed of counted with intervals, times, causes.

    uv run benchmarks/agent/summarize.py                      # this machine's trials
    uv run benchmarks/agent/summarize.py --client codex --json
    uv run benchmarks/agent/summarize.py --write              # RESULTS.md of every machine, and the index
    uv run benchmarks/agent/summarize.py --check              # exit 1 if one of them is not what the ledgers give

It runs nothing and ranks nothing. Exit codes: 0 done, 1 pages differ (--check), 2 usage, 3 unreadable ledger or
unwritable output, 130 interrupted, 141 nobody reads the output any more.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.lab import flags, program
from benchmarks.lab.errors import EXIT_DONE, EXIT_FOUND, UsageError
from benchmarks.lab.model import Record
from benchmarks.lab.paths import checkout_root
from benchmarks.lab.rows import TrialRow
from benchmarks.lab.text import count, listing, suggest


class Query(Record, frozen=True, kw_only=True):
    """What a person asked to see. Empty tuples: everything."""

    ledger: Path
    machine: str
    task: tuple[str, ...]
    client: tuple[str, ...]
    backend: tuple[str, ...]

    def wants(self, row: TrialRow) -> bool:
        """Whether a trial is asked for."""
        asked = ((self.task, row.task), (self.client, row.client), (self.backend, row.backend))
        return all(not wanted or value in wanted for wanted, value in asked)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse flags, read the ledger, show or write; the exit code."""
    return program.answer("summarize.py", lambda: _main(_parser().parse_args(argv)))


def _main(args: argparse.Namespace) -> int:
    if args.write or args.check:
        _refuse_selection(args)
        return _pages(checkout_root(), write=args.write)
    return _show(_query(args, checkout_root()), "json" if args.json else "markdown" if args.markdown else "text")


# ---- showing ----


def _show(query: Query, form: str) -> int:
    from benchmarks.lab import ledger, stamp  # noqa: PLC0415 - `--help` need not wait for them
    from benchmarks.lab.report import blocks, figures, gather, pages, plain, reading, tables  # noqa: PLC0415

    rows = reading.read(query.ledger, lambda note: program.complain(f"summarize.py: {note}"))
    own = pages.by_machine(query.machine, rows).get(query.machine, [])
    _check_names(query, [ledger.trial(row) for row in own if row.kind == "trial"])
    gathered = gather.gather(query.machine, own, query.wants)
    computed = [figures.figures(section) for section in gathered.sections]
    if form == "json":
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(plain.plain(gathered, computed))).decode() + "\n")
        return EXIT_DONE
    prefix = stamp.prefix(stamp.code(), _label(query))
    trials = sum(row.kind == "trial" for row in own)
    head = blocks.Paragraph(text=f"{prefix} {count(trials, 'trial')} in {query.ledger}")
    report: list[blocks.Block] = [head, *tables.machine_blocks(gathered, computed)]
    width = max(60, shutil.get_terminal_size((100, 24)).columns)
    sys.stdout.write(blocks.markdown(report) if form == "markdown" else blocks.terminal(report, width))
    return EXIT_DONE


def _check_names(query: Query, rows: Sequence[TrialRow]) -> None:
    for flag, wanted, known in (
        ("--task", query.task, {row.task for row in rows}),
        ("--client", query.client, {row.client for row in rows}),
        ("--backend", query.backend, {row.backend for row in rows}),
    ):
        for name in wanted:
            if name not in known:
                there = f"there are {listing(sorted(known), 12)}" if known else "it has no trials"
                raise UsageError(f'{flag}: {query.ledger} has no trial of "{name}"{suggest(name, known)}; {there}')


def _label(query: Query) -> str:
    from benchmarks.lab import machine  # noqa: PLC0415
    from benchmarks.lab.report import pages  # noqa: PLC0415

    here = machine.describe()
    unwritten = here.label if here.id == query.machine else query.machine
    return pages.about(checkout_root() / "hardware" / query.machine).label or unwritten


# ---- pages ----


def _pages(root: Path, *, write: bool) -> int:
    from benchmarks.lab.report import pages  # noqa: PLC0415

    stale = pages.write_stale(root) if write else tuple(pages.stale(root))
    for path in stale:
        sys.stdout.write(f"{'wrote' if write else 'differs from the ledgers:'} {path.relative_to(root)}\n")
    if not stale:
        sys.stdout.write("every results page is what the ledgers give\n")
    elif not write:
        sys.stdout.write("`uv run benchmarks/agent/summarize.py --write` makes them anew\n")
    return EXIT_FOUND if stale and not write else EXIT_DONE


# ---- flags ----


def _refuse_selection(args: argparse.Namespace) -> None:
    """The pages are of all ledgers below hardware/: a selection would be passed over in silence."""
    for name in ("results", "machine", "task", "client", "backend"):
        if getattr(args, name):
            raise UsageError(f"--{name}: --write and --check take all ledgers below hardware/; leave it out")


def _query(args: argparse.Namespace, root: Path) -> Query:
    machine, ledger = _source(args, root / "hardware")
    return Query(
        ledger=ledger,
        machine=machine,
        task=tuple(args.task),
        client=tuple(args.client),
        backend=tuple(args.backend),
    )


def _source(args: argparse.Namespace, hardware: Path) -> tuple[str, Path]:
    """The machine and the ledger that are meant: --results, --machine, else this machine's own."""
    from benchmarks.lab import machine  # noqa: PLC0415
    from benchmarks.lab.report import pages, reading  # noqa: PLC0415

    if args.results is not None:
        names = list(dict.fromkeys(row.machine for row in reading.read(args.results) if row.kind == "trial"))
        return _one_of(args.machine, names, args.results), args.results
    known = {path.parent.name for path in hardware.glob(f"*/{pages.TRIALS}")}
    labels = {pages.about(hardware / name).label or name: name for name in known}
    wanted = labels.get(args.machine, args.machine) or machine.describe().id
    if wanted not in known:
        if args.machine is None:
            others = f"; --machine shows one of {listing(sorted(known))}" if known else ""
            raise UsageError(f"no trial is recorded on this machine yet: `uv run benchmarks/agent/run.py`{others}")
        raise UsageError(f'--machine: "{wanted}" has no ledger{suggest(wanted, {*known, *labels})}')
    return wanted, hardware / wanted / pages.TRIALS


def _one_of(wanted: str | None, names: Sequence[str], path: Path) -> str:
    if wanted is None and len(names) > 1:
        raise UsageError(f"--machine: {path} has rows of {listing(names)}, which are never pooled; name one")
    if wanted is not None and wanted not in names:
        raise UsageError(f'--machine: {path} has no trial of "{wanted}"{suggest(wanted, names)}')
    return wanted or (names[0] if names else "unknown")


def _parser() -> argparse.ArgumentParser:
    parser = flags.Parser(
        prog="summarize.py",
        description="Show what the recorded trials say, per task and cell: rates with intervals, times, causes.",
        epilog="What each figure means: docs/methodology.md. Exit codes: 0 done, 1 pages differ (--check), 2 a flag or "
        f"file is wrong, {program.CODES}.",
    )
    parser.add_argument(
        "--results", metavar="PATH", type=flags.ledger_to_read, help="a ledger; default: this machine's trials.jsonl"
    )
    parser.add_argument(
        "--machine", metavar="ID", type=flags.text, help="a folder below hardware/, or its label; default: this machine"
    )
    for name, what in (("task", "task id"), ("client", "client"), ("backend", "backend")):
        parser.add_argument(
            f"--{name}",
            metavar="NAME",
            action="append",
            default=[],
            type=flags.text,
            help=f"only this {what}; repeat for more",
        )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="every figure, unrounded, null where it is not known")
    form.add_argument("--markdown", action="store_true", help="the report as Markdown")
    form.add_argument("--write", action="store_true", help="write RESULTS.md of every machine, and the index")
    form.add_argument("--check", action="store_true", help="exit 1 if a RESULTS.md is not what the ledgers give")
    return parser


if __name__ == "__main__":
    program.leave("summarize.py", main)
