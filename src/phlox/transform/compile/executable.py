"""One program: traced at the first call, and again for every combination of shapes; then run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from functools import partial
from itertools import islice
from typing import Any, cast

from phlox import random
from phlox.backend import Backend
from phlox.backend.analysis import Analysis
from phlox.backend.levels import resumed
from phlox.backend.out_of_memory import out_of_memory
from phlox.backend.pytree import PyTreeNode, register_node
from phlox.backend.tracing.checks import Check
from phlox.backend.tracing.lifetime_errors import donated, leaked_tracer, note_donation, note_trace
from phlox.errors import CompileError, DeviceError, RandomnessError
from phlox.host.signal_guard import scope
from phlox.module.template import flatten
from phlox.optim.optimizer import tracing
from phlox.optim.state.flat import FlatState
from phlox.random.stream import Reserved, program_rows
from phlox.tensor import Tensor
from phlox.transform.compile.donation import DonationScope
from phlox.transform.compile.guards.guard import Guard
from phlox.transform.compile.host_arrays import has_arrays
from phlox.transform.compile.multi_step import Loop, Steps
from phlox.transform.compile.progress import Progress
from phlox.transform.compile.recompiles import History, facets_of, layouts_of
from phlox.transform.compile.signature import CallArguments, IdSource, arrays_of
from phlox.transform.compile.trace import Call, OutputSpec, StepArguments, WrongStateGuess, record


class TraceOutput:
    """The outcome of a program: arrays, and their meaning, which tracing determined.

    It is a PyTree node, so the engine keeps the meaning with each trace.
    """

    __slots__ = ("arrays", "meaning")

    def __init__(self, arrays: Sequence[Any], meaning: OutputSpec) -> None:
        self.arrays = arrays
        self.meaning = meaning


def _flatten_output(outcome: TraceOutput) -> tuple[Sequence[Any], OutputSpec]:
    return outcome.arrays, outcome.meaning


def _unflatten_output(meaning: OutputSpec, arrays: Any) -> TraceOutput:
    return TraceOutput(arrays, meaning)


register_node(PyTreeNode(TraceOutput, _flatten_output, _unflatten_output))


def _arrays_of(module: Any) -> Iterable[Any]:
    return flatten(module)[0]


def _one_array(array: Any) -> Iterable[Any]:
    return (array,)


class RetryWithFreshArguments(Exception):
    """The arguments must be read again, and the program called again.

    Either the arguments were copied to the device or backend of the program. Or the call was read by the call cache,
    with NumPy arrays, but must be traced, which needs tensors.
    """


class ChangedMeanwhile(Exception):
    """Another thread changed values from outside while the function was traced: it must be traced again."""

    def __init__(self, label: str) -> None:
        super().__init__(label)
        self.label = label


def _settle(donation: DonationScope, stream: random.Stream, reserved: Reserved, draws: int) -> None:
    """Report the number of draws of a call; if the call is undone, its draws are undone, too."""
    stream.settle(reserved, draws)
    if draws:
        donation.on_undo(partial(stream.settle, reserved._replace(draws=draws), 0))


_call: ContextVar[Callable[[], Call]] = ContextVar("phlox_call")
_no_context = nullcontext()
_no_arrays: list[Any] = []


class Program:
    """A function for arguments of fixed structure, as the engine runs it."""

    def __init__(
        self,
        fn: Callable[..., Any],
        history: History,
        backend: Backend,
        checked: bool,
        steps: Steps | None,
        guard: Guard,
        on_trace: Callable[[Program], None],
    ) -> None:
        self.fn, self.name, self.backend, self.checked, self.steps = fn, history.function, backend, checked, steps
        self._guard, self._on_trace = guard, on_trace
        self.guard = guard.or_none
        """The guard of what the function reads from outside; None if it reads nothing."""
        self.history = history
        self.rows = program_rows()
        self.run = backend.compile(self._body, self._release_donated)
        self._prepared = backend.compilations(self.run)
        """The number of compilations of the engine; None if it is not checked after each call."""
        self.draws: int | None = None
        """The number of draws of the last call; None before the first."""
        self._reserved: tuple[random.Stream, Reserved] | None = None
        self._progress: Progress | None = None
        """The compilation that is under way."""

    def __call__(self, call: Call) -> Any:
        reader = call.reader
        with DonationScope(self.name, reader) as donation:
            stream = random.current()
            # Two threads must not draw from one position of a stream: the next call starts where this one will end.
            if self.draws == 0:
                outcome = self._run(donation, call, stream, self._start(stream))
            else:
                with _no_context if self.draws else stream.drawing:
                    outcome = self._run(donation, call, stream, self._reserve(donation, stream))
            return self._results(donation, outcome, call)

    def _reserve(self, donation: DonationScope, stream: random.Stream) -> Reserved:
        """Reserve the positions that a call will probably draw from; a call that is undone releases them."""
        draws = self.draws or 0
        if draws:  # noted before they are reserved, because Ctrl-C may come at any time
            expected = Reserved(None, stream.key, stream.position, draws)
            donation.on_undo(partial(stream.settle, expected, 0))
        return stream.reserve(draws)

    def _start(self, stream: random.Stream) -> Reserved:
        """The position of a stream, for a program that probably does not draw."""
        last = self._reserved
        if last is not None and last[0] is stream and last[1][1] is stream.key and last[1][2] == stream.position:
            return last[1]
        reserved = stream.reserve(0)
        # The words of other streams may be tracers.
        self._reserved = (stream, reserved) if type(stream) is random.Stream else None
        return reserved

    def _run(self, donation: DonationScope, call: Call, stream: random.Stream, reserved: Reserved) -> TraceOutput:
        call.reader.kept[0] = reserved[0]
        token = _call.set(lambda: call)
        drawn = 0
        try:
            try:
                outcome: TraceOutput = self.run(call.reader.donated, call.reader.kept)
            except (WrongStateGuess, ChangedMeanwhile, RetryWithFreshArguments):
                raise
            except Exception as error:
                self._explain(error, call)
                raise
            finally:
                if self._progress is not None:
                    self._end_progress()
            if self._prepared is not None:
                self._note_layout(lambda: call)
            self._note_results(donation, outcome, call)
            meaning = outcome.meaning
            if meaning.draws or meaning.checks:
                drawn = self._check_and_count_draws(outcome, reserved[0])
            self.draws = drawn
        finally:
            _call.reset(token)
            if drawn or reserved[3]:
                _settle(donation, stream, reserved, drawn)
        return outcome

    def analyze(self, call: Call) -> Analysis | None:
        """The compiler's analysis of the program for these arguments, which are not changed; see `Analysis`."""
        call.reader.kept[0] = random.current().reserve(0)[0]
        token = _call.set(lambda: call)
        try:
            return self.backend.analyze(self.run, call.reader.donated, call.reader.kept)
        except (WrongStateGuess, ChangedMeanwhile, RetryWithFreshArguments):
            raise
        except Exception as error:
            self._explain(error, call)
            raise
        finally:
            _call.reset(token)
            if self._progress is not None:
                self._end_progress()

    def _release_donated(self) -> None:
        """Called when the engine is about to overwrite the donated memory of the running call."""
        donation = _call.get()().reader.donation
        assert donation is not None
        donation.release()

    def fast_path(self, leaves: list[Any], owners: Sequence[IdSource], read: Callable[[], Call]) -> Any:
        """Call a program that does not draw, without donations and optimizers.

        `leaves` are its arrays, with the first entry free. The rest of the call is read only if it is needed: to trace
        the function for other shapes, to explain an error, or because the function has side effects.
        """
        stream = random.current()
        reserved = self._start(stream)
        leaves[0] = reserved[0]
        token = _call.set(read)
        try:
            outcome: TraceOutput = self.run(_no_arrays, leaves)
        except (ChangedMeanwhile, RetryWithFreshArguments):
            raise
        except Exception as error:
            self._explain(error, read())
            raise
        finally:
            _call.reset(token)
            if self._progress is not None:
                self._end_progress()
        if self._prepared is not None:
            self._note_layout(read)
        meaning = outcome.meaning
        if meaning.plain:
            return meaning.result(outcome.arrays, owners)
        call = read()
        with DonationScope(self.name, call.reader) as donation:
            self._note_results(donation, outcome, call)
            self.draws = drawn = self._check_and_count_draws(outcome, reserved[0])
            _settle(donation, stream, reserved, drawn)
            return self._results(donation, outcome, call)

    def _end_progress(self) -> None:
        progress, self._progress = self._progress, None
        if progress is not None:
            progress.end()

    def _note_layout(self, read: Callable[[], Call]) -> None:
        """Note the layout of the arrays of the last call on devices, if the engine compiled for it."""
        prepared = self.backend.compilations(self.run)
        if prepared is None or prepared == self._prepared:
            return
        has_compiled, self._prepared = prepared > (self._prepared or 0), prepared
        if has_compiled:
            call = read()
            shapes, layouts = layouts_of([(name, value) for name, value, _ in call.named], call.reader)
            self.history.add_layout((id(self), shapes), layouts)

    def _note_results(self, donation: DonationScope, outcome: TraceOutput, call: Call) -> None:
        """Note the results of the program: from now on signals wait until states and parameters are updated."""
        donation.returned(outcome.arrays, outcome.meaning.continued, lambda: self._load(donation, outcome, call))

    def _check_and_count_draws(self, outcome: TraceOutput, words: Any) -> int:
        """Evaluate the checks of a call, and return its number of draws."""
        meaning = outcome.meaning
        if meaning.checks:
            self._raise_failed_checks(outcome.arrays, meaning.checks)
        if meaning.draws:
            self._check_stream(outcome.arrays, words)
        return meaning.draws

    def _results(self, donation: DonationScope, outcome: TraceOutput, call: Call) -> Any:
        """Update states and parameters, and return the result of a call."""
        reader = call.reader
        if reader.donated:
            self._note_donations(call)
        owners: list[Any] = reader.owners
        if outcome.meaning.returns_optimizers:
            owners = [*owners, *(argument.optimizer for argument in reader.optimizers)]
        result = outcome.meaning.result(outcome.arrays, owners)
        self._load(donation, outcome, call)
        return result

    def _load(self, donation: DonationScope, outcome: TraceOutput, call: Call) -> None:
        """Give optimizers their new states, and parameters that were set their values."""
        reader, arrays, meaning = call.reader, outcome.arrays, outcome.meaning
        for number, (argument, make) in enumerate(zip(reader.optimizers, meaning.states, strict=True)):
            optimizer = argument.optimizer
            twin = reader.twins[number] if reader.twins else optimizer
            after = twin, make(arrays, reader.owners, argument.packed.device)
            donation.change(optimizer.go_on, after, dict(vars(optimizer)), undo=vars(optimizer).update)
        for number, index, position, backend in meaning.changed:
            param = reader.modules[number].module.params()[index]
            value = Tensor.from_primitive(arrays[position], backend, param.kind)
            donation.change(param.set, value, param.val(), undo=param.restore)

    def _raise_failed_checks(self, arrays: Sequence[Any], checks: list[Check]) -> None:
        """Raise the error of the first failed check, unless this call is part of an outer program."""
        numbers = arrays[len(arrays) - sum(check.count for check in checks) :]
        if any(map(self.backend.is_traced, numbers)):
            return
        hosts = [self.backend.to_host(number) for number in numbers]
        for step in [()] if self.steps is None else range(self.steps.number):
            values = iter([host[step].tolist() for host in hosts])
            for check in checks:
                check.raise_for(list(islice(values, check.count)))

    def _explain(self, error: Exception, call: Call) -> None:
        """Raise an error that says more than the engine's, or `RetryWithFreshArguments` if a retry is the remedy."""
        no_memory = out_of_memory(self.name, self.backend, error)
        if no_memory is not None:
            raise no_memory from error
        donation = call.reader.donation
        if donation is not None and donation.has_released:
            return
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, Exception) and self.backend.is_trace_error(cause):
                raise CompileError(
                    f"{self.name}: the value of a tensor or number is needed while the function is being compiled "
                    f"(by item(), float(), bool(), range() or numpy()); use phlox.where, or move it out "
                    f"({str(cause).strip().splitlines()[0]})"
                ) from error
            cause = cause.__cause__
        devices: dict[str, str] = {}
        for name, value, _ in call.named:
            if has_arrays(value):
                continue
            leaves: list[Any] = []
            CallArguments(self.backend).read(value, name, leaves)
            arrays = arrays_of(leaves)
            for array in arrays:
                if self.backend.is_donated(array):
                    if self.backend.is_donated_error(error):
                        raise donated(f"{self.name}: {name} was", array) from error
                    return  # this call has overwritten it before it failed
                if self.backend.is_leaked(array):
                    raise leaked_tracer(f"{self.name}: {name}", self.backend.trace_of(array)) from error
            for array in arrays:
                if not self.backend.is_traced(array):
                    devices.setdefault(str(self.backend.device_of(array)), name)
        if self.backend.is_leaked_error(error):
            raise leaked_tracer(
                f"{self.name}: a tensor that it uses, and that is not among its arguments,", None
            ) from error
        if call.reader.shares_donated():
            raise RetryWithFreshArguments from error
        elsewhere = [
            argument.optimizer
            for argument in call.reader.optimizers
            if self._is_elsewhere(argument.packed, call.reader)
        ]
        for optimizer in elsewhere:
            optimizer.load_packed(optimizer.repack(call.reader.device))
        if elsewhere:
            raise RetryWithFreshArguments from error
        if len(devices) > 1 and isinstance(error, ValueError):
            have = " and ".join(f"{name} on {device}" for device, name in devices.items())
            raise DeviceError(
                f"{self.name}: the arguments are on different devices, {have}; "
                "move one of them to the other device with .to_device(...)"
            ) from error

    def _is_elsewhere(self, packed: FlatState, reader: CallArguments) -> bool:
        arrays = arrays_of(packed.leaves)
        if any(map(self.backend.is_donated, arrays)):
            return False
        return not all(reader.device.meets(self.backend.device_of(array)) for array in arrays)

    def _check_stream(self, arrays: Sequence[Any], words: Any) -> None:
        if self.backend.is_traced(words):
            random.current().check(self.backend)
        elif any(map(self.backend.is_traced, arrays_of(arrays))):
            raise RandomnessError(
                f"{self.name} draws random numbers and is called inside a raw JAX transformation, which would bake "
                "them in; compile the outer function with phlox.compile, or open phlox.random.stream(key) inside it"
            )

    def _note_donations(self, call: Call) -> None:
        """Note the donated arguments, and that they were donated to this function."""
        donated = call.reader.donated
        for argument in call.reader.modules:
            if argument.leaves is donated:
                note_donation(argument.module, _arrays_of, self.name, argument.path)
        for name, value, leaves in call.named:
            if leaves is donated and isinstance(value, Tensor):
                array = self.backend.strip(cast("Tensor[Any, Any, Any]", value).primitive)
                note_donation(array, _one_array, self.name, name)

    def _body(self, donated: list[Any], kept: list[Any]) -> TraceOutput:
        """The function on tracers, which the engine traces."""
        call = _call.get()()
        if self.steps is None and any(has_arrays(value) for _, value, _ in call.named):
            raise RetryWithFreshArguments
        if self._progress is None:
            self._progress = Progress(self.name)
        if call.reader.donation is not None:
            call.reader.donation.note_tracing()
        trace = self.backend.trace_of(kept[0])
        if trace is not None:
            note_trace(trace, self.name)
        named = [(name, value) for name, value, _ in call.named]
        layouts = {} if self._prepared is None else layouts_of(named, call.reader)[1]
        facets = facets_of(named, call.reader, self.checked, self.rows)
        self.history.add(facets, layouts, self._guard.facets())
        # Tapes of differentiated functions around the call do not enter the program.
        with scope(tracing, object()), resumed(()):
            if self.steps is not None:
                outcome = TraceOutput(*Loop(self._step, self.name, call, donated, kept).run(self.steps.number))
            else:
                traced = self._step(call, donated, kept)
                outcome = TraceOutput(traced.arrays, traced.meaning)
        self._on_trace(self)
        return outcome

    def _step(self, call: Call, donated: Sequence[Any], kept: Sequence[Any]) -> StepArguments:
        return record(self.fn, self.name, call, donated, kept, self.checked)
