"""`Backend`: the contract as a class."""

from __future__ import annotations

from typing import Any, Self

from phlox.backend.contract.arithmetic import ArithmeticOps
from phlox.backend.contract.collectives import CollectiveOps
from phlox.backend.contract.compiling import CompilingOps
from phlox.backend.contract.elementwise import ElementwiseOps
from phlox.backend.contract.indexing import IndexingOps
from phlox.backend.contract.linalg import LinalgOps
from phlox.backend.contract.meshes import MeshOps
from phlox.backend.contract.nn.activation import ActivationOps
from phlox.backend.contract.nn.attention import AttentionOps
from phlox.backend.contract.nn.conv import ConvOps
from phlox.backend.contract.nn.experts import ExpertOps
from phlox.backend.contract.nn.linear import DenseOps
from phlox.backend.contract.nn.loss import LossOps
from phlox.backend.contract.nn.norm import NormOps
from phlox.backend.contract.nn.packed import PackedOps
from phlox.backend.contract.nn.pooling import PoolingOps
from phlox.backend.contract.nn.recurrent import RecurrentOps
from phlox.backend.contract.nn.sampling import SamplingOps
from phlox.backend.contract.profiling import ProfilingOps
from phlox.backend.contract.reduction import ReductionOps
from phlox.backend.contract.shape import ShapingOps
from phlox.backend.contract.signal import SignalOps
from phlox.backend.contract.sorting import SortingOps
from phlox.backend.contract.special import SpecialOps
from phlox.backend.contract.taping import TapingOps
from phlox.backend.contract.tracing import TracingOps
from phlox.backend.contract.types import Array
from phlox.backend.contract.update import MultiTensorOps, UpdateOps
from phlox.backend.device import Device
from phlox.errors import UnsupportedError
from phlox.host.dtypes import HALF_ELEMENTS, INT_RANGES, LARGEST, FloatElement


class Backend(
    UpdateOps, SamplingOps, PoolingOps, ConvOps, RecurrentOps, AttentionOps, LossOps, NormOps, PackedOps, ExpertOps,
    DenseOps, ActivationOps, SignalOps, LinalgOps, ReductionOps, SortingOps, IndexingOps, ElementwiseOps, SpecialOps,
    ArithmeticOps, ShapingOps, TracingOps, CompilingOps, TapingOps, MultiTensorOps, ProfilingOps, MeshOps,
    CollectiveOps,
):  # fmt: skip
    """A small immutable value that names element types and holds operations on an engine's own arrays.

    Backends are equal and hashable by value; equal backends are one object. Write one by subclassing
    `EngineBackend` and giving it the functions that `phlox.backend.contract.required` declares; everything else is
    derived from those and may be overridden.
    """

    name: str
    """The engine's name, as in the registry."""
    adds_level: bool = False
    """Is it a decorator whose boxes add a history or an axis, which end with it?"""
    batched: int = 0
    """The number of nested `vmap`s that this backend is inside of: its arrays hide this many batch axes."""

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise UnsupportedError(f"{self!r} does not support `{attribute}`; use another backend for it")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    # --- relations to other backends

    def full_precision(self) -> Backend:
        """This backend with f32 in place of half-precision floats; itself if they are f32 or f64."""
        return self.with_float("f32") if self.float_element in HALF_ELEMENTS else self

    def with_float(self, element: FloatElement) -> Backend:
        """This backend with floats of another element type; decorators stay."""
        raise NotImplementedError

    def cast(self, x: Array, target: Backend, device: Device) -> Array:
        """The values as an array of the engine behind `target`, on `device`, in its element type.

        Floats are rounded as results of arithmetic are: a float that is too large becomes an infinity. Raises
        `RangeError` for an integer that does not fit. Within one engine it is a conversion on the device; otherwise
        the values go through the host.
        """
        if self.is_traced(x):
            raise UnsupportedError(
                f"a tensor on {self!r} cannot go to {target!r} while a function is being traced: that needs its values"
            )
        return engine_of(target)._from_result(self.to_host(x), self.kind_of(x), device)

    def check_fits(self, x: Array, target: Backend) -> None:
        """Raise `RangeError` for a finite value that does not fit `target`'s element type, unless x is a tracer."""
        kind = self.kind_of(x)
        engine = engine_of(target)
        narrower = {
            "float": LARGEST[engine.float_element] < LARGEST[self.float_element],
            "int": INT_RANGES[engine.int_element][1] < INT_RANGES[self.int_element][1],
            "bool": False,
        }
        if narrower[kind.name] and not self.is_traced(x):
            engine.fit(self.to_host(x), kind)

    def batch_of(self, x: Array) -> tuple[int, ...]:
        """The sizes of the batch axes that an array hides, the outermost first."""
        return ()


def engine_of(backend: Backend) -> Backend:
    """The backend inside all decorators."""
    while backend.inner is not None:
        backend = backend.inner
    return backend


def backend_of_arrays(backend: Backend) -> Backend:
    """The backend of the arrays that programs take: inside all decorators whose boxes end with a tape or a batch."""
    while backend.inner is not None and backend.adds_level:
        backend = backend.inner
    return backend


def without_autodiff(backend: Backend) -> Backend:
    """The backend inside all tapes; a batched one stays batched."""
    while (lower := backend.without_tape()) is not None:
        backend = lower
    return backend
