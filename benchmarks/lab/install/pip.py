"""An environment of a client's own, made by uv with exact pins on a Python that the client accepts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from benchmarks.lab import fsio, proc
from benchmarks.lab.errors import LabError, Refused
from benchmarks.lab.install.commands import BIN, SLOWEST_START, check_version, lock_folder, printed_version, run
from benchmarks.lab.model import Client
from benchmarks.lab.text import Say

_WRAPPER: Final = """#!/bin/sh
# Isolated (-I): the variables that lead a target's own Python to its sources must not lead this one there.
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd -P)
exec "$here/../venv/bin/python" -I "$here/../venv/{bin}/{command}" "$@"
"""


def make(client: Client, staging: Path, root: Path, say: Say) -> list[str]:
    """Make an environment of its own with uv; returns what to expose: relative paths, or absolute ones of its Python.

    `staging` becomes `root` afterwards, and the environment is told so.
    """
    uv = proc.uv()
    if uv is None:
        raise Refused(f"client {client.name}: the program uv is not on PATH; install uv to install this client.")
    wanted = client.install.python or ">=3.10"
    python = staging / "venv" / "bin" / "python"
    cure = f"it needs a Python {wanted}; install one (`uv python install 3.12`) and run again"
    run(
        client,
        [uv, "venv", "--no-project", "--python", wanted, "venv"],
        staging,
        proc.downloading(),
        say=say,
        cure=cure,
    )
    shown = ["venv", *_own_interpreter(staging, python)]
    requirements = str(lock_folder(client) / "requirements.txt")
    exact = ("--no-deps", "--only-binary", ":all:", "--compile-bytecode", "--python", str(python))
    run(client, [uv, "pip", "install", *exact, "-r", requirements], staging, proc.downloading(), say=say)
    command = staging / BIN / client.version_argv[0]
    command.write_text(_WRAPPER.format(bin=client.install.bin, command=command.name), encoding="utf-8")
    command.chmod(0o755)
    check_version(client, printed_version(client, (command.parent,)))
    config = staging / "venv" / "pyvenv.cfg"
    config.write_text(config.read_text(encoding="utf-8").replace(str(staging), str(root)), encoding="utf-8")
    return shown


def _own_interpreter(staging: Path, python: Path) -> list[str]:
    """Give the environment a copy of its base Python without site-packages, where a target's source may lie.

    Returns what to expose for it: the copy; nothing for a system Python, which is visible anyway; the base itself
    where a copy does not start (frameworks of macOS).
    """
    real = python.resolve()
    base = real.parent.parent
    if base in (Path("/usr"), Path("/usr/local")):
        return []
    copy = staging / "python"
    if not (base / "lib" / real.name / "os.py").exists() or not _copied(base, real, copy):
        fsio.remove_tree(copy)
        return [str(base)]
    python.unlink()
    python.symlink_to(f"../../python/bin/{real.name}")
    config = staging / "venv" / "pyvenv.cfg"
    lines = config.read_text(encoding="utf-8").splitlines()
    lines = [f"home = {copy / 'bin'}" if line.startswith("home") else line for line in lines]
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ["python"]


def _copied(base: Path, real: Path, copy: Path) -> bool:
    """Copy executable, shared library and standard library; whether the copy starts and takes itself for its home."""
    (copy / "bin").mkdir(parents=True)
    (copy / "lib").mkdir()
    shutil.copy2(real, copy / "bin" / real.name)
    for shared in (base / "lib").glob("libpython*"):
        shutil.copy2(shared, copy / "lib" / shared.name, follow_symlinks=False)
    left_out = shutil.ignore_patterns("site-packages", "test", "tests", "idlelib", "ensurepip", "config-*")
    shutil.copytree(base / "lib" / real.name, copy / "lib" / real.name, symlinks=True, ignore=left_out)
    return _starts(copy / "bin" / real.name)


def _starts(python: Path) -> bool:
    check = "import sys, ssl, ctypes, zlib; print(sys.prefix)"
    try:
        done = proc.run_quiet([python, "-I", "-c", check], SLOWEST_START)
    except LabError:
        return False
    return done.code == 0 and Path(os.fsdecode(done.stdout.strip())) == python.parent.parent
