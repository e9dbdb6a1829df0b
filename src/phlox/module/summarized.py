"""`summary`, the method of modules whose work is done on a floor above."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phlox.backend.registry import load
from phlox.module.fields import Fields

if TYPE_CHECKING:
    from phlox.transform.summary import Summary


class Summarized(Fields):
    """What can be looked at as a table."""

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
        """A table of this module's layers: what they return, their parameters, FLOPs and memory. `print` it.

        Nothing is computed, on any backend: deferred parameters stay deferred, no random stream moves, and running
        statistics stay. Rows hold what is in a module, over all its calls.

        FLOPs are counted from the operations, of one's own layers too: in a product an addition and a multiplication
        are two, and any other operation is one for each element of its result, or of what it reduces.

        Args:
            inputs, named: of the call: `phlox.TensorSpec`s, tensors and NumPy arrays, in lists, tuples and dicts, and
                whatever else it takes. Specs and arrays are on the module's device. Without any, the table is of
                parameters alone.
            training: whether the FLOPs are those of a forward pass in training and of its backward pass, which is
                traced as well.
            optimizer: an optimizer or its config, whose state is part of the memory; not known of L-BFGS and Optax.
            depth: how deep the table goes; 1 has the modules in this one, but not those in them.
            collapse: whether equal modules in a row (`blocks.0`, `blocks.1`, ...) are one row.
            columns: which of "output", "parameters", "trained", "flops", "memory", and in which order.

        Raises `UnsupportedError` where the module asks for the value of a tensor, and `ModuleError` for a column that
        there is not.

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
