# pyright: standard
"""Shrinks a failing program to a smaller one that still fails."""

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
    """A smaller program that `fails`, too, found in at most this number of `tries`."""
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
        for index in range(0, len(program.results), size):
            if left := program.results[:index] + program.results[index + size :]:
                yield lean(replace(program, results=left))
        if size == 1:
            break
    for name in program.results:  # replace a result by the values that it is computed from
        operands = [word for line, text in program.lines if line == name for word in used(text) if word in values]
        if operands:
            kept = tuple(result for result in program.results if result != name)
            yield lean(replace(program, results=(*kept, *(operand for operand in operands if operand not in kept))))
    for index, (name, text) in enumerate(program.lines):
        remaining = program.lines[:index] + program.lines[index + 1 :]
        if name not in program.results and values[name].dtype.kind != "b":  # replace a line by an argument
            new_name = f"x99{name[1:]}"  # a name that no argument has, not even in merged programs
            lines = tuple((line, re.sub(rf"\b{name}\b", new_name, code)) for line, code in remaining)
            towards = (
                (*program.towards, new_name) if program.towards and values[name].dtype.kind == "f" else program.towards
            )
            arguments, others = ({**call, new_name: values[name]} for call in (program.arguments, program.others))
            yield lean(replace(program, arguments=arguments, others=others, lines=lines, towards=towards))
        for operand in used(text):  # replace a line by a value that it is computed from
            value = values.get(operand, program.arguments.get(operand))
            if value is not None and value.shape == values[name].shape and value.dtype == values[name].dtype:
                if name not in program.results:
                    lines = tuple((line, re.sub(rf"\b{name}\b", operand, code)) for line, code in remaining)
                    yield lean(replace(program, lines=lines))
                break
