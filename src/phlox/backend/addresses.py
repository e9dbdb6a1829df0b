"""Addresses of processes as text, and sockets that listen on one address of this host.

Nothing in Phlox listens on all interfaces: processes of one host listen on loopback, others on the configured address.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from phlox.errors import DistributedError

LOOPBACK = "127.0.0.1"


def split_address(text: str, subject: str = "the address") -> tuple[str, int]:
    """The host and the port of an address, HOST:PORT, with an IPv6 address in brackets.

    Raises `DistributedError`; its message begins with `subject`, the name of a setting or variable.

    >>> split_address("[::1]:29500"), split_address("node1:29500")
    (('::1', 29500), ('node1', 29500))
    >>> split_address("node1:70000", "PHLOX_COORDINATOR")
    Traceback (most recent call last):
    phlox.errors.DistributedError: PHLOX_COORDINATOR='node1:70000': '70000' is not a port, from 1 to 65535
    """
    host, colon, port = text.rpartition(":")
    if not colon:
        raise DistributedError(f"{subject}={text!r} is not HOST:PORT")
    in_brackets = host.startswith("[") and host.endswith("]")
    if ":" in host and not in_brackets:
        raise DistributedError(f"{subject}={text!r} is not HOST:PORT; an IPv6 address is in brackets: [::1]:29500")
    quoted = f"{subject}={text!r}"
    return check_host(host[1:-1] if in_brackets else host, quoted), check_port(port, quoted)


def join_address(host: str, port: int) -> str:
    """An address as text.

    >>> join_address("::1", 29500)
    '[::1]:29500'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_port(text: str, subject: str) -> int:
    """A port from 1 to 65535; for anything else `DistributedError`, whose message begins with `subject`."""
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and 0 < int(text) < 1 << 16):
        raise DistributedError(f"{subject}: {text!r} is not a port, from 1 to 65535")
    return int(text)


def check_host(text: str, subject: str) -> str:
    """A host's name, or its address without brackets; else `DistributedError`, whose message begins with `subject`."""
    try:
        if ":" in text:
            ipaddress.IPv6Address(text)
        elif not text or not set(text.lower()).isdisjoint(" \t\r\n/@[]\\,;'\"?#%") or not text.encode("idna"):
            raise ValueError
    except ValueError:  # the codec's errors are ValueErrors too
        raise DistributedError(f"{subject}: {text!r} is not the name or the address of a host") from None
    return text


def is_loopback(host: str) -> bool:
    """Is this `localhost`, or an address that only processes of the same host reach?

    >>> is_loopback("::1"), is_loopback("10.0.0.1"), is_loopback("node1")
    (True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def resolve(host: str) -> list[str]:
    """The addresses of a host's name; `OSError` if it does not resolve."""
    return list(dict.fromkeys(str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)))


def from_outside(host: str) -> str:
    """The name or address by which other hosts reach a host: its name, unless that is loopback on the host itself.

    Debian writes such names to /etc/hosts. Other hosts then need the address of this host's default route.
    """
    try:
        if is_loopback(host) or not all(map(is_loopback, resolve(host))):
            return host
    except OSError:  # the process that connects reports that it does not resolve
        return host
    return address_towards("192.0.2.1", "2001:db8::1") or host  # addresses reserved for documentation; nothing is sent


def address_towards(*hosts: str) -> str | None:
    """The address from which this host reaches the first of these hosts to which it has a route; None without any."""
    for host in hosts:
        try:
            for address in resolve(host):
                with socket.socket(_family(address), socket.SOCK_DGRAM) as probe:
                    probe.connect((address, 9))  # sends nothing
                    return probe.getsockname()[0]
        except OSError:
            continue
    return None


def listen(host: str, port: int, backlog: int, subject: str) -> socket.socket:
    """A socket that listens on the address to which a host's name resolves here; port 0 lets the system choose one.

    Raises `DistributedError`, whose message begins with `subject`, if the name does not resolve or is not of this
    host, or if the port is in use.
    """
    try:
        addresses: Sequence[str] = resolve(host)
    except OSError as error:
        raise DistributedError(f"{subject}: the name {host!r} does not resolve ({error})") from error
    if any(ipaddress.ip_address(address.partition("%")[0]).is_unspecified for address in addresses):
        raise DistributedError(f"{subject}: {host!r} stands for all interfaces of a host; name one address of it")
    problem: OSError | None = None
    for address in addresses:
        try:
            return socket.create_server((address, port), family=_family(address), backlog=backlog)
        except OSError as error:
            problem = error
    assert problem is not None
    raise DistributedError(
        f"{subject}: process 0 cannot listen on {join_address(host, port)} ({problem.strerror}); name an address of "
        "its own host and a port that is free there"
    ) from problem


def reserve(host: str) -> socket.socket:
    """A socket bound to a free port, which does not listen, and lets another socket of this user bind the port.

    It is kept until a server that takes a port's number listens on it, so that nobody else gets the port.
    """
    held = socket.socket(_family(host))
    try:
        # Both sockets must set this option; gRPC does. (Windows lacks it, but SO_REUSEADDR does the same there.)
        held.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_REUSEPORT", socket.SO_REUSEADDR), 1)
        held.bind((host, 0))
    except BaseException:
        held.close()
        raise
    return held


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
