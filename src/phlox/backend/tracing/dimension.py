"""`Dimension`: the size of an open axis while a model is traced, an integer that also knows how it came about.

A dimension has the value that the trace uses for it, so whatever takes a size takes it. Beside the value it holds a
polynomial in the names of the open axes, with quotients rounded down as further variables. Sums, products and quotients
of dimensions keep it; what they give is a plain int again where nothing open is left.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, SupportsIndex, TypeAlias, cast

from phlox.backend.tracing.symbolic import RULES, differ, real, rules_of

Atom: TypeAlias = "str | tuple[str, Terms, Terms]"
"""The name of an open axis, or (operation, left, right) with operation `floordiv`, `min` or `max`."""
Monomial: TypeAlias = tuple[Atom, ...]
Terms: TypeAlias = tuple[tuple[Monomial, int], ...]
"""A polynomial: products of atoms, each with its coefficient, in one order."""


class Dimension(int):
    """A size that depends on open axes: `Dimension.named("batch", 7)` and the sizes computed from it.

    It compares as its value. With a float on its left (`1.0 / n`) it is a plain number, where `1 / n` keeps it, and so
    do `ratio(1, n)` and `n**-0.5`. Its hash is that of the polynomial, so that a cache keyed by sizes does not give
    what it holds for a plain size of the same value.

    >>> batch = Dimension.named("batch", 7)
    >>> 2 * batch + 1, (2 * batch + 1) % 2, batch - batch
    (2*batch + 1, 1, 0)
    """

    terms: Terms

    @classmethod
    def named(cls, name: str, value: int) -> Dimension:
        """The size of the axis `name`, which is `value` in this trace."""
        return _made(value, (((name,), 1),))

    def __hash__(self) -> int:
        return hash(self.terms)

    def __eq__(self, other: object) -> bool:
        return int.__eq__(self, other) if isinstance(other, int) else False

    # --- arithmetic that keeps the polynomial

    def __add__(self, other: Any) -> Any:
        return _polynomial(self, other, operator.add, _sum) if isinstance(other, int) else _real(_ADD, self, other)

    def __sub__(self, other: Any) -> Any:
        return self + (-other) if isinstance(other, (int, float)) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return (-self) + other

    def __mul__(self, other: Any) -> Any:
        return _polynomial(self, other, operator.mul, _product) if isinstance(other, int) else _real(_MUL, self, other)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Any:
        return self * -1

    def __pos__(self) -> Any:
        return self

    def __floordiv__(self, other: Any) -> Any:
        return _floordiv(self, other) if isinstance(other, int) else NotImplemented

    def __rfloordiv__(self, other: Any) -> Any:
        return _floordiv(other, self) if isinstance(other, int) else NotImplemented

    def __mod__(self, other: Any) -> Any:
        return self - other * (self // other) if isinstance(other, int) else NotImplemented

    def __rmod__(self, other: Any) -> Any:
        return other - self * (other // self) if isinstance(other, int) else NotImplemented

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __truediv__(self, other: Any) -> Any:
        return _real(_DIV, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _real(_DIV, other, self)

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        if isinstance(other, int) and other >= 0 and modulus is None:
            return math.prod([self] * other)
        if isinstance(other, (int, float)) and modulus is None:
            return _real(_POW, self, other)
        return cast(Any, pow)(int(self), other, modulus)

    def __floor__(self) -> Any:
        return self

    def __ceil__(self) -> Any:
        return self

    def __trunc__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self if int(self) >= 0 else -self

    def __repr__(self) -> str:
        return text_of(self.terms)

    __str__ = __repr__

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (int(self), self.terms)


class DimensionReal(float):
    """A real number that depends on dimensions: a mean's 1 / n, say. It remembers how it was computed."""

    tree: tuple[Any, ...]
    """(operation, left, right), of numbers, dimensions and further ones of this kind."""

    def __add__(self, other: Any) -> Any:
        return _real(_ADD, self, other)

    def __radd__(self, other: Any) -> Any:
        return _real(_ADD, other, self)

    def __sub__(self, other: Any) -> Any:
        return _real(_SUB, self, other)

    def __rsub__(self, other: Any) -> Any:
        return _real(_SUB, other, self)

    def __mul__(self, other: Any) -> Any:
        return _real(_MUL, self, other)

    def __rmul__(self, other: Any) -> Any:
        return _real(_MUL, other, self)

    def __truediv__(self, other: Any) -> Any:
        return _real(_DIV, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _real(_DIV, other, self)

    def __pow__(self, other: Any, modulus: None = None) -> Any:
        return _real(_POW, self, other)

    def __neg__(self) -> Any:
        return _real(_MUL, self, -1.0)

    def __floor__(self) -> Any:
        """Of a dimension times a fraction a quotient of integers; else a plain int."""
        from fractions import Fraction  # which imports much, and is needed nowhere else

        name, left, right = self.tree
        if name == _MUL and isinstance(left, Dimension) and isinstance(right, float):
            share = Fraction(right).limit_denominator(4096)
            if float(share) == right:
                return left * share.numerator // share.denominator
        return math.floor(float(self))


_ADD, _SUB, _MUL, _DIV, _POW = "add", "sub", "mul", "div", "pow"
_REALS: dict[str, Callable[[Any, Any], Any]] = {
    _ADD: float.__add__, _SUB: float.__sub__, _MUL: float.__mul__, _DIV: float.__truediv__, _POW: float.__pow__,
}  # fmt: skip


def _real(name: str, left: Any, right: Any) -> Any:
    if not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
        return NotImplemented
    made = DimensionReal(_REALS[name](*[float(x) for x in (left, right)]))
    made.tree = (name, left, right)
    return made


def _made(value: int, terms: Terms) -> Any:
    found = Dimension(value)
    found.terms = terms
    return found


def _result(value: int, terms: Terms) -> Any:
    """A plain int where nothing open is left."""
    return value if all(not monomial for monomial, _ in terms) else _made(value, terms)


def terms_of(size: int) -> Terms:
    """The polynomial of a size, open or not."""
    if isinstance(size, Dimension):
        return size.terms
    return (((), int(size)),) if size else ()


def as_size(value: SupportsIndex) -> int:
    """`operator.index` that keeps a dimension, and a symbolic one of an engine, as it is."""
    if type(value) is int:  # almost always
        return value
    return cast(int, value) if isinstance(value, Dimension) or type(value) in RULES else operator.index(value)


def is_open(size: Any) -> bool:
    """Does a size, or a real number made of sizes, depend on an open axis?"""
    return type(size) is not int and (isinstance(size, (Dimension, DimensionReal)) or type(size) in RULES)


_NUMBERS = frozenset({int, float})


def ratio(one: float, other: float) -> float:
    """A number or size by another one, as a real number, whatever the open axes are; NaN if that is not positive.

    >>> ratio(3, 2), ratio(3, 0)
    (1.5, nan)
    """
    if type(other) in _NUMBERS and type(one) in _NUMBERS:  # almost always
        return one / other if other > 0 else math.nan
    if rules_of(one, other) is not None:
        return real(one) / real(other)
    if is_open(other):
        return one / other if isinstance(one, int) else one * (1 / other)
    return one / other if other > 0 else math.nan


def same_size(one: int, other: int) -> bool:
    """Are these equal whatever the open axes are?"""
    if (rules := rules_of(one, other)) is not None:
        return rules.same(one, other)
    return one == other and terms_of(one) == terms_of(other)


def pads(widths: Iterable[tuple[int, int]]) -> bool:
    """Is any of these widths of padding more than zero, or may be: zero in this trace, and not with other sizes?"""
    return any(is_open(width) or width for pair in widths for width in pair)  # the truth of an open one would fix it


def smaller(one: int, other: int) -> int:
    """The smaller of two sizes, whatever the open axes are."""
    if (rules := rules_of(one, other)) is not None:
        return rules.smaller(one, other)
    return _extreme("min", min, one, other)


def larger(one: int, other: int) -> int:
    """The larger of two sizes, whatever the open axes are."""
    if (rules := rules_of(one, other)) is not None:
        return rules.larger(one, other)
    return _extreme("max", max, one, other)


def _extreme(name: str, choose: Callable[[int, int], int], one: int, other: int) -> int:
    if not (is_open(one) or is_open(other)):
        return choose(one, other)
    if never_negative(terms_of(one - other)):
        return one if choose is max else other
    if never_negative(terms_of(other - one)):
        return other if choose is max else one
    value = choose(int(one), int(other))
    return _made(value, ((((name, terms_of(one), terms_of(other)),), 1),))


def never_negative(terms: Terms) -> bool:
    """Is it certain that this is not negative, since no size is?"""
    if all(count > 0 and all(map(_never_below, monomial)) for monomial, count in terms):
        return True
    for monomial, count in terms:
        if len(monomial) != 1 or isinstance(monomial[0], str):
            continue
        operation, left, right = monomial[0]
        rest = _sum(terms, ((monomial, -count),))
        if operation == "floordiv":  # of what is not negative, it is at most that
            if count < 0 and never_negative(left) and never_negative(_sum(rest, _product(left, (((), count),)))):
                return True
            continue
        sides = [never_negative(_sum(rest, _product(side, (((), count),)))) for side in (left, right)]
        return any(sides) if (operation == "max") == (count > 0) else all(sides)
    return False


def _never_below(atom: Atom) -> bool:
    """Is it certain that this factor is not negative?"""
    if isinstance(atom, str):
        return True
    operation, left, right = atom
    sides = never_negative(left), never_negative(right)
    return any(sides) if operation == "max" else all(sides)


# --- polynomials


def _polynomial(one: int, other: int, combine: Callable[[int, int], int], rule: Callable[[Terms, Terms], Terms]) -> Any:
    return _result(combine(int(one), int(other)), rule(terms_of(one), terms_of(other)))


def _normal(terms: Iterable[tuple[Monomial, int]]) -> Terms:
    found: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        found[monomial] = found.get(monomial, 0) + coefficient
    kept = [(monomial, coefficient) for monomial, coefficient in found.items() if coefficient]
    return tuple(sorted(kept, key=lambda term: (-len(term[0]), repr(term[0]))))


def _sum(one: Terms, other: Terms) -> Terms:
    return _normal((*one, *other))


def _product(one: Terms, other: Terms) -> Terms:
    return _normal((tuple(sorted((*first, *second), key=repr)), a * b) for first, a in one for second, b in other)


def _floordiv(one: int, other: int) -> Any:
    """The quotient rounded down: of what divides without rest exactly, of the rest as a variable of its own."""
    if int(one) < 0 < int(other):  # engines round toward zero: -((b - 1 - a) // b) is the same, of what is not negative
        return -((-one + other - 1) // other)
    value = int(one) // int(other)
    exact, rest = _divided(terms_of(one), terms_of(other))
    if rest:
        if not is_open(other) and all(not monomial for monomial, _ in rest):
            rest = terms_of(sum(coefficient for _, coefficient in rest) // int(other))
        else:
            rest = (((("floordiv", rest, terms_of(other)),), 1),)
    return _result(value, _sum(exact, rest))


def _divided(terms: Terms, by: Terms) -> tuple[Terms, Terms]:
    """Quotient and rest: each term that one term divides without rest goes into the quotient."""
    if len(by) != 1:
        return ((((), 1),), ()) if terms == by else ((), terms)
    (monomial, coefficient), exact, rest = by[0], list[tuple[Monomial, int]](), list[tuple[Monomial, int]]()
    for factors, count in terms:
        left = list(factors)
        for factor in monomial:
            if factor in left:
                left.remove(factor)
            else:
                break
        else:
            if count % coefficient == 0:
                exact.append((tuple(left), count // coefficient))
                continue
        rest.append((factors, count))
    return _normal(exact), _normal(rest)


def text_of(terms: Terms) -> str:
    """A polynomial as it is read: `2*batch + 1`."""
    parts = [_term_text(monomial, coefficient) for monomial, coefficient in terms]
    return " + ".join(parts).replace("+ -", "- ") or "0"


def _term_text(monomial: Monomial, coefficient: int) -> str:
    factors = [_atom_text(atom) for atom in monomial]
    if not factors:
        return str(coefficient)
    sign = "-" if coefficient == -1 else "" if coefficient == 1 else f"{coefficient}*"
    return sign + "*".join(factors)


def _atom_text(atom: Atom) -> str:
    if isinstance(atom, str):
        return atom
    name, left, right = atom
    if name == "floordiv":
        return f"(({text_of(left)}) // {text_of(right) if len(right) == 1 else f'({text_of(right)})'})"
    return f"{name}({text_of(left)}, {text_of(right)})"


def evaluate(terms: Terms, sizes: Mapping[str, int]) -> int:
    """The value of a polynomial for sizes of the open axes.

    >>> evaluate((3 * Dimension.named("n", 7) // 2).terms, {"n": 4})
    6
    """
    return sum(
        coefficient * math.prod(_atom_value(atom, sizes) for atom in monomial) for monomial, coefficient in terms
    )


def _atom_value(atom: Atom, sizes: Mapping[str, int]) -> int:
    if isinstance(atom, str):
        return sizes[atom]
    name, left, right = atom
    one, other = evaluate(left, sizes), evaluate(right, sizes)
    return one // other if name == "floordiv" else min(one, other) if name == "min" else max(one, other)


def common_size(one: int, other: int) -> int:
    """What two sizes broadcast to; of two open sizes that are equal here, the one that is a name rather than a term."""
    if one == 1:
        return other
    return other if isinstance(one, Dimension) and isinstance(other, Dimension) and _is_name(other.terms) else one


def _is_name(terms: Terms) -> bool:
    return len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1 and isinstance(terms[0][0][0], str)


def broadcast_sizes(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that these broadcast to, dimensions kept; `ValueError` if they do not."""
    found: tuple[int, ...] = ()
    for shape in shapes:
        rank = max(len(shape), len(found))
        pairs = zip((1,) * (rank - len(found)) + found, (1,) * (rank - len(shape)) + shape, strict=True)
        sizes: list[int] = []
        for one, other in pairs:
            if rules_of(one, other) is not None:
                sizes.append(other if type(one) is int and one == 1 else one)
                if differ(one, other) and 1 not in (one, other):
                    raise ValueError(f"shapes {found} and {shape} do not broadcast")
                continue
            if one != other and 1 not in (int(one), int(other)):
                raise ValueError(f"shapes {found} and {shape} do not broadcast")
            sizes.append(common_size(one, other))
        found = tuple(sizes)
    return found
