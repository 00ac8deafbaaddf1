"""What holds for every test."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def signals_reach_the_programs_under_test() -> Iterator[None]:
    """A runner in the background hands down SIGINT and SIGHUP as ignored, and programs rightly leave them so.

    A process that handles a signal hands it down as deadly, which is what a person's shell does.
    """
    ignored = [number for number in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.default_int_handler)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
