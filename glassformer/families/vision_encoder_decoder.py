"""Vision encoder-decoders: an image encoder and a causal text decoder of other families.

The config nests the configs of both families, and the tensors have their names with the prefixes `encoder.`
and `decoder.`. This file adds what neither family has: cross-attention, the connector, and the decoder of
TrOCR, which is published only here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

from glassformer.core import spec
from glassformer.families import bert, deit, gpt2, roberta, swin, swinv2, vit
from glassformer.families.config import Config
from glassformer.families.encoder_decoder import BLOCK, CROSS_ATTENTION, encoder_decoder
from glassformer.families.encoder_decoder import KEYS as BART_KEYS
from glassformer.families.family import Builder, Family, preset, spec_options
from glassformer.families.image_encoder import Size
from glassformer.families.keys import Head, Key, fixed
from glassformer.families.parts import CrossRows, Part, find_fields
from glassformer.families.rows import layer_rows, rename_modules
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Ignored, Op, Rename, Split, Tied, Transpose, expand, rename_op

# ---- the decoder of TrOCR: BART's, without an encoder -----------------------------------------------------


def _trocr(*, tied: bool = True, **options: Any) -> spec.DecoderOnlySpec:
    size = options.get("vocab_size", 50265)
    both = encoder_decoder(position="learned", head=spec.LanguageModelSpec(vocab_size=size), **options)
    return spec.DecoderOnlySpec(
        input=both.target,
        decoder=replace(both.decoder, block=replace(both.decoder.block, cross_attention=None)),
        head=both.head,
        tied=("head",) if tied else (),
    )


def _trocr_rows(model: spec.DecoderOnlySpec) -> tuple[Op, ...]:
    token, output = "{base}embed_tokens.weight", "output_projection.weight"
    tied = Tied((token, output), "embed.token.weight")
    return (
        *((tied,) if model.tied else (Rename(token, "embed.token.weight"), Rename(output, "head.weight"))),
        Rename("{base}embed_positions.weight", "embed.position.weight"),
        *rename_modules(("{base}layernorm_embedding", "embed.norm")),
        *layer_rows("{base}layers.{i}", "decoder.blocks.{i}", model.decoder.num_layers, BLOCK),
    )


_TROCR = Family(
    name="trocr",
    builder=Builder(_trocr, lambda model: spec_options(model) | {"scaled": model.input.scale != 1.0}),
    keys=(
        Key("vocab_size"),
        Key("d_model", aliases=("hidden_size",)),
        Key("decoder_layers", "num_layers", aliases=("num_hidden_layers",)),
        Key("decoder_attention_heads", "num_heads", aliases=("num_attention_heads",)),
        Key("decoder_ffn_dim", "d_ff"),
        Key("max_position_embeddings", "max_len", 512),
        *(key for key in BART_KEYS if "dropout" in str(key.options) or "activation" in str(key.options)),
        Key("scale_embedding", "scaled", False),
        Key("pad_token_id", "pad_id", 1),
        Key("tie_word_embeddings", "tied", True),
        fixed("use_learned_position_embeddings", True),
        fixed("layernorm_embedding", True),
    ),
    heads={"TrOCRForCausalLM": Head(spec.LanguageModelSpec, from_options=True)},
    presets={},
    tiny={},
    rows=_trocr_rows,
    prefixes=("model.decoder.",),
)

# ---- encoders and decoders by their model_type ------------------------------------------------------------


def _cross_gpt2(prefix: str, stack: spec.StackSpec) -> tuple[Op, ...]:
    theirs, ours = f"{prefix}h.{{i}}.crossattention", "decoder.blocks.{i}.cross_attn"
    rows = (
        Transpose(f"{theirs}.q_attn.{{p}}", f"{ours}.q_proj.{{p}}"),
        Split(
            f"{theirs}.c_attn.{{p}}", f"{ours}.{{k,v}}_proj.{{p}}", sizes=(stack.d_model,) * 2, transpose=True
        ),
        Transpose(f"{theirs}.c_proj.{{p}}", f"{ours}.out_proj.{{p}}"),
        Rename(f"{prefix}h.{{i}}.ln_cross_attn.{{p}}", "decoder.blocks.{i}.norm_cross.{p}"),
        Ignored(f"{prefix}h.*.crossattention.bias"),  # causal masks, in older files
        Ignored(f"{prefix}h.*.crossattention.masked_bias"),
    )
    return expand(rows, i=stack.num_layers, p=("weight", "bias"))


def _cross_rows(layers: str, modules: Mapping[str, str]) -> CrossRows:
    """Return the rows of modules of a layer. layers: published names of the layers below the prefix."""
    return lambda prefix, stack: layer_rows(
        f"{prefix}{layers}.{{i}}", "decoder.blocks.{i}", stack.num_layers, modules
    )


cross_bert = _cross_rows(
    "encoder.layer",
    {
        "crossattention.self.{query,key,value}": "cross_attn.{q,k,v}_proj",
        "crossattention.output.dense": "cross_attn.out_proj",
        "crossattention.output.LayerNorm": "norm_cross",
    },
)
ENCODERS = {
    "vit": Part(vit.FAMILY, "ViTModel"),
    "deit": Part(deit.FAMILY, "DeiTModel"),
    "swin": Part(swin.FAMILY, "SwinModel"),
    "swinv2": Part(swinv2.FAMILY, "Swinv2Model"),
}
DECODERS = {
    "gpt2": Part(gpt2.FAMILY, "GPT2LMHeadModel", cross=_cross_gpt2),
    "bert": Part(bert.FAMILY, "BertForMaskedLM", cross=cross_bert),
    "roberta": Part(roberta.FAMILY, "RobertaForMaskedLM", cross=cross_bert),
    "xlm-roberta": Part(roberta.FAMILY, "XLMRobertaForMaskedLM", cross=cross_bert),
    "trocr": Part(_TROCR, "TrOCRForCausalLM", cross=_cross_rows("layers", CROSS_ATTENTION)),
}

# ---- the spec, from those of both families and back -------------------------------------------------------

_INIT = spec.NormalSpec(std=0.02)


def join(encoder: Any, decoder: Any, *, connector: bool, start_id: int | None) -> spec.EncoderDecoderSpec:
    """Join an image encoder and a text model, which gets a causal mask and cross-attention."""
    stack, head = getattr(decoder, "decoder", None) or decoder.encoder, decoder.head
    if isinstance(head, spec.MaskedLanguageModelSpec):
        head = spec.DenseLanguageModelSpec(**vars(head))
    return spec.EncoderDecoderSpec(
        source=encoder.input,
        target=decoder.input,
        encoder=encoder.encoder,
        decoder=replace(with_cross_attention(stack), causal=True),
        head=head,
        connector=connector,
        tied=decoder.tied,
        start_id=start_id,
        init=_INIT,
    )


def ask(encoder: Any, text: spec.EncoderOnlySpec) -> spec.EncoderOnlySpec:
    """Create the spec of a text encoder with cross-attention to the output of an image encoder."""
    source = spec.ImageMemorySpec(**vars(text.input), image=encoder)
    return replace(text, input=source, encoder=with_cross_attention(text.encoder))


def with_cross_attention(stack: Any) -> spec.StackSpec:
    """Add cross-attention like its self-attention to every layer of a stack."""
    return replace(stack, block=replace(stack.block, cross_attention=stack.block.attention))


def parts_of(
    model: spec.EncoderDecoderSpec,
    encoders: Mapping[str, Part] = ENCODERS,
    decoders: Mapping[str, Part] = DECODERS,
) -> tuple[tuple[Part, Any], tuple[Part, Any]]:
    """Return the families of the encoder and of the decoder, with their specs; the inverse of `join`."""
    head: Any = spec.FeaturesSpec(pool="mean" if isinstance(model.encoder, spec.StagesSpec) else None)
    encoder = {"input": model.source, "encoder": model.encoder, "head": head}
    stack = replace(model.decoder, block=replace(model.decoder.block, cross_attention=None))
    decoder: dict[str, Any] = {"input": model.target, "decoder": stack, "head": model.head}
    if isinstance(model.head, spec.DenseLanguageModelSpec):
        head = spec.MaskedLanguageModelSpec(**vars(model.head))
        decoder = {"input": model.target, "encoder": replace(stack, causal=False), "head": head}
    return find_fields(encoders, **encoder), find_fields(decoders, **decoder, tied=model.tied)


def join_families(
    encoder_family: Family,
    decoder_family: Family,
    has_connector: bool,
    question: bool = False,
    *,
    image_size: Size = 224,
    patch_size: Size = 16,
    channels: int = 3,
    d_model: int = 768,
    num_heads: int = 12,
    d_ff: int = 3072,
    num_layers: int = 12,
    dropout: float = 0.0,
    vocab_size: int = 50257,
    max_len: int = 1024,
    decoder_d_model: int | None = None,
    decoder_heads: int | None = None,
    decoder_d_ff: int | None = None,
    decoder_layers: int | None = None,
    decoder_dropout: float = 0.1,
    pad_id: int | None = None,
    start_id: int | None = 50256,
) -> spec.EncoderDecoderSpec:
    """Create the spec of an encoder and a decoder of two families; the defaults are ViT-Base and GPT-2.

    has_connector: whether a dense layer projects image tokens to the width of the decoder, if they differ.
    question: whether a second encoder, with the parts of the decoder, reads a question about the image.
    decoder_d_model, decoder_heads, decoder_d_ff, decoder_layers: by default as in the encoder.
    """
    encoder = encoder_family.build(
        image_size=image_size,
        patch_size=patch_size,
        channels=channels,
        d_model=d_model,
        num_heads=num_heads,
        d_ff=d_ff,
        num_layers=num_layers,
        dropout=dropout,
        head=spec.FeaturesSpec(),
    )
    width = decoder_d_model or d_model
    dropouts = {"dropout", "attention_dropout", "embed_dropout"} & {
        *signature(decoder_family.build).parameters
    }
    decoder = decoder_family.build(
        vocab_size=vocab_size,
        max_len=max_len,
        d_model=width,
        num_heads=decoder_heads or num_heads,
        d_ff=decoder_d_ff or (d_ff if width == d_model else 4 * width),
        num_layers=num_layers if decoder_layers is None else decoder_layers,
        pad_id=pad_id,
        **dict.fromkeys(dropouts, decoder_dropout),
    )
    encoder = ask(encoder, decoder) if question else encoder
    return join(encoder, decoder, connector=has_connector and width != d_model, start_id=start_id)


# ---- config and weights -----------------------------------------------------------------------------------


def _read(config: Config) -> spec.EncoderDecoderSpec:
    def read(name: str, parts: Mapping[str, Part], **changes: Any) -> Any:
        part = config.nested(name).choose("model_type", parts, None)
        own = config.nested(name, architectures=[part.architecture], **changes)
        return part.family.from_config(own)

    nested = config.nested("decoder")
    nested.only("is_decoder", True)
    nested.only("add_cross_attention", True)
    memory_dim = nested.maybe("cross_attention_hidden_size", int)
    encoder = read("encoder", ENCODERS, add_pooling_layer=False)
    decoder = read("decoder", DECODERS, is_decoder=False, add_cross_attention=False)
    config.only("is_encoder_decoder", True, default=True)
    start = config.maybe("decoder_start_token_id", int)
    connector = encoder.encoder.d_model != decoder.stacks().popitem()[1].d_model and memory_dim is None
    start = nested.maybe("decoder_start_token_id", int) if start is None else start
    return join(encoder, decoder, connector=connector, start_id=start)


def _write(model: spec.ModelSpec) -> dict[str, Any]:
    assert isinstance(model, spec.EncoderDecoderSpec)
    configs = [part.family.to_config(own) for part, own in parts_of(model)]
    for config in configs:
        del config["architectures"]
    width = model.encoder.d_model
    memory = (
        {} if model.connector or width == model.decoder.d_model else {"cross_attention_hidden_size": width}
    )
    return {
        "model_type": "vision-encoder-decoder",
        "architectures": ["VisionEncoderDecoderModel"],
        "is_encoder_decoder": True,
        "tie_word_embeddings": False,  # of encoder and decoder; the decoder ties its own
        "encoder": configs[0],
        "decoder": {**configs[1], "is_decoder": True, "add_cross_attention": True, **memory},
        "decoder_start_token_id": model.start_id,
        "pad_token_id": getattr(model.target, "pad_id", None),
    }


def part_rows(
    prefix: str, part: Part, own: Any, names: Collection[str], *, embed: str, stack: str
) -> tuple[Op, ...]:
    """Return the rows of an encoder or a decoder. prefix: of its published names.

    own: its spec. names: tensors of the file. embed, stack: Glassformer's names of its embedding and stack.
    """
    table = part.family.table(own, [n.removeprefix(prefix) for n in names if n.startswith(prefix)])
    ours = {"embed": embed, "encoder": stack, "decoder": stack}

    def rename(path: str) -> str:
        first, _, rest = path.partition(".")
        return f"{ours.get(first, first)}.{rest}"

    (own_stack,) = own.stacks().values()
    rows = (*table.rows(table.base[0]), *part.cross(table.base[0], own_stack))
    return tuple(rename_op(op, prefix.__add__, rename) for op in rows)


def _table(model: spec.ModelSpec, names: Collection[str]) -> WeightTable:
    assert isinstance(model, spec.EncoderDecoderSpec)
    encoder, decoder = parts_of(model)
    return WeightTable(
        (
            *rename_modules(*[("enc_to_dec_proj", "connector")] * model.connector),
            *part_rows("encoder.", *encoder, names, embed="src_embed", stack="encoder"),
            *part_rows("decoder.", *decoder, names, embed="tgt_embed", stack="decoder"),
        )
    )


_SMALL = preset(256, 4, 6, 1024, image_size=64, patch_size=8, vocab_size=2048, max_len=64, decoder_layers=4)

FAMILY = Family(
    name="vision_encoder_decoder",
    model_type="vision-encoder-decoder",
    builder=Builder(
        partial(join_families, vit.FAMILY, gpt2.FAMILY, True, False), lambda model: {}
    ),  # both parts have their own
    heads={
        "VisionEncoderDecoderModel": Head(
            spec.LanguageModelSpec | spec.DenseLanguageModelSpec, from_options=True
        )
    },
    presets={"vit-gpt2": {}, "vit-gpt2-mini": {**_SMALL, "start_id": 1, "pad_id": 0}},
    tiny=preset(32, 4, 2, 64, image_size=16, patch_size=4, vocab_size=101, max_len=64, start_id=1),
    weight_table=_table,
    reader=_read,
    writer=_write,
)
