"""DINOv2: ViT with layer scale and interpolated positions; variants with register tokens or SwiGLU."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from glassformer.core import spec
from glassformer.families.config import Config
from glassformer.families.family import Family, preset
from glassformer.families.image_encoder import (
    IMAGE_ENCODER,
    QUERIES,
    TINY_IMAGES,
    feature_map_layers,
    sizes,
    write_feature_maps,
    write_sizes,
)
from glassformer.families.image_encoder import KEYS as IMAGE_KEYS
from glassformer.families.keys import Head, Key, Options, Rule, with_defaults
from glassformer.families.rows import layer_ops, model_prefixes, rename_modules
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Op, Rename, Split, Tied, expand

TYPES = ("dinov2", "dinov2_with_registers")
PREFIXES = ("Dinov2", "Dinov2WithRegisters")


def ffn_width(d_model: int, ratio: int, swiglu: bool) -> int:
    """Return the width of the feed-forward layers; SwiGLU has two thirds of it, rounded up to eights."""
    return (int(d_model * ratio * 2 / 3) + 7) // 8 * 8 if swiglu else d_model * ratio


def mlp_ratio_of(d_model: int, d_ff: int, swiglu: bool) -> int:
    """Return the ratio that gives the width of the feed-forward layers, see `ffn_width`; 0 if none does."""
    return next((n for n in range(1, 65) if ffn_width(d_model, n, swiglu) == d_ff), 0)


def _read_ffn(config: Config, options: Options) -> dict[str, Any]:
    swiglu = config.get("use_swiglu_ffn", False)
    d_ff = ffn_width(options["d_model"], config.get("mlp_ratio", 4), swiglu)
    usual = {"activation": "gelu"} if swiglu else {}  # not used
    return {"swiglu": swiglu, "d_ff": d_ff, **usual}


def _write_ffn(options: Options) -> dict[str, Any]:
    swiglu = options["swiglu"]
    ratio = mlp_ratio_of(options["d_model"], options["d_ff"], swiglu)
    return {"use_swiglu_ffn": swiglu, "mlp_ratio": ratio, **({"hidden_act": "gelu"} if swiglu else {})}


def _read_registers(config: Config, options: Options) -> dict[str, Any]:
    if config.values.get("model_type") != TYPES[1]:
        return {"registers": None, "mask_token": config.get("use_mask_token", True)}
    return {"registers": config.get("num_register_tokens", 4), "mask_token": True}


def _write_registers(options: Options) -> dict[str, Any]:
    if options["registers"] is None:
        return {"use_mask_token": options["mask_token"]}
    return {"model_type": TYPES[1], "num_register_tokens": options["registers"]}


def _read_sizes(config: Config, options: Options) -> dict[str, Any]:
    return sizes(224, 16 if config.values.get("model_type") == TYPES[1] else 14).read(config, options)


KEYS = (
    Rule(("image_size", "patch_size"), _read_sizes, write_sizes),
    *(key for key in with_defaults(IMAGE_KEYS, norm_eps=1e-6) if key.options != ("d_ff",)),
    Rule(("swiglu", "d_ff", "activation"), _read_ffn, _write_ffn),
    Key("layerscale_value", "layer_scale", 1.0),
    Key("drop_path_rate", "drop_path", 0.0),
    Rule(("registers", "mask_token"), _read_registers, _write_registers),
)


def _read_maps(config: Config, _: Options) -> dict[str, Any]:
    config.only("reshape_hidden_states", True, default=True)
    normed = config.get("apply_layernorm", True)
    layers = feature_map_layers(config, config.get("num_hidden_layers", 12))
    norm = spec.LayerNormSpec(eps=config.get("layer_norm_eps", 1e-6)) if normed else None
    return {"layers": layers, "norm": norm, "shared_norm": normed}


def _write_maps(head: Options) -> dict[str, Any]:
    maps = write_feature_maps(head["layers"], head["num_layers"])
    return {**maps, "apply_layernorm": head["norm"] is not None}


_TASKS = {
    "ForImageClassification": Head(spec.ClassifySpec, values={"pool": "first_mean"}),
    "Model": Head(spec.FeaturesSpec, values={"pool": "first"}),
    "Backbone": Head(spec.BackboneSpec, (Rule(("layers", "norm", "shared_norm"), _read_maps, _write_maps),)),
}


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    config = FAMILY.derived_config(model)
    if config["model_type"] == TYPES[1]:
        config["architectures"] = [PREFIXES[1] + config["architectures"][0].removeprefix(PREFIXES[0])]
    return config


_LAYER = (
    ("attention.output.dense", "attention.o_proj", "self_attn.out_proj"),
    ("norm1", "norm1", "norm_self"),
    ("norm2", "norm2", "norm_ffn"),
)
_MLP = (("mlp.fc1", "mlp.fc1", "ffn.up"), ("mlp.fc2", "mlp.fc2", "ffn.down"))
_LAYER_NAMES = {
    "old": "{base}encoder.layer.{i}",
    "new": "{base}encoder.layer.{i}",
    "ours": "encoder.blocks.{i}",
}


def table(model: Any, names: Collection[str]) -> WeightTable:
    """Return the weight table. names: tensors of the file, whose feed-forward layers may be fused or not."""
    ffn, biased = model.encoder.block.feed_forward, "q" in model.encoder.block.attention.biases
    rows: list[Op] = [
        *layer_ops(QUERIES, ("weight", "bias") if biased else ("weight",), **_LAYER_NAMES),
        *layer_ops(_LAYER, **_LAYER_NAMES),
        *(
            Rename(
                f"{{base}}encoder.layer.{{i}}.layer_scale{n}.lambda1",
                f"encoder.blocks.{{i}}.scale_{part}.weight",
            )
            for n, part in ((1, "self_attn"), (2, "ffn"))
        ),
    ]
    layer, ours = "{base}encoder.layer.{i}.mlp", "encoder.blocks.{i}.ffn"
    if isinstance(ffn, spec.FeedForwardSpec):
        rows += layer_ops(_MLP, **_LAYER_NAMES)
    else:
        down = (f"{layer}.weights_out.{{p}}", f"{layer}.down_proj.{{p}}")
        rows += expand((Tied(down, f"{ours}.down.{{p}}"),), p=("weight", "bias"))
        if any(name.endswith("mlp.gate_proj.weight") for name in names):
            rows += rename_modules(*((f"{layer}.{part}_proj", f"{ours}.{part}") for part in ("gate", "up")))
        else:
            fused = Split(
                f"{layer}.weights_in.{{p}}", f"{ours}.{{gate,up}}.{{p}}", sizes=(ffn.d_ff, ffn.d_ff)
            )
            rows += expand((fused,), p=("weight", "bias"))
    maps = isinstance(model.head, spec.BackboneSpec) and model.head.norm is not None
    embedding = {"position_embeddings": "position", "cls_token": "prefix"}
    if model.input.mask_token:
        embedding["mask_token"] = "mask"
    if model.input.antialias:
        embedding["register_tokens"] = "registers"
    rows += [Rename(f"{{base}}embeddings.{theirs}", f"embed.{ours}") for theirs, ours in embedding.items()]
    rows += rename_modules(
        ("{base}embeddings.patch_embeddings.projection", "embed.patch"),
        ("{base}layernorm", "head.norms.0" if maps else "encoder.final_norm"),
        *((("classifier", "head.out"),) if isinstance(model.head, spec.ClassifySpec) else ()),
    )
    ops = expand(rows, i=model.encoder.num_layers)
    return WeightTable(ops, base=model_prefixes(model.head, f"{TYPES[model.input.antialias]}."))


_SMALL, _LARGE = preset(384, 6, 12, 1536), preset(1024, 16, 24, 4096)
_GIANT = preset(1536, 24, 40, 4096, swiglu=True)
_SIZES = {"small": _SMALL, "base": {}, "large": _LARGE, "giant": _GIANT}
_FEATURES = {"head": spec.FeaturesSpec(pool="first")}

FAMILY = Family(
    name="dinov2",
    builder=IMAGE_ENCODER,
    keys=KEYS,
    defaults={
        "image_size": 518,
        "patch_size": 14,
        "norm_eps": 1e-6,
        "layer_scale": 1.0,
        "mask_token": True,
        "interpolate": True,
        "pool": "first_mean",
    },
    heads={prefix + task: head for prefix in PREFIXES for task, head in _TASKS.items()},
    writer=to_config,
    presets={
        **{f"dinov2-{size}": {**options, **_FEATURES} for size, options in _SIZES.items()},
        **{
            f"dinov2-with-registers-{size}": {**options, **_FEATURES, "registers": 4}
            for size, options in _SIZES.items()
        },
        **{f"dinov2-{size}-imagenet1k-1-layer": options for size, options in _SIZES.items()},
    },
    tiny=TINY_IMAGES,
    weight_table=table,
)
