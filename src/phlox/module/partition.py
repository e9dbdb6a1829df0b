"""`partition` and `combine`: a module as two trees, one of them with the trained parameters."""

from __future__ import annotations

from typing import TypeVar

from phlox.errors import ModuleError
from phlox.module.foreign_leaf import ForeignLeaf
from phlox.module.module import Module
from phlox.module.param import Param
from phlox.module.select import Selector, select
from phlox.tensor.dispatch import ops_of

M = TypeVar("M", bound=Module)


def partition(model: M, *which: Selector) -> tuple[M, M]:
    """Two modules of one tree: one has the selected parameters, the other the rest, and None in place of the others.

    Without `which`, the trained parameters are selected; so frozen ones, running statistics and integers are in
    the second. `which` is as in `Module.freeze`. `combine` joins the two again. This is how a model is trained in
    plain JAX: gradients, optimizers and weight decay of Optax see one of the two.

    Raises `ModuleError` for a pattern that matches nothing.

    >>> import phlox as px
    >>> from phlox import nn
    >>> trained, rest = px.partition(nn.Sequential([nn.Linear(2, 3), nn.BatchNorm(3)]).freeze("layers.0.bias"))
    >>> trained.layers[0].weight.leaf is None, trained.layers[0].bias.leaf is None, rest.layers[0].weight.leaf is None
    (False, True, True)
    """
    if which:
        selected = set(select(model, *which))
    else:
        selected = {path for path, param in model.named_params() if param.trained}
    structure = model.structure()

    def part(inside: bool) -> M:
        named = structure.named()
        return structure.build([p.view() if (path in selected) is inside else _absent(path, p) for path, p in named])

    return part(True), part(False)


def combine(*parts: M) -> M:
    """The module whose parameters are in these parts, each in one of them; the inverse of `partition`.

    Raises `ModuleError`, with the path, for a parameter that is in none or in several of the parts, and for parts of
    different models.

    >>> import phlox as px
    >>> from phlox import nn
    >>> model = nn.Linear(2, 3).init(0)
    >>> px.combine(*px.partition(model, "bias")).weight.val() is model.weight.val()
    True
    """
    if not parts:
        raise ModuleError("combine: expected the parts of a model, got none")
    structures = [part.structure() for part in parts]
    first = structures[0]
    for number, other in enumerate(structures[1:], 1):
        if other.paths != first.paths:
            path = min({*first.paths} ^ {*other.paths}, default="its order")
            raise ModuleError(
                f"combine: part {number} is not of the same model as the first one; they differ in `{path}`"
            )
    params: list[Param] = []
    for number, path in enumerate(first.paths):
        present = [structure.params[number] for structure in structures if not _is_absent(structure.params[number])]
        if len(present) != 1:
            where = "none" if not present else f"{len(present)}"
            raise ModuleError(f"combine: `{path}` is in {where} of the {len(parts)} parts; it must be in one")
        params.append(present[0].within())
    return first.build(params)


def _absent(path: str, param: Param) -> Param:
    placeholder = ForeignLeaf(None, ops_of(param.backend, param.kind), path)
    return Param.without_array(placeholder, param.trained, param.trainable, param.id, param.full_precision)


def _is_absent(param: Param) -> bool:
    placeholder = param._deferred  # pyright: ignore[reportPrivateUsage]
    return isinstance(placeholder, ForeignLeaf) and placeholder.leaf is None
