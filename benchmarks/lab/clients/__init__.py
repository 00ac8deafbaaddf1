"""The clients that can be measured: one adapter a file, found in one table; each is data and two pure functions.

`launch` says how to start it, `read` what it said of itself. No adapter starts a process, reads the environment or
knows an engine. How to add one: docs/adding-a-client.md.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Final

from benchmarks.lab import text
from benchmarks.lab.clients.aider import AIDER
from benchmarks.lab.clients.claude import CLAUDE
from benchmarks.lab.clients.codex import CODEX
from benchmarks.lab.clients.opencode import OPENCODE
from benchmarks.lab.clients.qwen import QWEN
from benchmarks.lab.clients.stub import STUB
from benchmarks.lab.errors import UsageError
from benchmarks.lab.model import Client

CLIENTS: Final[Mapping[str, Client]] = {
    "aider": AIDER,
    "claude": CLAUDE,
    "codex": CODEX,
    "opencode": OPENCODE,
    "qwen": QWEN,
    "stub": STUB,
}


def find(name: str, where: str = "--client") -> Client:
    """The client of that name in the table, or the `Client` at `package.module:NAME` from outside the checkout.

    Raises UsageError for a name that is in neither; it begins with `where`, the place of the name.
    """
    if name in CLIENTS:
        return CLIENTS[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        known = f"{', '.join(CLIENTS)}, or package.module:NAME"
        raise UsageError(f"{where}: {name!r} is not known{text.suggest(name, CLIENTS)}; give one of {known}.")
    try:
        client = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever a module from outside raises while it is loaded
        raise UsageError(f"{where}: {name!r} cannot be loaded: {error}.") from error
    if not isinstance(client, Client):
        raise UsageError(f"{where}: {name!r} is a {type(client).__name__}, not a benchmarks.lab.model.Client.")
    return client
