"""What the harness itself costs, as JSON lines: one object per figure, with its target and whether it was met.

    uv run scripts/self_bench.py             every section
    uv run scripts/self_bench.py meter       sections by name

Figures depend on how busy the machine is; each comes with what it was compared to in the same run.
It measures the harness, never a model: engines and load here are instant stand-ins.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil

from benchmarks.lab.meter import Meter, Upstream

PEERS: Final = Path(__file__).with_name("self_bench_peers.py")
CHAT: Final = "/v1/chat/completions"
BLOCK: Final = 100  # requests before direct and metered change places
GIGABYTE: Final = 1 << 30

Figure = Mapping[str, Any]


def figure(section: str, name: str, value: float, unit: str, target: float, *, most: bool, **seen: Any) -> Figure:
    """One line of output. `most`: the target is an upper limit, else a lower one."""
    met = value <= target if most else value >= target
    return {"section": section, "figure": name, "value": round(value, 4), "unit": unit, "target": target, "met": met, **seen}


# ---- meter ----


def meter(requests: int) -> Iterator[Figure]:
    """Added time to first token, streamed chunks per second, memory over a gigabyte of stream."""
    with instant_engine() as engine, metered(engine) as port:
        yield from first_token_figures(engine, port, requests)
        yield chunk_figure(engine, port)
        yield memory_figure(port)


def first_token_figures(engine: int, port: int, requests: int) -> Iterator[Figure]:
    """Direct and metered in alternating blocks, each block compared with the one before it."""
    direct: list[float] = []
    through: list[float] = []
    for _ in range(max(1, requests // BLOCK)):
        direct += load(engine, BLOCK, CHAT)["times"]
        through += load(port, BLOCK, CHAT)["times"]
    seen = {"requests": len(through), "direct_p50_ms": ms(direct, 50), "through_p50_ms": ms(through, 50)}
    added = ms(through, 50) - ms(direct, 50)
    yield figure("meter", "added_first_token_p50", added, "ms", 1.0, most=True, **seen)
    seen = {"requests": len(through), "direct_p99_ms": ms(direct, 99), "through_p99_ms": ms(through, 99)}
    added = ms(through, 99) - ms(direct, 99)
    yield figure("meter", "added_first_token_p99", added, "ms", 5.0, most=True, **seen)


def chunk_figure(engine: int, port: int, tokens: int = 40_000) -> Figure:
    """Streamed chunks per second through one connection, the engine sending as fast as it is read."""
    path = f"{CHAT}?tokens"
    direct, through = load(engine, tokens, path), load(port, tokens, path)
    rate = through["events"] / through["seconds"]
    complete = through["events"] == direct["events"]
    seen = {"chunks": through["events"], "complete": complete, "direct": round(direct["events"] / direct["seconds"])}
    return figure("meter", "streamed_chunks_per_second", rate, "1/s", 5000, most=False, **seen)


def memory_figure(port: int) -> Figure:
    """Growth of this process (the meter lives in it) while a gigabyte streams through it."""
    path = f"{CHAT}?gigabyte"
    load(port, 16 << 20, path)
    process = psutil.Process()
    before = process.memory_info().rss
    peak = before
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.05):
            peak = max(peak, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    result = load(port, GIGABYTE, path)
    done.set()
    watcher.join()
    growth = (peak - before) / (1 << 20)
    seen = {"streamed_bytes": result["bytes"], "mb_per_second": round(result["bytes"] / result["seconds"] / 1e6)}
    return figure("meter", "memory_growth_over_1_gb", growth, "MiB", 16, most=True, **seen)


@contextmanager
def instant_engine() -> Iterator[int]:
    """The stand-in engine in a process of its own; its port."""
    command = [sys.executable, str(PEERS), "engine"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()


@contextmanager
def metered(engine: int) -> Iterator[int]:
    """A meter in front of the engine, as a trial has it; the port it answers on."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        Meter(Upstream(base_url=f"http://127.0.0.1:{engine}")) as service,
    ):
        trial = service.open_trial("self-bench", listener)
        yield listener.getsockname()[1]
        trial.close()


def load(port: int, amount: int, path: str) -> dict[str, Any]:
    """Run the load generator in a process of its own."""
    command = [sys.executable, str(PEERS), "load", str(port), str(amount), path]
    result: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return result


def ms(seconds: Sequence[float], percentile: int) -> float:
    """A percentile in milliseconds."""
    return round(statistics.quantiles(seconds, n=100, method="inclusive")[percentile - 1] * 1000, 4)


# ---- the sections: name -> figures; the lead's other sections go here ----

SECTIONS: Final[Mapping[str, Callable[[argparse.Namespace], Iterator[Figure]]]] = {
    "meter": lambda args: meter(args.requests),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sections asked for and print their figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of: {', '.join(SECTIONS)} (default: all)")
    parser.add_argument("--requests", type=int, default=2000, help="requests of the meter's first-token figures")
    args = parser.parse_args(argv)
    unknown = [name for name in args.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"there is no section {unknown[0]!r}; use {', '.join(SECTIONS)}")
    for name in args.sections or SECTIONS:
        for line in SECTIONS[name](args):
            print(json.dumps({"at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **line}), flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
