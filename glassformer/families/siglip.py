"""SigLIP: an image tower with attention pooling and a bidirectional text tower; trained with a sigmoid."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from glassformer.core import spec
from glassformer.families.family import Config, Family, read_options, rename_modules
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
from glassformer.weights.ops import Op, Rename, Reshape, Split, expand

_NORM_EPS = 1e-6


def siglip(
    *,
    image_size: Size = 224,
    patch_size: Size = 16,
    channels: int = 3,
    d_model: int = 768,
    num_heads: int = 12,
    d_ff: int = 3072,
    num_layers: int = 12,
    activation: spec.Activation = "gelu_tanh",
    norm_eps: float = _NORM_EPS,
    attention_dropout: float = 0.0,
    pooling: bool = True,
    vocab_size: int = 32000,
    max_len: int = 64,
    text_d_model: int = 768,
    text_num_heads: int = 12,
    text_d_ff: int = 3072,
    text_num_layers: int = 12,
    text_activation: spec.Activation = "gelu_tanh",
    text_norm_eps: float = _NORM_EPS,
    text_attention_dropout: float = 0.0,
    projection_dim: int | None = None,
    tower: Tower = "both",
) -> spec.TwoTowerSpec | spec.EncoderOnlySpec:
    """Create the spec of a SigLIP model; the defaults are the base model with patches of 16.

    Options without the prefix text_ belong to the image tower, whose embeddings have its width.
    pooling: whether the image tower has its attention pooling; only without a text tower it may lack it.
    projection_dim: width of the text embeddings, by default that of the image tower.
    tower: both towers, or one of them.
    """
    norm = spec.LayerNormSpec(eps=norm_eps)
    probe = spec.AttentionPoolSpec(
        attention=spec.AttentionSpec(num_heads=num_heads),
        feed_forward=spec.FeedForwardSpec(d_ff=d_ff, activation=activation),
        norm=norm,
    )
    image = spec.EncoderOnlySpec(
        input=spec.ImagePatchesSpec(
            image_size=as_pair(image_size),
            patch_size=as_pair(patch_size),
            channels=channels,
            prefix=0,
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
        ),
        head=probe if pooling else spec.FeaturesSpec(),
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
        ),
        spec.ProjectionSpec(
            pool="last_position",
            projection_dim=projection_dim or (text_d_model if tower == "text" else d_model),
            bias=True,
        ),
        vocab_size,
        max_len,
    )
    if tower != "both":
        return image if tower == "image" else text
    return spec.TwoTowerSpec(image=image, text=text, head=spec.SigmoidSimilaritySpec())


def from_config(config: Config) -> spec.TwoTowerSpec | spec.EncoderOnlySpec:
    name = config.architecture
    if name == "SiglipModel":
        image = _read_image(sub_config(config, "vision_config"))
        text = _read_text(sub_config(config, "text_config"))
        return siglip(**image, **text)
    if name == "SiglipTextModel":
        return siglip(**_read_text(config), tower="text")
    return siglip(**_read_image(config), tower="image")


def _read_image(config: Config) -> dict[str, Any]:
    options = read_image_options(config, 16, activation="gelu_pytorch_tanh", norm_eps=_NORM_EPS)
    return {**options, "pooling": config.get("vision_use_head", True)}


def _read_text(config: Config) -> dict[str, Any]:
    defaults = {"activation": "gelu_pytorch_tanh", "norm_eps": _NORM_EPS, "max_len": 64}
    options = read_options(config, TEXT_KEYS, **defaults)
    shared = {name: options.pop(name) for name in ("vocab_size", "max_len")}
    width = config.maybe("projection_size", int) or options["d_model"]
    return {**shared, **{f"text_{key}": value for key, value in options.items()}, "projection_dim": width}


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    if isinstance(model, spec.TwoTowerSpec):
        return {
            "model_type": "siglip",
            "architectures": ["SiglipModel"],
            "text_config": {"model_type": "siglip_text_model", **_write_text(model.text)},
            "vision_config": {"model_type": "siglip_vision_model", **write_image_options(model.image)},
        }
    assert isinstance(model, spec.EncoderOnlySpec)
    if isinstance(model.input, spec.TokensSpec):
        return {
            "model_type": "siglip_text_model",
            "architectures": ["SiglipTextModel"],
            **_write_text(model),
        }
    pooling = {} if isinstance(model.head, spec.AttentionPoolSpec) else {"vision_use_head": False}
    return {
        "model_type": "siglip_vision_model",
        "architectures": ["SiglipVisionModel"],
        **write_image_options(model),
        **pooling,
    }


def _write_text(tower: spec.EncoderOnlySpec) -> dict[str, Any]:
    assert isinstance(tower.head, spec.ProjectionSpec)
    return {**write_text_options(tower), "projection_size": tower.head.projection_dim}


def table(model: spec.ModelSpec, names: Collection[str]) -> WeightTable:
    if isinstance(model, spec.TwoTowerSpec):
        scalar = {"their_shape": (1,), "our_shape": ()}
        rows = (
            *_image_rows(model.image, "vision_model.", "image."),
            *_text_rows(model.text, "text_model.", "text."),
            Reshape("logit_scale", "head.scale", **scalar),
            Reshape("logit_bias", "head.bias", **scalar),
        )
        return WeightTable(rows)
    assert isinstance(model, spec.EncoderOnlySpec)
    if isinstance(model.input, spec.TokensSpec):
        return WeightTable(_text_rows(model, "{base}", ""), base=("", "text_model."))
    return WeightTable(_image_rows(model, "{base}", ""), base=("", "vision_model."))


def _text_rows(tower: spec.EncoderOnlySpec, theirs: str, ours: str) -> tuple[Op, ...]:
    head = rename_modules((f"{theirs}head", f"{ours}head.projection"))
    return (*text_rows(tower, theirs, ours), *head)


def _image_rows(tower: spec.EncoderOnlySpec, theirs: str, ours: str) -> tuple[Op, ...]:
    rows = image_rows(tower, theirs, ours, {"post_layernorm": "encoder.final_norm"})
    if not isinstance(tower.head, spec.AttentionPoolSpec):
        return rows
    sizes = (tower.encoder.d_model,) * 3
    fused = Split(
        f"{theirs}head.attention.in_proj_{{p}}", f"{ours}head.attn.{{q,k,v}}_proj.{{p}}", sizes=sizes
    )
    return (
        *rows,
        Rename(f"{theirs}head.probe", f"{ours}head.probe"),
        *expand((fused,), p=("weight", "bias")),
        *rename_modules(
            (f"{theirs}head.attention.out_proj", f"{ours}head.attn.out_proj"),
            (f"{theirs}head.layernorm", f"{ours}head.norm"),
            (f"{theirs}head.mlp.fc1", f"{ours}head.ffn.up"),
            (f"{theirs}head.mlp.fc2", f"{ours}head.ffn.down"),
        ),
    )


_LARGE = {
    **{"d_model": 1024, "num_heads": 16, "d_ff": 4096, "num_layers": 24},
    **{"text_d_model": 1024, "text_num_heads": 16, "text_d_ff": 4096, "text_num_layers": 24},
}

FAMILY = Family(
    name="siglip",
    model_types=("siglip", "siglip_text_model", "siglip_vision_model"),
    architectures=("SiglipModel", "SiglipTextModel", "SiglipVisionModel"),
    build=siglip,
    presets={
        "siglip-base-patch16-224": {},
        "siglip-base-patch16-256": {"image_size": 256},
        "siglip-base-patch16-384": {"image_size": 384},
        "siglip-large-patch16-256": {**_LARGE, "image_size": 256},
    },
    tiny=TINY_TOWERS,
    from_config=from_config,
    to_config=to_config,
    table=table,
)
