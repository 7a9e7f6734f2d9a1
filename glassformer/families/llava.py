"""LLaVA 1.5: the patches of a CLIP image tower, a perceptron of two layers, and a LLaMA decoder."""

from __future__ import annotations

from functools import partial
from typing import Any

from glassformer.core import spec
from glassformer.families.config import Config
from glassformer.families.family import preset
from glassformer.families.keys import ACTIVATION_NAMES, ACTIVATIONS
from glassformer.families.vision_language import (
    ENCODERS,
    Layout,
    Prefixes,
    vision_language,
    vision_language_family,
)


def _read(config: Config) -> dict[str, Any]:
    connector = spec.ConnectorSpec(
        activation=config.choose("projector_hidden_act", ACTIVATIONS, "gelu"),
        bias=config.get("multimodal_projector_bias", True),
    )
    strategy = config.only("vision_feature_select_strategy", "default", "full", default="default")
    layer = config.get("vision_feature_layer", -2)
    return {"connector": connector, "layer": layer, "prefix": strategy == "full"}


def _write(source: spec.ImageTokensSpec) -> dict[str, Any]:
    patches: Any = source.image.input
    return {
        "projector_hidden_act": ACTIVATION_NAMES[source.connector.activation or "gelu"],
        "multimodal_projector_bias": source.connector.bias,
        "vision_feature_layer": source.layer,
        "vision_feature_select_strategy": "full" if source.prefix else "default",
        "image_seq_length": source.num_image_tokens(patches.image_size),
    }


_CONNECTOR, _TOWER = "multi_modal_projector.", "vision_tower."
LAYOUT = Layout(
    encoders=ENCODERS,
    image_id_key="image_token_index",
    prefixes=tuple(
        Prefixes(text, head, f"{base}{_TOWER}{vision}", f"{base}{_CONNECTOR}")
        for vision in ("vision_model.", "")
        for base, text, head in (
            ("", "language_model.model.", "language_model."),
            ("model.", "model.language_model.", ""),
        )
    ),
    connector={"linear_1": "embed.connector.up", "linear_2": "embed.connector.down"},
    read=_read,
    write=_write,
    tied=lambda config, text: any(part.get("tie_word_embeddings", False) for part in (config, text)),
)
_TINY = {"image_d_model": 24, "image_num_heads": 4, "image_d_ff": 48, "image_num_layers": 3}
_VICUNA = {"vocab_size": 32064, "max_len": 4096, "rope_base": 10000.0, "pad_id": 32001, "image_id": 32000}

FAMILY = vision_language_family(
    "llava",
    "LlavaForConditionalGeneration",
    LAYOUT,
    build=partial(
        vision_language,
        image_size=336,
        patch_size=14,
        image_d_model=1024,
        image_num_heads=16,
        image_d_ff=4096,
        image_num_layers=24,
        image_tower="clip",
        image_layer=-2,
        connector_activation="gelu",
        connector_bias=True,
        **{**preset(4096, 32, 32, 11008), **_VICUNA},
    ),
    presets={"llava-1.5-7b": {}, "llava-1.5-13b": preset(5120, 40, 40, 13824)},
    tiny={
        **{**preset(32, 4, 2, 64), **_TINY, "image_size": 16, "patch_size": 4},
        **{"vocab_size": 101, "max_len": 64, "pad_id": 0, "image_id": 100},
    },
)
