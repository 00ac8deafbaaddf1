"""What tried to leave a box: packets as they come from the packet socket of `inside.py`, counted by destination.

Seen: the first packet of a TCP connection to any address but 127/8 and ::1, UDP likewise, and the names asked of the
resolver (resolv.conf inside names 127.0.0.1, where nobody answers). Not seen: raw sockets, which the client has no
right to open. Each attempt was refused by the kernel before it was counted here; nothing is sent anywhere.
Formats: RFC 791, 8200 (IP), 9293 (TCP), 768 (UDP), 1035 (DNS).
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Literal

from benchmarks.lab.model import EgressAttempt

MOST = 200  # distinct destinations kept; the rest is counted under `OTHERS`
OTHERS = "(others)"
_DNS = 53
_Key = tuple[Literal["tcp", "udp", "dns"], str]


class EgressLog:
    """Reads a packet socket whenever asked to, so that its buffer stays empty."""

    def __init__(self, packets: socket.socket) -> None:
        packets.setblocking(False)
        self.packets = packets
        self._counts: dict[_Key, int] = {}
        self._broken = False

    def drain(self) -> None:
        """Take in what is waiting."""
        while True:
            try:
                packet = self.packets.recv(512)
            except BlockingIOError:
                return
            except OSError:
                self._broken = self.packets.fileno() >= 0  # a closed one has ended with its box
                return
            seen = destination(packet)
            if seen is None:
                continue
            if seen not in self._counts and len(self._counts) >= MOST:
                seen = (seen[0], OTHERS)
            self._counts[seen] = self._counts.get(seen, 0) + 1

    def attempts(self) -> tuple[EgressAttempt, ...] | None:
        """What was seen so far, in the order of first sight; None once the socket could not be read."""
        if self._broken:
            return None
        counts = dict(self._counts)
        return tuple(EgressAttempt(kind=kind, destination=to, count=count) for (kind, to), count in counts.items())


def destination(packet: bytes) -> _Key | None:
    """Kind and destination of one IP packet; None if it stayed at home or cannot be read."""
    try:
        protocol, address, payload = _split(packet)
        port = int.from_bytes(payload[2:4], "big")
        if protocol == socket.IPPROTO_UDP and port == _DNS:
            return ("dns", _asked_name(payload[8:]))
        if address.is_loopback:
            return None
        host = f"[{address}]" if address.version == 6 else str(address)
        return ("tcp" if protocol == socket.IPPROTO_TCP else "udp", f"{host}:{port}")
    except (IndexError, ValueError):
        return None


def _split(packet: bytes) -> tuple[int, ipaddress.IPv4Address | ipaddress.IPv6Address, bytes]:
    if packet[0] >> 4 == 4:
        start = (packet[0] & 0x0F) * 4
        return packet[9], ipaddress.IPv4Address(packet[16:20]), packet[start:]
    return packet[6], ipaddress.IPv6Address(packet[24:40]), packet[40:]


def _asked_name(message: bytes) -> str:
    """The first question of a DNS message. Names of questions are never compressed."""
    labels, at = [], 12
    while message[at]:
        size = message[at]
        labels.append(message[at + 1 : at + 1 + size].decode("ascii", "backslashreplace"))
        at += 1 + size
    return ".".join(labels) or "."
