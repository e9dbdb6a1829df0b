"""Weight norm, spectral norm and pruning of PyTorch: what a module computes its weight from, loaded as the weight."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

from phlox import nn
from phlox.errors import RecordError
from phlox.interop import pytorch
from phlox.record import Record

Make = Callable[[], Any]
CONV: Make = lambda: torch.nn.Conv1d(2, 3, 3)  # noqa: E731
LINEAR: Make = lambda: torch.nn.Linear(2, 3)  # noqa: E731
UP: Make = lambda: torch.nn.ConvTranspose1d(2, 3, 3)  # noqa: E731
SQUARE: Make = lambda: torch.nn.ConvTranspose1d(2, 2, 3)  # noqa: E731
OURS: dict[Make, Callable[[], Any]] = {
    CONV: lambda: nn.Conv1d(2, 3, 3), LINEAR: lambda: nn.Linear(2, 3), UP: lambda: nn.ConvTranspose1d(2, 3, 3),
    SQUARE: lambda: nn.ConvTranspose1d(2, 2, 3),
}  # fmt: skip


def value_of(module: Any, name: str = "weight") -> np.ndarray:
    return getattr(module, name).detach().numpy()


def cases() -> Iterator[tuple[str, Make, Callable[[Any], Any]]]:
    norms: dict[str, Any] = {"old": weight_norm, "new": parametrizations.weight_norm}
    for name, norm in norms.items():
        for layer, make, dims in (
            ("conv", CONV, (0, 1, 2, None)),
            ("linear", LINEAR, (0, 1, None)),
            ("up", UP, (0, 1)),
        ):
            for dim in dims:
                yield f"weight-{name}-{layer}-{dim}", make, lambda m, norm=norm, dim=dim: norm(m, dim=dim)
    for name, norm in (("old", spectral_norm), ("new", parametrizations.spectral_norm)):
        for layer, make in (("conv", CONV), ("linear", LINEAR), ("up", UP), ("square", SQUARE)):
            yield f"spectral-{name}-{layer}", make, norm
    yield "pruned", LINEAR, lambda m: prune.random_unstructured(m, "weight", 0.5)


CASES = {name: (make, norm) for name, make, norm in cases()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_the_weight_is_what_torch_computes(name: str) -> None:
    torch.manual_seed(0)
    make, norm = CASES[name]
    theirs = norm(make())
    x = torch.randn(4, 2) if make is LINEAR else torch.randn(4, 2, 5)
    with torch.no_grad():
        for _ in range(3):
            theirs(x)  # as training does: the vectors of spectral norm move
        for param in theirs.parameters():
            param.mul_(1 + torch.rand_like(param))
        expected = theirs.eval()(x)
    ours = OURS[make]()
    assert pytorch.load_state_dict(ours, theirs.state_dict()).ok
    got = pytorch.to_state_dict(ours)["weight"]
    np.testing.assert_allclose(got.tensor.read(), value_of(theirs), rtol=1e-5, atol=1e-7)
    assert expected.shape[0] == 4


@pytest.mark.filterwarnings("ignore")
def test_in_a_model_and_in_a_file(tmp_path: Path) -> None:
    theirs = torch.nn.Sequential(
        weight_norm(CONV()), torch.nn.ReLU(), parametrizations.weight_norm(torch.nn.Conv1d(3, 1, 1))
    )
    torch.save({"net": theirs.state_dict()}, tmp_path / "x.pt")
    ours = nn.Sequential([nn.Conv1d(2, 3, 3), nn.Relu(), nn.Conv1d(3, 1, 1)])
    assert pytorch.load(ours, tmp_path / "x.pt", prefix="net").ok
    for number in (0, 2):
        got = pytorch.to_state_dict(ours)[f"{number}.weight"].tensor.read()
        np.testing.assert_allclose(got, value_of(theirs[number]), rtol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_a_weight_of_another_name() -> None:
    theirs, ours = weight_norm(torch.nn.LSTM(2, 3), "weight_hh_l0"), nn.Lstm(2, 3)
    assert pytorch.load_state_dict(ours, theirs.state_dict()).ok
    got = pytorch.to_state_dict(ours)["weight_hh_l0"].tensor.read()
    np.testing.assert_allclose(got, value_of(theirs, "weight_hh_l0"), rtol=1e-5)


def test_norms_of_half_precision_are_not_computed_in_it() -> None:
    v = np.full((1, 100_000), 8.0, np.float16)  # whose squares add up to more than float16 has
    ours = nn.Linear(100_000, 1, bias=False)
    pytorch.load_state_dict(ours, {"weight_g": np.ones((1, 1), np.float16), "weight_v": v})
    np.testing.assert_allclose(ours.weight.val().numpy(), 1 / np.sqrt(100_000), rtol=1e-3)


def test_names_that_only_look_like_it() -> None:
    class Gate(nn.Linear):
        """Has parameters of its own that are called so."""

        def __init__(self) -> None:
            super().__init__(2, 3, bias=False)
            self.gate_g, self.gate_v = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)

    ours = Gate()
    state = {"weight": np.ones((3, 2)), "gate_g.weight": np.ones((2, 2)), "gate_v.weight": np.ones((2, 2))}
    assert pytorch.load_state_dict(ours, state).ok


def test_what_does_not_fit_and_what_is_not_understood() -> None:
    with pytest.raises(
        RecordError, match=r"weight_g, weight_v: shapes \(2, 1\), \(3, 2\) are not those of one weight norm"
    ):
        pytorch.load_state_dict(nn.Linear(2, 3, bias=False), {"weight_g": np.ones((2, 1)), "weight_v": np.ones((3, 2))})
    with pytest.raises(RecordError, match="weight: missing from the record"):
        pytorch.load_state_dict(nn.Linear(2, 3, bias=False), Record({"weight_g": np.ones((3, 1))}))
    theirs = parametrizations.orthogonal(torch.nn.Linear(2, 3))
    with pytest.raises(RecordError, match=re.escape("remove_parametrizations(module, 'weight')")):
        pytorch.load_state_dict(nn.Linear(2, 3), theirs.state_dict())


@pytest.mark.filterwarnings("ignore")
def test_programs_of_torchscript(tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Linear(2, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x) + torch.tensor([1.0, 2.0, 3.0])

    theirs = Net()
    torch.jit.save(torch.jit.trace(theirs, torch.ones(1, 2)), tmp_path / "x.pt")
    ours = nn.Sequential(body=nn.Linear(2, 3))
    assert pytorch.load(ours, tmp_path / "x.pt").ok  # the constants of the code are no parameters
    np.testing.assert_array_equal(ours["body"].weight.val().numpy(), theirs.body.weight.detach().numpy().T)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "bfloat16", "bool"])
def test_state_dicts_of_every_element_type(dtype: str) -> None:
    x = torch.tensor([0.5, 1.0, 2.0, 4.0]).to(getattr(torch, dtype))
    record = pytorch.from_state_dict({"x": x}, nn.Relu())
    assert record["x"].tensor.read().astype(np.float32).tolist() == x.to(torch.float32).tolist()


def test_a_state_dict_with_an_entry_that_cannot_be_read() -> None:
    state: dict[str, Any] = {**torch.nn.Linear(2, 3).state_dict(), "z": torch.ones(2, dtype=torch.complex64)}
    state |= {"s": torch.eye(2).to_sparse(), "o": object()}
    report = pytorch.load_state_dict(nn.Linear(2, 3), state, strict=False)
    assert report.ok and {"z", "s", "o"} <= set(report.ignored)
    with pytest.raises(RecordError, match="weight: the record's cannot be read: .*sparse"):
        pytorch.load_state_dict(nn.Linear(2, 2, bias=False), {"weight": torch.eye(2).to_sparse()}, strict=False)
