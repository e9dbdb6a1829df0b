"""Modules in programs that are exported, saved and called in another process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import export

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Jax
from phlox.errors import ModuleError
from phlox.module.fields import own_dict
from phlox.module.serialization import Distant, _shell, serializer_of, text_of
from phlox.module.tree.aux_data import NodeAux
from phlox.module.tree.flattening import flatten
from phlox.module.tree.layout import MixedAux

JAX = Jax().device()


def make(activation: Any = jax.nn.relu, rate: float = 0.5) -> nn.Sequential:
    layers = [nn.Linear(4, 4, device=JAX), px.lift(activation), nn.Dropout(rate), nn.Linear(4, 2, device=JAX)]
    return nn.Sequential(layers).init(0)


def text(module: px.Module) -> bytes:
    """Those of every node of the tree."""
    return b"\n".join(map(text_of, structures(module)))


def structures(node: Any) -> list[Any]:
    if jax.tree_util.all_leaves([node]):
        return []
    children, structure = jax.tree_util.default_registry.flatten_one_level(node)
    own = [structure] if isinstance(structure, (NodeAux, MixedAux)) else []
    return own + [inner for child in children for inner in structures(child)]


def test_an_exported_program_takes_and_gives_modules() -> None:
    model, x = make(), px.ones((3, 4), device=JAX)
    exported = export.export(jax.jit(lambda m, x: (m(x), m)))(model, x)
    out, back = exported.call(model, x)
    np.testing.assert_allclose(out.numpy(), model(x).numpy(), rtol=1e-6)
    assert type(back) is nn.Sequential
    with pytest.raises(ValueError, match=r"lift\(tanh\)"):
        exported.call(make(jax.nn.tanh), x)


def test_the_text_of_a_structure_says_all_that_makes_it_equal() -> None:
    assert text(make()) == text(make())
    others = [
        make(jax.nn.tanh), make(rate=0.25), make().freeze("layers.0.bias"), make().train(), make().train(tape=False),
        make().to_device(Jax(float="bf16")), nn.Sequential([*make().layers, nn.Dropout(0.5)]),
    ]  # fmt: skip
    assert len({text(module) for module in (make(), *others)}) == 8
    for value in (1, True, 1.0, "1", (1,), [1], {1}, frozenset([1]), None, len, int, make, nn.LinearConfig(2, 3), 1j):
        module = make()
        module.extra = value
        assert len({text(module), *map(text, others)}) == 8, value
        assert b" at 0x" not in text(module)  # nothing of this process


def test_a_structure_from_a_file_is_compared_by_its_text() -> None:
    model = make().layers[0]
    aux = flatten(model)[1]
    wire = serializer_of(nn.Linear)
    distant = wire.from_bytes(wire.to_bytes(aux))
    assert distant == aux and aux == distant and hash(distant) == hash(wire.from_bytes(text(model)))
    assert distant != flatten(model.freeze())[1]
    assert wire.to_bytes(distant) == text(model) and "weight" in repr(distant)
    shell = _shell(distant, [0.0] * 2)
    assert type(shell) is nn.Linear and own_dict(shell) == {}
    assert jax.tree.structure(shell) == jax.tree.structure(model)
    built = jax.tree.unflatten(jax.tree.structure(shell), jax.tree.leaves(model))
    assert jax.tree.structure(built) == jax.tree.structure(model)
    np.testing.assert_array_equal(built.weight.val().numpy(), model.weight.val().numpy())
    assert built.weight.id != model.weight.id


def test_a_structure_that_is_not_there() -> None:
    strange = Distant(nn.Dropout, text(nn.Dropout(0.125)))
    import gc

    gc.collect()
    with pytest.raises(ModuleError, match=r"returns a Dropout\[\], .*create one with the same"):
        strange.local_structure()


def test_tensors_say_their_backend() -> None:
    from phlox.tensor.tensor import ops_from_bytes, ops_to_bytes

    for backend in (Jax(), Jax(float="bf16", int="i32"), Autodiff(Autodiff(Jax(), recompute=True))):
        for tensor in (
            px.ones((2,), device=backend),
            px.arange(2, device=backend),
            px.ones((2,), device=backend) > 0.0,
        ):
            assert ops_from_bytes(ops_to_bytes(tensor._ops)) is tensor._ops


PROGRAM = """
import sys
import jax, phlox as px
from jax import export
from phlox import nn
from phlox.backend import Jax

class Net(px.Module):
    def __init__(self):
        self.layers = [nn.Linear(4, 4, device=Jax()), px.lift(jax.nn.relu)]
        self.tied = self.layers[0].weight
        self.mean = px.Param(px.ones((), device=Jax()), trained=False)
    def __call__(self, x):
        return self.layers[1](self.layers[0](x)) * self.mean.val()

x = px.ones((3, 4), device=Jax())
if sys.argv[2] == "save":
    model = Net().init(0)
    blob = export.export(jax.jit(lambda m, x: (m(x), jax.tree.map(lambda a: a * 2, m))))(model, x).serialize()
    open(sys.argv[1], "wb").write(blob)
else:
    model = Net().init(0)
    program = export.deserialize(open(sys.argv[1], "rb").read())
    out, doubled = program.call(model, x)
    assert abs(out.numpy() - model(x).numpy()).max() < 1e-6
    assert type(doubled) is Net and doubled.tied is doubled.layers[0].weight and doubled.mean.val().item() == 2.0
    try:
        program.call(model.freeze(), x)
    except ValueError as error:
        assert "same pytree structure" in str(error), error
    else:
        raise AssertionError
"""


def test_in_another_process(tmp_path: Path) -> None:
    for what in ("save", "load"):
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "program"), what]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
