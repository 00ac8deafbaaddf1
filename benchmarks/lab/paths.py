"""Where things live: the cache (can be rebuilt), the state (evidence, locks), and the checkout itself."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

APP = "local-lab"


def cache_dir() -> Path:
    """Folder for what can be downloaded or built again: clients, targets, environments (LOCAL_LAB_CACHE overrides)."""
    return _folder("LOCAL_LAB_CACHE", platformdirs.user_cache_path(APP))


def state_dir() -> Path:
    """Folder for evidence and locks; it holds private code (LOCAL_LAB_STATE overrides)."""
    folder = _folder("LOCAL_LAB_STATE", platformdirs.user_state_path(APP))
    if folder.stat().st_uid == os.getuid():
        folder.chmod(0o700)
    return folder


def checkout_root() -> Path:
    """The root of this checkout: the folder that holds `benchmarks/`."""
    return Path(__file__).resolve().parents[2]


def _folder(variable: str, default: Path) -> Path:
    chosen = Path(os.environ.get(variable) or default).expanduser().resolve()
    chosen.mkdir(parents=True, exist_ok=True)
    return chosen
