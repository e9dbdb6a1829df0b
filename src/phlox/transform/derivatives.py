"""Jacobians and Hessians, and products with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, cast

from phlox.backend import Float
from phlox.backend.levels import entered
from phlox.errors import AutodiffError, KindError, ShapeError
from phlox.module import GradientsParams, Module
from phlox.tensor import Gradients, Tensor, stack, zeros_like
from phlox.transform.grad import grad
from phlox.transform.leaves import Leaves, one_number, select_arguments
from phlox.transform.tree import AnyTensor, map_tensors, parts_of, tensors_of

Function: TypeAlias = Callable[..., Any]


def vjp(fn: Function, *inputs: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """The vector-Jacobian product: returns `fn(*inputs)`, and a function from a cotangent to the inputs' gradients.

    Inputs are Float tensors, modules, or lists, tuples, dicts and dataclasses of them. The result is a structure of
    Float tensors, and the cotangent has the same structure and shapes. The gradient of a module is a `GradientsParams`.
    The returned function can be called many times. Raises `KindError` if inputs or results are not Float, `ShapeError`
    if a cotangent does not fit.

    >>> import phlox as px
    >>> y, pull = px.vjp(lambda x: x * x, px.tensor([1.0, 2.0]))
    >>> pull(px.tensor([1.0, 10.0]))[0].tolist()
    [2.0, 40.0]
    """
    leaves = Leaves("vjp", inputs)
    with entered(leaves.level):
        y = fn(*leaves.structure)
    roots = _floats("vjp", y)
    leaves.write_back()

    def pull(cotangent: Any) -> tuple[Any, ...]:
        cotangents = _fitting("vjp", "cotangent", cotangent, roots)
        return leaves.collect(_backward(leaves, roots, cotangents), zeros=True)

    return leaves.down(y), pull


def jvp(fn: Function, inputs: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """The Jacobian-vector product: returns `fn(*inputs)`, and its derivative in the direction of the tangents.

    Inputs and results are as in `vjp`. The tangents have the structure and shapes of the inputs; the tangent of a
    module is a `GradientsParams`. It differentiates the gradient of `vjp` with respect to the cotangent, and so costs
    about twice as much as `vjp`.

    >>> import phlox as px
    >>> y, dy = px.jvp(lambda x: x * x, (px.tensor([1.0, 2.0]),), (px.tensor([1.0, 10.0]),))
    >>> dy.tolist()
    [2.0, 40.0]
    """

    def apply(arguments: Any) -> Any:
        return fn(*arguments)

    y, cotangents, gradients = _transposed("jvp", apply, tuple(inputs))
    directions = _fitting("jvp", "tangent", _directions("jvp", tuple(tangents), gradients), tensors_of(gradients))
    return y, cotangents.collect(_backward(cotangents, tensors_of(gradients), directions), zeros=True)


def hvp(fn: Function, at: Any, direction: Any) -> Any:
    """The Hessian-vector product: the Hessian of `fn` at a point, times a direction.

    `fn` takes the point and returns a scalar tensor. The point is a Float tensor, a module, or a list, tuple, dict or
    dataclass of them. The direction and the result have its structure and shapes, with `GradientsParams` for a module.
    It costs about two gradients (Pearlmutter 1994: "Fast exact multiplication by the Hessian").

    >>> import phlox as px
    >>> px.hvp(lambda x: (x * x * x).sum(), px.tensor([1.0, 2.0]), px.tensor([1.0, 1.0])).tolist()
    [6.0, 12.0]
    """
    if isinstance(at, Module):
        at = at.init().train()
    leaves = Leaves("hvp", at)
    with entered(leaves.level):
        inner = Leaves("hvp", leaves.structure)
        with entered(inner.level):
            y = one_number("hvp", _single("hvp", fn(inner.structure)))
        root = inner.root(y)
        gradient = inner.collect(None if root is None else inner.backward(root), zeros=True)
        inner.write_back()
    gradients = tensors_of(gradient)
    directions = _fitting("hvp", "direction", _directions("hvp", direction, gradient), gradients)
    result = leaves.collect(_backward(leaves, gradients, directions), zeros=True)
    leaves.write_back()
    return result


def jacobian(fn: Function, argnums: int | Sequence[int] = 0) -> Function:
    """A function that returns the Jacobian of `fn` with respect to an argument, by default the first.

    If result and argument are Float tensors of shapes `y` and `x`, the Jacobian has shape [*y, *x]. They can also be
    structures of tensors; the argument can hold modules too. Then the Jacobian has a structure like the argument in
    place of each tensor of the result. `argnums` is as in `value_and_grad`; other arguments are passed unchanged. The
    cost is one backward pass per element of the result or of the argument, whichever has fewer.

    >>> import phlox as px
    >>> px.jacobian(lambda x: x * x.sum())(px.tensor([1.0, 2.0])).tolist()
    [[4.0, 1.0], [2.0, 5.0]]
    """

    def evaluate(*arguments: Any, **options: Any) -> Any:
        target, replace = select_arguments("jacobian", argnums, arguments)

        def of_target(value: Any) -> Any:
            return fn(*replace(value), **options)

        leaves = Leaves("jacobian", target)
        with entered(leaves.level):
            y = of_target(leaves.structure)
        roots = _floats("jacobian", y)
        if sum(x.size for x in roots) <= sum(entry.original.size for entry in leaves.entries()):
            leaves.write_back()
            return map_tensors(lambda root: _rows(leaves, root), y)
        y, cotangents, gradients = _transposed("jacobian", of_target, target)
        columns = [(x, iter(tensors_of(_rows(cotangents, x)))) for x in tensors_of(gradients)]

        def of_result(result: AnyTensor) -> Any:
            transposed = iter([_transpose_block(next(blocks), x.ndim) for x, blocks in columns])
            return map_tensors(lambda _: next(transposed), gradients)

        return map_tensors(of_result, y)

    return evaluate


def hessian(fn: Function, argnums: int | Sequence[int] = 0) -> Function:
    """A function that returns the Hessian of `fn` with respect to an argument, by default the first.

    `fn` returns a scalar tensor. For a Float tensor of shape `x` the Hessian has shape [*x, *x]. For a structure (see
    `jacobian`) it has a structure of second derivatives in place of each tensor. The cost is one backward pass per
    element of the argument; for products with a direction see `hvp`.

    >>> import phlox as px
    >>> px.hessian(lambda x: x.prod())(px.tensor([2.0, 3.0])).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """

    def number(*arguments: Any, **options: Any) -> AnyTensor:
        return one_number("hessian", _single("hessian", fn(*arguments, **options)))

    return jacobian(grad(number, argnums), argnums)


# --- parts


def _floats(name: str, y: Any) -> list[AnyTensor]:
    """The tensors of a result, which must be Float."""
    tensors = tensors_of(y)
    if not tensors or any(x.kind is not Float for x in tensors):
        got = ", ".join(x.kind.__name__ for x in tensors) or type(y).__name__
        raise KindError(f"{name}: the function must return Float tensors, got {got}")
    return tensors


def _single(name: str, y: Any) -> AnyTensor:
    if not isinstance(y, Tensor):
        raise KindError(f"{name}: the function must return a Float tensor, got {type(y).__name__}")
    return cast("AnyTensor", y)


def _directions(name: str, directions: Any, like: Any) -> Any:
    """Directions in the order of the gradients that they are multiplied with; a module's are matched by id."""
    if isinstance(like, GradientsParams):
        if not isinstance(directions, GradientsParams):
            got = type(directions).__name__
            raise AutodiffError(
                f"{name}: the direction for a module is GradientsParams, as phlox.grad gives, got {got}"
            )
        return [zeros_like(g) if (v := directions.get(id)) is None else v for id, g in like.items()]
    parts, like_parts = parts_of(directions), parts_of(like)
    if parts is None or like_parts is None or len(parts) != len(like_parts):
        return directions
    by_label = dict(parts)  # the keys of a dict may come in another order
    return [_directions(name, by_label.get(label), part) for label, part in like_parts]


def _fitting(name: str, role: str, value: Any, like: Sequence[AnyTensor]) -> list[AnyTensor]:
    tensors = tensors_of(value)
    shapes, expected = [x.shape for x in tensors], [x.shape for x in like]
    if shapes != expected:
        raise ShapeError(f"{name}: the {role} must have shape {_listed(expected)}, got {_listed(shapes)}")
    return tensors


def _listed(shapes: list[tuple[int, ...]]) -> str:
    return " and ".join(map(str, shapes)) or "of no tensor"


def _dot(leaves: Leaves, xs: Iterable[AnyTensor], ys: Iterable[AnyTensor]) -> AnyTensor | None:
    """The sum of the elementwise products of results xs with ys; None if it does not depend on any leaf."""
    total: AnyTensor | None = None
    for x, y in zip(xs, ys, strict=True):
        root = leaves.root(x)
        if root is not None:
            part = (root * y).sum()
            total = part if total is None else total + part
    return total


def _backward(leaves: Leaves, xs: Iterable[AnyTensor], ys: Iterable[AnyTensor]) -> Gradients | None:
    total = _dot(leaves, xs, ys)
    return None if total is None else leaves.backward(total, retain=True)


def _transposed(name: str, fn: Function, inputs: Any) -> tuple[Any, Leaves, Any]:
    """A result, leaves for its cotangents, and the gradients of the inputs, which are linear in the cotangents."""
    leaves = Leaves(name, inputs, above=2)
    with entered(leaves.level):
        y = fn(leaves.structure)
    roots = _floats(name, y)
    leaves.write_back()
    result = leaves.down(y)
    cotangents = Leaves(name, map_tensors(zeros_like, result), at=leaves.depth - 1)
    gradients = leaves.collect(_backward(leaves, roots, tensors_of(cotangents.structure)), zeros=True)
    return result, cotangents, gradients


def _rows(leaves: Leaves, y: AnyTensor) -> Any:
    """The gradients of every element of y: a structure like the leaves', with tensors of shape [*y, *leaf]."""
    root = leaves.root(y)
    flat = None if root is None else root.flatten()
    rows = [
        leaves.collect(None if flat is None else leaves.backward(flat[index], retain=True), zeros=True)
        for index in range(y.size)
    ]
    if not rows:
        return map_tensors(
            lambda x: zeros_like(x).expand_dims(0)[:0].reshape((*y.shape, *x.shape)), leaves.collect(None, zeros=True)
        )
    columns = iter([stack(list(column), 0) for column in zip(*map(tensors_of, rows), strict=True)])
    return map_tensors(lambda x: next(columns).reshape((*y.shape, *x.shape)), rows[0])


def _transpose_block(block: AnyTensor, ndim: int) -> AnyTensor:
    """[*x, *y] as [*y, *x], for x of `ndim` axes."""
    return block.permute_dims(*range(ndim, block.ndim), *range(ndim))
