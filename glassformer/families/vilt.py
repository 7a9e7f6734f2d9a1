"""ViLT: one pre-norm encoder of a question's tokens and an image's patches; the first token is classified."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from glassformer.core import spec
from glassformer.families.family import Builder, Family, preset, spec_options
from glassformer.families.image_encoder import KEYS, LAYER, QUERIES, Size, image_encoder, square_sizes
from glassformer.families.keys import Head, Key, Rule, fixed
from glassformer.families.rows import layer_rows, rename_modules
from glassformer.weights.ops import Ignored, Op, Rename


def vilt(
    *,
    vocab_size: int = 30522,
    max_len: int = 40,
    types: int = 2,
    pad_id: int | None = None,
    image_size: Size = 384,
    patch_size: Size = 32,
    channels: int = 3,
    image_kinds: int = 1,
    d_model: int = 768,
    num_heads: int = 12,
    d_ff: int = 3072,
    num_layers: int = 12,
    activation: spec.Activation = "gelu",
    norm_eps: float = 1e-12,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    qkv_bias: bool = True,
    num_labels: int = 3129,
    head: spec.HeadSpec | None = None,
) -> spec.EncoderOnlySpec:
    """Create the spec of an encoder of questions and images; the defaults are ViLT-B/32 for VQA v2.

    image_size: of the table of patch positions, which are interpolated for images of other sizes.
    image_kinds: number of trained vectors for images: one for each image of a text.
    """
    vision = image_encoder(
        image_size=image_size,
        patch_size=patch_size,
        channels=channels,
        d_model=d_model,
        num_heads=num_heads,
        d_ff=d_ff,
        num_layers=num_layers,
        activation=activation,
        norm_eps=norm_eps,
        dropout=dropout,
        attention_dropout=attention_dropout,
        qkv_bias=qkv_bias,
        interpolate=True,
    )
    text = spec.TokensSpec(
        vocab_size=vocab_size,
        position=spec.LearnedSpec(max_len=max_len),
        types=types,
        norm=vision.encoder.final_norm,
        dropout=dropout,
        pad_id=pad_id,
    )
    patches: Any = vision.input
    return replace(
        vision,
        input=spec.TokensAndPatchesSpec(
            text=text, image=replace(patches, interpolation="bilinear"), image_kinds=image_kinds
        ),
        head=head or spec.PoolerClassifySpec(num_labels=num_labels, hidden_dim=2 * d_model),
    )


def _invert(model: Any) -> dict[str, Any]:
    """Return the options of `vilt` that give a spec."""
    image = {name: getattr(model.input.image, name) for name in ("image_size", "patch_size", "channels")}
    return {**spec_options(model), **image, "image_kinds": model.input.image_kinds}


def _rows(model: Any) -> tuple[Op, ...]:
    embeddings, ours = "{base}embeddings", "encoder.blocks.{i}"
    words = f"{embeddings}.text_embeddings"
    biased = "q" in model.encoder.block.attention.biases
    names = {theirs: name for theirs, _, name in LAYER}
    return (
        *layer_rows(
            "{base}encoder.layer.{i}",
            ours,
            model.encoder.num_layers,
            {theirs: name for theirs, _, name in QUERIES},
            ("weight", "bias") if biased else ("weight",),
        ),
        *layer_rows("{base}encoder.layer.{i}", ours, model.encoder.num_layers, names),
        Rename(f"{words}.word_embeddings.weight", "embed.text.token.weight"),
        Rename(f"{words}.position_embeddings.weight", "embed.text.position.weight"),
        Rename(f"{words}.token_type_embeddings.weight", "embed.text.kind.weight"),
        Rename(f"{embeddings}.cls_token", "embed.image.prefix"),
        Rename(f"{embeddings}.position_embeddings", "embed.image.position"),
        Rename(f"{embeddings}.token_type_embeddings.weight", "embed.kind.weight"),
        *rename_modules(
            (f"{words}.LayerNorm", "embed.text.norm"),
            (f"{embeddings}.patch_embeddings.projection", "embed.image.patch"),
            ("{base}layernorm", "encoder.final_norm"),
            ("{base}pooler.dense", "head.pooler"),
            ("classifier.0", "head.dense"),
            ("classifier.1", "head.norm"),
            ("classifier.3", "head.out"),
        ),
        Ignored(f"{words}.position_ids"),  # 0, 1, 2, ... in older files
    )


_HIDDEN_DIM = Rule(("hidden_dim",), lambda config, _: {"hidden_dim": 2 * config.get("hidden_size", 768)})
_SMALL = preset(256, 4, 6, 1024, image_size=64, patch_size=8, vocab_size=2048, max_len=32)

FAMILY = Family(
    name="vilt",
    builder=Builder(vilt, _invert),
    keys=(
        square_sizes(384, 32),
        *KEYS,
        Key("vocab_size", default=30522),
        Key("max_position_embeddings", "max_len", 40),
        Key("type_vocab_size", "types", 2),
        Key("modality_type_vocab_size", "image_kinds", values={n + 1: n for n in range(1, 9)}, default=2),
        Key("pad_token_id", "pad_id", None),
        fixed("max_image_length", -1),
    ),
    heads={"ViltForQuestionAnswering": Head(spec.PoolerClassifySpec, (_HIDDEN_DIM,))},
    presets={"vilt-b32": {}, "vilt-mini": {**_SMALL, "pad_id": 0}},
    tiny=preset(32, 4, 2, 64, image_size=16, patch_size=4, vocab_size=101, max_len=16, num_labels=10),
    rows=_rows,
    prefixes=("vilt.",),
)
