"""An inert pickle interpreter: it executes opcodes (Python, `pickletools`) but can build only plain data.

It imports nothing and calls nothing that a file names. The caller provides a function from names to inert values, of
which a REDUCE can use only `Function`s. For everything else a file would construct there is an inert `Object`. Opcodes
that plain data never needs are rejected by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phlox.errors import RecordError
from phlox.record.formats.pytorch.opcodes import OPERATIONS
from phlox.record.formats.pytorch.values import WorkBudget

_MAX_OPCODES = 20_000_000  # some ten seconds; a large checkpoint has a hundred thousand
_MAX_LINE = 1 << 26
_STOP = ord(".")


class Machine:
    """Reads consecutive pickles from `data`, starting at byte `at`.

    Args:
        data: the bytes of the file.
        find: returns the inert value of a global, by module and name.
        persistent: returns the inert value of a persistent id.
        budget: limits the cost of the pickles.

    >>> Machine(memoryview(b"\\x80\\x02]q\\x00(K\\x01K\\x02e."), None, None, WorkBudget(0)).load()
    [1, 2]
    """

    def __init__(
        self,
        data: memoryview,
        find: Callable[[str, str], object] | None,
        persistent: Callable[[object], object] | None,
        budget: WorkBudget,
        at: int = 0,
    ) -> None:
        self.data = data
        self.find = find
        self.persistent = persistent
        self.budget = budget
        self.at = at
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}

    def load(self) -> object:
        """The value of the pickle at `at`, which is then moved to its end. RecordError if there is no valid pickle."""
        self.stack, self.marks, self.memo = [], [], {}
        start = self.at
        data, end = self.data, len(self.data)
        try:
            for _ in range(_MAX_OPCODES):
                if (start := self.at) >= end:
                    raise RecordError("it ends without a STOP; truncated?")
                self.at += 1
                if data[start] == _STOP:
                    return self.stack.pop()
                OPERATIONS[data[start]](self)
        except RecordError as error:
            raise RecordError(f"its pickle, at byte {start}: {error}") from None
        except Exception as error:
            problem = "it takes more than there is" if isinstance(error, (IndexError, KeyError)) else str(error)
            raise RecordError(f"its pickle, at byte {start}, is damaged: {problem}") from error
        raise RecordError(f"its pickle has more than {_MAX_OPCODES} opcodes")

    def next_bytes(self, size: int) -> memoryview:
        """The next `size` bytes."""
        start, self.at = self.at, self.at + size
        if self.at > len(self.data):
            raise RecordError(f"it needs {size} bytes where {len(self.data) - start} are left; truncated?")
        return self.data[start : self.at]

    def natural(self, size: int) -> int:
        """The next `size` bytes as an unsigned integer."""
        return int.from_bytes(self.next_bytes(size), "little")

    def line(self) -> bytes:
        """The rest of the line, without its line break."""
        length = 256
        while True:  # protocol 0 has whole arrays in one line
            line = bytes(self.data[self.at : self.at + length])
            if (size := line.find(b"\n")) >= 0:
                break
            if len(line) < length or length >= _MAX_LINE:
                raise RecordError("a line of it has no end; truncated?")
            length *= 16
        self.at += size + 1
        return line[:size]

    def push(self, value: object) -> None:
        """Push a value on the stack."""
        self.stack.append(value)

    def since_mark(self) -> list[Any]:
        """Pop everything above the last MARK."""
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items
