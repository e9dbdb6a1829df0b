"""Every layer and model that is exported comes back as a module with the same results and the same paths.

Serves: src/phlox/interop/onnx/
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import phlox as px
from phlox.interop.onnx import load
from tests.export.cases import ALL, Case

NOT_COMPUTED = {"Bert": "pooler", "BertMaskedLm": "bert.pooler"}
"""Parameters that the exported call does not use."""


def given(value: Any, sizes: dict[str, int], rng: np.random.Generator) -> Any:
    """Tensors of specs, in their containers."""
    if isinstance(value, px.TensorSpec):
        shape = tuple(sizes.setdefault(d, 5 + 2 * len(sizes)) if isinstance(d, str) else d for d in value.shape)
        if value.kind is px.Float:
            return px.tensor(rng.uniform(0.1, 0.9, shape))
        return px.tensor(rng.integers(0, 2, shape)) if value.kind is px.Int else px.tensor(rng.random(shape) < 0.7)
    if isinstance(value, dict):
        return {name: given(one, sizes, rng) for name, one in value.items()}
    return [given(one, sizes, rng) for one in value]


def tensors(value: Any) -> Iterator[Any]:
    """The tensors in a result, in order."""
    if isinstance(value, px.Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors(one)


def is_flat(inputs: Any) -> bool:
    values = inputs.values() if isinstance(inputs, dict) else inputs
    return all(isinstance(one, px.TensorSpec) for one in values)


FLAT = [case for case in ALL if is_flat(case.inputs)]


@pytest.mark.full
@pytest.mark.parametrize("device", ["numpy", "torch"])
@pytest.mark.parametrize("case", FLAT, ids=[case.name for case in FLAT])
def test_it_comes_back(case: Case, device: str, tmp_path: Path) -> None:
    model = case.model()
    model = model.valid() if hasattr(model, "valid") else model
    path = tmp_path / "model.onnx"
    px.export.onnx(model, case.inputs, path, sizes=case.sizes, **case.options)
    again = load(path, device=device)
    sizes = {name: one if isinstance(one, int) else one[0] for name, one in (case.sizes or {}).items()}
    inputs = given(case.inputs, sizes, np.random.default_rng(0))
    arguments, named = ([], inputs) if isinstance(inputs, dict) else (inputs, {})
    wanted = list(tensors(model(*arguments, **named)))
    moved = [one.to_device(device) for one in arguments], {name: one.to_device(device) for name, one in named.items()}
    found = list(tensors(again(*moved[0], **moved[1])))
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        scale = max(1.0, float(np.abs(other.numpy()).max(initial=0.0)))
        np.testing.assert_allclose(one.numpy() / scale, other.numpy() / scale, atol=2e-5)
    named_in_file = {one.name for one in onnx.load(path).graph.initializer}
    paths = [path for path, _ in model.named_params()]
    lacking = set(paths) - {path for path, _ in again.named_params()}
    assert all(path.startswith(NOT_COMPUTED.get(case.name, "-")) for path in lacking) or not lacking & named_in_file
    assert {path for path, _ in again.named_params()} <= set(paths)
    if not lacking and paths:
        assert again.load(model.into_record(), strict=False).ok
