"""Hostile files under the names of PyTorch: nothing of them runs, and all end in a RecordError, soon and small.

Serves: phlox/record/formats/pytorch/opcodes.py
"""

from __future__ import annotations

import io
import os
import pickle
import re
import struct
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phlox.record import PyTorchReader, Record, RecordError

FOUND: list[str] = []


def canary(*arguments: object) -> str:
    """What no reader may ever call."""
    FOUND.append("called")
    return "called"


@pytest.fixture(autouse=True)
def _nothing_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    FOUND.clear()
    yield
    assert not FOUND and not list(tmp_path.iterdir())


def archive(pickle: bytes, storages: dict[str, bytes] | None = None, method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        file.writestr("archive/data.pkl", pickle)
        for key, data in (storages or {}).items():
            file.writestr(f"archive/data/{key}", data)
    return buffer.getvalue()


LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}X\x0d\x00\x00\x00little_endian\x88s."


def legacy(pickle: bytes, keys: bytes = b"\x80\x02].") -> bytes:
    return LEGACY + pickle + keys


def listed(data: bytes, path: str, message: str) -> None:
    """Nothing of it is read but what is beside it, and why is told."""
    record = PyTorchReader().from_bytes(data)
    assert not len(record) and list(record.unreadable) == [path]
    assert re.search(message, record.unreadable[path]) and len(record.unreadable[path]) < 1000


def refused(data: bytes, message: str, **options: Any) -> None:
    with pytest.raises(RecordError, match=r"(?s)^pytorch bytes: not a valid pytorch record: .*" + message) as info:
        PyTorchReader(**options).from_bytes(data)
    assert "\n" not in str(info.value) and len(str(info.value)) < 1000


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    data = value.to_bytes(10, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


HERE = __name__.encode()
FROM_TYPE = b"ctorch._tensor\n_rebuild_from_type_v2\n"
SYSTEM = {
    "os.system": b"cos\nsystem\n(U\x0ctouch canarytR.",
    "posix.system": b"cposix\nsystem\n(U\x0ctouch canarytR.",
    "builtins.eval": b"cbuiltins\neval\n(U\x0fopen('x', 'w')  tR.",
    "builtins.exec": b"c__builtin__\nexec\n(U\x0fopen('x', 'w')  tR.",
    "subprocess": b"csubprocess\nPopen\n(]U\x05toucha\x85R.",
    "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01x\x85R.",
    "obj": b"(cos\nsystem\nU\x0ctouch canaryo.",
    "inst": b"(U\x0ctouch canaryios\nsystem\n.",
    "importlib": b"cimportlib\nimport_module\n(U\x02ostR.",
    "pickle": b"cpickle\nloads\n(U\x01xtR.",
    "persistent of a call": b"\x80\x02(U\x07storagecos\nsystem\nU\x010U\x03cpuK\x01tQ.",
    "never kept": b"cos\nsystem\n(U\x0ctouch canarytR0}.",
}  # fmt: skip

GLOBALS_OF_CODE = {
    "getattr": b"c__builtin__\ngetattr\n(]U\x06appendtR.",
    "torch.load": b"ctorch\nload\n(U\x01xtR.",
    "torch.hub": b"ctorch.hub\nload\n(U\x01xtR.",
    "torch jit": b"ctorch.jit\nunsupported_module_tensors\n)R.",
    "numpy.load": b"cnumpy\nload\n(U\x01xtR.",
    "runstring": b"cnumpy.testing._private.utils\nrunstring\n(U\x01x}tR.",
    "canary": b"c" + HERE + b"\ncanary\n)R.",
    "nested name": b"\x80\x04\x8c\x11collections.abc  \x8c\x0aOrderedDic\x93.",
    "dotted": b"\x80\x04\x8c\x0bcollections\x8c\x14OrderedDict.fromkeys\x93]\x85R.",
    "dotted module": b"ccollections\nOrderedDict.__init__\n)R.",
    "obj": b"(c" + HERE + b"\ncanary\nU\x01xo.",
    "inst": b"(U\x01xi" + HERE + b"\ncanary\n.",
    "newobj": b"\x80\x02c" + HERE + b"\nEvil\n)\x81.",
    "newobj_ex": b"\x80\x04c" + HERE + b"\nEvil\n)}\x92.",
    "state": b"\x80\x02c" + HERE + b"\nEvilState\n)\x81}U\x01xK\x01sb.",
    "called twice": b"c" + HERE + b"\ncanary\n)R)R.",
    "made by what is made": b"c" + HERE + b"\ncanary\n)R)\x81.",
    "filled as a list": b"c" + HERE + b"\ncanary\n)RK\x01a(K\x01K\x02e.",
}  # fmt: skip

OPCODES_OF_CODE = {
    "ext1": b"\x80\x02\x82\x01.",
    "ext2": b"\x80\x02\x83\x01\x00.",
    "ext4": b"\x80\x02\x84\x01\x00\x00\x00.",
    "persistent text": b"Px\n.",
    "next buffer": b"\x80\x05\x97.",
    "read-only buffer": b"\x80\x05]\x98.",
}  # fmt: skip

MISUSED = {
    "newobj": b"\x80\x02ccollections\nOrderedDict\n)\x81.",
    "newobj_ex": b"\x80\x04ccollections\nOrderedDict\n)}\x92.",
    "build of a function": b"c" + HERE + b"\ncanary\n}U\x01xK\x01sb.",
    "build of a NumPy array": b"cnumpy.core.multiarray\n_reconstruct\n(K\x00))tR}b.",
    "persistent": b"\x80\x02U\x01xQ.",
    "build of a type": b"ctorch\nfloat32\n}U\x01xK\x01sb.",
    "build of a list": b"]}b.",
    "build of a tensor class": b"ctorch\nTensor\n}b.",
    "reduce of a type": b"ctorch\nFloatStorage\n)R.",
    "reduce of a list": b"])R.",
    "reduce of a class": b"ctorch\nTensor\n)R.",
    "reduce with a list": b"ccollections\nOrderedDict\n]R.",
    "from_type of a call": FROM_TYPE + b"(ccollections\nOrderedDict\nctorch\nTensor\n)}tR.",
    "from_type of a type": FROM_TYPE + b"(ctorch._utils\n_rebuild_tensor\nctorch\nfloat32\n)}tR.",
    "deep from_type": FROM_TYPE + b"(" * 9000 + b")" + (b"}t" + FROM_TYPE + b"R") * 2 + b".",
    "many bytes": b"c__builtin__\nbytes\nJ\xff\xff\xff\x7f\x85R.",
    "many bytearray": b"c__builtin__\nbytearray\nJ\xff\xff\xff\x7f\x85R.",
    "other encoding": b"c_codecs\nencode\n(X\x01\x00\x00\x00xX\x03\x00\x00\x00zlit" + b"R.",
    "wrong arguments": b"ctorch._utils\n_rebuild_tensor_v2\n)R.",
    "wrong storage": b"ctorch._utils\n_rebuild_tensor_v2\n(K\x00K\x00))\x89]tR.",
}  # fmt: skip

DAMAGED = {
    "stack global of no text": b"\x80\x04K\x01K\x02\x93.",
    "persistent module": b"\x80\x02(U\x06moduleNNNtQ.",
    "string without quotes": b"S'x\n.",
    "string of no line": b"S'x'",
    "obj of nothing": b"(o.",
    "newobj without arguments": b"\x80\x02c" + HERE + b"\nEvil\nK\x01\x81.",
    "protocol": b"\x80\x06}.",
    "append to a dict": b"}K\x01a.",
    "item of a list": b"]K\x01K\x02s.",
    "odd items": b"}(K\x01u.",
    "nothing": b".",
    "no mark": b"}u.",
    "no memo": b"h\x07.",
    "negative memo": b"g-1\n.",
    "text memo": b"gx\n.",
    "no stop": b"}",
    "empty": b"",
    "junk": b"\xff\xff\xff",
    "bad text": b"X\x02\x00\x00\x00\xff\xff.",
    "huge text": b"X\xff\xff\xff\xff.",
    "huge text of 8 bytes": b"\x8d" + b"\xff" * 8 + b".",
    "huge bytes": b"\x8e" + b"\xff" * 7 + b"\x7f.",
    "huge int": b"\x8b\xff\xff\xff\x7f.",
    "huge decimal": b"L" + b"9" * 60_000 + b"L\n.",
    "line without end": b"c" + b"x" * 100_000,
    "trailing": b"}.}.",
}  # fmt: skip

CODE = "it wants .*, which no state dict needs and which may be an attack; nothing of it was run"
OPCODE = "the opcode [A-Z0-4_]+, which no state dict needs: it may be an attack"
MISUSE = (
    "no state dict makes; it may be an attack|has none; it may|damaged, or an attack|not a storage of PyTorch; it may"
)
INERT = "(made by|the function or class) .*; nothing of it was run"
LISTED = "only running code could make it, and nothing of the file was run|the function or class"
ATTACKS = {
    **{name: (pickle, CODE) for name, pickle in SYSTEM.items()},
    **{name: (pickle, OPCODE) for name, pickle in OPCODES_OF_CODE.items()},
    **{name: (pickle, MISUSE) for name, pickle in MISUSED.items()},
    **{name: (pickle, "") for name, pickle in DAMAGED.items()},
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks(name: str) -> None:
    pickle, message = ATTACKS[name]
    refused(archive(pickle), message)
    if name != "trailing":
        refused(legacy(pickle), message)
    refused(archive(b"}U\x01a" + pickle.removeprefix(b"\x80\x02")[:-1] + b"s."), message)


@pytest.mark.parametrize("name", GLOBALS_OF_CODE)
def test_what_code_would_make_is_not_made(name: str) -> None:
    pickle = GLOBALS_OF_CODE[name]
    refused(archive(pickle), INERT)
    refused(legacy(pickle), INERT)
    listed(archive(b"}U\x01a" + pickle.removeprefix(b"\x80\x02")[:-1] + b"s."), "a", LISTED)


class Evil:
    def __reduce__(self) -> Any:
        return canary, ("x",)


class EvilState:
    def __setstate__(self, state: Any) -> None:
        canary()


@pytest.mark.parametrize("use_zip", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize(
    "evil", [Evil(), EvilState(), os.system, canary, Evil], ids=["reduce", "state", "f", "g", "class"]
)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_code_in_a_checkpoint(evil: Any, protocol: int, use_zip: bool) -> None:
    buffer = io.BytesIO()
    value = {"weight": torch.ones(2), "extra": [evil]}
    torch.save(value, buffer, pickle_protocol=protocol, _use_new_zipfile_serialization=use_zip)
    if evil is os.system:
        refused(buffer.getvalue(), "nothing of it was run. If you trust the file, load it with torch, and save")
    else:
        record = PyTorchReader().from_bytes(buffer.getvalue())
        assert record["weight"].tensor.read().tolist() == [1, 1] and list(record.unreadable) == ["extra"]


def tensor(
    shape: list[int], strides: list[int], offset: int = 0, numel: int = 4, key: str = "0", kind: str = "FloatStorage",
) -> bytes:  # fmt: skip
    numbers = [b"(" + b"".join(number(n) for n in part) + b"t" for part in (shape, strides)]
    storage = (
        b"(" + text("storage") + b"ctorch\n" + kind.encode() + b"\n" + text(key) + text("cpu") + number(numel) + b"tQ"
    )
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + number(offset) + b"".join(numbers) + b"\x89}tR"


def model(**tensors: bytes) -> bytes:
    return archive(b"\x80\x02}" + b"".join(text(k) + v + b"s" for k, v in tensors.items()) + b".", {"0": bytes(16)})


def test_the_hand_made_tensor_is_right() -> None:
    assert PyTorchReader().from_bytes(model(x=tensor([2, 2], [2, 1])))["x"].tensor.read().tolist() == [[0, 0], [0, 0]]


TENSORS = {
    "leaves its storage": (tensor([5], [1]), "x: shape .5,. with strides .1,. from element 0 on leaves its storage"),
    "offset": (tensor([4], [1], 1), "leaves its storage of 16 bytes"),
    "stride": (tensor([2], [4]), "leaves its storage"),
    "negative stride": (tensor([2], [-1]), "strides and offset are not whole numbers"),
    "negative size": (tensor([-2], [1]), "whole numbers from 0"),
    "negative offset": (tensor([2], [1], -1), "strides and offset are not whole numbers"),
    "huge stride": (tensor([2], [2**62]), "leaves its storage"),
    "more than 64 bits": (tensor([2], [2**70]), "strides and offset are not whole numbers"),
    "wrapping": (tensor([2**33, 2**33], [2**31, 2**31]), "overflows the address space"),
    "ranks differ": (tensor([2, 2], [1]), "one stride for each axis"),
    "rank": (tensor([1] * 65, [1] * 65), "65 axes; the most is 64"),
    "storage too small": (tensor([2], [1], numel=5), "is said to have 20 bytes and has 16"),
    "negative storage": (tensor([2], [1], numel=-1), "not a storage of PyTorch"),
    "no such storage": (tensor([2], [1], key="1"), "it has no member 'archive/data/1'"),
    "storage elsewhere": (tensor([2], [1], key="../data.pkl"), "no member"),
    "empty of no storage": (tensor([0], [1], key="7"), "no member"),
    "expanded": (tensor([2**20, 2**20], [0, 0]), "expand to more than 1073741824, as those of a bomb do"),
    "empty but huge": (tensor([2**40, 0, 2**40], [0, 0, 0]), "overflows the address space"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_hostile_tensors(name: str) -> None:
    pickled, message = TENSORS[name]
    refused(model(ok=tensor([1], [1]), x=pickled), message)


def test_expanded_tensors_together_are_bounded() -> None:
    many = {f"x{i}": tensor([2**20, i + 1], [0, 0]) for i in range(40)}
    refused(model(**many), r"expand to more than 1073741824.*larger max_bytes")
    assert len(PyTorchReader(max_bytes=2**40).from_bytes(model(**many))) == 40
    refused(model(x=tensor([1000], [0])), "more than 3999", max_bytes=3999)
    assert PyTorchReader(max_bytes=4000).from_bytes(model(x=tensor([1000], [0])))["x"].tensor.read().shape == (1000,)


def test_unpacking_one_storage_for_many_tensors_is_bounded() -> None:
    views = b"".join(text(f"x{i}") + tensor([1], [1], i, 1 << 20) + b"s" for i in range(300))
    data = archive(b"\x80\x02}" + views + b".", {"0": bytes(4 << 20)}, zipfile.ZIP_DEFLATED)
    refused(data, r"expand to more than 1073741824")


def test_a_pickle_that_is_a_zip_bomb() -> None:
    refused(archive(b"N0" * (1 << 25) + b"}.", method=zipfile.ZIP_DEFLATED), "its pickle unpacks to more than 67108864")


@pytest.mark.parametrize("value", [0, 1, -1, 255, -(2**31), 2**62, -(2**63), 2**63 - 1])
def test_integers_of_any_opcode(value: int) -> None:
    """LONG1 and LONG4, the size of whose operand takes one byte or four, and the decimals of protocol 0."""
    size = (value.bit_length() + 8) // 8
    operand = value.to_bytes(size, "little", signed=True)
    decimal = str(value).encode()
    for code in (
        b"\x8a" + bytes([size]) + operand, b"\x8b" + struct.pack("<i", size) + operand,
        b"L" + decimal + b"L\n", b"I" + decimal + b"\n",
    ):  # fmt: skip
        data = b"}(" + text("n") + code + text("after") + b"K\x07u."
        assert pickle.loads(data) == {"n": value, "after": 7}  # noqa: S301
        record = PyTorchReader().from_bytes(archive(data))
        assert record["n"] == value and record["after"] == 7
    refused(archive(b"}" + text("n") + b"\x8b" + struct.pack("<i", 17) + bytes(17) + b"s."), "an int of 17 bytes")


def test_a_false_boolean() -> None:
    data = archive(b"\x80\x02}" + text("x") + tensor([4], [1], kind="BoolStorage") + b"s.", {"0": b"\0\1\2\0"})
    with pytest.raises(RecordError, match="pytorch bytes: x: it holds bytes other than 0 and 1 as booleans"):
        PyTorchReader().from_bytes(data)["x"].tensor.read()


@pytest.mark.parametrize("order", [b"middle", b"", b"x" * 10_000])
def test_byte_order(order: bytes) -> None:
    buffer = io.BytesIO(archive(b"}."))
    with zipfile.ZipFile(buffer, "a") as file:
        file.writestr("archive/byteorder", order)
    refused(buffer.getvalue(), "its byte order is")


def shared(depth: int, width: int, kind: bytes) -> bytes:
    """Lists (or so) of references to one list of references to..."""
    begin, end = {b"list": (b"(", b"l"), b"tuple": (b"(", b"t"), b"dict": (b"(", b"d")}[kind]
    result = b"K\x01"
    for level in range(depth):
        item = b"h" + bytes([level])
        items = b"".join(text(str(i)) + item if kind == b"dict" else item for i in range(width))
        result += b"q" + bytes([level]) + b"0" + begin + items + end
    return result


LONG = text("x" * 100_000) + b"q\x00"
INTS = b"".join(text(str(i)) + b"K\x01" for i in range(20_000))
SCALAR = b"(cnumpy.core.multiarray\nscalar\nq\x02cnumpy\ndtype\n(U\x02f8tRq\x01U\x80" + b"x" * 128 + b"q\x00"
BOMBS = {
    "laughs": b"}U\x01a" + shared(30, 10, b"list") + b"s.",
    "laughs of tuples": b"}U\x01a" + shared(30, 10, b"tuple") + b"s.",
    "laughs of dicts": b"}U\x01a" + shared(30, 10, b"dict") + b"s.",
    "laughs in values": b"}U\x01a](" + shared(30, 10, b"dict") + b"es.",
    "one text many times": b"}U\x01a](" + LONG + b"h\x00" * 50_000 + b"es.",
    "one long key many times": b"}" + LONG + b"}(" + INTS + b"us.",
    "encoded many times": b"(" + LONG + b"c_codecs\nencode\nq\x01" + b"h\x01h\x00U\x06latin1\x86R" * 20_000 + b"l.",
    "scalars of one text": SCALAR + b"h\x02h\x01h\x00\x86R" * 50_000 + b"l.",
    "ordered many times": b"((" + b"K\x01K\x02\x86" * 10_000 + b"lq\x00ccollections\nOrderedDict\nq\x01"
    + b"h\x01h\x00\x85R" * 10_000 + b"l.",
    "itself": b"}q\x00U\x01ah\x00s.",
    "itself in a list": b"}U\x01a]q\x00h\x00ah\x00as.",
    "itself in a list of values": b"}q\x01U\x01a]q\x00(h\x00h\x01h\x00es.",
    "deep lists": b"}U\x01a" + b"]" * 50_000 + b"a" * 49_999 + b"s.",
    "deep tuples": b"}U\x01aN" + b"\x85" * 50_000 + b"s.",
    "deep dicts": b"}" + b"U\x01a}" * 50_000 + b"s" * 50_000 + b".",
    "deep keys": b"}N" + b"\x85" * 50_000 + b"K\x01s.",
    "many marks": b"(" * 100_000 + b"t" * 100_000 + b".",
    "many keys of one hash": b"}(" + b"".join(number(i * (2**61 - 1)) + b"K\x01" for i in range(20_000)) + b"u.",
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full if n % 2 else []) for n, name in enumerate(BOMBS)]
)
def test_bombs(name: str) -> None:
    data = archive(BOMBS[name])
    tracemalloc.start()
    try:
        if name in ("deep keys", "many keys of one hash"):  # none of them makes a path
            assert len(PyTorchReader().from_bytes(data)) < 10
        else:
            refused(data, "")
        assert tracemalloc.get_traced_memory()[1] < 20_000_000 + 100 * len(data)
    finally:
        tracemalloc.stop()


def test_what_is_shared_a_few_times_is_no_bomb() -> None:
    inner = b"(" + b"".join(text(f"layer{i}") + b"K\x01" for i in range(1000)) + b"d"
    record = PyTorchReader().from_bytes(archive(b"}" + text("a") + inner + b"q\x00s" + text("b") + b"h\x00s."))
    assert len(record) == 2000


def small(use_zip: bool) -> bytes:
    buffer = io.BytesIO()
    net = torch.nn.Linear(2, 1)
    value = {"model": net.state_dict(), "epoch": 3, "tied": net.weight, "n": np.float64(0.5), "s": torch.tensor(3)}
    torch.save(value, buffer, _use_new_zipfile_serialization=use_zip)
    return buffer.getvalue()


def read_all(data: bytes) -> Record:
    record = PyTorchReader().from_bytes(data)
    for entry in record.tensors.values():
        entry.tensor.read()
    return record


@pytest.mark.parametrize("use_zip", [True, False], ids=["zip", "legacy"])
def test_truncated_at_every_byte(use_zip: bool) -> None:
    data = small(use_zip)
    for size in range(len(data)):
        with pytest.raises(RecordError):
            read_all(data[:size])


@pytest.mark.covering(1)
@pytest.mark.parametrize("flip", [1, 0x20, 0x80, 0xFF])
@pytest.mark.parametrize("use_zip", [True, False], ids=["zip", "legacy"])
def test_every_byte_changed(use_zip: bool, flip: int) -> None:
    data = small(use_zip)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= flip
        try:
            read_all(bytes(changed))
        except RecordError as error:
            assert str(error).startswith("pytorch bytes: ")


STORED = b"\x80\x02}" + text("x") + tensor([2], [1], numel=2) + b"s."


@pytest.mark.parametrize(
    "value",
    [pytest.param(n, marks=[pytest.mark.full] if n % 64 else []) for n in range(0, 256, 16)],
    ids=lambda value: f"{value:#04x}",
)
def test_every_byte_of_the_pickle_is_every_other(value: int) -> None:
    # Past the checksum of the archive: the pickle itself is what is hostile.
    for place in range(len(STORED)):
        for byte in range(value, value + 16):
            changed = bytearray(STORED)
            changed[place] = byte
            try:
                read_all(archive(bytes(changed), {"0": bytes(8)}))
            except RecordError:
                pass


OPCODES = [
    bytes([code])
    for code in b"(0 12.NJKMGXCBUT)]}ldtaeusqhjrcRbQ\x80\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8f\x90\x91\x94\x95"
]
GLOBALS = [
    b"c" + HERE + b"\nEvil\n", b"\x81", b"(o",
    b"ccollections\nOrderedDict\n", b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch\nFloatStorage\n",
    b"ctorch\nSize\n",
    b"cnumpy\ndtype\n", b"cnumpy.core.multiarray\nscalar\n", b"cnumpy.core.multiarray\n_reconstruct\n", b"U\x02f8",
    b"ctorch._utils\n_rebuild_tensor_v3\n", b"ctorch._tensor\n_rebuild_from_type_v2\n", b"c_codecs\nencode\n",
    b"ctorch\nfloat32\n", b"c__builtin__\nset\n", b"ctorch\ndevice\n", text("storage"), text("0"), tensor([2], [1]),
]  # fmt: skip


@settings(max_examples=1000)
@given(st.lists(st.sampled_from(OPCODES + GLOBALS) | st.binary(max_size=3), max_size=40))
def test_any_opcodes(parts: list[bytes]) -> None:
    try:
        read_all(archive(b"".join(parts) + b".", {"0": bytes(16)}))
    except RecordError:
        pass


KEYS = b"\x80\x02]" + text("0") + b"a."
LEGACY_BAD = {
    "no magic": (b"\x80\x02K\x01." + legacy(b"}."), "does not begin like a file of torch.save"),
    "version": (legacy(b"}.").replace(b"M\xe9\x03", b"M\xe8\x03"), "version 1000 of the legacy format"),
    "no keys": (legacy(STORED), "it has no storage '0'"),
    "keys of no list": (legacy(STORED, b"\x80\x02}."), "its list of storages does not match its tensors"),
    "another key": (legacy(STORED, KEYS.replace(b"0", b"1")), "its list of storages does not match its tensors"),
    "two of one key": (legacy(STORED, b"\x80\x02](" + text("0") * 2 + b"e.") + bytes(8), "its list of storages"),
    "no data": (legacy(STORED, KEYS), "it ends within its storage '0' of 0 bytes; truncated"),
    "too much": (legacy(STORED, KEYS) + (3).to_bytes(8, "little") + bytes(8), "its storage '0' of 12 bytes"),
    "overflow": (legacy(STORED, KEYS) + b"\xff" * 8 + bytes(8), "ends within its storage"),
    "too little": (legacy(STORED, KEYS) + (1).to_bytes(8, "little") + bytes(4), "is said to have 8 bytes and has 4"),
    "trailing": (legacy(STORED, KEYS) + (2).to_bytes(8, "little") + bytes(9), "1 bytes follow its last storage"),
    "two types": (
        legacy(STORED[:-1] + text("y") + tensor([1], [1], numel=1, kind="LongStorage") + b"s."), "is of two types"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEGACY_BAD)
def test_hostile_legacy(name: str) -> None:
    data, message = LEGACY_BAD[name]
    refused(data, message)


def test_legacy_views_of_a_storage() -> None:
    view = b"(" + text("v") + number(1) + number(2) + b"ttQ"  # of the time of Torch 7: a piece of another storage
    pickle = STORED.replace(number(2) + b"tQ", number(4) + view)
    content = np.arange(4, dtype=np.float32)
    data = legacy(pickle, KEYS) + (4).to_bytes(8, "little") + content.tobytes()
    assert PyTorchReader().from_bytes(data)["x"].tensor.read().tolist() == [1, 2]


def test_no_data_and_two_of_them() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("a/data.pkl", b"}.")
        file.writestr("b/data.pkl", b"}.")
    refused(buffer.getvalue(), "it has 2 members <name>/data.pkl")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("word/document.xml", b"")
    refused(buffer.getvalue(), "it has 0 members <name>/data.pkl")
