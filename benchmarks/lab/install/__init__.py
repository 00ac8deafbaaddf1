"""Installs a pinned client on first use, in a folder of its own below the cache, and says what to expose of it.

installation: one folder an installation · npm, pip: one file a kind · commands: what both need. Proxies, mirrors and
registries are the operator's own (environment, npmrc, uv settings). An installation appears whole by one rename under a
file lock: two at once share one, and what a killed installer left is cleared by the next.
Not covered: which clients there are (clients), running them (trial), what a sandbox shows beside it.
"""

from benchmarks.lab.install.installation import Installation, install

__all__ = ["Installation", "install"]
