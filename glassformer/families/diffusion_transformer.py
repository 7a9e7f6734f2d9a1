"""Diffusion Transformers in diffusers' layout: what DiT, PixArt and Latte share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from glassformer.core import spec
from glassformer.core.spec import Activation
from glassformer.families.config import Config
from glassformer.families.family import Builder, spec_options
from glassformer.families.keys import Head, Key, Keys, Options, Rule, fixed
from glassformer.families.rows import layer_rows, rename_modules
from glassformer.weights.ops import Op, Split, expand

ACTIVATIONS: dict[str, Activation] = {"gelu-approximate": "gelu_tanh", "gelu": "gelu"}


def diffusion_transformer(
    *,
    image_size: int = 32,
    patch_size: int = 2,
    channels: int = 4,
    out_channels: int = 8,
    d_model: int = 1152,
    num_heads: int = 16,
    num_layers: int = 28,
    activation: Activation = "gelu_tanh",
    qkv_bias: bool = True,
    norm_eps: float = 1e-6,
    num_classes: int | None = None,
    text_dim: int | None = None,
    project_text: bool = True,
    position_scale: float | None = None,
    num_frames: int | None = None,
    crosses: bool = True,
) -> spec.EncoderOnlySpec:
    """Create the spec of a denoiser; with frames it is Latte's, with a text PixArt's, else DiT's.

    image_size: height and width of the latents. channels, out_channels: of the latents and of the result,
    which may have their variance too.
    text_dim: width of the text vectors. project_text: whether they are projected to d_model first.
    position_scale: by how much positions are divided; None: by one for each 64 of image_size.
    num_frames: largest number of frames of a video: every other layer attends along time.
    num_layers: of a video, layers along space, and as many along time.
    crosses: whether layers attend to the text.
    """
    text, video = text_dim is not None, num_frames is not None
    shared = text or video
    modulation: spec.ModulationKind = "shared" if shared else "layer"
    attention = spec.AttentionSpec(
        num_heads=num_heads, biases=("q", "k", "v", "out") if qkv_bias else ("out",)
    )
    block = spec.BlockSpec(
        attention=replace(attention, spatial_window=spec.AxisSpec(axis="space")) if video else attention,
        cross_attention=attention if text and crosses else None,
        feed_forward=spec.FeedForwardSpec(d_ff=4 * d_model, activation=activation),
        norm=spec.AdaptiveNormSpec(eps=norm_eps, modulation=modulation)
        if shared
        else spec.AdaptiveNormSpec(ffn_eps=norm_eps),
        wiring="pre",
    )
    over_time = replace(attention, spatial_window=spec.AxisSpec(axis="time"))
    temporal = replace(block, attention=over_time, cross_attention=None)
    return spec.EncoderOnlySpec(
        input=spec.NoisyLatentsSpec(
            patches=spec.ImagePatchesSpec(
                image_size=(image_size, image_size),
                patch_size=(patch_size, patch_size),
                channels=channels,
                prefix=0,
                position="sinusoidal",
                position_scale=position_scale or (float(max(image_size // 64, 1)) if shared else 1.0),
                interpolate=True,
            ),
            time=spec.TimestepSpec(divisor="half" if shared else "half_minus_1"),
            num_classes=num_classes,
            text_dim=text_dim,
            project_text=project_text,
            modulation=modulation,
            num_frames=num_frames,
        ),
        encoder=spec.StackSpec(
            d_model=d_model,
            num_layers=2 * num_layers if video else num_layers,
            block=block,
            pattern=(block, temporal) if video else (),
        ),
        head=spec.UnpatchifySpec(
            channels=out_channels, patch_size=(patch_size, patch_size), modulation=modulation
        ),
        init=spec.XavierSpec(),
    )


def _invert(model: Any) -> dict[str, Any]:
    """Return the options of `diffusion_transformer` that give a spec."""
    source, patches, norm = model.input, model.input.patches, model.encoder.block.norm
    return {
        **spec_options(model),
        "num_layers": model.encoder.num_layers // len(model.encoder.blocks),
        "image_size": patches.image_size[0],
        "patch_size": patches.patch_size[0],
        "channels": patches.channels,
        "out_channels": model.head.channels,
        "norm_eps": norm.eps if norm.ffn_eps is None else norm.ffn_eps,
        "num_classes": source.num_classes,
        "text_dim": source.text_dim,
        "project_text": source.project_text,
        "position_scale": patches.position_scale,
        "num_frames": source.num_frames,
        "crosses": model.encoder.block.cross_attention is not None,
    }


BUILDER = Builder(diffusion_transformer, _invert, shared=True)
HEAD = Head(spec.UnpatchifySpec, from_options=True)
TINY = {"image_size": 8, "d_model": 32, "num_heads": 4, "num_layers": 2}


def _read_width(config: Config, options: Options) -> dict[str, Any]:
    return {"d_model": options["num_heads"] * config.get("attention_head_dim", 72)}


def _read_out_channels(config: Config, options: Options) -> dict[str, Any]:
    return {"out_channels": config.maybe("out_channels", int) or options["channels"]}


def keys(norm_type: str, norm_eps: float) -> Keys:
    """Return the config keys that the families share."""
    return (
        Key("sample_size", "image_size", 32),
        Key("patch_size", default=2),
        Key("in_channels", "channels", 4),
        Rule(("out_channels",), _read_out_channels, lambda o: {"out_channels": o["out_channels"]}),
        Key("num_attention_heads", "num_heads", 16),
        Rule(("d_model",), _read_width, lambda o: {"attention_head_dim": o["head_dim"]}),
        Key("num_layers", default=28),
        Key("activation_fn", "activation", "gelu-approximate", values=ACTIVATIONS),
        Key("attention_bias", "qkv_bias", True),
        Key("norm_eps", default=norm_eps),
        fixed("norm_type", norm_type, default=norm_type),
        fixed("norm_elementwise_affine", False, default=False),
        fixed("dropout", 0.0),
        fixed("upcast_attention", False),
    )


# published modules of a layer: self-attention, cross-attention, feed-forward
_ATTENTION = {"to_{q,k,v}": "{q,k,v}_proj", "to_out.0": "out_proj"}
_FFN = {"ff.net.0.proj": "ffn.up", "ff.net.2": "ffn.down"}
_PARTS = ("norm_self", "scale_self_attn", "norm_ffn", "scale_ffn")  # shift and scale, gate: of both sublayers


def denoiser_rows(
    model: spec.EncoderOnlySpec, *pairs: tuple[str, str], modulation: tuple[str, str]
) -> tuple[Op, ...]:
    """Return the rows of all layers and of the patches.

    pairs: further modules. modulation: names of the six vectors of a layer, here and published.
    """
    kinds = ("transformer_blocks", "temporal_transformer_blocks")[: len(model.encoder.blocks)]
    return (
        *rename_modules(("pos_embed.proj", "embed.patches.patch"), *pairs),
        *(
            row
            for n in range(model.encoder.num_layers)
            for row in _layer_rows(model, n, f"{kinds[n % len(kinds)]}.{n // len(kinds)}", modulation)
        ),
    )


def _layer_rows(model: Any, n: int, theirs: str, modulation: tuple[str, str]) -> tuple[Op, ...]:
    """Return the rows of layer n. theirs: its published path."""
    block, ours = model.encoder.block_at(n), f"encoder.blocks.{n}"
    attentions = ["attn1:self_attn", *["attn2:cross_attn"] * (block.cross_attention is not None)]
    modules, without_bias = dict(_FFN), dict[str, str]()
    for before, after in (names.split(":") for names in attentions):
        named = {f"{before}.{a}": f"{after}.{b}" for a, b in _ATTENTION.items()}
        biased = {a: b for a, b in named.items() if "q" in block.attention.biases or "out" in b}
        modules |= biased
        without_bias |= {a: b for a, b in named.items() if a not in biased}
    rows_per_vector = model.encoder.d_model if block.norm.modulation == "layer" else 1
    vectors = Split(
        f"{theirs}.{modulation[1]}",
        tuple(f"{ours}.{part}.modulation.{modulation[0]}" for part in _PARTS),
        sizes=tuple(count * rows_per_vector for count in (2, 1, 2, 1)),
    )
    return (
        *layer_rows(theirs, ours, 1, modules),
        *layer_rows(theirs, ours, 1, without_bias, ("weight",)),
        *expand((vectors,), p=("weight", "bias")),
    )
