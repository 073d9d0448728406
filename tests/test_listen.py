"""Binding: an address that works, and one plain sentence for each that does not."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterator

import pytest

from server.errors import AddressInUse, AddressInvalid
from server.listen import bind_socket, format_address, reachable_host
from server.machine import find_listener, read_machine_bytes, read_resident_bytes


@pytest.fixture
def taken() -> Iterator[int]:
    with bind_socket("127.0.0.1", 0) as listener:
        yield listener.getsockname()[1]


def test_a_connection_waits_in_the_kernel_until_somebody_serves():
    with bind_socket("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname(), timeout=5):
        assert not listener.getblocking()


def test_a_port_in_use_is_told_before_anything_is_served(taken: int):
    with pytest.raises(AddressInUse) as caught:
        bind_socket("127.0.0.1", taken)
    assert caught.value.port == taken
    assert re.match(rf"127\.0\.0\.1:{taken} is in use by another program.*--port", str(caught.value))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who listens without asking another program")
def test_the_holder_of_a_port_is_named(taken: int):
    assert (find_listener(taken) or "").startswith(f"pid {os.getpid()}, ")
    with pytest.raises(AddressInUse, match=rf"\(pid {os.getpid()}, "):
        bind_socket("127.0.0.1", taken)


def test_a_port_is_free_at_once_after_its_connections_were_cut(taken: int):
    listener = bind_socket("127.0.0.1", 0)
    address = listener.getsockname()
    with socket.create_connection(address, timeout=5):
        listener.setblocking(True)
        connection, _ = listener.accept()
        connection.close()  # we close first: our end stays in TIME_WAIT
        listener.close()
    bind_socket(*address).close()


@pytest.mark.parametrize(
    ("host", "port", "says"),
    [
        ("192.0.2.1", 8080, "no such address"),
        ("no-such-host.invalid", 8080, "no address goes by this name"),
        ("127.0.0.1", 70000, "1 to 65535"),
        ("host\x00name", 80, "no address goes by this name"),
    ],
)
def test_an_address_that_cannot_be_bound_is_one_sentence(host: str, port: int, says: str):
    with pytest.raises(AddressInvalid, match=says) as caught:
        bind_socket(host, port)
    assert "--host" in str(caught.value)


def test_localhost_binds_ipv4():
    with bind_socket("localhost", 0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_a_wildcard_is_reached_by_loopback_and_ipv6_wears_brackets():
    assert [reachable_host(host) for host in ("0.0.0.0", "::", "10.0.0.4")] == ["127.0.0.1", "::1", "10.0.0.4"]
    assert format_address("::1", 80) == "[::1]:80"
    assert format_address("127.0.0.1", 80) == "127.0.0.1:80"


def test_memory_of_process_and_machine_is_plausible():
    assert 5_000_000 < read_resident_bytes() < read_machine_bytes()
