"""XLA's text of a compiled program: its collectives, and the costs of the iterations of its loops."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from phlox.backend.analysis import Traffic, sent_by_ring

COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast",
    "ragged-all-to-all",
)  # fmt: skip
_BITS = re.compile(r"\w*?(\d+)")
_ARRAY = re.compile(r"(\w+)\[([\d,<=]*)\]")
_HEAD = re.compile(r"\s*(ENTRY )?(%?[\w.\-]+)(?: \(.*)? \{\s*$")
_LINE = re.compile(r"\s*(ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r" ?([\w\-]+)\(")
_NO_TRAFFIC = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional"})
_ELEMENTWISE = re.compile(
    "add|subtract|multiply|divide|remainder|maximum|minimum|negate|abs|compare|select|and|or|not|xor|power|sign|floor|"
    "ceil|clamp|round-nearest-(even|afz)|shift-(left|right-logical|right-arithmetic)"
)


class Instruction(NamedTuple):
    """One line of a computation."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    is_root: bool
    """Is it the result of the computation?"""


class Cost(NamedTuple):
    """Operations, and bytes read and written."""

    flops: int
    bytes: int


class Program:
    """A compiled module as `as_text` prints it."""

    def __init__(self, text: str) -> None:
        head = text.partition("\n")[0]
        self.devices = _int_attribute(head, "num_partitions") * _int_attribute(head, "replica_count")
        self.entry = ""
        self.computations: dict[str, list[Instruction]] = {}
        lines: list[Instruction] | None = None
        for line in text.splitlines():
            if lines is None:
                if (head_match := _HEAD.match(line)) is not None:
                    name = head_match[2].lstrip("%")
                    lines = self.computations[name] = []
                    if head_match[1]:
                        self.entry = name
            elif line.strip() == "}":
                lines = None
            elif (instruction := _instruction(line)) is not None:
                lines.append(instruction)
        self._traffic: dict[str, dict[str, Traffic]] = {}
        self._costs: dict[tuple[str, bool], Cost] = {}

    @cached_property
    def collectives(self) -> dict[str, Traffic]:
        """The traffic of one run, by kind of collective."""
        return self._traffic_of(self.entry) if self.entry else {}

    @cached_property
    def unknown_loops(self) -> int:
        """The number of loops whose number of iterations is unknown."""
        loops = (line for lines in self.computations.values() for line in lines if line.opcode == "while")
        return sum(_trips(loop) is None for loop in loops)

    @cached_property
    def in_later_iterations(self) -> Cost:
        """The costs of loops after their first iteration; XLA's own analysis counts only the first."""
        return self._later_iterations(self.entry) if self.entry else Cost(0, 0)

    # --- collectives

    def _traffic_of(self, computation: str) -> dict[str, Traffic]:
        cached = self._traffic.get(computation)
        if cached is not None:
            return cached
        total = self._traffic[computation] = {}
        for line in self.computations.get(computation, ()):
            for kind, traffic in self._traffic_in(line).items():
                total[kind] = total.get(kind, Traffic(0, 0, 0)) + traffic
        return total

    def _traffic_in(self, line: Instruction) -> dict[str, Traffic]:
        kind = line.opcode.removesuffix("-start")
        if kind in COLLECTIVES:
            shape = line.shape
            if kind != line.opcode and kind != "all-reduce" and shape.startswith("("):
                shape = _shapes_in_tuple(shape)[1]  # the result; the operand and the engine's buffers are other parts
            payload = bytes_of(shape)
            return {kind: Traffic(1, payload, self._bytes_sent(kind, payload, line.attributes))}
        if line.opcode == "conditional":  # the branch that sends most counts
            branches: list[dict[str, Traffic]] = [self._traffic_of(name) for name in called(line)]
            return max(branches or [{}], key=lambda branch: sum(traffic.sent for traffic in branch.values()))
        times = (_trips(line) or 1) if line.opcode == "while" else 1
        total: dict[str, Traffic] = {}
        if not line.opcode.endswith(("-done", "-update")):
            for name in called(line):
                for kind, traffic in self._traffic_of(name).items():
                    total[kind] = total.get(kind, Traffic(0, 0, 0)) + traffic * times
        return total

    def _bytes_sent(self, kind: str, payload: int, attributes: str) -> int:
        if kind == "collective-permute":
            pairs = re.search(r"source_target_pairs=\{(.*?)\}\}", attributes)
            moved = re.findall(r"\{(\d+),(\d+)", pairs[1]) if pairs else [("0", "1")]
            return payload if any(source != target for source, target in moved) else 0
        return sent_by_ring(kind, payload, group_size(attributes, self.devices))

    # --- costs

    def _later_iterations(self, computation: str) -> Cost:
        """The costs of the loops in a computation after their first iteration."""
        flops = moved = 0
        for line in self.computations.get(computation, ()):
            inner = [self._later_iterations(name) for name in called(line)]
            flops, moved = flops + sum(cost.flops for cost in inner), moved + sum(cost.bytes for cost in inner)
            if line.opcode == "while":
                later_trips = (_trips(line) or 1) - 1
                for name in called(line):
                    once, later = self._one_iteration(name), self._later_iterations(name)
                    flops += later_trips * (once.flops + later.flops)
                    moved += later_trips * (once.bytes + later.bytes)
        return Cost(flops, moved)

    def _one_iteration(self, computation: str, fused: bool = False) -> Cost:
        """The costs of a computation, with one iteration of each loop; inside a fusion nothing goes through memory."""
        cached = self._costs.get((computation, fused))
        if cached is not None:
            return cached
        lines = self.computations.get(computation, ())
        shapes = {line.name: line.shape for line in lines}
        flops = moved = 0
        for line in lines:
            flops += _flops(line, shapes)
            if line.opcode not in ("reduce", "all-reduce", "reduce-scatter", "sort", "scatter", "reduce-window"):
                inner = [self._one_iteration(name, fused or line.opcode == "fusion") for name in called(line)]
                flops, moved = flops + sum(cost.flops for cost in inner), moved + sum(cost.bytes for cost in inner)
            if not fused and line.opcode not in _NO_TRAFFIC:
                moved += _bytes_moved(line, shapes)
        return self._costs.setdefault((computation, fused), Cost(flops, moved))


def _int_attribute(head: str, name: str) -> int:
    match = re.search(rf"\b{name}=(\d+)", head)
    return int(match[1]) if match else 1


def _instruction(line: str) -> Instruction | None:
    start = _LINE.match(line)
    if start is None:
        return None
    definition = re.sub(r"/\*.*?\*/", "", line[start.end() :])
    end = _closing_bracket(definition, 0) if definition.startswith("(") else definition.find(" ")
    opcode = _OPCODE.match(definition, end)
    if opcode is None:
        return None
    close = _closing_bracket(definition, opcode.end() - 1)
    operands = tuple(re.findall(r"%([\w.\-]+)", definition[opcode.end() : close]))
    return Instruction(start[2], definition[:end], opcode[1], operands, definition[close:], start[1] is not None)


def _closing_bracket(text: str, start: int) -> int:
    """The position at which the bracket that opens at `start` is closed."""
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] in "([{") - (text[position] in ")]}")
        if depth == 0:
            return position + 1
    return len(text)


def _shapes_in_tuple(shape: str) -> list[str]:
    """The parts of the shape of a tuple."""
    parts: list[str] = []
    depth, start = 0, 1
    for position, char in enumerate(shape):
        depth += (char in "([{") - (char in ")]}")
        if (char == "," and depth == 1) or depth == 0:
            parts.append(shape[start:position].strip())
            start = position + 1
            if depth == 0:
                break
    return parts


def _arrays(shape: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    for element, sizes in _ARRAY.findall(shape):
        yield element, tuple(int(size.lstrip("<=")) for size in sizes.split(",") if size)


def bytes_of(shape: str) -> int:
    """The bytes of an array, or of all arrays of a tuple.

    >>> bytes_of("(f32[2,3]{1,0}, pred[], bf16[4]{0})")
    33
    """
    return sum(math.ceil(math.prod(sizes) * _bits(element) / 8) for element, sizes in _arrays(shape))


def _bits(element: str) -> int:
    if element == "pred":
        return 8
    match = _BITS.match(element)  # f8e4m3fn has 8, c64 64; token and opaque have none
    return int(match[1]) if match else 0


def group_size(attributes: str, devices: int) -> int:
    """How many devices take part in one group of a collective.

    >>> [group_size(f"replica_groups={text}", 8) for text in ("{{0,1},{2,3}}", "[2,4]<=[8]", "{}")]
    [2, 4, 8]
    >>> group_size("replica_groups=mesh['a'=2,'b'=4], device_ids=([2,4]T(1,0)) {'b'}, dimensions={0}", 8)
    4
    """
    mesh = re.search(r"replica_groups=@?mesh\w*\[([^\]]*)\][^{]*\{([^}]*)\}", attributes)
    if mesh is not None:
        sizes = dict(re.findall(r"'([^']*)'=(\d+)", mesh[1]))
        axes = re.findall(r"'([^']*)'(?::\(\d+\)(\d+))?", mesh[2])
        return math.prod(int(part or sizes.get(name, devices)) for name, part in axes)
    iota = re.search(r"replica_groups=\[\d+,(\d+)\]<=", attributes)
    if iota is not None:
        return int(iota[1])
    listed = re.search(r"replica_groups=\{\{(.*?)\}\}", attributes)
    if listed is not None:
        return max(len(group.split(",")) for group in listed[1].split("},{"))
    return devices


def called(line: Instruction) -> list[str]:
    """The computations that an instruction calls."""
    names = re.findall(
        r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)", line.attributes
    )
    several = re.search(r"(?:branch_computations|called_computations)=\{(.*?)\}", line.attributes)
    return [*names, *(re.findall(r"%?([\w.\-]+)", several[1]) if several else ())]


def _trips(loop: Instruction) -> int | None:
    """The number of iterations of a loop, if it is known."""
    match = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes)
    return int(match[1]) if match else None


def _elements(shape: str) -> int:
    return sum(math.prod(sizes) for _, sizes in _arrays(shape))


def _sizes(shape: str) -> tuple[int, ...]:
    return next(_arrays(shape), ("", ()))[1]


def _flops(line: Instruction, shapes: dict[str, str]) -> int:
    """The operations of one instruction as XLA counts them, without the computations that it calls."""
    first = _sizes(shapes.get(line.operands[0], "")) if line.operands else ()
    if line.opcode == "dot":
        match = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", line.attributes)
        axes = [int(axis) for axis in match[1].split(",") if axis] if match else []
        return 2 * _elements(line.shape) * math.prod(first[axis] for axis in axes if axis < len(first))
    if line.opcode == "convolution":
        match = re.search(r"dim_labels=\w+_(\w+)->", line.attributes)
        kernel = _sizes(shapes.get(line.operands[1], ""))
        if match is None or len(match[1]) != len(kernel):
            return 0
        inside = [size for label, size in zip(match[1], kernel, strict=True) if label != "o"]
        return 2 * _elements(line.shape) * math.prod(inside)
    if line.opcode == "custom-call" and "gemm" in line.attributes:
        shape = _shapes_in_tuple(line.shape)[0] if line.shape.startswith("(") else line.shape
        return 2 * _elements(shape) * _contracted(line, first)
    if line.opcode == "reduce":
        return max(math.prod(first) - _elements(line.shape), 0)
    return _elements(line.shape) if _ELEMENTWISE.fullmatch(line.opcode) else 0


def _contracted(line: Instruction, first: tuple[int, ...]) -> int:
    """The number of terms in each sum of a matrix product that a library computes."""
    match = re.search(r'"lhs_contracting_dimensions":(\[.*?\])', line.attributes)
    axes = [int(axis) for axis in json.loads(match[1])] if match else []
    return math.prod(first[axis] for axis in axes if axis < len(first))


def _bytes_moved(line: Instruction, shapes: dict[str, str]) -> int:
    """The bytes that one instruction reads and writes; of a sliced array, only the slice counts."""
    if line.opcode in ("dynamic-slice", "slice", "gather"):
        return 2 * bytes_of(line.shape)
    if line.opcode == "dynamic-update-slice" and len(line.operands) > 1:
        return 2 * bytes_of(shapes.get(line.operands[1], ""))
    return bytes_of(line.shape) + sum(bytes_of(shapes.get(name, "")) for name in line.operands)
