"""Training `DigitsNet` on the handwritten digits: from one config to a folder that holds the run."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from phlox import random
from phlox.backend import DeviceLike, as_device
from phlox.config import Config
from phlox.data import Batches, RandomAffine, load_digits, split
from phlox.errors import DataError, RecordError, RunError
from phlox.models.digits import DigitsConfig, DigitsNet
from phlox.module import no_initializers
from phlox.nn import cross_entropy_loss
from phlox.optim import AdamWConfig, CosineAnnealingLr
from phlox.record import HALF, SafetensorsRecorder
from phlox.tensor import tensor
from phlox.train import EpochReport, Learner, Logger, MetricsFile, RunFolder, accuracy, draw_curves

CONFIG, RECORD, METRICS = "config.json", "model.safetensors", "metrics.jsonl"
CURVES, PREDICTIONS = "curves.png", "predictions.npz"

INK = 16
"""The value of full ink in the digits; the network sees 0 to 1."""

_TOLERANCE = 0.01
"""How far probabilities may be from the trained model's, since the record is at half precision."""


class DigitsRecipe(Config):
    """All that a training on the digits depends on.

    >>> DigitsRecipe(epochs=5).batch_size
    64
    """

    model: DigitsConfig = DigitsConfig()
    optimizer: AdamWConfig = AdamWConfig(weight_decay=0.05)
    lr: float = 0.008
    """At the first step; it falls along half a cosine to zero at the last."""
    epochs: int = 80
    batch_size: int = 64
    shift: float = 0.7
    """Of the random distortions, as are `turn` and `stretch`: see `RandomAffine`."""
    turn: float = 10.0
    stretch: float = 0.1
    held_out: float = 0.2
    """The proportion of the images that is tested on. It is the same for every seed."""
    seed: int = 0
    """Of the weights, the dropout, the order of the images and their distortions."""

    def validate(self) -> None:
        for name, number in (("epochs", self.epochs), ("batch_size", self.batch_size)):
            if number < 1:
                raise ValueError(f"{name} must be positive, got {number}")
        if not 0.0 <= self.lr < float("inf"):
            raise ValueError(f"lr must be finite and at least 0, got {self.lr}")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed must lie in 0 to 2**64 - 1, got {self.seed}")
        if self.model.size != (8, 8) or self.model.classes < 10:
            raise ValueError("model: the digits are 8x8 pixels and of 10 classes")


class DigitsTraining:
    """A training on the digits, ready to run: data, model, optimizer and schedule as the recipe has them.

    Weights and dropout masks are those of the recipe's seed, the same on every device; the ambient random stream is
    left alone.

    Args:
        recipe: all that the result depends on.
        device: where to train; the default device if None.
        compile: whether each step is one program, on backends that have a compiler.

    Attributes:
        data: the digits as they were split, values 0 to 16.
        learner: holds the model.
    """

    def __init__(self, recipe: DigitsRecipe, device: DeviceLike | None = None, *, compile: bool = False) -> None:
        digits = load_digits()
        self.recipe = recipe
        self.data = split(digits.images, digits.labels, recipe.held_out)
        self._batches = Batches(
            scaled(self.data.train_images),
            self.data.train_labels,
            batch_size=recipe.batch_size,
            shuffle=True,
            seed=recipe.seed,
            transform=RandomAffine(recipe.shift, recipe.turn, recipe.stretch, recipe.seed),
        )
        self._tests = Batches(scaled(self.data.test_images), self.data.test_labels, batch_size=512)
        with random.stream(recipe.seed) as self._stream:
            self.learner = Learner(
                recipe.model.init(device),
                recipe.optimizer.init(),
                CosineAnnealingLr(recipe.lr, num_iters=recipe.epochs * len(self._batches)),
                cross_entropy_loss,
                metrics={"accuracy": accuracy},
                compile=compile,
            )

    def fit(self, loggers: Sequence[Logger] = ()) -> list[EpochReport]:
        """Train for all epochs of the recipe, and return the history."""
        with random.stream(self._stream):
            return self.learner.fit(self._batches, epochs=self.recipe.epochs, held_out=self._tests, loggers=loggers)

    def run(self, folder: RunFolder, loggers: Sequence[Logger] = ()) -> Path:
        """Train, write everything into `folder`, complete it, and return its path.

        It then holds the recipe (`config.json`), the record of the model at half precision (`model.safetensors`), the
        metrics (`metrics.jsonl`), the learning curves (`curves.png`), and the images tested on, with their labels and
        what the trained model makes of them (`predictions.npz`).
        """
        folder.write(CONFIG, self.recipe.to_json().encode() + b"\n")
        history = self.fit([MetricsFile(folder.writer(METRICS)), *loggers])
        model = self.learner.model.valid()
        SafetensorsRecorder(precision=HALF).save(model.into_record(), folder.file(RECORD))
        folder.write(CURVES, draw_curves(history, title="Handwritten digits"))
        buffer = io.BytesIO()
        images, labels = self.data.test_images, self.data.test_labels
        np.savez_compressed(buffer, images=images, labels=labels, probabilities=classify(model, scaled(images)))
        folder.write(PREDICTIONS, buffer.getvalue())
        return folder.complete()


def scaled(images: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Images `[n, height, width]` from 0 to 16 as the network takes them: `[n, 1, height, width]` from 0 to 1."""
    return (images / np.float32(INK)).astype(np.float32)[:, None]


def classify(model: DigitsNet, images: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """The probability of each class, `float32 [n, classes]`, for images `[n, 1, height, width]` from 0 to 1."""
    place = model.head.weight.device
    return np.concatenate(
        [
            model(tensor(batch, device=place)).softmax(axis=-1).numpy().astype(np.float32)
            for (batch,) in Batches(images, batch_size=512).epoch()
        ]
    )


@dataclass(frozen=True)
class Verification:
    """How the predictions of a model from its record compare with those of the model that was trained."""

    images: int
    agreeing: int
    """Images of the same class."""
    largest_difference: float
    """Of all probabilities."""
    ok: bool
    """No probability is off by more than half precision explains, and so no class that was not nearly a tie."""


class DigitsRun:
    """A run folder that is complete, and the model in it: built from config and record, no initializer runs.

    Args:
        path: the folder.
        device: where the model is to be.

    Raises:
        RunError: there is no such folder, or it lacks the config or the record.
        ConfigError: `config.json` is no recipe; lists what is wrong, by key.
        RecordError: the record is damaged, or that of another model.
    """

    def __init__(self, path: str | os.PathLike[str], device: DeviceLike | None = None) -> None:
        self.path = Path(path)
        self.device = place = as_device(device)
        for name in (CONFIG, RECORD):
            _check_there(self.path, name)
        self.recipe = DigitsRecipe.load(self.path / CONFIG)
        record = SafetensorsRecorder().load(self.path / RECORD)
        with no_initializers():
            model = self.recipe.model.init(place)
            try:
                self.model = model.load_record(record).valid()
            except RecordError as error:
                raise RecordError(f"{self.path / RECORD}: {error}") from error

    def predict(self, images: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """The probability of each class, `float32 [n, classes]`, for images `[n, 1, height, width]` from 0 to 1."""
        with no_initializers():
            return classify(self.model, images)

    def verify(self) -> Verification:
        """Compare with what the trained model made of the images tested on; see `Verification`.

        Raises:
            RunError: `predictions.npz` is missing.
            DataError: it is damaged, or of another kind.
        """
        path = _check_there(self.path, PREDICTIONS)
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
                images, trained = arrays["images"], arrays["probabilities"]
        except Exception as error:  # zip structure, checksum, array headers, ...: each has its own
            raise DataError(f"{path}: damaged ({error}); train anew") from error
        if images.shape[1:] != self.recipe.model.size or trained.shape != (len(images), self.recipe.model.classes):
            raise DataError(
                f"{path}: images of shape {images.shape} and probabilities of shape {trained.shape} "
                "are none of this model; train anew"
            )
        ours = self.predict(scaled(images))
        agreeing = int((ours.argmax(axis=-1) == trained.argmax(axis=-1)).sum())
        largest = float(np.abs(ours - trained).max(initial=0.0))
        return Verification(len(images), agreeing, largest, largest <= _TOLERANCE)


def _check_there(folder: Path, name: str) -> Path:
    path = folder / name
    if path.is_file():
        return path
    if folder.is_dir():
        raise RunError(
            f"{path}: is missing, so {folder} is no complete run; give a folder that `phlox demo` has written"
        )
    if os.path.lexists(folder):
        raise RunError(f"{folder}: is no folder; give the folder of a run")
    siblings = [entry.name for entry in folder.parent.iterdir() if entry.is_dir()] if folder.parent.is_dir() else []
    close = get_close_matches(folder.name, siblings, 1)
    hint = f"; did you mean {folder.parent / close[0]}?" if close else "; make one with: phlox demo --out RUN_DIR"
    raise RunError(f"{folder}: there is no such folder{hint}")
