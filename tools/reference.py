"""The pages of the API reference: one for each public package, and one for each part of it.

Names come from `__all__`. Each stands under the module that defines it, whose docstring gives the heading.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from itertools import groupby, pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from phlox.backend import Backend

PACKAGES = {
    "phlox": "tensors, functions of tensors, modules and transformations",
    "phlox.nn": "layers, losses and initializers",
    "phlox.nn.reparameterizations": "parameters that are computed from others",
    "phlox.quantization": "weights of few bits",
    "phlox.optim": "optimizers, schedules and clipping",
    "phlox.train": "the training loop and its callbacks",
    "phlox.data": "sources, loaders and augmentation",
    "phlox.metrics": "streaming metrics",
    "phlox.record": "saved states and their files",
    "phlox.models": "whole models and text generation",
    "phlox.text": "tokenizers and chat templates",
    "phlox.serve": "a server of models",
    "phlox.functional": "operations of layers, on tensors",
    "phlox.linalg": "linear algebra",
    "phlox.signal": "Fourier transforms, windows and filters",
    "phlox.random": "random numbers",
    "phlox.transform": "compile, differentiate, map, loop",
    "phlox.distributed": "several devices and processes",
    "phlox.export": "ONNX, StableHLO and PyTorch programs",
    "phlox.interop": "other libraries' files",
    "phlox.interop.gguf": "models of llama.cpp",
    "phlox.interop.huggingface": "models of Hugging Face",
    "phlox.interop.onnx": "ONNX files as modules",
    "phlox.interop.orbax": "Orbax checkpoints",
    "phlox.interop.peft": "adapters in files of PEFT",
    "phlox.interop.pytorch": "files and modules of PyTorch",
    "phlox.debug": "comparison, NaNs, profiles",
    "phlox.module": "modules and parameters",
    "phlox.config": "hyper-parameters",
    "phlox.backend": "engines, devices and kinds",
    "phlox.autodiff": "the decorator that differentiates",
    "phlox.errors": "all exceptions",
    "phlox.testing": "the conformance kit",
}

FIRST = {
    "phlox": ("Tensor", "tensor", "Module", "Param", "Config", "compile", "value_and_grad", "grad"),
    "phlox.quantization": ("quantize", "load_quantized", "fake_quantize", "compare_quantized"),
    "phlox.optim": ("AdamWConfig", "SgdConfig", "Optimizer"),
    "phlox.train": ("Learner",),
    "phlox.data": ("Loader", "split_rows", "load_digits"),
    "phlox.record": ("Record", "load", "save"),
    "phlox.models": ("GptConfig", "Gpt"),
    "phlox.distributed": ("initialize", "Mesh", "Layout"),
    "phlox.export": ("onnx",),
    "phlox.debug": ("compare", "find_nan", "profile"),
    "phlox.module": ("Module", "Param"),
    "phlox.config": ("Config",),
    "phlox.backend": ("NumPy", "Jax", "Torch", "Autodiff"),
    "phlox.autodiff": ("Autodiff",),
    "phlox.testing": ("check_backend", "check_gradients", "assert_close"),
}
"""What readers look for in a package: these names stand first, and the others in the order of `__all__`."""

MOST_NAMES = 45
"""A package of more has a page for each of its parts."""

LEAST_NAMES = 3
"""Parts of fewer stand together in the first table of a package, without headings of their own."""


class Name(NamedTuple):
    """A public name."""

    path: str
    """`phlox.nn.Linear`."""
    value: Any

    @property
    def short(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def directive(self) -> str:
        if isinstance(self.value, type):
            return "autoexception" if issubclass(self.value, BaseException) else "autoclass"
        return "autofunction" if callable(self.value) and inspect.isroutine(self.value) else "autodata"


class Part(NamedTuple):
    """What one module defines of a package's names."""

    key: str
    title: str
    names: list[Name]


def module_of(package: str) -> ModuleType:
    """The package; some are attributes of `phlox`, under a path of their own."""
    try:
        return importlib.import_module(package)
    except ImportError:
        parent, _, name = package.rpartition(".")
        return getattr(importlib.import_module(parent), name)


def names_of(package: str) -> list[Name]:
    """The public names of a package that are no modules, in order: first those of `FIRST`."""
    module, first = module_of(package), FIRST.get(package, ())
    ordered = [*first, *(name for name in module.__all__ if name not in first and name != "__version__")]
    found = [Name(f"{package}.{name}", getattr(module, name)) for name in ordered]
    return [name for name in found if not isinstance(name.value, ModuleType)]


def home_of(name: Name, package: str) -> str:
    """The module that defines a name, or the package in which that module is, for one in a package below `package`."""
    home = getattr(inspect.unwrap(name.value) if callable(name.value) else name.value, "__module__", None)
    if not isinstance(home, str) or not home.startswith("phlox."):
        return package
    if home.startswith(f"{package}."):
        depth = 3 if package == "phlox" else package.count(".") + 2
        return ".".join(home.split(".")[:depth])
    return home


def first_sentence(doc: str | None) -> str:
    """The first sentence of a docstring, on one line."""
    text = " ".join(inspect.cleandoc(doc or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.:])\s(?=[A-Z>])", text)[0].rstrip(".:")


def short_title(sentence: str) -> str:
    """A module's first sentence as a heading: without what follows a colon, or stands in brackets at the end."""
    title = re.split(r"[:;]", re.sub(r"^Floor \d+: ", "", sentence))[0]
    title = re.sub(r" \([^)]*\)$", "", title)
    title = title.split(",")[0] if len(title) > 60 else title
    return title[:1].upper() + title[1:]


def parts_of(package: str) -> list[Part]:
    """The names of a package by the module that defines them."""
    found: dict[str, list[Name]] = {}
    for name in names_of(package):
        found.setdefault(home_of(name, package), []).append(name)
    parts = []
    for home, names in found.items():
        said = first_sentence(sys.modules[home].__doc__ if home in sys.modules else None)
        parts.append(Part(home.removeprefix("phlox.").replace(".", "-"), short_title(said) or home, names))
    return parts


def docstring_of(name: Name, package: str) -> str:
    """The docstring of a name; of data, the string that follows its assignment."""
    if name.directive != "autodata":
        return name.value.__doc__ or ""
    homes = [module for home, module in list(sys.modules.items()) if home == package or home.startswith(f"{package}.")]
    having = [module for module in homes if getattr(module, name.short, None) is name.value]
    return next(filter(None, (_string_after(module, name.short) for module in having)), "")


def _string_after(module: ModuleType, name: str) -> str | None:
    """The string that follows the assignment of a name in a module's source, or an `if` that assigns it."""
    body = ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8")).body
    for statement, following in pairwise(body):
        if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.If):
            continue
        stored = {one.id for one in ast.walk(statement) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
        if name in stored and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            return str(following.value.value)
    return None


def escaped(lines: list[str]) -> list[str]:
    """Lines of a docstring, whose only markup are backticks, with the signs escaped that reStructuredText knows too.

    Examples stay as they are.
    """
    found: list[str] = []
    for example, group in groupby(lines, _Examples()):
        if example:
            found += group
            continue
        parts = "\n".join(group).split("`")
        parts[::2] = [re.sub(r"([*|]|(?<=\w)_(?!\w))", r"\\\1", part) for part in parts[::2]]
        parts[2::2] = [rf"\ {part}" if part[:1].isalnum() else part for part in parts[2::2]]  # `Param`s
        found += "`".join(parts).split("\n")
    return found


class _Examples:
    """Is a line, called in order, one of an example?"""

    def __init__(self) -> None:
        self._inside = False

    def __call__(self, line: str) -> bool:
        self._inside = line.lstrip().startswith(">>>") or (self._inside and bool(line.strip()))
        return self._inside


# --- pages


def heading(text: str, line: str) -> str:
    return f"{text}\n{line * len(text)}\n"


def described(names: list[Name], package: str) -> Iterator[str]:
    """What autodoc shows of the names."""
    for name in names:
        if name.directive == "autodata":
            text = escaped(inspect.cleandoc(docstring_of(name, package)).splitlines())
            yield from (f".. py:data:: {name.path}", "", *(f"   {line}" for line in text), "")
            continue
        yield f".. {name.directive}:: {name.path}"
        if name.directive == "autoclass":
            # An engine's operations are those of the contract, `Backend`.
            yield from () if Backend in name.value.__mro__[1:] else ("   :members:",)
            yield from () if name.value.__bases__ == (object,) else ("   :show-inheritance:",)
        yield ""


def table(names: list[Name], package: str, known: Mapping[int, str]) -> Iterator[str]:
    """Names with their first sentences, each a link to where it is described."""
    yield from (".. list-table::", "   :widths: auto", "   :class: names", "")
    for name in names:
        yield f"   * - :py:obj:`{name.short} <{known[id(name.value)]}>`"
        yield f"     - {escaped([first_sentence(docstring_of(name, package))])[0]}"
    yield ""


def write(folder: Path, packages: Mapping[str, str] = PACKAGES) -> None:
    """Write the pages into a folder, in place of those that are there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    known: dict[int, str] = {}
    """Where each value is described: in the first package that exports it."""
    for package, what in packages.items():
        parts = parts_of(package)
        own = {id(part): [name for name in part.names if id(name.value) not in known] for part in parts}
        known |= {id(name.value): name.path for names in own.values() for name in names}
        many = sum(map(len, own.values())) > MOST_NAMES
        page = [heading(package, "="), f"{what[0].upper()}{what[1:]}.", ""]
        if many:
            (folder / package).mkdir()
            page += [".. toctree::", "   :hidden:", ""]
            page += [*(f"   {package}/{part.key}" for part in parts if own[id(part)]), ""]
        small = [name for part in parts if len(part.names) < LEAST_NAMES for name in part.names]
        large = [part for part in parts if len(part.names) >= LEAST_NAMES]
        page += table(small, package, known) if small else ()
        for part in large:
            if small or len(large) > 1:
                page += [heading(part.title, "-")]
            page += table(part.names, package, known)
        if not many:
            page += [heading("Descriptions", "-")]
        for part in parts:
            text = list(described(own[id(part)], package))
            if not many:
                page += text
            elif text:
                shown = own[id(part)] if len(own[id(part)]) >= LEAST_NAMES else []  # fewer need no overview
                overview = table(shown, package, known) if shown else ()
                page_of_part = "\n".join([heading(part.title, "="), *overview, *text])
                (folder / package / f"{part.key}.rst").write_text(page_of_part, encoding="utf-8")
        (folder / f"{package}.rst").write_text("\n".join(page), encoding="utf-8")
    index = [
        heading("API reference", "="),
        "Every public name, with its signature, types and examples. The tests run all examples.",
        "",
        ".. toctree::", "   :hidden:", "", *(f"   {package}" for package in packages), "",
        ".. list-table::", "   :widths: auto", "",
    ]  # fmt: skip
    for package, what in packages.items():
        index += [f"   * - :doc:`{package}`", f"     - {what}"]
    (folder / "index.rst").write_text("\n".join([*index, ""]), encoding="utf-8")
