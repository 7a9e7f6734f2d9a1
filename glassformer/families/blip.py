"""BLIP: a ViT encoder and BERT as a causal decoder with cross-attention, which describe images.

To answer a question, a second BERT encodes it, with cross-attention to the image. The decoder attends to it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

from glassformer.core import spec
from glassformer.families import bert
from glassformer.families.config import Config
from glassformer.families.family import Builder, Family, preset
from glassformer.families.image_encoder import IMAGE_ENCODER, square_sizes
from glassformer.families.image_text import STACK_KEYS
from glassformer.families.keys import Head, Key, fixed, with_defaults
from glassformer.families.parts import Part
from glassformer.families.rows import layer_rows, rename_modules
from glassformer.families.text_encoder import EMBEDDINGS, KEYS, MAX_LEN, TEXT_ENCODER
from glassformer.families.vision_encoder_decoder import (
    ask,
    cross_bert,
    join,
    join_families,
    part_rows,
    parts_of,
)
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Op, Rename, Split, expand

# ---- the parts, which are published only here -------------------------------------------------------------


def _image_rows(model: Any) -> tuple[Op, ...]:
    theirs, ours = "encoder.layers.{i}", "encoder.blocks.{i}"
    stack, width = model.encoder, model.encoder.d_model
    qkv = Split(f"{theirs}.self_attn.qkv.{{p}}", f"{ours}.self_attn.{{q,k,v}}_proj.{{p}}", sizes=(width,) * 3)
    modules = {"self_attn.projection": "self_attn.out_proj", "mlp.fc1": "ffn.up", "mlp.fc2": "ffn.down"}
    modules |= {"layer_norm1": "norm_self", "layer_norm2": "norm_ffn"}
    return (
        *expand((qkv,), i=stack.num_layers, p=("weight", "bias")),
        *layer_rows(theirs, ours, stack.num_layers, modules),
        *rename_modules(
            ("embeddings.patch_embedding", "embed.patch"), ("post_layernorm", "encoder.final_norm")
        ),
        Rename("embeddings.class_embedding", "embed.prefix"),
        Rename("embeddings.position_embedding", "embed.position"),
    )


_IMAGE = Family(
    name="blip_vision_model",
    builder=IMAGE_ENCODER,
    defaults={"image_size": 384, "norm_eps": 1e-5, "interpolate": True},
    keys=(square_sizes(384), *STACK_KEYS),
    heads={"BlipVisionModel": Head(spec.FeaturesSpec)},
    presets={},
    tiny={},
    rows=_image_rows,
)
_TEXT_DEFAULTS: dict[str, Any] = {
    "vocab_size": 30524,
    "d_model": 768,
    "num_heads": 8,
    "d_ff": 3072,
    "num_layers": 12,
}
_TEXT_DEFAULTS |= {"max_len": 512, "dropout": 0.0, "attention_dropout": 0.0}
_TEXT = Family(
    name="blip_text_model",
    builder=TEXT_ENCODER,
    defaults={**_TEXT_DEFAULTS, "types": None},
    keys=(
        *(
            key
            for key in with_defaults((*KEYS, MAX_LEN), **_TEXT_DEFAULTS)
            if {*key.options} - {"types", "pad_id"}
        ),
        Key("pad_token_id", "pad_id", 0, null=None),
        fixed("is_decoder", True),
    ),
    heads={
        "BlipTextLMHeadModel": Head(spec.MaskedLanguageModelSpec, from_options=True),
        "BlipTextModel": Head(spec.FeaturesSpec),
    },
    presets={},
    tiny={},
    weight_table=partial(bert.table, embeddings=EMBEDDINGS[:1]),  # without token types
)
_PARTS = (
    {"vision": Part(_IMAGE, "BlipVisionModel")},
    {"text": Part(_TEXT, "BlipTextLMHeadModel", cross=cross_bert)},
)
_QUESTION = Part(_TEXT, "BlipTextModel", cross=cross_bert)

# ---- the published config and tensors ---------------------------------------------------------------------

_CAPTION, _ANSWER = "BlipForConditionalGeneration", "BlipForQuestionAnswering"


def _read(config: Config) -> spec.EncoderDecoderSpec:
    image: Any = _IMAGE.from_config(config.nested("vision_config", architectures=["BlipVisionModel"]))
    text_config = config.nested("text_config", architectures=["BlipTextLMHeadModel"])
    start, key = text_config.get("bos_token_id", 30522), "tie_word_embeddings"
    text_config.values[key] = config.get(key, True) or text_config.get(key, True)
    text: Any = _TEXT.from_config(text_config)
    if config.architecture == _ANSWER:  # its decoder reads a question, but is built for the width of images
        text_config.only("hidden_size", image.encoder.d_model, default=768)
        image = ask(image, text)
    return join(image, text, connector=False, start_id=start)


def _without_question(model: spec.EncoderDecoderSpec) -> spec.EncoderDecoderSpec:
    image: Any = model.source.children().get("image")
    return model if image is None else replace(model, source=image.input, encoder=image.encoder)


def _write(model: spec.ModelSpec) -> dict[str, Any]:
    assert isinstance(model, spec.EncoderDecoderSpec)
    captioner = _without_question(model)
    image, text = (part.family.to_config(own) for part, own in parts_of(captioner, *_PARTS))
    del image["architectures"], text["architectures"]
    width = captioner.encoder.d_model
    return {
        "model_type": "blip",
        "architectures": [_CAPTION if captioner is model else _ANSWER],
        "text_config": {**text, "bos_token_id": model.start_id, "encoder_hidden_size": width},
        "vision_config": image,
        "tie_word_embeddings": text["tie_word_embeddings"],
    }


def _table(model: spec.ModelSpec, names: Collection[str]) -> WeightTable:
    assert isinstance(model, spec.EncoderDecoderSpec)
    captioner = _without_question(model)
    image, text = parts_of(captioner, *_PARTS)
    rows = part_rows("text_decoder.", *text, names, embed="tgt_embed", stack="decoder")
    if captioner is model:
        rows += part_rows("vision_model.", *image, names, embed="src_embed", stack="encoder")
    else:
        inner, bare = "src_embed.image", replace(text[1], head=spec.FeaturesSpec(), tied=())
        rows += part_rows("vision_model.", *image, names, embed=f"{inner}.embed", stack=f"{inner}.encoder")
        rows += part_rows("text_encoder.", _QUESTION, bare, names, embed="src_embed", stack="encoder")
    return WeightTable(rows)


FAMILY = Family(
    name="blip",
    builder=Builder(partial(join_families, _IMAGE, _TEXT, False), lambda model: {}),
    defaults={
        **{"image_size": 384, "vocab_size": 30524, "max_len": 512, "decoder_dropout": 0.0},
        **{"pad_id": 0, "start_id": 30522},
    },
    heads=dict.fromkeys((_CAPTION, _ANSWER), Head(spec.DenseLanguageModelSpec, from_options=True)),
    presets={
        "blip-image-captioning-base": {},
        "blip-image-captioning-large": preset(
            1024, 16, 24, 4096, decoder_d_model=768, decoder_heads=12, decoder_layers=12
        ),
        "blip-vqa-base": {"question": True},
    },
    tiny=preset(32, 4, 2, 64, image_size=16, patch_size=4, vocab_size=101, max_len=64, start_id=1),
    generation={"eos_token_id": ("text_config", "sep_token_id")},
    weight_table=_table,
    reader=_read,
    writer=_write,
)
