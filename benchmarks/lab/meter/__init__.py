"""The meter: a recording reverse proxy between a client and its engine, the only trusted source of counts and times.

    with Meter(Upstream(base_url="http://127.0.0.1:8080"), rewrites_of(backend)) as meter:
        trial = meter.open_trial(trial_id, listener, Expectation(prompt=...), evidence_folder)
        trial.set_start(time.monotonic()) ... trial.live() ... exchanges = trial.close()

Files: `connection` (bytes), `upstream` (the engine's address and connections), `http1` (heads and
extents), `relay` (one client connection), `observe` (one exchange), `trial` (all of a trial's), `readings` and
`prefixes` (what several exchanges say together), `service` (thread and loop).
It does not judge: verdicts are `verdict`'s, time shares are `shares`'.
"""

from benchmarks.lab.dialects.rewrites import rewrites_of
from benchmarks.lab.meter.observe import Expectation
from benchmarks.lab.meter.prefixes import PrefixNote, sentence
from benchmarks.lab.meter.readings import is_turn
from benchmarks.lab.meter.service import Meter
from benchmarks.lab.meter.trial import Live, MeterTrial
from benchmarks.lab.meter.upstream import Upstream

__all__ = [
    "Expectation",
    "Live",
    "Meter",
    "MeterTrial",
    "PrefixNote",
    "Upstream",
    "is_turn",
    "rewrites_of",
    "sentence",
]
