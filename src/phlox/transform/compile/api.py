"""`compile`: a whole step as one program, including state changes and random draws."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial, update_wrapper
from types import MethodType
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar, cast, overload
from warnings import warn

import numpy as np

from phlox.backend import Backend, Device
from phlox.backend.analysis import Analysis
from phlox.backend.contract.backend import backend_of_arrays
from phlox.backend.processes import agreement
from phlox.backend.registry import load
from phlox.backend.settings import verifies
from phlox.backend.tracing.checks import checks_are_on
from phlox.batching import innermost
from phlox.errors import CompileError
from phlox.module import Module
from phlox.optim.optimizer import Optimizer, tracing
from phlox.other_names import answering
from phlox.random.stream import program_rows
from phlox.transform.compile.agreement import check_scalars
from phlox.transform.compile.call_cache import OTHER, CallCache
from phlox.transform.compile.executable import ChangedMeanwhile, Program, RetryWithFreshArguments
from phlox.transform.compile.guards import Guard, Holder, guard_of, roots_of
from phlox.transform.compile.host_arrays import MakeTensor, as_argument, as_tensor, device_for, has_arrays, with_tensors
from phlox.transform.compile.multi_step import Steps, run, with_step_scalars
from phlox.transform.compile.recompiles import History, fields_stay, layouts_of
from phlox.transform.compile.report import ExecutableReport, analysis_by_shapes
from phlox.transform.compile.signature import CallArguments, FirstStates, IdPosition, first_backend
from phlox.transform.compile.trace import Call, WrongStateGuess

P = ParamSpec("P")
R = TypeVar("R")
Use: TypeAlias = Callable[[Program, Call, Callable[[], Call]], Any]
"""A use of the program of a call: calling or analysing it; the last argument reads the call again."""


@overload
def compile(fn: Callable[P, R], *, donate: Sequence[str] = (), verify: bool | None = None) -> Compiled[P, R]: ...


@overload
def compile(
    fn: Callable[..., Any],
    *,
    donate: Sequence[str] = (),
    steps: int | None,
    over: Sequence[str] = (),
    verify: bool | None = None,
) -> Compiled[..., Any]: ...


@overload
def compile(
    *, donate: Sequence[str] = (), verify: bool | None = None
) -> Callable[[Callable[P, R]], Compiled[P, R]]: ...


@overload
def compile(
    *, donate: Sequence[str] = (), steps: int | None, over: Sequence[str] = (), verify: bool | None = None
) -> Callable[[Callable[..., Any]], Compiled[..., Any]]: ...


@answering
def compile(
    fn: Callable[..., Any] | None = None,
    *,
    donate: Sequence[str] = (),
    steps: int | None = None,
    over: Sequence[str] = (),
    verify: bool | None = None,
) -> Any:
    """Compile `fn`: each call runs as one program if the backend has a compiler, with the same result as an eager call.

    Arguments can be modules, optimizers, tensors, numbers, and lists, tuples, dicts and dataclasses of these. Anything
    else, also `True` and `False`, is a constant: the function is recompiled when it changes. Numbers do not recompile.
    Values that the function, or a function that it calls, reads from outside (globals, variables of functions around
    it, attributes of objects) are constants, too. A NumPy array is converted as by `phlox.tensor`, on the device of the
    first module or else the first tensor among the arguments, or on the default device.

    A call updates optimizer states, running statistics of modules among the arguments, and the random stream, as an
    eager call does. The function cannot read the value of a tensor. Tensors that it returns have no history; a gradient
    that needs their history raises an error.

    With `steps=n` one call does n calls, as one loop of the program. Parameters named in `over` have one entry per
    step: tensors, also in containers, on a first axis of size n; numbers in a list or array of n. A module in the
    result that continues a module argument replaces it in the next step, and is returned as the last step left it.
    Other results are stacked on a first axis of size n, without history.

    Args:
        fn: the function; a module, a method of one, or one in a `functools.partial`, is an argument too. On a backend
            without a compiler (NumPy) it is called as it is. Without it, the result is a decorator:
            `@px.compile(donate=("model",))`.
        donate: names of parameters whose memory the program may reuse for its results. A donated module or tensor
            cannot be used after the call; a donated optimizer continues with its new state.
        steps: the number of steps in a call; by default one.
        over: names of parameters that have an entry for each step.
        verify: compare the first call of each trace with eager calls, on copies of the arguments; by default the
            setting `PHLOX_VERIFY`. It takes the time and the memory of some eager calls.

    Raises `CompileError` if an argument or result has an unsupported type, if a value is read during tracing, if
    results of steps cannot be continued or stacked, or if what is read from outside changes whenever the function is
    traced; with `verify`, also if a result differs beyond rounding from the eager one, with the first operation that
    differs: then nothing has changed. `DonatedError` if an argument was donated before.

    >>> import phlox as px
    >>> double = px.compile(lambda x: x * 2.0)
    >>> double(px.ones((2,))).tolist()
    [2.0, 2.0]
    >>> running = px.compile(lambda x, rate: x * rate, steps=3, over=("x", "rate"))
    >>> running(px.ones((3, 2)), [1.0, 0.5, 0.25]).tolist()
    [[1.0, 1.0], [0.5, 0.5], [0.25, 0.25]]
    """
    plan = _steps_of(steps, _as_tuple(over))
    compiled = partial(cast("Any", Compiled), donate=_as_tuple(donate), steps=plan, verify=verify)
    return compiled if fn is None else compiled(fn)


def _as_tuple(names: Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _steps_of(steps: int | None, over: tuple[str, ...]) -> Steps | None:
    if steps is None:
        if over:
            raise CompileError(f"over={over!r} has a meaning only with steps=, the number of steps in a call")
        return None
    if not isinstance(steps, (int, np.integer)) or isinstance(steps, bool) or steps < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise CompileError(f"steps is the number of steps in a call, an integer of at least 1, got {steps!r}")
    return Steps(int(steps), frozenset(over))


def _split_held(fn: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Split a callable into its function, and the modules and optimizers that it holds: these become arguments."""
    if isinstance(fn, MethodType) and isinstance(fn.__self__, Module):
        return fn.__func__, (fn.__self__,), {}
    if isinstance(fn, Module):
        return cast("Any", type(fn).__call__), (fn,), {}
    if not isinstance(fn, partial):
        return fn, (), {}
    partial_fn = cast("partial[Any]", fn)
    inner, bound, _ = _split_held(partial_fn.func)
    bound = (*bound, *partial_fn.args)
    changing = [_is_stateful(value) for value in bound]
    if any(changing) and not all(changing):
        raise CompileError(
            f"a partial of {getattr(inner, '__qualname__', inner)} holds a module and other arguments by position; "
            "give the others by keyword, for the module is an argument of the compiled function, and they are constants"
        )
    keywords = {name: value for name, value in partial_fn.keywords.items() if _is_stateful(value)}
    constants = {name: value for name, value in partial_fn.keywords.items() if name not in keywords}
    if any(changing):
        return partial(inner, **constants) if constants else inner, bound, keywords
    return partial(inner, *bound, **constants), (), keywords


def _is_stateful(value: Any) -> bool:
    """Is it a module or an optimizer, or a container with one?"""
    if isinstance(value, (list, tuple, dict)):
        parts = cast("dict[Any, Any]", value).values() if isinstance(value, dict) else cast("list[Any]", value)
        return any(map(_is_stateful, parts))
    return isinstance(value, (Module, Optimizer))


_GUARDS = 8
"""The number of guards that are tried before the function is searched again for what it reads from outside."""


_TRIES = 3
"""The number of times that a function is traced if other threads change what it reads."""


class Compiled(Holder, Generic[P, R]):
    """A compiled function; see `compile`."""

    def __init__(
        self, fn: Callable[P, R], donate: tuple[str, ...], steps: Steps | None = None, verify: bool | None = None
    ) -> None:
        self._fn: Callable[..., R]
        self._fn, self._bound, self._keywords = _split_held(fn)
        update_wrapper(self, self._fn)
        self._name = getattr(self._fn, "__qualname__", repr(fn))
        parameters = inspect.signature(self._fn).parameters.values()
        named = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        for option, names in (("donate", donate), ("over", steps.over if steps else ())):
            for name in names:
                if name not in named:
                    raise CompileError(f"{option}: {self._name} has no parameter {name!r} (it has {', '.join(named)})")
        self._donated = frozenset(donate)
        self._steps = steps
        positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self._positional = positional
        self._names: dict[int, list[str]] = {}
        self._programs: dict[Hashable, Program] = {}
        self._guards: dict[Hashable, tuple[Guard, ...]] = {}
        """For each structure of the arguments, the last guards of what the function reads from outside."""
        self._warned: set[str] = set()
        self._first_states: dict[Hashable, list[dict[IdPosition, int]]] = {}
        self._history = History(self._name)
        self._call_cache: CallCache | None = None
        self._has_run = False
        """Was it called without a program, on an engine that compiles nothing?"""
        self._verified: set[Hashable] | None = set() if verify or (verify is None and verifies()) else None
        """The forms of calls that were compared with eager calls; None if calls are not compared."""

    @property
    def programs(self) -> int:
        """The number of programs so far: one for each combination of structures, whatever the shapes."""
        return len(set(map(id, self._programs.values())))

    @property
    def traces(self) -> int:
        """The number of traces so far: one for each combination of structures, shapes, and values from outside.

        The first call may need a second trace, if its optimizers do not step every trained parameter of a module.
        `phlox.debug.explain_recompiles` explains each trace.
        """
        return self._history.traces

    @property
    def compilations(self) -> int:
        """The number of compilations so far: one for each trace, and one for each other layout of arrays on devices.

        Layouts are counted if there are several devices. `phlox.debug.explain_recompiles` explains both.
        """
        return self._history.compilations

    def held(self) -> Iterable[Any]:
        """The function, and the modules that it is called with."""
        return self._fn, *self._bound, *self._keywords.values()

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        values = (*self._bound, *args)
        if self._keywords:
            kwargs = {**self._keywords, **kwargs}  # pyright: ignore[reportAssignmentType]
        # Inside another program or a batch, the function is a part of it.
        outermost = tracing.get() is None and innermost() is None
        if outermost:
            if agreement.compare is not None and checks_are_on():
                check_scalars(
                    agreement.compare, [*zip(self._called_names(len(values)), values, strict=True), *kwargs.items()]
                )
            cache = self._call_cache
            if (
                cache is not None
                and not kwargs
                and cache.checked is checks_are_on()
                and cache.rows == program_rows()
                and (cache.guard_holds is None or cache.guard_holds())
            ):
                # Not `cache(values)`: Python handles no signals when a method returns, see `DonationScope`.
                result = cache.__call__(values)
                if result is not OTHER:
                    return result
        arguments = (*values, *kwargs.values())
        device = device_for(arguments) if any(map(has_arrays, arguments)) else None
        if outermost:
            backend = first_backend(arguments) if device is None else backend_of_arrays(device.backend)
            if backend is not None and backend.compiles:
                if self._verified is not None:
                    self._verify(self._verified, backend, values, kwargs, device)
                if device is None:
                    return self._run(backend, values, kwargs, self._call)
                return self._run(backend, *self._with_tensors(values, kwargs, device, as_argument), self._call)
            if not self._has_run:
                self._has_run = True
                names = [*self._called_names(len(values)), *kwargs]
                modules = [(name, x) for name, x in zip(names, arguments, strict=True) if isinstance(x, Module)]
                with fields_stay(self._name, modules):
                    return self._as_it_is(values, kwargs, device)
        return self._as_it_is(values, kwargs, device)

    def _as_it_is(self, values: tuple[Any, ...], kwargs: dict[str, Any], device: Device | None) -> Any:
        """Call the function without a program."""
        if device is not None:
            values, kwargs = self._with_tensors(values, kwargs, device, as_tensor)
        return self._call_itself(values, kwargs)

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> ExecutableReport:
        """Report the cost of a call with these arguments without running it: operations, memory, traffic.

        The function is traced and compiled as in a call, and a later call uses that program. Modules, optimizers and
        random streams do not change, and nothing is donated; deferred parameters get their values. On JAX the figures
        come from XLA's own analysis. On other engines they are computed from shapes, and unknown figures are None.

        Raises `CompileError` if the function cannot be traced, or if an argument has an unsupported type.

        >>> import phlox as px
        >>> from phlox.backend import Jax
        >>> report = px.compile(lambda x: x @ x.T).lower(px.ones((64, 32), device=Jax()))
        >>> report.flops, report.arguments, report.outputs
        (262144, 8192, 16384)
        """
        if tracing.get() is not None or innermost() is not None:
            raise CompileError(f"{self._name}: lower() cannot be called while another function is being traced")
        values: tuple[Any, ...] = (*self._bound, *args)
        keywords: dict[str, Any] = {**self._keywords, **kwargs}
        arguments = (*values, *keywords.values())
        if any(map(has_arrays, arguments)):
            values, keywords = self._with_tensors(values, keywords, device_for(arguments), as_tensor)
        backend = first_backend((*values, *keywords.values()))
        analysis = None
        if backend is not None and backend.compiles:
            analysis = self._run(backend, values, keywords, self._analyze)
        if analysis is None:
            analysis = analysis_by_shapes(self._call_itself, values, keywords)
        return ExecutableReport.of(analysis, self._name, "no backend" if backend is None else repr(backend))

    def _analyze(self, program: Program, call: Call, read: Callable[[], Call]) -> Analysis | None:
        try:
            return program.analyze(call)
        except RetryWithFreshArguments:
            return program.analyze(read())

    def _call_itself(self, values: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._steps is not None:
            return self._run_steps(self._steps, values, kwargs)
        return self._fn(*values, **kwargs)

    def _with_tensors(
        self, values: tuple[Any, ...], kwargs: dict[str, Any], device: Device, make: MakeTensor
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with tensors in place of NumPy arrays; in donated arguments, tensors that can be donated."""
        over = self._steps.over if self._steps is not None else frozenset[str]()

        def convert(name: str, value: Any) -> Any:
            make_tensor = as_tensor if name in self._donated else make
            return with_tensors(value, name, device, make_tensor, over=name in over)

        named = zip(self._called_names(len(values)), values, strict=True)
        positional = tuple([convert(name, value) for name, value in named])
        return positional, {name: convert(name, value) for name, value in kwargs.items()}

    def _run(self, backend: Backend, values: tuple[Any, ...], kwargs: dict[str, Any], use: Use) -> Any:
        label = ""
        for _ in range(_TRIES):
            try:
                return self._run_once(backend, values, kwargs, use)
            except ChangedMeanwhile as changed:
                label = changed.label
        raise CompileError(
            f"{self._name}: {label}, changes each time the function is traced, so no program can be made for its "
            "value; pass it as an argument"
        )

    def _run_once(self, backend: Backend, values: tuple[Any, ...], kwargs: dict[str, Any], use: Use) -> Any:
        """A call, with the current values of what the function reads from outside."""
        call, structure = self._read(backend, values, kwargs)
        guard = self._guard(structure, call)
        key = structure, guard.key
        program = self._programs.get(key)
        if program is not None:
            program.guard = guard.or_none
            return use(program, call, lambda: self._read(backend, values, kwargs)[0])
        # All states that a first step creates are arguments, so the first and all later steps use one program.
        first_states = FirstStates(self._first_states.get(key))
        try:
            return self._run_new(backend, values, kwargs, guard, first_states, use)
        except WrongStateGuess as guess:
            states = self._first_states[key] = guess.variants
        return self._run_new(backend, values, kwargs, guard, FirstStates(states), use)

    def _run_new(
        self,
        backend: Backend,
        values: tuple[Any, ...],
        kwargs: dict[str, Any],
        guard: Guard,
        first_states: FirstStates,
        use: Use,
    ) -> Any:
        """A call that has no program yet for the states of its optimizers."""
        call, structure = self._read(backend, values, kwargs, first_states)
        key = structure, guard.key
        program = self._programs.get(key)
        if program is None:
            on_trace = partial(self._note_trace, structure)
            new = Program(self._fn, self._history, backend, checks_are_on(), self._steps, guard, on_trace)
            program = self._programs.setdefault(key, new)
        try:
            return use(program, call, lambda: self._read(backend, values, kwargs, first_states)[0])
        except WrongStateGuess:
            self._programs.pop(key, None)  # the guess was wrong: such states will not come again
            raise
        except ChangedMeanwhile:
            self._programs.pop(key, None)  # it may have been traced with other values
            raise

    def _guard(self, structure: Hashable, call: Call) -> Guard:
        """The guard that holds now for calls with arguments of this structure; a new one if none holds."""
        guards = self._guards.get(structure, ())
        for guard in guards:
            if guard.holds():
                return guard
        named = {name: value for name, value, _ in call.named}
        fresh = guards[0].renew() if guards else guard_of(roots_of(self._fn, named))
        self._guards[structure] = (fresh, *guards[: _GUARDS - 1])
        for label, text in fresh.unseen.items():
            self._warn_of(
                label, f"is {text} pass it as an argument, because a change of what it holds would not be noticed"
            )
        return fresh

    def _warn_of(self, label: str, text: str) -> None:
        if label not in self._warned:
            self._warned.add(label)
            warn(f"{self._name}: {label}, {text}", RuntimeWarning, stacklevel=3)

    def _note_trace(self, structure: Hashable, program: Program) -> None:
        """After a trace: warn of changes by the function to values from outside, which the program will not make."""
        guard = program.guard
        if guard is None:
            return
        changed, others = guard.changes()
        if others:
            raise ChangedMeanwhile(others[0])
        for label, before in changed.items():
            self._warn_of(
                label,
                "is changed by the function itself. That happens when it is traced, not at each call, and the program "
                f"keeps the value before the trace{before}; pass it as an argument, and return the new value",
            )
        if not guard.holds():  # the program is valid for the values after the trace, too
            current = guard.renew()
            self._programs.setdefault((structure, current.key), program)
            program.guard = current.or_none

    def _call(self, program: Program, call: Call, read: Callable[[], Call]) -> Any:
        # Made before the call, which consumes donated arguments.
        cache = CallCache.of(program, call)
        try:
            result = program(call)
        except RetryWithFreshArguments:
            result = program(read())
        if cache is not None:
            cache.guard_holds = None if program.guard is None else program.guard.holds
        self._call_cache = cache if self._verified is None else None  # a cached call skips the comparison
        return result

    def _verify(
        self,
        verified: set[Hashable],
        backend: Backend,
        values: tuple[Any, ...],
        kwargs: dict[str, Any],
        device: Device | None,
    ) -> None:
        """Compare a call with an eager call, if it is the first with such arguments."""
        if device is not None:
            values, kwargs = self._with_tensors(values, kwargs, device, as_tensor)
        call, structure = self._read(backend, values, kwargs)
        outside = self._guard(structure, call).key
        shapes = structure, outside, layouts_of([(name, value) for name, value, _ in call.named], call.reader)[0]
        if shapes in verified:
            return

        def compiled(values: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return self._run(backend, values, kwargs, self._call)

        verify = load("phlox.debug.verifying:verify")
        verify(self._name, self._call_itself, values, kwargs, compiled, self._called_names(len(values)), self._donated)
        verified.add(shapes)

    def _run_steps(self, steps: Steps, values: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the steps one by one: there is no compiler, or another function is being compiled."""
        named = list(zip([*self._called_names(len(values)), *kwargs], [*values, *kwargs.values()], strict=True))
        self._check_over(steps, [name for name, _ in named])
        for index, (name, value) in enumerate(named):
            if name in steps.over:
                named[index] = name, with_step_scalars(value, name, steps.number)
        return run(self._fn, self._name, steps, named, len(values))

    def _called_names(self, positional: int) -> list[str]:
        """The names of positional arguments."""
        names = self._positional
        called = [*names[:positional], *(f"argument {number}" for number in range(len(names), positional))]
        self._names[positional] = called
        return called

    def _check_over(self, steps: Steps, names: Iterable[str]) -> None:
        missing = steps.over.difference(names)
        if missing:
            raise CompileError(f"{self._name}: {', '.join(sorted(missing))}, named in `over`, must be passed")

    def _read(
        self, backend: Backend, values: tuple[Any, ...], kwargs: dict[str, Any], first_states: FirstStates | None = None
    ) -> tuple[Call, Hashable]:
        reader = CallArguments(backend)
        checked = checks_are_on()
        # A failed check refuses the call, so nothing may be donated.
        donating = frozenset[str]() if checked else self._donated
        steps = self._steps
        key: list[Hashable] = [backend, checked, len(values)]
        if (rows := program_rows()) is not None:
            key.append(rows)
        named: list[tuple[str, Any, list[Any]]] = []
        over: list[tuple[list[Any], int]] = []
        names = self._names.get(len(values)) or self._called_names(len(values))
        if kwargs:
            keywords = sorted(kwargs)
            key += keywords
            names = [*names, *keywords]
            values = (*values, *[kwargs[name] for name in keywords])
        if steps is not None:
            self._check_over(steps, names)
        for name, value in zip(names, values, strict=True):
            leaves = reader.donated if name in donating else reader.kept
            if steps is not None and name in steps.over:
                value = with_step_scalars(value, name, steps.number)
                start = len(leaves)
                key.append(reader.read(value, name, leaves))
                over += [(leaves, position) for position in range(start, len(leaves))]
            else:
                key.append(reader.read(value, name, leaves))
            named.append((name, value, leaves))
        key.append(reader.read_late(first_states))
        reader.complete()
        return Call(reader, named, len(kwargs), over), tuple(key)
