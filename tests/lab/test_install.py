"""Installing clients, with programs that stand in for npm and uv: nothing is fetched here."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.lab import install
from benchmarks.lab.errors import Refused
from benchmarks.lab.install.npm import npm_command
from benchmarks.lab.model import Artifacts, Client, ClientReport, InstallRecipe, Launch, LaunchSpec

ROOT = Path(__file__).resolve().parents[2]
Tool = Callable[[str], Path]


def launch(spec: LaunchSpec) -> Launch:
    return Launch(argv=("acme",), env={}, files={}, stdin=spec.prompt)


def read(artifacts: Artifacts) -> ClientReport:
    return ClientReport()


def acme(lock: Path, kind: str = "npm", where: str = "node_modules/acme-*/bin", pinned: str = "1.2.3") -> Client:
    recipe = InstallRecipe(kind=kind, lock=str(lock), bin=where, python=">=3.10,<3.13")  # type: ignore[arg-type]
    return Client(
        name="acme",
        dialects=("openai-chat",),
        pinned=pinned,
        install=recipe,
        version_argv=("acme", "--version"),
        launch=launch,
        read=read,
    )


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    folder = tmp_path / "lock"
    folder.mkdir()
    (folder / "package-lock.json").write_text("{}")
    (folder / "requirements.txt").write_text("acme==1.2.3\n")
    return folder


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """Puts a shell script in the place of node; it runs in the folder that is being installed into."""

    def put(script: str) -> Path:
        node = tmp_path / "wheel" / "node"
        node.parent.mkdir(exist_ok=True)
        node.write_text("#!/bin/sh\n" + textwrap.dedent(script))
        node.chmod(0o755)
        monkeypatch.setattr("benchmarks.lab.install.npm.npm_command", lambda: (node, Path("npm-cli.js")))
        return node

    return put


def program(folder: str, body: str) -> str:
    """Shell text that makes an executable `acme` in a folder."""
    return f"mkdir -p {folder}; printf '%s\\n' '#!/bin/sh' '{body}' > {folder}/acme; chmod +x {folder}/acme\n"


GOOD = program("node_modules/acme-linux/bin", "echo acme-cli 1.2.3")


def ignore(line: str) -> None:
    """Nobody listens."""


def test_a_client_is_installed_once_and_exposes_its_own_package_only(tmp_path: Path, lock: Path, npm: Tool) -> None:
    npm(GOOD + "echo x > node_modules/other; echo run >> ../runs")
    told: list[str] = []
    first = install.install(acme(lock), tmp_path / "cache", told.append)
    again = install.install(acme(lock), tmp_path / "cache", told.append)
    assert again == first
    assert (tmp_path / "cache" / "clients" / "runs").read_text() == "run\n"
    assert [path.name for path in first.path] == ["bin"]
    assert [command.name for command in first.path[0].iterdir()] == ["acme"]
    assert first.readonly == (first.root / "bin", first.root / "node_modules" / "acme-linux")
    assert subprocess.check_output([first.path[0] / "acme"], text=True) == "acme-cli 1.2.3\n"
    assert [line.split()[0] for line in told] == ["installing", "installed"]


def test_another_lock_or_version_is_another_installation(tmp_path: Path, lock: Path, npm: Tool) -> None:
    npm(GOOD)
    first = install.install(acme(lock), tmp_path / "cache", ignore)
    (lock / "package-lock.json").write_text("{ }")
    second = install.install(acme(lock), tmp_path / "cache", ignore)
    assert first.root != second.root


def test_B62_a_client_that_prints_another_version_is_refused(tmp_path: Path, lock: Path, npm: Tool) -> None:
    npm(program("node_modules/acme-linux/bin", "echo 1.2.2"))
    with pytest.raises(Refused, match=r"acme: it prints version 1\.2\.2 but 1\.2\.3 is pinned"):
        install.install(acme(lock), tmp_path / "cache", ignore)
    assert not any((tmp_path / "cache" / "clients").glob("acme-*/"))


def test_B62_a_client_exchanged_after_it_was_installed_is_installed_again(
    tmp_path: Path, lock: Path, npm: Tool
) -> None:
    npm(GOOD)
    made = install.install(acme(lock), tmp_path / "cache", ignore)
    (made.path[0] / "acme").resolve().write_text("#!/bin/sh\necho 9.9.9\n")
    again = install.install(acme(lock), tmp_path / "cache", ignore)
    assert subprocess.check_output([again.path[0] / "acme"], text=True) == "acme-cli 1.2.3\n"


def test_of_several_builds_the_first_that_starts_is_taken(tmp_path: Path, lock: Path, npm: Tool) -> None:
    """An AVX2 build on a processor without it ends by a signal; a musl build on glibc does not start at all."""
    npm(
        program("node_modules/acme-x64/bin", "kill -ILL $$")
        + program("node_modules/acme-x64-baseline/bin", "echo 1.2.3")
        + "mkdir -p node_modules/acme-wrapper/bin"
    )
    made = install.install(acme(lock), tmp_path / "cache", ignore)
    assert made.readonly[1].name == "acme-x64-baseline"


def test_a_client_that_starts_nowhere_is_one_sentence(tmp_path: Path, lock: Path, npm: Tool) -> None:
    npm(program("node_modules/acme-x64/bin", "exit 1"))
    with pytest.raises(Refused, match="`acme --version` does not print a version on this machine"):
        install.install(acme(lock), tmp_path / "cache", ignore)


def test_node_is_exposed_only_to_a_client_that_is_a_script(tmp_path: Path, lock: Path, npm: Tool) -> None:
    node = npm(
        """
        if [ "$2" = ci ]; then
            mkdir -p node_modules/.bin
            printf '%s\\n' '#!/usr/bin/env node' '1.2.3' > node_modules/.bin/acme
            chmod +x node_modules/.bin/acme
        else
            tail -n 1 "$1"
        fi
        """
    )
    made = install.install(acme(lock, where="node_modules/.bin"), tmp_path / "cache", ignore)
    assert sorted(command.name for command in made.path[0].iterdir()) == ["acme", "node"]
    assert [path.relative_to(made.root).as_posix() for path in made.readonly] == ["bin", "node_modules", "node"]
    assert not any(node.is_relative_to(path) for path in made.readonly)  # the wheel's own folder stays out of sight


def test_what_the_installer_said_last_is_told(tmp_path: Path, lock: Path, npm: Tool) -> None:
    npm("echo npm error network request to registry failed >&2; exit 1")
    with pytest.raises(Refused, match=r"network request to registry failed \(all of it: .*\.log\)"):
        install.install(acme(lock), tmp_path / "cache", ignore)
    npm(GOOD)
    assert install.install(acme(lock), tmp_path / "cache", ignore).version == "1.2.3"


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path: Path, lock: Path) -> None:
    (tmp_path / "cache").write_text("not a folder")
    with pytest.raises(Refused, match=r"client acme: cannot install into .*cache/clients"):
        install.install(acme(lock), tmp_path / "cache", ignore)


def test_a_disk_that_fills_up_leaves_nothing_behind(
    tmp_path: Path, lock: Path, npm: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm(GOOD)

    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copy", full)
    with pytest.raises(Refused, match="No space left on device"):
        install.install(acme(lock), tmp_path / "cache", ignore)
    assert [entry.suffix for entry in (tmp_path / "cache" / "clients").iterdir()] == [".lock"]


def test_a_long_installation_says_that_it_is_at_work(
    tmp_path: Path, lock: Path, npm: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.lab.install.commands._BEAT", 0.05)
    heard = tmp_path / "heard"
    npm(f"while [ ! -e {heard} ]; do sleep 0.05; done\n" + GOOD)
    told: list[str] = []

    def say(line: str) -> None:
        told.append(line)
        if "MB so far" in line:
            heard.touch()

    install.install(acme(lock), tmp_path / "cache", say)
    assert any("MB so far" in line for line in told)


def test_the_operators_proxies_reach_the_installer_and_not_the_client(
    tmp_path: Path, lock: Path, npm: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    npm(program("node_modules/acme-linux/bin", "echo ${HTTPS_PROXY:-1.2.3}") + 'echo "$HTTPS_PROXY" > ../proxy')
    install.install(acme(lock), tmp_path / "cache", ignore)
    assert (tmp_path / "cache" / "clients" / "proxy").read_text() == "http://proxy.example:3128\n"


CHILD = """
import sys
from pathlib import Path
sys.path[:0] = [{root!r}, {here!r}]
import test_install
from benchmarks.lab import install
from benchmarks.lab.install import npm
npm.npm_command = lambda: (Path({node!r}), Path("npm-cli.js"))
made = install.install(test_install.acme(Path({lock!r})), Path({cache!r}), lambda line: print(line, flush=True))
print(made.root, flush=True)
"""


def child(tmp_path: Path, lock: Path, node: Path) -> subprocess.Popen[str]:
    here = str(Path(__file__).parent)
    code = CHILD.format(root=str(ROOT), here=here, node=str(node), lock=str(lock), cache=str(tmp_path / "cache"))
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.01)


def test_two_at_once_share_one_installation(tmp_path: Path, lock: Path, npm: Tool) -> None:
    go = tmp_path / "go"
    node = npm(f"echo run >> ../runs; while [ ! -e {go} ]; do sleep 0.05; done\n" + GOOD)
    first = child(tmp_path, lock, node)
    wait_for(tmp_path / "cache" / "clients" / "runs")
    second = child(tmp_path, lock, node)
    assert second.stdout is not None
    assert "waiting for another program" in second.stdout.readline()
    go.touch()
    roots = {process.communicate(timeout=60)[0].splitlines()[-1] for process in (first, second)}
    assert len(roots) == 1
    assert (tmp_path / "cache" / "clients" / "runs").read_text() == "run\n"


def test_kill_9_in_the_middle_leaves_nothing_that_counts(tmp_path: Path, lock: Path, npm: Tool) -> None:
    started = tmp_path / "started"
    node = npm(f"{GOOD}echo $$ > {started}.new; mv {started}.new {started}; exec sleep 600\n")
    process = child(tmp_path, lock, node)
    wait_for(started)
    process.kill()
    process.communicate()
    try:
        assert not any((tmp_path / "cache" / "clients").glob("acme-*/"))
        npm(GOOD)
        made = install.install(acme(lock), tmp_path / "cache", ignore)
    finally:
        os.kill(int(started.read_text()), signal.SIGKILL)  # what kill -9 orphaned
    left = {entry.name for entry in (tmp_path / "cache" / "clients").iterdir()}
    assert left == {made.root.name, f"{made.root.name}.lock", f"{made.root.name}.log"}


# ---- Python clients ----


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """Puts a program in the place of uv: `venv` makes a real environment of this Python, `pip` does what is given."""

    def put(pip: str) -> Path:
        script = tmp_path / "uv"
        script.write_text(
            f"#!/bin/sh\nif [ $1 = venv ]; then exec {sys.executable} -m venv --without-pip venv; fi\n{pip}\n"
        )
        script.chmod(0o755)
        monkeypatch.setenv("UV", str(script))
        return script

    return put


PRINTS = "import sys; print('acme', '1.2.3')"


def test_a_python_client_has_an_environment_of_its_own(tmp_path: Path, lock: Path, uv: Tool) -> None:
    uv(f'echo "$@" > ../said; echo "{PRINTS}; print(sys.prefix); print(sys.path)" > venv/bin/acme')
    made = install.install(acme(lock, kind="pip", where="bin"), tmp_path / "cache", ignore)
    assert made.path == (made.root / "bin",)
    poisoned = {"PATH": "/usr/bin:/bin", "PYTHONPATH": "/the/target"}
    out = subprocess.check_output([made.path[0] / "acme"], text=True, env=poisoned, cwd="/")
    version, prefix, paths = out.splitlines()
    assert version == "acme 1.2.3"
    assert Path(prefix) == made.root / "venv"
    assert "/the/target" not in paths
    assert "--only-binary :all:" in (tmp_path / "cache" / "clients" / "said").read_text()  # no compiler is needed


def test_the_packages_of_the_base_python_are_not_exposed(tmp_path: Path, lock: Path, uv: Tool) -> None:
    """A target's source may lie in them."""
    uv(f'echo "{PRINTS}" > venv/bin/acme')
    made = install.install(acme(lock, kind="pip", where="bin"), tmp_path / "cache", ignore)
    packages = Path(sys.base_prefix) / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    assert not any(packages.is_relative_to(path) for path in made.readonly)


def test_without_a_python_it_accepts_one_client_is_refused_with_the_cure(
    tmp_path: Path, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "uv"
    script.write_text("#!/bin/sh\necho error: No interpreter found for Python '>=3.10,<3.13' >&2; exit 2\n")
    script.chmod(0o755)
    monkeypatch.setenv("UV", str(script))
    with pytest.raises(Refused, match=r"acme: it needs a Python >=3\.10,<3\.13; install one .* No interpreter found"):
        install.install(acme(lock, kind="pip", where="bin"), tmp_path / "cache", ignore)


def test_without_uv_one_client_is_refused(tmp_path: Path, lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UV", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused, match="uv is not on PATH"):
        install.install(acme(lock, kind="pip", where="bin"), tmp_path / "cache", ignore)


# ---- clients that are there already ----


def test_a_client_that_is_there_already_is_checked_and_not_installed(tmp_path: Path, lock: Path) -> None:
    tool = tmp_path / "tools" / "acme"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho v1.2.3\n")
    tool.chmod(0o755)
    client = acme(lock, kind="none", where=str(tool.parent))
    made = install.install(client, tmp_path / "cache", ignore)
    assert (made.path, made.readonly, made.version) == ((tool.parent,), (tool.parent,), "1.2.3")
    tool.write_text("#!/bin/sh\necho v1.3.0\n")
    with pytest.raises(Refused, match=r"prints version 1\.3\.0"):
        install.install(client, tmp_path / "cache", ignore)


def test_the_wheels_node_and_npm_are_found() -> None:
    node, npm_cli = npm_command()
    assert json.loads((npm_cli.parents[1] / "package.json").read_text())["name"] == "npm"
    assert os.access(node, os.X_OK)
