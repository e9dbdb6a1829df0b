from __future__ import annotations

from phlox.backend.processes import Processes
from phlox.distributed.processes.interfaces import INTERFACES, narrow_interfaces


def test_on_loopback_collectives_listen_there() -> None:
    for address in ("127.0.0.1:1", "[::1]:1"):
        environment: dict[str, str] = {}
        narrow_interfaces(Processes(size=2, address=address), environment)
        assert environment.keys() == set(INTERFACES) and set(environment.values()) <= {"lo", "lo0"}


def test_what_is_set_stays_and_elsewhere_nothing_is() -> None:
    environment = {"NCCL_SOCKET_IFNAME": "eth0"}
    narrow_interfaces(Processes(size=2, address="127.0.0.1:1"), environment)
    assert environment["NCCL_SOCKET_IFNAME"] == "eth0"
    narrow_interfaces(Processes(size=2, address="10.0.0.1:1"), other := {})
    assert not other
