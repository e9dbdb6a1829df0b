"""A packed model comes back from a file as it was, without its weights in floats, and nothing else is taken for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.errors import RecordError
from phlox.record import Record, load, renamed


def net(backend: Backend) -> nn.Sequential:
    return nn.Sequential(
        table=nn.Embedding(32, 64, device=backend),
        flat=nn.Flatten(),
        hidden=nn.Linear(128, 64, device=backend),
        head=nn.Linear(64, 8, device=backend),
    )


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch(), NumPy(float="bf16")], ids=repr)
def test_a_packed_model_is_loaded_as_it_is(backend: Backend, tmp_path: Path) -> None:
    tokens = px.tensor([[1, 5], [31, 0]], device=backend)
    model = net(backend).init(0)
    for scheme, options in (("nvfp4", {}), ("mxfp4", {}), ("int4", {"group": 16, "symmetric": False}), ("int8", {})):
        names: Any = ["layers.table.weight", "layers.hidden.weight"]
        small = px.quantize(model, names, scheme, **options)  # pyright: ignore[reportArgumentType]
        path = small.save(tmp_path / f"{scheme}.safetensors")
        new = net(backend)
        with px.module.no_initializers():
            again = px.load_quantized(new, path)
        assert [p for p, _ in again.named_params()] == [p for p, _ in small.named_params()]
        assert new["hidden"].weight.is_deferred
        for (name, own), (_, other) in zip(again.named_params(), small.named_params(), strict=True):
            assert own.id == other.id and own.trained == other.trained, name
            np.testing.assert_array_equal(own.val().numpy(), other.val().numpy(), err_msg=name)
        # Sums over mapped memory, which lies otherwise, may be added in another order.
        np.testing.assert_allclose(again(tokens).numpy(), small(tokens).numpy(), rtol=1e-5, atol=1e-6)


def test_what_does_not_fit_says_so(tmp_path: Path) -> None:
    model = net(NumPy()).init(0)
    small = px.quantize(model, "layers.hidden.weight", "int4")
    record = small.into_record()
    # The same shapes, but other codes: loaded without a word these would be other weights.
    other = px.quantize(model, "layers.hidden.weight", "nf4")
    with pytest.raises(RecordError, match=r"codes\.nf4_g64"):
        other.load_record(record)
    path = "layers.hidden.weight.codes.int4_g64"
    words = record[path].tensor.read()

    def with_name(name: str, array: Any = words) -> Record:
        entries = {p: record[p] for p in record if p != path}
        return Record({**entries, f"layers.hidden.weight.codes.{name}": array})

    cases = {
        "int5": (with_name("int5_g64"), ("int5_g64", "int4")),
        "group": (with_name("int4_g48"), ("int4_g48", "128")),
        "no group": (with_name("int4_gx"), ("int4_gx", "did you mean")),
        "columns": (with_name("int4_g64", words[:, :-1]), ("(64, 15)", "(64, 16)")),
        "rows": (with_name("int4_g64", words[:-1]), ("hidden", "(63, 16)", "(64, 16)")),
        "floats": (with_name("int4_g64", words.astype(np.float32)), ("int4_g64", "float")),
        "another model": (
            renamed(record, lambda p: p.replace("hidden", "body")),
            ("layers.body.weight", "architecture"),
        ),
    }
    for name, (damaged, parts) in cases.items():
        with pytest.raises(RecordError) as caught:
            px.load_quantized(net(NumPy()), damaged)
        assert all(part in str(caught.value) for part in parts), (name, str(caught.value))
    plain = model.save(tmp_path / "plain")
    assert set(load(plain)) == {p for p, _ in px.load_quantized(net(NumPy()), plain).named_params()}
