"""DINOv2: ViT with layer scale and interpolated positions; variants with register tokens or SwiGLU."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from glassformer.core import spec
from glassformer.families.family import (
    Config,
    Family,
    Key,
    label_config,
    model_prefixes,
    preset,
    read_options,
    rename_modules,
    variant,
    write_options,
)
from glassformer.families.image_encoder import (
    BACKBONE_KEYS,
    QUERIES,
    TINY_IMAGES,
    feature_map_layers,
    image_encoder,
    layer_ops,
    read_size,
    write_feature_maps,
    write_sizes,
)
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Op, Rename, Split, Tied, expand

KEYS = (
    Key("num_channels", "channels", 3),
    Key("hidden_size", "d_model", 768),
    Key("num_attention_heads", "num_heads", 12),
    Key("num_hidden_layers", "num_layers", 12),
    Key("hidden_act", "activation", "gelu"),
    Key("layer_norm_eps", "norm_eps", 1e-6),
    Key("hidden_dropout_prob", "dropout", 0.0),
    Key("attention_probs_dropout_prob", "attention_dropout", 0.0),
    Key("qkv_bias", default=True),
)
TYPES = ("dinov2", "dinov2_with_registers")
PREFIXES = ("Dinov2", "Dinov2WithRegisters")
TASKS: dict[type, str] = {
    spec.ClassifySpec: "ForImageClassification",
    spec.FeaturesSpec: "Model",
    spec.BackboneSpec: "Backbone",
}

dinov2 = variant(
    image_encoder,
    "prefix head_dim interpolate pool",
    image_size=518,
    patch_size=14,
    norm_eps=1e-6,
    layer_scale=1.0,
    mask_token=True,
    interpolate=True,
    pool="first_mean",
)


def ffn_width(d_model: int, ratio: int, swiglu: bool) -> int:
    """Return the width of the feed-forward layers; SwiGLU has two thirds of it, rounded up to eights."""
    return (int(d_model * ratio * 2 / 3) + 7) // 8 * 8 if swiglu else d_model * ratio


def mlp_ratio_of(stack: spec.StackSpec) -> int:
    """Return the ratio that gives the feed-forward layers of a stack, see `ffn_width`; 0 if there is none."""
    ffn = stack.block.feed_forward
    swiglu = isinstance(ffn, spec.GatedFeedForwardSpec)
    return next((n for n in range(1, 65) if ffn_width(stack.d_model, n, swiglu) == ffn.d_ff), 0)


def from_config(config: Config) -> spec.EncoderOnlySpec:
    with_registers = config.values.get("model_type") == TYPES[1]
    options = read_options(config, KEYS)
    swiglu = config.get("use_swiglu_ffn", False)
    if swiglu:
        options["activation"] = "gelu"  # not used
    norm = spec.LayerNormSpec(eps=options["norm_eps"])
    head: spec.HeadSpec
    match config.architecture.removeprefix(PREFIXES[with_registers]):
        case "ForImageClassification":
            head = spec.ClassifySpec(num_labels=config.num_labels, pool="first_mean")
        case "Backbone":
            config.only("reshape_hidden_states", True, default=True)
            normed = config.get("apply_layernorm", True)
            layers = feature_map_layers(config, options["num_layers"])
            head = spec.BackboneSpec(layers=layers, norm=norm if normed else None, shared_norm=normed)
        case _:
            head = spec.FeaturesSpec(pool="first")
    return dinov2(
        **options,
        image_size=read_size(config, "image_size", 224),
        patch_size=read_size(config, "patch_size", 16 if with_registers else 14),
        swiglu=swiglu,
        d_ff=ffn_width(options["d_model"], config.get("mlp_ratio", 4), swiglu),
        layer_scale=config.get("layerscale_value", 1.0),
        drop_path=config.get("drop_path_rate", 0.0),
        registers=config.get("num_register_tokens", 4) if with_registers else None,
        mask_token=with_registers or config.get("use_mask_token", True),
        head=head,
    )


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    assert isinstance(model, spec.EncoderOnlySpec) and isinstance(model.input, spec.ImagePatchesSpec)
    assert isinstance(model.encoder, spec.StackSpec)
    with_registers, head = model.input.antialias, model.head
    swiglu = isinstance(model.encoder.block.feed_forward, spec.GatedFeedForwardSpec)
    config: dict[str, Any] = {
        "model_type": TYPES[with_registers],
        "architectures": [PREFIXES[with_registers] + TASKS[type(head)]],
        **write_sizes(model.input),
        **write_options(model, KEYS),
        "mlp_ratio": mlp_ratio_of(model.encoder),
        "use_swiglu_ffn": swiglu,
        "layerscale_value": model.encoder.block.layer_scale,
        "drop_path_rate": model.encoder.drop_path[0],
        **label_config(head),
    }
    if swiglu:
        config["hidden_act"] = "gelu"
    if with_registers:
        config["num_register_tokens"] = model.input.registers
    else:
        config["use_mask_token"] = model.input.mask_token
    if isinstance(head, spec.BackboneSpec):
        config |= write_feature_maps(head, model.encoder.num_layers)
        config["apply_layernorm"] = head.norm is not None
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


def table(model: spec.ModelSpec, names: Collection[str]) -> WeightTable:
    """Return the weight table. names: tensors of the file, whose feed-forward layers may be fused or not."""
    assert isinstance(model, spec.EncoderOnlySpec) and isinstance(model.input, spec.ImagePatchesSpec)
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
    model_types=TYPES,
    architectures=tuple(prefix + task for prefix in PREFIXES for task in TASKS.values()),
    build=dinov2,
    presets={
        **{f"dinov2-{size}": {**options, **_FEATURES} for size, options in _SIZES.items()},
        **{
            f"dinov2-with-registers-{size}": {**options, **_FEATURES, "registers": 4}
            for size, options in _SIZES.items()
        },
        **{f"dinov2-{size}-imagenet1k-1-layer": options for size, options in _SIZES.items()},
    },
    tiny=TINY_IMAGES,
    from_config=from_config,
    to_config=to_config,
    table=table,
    ignored_keys=frozenset((*BACKBONE_KEYS, "apply_layernorm", "reshape_hidden_states")),
)
