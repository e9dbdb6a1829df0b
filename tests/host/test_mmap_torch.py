"""PyTorch's tensors over the pages of a file: nothing is copied, and the file stays as it is, whatever is done."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, NumPy
from phlox.host.mmap import taken_over
from phlox.record import DOUBLE, FULL, Record, load, save
from tests.record.support import AS_IS, recorders

torch = pytest.importorskip("torch")

from phlox.backend import Torch  # noqa: E402

SHAPE = (300, 70)


def model_on(device: px.Device) -> nn.Linear:
    return nn.LinearConfig(*SHAPE).init(device)


def saved(path: Path, precision: Any = FULL, **options: Any) -> tuple[Path, np.ndarray[Any, Any]]:
    model = model_on(NumPy().device())
    file = px.record.save(model.into_record(), path, precision, **options)
    return file, np.array(model.weight.val().numpy())


def is_mapped(tensor: Any, file: Path) -> bool:
    """Do its elements lie where the system says that the file is?"""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        if str(file) in line:
            start, stop = (int(end, 16) for end in line.split()[0].split("-"))
            if start <= tensor.data_ptr() < stop:
                return True
    return False


pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system does not say what is mapped")


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", ["safetensors", "binary"])
def test_elements_are_not_copied(name: str, verify: bool, tmp_path: Path) -> None:
    model = model_on(NumPy().device())
    file = recorders()[name].save(model.into_record(), tmp_path / "m")
    new = model_on(Torch().device())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new.load_record(load(file, verify=verify))
    weight = new.weight.val().primitive
    assert is_mapped(weight, file)
    np.testing.assert_array_equal(weight.numpy(), model.weight.val().numpy())


def test_into_a_model_that_has_values(tmp_path: Path) -> None:
    file, weight = saved(tmp_path / "m")
    model = model_on(Torch().device())
    model.weight.val()
    model.load(file)
    assert is_mapped(model.weight.val().primitive, file)
    np.testing.assert_array_equal(model.weight.val().numpy(), weight)


@pytest.mark.parametrize(
    ("dtype", "options"), [(ml_dtypes.bfloat16, {"float": "bf16"}), (np.float16, {"float": "f16"})]
)
def test_half_precision(dtype: Any, options: Any, tmp_path: Path) -> None:
    values = np.arange(-50, 50, dtype=np.float32).astype(dtype)
    file = recorders(AS_IS)["safetensors"].save(Record({"weight": values.reshape(10, 10)}), tmp_path / "m")
    device = Torch(**options).device()
    array = load(file)["weight"].tensor.read()
    found = device.backend.from_host(array, px.Float, device)
    assert is_mapped(found, file) and found.tolist() == values.reshape(10, 10).astype(np.float32).tolist()


def test_what_is_cast_is_copied(tmp_path: Path) -> None:
    file, weight = saved(tmp_path / "m", DOUBLE)
    model = model_on(Torch().device())
    model.load(file)
    assert not is_mapped(model.weight.val().primitive, file)
    np.testing.assert_array_equal(model.weight.val().numpy(), weight)


def test_writing_to_a_tensor_changes_neither_the_file_nor_what_is_loaded_from_it_later(tmp_path: Path) -> None:
    file, weight = saved(tmp_path / "m")
    before = file.read_bytes()
    model, other = model_on(Torch().device()), model_on(Torch().device())
    model.load(file)
    model.weight.val().primitive.zero_()
    other.load(file)
    assert file.read_bytes() == before and not model.weight.val().numpy().any()
    np.testing.assert_array_equal(other.weight.val().numpy(), weight)


def test_saving_over_the_file_that_a_model_was_loaded_from(tmp_path: Path) -> None:
    file, weight = saved(tmp_path / "m")
    model = model_on(Torch().device())
    model.load(file)
    saved(file)  # another model
    np.testing.assert_array_equal(model.weight.val().numpy(), weight)
    px.record.save(model.into_record(), file)  # the very memory that is mapped
    file.unlink()
    gc.collect()
    np.testing.assert_array_equal(model.weight.val().numpy(), weight)


@pytest.mark.parametrize("donate", [True, False])
def test_an_optimizer_leaves_other_models_and_the_file_alone(donate: bool, tmp_path: Path) -> None:
    file, weight = saved(tmp_path / "m")
    before = file.read_bytes()
    record = load(file)
    device = Autodiff(Torch()).device()
    model, other = model_on(device), model_on(device)
    model.load_record(record)
    other.load_record(record)
    adam = optim.AdamWConfig().init(donate=donate)
    for _ in range(3):
        gradients = model(px.ones((2, SHAPE[0]), device=device)).sum().backward()
        model = adam.step(0.1, model, px.GradientsParams.from_grads(gradients, model))
    assert abs(model.weight.val().numpy() - weight).min() > 0.01
    np.testing.assert_array_equal(other.weight.val().numpy(), weight)
    np.testing.assert_array_equal(record["weight"].tensor.read(), weight)
    assert file.read_bytes() == before


def test_only_memory_of_pages_that_is_shown_read_only_is_taken_over(tmp_path: Path) -> None:
    file = save(Record({"w": np.arange(1000.0, dtype=np.float32)}), tmp_path / "m")
    mapped = load(file)["w"].tensor.read()
    taken = taken_over(mapped)
    assert taken is not None and taken.flags.writeable and np.shares_memory(taken, mapped)
    assert taken_over(mapped[::2]) is None and taken_over(mapped[:0]) is None
    assert taken_over(taken) is None  # somebody writes to it
    others = np.memmap(file, np.uint8, "r"), np.memmap(file, np.uint8, "c"), np.arange(3)
    for array in others:
        array.flags.writeable = False
        assert taken_over(array) is None


def test_where_the_system_has_no_room_for_copies_elements_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(12, "no memory")

    monkeypatch.setattr("phlox.record.io.files.Pages", refuse)
    file, weight = saved(tmp_path / "m")
    model = model_on(Torch().device())
    model.load(file)
    assert not is_mapped(model.weight.val().primitive, file)
    np.testing.assert_array_equal(model.weight.val().numpy(), weight)
