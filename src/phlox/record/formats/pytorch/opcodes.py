"""The opcodes of pickles, protocols 0 to 5, as far as plain data needs them (Python, `pickletools`).

Each is a function of the machine. A REDUCE can "call" only our own `Function`s; a BUILD sets the parts of a NumPy array
or dtype. Any other call of a function or construction of an object gives an inert `Object`. The extension registry and
out-of-band buffers are rejected by name.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from phlox.errors import RecordError
from phlox.record.formats.pytorch.globals import set_numpy_state
from phlox.record.formats.pytorch.values import (
    ForeignGlobal,
    Function,
    NumpyArray,
    NumpyType,
    Object,
    Pairs,
    Unreadable,
    described,
)

if TYPE_CHECKING:
    from phlox.record.formats.pytorch.machine import Machine

_MAX_INT = 16  # bytes; a record holds 8, the mark of the legacy format has 10

_Operation: TypeAlias = "Callable[[Machine], object]"


def _refuse(name: str) -> _Operation:
    def operation(machine: Machine) -> None:
        raise RecordError(
            f"the opcode {name}, which no state dict needs: it may be an attack. If you trust the file, load it with "
            "torch, and save its state_dict() with safetensors"
        )

    return operation


def _damaged(machine: Machine) -> None:
    raise RecordError(f"{machine.data[machine.at - 1]:#04x} is not an opcode; damaged?")


def _unpacker(format: str) -> _Operation:
    layout = struct.Struct(format)
    return lambda machine: machine.push(layout.unpack(machine.next_bytes(layout.size))[0])


def _bytes(width: int) -> _Operation:
    return lambda machine: machine.push(bytes(machine.next_bytes(machine.natural(width))))


def _text(width: int) -> _Operation:
    return lambda machine: machine.push(str(machine.next_bytes(machine.natural(width)), "utf-8", "surrogatepass"))


def _old_text(width: int) -> _Operation:
    def operation(machine: Machine) -> None:
        machine.push(_text_or_bytes(bytes(machine.next_bytes(machine.natural(width)))))

    return operation


def _text_or_bytes(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:  # Python 2 had one type for both
        return data


def _string(machine: Machine) -> None:
    line = machine.line().strip()
    if len(line) < 2 or line[:1] not in (b"'", b'"') or line[:1] != line[-1:]:
        raise RecordError("a STRING without its quotes")
    machine.push(_text_or_bytes(codecs.escape_decode(line[1:-1])[0]))


def _long(width: int) -> _Operation:
    def operation(machine: Machine) -> None:
        size = machine.natural(width)
        if size > _MAX_INT:
            raise RecordError(f"an int of {size} bytes; a record holds 8")
        machine.push(int.from_bytes(machine.next_bytes(size), "little", signed=True))

    return operation


def _decimal(machine: Machine) -> None:
    line = machine.line().removesuffix(b"L")
    if line in (b"00", b"01"):
        machine.push(line == b"01")
        return
    if len(line) > 40:
        raise RecordError(f"an int of {len(line)} digits; a record holds 64 bits")
    machine.push(int(line))


def _get(width: int) -> _Operation:
    def operation(machine: Machine) -> None:
        machine.push(machine.memo[machine.natural(width)])

    return operation


def _put(width: int) -> _Operation:
    def operation(machine: Machine) -> None:
        machine.memo[machine.natural(width)] = machine.stack[-1]

    return operation


def _get_line(machine: Machine) -> None:
    machine.push(machine.memo[int(machine.line()[:20])])


def _put_line(machine: Machine) -> None:
    machine.memo[int(machine.line()[:20])] = machine.stack[-1]


def _memoize(machine: Machine) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _tuple(size: int) -> _Operation:
    def operation(machine: Machine) -> None:
        items = tuple(machine.stack[-size:])
        if len(items) < size:
            raise IndexError
        machine.stack[-size:] = [items]

    return operation


def _append(machine: Machine) -> None:
    item = machine.stack.pop()
    if not isinstance(machine.stack[-1], _INERT):
        _list(machine.stack[-1]).append(item)


def _appends(machine: Machine) -> None:
    items = machine.since_mark()
    if not isinstance(machine.stack[-1], _INERT):
        _list(machine.stack[-1]).extend(items)


def _set_item(machine: Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _pairs(machine.stack[-1]).append((key, value))


def _set_items(machine: Machine) -> None:
    items = _items(machine)
    _pairs(machine.stack[-1]).extend(items)


def _pop(machine: Machine) -> None:
    if machine.marks and machine.marks[-1] == len(machine.stack):
        machine.marks.pop()
    else:
        machine.stack.pop()


def _protocol(machine: Machine) -> None:
    if (protocol := machine.natural(1)) > 5:
        raise RecordError(f"protocol {protocol}; 5 is the newest that is known")


def _dict(machine: Machine) -> None:
    machine.push(Pairs(_items(machine)))


def _items(machine: Machine) -> list[tuple[object, object]]:
    items = machine.since_mark()
    if len(items) % 2:
        raise RecordError("a dict has a key without a value")
    return list(zip(items[::2], items[1::2], strict=True))


def _global(machine: Machine) -> None:
    module, name = machine.line(), machine.line()
    _find(machine, module.decode(), name.decode())


def _stack_global(machine: Machine) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    if not isinstance(module, str) or not isinstance(name, str):
        raise RecordError("the name of a global is not text")
    _find(machine, module, name)


def _find(machine: Machine, module: str, name: str) -> None:
    if machine.find is None:
        raise RecordError("a global, where there is none in a valid file")
    machine.push(machine.find(module, name))


def _persistent(machine: Machine) -> None:
    if machine.persistent is None:
        raise RecordError("a persistent id, where there is none in a valid file")
    machine.push(machine.persistent(machine.stack.pop()))


def _reduce(machine: Machine) -> None:
    arguments, function = machine.stack.pop(), machine.stack.pop()
    if isinstance(function, _INERT) and isinstance(arguments, tuple):
        machine.push(_made_by(function))
        return
    if not isinstance(function, Function) or not isinstance(arguments, tuple):
        raise RecordError(f"a call of {described(function)}, which no state dict makes; it may be an attack")
    try:
        machine.push(function.make(machine.budget, *arguments))
    except RecordError as error:
        raise RecordError(f"{function.name}: {error}") from None
    except Exception as error:
        raise RecordError(f"{function.name} with other arguments than it takes: damaged, or an attack") from error


def _new(machine: Machine) -> None:
    arguments, cls = machine.stack.pop(), machine.stack.pop()
    if not isinstance(arguments, tuple):
        raise RecordError("an object made of no arguments")
    machine.push(_made_by(cls))


def _new_by_name(machine: Machine) -> None:
    if not isinstance(machine.stack.pop(), Pairs):
        raise RecordError("an object made of no arguments by name")
    _new(machine)


def _object(machine: Machine) -> None:
    cls, *_ = machine.since_mark()
    machine.push(_made_by(cls))


def _instance(machine: Machine) -> None:
    _global(machine)
    cls = machine.stack.pop()
    machine.since_mark()
    machine.push(_made_by(cls))


def _made_by(maker: object) -> Object:
    """The inert result of a "call" of a foreign class or function; RecordError for anything else."""
    if not isinstance(maker, _INERT):
        raise RecordError(f"an object of {described(maker)}, which no state dict makes; it may be an attack")
    return Object(maker.description if isinstance(maker, Unreadable) else maker.name)


def _build(machine: Machine) -> None:
    state, value = machine.stack.pop(), machine.stack[-1]
    match value, state:
        case Pairs() | Unreadable(), _:
            pass  # the attributes of an OrderedDict, such as the `_metadata` of a state dict
        case Object(), _:
            value.state = state
        case NumpyType(), (int(), str(order), *_):
            value.big_endian = order == ">"
        case NumpyArray(), _:
            try:
                set_numpy_state(machine.budget, value, state)
            except TypeError:
                raise RecordError("a NumPy array with another state than it has: damaged, or an attack") from None
        case _:
            raise RecordError(f"it sets the state of {described(value)}, which has none; it may be an attack")


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise RecordError(f"it appends to {described(value)}")
    return value  # pyright: ignore[reportUnknownVariableType]


def _pairs(value: object) -> list[tuple[object, object]]:
    if isinstance(value, Unreadable):
        return []
    if not isinstance(value, (Pairs, Object)):
        raise RecordError(f"it sets an item of {described(value)}")
    return value.items


_INERT = (ForeignGlobal, Object, Unreadable)
"""Inert replacements of foreign globals and of the objects that they would make."""


_BY_CODE: dict[int, _Operation] = {
    ord("("): lambda m: m.marks.append(len(m.stack)),
    ord("0"): _pop,
    ord("1"): lambda m: m.since_mark(),
    ord("2"): lambda m: m.push(m.stack[-1]),
    # numbers and constants
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("J"): _unpacker("<i"),
    ord("K"): _unpacker("<B"),
    ord("M"): _unpacker("<H"),
    ord("G"): _unpacker(">d"),
    0x8A: _long(1),
    0x8B: _long(4),
    ord("I"): _decimal,
    ord("L"): _decimal,
    ord("F"): lambda m: m.push(float(m.line())),
    # text and bytes
    ord("X"): _text(4),
    0x8C: _text(1),
    0x8D: _text(8),
    ord("V"): lambda m: m.push(m.line().decode("raw-unicode-escape")),
    ord("S"): _string,
    ord("U"): _old_text(1),
    ord("T"): _old_text(4),
    ord("C"): _bytes(1),
    ord("B"): _bytes(4),
    0x8E: _bytes(8),
    0x96: _bytes(8),
    # containers
    ord(")"): lambda m: m.push(()),
    0x85: _tuple(1),
    0x86: _tuple(2),
    0x87: _tuple(3),
    ord("t"): lambda m: m.push(tuple(m.since_mark())),
    ord("]"): lambda m: m.push([]),
    ord("l"): lambda m: m.push(m.since_mark()),
    ord("a"): _append,
    ord("e"): _appends,
    0x8F: lambda m: m.push([]),
    0x90: _appends,
    0x91: lambda m: m.push(m.since_mark()),
    ord("}"): lambda m: m.push(Pairs()),
    ord("d"): _dict,
    ord("s"): _set_item,
    ord("u"): _set_items,
    # what was there before
    ord("g"): _get_line,
    ord("h"): _get(1),
    ord("j"): _get(4),
    ord("p"): _put_line,
    ord("q"): _put(1),
    ord("r"): _put(4),
    0x94: _memoize,
    # globals, all inert
    ord("c"): _global,
    0x93: _stack_global,
    ord("Q"): _persistent,
    ord("R"): _reduce,
    ord("b"): _build,
    # objects, all inert
    ord("i"): _instance,
    ord("o"): _object,
    0x81: _new,
    0x92: _new_by_name,
    # frames
    0x80: _protocol,
    0x95: lambda m: m.next_bytes(8),
    # what no state dict needs
    ord("P"): _refuse("PERSID"),
    0x82: _refuse("EXT1"),
    0x83: _refuse("EXT2"),
    0x84: _refuse("EXT4"),
    0x97: _refuse("NEXT_BUFFER"),
    0x98: _refuse("READONLY_BUFFER"),
}

OPERATIONS: tuple[_Operation, ...] = tuple(_BY_CODE.get(code, _damaged) for code in range(256))
"""The operation of each opcode, by its number; unknown and unneeded ones reject the file."""
