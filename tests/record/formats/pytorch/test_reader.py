"""What `torch.save` writes, read without torch: against `torch.load`, for every kind of state dict and both formats.

Serves: phlox/record/formats/pytorch/{flatten,globals,values}.py
"""

from __future__ import annotations

import argparse
import collections
import datetime
import enum
import gzip
import io
import re
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

from phlox.record import PyTorchReader, Record, RecordError, load

TORCH_DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip


def saved(value: Any, legacy: bool = False, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=not legacy, **options)
    return buffer.getvalue()


def read(value: Any, legacy: bool = False, **options: Any) -> Record:
    return PyTorchReader().from_bytes(saved(value, legacy, **options))


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    if "float8" in (name := str(tensor.dtype).removeprefix("torch.")):
        return tensor.view(torch.uint8).numpy().view(getattr(ml_dtypes, name))
    return tensor.numpy()


def assert_reads_as_torch(data: bytes) -> Record:
    """Every tensor is the one that torch itself loads, at the path of its key."""
    expected = torch.load(io.BytesIO(data), weights_only=True)
    record = PyTorchReader().from_bytes(data)
    assert [*record.paths(), *record.aliases] and set(record.paths()) | set(record.aliases) == set(expected)
    for path, tensor in expected.items():
        array = record[path].tensor.read()
        other = as_numpy(tensor)
        assert (array.dtype, array.shape, array.tobytes()) == (other.dtype, other.shape, other.tobytes()), path
        assert array.flags.c_contiguous
    return record


def tied() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    return net


MODULES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(3, 4),
    "conv": lambda: nn.Conv2d(2, 3, 3),
    "lstm": lambda: nn.LSTM(3, 4, 2, bidirectional=True),
    "batchnorm": lambda: nn.BatchNorm1d(4),
    "embedding": lambda: nn.Embedding(5, 2),
    "transformer": lambda: nn.Transformer(8, 2, 1, 1, 16),
    "tied": tied,
    "half": lambda: nn.Linear(3, 4).half(),
    "bfloat16": lambda: nn.Linear(3, 4).bfloat16(),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", MODULES)
def test_state_dicts(name: str, legacy: bool) -> None:
    torch.manual_seed(0)
    module = MODULES[name]()
    record = assert_reads_as_torch(saved(module.state_dict(), legacy))
    assert record.values == {}  # `_metadata` is no entry
    assert dict(record.aliases) == ({"1.weight": "0.weight"} if name == "tied" else {})


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_every_element_type(dtype: torch.dtype, legacy: bool) -> None:
    bits = torch.arange(64, dtype=torch.uint8).mul(37)
    base = (bits % 2 == 0) if dtype == torch.bool else bits.view(dtype)
    value = {"x": base, "slice": base[1:5:2], "empty": base[:0], "one": base[3]}
    if legacy and (dtype in (torch.uint16, torch.uint32, torch.uint64) or "float8" in str(dtype)):
        # torch writes these and cannot read them
        for path, tensor in value.items():
            assert read(value, legacy)[path].tensor.read().tobytes() == as_numpy(tensor).tobytes()
    else:
        assert_reads_as_torch(saved(value, legacy))


def views() -> dict[str, torch.Tensor]:
    base = torch.arange(24.0).reshape(2, 3, 4)
    return {
        "whole": base,
        "transposed": base.permute(2, 0, 1),
        "narrow": base[1:, ::2, 1:3],
        "row": base[1, 2],
        "scalar": base[1, 2, 3],
        "expanded": base[:, :1, :].expand(2, 5, 4),
        "constant": torch.ones(()).expand(3, 4),
        "overlapping": base.as_strided((4, 3), (2, 1), 3),
        "empty": torch.zeros(0, 3),
        "empty-view": base[:0],
        "parameter": nn.Parameter(torch.ones(2)),
        "buffer": nn.Buffer(torch.ones(2)),
        "grad": torch.ones(2, requires_grad=True),
        "channels-last": torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "permuted": torch.zeros(0, 4, 2).permute(2, 0, 1),
    }


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_views(legacy: bool) -> None:
    record = assert_reads_as_torch(saved(views(), legacy))
    assert not record.aliases


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("protocol", [1, 2, 3, 4, 5])
def test_every_protocol(protocol: int, legacy: bool) -> None:
    value = {**views(), "u": torch.ones(3, dtype=torch.uint32)}
    data = saved(value, legacy, pickle_protocol=protocol)
    assert PyTorchReader.recognises(data[:512])
    record = PyTorchReader().from_bytes(data)
    for path, tensor in value.items():
        np.testing.assert_array_equal(record[path].tensor.read(), as_numpy(tensor))


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_identical_views_are_aliases(legacy: bool) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    record = read({"a": x, "b": x.view(2, 3), "c": x.T, "d": nn.Parameter(x), "e": x.view(3, 2)}, legacy)
    assert record.paths() == ["a", "c", "e"] and dict(record.aliases) == {"b": "a", "d": "a"}


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_checkpoint(legacy: bool) -> None:
    net = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
    counts = collections.defaultdict(int)
    counts["seen"] = 3
    record = read(
        {
            "model": net.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict(),
            "epoch": 3, "best": 0.25, "name": "é", "done": True, "none": None, "counts": counts, "nothing": {},
            "list": [torch.ones(1), {"x": torch.zeros(2), 0: 1}], "plain": (1, [2.5, {"a": None}], {7: "x"}),
            "size": torch.Size([1, 2]), "device": torch.device("cuda", 1), "dtype": torch.float16,
            "cpu": torch.device("cpu"), "rng": torch.get_rng_state(), "tags": {"only"}, "limits": [2**63, -(2**63)],
        },
        legacy,
    )  # fmt: skip
    assert record["epoch"] == 3 and record["best"] == 0.25 and record["name"] == "é" and record["done"] is True
    assert record["none"] is None and record["counts.seen"] == 3 and record["nothing"] == {}
    assert record["plain"] == [1, [2.5, {"a": None}], {"7": "x"}] and record["list.1.0"] == 1
    assert record["list.1.x"].tensor.shape == (2,) and record["size"] == [1, 2]
    assert (record["device"], record["cpu"], record["dtype"]) == ("cuda:1", "cpu", "torch.float16")
    assert record["tags"] == ["only"] and record["limits"] == [2**63, -(2**63)]
    assert record["schedule.milestones.2"] == 1 and record["optimizer.param_groups"][0]["params"] == [0, 1]
    assert record["optimizer.param_groups"][0]["betas"] == [0.9, 0.999]
    np.testing.assert_array_equal(record["rng"].tensor.read(), torch.get_rng_state().numpy())
    for name in ("exp_avg", "exp_avg_sq"):
        expected = optimizer.state[net.weight][name].numpy()
        np.testing.assert_array_equal(record[f"optimizer.state.0.{name}"].tensor.read(), expected)
    assert record.select("model").paths() == ["weight", "bias"]


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_numpy_in_a_checkpoint(protocol: int, legacy: bool) -> None:
    arrays = {
        "f": np.arange(6.0).reshape(2, 3), "fortran": np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)),
        "big": np.arange(3, dtype=">i4"), "bool": np.array([True, False]), "zero": np.zeros((0, 2)), "one": np.array(7),
        "half": np.ones(3, np.float16), "bytes": np.arange(256, dtype=np.uint8),
    }  # fmt: skip
    values = {"loss": np.float64(0.5), "n": np.int64(-3), "flag": np.bool_(True)}
    record = read({**arrays, **values}, legacy, pickle_protocol=protocol)
    for path, array in arrays.items():
        got = record[path].tensor.read()
        assert got.shape == array.shape and got.dtype == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(got, array)
    assert {path: record[path] for path in values} == {"loss": 0.5, "n": -3, "flag": True}
    assert type(record["flag"]) is bool and type(record["n"]) is int and type(record["loss"]) is float


def test_a_tensor_alone_and_a_list_of_them() -> None:
    assert read(torch.ones(2)).paths() == ["data"]
    assert read([torch.ones(2), torch.zeros(3)]).paths() == ["0", "1"]
    assert read({}).paths() == []


def test_big_endian() -> None:
    value = {"x": torch.arange(6.0).reshape(2, 3), "h": torch.arange(4).to(torch.bfloat16), "b": torch.tensor([True])}
    swapped = {"x": as_numpy(value["x"]).byteswap(), "h": as_numpy(value["h"]).view(np.int16).byteswap()}
    source = zipfile.ZipFile(io.BytesIO(saved(value)))
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as file:
        for name in source.namelist():
            content = {"archive/byteorder": b"big"}.get(name, source.read(name))
            content = {"archive/data/0": swapped["x"].tobytes(), "archive/data/1": swapped["h"].tobytes()}.get(
                name, content
            )
            file.writestr(name, content)
    record = PyTorchReader().from_bytes(target.getvalue())
    for path, tensor in value.items():
        array = record[path].tensor.read()
        assert array.dtype == as_numpy(tensor).dtype
        np.testing.assert_array_equal(array, as_numpy(tensor))


def test_files_of_every_name_and_compression(tmp_path: Path) -> None:
    data = saved(nn.Linear(2, 3).state_dict())
    for name in ("a.pt", "b.pth", "c.bin", "d.ckpt", "e.any"):
        (tmp_path / name).write_bytes(data)
        assert load(tmp_path / name).paths() == ["weight", "bias"]
    (tmp_path / "f.pt.gz").write_bytes(gzip.compress(saved(nn.Linear(2, 3).state_dict(), legacy=True)))
    assert load(tmp_path / "f.pt.gz").paths() == load(tmp_path / "f").paths() == ["weight", "bias"]
    assert PyTorchReader().load(tmp_path / "b").paths() == ["weight", "bias"]


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_tensors_are_views_of_the_file(legacy: bool) -> None:
    data = saved({"x": torch.arange(1000.0)}, legacy)
    array = PyTorchReader().from_bytes(data)["x"].tensor.read()
    if not legacy:  # whose storages lie at odd places, and are copied
        assert np.shares_memory(array, np.frombuffer(data, np.uint8))
    np.testing.assert_array_equal(array, np.arange(1000.0))


def test_opening_reads_no_tensor_and_reading_one_reads_no_other() -> None:
    data = bytearray(saved({"x": torch.arange(1000.0), "y": torch.ones(1000)}))
    assert data.count(torch.ones(1000).numpy().tobytes()) == 1
    data[data.index(torch.ones(1000).numpy().tobytes()) + 2000] ^= 1
    record = PyTorchReader().from_bytes(data)
    np.testing.assert_array_equal(record["x"].tensor.read(), np.arange(1000.0))
    with pytest.raises(RecordError, match=r"pytorch bytes: y: its member 'archive/data/1' is damaged: the checksum"):
        record["y"].tensor.read()
    assert PyTorchReader(verify=False).from_bytes(data)["y"].tensor.read().shape == (1000,)


def test_a_tensor_of_five_gigabytes_that_are_not_there(tmp_path: Path) -> None:
    # A file with a hole: whoever read it whole would be noticed.
    size = 5 << 30
    pickle = saved_pickle({"x": torch.zeros(4)}).replace(
        b"K\x04tq", b"\x8a\x05" + (size // 4).to_bytes(5, "little") + b"tq"
    )
    pickle = pickle.replace(b"QK\x00K\x04", b"Q\x8a\x05" + (size // 4 - 4).to_bytes(5, "little") + b"K\x04")
    path = tmp_path / "large.pt"
    with path.open("wb") as file:
        name, extra = b"archive/data/0", struct.pack("<HHQQ", 1, 16, size, size)
        file.write(struct.pack("<4s5H3I2H", b"PK\3\4", 45, 0, 0, 0, 33, 0, 2**32 - 1, 2**32 - 1, len(name), len(extra)))
        file.write(name + extra)
        file.seek(size - 16, 1)
        file.write(np.arange(4, dtype=np.float32).tobytes())
        place, other = file.tell(), b"archive/data.pkl"
        crc = zlib.crc32(pickle)
        file.write(struct.pack("<4s5H3I2H", b"PK\3\4", 45, 0, 0, 0, 33, crc, len(pickle), len(pickle), len(other), 0))
        file.write(other + pickle)
        start = file.tell()
        head = struct.pack(
            "<4s6H3I5H2I", b"PK\1\2", 45, 45, 0, 0, 0, 33, 0, 2**32 - 1, 2**32 - 1, len(name), 20, 0, 0, 0, 0, 0
        )
        file.write(head + name + extra)
        head = struct.pack(
            "<4s6H3I5H2I",
            b"PK\1\2",
            45,
            45,
            0,
            0,
            0,
            33,
            crc,
            len(pickle),
            len(pickle),
            len(other),
            12,
            0,
            0,
            0,
            0,
            2**32 - 1,
        )
        file.write(head + other + struct.pack("<HHQ", 1, 8, place))
        end = file.tell()
        file.write(struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, 2, 2, end - start, start))
        file.write(struct.pack("<4sIQI", b"PK\6\7", 0, end, 1))
        file.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 2, 2, end - start, 2**32 - 1, 0))
    assert load(path)["x"].tensor.read().tolist() == [0, 1, 2, 3]


def saved_pickle(value: Any) -> bytes:
    with zipfile.ZipFile(io.BytesIO(saved(value))) as file:
        return file.read("archive/data.pkl")


def test_a_file_without_checksums() -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        data = saved({"x": torch.arange(3.0)})
    finally:
        torch.serialization.set_crc32_options(before)
    assert PyTorchReader().from_bytes(data)["x"].tensor.read().tolist() == [0, 1, 2]


def test_deflated_archive() -> None:
    source = zipfile.ZipFile(io.BytesIO(saved(views())))
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        for name in source.namelist():
            file.writestr(name, source.read(name))
    record = PyTorchReader().from_bytes(target.getvalue())
    for path, tensor in views().items():
        if path != "channels-last":  # random
            np.testing.assert_array_equal(record[path].tensor.read(), as_numpy(tensor))


def test_without_torch(tmp_path: Path) -> None:
    torch.save({"x": torch.arange(3.0)}, tmp_path / "x.pt")
    code = """if True:
        import sys
        sys.modules["torch"] = None
        from phlox.record import load
        print(load(sys.argv[1])["x"].tensor.read().tolist())
    """
    command = [sys.executable, "-c", code, str(tmp_path / "x.pt")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[0.0, 1.0, 2.0]\n"


class Custom:
    pass


class Colour(enum.Enum):
    RED = 1


class Script(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleList([nn.Linear(2, 3), nn.BatchNorm1d(3)])
        self.extra: list[torch.Tensor] = [torch.full((1,), 5.0)]
        self.register_buffer("passing", torch.ones(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body[1](self.body[0](x)) + torch.tensor([1.0, 2.0, 3.0])


class Annotated(torch.Tensor):
    """A subclass whose numbers are its own."""


def jagged() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)


def masked() -> Any:
    return torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False]))


UNREADABLE: dict[str, tuple[Callable[[], Any], str, str]] = {
    "complex": (lambda: {"a": {"z": torch.ones(2, dtype=torch.complex64)}}, "a.z", "a tensor of torch.complex64"),
    "sparse": (lambda: {"w": torch.eye(2).to_sparse()}, "w", "a sparse tensor.*call to_dense"),
    "meta": (lambda: {"w": torch.ones(2, device="meta")}, "w", "a tensor of the meta device"),
    "nested": (lambda: {"w": jagged()}, "w", "a tensor of the class torch.nested.*save plain tensors"),
    "masked": (lambda: {"w": masked()}, "w", "a tensor of the class torch.masked.*save plain tensors"),
    "negative": (lambda: {"w": torch.ones(2, dtype=torch.complex64).conj().imag}, "w", "is to be negated"),
    "storage": (lambda: {"w": torch.ones(2).untyped_storage()}, "w", "a bare storage"),
    "object": (lambda: {"o": Custom()}, "o", "made by .*test_reader.Custom.*nothing of the file was run"),
    "class": (lambda: {"o": Custom}, "o", "the function or class .*test_reader.Custom"),
    "namespace": (lambda: {"o": argparse.Namespace(lr=1)}, "o", "made by argparse.Namespace"),
    "path": (lambda: {"o": [1, Path("x")]}, "o", "made by pathlib"),
    "date": (lambda: {"o": {"x": datetime.date(2026, 1, 1)}}, "o.x", "made by datetime.date"),
    "enum": (lambda: {"o": Colour.RED}, "o", "made by "),
    "bytes": (lambda: {"o": {"x": b"abc"}}, "o.x", "a value of type bytes"),
    "complex-number": (lambda: {"o": {"x": 1j}}, "o.x", "a complex number"),
    "strings": (lambda: {"s": np.array(["a"])}, "s", "NumPy elements of type 'U1'"),
    "objects": (lambda: {"s": np.array([None])}, "s", "NumPy elements of type 'O8'"),
    "fields": (lambda: {"s": np.zeros(2, "f4,f4")}, "s", "NumPy elements of type 'V8'"),
    "big-int": (lambda: {"n": 2**64}, "n", "the int does not fit 64 bits"),
    "surrogate": (lambda: {"n": "\ud800"}, "n", "lone surrogate"),
    "empty-key": (lambda: {"a": {"": 1}}, "a.", "the key '' makes no path"),
    "dots": (lambda: {"a..b": 1}, "a..b", "the key 'a..b' makes no path"),
    "tuple-key": (lambda: {(1, 2): 1}, "[a value of type tuple]", "the keys of a record are text or ints"),
    "clash": (lambda: {"a.b": 1, "a": {"b": 2}}, "a.b", "two entries of it have the path 'a.b'"),
    "int-and-text": (lambda: {"0": 1, 0: 2}, "0", "has '0' as text and as an int"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", UNREADABLE)
def test_one_entry_that_cannot_be_read_is_listed_and_the_rest_is_read(name: str, legacy: bool) -> None:
    make, path, message = UNREADABLE[name]
    record = read({"weight": torch.arange(2.0), **make()}, legacy)
    assert record.paths() == ["weight"] and record["weight"].tensor.read().tolist() == [0, 1]
    assert list(record.unreadable) == [path] and path not in record
    reason = record.unreadable[path]
    assert re.search(message, reason) and "\n" not in reason and len(reason) < 500
    with pytest.raises(RecordError, match=re.escape(f"{path}: {reason}")):
        record[path]


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_numbers_of_a_subclass_are_read(legacy: bool) -> None:
    noted = torch.arange(3.0).as_subclass(Annotated)
    noted.note = {"by": [1, "me"]}  # pyright: ignore[reportAttributeAccessIssue]
    given = {"w": torch.ones(2), "plain": torch.zeros(2).as_subclass(Annotated), "noted": nn.Parameter(noted)}
    record = read(given, legacy)
    assert not record.unreadable
    assert {path: record[path].tensor.read().tolist() for path in record} == {
        "w": [1, 1], "plain": [0, 0], "noted": [0, 1, 2],
    }  # fmt: skip


def test_nothing_by_name() -> None:
    for value, message in ((3, "a value of type int"), (Custom(), "an object made by"), ([1, "x"], "a value of type")):
        with pytest.raises(RecordError, match=f"it holds {message}.*, and no tensor by name"):
            read(value)


class Filled(dict[str, Any]):
    """What training scripts keep their settings in."""


def test_an_object_that_is_filled_as_a_dict_is_read_as_one() -> None:
    record = read({"w": torch.ones(1), "args": Filled(lr=0.5, path=Path("x"))})
    assert record["args.lr"] == 0.5 and list(record.unreadable) == ["args.path"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_a_whole_module_is_read_as_its_state_dict(legacy: bool) -> None:
    module = Script()
    for record in (read(module, legacy), read({"model": module, "epoch": 3}, legacy).select("model")):
        expected = module.state_dict()
        assert set(record.paths()) == set(expected) and not record.unreadable
        for path, tensor in expected.items():
            assert record[path].tensor.read().tolist() == tensor.tolist()
    assert read(nn.Sequential(nn.Linear(2, 2)), legacy).paths() == ["0.weight", "0.bias"]


def scripted(program: Any) -> Record:
    buffer = io.BytesIO()
    torch.jit.save(program, buffer)
    assert PyTorchReader.recognises(buffer.getvalue()[:512])
    return PyTorchReader().from_bytes(buffer.getvalue())


@pytest.mark.filterwarnings("ignore")
def test_torchscript() -> None:
    module = Script().eval()
    with torch.no_grad():
        dict(module.named_buffers())["body.1.running_mean"].copy_(torch.tensor([1.0, 2.0, 3.0]))
    programs: list[Any] = [torch.jit.script(module), torch.jit.trace(module, torch.ones(1, 2))]
    for program in programs:
        record = scripted(program)
        for path, tensor in program.state_dict().items():
            assert record[path].tensor.read().tolist() == tensor.tolist()
        assert {*record} - {*program.state_dict()} <= {"extra.0", "constants.0"} and not record.values
        assert record.metadata["format"] == "torchscript" and not record.unreadable
    record = scripted(programs[1])
    assert record["constants.0"].tensor.read().tolist() == [1, 2, 3]
    frozen = scripted(torch.jit.freeze(torch.jit.script(module)))  # all that it has is in its code
    shapes = sorted(entry.tensor.shape for entry in frozen.tensors.values())
    assert set(shapes) >= {(3, 2), (3,)} and all(path.startswith("constants.") for path in frozen)


@pytest.mark.filterwarnings("ignore")
def test_a_program_of_torch_export_is_named(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),)), tmp_path / "x.pt2")
    with pytest.raises(RecordError, match="it is a program of torch.export; save the state_dict"):
        load(tmp_path / "x.pt2")


def test_quantized() -> None:
    # By hand: torch is about to drop what makes them.
    pickle = b"\x80\x02}X\x01\x00\x00\x00qctorch._utils\n_rebuild_qtensor\n)Rs."
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("archive/data.pkl", pickle)
    reason = PyTorchReader().from_bytes(buffer.getvalue()).unreadable["q"]
    assert "a quantized tensor, which a record cannot hold; call dequantize" in reason


def test_tar_of_the_first_versions() -> None:
    head = b"sys_info".ljust(257, b"\0") + b"ustar\x0000"
    assert PyTorchReader.recognises(head.ljust(512, b"\0"))
    with pytest.raises(RecordError, match="tar archive of PyTorch before 0.4"):
        PyTorchReader().from_bytes(head.ljust(512, b"\0"))


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_recognised_by_content(legacy: bool) -> None:
    assert PyTorchReader.recognises(saved({"x": torch.ones(1)}, legacy)[:512])
    buffer = io.BytesIO()
    np.savez(buffer, x=np.ones(2))
    assert not PyTorchReader.recognises(buffer.getvalue()[:512])
    assert not PyTorchReader.recognises(b"PK\x03\x04" + bytes(508)) and not PyTorchReader.recognises(b"\x80\x02}.")
