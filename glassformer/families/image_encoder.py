"""What the encoders of image squares share: pre-norm layers, learned positions, prefix tokens, final norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glassformer.core import spec
from glassformer.errors import InvalidValueError
from glassformer.families.family import ACTIVATIONS, PUBLISHED, Config, labels_of
from glassformer.weights.ops import Op, Rename, Tied, expand

Size = int | tuple[int, int]


def image_encoder(
    *,
    prefix: int,
    head: spec.Head,
    image_size: Size,
    patch_size: Size,
    channels: int,
    d_model: int,
    num_heads: int,
    head_dim: int | None,
    d_ff: int,
    num_layers: int,
    activation: spec.Activation,
    norm_eps: float,
    dropout: float,
    attention_dropout: float,
    qkv_bias: bool,
) -> spec.EncoderOnly:
    """The spec of an encoder that reads `prefix` learned tokens and then an image's squares."""
    norm = spec.LayerNorm(eps=norm_eps)
    return spec.EncoderOnly(
        input=spec.ImagePatches(
            image_size=(image_size, image_size) if isinstance(image_size, int) else image_size,
            patch_size=(patch_size, patch_size) if isinstance(patch_size, int) else patch_size,
            channels=channels,
            prefix=prefix,
            dropout=dropout,
        ),
        encoder=spec.Stack(
            d_model=d_model,
            num_layers=num_layers,
            block=spec.Block(
                attention=spec.Attention(
                    num_heads=num_heads,
                    head_dim=head_dim,
                    biases=("q", "k", "v", "out") if qkv_bias else ("out",),
                    dropout=attention_dropout,
                ),
                feed_forward=spec.FeedForward(d_ff=d_ff, activation=activation),
                norm=norm,
                wiring="pre",
                dropout=dropout,
            ),
            final_norm=norm,
        ),
        head=head,
        init=spec.Normal(std=0.02),
    )


def words_of(config: Config) -> dict[str, Any]:
    """The words of `image_encoder` that a published config gives, all but the prefix and the head."""
    d_model = config.get("hidden_size", 768)
    num_heads = config.get("num_attention_heads", 12)
    head_dim = config.get("head_dim", 0)
    return {
        "image_size": _size(config, "image_size", 224),
        "patch_size": _size(config, "patch_size", 16),
        "channels": config.get("num_channels", 3),
        "d_model": d_model,
        "num_heads": num_heads,
        "head_dim": head_dim if head_dim and head_dim * num_heads != d_model else None,
        "d_ff": config.get("intermediate_size", 3072),
        "num_layers": config.get("num_hidden_layers", 12),
        "activation": config.choose("hidden_act", ACTIVATIONS, "gelu"),
        "norm_eps": config.get("layer_norm_eps", 1e-12),
        "dropout": config.get("hidden_dropout_prob", 0.0),
        "attention_dropout": config.get("attention_probs_dropout_prob", 0.0),
        "qkv_bias": config.get("qkv_bias", True),
    }


def _size(config: Config, key: str, default: int) -> tuple[int, int]:
    """A published size, one number or (height, width)."""
    given: Any = config.get(key, None)
    given = default if given is None else given
    pair = (given, given) if isinstance(given, int) else given
    if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(type(n) is int for n in pair):
        raise InvalidValueError(f"{config.where}: {key}", given, "an integer or [height, width]")
    return (pair[0], pair[1])


def features_of(config: Config) -> spec.Features:
    """The bare encoder's output; published folders of it come with a pooler or without."""
    width = config.get("pooler_output_size", 0)
    activation = config.choose("pooler_act", ACTIVATIONS, "tanh")
    if not config.has_pooler:
        return spec.Features()
    return spec.Features(
        pooler=True,
        pooler_dim=width if width and width != config.get("hidden_size", 768) else None,
        pooler_activation=activation,
    )


def config_of(
    model: spec.Model, *, model_type: str, architectures: Mapping[type, str], prefix: int
) -> dict[str, Any]:
    """The published config of a spec that `image_encoder` made."""
    assert isinstance(model, spec.EncoderOnly) and isinstance(model.input, spec.ImagePatches)
    stack, attention, ffn = model.encoder, model.encoder.block.attention, model.encoder.block.feed_forward
    assert model.input.prefix == prefix and isinstance(stack.block.norm, spec.LayerNorm)
    config: dict[str, Any] = {
        "model_type": model_type,
        "architectures": [architectures[type(model.head)]],
        "image_size": _published_size(model.input.image_size),
        "patch_size": _published_size(model.input.patch_size),
        "num_channels": model.input.channels,
        "hidden_size": stack.d_model,
        "num_attention_heads": attention.num_heads,
        "num_hidden_layers": stack.num_layers,
        "intermediate_size": ffn.d_ff,
        "hidden_act": PUBLISHED[ffn.activation],
        "layer_norm_eps": stack.block.norm.eps,
        "hidden_dropout_prob": stack.block.dropout,
        "attention_probs_dropout_prob": attention.dropout,
        "qkv_bias": "q" in attention.biases,
        **labels_of(model.head),
    }
    if attention.head_dim is not None:
        config["head_dim"] = attention.head_dim
    if isinstance(model.head, spec.Features):
        config["pooler_output_size"] = model.head.pooler_dim or stack.d_model
        config["pooler_act"] = PUBLISHED[model.head.pooler_activation]
        if not model.head.pooler:
            config["add_pooling_layer"] = False
    return config


def _published_size(size: tuple[int, int]) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)


def rows_of(model: spec.EncoderOnly) -> tuple[Op, ...]:
    """Weight names, all but the prefix tokens and the head; two spellings of a layer's are known."""
    layer, block = "{base}encoder.layer.{i}", "encoder.blocks.{i}"
    later = "{base}layers.{i}"
    queries = expand(
        tuple(
            Tied(
                (f"{layer}.attention.attention.{theirs}.{{p}}", f"{later}.attention.{short}_proj.{{p}}"),
                f"{block}.self_attn.{short}_proj.{{p}}",
            )
            for theirs, short in (("query", "q"), ("key", "k"), ("value", "v"))
        ),
        i=model.encoder.num_layers,
        p=("weight", "bias") if "q" in model.encoder.block.attention.biases else ("weight",),
    )
    rest = expand(
        (
            Rename("{base}embeddings.position_embeddings", "embed.position"),
            Rename("{base}embeddings.patch_embeddings.projection.{p}", "embed.patch.{p}"),
            Tied(
                (f"{layer}.attention.output.dense.{{p}}", f"{later}.attention.o_proj.{{p}}"),
                f"{block}.self_attn.out_proj.{{p}}",
            ),
            Tied((f"{layer}.intermediate.dense.{{p}}", f"{later}.mlp.fc1.{{p}}"), f"{block}.ffn.up.{{p}}"),
            Tied((f"{layer}.output.dense.{{p}}", f"{later}.mlp.fc2.{{p}}"), f"{block}.ffn.down.{{p}}"),
            Tied(
                (f"{layer}.layernorm_before.{{p}}", f"{later}.layernorm_before.{{p}}"),
                f"{block}.norm_self.{{p}}",
            ),
            Tied(
                (f"{layer}.layernorm_after.{{p}}", f"{later}.layernorm_after.{{p}}"),
                f"{block}.norm_ffn.{{p}}",
            ),
            Rename("{base}layernorm.{p}", "encoder.final_norm.{p}"),
        ),
        i=model.encoder.num_layers,
        p=("weight", "bias"),
    )
    return queries + rest


# keys of these configs that say nothing about the numbers of the heads read here
IMMATERIAL_HERE = frozenset(("encoder_stride", "pooler_output_size", "pooler_act"))
