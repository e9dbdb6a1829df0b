"""Draw digits: a Wasserstein GAN with gradient penalty.

    python examples/wgan_gp.py
    python examples/wgan_gp.py --device jax --epochs 150

The critic estimates how far generated images are from real ones (the Wasserstein distance), for which its slope must be
near 1 between the two; a penalty sees to that (Gulrajani et al. 2017, "Improved training of Wasserstein GANs"). It
shows: a gradient inside of a loss, which is differentiated again; several steps of one model for each of another. How
near the drawn images are to real ones is measured by the energy distance, which is 0 for equal distributions.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import numpy.typing as npt

import phlox as px
from phlox import nn, optim
from phlox.data import Loader, load_digits, split
from phlox.train import Learner

Images = npt.NDArray[np.float32]
PIXELS, NOISE, BATCH, CRITIC_STEPS, PENALTY = 64, 16, 64, 4, 10.0


def energy_distance(a: Images, b: Images) -> float:
    """2 E|a - b| - E|a - a'| - E|b - b'|."""

    def mean_distance(x: Images, y: Images) -> float:
        return float(np.linalg.norm(x[:, None] - y[None], axis=-1).mean())

    return 2.0 * mean_distance(a, b) - mean_distance(a, a) - mean_distance(b, b)


def noise(count: int, device: px.Device) -> px.Tensor:
    """What the generator makes images of."""
    return px.random.normal((count, NOISE), device=device)


def critic_loss(critic: Any, real: px.Tensor, fake: px.Tensor) -> px.Tensor:
    """The distance that the critic sees, negated, and the penalty."""
    mix = px.random.uniform((real.shape[0], 1), device=real.device)
    between = real * mix + fake * (1.0 - mix)
    slopes = px.grad(lambda x: critic(x).sum())(between)  # of each image's own value
    penalty = ((slopes.square().sum(-1) + 1e-12).sqrt() - 1.0).square().mean()
    return critic(fake).mean() - critic(real).mean() + PENALTY * penalty


def update(models: Any, optimizers: Any, rates: Any, batch: px.Tensor) -> Any:
    """A step of the critic on each part of the batch, then one of the generator."""
    generator, critic = models["generator"], models["critic"]
    losses: list[px.Tensor] = []
    for real in batch.split(BATCH):
        fake = generator(noise(BATCH, batch.device)).detach()
        loss, grads = px.value_and_grad(critic_loss)(critic, real, fake)
        critic = optimizers["critic"].step(rates["critic"], critic, grads)
        losses.append(loss)

    def generator_loss(generator: Any) -> px.Tensor:
        return -critic(generator(noise(BATCH, batch.device))).mean()

    loss, grads = px.value_and_grad(generator_loss)(generator)
    generator = optimizers["generator"].step(rates["generator"], generator, grads)
    return {"generator": generator, "critic": critic}, {"critic": px.stack(losses).mean(), "generator": loss}


def drawn(images: Images) -> str:
    """Images side by side, as text."""
    shades = np.array(list(" .:-=+*#%@"))
    rows = np.concatenate(list((images.reshape(-1, 8, 8) * 9.99).astype(int).clip(0, 9)), axis=1)
    return "\n".join("".join(row) for row in shades[rows])


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Run the program; by default `arguments` are those of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="numpy", help="numpy, jax or torch; or a place, torch:gpu")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    px.random.seed(options.seed)
    digits = load_digits()
    parts = split((digits.images / 16.0).astype(np.float32).reshape(-1, PIXELS), digits.labels, seed=options.seed)
    generator = nn.Sequential([
        nn.Linear(NOISE, 128), nn.Relu(), nn.Linear(128, 128), nn.Relu(), nn.Linear(128, PIXELS), nn.Sigmoid(),
    ])  # fmt: skip
    critic = nn.Sequential([
        nn.Linear(PIXELS, 128), nn.LeakyRelu(0.2), nn.Linear(128, 128), nn.LeakyRelu(0.2), nn.Linear(128, 1),
    ])  # fmt: skip
    models = {
        "generator": generator.init(options.seed, options.device),
        "critic": critic.init(options.seed + 1, options.device),
    }
    adam = optim.AdamConfig(beta_1=0.0, beta_2=0.9)
    learner = Learner(
        models, {"generator": adam, "critic": adam}, {"generator": 1e-3, "critic": 1e-3}, update=update
    )  # fmt: skip

    def samples() -> Images:
        with px.random.stream(options.seed):
            return learner.model["generator"].valid()(noise(len(parts.test_images), learner.device)).numpy()

    before = energy_distance(samples(), parts.test_images)
    # Every batch has the images of several steps of the critic.
    loader = Loader(parts.train_images, BATCH * CRITIC_STEPS, shuffle=True, drop_last=True)
    learner.fit(loader, epochs=options.epochs)
    found = {"before": before, "after": energy_distance(samples(), parts.test_images)}
    floor = energy_distance(parts.train_images[: len(parts.test_images)], parts.test_images)
    print(f"Generated:\n{drawn(samples()[:12])}")
    print(
        f"Energy distance to images of the test set: {found['before']:.3f} before, {found['after']:.3f} after "
        f"(images of the training set: {floor:.3f})."
    )
    return found


if __name__ == "__main__":
    main()
