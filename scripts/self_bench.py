"""What the harness itself costs, as JSON lines: one object per figure, with its target and whether it was met.

    uv run scripts/self_bench.py             every section
    uv run scripts/self_bench.py meter       sections by name

Figures depend on how busy the machine is; each comes with what it was compared to in the same run. Where others keep
every core busy, latencies show the scheduler: `chrt -f 1 uv run ...` (root) asks what an idle machine would show.
It measures the harness, never a model: engines and load here are instant stand-ins.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.lab import flags, program
from benchmarks.lab.errors import EXIT_DONE, Refused
from benchmarks.lab.meter import Meter, MeterTrial, Upstream
from benchmarks.lab.model import Isolation
from benchmarks.lab.sandbox import SandboxSpec, choose, open_box
from benchmarks.lab.shares import shares

PEERS: Final = Path(__file__).with_name("self_bench_peers.py")
CHAT: Final = "/v1/chat/completions"
BLOCK: Final = 250  # requests before direct and metered change places
CHUNKS: Final = 40_000  # some seconds of streaming
GIGABYTE: Final = 1 << 30

Figure = Mapping[str, Any]


def figure(section: str, name: str, value: float, unit: str, target: float, *, most: bool, **seen: Any) -> Figure:
    """One line of output. `most`: the target is an upper limit, else a lower one."""
    met = value <= target if most else value >= target
    return {
        "section": section,
        "figure": name,
        "value": round(value, 4),
        "unit": unit,
        "target": target,
        "met": met,
        **seen,
    }


# ---- meter ----


@dataclass(frozen=True)
class Bench:
    """An instant engine, the meter in front of it, and how the load generator reaches the meter."""

    engine: int  # its port
    meter: Meter
    isolation: Isolation | None  # None: plain loopback, where no sandbox works

    def direct(self, amount: int, path: str) -> dict[str, Any]:
        """Load straight on the engine, from a process of its own."""
        command = [sys.executable, str(PEERS), "load", str(self.engine), str(amount), path]
        result: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        return result

    def through(self, amount: int, path: str) -> tuple[dict[str, Any], MeterTrial]:
        """Load on the meter as a trial has it: from inside a sandbox, on the sandbox's own listener."""
        with tempfile.TemporaryDirectory(prefix="self-bench-") as folder:
            root = Path(folder)
            for name in ("workspace", "home", "out"):
                (root / name).mkdir()
            if self.isolation is None:
                return self._on_loopback(amount, path)
            return self._in_box(root, self.isolation, amount, path)

    def _in_box(self, root: Path, isolation: Isolation, amount: int, path: str) -> tuple[dict[str, Any], MeterTrial]:
        python = Path(sys.base_prefix) / "bin" / "python3"
        spec = SandboxSpec(
            isolation=isolation,
            workspace=root / "workspace",
            home=root / "home",
            readonly=(Path(sys.base_prefix), PEERS),
            trial_id="self-bench",
        )
        with open_box(spec) as box:
            command = [str(python), str(PEERS), "load", str(box.port), str(amount), path]
            out, err = root / "out" / "stdout", root / "out" / "stderr"
            running = box.start(command, box.base_env(), None, out, err, 64 << 20)
            if running.listener is None:
                raise Refused("the sandbox opened no listener for the meter; use --loopback")
            trial = self.meter.open_trial("self-bench", running.listener)
            while running.poll() is None:
                running.wait(60)
            running.end(1.0)
            trial.close()
            if not out.stat().st_size:
                raise Refused(f"the load generator failed in the sandbox: {err.read_text()[-500:]}")
            return json.loads(out.read_text()), trial

    def _on_loopback(self, amount: int, path: str) -> tuple[dict[str, Any], MeterTrial]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            trial = self.meter.open_trial("self-bench", listener)
            port = listener.getsockname()[1]
            command = [sys.executable, str(PEERS), "load", str(port), str(amount), path]
            result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            trial.close()
            return result, trial


def meter(requests: int, loopback: bool) -> Iterator[Figure]:
    """Added time to first token, streamed chunks per second, memory over a gigabyte, accuracy of the time shares."""
    with instant_engine() as engine, Meter(Upstream(base_url=f"http://127.0.0.1:{engine}")) as service:
        bench = Bench(engine, service, None if loopback else sandbox_level())
        yield from first_token_figures(bench, requests)
        yield chunk_figure(bench)
        yield memory_figure(bench)
        yield from share_figures(bench)


def sandbox_level() -> Isolation | None:
    """The best sandbox here, None if none works."""
    try:
        return choose(None)
    except Refused:
        return None


def first_token_figures(bench: Bench, requests: int) -> Iterator[Figure]:
    """Direct and metered in alternating blocks of the same run."""
    direct: list[float] = []
    through: list[float] = []
    for _ in range(max(1, -(-requests // BLOCK))):
        direct += bench.direct(BLOCK, CHAT)["times"]
        through += bench.through(BLOCK, CHAT)[0]["times"]
    quiet = {"direct_p10_ms": ms(direct, 10), "through_p10_ms": ms(through, 10)}  # what a busy machine hides least
    seen = {"requests": len(through), "through": bench.isolation or "loopback", **quiet}
    for percentile, target in ((50, 1.0), (99, 5.0)):
        figures = {"direct_ms": ms(direct, percentile), "through_ms": ms(through, percentile)}
        added = figures["through_ms"] - figures["direct_ms"]
        yield figure("meter", f"added_first_token_p{percentile}", added, "ms", target, most=True, **figures, **seen)


def chunk_figure(bench: Bench) -> Figure:
    """Streamed chunks per second through one connection, the engine sending as fast as it is read."""
    path = f"{CHAT}?tokens"
    direct, (through, _) = bench.direct(CHUNKS, path), bench.through(CHUNKS, path)
    rate = through["events"] / through["seconds"]
    complete = (through["events"], through["bytes"]) == (direct["events"], direct["bytes"])
    seen = {"chunks": through["events"], "complete": complete, "direct": round(direct["events"] / direct["seconds"])}
    return figure("meter", "streamed_chunks_per_second", rate, "1/s", 5000, most=False, **seen)


def memory_figure(bench: Bench) -> Figure:
    """Growth of this process (the meter lives in it) while a gigabyte streams through it."""
    path = f"{CHAT}?gigabyte"
    bench.through(16 << 20, path)
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
    result, _ = bench.through(GIGABYTE, path)
    done.set()
    watcher.join()
    growth = (peak - before) / (1 << 20)
    seen = {"streamed_bytes": result["bytes"], "mb_per_second": round(result["bytes"] / result["seconds"] / 1e6)}
    return figure("meter", "memory_growth_over_1_gb", growth, "MiB", 16, most=True, **seen)


def share_figures(bench: Bench) -> Iterator[Figure]:
    """How far the time shares of a clocked scene are from its script."""
    expected, trial = bench.through(1, f"{CHAT}?clocked")
    exchanges = trial.close()
    wall = max(exchange.t_end for exchange in exchanges)
    got = shares(exchanges, wall)
    late = round(expected.pop("late_ms"), 2)  # of the stand-in engine behind its own script
    for name, seconds in expected.items():
        error = abs(getattr(got, name) - seconds) * 1000
        seen = {"expected_seconds": round(seconds, 3), "engine_late_ms": late}
        yield figure("meter", f"share_error_{name}", error, "ms", 30, most=True, **seen)


@contextmanager
def instant_engine() -> Iterator[int]:
    """The stand-in engine in a process of its own; its port."""
    command = [sys.executable, str(PEERS), "engine"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        if process.stdin is None or process.stdout is None:
            raise TypeError("both were asked for as pipes")
        with process.stdin:  # its end is the engine's end
            yield int(process.stdout.readline())


def ms(seconds: Sequence[float], percentile: int) -> float:
    """A percentile in milliseconds."""
    return round(statistics.quantiles(seconds, n=100, method="inclusive")[percentile - 1] * 1000, 4)


# ---- the programs ----

RUN: Final = Path(__file__).resolve().parents[1] / "benchmarks" / "agent" / "run.py"
TASK: Final = "toolz-groupby"


def help_figures(args: argparse.Namespace) -> Iterator[Figure]:
    """How long `run.py --help` takes, beside the bare interpreter in the same run."""
    seconds: dict[str, list[float]] = {"help": [], "python": []}
    for _ in range(7):
        seconds["help"].append(_timed([sys.executable, str(RUN), "--help"]))
        seconds["python"].append(_timed([sys.executable, "-c", "pass"]))
    shown, bare = statistics.median(seconds["help"]), statistics.median(seconds["python"])
    yield figure("help", "run.py --help, median of 7", shown, "s", 0.5, most=True, bare_python=round(bare, 3))


def trial_figures(args: argparse.Namespace) -> Iterator[Figure]:
    """What the harness takes of a warm run: before the first client starts, and in each trial."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "trials.jsonl"
        flags = ["--backend", "scripted", "--client", "stub", "--task", TASK, "--skip-smoke", "--results", str(results)]
        _timed([sys.executable, str(RUN), *flags, "--trials", "1"])  # fills the caches
        results.unlink()
        before, suite = _until_first_trial([sys.executable, str(RUN), *flags, "--trials", "12"])
        rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    spent = [row["harness_seconds"] for row in rows if row["kind"] == "trial"]
    yield figure("trial", "start to first client, suite apart", before - suite, "s", 3.0, most=True, suite=suite)
    yield figure("trial", "harness time per trial, median", statistics.median(spent), "s", 1.0, most=True, n=len(spent))


def _timed(argv: Sequence[str]) -> float:
    begin = time.monotonic()
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return time.monotonic() - begin


def _until_first_trial(argv: Sequence[str]) -> tuple[float, float]:
    """Seconds to the line that says the first trial started, and those that the controls' suites took of them."""
    begin, first, suite = time.monotonic(), 0.0, 0.0
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if found := re.search(r"gold passes, excised fails \(([\d.]+) s\)", line):
                suite += float(found[1])
            if not first and line.rstrip().endswith("started"):
                first = time.monotonic() - begin
    if process.returncode or not first:
        raise Refused(f"{' '.join(argv)} did not run a trial; run it by hand to see why")
    return first, suite


# ---- the sections: name -> figures ----

SECTIONS: Final[Mapping[str, Callable[[argparse.Namespace], Iterator[Figure]]]] = {
    "help": help_figures,
    "trial": trial_figures,
    "meter": lambda args: meter(args.requests, args.loopback),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sections asked for and print their figures."""
    return program.answer("self_bench.py", lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    parser = flags.Parser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of: {', '.join(SECTIONS)} (default: all)")
    number = flags.whole(1, 1_000_000, "requests")
    parser.add_argument(
        "--requests", type=number, metavar="N", default=2000, help="requests of the meter's first-token figures"
    )
    parser.add_argument("--loopback", action="store_true", help="reach the meter on plain loopback, without a sandbox")
    args = parser.parse_args(argv)
    unknown = [name for name in args.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"there is no section {unknown[0]!r}; use {', '.join(SECTIONS)}")
    for name in args.sections or SECTIONS:
        for line in SECTIONS[name](args):
            print(json.dumps({"at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **line}), flush=True)
    return EXIT_DONE


if __name__ == "__main__":
    program.leave("self_bench.py", main)
