"""The pytest plugin that reports a judged run: loaded first, from a read-only folder, inside the judged interpreter.

Every outcome is a line of its own, chained by a keyed digest, so that lines written by anybody else do not count; what
pytest prints and the exit code are never read. Canary items, added last, show whether somebody made failures pass.
It covers careless and blunt tampering; code that forges one named test from inside the interpreter is not seen.
It imports nothing of ours: the judge copies this file beside the judged tree.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CANARY = "lab_canary_"


def _reporter() -> Callable[..., None]:
    """A function that appends one signed line; it holds its own references, so later patching does not reach it."""
    key = os.environ.pop("LOCAL_LAB_JUDGE_KEY").encode()
    descriptor = os.open(
        os.environ.pop("LOCAL_LAB_JUDGE_FILE"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
    )
    encode, write, digest, sha = json.JSONEncoder().encode, os.write, hmac.digest, hashlib.sha256().name
    owner, process = os.getpid(), os.getpid
    chain = b""

    def report(**fields: Any) -> None:
        nonlocal chain
        if process() != owner:  # a fork of the suite goes on with a copy of us
            return
        line = encode(fields).encode()
        chain = digest(key, chain + line, sha)
        write(descriptor, chain.hex().encode() + b" " + line + b"\n")

    return report


_report = _reporter()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Add the canaries behind the suite's own tests and say how many of those there are."""
    _report(kind="collected", count=len(items))
    module = pytest.Module.from_parent(session, path=Path(__file__))
    canaries = {name: test for name, test in globals().items() if name.startswith(CANARY)}
    items += [pytest.Function.from_parent(module, name=name, callobj=test) for name, test in canaries.items()]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One line per phase of a test; a subtest is reported apart, under the id of the test it belongs to."""
    _report(
        kind="subtest" if hasattr(report, "context") else "phase",
        id=report.nodeid,
        when=report.when,
        outcome=report.outcome,
        expected=hasattr(report, "wasxfail"),
    )


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that could not be collected."""
    if report.failed:
        _report(kind="uncollected", id=report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """The suite came to its end by itself."""
    _report(kind="end")


def lab_canary_passes() -> None:
    """Must pass."""
    assert sum((1, 2)) == 3


def lab_canary_fails() -> None:
    """Must fail: a plain assertion."""
    assert sum((1, 2)) == 4


def lab_canary_fails_unittest() -> None:
    """Must fail: an assertion of unittest."""
    unittest.TestCase().assertEqual(1, 2)  # noqa: PT009 (that it works is the point)


def lab_canary_fails_raises() -> None:
    """Must fail: an expected error that does not come."""
    with pytest.raises(KeyError):
        pass


def lab_canary_fails_error() -> None:
    """Must fail: an error that nobody expects."""
    raise NotImplementedError
