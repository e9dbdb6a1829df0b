"""Pickles of NumPy arrays, of every protocol, read by a machine that runs nothing."""

from __future__ import annotations

import collections
import datetime
import io
import os
import pickle
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from phlox.record import PickleReader, RecordError, load
from tests.record.support import DTYPES

PROTOCOLS = pytest.mark.parametrize("protocol", range(6))


@PROTOCOLS
@pytest.mark.parametrize("dtype", [*DTYPES, np.dtype(ml_dtypes.float8_e5m2), np.dtype(">f4"), np.dtype(">i8")], ids=str)
def test_arrays_of_every_type_and_layout(dtype: np.dtype[Any], protocol: int) -> None:
    base = np.arange(24).astype(dtype).reshape(2, 3, 4)
    arrays = {
        "c": base, "fortran": np.asfortranarray(base), "turned": base.transpose(1, 0, 2), "cut": base[:, ::2],
        "one": base[:1, 0, 0].reshape(()), "empty": base[:0], "long": np.resize(base, 100_000),
    }  # fmt: skip
    record = PickleReader().from_bytes(pickle.dumps(arrays, protocol))
    assert record.paths() == list(arrays) and not record.unreadable
    for path, array in arrays.items():
        got = record[path].tensor.read()
        native = array.astype(dtype.newbyteorder("=")) if dtype.byteorder == ">" else array
        assert got.dtype == native.dtype and got.shape == array.shape and got.tobytes() == native.tobytes()


@PROTOCOLS
def test_plain_values_and_containers(protocol: int) -> None:
    value = {
        "n": 1, "big": 2**40, "f": 0.5, "text": "é\n'\"\\", "none": None, "yes": True, "list": [1, "x", (2, [3])],
        "ordered": collections.OrderedDict(a=np.ones(1)), "many": [np.zeros(2), "y"],
        "scalar": np.float32(2.5), 3: {"x": 1},
    }  # fmt: skip
    record = PickleReader().from_bytes(pickle.dumps(value, protocol))
    assert [record[path] for path in ("n", "big", "f", "text", "none", "yes")] == [
        1,
        2**40,
        0.5,
        "é\n'\"\\",
        None,
        True,
    ]
    assert record["list"] == [1, "x", [2, [3]]] and record["scalar"] == 2.5 and record["3.x"] == 1
    assert record["ordered.a"].tensor.read().tolist() == [1] and record["many.0"].tensor.read().tolist() == [0, 0]
    assert PickleReader().from_bytes(pickle.dumps(np.arange(3), protocol))["data"].tensor.read().tolist() == [0, 1, 2]


def test_what_python_2_wrote() -> None:
    # cPickle of Python 2.7: {'w': numpy.array([1., 2.], '<f4')}, protocols 0 and 2.
    elements = np.array([1, 2], "<f4").tobytes()
    old = (
        b"(dp1\nS'w'\np2\ncnumpy.core.multiarray\n_reconstruct\np3\n(cnumpy\nndarray\np4\n(I0\ntp5\nS'b'\np6\ntp7\nRp8\n"
        b"(I1\n(I2\ntp9\ncnumpy\ndtype\np10\n(S'f4'\np11\nI0\nI1\ntp12\nRp13\n(I3\nS'<'\np14\nNNNI-1\nI-1\nI0\ntp15\nb"
        b"I00\nS'" + repr(elements)[2:-1].encode() + b"'\np16\ntp17\nbs."
    )
    assert pickle.loads(old, encoding="latin1")["w"].tolist() == [1, 2]  # noqa: S301 -- our own bytes
    assert PickleReader().from_bytes(old)["w"].tensor.read().tolist() == [1, 2]


@PROTOCOLS
def test_arrays_of_jax_and_tensors_of_torch(protocol: int) -> None:
    net = torch.nn.Linear(2, 3)
    value = {"j": jnp.arange(3), "b": jnp.ones(2, jnp.bfloat16), "net": net.state_dict(), "p": net.weight}
    record = PickleReader().from_bytes(pickle.dumps(value, protocol))
    assert record["j"].tensor.read().tolist() == [0, 1, 2] and record["b"].tensor.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(record["net.weight"].tensor.read(), net.weight.detach().numpy())
    np.testing.assert_array_equal(record["p"].tensor.read(), net.weight.detach().numpy())


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch canary",)


@PROTOCOLS
def test_nothing_is_run_and_objects_are_listed(protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    value = {"w": np.ones(2), "d": datetime.date(2026, 1, 1), "c": 1j, "s": np.array(["a"])}
    record = PickleReader().from_bytes(pickle.dumps(value, protocol))
    assert record.paths() == ["w"] and set(record.unreadable) == {"d", "c", "s"}
    with pytest.raises(RecordError, match=r"it wants (os|posix|nt)\.system.*nothing of it was run"):
        PickleReader().from_bytes(pickle.dumps({"w": np.ones(2), "x": Evil()}, protocol))
    assert not list(tmp_path.iterdir())


def test_files(tmp_path: Path) -> None:
    for name, protocol in (("a.pkl", 0), ("b.pickle", 1), ("c.pdparams", 4), ("any.name", 5)):
        (tmp_path / name).write_bytes(pickle.dumps({"w": np.ones(2)}, protocol))
        assert load(tmp_path / name)["w"].tensor.read().tolist() == [1, 1]


BAD = {
    "empty": b"",
    "truncated": pickle.dumps({"w": np.ones(3)})[:-5],
    "two": pickle.dumps({"w": 1}) * 2,
    "nothing by name": pickle.dumps([1, 2]),
    "joblib": b"\x80\x04\x8c\x13joblib.numpy_pickle\x8c\x11NumpyArrayWrapper\x93.",
    "a storage of no bytes": b"ctorch.storage\n_load_from_bytes\n(K\x01tR.",
    "a storage of nothing": b"ctorch.storage\n_load_from_bytes\n(C\x03abctR.",
    "axes": b"cnumpy._core.numeric\n_frombuffer\n(C\x08"
    + bytes(8)
    + b"cnumpy\ndtype\n(X\x02\x00\x00\x00f4tRK\x02\x85X\x01\x00"
    b"\x00\x00KK\x05\x85tR.",
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files(name: str) -> None:
    with pytest.raises(RecordError, match="pickle bytes: not a valid pickle record: ") as info:
        PickleReader().from_bytes(BAD[name])
    assert len(str(info.value)) < 600
    if name == "joblib":
        assert "it is a dump of joblib" in str(info.value)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_every_byte_changed(protocol: int) -> None:
    data = pickle.dumps({"w": np.arange(2.0), "t": torch.ones(1), "n": [1, "x"]}, protocol)
    for place in range(0, len(data), 1 if len(data) < 500 else 3):
        for flip in (1, 0xFF):
            changed = bytearray(data)
            changed[place] ^= flip
            try:
                for entry in PickleReader().from_bytes(bytes(changed)).tensors.values():
                    entry.tensor.read()
            except RecordError:
                pass
    for size in range(0, len(data), 7):
        with pytest.raises(RecordError):
            PickleReader().from_bytes(data[:size])


def test_storages_within_storages_end() -> None:
    inner = b"K\x01"
    for _ in range(300):
        legacy = io.BytesIO()
        legacy.write(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}.")
        legacy.write(b"ctorch.storage\n_load_from_bytes\n(B" + len(inner).to_bytes(4, "little") + inner + b"tR.")
        inner = legacy.getvalue()
    with pytest.raises(RecordError):
        PickleReader().from_bytes(
            b"ctorch.storage\n_load_from_bytes\n(B" + len(inner).to_bytes(4, "little") + inner + b"tR."
        )
