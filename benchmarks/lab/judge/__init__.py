"""Run a repository's own suite on a fresh excised export plus a patch, and say which tests passed.

judge: one run · controls: the two runs whose answers are known. What a result means for a trial is `lab/verdict.py`.
"""

from benchmarks.lab.judge.controls import Admission, ControlPair, admit, controls
from benchmarks.lab.judge.run import judge

__all__ = ["Admission", "ControlPair", "admit", "controls", "judge"]
