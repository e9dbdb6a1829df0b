"""Products with Jacobians and Hessians, and the matrices themselves, by one tape or two above the inputs' backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, cast

from phlox.autodiff import Autodiff
from phlox.backend import Float
from phlox.errors import AutodiffError, KindError, ShapeError
from phlox.module import GradientsParams, Module
from phlox.tensor import Tensor, stack, zeros_like
from phlox.tensor.meeting import inside
from phlox.transform.containers import AnyTensor, map_tensors, tensors_of
from phlox.transform.grad import with_tape_inside

Function: TypeAlias = Callable[..., Any]


def vjp(fn: Function, *inputs: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """`fn(*inputs)`, and the function from a cotangent to the gradients towards the inputs.

    Inputs are Float tensors, or lists, tuples and dicts of them; so is the result, and the cotangent is shaped like it.
    Everything returned is on the backend of the inputs. The second function may be called many times. Raises
    `KindError` for inputs or results of another kind, `ShapeError` for a cotangent that does not fit.

    >>> import phlox as px
    >>> y, pull = px.vjp(lambda x: x * x, px.tensor([1.0, 2.0]))
    >>> pull(px.tensor([1.0, 10.0]))[0].tolist()
    [2.0, 40.0]
    """
    leaves = map_tensors(lambda x: _leaf("vjp", x), inputs)
    y = fn(*leaves)
    roots = _floats("vjp", y)

    def pull(cotangent: Any) -> tuple[Any, ...]:
        given = _fitting("vjp", "cotangent", cotangent, roots)
        return _pulled(_dot(roots, given), leaves)

    return map_tensors(_below, y), pull


def jvp(fn: Function, inputs: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """`fn(*inputs)`, and its derivative in the direction of the tangents, shaped like it.

    Inputs, tangents and the result are Float tensors, or structures of them, as in `vjp`. The derivative is that of the
    reverse mode's gradient towards its cotangent, in which it is linear, at about twice the price of `vjp`.

    >>> import phlox as px
    >>> y, dy = px.jvp(lambda x: x * x, (px.tensor([1.0, 2.0]),), (px.tensor([1.0, 10.0]),))
    >>> dy.tolist()
    [2.0, 40.0]
    """
    y, cotangents, gradients = _transposed("jvp", fn, tuple(inputs))
    directions = _fitting("jvp", "tangent", tuple(tangents), gradients)
    found = iter(_pulled(_dot(gradients, directions), cotangents))
    return map_tensors(lambda x: _below(_below(x)), y), map_tensors(lambda x: next(found), y)


def hvp(fn: Function, at: Any, direction: Any) -> Any:
    """The Hessian of `fn` at a point, times a direction.

    `fn` takes the point and returns one number as a tensor. The point is a Float tensor, or a list, tuple or dict of
    them, and the direction and the result are shaped like it; or it is a module, and both are `GradientsParams`. It
    costs about two gradients (Pearlmutter, "Fast exact multiplication by the Hessian", 1994).

    >>> import phlox as px
    >>> px.hvp(lambda x: (x * x * x).sum(), px.tensor([1.0, 2.0]), px.tensor([1.0, 1.0])).tolist()
    [6.0, 12.0]
    """
    if isinstance(at, Module):
        return _module_hvp(fn, at, direction)
    lower = map_tensors(lambda x: _leaf("hvp", x), at)
    upper = map_tensors(lambda x: _leaf("hvp", x), lower)
    gradients = tensors_of(_pulled(_number("hvp", fn(upper)), upper))
    return _pulled(_dot(gradients, _fitting("hvp", "direction", direction, gradients)), lower)


def _module_hvp(fn: Function, at: Module, direction: Any) -> GradientsParams:
    if not isinstance(direction, GradientsParams):
        got = type(cast("object", direction)).__name__
        raise AutodiffError(f"hvp: the direction for a module is GradientsParams, as phlox.grad gives, got {got}")
    trained = at.init().train()
    lower, _ = with_tape_inside(trained)
    upper = lower.map(lambda path, param: param.holding(Tensor.from_inner(param.val())))
    root = _number("hvp", fn(upper))
    gradients = GradientsParams({}) if root is None else GradientsParams.from_grads(root.backward(), upper)
    pairs = [(g, direction.get(id)) for id, g in gradients.items()]
    total = _dot([g for g, v in pairs if v is not None], [v for _, v in pairs if v is not None])
    found = GradientsParams({}) if total is None else GradientsParams.from_grads(total.backward(), lower)
    return found if lower is trained else map_tensors(Tensor.inner, found)


def jacobian(fn: Function) -> Function:
    """The function that returns the derivatives of every element of `fn`'s result towards every one of its argument.

    Result and first argument are Float tensors, of shapes `y` and `x`; the Jacobian has shape [*y, *x]. It takes one
    pass over the tape for each element of the result or, where they are fewer, of the argument. Other arguments are
    passed on.

    >>> import phlox as px
    >>> px.jacobian(lambda x: x * x.sum())(px.tensor([1.0, 2.0])).tolist()
    [[4.0, 1.0], [2.0, 5.0]]
    """

    def evaluate(x: AnyTensor, *arguments: Any, **options: Any) -> AnyTensor:
        leaf = _leaf("jacobian", x)
        y = _single("jacobian", fn(leaf, *arguments, **options))
        if y.size <= x.size:
            return _rows(y, leaf)

        def alone(at: AnyTensor) -> Any:
            return fn(at, *arguments, **options)

        _, (cotangent,), (gradient,) = _transposed("jacobian", alone, (x,))
        columns = _rows(gradient, cotangent)
        return columns.permute_dims(*range(x.ndim, x.ndim + y.ndim), *range(x.ndim))

    return evaluate


def hessian(fn: Function) -> Function:
    """The function that returns the second derivatives of `fn` towards its first argument.

    `fn` returns one number as a tensor; its argument is a Float tensor of shape `x`, the Hessian has shape [*x, *x]. It
    takes one pass over the tape for each element of the argument; for products with a direction see `hvp`.

    >>> import phlox as px
    >>> px.hessian(lambda x: x.prod())(px.tensor([2.0, 3.0])).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """

    def evaluate(x: AnyTensor, *arguments: Any, **options: Any) -> AnyTensor:
        lower = _leaf("hessian", x)
        upper = _leaf("hessian", lower)
        return _rows(_pulled(_number("hessian", fn(upper, *arguments, **options)), upper), lower)

    return evaluate


# --- parts


def _leaf(name: str, x: AnyTensor) -> AnyTensor:
    """A leaf of a tape above the backend of x; with what x knows itself of tapes below."""
    if x.kind is not Float:
        raise KindError(f"{name}: {x.kind.__name__} tensors have no derivatives; convert with .float() first")
    return Tensor.from_inner(inside(x)).require_grad()


def _below(x: AnyTensor) -> AnyTensor:
    return x.inner() if isinstance(x.backend, Autodiff) else x


def _floats(name: str, y: Any) -> list[AnyTensor]:
    """The tensors of a result, which must be Float."""
    found = tensors_of(y)
    if not found or any(x.kind is not Float for x in found):
        got = ", ".join(x.kind.__name__ for x in found) or type(y).__name__
        raise KindError(f"{name}: the function must return Float tensors, got {got}")
    return found


def _single(name: str, y: Any) -> AnyTensor:
    if not isinstance(y, Tensor):
        raise KindError(f"{name}: the function must return a Float tensor, got {type(y).__name__}")
    return _floats(name, y)[0]


def _number(name: str, y: Any) -> AnyTensor | None:
    """A result that must be one number; None if it does not depend on any leaf."""
    y = _single(name, y)
    if y.size != 1:
        raise ShapeError(f"{name}: the function must return one number, got shape {y.shape}; reduce it with .sum()")
    return y if y.is_require_grad() else None


def _fitting(name: str, what: str, given: Any, like: Sequence[AnyTensor]) -> list[AnyTensor]:
    found = tensors_of(given)
    mine, theirs = [x.shape for x in found], [x.shape for x in like]
    if mine != theirs:
        raise ShapeError(f"{name}: the {what} must have shape {_listed(theirs)}, got {_listed(mine)}")
    return found


def _listed(shapes: list[tuple[int, ...]]) -> str:
    return " and ".join(map(str, shapes)) or "of no tensor"


def _dot(xs: Iterable[AnyTensor], ys: Iterable[AnyTensor]) -> AnyTensor | None:
    """The sum of all products of elements; None if it does not depend on any leaf."""
    total: AnyTensor | None = None
    for x, y in zip(xs, ys, strict=True):
        if x.is_require_grad():
            part = (x * y).sum()
            total = part if total is None else total + part
    return total


def _pulled(root: AnyTensor | None, leaves: Any) -> Any:
    """The gradients of a number towards a structure of leaves, zeros where there is no way to them."""
    gradients = None if root is None else root.backward(retain_graph=True)

    def gradient(leaf: AnyTensor) -> AnyTensor:
        found = None if gradients is None else leaf.grad(gradients)
        return zeros_like(_below(leaf)) if found is None else found

    return map_tensors(gradient, leaves)


def _transposed(name: str, fn: Function, inputs: Any) -> tuple[Any, list[AnyTensor], list[AnyTensor]]:
    """A result, leaves that stand for cotangents, and the gradients towards the inputs, which are linear in them."""
    leaves = map_tensors(lambda x: _leaf(name, Tensor.from_inner(inside(x))), inputs)
    y = fn(*leaves)
    roots = _floats(name, y)
    cotangents = [_leaf(name, zeros_like(_below(_below(root)))) for root in roots]
    return y, cotangents, tensors_of(_pulled(_dot(roots, cotangents), leaves))


def _rows(y: AnyTensor, x: AnyTensor) -> AnyTensor:
    """The gradient towards the leaf x of every element of y, as [*y, *x]."""
    flat = y.flatten()
    rows = [_pulled(flat[place] if y.is_require_grad() else None, x) for place in range(y.size)]
    shape = (*y.shape, *x.shape)
    return stack(rows, 0).reshape(shape) if rows else zeros_like(_below(x)).expand_dims(0)[:0].reshape(shape)
