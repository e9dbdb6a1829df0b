"""JAX's arrays over the pages of a file: nothing is copied where it is aligned, and the file stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, NumPy
from phlox.record import DOUBLE, Record, SafetensorsRecorder, load, save

jax = pytest.importorskip("jax")

from phlox.backend import Jax  # noqa: E402

SHAPE = (700, 512)  # of more than a megabyte


def saved(path: Path) -> tuple[Path, np.ndarray[Any, Any]]:
    model = nn.LinearConfig(*SHAPE).init(NumPy().device())
    return save(model.into_record(), path), np.array(model.weight.val().numpy())


def address(array: Any) -> int:
    return array.unsafe_buffer_pointer() if hasattr(array, "unsafe_buffer_pointer") else array.ctypes.data


@pytest.mark.parametrize("verify", [True, False])
def test_elements_are_not_copied(verify: bool, tmp_path: Path) -> None:
    file, weight = saved(tmp_path / "m")
    record = load(file, verify=verify)
    model = nn.LinearConfig(*SHAPE).init(Jax().device()).load_record(record)
    taken = model.weight.val().primitive
    assert address(taken) == address(record["weight"].tensor.read())
    np.testing.assert_array_equal(np.asarray(taken), weight)


def test_tensors_begin_where_every_engine_takes_them(tmp_path: Path) -> None:
    for length in range(1, 80):
        file = SafetensorsRecorder().save(Record({"n" * length: np.ones(3)}), tmp_path / "m")
        start = 8 + int.from_bytes(file.read_bytes()[:8], "little")
        assert start % 64 == 0 and file.stat().st_size == start + 12


def test_what_is_not_aligned_is_copied(tmp_path: Path) -> None:
    arrays = {"a": np.arange(3, dtype=np.float32), "b": np.arange(700 * 512, dtype=np.float32)}
    record = load(save(Record(arrays), tmp_path / "m"))
    found = Jax().from_host(record["b"].tensor.read(), px.Float, Jax().device())
    assert address(found) != address(record["b"].tensor.read())
    np.testing.assert_array_equal(np.asarray(found), arrays["b"])


@pytest.mark.parametrize("compiled", [True, False])
def test_training_changes_neither_the_file_nor_others_that_read_it(compiled: bool, tmp_path: Path) -> None:
    file, weight = saved(tmp_path / "m")
    before, record, device = file.read_bytes(), load(file), Autodiff(Jax()).device()
    model, other = (nn.LinearConfig(*SHAPE).init(device).load_record(record) for _ in range(2))
    optimizer = optim.AdamWConfig().init()
    x = px.ones((4, SHAPE[0]), device=device)

    def step(model: nn.Linear, optimizer: Any) -> Any:
        loss, grads = px.value_and_grad(lambda m: m(x).square().mean())(model)
        return loss, optimizer.step(0.1, model, grads)

    run = px.compile(step, donate=("model", "optimizer")) if compiled else step
    for _ in range(3):
        _, model = run(model, optimizer)
    assert np.abs(model.weight.val().numpy() - weight).max() > 0.01
    np.testing.assert_array_equal(other.weight.val().numpy(), weight)
    np.testing.assert_array_equal(record["weight"].tensor.read(), weight)
    assert file.read_bytes() == before


def test_arrays_outlive_the_record_and_its_file(tmp_path: Path) -> None:
    file, weight = saved(tmp_path / "m")
    model = nn.LinearConfig(*SHAPE).init(Jax().device()).load_record(load(file))
    file.unlink()
    np.testing.assert_array_equal(model.weight.val().numpy(), weight)


def test_other_element_types_are_cast(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).normal(size=SHAPE)
    file = save(Record({"weight": numbers, "bias": numbers[0]}), tmp_path / "m", DOUBLE)
    model = nn.LinearConfig(*SHAPE).init(Jax().device())
    model.load(file)
    np.testing.assert_array_equal(model.weight.val().numpy(), numbers.astype(np.float32))
