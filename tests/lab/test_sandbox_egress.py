"""Packets as bytes -> what tried to leave."""

from __future__ import annotations

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.lab.model import EgressAttempt
from benchmarks.lab.sandbox.egress import EgressLog, destination
from benchmarks.lab.sandbox.inside import _assemble

QUESTION = b"\x12\x34\x01\x00\x00\x01" + bytes(6) + b"\x03api\x07example\x03com\x00\x00\x01\x00\x01"


def packet(protocol: int, to: str, port: int, payload: bytes = b"", options: bytes = b"") -> bytes:
    """An IP packet with just what is read of it."""
    address = ipaddress.ip_address(to)
    rest = (40000).to_bytes(2, "big") + port.to_bytes(2, "big") + bytes(4) + payload
    if address.version == 6:
        return bytes((0x60, 0, 0, 0, 0, 0, protocol, 64)) + bytes(16) + address.packed + rest
    return bytes((0x45 + len(options) // 4, *bytes(8), protocol)) + bytes(6) + address.packed + options + rest


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (packet(6, "192.0.2.1", 443), ("tcp", "192.0.2.1:443")),
        (packet(6, "192.0.2.1", 443, options=bytes(8)), ("tcp", "192.0.2.1:443")),
        (packet(6, "2001:db8::5", 443), ("tcp", "[2001:db8::5]:443")),
        (packet(17, "239.1.2.3", 5353), ("udp", "239.1.2.3:5353")),
        (packet(17, "127.0.0.1", 53, QUESTION), ("dns", "api.example.com")),
        (packet(17, "192.0.2.1", 53, QUESTION), ("dns", "api.example.com")),
        (packet(6, "::1", 8080), None),
        (packet(17, "127.0.0.1", 9), None),
        (packet(17, "127.0.0.1", 53, QUESTION[:20]), None),
        (b"", None),
    ],
)
def test_the_destination_of_a_packet(seen: bytes, expected: tuple[str, str] | None) -> None:
    assert destination(seen) == expected


@given(
    st.binary(max_size=100) | st.binary(max_size=60).map(lambda asked: packet(17, "192.0.2.1", 53, bytes(12) + asked))
)
def test_a_packet_of_any_bytes_has_a_destination_to_print_or_none(data: bytes) -> None:
    found = destination(data)
    assert found is None or (found[0] in ("tcp", "udp", "dns") and found[1] and found[1].isprintable())


def test_attempts_are_counted_by_destination_in_the_order_of_first_sight() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        log = EgressLog(ours)
        for seen in (packet(6, "192.0.2.2", 1), packet(6, "192.0.2.1", 1), packet(6, "192.0.2.2", 1)):
            theirs.send(seen)
        log.drain()
        assert log.attempts() == (
            EgressAttempt(kind="tcp", destination="192.0.2.2:1", count=2),
            EgressAttempt(kind="tcp", destination="192.0.2.1:1", count=1),
        )


def test_a_socket_that_cannot_be_read_is_no_proof_that_nothing_was_tried() -> None:
    connected = socket.socket(socket.AF_INET, socket.SOCK_STREAM)  # reading it before it is connected fails
    with connected:
        log = EgressLog(connected)
        log.drain()
        assert log.attempts() is None


def test_a_closed_socket_keeps_what_was_seen() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with theirs:
        log = EgressLog(ours)
        ours.close()
        log.drain()
        assert log.attempts() == ()


def test_every_jump_of_the_filter_lands_inside_it() -> None:
    code = _assemble()
    count = len(code) // 8
    for at in range(count):
        true, false = code[at * 8 + 2], code[at * 8 + 3]
        assert at + 1 + max(true, false) < count or at == count - 1
