"""Packed texts, and a training on them; run with a path, a program that writes there what it has trained."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

import phlox as px
from phlox import optim
from phlox.data import Loader, Pack, next_tokens
from phlox.models import DecoderConfig
from phlox.train import Learner

SIZES: dict[str, Any] = {"vocabulary": 23, "context": 16, "n_layers": 2, "d_model": 16, "n_heads": 4}
RNG = np.random.default_rng(0)
TEXTS = [RNG.integers(0, 23, n) for n in (8, 4, 2, 7, 3)]
BATCH = Pack(13)([next_tokens(text, RNG.random(len(text)) < 0.7) for text in TEXTS])
COUNTS = ((BATCH["target"] != -100) & BATCH["mask"]).sum(1)
"""The number of targets of each row that are not ignored."""


def spans() -> Iterator[tuple[int, slice]]:
    """The row of each text in the batch, and its columns."""
    for row, segments in enumerate(BATCH["segment"]):
        for number in range(1, segments.max() + 1):
            (columns,) = np.nonzero(segments == number)
            yield row, slice(columns[0], columns[-1] + 1)


def lively(config: Any, device: Any) -> Any:
    """A model whose parameters are far enough from where they begin to tell a mistake."""
    rng = np.random.default_rng(1)

    def drawn(path: str, param: px.Param) -> px.Param:
        value = rng.normal(size=param.shape, scale=0.3) + (1.0 if path.endswith("gamma") else 0.0)
        return param.holding(px.tensor(value, device=param.device, kind=px.Float))

    return config.init(device).map(drawn)


def step(model: Any, batch: Any) -> px.Tensor:
    return model.loss(batch["input"], batch["target"], segments=batch["segment"])


def trained(batch_size: int = 2, **options: Any) -> list[Any]:
    """The parameters after two epochs of the two rows, and the last loss."""
    learner = Learner(lively(DecoderConfig(**SIZES), "numpy"), optim.SgdConfig(), 0.1, step=step, **options)
    rows = {name: BATCH[name] for name in ("input", "target", "segment")}
    learner.fit(Loader(rows, batch_size), epochs=2, progress=False)
    return [*(param.val().numpy() for param in learner.model.params()), learner.value("train/loss")]


if __name__ == "__main__":
    px.distributed.initialize(seed=0, device="numpy")
    arrays = trained(mesh=px.distributed.Mesh(data=-1, device="numpy"))
    assert px.distributed.size() == 2
    if px.distributed.rank() == 0:
        np.savez(sys.argv[1], *arrays)
