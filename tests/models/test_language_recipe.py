"""Training on a text: sizes by one number, resumed as if it had not stopped, and a folder that is loaded again."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phlox.errors import DataError, RangeError
from phlox.models import LanguageRecipe, LanguageTraining, LlamaConfig, load
from phlox.models.language_recipe import SIZES
from phlox.train import Callback, RunFolder

TEXT = "The cat sat on the mat, and the dog sat on the log. " * 60
SMALL = LanguageRecipe(
    model=LlamaConfig(context=16, n_layers=1, d_model=16, n_heads=2, tied=True, dropout=0.1), vocabulary=280,
    batch_size=8, steps=30, every=10, lr=0.01,
)  # fmt: skip


@pytest.mark.parametrize("size", [35_000, 200_000, "tiny", 1_000_000, "small", "medium", 350_000_000])
def test_the_model_has_about_so_many_parameters(size: str | int) -> None:
    recipe = LanguageRecipe.of_size(size)
    wanted = SIZES[size] if isinstance(size, str) else size
    assert 0.6 < recipe.model.init("numpy").num_params() / wanted < 1.7
    assert recipe.model.vocabulary == recipe.vocabulary and recipe.model.d_model % recipe.model.n_heads == 0
    assert LanguageRecipe.from_json(recipe.to_json()) == recipe


@pytest.mark.parametrize("size", ["huge", 100, 10**12])
def test_other_sizes(size: Any) -> None:
    with pytest.raises(RangeError, match="size must be tiny, small, medium, or a number of parameters from 35,000"):
        LanguageRecipe.of_size(size)


def test_a_run_that_is_interrupted_ends_as_the_whole_one(tmp_path: Path) -> None:
    class Cut(Callback):
        def on_step_end(self, learner: Any) -> None:
            if learner.step == 15:
                raise KeyboardInterrupt

    with RunFolder(tmp_path / "whole") as folder:
        LanguageTraining(TEXT, SMALL, "numpy").run(folder)
    with pytest.raises(KeyboardInterrupt), RunFolder(tmp_path / "cut") as folder:
        LanguageTraining(TEXT, SMALL, "numpy").run(folder, [Cut()])
    assert load(tmp_path / "cut", device="numpy").tokenizer is not None  # from the checkpoint
    with RunFolder(tmp_path / "cut", resume=True) as folder:
        training = LanguageTraining(TEXT.encode(), SMALL, "numpy")
        training.run(folder)
    whole, again = (load(tmp_path / name, device="numpy") for name in ("whole", "cut"))
    for (path, value), (_, other) in zip(whole.model.named_params(), again.model.named_params(), strict=True):
        np.testing.assert_array_equal(value.val().numpy(), other.val().numpy(), err_msg=path)

    values = training.learner.validation
    assert values["loss"] < 4.5  # less than what the frequencies of the tokens alone give
    bytes_ = len(TEXT.encode()) - int(len(TEXT) * 0.9)
    per_byte = training.n_tokens[1] / bytes_ / math.log(2)
    assert values["bits_per_byte"] == pytest.approx(values["loss"] * per_byte, rel=1e-3)
    assert isinstance(training.sample("The", 5), str)
    assert isinstance(again.generate("The cat", 5), str)


def test_the_time_ends_it() -> None:
    training = LanguageTraining(TEXT, SMALL.replace(steps=10**6), "numpy", minutes=0.005)
    training.fit()
    assert 1 <= training.learner.step < 10**6 and training.learner.lr < 0.01


def test_a_text_that_is_too_short() -> None:
    with pytest.raises(
        DataError, match=r"the text is too short: 11 bytes are .* give a text of 1 kB or more, or a sma"
    ):
        LanguageTraining("hello world", SMALL, "numpy")
    with pytest.raises(DataError, match="the text is too short: 0 bytes"):
        LanguageTraining("", SMALL, "numpy")


@pytest.mark.parametrize("changes", [{"steps": 0}, {"held_out": 0.0}, {"vocabulary": 10}])
def test_recipes_that_are_wrong(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        LanguageRecipe(**changes)
