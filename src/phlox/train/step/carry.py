"""`Carried`: a state that is passed from batch to batch, such as the hidden state of an RNN."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from phlox.backend import Device
from phlox.errors import RunError
from phlox.module import Module, Param
from phlox.module.param import set_together
from phlox.tensor import Tensor
from phlox.transform.tree import leaves_of, map_leaves

AnyTensor = Tensor[Any, Any, Any]


class _Placeholder(NamedTuple):
    """A placeholder for a tensor in the structure of a carry."""

    number: int


class Carried(Module):
    """The carry from batch to batch, as parameters that are not trained, and its structure."""

    def __init__(self, start: Any, device: Device) -> None:
        self.parts: list[Param] = []
        self.form = map_leaves(lambda x: self._added(x, device), start, Tensor)

    def _added(self, x: AnyTensor, device: Device) -> _Placeholder:
        self.parts.append(Param(x.detach().to_device(device), trained=False))
        return _Placeholder(len(self.parts) - 1)

    def value(self) -> Any:
        """The carry with its tensors."""
        return _filled(self.form, [param.val() for param in self.parts])

    def set(self, value: Any) -> None:
        """Set other tensors of the same shapes, without gradients."""
        tensors: list[AnyTensor] = [x for _, x in leaves_of(value, Tensor)]
        shapes = [x.shape for x in tensors]
        if shapes != [param.shape for param in self.parts]:
            raise RunError(
                f"the step returns a carry of shapes {shapes}, and got a carry of shapes "
                f"{[param.shape for param in self.parts]}; a carry must keep its structure and shapes, so make all "
                "batches of one size (drop_last=True)"
            )
        set_together(
            [(param, x.detach().to_device(param.device)) for param, x in zip(self.parts, tensors, strict=True)]
        )


def _filled(form: Any, tensors: list[AnyTensor]) -> Any:
    if isinstance(form, _Placeholder):
        return tensors[form.number]
    if isinstance(form, dict):
        return {name: _filled(part, tensors) for name, part in cast("dict[str, Any]", form).items()}
    if isinstance(form, (list, tuple)):
        whole: Any = cast("Any", form)
        parts = [_filled(part, tensors) for part in whole]
        return type(whole)(*parts) if hasattr(whole, "_fields") else type(whole)(parts)
    return form
