"""`phlox launch`: a program in several processes."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from phlox.cli.command import Command, count, seconds, whole
from phlox.distributed.launch.launcher import PORT, Launch, launch, launch_by_ssh
from phlox.errors import DistributedError


def port(text: str) -> int:
    """A port, as the type of an argument."""
    if not 0 < whole(text) < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, from 1 to 65535")
    return int(text)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "-n", "--processes", type=count, required=True, metavar="N", help="number of processes on each host"
    )
    parser.add_argument("--devices", type=count, metavar="K", help="let JAX show each process K CPU devices")
    parser.add_argument(
        "--restarts", type=whole, default=0, metavar="R", help="after a failure, restart all up to R times"
    )
    parser.add_argument(
        "--elastic", action="store_true", help="restart with one process fewer after each failure of one"
    )
    parser.add_argument(
        "--min", type=count, default=1, metavar="N", help="keep at least N processes on a host (default: 1)"
    )
    parser.add_argument("--timeout", type=seconds, metavar="S", help="end all after S seconds, with exit status 124")
    parser.add_argument("--hang", type=seconds, metavar="S",
                        help="if no process prints or reports for S seconds, show all stacks and end all")  # fmt: skip
    parser.add_argument("--grace", type=seconds, default=5.0, metavar="S",
                        help="seconds between SIGTERM and SIGKILL (default: 5)")  # fmt: skip
    parser.add_argument("--hosts", metavar="A,B", help="the hosts; the others must reach the first by this name")
    parser.add_argument("--host-rank", type=whole, metavar="H",
                        help="the index of this host in --hosts, from 0; without it, ssh starts all")  # fmt: skip
    parser.add_argument("--port", type=port, default=PORT, metavar="P",
                        help=f"port of the launcher on the first host (default: {PORT})")  # fmt: skip
    parser.add_argument(
        "--ssh", default="ssh -o BatchMode=yes", metavar="CMD", help="command for ssh (default: 'ssh -o BatchMode=yes')"
    )
    parser.add_argument("--end-with-input", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module, as in python -m")
    parser.add_argument("program", metavar="PROGRAM", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the arguments of PROGRAM")


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    if not options.module and not Path(options.program).is_file():
        raise DistributedError(f"there is no file {options.program!r} to launch; a module needs -m")
    hosts = tuple(name.strip() for name in options.hosts.split(",") if name.strip()) if options.hosts else ()
    if options.host_rank is not None and not hosts:
        raise DistributedError("--host-rank says which of --hosts this is; give --hosts too")
    launched = Launch(
        command=(sys.executable, *["-m"] * options.module, options.program, *options.arguments),
        processes=options.processes,
        hosts=hosts,
        host_rank=options.host_rank or 0,
        port=options.port,
        devices=options.devices,
        restarts=options.restarts,
        elastic=options.elastic,
        least=options.min,
        timeout=options.timeout,
        hang=options.hang,
        grace=options.grace,
        watch_input=options.end_with_input,
    )
    if len(hosts) > 1 and options.host_rank is None:
        return launch_by_ssh(launched, shlex.split(options.ssh), _again(options))
    return launch(launched)


def _again(options: argparse.Namespace) -> list[str]:
    """The same arguments, for the launcher of a host."""
    again = ["-n", str(options.processes), "--hosts", options.hosts, "--port", str(options.port)]
    for name in ("devices", "restarts", "min", "timeout", "hang", "grace"):
        value = getattr(options, name)
        again += [f"--{name}", str(value)] if value is not None else []
    again += ["--elastic"] * options.elastic + ["-m"] * options.module
    return [*again, options.program, *options.arguments]


COMMAND = Command(
    description="Run a program in several processes, which px.distributed.initialize() joins into one group. Each line "
    "of their output begins with the rank. The first failure ends all processes and gives the exit status.",
    arguments=arguments,
    run=run,
)
