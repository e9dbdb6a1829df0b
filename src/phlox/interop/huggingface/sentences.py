"""Folders of sentence-transformers: a model, its pooling, and the layers after it."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import Any, cast

from phlox.backend import DeviceLike
from phlox.config.storage import format_json, parse_json, read_text, write_text
from phlox.errors import ConfigError
from phlox.interop.adapter import Adapter, rename, transpose
from phlox.interop.huggingface.family import CausalFamily
from phlox.interop.huggingface.folder import family_and_config, load_with, save, weights_in
from phlox.interop.huggingface.settings import ACTIVATION_NAMES, Settings, read_settings
from phlox.models import PoolingName, SentenceEncoder, SentenceEncoderConfig, SentenceLayerConfig
from phlox.nn.activation import ActivationName
from phlox.record import SafetensorsRecorder
from phlox.record import load as load_any

__all__ = ["load_sentence_encoder", "save_sentence_encoder"]

_POOLINGS: dict[str, PoolingName] = {
    "cls": "first",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "root_mean",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
_FORMER = {"cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "weightedmean": "weightedmean_tokens"}
_ACTIVATIONS: dict[str, ActivationName | None] = {
    "torch.nn.modules.linear.Identity": None,
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.SiLU": "silu",
    "torch.nn.modules.activation.Tanh": "tanh",
}
_VECTOR = "sentence_embedding"


def load_sentence_encoder(folder: str | os.PathLike[str], *, device: DeviceLike | None = None) -> SentenceEncoder:
    """Load the model in a folder that `SentenceTransformer.save` wrote: its embeddings equal those of `encode`.

    `modules.json` names the modules: a model that `phlox.interop.huggingface.load` supports (a decoder, too), its
    pooling, dense layers, and whether embeddings are normalized. Tokens are given to the model; the folder's tokenizer
    is not loaded.

    Raises `ConfigError` for modules that are not supported, and the errors of `load`.

    >>> import tempfile
    >>> from phlox.models import BertConfig
    >>> inner = BertConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_sentence_encoder(SentenceEncoderConfig(inner).init("numpy"), folder)
    ...     load_sentence_encoder(folder, device="numpy").config.pooling
    ('mean',)
    """
    path = Path(folder)
    modules = _modules(path)
    kinds = [kind for kind, _ in modules]
    n_layers = kinds.count("Dense")
    order = ["Transformer", "Pooling", *["Dense"] * n_layers, *["Normalize"] * kinds.count("Normalize")]
    if kinds != order or kinds.count("Normalize") > 1:
        raise ConfigError(
            f"{path / 'modules.json'}: the modules {', '.join(kinds)} are not supported; supported are Transformer, "
            "Pooling, then Dense any number of times, then Normalize or not"
        )
    model, config = _model(modules[0][1], device)
    layers = [_layer(location) for kind, location in modules if kind == "Dense"]
    for kind, location in modules:
        if kind == "Normalize" and (location / "config.json").is_file():
            _check_vector(read_settings(location))
    encoder = SentenceEncoderConfig(
        config, pooling=_pooling(modules[1][1]), layers=tuple(layers), normalized="Normalize" in kinds
    ).init(device)
    encoder.model = model
    for index, (_, location) in enumerate(modules[2 : 2 + n_layers]):
        record = Adapter(_RULES).read(load_any(weights_in(location)))
        encoder.layers[index] = encoder.layers[index].load_record(record)
    return encoder


_RULES = [transpose("linear.weight", "weight"), rename("linear.bias", "bias")]


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """The classes of the modules, and their folders."""
    location = folder / "modules.json"
    entries: Any = parse_json(read_text(location), str(location))
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in cast("list[Any]", entries)):
        raise ConfigError(f"{location} does not contain a JSON list of objects")
    modules: list[tuple[str, Path]] = []
    for entry in cast("list[dict[str, Any]]", entries):
        settings = Settings(entry, str(location))
        path = PurePosixPath(settings.text("path", ""))
        if path.is_absolute() or ".." in path.parts:
            raise ConfigError(f"{location}: the path {str(path)[:100]!r} leads out of the folder")
        modules.append((settings.text("type").rpartition(".")[2], folder / path))
    return modules


def _model(folder: Path, device: DeviceLike | None) -> tuple[Any, Any]:
    """The model without its head, whatever architecture its config names, and its config."""
    if (folder / "sentence_bert_config.json").is_file():
        task = read_settings(folder, "sentence_bert_config.json")
        task.only("transformer_task", "feature-extraction", "the results would not be the vectors of the tokens")
    settings = read_settings(folder)
    family, _ = family_and_config(Settings({**settings.data, "architectures": None}, settings.location))
    changes: dict[str, Any] = {"architectures": [family.architectures[0]]}
    if isinstance(family, CausalFamily):
        changes["tie_word_embeddings"] = True  # so there is no head, which these files may not have
    family, config = family_and_config(Settings({**settings.data, **changes}, settings.location))
    model = load_with(folder, family, config, device, without_head=True)
    return model, model.config


def _pooling(folder: Path) -> tuple[PoolingName, ...]:
    settings = read_settings(folder)
    settings.only("include_prompt", True, "the tokens of a prompt would not be pooled")
    settings.get("embedding_dimension", settings.get("word_embedding_dimension", None))
    modes: Any = settings.get("pooling_mode", None)
    former = [mode for mode in _POOLINGS if settings.flag(f"pooling_mode_{_FORMER.get(mode, mode)}", False)]
    modes = (former or ["mean"]) if modes is None else [modes] if isinstance(modes, str) else modes
    unknown = [str(mode) for mode in modes if mode not in _POOLINGS]
    if unknown:
        raise ConfigError(
            f"{settings.location}: pooling_mode={unknown[0][:100]!r} is not supported; supported are: "
            f"{', '.join(_POOLINGS)}"
        )
    settings.check_all_read(())
    return tuple([_POOLINGS[mode] for mode in modes])


def _layer(folder: Path) -> SentenceLayerConfig:
    settings = read_settings(folder)
    _check_vector(settings)
    settings.only("use_residual", False, "the input would be added to the result")
    name = settings.text("activation_function", "torch.nn.modules.activation.Tanh")
    if name not in _ACTIVATIONS:
        raise ConfigError(
            f"{settings.location}: activation_function={name[:100]!r} is not supported; supported are: "
            f"{', '.join(_ACTIVATIONS)}"
        )
    sizes = settings.whole("in_features"), settings.whole("out_features")
    layer = SentenceLayerConfig(*sizes, bias=settings.flag("bias", True), activation=_ACTIVATIONS[name])
    settings.check_all_read(())
    return layer


def _check_vector(settings: Settings) -> None:
    for key in ("module_input_name", "module_output_name"):
        settings.only(key, _VECTOR, "the module would not compute the embedding of a text")


def save_sentence_encoder(model: SentenceEncoder, folder: str | os.PathLike[str]) -> None:
    """Save a folder that `SentenceTransformer(folder)` reads, once the files of a tokenizer are copied into it.

    Raises `ConfigError` for a model that has no counterpart there.
    """
    path, config = Path(folder), model.config
    save(model.model, path)
    names = {ours: theirs for theirs, ours in _POOLINGS.items()}
    width = config.model.d_model
    steps: list[tuple[str, dict[str, Any]]] = [
        ("Pooling", {"word_embedding_dimension": width, "pooling_mode": [names[name] for name in config.pooling]})
    ]
    functions = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
    for layer in config.layers:
        if layer.activation not in functions:
            raise ConfigError(
                f"save_sentence_encoder: a layer with the activation {ACTIVATION_NAMES[layer.activation or 'gelu']!r} "
                f"has no counterpart; these have: {', '.join(map(str, functions))}"
            )
        sizes = {"in_features": layer.d_input, "out_features": layer.d_output, "bias": layer.bias}
        steps.append(("Dense", {**sizes, "activation_function": functions[layer.activation]}))
    steps += [("Normalize", {})] if config.normalized else []
    modules = [("", "Transformer"), *[(f"{number}_{kind}", kind) for number, (kind, _) in enumerate(steps, 1)]]
    layers = iter(model.layers)
    for (name, kind), (_, settings) in zip(modules[1:], steps, strict=True):
        (path / name).mkdir(exist_ok=True)
        write_text(path / name / "config.json", format_json(settings) + "\n")
        if kind == "Dense":
            record = Adapter(_RULES).write(next(layers).into_record())
            SafetensorsRecorder().save(record, path / name / "model.safetensors")
    entries = [
        {"idx": index, "name": str(index), "path": name, "type": f"sentence_transformers.models.{kind}"}
        for index, (name, kind) in enumerate(modules)
    ]
    write_text(path / "modules.json", format_json(entries) + "\n")
