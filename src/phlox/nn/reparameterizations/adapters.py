"""Adapters by name: small trained parts beside a frozen model, of which several can be in one model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from phlox.backend import Int
from phlox.errors import ModuleError, ShapeError
from phlox.module import Buffer, Module, Param
from phlox.module.reparameterization import Reparameterization, Site, Sites
from phlox.module.select import Selector
from phlox.tensor import Tensor, tensor

M = TypeVar("M", bound=Module)

NO_ADAPTER = "base"
"""Stands for the model without an adapter, among the adapters of the rows of a batch."""


class Adapted(Reparameterization):
    """The base of `Lora` and `Ia3`: a frozen parameter, adapters by name, and which of them are used."""

    base: Param | Reparameterization
    active: tuple[tuple[str, float], ...]
    """The adapters that are used, each with a factor."""
    order: tuple[str, ...]
    """The adapters that the numbers in `rows` mean."""
    rows: Buffer | None
    """For each row of a batch the number of its adapter; -1 for none."""

    def _start(self, base: Any, name: str) -> None:
        self.base = base
        self.active, self.order, self.rows = ((name, 1.0),), (), None

    @property
    def adapters(self) -> dict[str, Any]:
        """The adapters by name."""
        raise NotImplementedError

    def weights(self, x: Tensor | None) -> list[tuple[Any, Any]]:
        """The adapters that are used, each with its factor for the result: a number or, by rows of x, a tensor."""
        adapters = self.adapters
        if self.rows is None:
            return [(adapters[name], factor) for name, factor in self.active if name in adapters]
        if x is None:
            raise ModuleError(
                "the rows of a batch have adapters of their own, so that this parameter has no single value; "
                "choose one adapter with phlox.use_adapters(model, name)"
            )
        rows: Tensor[Any, Any, Int] = self.rows.val()
        if x.ndim < 1 or rows.shape != x.shape[:1]:
            raise ShapeError(
                f"use_adapters: there are adapters for {rows.shape[0]} rows, and this batch has the shape {x.shape}"
            )
        shape = (*rows.shape, *(1 for _ in x.shape[1:]))
        return [
            (adapters[name], (rows == number).float().reshape(shape))
            for number, name in enumerate(self.order)
            if name in adapters
        ]


def without_adapters_of(param: Param | Reparameterization) -> Param | Reparameterization:
    """What a parameter is below its adapters."""
    return without_adapters_of(param.base) if isinstance(param, Adapted) else param


def adapter_names(model: Module) -> list[str]:
    """The names of the adapters in a model.

    >>> import phlox as px
    >>> adapter_names(px.lora(px.nn.Linear(4, 4), "weight", rank=2, name="french"))
    ['french']
    """
    names: dict[str, None] = {}
    for site in _adapted(model).values():
        names.update(dict.fromkeys(site.adapters))
    return list(names)


def use_adapters(model: M, which: str | Sequence[str] | Mapping[str, float] | None) -> M:
    """A view of a model that uses some of its adapters; the model itself is unchanged.

    Args:
        model: with adapters, see `lora` and `ia3`.
        which: the name of one; a dict of names and factors, for their weighted sum; None for none. A list of names is
            the adapter of each row of a batch ("base" for none): a call then takes batches of just this size. The
            numbers of the rows are an argument of compiled functions, so another list of the same length does not
            compile anew.

    Raises `ModuleError` for a name that is not in the model.

    >>> import phlox as px
    >>> model = px.lora(px.nn.Linear(4, 4).init(0), "weight", rank=2, name="french")
    >>> model = px.lora(model, "weight", rank=2, name="german")
    >>> mixed = px.use_adapters(model, {"french": 0.5, "german": 0.5})
    >>> px.use_adapters(model, ["german", "base", "french"])(px.ones((3, 4))).shape
    (3, 4)
    """
    names = adapter_names(model)
    chosen: list[str] = [which] if isinstance(which, str) else list(which or ())
    for name in chosen:
        if name not in names and not (name == NO_ADAPTER and not isinstance(which, (str, Mapping))):
            raise ModuleError(f"use_adapters: the model has no adapter {name!r}; it has {', '.join(names) or 'none'}")
    by_rows = which is not None and not isinstance(which, (str, Mapping))
    factors = which if isinstance(which, Mapping) else dict.fromkeys(chosen, 1.0)
    rows: Buffer | None = None

    def choose(site: Adapted) -> Adapted:
        nonlocal rows
        if by_rows:
            if rows is None:  # one for all: the model has it once
                numbers = np.array([-1 if name == NO_ADAPTER else names.index(name) for name in chosen], np.int32)
                rows = Buffer(tensor(numbers, device=site.device), saved=False)
            site.active, site.order, site.rows = (), tuple(names), rows
        else:
            site.active = tuple((name, float(factor)) for name, factor in factors.items() if name in site.adapters)
            site.order, site.rows = (), None
        return site

    return _changed(model, choose)


def without_adapters(model: M, *names: str) -> M:
    """A view of a model without the adapters of these names; without names, without any: the original model.

    >>> import phlox as px
    >>> [path for path, _ in without_adapters(px.lora(px.nn.Linear(4, 4), "weight", rank=2)).named_params()]
    ['weight', 'bias']
    """
    present = adapter_names(model)
    for name in names:
        if name not in present:
            raise ModuleError(
                f"without_adapters: the model has no adapter {name!r}; it has {', '.join(present) or 'none'}"
            )

    def drop(site: Adapted) -> Any:
        rest = {name: adapter for name, adapter in site.adapters.items() if names and name not in names}
        if not rest:
            return site.base
        for name in set(site.adapters) - set(rest):
            del site.adapters[name]
        site.active = tuple([(name, factor) for name, factor in site.active if name in rest])
        return site

    return _changed(model, drop)


def adapted(model: M, which: Selector, adapt: Callable[[Site], Adapted], train: Selector | None) -> M:
    """A view of the model with adapters at the selected parameters; all else is frozen but what `train` selects."""
    sites = Sites(model)
    sites.freeze()
    changed: dict[str, Any] = {}
    for path, site in sites.select(which).items():
        try:
            changed[path] = adapt(site)
        except ModuleError as error:
            raise ModuleError(f"{path}: {error}") from error
    view = sites.replace(changed)
    return view if train is None else view.unfreeze(train)


def _adapted(model: Module) -> dict[str, Adapted]:
    sites = Sites(model, computed=True).found
    return {path: site.param for path, site in sites.items() if isinstance(site.param, Adapted)}


def _changed(model: M, change: Callable[[Adapted], Any]) -> M:
    sites = Sites(model, computed=True)
    adapted = {path: cast("Any", site.param) for path, site in sites.found.items() if isinstance(site.param, Adapted)}
    return sites.replace({path: change(param) for path, param in adapted.items()})
