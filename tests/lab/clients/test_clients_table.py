"""The table of clients: what each entry promises, how it is found, and that the docs say the same."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from benchmarks.lab import clients
from benchmarks.lab.clients import CLIENTS
from benchmarks.lab.errors import UsageError
from benchmarks.lab.model import Budgets, Client, ClientEndpoint, Dialect, Launch, LaunchSpec

ROOT = Path(__file__).resolve().parents[3]
LOCKS = ROOT / "benchmarks" / "lab" / "clients" / "locks"
# What is not installed (the stub) is a program of the harness's own, with nothing to be told and no lock.
REAL = {name: client for name, client in CLIENTS.items() if client.install.kind != "none"}
CAPPED = {name: client for name, client in REAL.items() if name != "codex"}
EVERY = pytest.mark.parametrize("client", REAL.values(), ids=REAL)


def spec(context: int | None = 32768, cap: int | None = None) -> LaunchSpec:
    return LaunchSpec(
        prompt="Do it.\n",
        endpoint=ClientEndpoint(
            base_url="http://127.0.0.1:4141", dialect="openai-chat", model="m", context=context, output_cap=cap
        ),
        workspace="/home/agent/work/w",
        home="/home/agent",
        budgets=Budgets(),
        session_id="3f2b6a0e-9c1d-4e57-8a43-0d5f6b7c8e9f",
        files=("a.py",),
    )


def told(launch: Launch) -> str:
    """All that a client is told, as one text."""
    return json.dumps(msgspec.to_builtins(launch))


@EVERY
def test_a_client_stands_in_the_table_under_its_name_with_dialects_there_are(client: Client) -> None:
    assert client.name == next(name for name, entry in CLIENTS.items() if entry is client)
    assert client.dialects
    assert set(client.dialects) <= set(get_args(Dialect))


@EVERY
def test_case_08_the_prompt_is_in_no_argument(client: Client) -> None:
    """case_8, B08: process lists show arguments, and some clients quote them again."""
    launch = client.launch(spec())
    assert not any("Do it." in argument for argument in launch.argv)
    assert launch.stdin == "Do it.\n" or "Do it.\n" in launch.files.values()


@EVERY
def test_B55_B11_context_and_cap_are_told_where_they_are_known(client: Client) -> None:
    assert "12345" in told(client.launch(spec(context=12345)))
    assert client.launch(spec(context=None)).argv[0] == client.version_argv[0]


@pytest.mark.parametrize("client", CAPPED.values(), ids=CAPPED)
def test_a_cap_is_told_and_without_one_the_reply_leaves_room_in_the_context(client: Client) -> None:
    """Clients assume up to 32,000 tokens of output; a context of 32,768 would be used up by it."""
    assert "4096" in told(client.launch(spec(cap=4096)))
    assert "8192" in told(client.launch(spec(context=32768)))
    assert "2048" in told(client.launch(spec(context=8192)))


def test_codex_has_no_setting_for_a_cap() -> None:
    assert "4096" not in told(CLIENTS["codex"].launch(spec(cap=4096)))


@EVERY
def test_B07_state_stays_in_the_private_home(client: Client) -> None:
    launch = client.launch(spec())
    paths = [value for value in (*launch.argv, *launch.env.values()) if value.startswith("/")]
    assert all(path.startswith("/home/agent/") for path in paths)
    assert not any(Path(file).is_absolute() or ".." in Path(file).parts for file in launch.files)


@EVERY
def test_the_environment_of_the_sandbox_is_left_to_the_sandbox(client: Client) -> None:
    assert not {"PATH", "HOME", "PWD", "NO_PROXY", "no_proxy", "LANG", "TMPDIR"} & set(client.launch(spec()).env)


def test_B04_B14_every_model_alias_leads_to_the_one_model() -> None:
    env = CLIENTS["claude"].launch(spec()).env
    aliases = {name for name in env if name.endswith("_MODEL")}
    assert len(aliases) >= 6
    assert {env[name] for name in aliases} == {"m"}
    config = json.loads(CLIENTS["opencode"].launch(spec()).files["opencode/opencode.json"])
    assert config["small_model"] == config["model"] == "local/m"
    assert "--title" in CLIENTS["opencode"].launch(spec()).argv


def test_B09_the_block_that_changes_with_each_session_is_off() -> None:
    assert CLIENTS["claude"].launch(spec()).env["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"


def test_B01_opencode_is_told_its_folder() -> None:
    argv = CLIENTS["opencode"].launch(spec()).argv
    assert argv[argv.index("--dir") + 1] == "/home/agent/work/w"


def test_B20_codex_waits_for_a_slow_engine_and_B17_speaks_responses() -> None:
    text = CLIENTS["codex"].launch(spec()).files[".codex/config.toml"]
    provider = tomllib.loads(text)["model_providers"]["local"]
    assert provider["stream_idle_timeout_ms"] >= 1_800_000
    assert provider["wire_api"] == "responses"


def test_a_model_name_with_quotes_stays_one_name() -> None:
    odd = 'a"b\\c'
    launch = CLIENTS["codex"].launch(
        msgspec.structs.replace(spec(), endpoint=msgspec.structs.replace(spec().endpoint, model=odd))
    )
    assert tomllib.loads(launch.files[".codex/config.toml"])["model"] == odd


# ---- finding ----


def test_a_client_is_found_by_its_name() -> None:
    assert all(clients.find(name) is client for name, client in CLIENTS.items())


def test_a_client_from_outside_the_checkout_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_agents.py").write_text(
        "from benchmarks.lab.clients import CLIENTS\nMINE = CLIENTS['codex']\nOTHER = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_agents", raising=False)
    assert clients.find("my_agents:MINE") is CLIENTS["codex"]
    with pytest.raises(UsageError, match="is a int, not a"):
        clients.find("my_agents:OTHER")


@pytest.mark.parametrize("name", ["codx", "no.such.module:X", "json:NOTHING", ":", "a:"])
def test_a_client_that_is_not_there_is_one_sentence(name: str) -> None:
    with pytest.raises(UsageError, match="--client"):
        clients.find(name)


def test_a_name_written_wrong_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match='did you mean "codex"'):
        clients.find("codx")


# ---- locks ----


@EVERY
def test_the_lock_pins_the_version_of_the_adapter(client: Client) -> None:
    folder = LOCKS / (client.install.lock or "")
    if client.install.kind == "npm":
        lock = json.loads((folder / "package-lock.json").read_text())
        (package,) = lock["packages"][""]["dependencies"]
        assert lock["packages"][f"node_modules/{package}"]["version"] == client.pinned
        assert json.loads((folder / "package.json").read_text())["dependencies"] == {package: client.pinned}
    else:
        pins = (folder / "requirements.txt").read_text().splitlines()
        assert all(re.match(r"^[a-z0-9._-]+==\S+( ; .+)?$", pin) for pin in pins)
        assert any(pin.endswith(f"=={client.pinned}") for pin in pins)


def test_no_lock_names_a_host() -> None:
    named = [file for file in LOCKS.rglob("*") if file.is_file() and "://" in _without_funding(file)]
    assert not named


def _without_funding(file: Path) -> str:
    if file.name != "package-lock.json":
        return file.read_text()
    lock = json.loads(file.read_text())
    for package in lock["packages"].values():
        package.pop("funding", None)  # where authors take gifts; nothing is installed from there
    return json.dumps(lock)


@pytest.mark.parametrize("name", ["claude", "codex", "opencode"])
def test_the_lock_serves_every_platform(name: str) -> None:
    lock = json.loads((LOCKS / name / "package-lock.json").read_text())
    served = {
        (system, cpu)
        for package in lock["packages"].values()
        if package.get("optional")
        for system in package["os"]
        for cpu in package["cpu"]
    }
    assert {("linux", "x64"), ("linux", "arm64"), ("darwin", "x64"), ("darwin", "arm64")} <= served


# ---- docs ----


def documented_row(client: Client) -> str:
    cells = (
        f"`{client.name}`",
        client.pinned,
        ", ".join(client.dialects),
        client.install.kind,
        "tools" if client.tool_loop else "text blocks",
        f"{client.min_context:,}",
        "; ".join(client.notes) or "–",
    )
    return f"| {' | '.join(cells)} |"


def test_the_docs_have_a_row_for_each_client_and_no_other() -> None:
    page = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert rows == [documented_row(client) for client in CLIENTS.values()]
