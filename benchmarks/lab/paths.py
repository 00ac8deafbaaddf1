"""Where things live: the cache (can be rebuilt), the state (evidence, work folders, logs), and the checkout itself.

It makes the folders it names and nothing in them. The machine's lock lies elsewhere, see `lock`.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import platformdirs

from benchmarks.lab.errors import UsageError

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
    """The folder that the variable names, or the default; UsageError if it cannot be ours to write into."""
    named = os.environ.get(variable)
    try:
        chosen = Path(named or default).expanduser().resolve()
        str(chosen).encode()
        chosen.mkdir(parents=True, exist_ok=True)
        why = _unfit(chosen)
    except (FileExistsError, NotADirectoryError):
        why = "it is no folder, or lies in none"
    except UnicodeEncodeError:
        why = "its name is no UTF-8 text"
    except (OSError, ValueError, RuntimeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error).rstrip(".")
    if why is None:
        return chosen
    if named:
        raise UsageError(f"the variable {variable} names {named!r}, which cannot be used: {why}; name another folder")
    raise UsageError(f"{default} cannot be used: {why}; name another folder in the variable {variable}")


def _unfit(folder: Path) -> str | None:
    if not os.access(folder, os.W_OK | os.X_OK):
        return "you may not write there"
    if folder.parent == folder or folder.stat().st_mode & stat.S_ISVTX:
        return "it belongs to all users of this machine, and programs here close their folders"  # see `state_dir`
    return None
