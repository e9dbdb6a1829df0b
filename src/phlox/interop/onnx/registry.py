"""The table of operators: which function computes an operator, from which version of its operator set on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
"""The type of an operand whose values decide the shape of the result: the function gets it as a NumPy array."""

Compute: TypeAlias = Callable[..., Any]
"""`compute(node, *inputs)`: absent optional inputs are None; several outputs are a tuple."""

Written: TypeAlias = (
    Callable[[Any], Any]
    | Callable[[Any, Any], Any]
    | Callable[[Any, Any, Any], Any]
    | Callable[[Any, Any, Any, Any], Any]
    | Callable[..., Any]
)
"""The same, so that type checkers know how many parameters a lambda in a table has."""

DEFAULT, MICROSOFT = "", "com.microsoft"


@dataclass(frozen=True, slots=True)
class Operator:
    """How an operator is computed, from one version of its operator set on.

    Attributes:
        name: as ONNX calls it.
        since: the first version of the operator set that this is right for.
        compute: the function.
        static: the operands that are given as NumPy arrays. Their values are known without the inputs in most graphs,
            and must be while a function is compiled.
        own: whether the function also takes the state of the run and the values of the graph, for subgraphs.
        domain: of the operator set.
    """

    name: str
    since: int
    compute: Compute
    static: frozenset[int] = frozenset()
    own: bool = False
    domain: str = DEFAULT


@dataclass(slots=True)
class Table:
    """All operators by domain and name; the newest version of a name comes first."""

    operators: dict[tuple[str, str], list[Operator]] = field(default_factory=dict[tuple[str, str], "list[Operator]"])

    def add(self, operator: Operator) -> None:
        """Add an operator."""
        versions = self.operators.setdefault((operator.domain, operator.name), [])
        versions.insert(0, operator)  # of two for the same version, the last one added counts
        versions.sort(key=lambda entry: -entry.since)

    def find(self, domain: str, name: str, version: int) -> Operator | None:
        """The operator as it is in this version of its operator set."""
        versions = self.operators.get((domain, name), ())
        return next((entry for entry in versions if entry.since <= version), None)


TABLE = Table()


def operators(functions: Mapping[str, Written], *, since: int = 1, own: bool = False, domain: str = DEFAULT) -> None:
    """Add operators: name -> function. Its operands of the type `Array` are static."""
    for name, compute in functions.items():
        types = [kind for parameter, kind in compute.__annotations__.items() if parameter not in ("node", "return")]
        static = frozenset(position for position, kind in enumerate(types) if kind in ("Array", "Array | None"))
        TABLE.add(Operator(name, since, compute, static, own, domain))
