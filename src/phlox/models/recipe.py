"""Training `DigitsNet` on the handwritten digits: from one config to the folder of a run."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from phlox import random
from phlox.backend import DeviceLike, as_device
from phlox.config import Config
from phlox.data import Loader, RandomAffine, load_digits, split
from phlox.errors import ConfigError, DataError, ExtraNotInstalledError, RecordError, RunError
from phlox.metrics import Accuracy, ConfusionMatrix
from phlox.models.digits import DigitsConfig, DigitsNet
from phlox.module import no_initializers
from phlox.nn import cross_entropy_loss
from phlox.optim import AdamWConfig, CosineAnnealingLr
from phlox.record import SafetensorsRecorder
from phlox.tensor import tensor
from phlox.train import Callback, Checkpoints, EpochReport, Learner, Report, RunFolder, draw_curves
from phlox.train.run import REPORT

__all__ = ["DigitsRecipe", "DigitsRun", "DigitsTraining", "Verification"]

CONFIG, RECORD = "config.json", "model.safetensors"
CURVES, PREDICTIONS = "curves.png", "predictions.npz"

INK = 16
"""The value of full ink in the digits; the network's inputs go from 0 to 1."""

_TOLERANCE = 0.01
"""The tolerance of probabilities compared with the trained model's, of a device of any precision."""


class DigitsRecipe(Config):
    """All settings of a training on the digits.

    >>> DigitsRecipe(epochs=5).batch_size
    64
    """

    model: DigitsConfig = DigitsConfig()
    optimizer: AdamWConfig = AdamWConfig(weight_decay=0.05)
    lr: float = 0.008
    """The learning rate of the first step; it falls along half a cosine to zero at the last."""
    epochs: int = 80
    batch_size: int = 64
    shift: float = 0.7
    """A setting of the random distortions, like `turn` and `stretch`: see `RandomAffine`."""
    turn: float = 10.0
    stretch: float = 0.1
    held_out: float = 0.2
    """The fraction of the images that are used for testing. They are the same for every seed."""
    seed: int = 0
    """The seed of the weights, the dropout, the order of the images and their distortions."""

    def validate(self) -> None:
        for name, number in (("epochs", self.epochs), ("batch_size", self.batch_size)):
            if number < 1:
                raise ValueError(f"{name} must be positive, got {number}")
        if not 0.0 <= self.lr < float("inf"):
            raise ValueError(f"lr must be finite and at least 0, got {self.lr}")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed must lie in 0 to 2**64 - 1, got {self.seed}")
        if self.model.size != (8, 8) or self.model.classes < 10:
            raise ValueError("model: the digits have 8x8 pixels and 10 classes")


class DigitsTraining:
    """A training on the digits, ready to run: data, model, optimizer and schedule of the recipe.

    The recipe's seed determines weights and dropout masks, which are the same on every device. The ambient random
    stream is not used.

    Args:
        recipe: all settings that determine the result.
        device: the device to train on; the default device if None.
        compile: whether each step is compiled into one program, on backends with a compiler.

    Attributes:
        data: the split digits, with values from 0 to 16.
        learner: the learner, which has the model.
    """

    def __init__(self, recipe: DigitsRecipe, device: DeviceLike | None = None, *, compile: bool = False) -> None:
        digits = load_digits()
        self.recipe = recipe
        self.data = split(digits.images, digits.labels, recipe.held_out)
        self._batches = Loader(
            (scaled(self.data.train_images), self.data.train_labels),
            recipe.batch_size,
            shuffle=True,
            seed=recipe.seed,
            drop_last=True,
            transform=RandomAffine(recipe.shift, recipe.turn, recipe.stretch),
        )
        self._tests = Loader((scaled(self.data.test_images), self.data.test_labels), 512)
        with random.stream(recipe.seed):
            self.learner = Learner(
                recipe.model.init(device),
                recipe.optimizer,
                CosineAnnealingLr(recipe.lr, num_iters=recipe.epochs * len(self._batches)),
                cross_entropy_loss,
                metrics={"accuracy": Accuracy(), "confusion": ConfusionMatrix(num_classes=recipe.model.classes)},
                compile=compile,
            )

    def fit(self, callbacks: Iterable[Callback] = (), *, folder: RunFolder | None = None) -> list[EpochReport]:
        """Train for all epochs of the recipe, or the rest of them in a resumed folder, and return the history."""
        return self.learner.fit(
            self._batches,
            epochs=self.recipe.epochs,
            validation=self._tests,
            callbacks=callbacks,
            folder=folder,
            resume=folder is not None and folder.is_resumed,
            config=self.recipe,
            progress=False,
        )

    def run(self, folder: RunFolder, callbacks: Iterable[Callback] = ()) -> Path:
        """Train, write everything into `folder`, complete it, and return its path.

        Besides what every run has (`config.json`, which is the recipe, `environment.json`, `metrics.jsonl`,
        `report.html`, `checkpoints`), it then contains the record of the model (`model.safetensors`), the learning
        curves (`curves.png`, if matplotlib is installed), and the test images with their labels and the predictions of
        the trained model (`predictions.npz`).
        """
        report = Report(folder.file(REPORT), wrong=self._mistakes)
        history = self.fit([report, Checkpoints(every_minutes=0.5, keep=1), *callbacks], folder=folder)
        model = self.learner.model.valid()
        SafetensorsRecorder().save(model.into_record(), folder.file(RECORD))
        try:
            folder.write(CURVES, draw_curves(history, title="Handwritten digits"))
        except ExtraNotInstalledError:
            pass  # the report has the curves too
        buffer = io.BytesIO()
        images, labels = self.data.test_images, self.data.test_labels
        np.savez_compressed(buffer, images=images, labels=labels, probabilities=classify(model, scaled(images)))
        folder.write(PREDICTIONS, buffer.getvalue())
        return folder.complete()

    def _mistakes(self, learner: Learner[DigitsNet]) -> list[tuple[npt.NDArray[Any], int, int, float]]:
        """The misclassified test images: image, label, prediction, confidence."""
        probabilities = classify(learner.model.valid(), scaled(self.data.test_images))
        classes, labels = probabilities.argmax(axis=-1), self.data.test_labels
        return [
            (self.data.test_images[i], int(labels[i]), int(classes[i]), float(probabilities[i, classes[i]]))
            for i in np.flatnonzero(classes != labels)
        ]


def scaled(images: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Images `[n, height, width]` from 0 to 16 as inputs of the network: `[n, 1, height, width]` from 0 to 1."""
    return (images / np.float32(INK)).astype(np.float32)[:, None]


def classify(model: DigitsNet, images: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """The probability of each class, `float32 [n, classes]`, for images `[n, 1, height, width]` from 0 to 1."""
    device = model.head.weight.device
    return np.concatenate(
        [
            model(tensor(batch, device=device)).softmax(axis=-1).numpy().astype(np.float32)
            for batch in Loader(images, 512)
        ]
    )


@dataclass(frozen=True)
class Verification:
    """The comparison of a loaded model's predictions with the trained model's."""

    images: int
    agreeing: int
    """The number of images for which both predict the same class."""
    largest_difference: float
    """The largest difference of any probability."""
    ok: bool
    """Whether all differences are within the rounding of any precision; classes then differ only for near ties."""


class DigitsRun:
    """A complete run folder and its model, which is built from config and record; no initializer runs.

    Args:
        path: the folder.
        device: the device of the model.

    Raises:
        RunError: there is no such folder, or the config or the record is missing.
        ConfigError: `config.json` is not a recipe; the error lists what is wrong, by key.
        RecordError: the record is damaged, or belongs to another model.
    """

    def __init__(self, path: str | os.PathLike[str], device: DeviceLike | None = None) -> None:
        self.path = Path(path)
        self.device = target = as_device(device)
        for name in (CONFIG, RECORD):
            _check_exists(self.path, name)
        self.recipe = DigitsRecipe.load(self.path / CONFIG)
        record = SafetensorsRecorder().load(self.path / RECORD)
        with no_initializers():
            model = self.recipe.model.init(target)
            try:
                self.model = model.load_record(record).valid()
            except RecordError as error:
                raise RecordError(f"{self.path / RECORD}: {error}") from error

    def predict(self, images: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """The probability of each class, `float32 [n, classes]`, for images `[n, 1, height, width]` from 0 to 1."""
        with no_initializers():
            return classify(self.model, images)

    def verify(self) -> Verification:
        """Compare with the trained model's predictions for the test images; see `Verification`.

        Raises:
            RunError: `predictions.npz` is missing.
            DataError: it is damaged, or has other contents.
        """
        path = _check_exists(self.path, PREDICTIONS)
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
                images, trained = arrays["images"], arrays["probabilities"]
        except Exception as error:  # zip structure, checksum, array headers, ...: each has its own error
            raise DataError(f"{path}: damaged ({error}); train again") from error
        if images.shape[1:] != self.recipe.model.size or trained.shape != (len(images), self.recipe.model.classes):
            raise DataError(
                f"{path}: images of shape {images.shape} and probabilities of shape {trained.shape} "
                "do not fit this model; train again"
            )
        ours = self.predict(scaled(images))
        agreeing = int((ours.argmax(axis=-1) == trained.argmax(axis=-1)).sum())
        largest = float(np.abs(ours - trained).max(initial=0.0))
        return Verification(len(images), agreeing, largest, largest <= _TOLERANCE)


def _check_exists(folder: Path, name: str) -> Path:
    path = folder / name
    if path.is_file():
        return path
    if (folder / "run.json").is_file() and not (folder / PREDICTIONS).exists() and not _is_of_demo(folder):
        raise RunError(
            f"{folder}: not a run of `phlox demo`, and without the architecture.json of other runs; `phlox export "
            "FILE.py:NAME OUT.onnx --record WEIGHTS --input ...` writes a file that `phlox predict` takes"
        )
    if folder.is_dir():
        raise RunError(
            f"{path}: is missing, so {folder} is not a complete run; give a folder that `phlox demo` has written"
        )
    if os.path.lexists(folder):
        raise RunError(f"{folder}: is not a folder; give the folder of a run")
    siblings = [entry.name for entry in folder.parent.iterdir() if entry.is_dir()] if folder.parent.is_dir() else []
    close = get_close_matches(folder.name, siblings, 1)
    hint = f"; did you mean {folder.parent / close[0]}?" if close else "; create one with: phlox demo --out RUN_DIR"
    raise RunError(f"{folder}: there is no such folder{hint}")


def _is_of_demo(folder: Path) -> bool:
    try:
        DigitsRecipe.load(folder / CONFIG)
    except (ConfigError, OSError):
        return False
    return True
