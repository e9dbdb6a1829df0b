"""The table of docs/onnx-operators.md: what the node tests of the `onnx` package say of `px.interop.onnx`.

    python tools/onnx_operators.py             runs all of them on NumPy, and writes the table
    python tools/onnx_operators.py --check     says what is out of date, and changes nothing

Every node test is a model of one operator (or a few), with inputs and outputs. Floats are computed in f32; where a test
has values that 32 bits do not hold, on a backend of wider types. Results of f16 and bf16 may differ by one rounding:
a backend has one type of floats.
"""

from __future__ import annotations

import sys
import warnings
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import phlox as px
from phlox.backend import Device, NumPy
from phlox.interop.onnx.elements import known_to_numpy

PAGE = Path(__file__).parent.parent / "docs" / "onnx-operators.md"
BEGIN, END = "<!-- tools/onnx_operators.py: begin -->", "<!-- tools/onnx_operators.py: end -->"

RANDOM = "draws from Phlox's random stream, so values differ: shapes and frequencies are tested instead"
NOT_TENSORS = "for classical models, not for neural networks"
REASONS = {
    "Bernoulli": RANDOM,
    "Dropout": f"in training {RANDOM}",
    "ImageDecoder": "decode images before the model, as `phlox.data` does",
    "RegexFullMatch": "a file could contain a pattern that takes forever",
    "Adagrad": "train with `phlox.optim`",
    "Adam": "train with `phlox.optim`",
    "Momentum": "train with `phlox.optim`",
    "ArrayFeatureExtractor": NOT_TENSORS,
    "Binarizer": NOT_TENSORS,
    "LabelEncoder": NOT_TENSORS,
    "TreeEnsemble": NOT_TENSORS,
}
"""Why tests of an operator do not pass."""

_TOLERANCES = {"float16": (2e-3, 1e-3), "bfloat16": (1e-2, 4e-3)}


@dataclass(frozen=True)
class Outcome:
    """Of one node test."""

    operators: frozenset[str]
    """With their domain, where it is not ONNX's own."""
    expanded: bool
    """Is the operator written out as the function that ONNX defines it by?"""
    failure: str | None


@lru_cache(1)
def cases() -> dict[str, Any]:
    """The node tests by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the computations of the expected values
        import onnx.backend.test.loader as loader

        return {case.name: case for case in loader.load_model_tests(kind="node")}


def failure(case: Any, device: Device) -> str | None:
    """What goes wrong with a node test on a device, if anything does."""
    try:
        with px.default_device(device), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of rows that are masked as a whole, and the like
            model = px.interop.onnx.load(case.model)
            px.random.seed(0)  # ten draws of another generator are now and then ours
            for inputs, outputs in case.data_sets:
                found = model(*[_given(one) for one in inputs])
                results = list(found.values()) if len(model.outputs) > 1 else [found]
                for got, wanted in zip(results, outputs, strict=True):
                    check(got, wanted, case.rtol, case.atol)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _array(value: Any) -> Any:
    from onnx import TensorProto, numpy_helper

    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def _given(value: Any) -> Any:
    value = _array(value)
    if isinstance(value, list):
        return [_given(one) for one in value]
    if not isinstance(value, np.ndarray) or value.dtype.kind in "OUS":
        return value
    return px.tensor(known_to_numpy(value))


def check(got: Any, wanted: Any, rtol: float, atol: float) -> None:
    """`AssertionError` unless they are alike."""
    wanted = _array(wanted)
    if isinstance(wanted, list):
        assert len(got) == len(wanted), f"{len(got)} elements instead of {len(wanted)}"
        for one, other in zip(got, wanted, strict=True):
            check(one, other, rtol, atol)
        return
    if wanted is None:
        assert got is None, "a value instead of none"
        return
    wanted = np.asarray(wanted)
    if wanted.dtype.kind in "OUS":
        np.testing.assert_array_equal(np.asarray(got, object), wanted.astype(object))
        return
    rtol, atol = _TOLERANCES.get(wanted.dtype.name, (rtol, max(atol, 1e-6)))
    values = got.numpy()
    assert values.shape == wanted.shape, f"the shape {values.shape} instead of {wanted.shape}"
    exact = known_to_numpy(wanted).astype(np.float64)
    np.testing.assert_allclose(values.astype(np.float64), exact, rtol, atol)


@lru_cache(1)
def outcomes() -> dict[str, Outcome]:
    """Every node test on NumPy."""
    found: dict[str, Outcome] = {}
    devices = NumPy().device(), NumPy(float="f64", int="i64").device()
    for name, case in cases().items():
        operators = frozenset(called(node) for node in case.model.graph.node)
        failures = [failure(case, devices[0])]
        if failures[0] is not None:
            failures.append(failure(case, devices[1]))
        found[name] = Outcome(operators, "_expanded" in name, None if None in failures else failures[0])
    return found


def called(node: Any) -> str:
    """The operator of a node, with its domain where that is not ONNX's own."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def by_operator() -> dict[str, tuple[int, int]]:
    """How many tests of each operator pass, and how many there are; those written out as functions are not counted."""
    counts: dict[str, list[bool]] = defaultdict(list)
    for outcome in outcomes().values():
        if not outcome.expanded:
            for operator in outcome.operators:
                counts[operator].append(outcome.failure is None)
    return {operator: (sum(counts[operator]), len(counts[operator])) for operator in sorted(counts)}


def text() -> str:
    """The table, and what stands above it."""
    import onnx

    counts, found = by_operator(), outcomes()
    whole = [name for name, (passed, total) in counts.items() if passed == total]
    passed = sum(one.failure is None for one in found.values())
    newest = onnx.defs.onnx_opset_version()
    lines = [
        f"Node tests of onnx {onnx.__version__} (opset {newest}) on NumPy: {passed:,} of {len(found):,} pass.",
        f"Of the {len(counts)} operators in them, {len(whole)} pass all their tests.",
        "",
        "| operator | tests passed | tests | reason for failures |",
        "|---|---|---|---|",
    ]
    for name, (good, total) in counts.items():
        reason = "" if good == total else REASONS[name.rpartition(".")[2]]
        lines.append(f"| `{name}` | {good} | {total} | {reason} |")
    return "\n".join(lines)


def page() -> str:
    """The page as it should be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{text()}\n{END}{rest.partition(END)[2]}"


def main() -> int:
    """Write the page, or check it."""
    now = page()
    if "--check" in sys.argv[1:]:
        same = now == PAGE.read_text(encoding="utf-8")
        print("up to date" if same else f"{PAGE} is out of date; run python tools/onnx_operators.py")
        return 0 if same else 1
    PAGE.write_text(now, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
