"""`Module`: an ordinary object whose parameters can be found, saved, moved and transformed."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, Protocol, Self, TypeVar, overload

from phlox.backend import Backend, DeviceLike
from phlox.backend.contract.backend import engine_of, without_autodiff
from phlox.backend.pytree import PyTreeNode, register_node, transformation
from phlox.errors import KindError, ModuleError
from phlox.host.signal_guard import Prepared
from phlox.host.text import html_by
from phlox.module.error_location import located
from phlox.module.fields import RESERVED, Watched, fields_of, set_slot
from phlox.module.identity import InitIds
from phlox.module.param import Param, undo_of
from phlox.module.select import Selector, select
from phlox.module.serialization import serializer_of
from phlox.module.structure import Structure, build
from phlox.module.summary import Summarized
from phlox.module.tree.flattening import flatten, flatten_with_keys, unflatten
from phlox.random.roots import folded, is_key, root_of
from phlox.record import FULL, LoadReport, PrecisionLike, Record
from phlox.record.formats.reader import PathLike, Readable, Stream
from phlox.record.io.compression import Compression
from phlox.record.loading.renaming import Remap
from phlox.record.patterns import Patterns
from phlox.tensor import Tensor
from phlox.tensor.explain import shown

M = TypeVar("M", bound="Module")


class ShardingLayout(Protocol):
    """Says how parameters are sharded over a mesh: a `phlox.distributed.Layout`."""

    def shard(self, model: M, mesh: Any) -> M:
        """The model with its parameters on the mesh."""
        ...


def _no_param(path: str, mapped: object) -> ModuleError:
    return ModuleError(f"{path}: a mapper must return a Param, got {type(mapped).__name__}; see Param.map")


def _with_tape(backend: Backend) -> Backend:
    return backend if backend.differentiates else backend.with_autodiff()


def _on_tape_of(decorator: Callable[[Backend], Backend]) -> Callable[[Backend], Backend]:
    """Choose another decorator instead of `Autodiff`, above all tapes of a backend."""
    return lambda backend: decorator(without_autodiff(backend))


def _only_forward(self: Module, *args: Any, **kwargs: Any) -> Any:
    """The call of a class that defines `forward` instead, as in PyTorch."""
    raise ModuleError(
        f"{type(self).__name__}: a call of a module runs its __call__, and this class has only forward(); rename it to "
        "__call__, or call module.forward(...)"
    )


class Module(Summarized):
    """Base class of layers and models. `__init__` is an ordinary one, and any method can be the forward pass.

    A field is a child if it is a `Param`, a module, or a list, tuple or dict that holds some (other values may be mixed
    in). Every other field is static: copies keep it, but it is not saved and not transformed. A module is a PyTree. Its
    leaves are the arrays of its parameters, in the order of declaration.

    >>> import phlox as px
    >>> class Scale(px.Module):
    ...     def __init__(self):
    ...         self.factor = px.Param(px.ones((3,)))
    ...     def __call__(self, x):
    ...         return x * self.factor.val()
    >>> [path for path, _ in Scale().named_params()]
    ['factor']
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__slots__" in vars(cls) and vars(cls)["__slots__"]:
            raise ModuleError(f"{cls.__name__}: the fields of a module are in its __dict__; remove __slots__")
        if isinstance(call := vars(cls).get("__call__"), FunctionType):  # a compiled __call__ stays unchanged
            cls.__call__ = located(call)
        elif "forward" in vars(cls) and not any("__call__" in vars(base) for base in cls.__mro__):
            cls.__call__ = _only_forward
        register_node(PyTreeNode(cls, flatten, unflatten, flatten_with_keys, serializer_of(cls)))

    def __hash__(self) -> int:
        caller = str(sys._getframe(1).f_globals.get("__name__"))  # pyright: ignore[reportPrivateUsage]
        if caller.startswith("jax.") and transformation() is None:  # inside a trace, modules are new in each trace
            raise ModuleError(
                "a module can be neither a static argument nor a function that JAX compiles: the program would keep "
                f"the weights that this {type(self).__name__} has now; pass it as an argument, as in jax.jit(lambda "
                "model, x: model(x))(model, x)"
            )
        return object.__hash__(self)

    def structure(self) -> Structure:
        """The module's skeleton and parameters; cached until a part of it changes."""
        structure = self._phlox_structure
        if structure is None or not structure.is_unchanged():
            structure = Structure(self, structure)
            set_slot(self, "_phlox_structure", structure)
        return structure

    # --- parameters

    def named_params(self) -> Iterator[tuple[str, Param]]:
        """Every parameter with its path (`layers.0.weight`), in the order of declaration; tied parameters come once."""
        return self.structure().named()

    def params(self) -> list[Param]:
        """Every parameter, in the order of declaration; tied parameters come once."""
        return list(self.structure().params)

    def num_params(self, *, trained_only: bool = False) -> int:
        """The number of elements of all parameters, or of the trained ones."""
        return sum(math.prod(param.shape) for param in self.params() if param.trained or not trained_only)

    def visit(self, visitor: Callable[[str, Param], Any]) -> None:
        """Call `visitor(path, param)` for every parameter."""
        path = ""
        try:
            for path, param in self.named_params():
                visitor(path, param)
        except Exception as error:
            error.add_note(f"visit: at the parameter `{path}`")
            raise

    def map(self, mapper: Callable[[str, Param], Param]) -> Self:
        """A new module of the same structure, with `mapper(path, param)` for every parameter; this one is unchanged.

        On a tape, a parameter that the mapper returns unchanged is the same leaf in both modules: both find its
        gradient. If the mapper returns all parameters unchanged, the result is a copy with leaves of its own.

        Raises `ModuleError`, with the path, if the mapper returns anything but a `Param`.
        """
        structure = self.structure()
        params: list[Param] = []
        path, unchanged = "", 0
        try:
            for path, param in structure.named():
                mapped = mapper(path, param)
                if not isinstance(mapped, Param):  # pyright: ignore[reportUnnecessaryIsInstance]
                    raise _no_param(path, mapped)
                params.append(mapped.view() if mapped is param else mapped)
                unchanged += mapped is param
        except Exception as error:
            error.add_note(f"map: at the parameter `{path}`")
            raise
        if unchanged == len(params):
            for param in params:
                param.become_a_leaf()
        return structure.build(params)

    def init(self, seed: Any = None, device: DeviceLike | None = None) -> Self:
        """Create the values of all deferred parameters now, and return this module.

        With a `seed`, the values depend only on the seed and on the order of the parameters, and so do their ids.
        Without one, each value comes from the sub-stream that the parameter reserved when it was declared. With a
        `device`, the parameters are there, also those that were declared with a value; one whose value was set or
        loaded stays where it is. Parameters that have a value keep it.

        `seed` is an integer of Python or NumPy, a key of two words, a key of JAX (`jax.random.key(3)` means the seed
        3, on every backend), or an Int tensor without axes. It may be traced, if the module is created inside the
        transformation: `jax.vmap(lambda seed: Net().init(seed))(seeds)` is an ensemble, whose members have the weights
        of `Net().init(0)` and so on.

        Raises `KindError`, `ShapeError` or `RangeError` if `seed` is not a seed; `ModuleError` for a traced seed and a
        parameter from outside of the transformation.

        >>> import phlox as px
        >>> members = px.vmap(lambda seed: px.nn.Linear(3, 2).init(seed))(px.arange(4))
        >>> bool((members.weight.val()[3] == px.nn.Linear(3, 2).init(3).weight.val()).all())
        True
        """
        root = None if seed is None else root_of(seed)
        named = list(self.named_params())
        new = {number: entry for number, entry in enumerate(named) if not entry[1].is_initialized}
        if device is not None:
            for _, param in named:
                param.declare_on(device)
        if root is None:
            for _, param in new.values():
                param.init()
        elif new:
            traced = not is_key(root) or any(engine_of(param.backend).is_tracing() for _, param in new.values())
            # In an entirely new module, parameters that were declared with a value get ids too.
            existing = [entry for entry in named if entry[1].is_initialized]
            existing = existing if all(getattr(param, "declared", False) for _, param in existing) else []
            paths = [path for path, _ in (*new.values(), *existing)]
            ids = InitIds(None if traced else root, type(self).__qualname__, paths)
            for number, (path, param) in new.items():
                param.init(folded(root, number, param.backend), ids.of(path))
            for path, param in existing:
                param.set_id(ids.of(path))
        return self

    def freeze(self, *which: Selector) -> Self:
        """A view of this module in which the selected parameters are not trained; the others do not change.

        `which` are path patterns, predicates `(path, param) -> bool`, or lists of these; see `phlox.module.select`.
        Without any, all parameters are selected. Raises `ModuleError` for a pattern that matches nothing.

        >>> import phlox as px
        >>> from phlox import nn
        >>> model = nn.Sequential([nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1)])
        >>> [path for path, param in model.freeze("layers.0", "**.bias").named_params() if param.trained]
        ['layers.1.gamma', 'layers.1.beta', 'layers.2.weight']
        """
        return self._marked(select(self, *which), trained=False)

    def unfreeze(self, *which: Selector) -> Self:
        """A view of this module in which the selected parameters are trained again; see `freeze`.

        Parameters that were not declared as trained (running statistics, Int and Bool) do not change. Raises
        `ModuleError` if only such parameters are selected.
        """
        selected = select(self, *which)
        if which and not any(param.trainable for param in selected.values()):
            raise ModuleError(
                f"unfreeze: `{next(iter(selected), which[0])}` is not declared as trained, and neither is any other "
                "selected parameter; declare it with Param(..., trained=True)"
            )
        return self._marked(selected, trained=True)

    def _marked(self, selected: dict[str, Param], *, trained: bool) -> Self:
        def mark(path: str, param: Param) -> Param:
            twin = param.view()
            if path in selected:
                twin.set_trained(trained and param.trainable)
            return twin

        return self.map(mark)

    # --- devices and modes

    @property
    def training(self) -> bool | None:
        """The mode that was set: True for training (dropout drops, batch norm uses batch statistics), False, or None.

        By default it is None: the layer is in training if its input is on a tape. `train(tape=False)` and
        `valid(tape=True)` set the mode of every module in the view. To set it for one layer, assign to it.
        """
        return fields_of(self).get("training")

    @training.setter
    def training(self, value: bool | None) -> None:
        if value is not None and not isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ModuleError(f"training is True, False or None (where a tape is recorded), got {value!r}")
        if value is None:
            fields_of(self).pop("training", None)
        else:
            fields_of(self)["training"] = value

    def is_training(self, x: Tensor[Any, Any, Any]) -> bool:
        """Is this layer in training when it is called on `x`? If no mode is set, it is if `x` is on a tape."""
        if not isinstance(x, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise KindError(f"it takes a tensor, got {shown(x)}")
        training = self.training
        return x.backend.differentiates if training is None else training

    def to_device(self, device: DeviceLike) -> Self:
        """The same module on another device, possibly of another backend.

        Parameters keep their ids, and deferred ones stay deferred.
        """
        return self.map(lambda path, param: param.to_device(device))

    def shard(self, layout: ShardingLayout, mesh: Any) -> Self:
        """The same module with its parameters sharded over the devices of a mesh, as a layout says; ids stay.

        Deferred parameters stay deferred, and are created in shards. Records are loaded into shards. Optimizer states
        and the results of compiled steps are sharded like the parameters. Raises `ShardingError`, with the paths, if
        the layout does not fit.

        >>> from phlox import nn
        >>> from phlox.distributed import Layout, Mesh
        >>> nn.Linear(4, 2, device="numpy").shard(Layout(), Mesh(data=-1, device="numpy")).weight.shape
        (4, 2)
        """
        return layout.shard(self, mesh)

    def train(self, *, tape: bool | Callable[[Backend], Backend] = True) -> Self:
        """A view of this module for training: its backend records a tape, so dropout drops and `backward` works.

        The view shares arrays and ids with this module. Its backend is the module's own if that has a tape, otherwise
        `Autodiff` of it, or another decorator if `tape` is one. With `tape=False` the view is in training without a
        tape, for example for Monte-Carlo dropout.

        >>> import phlox as px
        >>> from phlox import nn
        >>> model, x = nn.Sequential([nn.Dropout(0.5)]), px.ones((1000,))
        >>> model.train(tape=False)(x).min().item(), model.valid()(x).min().item()
        (0.0, 1.0)
        """
        if callable(tape):
            return self._seen_from(_on_tape_of(tape), True)
        return self._seen_from(_with_tape if tape else without_autodiff, True)

    def valid(self, *, tape: bool = False) -> Self:
        """A view of this module for inference, on its backend without a tape; see `train`.

        With `tape=True` the layers are in inference mode on a tape, for evaluation with gradients.
        """
        return self._seen_from(_with_tape if tape else without_autodiff, False)

    def _seen_from(self, choose: Callable[[Backend], Backend], training: bool) -> Self:
        structure = self.structure()
        params: list[Param] = []
        for param in structure.params:
            device = param.device
            params.append(param.on_backend_of(device.on(choose(device.backend))))
        return build(structure.in_mode(training), params)

    # --- records

    def into_record(self) -> Record:
        """The parameters as a record of lazy tensors; nothing is copied. Deferred parameters get their values now."""
        from phlox.module.records import into_record

        return into_record(self)

    def load_record(
        self,
        record: Record,
        *,
        strict: bool = True,
        include: Patterns | None = None,
        exclude: Patterns | None = None,
        remap: Remap | None = None,
    ) -> Self:
        """Load every parameter's value and id from a record, and return this module; no initializer runs.

        Args:
            record: matched by the paths of parameters, or by their order if it has no names.
            strict: raise an error for parameters missing in the record and for entries missing in the module. If
                false, they are skipped.
            include, exclude: path patterns, see `phlox.record.patterns`. Parameters that `include` does not match, or
                that `exclude` matches, are not loaded; deferred ones stay deferred.
            remap: renames the record's entries first. It is a dict of regular expressions and their replacements, or a
                function from path to path. None in place of a path drops the entry.

        Raises `RecordError`, which lists everything that does not fit: also damaged entries, and values that this
        backend cannot hold. Everything is checked before anything is loaded, so after an error the module is unchanged.
        Each parameter of the module gets an id of its own.

        >>> from phlox import nn
        >>> saved = nn.Sequential(body=nn.Linear(3, 4), head=nn.Linear(4, 2)).into_record()
        >>> model = nn.Sequential(body=nn.Linear(3, 4), head=nn.Linear(4, 5))
        >>> model.load_record(saved, exclude="layers.head")["head"].weight.is_deferred
        True
        """
        from phlox.module.records import prepare

        prepare(self, record, strict=strict, include=include, exclude=exclude, remap=remap)()
        return self

    def load_report(
        self,
        record: Record,
        *,
        strict: bool = True,
        include: Patterns | None = None,
        exclude: Patterns | None = None,
        remap: Remap | None = None,
    ) -> LoadReport:
        """Report what `load_record` would do: what fits, what does not, and why. Nothing is loaded; `print` it."""
        from phlox.module.records import report

        return report(self, record, strict=strict, include=include, exclude=exclude, remap=remap)

    def prepare_load(self, record: Record) -> Callable[[], object]:
        """`load_record` in two steps, for `phlox.record.restore`: checks now, and returns a function that loads."""
        from phlox.module.records import prepare

        if type(self).load_record is Module.load_record:
            return prepare(self, record)
        self.map(lambda path, param: param).load_record(record)  # a class's own load_record, which is tried on a copy
        return Prepared(lambda: self.load_record(record), lambda: undo_of(self.params()))

    @overload
    def save(
        self,
        path: PathLike,
        *,
        precision: PrecisionLike = FULL,
        compression: Compression | None = None,
        durable: bool = True,
    ) -> Path: ...
    @overload
    def save(
        self,
        path: Stream,
        *,
        precision: PrecisionLike = FULL,
        compression: Compression | None = None,
        durable: bool = True,
    ) -> Stream: ...
    def save(
        self,
        path: PathLike | Stream,
        *,
        precision: PrecisionLike = FULL,
        compression: Compression | None = None,
        durable: bool = True,
    ) -> Path | Stream:
        """Write the parameters to a file atomically, and return its path.

        Args:
            path: the file. Its suffix gives the format and the compression (".json.gz"); without a suffix the format is
                safetensors. It can also be a binary file open for writing, which is then returned.
            precision: the precision of the floats in the file, "f32", "f16", "bf16" or "f64", or for more control a
                `phlox.record.PrecisionSettings`.
            compression: None, "gzip" or "zstd".
            durable: wait until the file is on the disk, so that it survives a system crash.

        >>> import tempfile
        >>> from phlox import nn
        >>> path = nn.Linear(3, 2).save(tempfile.mkdtemp() + "/model")
        >>> path.name, str(nn.Linear(3, 2).load(path))
        ('model.safetensors', 'all 2 parameters loaded')
        """
        from phlox.record import save

        return save(self.into_record(), path, precision, compression, durable=durable)

    def load(
        self,
        source: Record | PathLike | Readable,
        *,
        strict: bool = True,
        include: Patterns | None = None,
        exclude: Patterns | None = None,
        remap: Remap | None = None,
    ) -> LoadReport:
        """Load the parameters from a file of any format, or from a record, and return a report; see `load_record`.

        `source` is a record, the path of a file, an open binary file, or bytes.
        """
        from phlox.module.records import load_from

        return load_from(self, source, strict=strict, include=include, exclude=exclude, remap=remap)

    def __repr__(self) -> str:
        from phlox.module.display import display

        return display(self)

    _repr_html_ = html_by("phlox.module.pages", "page_of_module")


RESERVED.update(
    name
    for cls in (Module, *Module.__bases__, Watched)
    for name, value in vars(cls).items()
    if isinstance(value, FunctionType) and not name.startswith("__")
)
