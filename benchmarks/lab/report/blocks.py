"""A report as data - headings, paragraphs, lists, tables - and its two renderings: Markdown and plain terminal text.

Entries of a table are text; a newline inside one is a line break. It knows nothing of what is reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from textwrap import TextWrapper

from benchmarks.lab.model import Record


class Heading(Record, frozen=True, kw_only=True):
    """A heading; level 1 is the page's."""

    level: int
    text: str


class Paragraph(Record, frozen=True, kw_only=True):
    """Running text; inline Markdown (code, links) is left as it is on a terminal."""

    text: str


class Bullets(Record, frozen=True, kw_only=True):
    """A list of sentences."""

    items: tuple[str, ...]


class Table(Record, frozen=True, kw_only=True):
    """A table. `of` says what it is a table of (tasks, n, dates, versions, head); `notes` stand below it."""

    title: str
    of: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


Block = Heading | Paragraph | Bullets | Table


# ---- Markdown ----


def markdown(blocks: Iterable[Block]) -> str:
    """The report as one Markdown document, ending in a newline."""
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def _markdown(block: Block) -> str:
    match block:
        case Heading(level=level, text=text):
            return f"{'#' * level} {text}"
        case Paragraph(text=text):
            return text
        case Bullets(items=items):
            return "\n".join(f"- {item}" for item in items)
        case Table():
            return _markdown_table(block)


def _markdown_table(table: Table) -> str:
    lines = [
        _markdown_row(table.columns),
        "|" + "---|" * len(table.columns),
        *(_markdown_row(row) for row in table.rows),
    ]
    parts = [f"**{table.title}** ({table.of})" if table.of else f"**{table.title}**", "\n".join(lines)]
    return "\n\n".join((*parts, *table.notes))


def _markdown_row(entries: Sequence[str]) -> str:
    return "| " + " | ".join(entry.replace("|", "\\|").replace("\n", "<br>") for entry in entries) + " |"


# ---- terminal ----

GAP = 2


def terminal(blocks: Iterable[Block], width: int = 100) -> str:
    """The report as plain text. Tables too wide for `width` columns are written as one list per row."""
    return "\n\n".join(_plain(block, width) for block in blocks) + "\n"


def _wrapped(text: str, width: int, indent: str = "") -> str:
    """The text on lines of `width`; a path or a flag is not cut, so that it can be copied."""
    return TextWrapper(width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False).fill(text)


def _plain(block: Block, width: int) -> str:
    match block:
        case Heading(level=level, text=text):
            return text if level > 2 else f"{text}\n{('=' if level == 1 else '-') * len(text)}"
        case Paragraph(text=text):
            return _wrapped(text, width)
        case Bullets(items=items):
            return "\n".join(_wrapped(f"- {item}", width, "  ") for item in items)
        case Table():
            return _plain_table(block, width)


def _plain_table(table: Table, width: int) -> str:
    head = _wrapped(f"{table.title} ({table.of})" if table.of else table.title, width)
    body = _grid(table) if sum(_widths(table)) + GAP * (len(table.columns) - 1) <= width else _listed(table)
    notes = [_wrapped(note, width) for note in table.notes]
    return "\n".join((head, *body, *([""] if notes else []), *notes))


def _widths(table: Table) -> list[int]:
    return [
        max(len(line) for entry in column for line in entry.split("\n")) for column in zip(*_all(table), strict=True)
    ]


def _all(table: Table) -> tuple[tuple[str, ...], ...]:
    return (table.columns, *table.rows)


def _grid(table: Table) -> list[str]:
    widths = _widths(table)
    tall = any("\n" in entry for row in table.rows for entry in row)
    lines = [*_grid_row(table.columns, widths), (" " * GAP).join("─" * size for size in widths)]
    for row in table.rows:
        lines += _grid_row(row, widths)
        if tall and row is not table.rows[-1]:
            lines.append("")
    return lines


def _grid_row(entries: Sequence[str], widths: Sequence[int]) -> list[str]:
    stacked = zip_longest(*(entry.split("\n") for entry in entries), fillvalue="")
    pad: Callable[[tuple[str, int]], str] = lambda pair: pair[0].ljust(pair[1])  # noqa: E731
    return [(" " * GAP).join(map(pad, zip(line, widths, strict=True))).rstrip() for line in stacked]


def _listed(table: Table) -> list[str]:
    lines = []
    for row in table.rows:
        lines.append(row[0].replace("\n", " "))
        names = zip(table.columns[1:], row[1:], strict=True)
        lines += [f"    {name.replace(chr(10), ' ')}: {_in_line(entry)}" for name, entry in names if entry]
    return lines


def _in_line(entry: str) -> str:
    """An entry's lines as one; a line that goes on with × or a bracket belongs to the one before."""
    return re.sub(r"\n(?=[×(])", " ", entry).replace("\n", " · ")
