"""Groups of parameters with their own learning rate, hyper-parameters or optimizer."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, final

from phlox.config import Config
from phlox.errors import ModuleError, OptimizerError
from phlox.module import Module, Param, ParamId
from phlox.module.select import Selector, select

if TYPE_CHECKING:
    from phlox.optim.config import SimpleConfig
    from phlox.optim.simple import SimpleOptimizer


def vectors(path: str, param: Param) -> bool:
    """A predicate for groups: does the parameter have at most one axis, like biases and the gains of norms?

    >>> import phlox as px
    >>> from phlox import nn, optim
    >>> optimizer = optim.AdamWConfig().init(groups=[optim.Group(optim.vectors, weight_decay=0.0)])
    """
    return len(param.shape) <= 1


@final
class Group:
    """A group of parameters with its own learning rate, hyper-parameters or optimizer.

    Args:
        which: the parameters, as path patterns or predicates; see `Module.freeze`.
        name: a name for the group, so that a step can give it its own learning rate; see `Optimizer.step`.
        lr_factor: a factor of the learning rate, at least zero.
        optimizer: the group's optimizer, as a config or a `SimpleOptimizer`; by default that of all others.
        settings: hyper-parameters that differ from the optimizer's config, by name.

    Raises `OptimizerError` if the factor is negative or not finite, or if no argument makes the group differ from the
    rest. The first step raises it for a pattern that matches no parameter, and for an unknown hyper-parameter.

    >>> from phlox import nn, optim
    >>> model = nn.Sequential(body=nn.Linear(4, 8), head=nn.Linear(8, 1))
    >>> optimizer = optim.AdamWConfig().init(
    ...     groups=[
    ...         optim.Group("**.bias", weight_decay=0.0),
    ...         optim.Group("layers.head.weight", lr_factor=0.1, optimizer=optim.SgdConfig(momentum=0.9)),
    ...     ]
    ... )
    """

    __slots__ = ("lr_factor", "name", "optimizer", "settings", "which")

    def __init__(
        self,
        *which: Selector,
        name: str | None = None,
        lr_factor: float = 1.0,
        optimizer: SimpleOptimizer | SimpleConfig | None = None,
        **settings: Hashable,
    ) -> None:
        if not which:
            raise OptimizerError('a Group needs a pattern of its parameters: Group("**.bias", weight_decay=0.0)')
        if not (lr_factor >= 0.0 and math.isfinite(lr_factor)):
            raise OptimizerError(f"{which[0]!r}: lr_factor is a finite number of at least zero, got {lr_factor}")
        if lr_factor == 1.0 and optimizer is None and not settings and name is None:
            raise OptimizerError(
                f"{which[0]!r}: this group does not differ from the rest; give it an lr_factor, an optimizer, a "
                "hyper-parameter (weight_decay=0.0), or a name, so that it can have its own learning rate"
            )
        self.which = which
        self.name = name
        self.lr_factor = lr_factor
        self.optimizer = optimizer
        self.settings: Mapping[str, Hashable] = settings

    def simple(self, default: SimpleOptimizer) -> SimpleOptimizer:
        """The optimizer of this group; `default` is the optimizer of all parameters."""
        base = default if self.optimizer is None else self.optimizer
        if not isinstance(base, Config):
            if not self.settings:
                return base
            base = getattr(base, "config", None)
        if not isinstance(base, Config):
            raise OptimizerError(
                f"{self}: {type(default).__name__} has no config in which {', '.join(self.settings)} could be changed; "
                "give the group an optimizer"
            )
        try:
            changed = cast("Any", base.replace(**self.settings) if self.settings else base)
        except Exception as error:
            raise OptimizerError(f"{self}: {error}") from error
        return changed.simple()

    def _key(self) -> Hashable:
        return self.which, self.name, self.lr_factor, self.optimizer, frozenset(self.settings.items())

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Group) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"Group({', '.join(map(repr, self.which))})"


def group_numbers(module: Module, groups: Sequence[Group]) -> dict[ParamId, int]:
    """The group number of every parameter that is in a group.

    Raises `OptimizerError` if two groups contain a parameter, or if a pattern matches none.
    """
    numbers: dict[ParamId, int] = {}
    for number, group in enumerate(groups):
        try:
            selected = select(module, *group.which)
        except ModuleError as error:
            raise OptimizerError(f"{group}: {error}") from error
        for path, param in selected.items():
            if param.id in numbers:
                raise OptimizerError(
                    f"`{path}` is in two groups, {groups[numbers[param.id]]} and {group}; exclude it from one "
                    f'with a pattern that starts with an exclamation mark: Group(..., "!{path}")'
                )
            numbers[param.id] = number
    return numbers
