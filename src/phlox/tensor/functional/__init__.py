"""Neural network operations as functions of tensors; the layers of `phlox.nn` call them."""

from __future__ import annotations

import sys

from phlox.lazy import lazily
from phlox.tensor.argument_errors import guard_functions
from phlox.tensor.functional.activation import *
from phlox.tensor.functional.attention import attention as attention
from phlox.tensor.functional.classification import *
from phlox.tensor.functional.contrastive import *
from phlox.tensor.functional.conv import *
from phlox.tensor.functional.ctc import *
from phlox.tensor.functional.dense import *
from phlox.tensor.functional.encoding import *
from phlox.tensor.functional.experts import *
from phlox.tensor.functional.loss import *
from phlox.tensor.functional.norm import *
from phlox.tensor.functional.packed import *
from phlox.tensor.functional.pooling import *
from phlox.tensor.functional.recurrent import *
from phlox.tensor.functional.sampling import *
from phlox.tensor.functional.update import *

__getattr__, __dir__ = lazily(
    __name__,
    {
        "activation": "*", "classification": "*", "contrastive": "*", "conv": "*", "ctc": "*", "dense": "*",
        "encoding": "*", "experts": "*", "loss": "*", "norm": "*", "packed": "*", "pooling": "*", "recurrent": "*",
        "sampling": "*", "update": "*",
    },
    here="attention",
)  # fmt: skip

_package = sys.modules[__name__]
guard_functions(_package, _package.__all__)
