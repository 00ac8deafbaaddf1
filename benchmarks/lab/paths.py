"""Where things live: the cache (can be rebuilt), the state (evidence, work folders, logs), and the checkout itself.

It makes the folders it names and nothing in them. The machine's lock lies elsewhere, see `lock`.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

APP = "local-lab"
EVIDENCE = "evidence"  # the folder of the state that holds every machine's


def cache_dir() -> Path:
    """Folder for what can be downloaded or built again: clients, targets, environments (LOCAL_LAB_CACHE overrides)."""
    return _folder("LOCAL_LAB_CACHE", platformdirs.user_cache_path(APP))


def state_dir() -> Path:
    """Folder for evidence, work folders and logs of engines (LOCAL_LAB_STATE overrides).

    It holds private code, so if it is ours nobody else may enter.
    """
    folder = _folder("LOCAL_LAB_STATE", platformdirs.user_state_path(APP))
    if folder.stat().st_uid == os.getuid():
        folder.chmod(0o700)
    return folder


def evidence_dir(machine: str) -> Path:
    """Folder for what trials, controls and smoke runs of a machine leave for people; whoever writes there makes it."""
    return state_dir() / EVIDENCE / machine


def checkout_root() -> Path:
    """The root of this checkout: the folder that holds `benchmarks/`."""
    return Path(__file__).resolve().parents[2]


def _folder(variable: str, default: Path) -> Path:
    chosen = Path(os.environ.get(variable) or default).expanduser().resolve()
    chosen.mkdir(parents=True, exist_ok=True)
    return chosen
