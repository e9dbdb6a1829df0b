"""Averaging gradients over processes that each compute on their rows of a global batch."""

from __future__ import annotations

from typing import Any, TypeAlias

from phlox.backend import Backend, Float
from phlox.backend.contract.collectives import Later, Presence
from phlox.module.module import Module
from phlox.module.param import Param, ParamId
from phlox.tensor import Tensor

AnyTensor: TypeAlias = Tensor[Any, Any, Any]


def averaged(gradients: dict[ParamId, AnyTensor], module: Module) -> dict[ParamId, AnyTensor]:
    """The mean over all processes of the gradients of a module, bit-identical on each of them.

    If no process has a gradient of a parameter, the result has none. Zeros are sent for it, so that all processes send
    the same arrays and no process hangs. Gradients of single examples, inside `phlox.vmap`, are not averaged. A
    gradient with a history keeps it.

    Raises `DistributedError`, in all processes, if only some of them have a gradient of a parameter.
    """
    if any(x.backend.batched for x in gradients.values()):
        return gradients
    # A gradient in slices is already the mean. If only its parameter is in slices, it is scattered into slices.
    means: dict[ParamId, AnyTensor] = {id: x for id, x in gradients.items() if x.backend.is_slice(x.primitive)}
    pending: list[tuple[ParamId, Backend, Later]] = []
    named: list[tuple[str, Param]] = []
    for path, param in module.named_params():
        if not (param.trained and param.backend.differentiates) or param.id in means:
            continue
        if not (param.is_initialized and param.backend.is_slice(param.val().primitive)):
            named.append((path, param))
        elif (own := gradients.get(param.id)) is not None:
            value = param.val().detach().primitive
            pending.append((param.id, own.backend, own.backend.scattered_like(own.primitive, value)))
    groups: dict[Backend, list[tuple[str, Param]]] = {}
    default_backend = next((x.backend for x in gradients.values()), None)
    for path, param in named:
        own = gradients.get(param.id)
        backend = (default_backend or param.backend.without_tape()) if own is None else own.backend
        groups.setdefault(backend or param.backend, []).append((path, param))
    for backend, members in groups.items():
        owned = [gradients.get(param.id) for _, param in members]
        presence = Presence(tuple([path for path, _ in members]), tuple([x is not None for x in owned]))
        sent = [
            _zeros(param, backend) if x is None else x.primitive for x, (_, param) in zip(owned, members, strict=True)
        ]
        for x, (_, param), mean in zip(owned, members, backend.all_reduce(sent, "mean", presence), strict=True):
            if x is not None:
                means[param.id] = Tensor.from_primitive(mean, backend, Float)
    for id, backend, later in pending:
        means[id] = Tensor.from_primitive(later.finish(), backend, Float)
    return means


def _zeros(param: Param, backend: Backend) -> Any:
    return backend.float_full(param.shape, 0.0, param.device.on(backend))
