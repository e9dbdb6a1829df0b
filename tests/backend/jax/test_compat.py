"""Private names of JAX: each may be missing, and what is left works."""

from __future__ import annotations

import re
import tokenize
from io import BytesIO
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Jax, NumPy
from phlox.backend.jax import compat
from phlox.errors import CompileError
from tests.transform.steps import step, values

SOURCE = Path(__file__).parents[3] / "src" / "phlox"
X = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)


def hide(name: str, patch: pytest.MonkeyPatch) -> None:
    """JAX itself cannot do without some; those are hidden from Phlox alone."""
    if name == "jax.core.Tracer._trace":
        patch.setattr(compat, "trace_of", lambda x: None)
    elif name == "jax.core.Trace.is_valid":
        patch.setattr(compat, "is_over", lambda x: False)
    elif name == "jax.jit()._cache_size":
        patch.setattr(compat, "programs_of", lambda run: None)
    elif name == "jax._src.xla_bridge.backends_are_initialized":
        patch.setattr(compat, "has_started", lambda: False)
    elif name == "jax._src.array.ArrayImpl":
        patch.setattr(compat, "uncommitted", lambda x: x)
    elif name == "jax._src.core.trace_ctx":
        patch.setattr(compat, "_CONTEXT", None)
    elif name == "jax._src.interpreters.pxla.reflatten_outputs_for_dispatch":
        pxla: Any = compat.import_module("jax._src.interpreters.pxla")
        patch.setattr(pxla, "reflatten_outputs_for_dispatch", pxla.reflatten_outputs_for_dispatch.__wrapped__)
    elif name == "jax._src.api":
        patch.setattr(compat, "_API", "jax.gone")
    else:
        path, _, last = name.rpartition(".")
        patch.delattr(compat.import_module(path), last)


def trained(backend: Any) -> list[Any]:
    device = Autodiff(backend).device()
    model = nn.Sequential([nn.Linear(8, 8, device=device), nn.LayerNorm(8, device=device), nn.Gelu()]).init(0)
    optimizer, x = optim.AdamWConfig().init(), px.tensor(X, device=device)
    for _ in range(3):
        model, _ = step(model, optimizer, 0.01, x)
    return values(model)


@pytest.mark.parametrize("name", compat.PRIVATE)
def test_eager_training_without_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(name, monkeypatch)
    for a, b in zip(trained(Jax()), trained(NumPy()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", compat.PRIVATE)
def test_compiling_without_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(name, monkeypatch)
    x = px.tensor(X, device=Jax().device())
    assert px.compile(lambda x: x.sum())(x).item() == pytest.approx(X.sum(), rel=1e-4)
    scaled = px.compile(lambda x, by: x * by)
    if name != "jax.extend.core.primitives.convert_element_type_p":
        np.testing.assert_allclose(scaled(x, 2.0).numpy(), X * 2.0)
        return
    sentence = f"JAX {jax.__version__} lacks `{name}`, which compiling needs; Phlox compiles on JAX "
    with pytest.raises(CompileError, match=re.escape(sentence)):
        scaled(x, 2.0)


@pytest.mark.parametrize("name", compat.PRIVATE)
def test_a_leaked_tracer_without_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(name, monkeypatch)
    kept = list[Any]()
    px.compile(lambda x: kept.append(x * 1.0))(px.tensor(X, device=Jax().device()))
    with pytest.raises((CompileError, jax.errors.UnexpectedTracerError)):
        kept[0].sum().numpy()


def test_the_type_of_tracers_is_found() -> None:
    from jax.interpreters.partial_eval import DynamicJaxprTracer

    assert compat.traced_type() is DynamicJaxprTracer


# --- nobody else names them

PRIVATE = re.compile(
    r"\bjax(lib)?\.(\w+\.)*_\w|\b_trace\b|jax\.extend|jax\.interpreters|\bconstid_to_tracer\b|\bis_valid\b"
)
ALLOWED = {
    "backend/jax/compat.py": "it is the place",
    "record/formats/pytorch/globals.py": "the names stand in files",
    "backend/settings.py": "it only asks whether a module has been loaded, and must not load JAX",
}


def test_only_compat_names_private_parts_of_jax() -> None:
    found = list[str]()
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        text = path.read_text("utf-8")
        if name in ALLOWED or "jax" not in text:
            continue
        lines = text.splitlines()
        for token in tokenize.tokenize(BytesIO(text.encode()).readline):
            is_code = token.type == tokenize.NAME or (token.type == tokenize.STRING and '"""' not in token.string)
            if is_code and PRIVATE.search(line := lines[token.start[0] - 1]):
                found.append(f"{name}:{token.start[0]}: {line}")
    assert not found, "\n".join(sorted(set(found)))
