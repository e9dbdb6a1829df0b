"""Adapters by name: small trained parts beside a frozen model, of which several can be in one model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from phlox.backend import Int
from phlox.errors import ConfigError, ModuleError, ShapeError
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
    params = [site.param for site in Sites(model, computed=True).found.values()]
    return list(dict.fromkeys(name for param in params for part in adapted_in(param) for name in part.adapters))


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

    def choose(part: Adapted) -> Adapted:
        nonlocal rows
        if by_rows:
            if rows is None:  # one for all: the model has it once
                numbers = np.array([-1 if name == NO_ADAPTER else names.index(name) for name in chosen], np.int32)
                rows = Buffer(tensor(numbers, device=part.device), saved=False)
            part.active, part.order, part.rows = (), tuple(names), rows
        else:
            part.active = tuple((name, float(factor)) for name, factor in factors.items() if name in part.adapters)
            part.order, part.rows = (), None
        return part

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

    def drop(part: Adapted) -> Any:
        rest = {name: adapter for name, adapter in part.adapters.items() if names and name not in names}
        if not rest:
            return part.base
        for name in set(part.adapters) - set(rest):
            del part.adapters[name]
        part.active = tuple([(name, factor) for name, factor in part.active if name in rest])
        return part

    return _changed(model, drop)


def adapted(model: M, which: Selector, name: str, adapt: Callable[[Site], Adapted], train: Selector | None = None) -> M:
    """A view of the model with the adapter `name` at the selected parameters too, which is the one that is used.

    Everything is frozen but this adapter, at all parameters that have it, and what `train` selects.
    """
    if not name or "." in name or name == NO_ADAPTER:
        raise ConfigError(f"an adapter's name must not be empty, {NO_ADAPTER!r} or contain a dot, got {name!r}")
    sites = Sites(model)
    sites.freeze()
    changed: dict[str, Any] = {}
    for path, site in sites.select(which).items():
        try:
            changed[path] = adapt(site)
        except ModuleError as error:
            raise ModuleError(f"{path}: {error}") from error
    for site in sites.found.values():
        for part in adapted_in(site.param):
            for param in params_of(part.adapters.get(name)):
                param.set_trained(True)
    view = use_adapters(sites.replace(changed), name)
    return view if train is None else view.unfreeze(train)


def params_of(adapter: Any) -> list[Param]:
    """The parameters of an adapter that training changes: a module's, or a parameter itself."""
    return adapter.params() if isinstance(adapter, Module) else [] if adapter is None else [adapter]


def adapted_in(param: Any) -> Iterator[Adapted]:
    """What adapts a parameter, from the outermost: a parameter may have adapters of several kinds."""
    while isinstance(param, Reparameterization):
        if isinstance(param, Adapted):
            yield param
        param = param.base


def _changed(model: M, change: Callable[[Adapted], Any]) -> M:
    def changed(param: Any) -> Any:
        if not isinstance(param, Reparameterization):
            return param
        base = changed(param.base)
        if base is not param.base:
            param.base = base
        return change(param) if isinstance(param, Adapted) else param

    sites = Sites(model, computed=True)
    return sites.replace({path: changed(site.param) for path, site in sites.found.items()})
