"""What importing Phlox brings in, and how its values behave as Python objects: pickle, copy, repr, PyTree.

Serves: phlox/{__init__,lazy,errors}.py
"""

from __future__ import annotations

import ast
import copy
import json
import pickle
import subprocess
import sys
import typing
from collections.abc import Iterator
from importlib import import_module
from inspect import unwrap
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import phlox as px
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import KindError

BACKENDS = [
    NumPy(),
    NumPy(float="f64"),
    Jax(),
    Jax(float="bf16"),
    Torch(),
    Torch(float="bf16"),
    Torch(float="f64", int="i64"),
]
ALL = [*BACKENDS, Autodiff(NumPy()), Autodiff(Autodiff(Jax())), Autodiff(Torch())]


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_phlox_imports_no_engine() -> None:
    heavy = (
        "jax",
        "jaxlib",
        "torch",
        "scipy",
        "rich",
        "matplotlib",
        "PIL",
        "pandas",
        "concurrent.futures",
        "importlib.metadata",
        "ml_dtypes",
        "phlox.host.float_casts",
    )
    found = run(f"import sys, phlox; print([name for name in {heavy!r} if name in sys.modules])")
    assert found.strip() == "[]"


MOST_MODULES = 120
"""How many modules of its own `import phlox` may import: what `px.tensor` and its operations need."""


def test_importing_phlox_imports_few_of_its_modules() -> None:
    found = run("import sys, phlox; print(*[name for name in sys.modules if name.split('.')[0] == 'phlox'])").split()
    assert "phlox.tensor.tensor" in found and len(found) <= MOST_MODULES
    lazy = ("module", "record", "random", "autodiff", "nn", "tensor.functional", "tensor.linalg", "tensor.signal")
    assert [name for name in found if name.startswith(tuple(f"phlox.{package}" for package in lazy))] == []


def test_working_with_numpy_imports_no_engine() -> None:
    program = """
import sys
import phlox as px
from phlox.backend import Autodiff, NumPy
px.random.seed(0)
model = px.nn.Linear(3, 2, device=Autodiff(NumPy()).device())
loss = model(px.random.normal((4, 3), device=Autodiff(NumPy()))).square().mean()
grads = loss.backward()
print(repr(loss) != "", "jax" in sys.modules, "torch" in sys.modules)
"""
    assert run(program).split() == ["True", "False", "False"]


def test_a_prediction_imports_only_what_it_needs() -> None:
    program = """
import sys
import phlox as px
from phlox import nn
from phlox.backend import NumPy
class Mlp(px.Module):
    def __init__(self, device):
        self.layer = nn.Linear(3, 2, device=device)
device = NumPy().device()
recorder = px.record.SafetensorsRecorder()
data = recorder.to_bytes(Mlp(device).into_record())
model = Mlp(device).load_record(recorder.from_bytes(data))
model.layer(px.ones((1, 3), device=device)).relu().numpy()
print(sorted(name for name in sys.modules if name.startswith("phlox.")))
"""
    found = ast.literal_eval(run(program))
    needless = (
        "phlox.transform",
        "phlox.optim",
        "phlox.autodiff",
        "phlox.batching.rules",
        "phlox.nn.conv",
        "phlox.data",
    )
    needless += (
        "phlox.record.formats.npz",
        "phlox.record.formats.pytorch",
        "phlox.record.formats.sharded",
        "phlox.interop",
        "phlox.models",
    )
    assert [name for name in found if name.startswith(needless)] == []


LAZY = ["phlox", "phlox.distributed", "phlox.export", "phlox.nn", "phlox.batching", "phlox.record"]
SOURCE = Path(px.errors.__file__).parent
FRONTS = {
    ".".join(("phlox", *file.parent.relative_to(SOURCE).parts)): ast.parse(text)
    for file in SOURCE.glob("**/__init__.py")
    if "lazily(" in (text := file.read_text(encoding="utf-8"))
}
"""The packages with lazy names or hints for missing ones."""


def imported(statements: list[ast.stmt]) -> Iterator[tuple[str, str, bool]]:
    """What type checkers take for imports: the name, its module, and whether that makes it public."""
    for statement in statements:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            yield from imported(statement.body)
        if isinstance(statement, ast.ImportFrom) and statement.module is not None:
            for name in statement.names:
                if name.name == "*":
                    yield from ((one, statement.module, True) for one in import_module(statement.module).__all__)
                else:
                    yield name.asname or name.name, statement.module, name.asname == name.name


@pytest.mark.parametrize("package", FRONTS)
def test_public_names_are_what_type_checkers_take_them_for(package: str) -> None:
    """A package without `__all__` in its source gets it from the table of its lazy names."""
    found, tree = import_module(package), FRONTS[package]
    names = list(imported(tree.body))
    for name, module, _ in names:
        if name in found.__all__ and name != "__version__":
            assert unwrap(getattr(found, name)) is unwrap(getattr(import_module(module), name)), name
    written = any(isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__" for node in tree.body)
    seen = {name for name, _, public in names if public or written}
    assert len(set(found.__all__)) == len(found.__all__)
    assert set(found.__all__) <= seen if written else set(found.__all__) == seen
    with pytest.raises(AttributeError, match=f"'{package.replace('.tensor.', '.')}' has no attribute 'nonsense'"):
        found.nonsense  # noqa: B018


@pytest.mark.every(6)
@pytest.mark.parametrize("package", LAZY)
def test_lazy_names_are_found_in_every_order(package: str) -> None:
    # A module that has the name of what it defines would take its place in the package when something imports it.
    program = f"""
import pkgutil, importlib, {package} as package
names = [name for name in getattr(package, "__all__", dir(package)) if not name.startswith("_")]
before = {{name: getattr(package, name) for name in names[::2]}}
for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
    if not module.ispkg and module.name != "phlox.__main__":
        importlib.import_module(module.name)
after = {{name: getattr(package, name) for name in names}}
same = all(after[name] is before[name] for name in before)
print(same, [name for name, value in after.items() if type(value).__name__ == "module"])
"""
    same, _, modules = run(program).strip().partition(" ")
    assert same == "True"
    offered = {"autodiff", "backend", "config", "data", "debug", "errors", "functional", "interop", "linalg", "models"}
    offered |= {
        "distributed",
        "export",
        "metrics",
        "module",
        "nn",
        "optim",
        "quantization",
        "random",
        "record",
        "serve",
        "signal",
        "text",
        "train",
        "transform",
    }
    assert set(ast.literal_eval(modules)) <= offered


def test_a_config_of_a_layer_that_was_not_used_yet_is_found() -> None:
    text = json.dumps({"type": "GeluConfig"})
    program = f"""
import phlox as px
from phlox.config import LayerConfig
class Block(px.Config):
    activation: LayerConfig
print(type(Block.from_dict({{"activation": {text}}}).activation).__module__)
"""
    assert run(program).strip() == "phlox.nn.activation"


def test_an_engine_is_imported_when_it_is_asked_for() -> None:
    program = "import sys, phlox; phlox.zeros((2,), device={!r}); print('jax' in sys.modules, 'torch' in sys.modules)"
    assert run(program.format("jax")).split() == ["True", "False"]
    assert run(program.format("torch")).split() == ["False", "True"]


def test_public_names_are_there() -> None:
    for module in (px, px.backend, px.random, px.errors, px.functional, px.autodiff):
        for name in getattr(module, "__all__", ()):
            assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        px.backend.nonsense  # noqa: B018
    for name, error in vars(px.errors).items():
        if isinstance(error, type) and issubclass(error, Exception):
            assert issubclass(error, (px.errors.PhloxError, Warning)) and error.__doc__, name


# --- backends and devices


@pytest.mark.parametrize("backend", ALL, ids=repr)
def test_backends_are_values(backend: Any) -> None:
    pickled = pickle.loads(pickle.dumps(backend))  # noqa: S301
    for twin in (pickled, copy.copy(backend), copy.deepcopy(backend), eval(repr(backend))):  # noqa: S307
        assert twin is backend
    assert {backend: 1}[backend] == 1
    device = backend.device()
    for twin in (pickle.loads(pickle.dumps(device)), copy.deepcopy(device), eval(repr(device))):  # noqa: S301, S307
        assert twin == device and hash(twin) == hash(device)
    assert str(device) == f"{backend.name}:{device.name}"
    assert px.zeros((), device=backend).device == device
    assert len({*ALL}) == len(ALL)


def test_a_pickled_backend_of_another_process_is_the_same_value() -> None:
    program = "import pickle; from phlox.backend import Autodiff, NumPy; "
    data = run(program + "print(pickle.dumps((Autodiff(NumPy(float='f64')), NumPy())).hex())")
    assert pickle.loads(bytes.fromhex(data.strip())) == (Autodiff(NumPy(float="f64")), NumPy())  # noqa: S301


# --- tensors

VALUES: dict[str, Any] = {
    "float": np.array([[1.5, -2.0, 0.25], [0.0, 3.0, 4.0]]),
    "int": np.array([1, -2, 3]),
    "bool": np.array([[True], [False]]),
    "one": np.array(2.5),
    "none": np.zeros((0, 2)),
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("backend", ALL, ids=repr)
def test_tensors_are_pickled_and_copied(backend: Any, name: str) -> None:
    x = px.tensor(VALUES[name], device=backend)
    y = pickle.loads(pickle.dumps(x))  # noqa: S301
    assert y.kind is x.kind and y.device == x.device and y.shape == x.shape
    assert y.numpy().dtype == x.numpy().dtype
    np.testing.assert_array_equal(y.numpy(), VALUES[name])
    assert copy.copy(x) is x and copy.deepcopy({"x": [x]})["x"][0] is x  # nothing can change it
    assert x.numpy().flags.writeable is False
    assert np.asarray(x).dtype == x.numpy().dtype and np.array(x).flags.writeable
    assert x.tolist() == VALUES[name].tolist()


def test_a_tensor_is_made_by_functions_only() -> None:
    with pytest.raises(TypeError, match=r"phlox\.tensor"):
        px.Tensor()
    with pytest.raises(AttributeError):
        px.ones((2,)).name = "x"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("backend", ALL, ids=repr)
def test_repr(backend: Any) -> None:
    x = px.tensor([[1.5, 2.0], [3.0, 4.0]], device=backend)
    text = repr(x)
    assert text.startswith("Tensor(Float") and f" (2, 2) on {x.device}:" in text and "1.5" in text
    assert ("[" in text.partition(" ")[0]) == (backend.float_element != "f32"), "only what is unusual is said"
    assert " () on" in repr(px.tensor(3, device=backend)) and "True" in repr(px.tensor([True], device=backend))
    assert (
        "..." in repr(px.zeros((100, 100), device=backend)) and len(repr(px.zeros((100, 100), device=backend))) < 1000
    )
    assert "(0,)" in repr(px.zeros((0,), device=backend))


def test_repr_while_an_engine_records() -> None:
    texts: list[str] = []

    def look(x: px.Tensor) -> px.Tensor:
        tracked = px.Tensor.from_inner(x).require_grad()
        texts.extend([repr(x), repr(x > 0.0), repr(tracked * 2.0)])
        return x

    jax.jit(look)(px.ones((2, 3), device=Jax()))
    assert texts == [
        "Tensor(Float (2, 3) on jax:cpu, traced)",
        "Tensor(Bool (2, 3) on jax:cpu, traced)",
        "Tensor(Float (2, 3) on autodiff(jax):cpu, traced)",
    ]


@pytest.mark.parametrize("backend", ALL, ids=repr)
def test_values_come_out(backend: Any) -> None:
    x = px.tensor([[1.0, 2.0]], device=backend)
    assert float(x[0, 0]) == 1.0 and int(x[0, 1]) == 2 and bool(x[0, 0]) is True and x.sum().item() == 3.0
    assert isinstance(px.tensor(3, device=backend).item(), int) and isinstance(
        px.tensor(True, device=backend).item(), bool
    )
    assert len(x) == 1 and x.ndim == 2 and x.size == 2 and [row.tolist() for row in x] == [[1.0, 2.0]]
    moved = x.to_device(NumPy(float="f64"))
    assert moved.backend is NumPy(float="f64") and moved.tolist() == [[1.0, 2.0]]
    assert x.to_device(x.device) is x and x.to_device(backend) is x
    assert px.tensor(x, device=backend) is x
    assert px.tensor(x, kind=px.Int, device=backend).tolist() == [[1, 2]]
    assert np.float64(2.0) * x[0, 0] == 2.0 and isinstance(np.float64(2.0) * x, px.Tensor)
    if "bf16" not in repr(backend):
        np.testing.assert_array_equal(np.from_dlpack(x), [[1.0, 2.0]])
        np.testing.assert_array_equal(np.from_dlpack(x.sum()), 3.0)


def test_numpy_arrays_and_tensors_do_not_mix_by_accident() -> None:
    x = px.ones((3,))
    for call in (lambda: np.arange(3) + x, lambda: x + np.arange(3), lambda: np.arange(3) < x):
        with pytest.raises(KindError, match=r"phlox\.tensor"):
            call()
    np.testing.assert_array_equal(np.exp(x), np.exp(np.ones(3, np.float32)))


# --- PyTrees


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("backend", [Jax(), Autodiff(Jax()), Torch(), NumPy()], ids=repr)
def test_a_tensor_is_a_pytree(backend: Any, name: str) -> None:
    x = px.tensor(VALUES[name], device=backend)
    leaves, structure = jax.tree.flatten({"x": x})
    assert len(leaves) == 1 and type(leaves[0]) is type(x.detach().primitive)
    again = jax.tree.unflatten(structure, leaves)["x"]
    assert again.backend is backend and again.kind is x.kind and again.tolist() == x.tolist()
    assert jax.tree.structure({"x": x}) == jax.tree.structure({"x": px.tensor(VALUES[name], device=backend)})
    assert jax.tree.structure({"x": x}) != jax.tree.structure({"x": px.tensor(VALUES[name], device=NumPy(float="f64"))})
    assert jax.tree.unflatten(structure, [object()]) is not None  # JAX puts tracers there


def test_a_tensor_passes_through_jax() -> None:
    x, i = px.tensor([1.0, 2.0, 3.0], device=Jax()), px.tensor([2, 0], device=Jax())
    y = jax.jit(lambda x, i: {"y": x[i] * 2.0, "mask": x > 1.5})(x, i)
    assert y["y"].tolist() == [6.0, 2.0] and y["mask"].kind is px.Bool
    assert jax.tree.map(lambda leaf: leaf + 1, x).tolist() == [2.0, 3.0, 4.0]
    assert jax.grad(lambda x: (x * x).sum().primitive)(x).tolist() == [2.0, 4.0, 6.0]
    assert jax.vmap(lambda x: x * x)(x).tolist() == [1.0, 4.0, 9.0]
    total, every = jax.lax.scan(lambda c, x: (c + x, c * 2.0), px.zeros((), device=Jax()), x)
    assert total.item() == 6.0 and every.tolist() == [0.0, 2.0, 6.0]
    tracked = px.tensor([1.0, 2.0], device=Autodiff(Jax())).require_grad()
    again = jax.tree.map(lambda leaf: leaf, tracked * 2.0)
    assert again.backend is Autodiff(Jax()) and not again.is_require_grad()


def test_what_others_define_stays_as_it_is() -> None:
    """The guards of functions are for those of Phlox, not for all that its modules import."""
    program = """
import typing
from typing import NamedTuple
import phlox
phlox.functional.relu
assert typing.NamedTuple is NamedTuple
class Pair(NamedTuple):
    x: int
assert Pair(1).x == 1
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def _public() -> list[Any]:
    """Every public function, and of every public class itself, its constructor and its call."""
    packages = "phlox phlox.nn phlox.optim phlox.random phlox.record phlox.transform phlox.tensor phlox.backend "
    packages += (
        "phlox.tensor.functional phlox.tensor.linalg phlox.module phlox.config phlox.data phlox.train phlox.metrics "
    )
    packages += "phlox.export phlox.models phlox.autodiff phlox.batching phlox.testing phlox.interop.pytorch"
    found: list[Any] = []
    for package in packages.split():
        module = import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, type):
                methods = [vars(value).get(method) for method in ("__init__", "__call__")]
                found += [value, *filter(callable, methods)]
            elif callable(value):
                found.append(value)
    return found


def test_annotations_mean_something_at_run_time() -> None:
    for value in _public():
        if isinstance(value, type) or hasattr(value, "__annotations__"):
            typing.get_type_hints(value)
    # As they stand in a script, where they are evaluated.
    program = (
        "import phlox as px\nfrom phlox import nn\nfrom phlox.backend import DeviceLike\n"
        "class Scale(px.Module):\n"
        "    def __init__(self, d: int, *, device: DeviceLike | None = None) -> None:\n"
        "        self.gamma = px.Param.deferred((d,), nn.Ones(), device=device)\n"
        "print(Scale(3).gamma.shape)"
    )
    assert run(program).strip() == "(3,)"
