"""A generative adversarial network: points on a ring of eight clusters, from noise.

    python examples/gan.py
    python examples/gan.py --device jax --epochs 60

Two networks play against each other: the critic learns to tell points of the data from generated ones, the generator to
deceive it (Goodfellow et al. 2014, "Generative adversarial networks"). It shows: two models with an optimizer each, an
`update=` that steps both of them, and the two losses side by side. How near the generated points are to the data is
measured by the energy distance, which is 0 for equal distributions (Szekely, Rizzo 2013).
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import numpy.typing as npt

import phlox as px
from phlox import nn, optim
from phlox.data import Loader
from phlox.train import LambdaCallback, Learner

Points = npt.NDArray[np.float32]
NOISE, BATCH, MODES, SPREAD = 8, 128, 8, 0.05


def ring(count: int, seed: int) -> Points:
    """Points [count, 2] around the corners of an octagon."""
    rng = np.random.default_rng(seed)
    angles = rng.integers(0, MODES, count) * (2.0 * np.pi / MODES)
    corners = np.stack([np.cos(angles), np.sin(angles)], -1)
    return (corners + SPREAD * rng.normal(size=(count, 2))).astype(np.float32)


def energy_distance(a: Points, b: Points) -> float:
    """2 E|a - b| - E|a - a'| - E|b - b'|."""

    def mean_distance(x: Points, y: Points) -> float:
        return float(np.linalg.norm(x[:, None] - y[None], axis=-1).mean())

    return 2.0 * mean_distance(a, b) - mean_distance(a, a) - mean_distance(b, b)


def modes_found(points: Points) -> int:
    """How many of the clusters have at least 2 % of the points near them."""
    angles = np.arange(MODES) * (2.0 * np.pi / MODES)
    corners = np.stack([np.cos(angles), np.sin(angles)], -1)
    near = np.linalg.norm(points[:, None] - corners, axis=-1) < 4.0 * SPREAD
    return int((near.mean(0) > 0.02).sum())


def network(inputs: int, outputs: int, width: int = 64) -> nn.Sequential:
    """A network of two hidden layers."""
    return nn.Sequential([
        nn.Linear(inputs, width), nn.LeakyRelu(0.2), nn.Linear(width, width), nn.LeakyRelu(0.2),
        nn.Linear(width, outputs),
    ])  # fmt: skip


def update(models: Any, optimizers: Any, rates: Any, real: px.Tensor) -> Any:
    """A step of the critic on points of both kinds, then one of the generator against the new critic."""
    generator, critic = models["generator"], models["critic"]
    cross_entropy = nn.binary_cross_entropy_with_logits_loss
    ones = px.ones((real.shape[0], 1), device=real.device)
    noise = px.random.normal((real.shape[0], NOISE), device=real.device)
    fake = generator(noise).detach()

    def critic_loss(critic: Any) -> px.Tensor:
        return 0.5 * (cross_entropy(critic(real), ones) + cross_entropy(critic(fake), 0.0 * ones))

    def generator_loss(generator: Any) -> px.Tensor:
        return cross_entropy(critic(generator(noise)), ones)

    of_critic, grads = px.value_and_grad(critic_loss)(critic)
    critic = optimizers["critic"].step(rates["critic"], critic, grads)
    of_generator, grads = px.value_and_grad(generator_loss)(generator)
    generator = optimizers["generator"].step(rates["generator"], generator, grads)
    return {"generator": generator, "critic": critic}, {"critic": of_critic, "generator": of_generator}


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Run the program; by default `arguments` are those of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="numpy", help="numpy, jax or torch; or a place, torch:gpu")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    px.random.seed(options.seed)
    models = {
        name: network(inputs, outputs).init(options.seed + n, options.device)
        for n, (name, inputs, outputs) in enumerate([("generator", NOISE, 2), ("critic", 2, 1)])
    }
    adam = optim.AdamConfig(beta_1=0.5, beta_2=0.9)
    learner = Learner(
        models, {"generator": adam, "critic": adam}, {"generator": 1e-3, "critic": 1e-3}, update=update
    )  # fmt: skip
    noise = px.random.normal((1000, NOISE), device=options.device)

    def samples() -> Points:
        return learner.model["generator"].valid()(noise).numpy()

    others = ring(1000, options.seed + 1)
    distances = [energy_distance(samples(), others)]
    watch = LambdaCallback(on_epoch_end=lambda learner: distances.append(energy_distance(samples(), others)))
    learner.fit(Loader(ring(4096, options.seed), BATCH, shuffle=True), epochs=options.epochs, callbacks=[watch])
    found = {"before": distances[0], "after": distances[-1], "modes": modes_found(samples())}
    floor = energy_distance(ring(1000, options.seed + 2), others)
    print(
        f"Energy distance to the data: {found['before']:.3f} before, {found['after']:.4f} after (two samples of the "
        f"data: {floor:.4f}); {found['modes']} of {MODES} clusters found."
    )
    return found


if __name__ == "__main__":
    main()
