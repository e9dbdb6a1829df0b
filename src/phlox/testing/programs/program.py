# pyright: standard
"""A program in lines, and a module that keeps values from call to call."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import phlox as px
from phlox import Param, Tensor
from phlox.module import Module

_NAME = re.compile(r"\b[vxm]\d+\b")


class Memory(Module):
    """Values that a program keeps from call to call: a trained weight, and running statistics."""

    weight: Param
    mean: Param
    last: Param

    def __init__(self, weight: Tensor) -> None:
        self.weight = Param(weight)
        self.mean = Param(px.zeros((), device=weight.device), trained=False)
        self.last = Param(weight * 0.5, trained=False)

    def scaled(self, x: Tensor) -> Tensor:
        """x times the weight."""
        return x * self.weight.val()

    def centred(self, x: Tensor) -> Tensor:
        """x without its running mean, which the call updates."""
        self.mean.set(self.mean.val() * 0.9 + x.detach().mean() * 0.1)
        return x - self.mean.val()

    def moved(self, x: Tensor) -> Tensor:
        """x combined with a running trace of earlier arguments, all of the shape of the weight."""
        y = x * self.last.val()
        self.last.set(self.last.val() * 0.75 + x.detach() * 0.25)
        return y + self.last.val() * self.weight.val()


@dataclass(frozen=True)
class Program:
    """A program in lines, such as `v3 = x0.sin()`, with arguments, and gradients with respect to some of them.

    An argument whose name begins with m is a `Memory` with this weight.
    """

    arguments: dict[str, np.ndarray[Any, Any]] = field(compare=False)
    others: dict[str, np.ndarray[Any, Any]] = field(compare=False)
    """The arguments of another call."""
    lines: tuple[tuple[str, str], ...]
    results: tuple[str, ...]
    towards: tuple[str, ...] = ()
    """The arguments with respect to which the weighted sum of all float results is differentiated."""

    def source(self) -> str:
        """The function, as text."""
        body = "".join(f"    {name} = {text}\n" for name, text in self.lines)
        return f"def program({', '.join(self.arguments)}):\n{body}    return [{', '.join(self.results)}]\n"

    def __str__(self) -> str:
        texts = {name: f"px.tensor({np.round(x, 2).tolist()})" for name, x in self.arguments.items()}
        texts = {name: text if name[0] == "x" else f"Memory({text})" for name, text in texts.items()}
        towards = (
            f"# the gradients of the results are taken towards {', '.join(self.towards)}\n" if self.towards else ""
        )
        return f"{self.source()}{towards}" + "".join(f"{name} = {text}\n" for name, text in texts.items())


def used(text: str) -> list[str]:
    return _NAME.findall(text)


def lean(program: Program) -> Program:
    """The program without lines and arguments that no result needs."""
    needed, kept = set(program.results), []
    for name, text in reversed(program.lines):
        if name in needed:
            kept.append((name, text))
            needed.update(used(text))
    arguments, others = (
        {name: x for name, x in values.items() if name in needed} for values in (program.arguments, program.others)
    )
    towards = tuple(name for name in program.towards if name in arguments)
    return replace(program, arguments=arguments, others=others, lines=tuple(reversed(kept)), towards=towards)


def merged(programs: list[Program]) -> Program:
    """One program with the lines and results of all of these."""
    arguments: dict[str, Any] = {}
    others: dict[str, Any] = {}
    lines: list[tuple[str, str]] = []
    results, towards = [], []
    for index, program in enumerate(programs):

        def other(text: str, index: int = index) -> str:
            return _NAME.sub(lambda match: f"{match[0][0]}{index}0{match[0][1:]}", text)

        arguments |= {other(name): x for name, x in program.arguments.items()}
        others |= {other(name): x for name, x in program.others.items()}
        lines += [(other(name), other(text)) for name, text in program.lines]
        results += map(other, program.results)
        towards += map(other, program.towards)
    return Program(arguments, others, tuple(lines), tuple(results), tuple(towards))
