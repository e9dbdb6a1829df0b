"""Parameters whose memory was donated: the error when they are used."""

from __future__ import annotations

from typing import Any, NamedTuple

from phlox.backend import Device, Kind
from phlox.errors import DonatedError
from phlox.tensor import Tensor
from phlox.tensor.dispatch import Ops


class Donated(NamedTuple):
    """A placeholder for a value that was donated."""

    ops: Ops
    shape: tuple[int, ...]
    device: Device
    path: str
    recipient: str
    """The function or step that it was donated to."""
    failed: bool = False
    """Whether the recipient failed, so that there is no new value."""

    @property
    def kind(self) -> type[Kind]:
        """The kind of the donated value."""
        return self.ops.kind

    def to_tensor(self, path: str = "") -> Tensor[Any, Any, Any]:
        """Raise `DonatedError`, because there is no value."""
        remedy = "load a saved state of the model" if self.failed else "use the result of that call"
        raise DonatedError(f"`{self.path}` was donated to {self.recipient} and is used up; {remedy}")
