"""Look at ledgers, retract rows, check files, and delete old evidence. A ledger itself only ever grows.

    uv run scripts/ledger.py list --kind trial --client codex      rows, newest last
    uv run scripts/ledger.py show 01m8q37                          one row with its stamp; ids may be shortened
    uv run scripts/ledger.py retract --client codex --client-version 0.171.0 --reason "..." --document docs/findings.md
    uv run scripts/ledger.py check                                 torn lines, doubled ids, missing stamps
    uv run scripts/ledger.py clean                                 evidence older than `evidence_days` of the lab file
    uv run scripts/ledger.py fields                                the tables of docs/ledger.md

Without --ledger it reads every hardware/*/*.jsonl of this checkout. Exit codes: 0 done, 1 check found something,
2 usage, 3 refused, 130 interrupted, 141 nobody reads the output any more.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.lab import flags, fsio, labfile, ledger, lock, machine, paths, program, rows, series, stamp
from benchmarks.lab.errors import EXIT_DONE, EXIT_FOUND, UsageError
from benchmarks.lab.ledger import Effective, Ledger, Row
from benchmarks.lab.rows import Selector
from benchmarks.lab.text import count, listing, shorten, suggest

DAY_SECONDS = 86_400


@dataclass(frozen=True)
class Found:
    """A marked row, and the file it stands in."""

    path: Path
    marked: Effective


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""

    def work() -> int:
        options = parser().parse_args(argv)
        return int(options.command(options))

    return program.answer("ledger.py", work)


def parser() -> argparse.ArgumentParser:
    """The flags of every command."""
    whole = flags.Parser(prog="ledger.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = whole.add_subparsers(required=True, metavar="list|show|retract|check|clean|fields")
    listed = _command(commands, "list", list_rows, "show rows, one a line")
    _selection(listed)
    listed.add_argument("--kind", type=flags.text, help="only rows of this kind")
    limit = flags.whole(0, 10**9, "rows")
    listed.add_argument(
        "--limit", type=limit, metavar="N", default=50, help="the newest so many, 0 for all (default 50)"
    )
    shown = _command(commands, "show", show_row, "show one row and its stamp as JSON")
    shown.add_argument("id", type=flags.text, help="id of the row, or its beginning")
    _retract_flags(_command(commands, "retract", retract_rows, "say that rows no longer count; nothing is edited"))
    _command(commands, "check", check_files, "find everything that is wrong with the files")
    cleaned = _command(commands, "clean", clean_evidence, "delete old evidence (never a ledger)", ledger_flag=False)
    days = flags.whole(0, labfile.MOST_DAYS, "days")
    cleaned.add_argument(
        "--days", type=days, metavar="N", help="keep so many days (default: `evidence_days` of the lab file)"
    )
    cleaned.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
    _command(commands, "fields", print_fields, "print the tables of docs/ledger.md", ledger_flag=False)
    return whole


def _command(commands: Any, name: str, run: Any, text: str, *, ledger_flag: bool = True) -> argparse.ArgumentParser:
    one: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    one.set_defaults(command=run)
    if ledger_flag:
        one.add_argument(
            "--ledger",
            type=flags.ledger_to_read,
            action="append",
            metavar="PATH",
            help="this file instead of hardware/*/*.jsonl; may be repeated",
        )
    return one


def _retract_flags(one: argparse.ArgumentParser) -> None:
    words = flags.text
    one.add_argument(
        "--id", type=words, action="append", default=[], help="id of a row, or its beginning; may be repeated"
    )
    _selection(one)
    one.add_argument("--reason", type=words, required=True, help="what is wrong with these rows")
    one.add_argument("--document", type=words, help="path or URL that tells the story")
    one.add_argument("--replaced-by", type=words, help="batch, rows or document that replace them")
    one.add_argument("--dry-run", action="store_true", help="only say which rows are meant")


def _selection(one: argparse.ArgumentParser) -> None:
    for field in rows.fields(Selector):
        unit = f" ({field.unit})" if field.unit else ""
        one.add_argument(_flag(field.name), type=flags.text, help=f"{field.meaning}{unit}")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


# ---- commands ----


def list_rows(options: argparse.Namespace) -> int:
    """`list`: one line a row."""
    selector = _selector(options)
    read = {path: tuple(ledger.read(path, program.complain)) for path in _files(options)}
    _check_names(options, read.values())
    shown = []
    for path, every in read.items():
        meant = None if selector is None else set(ledger.resolve(selector, every, retracted=True))
        shown += [
            Found(path, one)
            for one in ledger.effective(every)
            if (meant is None or one.row.id in meant) and options.kind in (None, one.row.kind)
        ]
    shown.sort(key=lambda found: found.marked.row.id)
    for found in shown[-options.limit :] if options.limit > 0 else shown:
        print(_line(found))
    print(f"{count(len(shown), 'row')}{_hidden(len(shown), options.limit)}")
    return EXIT_DONE


def show_row(options: argparse.Namespace) -> int:
    """`show`: a row with what its stamp says and which series it belongs to."""
    found = _find(options.id, list(_every(options)))
    row = found.marked.row
    values = ledger.stamps(ledger.read(found.path)).get(row.stamp or "")
    whole = {
        "file": str(found.path),
        "row": json.loads(ledger.encode(row)),
        "counts": found.marked.counts,
        "retraction": None if found.marked.retracted is None else json.loads(ledger.encode(found.marked.retracted)),
        "stamp": values,
        "series": None if values is None else series.series_id(series.key(row.body, values)),
        "not_publishable_because": None if values is None else stamp.unpublishable(values),
    }
    print(json.dumps(whole, indent=2, ensure_ascii=False))
    return EXIT_DONE


def retract_rows(options: argparse.Namespace) -> int:
    """`retract`: append a retraction to each file that holds rows it means."""
    selector, named = _selector(options), list(options.id)
    if selector is None and not named:
        raise UsageError("name rows with --id, or choose them with --client, --engine, --batch, --since or another")
    chosen = [_find(name, list(_every(options))) for name in named]
    read = {path: tuple(ledger.read(path, program.complain)) for path in _files(options)}
    _check_names(options, read.values())
    meant = {path: _meant(path, every, selector, chosen) for path, every in read.items()}
    if not any(meant.values()):
        raise UsageError("nothing is selected that is not retracted already")
    for path, names in meant.items():
        if names:
            _retract(path, names, selector if not named else None, options)
    return EXIT_DONE


def check_files(options: argparse.Namespace) -> int:
    """`check`: print every problem; exit code 1 when there is one."""
    files = _files(options)
    problems = [problem for path in files for problem in ledger.check(path)]
    for problem in problems:
        print(problem)
    print(f"{count(len(files), 'file')}, {count(len(problems), 'problem')}")
    return EXIT_FOUND if problems else EXIT_DONE


def clean_evidence(options: argparse.Namespace) -> int:
    """`clean`: delete evidence that nothing was written into for so many days; rows keep naming it."""
    lab = labfile.load(*labfile.files(paths.checkout_root()))
    days = lab.evidence_days if options.days is None else options.days
    folder = paths.state_dir() / paths.EVIDENCE
    with lock.machine_lock("scripts/ledger.py clean", program.complain):  # a running trial writes evidence
        old = _older(folder, time.time() - days * DAY_SECONDS)
        if not options.dry_run:
            _remove(old)
    done = "would delete" if options.dry_run else "deleted"
    print(f"{done} {count(len(old), 'folder')} of evidence older than {count(days, 'day')} in {folder}")
    return EXIT_DONE


def print_fields(options: argparse.Namespace) -> int:
    """`fields`: Markdown tables of every kind, as they stand in docs/ledger.md."""
    for name, record in [*rows.KINDS.items(), *((record.__name__, record) for record in rows.nested())]:
        summary = (record.__doc__ or "").splitlines()[0]
        print(f"\n### `{name}`\n\n{summary}\n\n| field | type | unit | meaning |\n|---|---|---|---|")
        for one in rows.fields(record):
            print(f"| `{one.name}` | {one.type} | {one.unit} | {one.words} |")
    print("\n## Keys of the stamp\n\n| key | type | unit | meaning | series |\n|---|---|---|---|---|")
    for name, key in stamp.KEYS.items():
        print(f"| `{name}` | {stamp.TYPE_WORDS[key.type]} | {key.unit} | {key.words} | {key.series} |")
    print("\n## Volatile values\n\n| key | type | unit | meaning |\n|---|---|---|---|")
    for name, key in stamp.VOLATILE.items():
        print(f"| `{name}` | {stamp.TYPE_WORDS[key.type]} | {key.unit} | {key.words} |")
    return EXIT_DONE


# ---- finding ----


def _files(options: argparse.Namespace) -> list[Path]:
    """The ledgers that are meant, each once, whatever it is called."""
    if options.ledger:
        return list({(path.stat().st_dev, path.stat().st_ino): path for path in reversed(options.ledger)}.values())[
            ::-1
        ]
    return sorted((paths.checkout_root() / "hardware").glob("*/*.jsonl"))


def _every(options: argparse.Namespace) -> Iterator[Found]:
    for path in _files(options):
        yield from (Found(path, one) for one in ledger.effective(ledger.read(path, program.complain)))


def _find(name: str, every: Sequence[Found]) -> Found:
    fitting = [found for found in every if found.marked.row.id.startswith(name)]
    if not fitting:
        raise UsageError(f"no row has an id that begins with {name}; `ledger.py list` shows them")
    if len(fitting) > 1:
        raise UsageError(
            f"{name} is the beginning of {listing(found.marked.row.id for found in fitting)}: give more of it"
        )
    return fitting[0]


def _selector(options: argparse.Namespace) -> Selector | None:
    given = {field: getattr(options, field) for field in Selector.__struct_fields__}
    return Selector(**given) if any(value is not None for value in given.values()) else None


def _meant(path: Path, every: Sequence[Row], selector: Selector | None, chosen: Sequence[Found]) -> tuple[str, ...]:
    named = tuple(found.marked.row.id for found in chosen if found.path == path)
    selected = () if selector is None else ledger.resolve(selector, every)
    return tuple(dict.fromkeys((*named, *selected)))


def _check_names(options: argparse.Namespace, read: Iterable[Sequence[Row]]) -> None:
    """UsageError for a name that no row here has: it is a slip more often than a question."""
    known = _names(read)
    for name, there in known.items():
        wanted = getattr(options, name, None)
        if wanted is not None and wanted not in there:
            has = f"there are {listing(sorted(there), 12)}" if there else "none has one"
            raise UsageError(f'{_flag(name)}: no row has "{wanted}"{suggest(wanted, there)}; {has}')


def _names(read: Iterable[Sequence[Row]]) -> dict[str, set[str]]:
    """What each flag that takes a whole name may say: values of rows, of their stamps, and kinds."""
    body, stamped = ("task", "backend", "client"), ("client_version", "engine", "engine_version")
    known: dict[str, set[str]] = {name: set() for name in ("batch", *body, *stamped)} | {"kind": set(rows.KINDS)}
    for row in (row for every in read for row in every):
        values = row.body.get("values", {}) if row.kind == "stamp" else {}
        pairs = [("kind", row.kind), ("batch", row.batch), *((name, row.body.get(name)) for name in body)]
        for name, value in (*pairs, *((name, values.get(name)) for name in stamped)):
            if isinstance(value, str):
                known[name].add(value)
    return known


def _retract(path: Path, names: tuple[str, ...], selector: Selector | None, options: argparse.Namespace) -> None:
    body = ledger.retraction(
        ledger.read(path),
        ids=names if selector is None else (),
        selector=selector,
        reason=options.reason,
        document=options.document,
        replaced_by=options.replaced_by,
    )
    print(
        f"{path}: {'would retract' if options.dry_run else 'retracted'} {count(len(names), 'row')}: {listing(names, 8)}"
    )
    if not options.dry_run:
        Ledger(path, program.complain).append("retraction", body, machine=machine.describe().id)


def _older(folder: Path, before: float) -> list[Path]:
    """What lies at evidence/<machine>/<batch>/<trial>, last written before `before` (seconds since the epoch)."""
    return [entry for entry in sorted(folder.glob("*/*/*")) if max(_times(entry)) < before]


def _times(entry: Path) -> Iterator[float]:
    yield entry.lstat().st_mtime
    if entry.is_dir() and not entry.is_symlink():
        yield from (inner.lstat().st_mtime for inner in entry.iterdir())


def _remove(entries: Sequence[Path]) -> None:
    for entry in entries:
        fsio.remove_tree(entry)
    for batch in {entry.parent for entry in entries}:
        if not any(batch.iterdir()):
            batch.rmdir()


# ---- showing ----


def _line(found: Found) -> str:
    row, body = found.marked.row, found.marked.row.body
    state = "retracted" if found.marked.retracted else "duplicate" if found.marked.duplicate_of else ""
    what = " ".join(str(body[name]) for name in ("task", "backend", "client", "check", "control") if body.get(name))
    outcome = body.get("cause") or body.get("reason") or body.get("outcome") or ""
    words = (row.id, row.at[:19], row.kind, what, body.get("verdict") or "", outcome, state)
    return shorten("  ".join(str(word) for word in words if word), 200)


def _hidden(total: int, limit: int) -> str:
    return f", the newest {limit} shown (--limit 0 for all)" if 0 < limit < total else ""


if __name__ == "__main__":
    program.leave("ledger.py", main)
