"""`load`: a model with its tokenizer, from a folder, a file, or the Hugging Face Hub."""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from phlox.backend import DeviceLike
from phlox.errors import ConfigError, ExtraNotInstalledError
from phlox.models.language_model import LanguageModel
from phlox.text.folder import has_tokenizer, load_tokenizer, read_json, stops_of
from phlox.text.gguf import tokenizer_from_gguf
from phlox.train import load_model

__all__ = ["load"]

_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_FILES = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model"]
_OTHER_ENGINES = ["original/*", "onnx/*", "openvino/*", "metal/*"]
"""Folders of the Hub with the same weights for other programs."""
_HUGGING_FACE, _GGUF = "phlox.interop.huggingface", "phlox.interop.gguf"
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty")
"""Settings of generation that are options of `generate`, under the same name."""


def load(
    folder: str | os.PathLike[str], *, device: DeviceLike | None = None, revision: str | None = None
) -> LanguageModel:
    """Load a model and its tokenizer. No code from a folder is ever run.

    The folder is one that `transformers` saved (see docs/interop.md for the families), or a run of Phlox, such as one
    of `phlox train-lm`. A GGUF file is loaded with its tokenizer, one of byte pairs or of SentencePiece. If there is
    no such folder, a name of the form `owner/name` is downloaded from the Hugging Face Hub: only safetensors, JSON and
    tokenizer files.

    The tokens that end a text, and the options of sampling, are those of `generation_config.json`; options are used
    only if `do_sample` is true there. If the folder has no tokenizer, `tokenizer` is None. Other kinds of models, such
    as encoders, come in the same wrapper: `load(folder).model`. A folder of sentence-transformers is loaded as a
    `SentenceEncoder`.

    Args:
        folder: the path of a folder or of a GGUF file, or a name on the Hub.
        device: the device of the model; the precision is that of its backend.
        revision: the branch, tag or commit on the Hub.

    Raises `ConfigError` if there is no such folder, or if its model is not supported; `RecordError` for weights that
    are damaged; `ExtraNotInstalledError` if the tokenizer or the download needs the extra 'text'.

    >>> import tempfile
    >>> from phlox.interop import huggingface
    >>> from phlox.models import GptConfig
    >>> folder = tempfile.mkdtemp()
    >>> huggingface.save(GptConfig(vocabulary=97, context=8, n_layers=1, d_model=4, n_heads=2).init("numpy"), folder)
    >>> load(folder, device="numpy")
    LanguageModel(Gpt, 1,060 parameters, no tokenizer)
    """
    path = Path(folder)
    if path.is_file():
        with path.open("rb") as file:
            if file.read(4) != b"GGUF" and path.suffix != ".gguf":
                raise ConfigError(f"{path}: is no GGUF file; give one, or the folder of a model, here {path.parent}")
        tokenizer = tokenizer_from_gguf(import_module(_GGUF).read_metadata(path), str(path))
        return LanguageModel(_load_by(_GGUF, path, device), tokenizer)
    if not path.is_dir():
        path = _downloaded(str(folder), revision)
    model = _model(path, device)
    tokenizer = load_tokenizer(path) if has_tokenizer(path) else None
    stops = None if tokenizer is not None else stops_of(path)
    return LanguageModel(model, tokenizer, stops=stops, options=_options(path))


def _model(path: Path, device: DeviceLike | None) -> Any:
    if (path / "architecture.json").is_file():
        return load_model(path, device)
    if (path / "modules.json").is_file():
        return import_module(_HUGGING_FACE).load_sentence_encoder(path, device=device)
    if (path / "config.json").is_file():
        return _load_by(_HUGGING_FACE, path, device)
    raise ConfigError(
        f"{path}: has no model: neither the config.json of a folder of Hugging Face nor the architecture.json of a run"
    )


def _load_by(package: str, path: Path, device: DeviceLike | None) -> Any:
    """The model that a package for files loads. By location: such packages import the models of this one."""
    return import_module(package).load(path, device=device)


def _options(path: Path) -> dict[str, Any]:
    """The options of sampling that a folder recommends."""
    settings = read_json(path / "generation_config.json") or {}
    if settings.get("do_sample") is not True:
        return {}
    # Zero and one mean "off" in files, and None here.
    return {
        name: value
        for name in _SAMPLING
        if isinstance(value := settings.get(name), (int, float)) and (name == "temperature" or value not in (0, 1))
    }


def _downloaded(name: str, revision: str | None) -> Path:
    if _NAME.fullmatch(name) is None:
        raise ConfigError(f"{name}: there is no such folder; give the path of one, or a name on the Hub: owner/name")
    try:
        import huggingface_hub
    except ImportError as error:
        raise ExtraNotInstalledError(
            f"{name}: there is no such folder, and a download from the Hub needs huggingface-hub: install Phlox with "
            f"the extra 'text' ({error})"
        ) from None
    download: Any = cast("Any", huggingface_hub).snapshot_download
    try:
        return Path(download(name, revision=revision, allow_patterns=_FILES, ignore_patterns=_OTHER_ENGINES))
    except Exception as error:  # of the network, of the Hub, or of a name that it refuses
        reason = str(error).partition("\n")[0][:300]
        raise ConfigError(
            f"{name}: there is no such folder, and it cannot be downloaded from the Hub ({reason})"
        ) from error
