"""Train on several actors of Ray: data parallel, with the same losses as one process has.

    pip install ray
    python examples/ray_train.py
    python examples/ray_train.py --workers 4 --device torch

It shows: actors as the processes of `px.distributed.initialize`, a mesh, each actor's rows of every batch, and results
that come back to the driver. It starts a cluster of Ray on this machine; to use one that runs, set RAY_ADDRESS. What
`train` does is what it would do under `phlox launch` or torchrun, and alone.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
from typing import Any

import numpy as np

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff
from phlox.data import Loader, load_digits
from phlox.distributed import Layout, Mesh


def train(device: str, epochs: int, seed: int, batch: int = 128) -> dict[str, Any]:
    """Train a network on the handwritten digits, in every process; the losses are the same in all of them."""
    px.distributed.initialize(seed=seed, device=device, timeout=120.0)
    mesh = Mesh(data=-1, device=device)
    digits = load_digits()
    images, labels = digits.images.reshape(-1, 64).astype(np.float32) / 16.0, digits.labels.astype(np.int32)
    rows = len(images) // batch * batch
    batches = Loader((images[:rows], labels[:rows]), batch, shuffle=True, seed=seed).shard(*mesh.part)

    with px.default_device(Autodiff(mesh.backend)):
        model = nn.Sequential([nn.Linear(64, 64), nn.Gelu(), nn.Dropout(0.1), nn.Linear(64, 10)])
    model = model.shard(Layout(), mesh).init(seed).train()
    optimizer = optim.AdamWConfig().init()

    def step(model: Any, optimizer: Any, images: Any, labels: Any) -> Any:
        loss = nn.cross_entropy_loss(model(images), labels)
        grads = optim.GradientsParams.from_grads(loss.backward(), model)
        return optimizer.step(3e-3, model, grads), loss

    compiled = px.compile(step, donate=("model", "optimizer"))
    losses: list[float] = []
    with mesh:
        for epoch in range(epochs):
            found: list[Any] = []
            for own in batches.epoch(epoch):
                model, loss = compiled(model, optimizer, *mesh.batch(*own))
                found.append(px.distributed.mean(loss))  # of all rows, not only those of this process
            losses.append(float(np.mean([loss.item() for loss in found])))
            if px.distributed.is_main():
                print(f"epoch {epoch + 1}/{epochs}  loss {losses[-1]:.4f}", flush=True)
    result = {"rank": px.distributed.rank(), "size": px.distributed.size(), "losses": losses}
    px.distributed.shutdown()
    return result


def listen() -> str:
    """Open the socket of process 0, which `px.distributed.initialize` takes over, and return its address."""
    import ray  # pyright: ignore[reportMissingImports]

    host = ray.util.get_node_ip_address()
    listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    port = listener.getsockname()[1]
    os.environ["PHLOX_LISTENER"] = str(listener.detach())
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def share(secret: str) -> None:
    """Take the secret by which the actors know each other; Ray brings it."""
    os.environ["PHLOX_SECRET"] = secret


def worker(rank: int, size: int, coordinator: str, *arguments: Any) -> dict[str, Any]:
    """Process `rank` of the group: what a launcher would set, and then the training."""
    os.environ |= {
        "PHLOX_COORDINATOR": coordinator,
        "PHLOX_NUM_PROCESSES": str(size),
        "PHLOX_PROCESS_ID": str(rank),
    }
    return train(*arguments)


def main(arguments: list[str] | None = None) -> list[float]:
    """Run the program; by default `arguments` are those of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2, help="the number of actors")
    parser.add_argument("--device", default="numpy", help="numpy (its collectives need PyTorch), jax, torch, torch:gpu")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError:
        parser.exit(2, "this example needs Ray; install it with: pip install ray\n")

    class Actor:
        def call(self, function: Any, *given: Any) -> Any:
            return function(*given)

    on_gpu = {"num_gpus": 1} if options.device.endswith(("gpu", "cuda")) else {}
    ray.init(num_cpus=None if os.environ.get("RAY_ADDRESS") else options.workers, include_dashboard=False)
    try:
        actors = [ray.remote(num_cpus=1, **on_gpu)(Actor).remote() for _ in range(options.workers)]
        coordinator, secret = ray.get(actors[0].call.remote(listen)), secrets.token_hex(32)
        ray.get([actor.call.remote(share, secret) for actor in actors])
        given = (options.workers, coordinator, options.device, options.epochs, options.seed)
        # An actor that fails ends the wait with its error; the others end with the cluster.
        results = ray.get([actor.call.remote(worker, rank, *given) for rank, actor in enumerate(actors)])
    finally:
        ray.shutdown()
    losses = results[0]["losses"]
    assert all(one["losses"] == losses for one in results)
    print(f"{options.workers} processes: loss {losses[0]:.4f} in the first epoch, {losses[-1]:.4f} in the last one")
    return losses


if __name__ == "__main__":
    main()
