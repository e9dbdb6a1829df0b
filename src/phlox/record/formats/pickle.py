"""Pickles of NumPy arrays, read without running code, with the inert interpreter of PyTorch's files."""

from __future__ import annotations

from typing import final

from phlox.errors import RecordError
from phlox.record.formats.pytorch.globals import find_global
from phlox.record.formats.pytorch.machine import Machine
from phlox.record.formats.pytorch.reader import as_record, budget_for
from phlox.record.formats.reader import Reader
from phlox.record.io.source import Source
from phlox.record.record import Record

_FIRST = tuple(b"\x80" + bytes([protocol]) for protocol in (2, 3, 4, 5))


@final
class PickleReader(Reader):
    """Reads a pickle (protocol 0 to 5) of plain containers of NumPy arrays, numbers and text.

    JAX arrays, and PyTorch tensors pickled without `torch.save`, are read too. Paths are as in `PyTorchReader`. No code
    is run, and objects of classes are `Record.unreadable`.

    >>> import numpy as np, pickle
    >>> record = PickleReader().from_bytes(pickle.dumps({"w": np.ones(3), "b": [np.zeros(1), 2], "n": {1}}))
    >>> record.paths(), record["b.0"].tensor.read(), record["n"]
    (['w', 'b.0', 'b.1', 'n'], array([0.]), [1])
    """

    format = "pickle"
    suffix = ".pkl"
    other_suffixes = (".pickle", ".pdparams")

    def read(self, source: Source) -> Record:
        """See `Reader.read`."""
        budget = budget_for(len(source.data))
        machine = Machine(source.data, _find, None, budget)
        root = machine.load()
        if machine.at != len(source.data):
            raise RecordError(
                f"{len(source.data) - machine.at} bytes follow its pickle; if these are further pickles, save their "
                "contents as one dict"
            )
        return as_record(source, root, budget, self.max_bytes)

    @classmethod
    def recognises(cls, head: bytes) -> bool:
        """See `Reader.recognises`. Protocols 0 and 1 have no mark: such files are known by their names."""
        return head.startswith(_FIRST)


def _find(module: str, name: str) -> object:
    if module.partition(".")[0] == "joblib":
        raise RecordError(
            "it is a dump of joblib, which has arrays between the parts of a pickle; if you trust it, load "
            "it with joblib, and save its arrays with numpy.savez"
        )
    return find_global(module, name)
