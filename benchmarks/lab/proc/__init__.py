"""Processes: trees and their end, tool calls, pumps that carry a client's output into bounded files, clocks.

It does not know which program is run, nor what the end of one means.
"""

from benchmarks.lab.proc.clock import Clocks, clocks, slept_between
from benchmarks.lab.proc.pump import Pump
from benchmarks.lab.proc.tools import Finished, downloading, run_quiet, start_long_lived, uv
from benchmarks.lab.proc.trees import MARKER, ProcessTree, Sample, Stray, end_tree

__all__ = [
    "MARKER",
    "Clocks",
    "Finished",
    "ProcessTree",
    "Pump",
    "Sample",
    "Stray",
    "clocks",
    "downloading",
    "end_tree",
    "run_quiet",
    "slept_between",
    "start_long_lived",
    "uv",
]
