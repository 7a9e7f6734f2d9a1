"""SmolVLM: a SigLIP image tower, pixel shuffle with one dense layer, and a LLaMA decoder.

Idefics3, its predecessor, differs in the names of its config.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from glassformer.core import spec
from glassformer.families import siglip
from glassformer.families.config import Config
from glassformer.families.family import Family, preset
from glassformer.families.parts import Part
from glassformer.families.vision_language import Layout, Prefixes, vision_language, vision_language_family


def _read(config: Config) -> dict[str, Any]:
    return {"connector": spec.ConnectorSpec(shuffle=config.get("scale_factor", 2), bias=False)}


def _write(source: spec.ImageTokensSpec) -> dict[str, Any]:
    return {"scale_factor": source.connector.shuffle}


def smolvlm_family(name: str, stem: str, presets: dict[str, dict[str, Any]]) -> Family:
    """Return the family of SmolVLM or Idefics3. stem: of its class names."""
    tower = {"hidden_size": 1152, "num_attention_heads": 16, "patch_size": 32, "vision_use_head": False}
    layout = Layout(
        encoders={f"{name}_vision": Part(siglip.FAMILY, "SiglipVisionModel", defaults=tower)},
        image_id_key="image_token_id",
        prefixes=(
            Prefixes("model.text_model.", "", "model.vision_model.", "model.connector.modality_projection."),
        ),
        connector={"proj": "embed.connector.up"},
        read=_read,
        write=_write,
        interpolation="nearest",
    )
    tiny = {
        **preset(32, 4, 2, 64, image_d_model=24, image_num_heads=4, image_d_ff=48, image_num_layers=2),
        **{"image_size": 16, "patch_size": 4, "vocab_size": 101, "max_len": 64, "image_id": 100},
    }
    return vision_language_family(
        name,
        f"{stem}ForConditionalGeneration",
        layout,
        build=partial(vision_language, interpolation="nearest", shuffle=4),
        presets=presets,
        tiny={**tiny, "shuffle": 2},
    )


_IMAGE = {"image_size": 512, "patch_size": 16}

FAMILY = smolvlm_family(
    "smolvlm",
    "SmolVLM",
    {
        "smolvlm-256m": {**preset(576, 9, 30, 1536, num_kv_heads=3), **_IMAGE},
        "smolvlm-500m": {**preset(960, 15, 32, 2560, num_kv_heads=5), **_IMAGE},
    },
)
