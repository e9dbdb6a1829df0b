"""Operations that Inductor is known to compile wrongly, each beside other uses of its operand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import phlox as px
from phlox.backend import Device, NumPy, Torch
from phlox.backend.torch.compiler import fences
from phlox.backend.torch.compiler.fences import FAULTS, FENCES, MENDS
from phlox.backend.torch.compiler.pipeline import compile_graph

ROWS = np.array([0, 2, 0])
WRITES = ("add", "sub", "set", "mul", "min", "max")
READS: dict[str, Callable[[Any, Any], Any]] = {
    "sort": lambda x, rows: x.sort(0),
    "topk": lambda x, rows: x.topk(2, 0)[0],
    "take": lambda x, rows: x.take(rows, 1),
    "rows": lambda x, rows: x[rows],
    "rows, constant": lambda x, rows: x[[0, 2, 0]],
    "unfold": lambda x, rows: x.unfold(1, 2, 1),
    "take_along_axis": lambda x, rows: x.take_along_axis(x.argsort(1), 1),
    "take_along_axis, one": lambda x, rows: x.take_along_axis(x.argsort(1)[:, :1], 1),
    "max": lambda x, rows: x.max(0),
}


def _write(name: str, x: Any, rows: Any, updates: Any) -> Any:
    """A sum of what is written, and of what it was before."""
    old = x * 2.0
    new = getattr(old.at[rows], name)(updates)
    return (old * new).sum() + (new - old).square().sum() + old.diff(1, 0).square().sum()


def _read(name: str, x: Any, rows: Any) -> Any:
    """A sum of what is read, beside masked differences of neighbours."""
    step = (x.square() + 0.5).rsqrt().diff(1, 0)
    found = READS[name](x, rows)
    return (found * found.cos()).sum() + px.where(step > 0.0, step, step * 0.1).sum()


def _all(x: Any, rows: Any, updates: Any) -> list[Any]:
    """Values and gradients of all of them, in one program."""
    found: list[Any] = []
    for name in WRITES:
        value, gradients = px.value_and_grad(lambda x, u, name=name: _write(name, x, rows, u), argnums=(0, 1))(
            x, updates
        )
        found += [value, *gradients]
    return found + [px.grad(lambda x, name=name: _read(name, x, rows))(x) for name in READS]


def _arguments(device: Device) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    x, updates = rng.normal(size=(2, 3, 4))
    return tuple(px.tensor(one, device=device) for one in (x, ROWS, updates))


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as its compiler loads
def test_operands_keep_their_values_and_gradients_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHLOX_TORCH_CODEGEN", "inductor")
    want = _all(*_arguments(NumPy(float="f64").device()))
    have = px.compile(_all)(*_arguments(Torch().device()))
    names = [f"{name}: {part}" for name in WRITES for part in ("value", "gradient", "gradient of updates")]
    for name, right, got in zip([*names, *READS], want, have, strict=True):
        np.testing.assert_allclose(got.numpy(), right.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


def freed(x: Any) -> list[Any]:
    """The sines lie in the concatenation, whose memory is free for the last one while the second is returned."""
    sines = x.sin()
    both = px.concat([sines, x.cos()], 0).sort(0)
    product = sines * both[: x.shape[0]]
    rest = product.exp().sort(0)
    return [both, product, px.concat([rest.sin(), rest.cos()], 0).sort(0)]


def extremes(x: Any) -> list[Any]:
    """Gradients of extremes, found again by comparing, of what vectors and single elements round differently."""
    functions: list[Callable[[Any], Any]] = [lambda x: x.gelu(), lambda x: x.sin(), lambda x: (x * x + 0.1) ** 1.3]
    programs: list[Callable[[Any], Any]] = [
        lambda x: x.max(1),
        lambda x: x.at[np.array([0])].min(x[:1] * 2.0),
        lambda x: px.where(x < x.sort(1)[:, 3:4], 0.0, x),
    ]
    return [
        px.grad(lambda x, f=f, p=p: (p(f(px.functional.avg_pool1d(x.expand_dims(0), 2)[0])) * 3.0).sum())(x)
        for f in functions
        for p in programs
    ]


def _signed(x: Any) -> list[Any]:
    """Vectors with the sign that is looked for among 17 truth values."""
    return [px.linalg.eigh(x + x.mT).eigenvectors]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as its compiler loads
@pytest.mark.parametrize("program", [freed, _signed, extremes])
def test_memory_in_use_is_left_alone(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHLOX_TORCH_CODEGEN", "inductor")
    x = np.random.default_rng(0).normal(size=(17, 17))
    wanted = program(px.tensor(x, device=NumPy(float="f64")))
    for right, got in zip(wanted, px.compile(program)(px.tensor(x, device=Torch())), strict=True):
        np.testing.assert_allclose(got.numpy(), right.numpy(), atol=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as its compiler loads
def test_the_last_tile_of_a_sum_is_as_wide_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batched product with vectors, of an array whose last axis is not the innermost in memory."""
    monkeypatch.setenv("PHLOX_TORCH_CODEGEN", "inductor")

    def program(x: Any) -> Any:
        x = x.permute(0, 3, 1, 2) * 0.5 * (torch.erf(x.permute(0, 3, 1, 2)) + 1.0)
        columns = torch.nn.functional.pad(x.permute(3, 2, 1, 0), (0, 0, 0, 58), value=0.5)
        return torch.matmul(torch.nn.functional.pad(x, (0, 0, 0, 0, 0, 58), value=0.5), columns)

    x = torch.tensor(np.random.default_rng(0).normal(size=(1, 66, 66, 8)), dtype=torch.float32)
    graph = make_fx(program)(x)
    np.testing.assert_allclose(compile_graph(graph, [x])(x), program(x), atol=1e-4)


def _swapped(x: Any, *axes: int) -> Any:
    return x.permute_dims(axes)


def _like_attention(q: Any, k: Any, v: Any, mask: Any) -> list[Any]:
    """Attention; then with other axes, and with a row that is shut out."""
    p, r, u = (_swapped(x, 0, 2, 1, 3) for x in (q, k, v))
    return [
        (q @ k.mT / 2.0).softmax(-1) @ v,
        (p @ r.mT * 0.5).softmax(-1) @ u,
        (q @ k.mT * 0.25).softmax(1) @ v,
        (p @ r.mT / 2.0).softmax(2) @ u,
        (_swapped(q, 2, 0, 1, 3) @ _swapped(k, 2, 0, 1, 3).mT / 2.0).softmax(-1) @ _swapped(v, 2, 0, 1, 3),
        (q @ k.mT / 2.0 + mask).softmax(-1) @ v,
    ]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as its compiler loads
def test_attention_alone_is_taken_for_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHLOX_TORCH_CODEGEN", "inductor")
    arguments = [*np.random.default_rng(0).normal(size=(3, 4, 4, 4, 4)), np.where(np.eye(4)[:1].T, -np.inf, 0.0)]
    with np.errstate(invalid="ignore"):  # of the row that is shut out
        wanted = _like_attention(*(px.tensor(x, device=NumPy(float="f64")) for x in arguments))
    compared, taken = fences._compared, list[bool]()

    def noted(check: Any) -> Any:
        return lambda match: taken.append(answer := compared(check)(match)) or answer

    monkeypatch.setattr(fences, "_compared", noted)
    found = px.compile(_like_attention)(*(px.tensor(x, device=Torch()) for x in arguments))
    assert taken.count(True) == 2 and False in taken
    for at, (right, got) in enumerate(zip(wanted, found, strict=True)):
        np.testing.assert_allclose(got.numpy(), right.numpy(), rtol=1e-4, atol=1e-5, err_msg=str(at))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as its compiler loads
def test_a_conversion_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHLOX_TORCH_CODEGEN", "inductor")

    def converted(x: Any, half: Any) -> list[Any]:
        high = x.to_device(Torch(float=half).device())
        low = (x - high.to_full_precision()).to_device(high.device)
        return [high, low, (high + 1.0 - high).to_full_precision(), (high * 3e4 * high).to_full_precision()]

    def program(x: Any) -> list[Any]:
        return converted(x, "f16") + converted(x, "bf16")

    x = px.tensor(np.random.default_rng(0).normal(size=(3, 50)), device=Torch())
    for right, got in zip(program(x), px.compile(program)(x), strict=True):
        np.testing.assert_array_equal(got.numpy(), right.numpy())


def test_one_of_several_results_is_kept_without_the_others() -> None:
    def shares_of_the_largest(x: torch.Tensor) -> torch.Tensor:
        ranked = torch.sort(x, descending=True).values
        return torch.where(ranked[..., :2] < ranked.cumsum(-1)[..., 1:3], ranked[..., :2], 0.0)

    x = torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3]])
    graph = make_fx(shares_of_the_largest, tracing_mode="fake")(x)
    fences.fence(graph)
    kept = [node for node in graph.graph.nodes if str(node.target) == "phlox.kept.default"]
    assert [node.args[0].meta["val"].shape for node in kept] == [(2, 3)]
    assert torch.equal(graph(x), shares_of_the_largest(x))


def test_every_part_of_inductor_that_is_mended_is_there() -> None:
    for mend in MENDS:
        assert mend.faults and set(mend.faults) <= set(FAULTS) and hasattr(mend.owner.find(), mend.name)


def test_every_fence_names_its_faults_and_takes_what_pytorch_takes() -> None:
    for fence in FENCES:
        assert fence.faults and set(fence.faults) <= set(FAULTS)
        name, overload = fence.target.split(".")
        ours = getattr(torch.ops.phlox, name).default._schema.arguments
        theirs = getattr(getattr(torch.ops.aten, name), overload)._schema.arguments
        assert [(one.name, str(one.type)) for one in ours] == [(one.name, str(one.type)) for one in theirs]
