"""Stacking modules of one architecture into one with a new first axis: for ensembles and scans over layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from phlox.errors import ModuleError
from phlox.module.module import Module
from phlox.module.param import Param
from phlox.module.structure import difference
from phlox.other_names import class_of
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
            raise ModuleError(f"stack_modules: a sequence of modules is expected, got {class_of(module)} in it")
    structures = [module.structure() for module in modules]
    for index, structure in enumerate(structures):
        mismatch = difference(structures[0].skeleton, structure.skeleton)
        if mismatch is not None:
            raise _unlike(f"`{mismatch[0]}`" if mismatch[0] else "the module itself", mismatch[1], index, mismatch[2])
    others = [dict(structure.named()) for structure in structures]

    def stack_values(path: str, param: Param) -> Param:
        values: list[Any] = []
        for index, params in enumerate(others):
            twin = params[path]
            if twin.shape != param.shape or twin.mark != param.mark:
                raise _unlike(f"`{path}`", repr(param), index, repr(twin))
            values.append(twin.val().detach())
        return param.another(stack(values))

    return modules[0].map(stack_values)


def _unlike(part: str, first: str, index: int, other: str) -> ModuleError:
    return ModuleError(
        f"stack_modules: {part} is {first} in the first module, and {other} in module {index}; stacked "
        "modules must have the same structure"
    )


def unstack_modules(module: M) -> list[M]:
    """Split the result of `stack_modules` into its members, each with new ids.

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
        shapes = ", ".join(f"`{path}` of {dict(module.named_params())[path].shape}" for path in sizes.values())
        raise ModuleError(
            f"unstack_modules: the parameters have no first axis in common ({shapes or 'there are none'}); give the "
            "result of stack_modules"
        )
    (count,) = sizes
    assert count is not None

    def member(number: int) -> M:
        def take(path: str, param: Param) -> Param:
            return param.another(param.val().detach()[number])

        return module.map(take)

    return [member(number) for number in range(count)]
