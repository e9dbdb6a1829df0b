"""PyTorch: state dicts with its names and layouts, read into Phlox modules and written, and its layers as modules."""

from __future__ import annotations

from phlox.interop.pytorch import recurrent as recurrent  # importing it registers its layers
from phlox.interop.pytorch.layers import register_layer as register_layer
from phlox.interop.pytorch.state_dict import State as State
from phlox.interop.pytorch.state_dict import adapter as adapter
from phlox.interop.pytorch.state_dict import from_state_dict as from_state_dict
from phlox.interop.pytorch.state_dict import load as load
from phlox.interop.pytorch.state_dict import load_state_dict as load_state_dict
from phlox.interop.pytorch.state_dict import save as save
from phlox.interop.pytorch.state_dict import to_state_dict as to_state_dict
from phlox.interop.pytorch.wrapping import wrap as wrap
from phlox.lazy import lazily

__all__ = [
    "State",
    "adapter",
    "from_state_dict",
    "load",
    "load_state_dict",
    "register_layer",
    "save",
    "to_state_dict",
    "wrap",
]

__getattr__, __dir__ = lazily(__name__, {})
