"""Augmentation that mixes images, and their labels in the same proportion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from phlox.data.draws import Draws
from phlox.data.images import as_dtype, images_of, with_leaf
from phlox.data.structure import AnyArray, is_array, leaves
from phlox.errors import DataError


@dataclass(frozen=True)
class Mixup:
    """Blends each image with a random other image of the source, and its label with the other's in the same proportion.

    Labels become floats `[n, num_classes]`, which `cross_entropy_loss` takes as probabilities.

    Args:
        num_classes: the number of classes; labels are integers from 0.
        alpha: the parameter of the Beta distribution of the proportion: a small one changes most images little, 1 is
            uniform.
        label: the name or index of the labels in the batch: `"label"`, or 1 for tuples. By default, the only integer
            array with one axis.

    Source: "mixup: Beyond empirical risk minimization" (Zhang and others, 2018).

    >>> from phlox.data import Loader
    >>> data = {"image": np.zeros((4, 1, 2, 2), np.float32), "label": np.array([0, 1, 2, 0])}
    >>> next(iter(Loader(data, 4, transform=Mixup(num_classes=3))))["label"].shape
    (4, 3)
    """

    num_classes: int
    alpha: float = 0.2
    label: str | int | None = None

    def __post_init__(self) -> None:
        _check_mixing(self, self.num_classes, self.alpha)

    def __call__(self, batch: Any, draws: Draws) -> Any:
        path, images = images_of(batch, "Mixup")
        other = _partners(draws)
        part = _beta(draws, self.alpha)
        weight = part.reshape(-1, 1, 1, 1).astype(np.float32)
        mixed = as_dtype(images * weight + images_of(other, "Mixup")[1] * (1 - weight), images.dtype)
        return _mix_labels(with_leaf(batch, path, mixed), other, part, self.num_classes, self.label, "Mixup")


@dataclass(frozen=True)
class CutMix:
    """Replaces a random rectangle of each image with the same part of another image, and mixes the labels by its area.

    It has the arguments of `Mixup`.

    Source: "CutMix: Regularization strategy to train strong classifiers" (Yun and others, 2019).

    >>> from phlox.data import Loader
    >>> data = {"image": np.zeros((4, 1, 2, 2), np.float32), "label": np.array([0, 1, 2, 0])}
    >>> next(iter(Loader(data, 4, transform=CutMix(num_classes=3))))["label"].shape
    (4, 3)
    """

    num_classes: int
    alpha: float = 1.0
    label: str | int | None = None

    def __post_init__(self) -> None:
        _check_mixing(self, self.num_classes, self.alpha)

    def __call__(self, batch: Any, draws: Draws) -> Any:
        path, images = images_of(batch, "CutMix")
        other = _partners(draws)
        height, width = images.shape[2:]
        side = np.sqrt(1.0 - _beta(draws, self.alpha))
        y, x = draws.uniform("y") * height, draws.uniform("x") * width
        top, bottom = (np.clip(np.rint(y + sign * side * height / 2), 0, height) for sign in (-1, 1))
        left, right = (np.clip(np.rint(x + sign * side * width / 2), 0, width) for sign in (-1, 1))

        def between(low: npt.NDArray[Any], high: npt.NDArray[Any], size: int) -> npt.NDArray[np.bool_]:
            index = np.arange(size)
            return (index >= low[:, None]) & (index < high[:, None])

        inside = between(top, bottom, height)[:, None, :, None] & between(left, right, width)[:, None, None, :]
        mixed = np.where(inside, images_of(other, "CutMix")[1], images)
        part = 1.0 - inside.mean(axis=(1, 2, 3))
        return _mix_labels(with_leaf(batch, path, mixed), other, part, self.num_classes, self.label, "CutMix")


def _partners(draws: Draws) -> Any:
    """A random row of the source for each row: a shifted copy of the batch would depend on which rows share a batch."""
    return draws.load(draws.integers("partner", 0, draws.num_rows))


def _beta(draws: Draws, alpha: float) -> npt.NDArray[np.float64]:
    """One number of Beta(alpha, alpha) for each row, by Jöhnk's method: of sixteen pairs, the first accepted."""
    u, v = (np.asarray(draws.uniform(name, size=16), np.float64) for name in ("u", "v"))
    a, b = (np.maximum(x, 2.0**-24) ** (1.0 / alpha) for x in (u, v))
    total = a + b
    accepted = (total <= 1.0) & (total > 0.0)
    first_fit = accepted.argmax(axis=1)[:, None]
    total = np.take_along_axis(total, first_fit, 1)[:, 0]
    ratio = np.take_along_axis(a, first_fit, 1)[:, 0] / np.where(total == 0.0, 1.0, total)
    return np.where(accepted.any(axis=1), ratio, (u[:, 0] < 0.5).astype(np.float64))


def _mix_labels(
    batch: Any, other: Any, part: npt.NDArray[Any], num_classes: int, label: str | int | None, transform: str
) -> Any:
    path = _labels_path(batch, label, transform)
    first, second = (dict(leaves(nested))[path] for nested in (batch, other))

    def soft(labels: Any) -> npt.NDArray[np.float32]:
        labels = np.asarray(labels)
        if labels.ndim == 2 and labels.dtype.kind == "f":
            return labels
        wrong = labels[(labels < 0) | (labels >= num_classes)]
        if wrong.size:
            raise DataError(f"{transform}: label {wrong[0]} is out of range; num_classes is {num_classes}")
        return np.eye(num_classes, dtype=np.float32)[labels]

    weight = part[:, None].astype(np.float32)
    return with_leaf(batch, path, soft(first) * weight + soft(second) * (1 - weight))


def _labels_path(batch: Any, label: str | int | None, transform: str) -> str:
    leaf_by_path = dict(leaves(batch))
    if label is not None:
        candidates = [path for path in (f"[{label!r}]", f".{label}") if path in leaf_by_path]
    else:
        candidates = [path for path, leaf in leaf_by_path.items() if is_array(leaf) and _may_be_labels(leaf)]
    if len(candidates) != 1:
        raise DataError(f"{transform}: the batch has {', '.join(leaf_by_path)}; name the labels with label=")
    return candidates[0]


def _may_be_labels(leaf: AnyArray) -> bool:
    return (leaf.ndim, leaf.dtype.kind) in ((1, "i"), (1, "u"), (2, "f"))


def _check_mixing(transform: Any, num_classes: int, alpha: float) -> None:
    if num_classes < 2 or not alpha > 0.0:
        raise DataError(f"{transform}: give at least 2 classes and a positive alpha")
