"""The inputs and the outputs of a model on the command line: files of arrays, and tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phlox.cli.command import DONE
from phlox.errors import DataError
from phlox.host.page import Page, Table
from phlox.host.text import terminal_width

Arrays = dict[str, np.ndarray[Any, Any]]


class Input(NamedTuple):
    """An input of a model."""

    name: str
    shape: tuple[int | str, ...] | None
    """Its sizes, with a name for each open axis; None if they are not known."""
    is_float: bool
    description: str


def read_inputs(inputs: Sequence[Input], path: Path) -> tuple[Arrays, Any]:
    """Read the inputs of a model from a file, by name, and the labels in it, if it has any.

    An `.npz` has arrays of the names of the inputs; an `.npy` is the only input; an `.npz` of images, a `.csv` or a
    `.png` are images of one channel, if the model takes such.
    """
    described = "; ".join(each.description for each in inputs) or "no inputs"
    if path.suffix == ".npy":
        if len(inputs) != 1:
            raise DataError(f"{path}: is one array, and the model takes {described}; give an .npz of them")
        return {inputs[0].name: _as_input(inputs[0], _load_arrays(path))}, None
    size = _image_size(inputs)
    if path.suffix == ".npz":
        arrays: Any = _load_arrays(path)
        labels = next((arrays[name] for name in ("labels", "y") if name in arrays), None)
        by_name = {each.name: _as_input(each, arrays[each.name]) for each in inputs if each.name in arrays}
        if by_name:
            return by_name, labels
        if size is None:
            keys = ", ".join(arrays) or "nothing"
            raise DataError(f"{path}: holds {keys}; the model takes {described}: name the arrays so")
    elif size is None:
        raise DataError(f"{path}: the model takes {described}; give an .npz with arrays of these names")
    from phlox.data import read_images

    images = read_images(path, size=size)
    return {inputs[0].name: images.images}, images.labels


def print_outputs(arrays: Arrays, labels: Any, out: str | None) -> int:
    """Write outputs to the `.npz` file `out`; without one print the classes of rows, or the ranges of the outputs."""
    if out is not None:
        with Path(out).open("wb") as stream:
            savable: dict[str, Any] = {name.replace("/", "."): array for name, array in arrays.items()}
            np.savez(stream, **savable)
        print(f"{out}: {', '.join(arrays)}")
        return DONE
    first: np.ndarray[Any, Any] = next(iter(arrays.values()), np.empty((0, 0)))
    if len(arrays) == 1 and first.ndim == 2 and first.dtype.kind == "f" and first.shape[1] > 1 and len(first):
        best = [f"{value:.4g}" for value in first.max(axis=-1).tolist()]
        print_classes("class", first.argmax(axis=-1), best, "value", labels)
        return DONE
    rows = [[name, str(array.dtype), str(array.shape), *_range(array)] for name, array in arrays.items()]
    table = Table(["output", "type", "shape", "min", "max", "mean"], rows, 3)
    print(Page("", parts=[table]).text(terminal_width()))
    return DONE


def print_classes(
    noun: str, classes: Any, values: Sequence[str], value_name: str, labels: Any, row: str = "row"
) -> None:
    """A line for each row: its class, a value of it, and its label if there are labels; and the accuracy."""
    rows = [[str(index), str(cls), value] for index, (cls, value) in enumerate(zip(classes, values, strict=True))]
    for cells, cls, label in zip(rows, classes, [] if labels is None else labels, strict=False):
        cells += [str(label), "wrong" if label != cls else ""]
    print(Page("", parts=[Table([row, noun, value_name, "label", ""], rows, {4})]).text())
    if labels is not None:
        correct = int((classes == labels).sum())
        print(f"accuracy: {correct / len(classes):.2%} ({correct} of {len(classes)} {row}s)")


def _range(values: np.ndarray[Any, Any]) -> list[str]:
    if not values.size:
        return ["-", "-", "-"]
    return [f"{float(value):.4g}" for value in (values.min(), values.max(), values.mean())]


def _load_arrays(path: Path) -> Any:
    try:
        content: Any = np.load(path, allow_pickle=False)
        return dict(content) if path.suffix == ".npz" else content
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file; check the path") from None
    except Exception as error:
        raise DataError(f"{path}: cannot be read as an array of NumPy ({error})") from None


def _as_input(value: Input, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array for an input; integers and booleans become floats if the input takes floats."""
    return array.astype(np.float32) if value.is_float and array.dtype.kind in "iub" else array


def _image_size(inputs: Sequence[Input]) -> tuple[int, int] | None:
    """The height and width of the images of one channel that a model takes, if it takes such images."""
    shape = inputs[0].shape if len(inputs) == 1 else None
    if shape is None or len(shape) != 4 or shape[1] != 1 or isinstance(shape[2], str) or isinstance(shape[3], str):
        return None
    return shape[2], shape[3]
