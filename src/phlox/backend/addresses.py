"""Where processes listen and connect: addresses as text, and sockets that listen on one address of this host.

Nothing in Phlox listens on all interfaces: on one host on loopback, else on the address that was named.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from phlox.errors import DistributedError

LOOPBACK = "127.0.0.1"


def split_address(text: str, what: str = "the address") -> tuple[str, int]:
    """The host and the port of an address, HOST:PORT, with an IPv6 address in brackets.

    Raises `DistributedError`, which begins with `what`, the name of what was given.

    >>> split_address("[::1]:29500"), split_address("node1:29500")
    (('::1', 29500), ('node1', 29500))
    >>> split_address("node1:70000", "PHLOX_COORDINATOR")
    Traceback (most recent call last):
    phlox.errors.DistributedError: PHLOX_COORDINATOR='node1:70000': '70000' is not a port, from 1 to 65535
    """
    host, colon, port = text.rpartition(":")
    if not colon:
        raise DistributedError(f"{what}={text!r} is not HOST:PORT")
    in_brackets = host.startswith("[") and host.endswith("]")
    if ":" in host and not in_brackets:
        raise DistributedError(f"{what}={text!r} is not HOST:PORT; an IPv6 address is in brackets: [::1]:29500")
    given = f"{what}={text!r}"
    return check_host(host[1:-1] if in_brackets else host, given), check_port(port, given)


def join_address(host: str, port: int) -> str:
    """An address as text.

    >>> join_address("::1", 29500)
    '[::1]:29500'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_port(text: str, given: str) -> int:
    """A port from 1 to 65535; `DistributedError`, which begins with `given`, for anything else."""
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and 0 < int(text) < 1 << 16):
        raise DistributedError(f"{given}: {text!r} is not a port, from 1 to 65535")
    return int(text)


def check_host(text: str, given: str) -> str:
    """A host's name, or its address without brackets; `DistributedError`, which begins with `given`, for others."""
    try:
        if ":" in text:
            ipaddress.IPv6Address(text)
        elif not text or not set(text.lower()).isdisjoint(" \t\r\n/@[]\\,;'\"?#%") or not text.encode("idna"):
            raise ValueError
    except ValueError:  # the codec's errors are, too
        raise DistributedError(f"{given}: {text!r} is not the name or the address of a host") from None
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
    """The addresses that the name of a host stands for; `OSError` if there are none."""
    return list(dict.fromkeys(str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)))


def from_outside(host: str) -> str:
    """The name by which other hosts mean a host: itself, unless the name stands for loopback on its own host.

    Debian writes such names to /etc/hosts. What other hosts reach is then the address of this host's default route.
    """
    try:
        if is_loopback(host) or not all(map(is_loopback, resolve(host))):
            return host
    except OSError:  # who connects says that it does not resolve
        return host
    return address_towards("192.0.2.1", "2001:db8::1") or host  # of documentation; nothing is sent


def address_towards(*hosts: str) -> str | None:
    """The address of this host from which it reaches the first of these that there is a route to."""
    for host in hosts:
        try:
            for address in resolve(host):
                with socket.socket(_family(address), socket.SOCK_DGRAM) as probe:
                    probe.connect((address, 9))  # which sends nothing
                    return probe.getsockname()[0]
        except OSError:
            continue
    return None


def listen(host: str, port: int, backlog: int, given: str) -> socket.socket:
    """A socket that listens on the address that a host's name stands for here; port 0 lets the system choose one.

    Raises `DistributedError`, which begins with `given`, if the name does not resolve, is not of this host, or if the
    port is taken.
    """
    try:
        addresses: Sequence[str] = resolve(host)
    except OSError as error:
        raise DistributedError(f"{given}: the name {host!r} does not resolve ({error})") from error
    if any(ipaddress.ip_address(address.partition("%")[0]).is_unspecified for address in addresses):
        raise DistributedError(f"{given}: {host!r} stands for all interfaces of a host; name one address of it")
    problem: OSError | None = None
    for address in addresses:
        try:
            return socket.create_server((address, port), family=_family(address), backlog=backlog)
        except OSError as error:
            problem = error
    assert problem is not None
    raise DistributedError(
        f"{given}: process 0 cannot listen on {join_address(host, port)} ({problem.strerror}); name an address of its "
        "own host and a port that is free there"
    ) from problem


def reserve(host: str) -> socket.socket:
    """A socket that is bound to a free port of an address, does not listen, and lets another socket of this user bind.

    It is held until a server that takes a number of a port listens on it, so that nobody else gets the port.
    """
    held = socket.socket(_family(host))
    try:
        # Both must ask for it, and gRPC does. (Without it, as on Windows, SO_REUSEADDR does the same there.)
        held.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_REUSEPORT", socket.SO_REUSEADDR), 1)
        held.bind((host, 0))
    except BaseException:
        held.close()
        raise
    return held


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
