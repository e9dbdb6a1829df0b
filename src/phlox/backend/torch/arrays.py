"""PyTorch tensors as arrays of the contract: their devices, and conversions to and from the host."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from phlox.backend.contract import Backend, EngineBackend
from phlox.backend.contract.backend import engine_of
from phlox.backend.contract.types import Array, Gradients, Needed, Shape
from phlox.backend.device import Device
from phlox.backend.kind import Bool, Float, Int, Kind
from phlox.backend.torch.cpu.casts import casts_on_all_cores, recast
from phlox.backend.torch.tracer import NeedsValue, as_constants, is_tracer
from phlox.errors import AutodiffError, DeviceError, KindError
from phlox.host.dtypes import HOST_DTYPES
from phlox.host.mmap import taken_over
from phlox.host.torch_tensors import plain

ELEMENTS: dict[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "i64": torch.int64,
    "i32": torch.int32,
}


@cache
def _torch_device(name: str) -> torch.device:
    return torch.device(name.replace("gpu", "cuda"))


class Arrays(EngineBackend):
    """See `phlox.backend.contract.arrays`."""

    torch_float: torch.dtype
    torch_int: torch.dtype

    def device(self, name: str | None = None) -> Device:
        platform, _, number = (name or "cpu").partition(":")
        count = {"cpu": 1, "gpu": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
        if not (number or "0").isdigit() or int(number or "0") >= count.get(platform, 0):
            have = ["cpu", *(f"gpu:{i}" for i in range(count["gpu"])), *["mps"] * count["mps"]]
            raise DeviceError(f"{self!r} has no device {name!r} here (it has {', '.join(have)})")
        return Device(self, f"gpu:{number or 0}" if platform == "gpu" else platform)

    @staticmethod
    def native_device(device: Device) -> torch.device:
        """PyTorch's own object for a device."""
        return _torch_device(device.name)

    def memory_used(self, device: Device) -> int | None:
        native = self.native_device(device)
        if native.type == "cuda":
            return torch.cuda.memory_allocated(native)
        return torch.mps.current_allocated_memory() if native.type == "mps" else None

    def peak_memory_used(self, device: Device) -> int | None:
        native = self.native_device(device)
        return torch.cuda.max_memory_allocated(native) if native.type == "cuda" else None

    def owns(self, x: object) -> bool:
        return isinstance(x, torch.Tensor)

    def accept(self, x: Array) -> Array:
        if x.requires_grad and torch.is_grad_enabled():
            raise AutodiffError(
                "a PyTorch tensor that requires a gradient, which Phlox's operations do not compute; pass x.detach(), "
                "or take gradients with phlox.grad"
            )
        return super().accept(plain(x))

    def device_of(self, x: Array) -> Device:
        device = x.device
        return Device(self, f"gpu:{device.index}" if device.type == "cuda" else device.type)

    def to_device(self, x: Array, device: Device) -> Array:
        return x.to(self.native_device(device))

    def from_host(self, array: np.ndarray[Any, Any], kind: type[Kind], device: Device) -> Array:
        fitted = self.fit(array, kind)
        if not fitted.flags.c_contiguous:
            fitted = fitted.copy()
        with as_constants():
            return self._from_host(fitted, array, kind, device)

    def casts_on_all_cores(self) -> bool:
        return casts_on_all_cores()

    def recast(self, array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
        with as_constants():
            return recast(array, dtype)

    def _from_host(self, fitted: Any, array: Any, kind: type[Kind], device: Device) -> Array:
        if fitted is array or not fitted.flags.writeable:
            shared = taken_over(fitted)
            fitted = fitted.copy() if shared is None else shared
        if self.float_element == "bf16" and kind is Float:  # torch does not read it from NumPy
            host = torch.from_numpy(fitted.view(np.int16)).view(torch.bfloat16)
        else:
            host = torch.from_numpy(fitted)
        return host if device.name == "cpu" else host.to(self.native_device(device))

    def cast(self, x: Array, target: Backend, device: Device) -> Array:
        engine = engine_of(target)
        if not isinstance(engine, Arrays):
            return super().cast(x, target, device)
        kind = self.kind_of(x)
        if kind is Int:
            self.check_fits(x, engine)
        return x.to(self.native_device(device), engine.element(kind))

    def abstract_array(self, shape: Shape, kind: type[Kind], device: Device) -> Array:
        # One element in memory, at every position.
        return torch.zeros((), dtype=self.element(kind), device=self.native_device(device)).expand(shape)

    def element(self, kind: type[Kind]) -> torch.dtype:
        """PyTorch's type of the elements of a kind."""
        return {"float": self.torch_float, "int": self.torch_int, "bool": torch.bool}[kind.name]

    def from_dlpack(self, x: Any, device: Device) -> Array:
        if isinstance(x, torch.Tensor):
            return x.detach().to(self.native_device(device))
        if min(getattr(x, "strides", ()), default=0) < 0:  # torch would end the process
            raise BufferError("PyTorch takes no negative strides")
        return torch.from_dlpack(x).to(self.native_device(device))

    def to_dlpack(self, x: Array, **options: Any) -> Any:
        # Not all libraries accept strides of zero.
        if 0 in x.stride() and options.get("copy") is None:
            x = x.contiguous()
        return x.__dlpack__(**options)

    def duplicate(self, x: Array) -> Array:
        return x.clone()

    def to_host(self, x: Array) -> np.ndarray[Any, Any]:
        if is_tracer(x):
            raise NeedsValue("it is a tracer, which has no value yet")
        with as_constants():
            x = x.detach().cpu()
            if x.dtype == torch.bfloat16:
                return x.contiguous().view(torch.int16).numpy().view(HOST_DTYPES["bf16"])
            return x.numpy()

    def await_array(self, x: Array) -> None:
        # Not only for this tensor: PyTorch waits for all that it has started on the device.
        if x.device.type in ("cuda", "mps") and not is_tracer(x):
            torch.accelerator.synchronize(x.device)

    def kind_of(self, x: Array) -> type[Kind]:
        if x.dtype == torch.bool:
            return Bool
        if x.dtype.is_complex:
            raise KindError(f"no tensor kind holds elements of type {x.dtype}; give floats, ints or booleans")
        return Float if x.dtype.is_floating_point else Int

    def native_vjp(
        self, fn: Callable[..., Any], arrays: Sequence[Array], gs: Sequence[Any], needed: Needed
    ) -> Gradients:
        again = any(x.requires_grad for x in (*arrays, *gs) if x is not None)
        return self._pullback(fn, arrays, needed, again)[1](gs)

    def native_pullback(
        self, fn: Callable[..., Any], arrays: Sequence[Array], needed: Needed
    ) -> tuple[tuple[Array, ...], Callable[[Sequence[Any]], Gradients]]:
        return self._pullback(fn, arrays, needed, any(x.requires_grad for x in arrays))

    def _pullback(
        self, fn: Callable[..., Any], arrays: Sequence[Array], needed: Needed, again: bool
    ) -> tuple[tuple[Array, ...], Callable[[Sequence[Any]], Gradients]]:
        """With `again`, arrays have a history on torch's own tape: a gradient is being differentiated again."""
        with torch.enable_grad():
            inputs = [
                x if not is_needed else x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
                for x, is_needed in zip(arrays, needed, strict=True)
            ]
            results = fn(*inputs)
        leaves = [x for x, is_needed in zip(inputs, needed, strict=True) if is_needed]

        def pull(gs: Sequence[Any]) -> Gradients:
            followed = [(y, g) for y, g in zip(results, gs, strict=True) if g is not None and y.requires_grad]
            gradients: Sequence[Array] = [torch.zeros_like(x) for x in leaves]
            if followed:
                ys, cotangents = zip(*followed, strict=True)
                options = {"allow_unused": True, "materialize_grads": True, "create_graph": again, "retain_graph": True}
                gradients = torch.autograd.grad(ys, leaves, cotangents, **options)
            remaining = iter(gradients)
            return tuple([next(remaining) if is_needed else None for is_needed in needed])

        return tuple([y if again else y.detach() for y in results]), pull
