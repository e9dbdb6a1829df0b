"""Small random encoders of images, and of images and texts, give the results of transformers, and go back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.errors import ConfigError, ShapeError
from phlox.interop import huggingface
from phlox.models import EncoderConfig, ImageClassifierConfig, VisionEncoderConfig

BLOCKS: dict[str, Any] = {
    "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 3,
}  # fmt: skip
IMAGES = {**BLOCKS, "image_size": 22, "patch_size": 5}  # two pixels at the edge fill no patch
TEXTS = {**BLOCKS, "vocab_size": 97, "max_position_embeddings": 12, "eos_token_id": 96, "bos_token_id": 1}
WIDE = {"hidden_size": 40, "num_attention_heads": 4}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "vit": ("ViT", "Model", {**IMAGES, "qkv_bias": False, "layer_norm_eps": 1e-3, "hidden_act": "relu"}),
    "vit pooler": ("ViT", "Model", {**IMAGES, "pooler_output_size": 7, "pooler_act": "relu", "num_channels": 1}),
    "vit oblong": ("ViT", "Model", {**IMAGES, "image_size": [22, 10], "patch_size": [5, 3]}),
    "vit classes": ("ViT", "ForImageClassification", {**IMAGES, "num_labels": 4}),
    "clip": ("CLIP", "Model", {"text_config": TEXTS, "vision_config": {**IMAGES, **WIDE}, "projection_dim": 10}),
    "clip of old": ("CLIP", "Model", {
        "text_config": {**TEXTS, "eos_token_id": 2, "hidden_act": "gelu"}, "vision_config": IMAGES,
    }),
    "clip texts": ("CLIPText", "Model", TEXTS),
    "clip images": ("CLIPVision", "Model", {**IMAGES, "num_channels": 1, "layer_norm_eps": 1e-3}),
    "siglip": ("Siglip", "Model", {
        "text_config": {**TEXTS, "projection_size": 40}, "vision_config": {**IMAGES, **WIDE},
    }),
    "siglip images": ("SiglipVision", "Model", IMAGES),
    "siglip without head": ("SiglipVision", "Model", {**IMAGES, "vision_use_head": False}),
}  # fmt: skip


def made(case: str) -> tuple[Any, Any]:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    name, kind, options = CASES[case]
    torch.manual_seed(0)
    model = getattr(transformers, name + kind)(getattr(transformers, f"{name}Config")(**options)).eval()
    for parameter in model.parameters():
        parameter.data += torch.randn_like(parameter) * 0.05
    return torch, model


FULL = ("vit pooler", "vit oblong", "clip of old", "clip images", "siglip images")
PARAMS = [pytest.param(case, marks=[pytest.mark.full] if case in FULL else []) for case in CASES]


@pytest.mark.parametrize("case", PARAMS)
def test_results_are_theirs(case: str, tmp_path: Path) -> None:
    torch, reference = made(case)
    reference.save_pretrained(tmp_path / "theirs")
    rng, options = np.random.default_rng(0), CASES[case][2]
    of_images = options.get("vision_config", options)
    size = of_images.get("image_size", 0)
    height, width = size if isinstance(size, list) else (size, size)
    images = rng.normal(size=(3, of_images.get("num_channels", 3), height, width)).astype(np.float32)
    tokens, mask = rng.integers(3, 90, (3, 9)), np.ones((3, 9), np.int64)
    tokens[:, -1] = tokens[1, 4] = 96  # the end; text 1 is shorter
    mask[1, 5:] = 0
    tokens[1, 5:] = 95
    has_images, has_texts, both = (
        "texts" not in case,
        "text" in str(options) or "texts" in case,
        "text_config" in options,
    )
    inputs: dict[str, Any] = {"pixel_values": images} if has_images else {}
    if has_texts:
        inputs |= {"input_ids": tokens, "attention_mask": mask}

    def of(model: Any) -> dict[str, Any]:
        with torch.no_grad():
            further = {"return_loss": True} if both else {}
            result = model(**{name: torch.tensor(value) for name, value in inputs.items()}, **further)
        names = (
            "last_hidden_state",
            "pooler_output",
            "logits",
            "logits_per_image",
            "text_embeds",
            "image_embeds",
            "loss",
        )
        return {name: result[name].numpy() for name in (*names, "loss") if result.get(name) is not None}

    expected = of(reference)
    for backend in ("numpy", "jax", "torch"):
        model = huggingface.load(tmp_path / "theirs", device=backend)
        x, text, is_token = (px.tensor(value, device=backend) for value in (images, tokens, mask))
        if both:
            ours = {
                "logits_per_image": model(x, text, mask=is_token),
                "text_embeds": model.embed_texts(text, mask=is_token),
                "image_embeds": model.embed_images(x),
                "loss": model.loss(x, text, mask=is_token),
            }
        elif "logits" in expected:
            ours = {"logits": model(x)}
        else:
            hidden = model(text, mask=is_token) if has_texts else model(x)
            ours = {"last_hidden_state": hidden}
            if has_images and "pooler_output" in expected:
                ours["pooler_output"] = model.pooled(hidden)
        for name, value in ours.items():
            seen = mask.astype(bool) if name == "last_hidden_state" and has_texts else ...
            np.testing.assert_allclose(
                value.numpy()[seen], expected[name][seen], atol=1e-5, err_msg=f"{backend} {name}"
            )
    model = huggingface.load(tmp_path / "theirs", device="numpy")
    end = {"eos_token_id": 96, "bos_token_id": 1} if case == "clip texts" else {}  # an Encoder alone has none
    huggingface.save(model, tmp_path / "ours", config=end)
    again = of(type(reference).from_pretrained(tmp_path / "ours").eval())
    for name, value in expected.items():
        np.testing.assert_allclose(again[name], value, atol=5e-6)
    assert huggingface.load(tmp_path / "ours", device="numpy").config == model.config


def test_bad_input_and_configs() -> None:
    sizes: dict[str, Any] = {"n_layers": 1, "d_model": 8, "n_heads": 2, "image_size": (8, 8), "patch_size": (4, 4)}
    config = VisionEncoderConfig(**sizes)
    model = config.init("numpy")
    with pytest.raises(ShapeError, match=r"images must be \[batch, 3, 8, 8\], .* got shape \(1, 3, 9, 8\); resize"):
        model(px.ones((1, 3, 9, 8)))
    with pytest.raises(ShapeError, match=r"got shape \(3, 8, 8\)"):
        model(px.ones((3, 8, 8)))
    with pytest.raises(ConfigError, match="does not contain a patch"):
        config.replace(patch_size=(9, 4))
    with pytest.raises(ConfigError, match="set `pooling`"):
        config.replace(pooling=None).init("numpy").pooled(px.ones((1, 4, 8)))
    for wrong, words in (
        (config.replace(norm_place="after"), ("norm_place", "vit")),
        (ImageClassifierConfig(config.replace(pooling="norm")), ("pooling",)),
        (config.replace(family="clip_vision_model"), ("embedding_norm=False", "clip_vision_model")),
    ):
        with pytest.raises(ConfigError) as caught:
            huggingface.save(wrong.init("numpy"), "unused")
        assert all(word in str(caught.value) for word in words), str(caught.value)
    for data, words in (
        ({"model_type": "vit", "image_size": [8]}, ("image_size", "[8]")),
        ({"model_type": "vit", "hidden_act": "mish"}, ("mish",)),
        ({"model_type": "clip", "text_config": {"rotary": True}}, ("text_config", "rotary", "not known")),
        ({"model_type": "clip", "vision_config": {"use_cls": False}}, ("vision_config", "use_cls", "not known")),
        ({"model_type": "clip", "text_config": [1]}, ("text_config", "object")),
        ({"model_type": "siglip", "text_config": {"projection_size": 9}}, ("768", "9")),
        ({"model_type": "siglip", "text_config": {"auto_map": {"a": "b"}}}, ("auto_map",)),
        ({"model_type": "clip", "architectures": ["CLIPForImageClassification"]}, ("CLIPForImageClassification",)),
    ):
        with pytest.raises(ConfigError) as caught:
            huggingface.config_from(data)
        assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_former_name_of_the_settings_has_precedence() -> None:
    data = {"model_type": "clip", "text_config": {"hidden_size": 64}, "text_config_dict": {"hidden_size": 128}}
    config: Any = huggingface.config_from(data)
    assert isinstance(config.text, EncoderConfig) and config.text.d_model == 128
