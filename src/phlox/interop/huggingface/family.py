"""`Family`: how one family of Hugging Face models is loaded and saved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from phlox.config import Config
from phlox.errors import ConfigError
from phlox.interop.adapter import Adapter, Rule, rename, transpose
from phlox.interop.huggingface.settings import ACTIVATION_NAMES, Settings
from phlox.record import TensorEntry

Names = Sequence[tuple[str, str]]
"""Names of theirs, and ours."""


class Entry(NamedTuple):
    """A setting in `config.json`, and the field of our config that corresponds to it."""

    theirs: str
    ours: str
    read: Callable[[Settings, str, Any], Any]
    """The method of `Settings` that reads it; `default` is the default of `transformers`."""
    default: Any
    saved: str = ""
    """The attribute of our config that is saved if the field is None."""
    same_as: str = ""
    """An earlier field: if this one is None, it has the value of that field, when read and when saved."""
    write: Callable[[Any], Any] | None = None
    """Our value to theirs, if they differ."""


class Family(ABC):
    """One `model_type`: conversion between its `config.json` and our config, and between its weights and ours."""

    model_type: ClassVar[str]
    configs: ClassVar[tuple[type[Config], ...]]
    """Our config classes."""
    architectures: ClassVar[tuple[str, ...]]
    """The architectures that can be loaded; the first one is the default."""
    prefix: ClassVar[str]
    """The prefix of everything except the head. Models without a head, and some old ones, are saved without it."""
    former: ClassVar[tuple[Rule, ...]] = ()
    """Rules from former names to the current ones."""
    unsupported: ClassVar[tuple[tuple[str, Any, str], ...]] = ()
    """Options, their only supported value, and what another value would mean."""
    other_names: ClassVar[dict[str, str]] = {}
    """Other names of settings that `transformers` reads, each with its own one."""
    harmless: ClassVar[frozenset[str]] = frozenset()
    """Settings that do not affect what our models compute, besides those that are harmless in all families."""
    entries: ClassVar[tuple[Entry, ...]]
    """The settings that are fields of our config."""
    constants: ClassVar[dict[str, Any]] = {}
    """Fields of our config that are the same in all models of the family, if they are not the default."""
    weights: ClassVar[Names] = ()
    """Tensors that are only renamed. The first one is the embedding of a model with a head that may be tied."""
    outer_norms: ClassVar[Names] = ()
    outer_linears: ClassVar[Names] = ()
    """Normalizations, and dense layers, outside of the blocks."""
    layers: ClassVar[str] = "layers"
    """The name of the list of blocks."""
    norms: ClassVar[Names] = ()
    linears: ClassVar[Names] = ()
    """Normalizations, and dense layers, of a block."""
    no_weights: ClassVar[tuple[str, ...]] = ()
    """Patterns of entries that are not weights, such as masks that former versions saved."""

    @abstractmethod
    def config_from(self, settings: Settings, architecture: str) -> Any:
        """Our config; raises `ConfigError` for settings that our models do not have."""

    @abstractmethod
    def settings_of(self, config: Any) -> dict[str, Any]:
        """The inverse; raises `ConfigError` for settings that the models of `transformers` do not have."""

    def further_fields(self, settings: Settings, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of our config that take more than one setting."""
        return {}

    def rules(self) -> list[Rule]:
        """From their names and layouts below the prefix to ours: what the tables of names say."""
        theirs, ours = f"{self.layers}.*.", "blocks.*."
        rules = [rename(*names) for names in self.weights]
        rules += [*rules_of(self.outer_norms, norm), *rules_of(self.outer_linears, dense)]
        return [*rules, *rules_of(self.norms, norm, theirs, ours), *rules_of(self.linears, dense, theirs, ours)]

    def further_rules(self, config: Any) -> list[Rule]:
        """Rules that depend on the config, or have other layouts, below the prefix."""
        return []

    def adapter(self, config: Any, prefix: str) -> Adapter:
        """From their names and layouts to ours. Their names below the head have `prefix`, unless it is ""."""
        return Adapter([*self.rules(), *self.further_rules(config)]).under(prefix, "")

    def n_layers(self, config: Any) -> int:
        """The number of layers of the model."""
        return config.n_layers

    def fields_from(self, settings: Settings, entries: Sequence[Entry] | None = None) -> dict[str, Any]:
        """The fields of our config that are settings; by default those of `entries`."""
        fields: dict[str, Any] = {}
        for entry in self.entries if entries is None else entries:
            value = entry.read(settings, entry.theirs, entry.default)
            fields[entry.ours] = None if entry.same_as and value == fields[entry.same_as] else value
        return fields

    def entries_of(self, config: Any, entries: Sequence[Entry] | None = None) -> dict[str, Any]:
        """The inverse."""
        values: dict[str, Any] = {}
        for entry in self.entries if entries is None else entries:
            other = entry.same_as or entry.saved
            value = getattr(config, other if other and getattr(config, entry.ours) is None else entry.ours)
            if entry.read is Settings.activation and value is not None:
                value = ACTIVATION_NAMES[value]
            values[entry.theirs] = value if entry.write is None else entry.write(value)
        return values

    def former_rules(self, config: Any) -> tuple[Rule, ...]:
        """`former`, and rules that depend on the config."""
        return self.former

    def saved_prefix(self, config: Any) -> str:
        """The prefix of a model with this config in current files."""
        return self.prefix

    def ignored(self, config: Any) -> tuple[str, ...]:
        """Patterns of entries that are not weights, or not weights of this model."""
        return self.no_weights

    def ties(self, config: Any, prefix: str) -> tuple[tuple[str, str], ...]:
        """Duplicate entries that files may contain: their names, and the names of the same tensors."""
        return ()

    def inputs_first(self, name: str) -> bool:
        """Has the weight of this name its inputs along the first axis in the model of `transformers`?"""
        return False

    def fitted(self, config: Any, paths: Iterable[str]) -> Any:
        """The config, corrected by what only the file of weights says."""
        return config

    def check_others(self, config: Config, plain: Config, constants: dict[str, Any], ours: Collection[str]) -> None:
        """`ConfigError` for a field that is not in `ours`, and differs from the family's constant, or the default."""
        kind = type(plain).__name__.removesuffix("Config")
        for name in config.to_dict():
            expected = constants.get(name, getattr(plain, name, None))
            if name not in ours and getattr(config, name) != expected:
                raise ConfigError(
                    f"{kind} with {name}={getattr(config, name)!r} cannot be saved as {self.model_type}, whose models "
                    f"have {expected!r}"
                )

    def architecture_of(self, settings: Settings) -> str:
        """The architecture in the settings, or the first; `ConfigError` for one that cannot be loaded."""
        names: Any = settings.get("architectures", None) or [self.architectures[0]]
        name: Any = cast("list[Any]", names)[0] if isinstance(names, list) else names
        if name not in self.architectures:
            raise ConfigError(
                f"{settings.location}: the architecture {str(name)[:100]} is not supported; the supported "
                f"{self.model_type} models are: {', '.join(self.architectures)}"
            )
        return name

    def check(self, settings: Settings) -> None:
        """`ConfigError` for the first option that is not supported."""
        own = {key for key, *_ in self.unsupported}
        for key, allowed, why in (*[row for row in _NEVER if row[0] not in own], *self.unsupported):
            settings.only(key, allowed, why)

    def check_all_read(self, settings: Settings) -> None:
        """`ConfigError` for settings that nothing has read and that are not known to be harmless."""
        settings.check_all_read(_HARMLESS | self.harmless)


class CausalFamily(Family):
    """Language models, with one config. The first architecture has a head, which may be the transpose of the embedding.
    The last one has none.
    """

    head: ClassVar[str] = "lm_head"
    """The name of the head in the file."""
    copies: ClassVar[tuple[str, ...]] = ()
    """Further names of the embedding in files, below the prefix."""

    def config_from(self, settings: Settings, architecture: str) -> Any:
        """See `Family.config_from`."""
        fields = self.fields_from(settings)
        fields |= self.further_fields(settings, fields)
        whole, headless = self.architectures[0], self.architectures[-1]
        if architecture == headless and not fields["tied"]:
            raise ConfigError(
                f"{settings.location}: {headless} has no head, and with tie_word_embeddings=False its embedding cannot "
                f"replace one; save it as {whole}"
            )
        return self.configs[0](**fields)

    def adapter(self, config: Any, prefix: str) -> Adapter:
        """See `Family.adapter`."""
        head = [] if config.tied else [transpose(f"{self.head}.weight", "head.weight")]
        return Adapter([*super().adapter(config, prefix).rules, *head])

    def ties(self, config: Any, prefix: str) -> tuple[tuple[str, str], ...]:
        """See `Family.ties`."""
        start = f"{prefix}." if prefix else ""
        names = [f"{start}{name}.weight" for name in self.copies] + [f"{self.head}.weight"] * config.tied
        return tuple([(name, f"{start}{self.weights[0][0]}") for name in names])


def with_defaults(entries: Sequence[Entry], **defaults: Any) -> tuple[Entry, ...]:
    """The entries, some with another default, by their names in files."""
    return tuple([entry._replace(default=defaults.get(entry.theirs, entry.default)) for entry in entries])


def without(entries: Sequence[Entry], *names: str) -> tuple[Entry, ...]:
    """The entries but for those of these fields of our config."""
    return tuple([entry for entry in entries if entry.ours not in names])


def rules_of(names: Names, rules: Callable[[str, str], list[Rule]], theirs: str = "", ours: str = "") -> list[Rule]:
    """The rules of several layers, whose names begin with `theirs` and `ours`."""
    return [rule for a, b in names for rule in rules(f"{theirs}{a}", f"{ours}{b}")]


def dense(theirs: str, ours: str) -> list[Rule]:
    """The rules of a dense layer, whose weight PyTorch has transposed."""
    return [transpose(f"{theirs}.weight", f"{ours}.weight"), rename(f"{theirs}.bias", f"{ours}.bias")]


def norm(theirs: str, ours: str) -> list[Rule]:
    """The rules of a normalization."""
    return [rename(f"{theirs}.weight", f"{ours}.gamma"), rename(f"{theirs}.bias", f"{ours}.beta")]


def classes_in(settings: Settings) -> int:
    """The number of classes of a classifier."""
    names = settings.table("id2label")
    return settings.whole("num_labels", 2) if names is None else len(names.data)


def labels_of(classes: int) -> dict[str, Any]:
    """The inverse: names for the classes."""
    labels = {f"LABEL_{i}": i for i in range(classes)}
    return {"id2label": {str(i): label for label, i in labels.items()}, "label2id": labels}


def same_tensors(entry: object, other: object) -> bool:
    """Are both entries tensors with the same elements? They are read if shape and type are equal."""
    if entry is other:
        return True
    if not isinstance(entry, TensorEntry) or not isinstance(other, TensorEntry):
        return False
    a, b = entry.tensor, other.tensor
    return (a.shape, a.dtype) == (b.shape, b.dtype) and bool(np.array_equal(a.read(), b.read()))


_NEVER: tuple[tuple[str, Any, str], ...] = (
    ("auto_map", {}, "the model contains its own code, and code from files is never run"),
    ("pruned_heads", {}, "layers would have different numbers of heads; save the model without pruning"),
    ("is_encoder_decoder", False, "the model would be an encoder-decoder"),
    ("add_cross_attention", False, "the model would attend to the output of another model"),
)

_HARMLESS = frozenset({
    "quantization_config", "architectures", "model_type", "dtype", "torch_dtype", "use_bfloat16", "fp16",
    "transformers_version",
    "name_or_path", "tokenizer_class", "model_max_length", "max_sequence_length", "use_cache",
    "output_attentions", "output_hidden_states", "output_past", "output_scores", "return_dict",
    "return_dict_in_generate", "use_return_dict", "torchscript", "tf_legacy_loss", "chunk_size_feed_forward",
    "gradient_checkpointing", "is_decoder", "tie_encoder_decoder", "cross_attention_hidden_size",
    "finetuning_task", "problem_type", "task_specific_params", "num_labels", "id2label", "label2id",
    "classifier_dropout", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id",
    "mask_token_id", "unk_token_id", "decoder_start_token_id", "prefix", "initializer_range", "max_length",
    "min_length", "max_new_tokens", "do_sample", "early_stopping", "num_beams", "num_beam_groups",
    "diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty",
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences",
    "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
    "suppress_tokens", "begin_suppress_tokens", "unsloth_version", "unsloth_fixed",
})  # fmt: skip
"""What a method of quantization has read, and settings of tokenizers, training, generation and the form of results.

`transformers` writes most of them itself.
"""
