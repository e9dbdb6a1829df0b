"""Whatever a class of modules looks like: it is a module, and a PyTree.

Serves: phlox/module/fields.py
"""

from __future__ import annotations

import abc
import copy
import dataclasses
import enum
import functools
import pickle
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend import Jax
from phlox.errors import ModuleError

JAX = Jax().device()
T = TypeVar("T")


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass(frozen=True)
class Settings:
    width: int = 3
    name: str = "x"


class Base(px.Module):
    def __init__(self) -> None:
        self.weight = px.Param(px.ones((2,), device=JAX))

    @property
    def doubled(self) -> px.Tensor:
        return self.weight.val() * 2.0

    @functools.cached_property
    def tripled(self) -> px.Tensor:
        return self.weight.val() * 3.0

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return x * self.weight.val()


class Derived(Base):
    def __init__(self) -> None:
        super().__init__()
        self.bias = px.Param(px.ones((2,), device=JAX))

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return super().__call__(x) + self.bias.val()


class Deeper(Derived):
    pass


class Wrapper(px.Module, Generic[T]):
    def __init__(self, inner: T) -> None:
        self.inner = inner


class Abstract(px.Module, abc.ABC):
    @abc.abstractmethod
    def __call__(self, x: px.Tensor) -> px.Tensor: ...


class Concrete(Abstract):
    def __init__(self) -> None:
        self.weight = px.Param(px.ones((2,), device=JAX))

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return x + self.weight.val()


@runtime_checkable
class Layer(Protocol):
    def __call__(self, x: px.Tensor) -> px.Tensor: ...


class Promised(px.Module, Layer):
    def __init__(self) -> None:
        self.weight = px.Param(px.ones((2,), device=JAX))

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return x - self.weight.val()


@dataclasses.dataclass
class Declared(px.Module):
    layer: Base = dataclasses.field(default_factory=Base)
    colour: Colour = Colour.RED
    settings: Settings = Settings()

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.layer(x)


class Many(px.Module):
    """Static fields of all sorts."""

    def __init__(self) -> None:
        self.p = px.Param(px.ones((2,), device=JAX))
        self.nothing = None
        self.colour = Colour.BLUE
        self.settings = Settings(4)
        self.function = abs
        self.part = functools.partial(max, 0.0)
        self.kind = int
        self.numbers: tuple[Any, ...] = (1, 2.0, True, 1j, b"x", range(3), slice(1, 2, None), np.float32(1.5))
        self.mixed = [None, {"a": (Base(), "text", [])}, frozenset([1])]
        self.constant = JAX

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.mixed[1]["a"][0](x) * self.p.val()


CLASSES: list[Any] = [
    Base, Derived, Deeper, Concrete, Promised, Declared, Many,
    lambda: Wrapper[Base](Base()), lambda: Wrapper([Deeper()]),
]  # fmt: skip


@pytest.mark.parametrize("make", CLASSES)
def test_every_class_is_a_module_and_a_pytree(make: Any) -> None:
    module, other = make(), make()
    leaves, structure = jax.tree.flatten(module)
    assert len(leaves) == len(module.params()) >= 1 and structure == jax.tree.structure(other)
    assert hash(structure) == hash(jax.tree.structure(other))
    copies = [jax.tree.map(lambda x: x * 2, module), jax.jit(lambda m: jax.tree.map(lambda x: x * 2, m))(module)]
    copies += [copy.copy(module), copy.deepcopy(module), pickle.loads(pickle.dumps(module))]  # noqa: S301
    for number, twin in enumerate(copies):
        assert type(twin) is type(module) and jax.tree.structure(twin) == structure
        assert [p.id for p in twin.params()] == [p.id for p in module.params()]
        factor = 2 if number < 2 else 1
        for mine, its in zip(module.params(), twin.params(), strict=True):
            np.testing.assert_array_equal(factor * mine.val().numpy(), its.val().numpy())
    if callable(module):
        x = px.ones((2,), device=JAX)
        compiled: Any = jax.jit(lambda m, x: m(x))(module, x)
        eager: Any = module(x)
        assert compiled.tolist() == eager.tolist()


def test_properties_are_of_the_module_that_is_asked() -> None:
    module = Derived()
    assert module.tripled.tolist() == [3.0, 3.0]
    twin = jax.tree.map(lambda x: x * 2, module)
    assert twin.doubled.tolist() == [4.0, 4.0] and twin.tripled.tolist() == [6.0, 6.0]
    assert "__orig_class__" not in vars(Wrapper[int](1))
    with pytest.raises(TypeError, match="abstract"):
        Abstract()  # type: ignore[abstract]
    assert isinstance(Promised(), Layer)


def test_a_changed_static_field_is_another_tree_definition() -> None:
    before = jax.tree.structure(Many())
    for name, value in [
        ("nothing", 0), ("colour", Colour.RED), ("settings", Settings(5)), ("function", jnp.sin), ("kind", float),
        ("part", functools.partial(max, 1.0)), ("numbers", (1,)), ("mixed", []), ("extra", None),
    ]:  # fmt: skip
        changed = Many()
        setattr(changed, name, value)
        assert jax.tree.structure(changed) != before, name
    same = Many()
    same.part = functools.partial(max, 0.0)
    same.numbers = tuple(same.numbers)
    assert jax.tree.structure(same) == before


def test_functions_made_for_each_object_are_not_alike() -> None:
    def make() -> px.Module:
        box = Base()
        box.act = lambda x: x
        return box

    assert jax.tree.structure(make()) != jax.tree.structure(make())
    assert jax.tree.structure(nn.Sequential([px.lift(jnp.sin)])) == jax.tree.structure(
        nn.Sequential([px.lift(jnp.sin)])
    )


def test_slots_and_dataclasses_with_slots_are_refused() -> None:
    with pytest.raises(ModuleError, match="__slots__"):

        @dataclasses.dataclass(slots=True)
        class Slotted(px.Module):
            layer: Any = None


def test_modules_of_numpy_are_trees_for_a_user_who_imports_jax() -> None:
    import subprocess
    import sys

    program = """
import phlox as px, jax
model = px.nn.Linear(2, 3).init(0)
assert len(jax.tree.leaves({"m": model})) == 2, jax.tree.leaves(model)
assert type(jax.tree.map(lambda x: x * 2, model)) is px.nn.Linear
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_modules_work_without_jax(backend: str) -> None:
    import subprocess
    import sys

    program = f"""
import sys
sys.modules["jax"] = None
import copy, pickle
import numpy as np
import phlox as px
from phlox import nn, optim
def make():
    return nn.Sequential([nn.Linear(4, 8), nn.Gelu(), nn.Dropout(0.1), nn.Linear(8, 1)])
model = make().init(0, device={backend!r}).train()
x = px.Tensor.from_inner(px.ones((16, 4), device={backend!r}))
optimizer = optim.AdamWConfig().init()
for _ in range(3):
    loss = model(x).square().mean()
    model = optimizer.step(1e-2, model, px.GradientsParams.from_grads(loss.backward(), model))
part = model.freeze("layers.0", "**.bias")
assert sum(p.trained for p in part.params()) == 1
for view in (model, model.train(tape=False), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
    view = view.valid()
    assert view(x.inner()).shape == (16, 1)
stacked = px.stack_modules([nn.Linear(2, 2, device={backend!r}) for _ in range(2)])
assert len(px.unstack_modules(stacked)) == 2
repr(make().load_record(model.into_record()))
assert sys.modules["jax"] is None
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
