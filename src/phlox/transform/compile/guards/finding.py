"""The search for values that a function, and the functions that it calls, read from outside of the arguments.

The code of the user's functions is read (`reads`), and its expressions are looked up: globals, variables of enclosing
functions, attributes and items of these, also in functions that get them as arguments. The values are watched: numbers
and names by value; containers and NumPy arrays by their contents; modules by their structure and the arrays of their
parameters; anything else by identity. Functions of Phlox and of other libraries are not read, but the user's functions
inside them are: `phlox.grad(loss)` holds `loss`.
"""

from __future__ import annotations

import builtins
import sys
from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from functools import cached_property, partial
from inspect import isdatadescriptor
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import numpy as np

from phlox.backend import Backend
from phlox.module import Module, Param
from phlox.module.statics import ByIdentity, constant_key, is_constant
from phlox.module.structure import Container
from phlox.optim import Optimizer
from phlox.tensor import Tensor
from phlox.transform.compile.guards.guard import PLAIN, Guard, is_none, never
from phlox.transform.compile.guards.libraries import is_library
from phlox.transform.compile.guards.reads import (
    Attribute,
    Call,
    Constant,
    Expression,
    Global,
    Imported,
    Item,
    Local,
    Outer,
    Use,
    reads_of,
)
from phlox.transform.compile.guards.roots import Holder, Roots, is_user_object, parts_in
from phlox.transform.compile.guards.slots import (
    ABSENT,
    Bound,
    Instance,
    Outside,
    Slot,
    Source,
    attribute_of,
    class_attribute,
    class_of,
    fields_of,
    instance_dict,
)
from phlox.transform.compile.guards.watches import CONTAINERS, Watches

MOST_FUNCTIONS = 500
"""The number of functions that are read; what further functions read is not watched."""
_MOST_OBJECTS = 1000
_DEEPEST = 5
"""The number of objects of Phlox, and their depth, in which the user's functions are searched."""

_CLASS_ALONE = frozenset(map(id, (callable, hasattr, id, isinstance, issubclass, print, super, type)))
"""Functions whose results depend only on the class of their arguments."""
_CHANGES = frozenset(
    ("add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert", "remove", "reverse",
     "setdefault", "sort", "update")
)  # fmt: skip
"""Methods that change a container without reading it."""
_OPERATORS_NOT_USED = frozenset(
    ("__class_getitem__", "__copy__", "__deepcopy__", "__del__", "__delattr__", "__eq__", "__format__", "__getstate__",
     "__hash__", "__init__", "__init_subclass__", "__new__", "__post_init__", "__reduce__", "__reduce_ex__", "__repr__",
     "__setattr__", "__setstate__", "__str__")
)  # fmt: skip


def guard_of(roots: Roots) -> Guard:
    """A guard of the current values that a function reads from outside."""
    finder = _Finder()
    finder.start(roots)
    return Guard(finder.seen.all(), finder.seen.facts, finder.seen.unseen, partial(guard_of, roots))


class _Frame:
    """A function to read, with what is known of its variables."""

    def __init__(
        self,
        code: CodeType,
        names: dict[str, Any],
        cells: Mapping[str, CellType],
        bound: Mapping[str, Source],
        outer: _Frame | None = None,
    ) -> None:
        self.code, self.globals, self.cells, self.bound, self.outer = code, names, cells, bound, outer
        self.reads = reads_of(code)
        self.sources: dict[Expression, Source | None] = {}

    def where(self, line: int) -> str:
        return f"{self.code.co_qualname} ({Path(self.code.co_filename).name}:{line})"


class _Finder:
    """One search for what a function reads from outside."""

    def __init__(self) -> None:
        self.seen = Watches()
        self._queue: deque[_Frame] = deque()
        self._entered: dict[Hashable, Any] = {}
        """The functions that are read; they stay alive, because their ids are keys."""
        self._objects: dict[Hashable, Outside | Instance] = {}
        """Objects whose use is unknown: any attribute that is read of an unknown object may be theirs."""
        self._names: dict[str, str] = {}
        """The names of the attributes of unknown objects, and where they are read."""

    def start(self, roots: Roots) -> None:
        fn = roots.function
        for source in roots.sources:
            if isinstance(source, Outside):
                self._reach(source.value)
            else:
                self._use(source)
        for owner in roots.methods:
            self._methods(owner)
        if isinstance(fn, FunctionType):
            self._enter(fn, roots.parameters)
        elif isinstance(fn, MethodType) and isinstance(fn.__func__, FunctionType) and not is_library(fn):
            self._call_method(_bound_method(fn), named=roots.parameters)
        else:
            self._use(Outside(fn, _name(fn)))
        checked: set[Hashable] = set()
        while True:
            self._follow()
            pairs = [(source, name) for source in list(self._objects.values()) for name in self._names]
            unchecked = [(source, name) for source, name in pairs if (source.mark, name) not in checked]
            if not unchecked:
                return
            for source, name in unchecked:
                checked.add((source.mark, name))
                self._use(self._find_attribute(source, name, self._names[name]))

    # --- functions

    def _enter(self, function: FunctionType, bound: Mapping[str, Source]) -> None:
        """Queue a function for reading; for a library's function, the user's functions inside it."""
        if is_library(function):
            self._reach(vars(function).get("__wrapped__"), modules=True)
            for cell in function.__closure__ or ():
                self._reach(attribute_of(cell, "cell_contents"), modules=True)
            return
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        marks = frozenset([(name, source.mark) for name, source in bound.items()])
        key = (function.__code__, id(function.__globals__), tuple(map(id, cells.values())), marks)
        if key in self._entered or len(self._entered) >= MOST_FUNCTIONS:
            return
        self._entered[key] = function, bound
        frame = _Frame(function.__code__, function.__globals__, cells, bound)
        self._queue.append(frame)
        for name in ("__defaults__", "__kwdefaults__"):
            slot, where = Slot.attribute(function, name), frame.where(function.__code__.co_firstlineno)
            if slot is not None and slot.value:
                self._use(Outside(function, _name(function), where).at(slot, f"{_name(function)}.{name}"))

    def _follow(self) -> None:
        while self._queue:
            frame = self._queue.popleft()
            for read in frame.reads.reads:
                if isinstance(read.expression, Call):
                    self._call(read.expression, frame, read.line)
                else:
                    self._use(self._find(read.expression, frame, read.line), read.use)
            for target in frame.reads.stored:
                self._store(target, frame)
            for code in frame.reads.inner:
                self._queue.append(_Frame(code, frame.globals, frame.cells, {}, frame))

    def _store(self, target: Expression, frame: _Frame) -> None:
        """Note a target to which a function assigns."""
        line = frame.code.co_firstlineno
        if isinstance(target, (Outer, Global)):
            source = self._find(target, frame, line)
            if isinstance(source, Outside) and source.slots:
                self.seen.stored.add(source.slots[-1].key)
        elif isinstance(target, (Attribute, Item)):
            source = self._find(target.of, frame, line)
            if isinstance(source, Outside) and isinstance(target, Attribute):
                attributes = instance_dict(source.value)
                self.seen.stored |= {(id(attributes), target.name), (id(source.value), "attribute", target.name)}
            elif isinstance(source, Outside):
                self.seen.stored.add(id(source.value))

    def _call_method(
        self, method: Bound, args: Iterable[Source | None] = (), named: Mapping[str, Source | None] | None = None
    ) -> None:
        self._call_function(method.function, [method.owner, *args], named or {})

    def _call_function(
        self, function: FunctionType, args: Iterable[Source | None], named: Mapping[str, Source | None]
    ) -> None:
        """Read a function with what is known of its arguments."""
        if is_library(function):
            self._use_whole([*args, *named.values()])
            self._enter(function, {})
            return
        code = function.__code__
        positional = list(args)
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        by_name = {**dict(zip(names[: code.co_argcount], positional, strict=False)), **named}
        others = [source for name, source in by_name.items() if name not in names]  # of *args and **kwargs
        for source in (*positional[code.co_argcount :], *others):
            self._use(source)
        self._enter(function, {name: x for name, x in by_name.items() if x is not None and name in names})

    def _methods(self, owner: Outside | Instance, *, operators: bool = False) -> None:
        """Read the methods of an object, which a library may call; or only its operators."""
        for base in class_of(owner).__mro__:
            for name, function in list(vars(base).items()):
                is_special = name.startswith("__") and name.endswith("__")
                is_used = name not in _OPERATORS_NOT_USED if is_special else not operators
                if is_used and isinstance(function, FunctionType) and not is_library(function):
                    self._call_method(Bound(function, owner, name))

    def _reach(self, value: Any, *, modules: bool = False, depth: int = 0) -> None:
        """Use the user's functions in an object that a library holds; with `modules`, also modules."""
        if isinstance(value, (*PLAIN, Tensor, np.ndarray, type, ModuleType, Backend)) or depth > _DEEPEST:
            return
        if isinstance(value, Module):
            self._use(Outside(value, _name(value), "a library") if modules else None)
        elif not self.seen.is_new("reached", value) or len(self._entered) > _MOST_OBJECTS:
            return
        elif isinstance(value, (FunctionType, MethodType, partial, Holder)) or attribute_of(value, "__wrapped__"):
            self._use(Outside(value, _name(value)))
        elif isinstance(value, CONTAINERS):
            parts = cast("dict[Any, Any]", value).values() if isinstance(value, dict) else cast("list[Any]", value)
            for part in list(parts)[:_MOST_OBJECTS]:
                self._reach(part, modules=modules, depth=depth + 1)
        elif not is_library(type(value)):
            self._methods(Outside(value, "self"))
        elif type(value).__module__.partition(".")[0] == "phlox":
            for name in fields_of(value):
                self._reach(attribute_of(value, name), modules=modules and depth == 0, depth=depth + 1)

    def _call(self, call: Call, frame: _Frame, line: int) -> None:
        """Read the called function with the known arguments; a library's function may use them in any way."""
        args = [self._find(arg, frame, line) for arg in call.args or ()]
        if self._is_get(call, frame, line):
            for source in (self._find(call, frame, line), *args[1:]):
                self._use(source)
            return
        callee = self._find(call.of, frame, line)
        positional = len(args) - len(call.keywords)
        by_position, named = args[:positional], dict(zip(call.keywords, args[positional:], strict=True))
        value: Any = callee.value if isinstance(callee, Outside) else None
        if isinstance(callee, Bound):
            self._watch_method(callee, frame.where(line))
            self._call_method(callee, by_position, named)
        elif isinstance(callee, Outside) and isinstance(value, FunctionType) and not is_library(value):
            self.seen.identity(callee)
            self._call_function(value, by_position, named)
        elif isinstance(value, MethodType) and isinstance(value.__func__, FunctionType) and not is_library(value):
            self._call_method(_bound_method(value), by_position, named)
        elif isinstance(value, type) and not is_library(value):
            self._use(callee)
            self._make(Instance(cast("type[Any]", value)), by_position, named)
        elif isinstance(callee, Instance) or (isinstance(callee, Outside) and is_user_object(value)):
            self._use(callee)
            method = class_attribute(class_of(callee), "__call__")
            if isinstance(method, FunctionType):
                self._call_method(Bound(method, callee, "__call__"), by_position, named)
        elif value is len and len(args) == 1 and isinstance(args[0], Outside) and isinstance(args[0].value, CONTAINERS):
            self.seen.sized(args[0])
        elif value is getattr:
            self._use(self._find(call, frame, line))
            if len(call.args or ()) < 2 or not isinstance(cast("Any", call.args)[1], Constant):
                self._use_whole(args)
        elif callee is None:
            for arg in args:
                self._use(arg)
        elif id(value) not in _CLASS_ALONE:
            self._use(callee)
            self._use_whole(args)

    def _is_get(self, call: Call, frame: _Frame, line: int) -> bool:
        """Is it `get` of a mapping, with a known key?"""
        match call:
            case Call(Attribute(of, "get"), (key, *_)):
                mapping, key_source = self._find(of, frame, line), self._find(key, frame, line)
                is_known = isinstance(key_source, Outside) and isinstance(key_source.value, PLAIN)
                return is_known and isinstance(mapping, Outside) and isinstance(mapping.value, Mapping)
            case _:
                return False

    def _make(self, instance: Instance, positional: list[Source | None], named: Mapping[str, Source | None]) -> None:
        """Read the constructor of a user's class."""
        constructor = class_attribute(instance.cls, "__init__")
        if isinstance(constructor, FunctionType):
            self._call_method(Bound(constructor, instance, "__init__"), positional, named)
        for source in (instance, *positional, *named.values()):
            self._use(source)

    # --- expressions

    def _find(self, expression: Expression, frame: _Frame, line: int) -> Source | None:
        """The source of an expression's value; None if it is not from outside."""
        if expression not in frame.sources:
            frame.sources[expression] = None  # until it is found
            frame.sources[expression] = self._look_up(expression, frame, line)
        return frame.sources[expression]

    def _look_up(self, expression: Expression, frame: _Frame, line: int) -> Source | None:
        where = frame.where(line)
        match expression:
            case Constant(value):
                return Outside(value, repr(value))
            case Local(name):
                bound = frame.bound.get(name)
                if bound is not None and name in frame.reads.replaced:
                    self._use(bound)
                    return None
                return bound or self._find(frame.reads.assigned.get(name), frame, line)
            case Outer(name) if frame.outer is not None:
                is_outer = name in frame.outer.code.co_freevars
                return self._find(Outer(name) if is_outer else Local(name), frame.outer, line)
            case Outer(name):
                cell = frame.cells[name]
                slot = Slot.attribute(cell, "cell_contents")  # None for a variable without a value
                return None if slot is None else Outside(cell, "").at(slot, name, where)
            case Global(name) if not name.startswith("__"):
                return self._find_global(name, frame, where)
            case Imported(name):
                module = sys.modules.get(name)
                return None if module is None else Outside(module, name)
            case Attribute(Call(Global("super"), ()), name):
                self._super(frame, name)
                return None
            case Attribute(of, name):
                return self._find_attribute(self._find(of, frame, line), name, where, _use_of(of, frame))
            case Item(of, key):
                source, bound = self._find(of, frame, line), self._find(key, frame, line)
                return self._find_item(source, bound, where, _use_of(of, frame))
            case Call(Global("getattr"), (of, Constant(str(name)), *_)):
                return self._find(Attribute(of, name), frame, line)
            case Call(Attribute(of, "get"), (key, *_)) if self._is_get(expression, frame, line):
                return self._find(Item(of, key), frame, line)
            case _:
                return None

    def _find_global(self, name: str, frame: _Frame, where: str) -> Source | None:
        if name not in frame.globals:
            return Outside(getattr(builtins, name), name) if hasattr(builtins, name) else None
        value = frame.globals[name]
        if isinstance(value, ModuleType) or _is_imported(value, name):
            return Outside(value, name)
        return Outside(frame.globals, "").at(Slot.item(frame.globals, name), name, where)

    def _super(self, frame: _Frame, name: str) -> None:
        """Read the methods of this name in all base classes, for `super()`."""
        owner = frame.bound.get(next(iter(frame.code.co_varnames), ""))
        if isinstance(owner, (Outside, Instance)):
            for base in class_of(owner).__mro__:
                function = vars(base).get(name)
                if isinstance(function, FunctionType) and not is_library(function):
                    self._call_method(Bound(function, owner, name))

    def _find_attribute(self, of: Source | None, name: str, where: str, use: Use = "value") -> Source | None:
        if isinstance(of, Instance):
            return self._class_attribute(of, name, where)
        if not isinstance(of, Outside):
            self._names.setdefault(name, where)
            return None
        value, text = of.value, f"{of.text}.{name}"
        if isinstance(value, ModuleType):
            inner = vars(value).get(name, ABSENT)
            if inner is ABSENT:
                return None
            is_fixed = isinstance(inner, ModuleType) or is_library(value)
            return Outside(inner, text) if is_fixed else of.at(Slot.item(vars(value), name), text, where)
        if isinstance(value, (Tensor, np.ndarray, Param, *PLAIN)):
            self._use(of)
            return None
        if isinstance(value, Module):
            self._use(of)
            return self._class_attribute(Instance(type(value)), name, where)
        if isinstance(value, type):
            return self._class_attribute(of, name, where)
        return self._object_attribute(of, name, where, use)

    def _object_attribute(self, of: Outside, name: str, where: str, use: Use) -> Source | None:
        value, text = of.value, f"{of.text}.{name}"
        cls = cast("type[Any]", type(value))
        attributes = instance_dict(value)
        attribute = class_attribute(cls, name)
        if name == "__dict__":
            self._use_whole([of])
            return None
        if name in attributes and not isdatadescriptor(attribute):
            return of.at(Slot.item(attributes, name), text, where)
        if isinstance(value, CONTAINERS) and callable(attribute) and is_library(attribute):
            self._use(None if name in _CHANGES else of, use)
            return None
        getter = _getter(attribute)
        if isinstance(attribute, (FunctionType, staticmethod, classmethod)) or getter is not None:
            return self._class_attribute(of, name, where)
        if attribute is ABSENT and class_attribute(cls, "__getattr__") is ABSENT:
            self._names.setdefault(name, where)
            return None
        slot = Slot.attribute(value, name)
        if slot is None:
            return None
        # A property may return a new object each time.
        is_steady = isinstance(slot.value, PLAIN) or slot.get() is slot.value
        return of.at(slot, text, where) if is_steady else None

    def _class_attribute(self, owner: Outside | Instance, name: str, where: str) -> Source | None:
        """The attribute of a class, or of an object through its class."""
        is_class = isinstance(owner, Outside) and isinstance(owner.value, type)
        cls: type[Any] = cast("Outside", owner).value if is_class else class_of(owner)
        attribute = class_attribute(cls, name)
        if isinstance(attribute, classmethod):
            function: Any = cast("Any", attribute).__func__
            return Bound(function, Outside(cls, cls.__qualname__), name) if isinstance(function, FunctionType) else None
        if isinstance(attribute, FunctionType) and not is_class:
            return Bound(attribute, owner, name)
        getter = _getter(attribute)
        if getter is not None and not is_class:
            self._call_method(Bound(getter, owner, name))
            return None
        if attribute is ABSENT or is_library(cls) or (isdatadescriptor(attribute) and not isinstance(attribute, type)):
            return None
        slot = Slot.attribute(cls, name)
        return None if slot is None else Outside(cls, "").at(slot, f"{cls.__qualname__}.{name}", where)

    def _find_item(self, of: Source | None, key: Source | None, where: str, use: Use) -> Source | None:
        self._use(key)
        if not isinstance(of, Outside):
            return None
        value: Any = of.value
        is_known = isinstance(key, Outside) and isinstance(key.value, PLAIN)
        key_value: Any = cast("Outside", key).value if is_known else ABSENT
        text = f"{of.text}[{key_value!r}]"
        method = class_attribute(cast("type[Any]", type(value)), "__getitem__")
        if isinstance(method, FunctionType) and not is_library(method):
            self._call_method(Bound(method, of, "__getitem__"), [key])
            return None
        if is_known and isinstance(value, Mapping):
            if key_value in value:
                return of.at(Slot.item(value, key_value), text, where)
            self.seen.leaf(of.at(Slot.no_item(value, key_value), text, where), ByIdentity)
            return None
        if isinstance(value, (list, tuple, deque)) and isinstance(key_value, int):
            size = len(cast("list[Any]", value))
            if -size <= key_value < size:
                return of.at(Slot.item(value, key_value), text, where)
        self._use(of, use)
        return None

    # --- values

    def _use(self, source: Source | None, use: Use = "value") -> None:
        """Watch a value that the function uses."""
        if isinstance(source, Bound):
            self._watch_method(source, "")
            self._call_method(source)
        elif isinstance(source, Instance):
            self._use_object(source)
        elif source is not None:
            self._use_value(source, use)

    def _use_value(self, source: Outside, use: Use) -> None:
        value = source.value
        if use == "presence":
            self.seen.leaf(source, is_none)
        elif use == "update":
            self.seen.leaf(source, never)
        elif isinstance(value, PLAIN):
            self.seen.leaf(source, constant_key)
        elif isinstance(value, CONTAINERS):
            self.seen.container(source, self._use, grows=use == "entries")
        elif is_constant(value):
            self.seen.array(source)
        elif isinstance(value, Module):
            template = self.seen.module(source)
            for part in () if template is None else parts_in(template.skeleton):
                if isinstance(part, Container) and issubclass(part.cls, Module):
                    self._use_object(Instance(part.cls))
        elif isinstance(value, Param):
            slot = Slot.attribute(value, "_tensor")
            self.seen.leaf(source if slot is None else source.at(slot, source.text), ByIdentity)
        elif not isinstance(value, (Optimizer, ModuleType)):  # optimizers from outside are refused
            self.seen.identity(source)
            self._use_functions(source)

    def _use_functions(self, source: Outside) -> None:
        """Read the user's functions that a value is, or holds."""
        value = source.value
        if isinstance(value, FunctionType):
            self._enter(value, {})
        elif isinstance(value, MethodType):
            if isinstance(value.__self__, Module):
                self._use(Outside(value.__self__, "self", source.where))
            elif is_library(value):
                self._reach(value.__self__, modules=True)
            elif isinstance(value.__func__, FunctionType):
                self._call_method(_bound_method(value))
        elif isinstance(value, partial):
            partial_fn = cast("partial[Any]", value)
            for part in (partial_fn.func, partial_fn.args, partial_fn.keywords):
                self._use(Outside(part, source.text, source.where))
        elif isinstance(value, Holder):
            for part in value.held():
                self._use(Outside(part, source.text, source.where))
        elif is_user_object(value):
            self._use_object(source)
        elif callable(value) and not isinstance(value, (Tensor, type)):
            self._reach(attribute_of(value, "__wrapped__", value), modules=True)

    def _use_object(self, source: Outside | Instance) -> None:
        if source.mark not in self._objects:
            self._objects[source.mark] = source
            self._methods(source, operators=True)

    def _use_whole(self, sources: Iterable[Source | None]) -> None:
        """Like `_use`, for arguments of a library's function, which may read everything in them, or call them."""
        for source in sources:
            value = source.value if isinstance(source, Outside) else None
            if not isinstance(source, Outside) or isinstance(value, PLAIN) or not is_user_object(value):
                self._use(source)
                continue
            self.seen.leaf(source, ByIdentity, type)
            self._use_functions(source)
            if not callable(value) and self.seen.is_new("whole", value):
                self._use_whole([self._find_attribute(source, name, source.where) for name in fields_of(value)])

    def _watch_method(self, method: Bound, where: str) -> None:
        """Watch a method: its class or its object may get another one."""
        owner, function, name = method.owner, method.function, method.name
        cls = class_of(owner)
        if is_library(function) or class_attribute(cls, name) is not function:
            return
        slot = Slot.attribute(cls, name)
        if slot is not None:
            self.seen.identity(Outside(cls, "").at(slot, f"{cls.__qualname__}.{name}", where))
        attributes = None if isinstance(owner, Instance) else instance_dict(owner.value)
        if isinstance(owner, Outside) and attributes is not None and name not in attributes:
            self.seen.leaf(owner.at(Slot.no_item(attributes, name), f"{owner.text}.{name}", where), ByIdentity)


def _use_of(container: Expression, frame: _Frame) -> Use:
    return "entries" if container in frame.reads.filled else "value"


def _name(value: Any) -> str:
    return str(attribute_of(value, "__qualname__", type(value).__qualname__))


def _bound_method(method: MethodType) -> Bound:
    return Bound(cast("FunctionType", method.__func__), Outside(method.__self__, "self"), method.__name__)


def _getter(attr: Any) -> FunctionType | None:
    """The user's function behind a property."""
    inner = attr.fget if isinstance(attr, property) else attr.func if isinstance(attr, cached_property) else None
    return inner if isinstance(inner, FunctionType) and not is_library(inner) else None


def _is_imported(value: Any, name: str) -> bool:
    """Is it a library's function or class, under its own name?"""
    inner = attribute_of(value, "__wrapped__", value)
    return attribute_of(value, "__name__") == name and callable(inner) and is_library(inner)
