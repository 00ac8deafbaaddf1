"""What every adapter needs to read a client's output: JSON events out of lines, safe look-ups, an error's kind.

Lines are split on LF only, by whoever made them: Unicode separators occur inside strings. A line that is not a JSON
object is counted and skipped. Nothing here raises for what a client prints. It knows no client and no file format but
"one JSON object per line".
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec.structs import replace

from benchmarks.lab.model import Artifacts, ClientEndpoint, ClientErrorKind, ClientReport, Tokens

Event = Mapping[str, Any]

WORDS_KEPT: Final = 4000  # characters of a message or an error that a report keeps
_DEFAULT_CAP: Final = 8192
_NOTES_KEPT: Final = 20
_STDERR_LINES: Final = 5
_ABSURD: Final = 10**12

# The first that fits decides: a status of 400 is a provider's only if its words say nothing better.
_KINDS: Final[Mapping[ClientErrorKind, str]] = {
    "loop": r"loop detect|doom.?loop|consecutive_identical_tool_calls",
    "context": r"context.?(size|length|window|overflow)|prompt (is )?too (long|large)|exceed_context|maximum context"
    r"|too many (input )?tokens",
    "sandbox": r"codex-linux-sandbox|sandbox (error|denied|failed|is not available)",
    "permission": r"rejected permission|permission (denied|to use)|not allowed to use",
    "connection": r"connection.{0,20}(refused|failed|error|reset|closed)|waiting for network|econn|unable to connect"
    r"|fetch failed|network error|socket (hang up|connection)|error sending request|stream disconnected",
    "format": r"invalid tool|tool (call )?arguments|edit format|json parsing failed",
    "provider": r"\b[45]\d\d\b|internal ?server ?error|server_error|high demand|overloaded|rate.?limit|api.?error"
    r"|bad ?gateway|(service|temporarily) ?unavailable|exception",
}


class Events:
    """The JSON objects of a line stream, in order; `garbage` counts the other non-empty lines met so far."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = lines
        self.garbage = 0

    def __iter__(self) -> Iterator[Event]:
        for line in self._lines:
            if not line.strip():
                continue
            event = _object(line)
            if event is None:
                self.garbage += 1
            else:
                yield event

    def notes(self) -> tuple[str, ...]:
        """One note saying how many lines were skipped, or none."""
        return (f"{self.garbage} lines of its output are not JSON objects",) if self.garbage else ()


def report_of(artifacts: Artifacts, take: Callable[[ClientReport, Event], ClientReport]) -> ClientReport:
    """What the events on stdout come to, each taken into the report in its turn, with a note on lines that are none."""
    events = Events(artifacts.stdout())
    report = ClientReport()
    for event in events:
        report = take(report, event)
    return noted(report, *events.notes())


def at(value: object, *path: str | int) -> Any:
    """The value at a path of keys and list positions, None where the path does not exist."""
    for step in path:
        if isinstance(step, str):
            if not isinstance(value, Mapping):
                return None
            value = value.get(step)
        else:
            if not isinstance(value, list) or not -len(value) <= step < len(value):
                return None
            value = value[step]
    return value


def text(value: object, *path: str | int) -> str | None:
    """The non-empty string at a path, bounded, lone surrogates replaced; else None."""
    found = at(value, *path)
    return found[:WORDS_KEPT].encode(errors="replace").decode() if isinstance(found, str) and found else None


def count(value: object, *path: str | int) -> int | None:
    """The non-negative whole number at a path, if it can be a count of anything here; else None."""
    found = at(value, *path)
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < _ABSURD else None


def items(value: object, *path: str | int) -> list[Any]:
    """The list at a path; empty where there is none."""
    found = at(value, *path)
    return found if isinstance(found, list) else []


def add(a: int | None, b: int | None) -> int | None:
    """Sum of two counts of which either may be unknown; unknown only if both are."""
    return b if a is None else a if b is None else a + b


def add_tokens(a: Tokens | None, b: Tokens | None) -> Tokens | None:
    """Sum of what two exchanges cost, field by field."""
    if a is None or b is None:
        return a or b
    return Tokens(**{name: add(getattr(a, name), getattr(b, name)) for name in Tokens.__struct_fields__})


def usage(
    *,
    total: int | None = None,
    cached: int | None = None,
    new: int | None = None,
    output: int | None = None,
    reasoning: int | None = None,
) -> Tokens | None:
    """Normalised tokens from what a client tells: `total` includes the cached ones, `new` does not; give one of them.

    Zero throughout is a placeholder of calls that failed, hence unknown.
    """
    if total is None and new is not None:
        total = new + (cached or 0)
    if new is None and total is not None and cached is not None and cached <= total:
        new = total - cached
    if not any((total, cached, new, output, reasoning)):
        return None
    return Tokens(prompt_total=total, prompt_cached=cached, prompt_new=new, output=output, reasoning=reasoning)


def noted(report: ClientReport, *notes: str) -> ClientReport:
    """The report with further notes, each once, at most 20."""
    fresh = [note for note in dict.fromkeys(notes) if note not in report.notes]
    return replace(report, notes=(*report.notes, *fresh)[:_NOTES_KEPT]) if fresh else report


def filled(report: ClientReport, default: ClientReport) -> ClientReport:
    """The report with what it does not know taken from `default`."""
    unknown = {name: getattr(default, name) for name in report.__struct_fields__ if getattr(report, name) is None}
    return replace(report, **unknown)


def last_words(report: ClientReport, artifacts: Artifacts) -> ClientReport:
    """For a client that left with a code but no event saying why: the end of what it wrote on stderr, as its error."""
    if report.terminal is not None or report.error is not None or artifacts.exit.code in (None, 0):
        return report
    told = deque((line.strip() for line in artifacts.stderr() if line.strip()), maxlen=_STDERR_LINES)
    words = "\n".join(told)[:WORDS_KEPT] or None
    return replace(report, error=words, error_kind=error_kind(words))


def error_kind(words: str | None) -> ClientErrorKind | None:
    """The kind of an error from the client's own words; `other` if they fit no kind, None without words."""
    if words is None:
        return None
    return next((kind for kind, pattern in _KINDS.items() if re.search(pattern, words, re.IGNORECASE)), "other")


def output_cap(endpoint: ClientEndpoint) -> int | None:
    """Output tokens per reply to tell a client that must be told: the declared cap, else what a known context bears.

    Clients assume up to 32,000 by themselves, which leaves nothing of a 32k context to work in.
    """
    if endpoint.output_cap is not None or endpoint.context is None:
        return endpoint.output_cap
    return min(_DEFAULT_CAP, endpoint.context // 4)


def _object(line: str) -> Event | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
