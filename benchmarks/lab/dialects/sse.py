"""Server-sent events from bytes that arrive in any pieces (WHATWG HTML, "Server-sent events").

Covers LF, CRLF and CR line ends, comments, several `data:` lines, splits inside a UTF-8 character or a field name.
Does not decode: data stays bytes. `id` and `retry` mean nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass

EVENT_LIMIT = 8 << 20  # bytes of one event; a longer one is skipped, since memory must stay bounded

Event = tuple[str, bytes]  # name ("" if not given) and data


@dataclass(slots=True)
class EventStream:
    """The unread rest between two pieces."""

    _rest: bytes = b""
    _skipping: bool = False
    skipped: int = 0  # events longer than `EVENT_LIMIT`

    def feed(self, piece: bytes) -> list[Event]:
        """The events that `piece` completes, in order."""
        held = self._rest + piece
        if b"\r" in held:
            # A CR at the very end may be half of a CRLF: it waits for the next piece.
            tail = held.endswith(b"\r")
            held = held[: len(held) - tail].replace(b"\r\n", b"\n").replace(b"\r", b"\n") + b"\r" * tail
        *blocks, self._rest = held.split(b"\n\n")
        if self._skipping and blocks:
            blocks, self._skipping = blocks[1:], False
        if len(self._rest) > EVENT_LIMIT or self._skipping:
            self.skipped += not self._skipping
            self._skipping, self._rest = True, self._rest[-1:]
        return [event for block in blocks if (event := _event(block)) is not None]

    def finish(self) -> list[Event]:
        """A last event that lacks its blank line: engines were seen to stop after `data: [DONE]`."""
        block, self._rest = self._rest.rstrip(b"\r\n"), b""
        event = None if self._skipping else _event(block)
        return [] if event is None else [event]


def _event(block: bytes) -> Event | None:
    name, data = "", []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ").decode(errors="replace")
    return (name, b"\n".join(data)) if data else None
