"""Between modules and records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phlox.backend.contract.backend import engine_of
from phlox.errors import ModuleError
from phlox.module.param import Param, ParamId
from phlox.module.template import left_over
from phlox.record import LazyTensor, LoadReport, Record, TensorEntry, match
from phlox.tensor import Tensor

if TYPE_CHECKING:
    from phlox.module.module import Module


def lazy(path: str, tensor: Tensor[Any, Any, Any]) -> LazyTensor:
    """A tensor as an entry of a record: read from its device when the record is."""

    def read() -> Any:
        return tensor._host(path)  # pyright: ignore[reportPrivateUsage]

    return LazyTensor.from_function(tensor.shape, tensor.backend.host_dtype(tensor.kind), read, path)


def into_record(module: Module) -> Record:
    """See `Module.into_record`."""
    structure = module.structure()
    entries: dict[str, Any] = {}
    for path, param in structure.named():
        value = param.val()
        if value.backend.is_traced(value.primitive):
            raise _traced(path, param)
        entries[path] = TensorEntry(lazy(path, value), param.id)
    return Record(entries, {"module": type(module).__name__}, aliases=structure.aliases)


def _traced(path: str, param: Param) -> ModuleError:
    if engine_of(param.backend).is_left_over(param.leaf):
        return left_over(path)
    return ModuleError(
        f"`{path}` has no value that could be saved while a program is being recorded; save the module outside"
    )


def report(module: Module, record: Record, *, strict: bool = True) -> LoadReport:
    """See `Module.load_report`."""
    structure = module.structure()
    expected: Any = {path: (param.shape, param.kind.name, _dtype(param)) for path, param in module.named_params()}
    return match(expected, record, strict=strict, aliases=structure.aliases)


def _dtype(param: Param) -> Any:
    return param.backend.host_dtype(param.kind)


def load_record(module: Module, record: Record, *, strict: bool) -> None:
    """See `Module.load_record`."""
    found = report(module, record, strict=strict)
    found.raise_if_failed(type(module).__name__)
    # Every value is read before the first is set: a damaged entry leaves the module as it was.
    loaded: list[tuple[Param, Tensor[Any, Any, Any], str | None]] = []
    for path, param in module.named_params():
        source = found.matches.get(path)
        if source is None:
            continue
        entry = record[source]
        assert isinstance(entry, TensorEntry)
        place = param.device
        array = place.backend.from_host(entry.tensor.read(), param.kind, place)
        loaded.append((param, Tensor.from_primitive(array, place.backend, param.kind), entry.id))
    for param, value, id in loaded:
        param.set(value)
        if id is not None:
            param.set_id(ParamId(id))
