"""Learn the ten digits from two labelled images of each, with a network that has learned a coarser task.

    python examples/fine_tuning.py
    python examples/fine_tuning.py --device jax --shots 5

Coarse labels are cheap: a small convolutional network learns from many images whether one shows 0 or 1, 2 or 3, and so
on. Its body goes into a new network with a new head, and is frozen at first; then `Unfreeze` lets it be trained too, at
a tenth of the head's rate. It shows: modules taken from one model into another, `freeze`, groups with rates of their
own, `Unfreeze`, and what all this is worth against a network that begins with random weights.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from phlox import metrics, nn, optim
from phlox.data import Loader, load_digits, split
from phlox.train import Callback, Learner, Unfreeze

Arrays = tuple[Any, Any]
FEATURES = 128


def data(seed: int, shots: int) -> tuple[Arrays, Arrays, Arrays]:
    """Images with coarse labels, a few with exact ones, and others to test with."""
    digits = load_digits()
    parts = split((digits.images / 16.0).astype(np.float32)[:, None], digits.labels, held_out=0.3, seed=seed)
    images, labels = parts.train_images, parts.train_labels.astype(np.int64)
    few = np.concatenate([np.flatnonzero(labels == digit)[:shots] for digit in range(10)])
    return (images, labels // 2), (images[few], labels[few]), (parts.test_images, parts.test_labels)


def body() -> nn.Sequential:
    """Images [batch, 1, 8, 8] to features [batch, 128]."""
    return nn.Sequential([
        nn.Conv2d(1, 16, 3, padding=1), nn.Relu(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.Relu(),
        nn.MaxPool2d(2), nn.Flatten(),
    ])  # fmt: skip


def trained(
    model: nn.Sequential, optimizer: Any, batches: Arrays, epochs: int, *callbacks: Callback
) -> Learner[nn.Sequential]:
    """A learner that has trained the model on images and labels."""
    learner = Learner(model, optimizer, 3e-3, nn.cross_entropy_loss, metrics={"accuracy": metrics.Accuracy()})
    learner.fit(Loader(batches, 64, shuffle=True), epochs=epochs, callbacks=callbacks, progress=False)
    return learner


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Run the program; by default `arguments` are those of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="numpy", help="numpy, jax or torch; or a place, torch:gpu")
    parser.add_argument("--epochs", type=int, default=60, help="of the training on exact labels")
    parser.add_argument("--shots", type=int, default=2, help="images of each digit with an exact label")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    coarse, few, test = data(options.seed, options.shots)
    tests = Loader(test, 500)

    model = nn.Sequential(body=body(), head=nn.Linear(FEATURES, 5)).init(options.seed, options.device)
    base = trained(model, optim.AdamWConfig(), coarse, epochs=12)
    print(f"Coarse labels: {base.value('train/accuracy'):.1%} of {len(coarse[1])} images right in the last epoch.")

    new = nn.Linear(FEATURES, 10).init(options.seed + 1, options.device)
    model = nn.Sequential(body=base.model.layers["body"], head=new).freeze("layers.body.**")
    print(f"At first {model.num_params(trained_only=True)} of {model.num_params()} parameters are trained.")
    # The group has a tenth of the rate, from the epoch on in which its parameters are trained at all.
    optimizer = optim.AdamWConfig().init(groups=[optim.Group("layers.body.**", lr_factor=0.1)])
    unfreeze = Unfreeze("layers.body.**", epoch=options.epochs // 2 + 1)
    tuned = trained(model, optimizer, few, options.epochs, unfreeze)

    fresh = nn.Sequential(body=body(), head=nn.Linear(FEATURES, 10)).init(options.seed + 1, options.device)
    scratch = trained(fresh, optim.AdamWConfig(), few, options.epochs)

    found = {"tuned": tuned.evaluate(tests)["accuracy"], "scratch": scratch.evaluate(tests)["accuracy"]}
    print(
        f"Ten digits, from {options.shots} images of each: of {len(test[1])} others the tuned network has "
        f"{found['tuned']:.1%} right, one trained from scratch {found['scratch']:.1%}."
    )
    return found


if __name__ == "__main__":
    main()
