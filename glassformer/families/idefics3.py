"""Idefics3: the predecessor of SmolVLM, with the same parts and other names in its config."""

from __future__ import annotations

from glassformer.families.family import preset
from glassformer.families.smolvlm import smolvlm_family

_TEXT = {**preset(4096, 32, 32, 14336, num_kv_heads=8), "rope_base": 500000.0, "max_len": 131072}
_IMAGE = {"image_d_model": 1152, "image_num_heads": 16, "image_d_ff": 4304, "image_num_layers": 27}

FAMILY = smolvlm_family(
    "idefics3",
    "Idefics3",
    {
        "idefics3-8b": {
            **{**_TEXT, **_IMAGE, "image_size": 364, "patch_size": 14},
            **{"vocab_size": 128259, "image_id": 128257, "pad_id": 128002, "shuffle": 2},
        }
    },
)
