"""PyTorch's parameter names and layouts for each layer: one row per layer, also for custom layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from phlox.errors import RecordError
from phlox.interop.adapter import Rule, ignore, rename, split, transpose
from phlox.module import Module
from phlox.module.fields import fields_of
from phlox.module.structure import Container, Leaf, Part, Shared
from phlox.nn import (
    BatchNorm,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    Linear,
    MultiHeadAttention,
    PRelu,
    RmsNorm,
    Sequential,
)

Rules: TypeAlias = "Sequence[Rule] | Callable[[Any], Iterable[Rule]]"
"""Rules between PyTorch's layer and ours, or a function that returns them for a layer."""


@dataclass(frozen=True, slots=True)
class Row:
    """The registration of a class by `register_layer`."""

    rules: Rules = ()
    names: Mapping[str, str] = field(default_factory=dict[str, str])

    def rules_for(self, layer: Module) -> Iterable[Rule]:
        """The rules for this layer."""
        return self.rules(layer) if callable(self.rules) else self.rules


_NOTHING = Row()
_ROWS: dict[type[Module], Row] = {}


def register_layer(cls: type[Module], rules: Rules = (), *, names: Mapping[str, str] | None = None) -> None:
    """Register how a class of layers, and its subclasses, is stored in a PyTorch state dict.

    Fields that are not mentioned have the same name and layout in PyTorch. Most custom layers need no registration:
    their parts are found automatically, by the rows of their own classes.

    Args:
        cls: a class of modules; an earlier registration is replaced.
        rules: the rules of an `Adapter`, for paths below the layer, without wildcards; or a function that returns them
            for a layer. Rules for parameters that a layer does not have are skipped.
        names: field of ours -> field of theirs; "" if theirs has no such level, as in `Sequential`.

    >>> import phlox as px
    >>> class Block(px.Module):
    ...     def __init__(self):
    ...         self.attention = px.nn.MultiHeadAttention(8, 2)
    >>> register_layer(Block, names={"attention": "self_attn"})
    >>> [rule.theirs[0].text for rule in rules_of(Block())][:2]
    ['self_attn.in_proj_weight', 'self_attn.in_proj_bias']
    """
    _ROWS[cls] = Row(rules, dict(names or {}))


def rules_of(module: Module) -> list[Rule]:
    """The rules between a PyTorch state dict and a record of this module, found by traversing it."""
    walk = _Walk(module)
    walk.module(walk.root, module, "", "")
    return walk.rules


def module_paths(module: Module) -> dict[str, str]:
    """The path of each module in a module -> the path of its counterpart in a PyTorch module of the same structure.

    >>> from phlox import nn
    >>> module_paths(nn.Sequential([nn.Linear(2, 3), nn.Relu()]))
    {'': '', 'layers.0': '0', 'layers.1': '1'}
    """
    walk = _Walk(module)
    walk.module(walk.root, module, "", "")
    return walk.paths


class _Walk:
    """One traversal of a module; `ours` and `theirs` are the paths of a part in Phlox and in PyTorch."""

    def __init__(self, module: Module) -> None:
        structure = module.structure()
        self.root = structure.skeleton
        self.rules: list[Rule] = []
        self.paths: dict[str, str] = {}
        self._params = {*structure.paths, *structure.aliases}
        self._covered: set[str] = set()
        self._containers: dict[int, Container] = {}

    def module(self, part: Container, value: Any, ours: str, theirs: str) -> None:
        """Rules for a module and its parts."""
        self.paths[ours] = theirs
        row = next((_ROWS[cls] for cls in type(value).__mro__ if cls in _ROWS), _NOTHING)
        for rule in row.rules_for(value):
            if any(pattern.wildcards for pattern in (*rule.theirs, *rule.ours)):
                raise RecordError(f"register_layer({type(value).__name__}): rules for a layer have no wildcards")
            rule_below = rule.under(theirs, ours)
            paths = [pattern.text for pattern in rule_below.ours]
            # The rules of an enclosing module have priority over the rules of the layer.
            if self._params.issuperset(paths) and self._covered.isdisjoint(paths):
                self._covered.update(paths)
                self.rules.append(rule_below)
        self._parts(part, fields_of(value), ours, theirs, row.names)

    def _parts(self, whole: Container, values: Any, ours: str, theirs: str, names: Mapping[str, str]) -> None:
        self._containers[whole.number] = whole
        for key, part in zip(whole.keys, whole.children, strict=True):
            name = str(key)
            self._part(part, values[key], _below(ours, name), _below(theirs, names.get(name, name)))

    def _part(self, part: Part, value: Any, ours: str, theirs: str) -> None:
        if isinstance(part, Shared):
            part = self._containers[part.number]
        if isinstance(part, Leaf) and ours not in self._covered:
            self.rules.append(rename(theirs, ours))
        elif isinstance(part, Container) and isinstance(value, Module):
            self.module(part, value, ours, theirs)
        elif isinstance(part, Container):
            self._parts(part, value, ours, theirs, {})


def _below(path: str, name: str) -> str:
    return ".".join(filter(None, (path, name)))


def _of_batch_norm(layer: BatchNorm) -> Iterable[Rule]:
    if layer.running_mean is not None:
        yield ignore("num_batches_tracked", written=np.int64(0))


def _of_attention(layer: MultiHeadAttention) -> Iterable[Rule]:
    heads = (layer.n_heads, layer.n_kv_heads, layer.n_kv_heads)
    weights, biases = ([f"{name}.{kind}" for name in ("query", "key", "value")] for kind in ("weight", "bias"))
    yield split("in_proj_weight", weights, sizes=heads, transposed=True)
    yield split("in_proj_bias", biases, sizes=heads)


_NORM = {"gamma": "weight", "beta": "bias"}

register_layer(Sequential, names={"layers": ""})
register_layer(Linear, [transpose("weight", "weight")])
register_layer(PRelu, names={"slope": "weight"})
register_layer(LayerNorm, names=_NORM)
register_layer(RmsNorm, names=_NORM)
register_layer(GroupNorm, names=_NORM)
register_layer(InstanceNorm, names=_NORM)
register_layer(BatchNorm, _of_batch_norm, names=_NORM)
register_layer(MultiHeadAttention, _of_attention, names={"out": "out_proj"})
# Embeddings, convolutions and transposed convolutions are the same in both.
