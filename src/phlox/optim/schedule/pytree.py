"""Schedules as PyTrees: the number of steps taken and the other saved numbers are leaves, settings are structure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, cast

from phlox.backend.pytree import FIELD, container_of_class
from phlox.errors import OptimizerError
from phlox.module.statics import constant_key
from phlox.other_names import class_of

if TYPE_CHECKING:
    from phlox.optim.schedule.base import LrSchedule


class _Part:
    """Marks the position of a schedule in the fields of another one."""

    def __repr__(self) -> str:
        return "..."


_PART = _Part()


class ScheduleAux:
    """The class and the settings of a schedule, compared by their values."""

    __slots__ = ("cls", "fields", "key", "names", "parts")

    def __init__(self, cls: type[Any], names: tuple[str, ...], fields: dict[str, Any], parts: tuple[str, ...]) -> None:
        self.cls, self.names, self.fields, self.parts = cls, names, fields, parts
        """`names` are the numbers that are leaves; `parts` are the paths in `fields` where a `_Part` is."""
        self.key = cls, names, parts, tuple([(name, _key(cls, name, value)) for name, value in fields.items()])

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, ScheduleAux) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> tuple[Any, ...]:
        return ScheduleAux, (self.cls, self.names, self.fields, self.parts)

    def __repr__(self) -> str:
        shown = [f"{name}={value!r}" for name, value in self.fields.items() if not name.startswith("_")]
        return f"{self.cls.__name__}({', '.join(shown)})"


def _key(cls: type[Any], name: str, value: Any) -> Hashable:
    kind = cast("type[Any]", type(value))
    if kind is _Part:
        return _Part
    container = container_of_class(kind)
    if container is not None:
        items = container.items(value)
        return kind, tuple([(constant_key(key), _key(cls, f"{name}[{key!r}]", part)) for key, part in items])
    try:
        return constant_key(value)
    except TypeError as error:
        raise OptimizerError(
            f"{cls.__name__} cannot be flattened as a PyTree: its {name} is {class_of(value)}, which cannot be "
            f"compared ({error})"
        ) from None


def _replaced(value: Any, path: str, replace: Callable[[Any, str], Any]) -> Any:
    """`replace(value, path)`; if that is the value itself and a container, the container with its items replaced."""
    replaced = replace(value, path)
    container = container_of_class(cast("type[Any]", type(value))) if replaced is value else None
    if container is None:
        return replaced
    items = list(container.items(value))
    parts = [_replaced(part, path + container.label(key), replace) for key, part in items]
    changed = any(new_part is not part for new_part, (_, part) in zip(parts, items, strict=True))
    return container.build(value, parts) if changed else value


def flatten_schedule(schedule: LrSchedule[Any]) -> tuple[tuple[Any, ...], ScheduleAux]:
    """The numbers that change from step to step and the parts as leaves, and the settings as structure."""
    from phlox.optim.schedule.base import LrSchedule  # that module registers this function

    parts: dict[str, Any] = {}

    def without_part(value: Any, path: str) -> Any:
        if not isinstance(value, LrSchedule):
            return value
        parts[path] = value
        return _PART

    names = ("taken", *schedule.saved)
    own = {*names, "_scope", "_from_tree"}
    fields = {name: _replaced(value, name, without_part) for name, value in vars(schedule).items() if name not in own}
    numbers = [getattr(schedule, name) for name in names]
    return (*numbers, *parts.values()), ScheduleAux(type(schedule), names, fields, tuple(parts))


def flatten_with_keys(schedule: LrSchedule[Any]) -> tuple[list[tuple[tuple[str, Any], Any]], ScheduleAux]:
    """As `flatten_schedule`, with a key for each child."""
    children, aux = flatten_schedule(schedule)
    return [((FIELD, key), child) for key, child in zip((*aux.names, *aux.parts), children, strict=True)], aux


def unflatten_schedule(aux: ScheduleAux, children: Iterable[Any]) -> Any:
    """A schedule around other children; never validates, since JAX passes objects of any kind."""
    remaining = iter(children)
    numbers = {name: next(remaining) for name in aux.names}

    def with_part(value: Any, path: str) -> Any:
        return next(remaining) if value is _PART else value

    fields = {name: _replaced(value, name, with_part) for name, value in aux.fields.items()}
    cls: Any = aux.cls
    schedule: Any = cls.__new__(cls)
    schedule.__dict__.update(fields, **numbers, _from_tree=True)
    return schedule
