"""`Module.summary`, which is implemented on a floor above."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phlox.backend.registry import load
from phlox.module.fields import Fields

if TYPE_CHECKING:
    from phlox.module.summary import Summary


class Summarized(Fields):
    """Base class with the method `summary`."""

    __slots__ = ()

    def summary(
        self,
        *inputs: Any,
        training: bool = False,
        optimizer: Any = None,
        depth: int | None = None,
        collapse: bool = True,
        columns: Sequence[str] | None = None,
        **named: Any,
    ) -> Summary:
        """A table of this module's layers: their outputs, parameters, FLOPs and memory. `print` it.

        Nothing is computed, on any backend: deferred parameters stay deferred, and random streams and running
        statistics do not change. The row of a module includes all modules in it, over all calls.

        FLOPs are counted from the operations, also in your own layers. In a product, an addition and a multiplication
        count as two. Any other operation counts as one for each element of its result, or of its input if it reduces.

        Args:
            inputs, named: the arguments of a call: `phlox.TensorSpec`s, tensors and NumPy arrays, in lists, tuples and
                dicts, and any other values. Specs and arrays are on the module's device. Without arguments, the table
                has only the parameters.
            training: count the FLOPs of a forward pass in training and of its backward pass.
            optimizer: an optimizer or its config, whose state is counted as memory; unknown for L-BFGS and Optax.
            depth: how deep the table goes; with 1, it has the modules in this one, but not the modules in those.
            collapse: show consecutive equal modules (`blocks.0`, `blocks.1`, ...) as one row.
            columns: which of "output", "parameters", "trained", "flops", "memory" to show, and in which order.

        Raises `UnsupportedError` if the module reads the value of a tensor, and `ModuleError` for an unknown column.

        >>> import phlox as px
        >>> from phlox import nn
        >>> model = nn.Sequential([nn.Linear(64, 32), nn.Relu(), nn.Linear(32, 10)])
        >>> print(model.summary(px.TensorSpec((1, 64)), columns=["output", "parameters", "flops"]))
        layer        class       output   parameters  FLOPs
        ---------------------------------------------------
        (the model)  Sequential  (1, 10)       2,410  4.8 k
        layers.0     Linear      (1, 32)       2,080  4.1 k
        layers.1     Relu        (1, 32)                 32
        layers.2     Linear      (1, 10)         330    650
        ---------------------------------------------------
        parameters: 2,410, all trained
        FLOPs: 4.8 k forward, 4.7 k of them in products
        memory: parameters 9.4 KiB + activations 296 B = 9.7 KiB
        """
        summarize = load("phlox.transform.summary:summarize")  # the floor above, by its location
        options = {"optimizer": optimizer, "depth": depth, "collapse": collapse, "columns": columns}
        return summarize(self, inputs, named, training=training, **options)
