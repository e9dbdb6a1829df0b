"""Ids of parameters that all processes have in common."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from phlox import nn, optim
from phlox.distributed.checkpoints.common_ids import with_common_ids
from phlox.record import Record, gather
from tests.distributed.saving_support import groups, together


def state(seed: int) -> Record:
    """A model and its optimizer after a step, as one of several processes has them: with ids of its own."""
    from phlox.backend import Autodiff, NumPy
    from phlox.tensor import ones

    device = Autodiff(NumPy()).device()
    model, optimizer = nn.Linear(3, 2).init(seed, device=device), optim.AdamWConfig().init()
    loss = model(ones((4, 3), device=device)).square().mean()
    model = optimizer.step(0.1, model, optim.GradientsParams.from_grads(loss.backward(), model))
    return gather(model=model, optimizer=optimizer)


def test_paths_and_ids_of_processes_are_one() -> None:
    one, other = state(0), state(0)
    assert one.paths() != other.paths()
    first, second = with_common_ids(one, "run"), with_common_ids(other, "run")
    assert first.paths() == second.paths() and list(first.values) == list(second.values)
    assert [entry.id for entry in first.tensors.values()] == [entry.id for entry in second.tensors.values()]
    assert with_common_ids(one, "another run").paths() != first.paths()
    for before, after in zip(one.tensors.values(), first.tensors.values(), strict=True):
        np.testing.assert_array_equal(before.tensor.read(), after.tensor.read())


def test_what_was_saved_by_several_is_loaded_with_its_optimizer(tmp_path: pytest.TempPathFactory) -> None:
    from phlox.backend import Autodiff, NumPy
    from phlox.distributed import load, save
    from phlox.record import restore

    results = together(groups(2, run="run"), lambda group: save(state(0), str(tmp_path), group=group))
    assert not any(isinstance(one, BaseException) for one in results), results
    model, optimizer = nn.Linear(3, 2).init(5, device=Autodiff(NumPy()).device()), optim.AdamWConfig().init()
    restore(load(str(tmp_path)), model=model, optimizer=optimizer)
    assert {param.id for param in model.params()} == set(optimizer.states)
    want = sorted(entry.tensor.read().tobytes() for entry in state(0).tensors.values())
    assert sorted(entry.tensor.read().tobytes() for entry in gather(m=model, o=optimizer).tensors.values()) == want


def test_equal_runs_write_equal_files(tmp_path: Path) -> None:
    """Launches of one seed, whose names differ as those of any two do."""
    from phlox.distributed import save

    def written(run: str) -> list[bytes]:
        members = [replace(group, seed=7) for group in groups(2, run=run)]
        together(members, lambda group: save(state(0), str(tmp_path / run), group=group, step=1))
        return sorted(path.read_bytes() for path in (tmp_path / run).rglob("*.safetensors"))

    first, second = written("first"), written("second")
    assert len(first) == 2 and first == second


def test_ids_in_plain_values() -> None:
    from phlox.record import LazyTensor, TensorEntry

    record = Record(
        {"w": TensorEntry(LazyTensor.from_array(np.ones(2)), "a1"), "of": {"a1": ["a1", "b", 1]}, "n": 3},
        {"note.a1": "text"}, aliases={"tied": "w"},
    )  # fmt: skip
    found = with_common_ids(record, "run")
    id = found["w"].id
    assert found["of"] == {id: [id, "b", 1]} and found["n"] == 3 and found.metadata == {f"note.{id}": "text"}
    assert dict(found.aliases) == {"tied": "w"}
