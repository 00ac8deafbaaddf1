"""First process inside a bwrap box (pid 1 of its pid namespace): opens the network ends, starts the client, reaps.

Run as `python -I -S inside.py CONTROL_FD PORT REMAP` by whatever Python is visible inside; it uses the standard library
only and imports as little as it can, because every trial pays for its start. Steps:
1. a TCP listener on 127.0.0.1:PORT (PORT 0: none), a packet socket that sees what tries to leave, and a local route for
   every other address, so that such attempts are refused at once instead of hanging;
2. these go out over the control socket (SCM_RIGHTS);
3. when told to, the client is forked into a user namespace of its own (REMAP 1), where it is uid 1000, without
   capabilities and with no way to gain any; then this process drops its own;
4. orphans are reaped, the client's end is told, and when the control socket closes this process exits, upon which the
   kernel kills everything in the box.
Messages: outside -> inside, 4 bytes of length, then fields joined by NUL; inside -> outside, lines of text.
It does not judge, limit, or kill anything itself.
"""

from __future__ import annotations

import _socket as socket
import ctypes
import os
import resource
import select
import sys

TYPE_CHECKING = False  # typing itself costs 10 ms of start-up
if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence
    from typing import NoReturn
else:
    import _signal as signal

INSIDE_ID = 1000
_CLONE_NEWUSER = 0x10000000
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_SO_ATTACH_FILTER = 26
_ETH_P_ALL = 3
_LO_INDEX = 1

_libc = ctypes.CDLL(None, use_errno=True)

# What the packet socket lets through, in the order of classic BPF over the network header; a word alone is a label.
# TCP SYN and UDP to addresses outside 127/8; UDP to port 53 of 127/8 (name look-ups); TCP SYN and UDP over IPv6.
# A packet crosses loopback twice: its outgoing copy (type 4) is dropped. The meter's own traffic never gets here.
_LDB, _LDH, _LDB_X, _LDH_X, _HEADER_X, _AND, _JEQ, _RET = 0x30, 0x28, 0x50, 0x48, 0xB1, 0x54, 0x15, 0x06
_PACKET_TYPE = 0xFFFFF004
_FILTER: tuple[str | tuple[int, int] | tuple[int, int, str, str], ...] = (
    (_LDH, _PACKET_TYPE),
    (_JEQ, 4, "drop", "version"),
    "version",
    (_LDB, 0),
    (_AND, 0xF0),
    (_JEQ, 0x60, "six", "four?"),
    "four?",
    (_JEQ, 0x40, "four", "drop"),
    "four",
    (_LDB, 9),
    (_JEQ, socket.IPPROTO_UDP, "udp", "tcp?"),
    "tcp?",
    (_JEQ, socket.IPPROTO_TCP, "tcp", "drop"),
    "tcp",
    (_LDB, 16),
    (_JEQ, 127, "drop", "flags"),
    "flags",
    (_HEADER_X, 0),
    (_LDB_X, 13),
    (_AND, 0x12),
    (_JEQ, 0x02, "take", "drop"),
    "udp",
    (_LDB, 16),
    (_JEQ, 127, "name?", "take"),
    "name?",
    (_HEADER_X, 0),
    (_LDH_X, 2),
    (_JEQ, 53, "take", "drop"),
    "six",
    (_LDB, 6),
    (_JEQ, socket.IPPROTO_UDP, "take", "tcp six?"),
    "tcp six?",
    (_JEQ, socket.IPPROTO_TCP, "tcp six", "drop"),
    "tcp six",
    (_LDB, 40 + 13),
    (_AND, 0x12),
    (_JEQ, 0x02, "take", "drop"),
    "take",
    (_RET, 512),
    "drop",
    (_RET, 0),
)


def _assemble() -> bytes:
    """The filter as an array of `struct sock_filter`, labels turned into relative jumps."""
    labels: dict[str, int] = {}
    code: list[tuple[int, int] | tuple[int, int, str, str]] = []
    for item in _FILTER:
        if isinstance(item, str):
            labels[item] = len(code)
        else:
            code.append(item)
    out = b""
    for at, item in enumerate(code):
        true, false = (labels[name] - at - 1 for name in item[2:]) if len(item) == 4 else (0, 0)
        out += item[0].to_bytes(2, sys.byteorder) + bytes((true, false)) + item[1].to_bytes(4, sys.byteorder)
    return out


def _packet_socket() -> socket.socket:
    """A packet socket on loopback behind the filter. Needs CAP_NET_RAW in the box's network namespace."""

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))

    packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
    code = _assemble()
    program = Program(len(code) // 8, code)
    size = ctypes.sizeof(program)
    if _libc.setsockopt(packets.fileno(), socket.SOL_SOCKET, _SO_ATTACH_FILTER, ctypes.byref(program), size):
        raise OSError(ctypes.get_errno(), "SO_ATTACH_FILTER")
    packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    packets.bind(("lo", _ETH_P_ALL))
    return packets


def _route_everything_here(family: int) -> None:
    """Make every address of `family` local (AnyIP), by one RTM_NEWROUTE; needs CAP_NET_ADMIN."""
    oif = b"".join(value.to_bytes(size, sys.byteorder) for value, size in ((8, 2), (4, 2), (_LO_INDEX, 4)))
    # struct rtmsg: family, dst_len, src_len, tos, table local, protocol boot, scope host, type local, flags
    scope = 254 if family == socket.AF_INET else 0
    body = bytes((family, 0, 0, 0, 255, 3, scope, 2)) + bytes(4) + oif
    flags = 0x01 | 0x04 | 0x400  # request, acknowledge, create
    header = (16 + len(body), 4), (24, 2), (flags, 2), (1, 4), (0, 4)
    link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    link.send(b"".join(value.to_bytes(size, sys.byteorder) for value, size in header) + body)
    error = int.from_bytes(link.recv(4096)[16:20], sys.byteorder, signed=True)
    link.close()
    if error:
        raise OSError(-error, "RTM_NEWROUTE")


def _listener(port: int) -> socket.socket:
    """The socket the meter answers on; whoever gets the descriptor accepts, also from outside the namespace."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    return listener


def _watch_network() -> tuple[socket.socket | None, str]:
    """The packet socket, or None and why; without it nothing leaves either, it is only not seen."""
    try:
        packets = _packet_socket()
        _route_everything_here(socket.AF_INET)
    except OSError as problem:
        return None, str(problem)
    try:
        _route_everything_here(socket.AF_INET6)
    except OSError:
        return packets, "no IPv6 here"
    return packets, ""


def _drop_privileges() -> None:
    """Give up every capability for good: ambient, bounding, permitted, effective and inheritable."""
    _libc.prctl(_PR_CAP_AMBIENT, 4, 0, 0, 0)
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) and ctypes.get_errno() != 1:
            break  # EINVAL: past the last one; EPERM (1): not ours to drop, and then not ours to use
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    if _libc.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)())):
        raise OSError(ctypes.get_errno(), "capset")
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")


def _become_ordinary() -> None:
    """Enter a user namespace of our own as uid 1000, so that nothing of the box's other namespaces is ours."""
    if _libc.unshare(_CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{INSIDE_ID} 0 1"), ("gid_map", f"{INSIDE_ID} 0 1")):
        descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY)
        os.write(descriptor, text.encode())
        os.close(descriptor)


def _limit(file_bytes: int, threads: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    allowed = threads if hard == resource.RLIM_INFINITY else min(threads, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (allowed, allowed))


def _be_first_when_memory_ends() -> None:
    descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    os.write(descriptor, b"500")
    os.close(descriptor)


def _become_client(fields: list[bytes], descriptors: Sequence[int], remap: bool) -> NoReturn:
    """In the forked child: stdin, stdout and stderr, limits, privileges, folder, and the client's program."""
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
    os.setsid()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and that would be inherited
    _be_first_when_memory_ends()
    folder, file_bytes, threads, count = fields[0], int(fields[1]), int(fields[2]), int(fields[3])
    if remap:
        _become_ordinary()
    _drop_privileges()
    _limit(file_bytes, threads)
    os.chdir(folder)
    argv, env = fields[4 : 4 + count], dict(item.split(b"=", 1) for item in fields[4 + count :])
    os.execvpe(argv[0], argv, env)


def _start(fields: list[bytes], descriptors: Sequence[int], remap: bool) -> tuple[int, str]:
    """Fork the client. Returns its pid, and what went wrong before its program began ('' if nothing did)."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _become_client(fields, descriptors, remap)
        except BaseException as problem:  # whatever it was, the child must say it and go
            os.write(tell, str(problem).encode())
        os._exit(127)
    os.close(tell)
    failure = os.read(told, 4096).decode()
    os.close(told)
    for descriptor in descriptors:
        os.close(descriptor)
    return pid, failure


def _say(control: socket.socket, line: str, descriptors: Sequence[int] = ()) -> None:
    packed = b"".join(descriptor.to_bytes(4, sys.byteorder) for descriptor in descriptors)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)] if packed else []
    control.sendmsg([line.encode() + b"\n"], ancillary)


def _hear(control: socket.socket) -> tuple[list[bytes], list[int]]:
    """One whole message and the descriptors that came with it; exits if the other end is gone."""
    data, ancillary, _, _ = control.recvmsg(4, socket.CMSG_SPACE(64))
    descriptors = [
        int.from_bytes(packed[at : at + 4], sys.byteorder)
        for _, _, packed in ancillary
        for at in range(0, len(packed), 4)
    ]
    wanted = int.from_bytes(data, "big")
    body = b""
    while data and len(body) < wanted:
        data = control.recv(wanted - len(body))
        body += data
    if not data:
        os._exit(0)
    return body.split(b"\0"), descriptors


def _reap(control: socket.socket, client: int) -> None:
    """Collect everything that ended; tell of the client."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid == client:
            code = os.waitstatus_to_exitcode(status)
            _say(control, f"signal {-code}" if code < 0 else f"exit {code}")


def _stay(control: socket.socket, client: int, woken: int) -> NoReturn:
    """Reap until the control socket closes. The exit of pid 1 ends every process of the namespace."""
    waiting = select.poll()
    waiting.register(control.fileno(), select.POLLIN)
    waiting.register(woken, select.POLLIN)
    while True:
        _reap(control, client)
        for descriptor, _ in waiting.poll():
            if descriptor == woken:
                os.read(woken, 4096)
            elif not control.recv(4096):
                os._exit(0)


def main() -> NoReturn:
    """Set up, hand out the descriptors, wait for the order to start, and stay until the other end closes."""
    control = socket.socket(fileno=int(sys.argv[1]))
    port, remap = int(sys.argv[2]), sys.argv[3] == "1"
    listener = _listener(port) if port else None
    packets, why = _watch_network() if remap else (None, "not permitted here")
    handed = [os.pidfd_open(os.getpid())]
    handed += [end.fileno() for end in (listener, packets) if end is not None]
    _say(control, f"ready {int(listener is not None)} {int(packets is not None)} {why}", handed)
    for descriptor in handed:
        os.close(descriptor)
    fields, descriptors = _hear(control)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    client, failure = _start(fields, descriptors, remap)
    _drop_privileges()  # not before: mapping the client's user needs one of them
    if failure:
        _say(control, f"failed {failure}")
        os._exit(0)
    _say(control, "started", [os.pidfd_open(client)])
    _stay(control, client, woken)


if __name__ == "__main__":
    main()
