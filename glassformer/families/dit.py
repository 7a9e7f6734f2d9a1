"""DiT: a diffusion Transformer; adaptive norms read the time step and the class (adaLN-Zero).

Every layer of a published file has its own copy of the nets that embed time and class. They are equal in
published models, and one copy is kept; files in which they differ are refused.
"""

from __future__ import annotations

from glassformer.core import spec
from glassformer.families.diffusion_transformer import BUILDER, HEAD, TINY, denoiser_rows, keys
from glassformer.families.family import Family
from glassformer.families.keys import Key
from glassformer.weights.ops import Op, Tied

_COPIES = {
    "timestep_embedder.linear_1.weight": "time.up.weight",
    "timestep_embedder.linear_1.bias": "time.up.bias",
    "timestep_embedder.linear_2.weight": "time.down.weight",
    "timestep_embedder.linear_2.bias": "time.down.bias",
    "class_embedder.embedding_table.weight": "label.table.weight",
}


def _rows(model: spec.EncoderOnlySpec) -> tuple[Op, ...]:
    blocks = [f"transformer_blocks.{n}.norm1.emb" for n in range(model.encoder.num_layers)]
    copies = ((tuple(f"{block}.{theirs}" for block in blocks), ours) for theirs, ours in _COPIES.items())
    return (
        *(Tied(names, f"embed.{ours}", save_as=names) for names, ours in copies),
        *denoiser_rows(
            model,
            ("proj_out_1", "head.norm.modulation.project"),
            ("proj_out_2", "head.out"),
            modulation=("project.{p}", "norm1.linear.{p}"),
        ),
    )


FAMILY = Family(
    name="dit",
    library="diffusers",
    pipeline="DiTPipeline",
    builder=BUILDER,
    defaults={"num_classes": 1000, "norm_eps": 1e-5},
    keys=(Key("num_embeds_ada_norm", "num_classes", 1000), *keys("ada_norm_zero", norm_eps=1e-5)),
    heads={"DiTTransformer2DModel": HEAD},
    presets={
        "dit-xl-2-256": {},
        "dit-xl-2-512": {"image_size": 64},
        "dit-l-2": {"d_model": 1024, "num_layers": 24},
        "dit-b-2": {"d_model": 768, "num_heads": 12, "num_layers": 12},
        "dit-s-2": {"d_model": 384, "num_heads": 6, "num_layers": 12},
        # 28 x 28 gray pixels, e.g. digits; 6M parameters
        "dit-mini": {
            **{"image_size": 28, "channels": 1, "out_channels": 1, "num_classes": 10},
            **{"d_model": 256, "num_heads": 4, "num_layers": 5},
        },
    },
    tiny={**TINY, "num_classes": 10},
    rows=_rows,
)
