"""Fine-tuning in a learner, and checkpoints that leave out the frozen base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.data import Loader
from phlox.errors import RecordError
from phlox.train import Checkpoints, Learner

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(32, 4)).astype(np.float32), RNG.integers(0, 3, 32)


class Net(nn.Sequential):
    """Layers with running statistics: the first ones are frozen with the base, the last ones are trained."""

    def __init__(self) -> None:
        super().__init__([nn.Linear(4, 8), nn.BatchNorm(8), nn.Tanh(), nn.Linear(8, 3), nn.BatchNorm(3)])


def learner(seed: int = 0) -> Learner[Any]:
    base = Net().init(seed)
    px.random.seed(1)
    adapted = px.lora(base, "**.weight", rank=2, dropout=0.2, train="layers.4")
    return Learner(adapted, optim.AdamConfig(), 1e-2, nn.cross_entropy_loss, ema=0.9)


def fit(learner: Learner[Any], folder: Path, epochs: int, **options: Any) -> Learner[Any]:
    saving = Checkpoints(best="validation/loss", frozen=options.pop("frozen", True))
    px.random.seed(2)
    learner.fit(
        Loader(ROWS, 8), epochs=epochs, folder=folder, callbacks=[saving], validation=Loader(ROWS, 8), progress=False,
        **options,
    )  # fmt: skip
    return learner


def values(model: Any) -> dict[str, np.ndarray]:
    return {path: param.val().numpy() for path, param in model.named_params()}


@pytest.mark.parametrize("frozen", [True, False])
def test_a_resumed_training_is_the_uninterrupted_one(frozen: bool, tmp_path: Path) -> None:
    base = values(learner().model)
    whole = values(fit(learner(), tmp_path / "whole", 4).model)
    fit(learner(), tmp_path / "parts", 2, frozen=frozen)
    parts = values(fit(learner(), tmp_path / "parts", 4, resume=True, frozen=frozen).model)
    for path, value in whole.items():
        np.testing.assert_array_equal(parts[path], value, path)
        is_changed = "lora" in path or "layers.4" in path
        assert np.array_equal(base[path], value) != is_changed, path
    best = Checkpoints.best_in(tmp_path / "parts", base=learner().model)
    model = Net().init(0)
    view = px.lora(model, "**.weight", rank=2, dropout=0.2, train="layers.4").load_record(best).valid()
    assert {*best.paths()} == {*whole}
    assert view(px.tensor(ROWS[0])).shape == (32, 3)


def test_only_what_has_changed_is_saved(tmp_path: Path) -> None:
    fit(learner(), tmp_path, 1, frozen=False)
    state = Checkpoints.load(tmp_path)
    saved = [path.removeprefix("models.model.") for path in state if path.startswith("models.")]
    factors = [f"layers.{n}.weight.lora.default.{end}" for n in (0, 3) for end in "AB"]
    norm = [f"layers.4.{name}" for name in ("gamma", "beta", "running_mean", "running_var")]
    assert saved == factors + norm
    averages = [path for path in state if path.startswith("aids.ema.model.average.")]
    assert [path.removeprefix("aids.ema.model.average.") for path in averages] == saved
    assert px.record.load(tmp_path / "checkpoints" / "best.safetensors").paths() == saved
    learner().load_state(state)
    assert repr(Checkpoints(frozen=False)) == "Checkpoints(every_epochs=1, keep=3, frozen=False)"


def test_another_base_is_refused(tmp_path: Path) -> None:
    fit(learner(), tmp_path, 1, frozen=False)
    other = learner(seed=5)
    before = values(other.model)
    with pytest.raises(
        RecordError, match=r"is not the one that it began with: models.model.layers.0.weight.base, aids"
    ):
        fit(other, tmp_path, 2, resume=True, frozen=False)
    for path, value in values(other.model).items():
        np.testing.assert_array_equal(value, before[path])
    with pytest.raises(RecordError, match=r"best.safetensors: give best_in\(folder, base=MODEL\): the record has only"):
        Checkpoints.best_in(tmp_path)
    with pytest.raises(
        RecordError, match=r"layers.0.weight.base, layers.0.bias, .* differ; make the model of the same"
    ):
        Checkpoints.best_in(tmp_path, base=other.model)
