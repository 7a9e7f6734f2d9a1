"""PixArt-alpha: a diffusion Transformer with cross-attention to a text; all layers share the modulation."""

from __future__ import annotations

from typing import Any

from glassformer.core import spec
from glassformer.errors import InvalidValueError
from glassformer.families.config import Config, UnsupportedConfigError
from glassformer.families.diffusion_transformer import BUILDER, HEAD, TINY, denoiser_rows, keys
from glassformer.families.family import Family
from glassformer.families.keys import Options, Rule, fixed
from glassformer.weights.ops import Op, Rename

_CONDITIONS = "use_additional_conditions"  # size and aspect ratio of the picture


def _read_text(config: Config, options: Options) -> dict[str, Any]:
    width, caption = config.get("cross_attention_dim", 1152), config.maybe("caption_channels", int)
    if caption is not None and width != options["d_model"]:
        raise InvalidValueError(f"{config.where}: cross_attention_dim", width, str(options["d_model"]))
    return {"text_dim": caption or width, "project_text": caption is not None}


def _write_text(options: Options) -> dict[str, Any]:
    width, projected = options["text_dim"], options["project_text"]
    return {
        "cross_attention_dim": options["d_model"] if projected else width,
        "caption_channels": width if projected else None,
    }


def _read_scale(config: Config, options: Options) -> dict[str, Any]:
    return {"position_scale": config.get("interpolation_scale", 0.0) or None}


def _read_conditions(config: Config, options: Options) -> dict[str, Any]:
    used = config.values.get(_CONDITIONS)
    if options["image_size"] == 128 if used is None else used:  # the default of diffusers
        raise UnsupportedConfigError(config.where, _CONDITIONS, True, "False")
    return {}


def rows(model: spec.EncoderOnlySpec) -> tuple[Op, ...]:
    """Return the rows of a denoiser whose layers share the modulation."""
    time, text = "adaln_single.emb.timestep_embedder", "caption_projection"
    projection = [(f"{text}.linear_1", "embed.text.up"), (f"{text}.linear_2", "embed.text.down")]
    return (
        Rename("scale_shift_table", "head.norm.modulation.table"),
        *denoiser_rows(
            model,
            (f"{time}.linear_1", "embed.time.up"),
            (f"{time}.linear_2", "embed.time.down"),
            ("adaln_single.linear", "embed.shared"),
            *(projection if model.input.memory_dim is None else ()),
            ("proj_out", "head.out"),
            modulation=("table", "scale_shift_table"),
        ),
    )


FAMILY = Family(
    name="pixart",
    library="diffusers",
    pipeline="PixArtAlphaPipeline",
    builder=BUILDER,
    defaults={"text_dim": 4096},
    keys=(
        *keys("ada_norm_single", norm_eps=1e-6),
        Rule(("text_dim", "project_text"), _read_text, _write_text),
        Rule(("position_scale",), _read_scale, lambda o: {"interpolation_scale": o["position_scale"]}),
        Rule((), _read_conditions, lambda _: {_CONDITIONS: False}),
        fixed("attention_type", "default"),
    ),
    heads={"PixArtTransformer2DModel": HEAD},
    presets={
        "pixart-alpha": {"image_size": 64},  # 512 x 512 pixels
        "pixart-alpha-256": {},
        # 32 x 32 pixels in color, e.g. drawings with a caption; 21M parameters
        "pixart-mini": {
            **{"channels": 3, "out_channels": 3, "text_dim": 256},
            **{"d_model": 384, "num_heads": 6, "num_layers": 8},
        },
    },
    tiny={**TINY, "text_dim": 24},
    rows=rows,
)
