"""Training a `Llama` on a text: from one config to the folder of a run, with its tokenizer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from phlox import random
from phlox.backend import DeviceLike
from phlox.config import Config
from phlox.data import Loader, TokenWindows
from phlox.errors import DataError, RangeError
from phlox.models.language_model import LanguageModel
from phlox.models.llama import Llama, LlamaConfig
from phlox.optim import AdamWConfig, GradientClipping
from phlox.text import BytePairTokenizer
from phlox.train import Callback, Checkpoints, EpochReport, Learner, Report, RunFolder
from phlox.train.run import REPORT

__all__ = ["LanguageRecipe", "LanguageTraining"]

SIZES = {"tiny": 300_000, "small": 5_000_000, "medium": 50_000_000}
"""The numbers of parameters of named sizes."""
_SMALLEST, _LARGEST = 35_000, 2_000_000_000
_HEAD = 32
"""The width of a head; wide models have heads twice as wide."""


class LanguageRecipe(Config):
    """All settings of a training on a text. `of_size` chooses them by one number.

    >>> recipe = LanguageRecipe.of_size("tiny")
    >>> recipe.vocabulary, recipe.model.context, recipe.model.d_model
    (512, 128, 96)
    """

    model: LlamaConfig = LlamaConfig()
    """The model; its vocabulary is that of the tokenizer."""
    vocabulary: int = 512
    """The largest number of tokens of the tokenizer."""
    optimizer: AdamWConfig = AdamWConfig(beta_2=0.98, weight_decay=0.1)
    lr: float = 0.003
    """The largest learning rate: it rises in the first 5 % of the training, then falls along half a cosine to 5 %."""
    batch_size: int = 16
    steps: int = 1000
    held_out: float = 0.1
    """The fraction of the text, at its end, that is used for validation."""
    every: int = 100
    """The number of steps between two validations, each with a sample."""
    seed: int = 0
    text: str = ""
    """The SHA-256 of the text, by which a resumed run knows it; a training sets it."""

    def validate(self) -> None:
        for name, number in (("batch_size", self.batch_size), ("steps", self.steps), ("every", self.every)):
            if number < 1:
                raise ValueError(f"{name} must be positive, got {number}")
        if not 0.0 < self.held_out < 1.0:
            raise ValueError(f"held_out must be between 0 and 1, got {self.held_out}")
        if self.vocabulary < 256:
            raise ValueError(f"vocabulary must be at least 256, the bytes, got {self.vocabulary}")

    @staticmethod
    def of_size(size: str | int) -> LanguageRecipe:
        """The recipe for a model of about so many parameters, or for a size of a name: "tiny", "small", "medium".

        Depth, width, context, vocabulary, batch and learning rate follow from the number. Raises `RangeError` for
        another name, or for a number below 35,000 or above 2,000,000,000.
        """
        params = SIZES.get(size) if isinstance(size, str) else size
        if params is None or not _SMALLEST <= params <= _LARGEST:
            raise RangeError(
                f"size must be {', '.join(SIZES)}, or a number of parameters from {_SMALLEST:,} to {_LARGEST:,}, got "
                f"{size}"
            )
        ratio = params / SIZES["tiny"]
        vocabulary = min(max(_power_of_two(512 * ratio**0.5), 256), 32768)
        context = min(max(_power_of_two(128 * ratio**0.3), 32), 2048)

        def count(width: int) -> int:
            return _depth(width) * (4 * width**2 + 3 * width * _hidden(width)) + vocabulary * width

        widths = range(_HEAD, 8192, _HEAD)
        width = min(widths, key=lambda width: abs(count(width) - params))
        model = LlamaConfig(
            vocabulary=vocabulary,
            context=context,
            n_layers=_depth(width),
            d_model=width,
            n_heads=width // (_HEAD if width < 512 or width % (2 * _HEAD) else 2 * _HEAD),
            d_hidden=_hidden(width),
            tied=True,
        )
        return LanguageRecipe(
            model=model,
            vocabulary=vocabulary,
            lr=round(0.003 * min(ratio, 1000.0) ** -0.3, 6) if ratio > 1 else 0.003,
            batch_size=16 if params < 20_000_000 else 32,
            steps=1000 if params < 1_000_000 else 5000 if params < 20_000_000 else 20000,
        )


def _power_of_two(number: float) -> int:
    return 2 ** round(math.log2(number))


def _depth(width: int) -> int:
    return max(2, round(width / 48))


def _hidden(width: int) -> int:
    """The width of the hidden layer: two thirds of 4 times the width, because it has three matrices, not two."""
    return 32 * round(8 * width / 96)


class LanguageTraining:
    """A training on a text, ready to run: tokenizer, data, model, optimizer and schedule of the recipe.

    Args:
        text: the text, or its bytes.
        recipe: all settings that determine the result, together with the text.
        device: the device to train on; the default device if None.
        minutes: the longest time to train; the learning rate then falls by time, if that ends first.

    Raises `DataError` for a text that is too short, or other than that of the recipe.

    Attributes:
        tokenizer: the tokenizer, trained on the part of the text that is not held out.
        learner: the learner, which has the model.
        n_tokens: the numbers of tokens for training and for validation.
    """

    def __init__(
        self,
        text: str | bytes,
        recipe: LanguageRecipe,
        device: DeviceLike | None = None,
        *,
        minutes: float | None = None,
    ) -> None:
        data = text.encode(errors="replace") if isinstance(text, str) else text
        digest = sha256(data).hexdigest()
        if recipe.text not in ("", digest):
            raise DataError("the recipe is for another text; give the same one, or begin a new run")
        cut = len(data) - int(len(data) * recipe.held_out)
        self.recipe = recipe = recipe.replace(text=digest)
        self._minutes = minutes
        self.tokenizer = BytePairTokenizer.train(data[:cut], recipe.vocabulary)
        parts = [np.asarray(self.tokenizer.encode_bytes(part), np.int32) for part in (data[:cut], data[cut:])]
        self.n_tokens = tuple(len(part) for part in parts)
        context = recipe.model.context
        if min(self.n_tokens) <= context:
            needed = math.ceil((context + 1) * len(data) / max(min(self.n_tokens), 1) / 1000)
            raise DataError(
                f"the text is too short: {len(data):,} bytes are {self.n_tokens[0]:,} tokens for training and "
                f"{self.n_tokens[1]:,} for validation, and each part needs more than the context of {context}; give a "
                f"text of {needed:,} kB or more, or a smaller size, with a shorter context"
            )
        windows = TokenWindows(parts[0], context, stride=1)
        batch_size = min(recipe.batch_size, len(windows))
        self._batches = Loader(windows, batch_size, shuffle=True, seed=recipe.seed, drop_last=True)
        self._tests = Loader(TokenWindows(parts[1], context), batch_size)
        bits = len(parts[1]) / max(len(data) - cut, 1) / math.log(2)
        config = recipe.model.replace(vocabulary=self.tokenizer.size)

        def step(model: Llama, batch: Any) -> Any:
            return model.loss(batch["input"], batch["target"])

        def validate(model: Llama, batch: Any) -> Any:
            loss = model.loss(batch["input"], batch["target"])
            return loss, (), {"bits_per_byte": loss * bits}

        with random.stream(recipe.seed):
            self.learner: Learner[Llama] = Learner(
                config.init(device),
                recipe.optimizer,
                recipe.lr,
                step=step,
                validate=validate,
                clip=GradientClipping.global_norm(1.0),
            )

    def fit(self, callbacks: Iterable[Callback] = (), *, folder: RunFolder | None = None) -> list[EpochReport]:
        """Train for all steps of the recipe, or the rest of them in a resumed folder, and return the history."""
        recipe = self.recipe
        return self.learner.fit(
            self._batches,
            steps=recipe.steps,
            validation=self._tests,
            validate_every_steps=recipe.every,
            callbacks=[Pace(recipe.lr, recipe.steps, self._minutes), *callbacks],
            folder=folder,
            resume=folder is not None and folder.is_resumed,
            config=recipe,
            progress=False,
        )

    def run(self, folder: RunFolder, callbacks: Iterable[Callback] = ()) -> Path:
        """Train, write everything into `folder`, complete it, and return its path.

        Besides what every run has, the folder then contains `tokenizer.json`; `phlox.models.load` reads it.
        """
        for name, text in self.tokenizer.files().items():
            folder.write(name, text.encode())
        self.fit([Report(folder.file(REPORT)), Checkpoints(every_minutes=0.5, keep=1), *callbacks], folder=folder)
        return folder.complete()

    def sample(self, prompt: str = "\n", max_new_tokens: int = 60) -> str:
        """A text of the model as it is now; the random stream of the training is not used."""
        with random.stream(self.recipe.seed):
            model = LanguageModel(self.learner.model.valid(), self.tokenizer)
            return model.generate(prompt, max_new_tokens, temperature=0.8, top_k=40)


class Pace(Callback):
    """The learning rate by the part of the training that is done, in steps or in time, whichever is more.

    It rises in the first twentieth, then falls along half a cosine to a twentieth. When the time is over, the training
    stops.
    """

    def __init__(self, lr: float, steps: int, minutes: float | None) -> None:
        self._lr, self._steps, self._minutes = lr, steps, minutes
        self._seconds = self._begun = 0.0

    def on_fit_start(self, learner: Any) -> None:
        self._begun = perf_counter() - self._seconds
        self._set(learner)

    def on_step_end(self, learner: Any) -> None:
        self._set(learner)
        if self._minutes is not None and self._elapsed() >= 60.0 * self._minutes:
            learner.stop(f"the {self._minutes:g} minutes are over")

    def state(self) -> dict[str, Any]:
        return {"seconds": self._elapsed()}

    def restore(self, state: Any, /) -> None:
        self._seconds = float(state["seconds"])
        self._begun = perf_counter() - self._seconds

    def _elapsed(self) -> float:
        return perf_counter() - self._begun

    def _set(self, learner: Any) -> None:
        done = learner.step / self._steps
        if self._minutes is not None:
            done = max(done, self._elapsed() / (60.0 * self._minutes))
        rising = min(1.0, (done + 1.0 / self._steps) / 0.05)
        learner.lr = self._lr * rising * (0.525 + 0.475 * math.cos(math.pi * min(done, 1.0)))
