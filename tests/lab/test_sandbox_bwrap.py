"""What bwrap covers: what is seen, what can be reached, who the client is; as root and as an ordinary user."""

from __future__ import annotations

import contextlib
import http.server
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.lab import sandbox
from benchmarks.lab.errors import LabError
from benchmarks.lab.sandbox import Box, Limits, Running, SandboxSpec, bwrap

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 30.0


PYTHON = Path(sys.executable).resolve()
FETCH = f"""#!{PYTHON} -IS
import socket, sys, urllib.error, urllib.request
try:
    body = sys.argv[2].encode() if sys.argv[2:] else None
    print(urllib.request.build_opener().open(sys.argv[1], body).read().decode())
except urllib.error.URLError as problem:
    print({{ConnectionRefusedError: "refused", socket.gaierror: "unresolved"}}.get(type(problem.reason), problem))
"""


@pytest.fixture
def spec(tmp_path: Path) -> SandboxSpec:
    for name in ("work", "home", "bin"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin/fetch").write_text(FETCH)
    (tmp_path / "bin/fetch").chmod(0o755)
    return SandboxSpec(
        isolation="bwrap",
        workspace=tmp_path / "work",
        home=tmp_path / "home",
        trial_id="t",
        readonly=(tmp_path / "bin",),
        path=(tmp_path / "bin",),
    )


def changed(spec: SandboxSpec, **fields: object) -> SandboxSpec:
    names = ("isolation", "workspace", "home", "readonly", "network", "limits", "trial_id", "path")
    return SandboxSpec(**{**{name: getattr(spec, name) for name in names}, **fields})


def run(spec: SandboxSpec, script: str) -> str:
    """Output of a shell script inside, errors included."""
    with sandbox.open_box(spec) as box:
        start(box, spec, script).wait(PATIENCE)
    return output(spec)


def start(box: Box, spec: SandboxSpec, script: str) -> Running:
    out = spec.home.parent / "out"
    return box.start(["bash", "-c", f"exec 2>&1; {script}"], {}, None, out, spec.home.parent / "err", 1 << 20)


def output(spec: SandboxSpec) -> str:
    return (spec.home.parent / "out").read_text()


@contextlib.contextmanager
def served(box: Box) -> Iterator[None]:
    """An HTTP server outside that answers on the listener inside."""

    class Reply(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"outside got " + body)

        def log_message(self, *_: object) -> None:
            pass

    assert box.listener is not None
    server = http.server.HTTPServer(("127.0.0.1", 0), Reply, bind_and_activate=False)
    server.socket.close()
    server.socket = box.listener
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


# ---- the network ----


def test_a_server_outside_answers_on_the_loopback_inside(spec: SandboxSpec) -> None:
    with sandbox.open_box(spec) as box, served(box):
        assert box.port == 4141
        start(box, spec, f"fetch http://127.0.0.1:{box.port}/v1 hello").wait(PATIENCE)
    assert output(spec) == "outside got hello\n"


def test_nothing_outside_is_reached_and_every_attempt_is_listed(spec: SandboxSpec) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as operators:
        port = operators.server_address[1]
        script = (
            f"fetch http://127.0.0.1:{port}; fetch http://192.0.2.7:81; fetch http://192.0.2.7:81; "
            "fetch http://name.example; fetch 'http://[2001:db8::1]:82'; echo x > /dev/udp/192.0.2.8/99; true"
        )
        with sandbox.open_box(spec) as box:
            running = start(box, spec, script)
            assert running.wait(PATIENCE) == (0, None)
            running.end(0)
            seen = running.egress()
    assert output(spec).split() == ["refused", "refused", "refused", "unresolved", "refused"]
    assert seen is not None
    counted = {(attempt.kind, attempt.destination): attempt.count for attempt in seen}
    assert counted.pop(("dns", "name.example")) >= 1
    assert counted == {("tcp", "192.0.2.7:81"): 2, ("tcp", "[2001:db8::1]:82"): 1, ("udp", "192.0.2.8:99"): 1}


def test_talk_with_the_meter_and_inside_the_box_is_no_egress(spec: SandboxSpec) -> None:
    inside = (
        "import socket as s, threading as t\n"
        "a = s.create_server(('127.0.0.1', 0)); c = s.create_connection(a.getsockname()); c.send(b'x' * 1000)\n"
        "u = s.socket(type=s.SOCK_DGRAM); u.sendto(b'x', ('127.0.0.1', 9))\n"
    )
    (spec.workspace / "talk.py").write_text(inside)
    with sandbox.open_box(spec) as box, served(box):
        running = start(box, spec, f"fetch http://127.0.0.1:4141 1 && {PYTHON} talk.py")
        assert running.wait(PATIENCE) == (0, None), output(spec)
        running.end(0)
        assert running.egress() == ()


def test_a_flood_of_attempts_is_counted_in_a_bounded_list(spec: SandboxSpec) -> None:
    flood = (
        "import socket\n"
        "s = socket.socket(type=socket.SOCK_DGRAM)\n"
        "for i in range(1000): s.sendto(b'x', (f'192.0.2.{i % 250}', 1000 + i))\n"
    )
    (spec.workspace / "flood.py").write_text(flood)
    with sandbox.open_box(spec) as box:
        running = start(box, spec, f"{PYTHON} flood.py")
        assert running.wait(PATIENCE) == (0, None), output(spec)
        running.end(0)
        seen = running.egress()
    assert seen is not None
    assert len(seen) == 201
    assert seen[-1].destination == "(others)"
    assert seen[-1].count > 1


def test_without_network_there_is_no_listener(spec: SandboxSpec) -> None:
    with sandbox.open_box(changed(spec, network=False)) as box:
        assert box.port is None
        assert box.listener is None
        start(box, spec, "fetch http://127.0.0.1:4141").wait(PATIENCE)
    assert output(spec) == "refused\n"


# ---- the files ----


def test_case_12_the_checkout_other_homes_and_caches_are_not_there(spec: SandboxSpec) -> None:
    spec = changed(spec, readonly=(), path=())
    places = [ROOT, Path.home(), Path("~/.cache").expanduser(), spec.home.parent, Path("/work"), Path("/etc/shadow")]
    script = "; ".join(f"find '{place}' -mindepth 1 -not -path '{bwrap._base()}*' -type f" for place in places)
    found = [line for line in run(spec, script).splitlines() if "No such file" not in line]
    assert found == []


def test_a_readonly_path_is_there_alone_and_cannot_be_written(spec: SandboxSpec, tmp_path: Path) -> None:
    tools = tmp_path / "cache" / "tools"
    tools.mkdir(parents=True)
    (tmp_path / "cache" / "secret").write_text("secret")
    (tools / "hello").write_text("#!/bin/sh\necho hello\n")
    (tools / "hello").chmod(0o755)
    shown = changed(spec, readonly=(tools, tools / "hello"), path=(tools,))
    said = run(shown, f"hello; ls {tmp_path}/cache; touch {tools}/x {tmp_path}/x || echo refused")
    assert said.split("\n")[:2] == ["hello", "tools"]
    assert said.endswith("refused\n")
    with pytest.raises(LabError, match="missing"), sandbox.open_box(changed(spec, readonly=(tmp_path / "missing",))):
        pass


def test_a_readonly_path_may_lie_below_the_operators_home(spec: SandboxSpec) -> None:
    """The interpreter of this very environment does, on many machines."""
    environment = Path(sys.prefix)
    script = f"{environment}/bin/python -c 'import psutil; print(psutil.__name__)'; ls -A {environment.parent}"
    said = run(changed(spec, readonly=(environment,)), script)
    assert said.splitlines() == ["psutil", environment.name]


def test_installed_packages_of_the_systems_pythons_are_hidden_and_not_listed_as_exposed(spec: SandboxSpec) -> None:
    folders = bwrap._package_folders()
    assert folders
    assert run(spec, "; ".join(f"ls -A '{folder}'" for folder in folders)) == ""
    exposed = sandbox.exposed("bwrap")
    assert Path("/usr/bin") in exposed
    for folder in folders:
        assert not any(folder == path or path in folder.parents for path in exposed)


def test_only_workspace_home_and_tmp_can_be_written(spec: SandboxSpec) -> None:
    places = '/ /usr /etc /run /home /dev /var /root "$HOME" "$PWD" /tmp /dev/shm'
    script = f"for d in {places}; do touch $d/x 2>/dev/null && echo $d; done"
    with sandbox.open_box(spec) as box:
        start(box, spec, script).wait(PATIENCE)
        assert output(spec).split() == [box.home, box.workspace, "/tmp", "/dev/shm"]
        assert not box.home.startswith("/tmp")
        assert not box.workspace.startswith((box.home, "/tmp"))
    assert [path.name for folder in (spec.home, spec.workspace) for path in folder.iterdir()] == ["x", "x"]


def test_tmp_is_bounded(spec: SandboxSpec) -> None:
    said = run(
        changed(spec, limits=Limits(disk_bytes=1 << 20)), "head -c 5000000 /dev/zero > /tmp/x; stat -c %s /tmp/x"
    )
    assert said.splitlines()[-1] == str(1 << 20)


# ---- the client ----


def test_the_client_is_an_ordinary_user_without_capabilities(spec: SandboxSpec) -> None:
    said = run(spec, "id -u; grep -E 'Cap|NoNewPrivs' /proc/self/status; mount -t tmpfs x /tmp || echo refused; whoami")
    lines = said.split("\n")
    assert lines[0] == "1000"
    assert {line.split(":")[1].strip() for line in lines[1:6]} == {"0" * 16}
    assert lines[6].split() == ["NoNewPrivs:", "1"]
    assert "refused" in lines
    assert lines[-2] == "agent"


def test_the_client_sees_its_own_processes_only_and_cannot_touch_the_first(spec: SandboxSpec) -> None:
    said = run(
        spec, "ls /proc | grep -c '^[0-9]'; cat /proc/1/environ | wc -c; kill -9 1; kill -STOP 1; echo still here"
    )
    lines = said.splitlines()
    assert int(lines[0]) <= 5
    assert "Permission denied" in said
    assert lines[-1] == "still here"


def test_terminals_and_nested_namespaces_work_for_clients_that_need_them(spec: SandboxSpec) -> None:
    terminal = f"{PYTHON} -c 'import pty; pty.openpty(); print(1)'"
    assert run(spec, f"{terminal}; unshare -U true && echo 2") == "1\n2\n"


def test_the_client_knows_localhost_and_itself(spec: SandboxSpec) -> None:
    assert run(spec, "getent hosts localhost; getent passwd agent | cut -d: -f6").split() == [
        *("::1", "localhost"),
        "/home/agent",
    ]


def test_the_box_itself_being_killed_is_told_as_a_signal(spec: SandboxSpec) -> None:
    with sandbox.open_box(spec) as box:
        running = start(box, spec, "sleep 1000")
        first = int(Path(f"/proc/{running.pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(first, 9)
        assert running.wait(PATIENCE) == (None, 9)
        assert running.end(0) == ()


def test_without_a_namespace_of_its_own_the_client_is_held_all_the_same(
    spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plainer way, for machines whose policy forbids nesting; there, nothing can be seen of attempts to leave."""
    plain = bwrap.Bwrap(binary=bwrap.find().binary, remap=False)
    monkeypatch.setattr(bwrap, "find", lambda: plain)
    with sandbox.open_box(spec) as box, served(box):
        running = start(box, spec, "id -u; fetch http://127.0.0.1:4141 hi; fetch http://192.0.2.7")
        assert running.wait(PATIENCE) == (0, None)
        assert running.egress() is None
    assert output(spec).split("\n") == [
        *("1000", "outside got hi"),
        *("<urlopen error [Errno 101] Network is unreachable>", ""),
    ]


def test_the_bwrap_of_the_system_is_tried_first_and_the_packaged_one_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert bwrap._candidates()[0] == str(broken)
    assert bwrap.find.__wrapped__().binary != str(broken)


# ---- the other user ----

PROBE = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from benchmarks.lab import sandbox
import os, tempfile
assert os.getuid() != 0
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    for part in ("work", "home"):
        (folder / part).mkdir()
    places = dict(workspace=folder / "work", home=folder / "home")
    spec = sandbox.SandboxSpec(isolation=sandbox.choose(None), trial_id="o", **places)
    with sandbox.open_box(spec) as box:
        script = "id -u; touch made; setsid sleep 1000 & (: > /dev/tcp/192.0.2.7/80) 2>/dev/null; exit 3"
        running = box.start(["bash", "-c", script], {}, None, folder / "out", folder / "err", 1000)
        end = running.wait(30)
        strays = running.end(0)
    made = (folder / "work/made").stat().st_uid == os.getuid()
    print(spec.isolation, end, [s.name for s in strays], (folder / "out").read_text().strip(), running.egress(), made)
"""


def test_it_works_for_an_ordinary_user_as_for_root() -> None:
    """Run as root this becomes another user first; run as an ordinary user it is one already."""
    argv = [sys.executable, "-c", PROBE, str(ROOT)]
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        assert setpriv is not None, "setpriv (util-linux) is needed to test as an ordinary user"
        argv = [setpriv, "--reuid", "65534", "--regid", "65534", "--clear-groups", *argv]
    done = subprocess.run(argv, capture_output=True, text=True, cwd="/", env={"PATH": os.environ["PATH"]}, check=False)
    attempt = "(EgressAttempt(kind='tcp', destination='192.0.2.7:80', count=1),)"
    assert done.stdout == f"bwrap (3, None) ['sleep'] 1000 {attempt} True\n", done.stderr


def test_what_lies_in_a_temporary_folder_of_the_host_can_be_shown(spec: SandboxSpec) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as outside:
        shown = Path(outside) / "deep" / "tool"
        shown.mkdir(parents=True)
        (shown / "file").write_text("seen")
        Path(outside, "hidden").write_text("not seen")
        Path(outside).chmod(0o755)
        seen = run(changed(spec, readonly=(shown,)), f"cat {shown}/file; echo; ls {outside}")
    assert seen == "seen\ndeep\n"
