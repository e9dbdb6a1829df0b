"""Stacking modules of one architecture into one with a new first axis: for ensembles and scans over layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from phlox.errors import ModuleError
from phlox.module.foreign_leaf import described
from phlox.module.module import Module
from phlox.module.param import Param
from phlox.module.structure import difference
from phlox.tensor import stack

M = TypeVar("M", bound=Module)


def stack_modules(modules: Sequence[M]) -> M:
    """Stack the parameters of several modules on a new first axis, as one module.

    Use it for `phlox.vmap` (an ensemble) and `phlox.scan` (a deep network of equal layers). The result is a new model,
    with new ids. Raises `ModuleError` if there are no modules, or if their structures differ; it names the path of the
    first difference.

    >>> import phlox as px
    >>> from phlox import nn
    >>> px.stack_modules([nn.Linear(3, 2), nn.Linear(3, 2)]).weight.shape
    (2, 3, 2)
    """
    if not modules:
        raise ModuleError("stack_modules: there are no modules to stack")
    for module in modules:
        if not isinstance(module, Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ModuleError(f"stack_modules: a sequence of modules is expected, got {described(module)} in it")
    structures = [module.structure() for module in modules]
    for place, structure in enumerate(structures):
        found = difference(structures[0].skeleton, structure.skeleton)
        if found is not None:
            raise _unlike(f"`{found[0]}`" if found[0] else "the module itself", found[1], place, found[2])
    others = [dict(structure.named()) for structure in structures]

    def piled(path: str, param: Param) -> Param:
        values: list[Any] = []
        for place, found in enumerate(others):
            twin = found[path]
            if twin.shape != param.shape or twin.mark != param.mark:
                raise _unlike(f"`{path}`", repr(param), place, repr(twin))
            values.append(twin.val().detach())
        return param.another(stack(values))

    return modules[0].map(piled)


def _unlike(what: str, first: str, place: int, other: str) -> ModuleError:
    return ModuleError(
        f"stack_modules: {what} is {first} in the first module, and {other} in module {place}; modules that are "
        "stacked must be built alike"
    )


def unstack_modules(module: M) -> list[M]:
    """Split a module that `stack_modules` made into its parts, each with new ids.

    Raises `ModuleError` if the first axes of the parameters differ in size, or if a parameter has no axis.

    >>> import phlox as px
    >>> from phlox import nn
    >>> len(px.unstack_modules(px.stack_modules([nn.Linear(3, 2), nn.Linear(3, 2)])))
    2
    """
    sizes: dict[int | None, str] = {}
    for path, param in module.named_params():
        sizes.setdefault(param.shape[0] if param.shape else None, path)
    if len(sizes) != 1 or None in sizes:
        have = ", ".join(f"`{path}` of {dict(module.named_params())[path].shape}" for path in sizes.values())
        raise ModuleError(
            f"unstack_modules: the parameters have no first axis in common ({have or 'there are none'}); give what "
            "stack_modules has made"
        )
    (count,) = sizes
    assert count is not None

    def one(number: int) -> M:
        def entry(path: str, param: Param) -> Param:
            return param.another(param.val().detach()[number])

        return module.map(entry)

    return [one(number) for number in range(count)]
