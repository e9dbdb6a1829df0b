"""Einstein summation: parsing of the notation, and the plan of operations that computes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar, cast

from phlox.backend import Bool
from phlox.backend.tracing.dimension import is_open
from phlox.backend.tracing.symbolic import by_shapes
from phlox.errors import KindError, ShapeError
from phlox.tensor.explain import failure
from phlox.tensor.products import promote_to_ops
from phlox.tensor.tensor import Tensor, wrap

T = TypeVar("T", bound=Tensor[Any, Any, Any])

Label: TypeAlias = str | int
"""The label of an axis: a letter, or, for axes under an ellipsis, a negative integer counted from its end."""

Labels: TypeAlias = tuple[Label, ...]
Tree: TypeAlias = "int | tuple[Tree, Tree]"
"""The index of an operand, or the product of two such trees."""

_EXHAUSTIVE = 6
"""Up to this many operands the best contraction order is searched for; beyond, it is chosen greedily."""


def einsum(subscripts: str, *operands: T) -> T:
    """Products and sums of tensors in Einstein notation, such as `"bij,bjk->bik"` for a batched matrix product.

    Each operand has one letter per axis. Axes with the same letter are multiplied elementwise. Letters that are missing
    after `->` are summed over. Without `->` the result has the letters that occur once, in alphabetical order. A letter
    repeated within one operand takes its diagonal. `...` stands for any number of axes, which broadcast; axes of size
    one broadcast too. With three or more operands, the contraction order is chosen to need few multiplications.

    Raises `ShapeError` if the notation is ill-formed or does not fit the shapes, `KindError` for Bool tensors.

    >>> import phlox as px
    >>> x = px.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> px.einsum("ij,kj->ik", x, x).tolist()
    [[5.0, 11.0], [11.0, 25.0]]
    >>> px.einsum("ii", x).item()
    5.0
    """
    if not operands:
        raise ShapeError(f"einsum: no tensors given for {subscripts!r}")
    ops, values = promote_to_ops("einsum", *operands)
    if ops.kind is Bool:
        raise KindError("einsum takes Float or Int tensors, got Bool; convert with .int() first")
    steps = by_shapes(_plan, subscripts, tuple(x.shape for x in operands))
    try:
        for name, sources, arguments in steps:
            values.append(ops[name](*[values[at] for at in sources], *arguments))
            for at in sources:
                values[at] = None  # each value is used once; this frees its memory
    except Exception as error:
        raise failure("einsum", ops, tuple(x.primitive for x in operands), error) from error
    return cast(T, wrap(ops, values[-1]))


# --- notation


def _read(subscripts: str, shapes: Sequence[tuple[int, ...]]) -> tuple[list[Labels], Labels]:
    """The labels of each operand's axes, and of the result's axes."""

    def wrong(reason: str) -> ShapeError:
        return ShapeError(f"einsum: {subscripts!r} {reason} (shapes {', '.join(map(str, shapes))})")

    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise wrong(f"names {len(terms)} operands, but {len(shapes)} are given")

    def labels(term: str, rank: int) -> Labels:
        before, dots, after = term.partition("...")
        letters = before + after
        if not all(letter.isalpha() for letter in letters):
            raise wrong(f"is ill-formed: {term!r} must consist of letters and at most one '...'")
        covered = rank - len(letters)
        if covered < 0 or (covered and not dots):
            raise wrong(f"does not fit: {term!r} names {len(letters)} axes of a tensor of rank {rank}")
        return (*before, *range(-covered, 0), *after)

    inputs = [labels(term, len(shape)) for term, shape in zip(terms, shapes, strict=True)]
    counts: dict[Label, int] = {}
    for one in inputs:
        for label in one:
            counts[label] = counts.get(label, 0) + 1
    covered = [label for label in counts if isinstance(label, int)]
    if not arrow:
        once = sorted(label for label, count in counts.items() if isinstance(label, str) and count == 1)
        return inputs, (*sorted(covered), *once)
    if covered and "..." not in right:
        raise wrong("must name the axes of '...' in the result too")
    output = labels(right, len(right.replace("...", "")) + len(covered))
    if len(set(output)) < len(output):
        raise wrong("repeats a letter in the result")
    unknown = [label for label in output if label not in counts]
    if unknown:
        raise wrong(f"has {unknown[0]!r} in the result, but in no operand")
    return inputs, output


def _sizes(subscripts: str, inputs: list[Labels], shapes: Sequence[tuple[int, ...]]) -> dict[Label, int]:
    """The size of each label, ignoring axes of size one, which broadcast."""
    sizes: dict[Label, int] = {}
    for labels, shape in zip(inputs, shapes, strict=True):
        own: dict[Label, int] = {}
        for label, size in zip(labels, shape, strict=True):
            known = sizes.setdefault(label, size)
            if known == 1:
                sizes[label] = size
            if own.setdefault(label, size) != size or (known != 1 and size not in (1, known)):
                name = repr(label) if isinstance(label, str) else "'...'"
                known = own[label] if own[label] != size else known
                raise ShapeError(
                    f"einsum: in {subscripts!r} the axes {name} have sizes {known} and {size} "
                    f"(shapes {', '.join(map(str, shapes))})"
                )
    return sizes


# --- the plan


Step: TypeAlias = tuple[str, tuple[int, ...], tuple[Any, ...]]
"""An operation, the indices of its input values, and its other arguments. Each result gets the next index."""


@lru_cache(1024)
def _plan(subscripts: str, shapes: tuple[tuple[int, ...], ...]) -> list[Step]:
    inputs, output = _read(subscripts, shapes)
    sizes = _sizes(subscripts, inputs, shapes)
    planner = _Planner(sizes, output, len(shapes))
    # Axes of size one are removed, so that they broadcast, and restored at the end.
    wide = [tuple(axis for axis, size in enumerate(shape) if size != 1) for shape in shapes]
    named = [tuple(labels[axis] for axis in axes) for labels, axes in zip(inputs, wide, strict=True)]
    values: list[_Value] = []
    for at, (labels, shape) in enumerate(zip(named, shapes, strict=True)):
        needed = set(output).union(*named[:at], *named[at + 1 :])
        values.append(planner.single(at, labels, len(labels) < len(shape), needed))
    tree = _order([frozenset(value.labels) for value in values], frozenset(output), sizes)
    planner.finish(planner.product(tree, values)[0])
    return planner.steps


@dataclass
class _Value:
    """An array that the plan computes: its index, and the labels of its axes."""

    at: int
    labels: Labels


@dataclass
class _Planner:
    sizes: dict[Label, int]
    output: Labels
    count: int
    steps: list[Step] = field(default_factory=list[Step])

    def step(self, name: str, sources: tuple[int, ...], *arguments: Any) -> int:
        self.steps.append((name, sources, arguments))
        return self.count + len(self.steps) - 1

    def single(self, at: int, labels: Labels, narrower: bool, needed: set[Label]) -> _Value:
        """One operand: axes of size one removed, diagonals taken, and axes that nothing else needs summed."""
        if narrower:
            at = self.step("reshape", (at,), tuple(self.sizes[label] for label in labels))
        while len(set(labels)) < len(labels):
            at, labels = self.diagonal(at, labels)
        alone = tuple(axis for axis, label in enumerate(labels) if label not in needed)
        if alone:
            at = self.step("sum", (at,), alone, False)
        return _Value(at, tuple(label for label in labels if label in needed))

    def diagonal(self, at: int, labels: Labels) -> tuple[int, Labels]:
        """Take the diagonal of the first repeated label: every (n + 1)-th element of the two axes, flattened."""
        label = next(label for label in labels if labels.count(label) > 1)
        first = labels.index(label)
        second = labels.index(label, first + 1)
        rest = tuple(axis for axis in range(len(labels)) if axis not in (first, second))
        others = tuple(self.sizes[labels[axis]] for axis in rest)
        n = self.sizes[label]
        if (*rest, first, second) != tuple(range(len(labels))):
            at = self.step("permute_dims", (at,), (*rest, first, second))
        at = self.step("reshape", (at,), (*others, n * n))
        whole = tuple([slice(0, size, 1) for size in others])
        if is_open(n):  # which no step of a slice may be: rows of n + 1 elements begin with those of the diagonal
            at = self.step("pad", (at,), (*((0, 0),) * len(others), (0, n)), 0)
            at = self.step("reshape", (at,), (*others, n, n + 1))
            at = self.step("index", (at,), (*whole, slice(0, n, 1), 0))
        else:
            at = self.step("index", (at,), (*whole, slice(0, n * n, n + 1)))
        return at, (*(labels[axis] for axis in rest), label)

    def product(self, tree: Tree, values: list[_Value]) -> tuple[_Value, frozenset[int]]:
        """The value of a tree of products, and the set of its leaves."""
        if isinstance(tree, int):
            return values[tree], frozenset((tree,))
        (left, mine), (right, others) = self.product(tree[0], values), self.product(tree[1], values)
        leaves = mine | others
        outside = set(self.output).union(*(value.labels for i, value in enumerate(values) if i not in leaves))
        return self.pair(left, right, outside), leaves

    def pair(self, left: _Value, right: _Value, outside: set[Label]) -> _Value:
        """The product of two values, summed over shared labels that nothing outside needs."""
        shared = [label for label in left.labels if label in right.labels]
        place = {label: i for i, label in enumerate(self.output)}
        batch = sorted((label for label in shared if label in outside), key=lambda label: place.get(label, -1))
        summed = [label for label in shared if label not in outside]
        free = [[label for label in value.labels if label not in shared] for value in (left, right)]
        firsts = [min((place[label] for label in one if label in place), default=math.inf) for one in free]
        if firsts[1] < firsts[0]:  # so that the result needs no permutation
            left, right, free = right, left, free[::-1]
        pairs = [
            tuple(tuple(value.labels.index(label) for label in labels) for value in (left, right))
            for labels in (batch, summed)
        ]
        at = self.step("dot_general", (left.at, right.at), *pairs)
        return _Value(at, (*batch, *free[0], *free[1]))

    def finish(self, value: _Value) -> None:
        """Permute the axes to the order of the result, and restore the axes of size one."""
        wanted = [label for label in self.output if self.sizes[label] != 1]
        order = tuple(value.labels.index(label) for label in wanted)
        at = value.at
        if order != tuple(range(len(order))):
            at = self.step("permute_dims", (at,), order)
        if len(wanted) < len(self.output):
            at = self.step("reshape", (at,), tuple(self.sizes[label] for label in self.output))


# --- the order of contraction


def _order(inputs: list[frozenset[Label]], output: frozenset[Label], sizes: dict[Label, int]) -> Tree:
    if len(inputs) <= 2:
        return (0, 1) if len(inputs) == 2 else 0
    return (_best if len(inputs) <= _EXHAUSTIVE else _greedy)(inputs, output, sizes)


def _cost(labels: frozenset[Label], sizes: dict[Label, int]) -> float:
    """The number of elements of an array with these axes, or of multiplications of a product over them."""
    return math.prod(sizes[label] for label in labels)


def _best(inputs: list[frozenset[Label]], output: frozenset[Label], sizes: dict[Label, int]) -> Tree:
    """The tree with the fewest multiplications, by dynamic programming over subsets."""
    count = len(inputs)
    everything = (1 << count) - 1

    def within(subset: int) -> frozenset[Label]:
        return frozenset[Label]().union(*(inputs[i] for i in range(count) if subset >> i & 1))

    visible = {s: within(s) & (output | within(everything ^ s)) for s in range(1, everything + 1)}
    best: dict[int, tuple[float, Tree]] = {1 << i: (0.0, i) for i in range(count)}
    for subset in range(1, everything + 1):
        part = (subset - 1) & subset
        while part:
            other = subset ^ part
            if part > other:
                cost = best[part][0] + best[other][0] + _cost(visible[part] | visible[other], sizes)
                if subset not in best or cost < best[subset][0]:
                    best[subset] = cost, (best[part][1], best[other][1])
            part = (part - 1) & subset
    return best[everything][1]


def _greedy(inputs: list[frozenset[Label]], output: frozenset[Label], sizes: dict[Label, int]) -> Tree:
    """Repeatedly multiply the pair whose product adds the least memory; among equals, the cheapest."""
    trees: list[tuple[frozenset[Label], Tree]] = [(labels, i) for i, labels in enumerate(inputs)]
    while len(trees) > 1:
        choices: list[tuple[float, float, int, int]] = []
        for i, (a, _) in enumerate(trees):
            for j in range(i):
                b = trees[j][0]
                rest = output.union(*(labels for k, (labels, _) in enumerate(trees) if k not in (i, j)))
                more = _cost((a | b) & rest, sizes) - _cost(a, sizes) - _cost(b, sizes)
                choices.append((more, _cost(a | b, sizes), j, i))
        _, _, j, i = min(choices)
        (b, right), (a, left) = trees[i], trees[j]
        rest = output.union(*(labels for k, (labels, _) in enumerate(trees) if k not in (i, j)))
        trees = [tree for k, tree in enumerate(trees) if k not in (i, j)]
        trees.append(((a | b) & rest, (left, right)))
    return trees[0][1]
