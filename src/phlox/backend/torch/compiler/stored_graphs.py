"""Compiled graphs on disk: a later process loads the libraries and the code that Inductor made for an equal graph.

The key is everything that Inductor reads: the operations with their arguments, shapes, layouts and constants, its
settings, the versions of PyTorch and of this package, the processor and the number of threads. What is kept is
Inductor's own program, without what it does not use: so loading it imports nothing of the compiler. Graphs of other
devices than CPUs, and those that need more than a call of that program, are compiled in every process.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false

from __future__ import annotations

import ast
import hashlib
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib import util
from pathlib import Path
from types import BuiltinFunctionType, ModuleType
from typing import Any, cast

import torch
from torch import fx

from phlox.backend.torch import compat
from phlox.backend.torch.compiler.fences import mended
from phlox.host.cache_folder import CacheFolder, processor, root

Run = Callable[..., Any]

FOLDER = CacheFolder("torch", 1 << 31)
_log = logging.getLogger("phlox.compile")
_PROGRAM, _FACTS, _EXTERN, _CALL = "program.py", "facts.json", "extern_kernels", "call"


def is_on() -> bool:
    """Is compiled code kept on disk?"""
    return root() is not None and compat.can_load_compiled()


def key_of_text(text: str) -> str | None:
    """The key of a graph that a text describes completely; None if it is not kept on disk."""
    if not is_on() or torch.is_autocast_enabled("cpu"):
        return None
    state = (
        surroundings(),
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled,
    )
    return hashlib.sha256(f"{state} {text}".encode()).hexdigest()


def compile_graph(
    graph: Any, example: Sequence[torch.Tensor], options: Mapping[str, Any], key: str | None = None
) -> Run:
    """The compiled graph, from disk if an equal one was compiled before; `key` is a key by which it was not found."""
    constants: Sequence[torch.Tensor] = ()
    if key is None:
        text = _text_of(graph, example, options)
        key = None if text is None else key_of_text(text)
        if key is not None:
            constants = [getattr(graph, name) for name in _constants(graph)]
            run = load(key, constants)
            if run is not None:
                return run
    with mended():
        if key is None or not compat.can_keep_compiled():
            return compat.compile_graph(graph, example, options)
        graph = _with_constants_as_arguments(graph) if constants else graph
        compiled = compat.compile_with_output(graph, [*constants, *example], options)
    files = _files(compiled, len(constants) + len(example))
    if files is not None:
        FOLDER.store(key, files)
    return partial(compiled.run, *constants) if constants else compiled.run


# --- the key


def _text_of(graph: Any, example: Sequence[torch.Tensor], options: Mapping[str, Any]) -> str | None:
    """A text that is equal only for graphs that compute the same; None for a graph that is not kept on disk."""
    lines: list[str | None] = [f"{sorted(options.items())}", *[_of_tensor(x) for x in example]]
    numbers = {node: number for number, node in enumerate(graph.graph.nodes)}
    for node in numbers:
        target = ""
        if node.op == "call_function":
            if compat.schema_of(node.target) is None and not isinstance(node.target, BuiltinFunctionType):
                return None
            target = str(node.target)
        elif node.op == "get_attr":
            target = _of_constant(getattr(graph, node.target, None))
        elif node.op not in ("placeholder", "output"):
            return None
        lines += [node.op, target, _of((node.args, node.kwargs), numbers), _of(node.meta.get("val"), numbers)]
    return None if None in lines else "\n".join(cast("list[str]", lines))


def _constants(graph: Any) -> list[str]:
    """The names of the constants of a graph, in the order of their first use."""
    return list(dict.fromkeys(node.target for node in graph.graph.nodes if node.op == "get_attr"))


def _of_constant(x: Any) -> str | None:
    shape = _of_tensor(x) if type(x) is torch.Tensor and x.layout is torch.strided else None
    if shape is None:
        return None
    content = x.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{shape} {hashlib.sha256(content.tobytes()).hexdigest()}"


def _of_tensor(x: torch.Tensor) -> str | None:
    """The shape of a tensor, its layout and its dtype; open sizes with the examples that they come from."""
    if x.device.type != "cpu":
        return None
    sizes = [(str(size), compat.hint_of(size)) for size in (*x.shape, *x.stride(), x.storage_offset())]
    return f"{sizes} {x.dtype} {x.requires_grad}"


def _of(value: Any, numbers: Mapping[Any, int]) -> str | None:
    """A text that is equal only for equal arguments; None if there may be none."""
    if isinstance(value, fx.Node):
        return f"%{numbers[value]}"
    if isinstance(value, torch.Tensor):
        return _of_tensor(value)
    if isinstance(value, (list, tuple)):
        parts = [_of(part, numbers) for part in value]
        return None if None in parts else f"{type(value).__name__}{parts}"
    if isinstance(value, dict):
        return _of(list(value.items()), numbers)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return f"{value} {compat.hint_of(value)}"
    if isinstance(value, slice):
        return _of([value.start, value.stop, value.step], numbers)
    plain = value is None or value is Ellipsis or type(value) in (bool, int, float, complex, str)
    kinds = (torch.dtype, torch.device, torch.layout, torch.memory_format)
    return f"{type(value).__name__} {value!r}" if plain or isinstance(value, kinds) else None


def surroundings() -> str:
    """What all compiled code depends on: versions, sources, the processor, and Inductor's settings."""
    return f"{_process()} {sorted(compat.inductor_config().items())}"


@cache
def _process() -> str:
    """The part that stays the same in a process."""
    sources = hashlib.sha256()
    package = Path(__file__).parent
    for file in sorted([package.parent / "compat.py", *package.rglob("*.py"), *package.rglob("*.cpp")]):
        sources.update(file.read_bytes())
    versions = torch.__version__, torch.version.git_version, torch.__file__, sys.version
    return repr((versions, sources.hexdigest(), processor(), torch.backends.cpu.get_cpu_capability()))


def _with_constants_as_arguments(graph: Any) -> Any:
    """A graph whose first arguments are its constants."""
    inner = fx.Graph()
    arguments = {name: inner.placeholder(f"constant_{number}") for number, name in enumerate(_constants(graph))}
    values = {node: arguments[node.target] for node in graph.graph.nodes if node.op == "get_attr"}
    for node, argument in values.items():
        argument.meta.update(node.meta)
    output = inner.graph_copy(graph.graph, values)
    inner.output(output)
    return fx.GraphModule({}, inner)


# --- what is kept


def _files(compiled: compat.WithOutput, count: int) -> dict[str, bytes] | None:
    """The files of an entry; None if the program needs more than a call of Inductor's code, or if it is unknown."""
    meta, outputs = compiled.metadata, compiled.outputs
    needs_more = (
        "num_outputs_aliased",
        "num_intermediate_bases",
        "num_mutated_inp_runtime_indices",
        "is_rng_op_functionalized",
        "tokens",
    )
    if len(outputs) != 1 or len(compiled.inputs) != count or any(getattr(meta, name, True) for name in needs_more):
        return None
    output = outputs[0]
    call = getattr(output, "current_callable", None)
    namespace: dict[str, Any] = getattr(call, "__globals__", {})
    if call is None or namespace.get(_CALL) != call or getattr(output, "inputs_to_check", True):
        return None
    program = _program(getattr(output, "source_code", ""), namespace, getattr(output, "constants", None) or {})
    if program is None:
        return None
    source, libraries = program
    facts = {
        "libraries": {name: f"{number}.so" for number, name in enumerate(libraries)},
        "written": list(meta.mutated_graph_handled_indices_seen_by_autograd),
    }
    files = {_PROGRAM: source.encode(), _FACTS: json.dumps(facts).encode()}
    return files | {f"{number}.so": Path(path).read_bytes() for number, path in enumerate(libraries.values())}


def _program(
    source: str, namespace: Mapping[str, Any], constants: Mapping[str, Any]
) -> tuple[str, dict[str, str]] | None:
    """What `call` needs of Inductor's program, and the files of its kernels by name; None if it needs more."""
    tree = ast.parse(source)
    definitions: dict[str, ast.stmt] = {}
    for statement in tree.body:
        definitions.update(dict.fromkeys(_defined(statement), statement))
    libraries: dict[str, str] = {}
    kept: set[ast.stmt] = set()
    open_names, seen = [_CALL], {_CALL}
    while open_names:
        name = open_names.pop()
        if name in constants:
            return None
        value = namespace.get(name)
        file = getattr(getattr(value, "__self__", None), "__file__", None)
        if isinstance(value, BuiltinFunctionType) and isinstance(file, str) and file.endswith(".so"):
            libraries[name] = file
            continue
        statement = definitions.get(name)
        if statement is None or statement in kept or (name == _EXTERN and _is_of_torch(tree, value)):
            continue
        kept.add(statement)
        parts = [part.id for part in ast.walk(statement) if isinstance(part, ast.Name)]
        if "async_compile" in parts:
            return None  # a kernel that is no library
        open_names += [part for part in parts if part not in seen]
        seen.update(parts)
    lines = [ast.unparse(statement) for statement in tree.body if statement in kept]
    return "\n".join(lines), libraries


def _defined(statement: ast.stmt) -> list[str]:
    """The names that a statement of a module defines."""
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [name.asname or name.name.partition(".")[0] for name in statement.names]
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return [statement.name]
    if isinstance(statement, ast.Assign):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    return []


def _is_of_torch(tree: ast.Module, kernels: Any) -> bool:
    """Are all of Inductor's external kernels that a program calls functions of `torch`?"""
    names = {
        part.attr
        for part in ast.walk(tree)
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == _EXTERN
    }
    return all(getattr(torch, name, None) is getattr(kernels, name) for name in names)


# --- loading


def load(key: str, constants: Sequence[torch.Tensor] = ()) -> Run | None:
    """The compiled graph with this key, for a graph with these constants; None if there is none."""
    folder = FOLDER.load(key)
    if folder is None:
        return None
    try:
        facts = json.loads((folder / _FACTS).read_bytes())
        namespace: dict[str, Any] = {"__name__": f"phlox_{key}", _EXTERN: torch}
        for name, file in facts["libraries"].items():
            namespace[name] = _library(f"phlox_{key}.{file}.kernel", folder / file).kernel
        program = folder / _PROGRAM
        exec(compile(program.read_bytes(), program, "exec"), namespace)
        call, written = namespace[_CALL], facts["written"]
    except Exception as error:  # as of another PyTorch
        FOLDER.discard(key, f"cannot be loaded ({error})")
        return None

    def run(*args: Any) -> Any:
        flat = [*constants, *args]
        if written:
            torch.autograd.graph.increment_version([flat[index] for index in written])
        return call(flat)

    return run


def _library(name: str, path: Path) -> ModuleType:
    """A library of kernels, as Inductor loads it."""
    os.environ["_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"] = str(compat.data_pointer())
    spec = util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
