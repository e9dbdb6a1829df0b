"""Addresses as text, and sockets that listen on one of them."""

from __future__ import annotations

import re
import socket

import pytest

from phlox.backend import addresses
from phlox.backend.addresses import (
    address_towards,
    from_outside,
    is_loopback,
    join_address,
    listen,
    reserve,
    split_address,
)
from phlox.errors import DistributedError


@pytest.mark.parametrize("text", ["127.0.0.1:1", "[::1]:65535", "node1.cluster:29500", "[fe80::1%eth0]:80", "a_b:7"])
def test_an_address_goes_to_and_fro(text: str) -> None:
    assert join_address(*split_address(text)) == text


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("node1", "is not HOST:PORT"),
        ("node1:", "'' is not a port"),
        ("node1:0", "'0' is not a port"),
        ("node1:70000", "'70000' is not a port, from 1 to 65535"),
        ("node1:-5", "'-5' is not a port"),
        ("node1:٣", "is not a port"),
        ("node1:" + "9" * 5000, "is not a port"),
        ("::1:80", "an IPv6 address is in brackets"),
        ("[::1:80", "an IPv6 address is in brackets"),
        ("[1:2]:80", "'1:2' is not the name or the address of a host"),
        (":80", "'' is not the name"),
        ("http://node1:80", "in brackets"),
        ("a/b:80", "'a/b' is not the name"),
        ("two words:80", "'two words' is not the name"),
        ("a..b:80", "'a..b' is not the name"),
        ("x" * 64 + ":80", "is not the name"),
    ],
)
def test_what_is_no_address_is_named(text: str, sentence: str) -> None:
    with pytest.raises(DistributedError, match=f"PHLOX_COORDINATOR='.*{re.escape(sentence)}"):
        split_address(text, "PHLOX_COORDINATOR")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_it_listens_on_one_address(host: str) -> None:
    try:
        listener = listen(host, 0, 5, "given")
    except DistributedError:
        if host == "::1" and not socket.has_ipv6:
            pytest.skip("there is no IPv6 here")
        raise
    with listener:
        assert is_loopback(listener.getsockname()[0])
        with pytest.raises(DistributedError, match=r"given: process 0 cannot listen on .*Address already in use"):
            listen(host, listener.getsockname()[1], 5, "given")


@pytest.mark.parametrize(
    "host, sentence",
    [
        ("no-such-host.invalid", "the name 'no-such-host.invalid' does not resolve"),
        ("198.51.100.1", "name an address of its own host"),  # of an earlier job, perhaps
        ("0.0.0.0", "stands for all interfaces"),
        ("::", "stands for all interfaces"),
        ("0", "stands for all interfaces"),
    ],
)
def test_where_it_does_not_listen(host: str, sentence: str) -> None:
    with pytest.raises(DistributedError, match=f"given: .*{re.escape(sentence)}"):
        listen(host, 0, 5, "given")


def test_a_name_that_stands_for_loopback_on_its_own_host(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def as_on_debian(host: str, *arguments: object, **options: object) -> object:
        return real("127.0.1.1" if host == "node1" else host, *arguments, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(socket, "getaddrinfo", as_on_debian)
    monkeypatch.setattr(addresses, "address_towards", lambda *hosts: "10.0.0.1")
    assert from_outside("node1") == "10.0.0.1"
    assert from_outside("localhost") == "localhost" and from_outside("127.0.1.1") == "127.0.1.1"
    assert (
        from_outside("198.51.100.1") == "198.51.100.1"
        and from_outside("no-such-host.invalid") == "no-such-host.invalid"
    )
    monkeypatch.setattr(addresses, "address_towards", lambda *hosts: None)  # without a network
    assert from_outside("node1") == "node1"


def test_the_address_towards_a_host() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"
    assert address_towards("no-such-host.invalid", "127.0.0.1") == "127.0.0.1"
    assert address_towards("no-such-host.invalid") is None


def test_a_reserved_port_is_for_a_server_that_comes_later() -> None:
    with reserve("127.0.0.1") as held:
        port = held.getsockname()[1]
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            server.bind(("127.0.0.1", port))
            server.listen()
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                pass
