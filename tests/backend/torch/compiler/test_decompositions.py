"""What PyTorch's compiler is given in place of operations that it computes worse than PyTorch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special
from torch._inductor import config
from torch._inductor.utils import run_and_get_cpp_code

import phlox as px
from phlox import optim
from phlox.backend import Autodiff, NumPy, Torch
from phlox.backend.torch.compiler.codegen import VARIABLE
from phlox.backend.torch.compiler.decompositions import decompositions
from tests.transform.steps import close, data, network, step

TAPE = Autodiff(Torch()).device()
_aten: Any = torch.ops.aten
TABLE = decompositions()
_SMALL = [0.0, -0.0, 1e-38, 1e-20, -1e-12, 1e-8, -1e-7, 3e-6, -1e-5, 1e-4, -1e-3, 0.01, -0.1, 0.3, -0.4999, 0.5, 0.7]
_LARGE = [1.0, -1.0, 1.5, -2.0, 3.0, -5.5, 12.0, -20.0, 60.0, -88.0, 89.0, -89.4, 1e3, -1e7, 1e20, 1e30, 3e38, np.inf]
VALUES = np.array([*_SMALL, *_LARGE, -np.inf, np.nan, np.nextafter(np.float32(1), np.float32(0))])


def _elu(x: Any, alpha: float = 1.0, scale: float = 1.0, rate: float = 1.0) -> Any:
    return np.where(x > 0, x * scale, np.expm1(np.minimum(x * rate, 0.0)) * alpha * scale)


def _elu_slope(x: Any) -> Any:
    return np.where(x > 0, 2.0, 3.0 * np.exp(np.minimum(x * 0.5, 0.0)) * (2.0 * 0.5))


def _hardswish_slope(x: Any) -> Any:
    return np.where(x <= -3, 0.0, np.where(x >= 3, 1.0, x / 3 + 0.5))


FORMULAS: dict[str, tuple[Any, tuple[Any, ...], Callable[[Any], Any]]] = {
    "expm1": (_aten.expm1.default, (), np.expm1),
    "erf": (_aten.erf.default, (), special.erf),
    "erfinv": (_aten.erfinv.default, (), special.erfinv),
    "atanh": (_aten.atanh.default, (), np.arctanh),
    "acosh": (_aten.acosh.default, (), np.arccosh),
    "sinh": (_aten.sinh.default, (), np.sinh),
    "cosh": (_aten.cosh.default, (), np.cosh),
    "elu": (_aten.elu.default, (), _elu),
    "scaled elu": (_aten.elu.default, (1.5, 2.0, 0.25), lambda x: _elu(x, 1.5, 2.0, 0.25)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_keeps_its_digits(name: str, dtype: torch.dtype) -> None:
    operation, options, reference = FORMULAS[name]
    with np.errstate(all="ignore"):
        x = torch.tensor(VALUES, dtype=dtype)
        right = torch.tensor(reference(x.double().numpy())).to(dtype)
    found = TABLE[operation](x, *options)
    if found is NotImplemented:
        assert (name, dtype) == ("erf", torch.float64)  # which the compiler has right
        return
    assert found.dtype is dtype
    info = torch.finfo(dtype)
    torch.testing.assert_close(found, right, rtol=6 * info.eps, atol=info.tiny * 1e-3, equal_nan=True)
    for number, alone in zip(found, x, strict=True):
        torch.testing.assert_close(TABLE[operation](alone, *options), number, equal_nan=True)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as it loads
def test_what_loops_share_of_numbers_is_computed_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """AdamW's corrections, the powers of two rates, which the loops over all parameters read."""

    def trained(run: Any) -> px.Module:
        model, optimizer = network(device=TAPE, rate=0.0), optim.AdamWConfig(weight_decay=0.1).init()
        for number in range(3):
            model, _ = run(model, optimizer, 0.01 / (number + 1), data(device=TAPE))
        return model

    monkeypatch.setenv(VARIABLE, "inductor")
    with config.patch(force_disable_caches=True):
        found, code = run_and_get_cpp_code(trained, px.compile(step))
    assert code.count("std::tanh(") == 2 and "expm1(" not in code
    close(found, trained(step), rtol=1e-4)


def test_slopes_of_nan_are_nan() -> None:
    x, g = torch.tensor(VALUES), torch.ones(len(VALUES), dtype=torch.float64)
    with np.errstate(all="ignore"):
        for name, arguments, right in (
            (_aten.elu_backward.default, (g, 3.0, 2.0, 0.5, False, x), _elu_slope(VALUES)),
            (_aten.hardswish_backward.default, (g, x), _hardswish_slope(VALUES)),
        ):
            np.testing.assert_allclose(TABLE[name](*arguments).numpy(), right, rtol=1e-14)


def test_what_they_are_not_for_is_left_alone() -> None:
    whole = torch.tensor([1, 2])
    assert TABLE[_aten.remainder.Tensor](whole, whole) is NotImplemented
    assert TABLE[_aten.div.Tensor_mode](torch.ones(2), torch.ones(2), rounding_mode="trunc") is NotImplemented
    assert TABLE[_aten.expm1.default](torch.ones(2, device="meta")) is NotImplemented
    assert TABLE[_aten.elu_backward.default](torch.ones(1), 1.0, 1.0, 1.0, True, torch.ones(1)) is NotImplemented


PAIRS = np.array(
    [(5.5, np.inf), (-5.5, -np.inf), (0.0, np.inf), (1e20, 3.0), (2.0**31, 3.0), (7.0, 0.7), (1.0, 0.1), (-7.0, 2.0),
     (7.0, -2.0), (3.0, 0.0), (np.inf, 2.0), (-0.0, 2.0), (np.nan, 1.0), (1e30, 0.1), (-1.0, 1e-8), (5.0, 5.0)]
    * 4 + [(-1.0, 3.0)] * 3
)  # fmt: skip


def _functions(x: Any, a: Any, b: Any) -> list[Any]:
    f = px.functional
    return [
        x.expm1(), x.erf(), x.atanh(), x.acosh(), x.sinh(), x.erfinv(),
        f.elu(x), f.selu(x), f.celu(x, 2.0), f.softshrink(x),
        a % b, a // b, a.fmod(b), a % 0.75, 41.0 / b, a / 41.0, (41.0 / (b * 0.0 + 41.0)).floor(),
        a * 0, x * 1 + px.zeros_like(x), x.mean() * 0 + (a * 0.0 + 1e-9).expm1(),
    ]  # fmt: skip


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as it loads
def test_a_program_gives_what_the_eager_call_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "inductor")
    x = px.tensor(np.concatenate([VALUES, VALUES[::-1]])[:67], device=Torch())
    a, b = (px.tensor(column, device=Torch()) for column in PAIRS.T)
    exact = NumPy(float="f64")
    with np.errstate(all="ignore"):
        right = _functions(*(px.tensor(one.numpy().astype(np.float64), device=exact) for one in (x, a, b)))
        compiled = px.compile(_functions)(x, a, b)
        for at, (one, other) in enumerate(zip(right, compiled, strict=True)):
            wanted = one.numpy().astype(np.float32)
            np.testing.assert_allclose(other.numpy(), wanted, rtol=2e-6, atol=3e-38, err_msg=f"function {at}")
    zeros = compiled[18].numpy()[:2]
    assert not np.signbit(zeros).any()  # -0.0 + 0.0


@pytest.mark.parametrize("element", ["f32", "f64", "f16", "bf16"])
def test_a_number_over_a_tensor_is_rounded_once(element: Any) -> None:
    x = px.tensor(np.linspace(0.3, 90.0, 67), device=Torch(float=element))
    values = x.numpy().astype(np.float64)
    for number in (41.0, 47.0, 3.0):
        np.testing.assert_array_equal((number / x).numpy(), (number / values).astype(x.numpy().dtype))


def test_a_number_over_a_tensor_of_halves_does_not_overflow_on_the_way() -> None:
    x = px.tensor([1e-5], device=Torch(float="f16"))
    assert (1e-3 / x).item() == pytest.approx(100.0, rel=0.01)
