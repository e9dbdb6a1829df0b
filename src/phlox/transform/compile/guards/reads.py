"""What the code of a function reads: names, attributes, items and calls, as expressions.

Python's instructions are followed in their order, with an expression for each known value on the stack. Where paths of
the code meet, and after unknown instructions, all values on the stack are unknown. So a version of Python with other
instructions makes the expressions shorter, never wrong: `config.beta` becomes a use of `config` as a whole.
"""

from __future__ import annotations

import dis
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class _Named:
    name: str


class Local(_Named):
    """A variable of the function itself: an argument, or one that it assigns."""


class Outer(_Named):
    """A variable of an enclosing function."""


class Global(_Named):
    """A global variable of its module, or a built-in name."""


class Imported(_Named):
    """A module that the function imports; `import a.b` gives `a`, `from a.b import c` gives `a.b`."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is written in the code."""

    value: Any


@dataclass(frozen=True, slots=True)
class Attribute:
    """`of.name`."""

    of: Expression
    name: str


@dataclass(frozen=True, slots=True)
class Item:
    """`of[key]`."""

    of: Expression
    key: Expression


@dataclass(frozen=True, slots=True)
class Call:
    """`of(...)` with its arguments, the last of them passed by keyword; None if the arguments are unknown."""

    of: Expression
    args: tuple[Expression, ...] | None
    keywords: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Updated:
    """The result of `of += ...`, and the like, before it is stored."""

    of: Expression


Expression: TypeAlias = Local | Outer | Global | Imported | Constant | Attribute | Item | Call | Updated | None
"""None is an unknown value."""

Use: TypeAlias = Literal["value", "entries", "presence", "update"]
"""What the program depends on: the value; the entries that a cache has; whether it is None; or, with "update", nothing
but the value itself, as in `count += 1`."""


@dataclass(frozen=True, slots=True)
class Read:
    """A use of the value of an expression; for a `Call`, the call itself."""

    expression: Expression
    line: int
    use: Use = "value"


@dataclass(frozen=True, slots=True)
class Reads:
    """All reads of a code object."""

    reads: tuple[Read, ...]
    assigned: Mapping[str, Expression]
    """The variables that are assigned once, with the assigned expressions."""
    replaced: frozenset[str]
    """The parameters that are assigned another value."""
    filled: frozenset[Expression]
    """The containers to which it adds entries: caches, for which an additional entry makes no difference."""
    stored: tuple[Expression, ...]
    """The targets outside of its own variables to which it assigns."""
    inner: tuple[CodeType, ...]
    """The functions that it defines."""


@lru_cache(maxsize=4096)
def reads_of(code: CodeType) -> Reads:
    """What the code of a function reads.

    >>> def scaled(x):
    ...     return x * settings.scale
    >>> reads_of(scaled.__code__).reads[0].expression
    Attribute(of=Global(name='settings'), name='scale')
    """
    return _Reader(code).result()


_SKIPPED = frozenset(
    ("CACHE", "COPY_FREE_VARS", "EXTENDED_ARG", "MAKE_CELL", "NOP", "NOT_TAKEN", "PRECALL", "PUSH_NULL", "RESUME",
     "TO_BOOL")
)  # fmt: skip
"""They have no effect on the followed stack, which has no NULL entries."""

_UNKNOWN = frozenset(["LOAD_ASSERTION_ERROR", "LOAD_BUILD_CLASS", "LOAD_CLOSURE", "LOAD_COMMON_CONSTANT", "FOR_ITER"])
"""They push an unknown value."""

_OPERANDS = {
    "BINARY_SLICE": 3, "COMPARE_OP": 2, "CONTAINS_OP": 2, "UNARY_NEGATIVE": 1, "UNARY_NOT": 1, "UNARY_INVERT": 1,
    "UNARY_POSITIVE": 1, "GET_ITER": 1, "CALL_INTRINSIC_1": 1, "FORMAT_SIMPLE": 1, "CONVERT_VALUE": 1,
}  # fmt: skip
"""The number of values that an operator pops."""

_BUILT: dict[str, Callable[[int], int]] = {
    "BUILD_TUPLE": lambda n: n, "BUILD_LIST": lambda n: n, "BUILD_SET": lambda n: n, "BUILD_STRING": lambda n: n,
    "BUILD_SLICE": lambda n: n, "BUILD_MAP": lambda n: 2 * n, "BUILD_CONST_KEY_MAP": lambda n: n + 1,
}  # fmt: skip
"""The number of values that a new container pops."""

_TAKEN = {
    "LIST_APPEND": 1, "LIST_EXTEND": 1, "SET_ADD": 1, "SET_UPDATE": 1, "DICT_MERGE": 1, "DICT_UPDATE": 1, "MAP_ADD": 2,
    "STORE_NAME": 1,
}  # fmt: skip
"""The number of values that are popped without a result."""

_LOADED = {
    "LOAD_GLOBAL": Global, "LOAD_NAME": Global, "LOAD_FAST": Local, "LOAD_FAST_CHECK": Local, "LOAD_FAST_BORROW": Local,
    "LOAD_FAST_AND_CLEAR": Local, "LOAD_DEREF": Outer, "LOAD_CLASSDEREF": Outer,
}  # fmt: skip


class _Reader:
    """Follows the instructions of a code object."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.stack: list[Expression] = []
        self.reads: dict[tuple[Expression, Use], Read] = {}
        self.line = code.co_firstlineno
        self.stored = Counter[str]()
        self.filled = set[Expression]()
        self.targets: list[Expression] = []
        self.assigned: dict[str, Expression] = {}
        self.keywords: tuple[str, ...] = ()
        count = code.co_argcount + code.co_kwonlyargcount
        flags = code.co_flags
        self.parameters = code.co_varnames[: count + bool(flags & CO_VARARGS) + bool(flags & CO_VARKEYWORDS)]

    def result(self) -> Reads:
        for instruction in dis.get_instructions(self.code):
            if instruction.is_jump_target:
                self.forget()
            positions = instruction.positions
            if positions is not None and positions.lineno is not None:
                self.line = positions.lineno
            self.follow(instruction)
        self.forget()
        once = {name: value for name, value in self.assigned.items() if self.stored[name] == 1}
        for name, value in self.assigned.items():
            if name not in once:
                self.read(value)
        # The code that evaluates annotations is not one of its functions.
        inner = [x for x in self.code.co_consts if isinstance(x, CodeType) and x.co_name != "__annotate__"]
        reads = [replace(x, use="entries") if x.expression in self.filled else x for x in self.reads.values()]
        replaced = frozenset(self.parameters).intersection(self.stored)
        return Reads(tuple(reads), once, replaced, frozenset(self.filled), tuple(self.targets), tuple(inner))

    def follow(self, instruction: dis.Instruction) -> None:
        name, argument, value = instruction.opname, instruction.arg or 0, instruction.argval
        if name in _SKIPPED:
            return
        if name in _LOADED:
            self.load(_LOADED[name], value)
        elif name in _UNKNOWN:
            self.stack.append(None)
        elif name in _OPERANDS:
            self.operate(_OPERANDS[name])
        elif name in _BUILT:
            self.operate(_BUILT[name](argument))
        elif name in _TAKEN:
            self.operate(_TAKEN[name])
            self.pop()
        elif name in ("LOAD_CONST", "LOAD_SMALL_INT"):
            self.stack.append(Constant(value))
        elif name in ("LOAD_ATTR", "LOAD_METHOD"):
            self.stack.append(Attribute(self.pop(), value))
        elif name == "BINARY_SUBSCR" or (name == "BINARY_OP" and instruction.argrepr == "[]"):
            key = self.pop()
            self.stack.append(Item(self.pop(), key))
        elif name == "BINARY_OP" and instruction.argrepr.endswith("="):
            self.read(self.pop())
            self.stack.append(Updated(self.pop()))
        elif name == "BINARY_OP":
            self.operate(2)
        elif name in ("CALL", "CALL_KW"):
            self.call(argument, name == "CALL_KW")
        elif name == "KW_NAMES":
            self.keywords = self.code.co_consts[argument]
        elif name.startswith("LOAD_FAST") and isinstance(value, tuple):  # two instructions in one
            for variable in value:  # pyright: ignore[reportUnknownVariableType]
                self.load(Local, str(variable))  # pyright: ignore[reportUnknownArgumentType]
        elif name == "STORE_FAST_LOAD_FAST":
            self.store(value[0])
            self.load(Local, value[1])
        elif name == "STORE_FAST_STORE_FAST":
            self.store(value[0])
            self.store(value[1])
        elif name in ("STORE_FAST", "STORE_DEREF"):
            self.store(value)
        elif name == "IS_OP":
            self.compare(self.pop(), self.pop())
            self.stack.append(None)
        elif name in ("POP_TOP", "END_FOR", "POP_ITER"):
            self.pop()
        elif "IF_NONE" in name or "IF_NOT_NONE" in name:
            self.read(self.pop(), "presence")
        elif name.startswith(("POP_JUMP", "JUMP_IF")):
            self.read(self.pop())
        elif name == "COPY":
            self.stack.append(self.stack[-argument] if argument <= len(self.stack) else None)
        elif name == "SWAP" and argument <= len(self.stack):
            self.stack[-1], self.stack[-argument] = self.stack[-argument], self.stack[-1]
        elif name == "STORE_GLOBAL":
            self.put(Global(value))
        elif name == "STORE_ATTR":
            self.put(Attribute(self.pop(), value))
        elif name == "STORE_SUBSCR":
            key, container = self.pop(), self.pop()
            self.read(key)
            if not isinstance(key, Constant):
                self.filled.add(container)
            self.put(Item(container, key))
        elif name == "UNPACK_SEQUENCE":
            self.read(self.pop())
            self.stack += [None] * argument
        elif name == "IMPORT_NAME":
            names, level = self.pop(), self.pop()
            is_absolute = level == Constant(0)
            module_name = value if names != Constant(None) else value.partition(".")[0]
            self.stack.append(Imported(module_name) if is_absolute else None)
        elif name == "IMPORT_FROM":
            self.stack.append(Attribute(self.stack[-1] if self.stack else None, value))
        elif name == "LOAD_SUPER_ATTR":
            for _ in range(3):
                self.pop()
            self.stack.append(Attribute(Call(Global("super"), ()), value))
        elif name == "MAKE_FUNCTION":
            self.operate(1 + (0 if instruction.arg is None else bin(argument).count("1")))
        elif name == "SET_FUNCTION_ATTRIBUTE":
            self.operate(2)
        else:
            self.forget()
            if name.startswith("CALL"):
                self.stack.append(None)

    def load(self, kind: type[Local | Outer | Global], name: str) -> None:
        if kind is Local and (name in self.code.co_cellvars or name in self.code.co_freevars):
            self.stack.append(None)  # the cell, for an inner function
        elif kind is Outer and name not in self.code.co_freevars:
            self.stack.append(Local(name))
        else:
            self.stack.append(kind(name))

    def store(self, name: str) -> None:
        if name in self.code.co_freevars:
            self.put(Outer(name))
            return
        value = self.pop()
        self.stored[name] += 1
        if name in self.parameters or self.stored[name] > 1:
            self.read(value)
        else:
            self.assigned[name] = value

    def put(self, target: Expression) -> None:
        """Store the last value in a target; that is not a use of the object that holds the target."""
        self.targets.append(target)
        value = self.pop()
        if isinstance(value, Updated) and value.of == target:
            self.read(target, "update")
        else:
            self.read(value)

    def call(self, count: int, has_names: bool) -> None:
        if has_names:
            names = self.pop()
            self.keywords = names.value if isinstance(names, Constant) else ()
        args = [self.pop() for _ in range(count)][::-1]
        called = Call(self.pop(), tuple(args), self.keywords)
        self.keywords = ()
        self.read(called)
        self.stack.append(called)

    def compare(self, first: Expression, second: Expression) -> None:
        nothing = Constant(None)
        for left, right in ((first, second), (second, first)):
            self.read(left, "presence" if right == nothing else "value")

    def operate(self, count: int) -> None:
        for _ in range(count):
            self.read(self.pop())
        self.stack.append(None)

    def pop(self) -> Expression:
        return self.stack.pop() if self.stack else None

    def read(self, expression: Expression, use: Use = "value") -> None:
        if isinstance(expression, Updated):
            expression = expression.of
        if expression is not None and not isinstance(expression, Constant):
            self.reads.setdefault((expression, use), Read(expression, self.line, use))

    def forget(self) -> None:
        """The stack becomes unknown, so every value on it may be used in any way."""
        for expression in self.stack:
            self.read(expression)
        self.stack.clear()
