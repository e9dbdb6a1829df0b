"""`GradientsParams`: the gradients of a module's parameters."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, ItemsView, Iterator, Sequence
from functools import partial, reduce
from typing import Any, TypeAlias

import numpy as np

from phlox.backend import Backend
from phlox.backend.parallel import are_gradients_local, row_group
from phlox.backend.pytree import ITEM, Container, PyTreeNode, register_container, register_node
from phlox.errors import ModuleError
from phlox.host.text import html_by
from phlox.module.averaging import averaged
from phlox.module.module import Module
from phlox.module.param import ParamId
from phlox.module.tree.aux_data import ids_for_calls, ids_of_call
from phlox.tensor import Gradients, Tensor, where
from phlox.tensor import tensor as as_tensor

AnyTensor: TypeAlias = Tensor[Any, Any, Any]


_LEAST_SQUARE = 1e-24
"""The least sum of squares in f32 in which no significant element has underflowed."""


def norm_of(tensors: Sequence[AnyTensor]) -> AnyTensor:
    """The Euclidean norm of the elements of all tensors, of rank zero, at f32 or higher.

    If the sum of squares overflows or underflows, elements are divided by the largest one first. A compiled program
    cannot test this, so it always divides.
    """
    wide = [x.to_full_precision() for x in tensors if 0 not in x.shape]
    if not wide:
        return as_tensor(0.0) if not tensors else tensors[0].to_full_precision().sum()
    if not any(x.backend.batched or x.backend.is_traced(x.primitive) for x in wide):
        with np.errstate(over="ignore"):  # NumPy would warn of an overflow that is handled below
            total = _reduce([x.square().sum() for x in wide], operator.add)
        value = total.detach().item()
        if _LEAST_SQUARE < value < math.inf:
            return total.sqrt()
    greatest = _reduce([x.detach().abs().max() for x in wide], lambda a, b: a.maximum(b))
    scale = where((greatest > 0.0) & greatest.isfinite(), greatest, 1.0)
    parts = [(x / (scale if scale.device == x.device else scale.to_device(x.device))).square().sum() for x in wide]
    return _reduce(parts, operator.add).sqrt() * scale


def _reduce(tensors: Sequence[AnyTensor], combine: Callable[[Any, Any], Any]) -> AnyTensor:
    device = tensors[0].device
    return reduce(combine, [x if x.device == device else x.to_device(device) for x in tensors])


class GradientsParams:
    """The gradients of a module's parameters, on the inner backend, by parameter id; a PyTree of their arrays.

    >>> import phlox as px
    >>> from phlox import nn, optim
    >>> from phlox.backend import Autodiff, NumPy
    >>> model = nn.Linear(2, 1, device=Autodiff(NumPy()).device())
    >>> x = px.ones((4, 2), device=Autodiff(NumPy()))
    >>> len(optim.GradientsParams.from_grads(model(x).sum().backward(), model))
    2
    """

    __slots__ = ("_tensors", "_traced_ids")

    def __init__(self, tensors: dict[ParamId, Tensor[Any, Any, Any]]) -> None:
        self._tensors = tensors

    @classmethod
    def from_grads(cls, grads: Gradients, module: Module) -> GradientsParams:
        """The gradients of the parameters of `module` that the differentiated tensor depended on.

        If each process computes on its rows of a global batch (`with mesh:` on PyTorch and NumPy, see
        `phlox.distributed.Mesh`), the gradients are the mean over all processes, so that all take the same step. All
        processes must call this in the same order.

        Raises `DistributedError` if only some processes have a gradient of a parameter, and `ModuleError` if two
        parameters were one leaf of the tape, so that there is only one gradient for both.
        """
        gradients: dict[ParamId, Tensor[Any, Any, Any]] = {}
        old_structure = module._phlox_structure  # pyright: ignore[reportPrivateUsage]
        structure = module.structure()
        if structure is not old_structure:
            for owner, first, second in structure.were_one_leaf:
                if owner.is_initialized and owner.val().grad(grads) is not None:
                    raise ModuleError(
                        f"`{first}` and `{second}` were one leaf of the tape when this gradient was computed (views by "
                        "`freeze` or `map` share it), so it is the gradient of both together; copy the module with "
                        "copy.deepcopy, or call params() of the whole model before it computes anything"
                    )
        for param in structure.params:
            # On any backend: a tape may cross several.
            if param.trained and param.is_initialized:
                value = param._tensor  # pyright: ignore[reportPrivateUsage]
                backend = param.backend if value is None else value._ops.backend  # pyright: ignore[reportPrivateUsage]
                if backend.differentiates and (gradient := param.val().grad(grads)) is not None:
                    gradients[param.id] = gradient
        return of_rows(gradients, module)

    def get(self, id: ParamId) -> Tensor[Any, Any, Any] | None:
        """The gradient of a parameter, or None."""
        return self._tensors.get(id)

    def map(self, fn: Callable[[Tensor[Any, Any, Any]], Tensor[Any, Any, Any]]) -> GradientsParams:
        """The gradients after `fn` was applied to each."""
        return type(self)({id: fn(tensor) for id, tensor in self._tensors.items()})

    def where(self, condition: Tensor[Any, Any, Any], other: float) -> GradientsParams:
        """The gradients where `condition`, a Bool of rank zero, is true, and `other` in place of every element if not.

        >>> import phlox as px
        >>> from phlox.optim import GradientsParams
        >>> grads = GradientsParams({"weight": px.tensor([1.0, 2.0])})
        >>> grads.where(px.tensor(False), 0.0).get("weight").tolist()
        [0.0, 0.0]
        """
        return self.map(
            lambda grad: where(
                condition if condition.device == grad.device else condition.to_device(grad.device), grad, other
            )
        )

    def norm(self) -> Tensor[Any, Any, Any]:
        """The Euclidean norm of all gradients together, as a Float of rank zero at f32 or higher.

        The squares of large gradients do not overflow, and those of tiny ones do not vanish.

        >>> import phlox as px
        >>> from phlox import nn
        >>> loss, grads = px.value_and_grad(lambda m: m(px.ones((1, 3))).sum())(nn.Linear(3, 1).train())
        >>> grads.norm().item()
        2.0
        """
        return norm_of(list(self._tensors.values()))

    def isfinite(self) -> Tensor[Any, Any, Any]:
        """Are all elements of all gradients finite? A Bool of rank zero."""
        if not self._tensors:
            return as_tensor(True)
        return _reduce([x.isfinite().all() for x in self._tensors.values()], lambda a, b: a & b)

    @property
    def backend(self) -> Backend | None:
        """The backend of the first gradient; None without gradients."""
        return next((x.backend for x in self._tensors.values()), None)

    def items(self) -> ItemsView[ParamId, Tensor[Any, Any, Any]]:
        """Pairs of parameter id and gradient."""
        return self._tensors.items()

    def __iter__(self) -> Iterator[ParamId]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(of {len(self)} parameters)"

    _repr_html_ = html_by("phlox.module.pages", "page_of_gradients")


class LocalGradients(GradientsParams):
    """Gradients of the rows of this process alone, from within `px.distributed.no_sync()`; optimizers refuse them."""

    __slots__ = ()


def of_rows(gradients: dict[ParamId, AnyTensor], module: Module) -> GradientsParams:
    """The gradients of a module: the mean of the gradients of each process's rows, unless they stay local."""
    if row_group() is None:
        return GradientsParams(gradients)
    return LocalGradients(gradients) if are_gradients_local() else GradientsParams(averaged(gradients, module))


def _flatten(grads: GradientsParams) -> tuple[tuple[AnyTensor, ...], tuple[ParamId, ...]]:
    ids = ids_for_calls(tuple(grads), getattr(grads, "_traced_ids", None))
    return tuple([tensor for _, tensor in grads.items()]), ids


def _flatten_with_keys(grads: GradientsParams) -> tuple[list[tuple[tuple[str, ParamId], AnyTensor]], Any]:
    return [((ITEM, id), tensor) for id, tensor in grads.items()], tuple(grads)


def _unflatten(cls: type[GradientsParams], ids: tuple[ParamId, ...], tensors: Any) -> GradientsParams:
    call_ids = ids_of_call(ids)
    grads = cls(dict(zip(call_ids, tensors, strict=True)))
    if call_ids is not ids:
        grads._traced_ids = ids  # pyright: ignore[reportPrivateUsage]
    return grads


for _cls in (GradientsParams, LocalGradients):
    register_node(PyTreeNode(_cls, _flatten, partial(_unflatten, _cls), _flatten_with_keys))
register_container(
    Container(
        "gradients",
        lambda cls: issubclass(cls, GradientsParams),
        lambda grads: enumerate(tensor for _, tensor in grads.items()),
        lambda number: f", gradient {number}",
        build=lambda like, parts: type(like)(dict(zip(like, parts, strict=True))),
        make=lambda cls, keys, parts: cls(dict(zip(keys, parts, strict=True))),
    )
)
