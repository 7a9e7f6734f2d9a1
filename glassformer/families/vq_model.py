"""VQModel: a vector-quantized autoencoder (VQ-VAE, VQGAN); its latents are codes of a codebook."""

from __future__ import annotations

from typing import Any

from glassformer.families.autoencoder import BUILDER, HEAD, TINY, keys, weight_rows
from glassformer.families.config import Config
from glassformer.families.family import Family
from glassformer.families.keys import Key, Options, Rule, fixed


def _read_code_dim(config: Config, options: Options) -> dict[str, Any]:
    return {"code_dim": config.maybe("vq_embed_dim", int) or options["latent_channels"]}


FAMILY = Family(
    name="vq_model",
    library="diffusers",
    builder=BUILDER,
    defaults={"latent_channels": 3, "num_codes": 256},
    keys=(
        *keys(latent_channels=3),
        Key("num_vq_embeddings", "num_codes", 256),
        Rule(("code_dim",), _read_code_dim, lambda o: {"vq_embed_dim": o["code_dim"]}),
        fixed("norm_type", "group"),
    ),
    heads={"VQModel": HEAD},
    presets={
        "ldm-vq-f4": {"image_size": 256, "widths": (128, 256, 512), "num_layers": 2, "num_codes": 8192},
        # 64 x 64 pixels to 8 x 8 codes
        "vq-mini": {
            **{"image_size": 64, "widths": (32, 64, 64, 128), "norm_groups": 16, "middle_attention": False},
            **{"num_codes": 512, "code_dim": 8, "latent_channels": 64},
        },
    },
    tiny={**TINY, "num_codes": 24, "code_dim": 5},
    rows=weight_rows,
)
