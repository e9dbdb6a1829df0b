"""Models of arrays for /predict: ONNX files, classifiers of texts and images, and the models of runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from phlox.backend import Bool, Float, Int
from phlox.errors import ConfigError, PhloxError, RangeError, RunError
from phlox.models import CausalModel, Encoder, EncoderClassifier, ImageClassifier, LanguageModel, SentenceEncoder
from phlox.models.language_model import tokenizer_for
from phlox.serve.embedding import batches_of, padded
from phlox.serve.errors import ApiError
from phlox.tensor import tensor

Arrays = dict[str, np.ndarray[Any, Any]]


class Input(NamedTuple):
    """An input of a model."""

    name: str
    shape: tuple[int | str, ...] | None
    """Its sizes, with a name for each open axis; None if they are not known."""
    dtype: np.dtype[Any]

    def read(self, value: Any) -> np.ndarray[Any, Any]:
        """Nested lists of JSON as an array of the right type; `ApiError` for anything else."""
        try:
            array = np.asarray(value)
        except ValueError:
            raise self._error("lists of equal lengths") from None
        kinds, expected = _EXPECTED[self.dtype.kind]
        if not array.size or array.dtype.kind not in kinds:
            raise self._error(expected)
        if self.shape is not None:
            sizes = tuple(
                size if isinstance(expected, str) else expected
                for size, expected in zip(array.shape, self.shape, strict=False)
            )
            if len(array.shape) != len(self.shape) or sizes != array.shape:
                raise self._error(f"an array of shape {list(self.shape)}, got {list(array.shape)}")
        if self.dtype.kind in "iu":
            limits = np.iinfo(self.dtype)
            if array.min() < limits.min or array.max() > limits.max:
                raise self._error(f"numbers from {limits.min} to {limits.max}")
        return array.astype(self.dtype)

    def _error(self, expected: str) -> ApiError:
        return ApiError(400, f"inputs.{self.name} must be {expected}", param=f"inputs.{self.name}")


_EXPECTED = {
    "f": ("iuf", "numbers"),
    "i": ("iu", "whole numbers"),
    "u": ("iu", "whole numbers"),
    "b": ("b", "true or false"),
    "U": ("U", "texts"),
}
"""By kind of an input: the kinds that numbers of JSON may have, and what to call them."""


class Predictor:
    """A model that is called with arrays by name, and returns arrays by name."""

    def __init__(self, inputs: list[Input], call: Callable[[Arrays], Mapping[str, Any]]) -> None:
        self.inputs, self._call = inputs, call

    def __call__(self, body: object) -> dict[str, Any]:
        """The answer to `{"inputs": {name: nested lists}}`, or `{"inputs": nested lists}` for a single input."""
        fields = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
        if "inputs" not in fields or set(fields) - {"inputs", "model"}:
            raise ApiError(400, 'the body must be {"inputs": {...}}, with nested lists by the names of the inputs')
        values: Any = fields["inputs"]
        if not isinstance(values, dict) and len(self.inputs) != 1:
            raise ApiError(400, f"the model takes {self._names}: name them", param="inputs")
        values = cast("dict[str, Any]", values if isinstance(values, dict) else {self.inputs[0].name: values})
        names = {each.name for each in self.inputs}
        if set(values) != names:
            raise ApiError(400, f"the model takes {self._names}, got {', '.join(values) or 'nothing'}", param="inputs")
        arrays = {each.name: each.read(values[each.name]) for each in self.inputs}
        try:
            outputs = self._call(arrays)
        except PhloxError as error:
            raise ApiError(400, f"the model does not take these inputs: {error}", param="inputs") from None
        return {"outputs": {name: _as_lists(array) for name, array in outputs.items()}}

    @property
    def _names(self) -> str:
        return ", ".join(each.name for each in self.inputs)


def is_predictor(path: str | os.PathLike[str]) -> bool:
    """Is it an ONNX file, or the folder of a run of a model that is no language model?"""
    file = Path(path)
    if file.suffix.lower() == ".onnx":
        return True
    if (file / "tokenizer.json").is_file():
        return False
    return any((file / name).is_file() for name in ("architecture.json", "predictions.npz"))


def predictor_of(path: str | os.PathLike[str], device: str) -> Predictor:
    """The model of an ONNX file or of the folder of a run."""
    if Path(path).suffix.lower() == ".onnx":
        return _of_onnx(path, device)
    return _of_digits(path, device) if (Path(path) / "predictions.npz").is_file() else _of_run(path, device)


def predictor_of_classifier(model: LanguageModel, name: str) -> Predictor:
    """A classifier of texts or of images: the logits of its classes. Raises `ConfigError` for another model."""
    classifier = model.model
    if not isinstance(classifier, (EncoderClassifier, ImageClassifier)):
        raise ConfigError(f"{name}: {type(classifier).__name__} is neither a language model nor a classifier")
    classifier = classifier.valid()
    _, param = next(iter(classifier.named_params()))
    if isinstance(classifier, ImageClassifier):
        sizes = classifier.config.encoder
        image = Input("images", ("rows", sizes.channels, *sizes.image_size), np.dtype(np.float32))
        return Predictor(
            [image], lambda arrays: {"logits": classifier(tensor(arrays["images"], device=param.device)).numpy()}
        )
    context = classifier.inner.config.context
    tokenizer = tokenizer_for(model, classifier.inner.config.vocabulary, name)

    def call(arrays: Arrays) -> Mapping[str, Any]:
        rows = [tokenizer.encode(text) for text in arrays["texts"].tolist()]
        for tokens in rows:
            if not 0 < len(tokens) <= context:
                raise RangeError(f"a text has {len(tokens)} tokens; it must have from 1 to {context}")
        logits: list[Any] = [None] * len(rows)
        for numbers in batches_of(rows):
            tokens, mask = padded([rows[number] for number in numbers], param.device)
            for number, values in zip(numbers, classifier(tokens, mask=mask).numpy(), strict=True):
                logits[number] = values[: len(rows[number])] if classifier.by_token else values
        return {"logits": logits}

    return Predictor([Input("texts", ("rows",), np.dtype(np.str_))], call)


def _of_onnx(path: str | os.PathLike[str], device: str) -> Predictor:
    from phlox.interop.onnx import load
    from phlox.interop.onnx.elements import kind_of

    model: Any = load(path, device=device)
    types: Any = {Float: np.float32, Int: np.int64, Bool: np.bool_}
    inputs = [
        Input(value.name, value.shape, np.dtype(types[kind_of(value.element, value.name)])) for value in model.inputs
    ]

    def call(arrays: Arrays) -> Mapping[str, Any]:
        result: Any = model(**arrays)
        outputs = result if len(model.outputs) > 1 else {model.outputs[0].name: result}
        return {name: x.numpy() for name, x in outputs.items() if hasattr(x, "numpy")}

    return Predictor(inputs, call)


def _of_digits(path: str | os.PathLike[str], device: str) -> Predictor:
    from phlox.models import DigitsRun

    run = DigitsRun(path, device)
    shape = ("rows", 1, *run.recipe.model.size)

    def call(arrays: Arrays) -> Mapping[str, Any]:
        return {"probabilities": run.predict(arrays["images"])}

    return Predictor([Input("images", shape, np.dtype(np.float32))], call)


def _of_run(path: str | os.PathLike[str], device: str) -> Predictor:
    from phlox.train.observers.folder.run_model import RunModel

    run = RunModel(path, device)
    try:
        run.arguments(run.inputs)
    except RunError:
        kind = cast("type[Any]", type(run.model))
        if not issubclass(kind, (CausalModel, Encoder, EncoderClassifier, SentenceEncoder)):
            raise
        raise ConfigError(
            f"{path}: is a run of a model of texts, {kind.__name__}, without tokenizer.json; write the file of its "
            f"tokenizer there: tokenizer.save({str(path)!r})"
        ) from None
    inputs = [Input(name, ("rows", *x.shape[1:]), x.dtype) for name, x in run.inputs.items()]

    def call(arrays: Arrays) -> Mapping[str, Any]:
        outputs = run(arrays)
        return {f"output{number}": output for number, output in enumerate(outputs)}

    return Predictor(inputs, call)


def _as_lists(array: Any) -> Any:
    """Nested lists; JSON has neither NaN nor infinity, so they are null."""
    if isinstance(array, list):  # one array for each row, which may have other sizes
        return [_as_lists(row) for row in cast("list[Any]", array)]
    values = np.asarray(array)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        finite = values.astype(object)
        finite[~np.isfinite(values)] = None
        return finite.tolist()
    return values.tolist()
