"""Finding what a function, and the functions that it calls, read from outside of the arguments.

The code of the user's functions is read (`reads`), and its expressions are looked up: globals, variables of functions
around it, attributes and items of these, also in functions that they are passed to. What is found is watched: numbers
and names by value; containers and NumPy arrays by what they hold; modules by their structure and the arrays of their
parameters; anything else by identity. Functions of Phlox and of other libraries are not read, but the user's functions
that they hold are, as `phlox.grad(loss)` holds `loss`.
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
from phlox.transform.compile.guards.guard import PLAIN, Guard, is_none, unread
from phlox.transform.compile.guards.libraries import is_library
from phlox.transform.compile.guards.places import (
    ABSENT,
    Bound,
    Found,
    Instance,
    Place,
    Source,
    attribute_of,
    class_of,
    fields_of,
    in_class,
    inside_of,
)
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
from phlox.transform.compile.guards.roots import Holder, Roots, is_users, parts_in
from phlox.transform.compile.guards.watches import CONTAINERS, Watches

MOST_FUNCTIONS = 500
"""So many functions are read; what others read is not watched."""
_MOST_OBJECTS = 1000
_DEEPEST = 5
"""In so many objects of Phlox, and so deep, the user's functions are looked for."""

_CLASS_ALONE = frozenset(map(id, (callable, hasattr, id, isinstance, issubclass, print, super, type)))
"""Functions whose results depend on no more than the class of their arguments."""
_CHANGES = frozenset(
    ("add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert", "remove", "reverse",
     "setdefault", "sort", "update")
)  # fmt: skip
"""Methods of containers that change them, and read nothing."""
_OPERATORS_NOT_USED = frozenset(
    ("__class_getitem__", "__copy__", "__deepcopy__", "__del__", "__delattr__", "__eq__", "__format__", "__getstate__",
     "__hash__", "__init__", "__init_subclass__", "__new__", "__post_init__", "__reduce__", "__reduce_ex__", "__repr__",
     "__setattr__", "__setstate__", "__str__")
)  # fmt: skip


def guard_of(roots: Roots) -> Guard:
    """A guard of all that a function reads from outside, as it is now."""
    finder = _Finder()
    finder.start(roots)
    return Guard(finder.seen.all(), finder.seen.facts, finder.seen.unseen, partial(guard_of, roots))


class _Frame:
    """A function that is read, and what is known of its variables."""

    def __init__(
        self,
        code: CodeType,
        names: dict[str, Any],
        cells: Mapping[str, CellType],
        bound: Mapping[str, Source],
        around: _Frame | None = None,
    ) -> None:
        self.code, self.globals, self.cells, self.bound, self.around = code, names, cells, bound, around
        self.reads = reads_of(code)
        self.known: dict[Expression, Source | None] = {}

    def where(self, line: int) -> str:
        return f"{self.code.co_qualname} ({Path(self.code.co_filename).name}:{line})"


class _Finder:
    """One look at a function, as it is now."""

    def __init__(self) -> None:
        self.seen = Watches()
        self._queue: deque[_Frame] = deque()
        self._entered: dict[Hashable, Any] = {}
        """The functions that are read, which stay alive for their ids."""
        self._objects: dict[Hashable, Found | Instance] = {}
        """Objects of which it is not known how they are used. Any attribute that is read of anything may be theirs."""
        self._names: dict[str, str] = {}
        """The names of these attributes, and where they are read."""

    def start(self, roots: Roots) -> None:
        fn = roots.function
        for source in roots.sources:
            if isinstance(source, Found):
                self._reach(source.value)
            else:
                self._use(source)
        for owner in roots.methods:
            self._methods(owner)
        if isinstance(fn, FunctionType):
            self._enter(fn, roots.parameters)
        elif isinstance(fn, MethodType) and isinstance(fn.__func__, FunctionType) and not is_library(fn):
            self._call_method(_of_method(fn), named=roots.parameters)
        else:
            self._use(Found(fn, _name(fn)))
        asked: set[Hashable] = set()
        while True:
            self._follow()
            pairs = [(one, name) for one in list(self._objects.values()) for name in self._names]
            new = [(one, name) for one, name in pairs if (one.mark, name) not in asked]
            if not new:
                return
            for one, name in new:
                asked.add((one.mark, name))
                self._use(self._attribute(one, name, self._names[name]))

    # --- functions

    def _enter(self, function: FunctionType, bound: Mapping[str, Source]) -> None:
        """Read a function, later; of one of a library, the user's functions that it holds."""
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
            place, where = Place.attribute(function, name), frame.where(function.__code__.co_firstlineno)
            if place is not None and place.value:
                self._use(Found(function, _name(function), where).at(place, f"{_name(function)}.{name}"))

    def _follow(self) -> None:
        while self._queue:
            frame = self._queue.popleft()
            for read in frame.reads.reads:
                if isinstance(read.expression, Call):
                    self._call(read.expression, frame, read.line)
                else:
                    self._use(self._source(read.expression, frame, read.line), read.use)
            for target in frame.reads.stored:
                self._store(target, frame)
            for code in frame.reads.inner:
                self._queue.append(_Frame(code, frame.globals, frame.cells, {}, frame))

    def _store(self, target: Expression, frame: _Frame) -> None:
        """Note where a function stores something."""
        line = frame.code.co_firstlineno
        if isinstance(target, (Outer, Global)):
            found = self._source(target, frame, line)
            if isinstance(found, Found) and found.places:
                self.seen.stored.add(found.places[-1].key)
        elif isinstance(target, (Attribute, Item)):
            of = self._source(target.of, frame, line)
            if isinstance(of, Found) and isinstance(target, Attribute):
                inside = inside_of(of.value)
                self.seen.stored |= {(id(inside), target.name), (id(of.value), "attribute", target.name)}
            elif isinstance(of, Found):
                self.seen.stored.add(id(of.value))

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
        placed = list(args)
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        given = {**dict(zip(names[: code.co_argcount], placed, strict=False)), **named}
        rest = [source for name, source in given.items() if name not in names]  # of *args and **kwargs
        for source in (*placed[code.co_argcount :], *rest):
            self._use(source)
        self._enter(function, {name: one for name, one in given.items() if one is not None and name in names})

    def _methods(self, owner: Found | Instance, *, operators: bool = False) -> None:
        """Read the methods of an object that a library calls, or only the operators of one that is used somehow."""
        for base in class_of(owner).__mro__:
            for name, function in list(vars(base).items()):
                is_special = name.startswith("__") and name.endswith("__")
                is_used = name not in _OPERATORS_NOT_USED if is_special else not operators
                if is_used and isinstance(function, FunctionType) and not is_library(function):
                    self._call_method(Bound(function, owner, name))

    def _reach(self, value: Any, *, modules: bool = False, depth: int = 0) -> None:
        """The user's functions in something that a library holds; with `modules`, also modules."""
        if isinstance(value, (*PLAIN, Tensor, np.ndarray, type, ModuleType, Backend)) or depth > _DEEPEST:
            return
        if isinstance(value, Module):
            self._use(Found(value, _name(value), "a library") if modules else None)
        elif not self.seen.is_new("reached", value) or len(self._entered) > _MOST_OBJECTS:
            return
        elif isinstance(value, (FunctionType, MethodType, partial, Holder)) or attribute_of(value, "__wrapped__"):
            self._use(Found(value, _name(value)))
        elif isinstance(value, CONTAINERS):
            parts = cast("dict[Any, Any]", value).values() if isinstance(value, dict) else cast("list[Any]", value)
            for part in list(parts)[:_MOST_OBJECTS]:
                self._reach(part, modules=modules, depth=depth + 1)
        elif not is_library(type(value)):
            self._methods(Found(value, "self"))
        elif type(value).__module__.partition(".")[0] == "phlox":
            for name in fields_of(value):
                self._reach(attribute_of(value, name), modules=modules and depth == 0, depth=depth + 1)

    def _call(self, call: Call, frame: _Frame, line: int) -> None:
        """Read the function that is called, with the arguments that are known. Others may use them as they like."""
        args = [self._source(arg, frame, line) for arg in call.args or ()]
        if self._is_get(call, frame, line):
            for source in (self._source(call, frame, line), *args[1:]):
                self._use(source)
            return
        callee = self._source(call.of, frame, line)
        positional = len(args) - len(call.keywords)
        placed, named = args[:positional], dict(zip(call.keywords, args[positional:], strict=True))
        value: Any = callee.value if isinstance(callee, Found) else None
        if isinstance(callee, Bound):
            self._watch_method(callee, frame.where(line))
            self._call_method(callee, placed, named)
        elif isinstance(callee, Found) and isinstance(value, FunctionType) and not is_library(value):
            self.seen.identity(callee)
            self._call_function(value, placed, named)
        elif isinstance(value, MethodType) and isinstance(value.__func__, FunctionType) and not is_library(value):
            self._call_method(_of_method(value), placed, named)
        elif isinstance(value, type) and not is_library(value):
            self._use(callee)
            self._make(Instance(cast("type[Any]", value)), placed, named)
        elif isinstance(callee, Instance) or (isinstance(callee, Found) and is_users(value)):
            self._use(callee)
            method = in_class(class_of(callee), "__call__")
            if isinstance(method, FunctionType):
                self._call_method(Bound(method, callee, "__call__"), placed, named)
        elif value is len and len(args) == 1 and isinstance(args[0], Found) and isinstance(args[0].value, CONTAINERS):
            self.seen.sized(args[0])
        elif value is getattr:
            self._use(self._source(call, frame, line))
            if len(call.args or ()) < 2 or not isinstance(cast("Any", call.args)[1], Constant):
                self._use_whole(args)
        elif callee is None:
            for arg in args:
                self._use(arg)
        elif id(value) not in _CLASS_ALONE:
            self._use(callee)
            self._use_whole(args)

    def _is_get(self, call: Call, frame: _Frame, line: int) -> bool:
        """Is it `get` of a mapping, with a key that is known?"""
        match call:
            case Call(Attribute(of, "get"), (key, *_)):
                mapping, known = self._source(of, frame, line), self._source(key, frame, line)
                is_known = isinstance(known, Found) and isinstance(known.value, PLAIN)
                return is_known and isinstance(mapping, Found) and isinstance(mapping.value, Mapping)
            case _:
                return False

    def _make(self, instance: Instance, placed: list[Source | None], named: Mapping[str, Source | None]) -> None:
        """An object of a class of the user's is made."""
        made = in_class(instance.cls, "__init__")
        if isinstance(made, FunctionType):
            self._call_method(Bound(made, instance, "__init__"), placed, named)
        for source in (instance, *placed, *named.values()):
            self._use(source)

    # --- expressions

    def _source(self, expression: Expression, frame: _Frame, line: int) -> Source | None:
        """Where the value of an expression comes from; None if it is not from outside."""
        if expression not in frame.known:
            frame.known[expression] = None  # while it is looked for
            frame.known[expression] = self._looked_up(expression, frame, line)
        return frame.known[expression]

    def _looked_up(self, expression: Expression, frame: _Frame, line: int) -> Source | None:
        where = frame.where(line)
        match expression:
            case Constant(value):
                return Found(value, repr(value))
            case Local(name):
                known = frame.bound.get(name)
                if known is not None and name in frame.reads.replaced:
                    self._use(known)
                    return None
                return known or self._source(frame.reads.assigned.get(name), frame, line)
            case Outer(name) if frame.around is not None:
                is_outer = name in frame.around.code.co_freevars
                return self._source(Outer(name) if is_outer else Local(name), frame.around, line)
            case Outer(name):
                cell = frame.cells[name]
                place = Place.attribute(cell, "cell_contents")  # of a variable without a value there is none
                return None if place is None else Found(cell, "").at(place, name, where)
            case Global(name) if not name.startswith("__"):
                return self._global(name, frame, where)
            case Imported(name):
                module = sys.modules.get(name)
                return None if module is None else Found(module, name)
            case Attribute(Call(Global("super"), ()), name):
                self._super(frame, name)
                return None
            case Attribute(of, name):
                return self._attribute(self._source(of, frame, line), name, where, _use_of(of, frame))
            case Item(of, key):
                source, known = self._source(of, frame, line), self._source(key, frame, line)
                return self._item(source, known, where, _use_of(of, frame))
            case Call(Global("getattr"), (of, Constant(str(name)), *_)):
                return self._source(Attribute(of, name), frame, line)
            case Call(Attribute(of, "get"), (key, *_)) if self._is_get(expression, frame, line):
                return self._source(Item(of, key), frame, line)
            case _:
                return None

    def _global(self, name: str, frame: _Frame, where: str) -> Source | None:
        if name not in frame.globals:
            return Found(getattr(builtins, name), name) if hasattr(builtins, name) else None
        value = frame.globals[name]
        if isinstance(value, ModuleType) or _is_imported(value, name):
            return Found(value, name)
        return Found(frame.globals, "").at(Place.item(frame.globals, name), name, where)

    def _super(self, frame: _Frame, name: str) -> None:
        """A method of a class above: any that has the name."""
        owner = frame.bound.get(next(iter(frame.code.co_varnames), ""))
        if isinstance(owner, (Found, Instance)):
            for base in class_of(owner).__mro__:
                function = vars(base).get(name)
                if isinstance(function, FunctionType) and not is_library(function):
                    self._call_method(Bound(function, owner, name))

    def _attribute(self, of: Source | None, name: str, where: str, use: Use = "value") -> Source | None:
        if isinstance(of, Instance):
            return self._of_class(of, name, where)
        if not isinstance(of, Found):
            self._names.setdefault(name, where)
            return None
        value, text = of.value, f"{of.text}.{name}"
        if isinstance(value, ModuleType):
            inner = vars(value).get(name, ABSENT)
            if inner is ABSENT:
                return None
            is_fixed = isinstance(inner, ModuleType) or is_library(value)
            return Found(inner, text) if is_fixed else of.at(Place.item(vars(value), name), text, where)
        if isinstance(value, (Tensor, np.ndarray, Param, *PLAIN)):
            self._use(of)
            return None
        if isinstance(value, Module):
            self._use(of)
            return self._of_class(Instance(type(value)), name, where)
        if isinstance(value, type):
            return self._of_class(of, name, where)
        return self._of_object(of, name, where, use)

    def _of_object(self, of: Found, name: str, where: str, use: Use) -> Source | None:
        value, text = of.value, f"{of.text}.{name}"
        cls = cast("type[Any]", type(value))
        inside = inside_of(value)
        found = in_class(cls, name)
        if name == "__dict__":
            self._use_whole([of])
            return None
        if name in inside and not isdatadescriptor(found):
            return of.at(Place.item(inside, name), text, where)
        if isinstance(value, CONTAINERS) and callable(found) and is_library(found):
            self._use(None if name in _CHANGES else of, use)
            return None
        getter = _getter(found)
        if isinstance(found, (FunctionType, staticmethod, classmethod)) or getter is not None:
            return self._of_class(of, name, where)
        if found is ABSENT and in_class(cls, "__getattr__") is ABSENT:
            self._names.setdefault(name, where)
            return None
        place = Place.attribute(value, name)
        if place is None:
            return None
        # A property may make a new object each time.
        is_steady = isinstance(place.value, PLAIN) or place.get() is place.value
        return of.at(place, text, where) if is_steady else None

    def _of_class(self, owner: Found | Instance, name: str, where: str) -> Source | None:
        """What an object has from its class, or what a class has."""
        is_class = isinstance(owner, Found) and isinstance(owner.value, type)
        cls: type[Any] = cast("Found", owner).value if is_class else class_of(owner)
        found = in_class(cls, name)
        if isinstance(found, classmethod):
            function: Any = cast("Any", found).__func__
            return Bound(function, Found(cls, cls.__qualname__), name) if isinstance(function, FunctionType) else None
        if isinstance(found, FunctionType) and not is_class:
            return Bound(found, owner, name)
        getter = _getter(found)
        if getter is not None and not is_class:
            self._call_method(Bound(getter, owner, name))
            return None
        if found is ABSENT or is_library(cls) or (isdatadescriptor(found) and not isinstance(found, type)):
            return None
        place = Place.attribute(cls, name)
        return None if place is None else Found(cls, "").at(place, f"{cls.__qualname__}.{name}", where)

    def _item(self, of: Source | None, key: Source | None, where: str, use: Use) -> Source | None:
        self._use(key)
        if not isinstance(of, Found):
            return None
        value: Any = of.value
        is_known = isinstance(key, Found) and isinstance(key.value, PLAIN)
        known: Any = cast("Found", key).value if is_known else ABSENT
        text = f"{of.text}[{known!r}]"
        method = in_class(cast("type[Any]", type(value)), "__getitem__")
        if isinstance(method, FunctionType) and not is_library(method):
            self._call_method(Bound(method, of, "__getitem__"), [key])
            return None
        if is_known and isinstance(value, Mapping):
            if known in value:
                return of.at(Place.item(value, known), text, where)
            self.seen.leaf(of.at(Place.no_item(value, known), text, where), ByIdentity)
            return None
        if isinstance(value, (list, tuple, deque)) and isinstance(known, int):
            size = len(cast("list[Any]", value))
            if -size <= known < size:
                return of.at(Place.item(value, known), text, where)
        self._use(of, use)
        return None

    # --- values

    def _use(self, source: Source | None, use: Use = "value") -> None:
        """Watch a value that is used as it is."""
        if isinstance(source, Bound):
            self._watch_method(source, "")
            self._call_method(source)
        elif isinstance(source, Instance):
            self._use_object(source)
        elif source is not None:
            self._use_value(source, use)

    def _use_value(self, source: Found, use: Use) -> None:
        value = source.value
        if use == "presence":
            self.seen.leaf(source, is_none)
        elif use == "update":
            self.seen.leaf(source, unread)
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
            place = Place.attribute(value, "_tensor")
            self.seen.leaf(source if place is None else source.at(place, source.text), ByIdentity)
        elif not isinstance(value, (Optimizer, ModuleType)):  # optimizers from outside are refused
            self.seen.identity(source)
            self._use_functions(source)

    def _use_functions(self, source: Found) -> None:
        """The user's functions that a value is, or holds."""
        value = source.value
        if isinstance(value, FunctionType):
            self._enter(value, {})
        elif isinstance(value, MethodType):
            if isinstance(value.__self__, Module):
                self._use(Found(value.__self__, "self", source.where))
            elif is_library(value):
                self._reach(value.__self__, modules=True)
            elif isinstance(value.__func__, FunctionType):
                self._call_method(_of_method(value))
        elif isinstance(value, partial):
            whole = cast("partial[Any]", value)
            for part in (whole.func, whole.args, whole.keywords):
                self._use(Found(part, source.text, source.where))
        elif isinstance(value, Holder):
            for part in value.held():
                self._use(Found(part, source.text, source.where))
        elif is_users(value):
            self._use_object(source)
        elif callable(value) and not isinstance(value, (Tensor, type)):
            self._reach(attribute_of(value, "__wrapped__", value), modules=True)

    def _use_object(self, source: Found | Instance) -> None:
        if source.mark not in self._objects:
            self._objects[source.mark] = source
            self._methods(source, operators=True)

    def _use_whole(self, sources: Iterable[Source | None]) -> None:
        """As `_use`, for arguments of a library's function, which may read everything in them, or call them."""
        for source in sources:
            value = source.value if isinstance(source, Found) else None
            if not isinstance(source, Found) or isinstance(value, PLAIN) or not is_users(value):
                self._use(source)
                continue
            self.seen.leaf(source, ByIdentity, type)
            self._use_functions(source)
            if not callable(value) and self.seen.is_new("whole", value):
                self._use_whole([self._attribute(source, name, source.where) for name in fields_of(value)])

    def _watch_method(self, method: Bound, where: str) -> None:
        """A class, or an object, may be given another method."""
        owner, function, name = method.owner, method.function, method.name
        cls = class_of(owner)
        if is_library(function) or in_class(cls, name) is not function:
            return
        of_class = Place.attribute(cls, name)
        if of_class is not None:
            self.seen.identity(Found(cls, "").at(of_class, f"{cls.__qualname__}.{name}", where))
        inside = None if isinstance(owner, Instance) else inside_of(owner.value)
        if isinstance(owner, Found) and inside is not None and name not in inside:
            self.seen.leaf(owner.at(Place.no_item(inside, name), f"{owner.text}.{name}", where), ByIdentity)


def _use_of(container: Expression, frame: _Frame) -> Use:
    return "entries" if container in frame.reads.filled else "value"


def _name(value: Any) -> str:
    return str(attribute_of(value, "__qualname__", type(value).__qualname__))


def _of_method(method: MethodType) -> Bound:
    return Bound(cast("FunctionType", method.__func__), Found(method.__self__, "self"), method.__name__)


def _getter(found: Any) -> FunctionType | None:
    """The user's function behind a property."""
    inner = found.fget if isinstance(found, property) else found.func if isinstance(found, cached_property) else None
    return inner if isinstance(inner, FunctionType) and not is_library(inner) else None


def _is_imported(value: Any, name: str) -> bool:
    """Is it a function or a class of a library, under its own name?"""
    inner = attribute_of(value, "__wrapped__", value)
    return attribute_of(value, "__name__") == name and callable(inner) and is_library(inner)
