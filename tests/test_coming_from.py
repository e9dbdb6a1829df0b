"""Each name in the tables of docs/coming-from/ exists: Phlox's always, another library's where that is installed.

Serves: docs/coming-from

The cells of these tables are Python, in backticks. A cell is parsed: the names in it are looked up, from the modules
and the example objects below, and so are the options of the calls.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import metrics, nn, optim, record
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.data import Loader
from phlox.distributed import Layout, Mesh
from phlox.interop import huggingface
from phlox.train import Checkpoints, EarlyStopping, Learner

FOLDER = Path(__file__).parents[1] / "docs" / "coming-from"
PAGES = ["pytorch", "keras", "jax-flax", "equinox", "burn"]


def of_phlox() -> dict[str, Any]:
    """What stands for what in Phlox's column."""
    x = px.ones((2, 3))
    model = nn.Linear(3, 2).init(seed=0).train()
    grads = px.grad(lambda model: model(x).sum())(model)
    optimizer = optim.AdamWConfig().init()
    loader = Loader(np.ones((4, 3), np.float32), 2)
    known: dict[str, Any] = {
        "px": px, "nn": nn, "optim": optim, "metrics": metrics, "record": record, "huggingface": huggingface,
        "Autodiff": Autodiff, "Jax": Jax, "NumPy": NumPy, "Torch": Torch, "Loader": Loader, "Learner": Learner,
        "Checkpoints": Checkpoints, "EarlyStopping": EarlyStopping, "Layout": Layout, "Mesh": Mesh, "F": px.functional,
        "x": x, "y": x, "model": model, "param": model.weight, "grads": grads, "optimizer": optimizer,
        "learner": Learner(model, optimizer, 0.1, nn.mse_loss), "loader": loader, "loss": x.sum(),
        "schedule": optim.ConstantLr(0.1), "metric": metrics.Accuracy(), "layer": nn.Dropout(0.1),
        "mesh": Mesh(data=-1, device="numpy"), "config": nn.LinearConfig(3, 2), "step": px.compile(lambda x: x),
        "self": model, "ema": optim.Ema(model, decay=0.9),
    }  # fmt: skip
    return known


def of_pytorch() -> dict[str, Any]:
    import torch

    x = torch.ones(2, 3, requires_grad=True)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {
        "torch": torch, "nn": torch.nn, "F": torch.nn.functional, "optim": torch.optim, "x": x, "y": x, "loss": x,
        "model": model, "layer": model, "optimizer": optimizer, "param": model.weight,
        "scheduler": torch.optim.lr_scheduler.ConstantLR(optimizer), "lr_scheduler": torch.optim.lr_scheduler,
        "dist": importlib.import_module("torch.distributed"), "data": importlib.import_module("torch.utils.data"),
        "DataLoader": importlib.import_module("torch.utils.data").DataLoader,
        "checkpoint": importlib.import_module("torch.utils.checkpoint").checkpoint,
        "fully_shard": importlib.import_module("torch.distributed.fsdp").fully_shard,
        "DistributedDataParallel": importlib.import_module("torch.nn.parallel").DistributedDataParallel,
        "DCP": importlib.import_module("torch.distributed.checkpoint"), "transformers": None,
    }  # fmt: skip


def of_jax() -> dict[str, Any]:
    jax, optax = importlib.import_module("jax"), importlib.import_module("optax")
    importlib.import_module("jax.experimental.multihost_utils")
    importlib.import_module("jax.export")
    return {"jax": jax, "jnp": jax.numpy, "optax": optax, "x": jax.numpy.ones((2, 3)), "lax": jax.lax}


def of_flax() -> dict[str, Any]:
    nnx = pytest.importorskip("flax.nnx")
    rngs, optax = nnx.Rngs(0), importlib.import_module("optax")
    model = nnx.Linear(3, 2, rngs=rngs)
    return {
        **of_jax(), "nnx": nnx, "rngs": rngs, "model": model, "param": model.kernel, "metric": nnx.metrics.Accuracy(),
        "flax": importlib.import_module("flax"), "linen": importlib.import_module("flax.linen"),
        "optimizer": nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param),
        "ocp": importlib.import_module("orbax.checkpoint"),
    }  # fmt: skip


def of_equinox() -> dict[str, Any]:
    eqx = pytest.importorskip("equinox")
    jax = importlib.import_module("jax")
    return {**of_jax(), "eqx": eqx, "model": eqx.nn.Linear(3, 2, key=jax.random.key(0))}


def of_keras() -> dict[str, Any]:
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    return {
        "keras": keras, "layers": keras.layers, "ops": keras.ops, "model": model, "metric": keras.metrics.Mean(),
        "callbacks": keras.callbacks, "layer": model.layers[0], "optimizer": keras.optimizers.Adam(),
        "losses": keras.losses, "x": None, "self": model,
    }  # fmt: skip


PEERS: dict[str, Callable[[], dict[str, Any]]] = {
    "pytorch": of_pytorch, "keras": of_keras, "jax-flax": of_flax, "equinox": of_equinox,
}  # fmt: skip


def cells(page: str, column: int) -> Iterator[tuple[str, str]]:
    """The code in a column of the tables of names: those whose second column is Phlox's."""
    inside = False
    for line in (FOLDER / f"{page}.md").read_text(encoding="utf-8").splitlines():
        parts = re.split(r"(?<!\\)\|", line)
        if not line.startswith("|"):
            inside = False
        elif len(parts) >= 4 and parts[2].strip() == "Phlox":
            inside = True
        elif inside and not set(line) <= set("|-: "):
            for code in re.findall(r"`([^`]+)`", parts[column]):
                yield line, code.replace("\\|", "|")


def parsed(code: str) -> ast.AST:
    for text in (code, f"{code}\n    pass", f"{code}: pass", f"{code}\nclass _: pass", f"{code}\ndef _(): pass"):
        try:
            return ast.parse(text)
        except SyntaxError:
            continue
    raise AssertionError(f"no Python: {code}")


MISSING = object()


def resolved(node: ast.AST, known: dict[str, Any]) -> Any:
    """The object that a dotted name stands for; `MISSING` where it begins with anything else than a known name."""
    if isinstance(node, ast.Name):
        return known.get(node.id, MISSING)
    if isinstance(node, ast.Attribute):
        owner = resolved(node.value, known)
        if owner is MISSING or owner is None:
            return MISSING
        assert hasattr(owner, node.attr), f"{ast.unparse(node)} is not there"
        return getattr(owner, node.attr)
    return MISSING


def check_options(function: Any, call: ast.Call) -> None:
    try:
        parameters = inspect.signature(function.__init__ if isinstance(function, type) else function).parameters
    except (TypeError, ValueError):
        return
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        for keyword in call.keywords:
            assert keyword.arg is None or keyword.arg in parameters, f"{ast.unparse(call)}: no option {keyword.arg}"


def check(code: str, known: dict[str, Any]) -> int:
    """Look up what a cell names; how many names there are."""
    found = 0
    for node in ast.walk(parsed(code)):
        if isinstance(node, (ast.Attribute, ast.Name)):
            found += resolved(node, known) is not MISSING
        if isinstance(node, ast.Call):
            function = resolved(node.func, known)
            if function is not MISSING and function is not None:
                check_options(function, node)
    return found


def is_python(code: str) -> bool:
    return not code.startswith(("phlox ", "torchrun", "python ", "pip "))


def check_column(page: str, column: int, known: dict[str, Any]) -> None:
    found = 0
    for line, code in cells(page, column):
        if is_python(code):
            try:
                found += check(code, known)
            except AssertionError as error:
                raise AssertionError(f"{error}\n  in the row {line}") from None
    assert found > 60


@pytest.mark.parametrize("page", PAGES)
def test_the_names_of_phlox_are_there(page: str) -> None:
    check_column(page, 2, of_phlox())


@pytest.mark.parametrize("page", list(PEERS))
def test_the_names_of_the_other_library_are_there(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    check_column(page, 1, PEERS[page]())
