"""CLIP: an image tower and a causal text tower with a shared embedding space; also each tower alone."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from glassformer.core import spec
from glassformer.families.family import Config, Family, read_options
from glassformer.families.image_encoder import Size, as_pair
from glassformer.families.image_text import (
    TEXT_KEYS,
    TINY_TOWERS,
    Tower,
    encoder_stack,
    image_rows,
    read_image_options,
    sub_config,
    text_rows,
    text_tower,
    write_image_options,
    write_text_options,
)
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Op, Rename

WITH_PROJECTION = "WithProjection"
LARGEST_ID = 2  # the eos_token_id of configs whose text is pooled at the largest id


def clip(
    *,
    image_size: Size = 224,
    patch_size: Size = 32,
    channels: int = 3,
    d_model: int = 768,
    num_heads: int = 12,
    d_ff: int = 3072,
    num_layers: int = 12,
    activation: spec.Activation = "quick_gelu",
    norm_eps: float = 1e-5,
    attention_dropout: float = 0.0,
    vocab_size: int = 49408,
    max_len: int = 77,
    end_id: int | None = None,
    text_d_model: int = 512,
    text_num_heads: int = 8,
    text_d_ff: int = 2048,
    text_num_layers: int = 12,
    text_activation: spec.Activation = "quick_gelu",
    text_norm_eps: float = 1e-5,
    text_attention_dropout: float = 0.0,
    projection_dim: int | None = 512,
    logit_scale: float = 2.6592,
    tower: Tower = "both",
) -> spec.TwoTowerSpec | spec.EncoderOnlySpec:
    """Create the spec of a CLIP model; the defaults are ViT-B/32.

    Options without the prefix text_ belong to the image tower.
    end_id: the end token, where a text is pooled; None: at the largest id.
    projection_dim: width of the embeddings; None: no projection, only for a single tower.
    logit_scale: initial log of the inverse temperature. tower: both towers, or one of them.
    """
    norm = spec.LayerNormSpec(eps=norm_eps)
    image = spec.EncoderOnlySpec(
        input=spec.ImagePatchesSpec(
            image_size=as_pair(image_size),
            patch_size=as_pair(patch_size),
            channels=channels,
            bias=False,
            norm=norm,
            interpolate=True,
        ),
        encoder=encoder_stack(
            d_model=d_model,
            num_heads=num_heads,
            d_ff=d_ff,
            num_layers=num_layers,
            activation=activation,
            norm_eps=norm_eps,
            attention_dropout=attention_dropout,
            final_norm=False,
        ),
        head=spec.ProjectionSpec(pool="first", norm=norm, projection_dim=projection_dim),
    )
    text = text_tower(
        encoder_stack(
            d_model=text_d_model,
            num_heads=text_num_heads,
            d_ff=text_d_ff,
            num_layers=text_num_layers,
            activation=text_activation,
            norm_eps=text_norm_eps,
            attention_dropout=text_attention_dropout,
            causal=True,
        ),
        spec.ProjectionSpec(
            pool="largest_id" if end_id is None else "first_end",
            end_id=-1 if end_id is None else end_id,
            projection_dim=projection_dim,
        ),
        vocab_size,
        max_len,
    )
    if tower != "both":
        return image if tower == "image" else text
    return spec.TwoTowerSpec(image=image, text=text, head=spec.SoftmaxSimilaritySpec(scale=logit_scale))


def from_config(config: Config) -> spec.TwoTowerSpec | spec.EncoderOnlySpec:
    name = config.architecture
    projection = config.get("projection_dim", 512)
    if name == "CLIPModel":
        options = {
            **_read_image(sub_config(config, "vision_config")),
            **_read_text(sub_config(config, "text_config")),
        }
        scale = config.get("logit_scale_init_value", 2.6592)
        return clip(**options, projection_dim=projection, logit_scale=scale)
    width = projection if name.endswith(WITH_PROJECTION) else None
    if name.startswith("CLIPText"):
        return clip(**_read_text(config), projection_dim=width, tower="text")
    return clip(**_read_image(config), projection_dim=width, tower="image")


def _read_image(config: Config) -> dict[str, Any]:
    return read_image_options(config, 32, activation="quick_gelu")


def _read_text(config: Config) -> dict[str, Any]:
    defaults = {"d_model": 512, "num_heads": 8, "d_ff": 2048, "vocab_size": 49408}
    options = read_options(config, TEXT_KEYS, activation="quick_gelu", **defaults)
    end = config.get("eos_token_id", 49407)
    shared = {name: options.pop(name) for name in ("vocab_size", "max_len")}
    named = {f"text_{name}": value for name, value in options.items()}
    return {**shared, **named, "end_id": None if end == LARGEST_ID else end}


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    if isinstance(model, spec.TwoTowerSpec):
        assert isinstance(model.head, spec.SoftmaxSimilaritySpec)
        return {
            "model_type": "clip",
            "architectures": ["CLIPModel"],
            "projection_dim": model.embedding_dim,
            "logit_scale_init_value": model.head.scale,
            "text_config": {"model_type": "clip_text_model", **_write_text(model.text)},
            "vision_config": {"model_type": "clip_vision_model", **write_image_options(model.image)},
        }
    assert isinstance(model, spec.EncoderOnlySpec) and isinstance(model.head, spec.ProjectionSpec)
    is_text = isinstance(model.input, spec.TokensSpec)
    width = model.head.projection_dim
    name = f"CLIP{'Text' if is_text else 'Vision'}Model{WITH_PROJECTION if width else ''}"
    return {
        "model_type": "clip_text_model" if is_text else "clip_vision_model",
        "architectures": [name],
        **(_write_text(model) if is_text else write_image_options(model)),
        **({"projection_dim": width} if width else {}),
    }


def _write_text(tower: spec.EncoderOnlySpec) -> dict[str, Any]:
    head = tower.head
    assert isinstance(head, spec.ProjectionSpec)
    end = LARGEST_ID if head.pool == "largest_id" else head.end_id
    return {**write_text_options(tower), "eos_token_id": end}


_NORMS = {"pre_layrnorm": "embed.norm", "post_layernorm": "head.norm"}  # the misspelling is published


def table(model: spec.ModelSpec, names: Collection[str]) -> WeightTable:
    if isinstance(model, spec.TwoTowerSpec):
        rows: tuple[Op, ...] = (
            *image_rows(model.image, "vision_model.", "image.", _NORMS),
            *text_rows(model.text, "text_model.", "text."),
            Rename("visual_projection.weight", "image.head.projection.weight"),
            Rename("text_projection.weight", "text.head.projection.weight"),
            Rename("logit_scale", "head.scale"),
        )
        return WeightTable(rows)
    assert isinstance(model, spec.EncoderOnlySpec) and isinstance(model.head, spec.ProjectionSpec)
    projects = model.head.projection_dim is not None
    if isinstance(model.input, spec.TokensSpec):
        rows, prefix, name = text_rows(model, "{base}", ""), "text_model.", "text_projection"
    else:
        rows, prefix, name = image_rows(model, "{base}", "", _NORMS), "vision_model.", "visual_projection"
    if projects:
        rows += (Rename(f"{name}.weight", "head.projection.weight"),)
    return WeightTable(rows, base=(prefix, "") if projects else ("", prefix))


_BASE = {"patch_size": 16}
_LARGE = {
    **{"patch_size": 14, "d_model": 1024, "num_heads": 16, "d_ff": 4096, "num_layers": 24},
    **{"text_d_model": 768, "text_num_heads": 12, "text_d_ff": 3072, "projection_dim": 768},
}

FAMILY = Family(
    name="clip",
    model_types=("clip", "clip_text_model", "clip_vision_model"),
    architectures=(
        "CLIPModel",
        "CLIPTextModel",
        "CLIPTextModelWithProjection",
        "CLIPVisionModel",
        "CLIPVisionModelWithProjection",
    ),
    build=clip,
    presets={
        "clip-vit-base-patch32": {},
        "clip-vit-base-patch16": _BASE,
        "clip-vit-large-patch14": _LARGE,
        "clip-vit-large-patch14-336": {**_LARGE, "image_size": 336},
    },
    tiny={**TINY_TOWERS, "projection_dim": 20},
    from_config=from_config,
    to_config=to_config,
    table=table,
)
