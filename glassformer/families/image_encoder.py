"""Shared by the image encoders: pre-norm layers, learned positions, prefix tokens, final norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from glassformer.core import spec
from glassformer.errors import InvalidValueError
from glassformer.families.config import Config
from glassformer.families.family import Builder, preset, spec_options
from glassformer.families.keys import ACTIVATION_NAMES, ACTIVATIONS, Head, Key, Options, Rule, activation
from glassformer.families.rows import layer_ops, rename_modules
from glassformer.weights.ops import Concat, Ignored, Op, Rename, expand

Size = int | tuple[int, int]

TINY_IMAGES: dict[str, Any] = preset(32, 4, 2, 64, image_size=16, patch_size=4, num_labels=10)


def as_pair(size: Size) -> tuple[int, int]:
    """Return height and width; a number stands for both."""
    return (size, size) if isinstance(size, int) else size


def image_encoder(
    *,
    prefix: int = 1,
    image_size: Size = 224,
    patch_size: Size = 16,
    channels: int = 3,
    d_model: int = 768,
    num_heads: int = 12,
    head_dim: int | None = None,
    d_ff: int = 3072,
    num_layers: int = 12,
    activation: spec.Activation = "gelu",
    norm_eps: float = 1e-12,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    qkv_bias: bool = True,
    swiglu: bool = False,
    layer_scale: float | None = None,
    drop_path: float = 0.0,
    registers: int | None = None,
    mask_token: bool = False,
    interpolate: bool = False,
    num_queries: int = 0,
    mid_positions: bool = False,
    pool: Literal["first", "first_mean"] = "first",
    num_labels: int = 1000,
    head: spec.HeadSpec | None = None,
) -> spec.EncoderOnlySpec:
    """Create the spec of an image encoder; the defaults are ViT-Base for ImageNet.

    prefix: number of trained tokens before the patches; with two, the default head classifies both.
    swiglu: gated feed-forward layers (SwiGLU), instead of `activation`.
    layer_scale: initial value of the factors on the output of each sublayer; None: no factors.
    drop_path: stochastic depth rate of every layer.
    registers: number of register tokens, trained tokens without positions; None: none, and positions are
    interpolated without antialiasing.
    mask_token: whether there is a token for masked patches.
    interpolate: accept images of other sizes.
    num_queries: number of object queries after the patches, for which the default head finds boxes.
    mid_positions: whether trained positions are added to the output of every layer but the last.
    pool: what the default head classifies: the first token, or it and the mean of the patches.
    """
    default_head: spec.HeadSpec = spec.ClassifySpec(num_labels=num_labels, pool=pool)
    if prefix == 2:
        default_head = spec.DistilledClassifySpec(num_labels=num_labels)
    elif num_queries:
        default_head = spec.BoxesSpec(num_labels=num_labels, class_layers=3, num_queries=num_queries)
    norm = spec.LayerNormSpec(eps=norm_eps)
    ffn: spec.FeedForwardSpec | spec.GatedFeedForwardSpec
    ffn = spec.FeedForwardSpec(d_ff=d_ff, activation=activation)
    if swiglu:
        ffn = spec.GatedFeedForwardSpec(d_ff=d_ff, biases=("up", "gate", "down"))
    return spec.EncoderOnlySpec(
        input=spec.ImagePatchesSpec(
            image_size=as_pair(image_size),
            patch_size=as_pair(patch_size),
            channels=channels,
            prefix=prefix,
            suffix=num_queries,
            layer_positions=num_layers - 1 if mid_positions else 0,
            dropout=dropout,
            registers=registers or 0,
            mask_token=mask_token,
            interpolate=interpolate,
            antialias=registers is not None,
        ),
        encoder=spec.StackSpec(
            d_model=d_model,
            num_layers=num_layers,
            block=spec.BlockSpec(
                attention=spec.AttentionSpec(
                    num_heads=num_heads,
                    head_dim=head_dim if head_dim and head_dim * num_heads != d_model else None,
                    biases=("q", "k", "v", "out") if qkv_bias else ("out",),
                    dropout=attention_dropout,
                ),
                feed_forward=ffn,
                norm=norm,
                wiring="pre",
                dropout=dropout,
                layer_scale=layer_scale,
            ),
            # a feature-map head with norms applies them to the hidden states before this one
            final_norm=None if isinstance(head, spec.BackboneSpec) and head.norm is not None else norm,
            drop_path=(drop_path, drop_path),
        ),
        head=head or default_head,
        init=spec.NormalSpec(std=0.02),
    )


def _invert(model: Any) -> dict[str, Any]:
    """Return the options of `image_encoder` that give a spec."""
    stack, source = model.encoder, model.input
    return {
        **spec_options(model),
        "swiglu": stack.block.feed_forward.gated,
        "num_queries": source.suffix,
        "mid_positions": source.layer_positions > 0 or (source.suffix > 0 and stack.num_layers == 1),
        "registers": source.registers if source.antialias else None,
    }


IMAGE_ENCODER = Builder(image_encoder, _invert, shared=True)


def read_size(config: Config, key: str, default: Size) -> tuple[int, int]:
    """Read a published size, one number or (height, width)."""
    value: Any = config.get(key, None)
    value = default if value is None else value
    pair = as_pair(value)
    if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(type(n) is int for n in pair):
        raise InvalidValueError(f"{config.where}: {key}", value, "an integer or [height, width]")
    return (pair[0], pair[1])


def write_sizes(options: Options) -> dict[str, Any]:
    """Return the config keys of the image and patch sizes; the inverse of `read_size`."""
    pairs = {key: as_pair(options[key]) for key in ("image_size", "patch_size")}
    return {key: high if high == wide else [high, wide] for key, (high, wide) in pairs.items()}


def sizes(image_size: Size = 224, patch_size: Size = 16) -> Rule:
    """Return the rule of the image and patch sizes; the arguments are the defaults."""
    defaults = {"image_size": image_size, "patch_size": patch_size}
    return Rule(
        tuple(defaults),
        lambda config, _: {key: read_size(config, key, size) for key, size in defaults.items()},
        write_sizes,
    )


def square_sizes(image_size: int = 224, patch_size: int = 16) -> Rule:
    """Return the rule of the sizes of square images and patches, by default image_size and patch_size."""

    def read(config: Config, _: Options) -> dict[str, Any]:
        patch: int = config.get("patch_size", patch_size)
        return {"image_size": config.get("image_size", image_size), "patch_size": patch}

    def write(options: Options) -> dict[str, Any]:
        (height, width), (rows, columns) = options["image_size"], options["patch_size"]
        assert height == width and rows == columns  # others are saved in Glassformer's own layout
        return {"image_size": height, "patch_size": rows}

    return Rule(("image_size", "patch_size"), read, write)


def _write_head_dim(options: Options) -> dict[str, Any]:
    usual = options["head_dim"] * options["num_heads"] == options["d_model"]
    return {} if usual else {"head_dim": options["head_dim"]}


KEYS = (
    Key("num_channels", "channels", 3),
    Key("hidden_size", "d_model", 768),
    Key("num_attention_heads", "num_heads", 12),
    Key("intermediate_size", "d_ff", 3072),
    Key("num_hidden_layers", "num_layers", 12),
    activation("hidden_act", "gelu"),
    Key("layer_norm_eps", "norm_eps", 1e-12),
    Key("hidden_dropout_prob", "dropout", 0.0),
    Key("attention_probs_dropout_prob", "attention_dropout", 0.0),
    Key("qkv_bias", default=True),
)
HEAD_DIM = Rule(("head_dim",), lambda config, _: {"head_dim": config.get("head_dim", 0)}, _write_head_dim)


def feature_map_layers(config: Config, num_layers: int) -> tuple[int, ...]:
    """Read which layers or stages of a backbone give feature maps: by name, by number, or the last."""
    names = _stage_names(num_layers)
    numbers: dict[Any, int] = {name: n for n, name in enumerate(names)}
    numbers |= {n: n % len(names) for n in range(-len(names), len(names))}
    for key in ("out_features", "out_indices"):
        wanted: Any = config.get(key, None)
        if isinstance(wanted, list) and all(type(n) in (int, str) and n in numbers for n in wanted):
            return tuple(sorted(numbers[n] for n in wanted))
        if wanted is not None:
            raise InvalidValueError(f"{config.where}: {key}", wanted, f"some of {', '.join(names)}")
    return (num_layers,)


def write_feature_maps(layers: tuple[int, ...], num_layers: int) -> dict[str, Any]:
    """Return the config keys of a backbone; the inverse of `feature_map_layers`."""
    names = _stage_names(num_layers)
    return {"out_features": [names[n] for n in layers], "out_indices": [*layers], "stage_names": names}


def _stage_names(num_layers: int) -> list[str]:
    return ["stem", *(f"stage{n}" for n in range(1, num_layers + 1))]


def _read_pooler(config: Config, _: Options) -> dict[str, Any]:
    """Return the fields of the head of a bare encoder, which is published with or without a pooler."""
    width, usual = config.get("pooler_output_size", 0), config.get("hidden_size", 768)
    activation: spec.Activation = config.choose("pooler_act", ACTIVATIONS, "tanh")
    if not config.has_pooler:
        return {}
    pooler_dim = width if width and width != usual else None
    return {"pooler": True, "pooler_dim": pooler_dim, "pooler_activation": activation}


def _write_pooler(head: Options) -> dict[str, Any]:
    if not head["pooler"]:
        return {"add_pooling_layer": False}
    width = {} if head["pooler_dim"] is None else {"pooler_output_size": head["pooler_dim"]}
    return {**width, "pooler_act": ACTIVATION_NAMES[head["pooler_activation"]]}


BARE = Head(spec.FeaturesSpec, (Rule(("pooler",), _read_pooler, _write_pooler),))


# published module names of a layer, in two spellings, and Glassformer's
LAYER = (
    ("attention.output.dense", "attention.o_proj", "self_attn.out_proj"),
    ("intermediate.dense", "mlp.fc1", "ffn.up"),
    ("output.dense", "mlp.fc2", "ffn.down"),
    ("layernorm_before", "layernorm_before", "norm_self"),
    ("layernorm_after", "layernorm_after", "norm_ffn"),
)
QUERIES = tuple(
    (f"attention.attention.{name}", f"attention.{short}_proj", f"self_attn.{short}_proj")
    for name, short in (("query", "q"), ("key", "k"), ("value", "v"))
)


def image_rows(model: Any) -> tuple[Op, ...]:
    """Return the weight operations of an image encoder."""

    def tied(modules: Sequence[tuple[str, str, str]], parts: tuple[str, ...]) -> tuple[Op, ...]:
        names = {"old": "{base}encoder.layer.{i}", "new": "{base}layers.{i}", "ours": "encoder.blocks.{i}"}
        return expand(layer_ops(modules, parts, **names), i=model.encoder.num_layers)

    both = ("weight", "bias")
    biased = "q" in model.encoder.block.attention.biases
    tokens = "{base}embeddings.{cls,distillation}_token"
    heads: dict[type, tuple[tuple[str, str], ...]] = {
        spec.ClassifySpec: (("classifier", "head.out"),),
        spec.DistilledClassifySpec: (
            ("cls_classifier", "head.first"),
            ("distillation_classifier", "head.second"),
        ),
    }
    pooled = getattr(model.head, "pooler", False)
    return (
        *tied(QUERIES, both if biased else ("weight",)),
        *tied(LAYER, both),
        *rename_modules(
            ("{base}embeddings.patch_embeddings.projection", "embed.patch"),
            ("{base}layernorm", "encoder.final_norm"),
            *heads.get(type(model.head), ()),
        ),
        Rename("{base}embeddings.position_embeddings", "embed.position"),
        Concat(tokens, "embed.prefix", sizes=(1, 1), dim=1)
        if model.input.prefix == 2
        else Rename("{base}embeddings.cls_token", "embed.prefix"),
        Ignored("{base}embeddings.mask_token"),  # from pretraining with masked patches
        *(
            rename_modules(("{base}pooler.dense", "head.pooler"))
            if pooled
            else (Ignored("{base}pooler.dense.*"),)  # other heads do not use the pooler
        ),
    )
