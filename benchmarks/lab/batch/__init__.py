"""One batch: installations, conformance, controls and trials of a plan; each row is written the moment it exists.

execute: the algorithm · bench: what its parts share · setup: installations, engines, conformance · admission: controls,
leak scan · trials: one after the other. Engines stay up for the whole batch; clients and environments come from the
cache. What a person sees goes through a `Watcher`: this room prints nothing and decides no verdict.
"""

from benchmarks.lab.batch.admission import rehearse
from benchmarks.lab.batch.bench import Bench, Outcome, Watcher, refuse_if_none
from benchmarks.lab.batch.execute import execute

__all__ = ["Bench", "Outcome", "Watcher", "execute", "refuse_if_none", "rehearse"]
