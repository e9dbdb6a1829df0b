"""Images and texts in one space: an encoder of each, trained to agree on pairs."""

from __future__ import annotations

from typing import Literal

from phlox.backend import DeviceLike
from phlox.config import Config
from phlox.models.encoder import Encoder, EncoderConfig
from phlox.models.parts import Mask, Tokens, check_counts, dense
from phlox.models.sentences import vectors_at
from phlox.models.vision import VisionEncoder, VisionEncoderConfig
from phlox.module import Module, Param
from phlox.nn import Constant, ContrastiveLoss, SigmoidContrastiveLoss
from phlox.tensor import Tensor, functional

__all__ = ["DualEncoder", "DualEncoderConfig"]


class DualEncoderConfig(Config):
    """Hyper-parameters of `DualEncoder`. The defaults are those of CLIP.

    >>> import phlox as px
    >>> sizes = {"n_layers": 1, "d_model": 4, "n_heads": 2}
    >>> text = EncoderConfig(vocabulary=10, context=8, pooler=False, **sizes)
    >>> image = VisionEncoderConfig(image_size=(8, 8), patch_size=(4, 4), **sizes)
    >>> model = DualEncoderConfig(text, image, d_shared=6).init()
    >>> model(px.ones((2, 3, 8, 8)), px.tensor([[1, 2, 9]])).shape
    (2, 1)
    """

    text: EncoderConfig
    image: VisionEncoderConfig
    d_shared: int = 512
    """The width of the vectors of images and texts."""
    text_pooling: Literal["end", "last"] = "end"
    """Which token's vector is that of a text: the first `end_token`, or the last token, even if it is padding."""
    end_token: int | None = None
    """By default the largest token of the text."""
    image_projection: bool = True
    """Whether the vectors of images are projected, as those of texts are; otherwise they have the width `d_shared`."""
    projection_bias: bool = False
    """Whether the projection of texts has a bias."""
    loss: Literal["softmax", "sigmoid"] = "softmax"
    """The loss: `phlox.nn.ContrastiveLoss` or `SigmoidContrastiveLoss`, whose logits have a bias."""
    logit_scale: float = 2.6592
    """The initial logarithm of the factor of the cosines."""
    logit_bias: float = -10.0
    """The initial bias of the logits with the loss "sigmoid"."""
    family: str = ""
    """The family whose files hold such a model, as in `config.json` ("clip"); it changes nothing else."""

    def validate(self) -> None:
        check_counts(d_shared=self.d_shared)
        if not self.image_projection and self.image.pooled_width != self.d_shared:
            raise ValueError(
                f"without image_projection, d_shared must be the width of an image's vector, "
                f"{self.image.pooled_width}, got {self.d_shared}"
            )

    def init(self, device: DeviceLike | None = None) -> DualEncoder:
        """The model; its parameters are created when they are first used."""
        return DualEncoder(self, device)


class DualEncoder(Module):
    """An encoder of images and one of texts, whose vectors have a large cosine if they belong together.

    CLIP (Radford et al. 2021) and SigLIP (Zhai et al. 2023) are such models.
    """

    def __init__(self, config: DualEncoderConfig, device: DeviceLike | None = None) -> None:
        text, image, width = config.text, config.image, config.d_shared
        self.config = config
        self.text = Encoder(text, device)
        self.image = VisionEncoder(image, device)
        self.text_projection = dense(text.d_model, width, text.init_std, bias=config.projection_bias, device=device)
        self.image_projection = None
        if config.image_projection:
            self.image_projection = dense(image.pooled_width, width, image.init_std, bias=False, device=device)
        self.logit_scale = Param.deferred((), Constant(config.logit_scale), device=device)
        has_bias = config.loss == "sigmoid"
        self.logit_bias = Param.deferred((), Constant(config.logit_bias), device=device) if has_bias else None

    def __call__(self, images: Tensor, tokens: Tokens, *, mask: Mask | None = None) -> Tensor:
        """The logits of each pair of an image and a text, [images, texts]: scaled cosines of their vectors.

        Args:
            images: Float [images, channels, height, width].
            tokens: Int [texts, n].
            mask: [texts, n], Bool or Int: true or not zero for tokens; by default there is no padding.
        """
        logits = (self.embed_images(images) @ self.embed_texts(tokens, mask=mask).mT) * self.logit_scale.val().exp()
        return logits if self.logit_bias is None else logits + self.logit_bias.val()

    def embed_images(self, images: Tensor) -> Tensor:
        """Unit vectors of images, [images, channels, height, width] to [images, d_shared]."""
        x = self.image.pooled(self.image(images))
        return functional.normalize(x if self.image_projection is None else self.image_projection(x))

    def embed_texts(self, tokens: Tokens, *, mask: Mask | None = None) -> Tensor:
        """Unit vectors of texts, [texts, n] to [texts, d_shared]."""
        hidden, end = self.text(tokens, mask=mask), self.config.end_token
        if self.config.text_pooling == "last":
            x = hidden[:, -1]
        else:
            x = vectors_at(hidden, (tokens if end is None else (tokens == end).int()).argmax(1))
        return functional.normalize(self.text_projection(x))

    def loss(self, images: Tensor, tokens: Tokens, *, mask: Mask | None = None) -> Tensor:
        """The contrastive loss of pairs: image i belongs to text i, and to no other."""
        logits = self(images, tokens, mask=mask)
        return ContrastiveLoss()(logits) if self.logit_bias is None else SigmoidContrastiveLoss()(logits)
