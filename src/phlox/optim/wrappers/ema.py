"""The exponential moving average of a model's weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

from typing_extensions import Unpack

from phlox.backend import Float
from phlox.backend.parallel import same_everywhere
from phlox.errors import OptimizerError
from phlox.module import Module, Param
from phlox.module.param import set_together
from phlox.module.records import LoadOptions, prepare
from phlox.optim.rules.update_terms import continued
from phlox.optim.simple import AnyTensor
from phlox.record import LoadReport, Record
from phlox.record.formats.reader import PathLike, Readable
from phlox.tensor import tensor, where

M = TypeVar("M", bound=Module)


class Ema(Module, Generic[M]):
    """The exponential moving average of a model's weights: a = decay a + (1 - decay) x, at each update.

    The average often predicts better than the trained model (Polyak, Juditsky 1992; Tarvainen, Valpola 2017). `average`
    is a model of the same class, without a tape, to call and to save. Parameters that are not trained (running
    statistics) are copied. An `Ema` is a module: it can be an argument of a compiled step, and is saved like any other.

    Averages of half precision are rounded from averages in f32 (`masters`), because small updates would be lost in
    rounding. A record has only the f32 averages, under the paths of `average`, so it can be loaded at any precision.

    Args:
        model: the model; the average begins with its weights.
        decay: the part of the average that an update keeps, in [0, 1).
        warm_up: start with a smaller decay: the n-th update has min(decay, n / (n + 9)).

    Raises `OptimizerError` if the decay is outside [0, 1), or if `update` gets a model of another structure.

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
        self.masters = _masters(self.average)
        device = plain.params()[0].device if plain.params() else None
        self.updates = Param(tensor(0, device=device), trained=False)

    def update(self, model: M) -> None:
        """Move the average towards the weights of `model`, which must have the same structure."""
        new = list(model.named_params())
        old = list(self.average.named_params())
        if [(path, param.shape) for path, param in new] != [(path, param.shape) for path, param in old]:
            path = next((p for (p, x), (q, y) in zip(new, old, strict=False) if (p, x.shape) != (q, y.shape)), "")
            difference = f"`{path}` is another parameter" if path else f"it has {len(new)} parameters, not {len(old)}"
            raise OptimizerError(f"Ema: the model's structure is not that of the average: {difference}")
        with same_everywhere(new[0][1].backend if new else None):
            after = self._moved(new, old)
        set_together(after)

    def _moved(self, new: list[tuple[str, Param]], old: list[tuple[str, Param]]) -> list[tuple[Param, AnyTensor]]:
        count = self.updates.val() + 1
        decay = self._decay(count)
        masters = dict(zip(map(id, _halves(self.average)), self._masters(), strict=True))
        after = [(self.updates, count)]
        for (_, source), (_, target) in zip(new, old, strict=True):
            value, average, master = source.val().detach(), target.val(), masters.get(id(target))
            if master is None:
                value = value.to_device(average.device)
                after.append((target, _moved(average, value, decay) if source.trainable else value))
                continue
            wide = continued(master.val(), average)
            value = value.to_device(wide.device)
            moved = _moved(wide, value, decay) if source.trainable else value
            after += [(master, moved), (target, moved.from_full_precision(average))]
        return after

    # --- records: they hold the averages at full precision, whatever the model's precision is

    def into_record(self) -> Record:
        """See `Module.into_record`."""
        return self._wide().into_record() if self._masters() else super().into_record()

    def load_record(self, record: Record, **options: Unpack[LoadOptions]) -> Self:
        """See `Module.load_record`."""
        self._prepare(record, **options)()
        return self

    def load(self, source: Record | PathLike | Readable, **options: Unpack[LoadOptions]) -> LoadReport:
        """See `Module.load`."""
        if not self._masters():
            return super().load(source, **options)
        twin = self._wide()
        report = twin.load(source, **options)
        self._prepare_copy(twin)()
        return report

    def load_report(self, record: Record, **options: Unpack[LoadOptions]) -> LoadReport:
        """See `Module.load_report`."""
        return super(Ema, self._wide() if self._masters() else self).load_report(record, **options)

    def prepare_load(self, record: Record) -> Callable[[], object]:
        """See `Module.prepare_load`."""
        return self._prepare(record)

    def _prepare(self, record: Record, **options: Unpack[LoadOptions]) -> Callable[[], object]:
        if not self._masters():
            return prepare(self, record, **options)
        twin = self._wide()
        prepare(twin, record, **options)()
        return self._prepare_copy(twin)

    def _masters(self) -> list[Param]:
        """The masters: created after a move to half precision, and dropped after a move from it."""
        if len(self.masters) != len(_halves(self.average)):
            self.masters = _masters(self.average)
        return self.masters

    def _wide(self) -> Ema[M]:
        """A copy of this average at full precision, which needs no masters."""
        masters = dict(zip(map(id, _halves(self.average)), self.masters, strict=True))

        def widened(path: str, param: Param) -> Param:
            if id(param) not in masters:
                return param.copy()
            value = continued(masters[id(param)].val(), param.val())
            return Param(value, trained=False, id=param.id, full_precision=True)

        twin = self.map(lambda path, param: param.copy())
        twin.average, twin.masters = self.average.map(widened), []
        return twin

    def _prepare_copy(self, twin: Ema[M]) -> Callable[[], None]:
        """A function that copies the values of a twin at full precision; everything that can fail is done now."""
        own_params, twin_params = [*self.average.params(), self.updates], [*twin.average.params(), twin.updates]
        wide = dict(zip(map(id, own_params), twin_params, strict=True))
        values = [twin.val().to_device(param.device) for param, twin in zip(own_params, twin_params, strict=True)]
        masters = [wide[id(param)].val() for param in _halves(self.average)]

        def copy() -> None:
            for param, twin, value in zip(own_params, twin_params, values, strict=True):
                param.set(value)
                param.set_id(twin.id)
            for param, value in zip(self.masters, masters, strict=True):
                param.set(value)

        return copy

    def _decay(self, count: AnyTensor) -> Any:
        if not self.warm_up:
            return self.decay
        number = count.float().to_full_precision()
        rising = number / (number + 9.0)
        return where(rising < self.decay, rising, self.decay)


def _halves(average: Module) -> list[Param]:
    """The parameters that are of half precision."""
    return [
        param
        for param in average.params()
        if param.kind is Float and param.backend.full_precision() is not param.backend
    ]


def _masters(average: Module) -> list[Param]:
    return [Param(param.val(), trained=False, full_precision=True) for param in _halves(average)]


def _moved(old: AnyTensor, new: AnyTensor, decay: Any) -> AnyTensor:
    return new + (old - new) * decay
