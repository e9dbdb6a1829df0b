"""A transformer of images for all families: what differs between them is in its config."""

from __future__ import annotations

from typing import Literal

from phlox.backend import DeviceLike, Float
from phlox.config import Config
from phlox.errors import ConfigError, ShapeError
from phlox.models.blocks import norm_of
from phlox.models.encoder import BlocksConfig
from phlox.models.parts import check_counts, dense
from phlox.module import Module, Param
from phlox.nn import Conv2d, Dropout, Normal, Zeros
from phlox.nn.activation import ACTIVATIONS, ActivationName
from phlox.tensor import Tensor, concat
from phlox.tensor.functional.operands import check_kind

__all__ = ["ImageClassifier", "ImageClassifierConfig", "VisionEncoder", "VisionEncoderConfig"]


class VisionEncoderConfig(BlocksConfig):
    """Hyper-parameters of `VisionEncoder`. The defaults are those of a small ViT.

    >>> import phlox as px
    >>> model = VisionEncoderConfig(image_size=(8, 8), patch_size=(4, 4), n_layers=1, d_model=4, n_heads=2).init()
    >>> model(px.ones((1, 3, 8, 8))).shape
    (1, 5, 4)
    """

    image_size: tuple[int, int] = (224, 224)
    """Height and width of the images."""
    patch_size: tuple[int, int] = (16, 16)
    """Height and width of the patches. Pixels that do not fill a patch, at the bottom and at the right, are ignored."""
    channels: int = 3
    family: str = ""
    """The family whose files hold such a model, as in `config.json` ("vit"); it changes nothing else."""
    class_token: bool = True
    """Whether a learned vector stands before the patches."""
    patch_bias: bool = True
    """Whether the projection of the patches has a bias."""
    pooling: Literal["first", "dense", "norm", "attention"] | None = "first"
    """How `VisionEncoder.pooled` makes one vector for an image: from the first vector, as it is, by a dense layer, or
    normalized; or by attention of a learned query, followed by an MLP. With None, it makes none."""
    d_pooled: int | None = None
    """The width of the dense layer of the pooling; by default d_model."""
    pooling_activation: ActivationName = "tanh"
    """The activation of this layer."""
    dropout: float = 0.0
    epsilon: float = 1e-6
    norm_place: Literal["before", "after"] = "before"
    embedding_norm: bool = False
    final_norm: bool = True

    def validate(self) -> None:
        super().validate()
        if min(self.patch_size) < 1 or any(a < b for a, b in zip(self.image_size, self.patch_size, strict=True)):
            raise ValueError(
                f"image_size={list(self.image_size)} does not contain a patch of patch_size={list(self.patch_size)}"
            )

    @property
    def n_patches(self) -> int:
        """The number of patches of an image."""
        (height, width), (patch_height, patch_width) = self.image_size, self.patch_size
        return (height // patch_height) * (width // patch_width)

    @property
    def pooled_width(self) -> int:
        """The width of the vector of an image."""
        return self.d_model if self.d_pooled is None or self.pooling != "dense" else self.d_pooled

    def init(self, device: DeviceLike | None = None) -> VisionEncoder:
        """The model; its parameters are created when they are first used."""
        return VisionEncoder(self, device)


class VisionEncoder(Module):
    """A transformer of the patches of images, described by its config (Dosovitskiy et al. 2020).

    Weights start normally distributed with standard deviation `init_std`, biases at zero.
    """

    def __init__(self, config: VisionEncoderConfig, device: DeviceLike | None = None) -> None:
        weights, width = Normal(std=config.init_std), config.d_model
        self.config = config
        self.patches = Conv2d(
            config.channels,
            width,
            config.patch_size,
            stride=config.patch_size,
            bias=config.patch_bias,
            initializer=weights,
            bias_initializer=Zeros(),
            device=device,
        )
        self.class_token = Param.deferred((width,), weights, device=device) if config.class_token else None
        self.positions = Param.deferred((config.n_patches + config.class_token, width), weights, device=device)
        self.dropout = Dropout(config.dropout)
        self.norm = norm_of(config, device) if config.embedding_norm else None
        self.blocks = [config.make_block(layer, device) for layer in range(config.n_layers)]
        self.final_norm = norm_of(config, device) if config.final_norm else None
        self.pooler = self.pooled_norm = self.attention_pool = None
        if config.pooling == "dense":
            self.pooler = dense(width, config.pooled_width, config.init_std, bias=True, device=device)
        elif config.pooling == "norm":
            self.pooled_norm = norm_of(config, device)
        elif config.pooling == "attention":
            self.attention_pool = AttentionPool(config, device)

    def __call__(self, images: Tensor) -> Tensor:
        """Images Float [batch, channels, height, width] to a vector for each patch, [batch, n, d_model].

        The vector of the class token, if there is one, is the first. Raises `ShapeError` for images of another size.
        """
        config = self.config
        check_kind("VisionEncoder", Float, images=images)
        if images.ndim != 4 or images.shape[1:] != (config.channels, *config.image_size):
            raise ShapeError(
                f"VisionEncoder: images must be [batch, {config.channels}, {config.image_size[0]}, "
                f"{config.image_size[1]}], as in the config, got shape {images.shape}; resize them first"
            )
        batch, width = images.shape[0], config.d_model
        x = self.patches(images).reshape((batch, width, config.n_patches)).swapaxes(1, 2)
        if self.class_token is not None:
            x = concat([self.class_token.val().broadcast_to((batch, 1, width)), x], 1)
        x = self.dropout(x + self.positions.val())
        x = x if self.norm is None else self.norm(x)
        for block in self.blocks:
            x, _ = block(x)
        return x if self.final_norm is None else self.final_norm(x)

    def pooled(self, hidden: Tensor) -> Tensor:
        """One vector for each image, from those of its patches: [batch, n, d_model] to [batch, d], see `pooling`."""
        if self.config.pooling is None:
            raise ConfigError("VisionEncoder: this model has no pooling; set `pooling` in its config")
        if self.attention_pool is not None:
            return self.attention_pool(hidden)
        first = hidden[:, 0]
        if self.pooled_norm is not None:
            return self.pooled_norm(first)
        return first if self.pooler is None else ACTIVATIONS[self.config.pooling_activation](self.pooler(first))


class AttentionPool(Module):
    """Attention of a learned query to all vectors, then an MLP: [batch, n, d_model] to [batch, d_model]."""

    def __init__(self, config: VisionEncoderConfig, device: DeviceLike | None = None) -> None:
        self.query = Param.deferred((config.d_model,), Normal(std=config.init_std), device=device)
        self.block = config.replace(first_norm=False).make_block(0, device)

    def __call__(self, hidden: Tensor) -> Tensor:
        block = self.block
        query = self.query.val().broadcast_to((hidden.shape[0], 1, hidden.shape[2]))
        x = block.attention(query, hidden)
        return (x + block.mlp(block.norm_2(x)))[:, 0]


class ImageClassifierConfig(Config):
    """Hyper-parameters of `ImageClassifier`.

    >>> import phlox as px
    >>> encoder = VisionEncoderConfig(image_size=(8, 8), patch_size=(4, 4), n_layers=1, d_model=4, n_heads=2)
    >>> ImageClassifierConfig(encoder, classes=3).init()(px.ones((1, 3, 8, 8))).shape
    (1, 3)
    """

    encoder: VisionEncoderConfig
    classes: int = 2

    def validate(self) -> None:
        check_counts(classes=self.classes)

    @property
    def family(self) -> str:
        """See `VisionEncoderConfig.family`."""
        return self.encoder.family

    def init(self, device: DeviceLike | None = None) -> ImageClassifier:
        """The model; its parameters are created when they are first used."""
        return ImageClassifier(self, device)


class ImageClassifier(Module):
    """A `VisionEncoder` that classifies images by their pooled vectors."""

    def __init__(self, config: ImageClassifierConfig, device: DeviceLike | None = None) -> None:
        inner = config.encoder
        self.config = config
        self.encoder = VisionEncoder(inner, device)
        self.head = dense(inner.pooled_width, config.classes, inner.init_std, bias=True, device=device)

    def __call__(self, images: Tensor) -> Tensor:
        """Images Float [batch, channels, height, width] to the logits of the classes, [batch, classes]."""
        return self.head(self.encoder.pooled(self.encoder(images)))
