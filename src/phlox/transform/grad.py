"""Gradients of functions: the tape in functional dress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from phlox.backend.levels import entered
from phlox.errors import AutodiffError
from phlox.other_names import answering
from phlox.transform.leaves import Leaves, chosen, loss_of


@answering
def value_and_grad(fn: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., tuple[Any, Any]]:
    """A function that returns `fn`'s value together with its gradient towards an argument, the first unless said.

    Args:
        fn: returns one number as a tensor, or a tuple whose first entry is that; the rest is passed on.
        argnums: the number of a positional argument, or a tuple of such: the gradient is then a tuple.

    What is differentiated towards is a Float tensor, a module, or a list, tuple, dict or dataclass of these. The
    gradient has the same structure, with a tensor for each tensor (zeros where the value does not depend on it) and a
    `GradientsParams` for each module. Tensors need no tape; a module must be on a backend that records one (see
    `Module.train`), which says that it is in training.

    It nests, in itself and in `vjp`, `jvp`, `hessian`, `vmap`, `scan`, `checkpoint`: a gradient that is taken inside of
    a differentiated function, towards a tensor or a module, keeps its history, so that the outer gradient is that of
    the whole (a gradient penalty, a physics-informed loss, MAML). The value is on the backend of the argument, the
    gradient on the one below its tape; with a history that goes on, each is on a tape above.

    Where each process computes on its rows of a global batch, the gradients of modules are the mean over all
    processes, as those of `GradientsParams.from_grads`; those of tensors stay this process's.

    Raises `AutodiffError` where there is nothing to differentiate, and where a history would be cut in silence.

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
    """A function that returns the gradient of `fn` towards an argument; see `value_and_grad`.

    >>> import phlox as px
    >>> px.grad(lambda a, b: (a * b).sum(), argnums=1)(px.tensor(2.0), px.tensor(3.0)).item()
    2.0
    """
    both = _differentiated("grad", fn, argnums)

    @wraps(fn, updated=())
    def evaluate(*arguments: Any, **options: Any) -> Any:
        return both(*arguments, **options)[1]

    return evaluate


def _differentiated(name: str, fn: Callable[..., Any], argnums: int | Sequence[int]) -> Callable[..., tuple[Any, Any]]:
    @wraps(fn, updated=())
    def evaluate(*arguments: Any, **options: Any) -> tuple[Any, Any]:
        target, put = chosen(name, argnums, arguments)
        leaves = Leaves(name, target, ends=True)
        with entered(leaves.level):
            value = fn(*put(leaves.structure), **options)
        root = leaves.root(loss_of(name, value))
        if root is None and leaves.has_modules:
            raise AutodiffError(
                f"{name}: the result does not depend on any parameter that is trained; was it computed with the module "
                "that the function is given, and without .detach() or .inner()?"
            )
        gradients = None if root is None else leaves.backward(root)
        leaves.write_back()
        return leaves.down(value), leaves.found(gradients, averages=True)

    return evaluate
