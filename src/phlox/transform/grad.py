"""Gradients of functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from phlox.backend.levels import entered
from phlox.errors import AutodiffError
from phlox.other_names import answering
from phlox.transform.leaves import Leaves, loss_of, select_arguments


@answering
def value_and_grad(fn: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., tuple[Any, Any]]:
    """A function that returns the value of `fn` and its gradient with respect to an argument, by default the first.

    Args:
        fn: returns a scalar tensor, or a tuple that begins with one; the rest of the tuple is returned unchanged.
        argnums: the index of a positional argument, or a tuple of indices; the gradient is then a tuple.

    The argument is a Float tensor, a module, or a list, tuple, dict or dataclass of these. The gradient has the same
    structure, with a tensor for each tensor (zeros if the value does not depend on it) and a `GradientsParams` for each
    module. A tensor needs no tape. A module must be on a backend with a tape: call `Module.train` first.

    It can be nested, in itself and in `vjp`, `jvp`, `hessian`, `vmap`, `scan` and `checkpoint`. A gradient computed
    inside a differentiated function keeps its history, so the outer gradient is exact (a gradient penalty, a
    physics-informed loss, MAML). The value is on the argument's backend, and the gradient on that backend without its
    tape; inside a differentiated function both are also on the outer tape.

    If each process computes on its rows of a global batch, the gradients of modules are the mean over all processes, as
    in `GradientsParams.from_grads`. Gradients of tensors are this process's own.

    Raises `AutodiffError` if there is nothing to differentiate, or if history would be lost.

    >>> import phlox as px
    >>> value, gradient = value_and_grad(lambda x: x.square().sum())(px.tensor([1.0, 2.0]))
    >>> value.item(), gradient.tolist()
    (5.0, [2.0, 4.0])
    >>> third = px.grad(px.grad(px.grad(lambda x: (x * x * x).sum())))
    >>> third(px.tensor(5.0)).item()
    6.0
    """

    return _differentiated("value_and_grad", fn, argnums)


@answering
def grad(fn: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """A function that returns the gradient of `fn` with respect to an argument; see `value_and_grad`.

    >>> import phlox as px
    >>> px.grad(lambda a, b: (a * b).sum(), argnums=1)(px.tensor(2.0), px.tensor(3.0)).item()
    2.0
    """
    evaluate_both = _differentiated("grad", fn, argnums)

    @wraps(fn, updated=())
    def evaluate(*arguments: Any, **options: Any) -> Any:
        return evaluate_both(*arguments, **options)[1]

    return evaluate


def _differentiated(name: str, fn: Callable[..., Any], argnums: int | Sequence[int]) -> Callable[..., tuple[Any, Any]]:
    @wraps(fn, updated=())
    def evaluate(*arguments: Any, **options: Any) -> tuple[Any, Any]:
        target, replace = select_arguments(name, argnums, arguments)
        leaves = Leaves(name, target, ends=True)
        with entered(leaves.level):
            value = fn(*replace(leaves.structure), **options)
        root = leaves.root(loss_of(name, value))
        if root is None and leaves.has_modules:
            raise AutodiffError(
                f"{name}: the result does not depend on any parameter that is trained; was it computed with the module "
                "that the function is given, and without .detach() or .inner()?"
            )
        gradients = None if root is None else leaves.backward(root)
        leaves.write_back()
        return leaves.down(value), leaves.collect(gradients, averages=True)

    return evaluate
