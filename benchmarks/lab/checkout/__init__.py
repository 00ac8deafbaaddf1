"""From a pinned source to a workspace, and from a workspace to a patch; the parts are one file each.

sources: fetch and export a pinned tree · environment: the interpreter that runs its suite · workspace: excise, one
commit, prompt · leaks: is the answer readable anywhere · patch: what the agent left. Judging is `lab/judge/`.
"""

from benchmarks.lab.checkout.environment import environment
from benchmarks.lab.checkout.leaks import Leak, leak_scan
from benchmarks.lab.checkout.patch import Unreadable, collect, read_inside
from benchmarks.lab.checkout.sources import export, fetch, source_state
from benchmarks.lab.checkout.workspace import commit_all, copy_excised, prepare

__all__ = [
    "Leak",
    "Unreadable",
    "collect",
    "commit_all",
    "copy_excised",
    "environment",
    "export",
    "fetch",
    "leak_scan",
    "prepare",
    "read_inside",
    "source_state",
]
