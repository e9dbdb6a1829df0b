# ruff: noqa: E501
# pyright: standard
"""The edge-case contract: the result of every backend where engines differ. `docs/edge-cases.md` is generated from it."""

from __future__ import annotations

from math import nan
from typing import Any

from phlox.errors import BackendError, DeviceError, IndexRangeError, KindError, RangeError, ShapeError
from phlox.testing.conformance import edges_of_floats
from phlox.testing.conformance.edge import Edge, check_edge, raises

_KIND, _RANGE, _SHAPE, _INDEX = raises(KindError), raises(RangeError), raises(ShapeError), raises(IndexRangeError)


def _section(name: str, *entries: tuple[Any, ...], **options: Any) -> list[Edge]:
    return [Edge(name, statement, tuple(lines), **options) for statement, *lines in entries]


KINDS = _section(
    "Kinds",
    ("Operations never mix tensors of two kinds; the error says how to convert one of them.",
     ("t([1]) + t([1.5])", raises(KindError, ".float()")), ("t([1.0]) == t([1])", raises(KindError, ".float()")),
     ("t([True]) & t([1])", raises(KindError, "Bool", "Int")), ("px.where(t([True]), t([1.0]), t([1]))", raises(KindError, ".float()"))),
    ("Division needs Float tensors; Int tensors have `//` and `%`. Means need Float tensors too.",
     ("t([1]) / t([2])", raises(KindError, ".float()")), ("t([7]) // t([2])", [3]), ("t([1, 2]).mean()", raises(KindError, ".float()"))),
    ("Bool tensors have no sum; convert them to Int to count.",
     ("t([True, True]).sum()", raises(KindError, ".int()")), ("t([True, True]).int().sum()", 2)),
    ("Conversions are explicit. To Int they round toward zero. To Bool, everything that is not zero is true, including NaN.",
     ("t([1.9, -1.9]).int()", [1, -1]), ("t([0.0, -0.0, nan, 0.5]).bool()", [False, False, True, True]), ("t([2, 0]).bool()", [True, False]),
     ("t([True, False]).float()", [1.0, 0.0])),
    ("Indices are Int, conditions are Bool.",
     ("t([1.0]).take(t([0.0]))", _KIND), ("px.where(t([1]), t([1.0]), 0.0)", _KIND)),
    ("The values decide the kind of a tensor; the backend decides the dtype.",
     ("t([1, 2.5])", [1.0, 2.5]), ("t([True, 2])", [1, 2]), ("t([])", []), ("t(['a'])", _KIND), ("t([1j])", _KIND), ("t([[1, 2], [3]])", _SHAPE)),
    ("Only Float tensors have gradients.", ("px.tensor([1], device=px.backend.Autodiff(backend)).require_grad()", _KIND)),
)  # fmt: skip

NUMBERS = _section(
    "Python numbers",
    ("A Python number on either side of a tensor takes the tensor's kind and dtype.",
     ("t([1.5]) + 1", [2.5]), ("1 - t([1.5])", [-0.5]), ("7 // t([2])", [3]), ("2.0 ** t([3.0])", [8.0]), ("t([3]) > 2", [True]), ("2 > t([3])", [False])),
    ("These do not mix: an Int tensor and a float, a Bool tensor and a number, a Python bool and a tensor that is not Bool.",
     ("t([1]) + 0.5", raises(KindError, ".float()")), ("t([True]) & 1", _KIND), ("t([1]) + True", raises(KindError, "write 1 or 0")),
     ("t([1.0]) * True", _KIND)),
    ("An integer must be in the range of the tensor's dtype.", ("t([1]) + 2**80", _RANGE), ("t([1.0]) + 10**400", _RANGE)),
    ("A NumPy scalar counts as a Python number, and a NumPy array, on either side, as a tensor on the device of the other operand. Its kind must be that of the other operand.",
     ("t([1.0]) + np.float64(2.0)", [3.0]), ("t([1]) * np.int16(2)", [2]), ("t([1.0]) + np.ones(1)", [2.0]), ("np.ones(1) + t([1.0])", [2.0]),
     ("t([1.0]) + np.arange(1)", raises(KindError, "phlox.tensor"))),
    ("For all other objects Python's own rules apply.", ("t([1.0]) + None", raises(TypeError)), ("t([1.0]) == None", False)),
)  # fmt: skip

SHAPES = _section(
    "Broadcasting and rank 0",
    ("Shapes broadcast as in NumPy: from the last axis, and a size of one expands to any size, including zero.",
     ("(t([[1.0], [2.0]]) + t([10.0, 20.0]))", [[11.0, 21.0], [12.0, 22.0]]), ("(empty(2, 0) + t([[1.0], [2.0]])).shape", (2, 0)),
     ("t([1.0, 2.0, 3.0]) + t([1.0, 2.0])", raises(ShapeError, "(3,)", "(2,)")), ("empty(2, 0) + t([1.0, 2.0])", raises(ShapeError, "(2, 0)", "(2,)"))),
    ("A tensor of rank 0 is an ordinary tensor with no axes, no length, and one value.",
     ("t(2.0).shape", ()), ("t(2.0).max()", 2.0), ("t(2.0).sum(0)", _SHAPE), ("len(t(2.0))", _SHAPE), ("t(2.0).reshape(-1)", [2.0]),
     ("t(2.0)[None]", [2.0]), ("t(2.0)[0]", _INDEX), ("t(2.0).item()", 2.0), ("bool(t(2.0) > 1.0)", True)),
    ("Only a tensor of one element can be converted to a number or a bool.",
     ("t([[3.0]]).item()", 3.0), ("t([1.0, 2.0]).item()", _SHAPE), ("bool(t([True, True]))", raises(ShapeError, ".all()")), ("bool(t([]) > 0.0)", _SHAPE)),
    ("An axis may count from either end, must exist, and may be given only once.",
     ("t([[1.0, 2.0]]).sum(-1)", [3.0]), ("t([[1.0, 2.0]]).sum((0, -2))", _SHAPE), ("t([[1.0, 2.0]]).sum(2)", _SHAPE), ("t([[1.0, 2.0]]).sum(())", [[1.0, 2.0]])),
)  # fmt: skip

INTEGERS = _section(
    "Integers",
    ("Arithmetic wraps around, in two's complement.",
     ("t([greatest]) + 1 == least", [True]), ("t([greatest]) * 2", [-2]), ("-t([least]) == least", [True]), ("t([least]).abs() == least", [True]),
     ("t([least]) // -1 == least", [True]), ("t([greatest, 1]).sum() == least", True), ("t([2]) ** 70", [0])),
    ("Division rounds down, and the remainder has the sign of the divisor.",
     ("t([7, -7]) // 2", [3, -4]), ("t([7, -7]) // -2", [-4, 3]), ("t([7, -7]) % 3", [1, 2]), ("t([7, -7]) % -3", [-2, -1])),
    ("Division by zero is an error, even if only one element is zero.",
     ("t([1]) // 0", raises(ZeroDivisionError, "floordiv")), ("1 // t([2, 0])", raises(ZeroDivisionError)), ("t([5]) % t([0])", raises(ZeroDivisionError, "mod"))),
    ("A negative power is an error, because the result is not an integer; zero to the power of zero is one.",
     ("t([2]) ** -1", raises(RangeError, ".float()")), ("2 ** t([-1])", _RANGE), ("t([0]) ** 0", [1])),
    ("A float that is converted to an integer must be in range, and so must the values of a new tensor; NaN is never in range.",
     ("t([nan]).int()", raises(RangeError, "nan")), ("t([-inf]).int()", _RANGE), ("(t([2.0]) ** 100).int()", _RANGE), ("t([2**63])", _RANGE), ("t([-0.9]).int()", [0])),
    ("Shifts are arithmetic. A shift by more than the number of bits shifts all bits out, and a negative count counts as a large one.",
     ("t([1, 3]) << 1", [2, 6]), ("t([-8]) >> 1", [-4]), ("t([1]) << 100", [0]), ("t([-8, 8]) >> 100", [-1, 0]), ("t([1]) << -1", [0]), ("t([-8]) >> -1", [-1])),
    ("Bitwise operators use two's complement.", ("~t([5])", [-6]), ("t([6]) & 3", [2]), ("t([6]) ^ -1", [-7]), ("t([4]) | t([1])", [5])),
    ("Minimum, maximum and clip have no special cases.", ("t([least, greatest]).max() == greatest", True), ("t([5, -5]).clip(-1, 2)", [2, -1])),
)  # fmt: skip

INDICES = _section(
    "Indices",
    ("An index out of range is an error; negative ones count from the end.",
     ("t([1.0, 2.0])[-1]", 2.0), ("t([1.0, 2.0])[2]", raises(IndexRangeError, "2")), ("t([1.0, 2.0])[-3]", _INDEX), ("t([1.0, 2.0]).take(t([-1]))", [2.0]),
     ("t([1.0, 2.0]).take(t([2]))", raises(IndexRangeError, "index 2", "size 2")), ("t([[1.0]]).take_along_axis(t([[1]]), 0)", _INDEX)),
    ("The same holds for indices in brackets, for reading and for writing; a mask must have the shape of the axes that it replaces.",
     ("t([1.0, 2.0])[t([0, -1, 0])]", [1.0, 2.0, 1.0]), ("t([1.0, 2.0])[t([2])]", _INDEX), ("t([1.0, 2.0]).at[t([0, 5])].add(1.0)", _INDEX),
     ("t([1.0, 2.0])[t([True, False])]", [1.0]), ("t([1.0, 2.0])[t([True])]", _SHAPE), ("t([1.0, 2.0]).gather(0, t([2]))", _INDEX)),
    ("If an element is written twice, the last value remains; if it is added to twice, both are added.",
     ("t([1.0, 2.0]).at[t([0, 0])].set(t([3.0, 4.0]))", [4.0, 2.0]), ("t([1.0, 2.0]).at[t([0, 0])].add(1.0)", [3.0, 2.0])),
    ("Slices end where the axis ends.", ("t([1.0, 2.0])[1:9]", [2.0]), ("t([1.0, 2.0])[9:]", []), ("t([1.0, 2.0])[::-1]", [2.0, 1.0])),
    ("Class indices do not count from the end.",
     ("px.one_hot(t([3]), 3)", _INDEX), ("px.one_hot(t([-1]), 3)", _INDEX), ("f.cross_entropy(t([[1.0, 2.0]]), t([2]))", _INDEX)),
    ("An empty index selects nothing, even from an empty tensor.",
     ("t([1.0, 2.0]).take(t([0])[:0])", []), ("empty(0).take(t([0])[:0])", []), ("empty(0).take(t([0]))", _INDEX)),
    ("Repeated indices add up in the gradient.", ("grad(lambda x: x.take(px.tensor([0, 0], device=x.device)), [1.0, 2.0])", [2.0, 0.0])),
)  # fmt: skip

COMPILED = _section(
    "Compiled functions",
    ("A program cannot raise. A read out of range gives NaN or the smallest integer, and a write out of range does nothing. It never gives the value of another element.",
     ("run(lambda x, i: x.take(i), t([1.0, 2.0]), t([1, 2, -3]))", [2.0, nan, nan]), ("run(lambda x, i: x.take(i), t([1, 2]), t([5])) == least", [True]),
     ("run(lambda x, i: x[i], t([1.0, 2.0]), t([5]))", [nan]), ("run(lambda x, i: x.at[i].add(1.0), t([1.0, 2.0]), t([5]))", [1.0, 2.0]),
     ("run(lambda i: px.one_hot(i, 2), t([5]))", [[0.0, 0.0]])),
    ("For the same reason, an invalid matrix gives NaN instead of an error.",
     ("run(lambda x: px.linalg.cholesky(x), t([[nan, 0.0], [0.0, 1.0]]))", [[nan, nan], [nan, nan]]), ("run(lambda x: px.linalg.eigvalsh(x), t([[inf, 0.0], [0.0, 1.0]]))", [nan, nan]),
     ("run(lambda x: px.linalg.inv(x), t([[1.0, 1.0], [1.0, 1.0]]))", [[nan, nan], [nan, nan]])),
    compiled=True,
) + _section(
    "Compiled functions",
    ("With `px.debug.checks()` compiled functions raise the errors of eager ones, with the place in the code.",
     ("checked(lambda x, i: x.take(i), t([1.0, 2.0]), t([5]))", raises(IndexRangeError, "index 5")), ("checked(lambda x: 1 // x, t([0]))", raises(ZeroDivisionError)),
     ("checked(lambda x: x.int(), t([nan]))", _RANGE)),
    ("Errors that do not depend on values are raised during tracing.", ("run(lambda x: x.sum(5), t([1.0]))", _SHAPE), ("run(lambda x: x.max(), empty(0))", _SHAPE)),
)  # fmt: skip

EMPTY = _section(
    "Empty tensors",
    ("An empty sum is 0, an empty product 1, an empty `all` true, an empty `any` false, and an empty mean NaN.",
     ("empty(0).sum()", 0.0), ("empty(0).prod()", 1.0), ("(empty(0) > 0.0).all()", True), ("(empty(0) > 0.0).any()", False), ("empty(0).mean()", nan),
     ("empty(0).var()", nan), ("empty(0).std()", nan), ("empty(0, 2).sum(0)", [0.0, 0.0])),
    ("The maximum over an empty axis is an error. The maximum over another axis gives an empty result.",
     ("empty(0).max()", raises(ShapeError, "size 0")), ("empty(0).argmin(0)", _SHAPE), ("empty(0, 3).max(1)", []), ("empty(0, 3).argmax(1)", []),
     ("empty(0).logsumexp(0)", _SHAPE)),
    ("A matrix product over an empty axis is zero.", ("empty(2, 0) @ empty(0, 1)", [[0.0], [0.0]]), ("(empty(0, 2) @ empty(2, 3)).shape", (0, 3))),
    ("The softmax of an empty tensor is empty.", ("empty(2, 0).softmax().shape", (2, 0))),
    ("A size of -1 can be inferred only if no other size is zero.", ("empty(0, 3).reshape(-1).shape", (0,)), ("empty(0, 3).reshape(0, -1)", _SHAPE)),
    ("Other operations give the shape that their rules imply.",
     ("empty(0, 3).flip().shape", (0, 3)), ("px.concat([empty(0), t([1.0])])", [1.0]), ("empty(0).pad(((1, 1),), 2.0)", [2.0, 2.0]), ("empty(2, 0).cumsum(1).shape", (2, 0))),
    ("For empty tensors, medians and quantiles are errors, as a maximum is. `sort` and `unique` give an empty tensor, and the norm is 0.",
     ("empty(0).median()", _SHAPE), ("empty(0).sort()", []), ("empty(0).unique()", []), ("empty(0).norm()", 0.0)),
    ("The determinant of a matrix without rows is one.", ("px.linalg.det(empty(0, 0))", 1.0)),
    ("Gradients with respect to empty tensors are empty, and gradients through them are zero.", ("grad(lambda x: x[:0].sum() + x.sum() * 0.0, [1.0])", [0.0])),
)  # fmt: skip

VALUES = _section(
    "Tensors as values",
    ("Tensors are immutable. They do not change with the array from which they were created.",
     ("operator.setitem(t([1.0]), 0, 2.0)", raises(TypeError)), ("t([1.0]).numpy().flags.writeable", False),
     ("(lambda a: (t(a), a.fill(9.0))[0])(np.ones(2, np.float32))", [1.0, 1.0])),
    ("Operations never mix tensors of two backends; the error names both.", ("t([1.0]) + px.tensor([1.0], device=other)", raises(BackendError, "float=", ".to_device"))),
    ("A device that does not exist is an error.", ("backend.device('nonsense')", raises(DeviceError, "nonsense"))),
    ("Equal backends are one object, and so are their copies.", ("__import__('copy').deepcopy(backend) is backend", True),
     ("backend.device() == backend.device()", True)),
    ("Reading a tensor as an array gives the backend's dtypes.", ("t([1.0]).numpy().dtype == backend.host_float_dtype", True), ("t([1]).numpy().dtype == backend.host_int_dtype", True),
     ("t([True]).numpy().dtype == np.bool_", True)),
)  # fmt: skip

EDGES: list[Edge] = [*KINDS, *NUMBERS, *SHAPES, *INTEGERS, *edges_of_floats.EDGES, *INDICES, *COMPILED, *EMPTY, *VALUES]
"""Every line of the contract."""

__all__ = ["EDGES", "Edge", "check_edge"]
