# pyright: standard
"""The smallest program that still fails."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from phlox.backend import NumPy
from phlox.testing.programs.program import Program, lean, used
from phlox.testing.programs.running import run


def shrunk(program: Program, fails: Callable[[Program], bool], tries: int = 150) -> Program:
    """A smaller program that `fails`, too, after at most so many tries."""
    values = _values(program)
    seen: set[Program] = set()
    while True:
        for smaller in _smaller(program, values):
            if smaller in seen:
                continue
            if len(seen) == tries:
                return program
            seen.add(smaller)
            try:
                failed = fails(smaller)
            except Exception:
                continue
            if failed:
                program = smaller
                break
        else:
            return program


def _values(program: Program) -> dict[str, np.ndarray[Any, Any]]:
    every = replace(program, results=tuple(name for name, _ in program.lines), towards=())
    return run(every, NumPy(float="f64"))


def _smaller(program: Program, values: dict[str, Any]) -> Iterator[Program]:
    for towards in ((), *((name,) for name in program.towards if len(program.towards) > 1)):
        if program.towards:
            yield replace(program, towards=towards)
    size = len(program.results)
    while (size := (size + 1) // 2) and len(program.results) > 1:  # without some results
        for at in range(0, len(program.results), size):
            if left := program.results[:at] + program.results[at + size :]:
                yield lean(replace(program, results=left))
        if size == 1:
            break
    for name in program.results:  # what one is computed from in its place
        operands = [one for line, text in program.lines if line == name for one in used(text) if one in values]
        if operands:
            kept = tuple(one for one in program.results if one != name)
            yield lean(replace(program, results=(*kept, *(one for one in operands if one not in kept))))
    for at, (name, text) in enumerate(program.lines):
        rest = program.lines[:at] + program.lines[at + 1 :]
        if name not in program.results and values[name].dtype.kind != "b":  # an argument in its place
            given = f"x99{name[1:]}"  # a name that no argument has, of several programs either
            lines = tuple((one, re.sub(rf"\b{name}\b", given, other)) for one, other in rest)
            towards = (
                (*program.towards, given) if program.towards and values[name].dtype.kind == "f" else program.towards
            )
            arguments, others = ({**held, given: values[name]} for held in (program.arguments, program.others))
            yield lean(replace(program, arguments=arguments, others=others, lines=lines, towards=towards))
        for operand in used(text):  # what it is computed from in its place
            known = values.get(operand, program.arguments.get(operand))
            if known is not None and known.shape == values[name].shape and known.dtype == values[name].dtype:
                if name not in program.results:
                    lines = tuple((one, re.sub(rf"\b{name}\b", operand, other)) for one, other in rest)
                    yield lean(replace(program, lines=lines))
                break
