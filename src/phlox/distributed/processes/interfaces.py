"""Restricts the libraries of collectives, which listen too, to loopback if all processes are on one host."""

from __future__ import annotations

import socket
from collections.abc import MutableMapping

from phlox.backend.addresses import is_loopback
from phlox.backend.processes import Processes

INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""The environment variables with the interface of PyTorch's gloo, and of NCCL."""


def narrow_interfaces(group: Processes, environment: MutableMapping[str, str]) -> None:
    """Set the loopback interface if the processes communicate over it; variables that are already set stay.

    >>> environment = {"NCCL_SOCKET_IFNAME": "eth0"}
    >>> narrow_interfaces(Processes(size=2, address="10.0.0.1:29500"), environment); environment
    {'NCCL_SOCKET_IFNAME': 'eth0'}
    """
    if is_loopback(group.host):
        loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
        for variable in INTERFACES if loopback else ():
            environment.setdefault(variable, loopback[0])
