"""The exponential moving average of a model's weights."""

from __future__ import annotations

from typing import Any, Generic, TypeAlias, TypeVar

from phlox.errors import OptimizerError
from phlox.module import Module, Param
from phlox.optim.terms import continued
from phlox.tensor import Tensor, tensor, where

AnyTensor: TypeAlias = Tensor[Any, Any, Any]
M = TypeVar("M", bound=Module)


class Ema(Module, Generic[M]):
    """A model whose weights are the moving average of another's: a <- decay a + (1 - decay) x, at each update.

    It often predicts better than the model that is trained (Polyak, Juditsky 1992; Tarvainen, Valpola 2017). `average`
    is a model of the same class, without a tape, to be called and saved; what the other has that is not trained
    (running statistics) is taken over as it is. An `Ema` is a module: it may be an argument of a compiled step, and its
    record is like any other's. Of weights of half precision there are averages in f32 beside (`masters`), which those
    of `average` are rounded from: steps of a thousandth of the way, rounded one by one, would lead nowhere.

    Args:
        model: whose parameters are there already; the average begins with them.
        decay: in [0, 1).
        warm_up: whether the first updates count for more: the n-th has the decay min(decay, n / (n + 9)).

    Raises `OptimizerError` for a decay outside of [0, 1), and where a model of another structure comes.

    >>> import phlox as px
    >>> from phlox import nn, optim
    >>> model = nn.Linear(2, 1, initializer=nn.Ones())
    >>> ema = optim.Ema(model, decay=0.75)
    >>> ema.update(model.map(lambda path, param: param.map(lambda x: x * 5.0)))
    >>> ema.average(px.ones((1, 2))).shape, ema.average.weight.val()[0].item()
    ((1, 1), 2.0)
    """

    def __init__(self, model: M, *, decay: float = 0.999, warm_up: bool = False) -> None:
        if not 0.0 <= decay < 1.0:
            raise OptimizerError(f"Ema: the decay lies in [0, 1), got {decay}")
        self.decay = decay
        self.warm_up = warm_up
        plain = model.valid()
        self.average: M = plain.map(
            lambda path, param: Param(param.val(), trained=False, full_precision=param.full_precision)
        )
        self.masters = [
            Param(target.val(), trained=False, full_precision=True) for target in _halves(plain, self.average)
        ]
        place = plain.params()[0].device if plain.params() else None
        self.updates = Param(tensor(0, device=place), trained=False)

    def update(self, model: M) -> None:
        """Move the average towards the weights of `model`, of the same structure."""
        new = list(model.named_params())
        old = list(self.average.named_params())
        if [(path, param.shape) for path, param in new] != [(path, param.shape) for path, param in old]:
            path = next((p for (p, x), (q, y) in zip(new, old, strict=False) if (p, x.shape) != (q, y.shape)), "")
            where_ = f"`{path}` is another parameter" if path else f"it has {len(new)} parameters, not {len(old)}"
            raise OptimizerError(f"Ema: the model is not one of the structure that the average began with: {where_}")
        count = self.updates.val() + 1
        decay = self._decay(count)
        if len(self.masters) != len(halves := _halves(model, self.average)):  # it was moved to another precision
            self.masters = [Param(target.val(), trained=False, full_precision=True) for target in halves]
        masters = iter(self.masters)
        for (_, source), (_, target) in zip(new, old, strict=True):
            value, kept = source.val().detach(), target.val()
            if not source.trainable:
                target.set(_on(value, kept))
            elif kept.backend.full_precision() is kept.backend:
                target.set(_moved(kept, _on(value, kept), decay))
            else:
                master = next(masters)
                wide = continued(master.val(), kept)
                moved = _moved(wide, _on(value, wide), decay)
                master.set(moved)
                target.set(moved.from_full_precision(kept))
        self.updates.set(count)

    def _decay(self, count: Tensor[Any, Any, Any]) -> Any:
        if not self.warm_up:
            return self.decay
        number = count.float().to_full_precision()
        rising = number / (number + 9.0)
        return where(rising < self.decay, rising, self.decay)


def _halves(model: Module, average: Module) -> list[Param]:
    """The parameters of the average that are of half precision, and of parameters that are trained."""
    pairs = zip(model.params(), average.params(), strict=True)
    return [
        target
        for source, target in pairs
        if source.trainable and target.backend.full_precision() is not target.backend
    ]


def _moved(old: AnyTensor, new: AnyTensor, decay: Any) -> AnyTensor:
    return new + (old - new) * decay


def _on(x: AnyTensor, like: AnyTensor) -> AnyTensor:
    return x if x.device == like.device else x.to_device(like.device)
