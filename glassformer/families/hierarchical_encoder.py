"""Shared by the hierarchical image encoders: stages of window attention with patch merging between them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from glassformer.core import spec
from glassformer.errors import ConflictError, InvalidValueError
from glassformer.families.config import Config
from glassformer.families.family import Builder
from glassformer.families.image_encoder import (
    LAYER,
    Size,
    as_pair,
    feature_map_layers,
    sizes,
    write_feature_maps,
)
from glassformer.families.keys import Head, Key, Options, Rule, activation
from glassformer.families.rows import layer_ops, model_prefixes, rename_modules
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Ignored, Op, Rename, Reshape, Tied, expand

TINY: dict[str, Any] = {
    "image_size": 16,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": (2, 1),
    "num_heads": (2, 4),
    "window_size": 3,
    "num_labels": 10,
}
NORM = spec.LayerNormSpec()  # of patches, merging and feature maps: its eps is not configurable


def hierarchical_encoder(
    *,
    cosine: bool = False,
    image_size: Size = 224,
    patch_size: Size = 4,
    channels: int = 3,
    embed_dim: int = 96,
    depths: tuple[int, ...] = (2, 2, 6, 2),
    num_heads: tuple[int, ...] = (3, 6, 12, 24),
    window_size: int = 7,
    pretrained_window_sizes: tuple[int, ...] = (),
    mlp_ratio: float = 4.0,
    activation: spec.Activation = "gelu",
    norm_eps: float = 1e-5,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    drop_path: float = 0.1,
    qkv_bias: bool = True,
    absolute_positions: bool = False,
    num_labels: int = 1000,
    head: spec.HeadSpec | None = None,
) -> spec.EncoderOnlySpec:
    """Create the spec of a hierarchical image encoder; the defaults are Swin-Tiny for ImageNet.

    cosine: version 2, with cosine attention, a bias network over log-spaced offsets, norms after sublayers.
    embed_dim: width of the first stage; every further stage is twice as wide.
    depths, num_heads: number of layers and of attention heads of each stage.
    window_size: rows and columns of an attention window; every second layer has shifted windows.
    pretrained_window_sizes: window size of each stage in pretraining, if it was another (0: the same).
    drop_path: stochastic depth rate of the last layer, linear from 0 at the first.
    absolute_positions: add trained positions to the patches.
    """
    stages, one_each = len(depths), "they need one number for each stage"
    if not depths or len(num_heads) != stages:
        raise ConflictError(("depths", "num_heads"), one_each)
    if len(pretrained_window_sizes) not in (0, stages):
        raise ConflictError(("depths", "pretrained_window_sizes"), one_each)
    image, patch = as_pair(image_size), as_pair(patch_size)
    norm = spec.LayerNormSpec(eps=norm_eps)
    feature_maps = isinstance(head, spec.BackboneSpec)

    def stage(number: int) -> spec.StackSpec:
        width, rows = embed_dim * 2**number, image[0] // patch[0] // 2**number
        size = min(rows, window_size) if cosine else window_size
        shifts = (0, window_size // 2 if not cosine or rows > size else 0)
        # version 1 decides by the actual grid whether windows are shifted, version 2 by the configured one
        windows = [spec.WindowSpec(size=size, shift=n, always=cosine or feature_maps) for n in shifts]
        bias: spec.PositionBiasSpec = spec.RelativeBias2dSpec(grid=(size, size))
        if cosine:
            pretrained = (pretrained_window_sizes or (0,) * stages)[number]
            bias = spec.LogBias2dSpec(grid=(size, size), pretrained_size=pretrained or None)
        first = sum(depths[:number])
        rates = [drop_path * n / max(1, sum(depths) - 1) for n in (first, first + depths[number] - 1)]
        blocks = tuple(
            spec.BlockSpec(
                attention=spec.AttentionSpec(
                    num_heads=num_heads[number],
                    biases=_biases(qkv_bias, cosine),
                    dropout=attention_dropout,
                    qk_norm=spec.CosineSpec() if cosine else None,
                    spatial_window=window,
                    position_bias=bias,
                ),
                feed_forward=spec.FeedForwardSpec(d_ff=int(mlp_ratio * width), activation=activation),
                norm=norm,
                wiring="res_post" if cosine else "pre",
                dropout=dropout,
            )
            for window in windows
        )
        return spec.StackSpec(
            d_model=width,
            num_layers=depths[number],
            block=blocks[0],
            pattern=blocks,
            drop_path=(rates[0], rates[1]),
        )

    return spec.EncoderOnlySpec(
        input=spec.ImagePatchesSpec(
            image_size=image,
            patch_size=patch,
            channels=channels,
            prefix=0,
            dropout=dropout,
            position="learned" if absolute_positions else "none",
            interpolate=True,
            patch_norm=NORM,
            pad=True,
        ),
        encoder=spec.StagesSpec(
            stages=tuple(stage(number) for number in range(stages)),
            merging_order="norm_last" if cosine else "norm_first",
            merging_norm=NORM,
            final_norm=None if cosine and feature_maps else norm,
        ),
        head=head or spec.ClassifySpec(num_labels=num_labels, pool="mean"),
        init=spec.NormalSpec(std=0.02),
    )


def _biases(qkv: bool, cosine: bool) -> tuple[spec.Projection, ...]:
    if not qkv:
        return ("out",)
    return ("q", "v", "out") if cosine else ("q", "k", "v", "out")


def _invert(model: Any) -> dict[str, Any]:
    """Return the options of `hierarchical_encoder` that give a spec."""
    stages, block = model.encoder.stages, model.encoder.block
    width, attention = stages[0].d_model, block.attention
    windows = [stage.block.attention.spatial_window for stage in stages]
    biases = [stage.block.attention.position_bias for stage in stages]
    pretrained = [bias.pretrained_size or 0 for bias in biases if isinstance(bias, spec.LogBias2dSpec)]
    return {
        **vars(model.input),
        "embed_dim": width,
        "depths": tuple(stage.num_layers for stage in stages),
        "num_heads": tuple(stage.block.attention.num_heads for stage in stages),
        "window_size": max(window.size for window in windows if window is not None),
        "pretrained_window_sizes": tuple(pretrained),
        "mlp_ratio": block.feed_forward.d_ff / width,
        "activation": block.feed_forward.activation,
        "norm_eps": block.norm.eps,
        "dropout": block.dropout,
        "attention_dropout": attention.dropout,
        "drop_path": stages[-1].drop_path[1],
        "qkv_bias": "q" in attention.biases,
        "absolute_positions": model.input.position == "learned",
    }


HIERARCHICAL_ENCODER = Builder(hierarchical_encoder, _invert, shared=True)


# ---- the published config ---------------------------------------------------------------------------


def numbers(key: str, default: tuple[int, ...]) -> Rule:
    """Return the rule of a list of integers."""

    def read(config: Config, options: Options) -> dict[str, Any]:
        values: list[int] = config.get(key, [*default])
        if not all(type(n) is int for n in values):
            raise InvalidValueError(f"{config.where}: {key}", values, "a list of integers")
        return {key: tuple(values)}

    return Rule((key,), read, lambda options: {key: [*options[key]]})


KEYS = (
    sizes(224, 4),
    Key("num_channels", "channels", 3),
    Key("embed_dim", default=96),
    numbers("depths", (2, 2, 6, 2)),
    numbers("num_heads", (3, 6, 12, 24)),
    Key("window_size", default=7),
    Key("mlp_ratio", default=4.0),
    Key("qkv_bias", default=True),
    Key("hidden_dropout_prob", "dropout", 0.0),
    Key("attention_probs_dropout_prob", "attention_dropout", 0.0),
    Key("drop_path_rate", "drop_path", 0.1),
    activation("hidden_act", "gelu"),
    Key("layer_norm_eps", "norm_eps", 1e-5),
)


def hierarchical_heads(prefix: str, norm: spec.LayerNormSpec | None) -> dict[str, Head]:
    """Return the heads by class name. prefix: of the class names. norm: of feature maps."""
    maps = Rule(
        ("layers",),
        lambda config, _: {"layers": feature_map_layers(config, len(config.get("depths", [0] * 4)))},
        lambda head: write_feature_maps(head["layers"], len(head["depths"])),
    )
    return {
        f"{prefix}ForImageClassification": Head(spec.ClassifySpec, values={"pool": "mean"}),
        f"{prefix}Model": Head(spec.FeaturesSpec, values={"pool": "mean"}),
        f"{prefix}Backbone": Head(spec.BackboneSpec, (maps,), {"norm": norm}),
    }


def _projection(name: str) -> tuple[str, str, str]:
    return f"attention.self.{name}", f"attention.{name[0]}_proj", f"self_attn.{name[0]}_proj"


def table_of(model: Any, names: Collection[str], *, base: str) -> WeightTable:
    """Return the weight table. base: prefix of the published names under a head."""
    rows: list[Op] = []
    for number, stage in enumerate(model.encoder.stages):
        published = f"{{base}}encoder.layers.{number}"
        layer, ours = f"{published}.blocks.{{i}}", f"encoder.stages.{number}.blocks.{{i}}"
        prefixes = {"old": layer, "new": layer, "ours": ours}
        attention = stage.block.attention
        layers = [*layer_ops(LAYER, **prefixes)]
        for name in ("query", "key", "value"):
            parts = ("weight", "bias") if name[0] in attention.biases else ("weight",)
            layers += layer_ops((_projection(name),), parts, **prefixes)
        bias, theirs = f"{ours}.self_attn.position_bias", f"{layer}.attention.self"
        if isinstance(attention.position_bias, spec.LogBias2dSpec):
            heads = attention.num_heads
            layers += [
                Reshape(
                    f"{theirs}.logit_scale",
                    f"{ours}.self_attn.q_norm.log_scale",
                    their_shape=(heads, 1, 1),
                    our_shape=(heads,),
                ),
                *rename_modules((f"{theirs}.continuous_position_bias_mlp.0", f"{bias}.hidden")),
                Rename(f"{theirs}.continuous_position_bias_mlp.2.weight", f"{bias}.out.weight"),
            ]
        else:
            table = "relative_position_bias_table"
            spellings = (f"{theirs}.{table}", f"{layer}.attention.relative_position_bias.{table}")
            layers.append(Tied(spellings, f"{bias}.weight"))
        rows += expand(layers, i=stage.num_layers)
        if number < len(model.encoder.stages) - 1:
            rows += rename_modules((f"{published}.downsample.norm", f"encoder.merging.{number}.norm"))
            weight = f"encoder.merging.{number}.project.weight"
            rows.append(Rename(f"{published}.downsample.reduction.weight", weight))
    rows += rename_modules(
        ("{base}embeddings.patch_embeddings.projection", "embed.patch"),
        ("{base}embeddings.norm", "embed.patch_norm"),
    )
    rows += _head_rows(model, base)
    if model.input.position == "learned":
        rows.append(Rename("{base}embeddings.position_embeddings", "embed.position"))
    rows += [
        Ignored("{base}embeddings.mask_token"),  # from pretraining with masked patches
        Ignored("{base}encoder.layers.*.relative_position_index"),  # computed
        Ignored("{base}encoder.layers.*.relative_coords_table"),
    ]
    return WeightTable(tuple(rows), base=model_prefixes(model.head, base))


def _head_rows(model: spec.EncoderOnlySpec, base: str) -> Sequence[Op]:
    """Return the operations of the final norm and the head."""
    norm = (("{base}layernorm", "encoder.final_norm"),)
    match model.head:
        case spec.ClassifySpec():
            return rename_modules(*norm, ("classifier", "head.out"))
        case spec.BackboneSpec(layers=layers, norm=spec.LayerNormSpec()):
            # a backbone does not use its final norm, and saves it with a prefix
            maps = ((f"hidden_states_norms.stage{n}" if n else "hidden_states_norms.stem") for n in layers)
            norms = tuple((theirs, f"head.norms.{n}") for n, theirs in enumerate(maps))
            return rename_modules((f"{base}layernorm", "encoder.final_norm"), *norms)
        case spec.BackboneSpec():
            return ()
    return rename_modules(*norm)
