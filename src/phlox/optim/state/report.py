"""`StateReport`: which of an optimizer's states the next step of a module can use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from phlox.host.page import Names, Page
from phlox.host.text import Report
from phlox.module import Module, Param, ParamId
from phlox.optim.state.tree import State


@dataclass(frozen=True, slots=True, kw_only=True)
class StateReport(Report):
    """The result of `Optimizer.report`: which states the next step of a module keeps. `print` it."""

    kept: list[str] = field(default_factory=list[str])
    """Paths of trained parameters whose state is kept."""
    anew: list[str] = field(default_factory=list[str])
    """Paths of trained parameters without a state; the step with their first gradient creates one."""
    misshapen: dict[str, str] = field(default_factory=dict[str, str])
    """Paths of parameters whose state has another shape, with the reason. The state starts anew; if it was loaded from
    a record, the step raises an error instead, until you call `forget`."""
    frozen: list[str] = field(default_factory=list[str])
    """Paths of parameters that have a state, but are not trained now."""
    orphans: list[ParamId] = field(default_factory=list[ParamId])
    """Ids of parameters that have a state, but are not in the module."""

    @property
    def ok(self) -> bool:
        """Does every trained parameter keep its state, and does every state belong to a parameter of the module?"""
        return not (self.anew or self.misshapen or self.orphans)

    def _page(self) -> Page:
        total = len(self.kept) + len(self.anew) + len(self.misshapen) + len(self.frozen)
        number = len(self.kept) + len(self.frozen)
        name = f"{number} of {total} parameters have a usable state" if total else "no parameters to be stepped"
        parts = [
            Names("kept", self.kept),
            Names("to start anew", self.anew),
            *[f"of another shape: {path}: {why}" for path, why in self.misshapen.items()],
            Names("frozen, with a state that is kept", self.frozen),
            Names("states of parameters that are not in the module (`forget` drops them)", self.orphans),
        ]
        return Page(name, parts=parts, badges=[("ok", "good") if self.ok else ("not ok", "bad")])


def report_of(module: Module, states: Mapping[ParamId, State], misfit: Callable[[Param], str | None]) -> StateReport:
    """The report on these states; `misfit` returns why the state of a parameter has another shape, or None."""
    report = StateReport()
    ids: set[ParamId] = set()
    for path, param in module.named_params():
        ids.add(param.id)
        if param.id not in states:
            if param.trained:
                report.anew.append(path)
        elif reason := misfit(param):
            report.misshapen[path] = reason
        else:
            (report.kept if param.trained else report.frozen).append(path)
    report.orphans.extend(id for id in states if id not in ids)
    return report
