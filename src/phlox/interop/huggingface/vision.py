"""The families of encoders of images, and of images and texts: ViT, CLIP, SigLIP."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, cast

from phlox.errors import ConfigError
from phlox.interop.adapter import Adapter, Rule, convert, split
from phlox.interop.huggingface.encoders import BLOCKS, FUNCTIONS, TEXTS, check_saved
from phlox.interop.huggingface.family import Entry, Family, classes_in, dense, labels_of, with_defaults
from phlox.interop.huggingface.settings import Settings
from phlox.models import DualEncoderConfig, EncoderConfig, ImageClassifierConfig, VisionEncoderConfig


def sizes_in(settings: Settings, key: str, default: Any) -> Any:
    """A height and a width: one number for both, or two."""
    value: Any = settings.get(key, default)
    sizes = cast("list[Any]", [value, value] if type(value) is int else value)
    if not isinstance(value, int | list | tuple) or [type(size) for size in sizes] != [int, int]:
        raise ConfigError(f"{settings.location}: {key} must be a number of pixels, or two, got {str(sizes)[:100]}")
    return tuple(sizes)


def _sizes_out(sizes: tuple[int, int]) -> Any:
    """The inverse."""
    return sizes[0] if sizes[0] == sizes[1] else list(sizes)


_IMAGES = (
    *BLOCKS,
    Entry("num_channels", "channels", Settings.whole, 3),
    Entry("image_size", "image_size", sizes_in, 224, write=_sizes_out),
    Entry("patch_size", "patch_size", sizes_in, 16, write=_sizes_out),
)
_TEXTS = with_defaults((*BLOCKS, *TEXTS), vocab_size=32000, max_position_embeddings=64)
_TOWER = (
    Entry("attention_dropout", "attention_dropout", Settings.number, 0.0),
    Entry("hidden_act", "activation", Settings.activation, "gelu_pytorch_tanh"),
    Entry("layer_norm_eps", "epsilon", Settings.number, 1e-6),
)
_LINEARS = (
    *[
        (f"self_attn.{a}_proj", f"attention.{b}")
        for a, b in (("q", "query"), ("k", "key"), ("v", "value"), ("out", "out"))
    ],
    ("mlp.fc1", "up"),
    ("mlp.fc2", "down"),
)
_NORMS = (("layer_norm1", "norm_1"), ("layer_norm2", "norm_2"))


def without_axes(theirs: str, ours: str, count: int) -> Rule:
    """The rule of a tensor that has `count` further axes of length 1 in their model, the first ones."""
    return convert(
        theirs,
        ours,
        lambda array: array.reshape(array.shape[count:]),
        lambda array: array.reshape((*[1] * count, *array.shape)),
        shape=lambda shape: shape[count:],
        shape_back=lambda shape: (*[1] * count, *shape),
    )


class TowerFamily(Family):
    """The base: one encoder, of images or texts, without a head. Names in a layer are CLIP's."""

    uncompared: ClassVar[tuple[str, ...]] = ()
    """Fields of our config that the file of weights says, and not the settings."""
    # Factors of initial weights; a rate that transformers does not use; what belongs to the model with both towers.
    harmless = frozenset({"initializer_factor", "dropout", "projection_dim", "projection_size", "tie_word_embeddings"})
    layers = "encoder.layers"
    linears = _LINEARS
    norms = _NORMS
    no_weights = ("**.position_ids",)

    def config_from(self, settings: Settings, architecture: str) -> Any:
        """See `Family.config_from`."""
        fields = {**self.constants, **self.fields_from(settings), "family": self.model_type}
        return self.configs[0](**fields)

    def settings_of(self, config: Any) -> dict[str, Any]:
        """See `Family.settings_of`."""
        result = {"architectures": [self.architectures[0]], **self.entries_of(config)}
        check_saved(config, self.config_from(Settings(result), self.architectures[0]), self.model_type, self.uncompared)
        return result

    def saved_prefix(self, config: Any) -> str:
        """See `Family.saved_prefix`."""
        return ""


class Vit(TowerFamily):
    """A class token, and a pooler that ViTForImageClassification does not have."""

    model_type = "vit"
    configs = (VisionEncoderConfig, ImageClassifierConfig)
    architectures = ("ViTModel", "ViTForImageClassification")
    prefix = "vit"
    entries = (
        *_IMAGES,
        *with_defaults(FUNCTIONS, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
        Entry("qkv_bias", "attention_bias", Settings.flag, True),
        Entry("pooler_output_size", "d_pooled", Settings.whole, None, saved="d_model"),
        Entry("pooler_act", "pooling_activation", Settings.activation, "tanh"),
    )
    harmless = frozenset({"encoder_stride", "tie_word_embeddings"})
    uncompared = ("pooling", "d_pooled")
    layers = "encoder.layer"
    linears = (
        *[(f"attention.attention.{name}", f"attention.{name}") for name in ("query", "key", "value")],
        ("attention.output.dense", "attention.out"),
        ("intermediate.dense", "up"),
        ("output.dense", "down"),
    )
    norms = (("layernorm_before", "norm_1"), ("layernorm_after", "norm_2"))
    outer_norms = (("layernorm", "final_norm"),)
    outer_linears = (("pooler.dense", "pooler"),)
    weights = (("embeddings.patch_embeddings.projection.*", "patches.*"),)

    def config_from(self, settings: Settings, architecture: str) -> Any:
        """See `Family.config_from`."""
        encoder = super().config_from(settings, architecture)
        if architecture == "ViTModel":
            return encoder.replace(pooling="dense")
        return ImageClassifierConfig(encoder, classes=classes_in(settings))

    def settings_of(self, config: Any) -> dict[str, Any]:
        """See `Family.settings_of`."""
        if isinstance(config, VisionEncoderConfig):
            if config.pooling not in ("dense", "first"):
                raise ConfigError(f"a model with pooling={config.pooling!r} cannot be saved as vit")
            return super().settings_of(config)
        if config.encoder.pooling != "first":
            raise ConfigError('an ImageClassifier can be saved as vit with pooling="first"')
        further = {"architectures": [self.architectures[1]], **labels_of(config.classes)}
        return super().settings_of(config.encoder) | further

    def rules(self) -> list[Rule]:
        """See `Family.rules`."""
        return [
            *super().rules(),
            without_axes("embeddings.cls_token", "class_token", 2),
            without_axes("embeddings.position_embeddings", "positions", 1),
        ]

    def adapter(self, config: Any, prefix: str) -> Adapter:
        """See `Family.adapter`."""
        if isinstance(config, VisionEncoderConfig):
            return super().adapter(config, prefix)
        return Adapter([*Adapter(self.rules()).under(prefix, "encoder").rules, *dense("classifier", "head")])

    def n_layers(self, config: Any) -> int:
        """See `Family.n_layers`."""
        return getattr(config, "encoder", config).n_layers

    def saved_prefix(self, config: Any) -> str:
        """See `Family.saved_prefix`."""
        return "" if isinstance(config, VisionEncoderConfig) else self.prefix

    def fitted(self, config: Any, paths: Iterable[str]) -> Any:
        """See `Family.fitted`: a ViTModel may have no pooler, which its config does not say."""
        if isinstance(config, VisionEncoderConfig) and not any("pooler." in path for path in paths):
            return config.replace(pooling="first")
        return config

    def ignored(self, config: Any) -> tuple[str, ...]:
        """See `Family.ignored`: a pooler that the model does not have, and the mask of the training."""
        pooler = () if getattr(config, "pooling", None) == "dense" else ("**.pooler.dense.*",)
        return (*super().ignored(config), "**.mask_token", *pooler)


_TEXT_FIELDS: dict[str, Any] = {
    "norm_place": "before", "embedding_norm": False, "final_norm": True, "segments": None, "padding_index": None,
    "pooler": False, "dropout": 0.0,
}  # fmt: skip
_TEXT_WEIGHTS = (
    ("embeddings.token_embedding.weight", "tokens.weight"),
    ("embeddings.position_embedding.weight", "positions"),
)
_IMAGE_WEIGHTS = (
    ("embeddings.patch_embedding.*", "patches.*"),
    ("embeddings.position_embedding.weight", "positions"),
)


class SiglipText(TowerFamily):
    """SigLIP's encoder of texts, which is not in a file of its own."""

    model_type = "siglip_text_model"
    configs = (EncoderConfig,)
    architectures = ("SiglipTextModel",)
    prefix = "text_model"
    entries = (*_TEXTS, *_TOWER)
    constants: ClassVar = _TEXT_FIELDS
    weights = _TEXT_WEIGHTS
    outer_norms = (("final_layer_norm", "final_norm"),)


class ClipText(SiglipText):
    """CLIP's encoder of texts, which is causal."""

    model_type = "clip_text_model"
    architectures = ("CLIPTextModel",)
    entries = with_defaults(
        SiglipText.entries, hidden_size=512, intermediate_size=2048, num_attention_heads=8, vocab_size=49408,
        max_position_embeddings=77, hidden_act="quick_gelu", layer_norm_eps=1e-5,
    )  # fmt: skip
    constants: ClassVar = {**_TEXT_FIELDS, "causal": True}


def _attention_or_none(settings: Settings, key: str, default: bool) -> str | None:
    """The pooling of SigLIP's encoder of images."""
    return "attention" if settings.flag(key, default) else None


class SiglipVision(TowerFamily):
    """SigLIP's encoder of images, with attention as pooling."""

    model_type = "siglip_vision_model"
    configs = (VisionEncoderConfig,)
    architectures = ("SiglipVisionModel",)
    prefix = "vision_model"
    entries = (
        *_IMAGES,
        *_TOWER,
        Entry("vision_use_head", "pooling", _attention_or_none, True, write=bool),
    )
    constants: ClassVar = {"class_token": False}
    weights = _IMAGE_WEIGHTS
    outer_norms = (("post_layernorm", "final_norm"), ("head.layernorm", "attention_pool.block.norm_2"))
    outer_linears = (
        ("head.attention.out_proj", "attention_pool.block.attention.out"),
        ("head.mlp.fc1", "attention_pool.block.up"),
        ("head.mlp.fc2", "attention_pool.block.down"),
    )

    def rules(self) -> list[Rule]:
        """See `Family.rules`."""
        parts = [f"attention_pool.block.attention.{name}" for name in ("query", "key", "value")]
        return [
            *super().rules(),
            without_axes("head.probe", "attention_pool.query", 2),
            split("head.attention.in_proj_weight", [f"{part}.weight" for part in parts], transposed=True),
            split("head.attention.in_proj_bias", [f"{part}.bias" for part in parts]),
        ]


class ClipVision(TowerFamily):
    """CLIP's encoder of images, with a class token."""

    model_type = "clip_vision_model"
    configs = (VisionEncoderConfig,)
    architectures = ("CLIPVisionModel",)
    prefix = "vision_model"
    entries = with_defaults((*_IMAGES, *_TOWER), patch_size=32, hidden_act="quick_gelu", layer_norm_eps=1e-5)
    constants: ClassVar = {"embedding_norm": True, "final_norm": False, "patch_bias": False, "pooling": "norm"}
    weights = (*_IMAGE_WEIGHTS, ("embeddings.class_embedding", "class_token"))
    outer_norms = (("pre_layrnorm", "norm"), ("post_layernorm", "pooled_norm"))


class DualFamily(Family):
    """The base of models with an encoder of images and one of texts."""

    configs = (DualEncoderConfig,)
    prefix = ""
    entries = ()
    text: ClassVar[TowerFamily]
    image: ClassVar[TowerFamily]
    constants: ClassVar[dict[str, Any]] = {}
    harmless = frozenset({"initializer_factor", "tie_word_embeddings"})
    no_weights = ("**.position_ids",)

    def part(self, settings: Settings, key: str, family: TowerFamily) -> tuple[Settings, Any]:
        """The settings of one encoder, and our config. A former name of them, if it is there, has precedence."""
        data: dict[str, Any] = {}
        for name in (key, f"{key}_dict"):
            table: Any = settings.get(name, None) or {}
            if not isinstance(table, dict):
                raise ConfigError(f"{settings.location}: {name} must be an object")
            data |= table
        inner = Settings(data, f"{settings.location}: {key}")
        family.check(inner)
        return inner, family.config_from(inner, family.architectures[0])

    def head_fields(self, settings: Settings, text: Settings, config: EncoderConfig) -> dict[str, Any]:
        """The fields of our config besides the encoders."""
        raise NotImplementedError

    def head_settings(self, config: DualEncoderConfig) -> tuple[dict[str, Any], dict[str, Any]]:
        """The inverse: further settings, and some of the text."""
        raise NotImplementedError

    def config_from(self, settings: Settings, architecture: str) -> Any:
        """See `Family.config_from`."""
        text_settings, text = self.part(settings, "text_config", self.text)
        image_settings, image = self.part(settings, "vision_config", self.image)
        fields = {**self.constants, **self.head_fields(settings, text_settings, text)}
        self.text.check_all_read(text_settings)
        self.image.check_all_read(image_settings)
        return DualEncoderConfig(text, image, **fields, family=self.model_type)

    def settings_of(self, config: DualEncoderConfig) -> dict[str, Any]:
        """See `Family.settings_of`."""
        further, of_text = self.head_settings(config)
        text = {**self.text.settings_of(config.text), **of_text, "model_type": self.text.model_type}
        image = {**self.image.settings_of(config.image), "model_type": self.image.model_type}
        result = {"architectures": [self.architectures[0]], "text_config": text, "vision_config": image, **further}
        again = self.config_from(Settings(result), self.architectures[0])
        check_saved(config, again, self.model_type, ("text", "image", "logit_scale", "logit_bias"))
        return result

    def adapter(self, config: DualEncoderConfig, prefix: str) -> Adapter:
        """See `Family.adapter`."""
        text = Adapter(self.text.rules()).under("text_model", "text").rules
        image = Adapter(self.image.rules()).under("vision_model", "image").rules
        return Adapter([*text, *image, *self.rules(), *self.further_rules(config)])

    def n_layers(self, config: DualEncoderConfig) -> int:
        """See `Family.n_layers`."""
        return config.text.n_layers + config.image.n_layers


class Clip(DualFamily):
    """`DualEncoder` as CLIPModel."""

    model_type = "clip"
    architectures = ("CLIPModel",)
    weights = (("logit_scale", "logit_scale"),)
    outer_linears = (("text_projection", "text_projection"), ("visual_projection", "image_projection"))
    text = ClipText()
    image = ClipVision()

    def head_fields(self, settings: Settings, text: Settings, config: EncoderConfig) -> dict[str, Any]:
        """See `DualFamily.head_fields`."""
        end = text.whole("eos_token_id", 49407)  # 2 is what former files say; the end is then the largest token
        scale = settings.number("logit_scale_init_value", 2.6592)
        width = settings.whole("projection_dim", 512)
        return {"d_shared": width, "end_token": None if end == 2 else end, "logit_scale": scale}

    def head_settings(self, config: DualEncoderConfig) -> tuple[dict[str, Any], dict[str, Any]]:
        """See `DualFamily.head_settings`."""
        end = 2 if config.end_token is None else config.end_token
        further = {"projection_dim": config.d_shared, "logit_scale_init_value": config.logit_scale}
        return further, {"eos_token_id": end, "bos_token_id": 0}


class Siglip(DualFamily):
    """`DualEncoder` as SiglipModel."""

    model_type = "siglip"
    architectures = ("SiglipModel",)
    outer_linears = (("text_model.head", "text_projection"),)
    text = SiglipText()
    image = SiglipVision()
    constants: ClassVar = {
        "text_pooling": "last", "image_projection": False, "projection_bias": True, "loss": "sigmoid",
    }  # fmt: skip

    def head_fields(self, settings: Settings, text: Settings, config: EncoderConfig) -> dict[str, Any]:
        """See `DualFamily.head_fields`."""
        return {"d_shared": text.whole("projection_size", config.d_model)}

    def head_settings(self, config: DualEncoderConfig) -> tuple[dict[str, Any], dict[str, Any]]:
        """See `DualFamily.head_settings`."""
        return {}, {"projection_size": config.d_shared, "bos_token_id": 0, "eos_token_id": 0}

    def further_rules(self, config: DualEncoderConfig) -> list[Rule]:
        """See `Family.further_rules`."""
        return [without_axes(name, name, 1) for name in ("logit_scale", "logit_bias")]


VISION: tuple[Family, ...] = (
    Vit(), Clip(), ClipText(), ClipVision(), Siglip(), SiglipVision(),
)  # fmt: skip
