# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false, reportUnknownParameterType=false
# The other libraries are installed only for the benchmarks.
"""Batches of augmented images: `Loader` against PyTorch's `DataLoader` and grain, each as its users write it.

uint8 images are mirrored at random, cropped at random after padding, and normalized to f32. The figures are seconds of
a batch, of whole epochs whose workers run already. The peers augment row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.harness import Ratio, built, compare, in_turn, quick
from phlox.data import Loader, Normalize, RandomCrop, RandomFlip

WORKERS = 2
MEAN, STD = [0.49, 0.48, 0.45], [0.25, 0.24, 0.26]
TARGET = 0.7

Epoch = Callable[[], Any]
"""Goes through the batches of an epoch, and gives the last one."""


@dataclass(frozen=True)
class Sizes:
    """Of the data, and of the run."""

    rows: int = 2000
    side: int = 32
    batch: int = 64
    padding: int = 4
    rounds: int = 15

    @property
    def batches(self) -> int:
        """In an epoch."""
        return -(-self.rows // self.batch)

    def data(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Images, uint8 `[rows, 3, side, side]`, and labels."""
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (self.rows, 3, self.side, self.side), np.uint8)
        return images, rng.integers(0, 10, self.rows)


def _through(batches: Any) -> Any:
    batch: Any = None
    for batch in batches:  # noqa: B007  (the last one)
        pass
    return batch


@contextmanager
def phlox_epochs(sizes: Sizes, workers: int) -> Iterator[Epoch]:
    """`Loader`, with threads or none."""
    transform = [
        RandomFlip(), RandomCrop((sizes.side, sizes.side), padding=sizes.padding), Normalize(MEAN, STD, scale=1 / 255),
    ]  # fmt: skip
    with Loader(sizes.data(), sizes.batch, shuffle=True, transform=transform, workers=workers) as loader:
        yield lambda: _through(loader)


@contextmanager
def torch_epochs(sizes: Sizes, workers: int) -> Iterator[Epoch]:
    """`DataLoader`, with processes that stay, or none; the transforms are torchvision's (v2), or tensors by hand."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    images, labels = (torch.from_numpy(array) for array in sizes.data())
    transform = _torchvision(sizes) or _by_hand(sizes)

    class Images(Dataset[Any]):
        def __len__(self) -> int:
            return len(images)

        def __getitem__(self, row: int) -> Any:
            return transform(images[row]), labels[row]

    loader = DataLoader(Images(), sizes.batch, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a row has too little for more; workers have one anyhow
    try:
        yield lambda: _through(loader)
    finally:
        torch.set_num_threads(threads)


def _torchvision(sizes: Sizes) -> Callable[[Any], Any] | None:
    try:
        from torchvision.transforms import v2
    except (ImportError, RuntimeError):  # RuntimeError: one for another build of PyTorch
        return None
    import torch

    return v2.Compose([
        v2.RandomHorizontalFlip(), v2.RandomCrop(sizes.side, padding=sizes.padding),
        v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD),
    ])  # fmt: skip


def _by_hand(sizes: Sizes) -> Callable[[Any], Any]:
    import torch

    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (MEAN, STD))
    side, padding = sizes.side, sizes.padding

    def transform(image: Any) -> Any:
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        padded = torch.nn.functional.pad(image, [padding] * 4)
        top, left = torch.randint(2 * padding + 1, (2,)).tolist()
        return (padded[:, top : top + side, left : left + side] / 255 - mean) / std

    return transform


@contextmanager
def grain_epochs(sizes: Sizes, threads: int | None) -> Iterator[Epoch]:
    """A `MapDataset` of grain, shuffled, mapped and batched, without processes; with so many threads, or by default."""
    import grain

    images, labels = sizes.data()
    mean, std = (np.array(values, np.float32).reshape(3, 1, 1) for values in (MEAN, STD))
    side, padding = sizes.side, sizes.padding

    def augmented(row: int, rng: np.random.Generator) -> Any:
        image = images[row]
        if rng.random() < 0.5:
            image = image[:, :, ::-1]
        padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
        top, left = rng.integers(2 * padding + 1, size=2)
        part = padded[:, top : top + side, left : left + side]
        return (part.astype(np.float32) / 255 - mean) / std, labels[row]

    rows = grain.MapDataset.range(sizes.rows).seed(0).shuffle().random_map(augmented).batch(sizes.batch)
    options = None if threads is None else grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads)
    data = rows.to_iter_dataset(options)
    yield lambda: _through(data)


def run(sizes: Sizes | None = None) -> list[Ratio]:
    """All rows."""
    sizes = sizes or (Sizes(40, 8, 8, 2, rounds=2) if quick() else Sizes())
    title = f"batch of {sizes.batch} images of {sizes.side}x{sizes.side}x3, mirrored, cropped and normalized"
    alone, threaded = "Phlox Loader, workers=0", f"Phlox Loader, workers={WORKERS} (threads)"
    torch_alone, torch_with = "torch DataLoader, num_workers=0", f"torch DataLoader, num_workers={WORKERS}"
    grains = {"grain MapDataset, on the caller's thread": 0, "grain MapDataset, its own threads": None}
    made: dict[str, Any] = {
        torch_with: torch_epochs(sizes, WORKERS),  # its processes are started first, before others have threads
        torch_alone: torch_epochs(sizes, 0),
        alone: phlox_epochs(sizes, 0),
        threaded: phlox_epochs(sizes, WORKERS),
        **{name: grain_epochs(sizes, threads) for name, threads in grains.items()},
    }

    def seconds(epoch: Epoch) -> float:
        begun = perf_counter()
        epoch()
        return (perf_counter() - begun) / sizes.batches

    with ExitStack() as stack:
        epochs = built({name: partial(stack.enter_context, context) for name, context in made.items()})
        batches = built(epochs)
        for name, batch in batches.items():
            _check(batch, name, sizes)
        times = in_turn({name: partial(seconds, epochs[name]) for name in batches}, range(sizes.rounds))
    asked = [(alone, torch_alone), (threaded, torch_with), *((alone, name) for name in grains)]
    return [compare(title, times, one, peer, target=TARGET) for one, peer in asked]


def _check(batch: Any, name: str, sizes: Sizes) -> None:
    """Are these images normalized, and as many as there should be?"""
    images = np.asarray(batch[0])
    rows = sizes.rows % sizes.batch or sizes.batch
    if images.shape != (rows, 3, sizes.side, sizes.side) or images.dtype != np.float32:
        raise AssertionError(f"{name}: a batch of {images.dtype} {images.shape}")
    if not 0.5 < images.std() < 2.0 or abs(images.mean()) > 1.0:  # cropped ones have black borders
        raise AssertionError(f"{name}: mean {images.mean()}, standard deviation {images.std()}")
