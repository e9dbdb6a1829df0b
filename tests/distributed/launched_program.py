"""A program for `phlox launch`: it computes with the others on an engine, and something happens to its last process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import phlox as px


def main() -> None:
    d = px.distributed
    engine, mode = sys.argv[1:3]
    d.initialize(device=engine if engine != "none" else None, timeout=60.0)
    print(f"attempt {d.attempt()}: {d.rank()} of {d.size()}", flush=True)
    print(f"draw {px.random.uniform((1,)).item()}", flush=True)

    def meet() -> None:
        """A barrier, or a collective of the engine."""
        if engine == "jax":
            from jax.experimental import multihost_utils

            multihost_utils.process_allgather(d.rank())
        elif engine == "torch":
            import torch
            import torch.distributed

            torch.distributed.all_reduce(torch.ones(3))
        else:
            d.barrier("meeting")

    meet()
    is_last = d.rank() == d.size() - 1
    # a worker of the process, that of the last one in a session of its own
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=is_last)
    if is_last if mode == "kill" else mode == "kill first" and d.rank() == 0:
        time.sleep(0.3)  # so that the others are in it
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "raise" and is_last:
        raise ValueError("an error of the program")
    if mode == "exit" and is_last:
        os._exit(3)
    if mode == "twice" and d.attempt() < 2 and is_last:
        os._exit(4)
    if mode == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("deaf", flush=True)
    for _ in range(20 if mode == "quiet" else 0):  # nothing is printed for as long
        time.sleep(0.3)
        meet()
    if mode in ("hang", "deaf") and is_last:
        time.sleep(600)
    meet()
    if mode != "leave":
        helper.kill()
    print("all is well", flush=True)


if __name__ == "__main__":
    main()
