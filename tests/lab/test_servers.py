"""When an engine is served again: by its policy, or because it died; and that nothing of it is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from benchmarks.lab import engines
from benchmarks.lab.engines.base import CounterBox, TrialContext
from benchmarks.lab.errors import Refused
from benchmarks.lab.model import Backend, Dialect, EngineFacts
from benchmarks.lab.servers import Served
from benchmarks.lab.text import Say


class FakeEndpoint:
    base_url = "http://127.0.0.1:1"
    model = "m"
    names = ("m",)
    dialects: tuple[Dialect, ...] = ("openai-chat",)
    facts = EngineFacts()
    api_key: str | None = None
    dead = False

    def facts_now(self) -> EngineFacts:
        if self.dead:
            raise Refused("nothing listens there")
        return self.facts

    @contextmanager
    def trial(self, context: TrialContext) -> Iterator[CounterBox]:
        yield CounterBox()


class FakeEngine:
    name = "fake"
    dialects: tuple[Dialect, ...] = ("openai-chat",)

    def __init__(self) -> None:
        self.served: list[FakeEndpoint] = []
        self.up = 0

    def probe(self, base_url: str, api_key: str | None = None) -> EngineFacts:
        return EngineFacts()

    @contextmanager
    def serve(self, backend: Backend, state: Path, say: Say) -> Iterator[FakeEndpoint]:
        self.served.append(FakeEndpoint())
        self.up += 1
        try:
            yield self.served[-1]
        finally:
            self.up -= 1


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    monkeypatch.setattr(engines, "find", lambda name: fake)
    return fake


def server(tmp_path: Path, restart: Literal["never", "arm", "trial"], said: list[str] | None = None) -> Served:
    backend = Backend(name="mine", engine="fake", restart=restart)
    return Served(backend, tmp_path, (said if said is not None else []).append)


@pytest.mark.parametrize(("policy", "times"), [("never", 1), ("arm", 2), ("trial", 4)])
def test_the_policy_says_how_often_an_engine_is_served(
    engine: FakeEngine, tmp_path: Path, policy: Literal["never", "arm", "trial"], times: int
) -> None:
    own = server(tmp_path, policy)
    for new_arm in (False, True, False):
        own.ready(new_arm=new_arm)
        assert engine.up == 1
        assert id(own.endpoint) == id(engine.served[-1])
    assert len(engine.served) == times
    own.close()
    assert engine.up == 0


def test_an_engine_that_died_is_served_anew_and_that_is_said(engine: FakeEngine, tmp_path: Path) -> None:
    said: list[str] = []
    own = server(tmp_path, "never", said)
    engine.served[0].dead = True
    own.ready(new_arm=False)
    own.close()
    assert len(engine.served) == 2
    assert said == ["backend mine does not answer any more (nothing listens there); it is served anew"]
