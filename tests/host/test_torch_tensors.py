"""PyTorch's tensors without numbers of their own are refused with a remedy, and pending negations are carried out.

Serves: phlox/host/torch_tensors.py, phlox/tensor/interop.py, phlox/interop/pytorch/state_dict.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.errors import BackendError, KindError, RecordError
from phlox.interop import pytorch

ENGINES = [NumPy(), Jax(), Torch()]


class Annotated(torch.Tensor):
    """A subclass whose numbers are its own."""


class Computed(torch.Tensor):
    """A subclass whose numbers are made of another tensor, as quantized ones of other libraries are."""

    def __tensor_flatten__(self) -> Any:
        raise AssertionError("never called")


def imaginary() -> torch.Tensor:
    return torch.complex(torch.ones(1, 2), torch.full((1, 2), 3.0)).conj().imag


def jagged() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)


WITHOUT: dict[str, tuple[Callable[[], Any], str]] = {
    "lazy": (lambda: nn_lazy().weight, "call the PyTorch module once"),
    "meta": (lambda: torch.ones(1, 2, device="meta"), "has no values"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "give its parts"),
    "jagged": (jagged, "give its parts"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(1, 2), 0.1, 0, torch.qint8), r"call dequantize\(\)"),
    "sparse": (lambda: torch.ones(1, 2).to_sparse(), r"call to_dense\(\)"),
    "rows": (lambda: torch.ones(1, 2).to_sparse_csr(), r"call to_dense\(\)"),
    "opaque": (lambda: torch.ones(1, 2).to_mkldnn(), r"call to_dense\(\)"),
    "masked": (lambda: masked(torch.ones(1, 2), torch.tensor([[True, False]])), "a masked tensor"),
    "computed": (lambda: torch.ones(1, 2).as_subclass(Computed), "computed from others"),
}


def nn_lazy() -> Any:
    return torch.nn.LazyLinear(1)


def masked(values: torch.Tensor, mask: torch.Tensor) -> Any:
    from torch.masked import masked_tensor

    return masked_tensor(values, mask)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WITHOUT)
def test_what_has_no_numbers_is_refused(name: str) -> None:
    make, message = WITHOUT[name]
    for backend in ENGINES:
        with pytest.raises(KindError, match=f"^tensor: .*{message}"):
            px.tensor(make(), device=backend.device())
    with pytest.raises(KindError, match=f"^from_dlpack: .*{message}"):
        px.from_dlpack(make(), device="numpy")
    model = nn.Linear(2, 1)
    before = model.weight.val().numpy()
    with pytest.raises(RecordError, match=f"weight: .*{message}"):
        pytorch.load_state_dict(model, {"weight": make(), "bias": torch.ones(1)})
    assert (model.weight.val().numpy() == before).all()


@pytest.mark.parametrize("backend", ENGINES, ids=str)
def test_a_pending_negation_is_carried_out(backend: Backend) -> None:
    assert imaginary().is_neg()
    for make in (px.tensor, px.from_dlpack):
        assert make(imaginary(), device=backend.device()).tolist() == [[-3, -3]]
    with pytest.raises(BackendError, match=r"call resolve_neg\(\) first"):
        px.from_dlpack(imaginary(), device=backend.device(), copy=False)
    model = nn.Linear(2, 1).to_device(backend.device())
    pytorch.load_state_dict(model, {"weight": imaginary(), "bias": torch.ones(1)})
    assert model.weight.val().tolist() == [[-3], [-3]]


@pytest.mark.parametrize("backend", ENGINES, ids=str)
def test_numbers_of_a_subclass_are_taken(backend: Backend) -> None:
    for given in (torch.ones(2).as_subclass(Annotated), torch.nn.Parameter(torch.ones(2).as_subclass(Annotated))):
        for make in (px.tensor, px.from_dlpack):
            assert make(given, device=backend.device()).tolist() == [1, 1]


def test_a_tensor_within_a_transformation_is_named() -> None:
    def load(weight: torch.Tensor) -> torch.Tensor:
        with pytest.raises(RecordError, match="weight: PyTorch gives no numbers of this tensor"):
            pytorch.load_state_dict(nn.Linear(2, 1, bias=False), {"weight": weight})
        return weight

    torch.func.vmap(load)(torch.ones(3, 1, 2))


def test_masks_of_numpy_are_not_lost() -> None:
    values = np.ma.masked_array([1.0, 2.0], [True, False])
    with pytest.raises(KindError, match=r"a masked array; .*filled"):
        px.tensor(values)
    with pytest.raises(RecordError, match=r"^a: a masked array.*filled"):
        px.record.Record({"a": values})
    assert px.tensor(np.ma.masked_array([1.0, 2.0])).tolist() == [1, 2]
