"""Shared by the families with an image tower and a text tower: pre-norm stacks with learned positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from glassformer.core import spec
from glassformer.families.family import (
    Config,
    Key,
    layer_rows,
    read_options,
    rename_modules,
    write_options,
)
from glassformer.weights.ops import Ignored, Op, Rename, Reshape, expand

Tower = Literal["both", "image", "text"]

_STACK_KEYS = (
    Key("hidden_size", "d_model", 768),
    Key("num_attention_heads", "num_heads", 12),
    Key("intermediate_size", "d_ff", 3072),
    Key("num_hidden_layers", "num_layers", 12),
    Key("hidden_act", "activation", "gelu"),
    Key("layer_norm_eps", "norm_eps", 1e-5),
    Key("attention_dropout", "attention_dropout", 0.0),
)
IMAGE_KEYS = (*_STACK_KEYS, Key("num_channels", "channels", 3))
TEXT_KEYS = (
    *_STACK_KEYS,
    Key("vocab_size", "vocab_size", 32000),
    Key("max_position_embeddings", "max_len", 77),
)
TINY_TOWERS: dict[str, Any] = {
    **{"image_size": 16, "patch_size": 4, "d_model": 32, "num_heads": 4, "d_ff": 64, "num_layers": 2},
    **{"text_d_model": 24, "text_num_heads": 4, "text_d_ff": 48, "text_num_layers": 2},
    **{"vocab_size": 101, "max_len": 16},
}


def encoder_stack(
    *,
    d_model: int,
    num_heads: int,
    d_ff: int,
    num_layers: int,
    activation: spec.Activation,
    norm_eps: float,
    attention_dropout: float,
    causal: bool = False,
    final_norm: bool = True,
) -> spec.StackSpec:
    """Create the stack of a tower."""
    norm = spec.LayerNormSpec(eps=norm_eps)
    return spec.StackSpec(
        d_model=d_model,
        num_layers=num_layers,
        block=spec.BlockSpec(
            attention=spec.AttentionSpec(num_heads=num_heads, dropout=attention_dropout),
            feed_forward=spec.FeedForwardSpec(d_ff=d_ff, activation=activation),
            norm=norm,
            wiring="pre",
        ),
        causal=causal,
        final_norm=norm if final_norm else None,
    )


def text_tower(
    stack: spec.StackSpec, head: spec.ProjectionSpec, vocab_size: int, max_len: int
) -> spec.EncoderOnlySpec:
    """Create a text tower. It has no pad id: padding is masked by the caller, or read."""
    tokens = spec.TokensSpec(vocab_size=vocab_size, position=spec.LearnedSpec(max_len=max_len))
    return spec.EncoderOnlySpec(input=tokens, encoder=stack, head=head)


def sub_config(config: Config, name: str) -> Config:
    """Return the config of a tower; the older key with the suffix _dict replaces it."""
    return config.nested(f"{name}_dict" if config.get(f"{name}_dict", {}) else name)


def read_image_options(config: Config, patch_size: int, **defaults: Any) -> dict[str, Any]:
    """Read the options of an image tower; images and patches are square in published configs."""
    return {
        **read_options(config, IMAGE_KEYS, **defaults),
        "image_size": config.get("image_size", 224),
        "patch_size": config.get("patch_size", patch_size),
    }


def write_image_options(tower: spec.EncoderOnlySpec) -> dict[str, Any]:
    """Return the config keys of an image tower; the inverse of `read_image_options`."""
    read = tower.input
    assert isinstance(read, spec.ImagePatchesSpec)
    (height, width), (patch_height, patch_width) = read.image_size, read.patch_size
    assert height == width and patch_height == patch_width
    sizes = {"image_size": height, "patch_size": patch_height}
    return {**_rename_gelu(write_options(tower, IMAGE_KEYS)), **sizes}


def write_text_options(tower: spec.EncoderOnlySpec) -> dict[str, Any]:
    """Return the config keys of a text tower."""
    assert isinstance(tower.input, spec.TokensSpec)
    return _rename_gelu(write_options(tower, TEXT_KEYS))


def _rename_gelu(config: dict[str, Any]) -> dict[str, Any]:
    # the name that these families use, and its faster implementation
    return config | ({"hidden_act": "gelu_pytorch_tanh"} if config["hidden_act"] == "gelu_new" else {})


_LAYER = {
    **{f"self_attn.{name}_proj": f"self_attn.{name}_proj" for name in ("q", "k", "v", "out")},
    **{"layer_norm1": "norm_self", "layer_norm2": "norm_ffn", "mlp.fc1": "ffn.up", "mlp.fc2": "ffn.down"},
}


def text_rows(tower: spec.EncoderOnlySpec, theirs: str, ours: str) -> tuple[Op, ...]:
    """Return the weight operations of a text tower without its head. theirs, ours: prefixes."""
    return (
        *layer_rows(
            f"{theirs}encoder.layers.{{i}}", f"{ours}encoder.blocks.{{i}}", tower.encoder.num_layers, _LAYER
        ),
        *expand(
            (Rename(f"{theirs}embeddings.{{n}}_embedding.weight", f"{ours}embed.{{n}}.weight"),),
            n=("token", "position"),
        ),
        *rename_modules((f"{theirs}final_layer_norm", f"{ours}encoder.final_norm")),
        Ignored(f"{theirs}embeddings.position_ids"),
    )


def image_rows(
    tower: spec.EncoderOnlySpec, theirs: str, ours: str, norms: Mapping[str, str]
) -> tuple[Op, ...]:
    """Return the weight operations of an image tower without its head.

    theirs, ours: prefixes. norms: published name -> Glassformer name of the norms around the stack.
    """
    read = tower.input
    assert isinstance(read, spec.ImagePatchesSpec)
    width, tokens = tower.encoder.d_model, read.prefix + read.num_patches
    rows: list[Op] = [
        *layer_rows(
            f"{theirs}encoder.layers.{{i}}", f"{ours}encoder.blocks.{{i}}", tower.encoder.num_layers, _LAYER
        ),
        *expand(
            (Rename(f"{theirs}embeddings.patch_embedding.{{p}}", f"{ours}embed.patch.{{p}}"),),
            p=("weight", "bias") if read.bias else ("weight",),
        ),
        Reshape(
            f"{theirs}embeddings.position_embedding.weight",
            f"{ours}embed.position",
            their_shape=(tokens, width),
            our_shape=(1, tokens, width),
        ),
        *rename_modules(*((f"{theirs}{name}", f"{ours}{norm}") for name, norm in norms.items())),
        Ignored(f"{theirs}embeddings.position_ids"),
    ]
    if read.prefix:
        rows.append(
            Reshape(
                f"{theirs}embeddings.class_embedding",
                f"{ours}embed.prefix",
                their_shape=(width,),
                our_shape=(1, 1, width),
            )
        )
    return tuple(rows)
