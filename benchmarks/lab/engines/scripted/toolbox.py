"""Finds the client's shell or file-writing tool by its shape, and writes calls to it.

Names and schemas differ between clients and change weekly, so a tool is known by what it takes: a command, or a path
and a content. A file is written packed and in base64, so that any bytes survive any quoting.
"""

from __future__ import annotations

import base64
import gzip
import json
import posixpath
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from benchmarks.lab.engines.scripted.talk import Call, Tool

COMMAND_KEYS: Final = ("command", "cmd", "script", "commands")
CONTENT_KEYS: Final = ("content", "contents", "file_text", "text")
PATH_KEYS: Final = ("file_path", "filePath", "path", "filename", "absolute_path")
SHELL_WORDS: Final = ("bash", "shell", "exec", "terminal", "command", "run")
WRITE_WORDS: Final = ("write", "create")
CHUNK_BYTES: Final = 60_000  # packed, in one command: 80 kB of base64, below Linux's 128 KiB an argument; 3 divides it


def shell(tools: Sequence[Tool]) -> Tool | None:
    """The tool that runs a command, or None. Names decide only between tools of the right shape."""
    shaped = [tool for tool in tools if not tool.custom and _first(tool, COMMAND_KEYS)]
    named = [tool for tool in shaped if any(word in tool.name.lower() for word in SHELL_WORDS)]
    return next(iter(named or shaped), None)


def writer(tools: Sequence[Tool]) -> Tool | None:
    """The tool that writes a whole file, or None."""
    shaped = [tool for tool in tools if _first(tool, CONTENT_KEYS) and _first(tool, PATH_KEYS)]
    named = [tool for tool in shaped if any(word in tool.name.lower() for word in WRITE_WORDS)]
    return next(iter(named), None)


def run(tool: Tool, command: str) -> Call:
    """A call of the shell tool."""
    key = _first(tool, COMMAND_KEYS) or "command"
    as_list = _schema_type(tool.properties.get(key)) == "array"
    value: Any = ["bash", "-lc", command] if as_list else command
    return Call(name=tool.name, arguments=json.dumps(_filled(tool, {key: value})))


def write(tool: Tool, workspace: str, path: str, content: str) -> Call:
    """A call of the file-writing tool; such tools mostly want an absolute path."""
    arguments = {
        _first(tool, PATH_KEYS) or "path": posixpath.join(workspace, path),
        _first(tool, CONTENT_KEYS) or "content": content,
    }
    return Call(name=tool.name, arguments=json.dumps(_filled(tool, arguments)))


def put_file(path: str, content: bytes) -> Iterator[str]:
    """Shell commands that write `content` to `path`, relative to where the client's shell stands.

    It is packed first: clients guess tokens from the length of what was said, and would compact a long conversation.
    """
    target = shlex.quote(path)
    packed = gzip.compress(content, mtime=0)
    if len(packed) <= CHUNK_BYTES:
        yield f"printf %s {base64.b64encode(packed).decode()} | base64 -d | gzip -dc > {target}"
        return
    for index, start in enumerate(range(0, len(packed), CHUNK_BYTES)):
        part = base64.b64encode(packed[start : start + CHUNK_BYTES]).decode()
        yield f"printf %s {part} | base64 -d {'>>' if index else '>'} {target}"
    yield f"gzip -dc < {target} > {target}.new && cat {target}.new > {target} && rm {target}.new"


def _first(tool: Tool, keys: Sequence[str]) -> str | None:
    return next((key for key in keys if key in tool.properties), None)


def _filled(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """`arguments` plus a harmless value for every further property that the tool requires."""
    fillers: Mapping[str, Any] = {"string": "work on the task", "boolean": False, "array": [], "object": {}}
    further = {
        key: fillers.get(_schema_type(tool.properties.get(key)) or "", 60_000)
        for key in tool.required
        if key not in arguments
    }
    return {**arguments, **further}


def _schema_type(schema: Any) -> str | None:
    """The JSON type of a property; of several, the first that is not null."""
    found = schema.get("type") if isinstance(schema, Mapping) else None
    if isinstance(found, list):
        return next((str(each) for each in found if each != "null"), None)
    return str(found) if found else None
