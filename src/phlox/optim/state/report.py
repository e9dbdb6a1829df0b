"""`StateReport`: what becomes of an optimizer's states at the next step of a module, as one page for a person."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from phlox.module import Module, Param, ParamId
from phlox.optim.state.tree import State

_MOST_NAMES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StateReport:
    """What `Optimizer.report` found: paths of parameters, and ids of those that the module has not. `print` it."""

    kept: list[str] = field(default_factory=list[str])
    """Trained parameters that go on with the state they have."""
    anew: list[str] = field(default_factory=list[str])
    """Trained parameters without a state: it begins with their first gradient."""
    misshapen: dict[str, str] = field(default_factory=dict[str, str])
    """Parameters whose state is of another shape -> what tells. Theirs begins anew, unless it came from a record: then
    stepping is an error, until it is forgotten."""
    frozen: list[str] = field(default_factory=list[str])
    """Parameters that are not trained now, and whose state waits."""
    orphans: list[ParamId] = field(default_factory=list[ParamId])
    """Ids of parameters that have a state, and are not in the module."""

    @property
    def ok(self) -> bool:
        """Whether every parameter that is trained goes on with its state, and every state is of one that is there."""
        return not (self.anew or self.misshapen or self.orphans)

    def __str__(self) -> str:
        total = len(self.kept) + len(self.anew) + len(self.misshapen) + len(self.frozen)
        number = len(self.kept) + len(self.frozen)
        head = f"{number} of {total} parameters have a usable state" if total else "no parameters to be stepped"
        lines = [
            _line("kept", self.kept),
            _line("to start anew", self.anew),
            *[f"of another shape: {path}: {why}" for path, why in self.misshapen.items()],
            _line("frozen, with a state that is kept", self.frozen),
            _line("states of parameters that the module has not (`forget` drops them)", self.orphans),
        ]
        return "\n  ".join([head, *filter(None, lines)])

    def _repr_html_(self) -> str:
        from phlox.optim.html import html_of_report

        return html_of_report(self)


def _line(what: str, names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - _MOST_NAMES} more" if len(every) > _MOST_NAMES else ""
    return f"{what}: {', '.join(every[:_MOST_NAMES])}{more}" if every else ""


def report_of(module: Module, states: Mapping[ParamId, State], misfit: Callable[[Param], str | None]) -> StateReport:
    """The report on these states, where `misfit` says why a parameter's is not of its shape."""
    found = StateReport()
    ids: set[ParamId] = set()
    for path, param in module.named_params():
        ids.add(param.id)
        if param.id not in states:
            if param.trained:
                found.anew.append(path)
        elif wrong := misfit(param):
            found.misshapen[path] = wrong
        else:
            (found.kept if param.trained else found.frozen).append(path)
    found.orphans.extend(id for id in states if id not in ids)
    return found
