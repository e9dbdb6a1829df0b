"""`Layout`: over which mesh axes the parameters of a model are sharded, by patterns of their paths."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from phlox.backend import Device
from phlox.backend.contract.backend import engine_of, without_autodiff
from phlox.backend.processes import processes
from phlox.backend.sharding import AxisNames
from phlox.distributed.processes.fingerprint import differences
from phlox.distributed.processes.objects import gather_objects
from phlox.errors import ShardingError
from phlox.host.text import html_by
from phlox.module import Module, Param
from phlox.module.calls import named_modules
from phlox.record.patterns import Finder, matches, no_match
from phlox.sharding.decorator import sharded
from phlox.tensor import Tensor

if TYPE_CHECKING:
    from phlox.distributed.mesh import Mesh

M = TypeVar("M", bound=Module)
Spec = tuple[AxisNames, ...]


class Layout:
    """The layout of a model on a mesh: over which mesh axes each parameter is sharded.

    Args:
        patterns: pattern of paths (as for `Module.freeze`) -> for each axis of the parameter the name of the mesh axis
            over which it is sharded, a tuple of names, or None if it is not; None in place of the whole spec replicates
            the parameter. The first pattern that matches a path counts.
        rest: the mesh axis (or axes) for the parameters that no pattern matches: each is sharded along its largest axis
            that is divisible (fully sharded data parallel, FSDP). None replicates them.
        least: `rest` does not shard parameters with fewer elements than this.
        stage: what is sharded on PyTorch and NumPy, by the stages of ZeRO (Rajbhandari et al. 2020): 1, states of
            optimizers; 2, gradients too; 3, parameters too, which are whole only while a layer uses them. JAX always
            shards all three.

    >>> from phlox import nn
    >>> from phlox.distributed import Layout
    >>> layout = Layout({"*.0.weight": (None, "model")}, rest="data")
    >>> layout
    Layout({'*.0.weight': (None, 'model')}, rest='data')
    """

    def __init__(
        self,
        patterns: Mapping[str, Spec | None] | None = None,
        *,
        rest: AxisNames = None,
        least: int = 1024,
        stage: int = 3,
    ) -> None:
        self.patterns: dict[str, Spec] = {}
        for pattern, spec in (patterns or {}).items():
            axes: Any = () if spec is None else spec
            if not isinstance(axes, tuple) or not all(map(_is_axes, cast("tuple[object, ...]", axes))):
                raise ShardingError(
                    f"the layout of `{pattern}` is {spec!r}; give for each axis of the parameter the name of a mesh "
                    "axis, a tuple of names or None, as in (None, 'model')"
                )
            self.patterns[pattern] = cast("Spec", axes)
        if not _is_axes(rest):
            raise ShardingError(f"rest= is the name of a mesh axis, a tuple of names or None, got {rest!r}")
        self.rest: AxisNames = rest
        self.least = least
        if stage not in (1, 2, 3):
            raise ShardingError(f"stage is 1, 2 or 3, got {stage!r}; without rest= and patterns nothing is sharded")
        self.stage = stage

    def specs(self, model: Module, mesh: Mesh) -> dict[str, Spec]:
        """The mesh axes over which the axes of each parameter are sharded, by path.

        Raises `ShardingError`, with all problems at once, for a pattern that matches nothing, a spec of another rank,
        an unknown mesh axis, and a size that is not divisible.
        """
        structure = model.structure()
        named = dict(structure.named())
        names: dict[str, list[str]] = {path: [path] for path in named}
        for alias, path in structure.aliases.items():
            names[path].append(alias)
        every = [path for aliases in names.values() for path in aliases]
        find, faults = Finder(names), list[str]()
        chosen: dict[str, Spec] = {}
        for pattern, spec in self.patterns.items():
            matched = find(pattern)
            if not matched:
                faults.append(no_match(pattern, every, "parameter"))
            for path in matched:
                chosen.setdefault(path, spec)
        spec_of: dict[str, Spec] = {}
        for path, param in named.items():
            spec = spec_of[path] = chosen[path] if path in chosen else self._rest_spec(param.shape, mesh)
            if path in chosen:
                faults += _misfits(path, param, spec, mesh)
        unknown = [name for name in _names(self.rest) if name not in mesh.shape]
        faults += [f"the mesh has no axis {name!r} (rest=); it has {', '.join(mesh.axes)}" for name in unknown]
        if faults:
            title = f"the layout does not fit this {type(model).__name__}"
            raise ShardingError(f"{title}: {faults[0]}" if len(faults) == 1 else "\n  ".join([f"{title}:", *faults]))
        return spec_of

    def _rest_spec(self, shape: tuple[int, ...], mesh: Mesh) -> Spec:
        parts = math.prod(mesh.shape.get(name, 1) for name in _names(self.rest))
        fitting = [axis for axis, size in enumerate(shape) if size and size % parts == 0]
        if self.rest is None or not fitting or math.prod(shape) < self.least:
            return ()
        # Slices along the first axis are contiguous in memory; a partitioner prefers to shard a large axis.
        chosen = max(fitting, key=lambda axis: shape[axis]) if mesh.partitions else fitting[0]
        return (*[None] * chosen, self.rest)

    def shard(self, model: M, mesh: Mesh) -> M:
        """The model with its parameters sharded over the mesh; see `Module.shard`."""
        specs = self.specs(model, mesh)
        slices = not mesh.partitions and any(map(any, specs.values()))
        if slices:
            for path, spec in specs.items():
                _check_slices(path, spec, mesh)
        _check_models(model)

        def move(path: str, param: Param) -> Param:
            if type(engine_of(param.backend)) is not type(mesh.backend):
                raise ShardingError(
                    f"`{path}` is on {param.backend!r}, and the mesh on {mesh.backend!r}; move the model first, with "
                    "to_device(...)"
                )
            device = mesh.device_for(specs[path])
            if not slices:
                return param.to_device(device.on(param.backend))
            device = device.on(sharded(param.backend))
            if (sharding := device.sharding) is not None:
                device = replace(device, sharding=replace(sharding, mesh=sharding.mesh.at(self.stage)))
            return param.map(partial(_sliced, device=device)) if param.is_initialized else param.to_device(device)

        return model.map(move)

    def __repr__(self) -> str:
        arguments = [repr(self.patterns)] * bool(self.patterns)
        arguments += [f"rest={self.rest!r}"] * (self.rest is not None)
        return f"Layout({', '.join([*arguments, *[f'stage={self.stage}'] * (self.stage != 3)])})"

    _repr_html_ = html_by("phlox.distributed.pages", "page_of_layout")


def _sliced(value: Tensor[Any, Any, Any], device: Device) -> Tensor[Any, Any, Any]:
    """A value in slices, on the backend for slices."""
    backend = without_autodiff(device.backend)
    primitive = value.backend.strip(value.primitive)
    return Tensor.from_primitive(backend.cast(primitive, backend, device.on(backend)), backend, value.kind)


def _check_slices(path: str, spec: Spec, mesh: Mesh) -> None:
    """Raise `ShardingError` for a spec that engines without a partitioner do not support."""
    cut = [axes for axes in spec if axes]
    unknown = [name for axes in cut for name in _names(axes) if name not in mesh.batch_axes]
    if len(cut) > 1 or unknown:
        raise ShardingError(
            f"`{path}` would be cut by {spec}, and {mesh.backend!r} cuts a parameter along one of its axes, over "
            f"{' or '.join(mesh.batch_axes)}; use Layout(rest={mesh.batch_axes[-1]!r}) there, or a mesh on JAX"
        )


def tensor_parallel(model: Module, mesh: Mesh, axis: str = "model", *, fsdp: AxisNames = None) -> Layout:
    """The layout of a transformer for tensor parallelism over one mesh axis, as in Megatron (Shoeybi et al. 2019).

    The weights of attention and of the layers `up` and `gate` are sharded by columns, the weights of `out` and `down`
    by rows, so a block needs two all-reduces forward and two backward. Embeddings and the head are sharded by token.
    Parameters are found by the names that they have in `Gpt`, `Llama` and `Bert`, anywhere in `model`.

    Args:
        model: the transformer, or a model that contains it.
        mesh: the devices.
        axis: the mesh axis for tensor parallelism.
        fsdp: a further mesh axis over which all parameters are sharded.

    Raises:
        ShardingError: the model has no such parameters, or its heads cannot be divided over the axis.

    >>> from phlox.distributed import Mesh
    >>> from phlox.models import GptConfig
    >>> model = GptConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2).init("numpy")
    >>> tensor_parallel(model, Mesh(model=-1, device="numpy")).patterns["blocks.0.up.weight"]
    (None, 'model')
    """
    size = mesh.shape.get(axis)
    if size is None:
        raise ShardingError(f"the mesh has no axis {axis!r}; it has {', '.join(mesh.axes)}")
    chosen: dict[str, Spec] = {}
    for path, param in model.structure().named():
        spec = next((spec for pattern, spec in _MEGATRON.items() if matches(pattern, path)), None)
        if spec is None or len(spec) != len(param.shape):
            continue
        cut = next(number for number, axes in enumerate(spec) if axes)
        if param.shape[cut] % size and path.split(".")[-2] in _BY_TOKEN:
            continue  # a vocabulary that is not divisible is not sharded
        # Both along the same axis of the parameter: then the partitioner gathers over `fsdp` before it multiplies. If
        # the axis that is summed over were sharded, it would communicate sums of activations, for all rows.
        joint: AxisNames = (axis, *_names(fsdp)) if fsdp and len(spec) > 1 else axis
        parts = math.prod(mesh.shape.get(name, 1) for name in _names(joint))
        chosen[path] = tuple([None if not axes else joint if param.shape[cut] % parts == 0 else axis for axes in spec])
    if not chosen:
        raise ShardingError(
            f"{type(model).__name__} has no parameters of the names that tensor_parallel knows "
            f"({', '.join(_MEGATRON)}); give a Layout of your own"
        )
    _check_heads(model, size)
    return Layout(cast("dict[str, Spec | None]", chosen), rest=fsdp)


_COLUMNS, _ROWS, _BIAS = (None, "model"), ("model", None), ("model",)
_MEGATRON: dict[str, Spec] = {
    **{f"**.{name}.weight": _COLUMNS for name in ("query", "key", "value", "up", "gate", "head")},
    **{f"**.{name}.bias": _BIAS for name in ("query", "key", "value", "up", "gate", "head")},
    **{f"**.{name}.weight": _ROWS for name in ("out", "down", "tokens")},
}
_BY_TOKEN = ("tokens", "head")


def _check_heads(model: Module, size: int) -> None:
    for path, module in named_modules(model):
        for name in ("n_heads", "n_kv_heads"):
            heads: Any = vars(module).get(name)
            if isinstance(heads, int) and heads % size:
                raise ShardingError(f"`{path}` has {name}={heads}, which do not divide over {size} devices")


def _check_models(model: Module) -> None:
    """Raise `ShardingError`, in all processes, if they have different models."""
    if processes().size == 1:
        return
    descriptions = {
        f"`{path}`": f"{param.kind.__name__} of shape {param.shape}" + ("" if param.trained else ", not trained")
        for path, param in model.named_params()
    }
    if len({*gather_objects(hashlib.sha256(repr(descriptions).encode()).hexdigest())}) > 1:
        problems = differences(gather_objects(descriptions))
        problem = problems[0] if problems else "their parameters stand in another order"
        raise ShardingError(f"the processes shard different models; make them from one config: {problem}")


def _is_axes(axes: object) -> bool:
    parts: tuple[Any, ...] = cast("tuple[Any, ...]", axes) if isinstance(axes, tuple) else (axes,)
    return axes is None or (bool(parts) and all(isinstance(name, str) for name in parts))


def _names(axes: AxisNames) -> tuple[str, ...]:
    return (axes,) if isinstance(axes, str) else axes or ()


def _misfits(path: str, param: Param, spec: Spec, mesh: Mesh) -> list[str]:
    """The problems of a parameter's spec."""
    if len(spec) > len(param.shape):
        return [f"`{path}` has the shape {param.shape}, and its layout {spec} has {len(spec)} axes"]
    used = [name for axes in spec for name in _names(axes)]
    faults = [
        f"`{path}`: the mesh has no axis {name!r}; it has {', '.join(mesh.axes)}"
        for name in used
        if name not in mesh.shape
    ]
    faults += [f"`{path}`: its layout {spec} has {name!r} twice" for name in {*used} if used.count(name) > 1]
    if faults:
        return faults
    for number, axes in enumerate(spec):
        parts = math.prod(mesh.shape[name] for name in _names(axes))
        if param.shape[number] % parts:
            faults.append(f"`{path}`: axis {number} of {param.shape} does not divide into {parts} parts ({axes!r})")
    return faults
