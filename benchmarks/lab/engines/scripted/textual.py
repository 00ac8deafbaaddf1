"""Replies in aider's edit formats, for a client that offers no tools: whole files, and SEARCH/REPLACE blocks.

The format is the one that the client's own system prompt describes; the present text of a file is read from the
request, where aider puts it between fences. Formats: aider 0.86 (`aider/coders/*_prompts.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

from benchmarks.lab.engines.scripted.talk import Conversation

EditFormat = Literal["diff", "whole"]
FENCES: Final = ("````", "```")


def edit_format(conversation: Conversation) -> EditFormat | None:
    """The edit format that the system prompt asks for, or None for any other request without tools."""
    if conversation.tools:
        return None
    if "SEARCH/REPLACE" in conversation.system:
        return "diff"
    if "file listing" in conversation.system:
        return "whole"
    return None


def edits(conversation: Conversation, files: Mapping[str, bytes]) -> str:
    """A reply that gives every file of `files` its new content."""
    form = edit_format(conversation)
    blocks = []
    for path, content in files.items():
        shown = _shown(conversation, path)
        fence = shown[0] if shown else "```"
        new = content.decode("utf-8", "surrogateescape")
        blocks.append(_whole(path, fence, new) if form == "whole" else _block(path, fence, shown and shown[1], new))
    return "Here are the changes.\n\n" + "\n".join(blocks)


def _whole(path: str, fence: str, new: str) -> str:
    return f"{path}\n{fence}\n{_closed(new)}{fence}\n"


def _block(path: str, fence: str, old: str | None, new: str) -> str:
    """One SEARCH/REPLACE block; an empty SEARCH makes a new file."""
    before, after = _difference(old, _closed(new)) if old else ("", _closed(new))
    return f"{path}\n{fence}\n<<<<<<< SEARCH\n{before}=======\n{after}>>>>>>> REPLACE\n{fence}\n"


def _difference(old: str, new: str) -> tuple[str, str]:
    """The smallest run of lines that holds every change and, in `old`, stands only once."""
    mine, theirs = old.splitlines(keepends=True), new.splitlines(keepends=True)
    start = 0
    while start < min(len(mine), len(theirs)) and mine[start] == theirs[start]:
        start += 1
    end = 0
    while end < min(len(mine), len(theirs)) - start and mine[-1 - end] == theirs[-1 - end]:
        end += 1
    while start > 0 or end > 0:
        part = "".join(mine[start : len(mine) - end])
        if part.strip() and old.count(part) == 1:
            break
        start, end = max(0, start - 1), max(0, end - 1)
    return "".join(mine[start : len(mine) - end]), "".join(theirs[start : len(theirs) - end])


def _shown(conversation: Conversation, path: str) -> tuple[str, str] | None:
    """Fence and present text of `path` as the newest request text shows it."""
    for text in reversed(conversation.users):
        for fence in FENCES:
            found = re.search(rf"^{re.escape(path)}\n{fence}[^`\n]*\n(.*?)^{fence}$", text, re.DOTALL | re.MULTILINE)
            if found:
                return fence, found.group(1)
    return None


def _closed(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"
