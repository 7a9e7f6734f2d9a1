"""AutoencoderKL: the variational autoencoder of Stable Diffusion; its latents are normal distributions."""

from __future__ import annotations

from typing import Any

from glassformer.families.autoencoder import BUILDER, HEAD, TINY, keys, weight_rows
from glassformer.families.config import Config
from glassformer.families.family import Family
from glassformer.families.keys import Key, Options, Rule, fixed


def _read_shift(config: Config, options: Options) -> dict[str, Any]:
    return {"shift_factor": config.maybe("shift_factor", float) or 0.0}


FAMILY = Family(
    name="autoencoder_kl",
    library="diffusers",
    builder=BUILDER,
    keys=(
        *keys(latent_channels=4),
        Rule(("shift_factor",), _read_shift, lambda o: {"shift_factor": o["shift_factor"] or None}),
        Key("use_quant_conv", "project", True),
        Key("use_post_quant_conv", "unproject", True),
        fixed("latents_mean", None),
        fixed("latents_std", None),
    ),
    heads={"AutoencoderKL": HEAD},
    presets={
        "stable-diffusion-v1-5-vae": {"image_size": 512, "widths": (128, 256, 512, 512), "num_layers": 2},
    },
    tiny=TINY,
    rows=weight_rows,
)
