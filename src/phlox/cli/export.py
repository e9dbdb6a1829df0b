"""`phlox export`: the model of a run, or another one, as an ONNX file that was run and compared."""

from __future__ import annotations

import argparse
import inspect
import json
import runpy
from pathlib import Path
from typing import Any

from phlox.cli.command import DONE, Command, whole
from phlox.cli.own_run import add_trust, export_inputs, is_own, run_model
from phlox.errors import ExportError, RunError

KINDS = ("float", "int", "bool")


def spec(text: str) -> tuple[str, str, tuple[int | str, ...]]:
    """`x:float:batch,1,8,8` as the type of an argument: name, kind and sizes."""
    name, _, kind_and_sizes = text.partition(":")
    kind, _, sizes = kind_and_sizes.partition(":")
    entries = [entry.strip() for entry in sizes.split(",")] if sizes.strip() else []
    if not name or kind not in KINDS or not all(entry.isdecimal() or entry.isidentifier() for entry in entries):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an input: NAME:KIND:SIZES with a kind of {', '.join(KINDS)}, and a name for each open "
            "axis, such as x:float:batch,1,8,8"
        )
    return name, kind, tuple([int(entry) if entry.isdecimal() else entry for entry in entries])


def axis_sizes(text: str) -> tuple[str, tuple[int, ...]]:
    """`height=32,64` as the type of an argument."""
    name, _, values = text.partition("=")
    sizes = values.split(",")
    if not name.isidentifier() or not all(size.isdecimal() and int(size) for size in sizes):
        raise argparse.ArgumentTypeError(f"{text!r} does not give sizes of an open axis, such as height=32,64")
    return name, tuple([int(size) for size in sizes])


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="the folder of a run, a Hugging Face folder, or NAME in the program FILE.py: FILE.py:NAME",
    )
    parser.add_argument("path", metavar="OUT.onnx", help="the file to write")
    parser.add_argument(
        "--input",
        dest="inputs",
        type=spec,
        action="append",
        metavar="NAME:KIND:SIZES",
        help="an input, in the order of the model's arguments: x:float:batch,1,8,8 (default: the images of a run)",
    )
    parser.add_argument("--record", metavar="FILE", help="the record with the parameters of FILE.py:NAME")
    parser.add_argument(
        "--float", choices=["f32", "f16", "bf16", "f64"], default="f32", help="the float dtype (default: f32)"
    )
    parser.add_argument("--opset", type=whole, metavar="N", help="the version of the operator set, 18 to 25")
    parser.add_argument(
        "--sizes", type=axis_sizes, action="append", default=[], metavar="AXIS=N,N",
        help="sizes to try for an open axis, if the model does not take every size",
    )  # fmt: skip
    parser.add_argument("--no-check", action="store_true", help="do not run the file")
    add_trust(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    from phlox.backend import NumPy
    from phlox.export import onnx

    device = NumPy(float=options.float).device()
    model, default = loaded(options, device)
    inputs, names = inputs_of(model, options.inputs or default, device)
    report = onnx(
        model, inputs, options.path, input_names=names, sizes=dict(options.sizes) or None,
        check_file=not options.no_check, **({} if options.opset is None else {"opset": options.opset}),
    )  # fmt: skip
    if options.json:
        print(json.dumps(report.to_dict(), indent=2))
    else:
        print(report)
    return DONE


def loaded(options: argparse.Namespace, device: Any) -> tuple[Any, list[Any]]:
    """The model, and its default inputs, which count if none are given."""
    text, record = options.model, options.record
    path = Path(text)
    if not path.is_dir():
        return _of_python(text, record, device), []
    if record is not None:
        raise ExportError(f"--record is for a model of FILE.py:NAME, and {text} is a folder")
    config = path / "config.json"
    if config.is_file() and "model_type" in _json(config):
        from phlox.interop import huggingface

        return huggingface.load(path, device=device), []
    if is_own(path):
        run = run_model(options, text, device)
        return run.model, [] if options.inputs else export_inputs(run)
    from phlox.models import DigitsRun

    digits = DigitsRun(path, device)
    return digits.model, [("images", "float", ("batch", 1, *digits.recipe.model.size))]


def _json(path: Path) -> dict[str, Any]:
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _of_python(text: str, record: str | None, device: Any) -> Any:
    """The model from a Python file: a module, a config, or a function or class that makes one of them."""
    from phlox.backend import default_device
    from phlox.config import Config
    from phlox.module import Module

    file, _, name = text.rpartition(":")
    if not file.endswith(".py") or not name:
        raise RunError(
            f"{text}: there is no such folder; give the folder of a run, or FILE.py:NAME for a model or config in "
            "a file"
        )
    if not Path(file).is_file():
        raise RunError(f"{file}: there is no such file")
    with default_device(device):
        namespace = runpy.run_path(file)
        if name not in namespace:
            raise ExportError(f"{file} defines no {name}")
        value = namespace[name]
        model = value() if callable(value) and not isinstance(value, Module) else value
        if isinstance(model, Config) and callable(init := getattr(model, "init", None)):
            model = init()
    if not isinstance(model, Module):
        raise ExportError(f"{text} is neither a module nor a function that returns one, but {type(model).__name__}")
    model = model.to_device(device)
    if record is not None:
        model.load(record)
    return model


def inputs_of(model: Any, specs_given: list[Any], device: Any) -> tuple[Any, list[str]]:
    """The inputs as specs: by name if all names are those of arguments; otherwise in order."""
    from phlox.backend.kind import KINDS as kinds
    from phlox.transform import TensorSpec

    if not specs_given:
        raise ExportError("say what the inputs are: --input x:float:batch,1,8,8, once for each argument of the model")
    names = [name for name, _, _ in specs_given]
    specs = [TensorSpec(sizes, kinds[kind], device) for _, kind, sizes in specs_given]
    parameters = inspect.signature(type(model).__call__).parameters
    if len(set(names)) == len(names) and all(name in parameters for name in names):
        return dict(zip(names, specs, strict=True)), sorted(names, key=list(parameters).index)
    return specs, names


COMMAND = Command(
    description="Write a model as an ONNX file, run the file at several sizes of its open axes, and show how far its "
    "results are from the model's. It needs NumPy and the onnx package; onnxruntime runs the file if it is installed.",
    arguments=arguments,
    run=run,
)
