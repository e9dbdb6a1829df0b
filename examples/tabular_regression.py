"""Predict the price of flats from a CSV file with columns of numbers and a column of names.

    python examples/tabular_regression.py
    python examples/tabular_regression.py --device jax --epochs 60

It shows: a `Loader` over a CSV file, numbers normalized by the training rows, an embedding for a category, a model with
two inputs, validation with metrics, and early stopping that gives back the best weights. The file is made here, by a
formula with noise; the noise is what no model can predict.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import phlox as px
from phlox import metrics, nn, optim
from phlox.data import Loader, Source, split_rows
from phlox.train import EarlyStopping, Learner

NUMBERS = ("area", "rooms", "age", "distance")
DISTRICTS = {"harbour": 1.5, "hill": 1.3, "old town": 1.2, "park": 1.0, "station": 0.8, "works": 0.6}


def write_csv(path: Path, rows: int, seed: int) -> None:
    """Flats, and what they cost (in thousands): a formula in which columns work together, with 5 % of noise."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*NUMBERS, "district", "price"])
        for _ in range(rows):
            area, age, distance = rng.uniform(25, 160), rng.uniform(0, 100), rng.exponential(4.0)
            rooms, district = max(1, round(area / 30 + rng.normal())), rng.choice(list(DISTRICTS))
            price = 3.0 * area * DISTRICTS[district] * np.exp(-distance / 10.0) * (1.2 - 0.004 * age) + 8.0 * rooms
            numbers = [f"{x:.1f}" for x in (area, rooms, age, distance, price * rng.normal(1.0, 0.05))]
            writer.writerow([*numbers[:4], district, numbers[4]])


def preprocessing(train: Source) -> tuple[Callable[[Any], Any], list[str], float, float]:
    """The transform of a batch, made of the training rows alone; the districts; and mean and spread of the price."""
    table = train[np.arange(len(train))]  # a dict of columns
    districts = sorted(set(table["district"].tolist()))
    mean = {name: table[name].mean() for name in (*NUMBERS, "price")}
    std = {name: table[name].std() for name in (*NUMBERS, "price")}

    def transform(batch: dict[str, Any]) -> Any:
        """`((numbers, district), price)`: a learner with `loss=` calls `model(numbers, district)`."""
        scaled = {name: ((batch[name] - mean[name]) / std[name]).astype(np.float32) for name in mean}
        known = {name: number for number, name in enumerate(districts)}
        kinds = [known.get(name, len(districts)) for name in batch["district"]]  # what is new is one class more
        return (np.stack([scaled[name] for name in NUMBERS], -1), np.array(kinds)), scaled["price"]

    return transform, districts, mean["price"], std["price"]


class Prices(px.Module):
    """Numbers [batch, n] and districts, Int [batch], to prices [batch]."""

    def __init__(self, n_numbers: int, n_districts: int, width: int = 64) -> None:
        self.district = nn.Embedding(n_districts, 4)
        self.body = nn.Sequential([
            nn.Linear(n_numbers + 4, width), nn.Gelu(), nn.Linear(width, width), nn.Gelu(), nn.Linear(width, 1),
        ])  # fmt: skip

    def __call__(self, numbers: px.Tensor, district: px.Tensor[Any, Any, px.Int]) -> px.Tensor:
        return self.body(px.concat([numbers, self.district(district)], -1)).squeeze(-1)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Run the program; by default `arguments` are those of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="numpy", help="numpy, jax or torch; or a place, torch:gpu")
    parser.add_argument("--epochs", type=int, default=60, help="the largest number of epochs")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    with TemporaryDirectory() as folder:
        path = Path(folder) / "flats.csv"
        write_csv(path, 2000, options.seed)
        train, validation, test = split_rows(path, 0.7, 0.15, 0.15, seed=options.seed)
        transform, districts, mean, std = preprocessing(train)
        batches = Loader(train, 64, shuffle=True, seed=options.seed, transform=transform)
        others = [Loader(part, 256, transform=transform) for part in (validation, test)]

        learner = Learner(
            Prices(len(NUMBERS), len(districts) + 1).init(options.seed, options.device),
            optim.AdamWConfig(weight_decay=0.01), 3e-3, nn.mse_loss,
            metrics={"r2": metrics.R2(), "mae": metrics.MeanAbsoluteError()},
        )  # fmt: skip
        stopping = EarlyStopping("validation/mae", patience=8, restore_best=True)
        learner.fit(batches, epochs=options.epochs, validation=others[0], callbacks=[stopping])

        reached = learner.evaluate(others[1])
        prices = test[np.arange(len(test))]["price"]
    found = {"r2": reached["r2"], "mae": reached["mae"] * std, "mae_of_mean": float(np.abs(prices - mean).mean())}
    print(
        f"Stopped after epoch {learner.epoch}: {learner.stopped}.\nOn {len(test)} flats that were not trained on: "
        f"R2 {found['r2']:.3f}; wrong by {found['mae']:.1f} thousand in the mean, where the mean price is wrong by "
        f"{found['mae_of_mean']:.1f}."
    )
    return found


if __name__ == "__main__":
    main()
