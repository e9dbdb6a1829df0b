"""Folders that `transformers` saves: `load` and `save`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from phlox.backend import DeviceLike
from phlox.config import Config
from phlox.config.storage import format_json, write_text
from phlox.errors import ConfigError, RecordError
from phlox.interop.adapter import Adapter, ignore
from phlox.interop.huggingface.bert import Bert
from phlox.interop.huggingface.decoders import DECODERS
from phlox.interop.huggingface.encoder_decoders import ENCODER_DECODERS
from phlox.interop.huggingface.encoders import ENCODERS
from phlox.interop.huggingface.experts import SPARSE_DECODERS
from phlox.interop.huggingface.family import Family, same_tensors
from phlox.interop.huggingface.gpt2 import Gpt2
from phlox.interop.huggingface.llama import Llama
from phlox.interop.huggingface.quantized.loading import Method, described, method_of, quantized, with_packed
from phlox.interop.huggingface.quantized.matrix import Stored
from phlox.interop.huggingface.quantized.mxfp4 import stacks_in, with_stacks
from phlox.interop.huggingface.quantized.saving import computed_sites, saved, wholes_of
from phlox.interop.huggingface.settings import Settings, read_settings
from phlox.interop.huggingface.vision import VISION
from phlox.module import Module
from phlox.record import FULL, LazyTensor, PrecisionLike, Record, SafetensorsRecorder, match
from phlox.record import load as load_any
from phlox.record.dtypes import SHORT_NAMES, DType
from phlox.record.formats.sharded import WHOLE
from phlox.record.precision import checked_precision

FAMILIES: list[Family] = [Bert(), Gpt2(), Llama(), *DECODERS, *SPARSE_DECODERS, *ENCODERS, *ENCODER_DECODERS, *VISION]

_DTYPES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def load(folder: str | os.PathLike[str], *, device: DeviceLike | None = None) -> Any:
    """Load the model in a folder that `save_pretrained` of `transformers` wrote, on `device`. No initializer runs.

    Quantized weights (compressed-tensors, bitsandbytes, GPTQ, AWQ) stay as small as they are, see docs/interop.md.

    The folder contains `config.json` and weights, in the first of these files that exists: `model.safetensors`,
    `model.safetensors.index.json` with its shards, `pytorch_model.bin`, `pytorch_model.bin.index.json`. GPT-2, Llama,
    sixteen families of decoders, eight of encoders of texts, seven of encoder-decoders, and ViT, CLIP and SigLIP are
    supported, see docs/interop.md. The precision is that of the device's backend.

    Raises `ConfigError` for a config that is missing, damaged or not supported. Raises `RecordError` for weights that
    are missing, damaged or do not fit the config, all at once and by the names in the file.

    >>> import tempfile
    >>> from phlox.models import GptConfig
    >>> model = GptConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2).init("numpy")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(model, folder)
    ...     load(folder, device="numpy").config == model.config
    True
    """
    path = Path(folder)
    settings = read_settings(path)
    family, config = family_and_config(settings)
    try:
        return load_with(path, family, config, device, method=method_of(settings))
    except RecordError as error:
        if str(path) in str(error):
            raise
        raise RecordError(f"{path}: {error}") from error


_END_OF_TEXT = 50256
"""GPT-2's only special token: the default of `transformers` for the first and for the last token."""


def save(
    model: Module,
    folder: str | os.PathLike[str],
    *,
    precision: PrecisionLike = FULL,
    config: Mapping[str, Any] | None = None,
) -> None:
    """Save `config.json` and `model.safetensors` in a folder that `from_pretrained` of `transformers` can load.

    Packed weights (`phlox.quantize`) are saved as such: int8, int4 and f8_e4m3 as compressed-tensors, nf4 as
    bitsandbytes. Their scales are in f32 at each precision.

    Args:
        model: a model of `phlox.models`, see the table in docs/interop.md.
        folder: created if it does not exist. Files of these names are replaced, each completely or not at all.
        precision: the precision of the weights.
        config: further entries of `config.json`, such as `{"eos_token_id": 0}`, or the whole `config.json` that the
            model was loaded with. Entries that the model determines are taken from it, except the names of classes.

    Raises `ConfigError` for a model that has no counterpart in `transformers`, or packed weights that have none.
    """
    ours: Any = getattr(model, "config", None)
    family = family_of(ours, type(model).__name__)
    dtype = _DTYPES[SHORT_NAMES[checked_precision(precision).stored("", np.dtype(np.float32))]]
    settings = {"model_type": family.model_type, **family.settings_of(ours), "dtype": dtype, "torch_dtype": dtype}
    further = dict(config or {})
    for key in ("id2label", "label2id"):
        if key in settings and key in further:
            if not isinstance(further[key], Mapping) or len(further[key]) != len(settings[key]):
                raise ConfigError(f"save: {key} in config does not name {len(settings[key])} classes")
            settings[key] = further[key]
    further.pop("quantization_config", None)
    adapter, rest = family.adapter(ours, family.saved_prefix(ours)), model.into_record()
    packed: dict[str, LazyTensor] = {}
    found = computed_sites(model)
    wholes = wholes_of(found, adapter)
    if found:
        own = {path for path in rest if any(path.startswith(f"{site}.") for site in found)}
        rest = Record({path: rest[path] for path in rest if path not in own}, rest.metadata, aliases=rest.aliases)
    torch_record = adapter.write(rest)
    if found:
        matrices = [path for path, entry in torch_record.tensors.items() if len(entry.tensor.shape) == 2]
        names = [path.removesuffix(".weight") for path in matrices if path.endswith(".weight")]
        packed, settings["quantization_config"] = saved(wholes, names, dtype)
    try:
        text = format_json({**_without_defaults(family.model_type, ours), **further, **settings})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"save: config has a value that JSON cannot express: {error}") from error
    # Readers require the entry "format"; "pt" is PyTorch's layout, in rows.
    record = Record({**torch_record.tensors, **packed}, {"format": "pt"}, aliases=torch_record.aliases)
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    SafetensorsRecorder(_ButPacked(packed, precision) if packed else precision).save(record, path / "model.safetensors")
    write_text(path / "config.json", text + "\n")


class _ButPacked:
    """A precision of all entries but some, which are what they are."""

    def __init__(self, entries: Mapping[str, object], precision: PrecisionLike) -> None:
        self._entries, self._precision = entries, checked_precision(precision)

    def stored(self, path: str, dtype: DType) -> DType:
        """See `phlox.record.Precision.stored`."""
        return dtype if path in self._entries else self._precision.stored(path, dtype)


def config_from(data: Mapping[str, Any]) -> Config:
    """Our config for the content of a `config.json`; the `ConfigError` for an unsupported setting names it.

    >>> config_from({"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4}).d_model
    64
    """
    settings = Settings(data)
    method_of(settings)
    return family_and_config(settings)[1]


def adapter_for(config: Config) -> Adapter:
    """The adapter between the current names and layouts of `transformers` and those of our model with this config.

    It also converts gradients and an optimizer's moments, which are linear in the weights.

    >>> from phlox.models import GptConfig
    >>> adapter_for(GptConfig()).rules[0].theirs[0].text
    'transformer.wte.weight'
    """
    family = family_of(config, type(config).__name__)
    return family.adapter(config, family.saved_prefix(config))


def add_family(family: Family) -> None:
    """Read and save folders of one more family of models; one that was added later is asked first.

    docs/how-to/add-a-family.md writes one.

    Raises `TypeError` for anything but an instance of `Family`.
    """
    if not isinstance(family, Family):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"add_family: the family must be an instance of a subclass of Family, got {family!r}")
    FAMILIES.insert(0, family)


def family_and_config(settings: Settings) -> tuple[Family, Any]:
    """The family of models with these settings, and our config."""
    kind = settings.text("model_type")
    family = next((family for family in FAMILIES if family.model_type == kind), None)
    if family is None:
        supported = ", ".join(family.model_type for family in FAMILIES)
        raise ConfigError(
            f"{settings.location}: models of the type {kind[:100]!r} are not supported; supported are: {supported}. "
            "If it is one of the known kinds under other names, a class of some twenty lines reads it: see "
            "docs/how-to/add-a-family.md, and add it with phlox.interop.huggingface.add_family"
        )
    settings = settings.renamed(family.other_names)
    family.check(settings)
    try:
        config = family.config_from(settings, family.architecture_of(settings))
        family.check_all_read(settings)
        return family, config
    except ConfigError as error:
        if str(error).startswith(settings.location):
            raise
        raise ConfigError(f"{settings.location}: {error}") from error
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:  # such as a list that is a number
        raise ConfigError(f"{settings.location}: a setting has an impossible value ({error})") from error


def family_of(config: Any, name: str) -> Family:
    """The family of the models with this config; `ConfigError`, with `name`, if there is none."""
    for family in FAMILIES:
        if type(config) in family.configs and getattr(config, "family", "") in ("", family.model_type):
            return family
    raise ConfigError(
        f"{name} has no counterpart in transformers; these have: Gpt, Llama, Decoder, Bert and Encoder, these two "
        "with a head, VisionEncoder, ImageClassifier, DualEncoder"
    )


def load_with(
    path: Path,
    family: Family,
    config: Any,
    device: DeviceLike | None,
    *,
    method: Method | None = None,
    without_head: bool = False,
) -> Any:
    """The model with this config and the weights in a folder; `without_head` ignores those of a head."""
    record = _flat(load_any(weights_in(path)))
    start = f"{family.prefix}."
    if without_head and any(name.startswith(start) for name in record):
        record = Record({name: record[name] for name in record if name.startswith(start)}, record.metadata)
    stored: dict[str, Stored] = {}
    if method is not None:
        record, stored = quantized(record, method)
        record = record.with_entries(described(stored, family.inputs_first))
    record, stacks = stacks_in(record)
    config = family.fitted(config, record)
    if family.n_layers(config) > len(record):  # check before so many layers are created
        raise RecordError(
            f"{path}: config.json has {family.n_layers(config)} layers, but the file of weights has only "
            f"{len(record)} entries"
        )
    prefix = family.prefix if any(name.startswith(f"{family.prefix}.") for name in record) else ""
    record = cleaned(family, config, record, prefix, path)
    adapter = family.adapter(config, prefix)
    model = config.init(device)
    check_weights(model, adapter, record, path)
    if not stored and not stacks:
        return model.load_record(adapter.read(record))
    rest = {path: record[path] for path in record if path not in stored and path not in stacks}
    model.load_record(adapter.read(Record(rest, record.metadata)), strict=False)
    return with_stacks(with_packed(model, adapter, stored, family.inputs_first), adapter, stacks)


def weights_in(folder: Path) -> Path:
    """The file of the weights in a folder."""
    for name in WHOLE:
        if (folder / name).is_file():
            return folder / name
    raise RecordError(f"{folder}: there are no weights; looked for {', '.join(WHOLE)}")


def _flat(record: Record) -> Record:
    """The record with an entry for every name of a tensor."""
    entries = {path: record[path] for path in (*record, *record.aliases)}
    return Record(entries, record.metadata, unreadable=record.unreadable)


def cleaned(family: Family, config: Any, record: Record, prefix: str, folder: Path) -> Record:
    """The record with current names, without entries that are not weights of the model, and without duplicates."""
    rules = [*family.former_rules(config), *(ignore(pattern) for pattern in family.ignored(config))]
    record = _flat(Adapter(rules).read(record, strict=False))
    entries = {path: record[path] for path in record}
    for name, other in family.ties(config, prefix):
        if (duplicate := entries.pop(name, None)) is None:
            continue
        if not same_tensors(
            duplicate, entries.setdefault(other, duplicate)
        ):  # a tensor may be stored under either name
            raise RecordError(
                f"{folder}: {name} differs from {other}, but tie_word_embeddings in config.json makes them equal"
            )
    return Record(entries, record.metadata, unreadable=record.unreadable)


def check_weights(model: Module, adapter: Adapter, record: Record, folder: Path) -> None:
    """RecordError, by the names in the file, unless the record has exactly the weights that the model needs."""
    shapes = {
        path: LazyTensor.from_function(param.shape, "float32", _never, path) for path, param in model.named_params()
    }
    expected = adapter.write(Record(shapes)).tensors
    report = match({path: (entry.tensor.shape, "float", None) for path, entry in expected.items()}, record)
    report.raise_if_failed(f"{type(model).__name__} from {folder}")


def _never() -> NoReturn:
    raise AssertionError("only its shape is used")


def _without_defaults(model_type: str, config: Any) -> dict[str, None]:
    """Explicit nulls for special tokens whose defaults in `transformers` are outside of a smaller vocabulary."""
    if model_type != "gpt2" or config.vocabulary > _END_OF_TEXT:
        return {}
    return {"bos_token_id": None, "eos_token_id": None}
