"""The trainings under examples/ run on NumPy alone, and reach what they show.

Serves: examples/
"""

from __future__ import annotations

import math
import runpy
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.full

FOLDER = Path(__file__).parents[1] / "examples"


def reached(name: str, *arguments: str, device: str = "numpy") -> dict[str, float]:
    """What a program returns."""
    main: Any = runpy.run_path(str(FOLDER / f"{name}.py"))["main"]
    return main(["--device", device, *arguments])


def test_a_table_is_fitted_far_better_than_by_the_mean(capsys: pytest.CaptureFixture[str]) -> None:
    found = reached("tabular_regression", "--epochs", "12")
    assert found["r2"] > 0.95
    assert found["mae"] < 0.25 * found["mae_of_mean"]
    assert "On 300 flats that were not trained on: R2 0.9" in capsys.readouterr().out


def test_the_order_of_words_is_read_by_the_lstm_alone() -> None:
    found = reached("text_classification")
    assert found["LSTM"] > 0.95
    assert found["bag of words"] < 0.65


def test_a_tuned_network_beats_one_from_scratch(capsys: pytest.CaptureFixture[str]) -> None:
    found = reached("fine_tuning")
    assert found["tuned"] > 0.8
    assert found["tuned"] > found["scratch"] + 0.04
    assert "At first 1290 of 6090 parameters are trained." in capsys.readouterr().out


def test_a_gan_finds_the_clusters() -> None:
    found = reached("gan", "--epochs", "25")
    assert found["after"] < 0.1 * found["before"]
    assert found["modes"] >= 6


def test_a_wasserstein_gan_draws_digits(capsys: pytest.CaptureFixture[str]) -> None:
    found = reached("wgan_gp", "--epochs", "25")
    assert found["after"] < 0.1 * found["before"]
    assert "@@" in capsys.readouterr().out.partition("Generated:")[2]


def test_a_pole_stands_longer_and_longer() -> None:
    found = reached("dqn", "--epochs", "7")
    assert found["first"] < 40.0
    assert found["best"] > 100.0


def test_a_language_model_remembers_how_a_story_began(capsys: pytest.CaptureFixture[str]) -> None:
    found = reached("word_language_model", "--epochs", "7")
    assert found["frequencies"] > 15.0
    assert found["model"] < 1.8  # knowing only what kind of word comes next gives more than 2.2
    assert "the end" in capsys.readouterr().out


def test_a_policy_catches_most() -> None:
    found = reached("actor_critic", "--epochs", "12")
    assert found["first"] < 0.3
    assert found["last"] > 0.6


def test_a_model_learns_to_answer_in_a_chat(capsys: pytest.CaptureFixture[str]) -> None:
    found = reached("chat_fine_tuning")
    assert found["before"] == 0.0
    assert found["after"] > 0.9  # who only knows the form has one sixth right
    assert "rows of 64 tokens, 97% full" in capsys.readouterr().out


def test_a_model_learns_what_is_preferred() -> None:
    found = reached("preference_optimization")
    assert 0.3 < found["before"] < 0.65
    assert found["after"] > 0.85 and found["accuracy"] > 0.9


def test_a_taught_student_knows_more_than_its_text() -> None:
    found = reached("distillation")
    assert found["teacher"] < 0.55
    assert found["distilled"] < found["alone"] - 0.15


COMPILED = [
    "wgan_gp", "dqn", "word_language_model", "actor_critic",
    "chat_fine_tuning", "preference_optimization", "distillation",
]  # fmt: skip


@pytest.mark.parametrize("name", COMPILED)
def test_it_compiles(name: str) -> None:
    """What is special in these goes into one program: derivatives of derivatives, a target, a state, distributions,
    texts in one row, a model without its adapters, a second model."""
    found = reached(name, "--epochs", "1", device="jax")
    assert all(math.isfinite(value) for value in found.values())


PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_table_lists_it(name: str) -> None:
    assert f"[{name}.py]({name}.py)" in (FOLDER / "README.md").read_text(encoding="utf-8")
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    assert f"python examples/{name}.py" in text and len(text.splitlines()) <= 160
